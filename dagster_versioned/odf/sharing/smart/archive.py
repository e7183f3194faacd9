"""Blocks in an archive of the smart transfer protocol: a gzipped tar, each member named by its block's hash."""

import gzip
import io
import tarfile
import zlib
from collections.abc import Iterable

from dagster_versioned.errors import IntegrityError, InvalidInput, UnsupportedFeature
from dagster_versioned.odf.blocks.block import MAX_BLOCK_SIZE
from dagster_versioned.odf.identity.multihash import HashAlgorithm, Multihash
from dagster_versioned.odf.sharing.smart.messages import MAX_MESSAGE_BYTES, Batch

MAX_UNPACKED_BYTES = 256 * 1024**2
"""What the blocks of one message have at most, since they are in memory; more is for the simple protocol."""
_MEDIA_TYPE, _ENCODING = "application/tar+gzip", "raw"


def pack(blocks: Iterable[tuple[Multihash, bytes]]) -> Batch:
    """The message of blocks, the oldest first. Raises `InvalidInput` where they are more than one can have."""
    written, count = io.BytesIO(), 0
    with tarfile.open(fileobj=written, mode="w:gz", format=tarfile.GNU_FORMAT) as archive:
        for name, data in blocks:
            member = tarfile.TarInfo(str(name))
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
            count += 1
    payload = written.getvalue()
    if 4 * len(payload) > MAX_MESSAGE_BYTES - 1024:
        raise InvalidInput(
            f"{count} blocks have {len(payload)} bytes packed, and one message of the smart transfer protocol holds "
            f"{MAX_MESSAGE_BYTES // 4}. Nothing was changed. Pull by http(s)://, which reads block by block."
        )
    return Batch(num_blocks=count, media_type=_MEDIA_TYPE, encoding=_ENCODING, payload=payload)


def unpack(batch: Batch, origin: str) -> dict[Multihash, bytes]:
    """The blocks of a message, in its order; that a block has the hash that it is named by is for who reads it.

    Raises `UnsupportedFeature` for another kind of archive, `IntegrityError` for what is no such archive or too much.
    """
    if (batch.media_type, batch.encoding) != (_MEDIA_TYPE, _ENCODING):
        raise UnsupportedFeature(
            f"{origin} sent blocks as {batch.media_type!a:.100}, {batch.encoding!a:.100}; {_MEDIA_TYPE!r}, "
            f"{_ENCODING!r} is known. Nothing of it was kept. Upgrade this package, or pull by http(s)://."
        )
    found: dict[Multihash, bytes] = {}
    try:
        with (
            _BoundedGzip(batch.payload) as unzipped,
            tarfile.open(fileobj=unzipped, mode="r|") as archive,
        ):
            for member in archive:
                if len(found) == batch.num_blocks:
                    raise IntegrityError(f"it holds more blocks than the {batch.num_blocks} that it is to have")
                name = _name(member)
                file = archive.extractfile(member)
                found[name] = b"" if file is None else file.read()
    except (tarfile.TarError, EOFError, zlib.error, OSError, ValueError, OverflowError, IntegrityError) as error:
        raise _no_archive(origin, str(error) or type(error).__name__) from None
    if len(found) != batch.num_blocks:
        raise _no_archive(origin, f"it holds {len(found)} blocks, not {batch.num_blocks}")
    return found


def _name(member: tarfile.TarInfo) -> Multihash:
    """The block that a member is. Raises `IntegrityError`, also for a path: nothing is written by a member's name."""
    if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or member.issparse():
        raise IntegrityError(f"the member {member.name!a:.100} is no plain file")
    if member.size > MAX_BLOCK_SIZE:
        raise IntegrityError(f"the member {member.name!a:.100} has {member.size} bytes, and a block has fewer")
    try:
        name = Multihash.parse(member.name)
    except InvalidInput:
        name = None
    if name is None or name.algorithm is not HashAlgorithm.SHA3_256:
        raise IntegrityError(f"the member {member.name!a:.100} is named by no hash of a block")
    return name


class _BoundedGzip(gzip.GzipFile):
    """An unpacked archive, of which no more is read than there may be: a small one may unpack to a large one."""

    def __init__(self, payload: bytes) -> None:
        super().__init__(fileobj=io.BytesIO(payload))
        self._left = MAX_UNPACKED_BYTES

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        self._left -= len(data)
        if self._left < 0:
            raise IntegrityError(f"its blocks have more than {MAX_UNPACKED_BYTES} bytes")
        return data


def _no_archive(origin: str, why: str) -> IntegrityError:
    return IntegrityError(
        f"{origin} sent an archive of blocks that cannot be used: {why}. Nothing of it was kept. Pull by http(s)://, "
        "or ask who publishes it."
    )
