"""What a SQL condition says of single columns: the part of it by which files can be skipped before any is read.

`parse_predicate` turns Spark SQL into a small tree. What the tree cannot say (a function, a column compared with
another one) becomes `Opaque`, of which nothing is known; so a predicate is always as wide as its text or wider, and
never decides about a row. Engines evaluate the text itself.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from math import inf, isfinite, nextafter
from typing import Any, Literal

import numpy as np

from dagster_versioned.delta.schema.types import DataType, StructField, StructType, decimal_of
from dagster_versioned.errors import InvalidInput

Tree = Any
"""An expression of sqlglot, which is imported where one is parsed."""

Path = tuple[str, ...]
"""A column, by its names in the table from the top; more than one for a field of a struct."""

Value = bool | int | float | str | date | datetime
"""``datetime`` is aware for ``timestamp``, naive for ``timestamp_ntz``; ``float`` is of all numbers with fractions."""

Operator = Literal["=", "<", "<=", ">", ">="]


@dataclass(frozen=True, slots=True)
class Constant:
    """True or false for every row; ``None`` is SQL's null."""

    value: bool | None


@dataclass(frozen=True, slots=True)
class Opaque:
    """A condition of which nothing is known."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A column against a value that lies between ``low`` and ``high``, both included, and is known if they are equal.

    Numbers with fractions, and times whose zone is the reader's, are known but for a margin.
    """

    path: Path
    operator: Operator
    low: Value
    high: Value

    @property
    def exact(self) -> bool:
        return self.low == self.high


@dataclass(frozen=True, slots=True)
class IsNull:
    """Whether a column is null."""

    path: Path


@dataclass(frozen=True, slots=True)
class StartsWith:
    """A string column begins with ``prefix``. Where this is not ``sufficient``, more must hold, too."""

    path: Path
    prefix: str
    sufficient: bool


@dataclass(frozen=True, slots=True)
class In:
    """A column is one of many values, each known exactly."""

    path: Path
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Not:
    """SQL's NOT."""

    child: "Predicate"


@dataclass(frozen=True, slots=True)
class And:
    """SQL's AND."""

    children: tuple["Predicate", ...]


@dataclass(frozen=True, slots=True)
class Or:
    """SQL's OR."""

    children: tuple["Predicate", ...]


Predicate = Constant | Opaque | Comparison | IsNull | StartsWith | In | Not | And | Or


def paths_of(predicate: Predicate) -> frozenset[Path]:
    """The columns that the predicate names."""
    return frozenset(node.path for node in _nodes(predicate) if isinstance(node, Comparison | IsNull | StartsWith | In))


def _nodes(predicate: Predicate) -> Iterator[Predicate]:
    yield predicate
    match predicate:
        case Not(child=child):
            yield from _nodes(child)
        case And(children=children) | Or(children=children):
            for child in children:
                yield from _nodes(child)
        case _:
            pass


def parse_predicate(sql: str, schema: StructType, qualifier: str | None = None) -> Predicate:
    """What the Spark SQL condition ``sql`` says of the columns of ``schema``.

    With a ``qualifier``, only columns that are written with it (``target.x``) are the table's, and all others another
    table's; without, all are, and one that the table lacks is opaque. Names are found whatever their case. Raises
    `InvalidInput` for text that is no SQL expression.
    """
    from sqlglot import ErrorLevel, parse
    from sqlglot.errors import ParseError, SqlglotError

    try:
        trees = parse(sql, read="spark", error_level=ErrorLevel.RAISE)
        if len(trees) != 1 or trees[0] is None:
            raise ParseError("It is not one expression.")
        return _Reader(schema, qualifier).predicate(trees[0])
    except (SqlglotError, RecursionError) as error:
        raise InvalidInput(f"The condition {sql!r:.200} is not SQL: {str(error) or 'too deeply nested'}.") from error


# --- from sqlglot's tree ---------------------------------------------------------------------------------------------

_FLIPPED: dict[Operator, Operator] = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}

_PLAIN_INTEGER = re.compile(r"[+-]?\d{1,18}", re.ASCII)
_PLAIN_DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_PLAIN_TIME = re.compile(
    r"(\d{4}-\d{2}-\d{2})(?:[ T](\d{2}:\d{2}(?::\d{2})?)(?:\.(\d{1,6}))?(Z|[+-]\d{2}:\d{2})?)?", re.ASCII
)

