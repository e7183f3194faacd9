"""Bad files under a healthy log: never a wrong row from any engine, and an error that names file, version and reason.

| kind | case |
|---|---|
| corrupt Parquet footer, lost, cut and exchanged files | ``DATA`` |
| a deletion vector's magic, CRC, cardinality, rows beyond the file | ``VECTORS`` |
| statistics that lie | `test_statistics_that_lie_are_never_used_beyond_skipping` |
| partition values that are none | ``VALUES`` |
| paths that lead out of the root by a link | `test_a_link_that_leads_out_is_not_followed` |

The log itself: `delta/test_hostile_log.py`.
"""

import json
import re
import struct
import zlib
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyroaring import BitMap64

from dagster_versioned.delta.files.deletion_vectors import PORTABLE, z85_encode
from dagster_versioned.delta_tables.read import read_delta
from dagster_versioned.delta_tables.write import delete_from, merge_delta, update_delta
from dagster_versioned.errors import IntegrityError, LogCorrupt, VersionedError
from support.hostile_table import (
    ROWS,
    VERSIONS,
    HostileTable,
    build,
    in_order,
    rows_at,
    told,
    write_data,
)

Damage = Callable[[HostileTable], object]
Read = Callable[[HostileTable], list[Any]]

A, B, C, D = ROWS


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> HostileTable:
    return build(tmp_path_factory.mktemp("hostile") / "healthy")


@pytest.fixture
def table(healthy: HostileTable, tmp_path: Path) -> HostileTable:
    return healthy.copy(tmp_path / "table")


@pytest.fixture(params=["arrow", pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.slow])])
def read(request: pytest.FixtureRequest) -> Read:
    """The rows of a table, sorted, by one engine."""
    if request.param == "arrow":
        return arrow_rows
    return partial(spark_rows, request.getfixturevalue("spark"))


def arrow_rows(table: HostileTable, version: int | None = None, *, where: str | None = None) -> list[Any]:
    return in_order(tuple(row.values()) for row in read_delta(table.uri, version, filter=where).to_pylist())


def spark_rows(spark: Any, table: HostileTable) -> list[Any]:
    from dagster_versioned.delta_tables.spark import read_delta

    return in_order(tuple(row) for row in read_delta(spark, table.uri).collect())


