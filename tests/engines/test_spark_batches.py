"""Batches without a limit in bytes are taken only where no row can make them large, and by no other query."""

import pyarrow as pa
import pytest

from dagster_versioned.engines.parts import WriteOptions
from dagster_versioned.engines.spark import SparkEngine
from dagster_versioned.engines.spark import write as spark_write
from support.spark import needs_spark, round_trip, staging_in

pytestmark = [pytest.mark.spark, needs_spark(4, 0, "batches that are limited in bytes")]

MAX_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"


@pytest.fixture
def limits(spark, monkeypatch):
    """The values of the limit under which results were collected, in order."""
    from pyspark.sql.classic.dataframe import DataFrame

    seen = []
    collect = DataFrame.collect

    def noted(frame):
        seen.append(spark.sparkContext.getLocalProperty(MAX_BYTES))
        return collect(frame)

    monkeypatch.setattr(DataFrame, "collect", noted)
    return seen


def write(frame, folder, options=None):
    return SparkEngine().write(frame, staging_in(folder), options or WriteOptions())


@pytest.mark.parametrize("columns", [("id",), ("id", "cast(id as string) as s", "if(id % 2 = 0, null, 'é') as t")])
def test_narrow_rows_are_taken_without_a_limit_that_is_gone_afterwards(spark, tmp_path, limits, columns):
    frame = spark.range(1000).selectExpr(*columns)
    read, _ = round_trip(spark, frame, tmp_path)
    assert limits == ["2147483647"]
    assert spark.sparkContext.getLocalProperty(MAX_BYTES) is None
    assert sorted(map(repr, read.collect())) == sorted(map(repr, frame.collect()))


def test_a_row_too_wide_for_its_share_of_a_batch_is_written_under_sparks_limit(spark, tmp_path, limits, monkeypatch):
    monkeypatch.setattr(spark_write, "BATCH_BYTES", 10_000 * 108)
    fits = spark.range(1000).selectExpr("id", "repeat('x', 100) as s")
    wide = fits.selectExpr("id", "if(id = 999, repeat('é', 51), s) as s")
    round_trip(spark, fits, tmp_path / "fits")
    assert limits == ["2147483647"]
    read, written = round_trip(spark, wide, tmp_path / "wide")
    assert limits[1:] == ["2147483647", None]
    assert written.contents.nrow == 1000
    assert written.contents.null_counts == (0, 0)
    assert read.where("length(s) = 51").count() == 1


@pytest.mark.parametrize("columns", [("id", "binary('x') as b"), ("array(id) as a",), ("id", "struct('x') as s")])
def test_columns_whose_width_is_not_asked_keep_sparks_limit(spark, tmp_path, limits, columns):
    write(spark.range(10).selectExpr(*columns), tmp_path)
    assert limits == [None]


def test_a_limit_of_the_session_is_kept(spark, tmp_path, limits):
    spark.conf.set(MAX_BYTES, "1m")
    try:
        write(spark.range(10), tmp_path)
    finally:
        spark.conf.unset(MAX_BYTES)
    assert limits == [None]


def test_no_limit_in_rows_keeps_the_limit_in_bytes(spark, tmp_path, limits):
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "0")
    try:
        write(spark.range(10), tmp_path)
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert limits == [None]


def test_python_that_is_part_of_the_frame_keeps_its_limit(spark, tmp_path, limits):
    from pyspark.sql import functions as sf

    doubled = sf.udf(lambda n: 2 * n, "long")
    mapped = spark.range(10).mapInArrow(lambda rows: rows, "id long")
    for i, frame in enumerate((mapped, mapped.orderBy("id"), spark.range(10).select(doubled("id").alias("n")))):
        write(frame, tmp_path / str(i))
    assert limits == [None] * 3


def test_tasks_do_take_the_limit_from_the_thread(spark):
    """What the rest stands on: without it, the limit would silently stay, and so would its cost."""

    def counts(rows):
        for batch in rows:
            yield pa.RecordBatch.from_pydict({"n": [batch.num_rows]})

    frame = spark.range(1000, numPartitions=1)
    context = spark.sparkContext
    context.setLocalProperty(MAX_BYTES, "1000")
    try:
        limited = frame.mapInArrow(counts, "n long").collect()
    finally:
        context.setLocalProperty(MAX_BYTES, None)
    assert len(limited) > 1
    assert len(frame.mapInArrow(counts, "n long").collect()) == 1
