"""A small table with one thing changed in one of its files: the rows that it still has, or an error that names a file.

Nothing protects the bytes of a commit, so a change there may be a valid table of other rows. What the changed log says
is therefore worked out a second time, here, by a few lines that are as strict as they are slow; what these do not
understand for sure must be refused, or give the rows of before. Derived files (checkpoints, hints) and files with
checksums of their own (deletion vectors, pages of Parquet) must never change a row at all.
"""

import json
import re
import shutil
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from dagster_versioned.delta.files.deletion_vectors import PORTABLE, z85_encode
from dagster_versioned.delta.table import Table
from dagster_versioned.delta_tables.read import read_delta
from dagster_versioned.errors import VersionedError
from support.hostile_table import METADATA, PROTOCOL, ROWS, SCHEMA, HostileTable, build, in_order, rows_at, told
from support.tmpfs import scratch

VECTOR = f"deletion_vector_{UUID(int=7)}.bin"
DELETED = 1
"""The row that the vector takes out of the last file."""
HEAD = 4
A, B, C, D = ROWS
WHOLE = [row for row in rows_at(HEAD) if row[0] != ROWS[D][DELETED][0]]


@pytest.fixture(scope="module")
def whole() -> Iterator[HostileTable]:
    with scratch() as folder:
        table = build(folder / "whole")
        payload = struct.pack("<I", PORTABLE) + BitMap64([DELETED]).serialize()
        framed = struct.pack(">i", len(payload)) + payload + struct.pack(">I", zlib.crc32(payload))
        (table.root / VECTOR).write_bytes(b"\1" + framed)
        table.protocol(3, 7, "deletionVectors")
        table.set(HEAD, "add", deletionVector=descriptor(len(payload)))
        table.checkpoint_from_us(2)
        Table(table.uri).checkpoint()
        (table.root / "_delta_log" / f"{HEAD:020d}.checkpoint.parquet").unlink()
        yield table


def descriptor(size: int) -> dict[str, Any]:
    name = z85_encode(UUID(int=7).bytes)
    return {"storageType": "u", "pathOrInlineDv": name, "offset": 1, "sizeInBytes": size, "cardinality": 1}


def rows(table: HostileTable) -> list[Any] | None:
    """The table's rows, ``None`` where they are refused, by an error that says where and which version."""
    try:
        found = read_delta(table.uri)
    except VersionedError as error:
        message = told(error)
        assert re.search(r"\.json|\.parquet|\.bin|_delta_log|[vV]ersion \d", message), message
        return None
    return in_order(tuple(row.get(name) for name in ("id", "name", "p")) for row in found.to_pylist())


# --- what a log says, once more


