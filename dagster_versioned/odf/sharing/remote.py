"""A dataset as somebody else keeps it: everything is bounded, and nothing is believed that a hash does not prove.

The layout is that of the simple transfer protocol (seed 002): ``refs/head``, ``blocks/{hash}``, ``data/{hash}`` and
``checkpoints/{hash}`` below one root, be it a folder, a bucket or a URL.
"""

import hashlib
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from dagster_versioned.errors import ChainCorrupt, IntegrityError, InvalidInput, ObjectNotFound, UnsupportedFeature
from dagster_versioned.odf.blocks.block import MAX_BLOCK_SIZE, Block, block_hash, decode_block
from dagster_versioned.odf.blocks.events import AddData, ExecuteTransform
from dagster_versioned.odf.identity.multihash import HashAlgorithm, Multihash
from dagster_versioned.odf.identity.signing_key import MAX_SIGNATURE_BYTES, HeadSignature
from dagster_versioned.storage import Location, ObjectStore, open_store
from dagster_versioned.storage.http_store import HttpStore
from dagster_versioned.storage.transfer import MAX_PIECES, PIECE_BYTES
from dagster_versioned.tables.chain_head import BLOCKS, chain_head
from dagster_versioned.tables.parts import SLICES
from dagster_versioned.tables.table import VersionedTable

CHECKPOINTS = "checkpoints/"
REFERENCES = "refs/"
SIGNED = ".sig"
"""What follows a reference's name in that of the signature of its block."""
_MAX_REFERENCE_BYTES = 512
_MAX_FILE_BYTES = 5 * 1024**4
"""S3's largest object: what claims to be larger is meant to fill a disk."""


def open_remote(location: str | Location, *, profile: str | None = None, reference: str = "head") -> "RemoteDataset":
    """The dataset at a URL (http, https), a folder or ``s3://bucket/prefix``; nothing is read yet.

    It ends at the block that ``reference`` names.

    Raises `InvalidInput`.
    """
    if isinstance(location, str) and location.lower().startswith(("http://", "https://")):
        return RemoteDataset(HttpStore(location), reference)
    return RemoteDataset(open_store(location, profile=profile), reference)


