"""The comparison of two Spark frames: one job, which groups the rows of both by key. Imported with a Spark frame."""

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as sf

from dagster_versioned.delta.schema.types import StructType
from dagster_versioned.engines.comparison import (
    ColumnStatistics,
    Comparison,
    and_measured,
    differing,
    extreme,
    kind_of,
    measured_columns,
)
from dagster_versioned.engines.row_diff import EXAMPLES, compared_columns, refuse_bad_keys
from dagster_versioned.engines.spark.releases import to_arrow
from dagster_versioned.engines.spark.row_diff import differ
from dagster_versioned.engines.spark.types import spark_schema, stored_schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SIDES = ("before", "after")


def compare_frames(before: "DataFrame", after: "DataFrame", key: Sequence[str]) -> Comparison:
    """See `dagster_versioned.engines.dispatch.compare`; a job, and without a key one for each side."""
    frames = dict(zip(SIDES, (before, after), strict=True))
    schemas = stored_schema(before.schema), stored_schema(after.schema)
    measured = dict(zip(SIDES, measured_columns(*schemas), strict=True))
    rows = None
    if key:
        common, compared = compared_columns(*schemas, key)
        held = {side: and_measured(common, measured[side]) for side in SIDES}
        grouped = _grouped({side: _plain(frames[side], held[side], side) for side in SIDES}, held, key)
        is_changed = differ(
            grouped,
            grouped,
            [(f"before{held['before'].names.index(n)}", f"after{held['after'].names.index(n)}") for n in compared],
        )
        counts = _counts(is_changed, len(key))
        found = _row(
            grouped,
            [*counts, *(one for side in SIDES for one in _aggregates(side, held[side], measured[side], of_key=True))],
        )
        for side in SIDES:
            examples = _examples(grouped, side, key)
            refuse_bad_keys(side, key, _whole(found, f"{side}_nulls"), _whole(found, f"{side}_repeated"), examples)
        rows = {name: _whole(found, name) for name in ("added", "removed", "changed", "unchanged")}
        founds = dict.fromkeys(SIDES, found)
    else:
        founds = {
            side: _row(
                _plain(frames[side], measured[side], side),
                _aggregates(side, measured[side], measured[side], of_key=False),
            )
            for side in SIDES
        }
    old, new = (_statistics(side, measured[side], founds[side]) for side in SIDES)
    return Comparison(rows, differing(old, new))


def _plain(frame: "DataFrame", schema: StructType, side: str) -> "DataFrame":
    """The columns of a schema, in its types. Positional names: a user's may hold dots and backticks."""
    types = spark_schema(schema)
    positions = {name: i for i, name in enumerate(frame.columns)}
    renamed = frame.toDF(*(f"_c{i}" for i in range(len(frame.columns))))
    return renamed.select(
        *(
            sf.col(f"_c{positions[name]}").cast(types[name].dataType).alias(f"{side}{i}")
            for i, name in enumerate(schema.names)
        )
    )


def _grouped(frames: Mapping[str, "DataFrame"], held: Mapping[str, StructType], key: Sequence[str]) -> "DataFrame":
    """A row for each key (``k0``, …), with the columns of both sides, and how many rows each side has of it."""
    keys = [f"k{i}" for i in range(len(key))]
    sides = [
        frames[side].select(
            *(sf.col(f"{side}{held[side].names.index(name)}").alias(k) for k, name in zip(keys, key, strict=True)),
            sf.struct(sf.lit(1).alias("is"), *frames[side].columns).alias(side),
        )
        for side in SIDES
    ]
    groups = sides[0].unionByName(sides[1], allowMissingColumns=True).groupBy(*keys)
    rows = groups.agg(
        *(sf.count(side).alias(f"{side}_rows") for side in SIDES),
        *(sf.first(side, ignorenulls=True).alias(side) for side in SIDES),
    )
    return rows.select(
        *keys,
        *(f"{side}_rows" for side in SIDES),
        *(sf.col(side)[name].alias(name) for side in SIDES for name in frames[side].columns),
    )