_ZONES = timedelta(hours=18)
"""No session's time zone is further from UTC (Java's `ZoneOffset`)."""

_INTEGERS = {"byte", "short", "integer", "long"}
_LONG = range(-(2**63), 2**63)
_MANY = 64
"""A list of more values becomes one `In`, fewer are compared one by one."""

_UNKNOWN = Opaque()


@dataclass(frozen=True, slots=True)
class _Reader:
    schema: StructType
    qualifier: str | None

    def predicate(self, tree: Tree) -> Predicate:
        from sqlglot import exp

        match tree:
            case exp.Paren():
                return self.predicate(tree.this)
            case exp.Not():
                return Not(self.predicate(tree.this))
            case exp.And() | exp.Or():
                children = tuple(self.predicate(child) for child in tree.flatten())
                return And(children) if isinstance(tree, exp.And) else Or(children)
            case exp.Boolean():
                return Constant(bool(tree.this))
            case exp.Null():
                return Constant(None)
            case exp.Predicate():
                return self._of_column(tree)
            case exp.StartsWith() if _has_only(tree, "this", "expression"):
                return self._begins(tree.this, tree.expression)
            case _:
                return self._flag(tree)

    def _of_column(self, tree: Tree) -> Predicate:
        from sqlglot import exp

        operators: dict[type, Operator] = {exp.EQ: "=", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">="}
        match tree:
            case exp.Is() if isinstance(tree.expression, exp.Null):
                path = self._path(tree.this)
                return _UNKNOWN if path is None else IsNull(path)
            case exp.EQ() | exp.LT() | exp.LTE() | exp.GT() | exp.GTE():
                return self._compared(tree.this, operators[type(tree)], tree.expression)
            case exp.NEQ():
                return Not(self._compared(tree.this, "=", tree.expression))
            case exp.NullSafeEQ():
                return self._null_safe(tree.this, tree.expression)
            case exp.NullSafeNEQ():
                return Not(self._null_safe(tree.this, tree.expression))
            case exp.Between() if _has_only(tree, "this", "low", "high"):
                low = self._compared(tree.this, ">=", tree.args["low"])
                return And((low, self._compared(tree.this, "<=", tree.args["high"])))
            case exp.In() if tree.expressions and _has_only(tree, "this", "expressions"):
                return self._listed(tree.this, tree.expressions)
            case exp.Like() if _has_only(tree, "this", "expression", "negate"):
                like = self._like(tree.this, tree.expression)
                return Not(like) if tree.args.get("negate") else like
            case _:
                return _UNKNOWN

    def _flag(self, tree: Tree) -> Predicate:
        field = self._field(tree)
        if field is None or field[1].type != "boolean":
            return _UNKNOWN
        return Comparison(field[0], "=", True, True)

    def _path(self, tree: Tree) -> Path | None:
        field = self._field(tree)
        return None if field is None else field[0]

    def _field(self, tree: Tree) -> tuple[Path, StructField] | None:
        """The column that an expression is, by its names as the table spells them."""
        names = _names(tree)
        if names is None:
            return None
        if self.qualifier is not None:
            if len(names) < 2 or names[0].casefold() != self.qualifier.casefold():
                return None
            names = names[1:]
        return _found(self.schema, names)

    def _compared(self, left: Tree, operator: Operator, right: Tree) -> Predicate:
        field, literal = self._field(left), right
        if field is None:
            field, literal, operator = self._field(right), left, _FLIPPED[operator]
        if field is None:
            return _UNKNOWN
        path, column = field
        if _is_null(literal):
            return Constant(None)
        bounds = _literal(literal, column.type)
        return _UNKNOWN if bounds is None else Comparison(path, operator, *bounds)

    def _null_safe(self, left: Tree, right: Tree) -> Predicate:
        if _is_null(left):
            left, right = right, left
        path = self._path(left) or self._path(right)
        if path is None:
            return _UNKNOWN
        if _is_null(right):
            return IsNull(path)
        compared = self._compared(left, "=", right)
        # Another column, say, may be null itself, and then equals null.
        return And((Not(IsNull(path)), compared)) if isinstance(compared, Comparison) else _UNKNOWN

    def _listed(self, left: Tree, values: list[Tree]) -> Predicate:
        compared = [self._compared(left, "=", value) for value in values]
        exact = [comparison for comparison in compared if isinstance(comparison, Comparison) and comparison.exact]
        if len(exact) == len(compared) > _MANY and len({comparison.path for comparison in exact}) == 1:
            return In(exact[0].path, tuple(comparison.low for comparison in exact))
        return Or(tuple(compared))

    def _like(self, left: Tree, right: Tree) -> Predicate:
        pattern = _text(right)
        if pattern is None or "\\" in pattern:
            return _UNKNOWN
        prefix = re.split("[%_]", pattern, maxsplit=1)[0]
        if prefix == pattern:
            return self._compared(left, "=", right)
        return self._prefixed(left, prefix, sufficient=pattern == prefix + "%")

    def _begins(self, left: Tree, right: Tree) -> Predicate:
        prefix = _text(right)
        return _UNKNOWN if prefix is None else self._prefixed(left, prefix, sufficient=True)

    def _prefixed(self, left: Tree, prefix: str, *, sufficient: bool) -> Predicate:
        field = self._field(left)
        if field is None or field[1].type != "string":
            return _UNKNOWN
        return StartsWith(field[0], prefix, sufficient)


