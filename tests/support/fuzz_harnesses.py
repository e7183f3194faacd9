"""Every parser of the protocol as a function of bytes: a value that survives its round trip, or an error of ours.

Whatever else comes of them is a fault. `fuzz_program` runs them under a fuzzer.
"""

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from dagster_versioned.delta.actions import Add, DeletionVector, encode_action, parse_line
from dagster_versioned.delta.files import partition_values, statistics
from dagster_versioned.delta.files.deletion_vectors import deleted_rows, z85_decode, z85_encode
from dagster_versioned.delta.files.file_actions import adds_table
from dagster_versioned.delta.files.predicate import parse_predicate
from dagster_versioned.delta.files.skipping import candidates
from dagster_versioned.delta.log.commits import LAST_CHECKPOINT_KEY, last_checkpoint_version, parse_commit
from dagster_versioned.delta.schema.types import StructField, StructType, parse_schema, schema_to_arrow
from dagster_versioned.errors import ChainCorrupt, InvalidInput, ObjectNotFound, UnsupportedFeature, VersionedError
from dagster_versioned.odf.blocks.block import decode_block, encode_block
from dagster_versioned.odf.manifest import read_snapshot, write_manifest
from dagster_versioned.storage.object_store import ObjectInfo

TYPES = [
    "string",
    "binary",
    "boolean",
    "byte",
    "short",
    "integer",
    "long",
    "float",
    "double",
    "date",
    "timestamp",
    "timestamp_ntz",
    "decimal(10,2)",
    "decimal(38,38)",
]

HARNESSES: dict[str, Callable[[bytes], None]] = {}


class Objects:
    """As much of a store as a parser asks for, in memory."""

    uri = "/fuzz"

    def __init__(self, **objects: bytes) -> None:
        self.objects = objects

    def get(self, key: str) -> bytes:
        if key not in self.objects:
            raise ObjectNotFound(key)
        return self.objects[key]

    def get_with_info(self, key: str) -> tuple[bytes, ObjectInfo]:
        data = self.get(key)
        return data, ObjectInfo(key, len(data), "", datetime.fromtimestamp(0, UTC))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self.get(key)[start : start + length]


def require_place(error: VersionedError, place: str) -> None:
    if place not in str(error):
        raise AssertionError(f"{place} is not named by: {error}")


def harness(function: Callable[[bytes], None]) -> Callable[[bytes], None]:
    HARNESSES[function.__name__] = function
    return function


@harness
def commit(data: bytes) -> None:
    try:
        parsed = parse_commit(7, data, 0)
    except VersionedError as error:
        require_place(error, f"{7:020d}.json")
        return
    for action in parsed.actions:
        again = parse_line(encode_action(action), "again")
        assert again == action, (again, action)


@harness
def schema(data: bytes) -> None:
    with suppress(VersionedError):
        parsed = parse_schema(data.decode(errors="replace"))
        assert parse_schema(parsed.json()) == parsed
        schema_to_arrow(parsed)
        schema_to_arrow(parsed.all_nullable())


@harness
def stats(data: bytes) -> None:
    with suppress(VersionedError):
        assert isinstance(statistics.parse(data.decode(errors="replace")), dict)


HONEST = '{"numRecords":2,"minValues":{"id":5,"name":"a"},"maxValues":{"id":15,"name":"z"},"nullCount":{"id":0}}'
SCHEMA = StructType([StructField("id", "long"), StructField("name", "string"), StructField("at", "timestamp")])
PREDICATES = [
    parse_predicate(text, SCHEMA) for text in ("id = 10", "name > 'b' OR id IS NULL", "id < 6 AND at IS NULL")
]
NEIGHBOURS = Add("honest", {}, 1, 1, True, HONEST), Add("none", {}, 1, 1, True)


@harness
def skipping(data: bytes) -> None:
    """What one file's statistics say never has another file skipped, and ends nothing."""
    text = data.decode(errors="replace")
    hostile = [Add(f"{i}", {}, 1, 1, True, text) for i in range(2)]
    files = adds_table([hostile[0], *NEIGHBOURS, hostile[1]])
    for predicate in PREDICATES:
        kept = set(candidates(files, predicate, SCHEMA, "none", ())["path"].to_pylist())
        if not {"honest", "none"} <= kept:
            raise AssertionError(f"{kept} are left of the files")
        if statistics.known(text) == {} and not {"0", "1"} <= kept:
            raise AssertionError("what is no statistics had a file skipped")


@harness
def values(data: bytes) -> None:
    if not data:
        return
    data_type, text = TYPES[data[0] % len(TYPES)], data[1:].decode(errors="replace")
    with suppress(VersionedError):
        value = partition_values.decode(text, data_type)
        with suppress(InvalidInput):  # what the protocol can say and a writer must not, as a null that is empty text
            again = partition_values.decode(partition_values.encode(value, data_type), data_type)
            assert again == value or value != value, (again, value)


@harness
def vectors(data: bytes) -> None:
    """The payload of a vector, in its descriptor and on disk; the first byte is the cardinality that it should have."""
    if not data:
        return
    count, payload = data[0], data[1:]
    given: list[Any] = []
    for vector, store in (
        (DeletionVector("i", z85_encode(payload), len(payload), count), Objects()),
        (DeletionVector("p", "/fuzz/x.bin", len(payload), count, 1), Objects(**{"x.bin": framed(payload)})),
        (DeletionVector("p", "/fuzz/x.bin", count, count, 1), Objects(**{"x.bin": payload})),
        (DeletionVector("u", data.decode(errors="replace"), count, count, 1), Objects()),
    ):
        try:
            rows = deleted_rows(store, vector, 1_000, "part.parquet")  # type: ignore[arg-type]
        except VersionedError as error:
            require_place(error, "part.parquet")
            given.append(None)
        else:
            assert len(rows) == count
            assert len(rows) == 0 or (rows[0] >= 0 and rows[-1] < 1_000 and (rows[1:] > rows[:-1]).all())
            given.append(rows.tolist())
    assert given[0] == given[1], given


def framed(payload: bytes) -> bytes:
    import zlib

    return b"\1" + len(payload).to_bytes(4, "big") + payload + zlib.crc32(payload).to_bytes(4, "big")


@harness
def z85(data: bytes) -> None:
    text = data.decode(errors="replace")
    decoded = z85_decode(text)
    if decoded is not None:
        assert z85_encode(decoded) == text
    assert z85_decode(z85_encode(data)) == data + bytes(-len(data) % 4)


@harness
def last_checkpoint(data: bytes) -> None:
    version = last_checkpoint_version(Objects(**{LAST_CHECKPOINT_KEY: data}))  # type: ignore[arg-type]
    assert version is None or 0 <= version < 10**20


@harness
def block(data: bytes) -> None:
    try:
        decoded = decode_block(data)
    except (ChainCorrupt, UnsupportedFeature):
        return
    assert decode_block(encode_block(decoded)) == decoded


@harness
def manifest(data: bytes) -> None:
    try:
        snapshot = read_snapshot(data.decode(errors="replace"))
    except InvalidInput:
        return
    assert read_snapshot(write_manifest("DatasetSnapshot", snapshot)) == snapshot


def any_of(data: bytes) -> None:
    """Let the first byte choose."""
    if data:
        list(HARNESSES.values())[data[0] % len(HARNESSES)](data[1:])


def chosen_by(name: str) -> bytes:
    """The first byte by which `any_of` chooses a parser."""
    return bytes([list(HARNESSES).index(name)])
