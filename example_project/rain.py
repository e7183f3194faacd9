"""What counts as wet: a helper that an asset calls, in a module of its own."""

import polars as pl

DAYS = 10


def wettest(days: pl.DataFrame) -> pl.DataFrame:
    """The days with most rain of each airport."""
    wet = days.sort("precip", "month", "day", descending=True).group_by("origin", maintain_order=True).head(DAYS)
    return wet.sort("origin", "month", "day")
