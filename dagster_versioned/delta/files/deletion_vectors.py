"""Deletion vectors: which rows of a data file are gone. Protocol: *Deletion Vectors*, *Deletion Vector Format*."""

import base64
import binascii
import re
import struct
import zlib
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

import numpy as np
from numpy.typing import NDArray

from dagster_versioned.delta.actions import Add, DeletionVector
from dagster_versioned.delta.files import statistics
from dagster_versioned.delta.files.external_files import reach_of
from dagster_versioned.delta.paths import cloud_uri, confined_key, decode_path
from dagster_versioned.errors import IntegrityError, InvalidInput, LogCorrupt, ObjectNotFound, UnsupportedFeature
from dagster_versioned.storage.object_store import ObjectStore

if TYPE_CHECKING:
    from pyroaring import BitMap64

PORTABLE = 1681511377
"""The magic number of what the protocol describes: a 64-bit bitmap in Roaring's portable format, little endian."""

NATIVE = 1681511376
"""The magic number of the older form: a count, then each 32-bit bitmap behind its size. The protocol's own inline
example has it, with these numbers in big endian; the reference writes them in little endian as well."""

INLINE_BYTES = 1024
"""Up to so many, a vector is kept in its descriptor where its place is free to choose: some hundred scattered rows."""

_FILE_VERSION = 1
_UUID_LENGTH = 20

_Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85 = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_TO_B85 = bytes.maketrans(_Z85, _B85)
_TO_Z85 = bytes.maketrans(_B85, _Z85)


def deleted_rows(
    store: ObjectStore, vector: DeletionVector, num_records: int, of: str, sha: str | None = None
) -> NDArray[np.int64]:
    """The positions of the deleted rows, ascending, in the data file ``of``, which has ``num_records`` rows.

    ``store`` is that of the table's folder, ``sha`` the `vector_sha` that it must have. Raises `LogCorrupt` for a
    descriptor that makes no sense, `UnsupportedFeature` for a file outside the table's folder, and `IntegrityError` for
    bytes that are missing, altered, of another cardinality, or that delete rows which the file does not have.
    """
    payload = vector_bytes(store, vector, of)
    place = "in its descriptor" if vector.storage_type == "i" else vector_key(store, vector, of)
    if sha is not None and (found := sha256(payload).hexdigest()) != sha:
        raise _broken(place, of, f"was altered: it has the SHA-256 {found} instead of {sha}")
    return _rows_of(payload, vector, num_records, of, place)


def _rows_of(payload: bytes, vector: DeletionVector, num_records: int, of: str, place: str) -> NDArray[np.int64]:
    bitmap = _bitmap(payload, place, of)
    if len(bitmap) != vector.cardinality:
        raise _broken(place, of, f"holds {len(bitmap)} rows instead of {vector.cardinality}")
    # Before they are spelled out: a few bytes can stand for more rows than memory has room for.
    if bitmap and (last := bitmap.max()) >= num_records:
        raise _broken(place, of, f"deletes row {last}, but the file has {num_records} rows")
    return np.asarray(bitmap.to_array(), np.uint64).astype(np.int64)


def vector_sha(store: ObjectStore, vector: DeletionVector, of: str) -> str:
    """The SHA-256 (64 hex) of the serialized bitmap, its magic number first, wherever it is stored. Raises as
    `deleted_rows` does for the file."""
    return sha256(vector_bytes(store, vector, of)).hexdigest()


def inlined(store: ObjectStore, vector: DeletionVector, of: str) -> DeletionVector:
    """The same vector with its bytes in the descriptor, for who cannot reach the table's folder. Raises as
    `deleted_rows` does for the file."""
    if vector.storage_type == "i":
        return vector
    payload = vector_bytes(store, vector, of)
    return replace(vector, storage_type="i", path_or_inline_dv=z85_encode(payload), offset=None)


def write_vectors(store: ObjectStore, deleted: Mapping[str, NDArray[np.int64]]) -> dict[str, DeletionVector]:
    """Store which rows of which data files are gone, in one new file; their vectors, by the same keys.

    The positions are those of *all* deleted rows of the data file, with those that were before; order and repetitions
    do not matter. Raises `InvalidInput` for a file without any, and for positions that are none. Protocol: *Deletion
    Vector File Storage Format*.
    """
    if not deleted:
        return {}
    name = uuid4()
    data, offsets = _one_file(payloads := {of: _serialized(rows, of) for of, rows in deleted.items()})
    store.put(_file_key(name), data)
    return {of: _in_file(name, *payloads[of], offset) for of, offset in offsets.items()}


@dataclass(frozen=True, slots=True)
class NamedVectors:
    """Deletion vectors that are the same wherever the same rows are deleted, by data file, each with its `vector_sha`;
    and the files that they need, by key."""

    vectors: Mapping[str, tuple[DeletionVector, str]]
    files: Mapping[str, bytes]

    def positions(self, of: str, num_records: int) -> NDArray[np.int64]:
        """`deleted_rows` of a data file with so many rows, by the bytes that are to be stored."""
        vector, _ = self.vectors[of]
        place = "in its descriptor" if vector.storage_type == "i" else _named_key(vector, of)
        if vector.storage_type == "i":
            payload = _inline_payload(vector, of)
        else:
            start = vector.offset or 1
            payload = _in_block(self.files[place][start : start + vector.size_in_bytes + 8], vector, of, place)
        return _rows_of(payload, vector, num_records, of, place)


