"""The row diff of two Spark frames: one full outer join on the keys. Imported only once a Spark frame is here."""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as sf
from pyspark.sql import types as spark_types

from dagster_versioned.engines.row_diff import EXAMPLES, RowDiff, compared_columns, refuse_bad_keys
from dagster_versioned.engines.spark.types import stored_schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def diff_frames(before: "DataFrame", after: "DataFrame", key: Sequence[str]) -> "RowDiff[DataFrame]":
    """See `dagster_versioned.engines.dispatch.diff_rows`; checking the keys is a job for each side."""
    _, compared = compared_columns(stored_schema(before.schema), stored_schema(after.schema), key)
    # Positional names: a user's may hold dots and backticks, and both sides have the same.
    old, new = _renamed(before, "before"), _renamed(after, "after")
    old_names, new_names = _names(before, "before"), _names(after, "after")
    for side, frame, names in (("before", old, old_names), ("after", new, new_names)):
        refuse_bad_keys(side, key, *bad_keys(frame, [names[name] for name in key], key))
    matches = [sf.col(old_names[name]) == sf.col(new_names[name]) for name in key]
    joined = old.join(new, reduce(lambda left, right: left & right, matches), "full_outer")
    # No key is null, so one that is belongs to a row without a partner.
    is_added, is_removed = sf.col(old_names[key[0]]).isNull(), sf.col(new_names[key[0]]).isNull()
    is_changed = ~is_added & ~is_removed & differ(old, new, [(old_names[name], new_names[name]) for name in compared])

    def rows(condition: "Column", frame: "DataFrame", names: dict[str, str]) -> "DataFrame":
        return joined.where(condition).select(*names.values()).toDF(*frame.columns)

    def counts() -> dict[str, int]:
        found = joined.agg(
            sf.count_if(is_added).alias("added"),
            sf.count_if(is_removed).alias("removed"),
            sf.count_if(is_changed).alias("changed"),
            sf.count_if(~is_added & ~is_removed & ~is_changed).alias("unchanged"),
        )
        return found.collect()[0].asDict()

    return RowDiff(
        rows(is_added, after, new_names),
        rows(is_removed, before, old_names),
        rows(is_changed, before, old_names),
        rows(is_changed, after, new_names),
        counts,
    )


def _names(frame: "DataFrame", side: str) -> dict[str, str]:
    return {name: f"{side}{i}" for i, name in enumerate(frame.columns)}


def _renamed(frame: "DataFrame", side: str) -> "DataFrame":
    return frame.toDF(*_names(frame, side).values())


def bad_keys(
    frame: "DataFrame", names: list[str], key: Sequence[str]
) -> "tuple[int, int, Callable[[], list[dict[str, Any]]]]":
    """How many rows have a null in the key columns ``names``, how many keys have several rows, and some of these."""
    is_null = reduce(lambda left, right: left | right, [sf.col(name).isNull() for name in names])
    groups = frame.groupBy(*names).agg(sf.count(sf.lit(1)).alias("nrow"))
    bad = groups.where(is_null | (sf.col("nrow") > 1))
    found = bad.agg(
        sf.coalesce(sf.sum(sf.when(is_null, sf.col("nrow"))), sf.lit(0)).alias("nulls"),
        sf.count_if(~is_null).alias("repeated"),
    ).collect()[0]

    def examples() -> list[dict[str, Any]]:
        rows: list[Any] = bad.select(*names).limit(EXAMPLES).collect()
        return [dict(zip(key, row, strict=True)) for row in rows]

    return found["nulls"], found["repeated"], examples


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
