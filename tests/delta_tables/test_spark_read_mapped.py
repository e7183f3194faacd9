"""Spark reads files with deletion vectors and mapped columns as the Arrow engine does, on every way to the bytes."""

from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_versioned.delta.schema.types import StructField, StructType
from dagster_versioned.delta_tables.read import read_delta as read_arrow
from dagster_versioned.delta_tables.spark import read_delta
from dagster_versioned.engines.arrow.scan import read_table
from dagster_versioned.engines.spark import SparkEngine, deletions
from dagster_versioned.errors import IntegrityError
from dagster_versioned.storage import LocalStore
from support.deleted_rows import deleting, make_scan, numbered
from support.mapped_columns import EXPECTED, FILE, ROWS, SCHEMA, create
from support.remote_store import RemoteStore
from support.spark import needs_spark

pytestmark = pytest.mark.spark


def rows(frame):
    return sorted(map(repr, frame.toArrow().to_pylist()))


@pytest.fixture
def scan(tmp_path):
    tables = [numbered(i * 100, 50) for i in range(3)]
    gone = {0, 7, 8, 49}
    return make_scan(LocalStore(tmp_path / "t"), tables, [deleting(gone), None, deleting({1})], row_group_size=10)


@pytest.mark.parametrize("through", ["path", pytest.param("cache", marks=pytest.mark.slow)])
@pytest.mark.parametrize("size", ["few", pytest.param("many", marks=pytest.mark.slow)])
def test_deleted_rows_are_gone_on_every_way(spark, scan, through, size, monkeypatch, tmp_path):
    monkeypatch.setenv("DAGSTER_VERSIONED_CACHE", str(tmp_path / "cache"))
    if size == "many":
        monkeypatch.setattr(deletions, "BROADCAST_ROWS", 0)
    if through == "cache":
        scan = replace(scan, store=RemoteStore(scan.store.uri))
    for columns in (None, ("p", "a"), ("s",)):
        asked = replace(scan, columns=columns)
        assert rows(SparkEngine(spark).read(asked)) == sorted(map(repr, read_table(asked).to_pylist()))
    filtered = SparkEngine(spark).read(scan).where("a >= 7 and a < 10 or a = 101")
    assert sorted(row.a for row in filtered.collect()) == [9, 101]


def test_deleted_rows_are_gone_when_executors_fetch_the_files(spark, scan):
    from dagster_versioned.engines.spark.read import read_through_executors

    for columns in (None, ("p", "a")):
        asked = replace(scan, columns=columns)
        assert rows(read_through_executors(asked, spark)) == sorted(map(repr, read_table(asked).to_pylist()))


def test_without_partition_columns(spark, scan):
    files = tuple(replace(file, partition_values={}) for file in scan.files)
    scan = replace(scan, files=files, schema=scan.schema.drop(["p"]))
    assert rows(SparkEngine(spark).read(scan)) == sorted(map(repr, read_table(scan).to_pylist()))


def test_a_file_that_is_there_twice_with_other_vectors(spark, scan):
    first = scan.files[0]
    scan = replace(scan, files=(first, replace(first, deletion_vector=deleting({2})), scan.files[1]))
    frame = SparkEngine(spark).read(scan)
    assert len(frame.inputFiles()) == 2  # by Spark's own reader, and each once
    assert rows(frame) == sorted(map(repr, read_table(scan).to_pylist()))


@pytest.mark.parametrize("through", ["path", "cache", "executors"])
def test_of_some_files_only_certain_rows_are_kept(spark, scan, through, monkeypatch, tmp_path):
    monkeypatch.setenv("DAGSTER_VERSIONED_CACHE", str(tmp_path / "cache"))
    first, second, third = scan.files
    both = replace(second, kept=deleting({1, 2, 3, 40}), deletion_vector=deleting({2}))
    scan = replace(scan, files=(first, both, replace(second, kept=deleting({49})), replace(third, kept=deleting({0}))))
    expected = read_table(scan)
    assert expected["a"].to_pylist()[-5:] == [101, 103, 140, 149, 200]
    assert expected.num_rows == 46 + 5
    if through == "cache":
        scan = replace(scan, store=RemoteStore(scan.store.uri))
    if through != "executors":
        frame = SparkEngine(spark).read(scan)
    else:
        from dagster_versioned.engines.spark.read import read_through_executors

        frame = read_through_executors(scan, spark)
    assert rows(frame) == sorted(map(repr, expected.to_pylist()))


