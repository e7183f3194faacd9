"""The comparison of Spark frames: rows by a full outer join on the keys, statistics in one job that groups by them.

Imported once a Spark frame is here.
"""

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as sf
from pyspark.sql import types as spark_types

from dagster_versioned.delta.schema.types import StructType
from dagster_versioned.engines.comparison import (
    EXAMPLES,
    BadKeys,
    ColumnStatistics,
    Comparison,
    RowDiff,
    and_measured,
    compared_columns,
    differing,
    extreme,
    kind_of,
    measured_columns,
    refuse_bad_keys,
)
from dagster_versioned.engines.spark.assignment import quoted
from dagster_versioned.engines.spark.releases import positional, to_arrow
from dagster_versioned.engines.spark.types import spark_schema, stored_schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SIDES = ("before", "after")


def diff_frames(before: "DataFrame", after: "DataFrame", key: Sequence[str]) -> "RowDiff[DataFrame]":
    """See `dagster_versioned.engines.dispatch.diff_rows`; checking the keys is a job for each side."""
    _, compared = compared_columns(stored_schema(before.schema), stored_schema(after.schema), key)
    # Positional names: a user's may hold dots and backticks, and both sides have the same.
    old, new = positional(before, "before"), positional(after, "after")
    old_names, new_names = _names(before, "before"), _names(after, "after")
    for side, frame, names in (("before", old, old_names), ("after", new, new_names)):
        refuse_bad_keys("key", key, repr(side), bad_keys(frame, [names[name] for name in key], key))
    matches = [sf.col(old_names[name]) == sf.col(new_names[name]) for name in key]
    joined = old.join(new, reduce(lambda left, right: left & right, matches), "full_outer")
    # No key is null, so one that is belongs to a row without a partner.
    is_added, is_removed = sf.col(old_names[key[0]]).isNull(), sf.col(new_names[key[0]]).isNull()
    is_changed = ~is_added & ~is_removed & differ(old, new, [(old_names[name], new_names[name]) for name in compared])

    def rows(condition: "Column", frame: "DataFrame", names: dict[str, str]) -> "DataFrame":
        return joined.where(condition).select(*names.values()).toDF(*frame.columns)

    def counts() -> dict[str, int]:
        return joined.agg(*_row_counts(is_added, is_removed, is_changed)).collect()[0].asDict()

    return RowDiff(
        rows(is_added, after, new_names),
        rows(is_removed, before, old_names),
        rows(is_changed, before, old_names),
        rows(is_changed, after, new_names),
        counts,
    )


def _names(frame: "DataFrame", side: str) -> dict[str, str]:
    return {name: f"{side}{i}" for i, name in enumerate(frame.columns)}


def _row_counts(is_added: "Column", is_removed: "Column", is_changed: "Column") -> "list[Column]":
    return [
        sf.count_if(is_added).alias("added"),
        sf.count_if(is_removed).alias("removed"),
        sf.count_if(is_changed).alias("changed"),
        sf.count_if(~is_added & ~is_removed & ~is_changed).alias("unchanged"),
    ]


def bad_keys(frame: "DataFrame", names: Sequence[str], key: Sequence[str]) -> BadKeys:
    """What is wrong with the key, whose columns in the frame are ``names``; a job."""
    is_null = has_null(names)
    groups = frame.groupBy(*map(quoted, names)).agg(sf.count(sf.lit(1)).alias("nrow"))
    bad = groups.where(is_null | (sf.col("nrow") > 1))
    found = bad.agg(
        sf.coalesce(sf.sum(sf.when(is_null, sf.col("nrow"))), sf.lit(0)).alias("nulls"),
        sf.count_if(~is_null).alias("repeated"),
    ).collect()[0]
    return found["nulls"], found["repeated"], lambda: examples(bad, names, key)


def examples(bad: "DataFrame", names: Sequence[str], key: Sequence[str]) -> list[dict[str, Any]]:
    """Some keys for an error; a job."""
    columns = [quoted(name) for name in names]
    rows: list[Any] = bad.select(*columns).orderBy(*columns).limit(EXAMPLES).collect()
    return [dict(zip(key, row, strict=True)) for row in rows]


def has_null(names: Sequence[str]) -> "Column":
    """Whether one of the columns is null."""
    return reduce(lambda left, right: left | right, [quoted(name).isNull() for name in names])


def differ(before: "DataFrame", after: "DataFrame", pairs: Sequence[tuple[str, str]]) -> "Column":
    """Whether two joined rows differ in any of these pairs of columns; null equals null, NaN NaN, 0.0 -0.0."""
    if not pairs:
        return sf.lit(False)
    old, new = (
        sf.struct(
            *(
                _comparable(sf.col(name), frame.schema[name].dataType).alias(f"_{i}")
                for i, name in enumerate(pair[side] for pair in pairs)
            )
        )
        for side, frame in ((0, before), (1, after))
    )
    return ~old.eqNullSafe(new)


