"""Whatever program reads a table of ours, it sees the rows that were written: at every version, none lost, none twice.

Expected rows are the frames that were written (`support.table_histories`), so our own reader is on trial as well.
"""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from dagster_versioned import Project, read_delta
from dagster_versioned.delta.schema.types import schema_from_arrow
from dagster_versioned.delta_tables import spark as in_spark
from dagster_versioned.delta_tables.write import write_delta
from dagster_versioned.engines.spark.releases import release
from dagster_versioned.engines.spark.types import spark_schema
from dagster_versioned.tables.options import TableOptions
from support.frames import numbered
from support.readers import DELTA_READERS, READS_WITH_POLARS, assert_same, by_datafusion, by_deltalake, rows
from support.table_histories import READABLE_BY_DATOM, TableHistory

datom = pytest.importorskip("datom")
deltalake = pytest.importorskip("deltalake")

pytestmark = pytest.mark.conformance

Written = Callable[[str], TableHistory]
DeltaReader = Callable[[Path, int | None], pa.Table]


# --- our own reader


@pytest.mark.every(2)
def test_we_read_every_version_as_it_was_written(history: TableHistory) -> None:
    for version, expected in history.expected.items():
        assert_same(history.table.read(version), expected)
        assert_same(read_delta(str(history.folder), version), expected)
    assert_same(history.table.read(), expected)


@pytest.mark.parametrize("name", ["arrow_many_parts", "arrow_equal_parts", "arrow_all_types", "arrow_long"])
def test_rows_of_arrow_frames_keep_their_order(written: Written, name: str) -> None:
    history = written(name)
    for version, expected in history.expected.items():
        found = history.table.read(version)
        assert list(rows(found)) == list(rows(expected))  # a Counter keeps the order of first sight
        assert [repr(row) for row in found.to_pylist()] == [repr(row) for row in expected.to_pylist()]


def test_every_version_of_a_partition_is_read_alone(written: Written) -> None:
    history = written("arrow_odd_partitions")
    for partition, version in history.table.partitions().items():
        found = history.table.read(version.metadata_sha)
        assert_same(found, history.table.read(partition=partition))
        assert found.num_rows == version.identity.nrow


# --- Delta readers


@pytest.mark.every(2)
@pytest.mark.parametrize("read", DELTA_READERS)
def test_a_delta_reader_sees_every_version(history: TableHistory, read: DeltaReader) -> None:
    assert set(history.expected) == set(range(history.table.state.log_version + 1))
    for version, expected in history.expected.items():
        assert_same(read(history.folder, version), expected)
    assert_same(read(history.folder, None), expected)


def test_delta_lists_each_part_once_with_its_rows_and_size(history: TableHistory) -> None:
    for version in history.expected:
        listed = pa.table(deltalake.DeltaTable(str(history.folder), version=version).get_add_actions(flatten=True))
        adds = history.table.files(version).adds
        assert sorted(listed["path"].to_pylist()) == sorted(add.path for add in adds)
        assert len({add.path for add in adds}) == len(adds)
        assert sum(listed["num_records"].to_pylist()) == history.expected[version].num_rows
        for path, size in zip(listed["path"].to_pylist(), listed["size_bytes"].to_pylist(), strict=True):
            data = (history.folder / path).read_bytes()
            assert (len(data), f"{hashlib.sha256(data).hexdigest()}.parquet") == (size, path)


def test_tags_name_partition_and_place_of_every_part(written: Written) -> None:
    """By plain JSON, since no reader shows tags."""
    history = written("arrow_equal_partitions")
    commits = sorted((history.folder / "_delta_log").glob("*.json"))
    lines = [json.loads(line) for commit in commits for line in commit.read_text().splitlines()]
    tags = [line["add"]["tags"] for line in lines if "add" in line]
    assert all(set(tag) == {"dagster_versioned/partition", "dagster_versioned/ordinal"} for tag in tags)
    places = [(tag["dagster_versioned/partition"], int(tag["dagster_versioned/ordinal"])) for tag in tags]
    last = [ordinal for partition, ordinal in places if partition == "2013-01-05"]
    assert last == list(range(len(last)))
    assert len(last) > 3


