"""Rows of Spark frames to partitions by the values of columns."""

from collections.abc import Generator
from contextlib import contextmanager
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as sf

from dagster_versioned.engines.row_partitions import KeyColumn, RowPartitions, missing_column, no_key, unknown_keys
from dagster_versioned.engines.spark.releases import to_arrow
from dagster_versioned.engines.spark.session import kept

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_TEXTS = frozenset({"string", "tinyint", "smallint", "int", "bigint", "boolean", "date"})


@contextmanager
def split(frame: "DataFrame", partitions: RowPartitions, *, allow_empty: bool) -> "Generator[dict[str, DataFrame]]":
    """See `dagster_versioned.engines.dispatch.split_rows`: two jobs and one more for each frame that is used."""
    normal = [_normal(frame, column) for column in partitions.columns]
    with kept(frame):
        _check(frame, partitions, normal, allow_empty)
        conditions = [_conditions(*each) for each in zip(partitions.columns, normal, strict=True)]
        yield {
            key: frame.where(reduce(lambda left, right: left & right, of_columns))
            for key, of_columns in zip(partitions.keys, zip(*conditions, strict=True), strict=True)
        }


def _check(
    frame: "DataFrame", partitions: RowPartitions, normal: "list[tuple[Column, bool | None]]", allow_empty: bool
) -> None:
    """Count rows by the values that distinguish partitions, and judge the few values there are as Arrow's are."""
    grouped = [
        value if wall is None else value - sf.pmod(value, sf.lit(column.grain(wall=wall)))
        for column, (value, wall) in zip(partitions.columns, normal, strict=True)
    ]
    keys = [value.alias(f"_k{i}") for i, value in enumerate(grouped)]
    found = to_arrow(frame.groupBy(*keys).agg(sf.count(sf.lit(1)).alias("_count")))
    values = [found.column(f"_k{i}") for i in range(len(keys))]
    rows = found.column("_count").to_numpy()
    codes = partitions.of_rows(values, [bool(wall) for _, wall in normal])
    counts = np.bincount(codes[codes >= 0], weights=rows[codes >= 0], minlength=len(partitions.keys))
    alien = np.flatnonzero(codes < 0)
    shown = [_shown(column, wall).take(alien).to_pylist() for column, (_, wall) in zip(values, normal, strict=True)]
    partitions.check(counts, unknown_keys(shown, rows[alien].tolist()), allow_empty=allow_empty)


def _shown(values: "pa.ChunkedArray[Any]", wall: bool | None) -> "pa.ChunkedArray[Any]":
    """Microseconds as moments; text as it is."""
    if wall is None:
        return values
    return values.cast(pa.timestamp("us") if wall else pa.timestamp("us", tz="UTC"))


def _normal(frame: "DataFrame", column: KeyColumn) -> "tuple[Column, bool | None]":
    """The column as text (``None``), or in microseconds and whether these are the wall clock's."""
    if frame.columns.count(column.name) != 1:
        raise missing_column(column.name, frame.columns)
    name = f"`{column.name.replace('`', '``')}`"
    value = sf.col(name)
    kind = frame.schema[column.name].dataType.simpleString()
    if column.windows is not None and kind == "timestamp":
        return sf.unix_micros(value), False
    if column.windows is not None and kind in ("date", "timestamp_ntz"):
        # In SQL, since PySpark 3.5 has no function for it.
        epoch = "timestamp_ntz '1970-01-01 00:00:00'"
        return sf.expr(f"timestampdiff(MICROSECOND, {epoch}, CAST({name} AS timestamp_ntz))"), True
    if kind not in _TEXTS:
        raise no_key(column.name, kind)
    return value.cast("string"), None


def _conditions(column: KeyColumn, normal: "tuple[Column, bool | None]") -> "list[Column]":
    """For each partition, what the column says in its rows."""
    value, wall = normal
    if wall is None:
        return [value == sf.lit(key) for key in column.keys]
    starts, ends = column.bounds(wall=wall)
    return [
        (value >= sf.lit(start)) & (value < sf.lit(end))
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
    ]