def test_a_vector_for_another_file_is_an_error_before_any_row(spark, scan):
    wrong = replace(scan.files[0], deletion_vector=deleting({50}))
    with pytest.raises(IntegrityError, match="deletes row 50, but the file has 50 rows"):
        SparkEngine(spark).read(replace(scan, files=(wrong, *scan.files[1:])))


@pytest.mark.parametrize("mode", ["name", "id"])
def test_mapped_columns_are_found_at_every_depth(spark, tmp_path, mode):
    uri = create(tmp_path, mode, pa.Table.from_pylist(ROWS, FILE))
    frame = read_delta(spark, uri)
    assert frame.columns == list(SCHEMA.names)
    assert rows(frame) == sorted(map(repr, read_arrow(uri).to_pylist()))
    assert [row.b for row in frame.where("a = 3").select("b").collect()] == [4]
    assert [row.x for row in frame.where("s.x = 10").select("s.x").collect()] == [10]


def test_columns_with_ids_are_read_by_spark_itself_where_their_names_agree(spark, tmp_path, monkeypatch):
    from dagster_versioned.engines.spark import read as reading

    table = pa.Table.from_pylist(ROWS, FILE)
    (tmp_path / "alike").mkdir()
    (tmp_path / "other").mkdir()
    alike = create(tmp_path / "alike", "id", table)
    other = create(tmp_path / "other", "id", table.rename_columns(["dropped", "b", "a", "p3", "p4", "p5"]))
    for uri, native in ((alike, 1), (other, 0)):
        frame = read_delta(spark, uri)
        assert len(frame.inputFiles()) == native
        assert rows(frame) == rows_of_the_table()
    monkeypatch.setattr(reading, "MANY_FOOTERS", 0)
    assert read_delta(spark, alike).inputFiles() == []


def rows_of_the_table():
    return sorted(repr({**row, "later": None, "part": 5}) for row in EXPECTED)


WIDENED = [
    (pa.int8(), 5, "short"),
    (pa.int16(), 5, "integer"),
    (pa.int32(), -5, "long"),
    (pa.int8(), 5, "double"),
    (pa.int32(), 5, "double"),
    (pa.float32(), 0.5, "double"),
    (pa.int32(), 5, "decimal(12,2)"),
    (pa.int64(), 5, "decimal(22,2)"),
    (pa.decimal128(5, 2), "1.25", "decimal(9,4)"),
    (pa.decimal128(18, 2), "1.25", "decimal(24,4)"),
    (pa.date32(), "2024-02-29", "timestamp_ntz"),
]


def test_types_that_were_widened_later(spark, tmp_path):
    held = [pa.array([value, None]).cast(narrow) for narrow, value, _ in WIDENED]
    table = pa.table({f"c{i}": column for i, column in enumerate(held)})
    nested = pa.StructArray.from_arrays(held, names=[f"n{i}" for i in range(len(held))])
    wide = [StructField(f"n{i}", data_type) for i, (_, _, data_type) in enumerate(WIDENED)]
    fields = [StructField(f"c{i}", data_type) for i, (_, _, data_type) in enumerate(WIDENED)]
    schema = StructType([*fields, StructField("s", StructType(wide))])
    uri = create(tmp_path, "none", table.append_column("s", nested), schema)
    frame = read_delta(spark, uri)
    assert [field.dataType.simpleString() for field in frame.schema][:3] == ["smallint", "int", "bigint"]
    assert rows(frame) == sorted(map(repr, read_arrow(uri).to_pylist()))


@needs_spark(4, 1, "filters that are pushed")
def test_pushed_filters_know_the_names_in_the_files(tmp_path):
    from pyspark.sql import datasource as d

    from dagster_versioned.delta.log.snapshot import load_snapshot
    from dagster_versioned.delta_tables.read import delta_scan
    from dagster_versioned.engines.spark.source import may_match

    create(tmp_path, "name", pa.Table.from_pylist(ROWS, FILE))
    store = LocalStore(tmp_path)
    scan = delta_scan(store, load_snapshot(store))
    # `a` is called `b` in the file, where it is 1 to 3; what is called `a` there is 2 to 4.
    assert pq.read_metadata(tmp_path / "f.parquet").num_row_groups == 2
    assert may_match(scan, scan.files[0], [d.EqualTo(("a",), 1)])
    assert not may_match(scan, scan.files[0], [d.EqualTo(("a",), 4)])
    assert may_match(replace(scan, mapping="id"), scan.files[0], [d.EqualTo(("a",), 4)])