def test_a_head_is_read_from_the_checkpoint_when_the_log_before_it_is_gone(written: Written, tmp_path: Path) -> None:
    history = written("arrow_long")
    head = max(history.expected)
    assert head > 100
    copy = tmp_path / "copy"
    shutil.copytree(history.folder, copy)
    for version in range(100):
        (copy / "_delta_log" / f"{version:020d}.json").unlink()
    assert (copy / "_delta_log" / "_last_checkpoint").exists()
    for read in [*DELTA_READERS, lambda folder, version: read_delta(str(folder), version)]:
        for version in range(100, head + 1):
            assert_same(read(copy, version), history.expected[version])
    assert deltalake.DeltaTable(str(copy)).version() == head


def test_readers_follow_when_nothing_or_something_was_collected(tmp_path: Path) -> None:
    table = Project.open("P", str(tmp_path)).table("delays-v2")
    folder = tmp_path / "datom" / "delays-v2"
    frames = [numbered(size) for size in (3, 4, 5)]
    for frame in frames:
        table.write(frame)
    assert not table.vacuum(dry_run=False).keys
    for read in DELTA_READERS:
        for version, frame in enumerate(frames):
            assert_same(read(folder, version), frame)
    assert table.expire(keep_last=1, dry_run=False).keys
    for read in DELTA_READERS:
        assert_same(read(folder, None), frames[-1])
        for version in (0, 1):
            with pytest.raises(Exception, match=r"(?i)not found|no such file|404"):
                read(folder, version)  # an error, never fewer rows
    conn = datom.get_conn(datom.store_local(tmp_path), "P")
    assert list(datom.history(conn, str(table.name))["version"]) == [table.version().metadata_sha]
    assert_same(datom.read(conn, str(table.name), as_arrow=True), frames[-1])


@pytest.mark.parametrize("name", ["daily (v2) delays", "a_B-c"])
def test_a_table_name_with_spaces_is_read(tmp_path: Path, name: str) -> None:
    Project.open("P", str(tmp_path)).table(name).write(numbered(9))
    folder = tmp_path / "datom" / name
    assert_same(by_deltalake(folder), numbered(9))
    assert_same(by_datafusion(folder), numbered(9))
    # Polars 2.1 asks for `daily%20(v2)…` on its own path, whoever wrote the table.
    if READS_WITH_POLARS:
        assert_same(pl.scan_delta(str(folder), use_pyarrow=True).collect().to_arrow(), numbered(9))
    assert_same(datom.read(datom.get_conn(datom.store_local(tmp_path), "P"), name, as_arrow=True), numbered(9))


PARTITION_COLUMNS = ["x%20x", "100%", "a'b", 'a"b', "a#b", "a?b", "a*b", "a{b}", "a[0]^", "x,y;z", "_x", "_delta_log"]


def partitioned_by_odd_names(folder: Path, writer: str) -> pa.Table:
    values = ["v", "a/b: c=d", "x%20x", None]
    frame = pa.table({"n": list(range(4)), **dict.fromkeys(PARTITION_COLUMNS, values)})
    if writer == "versioned":
        table = Project.open("P", str(folder.parents[1])).table(folder.name)
        table.write(frame, options=TableOptions(partition_columns=tuple(PARTITION_COLUMNS)))
    else:
        write_delta(str(folder), frame, partition_by=PARTITION_COLUMNS)
    return frame


@pytest.mark.parametrize("writer", ["versioned", "delta_tables"])
def test_partition_columns_of_odd_names_are_read(tmp_path: Path, writer: str) -> None:
    """Polars takes partition columns from the paths of files, and knows them by names that nothing in it escapes."""
    folder = tmp_path / "datom" / "t"
    frame = partitioned_by_odd_names(folder, writer)
    for read in [*DELTA_READERS, lambda folder: read_delta(str(folder))]:
        assert_same(read(folder), frame)


@pytest.mark.spark
def test_partition_columns_of_odd_names_are_read_by_spark(tmp_path: Path, spark: Any) -> None:
    folder = tmp_path / "datom" / "t"
    frame = partitioned_by_odd_names(folder, "delta_tables")
    assert_same(pa.Table.from_pandas(in_spark.read_delta(spark, str(folder)).toPandas()), frame)


# --- datom


def connect(history: TableHistory) -> "datom.Conn":
    return datom.get_conn(datom.store_local(history.folder.parents[1]), "CONFORMANCE")


