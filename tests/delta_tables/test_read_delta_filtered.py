"""What is asked of a Delta table beyond its rows: some of them, of a time, or with the ids that the table gave them."""

import datetime as dt
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import deltalake
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from dagster_versioned.delta.files.predicate import parse_predicate
from dagster_versioned.delta.files.skipping import row_groups
from dagster_versioned.delta.log.snapshot import load_snapshot
from dagster_versioned.delta.schema.column_mapping import ID, PHYSICAL_NAME
from dagster_versioned.delta.schema.types import StructField, StructType
from dagster_versioned.delta_tables.read import delta_scan, read_delta
from dagster_versioned.errors import InvalidInput, LogCorrupt, VersionNotFound
from dagster_versioned.storage import LocalStore
from support.deleted_rows import deleting
from support.delta_logs import put_raw_log


@pytest.fixture(scope="module")
def tens(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Ten files of ten rows: ``n`` from 0 to 99, ``p`` its tens modulo two, ``s`` a text."""
    root = str(tmp_path_factory.mktemp("tens"))
    for start in range(0, 100, 10):
        numbers = list(range(start, start + 10))
        texts = [None if n % 10 == 3 else f"k{n:02}" for n in numbers]
        table = pa.table(
            {"n": numbers, "p": [n // 10 % 2 for n in numbers], "s": texts, "o": [{"n": n} for n in numbers]}
        )
        write_deltalake(root, table, mode="append", partition_by=["p"])
    return root


CONDITIONS = [
    ("n = 42", 1),
    ("N between 38 and 41", 2),
    ("p = 1 and n < 30", 1),
    ("p = 1", 5),
    ("s like 'k5%'", 1),
    ("s is null", 10),
    ("o.n >= 95", 1),
    ("n % 10 = 7", 10),
    ("n > 100", 0),
    ("n > 100 or p is null", 0),
    ("not (n < 90)", 1),
    ("true", 10),
]


@pytest.mark.parametrize(("condition", "files"), CONDITIONS)
def test_rows_are_filtered_and_files_passed_over(tens: str, condition: str, files: int) -> None:
    store = LocalStore(Path(tens))
    assert len(delta_scan(store, load_snapshot(store), None, condition).files) == files
    everything = read_delta(tens)
    found = read_delta(tens, filter=condition)
    assert found.schema == everything.schema
    python = condition.replace("is null", "IS NULL")
    import duckdb

    expected = duckdb.sql(f"SELECT n FROM everything WHERE {python} ORDER BY n").fetchall()
    assert sorted(found["n"].to_pylist()) == [n for (n,) in expected]


def test_a_filter_may_ask_for_columns_that_are_not_returned(tens: str) -> None:
    found = read_delta(tens, columns=["s"], filter="n in (12, 13) and p = 1")
    assert found.column_names == ["s"]
    assert sorted(found["s"].to_pylist(), key=str) == [None, "k12"]


@pytest.mark.parametrize("condition", ["m = 1", "n =", "n = 1; drop table t", "n in (select 1)"])
def test_a_condition_that_cannot_be_answered_is_refused(tens: str, condition: str) -> None:
    with pytest.raises(InvalidInput):
        read_delta(tens, filter=condition)


def test_row_groups_are_passed_over_and_deleted_rows_stay_deleted(tmp_path: Path, monkeypatch: Any) -> None:
    from dagster_versioned.engines.arrow import scan as arrow_scan

    root, asked = str(tmp_path / "t"), []
    properties = deltalake.WriterProperties(max_row_group_size=10)
    write_deltalake(root, pa.table({"n": list(range(100)), "s": ["x"] * 100}), writer_properties=properties)

    def spied(*arguments: Any) -> list[int]:
        asked.append(row_groups(*arguments))
        return asked[-1]

    monkeypatch.setattr(arrow_scan, "row_groups", spied)
    assert read_delta(root, filter="n between 42 and 51").to_pydict() == {"n": [*range(42, 52)], "s": ["x"] * 10}
    assert read_delta(root, columns=["s"], filter="n % 50 = 7 and n < 9").to_pydict() == {"s": ["x"]}
    assert asked == [[4, 5], [0]]
    (file,) = delta_scan(LocalStore(Path(root)), load_snapshot(LocalStore(Path(root)))).files
    vector = deleting({42, 99})
    scan = replace(
        delta_scan(LocalStore(Path(root)), load_snapshot(LocalStore(Path(root)))),
        files=(replace(file, deletion_vector=vector),),
    )
    only = arrow_scan.RowFilter(parse_predicate("n >= 41", scan.schema), lambda rows: np.asarray(rows["n"]) >= 41)
    assert arrow_scan.read_table(scan, only)["n"].to_pylist() == [41, *range(43, 99)]


def test_lying_statistics_hide_rows_but_never_return_wrong_ones(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"n": [1, 2, 3]}))
    commit = tmp_path / "_delta_log" / f"{0:020d}.json"
    commit.write_text(commit.read_text().replace('\\"minValues\\":{\\"n\\":1}', '\\"minValues\\":{\\"n\\":-9}'))
    assert read_delta(str(tmp_path), filter="n < 2")["n"].to_pylist() == [1]
    assert read_delta(str(tmp_path), filter="n < 0").num_rows == 0


def test_the_version_of_a_time_is_read(tmp_path: Path) -> None:
    times = [dt.datetime(2026, 1, day, tzinfo=dt.UTC) for day in (1, 2, 3)]
    for number in range(3):
        write_deltalake(tmp_path, pa.table({"n": [number]}), mode="overwrite")
    for number, time in enumerate(times):
        os.utime(tmp_path / "_delta_log" / f"{number:020d}.json", (time.timestamp(), time.timestamp()))
    for number, time in enumerate(times):
        assert read_delta(str(tmp_path), timestamp=time)["n"].to_pylist() == [number]
        assert read_delta(str(tmp_path), timestamp=time.isoformat())["n"].to_pylist() == [number]
    with pytest.raises(VersionNotFound):
        read_delta(str(tmp_path), timestamp="2001-01-01T00:00:00Z")
    with pytest.raises(InvalidInput, match="not of both"):
        read_delta(str(tmp_path), 1, timestamp=times[0])
    with pytest.raises(InvalidInput, match="zone"):
        read_delta(str(tmp_path), timestamp="2026-01-01T00:00:00")


# --- row ids


def tracking_table(root: Path, *, base: int | None = 100, mapped: bool = False) -> None:
    """Two files: one with default ids, and one whose rows brought ids of their own, all but one."""
    root.mkdir(exist_ok=True)
    pq.write_table(pa.table({"n": [1, 2, 3]}), root / "a.parquet", row_group_size=1)
    kept = {"n": [4, 5], "_id": pa.array([7, None], pa.int64()), "_version": pa.array([1, None], pa.int64())}
    pq.write_table(pa.table(kept), root / "b.parquet")
    properties = {
        "delta.enableRowTracking": "true",
        "delta.rowTracking.materializedRowIdColumnName": "_id",
        "delta.rowTracking.materializedRowCommitVersionColumnName": "_version",
    }
    column, readers = StructField("n", "long"), []
    if mapped:
        properties["delta.columnMapping.mode"] = "name"
        column, readers = StructField("number", "long", True, {ID: 1, PHYSICAL_NAME: "n"}), ["columnMapping"]
    writers = ["domainMetadata", "rowTracking", *readers]
    ids = {} if base is None else {"baseRowId": base, "defaultRowCommitVersion": 5}
    put_raw_log(
        root,
        StructType([column]),
        {"path": "a.parquet", **ids},
        {"path": "b.parquet", "baseRowId": 200, "defaultRowCommitVersion": 5},
        protocol={"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": readers, "writerFeatures": writers},
        **properties,
    )


TRACKED = {
    "n": [1, 2, 3, 4, 5],
    "_row_id": [100, 101, 102, 7, 201],
    "_row_commit_version": [5, 5, 5, 1, 5],
}


def test_ids_of_rows_come_on_request(tmp_path: Path) -> None:
    tracking_table(tmp_path)
    assert read_delta(str(tmp_path)).to_pydict() == {"n": TRACKED["n"]}
    assert read_delta(str(tmp_path), row_ids=True).to_pydict() == TRACKED
    assert read_delta(str(tmp_path), columns=["_row_id"], row_ids=True)["_row_id"].to_pylist() == TRACKED["_row_id"]
    some = read_delta(str(tmp_path), filter="n >= 3 and _row_id < 150", row_ids=True)
    assert some["_row_id"].to_pylist() == [102, 7]


def test_ids_come_with_columns_that_are_called_otherwise_in_the_files(tmp_path: Path) -> None:
    tracking_table(tmp_path, mapped=True)
    renamed = {"number" if name == "n" else name: values for name, values in TRACKED.items()}
    assert read_delta(str(tmp_path), row_ids=True).to_pydict() == renamed
    found = read_delta(str(tmp_path), columns=["_row_id"], filter="number = 4", row_ids=True)
    assert found.to_pydict() == {"_row_id": [7], "_row_commit_version": [1]}


def test_ids_come_in_streams_of_batches_too(tmp_path: Path) -> None:
    from dagster_versioned.engines.arrow.scan import stream_table

    tracking_table(tmp_path)
    store = LocalStore(tmp_path)
    scan = delta_scan(store, load_snapshot(store), row_ids=True)
    assert stream_table(scan).read_all().to_pydict() == TRACKED


def test_a_file_without_ids_in_a_table_that_tracks_rows_is_corrupt(tmp_path: Path) -> None:
    tracking_table(tmp_path, base=None)
    with pytest.raises(LogCorrupt, match=r"a\.parquet"):
        read_delta(str(tmp_path), row_ids=True)


def test_ids_of_a_table_that_does_not_track_rows_are_refused(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"n": [1]}))
    assert DeltaTable(tmp_path).version() == 0
    with pytest.raises(InvalidInput, match="enableRowTracking"):
        read_delta(str(tmp_path), row_ids=True)


# --- by Spark


@pytest.mark.spark
@pytest.mark.slow
def test_spark_reads_the_same(spark: Any, tens: str, tmp_path: Path) -> None:
    from dagster_versioned.delta_tables import spark as spark_engine

    for condition, files in CONDITIONS[::4]:
        frame = spark_engine.read_delta(spark, tens, filter=condition)
        assert len(frame.inputFiles()) == files
        assert sorted(row.n for row in frame.collect()) == sorted(read_delta(tens, filter=condition)["n"].to_pylist())
    with pytest.raises(InvalidInput, match=r"is not a boolean.*Nothing was read. Correct 'n \+ 1'"):
        spark_engine.read_delta(spark, tens, filter="n + 1")
    some = spark_engine.read_delta(spark, tens, columns=["s"], filter="n in (12, 13) and p = 1")
    assert sorted(map(str, some.toArrow()["s"].to_pylist())) == ["None", "k12"]
    tracking_table(tmp_path / "t")
    frame = spark_engine.read_delta(spark, str(tmp_path / "t"), row_ids=True)
    assert frame.sort("n").toArrow().to_pydict() == TRACKED
    frame = spark_engine.read_delta(spark, str(tmp_path / "t"), columns=["_row_id", "n"], filter="n > 3", row_ids=True)
    assert frame.columns == ["_row_id", "n", "_row_commit_version"]
    assert frame.sort("n").toArrow()["_row_id"].to_pylist() == [7, 201]
