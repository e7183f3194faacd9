"""Spark frames in and out of assets, beside frames of the other kinds."""

import dagster as dg
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from support.house import changes, materializations

pytestmark = pytest.mark.spark


@dg.asset
def numbers() -> pa.Table:
    return pa.table({"n": list(range(100))})


@dg.asset
def doubled(numbers: DataFrame) -> DataFrame:
    return numbers.select((sf.col("n") * 2).alias("n"))


@dg.asset
def total(doubled: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"sum": [int(doubled["n"].sum())]})


@pytest.fixture
def shuffled(spark):
    """A session whose partitioning a test may change."""
    key = "spark.sql.shuffle.partitions"
    before = spark.conf.get(key)
    yield lambda partitions: spark.conf.set(key, partitions)
    spark.conf.set(key, before)


def test_spark_reads_what_arrow_wrote_and_pandas_what_spark_wrote(house, spark):
    assert set(changes(house.run(numbers, doubled, total)).values()) == {"full"}
    assert house.project.table("total").read().to_pydict() == {"sum": [9900]}
    assert house.parents("doubled") == [("numbers", None, house.head("numbers").metadata_sha)]


def test_columns_of_a_spark_frame_show_where_they_come_from(house, spark):
    @dg.asset(key_prefix="raw")
    def names() -> pa.Table:
        return pa.table({"n": [1, 2], "name": ["a", "b"]})

    @dg.asset(ins={"names": dg.AssetIn(key_prefix="raw")})
    def named(numbers: DataFrame, names: DataFrame) -> DataFrame:
        return numbers.join(names, "n").select("n", sf.upper("name").alias("label"), sf.lit(1).alias("one"))

    found = materializations(house.run(numbers, names, named))
    lineage = found["named", None].metadata["dagster/column_lineage"].value.deps_by_column
    origins = {
        name: [(one.asset_key.to_user_string(), one.column_name) for one in deps] for name, deps in lineage.items()
    }
    assert origins == {"n": [("numbers", "n")], "label": [("raw/names", "name")]}
    assert "dagster/column_lineage" not in found["numbers", None].metadata


def test_another_partitioning_of_the_same_rows_is_none(house, shuffled):
    @dg.asset
    def dealt() -> DataFrame:
        return SparkSession.active().range(1000).repartition(sf.col("id") % 7).withColumn("m", sf.col("id") % 3)

    shuffled(2)
    assert changes(house.run(dealt)) == {"dealt": "full"}
    shuffled(5)
    assert changes(house.run(dealt)) == {"dealt": "none"}


def test_an_input_without_annotation_is_a_spark_frame_if_the_project_says_so(house, spark):
    seen = []

    @dg.asset
    def down(numbers) -> None:
        seen.append(numbers.count())

    house.run(numbers, down, io_manager=house.io_manager(default_engine="spark"))
    assert seen == [100]


def test_a_ranged_run_writes_a_spark_frame_for_each_partition(house, spark):
    keys = ["a", "b"]

    @dg.asset(partitions_def=dg.StaticPartitionsDefinition(keys), backfill_policy=dg.BackfillPolicy.single_run())
    def daily(context, numbers: DataFrame) -> dict[str, DataFrame]:
        return {key: numbers.where(sf.col("n") < 10 * (1 + keys.index(key))) for key in context.partition_keys}

    tags = {"dagster/asset_partition_range_start": "a", "dagster/asset_partition_range_end": "b"}
    assert changes(house.run(numbers, daily, tags=tags)) == {"numbers": "full", "daily[a]": "full", "daily[b]": "full"}
    table = house.project.table("daily")
    assert {key: table.read(partition=key).num_rows for key in keys} == {"a": 10, "b": 20}
    assert changes(house.run(numbers, daily, tags=tags))["daily[a]"] == "none"