def named_by_content(deleted: Mapping[str, NDArray[np.int64]], inline_bytes: int = INLINE_BYTES) -> NamedVectors:
    """As `write_vectors`, but nothing is stored yet, small vectors are in their descriptors, and the others are in one
    file whose name comes from its bytes. Raises as `write_vectors`."""
    payloads = {of: _serialized(rows, of) for of, rows in sorted(deleted.items())}
    large = {of: payload for of, payload in payloads.items() if len(payload[0]) > inline_bytes}
    data, offsets = _one_file(large)
    name = UUID(bytes=sha256(data).digest()[:16])
    vectors = {
        of: _in_file(name, payload, cardinality, offsets[of])
        if of in offsets
        else DeletionVector("i", z85_encode(payload), len(payload), cardinality)
        for of, (payload, cardinality) in payloads.items()
    }
    shas = {of: (vector, sha256(payloads[of][0]).hexdigest()) for of, vector in vectors.items()}
    return NamedVectors(shas, {_file_key(name): data} if large else {})


def with_vector(add: Add, vector: DeletionVector, num_records: int) -> Add:
    """The file with its new vector, and with the rows that it has in all; its bounds are wide from now on. Protocol:
    *Per-file Statistics*."""
    known = statistics.known(add.stats) | {"numRecords": num_records, "tightBounds": False}
    return replace(add, deletion_vector=vector, stats=statistics.to_json(known), data_change=True)


def vector_key(store: ObjectStore, vector: DeletionVector, of: str) -> str:
    """The object key of the file that a vector of storage type ``u`` or ``p`` is in. Raises as `deleted_rows`."""
    return _named_key(vector, of) if vector.storage_type == "u" else _placed_key(store, vector, of)


def _named_key(vector: DeletionVector, of: str) -> str:
    name = vector.path_or_inline_dv
    prefix, encoded = name[:-_UUID_LENGTH], name[-_UUID_LENGTH:]
    raw = z85_decode(encoded) if len(encoded) == _UUID_LENGTH else None
    if raw is None or prefix in (".", "..") or any(character in prefix for character in "/\\\0"):
        raise _senseless(vector, of, "its path is no prefix and Base85 UUID")
    return f"{prefix}/" * bool(prefix) + _file_key(UUID(bytes=raw))


def _placed_key(store: ObjectStore, vector: DeletionVector, of: str) -> str:
    name = vector.path_or_inline_dv
    root, path = _plain(store.uri), _plain(decode_path(name))
    if not path.startswith(f"{root.rstrip('/')}/"):
        if path.startswith("/") or cloud_uri(path):
            try:
                return reach_of(store).admitted(name)
            except UnsupportedFeature as error:
                error.add_note(f"It is where the deletion vector of the file {of!r} is.")
                raise
        raise _senseless(vector, of, "its path is not absolute")
    # Quoted segments such as `..` are caught like those of any other path.
    return confined_key(path[len(root.rstrip("/")) + 1 :].replace("%", "%25"))


def _plain(place: str) -> str:
    """One spelling for a folder or file: that of `decode_path`, and of `cloud_uri`."""
    joined = re.sub("/+", "/", place)
    return cloud_uri(joined) or joined


def _file_key(name: UUID) -> str:
    return f"deletion_vector_{name}.bin"


# --- bytes -----------------------------------------------------------------------------------------------------------


def vector_bytes(store: ObjectStore, vector: DeletionVector, of: str) -> bytes:
    """The serialized bitmap, its magic number first, wherever it is stored. Raises as `deleted_rows` for the file."""
    match vector.storage_type:
        case "i":
            return _inline_payload(vector, of)
        case "u" | "p":
            return _stored_payload(store, vector, of)
        case other:
            raise _senseless(vector, of, f"its storage type is {other!r:.20}")


def _inline_payload(vector: DeletionVector, of: str) -> bytes:
    raw, size = z85_decode(vector.path_or_inline_dv), vector.size_in_bytes
    if raw is None:
        raise _senseless(vector, of, "its bytes are not Base85 (Z85)")
    if not 0 <= len(raw) - size < 4:  # Base85 comes in fours
        raise _senseless(vector, of, f"it holds {len(raw)} bytes instead of {size}")
    return raw[:size]


def _stored_payload(store: ObjectStore, vector: DeletionVector, of: str) -> bytes:
    """Protocol: *Deletion Vector File Storage Format*."""
    key, size = vector_key(store, vector, of), vector.size_in_bytes
    start = 1 if vector.offset is None else vector.offset
    if start < 1:
        raise _senseless(vector, of, f"its offset is {start}")
    try:
        version = store.get_range(key, 0, 1)
        stored = store.get_range(key, start, size + 8)
    except ObjectNotFound as error:
        raise IntegrityError(
            f"The deletion vector file {key} of {of!r} is missing from {store.uri}. No row was returned. Restore it"
            " from a copy."
        ) from error
    if version != bytes([_FILE_VERSION]):
        raise _broken(key, of, f"is in a file of version {version.hex() or 'none'} instead of {_FILE_VERSION:02x}")
    return _in_block(stored, vector, of, key)


