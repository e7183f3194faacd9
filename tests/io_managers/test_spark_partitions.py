"""A Spark frame with the partition key in a column."""

from datetime import date, datetime

import dagster as dg
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from dagster_versioned import TableOptions
from dagster_versioned.errors import EmptyTable, InvalidInput
from support.house import changes

pytestmark = pytest.mark.spark

DAYS = dg.DailyPartitionsDefinition(start_date="2024-01-01", end_date="2024-01-04", timezone="America/New_York")
TAGS = {
    "dagster/asset_partition_range_start": "2024-01-01",
    "dagster/asset_partition_range_end": "2024-01-03",
}


def daily(rows, **metadata):
    @dg.asset(
        name="daily",
        partitions_def=DAYS,
        backfill_policy=dg.BackfillPolicy.single_run(),
        metadata={"partition_expr": "the `t`.", **metadata},
    )
    def asset() -> DataFrame:
        return SparkSession.active().createDataFrame(pa.table(rows)).withColumn("m", sf.col("n") + 1)

    return asset


MOMENTS = {
    "dates": [date(2024, 1, 1), date(2024, 1, 3), date(2024, 1, 2)],
    "wall clock": [datetime(2024, 1, 1), datetime(2024, 1, 3, 23, 59), datetime(2024, 1, 2)],
    "texts": ["2024-01-01", "2024-01-03", "2024-01-02"],
    "instants": pa.array([datetime(2024, 1, 1, 5), datetime(2024, 1, 4, 4, 59), datetime(2024, 1, 3, 4)]).cast(
        pa.timestamp("us", "UTC")
    ),
}


@pytest.mark.parametrize(
    "kind", ["dates", "instants", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("wall clock", "texts"))]
)
def test_each_day_gets_its_rows_in_one_commit(house, spark, kind):
    key = "spark.sql.timestampType"
    before = spark.conf.get(key)
    if kind == "wall clock":
        spark.conf.set(key, "TIMESTAMP_NTZ")
    try:
        asset = daily({"the `t`.": MOMENTS[kind], "n": [1, 3, 2]})
        assert set(changes(house.run(asset, tags=TAGS)).values()) == {"full"}
        assert set(changes(house.run(asset, tags=TAGS)).values()) == {"none"}
    finally:
        spark.conf.set(key, before)
    table = house.project.table("daily")
    assert [table.read(partition=day)["m"].to_pylist() for day in table.partitions()] == [[2], [3], [4]]
    assert len({version.log_version for version in table.history()}) == 1


def test_the_frame_is_computed_once_and_let_go_of(house, spark):
    counter = spark.sparkContext.accumulator(0)

    def counted(batches):
        for batch in batches:
            counter.add(batch.num_rows)
            yield batch

    kept = []

    @dg.asset(
        name="daily",
        partitions_def=DAYS,
        backfill_policy=dg.BackfillPolicy.single_run(),
        metadata={"partition_expr": "t"},
    )
    def asset() -> DataFrame:
        frame = spark.createDataFrame(pa.table({"t": MOMENTS["dates"]})).mapInArrow(counted, "t date")
        kept.append(frame)
        return frame

    house.run(asset, tags=TAGS)
    assert counter.value == 3
    assert not kept[0].storageLevel.useMemory


@pytest.mark.slow
def test_rows_of_other_days_and_days_without_rows_are_refused(house, spark):
    with pytest.raises(InvalidInput, match=r"1 rows belong to none of the 1 partitions.*2024-01-03"):
        house.run(daily({"the `t`.": MOMENTS["dates"][:2], "n": [1, 2]}), partition_key="2024-01-01")
    short = {"the `t`.": MOMENTS["dates"][:2], "n": [1, 2]}
    with pytest.raises(EmptyTable, match="'2024-01-02'"):
        house.run(daily(short), tags=TAGS)
    assert not house.project.table("daily").exists()
    house.run(daily(short, **TableOptions(allow_empty=True).as_metadata()), tags=TAGS)
    assert house.head("daily", "2024-01-02").identity.nrow == 0


def test_a_day_that_needs_the_day_before_starts_with_a_frame_without_rows(house, spark):
    seen = []

    @dg.asset(
        partitions_def=dg.DailyPartitionsDefinition(start_date="2024-01-01", end_date="2024-01-05"),
        ins={
            "total": dg.AssetIn(
                partition_mapping=dg.TimeWindowPartitionMapping(start_offset=-1, end_offset=-1),
                metadata={"allow_missing_partitions": True},
            )
        },
    )
    def total(total: DataFrame) -> DataFrame:
        seen.append((total.columns, total.count()))
        before = total.first()
        return SparkSession.active().createDataFrame([(1 if before is None else before["n"] + 1,)], "n long")

    for day in ("2024-01-01", "2024-01-02", "2024-01-04"):
        house.run(total, partition_key=day)
    assert seen == [([], 0), (["n"], 1), (["n"], 0)]
    assert house.project.table("total").read(partition="2024-01-02")["n"].to_pylist() == [2]
