"""Conditions on columns at the edges of their types: what memory says of them, and how each program is asked.

Memory has SQL's logic of three values and Spark's order: NaN equals NaN and is above every number, -0.0 equals 0.0,
text is ordered by its UTF-8 bytes. A literal has the type of its column, so that no program has to choose one.
"""

import datetime as dt
import functools
import math
import operator
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

Truth = bool | None
Order = Callable[[Any], Any]
"""What a program compares values by."""
Path = tuple[str, ...]
Dialect = Literal["spark", "duckdb", "datafusion"]


@dataclass(frozen=True)
class Column:
    """A column, or a field of structs, by its names from the top."""

    path: Path
    type: pa.DataType

    def value(self, row: Mapping[str, Any]) -> Any:
        found: Any = row
        for name in self.path:
            found = None if found is None else found[name]
        return found


@dataclass(frozen=True)
class Compare:
    column: Column
    operator: Literal["=", "<>", "<", "<=", ">", ">="]
    other: Any
    """A value of the column's type, null, or another `Column`."""
    flipped: bool = False
    """Whether the column is on the right."""

    def truth(self, row: Mapping[str, Any], order: Order) -> Truth:
        other = self.other.value(row) if isinstance(self.other, Column) else self.other
        return compared(order, self.column.value(row), self.operator, other)


@dataclass(frozen=True)
class NullSafe:
    column: Column
    other: Any

    def truth(self, row: Mapping[str, Any], order: Order) -> Truth:
        value = self.column.value(row)
        return self.other is None if value is None else compared(order, value, "=", self.other) is True


@dataclass(frozen=True)
class IsIn:
    column: Column
    values: tuple[Any, ...]

    def truth(self, row: Mapping[str, Any], order: Order) -> Truth:
        truths = {compared(order, self.column.value(row), "=", value) for value in self.values}
        return True if True in truths else None if None in truths else False


@dataclass(frozen=True)
class Between:
    column: Column
    low: Any
    high: Any

    def truth(self, row: Mapping[str, Any], order: Order) -> Truth:
        value = self.column.value(row)
        return _both([compared(order, value, ">=", self.low), compared(order, value, "<=", self.high)])


@dataclass(frozen=True)
class Begins:
    """LIKE with a prefix and ``%``."""

    column: Column
    prefix: str

    def truth(self, row: Mapping[str, Any], order: Order) -> Truth:
        value = self.column.value(row)
        return None if value is None else value.startswith(self.prefix)


@dataclass(frozen=True)
class IsNull:
    column: Column
    negated: bool = False

    def truth(self, row: Mapping[str, Any], order: Order) -> Truth:
        return (self.column.value(row) is None) != self.negated


@dataclass(frozen=True)
class Flag:
    """A boolean column by itself."""

    column: Column

    def truth(self, row: Mapping[str, Any], order: Order) -> Truth:
        return self.column.value(row)


@dataclass(frozen=True)
class Not:
    of: "Condition"

    def truth(self, row: Mapping[str, Any], order: Order) -> Truth:
        truth = self.of.truth(row, order)
        return None if truth is None else not truth


@dataclass(frozen=True)
class Joined:
    operator: Literal["AND", "OR"]
    parts: tuple["Condition", ...]

    def truth(self, row: Mapping[str, Any], order: Order) -> Truth:
        truths = [part.truth(row, order) for part in self.parts]
        if self.operator == "AND":
            return _both(truths)
        both = _both([None if truth is None else not truth for truth in truths])
        return None if both is None else not both


Condition = Compare | NullSafe | IsIn | Between | Begins | IsNull | Flag | Not | Joined

_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def _both(truths: Sequence[Truth]) -> Truth:
    return False if False in truths else None if None in truths else True


def compared(order: Order, one: Any, how: str, other: Any) -> Truth:
    if one is None or other is None:
        return None
    return _OPERATORS[how](order(one), order(other))


def of_spark(value: Any) -> Any:
    if isinstance(value, float):
        return (1, 0.0) if math.isnan(value) else (0, value)
    return value.encode() if isinstance(value, str) else value


def of_ieee(value: Any) -> Any:
    """Of Arrow: a NaN equals nothing, is below nothing, and above nothing."""
    return value if isinstance(value, float) else of_spark(value)


def columns_of(condition: Condition) -> frozenset[Column]:
    match condition:
        case Not(of=one):
            return columns_of(one)
        case Joined(parts=parts):
            return frozenset().union(*map(columns_of, parts))
        case Compare(column=column, other=Column() as other):
            return frozenset({column, other})
        case _:
            return frozenset({condition.column})


def literals_of(condition: Condition) -> list[Any]:
    match condition:
        case Not(of=one):
            return literals_of(one)
        case Joined(parts=parts):
            return [value for part in parts for value in literals_of(part)]
        case Compare(other=other) | NullSafe(other=other):
            return [] if isinstance(other, Column) else [other]
        case IsIn(values=values):
            return [*values]
        case Between(low=low, high=high):
            return [low, high]
        case _:
            return []


# --- random ----------------------------------------------------------------------------------------------------------