def refused(read: Read, table: HostileTable) -> str:
    """All that is told when the table cannot be read, which it cannot."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    with pytest.raises((VersionedError, PySparkException, Py4JJavaError)) as caught:
        read(table)
    return told(caught.value)


def test_the_healthy_table(healthy: HostileTable, read: Read) -> None:
    assert [arrow_rows(healthy, version) for version in range(VERSIONS)] == [rows_at(v) for v in range(VERSIONS)]
    assert read(healthy) == rows_at(4)


# --- data files


def replaced(path: str, data: Callable[[bytes], bytes]) -> Damage:
    """Other bytes, and the size that they have in the log, so that only the bytes can tell."""

    def damage(table: HostileTable) -> None:
        file = table.root / path
        file.write_bytes(data(file.read_bytes()))
        table.set(1, "add", size=file.stat().st_size)

    return damage


def footer(data: bytes) -> int:
    return len(data) - 8 - int.from_bytes(data[-8:-4], "little")


def of_other_columns(table: HostileTable) -> None:
    pq.write_table(pa.table({"id": ["ten", None], "name": ["ten", "none"]}), table.root / B)
    table.set(1, "add", size=(table.root / B).stat().st_size)


DATA: dict[str, tuple[Damage, str]] = {
    "lost": (lambda table: (table.root / B).unlink(), "missing"),
    "a folder": (lambda table: ((table.root / B).unlink(), (table.root / B).mkdir()), "missing|folder|directory"),
    "empty": (replaced(B, lambda _: b""), "Parquet|empty|footer"),
    "cut": (replaced(B, lambda data: data[:-1]), "Parquet"),
    "cut to its magic": (replaced(B, lambda _: b"PAR1"), "Parquet"),
    "no Parquet": (replaced(B, lambda _: b"id,name\n10,ten\n"), "Parquet"),
    "footer of zeros": (replaced(B, lambda data: data[: footer(data)] + bytes(64) + data[footer(data) + 64 :]), ""),
    "footer beyond the file": (replaced(B, lambda data: data[:-8] + b"\xff\xff\xff\x7fPAR1"), ""),
    "pages of zeros": (replaced(B, lambda data: data[:4] + bytes(footer(data) - 4) + data[footer(data) :]), ""),
    "pages of ones": (replaced(B, lambda data: data[:4] + b"\xff" * (footer(data) - 4) + data[footer(data) :]), ""),
    "of other columns": (of_other_columns, "id"),
}  # fmt: skip


@pytest.mark.parametrize("name", DATA)
def test_a_file_that_is_wrong_is_refused_by_name_and_reason(table: HostileTable, read: Read, name: str) -> None:
    damage, reason = DATA[name]
    damage(table)
    message = refused(read, table)
    assert B in message, message
    assert re.search(reason, message), message


@pytest.mark.parametrize("name", DATA)
def test_which_version_could_not_be_read_is_told(table: HostileTable, name: str) -> None:
    DATA[name][0](table)
    assert re.search(r"[vV]ersion 4 of", refused(arrow_rows, table))
    assert arrow_rows(table, 0) == rows_at(0)


# --- deletion vectors


def payload(rows: list[int]) -> bytes:
    return struct.pack("<I", PORTABLE) + BitMap64(rows).serialize()


NAME = UUID(int=7)


def stored(data: bytes, *, crc: int | None = None, version: bytes = b"\1", **members: Any) -> Damage:
    """A vector on disk for the file of the last commit."""
    framed = struct.pack(">i", len(data)) + data + struct.pack(">I", zlib.crc32(data) if crc is None else crc)

    def damage(table: HostileTable) -> None:
        (table.root / f"deletion_vector_{NAME}.bin").write_bytes(version + framed)
        mark(table, storageType="u", pathOrInlineDv=z85_encode(NAME.bytes), offset=1, sizeInBytes=len(data), **members)

    return damage


def inline(data: bytes, **members: Any) -> Damage:
    return lambda table: mark(table, storageType="i", pathOrInlineDv=z85_encode(data), sizeInBytes=len(data), **members)


def mark(table: HostileTable, **vector: Any) -> None:
    table.set(4, "add", deletionVector={"cardinality": 1, **vector})
    table.protocol(3, 7, "deletionVectors")


FIRST_ROW = payload([0])

VECTORS: dict[str, tuple[Damage, str]] = {
    "bad magic": (stored(b"\0\0\0\0" + FIRST_ROW[4:]), "00000000, which is no known format"),
    "bad magic, inline": (inline(b"\1\2\3\4" + FIRST_ROW[4:]), "01020304, which is no known format"),
    "bad CRC": (stored(FIRST_ROW, crc=1), "CRC-32"),
    "other cardinality": (stored(FIRST_ROW, cardinality=2), "1 rows instead of 2"),
    "other cardinality, inline": (inline(payload([0, 1]), cardinality=1), "2 rows instead of 1"),
    "cardinality of none": (stored(FIRST_ROW, cardinality=0), "1 rows instead of 0"),
    "a row beyond the file": (stored(payload([2])), "deletes row 2, but the file has 2 rows"),
    "a row far beyond the file": (inline(payload([2**40])), "deletes row 1099511627776"),
    "other version": (stored(FIRST_ROW, version=b"\2"), "version 02"),
    "no bitmap": (stored(FIRST_ROW[:4] + b"\xff" * 20), "no Roaring bitmap"),
    "lost": (
        lambda table: (stored(FIRST_ROW)(table), (table.root / f"deletion_vector_{NAME}.bin").unlink()),
        "missing",
    ),
    "out of the root": (
        lambda table: mark(table, storageType="p", pathOrInlineDv="/etc/hostname", offset=1, sizeInBytes=4),
        "outside",
    ),
}


def test_a_healthy_vector(table: HostileTable, read: Read) -> None:
    stored(FIRST_ROW)(table)
    expected = [row for row in rows_at(4) if row[0] != 7]
    assert read(table) == expected
    inline(FIRST_ROW)(table)
    assert read(table) == expected


@pytest.mark.parametrize("name", VECTORS)
def test_a_vector_that_is_wrong_is_refused_by_name_and_reason(table: HostileTable, read: Read, name: str) -> None:
    damage, reason = VECTORS[name]
    damage(table)
    message = refused(read, table)
    assert "d.parquet" in message, message
    assert re.search(reason, message), message
    if read is arrow_rows:
        assert re.search(r"[vV]ersion 4 of", message), message


# --- partition values

VALUES: dict[str, tuple[dict[str, str | None], str]] = {
    "no number": ({"p": "two"}, "'two'"),
    "too large": ({"p": "2147483648"}, "2147483648"),
    "a digit of another script": ({"p": "٢"}, "٢"),
    "none given": ({}, "'p'"),
    "another column's": ({"q": "2"}, "'p'"),
}


@pytest.mark.parametrize("name", VALUES)
def test_a_partition_value_that_is_none_is_refused_by_file_and_reason(
    table: HostileTable, read: Read, name: str
) -> None:
    values, reason = VALUES[name]
    table.set(1, "add", partitionValues=values)
    message = refused(read, table)
    assert reason in message, message
    assert B in message, message
    if read is arrow_rows:
        assert re.search(r"[vV]ersion 4 of", message), message


# --- statistics

LIES = {
    "too few rows": {"numRecords": 1},
    "too many rows": {"numRecords": 10**9},
    "no rows": {"numRecords": 0},
    "other bounds": {"numRecords": 2, "minValues": {"id": 500, "name": "z"}, "maxValues": {"id": 1, "name": "a"}},
    "other null counts": {"numRecords": 2, "nullCount": {"id": 2, "name": 2}},
    "wrong types": {"numRecords": "two", "minValues": [1], "maxValues": {"id": "x", "name": {"a": 1}}, "nullCount": 7},
    "columns that are not there": {"numRecords": 2, "minValues": {"zz": 1}, "nullCount": {"zz": -1}},
    "negative counts": {"numRecords": -1, "nullCount": {"id": -5}},
    "wide, claimed tight": {"numRecords": 2, "tightBounds": "no", "minValues": {"id": None}},
}
GARBAGE = {
    "not JSON": "{",
    "empty": "",
    "a list": "[]",
    "null": "null",
    "two objects": '{"numRecords":2} {"numRecords":2}',
    "an object and null": '{"numRecords":2}null',
    "an object in another's end": '{"numRecords":2}}',
    "spaces": "   ",
    "NaN": '{"numRecords":NaN,"minValues":{"id":NaN},"maxValues":{"id":Infinity}}',
    "deep": '{"minValues":' * 50_000,
    "deep and closed": '{"minValues":' * 900 + "1" + "}" * 900,
    "half a surrogate pair": '{"numRecords":2,"minValues":{"name":"\\ud800"},"maxValues":{"name":"\\udfff"}}',
    "a number of thousand digits": '{"minValues":{"id":' + "9" * 1_000 + "}}",
    "a number beyond any type": '{"minValues":{"id":1e999999999},"maxValues":{"id":-1e999999999}}',
}
STATISTICS = {name: json.dumps(lie) for name, lie in LIES.items()} | GARBAGE


@pytest.mark.parametrize("name", STATISTICS)
def test_statistics_that_lie_are_never_used_beyond_skipping(table: HostileTable, read: Read, name: str) -> None:
    for version in (0, 1, 2, 4):
        table.set(version, "add", stats=STATISTICS[name])
    assert read(table) == rows_at(4)


@pytest.mark.parametrize("name", ["lost", "empty", "cut", "footer of zeros"])
def test_statistics_do_not_stand_in_for_a_file(table: HostileTable, name: str) -> None:
    """Not even a count is taken from them."""
    table.set(1, "add", stats='{"numRecords":2,"minValues":{"id":10},"maxValues":{"id":10},"nullCount":{"id":1}}')
    DATA[name][0](table)
    with pytest.raises(IntegrityError, match=re.escape(B)):
        read_delta(table.uri, columns=["p"])


# --- where files are


def test_a_link_that_leads_out_is_not_followed(table: HostileTable, read: Read, tmp_path: Path) -> None:
    write_data(tmp_path, "secret.parquet", [(99, "secret")])
    (table.root / B).unlink()
    (table.root / B).symlink_to(tmp_path / "secret.parquet")
    table.set(1, "add", size=(tmp_path / "secret.parquet").stat().st_size)
    message = refused(read, table)
    assert B in message


@pytest.mark.parametrize(
    "name",
    ["_b.parquet", ".b.parquet", "b.parquet._COPYING_", "b", "b.json", "_temporary/b", "p=9/_q=1/b", "{b}[*]?.parquet"],
)
def test_a_file_of_any_name_is_read(table: HostileTable, read: Read, name: str) -> None:
    """The log says what belongs to the table; no engine has its own view of names."""
    (table.root / name).parent.mkdir(exist_ok=True, parents=True)
    (table.root / B).rename(table.root / name)
    table.set(1, "add", path=quote(name))
    assert read(table) == rows_at(4)


def test_a_partition_column_in_the_file_does_not_win(table: HostileTable, read: Read) -> None:
    """Folder names and columns of files are nobody's word for a partition value: the log's is."""
    path = table.root / B
    pq.write_table(pq.read_table(path, partitioning=None).append_column("p", pa.array([77, 78], pa.int32())), path)
    table.set(1, "add", size=path.stat().st_size, partitionValues={"p": "5"})
    expected = in_order([row for row in rows_at(4) if row[2] != 2] + [(*row, 5) for row in ROWS[B]])
    assert read(table) == expected


def test_a_path_that_leaves_the_folder_and_comes_back_is_refused(table: HostileTable, read: Read) -> None:
    spelled = f"../{table.root.name}/p=2/b.parquet"
    table.set(1, "add", path=spelled)
    message = refused(read, table)
    assert spelled in message
    assert "version 4" in message


@pytest.mark.parametrize("path", ["{root}/p=2/b.parquet", "file://{root}/p=2/b.parquet"])
def test_an_absolute_path_that_lies_in_the_folder_is_read(table: HostileTable, read: Read, path: str) -> None:
    table.set(1, "add", path=path.format(root=table.root))
    assert read(table) == rows_at(4)


def test_an_error_of_the_log_comes_before_any_file_is_opened(table: HostileTable, read: Read) -> None:
    table.put_bytes(3, b"{")
    for path in ROWS:
        (table.root / path).unlink()
    with pytest.raises(LogCorrupt, match=r"0{19}3\.json, line 1"):
        read(table)


# --- a little of everything, by Spark, where there is no time for all of it


@pytest.mark.spark
def test_spark_is_as_strict(healthy: HostileTable, spark: Any, tmp_path: Path) -> None:
    read = partial(spark_rows, spark)
    assert read(healthy) == rows_at(4)
    for i, (damage, reason) in enumerate(
        [DATA["empty"], DATA["pages of zeros"], VECTORS["bad CRC"], VECTORS["a row beyond the file"]]
    ):
        table = healthy.copy(tmp_path / f"{i}")
        damage(table)
        message = refused(read, table)
        assert re.search(r"[bd]\.parquet", message), message
        assert re.search(reason, message), message
    table = healthy.copy(tmp_path / "hidden")
    (table.root / B).rename(table.root / "_b.parquet")
    table.set(1, "add", path="_b.parquet", stats=STATISTICS["other bounds"])
    assert read(table) == rows_at(4)


# --- statistics that lie, and who else may believe them

FILTERS = ["id = 10", "id >= 4", "name = 'ten'", "id IS NULL", "p = 2", "id = 10 OR p IS NULL"]


@pytest.mark.every(3)
@pytest.mark.parametrize("name", STATISTICS)
def test_statistics_that_lie_bring_no_row_that_does_not_match(table: HostileTable, name: str) -> None:
    """A file may be skipped by what its statistics say; no row of another comes for it, and nothing else goes wrong."""
    honest = [arrow_rows(table, where=where) for where in FILTERS]
    assert all(honest)
    for version in (0, 1, 2, 4):
        table.set(version, "add", stats=STATISTICS[name])
    for where, expected in zip(FILTERS, honest, strict=True):
        found = arrow_rows(table, where=where)
        assert Counter(found) <= Counter(expected)
        if name not in LIES:
            assert found == expected, "what is no statistics says nothing"


def writable(table: HostileTable, **properties: str) -> None:
    """The healthy table with features that writes follow, and statistics that a test set."""
    table.protocol(3, 7, "deletionVectors", "changeDataFeed", "appendOnly", "invariants", readers=("deletionVectors",))
    table.metadata(configuration={f"delta.{key}": value for key, value in properties.items()})


@pytest.mark.every(3)
@pytest.mark.parametrize("properties", [{}, {"enableDeletionVectors": "true"}, {"enableChangeDataFeed": "true"}])
@pytest.mark.parametrize("name", ["too few rows", "too many rows", "no rows", "negative counts", "wrong types", "deep"])
def test_counts_that_lie_never_decide_which_rows_a_change_is_about(
    table: HostileTable, name: str, properties: dict[str, str]
) -> None:
    """Deleting a whole partition and a single row, where the partition's file tells another number of rows."""
    from dagster_versioned.delta_tables.change_feed import read_changes

    writable(table, **properties)
    table.set(1, "add", stats=STATISTICS[name])
    where = "p = 2 OR id = 7"
    gone = [row for row in rows_at(4) if row[2] == 2 or row[0] == 7]
    kept = [row for row in rows_at(4) if row not in gone]
    delete_from(table.uri, where)
    assert arrow_rows(table) == kept
    if "enableChangeDataFeed" in properties:
        changes = read_changes(table.uri, 5, 5)
        assert set(changes["_change_type"].to_pylist()) == {"delete"}
        told_of = [tuple(row.values()) for row in changes.select(["id", "name", "p"]).to_pylist()]
        assert in_order(told_of) == in_order(gone)
    update_delta(table.uri, {"name": "'new'"})
    assert arrow_rows(table) == in_order([(row[0], "new", row[2]) for row in kept])


