"""How planes are used, in Polars: the same tables, read lazily."""

import dagster as dg
import polars as pl


@dg.asset(group_name="fleet", kinds={"polars", "deltalake"})
def plane_usage(flights: pl.LazyFrame, planes: pl.LazyFrame) -> pl.LazyFrame:
    """What each plane flew; sorted, because the order of a Polars frame is part of what it says."""
    flown = flights.group_by("tailnum").agg(
        pl.len().alias("flights"), pl.sum("distance").alias("miles"), pl.sum("air_time").alias("minutes")
    )
    return planes.select("tailnum", "manufacturer", "model", "seats").join(flown, on="tailnum").sort("tailnum")