def a_condition(
    luck: random.Random, columns: Sequence[Column], literal: Callable[[Column], Any], depth: int = 2
) -> Condition:
    """A random condition on some of the columns, with values that ``literal`` finds for them."""
    if depth and luck.random() < 0.45:
        if luck.random() < 0.3:
            return Not(a_condition(luck, columns, literal, depth - 1))
        count = luck.choice([2, 2, 2, 3])
        parts = tuple(a_condition(luck, columns, literal, depth - 1) for _ in range(count))
        return Joined(luck.choice(["AND", "OR"]), parts)
    column = luck.choice(columns)
    if pa.types.is_nested(column.type) or luck.random() < 0.08:
        return IsNull(column, luck.random() < 0.5)
    kind = luck.choice(["compare"] * 6 + ["in", "in", "between", "safe", "like", "flag", "columns"])
    if kind == "like" and pa.types.is_string(column.type):
        # What LIKE escapes is for another test.
        text = literal(column)[: luck.choice([1, 2, 31, 32, 33, 40])]
        return Begins(column, text.translate(str.maketrans("", "", "%_\\")))
    if kind == "flag" and pa.types.is_boolean(column.type):
        return Flag(column)
    if kind == "columns" and (others := [one for one in columns if one != column and one.type == column.type]):
        return Compare(column, luck.choice([*_OPERATORS]), luck.choice(others))
    if kind == "in":
        values = [literal(column) for _ in range(luck.choice([1, 2, 3, 3, 12, 70]))]
        return IsIn(column, tuple(values + [None] * (luck.random() < 0.1)))
    if kind == "between":
        return Between(column, literal(column), literal(column))
    if kind == "safe":
        return NullSafe(column, None if luck.random() < 0.1 else literal(column))
    return Compare(column, luck.choice([*_OPERATORS]), literal(column), luck.random() < 0.2)


# --- as SQL ----------------------------------------------------------------------------------------------------------


def to_sql(condition: Condition, dialect: Dialect) -> str:  # noqa: C901 - a case for each kind
    def name(column: Column) -> str:
        if dialect == "spark":
            return ".".join(f"`{part}`" for part in column.path)
        if dialect == "duckdb":
            return ".".join(f'"{part}"' for part in column.path)
        first, *fields = column.path
        return f'"{first}"' + "".join(f"['{field}']" for field in fields)

    def of(column: Column, value: Any) -> str:
        return name(value) if isinstance(value, Column) else to_literal(value, column.type, dialect)

    match condition:
        case Compare(column=column, operator=how, other=other, flipped=flipped):
            if flipped:
                swapped = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}.get(how, how)
                return f"{of(column, other)} {swapped} {name(column)}"
            return f"{name(column)} {how} {of(column, other)}"
        case NullSafe(column=column, other=other):
            sign = "<=>" if dialect == "spark" else "IS NOT DISTINCT FROM"
            return f"{name(column)} {sign} {of(column, other)}"
        case IsIn(column=column, values=values):
            return f"{name(column)} IN ({', '.join(of(column, value) for value in values)})"
        case Between(column=column, low=low, high=high):
            return f"{name(column)} BETWEEN {of(column, low)} AND {of(column, high)}"
        case Begins(column=column, prefix=prefix):
            return f"{name(column)} LIKE {of(column, prefix + '%')}"
        case IsNull(column=column, negated=negated):
            return f"{name(column)} IS {'NOT ' * negated}NULL"
        case Flag(column=column):
            return name(column)
        case Not(of=one):
            return f"NOT ({to_sql(one, dialect)})"
        case Joined(operator=how, parts=parts):
            return f" {how} ".join(f"({to_sql(part, dialect)})" for part in parts)


_INTEGERS = {pa.int8(): "tinyint", pa.int16(): "smallint", pa.int32(): "int", pa.int64(): "bigint"}


def to_literal(value: Any, data_type: pa.DataType, dialect: Dialect) -> str:
    """A value as SQL of which a program knows the type without guessing."""
    if value is None:
        return "NULL"
    if pa.types.is_boolean(data_type):
        return str(value).lower()
    if data_type in _INTEGERS:
        return str(value) if dialect == "spark" else f"CAST('{value}' AS {_INTEGERS[data_type]})"
    if pa.types.is_binary(data_type):
        return (
            "'" + "".join(f"\\x{byte:02x}" for byte in value) + "'::BLOB"
            if dialect == "duckdb"
            else f"X'{value.hex()}'"
        )
    if pa.types.is_string(data_type):
        return _text(value, dialect)
    if dialect == "spark":
        return _in_spark(value, data_type)
    if dialect == "datafusion":
        kind = {
            pa.float32(): "Float32",
            pa.float64(): "Float64",
            pa.date32(): "Date32",
            pa.timestamp("us"): "Timestamp(Microsecond, None)",
            pa.timestamp("us", "UTC"): 'Timestamp(Microsecond, Some("UTC"))',
        }.get(data_type) or f"Decimal128({data_type.precision}, {data_type.scale})"
        return f"arrow_cast('{_plain(value)}', '{kind}')"
    kind = {
        pa.float32(): "FLOAT",
        pa.float64(): "DOUBLE",
        pa.date32(): "DATE",
        pa.timestamp("us"): "TIMESTAMP",
        pa.timestamp("us", "UTC"): "TIMESTAMPTZ",
    }.get(data_type) or f"DECIMAL({data_type.precision}, {data_type.scale})"
    return f"CAST('{_plain(value)}' AS {kind})"


