"""A Spark read returns exactly the files of a version, or says before any row why it cannot."""

import json
import os
import subprocess
import sys
import threading
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_versioned.delta.schema.types import StructType, schema_from_arrow
from dagster_versioned.delta_tables.spark import read_delta
from dagster_versioned.engines.parts import WriteOptions
from dagster_versioned.engines.scan import Scan, ScanFile
from dagster_versioned.engines.spark import SparkEngine
from dagster_versioned.engines.spark import read as spark_read
from dagster_versioned.errors import IntegrityError, TableNotFound
from dagster_versioned.storage import LocalStore
from dagster_versioned.storage.wrappers import CountingStore
from support.remote_store import RemoteStore
from support.spark import needs_spark, promoted, staging_in

pytestmark = pytest.mark.spark


@pytest.fixture
def scan(spark, tmp_path):
    frame = spark.range(100).selectExpr("id", "cast(id as string) as `a.b`", "id / 3 as x")
    staging = staging_in(tmp_path / "table")
    return promoted(SparkEngine().write(frame, staging, WriteOptions()), staging)


def part_path(scan):
    return LocalStore(scan.store.uri).local_path(scan.files[0].key)


def remote(scan):
    return replace(scan, store=RemoteStore(scan.store.uri))


def hand_made(folder, tables, partition_values=None):
    """A scan over files written by somebody else, with the schema of the first table and the partition columns."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for i, table in enumerate(tables):
        pq.write_table(table, folder / f"{i}.parquet")
        values = partition_values[i] if partition_values else {}
        files.append(ScanFile(f"{i}.parquet", (folder / f"{i}.parquet").stat().st_size, partition_values=values))
    return Scan(LocalStore(folder), schema_from_arrow(tables[0].schema).all_nullable(), tuple(files))


def test_columns_come_in_the_order_asked_for(spark, scan):
    read = SparkEngine(spark).read(replace(scan, columns=("x", "a.b")))
    assert read.columns == ["x", "a.b"]
    assert read.count() == 100


def test_a_frame_stays_with_its_files_when_others_are_added(spark, scan, tmp_path):
    frame = SparkEngine(spark).read(scan)
    pq.write_table(pa.table({"id": [1]}), tmp_path / "table" / "later.parquet")
    assert frame.count() == 100


@pytest.mark.parametrize("through", ["path", "cache"])
def test_a_missing_part_is_an_integrity_error_before_any_row(spark, scan, through, monkeypatch, tmp_path):
    monkeypatch.setenv("DAGSTER_VERSIONED_CACHE", str(tmp_path / "cache"))
    part_path(scan).unlink()
    with pytest.raises(IntegrityError, match=scan.files[0].key):
        SparkEngine(spark).read(remote(scan) if through == "cache" else scan)


@pytest.mark.parametrize("through", ["path", "cache"])
def test_a_truncated_part_is_an_integrity_error_before_any_row(spark, scan, through, monkeypatch, tmp_path):
    monkeypatch.setenv("DAGSTER_VERSIONED_CACHE", str(tmp_path / "cache"))
    path = part_path(scan)
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data[:-1])
    with pytest.raises(IntegrityError, match=f"{len(data) - 1} bytes instead of {len(data)}"):
        SparkEngine(spark).read(remote(scan) if through == "cache" else scan)


def altered(scan):
    path = part_path(scan)
    data = bytearray(path.read_bytes())
    data[10] ^= 1
    path.unlink()
    path.write_bytes(data)


def test_an_altered_part_of_the_same_size_is_found_where_bytes_are_asked_for(spark, scan):
    SparkEngine(spark, check="bytes").read(scan)
    altered(scan)
    with pytest.raises(IntegrityError, match="SHA-256"):
        SparkEngine(spark, check="bytes").read(scan)


def test_the_cache_never_takes_in_an_altered_part(spark, scan, monkeypatch, tmp_path):
    monkeypatch.setenv("DAGSTER_VERSIONED_CACHE", str(tmp_path / "cache"))
    altered(scan)
    with pytest.raises(IntegrityError, match="SHA-256"):
        SparkEngine(spark).read(remote(scan))
    assert not list((tmp_path / "cache").iterdir())


def test_parts_are_fetched_once_and_read_natively_from_the_cache(spark, scan, monkeypatch, tmp_path):
    monkeypatch.setenv("DAGSTER_VERSIONED_CACHE", str(tmp_path / "cache"))
    counting = CountingStore(RemoteStore(scan.store.uri))
    counted = replace(scan, store=counting)
    assert SparkEngine(spark).read(counted).count() == 100
    assert counting.bytes_read == scan.files[0].size
    counting.reset()
    assert sorted(SparkEngine(spark).read(counted).collect()) == sorted(SparkEngine(spark).read(scan).collect())
    assert counting.bytes_read == 0


def test_a_file_without_sha256_is_cached_by_its_place_and_etag(spark, tmp_path, monkeypatch):
    monkeypatch.setenv("DAGSTER_VERSIONED_CACHE", str(tmp_path / "cache"))
    scan = hand_made(tmp_path / "t", [pa.table({"a": [1]})])
    assert SparkEngine(spark).read(remote(scan)).collect() == [(1,)]
    (tmp_path / "t" / "0.parquet").unlink()
    assert SparkEngine(spark).read(remote(hand_made(tmp_path / "t", [pa.table({"a": [2]})]))).collect() == [(2,)]


def test_columns_that_a_file_lacks_are_null(spark, tmp_path):
    scan = hand_made(tmp_path, [pa.table({"a": [1], "b": ["x"]}), pa.table({"a": [2]})])
    assert sorted(SparkEngine(spark).read(scan).collect()) == [(1, "x"), (2, None)]


def test_no_files_are_an_empty_frame_with_the_schema(spark, tmp_path):
    schema = schema_from_arrow(pa.schema([("a.b", pa.int64()), ("l", pa.list_(pa.string()))]))
    frame = SparkEngine(spark).read(Scan(LocalStore(tmp_path), schema, ()))
    assert (frame.columns, frame.collect()) == (["a.b", "l"], [])


@pytest.mark.parametrize("folder", ["plain", "odd [x] {a,b} %20+#ä*?", "a=1", "tr\\*icky"])
def test_partition_values_are_joined_on_by_file_whatever_the_folder_is_called(spark, tmp_path, folder):
    tables = [pa.table({"_metadata": [i], "a.b": [f"row {i}"]}) for i in range(4)]
    values = [{"p.q": "2020-01-01", "n": "1"}, {"p.q": None, "n": "1"}, {"p.q": "2020-01-01", "n": "2"}]
    scan = hand_made(tmp_path / folder, tables, [*values, values[0]])
    fields = {field.name: field for field in scan.schema.fields}
    typed = schema_from_arrow(pa.schema([("p.q", pa.date32()), ("n", pa.int64())]))
    scan = replace(scan, schema=StructType([typed.fields[0], *fields.values(), typed.fields[1]]))
    frame = SparkEngine(spark).read(scan)
    assert frame.columns == ["p.q", "_metadata", "a.b", "n"]
    assert sorted(map(str, (tuple(row) for row in frame.collect()))) == sorted(
        [
            "(datetime.date(2020, 1, 1), 0, 'row 0', 1)",
            "(None, 1, 'row 1', 1)",
            "(datetime.date(2020, 1, 1), 2, 'row 2', 2)",
            "(datetime.date(2020, 1, 1), 3, 'row 3', 1)",
        ]
    )
    only = SparkEngine(spark).read(replace(scan, columns=("n",)))
    assert sorted(row[0] for row in only.collect()) == [1, 1, 1, 2]


@pytest.mark.parametrize("partitioned", [False, True])
def test_read_delta_reads_every_version_of_a_foreign_table(spark, tmp_path, partitioned):
    from deltalake import write_deltalake

    table = pa.table({"k": ["a", "b", None, "ü/ %"], "n": [1, 2, 3, 4]})
    partition_by = ["k"] if partitioned else None
    write_deltalake(tmp_path / "t", table, partition_by=partition_by)
    write_deltalake(tmp_path / "t", table.slice(0, 2), mode="append", partition_by=partition_by)
    rows = [tuple(row.values()) for row in table.to_pylist()]
    assert sorted(map(str, map(tuple, read_delta(spark, str(tmp_path / "t"), 0).collect()))) == sorted(map(str, rows))
    assert sorted(map(str, map(tuple, read_delta(spark, str(tmp_path / "t")).collect()))) == sorted(
        map(str, rows + rows[:2])
    )
    with pytest.raises(TableNotFound):
        read_delta(spark, str(tmp_path / "nothing"))


def test_the_path_that_spark_is_given_is_found_again_in_what_it_lists(spark, tmp_path):
    """What `_with_files` relies on: a percent-decoded URI of Spark is the path it was given."""
    assert spark_read._bare("file:///a//b") == spark_read._bare("file:/a//b") == "/a//b"
    assert spark_read._bare("s3a://bucket/file:/x") == "s3a://bucket/file:/x"


@needs_spark(4, 1, "filters that are pushed")
@settings(max_examples=200)
@given(st.integers(-5, 15), st.lists(st.integers(0, 10), min_size=1), st.sampled_from(["<", "<=", "=", ">", ">="]))
def test_a_part_that_may_hold_a_matching_row_is_never_passed_over(value, rows, operator):
    from pyspark.sql import datasource as d

    from dagster_versioned.engines.spark.source import _group_may_match

    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"a": rows, "f": [float("nan"), *map(float, rows[1:])]}), sink)
    group = pq.read_metadata(pa.BufferReader(sink.getvalue())).row_group(0)
    kinds = {
        "<": (d.LessThan, int.__lt__),
        "<=": (d.LessThanOrEqual, int.__le__),
        "=": (d.EqualTo, int.__eq__),
        ">": (d.GreaterThan, int.__gt__),
        ">=": (d.GreaterThanOrEqual, int.__ge__),
    }
    condition, matches = kinds[operator]
    may = _group_may_match(group, condition(("a",), value), "a")
    assert may or not any(matches(row, value) for row in rows)
    bounds = (min(rows), max(rows))
    assert may == (bounds[0] <= value <= bounds[1] if operator == "=" else any(matches(b, value) for b in bounds))
    assert _group_may_match(group, condition(("f",), float(value)), "f")
    assert _group_may_match(group, condition(("nowhere",), value), "nowhere")


def test_the_session_helper_takes_the_active_session(spark):
    from dagster_versioned.engines.spark import default_session

    assert default_session() is spark
    seen = []
    thread = threading.Thread(target=lambda: seen.append(default_session()))
    thread.start()
    thread.join()
    assert seen[0].sparkContext is spark.sparkContext


def test_without_java_one_sentence_says_what_to_install(tmp_path):
    code = (
        "from dagster_versioned.engines.spark import default_session\n"
        "from dagster_versioned.errors import VersionedError\n"
        "try: default_session()\n"
        "except VersionedError as error: print(error)\n"
    )
    env = {"PATH": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    answer = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout
    assert "install" in answer
    assert answer.count("\n") == 1


def test_importing_the_engine_imports_no_spark():
    code = "import dagster_versioned.engines.spark, sys, json; print(json.dumps('pyspark' in sys.modules))"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert json.loads(run.stdout) is False