def _in_block(stored: bytes, vector: DeletionVector, of: str, key: str) -> bytes:
    """The bytes of a vector, out of those between its offset and its end. Protocol: *Deletion Vector File Storage
    Format*."""
    size = vector.size_in_bytes
    if len(stored) != size + 8:
        raise _broken(key, of, f"ends after {len(stored)} of {size + 8} bytes")
    (found,) = struct.unpack_from(">i", stored)
    if found != size:
        raise _broken(key, of, f"has {found} bytes instead of {size}")
    payload = stored[4:-4]
    if struct.unpack_from(">I", stored, size + 4) != (zlib.crc32(payload),):
        raise _broken(key, of, "was altered: its CRC-32 is another")
    return payload


def _bitmap(payload: bytes, place: str, of: str) -> "BitMap64":
    # Here and not above: a task of a cluster without it still reads the tables that have no vectors.
    from pyroaring import BitMap64

    magic, body = payload[:4], payload[4:]
    try:
        if magic == struct.pack("<I", PORTABLE):
            return BitMap64.deserialize(body)
        for order in "<>":
            if magic == struct.pack(f"{order}I", NATIVE):
                return BitMap64.deserialize(_portable(body, order))
    except (ValueError, IndexError, struct.error) as error:
        raise _broken(place, of, f"is no Roaring bitmap ({error})") from error
    raise _broken(place, of, f"begins with {magic.hex() or 'nothing'}, which is no known format")


def _serialized(positions: NDArray[np.int64], of: str) -> tuple[bytes, int]:
    """The bytes of a vector and how many rows it deletes."""
    from pyroaring import BitMap64

    if not len(positions) or positions.min() < 0:
        raise InvalidInput(f"Rows to delete from the file {of!r}: {positions!r:.100}. Nothing was written.")
    # As a buffer, which takes half the time that a list does.
    bitmap = BitMap64(array("Q", positions.astype(np.uint64).tobytes()))
    bitmap.run_optimize()
    return struct.pack("<I", PORTABLE) + bitmap.serialize(), len(bitmap)


def _one_file(payloads: Mapping[str, tuple[bytes, int]]) -> tuple[bytes, dict[str, int]]:
    """The bytes of a file of vectors, and where each is in it. Protocol: *Deletion Vector File Storage Format*."""
    blocks, offsets, offset = [bytes([_FILE_VERSION])], dict[str, int](), 1
    for of, (payload, _) in payloads.items():
        offsets[of] = offset
        block = struct.pack(">i", len(payload)) + payload + struct.pack(">I", zlib.crc32(payload))
        blocks.append(block)
        offset += len(block)
    if offset >= 2**31:
        raise InvalidInput(
            f"The deletion vectors of {len(payloads)} files take {offset} bytes, more than one file can hold. Nothing"
            " was written. Delete in several steps."
        )
    return b"".join(blocks), offsets


def _in_file(name: UUID, payload: bytes, cardinality: int, offset: int) -> DeletionVector:
    return DeletionVector("u", z85_encode(name.bytes), len(payload), cardinality, offset)


def _portable(native: bytes, order: str) -> bytes:
    """What follows the magic number, from the native form to the portable one: sizes out, keys in."""
    (count,) = struct.unpack_from(f"{order}I", native)
    position, parts = 4, [struct.pack("<Q", count)]
    for key in range(count):
        (size,) = struct.unpack_from(f"{order}I", native, position)
        bitmap = native[position + 4 : position + 4 + size]
        if not size or len(bitmap) != size:
            raise ValueError(f"bitmap {key} ends early")
        parts += [struct.pack("<I", key), bitmap]
        position += 4 + size
    return b"".join(parts)


def z85_decode(text: str) -> bytes | None:
    """The bytes of a Z85 text, ``None`` where it is none."""
    encoded = text.encode(errors="replace")
    if len(encoded) % 5 or encoded.translate(None, _Z85):
        return None
    try:
        return base64.b85decode(encoded.translate(_TO_B85))
    except (ValueError, binascii.Error):  # five characters beyond 32 bits
        return None


def z85_encode(data: bytes) -> str:
    """The Z85 text of bytes, which are filled up with zeros to a multiple of four."""
    return base64.b85encode(data + bytes(-len(data) % 4)).translate(_TO_Z85).decode()


# --- errors ----------------------------------------------------------------------------------------------------------


def _senseless(vector: DeletionVector, of: str, reason: str) -> LogCorrupt:
    return LogCorrupt(
        f"The deletion vector {vector.unique_id!r:.100} of the file {of!r} makes no sense: {reason}. No row was"
        " returned."
    )


def _broken(place: str, of: str, reason: str) -> IntegrityError:
    return IntegrityError(
        f"The deletion vector {place} of the file {of!r} {reason}. No row was returned. Restore it from a copy."
    )