def _in_spark(value: Any, data_type: pa.DataType) -> str:
    if pa.types.is_decimal(data_type):
        return f"{value:f}BD"
    if pa.types.is_float64(data_type) and math.isfinite(value):
        return f"{value!r}D"
    if pa.types.is_floating(data_type):
        return f"CAST('{_plain(value)}' AS {'float' if pa.types.is_float32(data_type) else 'double'})"
    if pa.types.is_date(data_type):
        return f"DATE'{_plain(value)}'"
    return f"TIMESTAMP{'_NTZ' if data_type.tz is None else ''}'{_plain(value)}'"


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return repr(value).replace("inf", "Infinity").replace("nan", "NaN")
    if isinstance(value, dt.datetime):
        text = f"{value.year:04}-{value:%m-%d %H:%M:%S.%f}"
        return text if value.tzinfo is None else text + "+00:00"
    return f"{value.year:04}-{value:%m-%d}" if isinstance(value, dt.date) else f"{value:f}"


def _text(value: str, dialect: Dialect) -> str:
    if dialect == "spark":
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    quoted = "'" + value.replace("'", "''") + "'"
    # DuckDB's texts end at a NUL.
    return quoted.replace("\x00", "' || chr(0) || '").join("()") if "\x00" in value and dialect == "duckdb" else quoted


# --- as expressions --------------------------------------------------------------------------------------------------


def to_polars(condition: Condition) -> pl.Expr:  # noqa: C901 - a case for each kind
    def of(column: Column) -> pl.Expr:
        first, *fields = column.path
        return functools.reduce(lambda found, name: found.struct.field(name), fields, pl.col(first))

    def literal(column: Column, value: Any) -> pl.Expr:
        if isinstance(value, Column):
            return of(value)
        kind: Any = pl.Series(pa.array([], column.type)).dtype
        return pl.lit(value, dtype=kind)

    match condition:
        case Compare(column=column, operator=how, other=other, flipped=flipped):
            if flipped:
                swapped = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}.get(how, how)
                return _OPERATORS[swapped](literal(column, other), of(column))
            return _OPERATORS[how](of(column), literal(column, other))
        case NullSafe(column=column, other=other):
            return of(column).eq_missing(literal(column, other))
        case IsIn(column=column, values=values):
            equal = [of(column) == literal(column, value) for value in values]
            if None in values:  # of which `is_in` knows no truth
                return functools.reduce(operator.or_, equal)
            return of(column).is_in(pl.Series(pa.array(values, column.type)).implode())
        case Between(column=column, low=low, high=high):
            return of(column).is_between(literal(column, low), literal(column, high))
        case Begins(column=column, prefix=prefix):
            return of(column).str.starts_with(prefix)
        case IsNull(column=column, negated=negated):
            return of(column).is_not_null() if negated else of(column).is_null()
        case Flag(column=column):
            return of(column)
        case Not(of=one):
            return ~to_polars(one)
        case Joined(operator=how, parts=parts):
            return functools.reduce(operator.and_ if how == "AND" else operator.or_, map(to_polars, parts))


def to_arrow(condition: Condition) -> Any:  # noqa: C901 - a case for each kind
    """For Arrow's data sets, as `deltalake` hands them out."""

    def literal(column: Column, value: Any) -> Any:
        return pc.field(*value.path) if isinstance(value, Column) else pc.scalar(pa.scalar(value, column.type))

    def of(column: Column) -> Any:
        return pc.field(*column.path)

    match condition:
        case Compare(column=column, operator=how, other=other, flipped=flipped):
            if flipped:
                swapped = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}.get(how, how)
                return _OPERATORS[swapped](literal(column, other), of(column))
            return _OPERATORS[how](of(column), literal(column, other))
        case NullSafe(column=column, other=other):
            if other is None:
                return of(column).is_null()
            return of(column).is_valid() & (of(column) == literal(column, other))
        case IsIn(column=column, values=values):  # `isin` takes null for a value
            return functools.reduce(operator.or_, [of(column) == literal(column, value) for value in values])
        case Between(column=column, low=low, high=high):
            return (of(column) >= literal(column, low)) & (of(column) <= literal(column, high))
        case Begins(column=column, prefix=prefix):
            return pc.starts_with(of(column), prefix)
        case IsNull(column=column, negated=negated):
            return of(column).is_valid() if negated else of(column).is_null()
        case Flag(column=column):
            return of(column)
        case Not(of=one):
            return ~to_arrow(one)
        case Joined(operator=how, parts=parts):
            return functools.reduce(operator.and_ if how == "AND" else operator.or_, map(to_arrow, parts))