@pytest.mark.every(3)
@pytest.mark.parametrize("name", STATISTICS)
def test_bounds_that_lie_never_decide_that_a_row_goes(table: HostileTable, name: str) -> None:
    from dagster_versioned.delta_tables.dml import WhenMatched

    writable(table)
    for version in (0, 1, 2, 4):
        table.set(version, "add", stats=STATISTICS[name])
    before = arrow_rows(table)
    matching = [row for row in before if row[0] is not None and row[0] >= 8]
    delete_from(table.uri, "id >= 8")
    after = arrow_rows(table)
    assert [row for row in after if row not in matching] == [row for row in before if row not in matching]
    if name not in LIES:
        assert [row for row in after if row in matching] == []
    merge_delta(table.uri, pa.table({"id": [4]}), "target.id = source.id", [WhenMatched("delete")])
    assert [row for row in arrow_rows(table) if row[0] != 4] == [row for row in after if row[0] != 4]


# --- files that are not the table's


@pytest.mark.parametrize(
    "path", ["../secret.parquet", "{outside}", "file://{outside}", "p=1/../../secret.parquet", "link/x"]
)
@pytest.mark.parametrize("vector", [False, True])
def test_vacuum_never_leaves_the_folder(table: HostileTable, tmp_path: Path, path: str, vector: bool) -> None:
    """Whatever a tombstone names, and wherever a link leads."""
    from dagster_versioned.delta.table import Table

    outside = tmp_path / "elsewhere"
    outside.mkdir()
    for file in (tmp_path / "secret.parquet", outside / "x"):
        file.write_bytes(b"not the table's")
    (table.root / "link").symlink_to(outside)
    spelled = path.format(outside=outside / "x")
    remove: dict[str, Any] = {"path": spelled, "dataChange": True, "deletionTimestamp": 1}
    if vector:
        remove["path"] = "p=1/gone.parquet"
        descriptor = {"storageType": "p", "pathOrInlineDv": spelled, "offset": 1, "sizeInBytes": 1, "cardinality": 1}
        remove["deletionVector"] = descriptor
    table.put(3, {"remove": remove})
    table.protocol(3, 7, "deletionVectors")
    with suppress(VersionedError):
        Table(table.uri).vacuum(timedelta(0), dry_run=False, force=True)
    assert arrow_rows(table) == rows_at(4)
    assert {(tmp_path / "secret.parquet").read_bytes(), (outside / "x").read_bytes()} == {b"not the table's"}
