"""What the weather does to departures: a join on Spark, one table by month, and the year's hottest days in pandas."""

import dagster as dg
import pandas as pd
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

MONTHS = dg.MonthlyPartitionsDefinition(start_date="2013-01-01", end_date="2014-01-01")

CONDITIONS = pa.schema(
    [
        ("origin", pa.string()),
        ("wind", pa.string()),
        ("flights", pa.int64()),
        ("mean_delay", pa.float64()),
        ("rain", pa.decimal128(19, 2)),
    ]
)


@dg.asset(group_name="weather", kinds={"pyspark", "deltalake"})
def flight_weather(flights: DataFrame, weather: DataFrame) -> DataFrame:
    """Every flight with the weather at its airport in its hour; empty where no report has arrived."""
    reports = weather.select("origin", "time_hour", "temp", "wind_speed", "precip", "visib")
    return (
        flights.select("origin", "time_hour", "year", "month", "carrier", "dep_delay")
        .join(reports, ["origin", "time_hour"], "left")
        .withColumn("time_hour", sf.to_timestamp("time_hour"))
    )


@dg.asset(
    group_name="weather",
    kinds={"pyspark", "deltalake"},
    partitions_def=MONTHS,
    backfill_policy=dg.BackfillPolicy.single_run(),
)
def monthly_weather_delays(context: dg.AssetExecutionContext, flight_weather: DataFrame) -> dict[str, pa.Table]:
    """Delays by rain and wind, one partition per month; a run over several writes them in one commit."""
    # Rain comes in hundredths of an inch: as decimals their sum is the same in any order, as floats it is not.
    conditions = flight_weather.groupBy("month", "origin", _wind().alias("wind")).agg(
        sf.count("*").alias("flights"),
        sf.avg("dep_delay").alias("mean_delay"),
        sf.sum(sf.col("precip").cast("decimal(9,2)")).alias("rain"),
    )
    # A few rows: computed once, and shared out by month without Spark. Those of an Arrow table have an order.
    rows = [row.asDict() for row in conditions.orderBy("month", "origin", "wind").collect()]
    by_month = {key: [row for row in rows if row["month"] == int(key[5:7])] for key in context.partition_keys}
    return {key: pa.Table.from_pylist(month, CONDITIONS) for key, month in by_month.items()}


@dg.asset(group_name="weather", kinds={"pandas", "deltalake"})
def hottest_days(weather: pd.DataFrame) -> pd.DataFrame:
    """The ten hottest days; December's reports change nothing about them."""
    days = weather.groupby(["year", "month", "day"], as_index=False)["temp"].max()
    return days.sort_values(["temp", "month", "day"], ascending=[False, True, True]).head(10).reset_index(drop=True)


def _wind() -> Column:
    speed = sf.col("wind_speed")
    return sf.when(speed < 8, "calm").when(speed < 16, "breeze").when(speed >= 16, "strong").otherwise("unknown")
