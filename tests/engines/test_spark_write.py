"""A Spark write is one pass, and how Spark dealt the rows out does not show in what was written."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from dagster_versioned.delta.schema.types import schema_to_arrow
from dagster_versioned.engines.arrow.engine import ArrowEngine
from dagster_versioned.engines.parts import WriteOptions, WriteTuning
from dagster_versioned.engines.spark import SparkEngine, by_value, worker
from dagster_versioned.engines.spark import write as spark_write
from dagster_versioned.engines.spark.catalyst import spark_errors
from dagster_versioned.errors import EmptyTable, InvalidInput, StorageError, UnsupportedType
from dagster_versioned.projects.project import Project
from support.spark import FILES_ONLY, promoted, round_trip, staging_in

pytestmark = pytest.mark.spark

ROWS = 5_000


@pytest.fixture(scope="module")
def frame(spark):
    """Every kind of column, with nulls, NaN, signed zeros, duplicates of rows and keys that tie."""
    rows = spark.range(ROWS).selectExpr(
        "id % 1000 as id",
        "cast(id % 7 as string) as word",
        "if(id % 5 = 0, null, cast(id % 3 as double)) as x",
        "if(id % 11 = 0, double('NaN'), -0.0D) as y",
        "timestamp_seconds(id % 100) as t",
        "if(id % 4 = 0, null, named_struct('a', if(id < 0, null, id % 2), 'b', if(id < 0, null, array('x')))) as s",
        "map('k', id % 2) as m",
    )
    return rows.cache()


FILES = WriteOptions(tuning=FILES_ONLY)


def write(frame, folder, options=None, write_id="w"):
    staging = staging_in(folder, write_id)
    return SparkEngine().write(frame, staging, options or WriteOptions()), staging


def rows_of(frame):
    return sorted(map(repr, frame.collect()))


def dealt_differently(spark, frame, folder):
    """The same rows by other ways: partitions, order, skew, empty partitions, another file format."""
    from pyspark.sql import functions as sf

    frame.write.mode("overwrite").option("compression", "gzip").parquet(str(folder / "gzip"))
    yield frame
    yield frame.coalesce(1)
    yield frame.repartition(13)
    yield frame.repartition(3, "word").orderBy(sf.col("t").desc())
    yield frame.where("id < 10").union(frame.where("id >= 10"))
    yield spark.read.parquet(str(folder / "gzip"))


def test_the_same_rows_are_the_same_contents_and_bytes_however_they_are_dealt_out(spark, frame, tmp_path):
    outcomes = set()
    for i, dealt in enumerate(dealt_differently(spark, frame, tmp_path)):
        written, _ = write(dealt, tmp_path / str(i))
        outcomes.add((written.contents.digest, written.contents.null_counts, *(p.sha256 for p in written.parts)))
        assert len(written.parts) == 1
        assert written.contents.nrow == written.parts[0].num_records == ROWS
    assert len(outcomes) == 1


@pytest.mark.slow
def test_rows_that_were_staged_as_files_become_the_same_single_part(spark, frame, tmp_path):
    def staged(left_plain_bytes):
        return WriteOptions(tuning=WriteTuning(sent_home_bytes=1, left_plain_bytes=left_plain_bytes))

    sent_home, _ = write(frame, tmp_path / "a")
    left_plain, staging = write(frame.repartition(3), tmp_path / "b", staged(2**26))
    assert len(list(tmp_path.rglob("rows.arrow"))) == 3
    assert not list(tmp_path.glob("b/**/?-*/*.parquet"))
    some_of_each, _ = write(frame.repartition(3), tmp_path / "c", staged(150_000))  # enough for the first task alone
    assert len(list((tmp_path / "c").rglob("rows.arrow"))) == 1
    encoded, _ = write(frame.repartition(3), tmp_path / "d", staged(0))
    assert not list((tmp_path / "d").rglob("rows.arrow"))
    for other in (left_plain, some_of_each, encoded):
        assert [part.sha256 for part in other.parts] == [part.sha256 for part in sent_home.parts]
    staging.discard()
    assert not list((tmp_path / "b").rglob("rows.arrow"))


def test_rows_left_plain_that_do_not_fit_one_part_are_joined(spark, frame, tmp_path):
    options = WriteOptions(tuning=WriteTuning(canonical_bytes=-1, sent_home_bytes=1))
    read, written = round_trip(spark, frame.repartition(3), tmp_path, options)
    assert len(written.parts) == 1
    assert rows_of(read) == rows_of(frame)


def test_rows_whose_order_counts_are_never_left_plain(frame, tmp_path):
    write(frame, tmp_path, WriteOptions(row_order="significant", tuning=WriteTuning(sent_home_bytes=1)))
    assert not list(tmp_path.rglob("rows.arrow"))


@pytest.mark.slow
def test_tables_beyond_one_part_have_the_same_digest(spark, frame, tmp_path):
    outcomes = [
        write(dealt, tmp_path / str(i), FILES)[0] for i, dealt in enumerate(dealt_differently(spark, frame, tmp_path))
    ]
    assert len({written.contents.digest for written in outcomes}) == 1
    assert len({len(written.parts) for written in outcomes}) > 1


def test_a_row_more_less_or_changed_is_another_digest(spark, frame, tmp_path):
    from pyspark.sql import functions as sf

    others = [
        frame,
        frame.limit(ROWS - 1),
        frame.union(frame.limit(1)),
        frame.withColumn("word", sf.when(sf.col("id") == 3, "other").otherwise(sf.col("word"))),
        frame.withColumn("x", sf.coalesce("x", sf.lit(0.0))),
    ]
    digests = {write(other, tmp_path / str(i))[0].contents.digest for i, other in enumerate(others)}
    assert len(digests) == len(others)


@pytest.mark.parametrize(
    "options",
    [
        WriteOptions(row_order="ignored"),
        WriteOptions(row_order="significant"),
        WriteOptions(row_order="significant", sort_columns=True, partition="2013-01-01"),
        WriteOptions(sort_rows=("word", "x")),
        WriteOptions(row_order="significant", row_group_bytes=50_000, target_part_bytes=20_000),
        WriteOptions(row_order="ignored", row_group_bytes=50_000, target_part_bytes=400_000),
        WriteOptions(row_order="ignored", target_part_bytes=100_000),
    ],
)
def test_spark_and_arrow_write_the_same_parts(spark, frame, tmp_path, options):
    table = frame.toArrow()
    table = table.cast(schema_to_arrow(spark_write.stored_schema(frame.schema)))
    arrow = ArrowEngine().write(table, staging_in(tmp_path / "arrow"), options)
    ours, _ = write(frame, tmp_path / "spark", options)
    assert ours.contents == arrow.contents
    assert [(p.ordinal, p.sha256, p.statistics) for p in ours.parts] == [
        (p.ordinal, p.sha256, p.statistics) for p in arrow.parts
    ]


def test_statistics_come_home_from_tasks_exactly(spark, tmp_path):
    """Decimals too, which JSON would have refused or rounded."""
    frame = spark.range(3, numPartitions=1).selectExpr(
        "cast('-1.8765432109876543211' as decimal(38,19)) as d", "5e-324D as tiny"
    )
    table = frame.toArrow().cast(schema_to_arrow(spark_write.stored_schema(frame.schema)))
    arrow = ArrowEngine().write(table, staging_in(tmp_path / "arrow"), WriteOptions())
    (part,) = write(frame, tmp_path / "spark", FILES)[0].parts
    assert part.statistics == arrow.parts[0].statistics
    assert part.statistics["minValues"]["d"] == Decimal("-1.8765432109876543211")


def test_order_that_counts_is_the_order_of_collect_for_any_partitioning(spark, frame, tmp_path):
    from pyspark.sql import functions as sf

    ordered = spark.range(1000).withColumn("v", sf.hash("id")).repartition(7).orderBy("v")
    options = WriteOptions(row_order="significant")
    written, staging = write(ordered, tmp_path / "a", options)
    again, _ = write(ordered.coalesce(1), tmp_path / "b", options)
    other, _ = write(ordered.orderBy(sf.col("v").desc()), tmp_path / "c", options)
    assert [p.sha256 for p in again.parts] == [p.sha256 for p in written.parts]
    assert again.contents == written.contents
    assert other.contents.digest != written.contents.digest
    stored = ArrowEngine().read(promoted(written, staging))
    assert stored.column("v").to_pylist() == [row.v for row in ordered.collect()]


@pytest.mark.slow
def test_sorted_rows_are_the_same_bytes_for_any_order_of_arrival(spark, frame, tmp_path):
    options = WriteOptions(sort_rows=("t",))
    outcomes = {
        (written.contents.digest, *(part.sha256 for part in written.parts))
        for i, dealt in enumerate(dealt_differently(spark, frame, tmp_path))
        for written in [write(dealt, tmp_path / str(i), options)[0]]
    }
    assert len(outcomes) == 1


@pytest.mark.parametrize("key", ["nope", "s", "m"])
def test_sorting_by_no_column_or_a_nested_one_is_refused(spark, frame, tmp_path, key):
    with pytest.raises(InvalidInput, match=key):
        write(frame, tmp_path, WriteOptions(sort_rows=(key,)))


def test_ordinals_are_unique_in_frame_order_and_reproducible(spark, frame, tmp_path):
    options = replace(FILES, row_group_bytes=20_000, target_part_bytes=5_000)
    first, _ = write(frame.coalesce(2), tmp_path / "a", options)
    second, _ = write(frame.coalesce(2), tmp_path / "b", options)
    ordinals = [part.ordinal for part in first.parts]
    assert ordinals == sorted(set(ordinals))
    assert {ordinal // worker.ORDINALS_PER_TASK for ordinal in ordinals} == {0, 1}
    assert [(p.ordinal, p.sha256) for p in first.parts] == [(p.ordinal, p.sha256) for p in second.parts]


def test_equal_partitions_become_parts_of_their_own(spark, tmp_path):
    frame = spark.range(2000, numPartitions=2).selectExpr("id % 1000 as id")
    read, written = round_trip(spark, frame, tmp_path, FILES)
    assert len({part.sha256 for part in written.parts}) == 2
    assert read.count() == 2000


@pytest.mark.slow
def test_small_tasks_are_joined_and_large_ones_keep_their_parts(spark, tmp_path):
    options = WriteOptions(tuning=WriteTuning(canonical_bytes=-1, left_plain_bytes=0))
    # Spark merges the partitions of unions, so that skew has to come from within.
    counts = "if(id in (2, 4), 20000, 100)"
    frame = spark.range(0, 6, numPartitions=6).selectExpr(f"explode(sequence(1, {counts})) as i", "uuid() as u").cache()
    read, written = round_trip(spark, frame, tmp_path, options)
    assert [part.num_records for part in written.parts] == [400, 20_000, 20_000]
    assert [part.ordinal // worker.ORDINALS_PER_TASK for part in written.parts] == [0, 2, 4]
    assert rows_of(read) == rows_of(frame)


@pytest.mark.slow
def test_many_small_partitions_become_one_file(spark, tmp_path):
    read, written = round_trip(spark, spark.range(1000).repartition(40), tmp_path)
    assert len(written.parts) == 1
    assert len(list(tmp_path.rglob("*.parquet"))) == 1
    assert read.count() == 1000


def test_single_part_is_one_part_beyond_every_size(spark, frame, tmp_path):
    options = replace(FILES, single_part=True, row_group_bytes=20_000, target_part_bytes=1_000)
    written, _ = write(frame.repartition(5), tmp_path, options)
    assert [part.num_records for part in written.parts] == [ROWS]


def test_no_rows_are_refused_unless_allowed_and_keep_the_schema(spark, frame, tmp_path):
    nothing = frame.where("id < 0")
    with pytest.raises(EmptyTable):
        write(nothing, tmp_path)
    for order in ("ignored", "significant"):
        options = WriteOptions(allow_empty=True, row_order=order)
        read, written = round_trip(spark, nothing, tmp_path, options)
        assert written.parts == ()
        assert written.contents.nrow == 0
        assert read.schema.simpleString() == frame.schema.simpleString()
        arrow = pa.table({"id": pa.array([], pa.int64())})
        expected = ArrowEngine().contents(arrow, options).digest
        assert write(nothing.select("id"), tmp_path, options)[0].contents.digest == expected


def failing_once(marker: Path):
    """Passes rows on, and fails half way in the first attempt of each task, after which it works."""

    def run(batches):
        from pyspark import TaskContext

        for batch in batches:
            yield batch.slice(0, batch.num_rows // 2)
            flag = marker / str(TaskContext.get().partitionId())
            if not flag.exists():
                flag.touch()
                raise OSError("the disk of this executor went away")
            yield batch.slice(batch.num_rows // 2)

    return run


def test_a_task_that_fails_once_and_is_retried_writes_every_row_once(spark, frame, tmp_path):
    marker = tmp_path / "marker"
    marker.mkdir()
    plain = frame.select("id", "word", "x").repartition(2)
    flaky = plain.mapInArrow(failing_once(marker), plain.schema)
    options = replace(FILES, row_group_bytes=5_000, target_part_bytes=2_000)
    written, staging = write(flaky, tmp_path / "table", options)
    assert len(list(marker.iterdir())) == 2
    assert written.contents.digest == write(plain, tmp_path / "other")[0].contents.digest
    assert rows_of(SparkEngine(spark).read(promoted(written, staging))) == rows_of(plain)


def test_a_write_that_fails_for_good_raises_and_leaves_nothing_after_discard(spark, frame, tmp_path):
    broken = frame.selectExpr("id", "if(id = 999, raise_error('broken row'), word) as word")
    staging = staging_in(tmp_path)
    with pytest.raises(spark_errors(), match="broken row"):
        SparkEngine().write(broken, staging, replace(FILES, row_group_bytes=1_000, target_part_bytes=500))
    staging.discard()
    assert not list(tmp_path.rglob("*.parquet"))


@pytest.mark.slow
def test_a_cancelled_job_returns_no_part(spark, tmp_path):
    """The tasks see their input end, and would call what they have a part."""

    def slowly(batches):
        for batch in batches:
            time.sleep(0.2)
            yield batch

    # More than the pipes between Spark and Python hold, so that each batch arrives when it is made.
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "200000")
    options = replace(FILES, row_group_bytes=500, target_part_bytes=1)
    try:
        rows = spark.range(400_000_000, numPartitions=2)  # minutes of it: the cancellation never comes too late
        with ThreadPoolExecutor(1) as pool:
            outcome = pool.submit(write, rows.mapInArrow(slowly, rows.schema), tmp_path, options)
            deadline = time.monotonic() + 60
            while not list(tmp_path.rglob("*.parquet")) and time.monotonic() < deadline:
                time.sleep(0.1)
            spark.sparkContext.cancelAllJobs()
            error = outcome.exception(60)
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert "cancel" in str(error).lower()


def test_a_folder_that_executors_do_not_see_is_named(tmp_path):
    task = worker.Task(
        spark_write.StructType(()), "ignored", WriteOptions(), tmp_path / "elsewhere", store=None, prefix="_staging/w/"
    )
    with pytest.raises(StorageError, match="elsewhere"):
        task._shared("0-0")


@pytest.mark.slow
def test_our_errors_in_a_task_arrive_as_themselves(spark, frame, tmp_path, monkeypatch):
    def unwilling(*_):
        raise StorageError("No room on the executor. Nothing was committed.")

    monkeypatch.setattr(worker, "_compressed", unwilling)
    # Not what was pickled before, which has the other one.
    monkeypatch.setattr(by_value, "_pickled", by_value._pickled.__wrapped__)
    with pytest.raises(StorageError, match=r"^No room on the executor\. Nothing was committed\.$"):
        write(frame, tmp_path)


def test_a_write_touches_no_session_setting_and_leaves_pickling_as_it_was(spark, frame, tmp_path):
    from pyspark import cloudpickle

    before = spark.sparkContext.getConf().getAll()
    write(frame, tmp_path)
    assert spark.sparkContext.getConf().getAll() == before
    assert not cloudpickle.list_registry_pickle_by_value()


@pytest.mark.every(2)
@pytest.mark.parametrize("column", ["{0}", "named_struct('t', {0})", "array({0})", "map('k', {0})"])
def test_text_that_is_not_utf8_is_refused_by_column(spark, tmp_path, column):
    note = column.format("cast(X'FFFE' as string)")
    rows = spark.sql(f"select 1 as n, {note} as note")
    table = Project.open("NYC", str(tmp_path / "store")).table("flights")
    with pytest.raises(UnsupportedType, match="'note' holds text that is not UTF-8"):
        table.write(rows)
    assert not table.exists()


def test_a_column_of_nulls_has_the_type_that_the_table_knows(spark, tmp_path):
    table = Project.open("NYC", str(tmp_path / "store")).table("flights")
    with pytest.raises(UnsupportedType, match="note"):
        table.write(spark.sql("select 1 as n, null as note"))
    table.write(spark.sql("select 1 as n, array('a') as note"))
    table.write(spark.sql("select 2 as n, null as note"))
    assert table.read().to_pydict() == {"n": [2], "note": [None]}
    assert table.read().schema.field("note").type == pa.list_(pa.string())
