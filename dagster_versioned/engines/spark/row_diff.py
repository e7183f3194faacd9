"""The row diff of two Spark frames: one full outer join on the keys. Imported only once a Spark frame is here."""

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from dagster_versioned.engines.row_diff import EXAMPLES, RowDiff, compared_columns, refuse_bad_keys
from dagster_versioned.engines.spark.types import stored_schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def diff_frames(before: "DataFrame", after: "DataFrame", key: Sequence[str]) -> "RowDiff[DataFrame]":
    """See `dagster_versioned.engines.row_diff.diff_rows`; checking the keys is a job for each side."""
    compared = compared_columns(stored_schema(before.schema), stored_schema(after.schema), key)
    # Positional names: a user's may hold dots and backticks, and both sides have the same.
    old, new = _renamed(before, "before"), _renamed(after, "after")
    old_names, new_names = _names(before, "before"), _names(after, "after")
    for side, frame, names in (("before", old, old_names), ("after", new, new_names)):
        _check_keys(side, frame, [names[name] for name in key], key)
    matches = [F.col(old_names[name]) == F.col(new_names[name]) for name in key]
    joined = old.join(new, reduce(lambda left, right: left & right, matches), "full_outer")
    # No key is null, so one that is belongs to a row without a partner.
    is_added, is_removed = F.col(old_names[key[0]]).isNull(), F.col(new_names[key[0]]).isNull()
    is_changed = ~is_added & ~is_removed & ~_equal(before, old_names, after, new_names, compared)

    def rows(condition: "Column", frame: "DataFrame", names: dict[str, str]) -> "DataFrame":
        return joined.where(condition).select(*names.values()).toDF(*frame.columns)

    def counts() -> dict[str, int]:
        found = joined.agg(
            F.count_if(is_added).alias("added"),
            F.count_if(is_removed).alias("removed"),
            F.count_if(is_changed).alias("changed"),
            F.count_if(~is_added & ~is_removed & ~is_changed).alias("unchanged"),
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


def _check_keys(side: str, frame: "DataFrame", names: list[str], key: Sequence[str]) -> None:
    is_null = reduce(lambda left, right: left | right, [F.col(name).isNull() for name in names])
    groups = frame.groupBy(*names).agg(F.count(F.lit(1)).alias("nrow"))
    bad = groups.where(is_null | (F.col("nrow") > 1))
    found = bad.agg(
        F.coalesce(F.sum(F.when(is_null, F.col("nrow"))), F.lit(0)).alias("nulls"),
        F.count_if(~is_null).alias("repeated"),
    ).collect()[0]

    def examples() -> list[dict[str, Any]]:
        rows: list[Any] = bad.select(*names).limit(EXAMPLES).collect()
        return [dict(zip(key, row, strict=True)) for row in rows]

    refuse_bad_keys(side, key, found["nulls"], found["repeated"], examples)


def _equal(
    before: "DataFrame", old_names: dict[str, str], after: "DataFrame", new_names: dict[str, str], compared: list[str]
) -> "Column":
    if not compared:
        return F.lit(True)
    old, new = (
        F.struct(*(_comparable(F.col(names[name]), frame.schema[name].dataType).alias(name) for name in compared))
        for frame, names in ((before, old_names), (after, new_names))
    )
    return old.eqNullSafe(new)


def _comparable(value: "Column", data_type: T.DataType) -> "Column":
    """The value with its maps, which Spark does not compare, as arrays of their entries in order."""
    if not _holds_map(data_type):
        return value
    match data_type:
        case T.MapType():
            entries = F.map_entries(value)
            if _holds_map(data_type.valueType):
                value_type = data_type.valueType
                entries = F.transform(
                    entries,
                    lambda entry: F.struct(entry["key"], _comparable(entry["value"], value_type).alias("value")),
                )
            return F.sort_array(entries)
        case T.ArrayType():
            return F.transform(value, lambda item: _comparable(item, data_type.elementType))
        case T.StructType():
            members = [
                _comparable(value.getField(member.name), member.dataType).alias(member.name)
                for member in data_type.fields
            ]
            return F.when(value.isNotNull(), F.struct(*members))
        case _:
            raise AssertionError(data_type)


def _holds_map(data_type: T.DataType) -> bool:
    match data_type:
        case T.MapType():
            return True
        case T.ArrayType():
            return _holds_map(data_type.elementType)
        case T.StructType():
            return any(_holds_map(member.dataType) for member in data_type.fields)
        case _:
            return False