def expected(log: Path) -> list[Any] | None:
    """The rows that a log of commits stands for; ``None`` where that is not certain."""
    live: dict[str, dict[str, Any]] = {}
    kinds: dict[str, Any] = {}
    newest = max((int(path.stem) for path in log.glob("*.json") if re.fullmatch(r"\d{20}", path.stem)), default=-1)
    for version in range(newest + 1):
        try:
            text = (log / f"{version:020d}.json").read_bytes().decode()
            actions = [json.loads(line) for line in text.split("\n") if line.strip()]
            for action in actions:
                for name, members in action.items():
                    kinds[name] = members
                    if name in ("add", "remove"):
                        live.pop(unquote(members["path"]), None)
                    if name == "add":
                        live[unquote(members["path"])] = members
        except (ValueError, OSError, RecursionError, AttributeError, TypeError, KeyError):
            return None
    try:
        if json.loads(kinds["metaData"]["schemaString"]) != SCHEMA or kinds["metaData"]["partitionColumns"] != ["p"]:
            return None
        if kinds["metaData"]["configuration"] or set(kinds["protocol"]["readerFeatures"]) != {"deletionVectors"}:
            return None
        return in_order(row for path, members in live.items() for row in rows_of(path, members))
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def rows_of(path: str, members: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    path = "/".join(part for part in path.split("/") if part not in ("", "."))
    held = list(ROWS[path])
    value = members["partitionValues"]["p"]
    if vector := members.get("deletionVector"):
        known = descriptor(vector["sizeInBytes"])
        if vector != known:
            raise ValueError("another vector")
        held.pop(DELETED)
    yield from ((*row, int(value) if value else None) for row in held)


# --- what is changed

BYTES = st.binary(max_size=4) | st.sampled_from([b"null", b"{}", b"[]", b'"', b",", b"-", b"9" * 20, b"\n", b"\xff"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=4)
    | st.sampled_from([A, B, C, D, "../x", "/etc/hostname", "1", "2", "p", "id", "parquet", "i", "u", "p"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=3,
)  # fmt: skip


@st.composite
def changed_bytes(draw: st.DrawFn, data: bytes, others: list[bytes]) -> bytes:
    at = draw(st.integers(0, len(data)))
    to = draw(st.integers(at, min(len(data), at + 8)) | st.integers(at, len(data)))
    match draw(st.sampled_from(["flip", "replace", "cut", "double", "zeros", "other", "swap"])):
        case "flip" if at < len(data):
            return data[:at] + bytes([data[at] ^ 1 << draw(st.integers(0, 7))]) + data[at + 1 :]
        case "cut":
            return data[:at]
        case "double":
            return data[:to] + data[at:]
        case "zeros":
            return data[:at] + bytes(to - at) + data[to:]
        case "other":
            return draw(st.sampled_from([b"", *others]))
        case "swap":
            lines = data.split(b"\n")
            return b"\n".join(draw(st.permutations(lines))) if len(lines) < 10 else data[to:] + data[:to]
        case _:
            return data[:at] + draw(BYTES) + data[to:]


@st.composite
def changed_json(draw: st.DrawFn, data: bytes) -> bytes:
    """One member, at any depth, is another value, is gone, or is joined by another."""
    lines = [json.loads(line) for line in data.splitlines()]
    place: Any = draw(st.sampled_from(lines))
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            break
        key = draw(st.sampled_from(keys))
        if isinstance(place[key], dict | list) and draw(st.integers(0, 3)):
            place = place[key]
            continue
        match draw(st.sampled_from(["set", "set", "remove", "join"])):
            case "set":
                place[key] = draw(VALUES)
            case "remove":
                del place[key]
            case _ if isinstance(place, dict):
                place[draw(st.sampled_from(["add", "remove", "path", "stats", "deletionVector", "x"]))] = draw(VALUES)
            case _:
                place.append(draw(VALUES))
        break
    return "\n".join(map(json.dumps, lines)).encode("utf-8", "surrogatepass")


def with_file(whole: HostileTable, path: Path, data: bytes | None) -> list[Any] | None:
    """The rows with another file in its place, and what the log says of them must be right."""
    original = path.read_bytes()
    path.unlink()  # its identity goes with it
    try:
        if data is not None:
            path.write_bytes(data)
        return rows(whole)
    finally:
        path.unlink(missing_ok=True)
        path.write_bytes(original)


def commits(table: HostileTable) -> list[Path]:
    return sorted((table.root / "_delta_log").glob("*.json"))


@given(data=st.data())
def test_a_commit_that_was_changed(whole: HostileTable, data: st.DataObject) -> None:
    """With the checkpoint that covers the older ones away, so that every commit counts."""
    table = whole
    path = data.draw(st.sampled_from(commits(table)))
    original = path.read_bytes()
    others = [other.read_bytes() for other in commits(table)]
    changed = data.draw(changed_bytes(original, others) | changed_json(original))
    hidden = table.root / "hidden"
    hidden.mkdir()
    derived = [file for file in (table.root / "_delta_log").iterdir() if file.suffix != ".json"]
    try:
        for file in derived:
            file.rename(hidden / file.name)
        path.unlink()
        path.write_bytes(changed)
        found, said = rows(table), expected(table.root / "_delta_log")
    finally:
        path.unlink(missing_ok=True)
        path.write_bytes(original)
        for file in derived:
            (hidden / file.name).rename(file)
        hidden.rmdir()
    if found is not None and said is not None:
        assert found == said
    elif found is not None:
        assert {row[:2] for row in found} <= KNOWN, "no row is made up"


KNOWN = {(value, name) for held in ROWS.values() for value, name in held}
KNOWN |= {(None, name) for _, name in KNOWN} | {(value, None) for value, _ in KNOWN} | {(None, None)}


@given(data=st.data())
def test_a_derived_file_that_was_changed(whole: HostileTable, data: st.DataObject) -> None:
    paths = sorted(path for path in (whole.root / "_delta_log").iterdir() if path.suffix != ".json")
    path = data.draw(st.sampled_from(paths))
    original = path.read_bytes()
    changed = data.draw(st.none() | changed_bytes(original, [other.read_bytes() for other in paths]))
    content = decoded(path, original)
    found = with_file(whole, path, changed)
    if found != WHOLE and found is not None:
        assert changed is not None
        assert decoded(path, changed) != content, "another content, which nothing protects"


def decoded(path: Path, data: bytes) -> object:
    """What a Parquet file holds, for who reads it with another program."""
    if path.suffix != ".parquet":
        return None
    try:
        return pq.read_table(pa.BufferReader(data)).to_pylist()
    except (pa.ArrowException, OSError, ValueError) as error:
        return repr(error)


@given(data=st.data())
def test_a_deletion_vector_that_was_changed(whole: HostileTable, data: st.DataObject) -> None:
    path = whole.root / VECTOR
    original = path.read_bytes()
    changed = data.draw(st.none() | changed_bytes(original, [(whole.root / A).read_bytes()]))
    found = with_file(whole, path, changed)
    assert found in (None, WHOLE)
    if changed is None or changed[: len(original)] != original:
        assert found is None


@given(data=st.data())
def test_a_data_file_that_was_changed(whole: HostileTable, data: st.DataObject) -> None:
    """Rows may only differ where the file, read by itself, holds others."""
    path = whole.root / data.draw(st.sampled_from([B, C, D]))
    original = path.read_bytes()
    changed = data.draw(st.none() | changed_bytes(original, [(whole.root / other).read_bytes() for other in ROWS]))
    found = with_file(whole, path, changed)
    if changed is None:
        assert found is None
    elif found not in (None, WHOLE):
        assert decoded(path, changed) != decoded(path, original)


@given(name=st.sampled_from(["x", "_delta_log/x.json", "_delta_log/.tmp", "_delta_log/00.json.tmp", "p=9/e.parquet"]))
def test_a_file_that_was_added(whole: HostileTable, name: str) -> None:
    """What nothing refers to is nothing."""
    path = whole.root / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes((whole.root / A).read_bytes())
    try:
        assert rows(whole) == WHOLE
    finally:
        path.unlink()


def test_what_is_expected_of_the_whole_table(whole: HostileTable) -> None:
    assert rows(whole) == WHOLE == expected(whole.root / "_delta_log")
    with scratch() as folder:
        table = HostileTable(shutil.copytree(whole.root, folder / "copy"))
        (table.root / "_delta_log" / f"{HEAD:020d}.crc").unlink()
        table.put(3, {"remove": {"path": B, "dataChange": True}})
        assert rows(table) == expected(table.root / "_delta_log") != WHOLE
        table.put(0, PROTOCOL, METADATA)
        assert expected(table.root / "_delta_log") is None