def _has_only(tree: Tree, *members: str) -> bool:
    """Whether the parser found nothing else in it, such as an option that changes what it means."""
    return all(name in members for name, value in tree.args.items() if value)


def _names(tree: Tree) -> list[str] | None:
    from sqlglot import exp

    match tree:
        case exp.Column():
            return [part.name for part in tree.parts] if not isinstance(tree.this, exp.Star) else None
        case exp.Dot(this=left, expression=exp.Identifier() as right):
            names = _names(left)
            return None if names is None else [*names, right.name]
        case exp.Paren():
            return _names(tree.this)
        case _:
            return None


def _found(schema: StructType, names: list[str]) -> tuple[Path, StructField] | None:
    data_type: DataType = schema
    path: list[str] = []
    field: StructField | None = None
    for name in names:
        if not isinstance(data_type, StructType):
            return None
        same = [field for field in data_type.fields if field.name.casefold() == name.casefold()]
        if len(same) != 1 or "__COLLATIONS" in same[0].metadata:  # which compares by rules of its own
            return None
        field = same[0]
        path.append(field.name)
        data_type = field.type
    return None if field is None else (tuple(path), field)


# --- literals --------------------------------------------------------------------------------------------------------


def _is_null(tree: Tree) -> bool:
    from sqlglot import exp

    return isinstance(tree, exp.Null)


def _text(tree: Tree) -> str | None:
    from sqlglot import exp

    return tree.this if isinstance(tree, exp.Literal) and tree.is_string else None


def _literal(tree: Tree, data_type: DataType) -> tuple[Value, Value] | None:
    """What a literal lies between once it is compared with a column of this type; ``None`` where that is not known."""
    from sqlglot import exp

    if isinstance(tree, exp.Paren):
        return _literal(tree.this, data_type)
    if not isinstance(data_type, str):
        return None
    text = _text(tree)
    if isinstance(tree, exp.Cast):  # which a typed literal is, too
        if not _has_only(tree, "this", "to", "safe"):
            return None
        text, target = _text(tree.this), tree.to.sql("spark").upper()
        return _of_number(tree, data_type) if text is None else _of_time(text, target, data_type)
    if data_type == "boolean":
        return (tree.this, tree.this) if isinstance(tree, exp.Boolean) else None
    return _of_number(tree, data_type) if text is None else _of_text(text, data_type)


def _of_text(text: str, data_type: str) -> tuple[Value, Value] | None:
    if data_type == "string":
        return text, text
    if data_type in _INTEGERS:
        return (int(text), int(text)) if _PLAIN_INTEGER.fullmatch(text) else None
    target = {"date": "DATE", "timestamp": "TIMESTAMP", "timestamp_ntz": "TIMESTAMP_NTZ"}.get(data_type)
    return None if target is None else _of_time(text, target, data_type)