def _comparable(value: "Column", data_type: spark_types.DataType) -> "Column":
    """The value with its maps, which Spark does not compare, as arrays of their entries in order."""
    if not _holds_map(data_type):
        return value
    match data_type:
        case spark_types.MapType():
            entries = sf.map_entries(value)
            if _holds_map(data_type.valueType):
                value_type = data_type.valueType
                entries = sf.transform(
                    entries,
                    lambda entry: sf.struct(entry["key"], _comparable(entry["value"], value_type).alias("value")),
                )
            return sf.sort_array(entries)
        case spark_types.ArrayType():
            return sf.transform(value, lambda item: _comparable(item, data_type.elementType))
        case spark_types.StructType():
            members = [
                _comparable(value.getField(member.name), member.dataType).alias(member.name)
                for member in data_type.fields
            ]
            return sf.when(value.isNotNull(), sf.struct(*members))
        case _:
            raise AssertionError(data_type)


def _holds_map(data_type: spark_types.DataType) -> bool:
    match data_type:
        case spark_types.MapType():
            return True
        case spark_types.ArrayType():
            return _holds_map(data_type.elementType)
        case spark_types.StructType():
            return any(_holds_map(member.dataType) for member in data_type.fields)
        case _:
            return False


def compare_frames(before: "DataFrame", after: "DataFrame", key: Sequence[str]) -> Comparison:
    """See `dagster_versioned.engines.dispatch.compare`; a job, and without a key one for each side."""
    frames: dict[str, DataFrame] = dict(zip(SIDES, (before, after), strict=True))
    schemas = stored_schema(before.schema), stored_schema(after.schema)
    measured: dict[str, StructType] = dict(zip(SIDES, measured_columns(*schemas), strict=True))
    if key:
        rows, found = _compare_rows(frames, *compared_columns(*schemas, key), measured, key)
        founds = dict.fromkeys(SIDES, found)
    else:
        rows, founds = None, {side: _measured_alone(frames[side], measured[side], side) for side in SIDES}
    old, new = (_statistics(side, measured[side], founds[side]) for side in SIDES)
    return Comparison(rows, differing(old, new))


def _measured_alone(frame: "DataFrame", schema: StructType, side: str) -> pa.Table | None:
    return _row(_plain(frame, schema, side), _aggregates(side, schema, schema, of_key=False))


def _compare_rows(
    frames: Mapping[str, "DataFrame"],
    common: StructType,
    compared: Sequence[str],
    measured: Mapping[str, StructType],
    key: Sequence[str],
) -> tuple[dict[str, int], pa.Table | None]:
    """How many rows differ, once keys are checked, and what is measured of columns beside that; one job."""
    held = {side: and_measured(common, measured[side]) for side in SIDES}
    grouped = _grouped({side: _plain(frames[side], held[side], side) for side in SIDES}, held, key)
    pairs = [(f"before{held['before'].names.index(n)}", f"after{held['after'].names.index(n)}") for n in compared]
    names = [f"k{i}" for i in range(len(key))]
    counts = _counts(differ(grouped, grouped, pairs), names)
    aggregates = [_aggregates(side, held[side], measured[side], of_key=True) for side in SIDES]
    found = _row(grouped, [*counts, *aggregates[0], *aggregates[1]])
    for side in SIDES:
        nulls, repeated = (_whole(found, f"{side}_{what}") for what in ("nulls", "repeated"))
        nrow = sf.col(f"{side}_rows")
        bad = grouped.where((nrow > 1) | (has_null(names) & (nrow > 0)))
        refuse_bad_keys("key", key, repr(side), (nulls, repeated, lambda bad=bad: examples(bad, names, key)))
    return {name: _whole(found, name) for name in ("added", "removed", "changed", "unchanged")}, found


def _plain(frame: "DataFrame", schema: StructType, side: str) -> "DataFrame":
    """The columns of a schema, in its types. Positional names: a user's may hold dots and backticks."""
    types = spark_schema(schema)
    positions = {name: i for i, name in enumerate(frame.columns)}
    return positional(frame).select(
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


def _counts(is_changed: "Column", names: Sequence[str]) -> "list[Column]":
    is_null = has_null(names)
    is_added, is_removed = sf.col("before_rows") == 0, sf.col("after_rows") == 0
    return [
        *_row_counts(is_added, is_removed, ~is_added & ~is_removed & is_changed),
        *(sf.sum(sf.when(is_null, sf.col(f"{side}_rows"))).alias(f"{side}_nulls") for side in SIDES),
        *(sf.count_if(~is_null & (sf.col(f"{side}_rows") > 1)).alias(f"{side}_repeated") for side in SIDES),
    ]


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