def dataset_of(table: VersionedTable) -> "RemoteDataset":
    """The dataset that a table of events is, to verify or follow it.

    In an environment in which nothing was written to it, its log alone says where it ends.
    """
    environment, state = table.project.environment, table.state
    end = chain_head(state.snapshot)
    at_fork = environment is not None and state.log_version <= environment.forked_at(table.name)
    return RemoteDataset(table.store, last=Multihash.parse(end.head) if at_fork and end is not None else None)


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file that a block names: where it is, the hash of its bytes, and how many there are."""

    key: str
    physical_hash: Multihash
    size: int


def files_of(block: Block) -> list[StoredFile]:
    """The slice and the checkpoint that a block added. Raises `ChainCorrupt` for a hash that names no file."""
    event = block.event
    if not isinstance(event, AddData | ExecuteTransform):
        return []
    named = ((SLICES, event.new_data), (CHECKPOINTS, event.new_checkpoint))
    files = [
        StoredFile(f"{folder}{file.physical_hash}", file.physical_hash, file.size) for folder, file in named if file
    ]
    for file in files:
        if file.physical_hash.algorithm is not HashAlgorithm.SHA3_256:
            what = f"a file by {file.physical_hash}, which is no hash of bytes"
        elif file.size > _MAX_FILE_BYTES:
            what = f"a file of {file.size} bytes, and no file has more than {_MAX_FILE_BYTES}"
        else:
            continue
        raise ChainCorrupt(f"Block {block.sequence_number} names {what}. Nothing was copied.")
    return files


@dataclass(frozen=True, slots=True)
class RemoteDataset:
    """What a store says of a dataset, checked against the hashes by which it was asked for.

    Its end is the block that ``reference`` names, or ``last``, which no file has to name.
    """

    store: ObjectStore
    reference: str = "head"
    last: Multihash | None = field(default=None, kw_only=True)

    def since(self, at: Multihash | None, until: Multihash | None) -> "AbstractContextManager[RemoteDataset]":
        """The dataset for who has the blocks up to ``at`` and wants those up to ``until`` (``None``: all).

        Here it is this one, read by name; a smart server hands over what is new at once.
        """
        return nullcontext(self)

    @property
    def reference_key(self) -> str:
        """Where the hash of the last block is."""
        return f"{REFERENCES}{self.reference}"

    @property
    def signature_key(self) -> str:
        """Where the signature of that hash is, if its owner signed it."""
        return f"{self.reference_key}{SIGNED}"

    def head(self) -> Multihash:
        """The hash of the last block. Raises `ObjectNotFound`, `ChainCorrupt`."""
        if self.last is not None:
            return self.last
        try:
            data = self._bounded(self.reference_key, _MAX_REFERENCE_BYTES)
        except ObjectNotFound:
            raise ObjectNotFound(
                f"{self.store.uri} has no {self.reference_key}, so no dataset is there. "
                "Nothing was read. Name the folder that has refs, blocks and data in it."
            ) from None
        try:
            return Multihash.parse(data.decode("ascii").strip())
        except (InvalidInput, UnicodeDecodeError):
            raise ChainCorrupt(
                f"{self.reference_key} of {self.store.uri} names no block: {data[:80]!a}. Nothing was copied. Ask who "
                "publishes it."
            ) from None

    def signature(self) -> HeadSignature | None:
        """The signature beside the head, which holds for the head that it names. Raises `IntegrityError`."""
        try:
            return HeadSignature.parse(self._bounded(self.signature_key, MAX_SIGNATURE_BYTES))
        except ObjectNotFound:
            return None

    def block(self, name: Multihash) -> tuple[bytes, Block]:
        """A block by its hash. Raises `ChainCorrupt` for bytes with another one, or that are no block,
        `UnsupportedFeature` for one of a later version, and `ObjectNotFound`."""
        data = self._bounded(f"{BLOCKS}{name}", MAX_BLOCK_SIZE)
        if block_hash(data) != name:
            raise ChainCorrupt(
                f"Block {name} of {self.store.uri} has other bytes than its hash says. Nothing of it was kept. Pull "
                "from another source, or ask who publishes it."
            )
        try:
            return data, decode_block(data)
        except UnsupportedFeature as error:
            raise UnsupportedFeature(
                f"Block {name} of {self.store.uri} was written by a later version: {error} Nothing of it was kept. "
                "Upgrade this package."
            ) from None
        except ChainCorrupt as error:
            raise ChainCorrupt(
                f"Block {name} of {self.store.uri} has the bytes that its hash says, and is none: {error} Nothing of "
                "it was kept. Ask who publishes it."
            ) from None

    def pieces(self, file: StoredFile) -> Iterator[bytes]:
        """A file's bytes in pieces, the last of which comes only once the hash of all is the one that was promised.

        Raises `IntegrityError` as soon as it is another file, or a longer one, and `ObjectNotFound`.
        """
        digest, size, piece = hashlib.sha3_256(), 0, bytearray()
        length = max(PIECE_BYTES, math.ceil(file.size / MAX_PIECES))
        for chunk in self._chunks(file.key, file.size + 1, length):
            size += len(chunk)
            if size > file.size:
                raise self._altered(file, f"more than its {file.size} bytes")
            digest.update(chunk)
            piece += chunk
            if len(piece) >= length and size < file.size:
                yield bytes(piece)
                piece.clear()
        if size != file.size:
            raise self._altered(file, f"{size} bytes, not {file.size}")
        if digest.digest() != file.physical_hash.digest:
            raise self._altered(file, "other bytes than its hash says")
        yield bytes(piece)

    def _chunks(self, key: str, most: int, length: int) -> Iterator[bytes]:
        if isinstance(self.store, HttpStore):
            # In one request: a server that knows no ranges would send all that comes before each.
            yield from self.store.chunks(key)
            return
        for start in range(0, most, length):
            chunk = self.store.get_range(key, start, min(length, most - start))
            if not chunk:
                return
            yield chunk

    def _bounded(self, key: str, most: int) -> bytes:
        data = self.store.get_range(key, 0, most + 1)
        if len(data) > most:
            raise ChainCorrupt(
                f"{key} of {self.store.uri} is larger than {most} bytes, which it never is. Nothing of it was kept."
            )
        return data

    def _altered(self, file: StoredFile, what: str) -> IntegrityError:
        return IntegrityError(
            f"{file.key} of {self.store.uri} has {what}. Nothing of it was kept. Pull from another source, or ask who "
            "publishes it."
        )