def _has_null(keys: int) -> "Column":
    return reduce(lambda left, right: left | right, [sf.col(f"k{i}").isNull() for i in range(keys)])


def _counts(is_changed: "Column", keys: int) -> "list[Column]":
    has_null = _has_null(keys)
    is_added, is_removed = sf.col("before_rows") == 0, sf.col("after_rows") == 0
    is_both = ~is_added & ~is_removed
    return [
        sf.count_if(is_added).alias("added"),
        sf.count_if(is_removed).alias("removed"),
        sf.count_if(is_both & is_changed).alias("changed"),
        sf.count_if(is_both & ~is_changed).alias("unchanged"),
        *(sf.sum(sf.when(has_null, sf.col(f"{side}_rows"))).alias(f"{side}_nulls") for side in SIDES),
        *(sf.count_if(~has_null & (sf.col(f"{side}_rows") > 1)).alias(f"{side}_repeated") for side in SIDES),
    ]


def _examples(grouped: "DataFrame", side: str, key: Sequence[str]) -> Callable[[], list[dict[str, Any]]]:
    def examples() -> list[dict[str, Any]]:
        nrow = sf.col(f"{side}_rows")
        bad = grouped.where((nrow > 1) | (_has_null(len(key)) & (nrow > 0)))
        rows: list[Any] = bad.select(*(f"k{i}" for i in range(len(key)))).limit(EXAMPLES).collect()
        return [dict(zip(key, row, strict=True)) for row in rows]

    return examples


def _aggregates(side: str, held: StructType, measured: StructType, *, of_key: bool) -> "list[Column]":
    """What `ColumnStatistics` holds of each column; of a row for each key, only those count that the side has."""
    is_here = sf.col(f"{side}_rows") > 0 if of_key else sf.lit(True)
    found: list[Column] = []
    for i, column in enumerate(measured.fields):
        value = sf.col(f"{side}{held.names.index(column.name)}")
        is_nan = sf.isnan(value) if column.type in ("float", "double") else sf.lit(False)
        number = sf.when(~is_nan, value)
        name = f"{side}_{i}"
        found += [
            sf.count_if(is_here & value.isNull()).alias(f"{name}_nulls"),
            sf.count_if(is_nan).alias(f"{name}_nans"),
            sf.count(number).alias(f"{name}_values"),
        ]
        if kind_of(column.type) != "moment":
            double = number.cast("int").cast("double") if column.type == "boolean" else number.cast("double")
            found.append(sf.avg(double).alias(f"{name}_mean"))
        if kind_of(column.type) != "boolean":
            found += [sf.min(number).alias(f"{name}_min"), sf.max(number).alias(f"{name}_max")]
    return found


def _row(frame: "DataFrame", aggregates: "Sequence[Column]") -> pa.Table | None:
    return to_arrow(frame.agg(*aggregates)) if aggregates else None


def _whole(found: pa.Table | None, name: str) -> int:
    return 0 if found is None else found[name][0].as_py() or 0


def _statistics(side: str, measured: StructType, found: pa.Table | None) -> dict[str, ColumnStatistics]:
    statistics: dict[str, ColumnStatistics] = {}
    for i, column in enumerate(measured.fields):
        kind, name = kind_of(column.type), f"{side}_{i}"
        assert kind is not None
        assert found is not None
        statistics[column.name] = ColumnStatistics(
            kind,
            *(_whole(found, f"{name}_{what}") for what in ("nulls", "nans", "values")),
            mean=None if kind == "moment" else found[f"{name}_mean"][0].as_py(),
            minimum=None if kind == "boolean" else extreme(found[f"{name}_min"][0]),
            maximum=None if kind == "boolean" else extreme(found[f"{name}_max"][0]),
        )
    return statistics
