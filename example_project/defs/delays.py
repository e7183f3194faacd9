"""Who is late, and where: joins, aggregations and windows on Spark.

Delays are whole minutes, so their sums are exact in any order. Sums of fractions are not, and would make another
version when Spark deals the rows out differently: sum decimals instead (see ``weather_delays``).
"""

import dagster as dg
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as sf

from dagster_versioned import TableOptions

# The windows below are over small aggregates, so that one task for a whole origin is no bottleneck.


@dg.asset(group_name="delays", kinds={"pyspark", "deltalake"})
def flights_enriched(flights: DataFrame, airlines: DataFrame, airports: DataFrame, planes: DataFrame) -> DataFrame:
    """Every flight with the names behind its codes, and the age of its plane."""
    carrier_names = airlines.withColumnRenamed("name", "airline")
    destinations = airports.select(sf.col("faa").alias("dest"), sf.col("name").alias("destination"), "lat", "lon")
    fleet = planes.select("tailnum", sf.col("year").cast("int").alias("built"), "manufacturer", "seats")
    return (
        flights.join(sf.broadcast(carrier_names), "carrier", "left")
        .join(sf.broadcast(destinations), "dest", "left")
        .join(sf.broadcast(fleet), "tailnum", "left")
        .withColumn("plane_age", sf.col("year") - sf.col("built"))
    )


@dg.asset(
    group_name="delays",
    kinds={"pyspark", "deltalake"},
    code_version="1",
    metadata=TableOptions(sort_rows=("carrier",)).as_metadata(),
)
def carrier_delays(flights_enriched: DataFrame) -> DataFrame:
    """How late each airline is; sorted, so that the file reads well in any reader."""
    return flights_enriched.groupBy("carrier", "airline").agg(
        sf.count("*").alias("flights"),
        sf.count(sf.when(sf.col("dep_delay").isNull(), 1)).alias("cancelled"),
        sf.avg("dep_delay").alias("mean_departure_delay"),
        sf.avg("arr_delay").alias("mean_arrival_delay"),
        sf.max("dep_delay").alias("worst_departure_delay"),
    )


@dg.asset(group_name="delays", kinds={"pyspark", "deltalake"})
def daily_delays(flights: DataFrame) -> DataFrame:
    """Each airport's day, beside the mean of the seven days that end with it."""
    day = sf.make_date(*(sf.col(part).cast("int") for part in ("year", "month", "day")))
    days = flights.groupBy("origin", day.alias("date")).agg(
        sf.count("*").alias("flights"), sf.sum("dep_delay").alias("minutes"), sf.count("dep_delay").alias("departed")
    )
    week = Window.partitionBy("origin").orderBy("date").rowsBetween(-6, 0)
    return days.select(
        "origin",
        "date",
        "flights",
        (sf.col("minutes") / sf.col("departed")).alias("mean_delay"),
        (sf.sum("minutes").over(week) / sf.sum("departed").over(week)).alias("mean_delay_7_days"),
    )


@dg.asset(group_name="delays", kinds={"pyspark", "deltalake"})
def busiest_routes(flights_enriched: DataFrame) -> DataFrame:
    """The ten destinations that each airport serves most often."""
    routes = flights_enriched.groupBy("origin", "dest", "destination").agg(
        sf.count("*").alias("flights"), sf.sum("seats").alias("seats"), sf.countDistinct("carrier").alias("carriers")
    )
    rank = sf.row_number().over(Window.partitionBy("origin").orderBy(sf.desc("flights"), "dest"))
    return routes.withColumn("rank", rank).where("rank <= 10")
