"""What is different between the rows of two frames, found in one pass over each: rows by key, columns by statistics."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

import pyarrow as pa

from dagster_versioned.delta.schema.types import DataType, StructField, StructType, decimal_of
from dagster_versioned.delta.schema.widening import common_type

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
        mine, theirs = ((one.kind, one.nulls, one.nans, one.values, one.minimum, one.maximum) for one in (self, other))
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
    return StructType([*common.fields, *(one for one in measured.fields if one.name not in common.names)])


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