def _number(tree: Tree) -> int | Decimal | float | None:
    from sqlglot import exp

    match tree:
        case exp.Neg():
            number = _number(tree.this)
            return None if number is None else -number
        case exp.Paren():
            return _number(tree.this)
        case exp.Literal() if not tree.is_string:
            text = str(tree.this)
            if re.fullmatch(r"\d+", text):
                return int(text)
            return float(text) if re.search("[eE]", text) else Decimal(text)
        case exp.Cast() if _has_only(tree, "this", "to", "safe"):
            number = _number(tree.this)
            return None if number is None else _cast_number(number, tree.to.sql("spark").upper())
        case _:
            return None


def _cast_number(number: int | Decimal | float, target: str) -> int | float | None:
    bits = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "BIGINT": 64}.get(target)
    if bits is not None and isinstance(number, int):
        return number if -(1 << (bits - 1)) <= number < 1 << (bits - 1) else None
    return float(number) if target == "DOUBLE" else None


def _of_number(tree: Tree, data_type: str) -> tuple[Value, Value] | None:
    number = _number(tree)
    if number is None:
        return None
    if data_type in _INTEGERS and isinstance(number, int):
        return (number, number) if number in _LONG else None
    if data_type not in _INTEGERS | {"float", "double"} and decimal_of(data_type) is None:
        return None
    # Engines differ in the type that two numbers are compared in: what any of them may make of it lies in between.
    around = _double(number)
    if around is None:
        return None
    if _is_one_double(number, data_type):
        return around, around
    low, high = nextafter(around, -inf), nextafter(around, inf)
    if data_type == "float":
        with np.errstate(over="ignore"):
            single = np.float32(around)
        low = min(low, float(np.nextafter(single, np.float32(-inf))))
        high = max(high, float(np.nextafter(single, np.float32(inf))))
    return low, high


def _double(number: int | Decimal | float) -> float | None:
    try:
        around = float(number)
    except OverflowError:
        return None
    return around if isfinite(around) else None


def _is_one_double(number: int | Decimal | float, data_type: str) -> bool:
    """Whether every engine compares a column of the type with this number as if both were doubles."""
    decimal = decimal_of(data_type)
    if decimal is not None:  # a double distinguishes up to 15 digits
        return not isinstance(number, float) and max(decimal[0], len(Decimal(number).as_tuple().digits)) <= 15
    with np.errstate(over="ignore"):
        single = float(np.float32(float(number)))
    return number == float(number) and (data_type == "double" or (data_type == "float" and single == number))


def _of_time(text: str, target: str, data_type: str) -> tuple[Value, Value] | None:
    """A text that is cast to the type ``target`` and compared with a column of days or instants."""
    match = _PLAIN_TIME.fullmatch(text)
    if match is None or target not in ("DATE", "TIMESTAMP", "TIMESTAMP_LTZ", "TIMESTAMP_NTZ"):
        return None
    if target == "DATE" and not _PLAIN_DATE.fullmatch(text):
        return None
    try:
        if data_type == "date" and target == "DATE":
            day = date.fromisoformat(text)
            return day, day
        if data_type in ("timestamp", "timestamp_ntz"):
            return _of_instant(_instant(match), match[4], target, data_type)
    except (ValueError, OverflowError):
        pass
    return None


def _instant(match: re.Match[str]) -> datetime:
    fraction = timedelta(microseconds=int((match[3] or "").ljust(6, "0")))
    return datetime.fromisoformat(f"{match[1]} {match[2] or '00:00'}") + fraction


def _of_instant(instant: datetime, zone: str | None, target: str, data_type: str) -> tuple[Value, Value] | None:
    """An instant in a zone, which a text of the type ``target`` names, compared with a column of instants.

    Raises `ValueError` and `OverflowError` for one that is none in UTC.
    """
    if target not in ("TIMESTAMP", "TIMESTAMP_LTZ"):
        if zone:
            return None
        if data_type == "timestamp_ntz":
            return instant, instant
    if data_type == "timestamp" and zone:
        offset = datetime.strptime(zone.replace("Z", "+00:00"), "%z").tzinfo or UTC
        exact = instant.replace(tzinfo=offset).astimezone(UTC)
        return exact, exact
    # The session's zone, which an engine is asked in, decides.
    margin = _ZONES * 2 if zone else _ZONES
    low, high = instant - margin, instant + margin
    return (low, high) if data_type == "timestamp_ntz" else (low.replace(tzinfo=UTC), high.replace(tzinfo=UTC))
