"""What is different between the rows of two frames: which rows, by key, and of columns how their statistics differ.

Rows of one key are one row before and after; null equals null, NaN equals NaN, and 0.0 equals -0.0.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Generic, Literal, TypeVar

import pyarrow as pa

from dagster_versioned.delta.schema.types import DataType, StructField, StructType, decimal_of
from dagster_versioned.delta.schema.widening import common_type
from dagster_versioned.errors import InvalidInput

FrameT = TypeVar("FrameT")

EXAMPLES = 5
"""How many keys an error shows."""

HIDDEN = "•••"
"""What stands where a value is personal."""

BadKeys = tuple[int, int, Callable[[], Sequence[Mapping[str, Any]]]]
"""How many rows have a null in the key, how many keys have several rows, and some of both."""

Kind = Literal["number", "boolean", "moment"]

Extreme = int | float | Decimal | str
"""A least or a greatest value; a date or a timestamp is ISO 8601 text, since Python lacks years that tables have."""

_KINDS: dict[str, Kind] = {
    **dict.fromkeys(("byte", "short", "integer", "long", "float", "double"), "number"),
    **dict.fromkeys(("date", "timestamp", "timestamp_ntz"), "moment"),
    "boolean": "boolean",
}
_CLOSE, _CANCELLED = 1e-9, 1e-12
"""Sums of floats depend on the order of rows: means that are as near as this are one, the latter of the values."""


@dataclass(frozen=True, eq=False)
class RowDiff(Generic[FrameT]):
    """Rows by what became of them, each with all columns of the side it is from.

    From Arrow, pandas and Polars the rows keep their order, and row i of ``changed_before`` has the key of row i of
    ``changed_after``; the order is that of ``before``. From Spark the frames are lazy and have no order.
    """

    added: FrameT
    removed: FrameT
    changed_before: FrameT
    changed_after: FrameT
    _count: Callable[[], dict[str, int]] = field(repr=False)

    def counts(self) -> dict[str, int]:
        """Rows ``added``, ``removed``, ``changed`` and ``unchanged``; on Spark every call is a job."""
        return self._count()


@dataclass(frozen=True)
class ColumnStatistics:
    """A column of one frame: how many ``values`` it has that are neither null nor NaN, and what these are.

    ``mean`` is that of numbers, and the share of booleans that is true. ``minimum`` and ``maximum`` are those of
    numbers, dates and timestamps. ``None`` where there is no value, or none of the kind.
    """

    kind: Kind
    nulls: int
    nans: int
    values: int
    mean: float | None = None
    minimum: Extreme | None = None
    maximum: Extreme | None = None

    def equals(self, other: "ColumnStatistics") -> bool:
        """Whether they are the same, but for what the order of rows does to a mean."""
        mine, theirs = (
            (summary.kind, summary.nulls, summary.nans, summary.values, summary.minimum, summary.maximum)
            for summary in (self, other)
        )
        return mine == theirs and self._has_mean_of(other)

    def _has_mean_of(self, other: "ColumnStatistics") -> bool:
        if self.mean is None or other.mean is None or math.isnan(self.mean) or math.isnan(other.mean):
            return repr(self.mean) == repr(other.mean)
        largest = max(map(_size, (self.minimum, self.maximum)))
        return math.isclose(self.mean, other.mean, rel_tol=_CLOSE, abs_tol=_CANCELLED * largest)


@dataclass(frozen=True)
class Comparison:
    """Rows ``added``, ``removed``, ``changed`` and ``unchanged`` by key, and columns whose statistics differ.

    ``rows`` is ``None`` where there was no key. Of each column, the statistics before and after.
    """

    rows: Mapping[str, int] | None
    columns: Mapping[str, tuple[ColumnStatistics, ColumnStatistics]]


def kind_of(data_type: DataType) -> Kind | None:
    """What is measured of a column of this type; ``None`` for text, bytes and what is nested: nothing."""
    if not isinstance(data_type, str):
        return None
    return "number" if decimal_of(data_type) else _KINDS.get(data_type)


def measured_columns(before: StructType, after: StructType) -> tuple[StructType, StructType]:
    """The columns that both have and that are measured, each in the type of both, or in its own where there is none."""
    new = {column.name: column.type for column in after.fields}
    sides: list[tuple[StructField, StructField]] = []
    for column in before.fields:
        other = new.get(column.name)
        if other is not None and kind_of(column.type) is not None and kind_of(column.type) == kind_of(other):
            common = common_type(column.type, other)
            sides.append((StructField(column.name, common or column.type), StructField(column.name, common or other)))
    return StructType([old for old, _ in sides]), StructType([new for _, new in sides])


def and_measured(common: StructType, measured: StructType) -> StructType:
    """The compared columns, and those that are measured alone."""
    return StructType([*common.fields, *(field for field in measured.fields if field.name not in common.names)])


def differing(
    before: Mapping[str, ColumnStatistics], after: Mapping[str, ColumnStatistics]
) -> dict[str, tuple[ColumnStatistics, ColumnStatistics]]:
    """The statistics of both sides, of columns in which they differ."""
    return {name: (old, after[name]) for name, old in before.items() if not old.equals(after[name])}


def extreme(value: Any) -> Extreme | None:
    """An Arrow scalar of a type that is measured, as it is in `ColumnStatistics`."""
    if not value.is_valid:
        return None
    if pa.types.is_temporal(value.type):
        if getattr(value.type, "tz", None) is not None:
            value = value.cast(pa.timestamp("us", "UTC"))
        return value.cast(pa.string()).as_py().replace(" ", "T").replace(".000000", "")
    found = value.as_py()
    return found + 0.0 if isinstance(found, float) else found  # -0.0 is 0.0


def _size(value: Extreme | None) -> float:
    return abs(float(value)) if isinstance(value, int | float | Decimal) and math.isfinite(value) else 0.0


def compared_columns(before: StructType, after: StructType, key: Sequence[str]) -> tuple[StructType, list[str]]:
    """The columns that both schemas have and can be compared, in the order of ``before``, each in the type that holds
    the values of both; and the names of those other than the key.

    Raises `InvalidInput` for a key that cannot match rows of these schemas.
    """
    types = [{column.name: column.type for column in schema.fields} for schema in (before, after)]
    _require_key(key, types)
    both = {name: common_type(types[0][name], types[1][name]) for name in types[0] if name in types[1]}
    schema = StructType([StructField(name, found) for name, found in both.items() if found is not None])
    return schema, [name for name in schema.names if name not in key]


def _require_key(key: Sequence[str], types: Sequence[Mapping[str, DataType]]) -> None:
    if isinstance(key, str) or not key:
        raise InvalidInput(f"The key must be a list of column names, and is {key!r}. Nothing was compared.")
    for name in key:
        if missing := [side for side, known in zip(("before", "after"), types, strict=True) if name not in known]:
            raise InvalidInput(
                f"The key names {name!r}, which is no column of {' and '.join(missing)}. Nothing was compared. "
                f"Columns of both are: {', '.join(repr(column) for column in types[0] if column in types[1])}."
            )
        _require_matching(name, types[0][name], types[1][name])


def _require_matching(name: str, old: DataType, new: DataType) -> None:
    if common_type(old, new) is None:
        raise InvalidInput(
            f"The key column {name!r} has the type {old} before and {new} after. Nothing was compared. Cast it to "
            "the same type on both sides."
        )
    if not isinstance(old, str):
        raise InvalidInput(
            f"The key column {name!r} is nested ({old}). Nothing was compared. Choose columns of plain types."
        )


def refuse_bad_keys(
    named: str,
    key: Sequence[str],
    rows: str,
    bad: BadKeys,
    nothing: str = "Nothing was compared.",
    personal: Collection[str] = (),
) -> None:
    """Raise `InvalidInput` for keys that do not identify ``rows``; it shows no values of ``personal`` columns."""
    nulls, repeated, examples = bad
    if nulls or repeated:
        raise InvalidInput(
            f"The {named} {list(key)} does not identify the rows of {rows}: {nulls} rows have a null in it, and "
            f"{repeated} keys have more than one row, for example {as_examples(examples(), personal)}. {nothing} "
            "Add columns to the key, or drop these rows."
        )


def as_examples(rows: Sequence[Mapping[str, Any]], personal: Collection[str] = ()) -> str:
    """Keys as an error shows them."""
    return ", ".join(str(without_values(row, personal)) for row in rows[:EXAMPLES])


def without_values(row: Mapping[str, Any], personal: Collection[str]) -> dict[str, Any]:
    """A row as it is shown, without what is in personal columns."""
    return {name: HIDDEN if name in personal and value is not None else value for name, value in row.items()}