@pytest.mark.every(2)
def test_datom_reads_every_version_of_an_eligible_table_and_lists_no_other(history: TableHistory) -> None:
    conn, table, name = connect(history), history.table, str(history.table.name)
    table.repair()  # what is put now and then is as new as the log
    listed = datom.list_artifacts(conn, include_versions=True, short_hash=False).set_index("name")
    if name.partition("_")[2] not in READABLE_BY_DATOM:
        assert name not in listed.index
        for reference in (None, *(version.metadata_sha for version in table.history())):
            with pytest.raises(datom.NotFound):
                datom.read(conn, name, reference)
        with pytest.raises(datom.NotFound):
            datom.history(conn, name)
        return
    readable = {v.metadata_sha: v for v in reversed(table.history()) if v.facts.part_count == 1}
    known = datom.history(conn, name, n=10_000)
    assert sorted(known["version"]) == sorted(readable)
    assert list(known["data_sha"]) == [readable[sha].data_sha for sha in known["version"]]
    assert (listed["current_version"][name], listed["version_count"][name]) == (
        table.version().metadata_sha,
        len(readable),
    )
    for sha, version in readable.items():
        for length in (64, shortest_prefix(sha, readable)):
            assert_same(datom.read(conn, name, sha[:length], as_arrow=True), history.expected[version.log_version])
    assert_same(datom.read(conn, name, as_arrow=True), table.read())
    assert len(datom.read(conn, name)) == table.version().identity.nrow


def shortest_prefix(sha: str, others: dict[str, object]) -> int:
    return next(n for n in range(6, 65) if sum(other.startswith(sha[:n]) for other in others) == 1)


def test_datom_fails_on_versions_of_many_parts_in_the_past_of_an_eligible_table(written: Written) -> None:
    history = written("arrow_shrinks_to_one_part")
    conn, name = connect(history), str(history.table.name)
    many = [version for version in history.table.history() if version.facts.part_count > 1]
    assert many
    for version in many:
        with pytest.raises(datom.VersionNotFound):
            datom.read(conn, name, version.metadata_sha)


def test_datom_refuses_a_part_whose_bytes_were_changed(tmp_path: Path) -> None:
    table = Project.open("P", str(tmp_path)).table("t")
    version = table.write(numbered(9)).version
    part = tmp_path / "datom" / "t" / f"{version.data_sha}.parquet"
    part.write_bytes(part.read_bytes()[:-9] + b"x" + part.read_bytes()[-8:])
    with pytest.raises(datom.IntegrityMismatch):
        datom.read(datom.get_conn(datom.store_local(tmp_path), "P"), "t")


def test_single_part_makes_a_large_table_eligible(tmp_path: Path) -> None:
    project = Project.open("P", str(tmp_path))
    project.table("other").write(numbered(1))
    table = project.table("t")
    small = {"row_group_bytes": 4_000, "target_part_bytes": 1}
    conn = datom.get_conn(datom.store_local(tmp_path), "P")
    table.write(numbered(900), options=TableOptions(**small))
    assert list(datom.list_artifacts(conn)["name"]) == ["other"]
    # Equal rows in parts that were already written are no reason to write them again, unless the reader needs one part.
    table.write(numbered(900), options=TableOptions(single_part=True, **small))
    table.repair()  # what is put now and then is as new as the log
    assert list(datom.list_artifacts(conn)["name"]) == ["other", "t"]
    assert_same(datom.read(conn, "t", as_arrow=True), numbered(900))


# --- Spark


@pytest.mark.spark
@pytest.mark.every(3)
def test_plain_spark_reads_the_files_of_every_version(history: TableHistory, spark) -> None:
    for version, expected in list(history.expected.items())[-8:]:
        files = [str(history.folder / add.path) for add in history.table.files(version).adds]
        if files:
            reader = spark.read.option("mergeSchema", "true")
            if release() < (4, 0):
                if "wider_partitions" in str(history.folder):  # ours does: tests/tables/test_widening.py
                    pytest.skip("Spark's own reader has no wider types: from PySpark 4.0 on")
                # Else it refuses old dates of writers that it does not know.
                reader = reader.option("datetimeRebaseMode", "CORRECTED")
            if "wider_partitions" in str(history.folder):  # types of files alone are not merged, whatever they hold
                reader = spark.read.schema(spark_schema(schema_from_arrow(expected.schema)))
            found = reader.parquet(*files).toArrow()
            assert_same(found, expected)
