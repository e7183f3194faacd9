"""Expressions of Spark's dialect in DuckDB's: parsed, checked, and given Spark's meaning where DuckDB's differs.

Imported where there is an expression, since it imports the parser.
"""

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import cache
from typing import Any, cast
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import duckdb
import pyarrow as pa
import sqlglot
from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.expressions.core import Expr

from dagster_versioned.engines.expression import INTEGERS, Columns, ResolvedExpression, refused, stored
from dagster_versioned.engines.sql_functions import DAYS, UNITS, rewritings, whole_numbers
from dagster_versioned.errors import InvalidInput

_NAMES = """
Column Identifier Literal HexString Null Boolean Paren Tuple DataType DataTypeParam ColumnDef Var Interval Lambda
Add Sub Mul Div IntDiv Mod Neg BitwiseAnd BitwiseOr BitwiseXor BitwiseNot BitwiseLeftShift BitwiseRightShift SafeDivide
EQ NEQ LT LTE GT GTE NullSafeEQ NullSafeNEQ EqualNull Is Not And Or Between In Like ILike Escape
Case If Coalesce Nullif Nvl2 DecodeCase Greatest Least Cast TryCast IsNan
Abs Ceil Floor Round Sign Sqrt Pi
DPipe Concat ConcatWs Length BitLength Lower Upper Trim Substring Left Right Pad Repeat Replace Reverse Translate
StartsWith EndsWith Contains StrPosition Ascii Space Hex MD5 SHA SHA2 RegexpLike
Year Quarter Month WeekOfYear Day DayOfMonth DayOfYear DayOfWeek Hour Minute Second Extract LastDay DateDiff UnixDate
TsOrDsAdd AddMonths TimestampAdd TimestampTrunc DateTrunc TimeToStr TimeStrToTime StrToTime TsOrDsToDate
UnixMicros CurrentTimestamp CurrentDate
Array ArrayContains ArraySize ArrayMax ArrayMin Bracket Struct PropertyEQ Dot VarMap MapKeys Transform ArrayFilter
"""
_KNOWN = frozenset(getattr(exp, name) for name in _NAMES.split())
"""What expressions are made of, by the parser's names: it has the same values in DuckDB as in Spark, or is given them.

The two are compared on values at the edges (tests/engines/test_sql_in_spark.py).
"""

_WHOLE, _DAY = r"\s*[+-]?\d+\s*", r"\d{4}-\d{1,2}-\d{1,2}"
_NUMBER = r"(?i)\s*(nan|[+-]?(inf|infinity|(\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?))\s*"
_TIME = rf"{_DAY}([ T]\d{{1,2}}:\d{{1,2}}(:\d{{1,2}}(\.\d{{1,6}})?)?)?"
_INSTANT = rf"{_DAY}([ T]\d{{1,2}}:\d{{1,2}}(:\d{{1,2}}(\.\d{{1,6}})?)?(Z| ?UTC|[+-]((0\d|1[0-7]):[0-5]\d|18:00))?)?"
_INSTANTS = ("TIMESTAMPTZ", "TIMESTAMPLTZ")
_REGION = re.compile(
    r"(\d{4}-\d{2}-\d{2})[ T](\d{2}:\d{2}:\d{2}(?:\.\d{1,6})?) ?([A-Za-z_]+(?:/[A-Za-z_]+)+)", re.ASCII
)
_FORMS = {
    **dict.fromkeys(INTEGERS, _WHOLE),
    **dict.fromkeys(("FLOAT", "DOUBLE"), _NUMBER),
    "BOOLEAN": r"(?i)true|false",
    "DATE": rf"\s*{_DAY}\s*",
    **dict.fromkeys(_INSTANTS, _INSTANT),
    "TIMESTAMPNTZ": _TIME,
}
"""Texts that both engines take for a value of a type, and for the same."""
_TEXTS = {"TEXT", "VARCHAR", "CHAR", "NVARCHAR"}
_OTHER = "may have another value in DuckDB, which evaluates it"
_COLOURS = re.compile(r"\x1b\[\d*m")
_REFUSED = (
    ((exp.Query, exp.Table, exp.Exists), "it holds a subquery"),
    ((exp.AggFunc, exp.Window, exp.UDTF, exp.Explode), "{} is more than a value of the row"),
    ((exp.Rand, exp.Randn, exp.Uuid, exp.CurrentUser), "{} is not the same each time"),
    ((exp.Star, exp.Columns, exp.Placeholder, exp.Parameter, exp.Command), "{} is no value"),
)


def parse_expression(text: str) -> Expr:
    """Parse one expression of Spark's dialect. Raises `InvalidInput` for what is none, or is refused here."""
    try:
        # In parentheses, so that a column called like a statement is none.
        trees = sqlglot.parse(f"SELECT (\n{text}\n)", dialect=_spark())
    except (sqlglot.ParseError, sqlglot.TokenError, RecursionError) as error:
        raise refused(text, f"it is no SQL ({_COLOURS.sub('', str(error)).splitlines()[0]})") from error
    tree = _sole(trees)
    if tree is None:
        raise refused(text, "it is no single expression")
    for node in tree.walk():
        for kinds, why in _REFUSED:
            if isinstance(node, kinds):
                raise refused(text, why.format(node.sql("spark")))
        if isinstance(node, exp.Anonymous):
            raise refused(text, f"the function {node.name} is not known here")
        if type(node) not in _KNOWN or (isinstance(node, exp.DateDiff) and node.unit is not None):
            raise refused(text, f"{node.sql('spark')} {_OTHER}")
    return tree


def _sole(trees: list[Expr | None]) -> Expr | None:
    """The one expression in parentheses that is selected, from nothing, where there is no more."""
    select = trees[0] if len(trees) == 1 else None
    if not isinstance(select, exp.Select):
        return None
    clauses = {name for name, value in select.args.items() if value} - {"expressions", "kind"}
    if clauses or len(select.expressions) != 1 or not isinstance(select.expressions[0], exp.Paren | exp.Subquery):
        return None
    tree: Expr = select.expressions[0]
    if isinstance(tree, exp.Subquery):
        return tree
    return tree.this if isinstance(tree.this, exp.Condition) else None


def equated(tree: Expr) -> Iterator[tuple[Expr, Expr]]:
    """What an expression, joined by ``AND``, says to be equal."""
    tree = tree.unnest()
    if isinstance(tree, exp.And):
        yield from equated(tree.this)
        yield from equated(tree.expression)
    elif isinstance(tree, exp.EQ):
        yield tree.this.unnest(), tree.expression.unnest()


@cache
def _spark() -> Any:
    """Spark's dialect with ANSI casts, which fail where the dialect's own would give null."""

    def casting(kind: str) -> Callable[[list[Any]], Any]:
        return lambda given: _cast(given[0], kind)

    def instant(given: list[Any]) -> Any:
        """An instant, which the parser's own function takes for a time without a zone."""
        if len(given) == 1:
            return _cast(given[0], "TIMESTAMPTZ")
        return exp.StrToTime(this=given[0], format=given[1])

    def day(given: list[Any]) -> Any:
        return _cast(given[0] if len(given) == 1 else instant(given), "DATE")

    def now(_: list[Any]) -> Any:
        return exp.CurrentTimestamp()

    functions: dict[str, Any] = {
        **Spark.Parser.FUNCTIONS,
        "NOW": now,
        "TO_DATE": day,
        "TO_TIMESTAMP": instant,
        "TIMESTAMP": instant,
        **{name: casting(name) for name in ("TINYINT", "SMALLINT", "BIGINT", "DOUBLE", "FLOAT", "BOOLEAN")},
    }

    def is_null(given: list[Any]) -> Any:
        return exp.Is(this=given[0], expression=exp.Null())

    def is_not_null(given: list[Any]) -> Any:
        return exp.Not(this=is_null(given))

    functions["ISNULL"] = is_null
    functions["ISNOTNULL"] = is_not_null

    class AnsiSpark(Spark):
        class Parser(Spark.Parser):
            STRICT_CAST = True
            FUNCTIONS = functions

    return AnsiSpark


def _cast(tree: Expr, kind: str) -> Expr:
    return exp.Cast(this=tree, to=exp.DataType.build(kind))


def _with_operand(node: Expr, operand: Expr) -> Expr:
    changed = node.copy()
    changed.set("this", operand)
    return changed


def _in_utc(text: str) -> str | None:
    """A time of a region, such as Europe/Paris, in UTC; as Java does, of an hour that comes twice the first."""
    match = _REGION.fullmatch(text)
    if match is None:
        return None
    try:
        local = datetime.fromisoformat(f"{match[1]} {match[2]}").replace(tzinfo=ZoneInfo(match[3]))
        return local.astimezone(UTC).isoformat(sep=" ")
    except (ValueError, OverflowError, ZoneInfoNotFoundError):
        return None


def _with_nul(text: str) -> Expr:
    """DuckDB's parser ends at a NUL."""
    first, *others = text.split("\x00")
    joined: Expr = exp.Literal.string(first)
    for other in others:
        nul = exp.Anonymous(this="chr", expressions=[_zero()])
        joined = exp.DPipe(this=exp.DPipe(this=joined, expression=nul), expression=exp.Literal.string(other))
    return exp.Paren(this=joined)


def _zero() -> Expr:
    return exp.Literal.number(0)


def _error(text: str) -> Expr:
    message = f"a value has no result in {text[:100]}".replace("\x00", "\\0")
    return exp.Anonymous(this="error", expressions=[exp.Literal.string(message)])


class Translation:
    """One expression in DuckDB's dialect, with the meaning that it has in Spark's."""

    def __init__(self, text: str, names: Columns, described: Callable[[str], str]) -> None:
        self._text = text
        self._names = names
        self._described = described
        self._used: set[tuple[str, str]] = set()

    def of(self, tree: Expr) -> ResolvedExpression:
        """The whole, or a part, of what was parsed from the text. Raises `InvalidInput`."""
        tree = self._in_order(tree.copy().transform(self._named))
        used = self._used if tree.find(exp.Column) is not None else ()
        try:
            sql = tree.sql("duckdb", unsupported_level=sqlglot.ErrorLevel.RAISE)
        except sqlglot.UnsupportedError as error:
            raise self._refused(f"it has no equal in DuckDB, which evaluates it: {error}") from error
        return ResolvedExpression(self._text, sql, frozenset(used))

    def _refused(self, reason: str) -> InvalidInput:
        return refused(self._text, reason)

    def _named(self, node: Expr) -> Expr:
        if isinstance(node, exp.Literal) and "\x00" in node.name:
            return _with_nul(node.name)
        if not isinstance(node, exp.Column):
            return node
        side, column, fields = self._names.find([part.name for part in node.parts], self._text)
        self._used.add((side, column))
        result: Any = exp.column(stored(side, column), quoted=True)
        result.set("resolved", True)
        for name in fields:
            result = exp.Anonymous(this="struct_extract", expressions=[result, exp.Literal.string(name)])
        # A copy that `transform` does not visit again: its name is no name of the user's.
        return exp.Paren(this=result) if fields else result

    def _in_order(self, tree: Expr) -> Expr:
        """The tree with Spark's meaning where DuckDB's differs, from the leaves up."""
        for node in list(tree.walk(bfs=False))[::-1]:
            replacement = self._as_spark(node)
            if replacement is not node:
                if node is tree:
                    tree = replacement
                else:
                    node.replace(replacement)
        return tree

    def _as_spark(self, node: Expr) -> Expr:
        if type(node) in rewritings():
            return self._rewritten(node)
        match node:
            case exp.CurrentTimestamp():
                return _cast(exp.Literal.string(self._names.now.isoformat()), "TIMESTAMPTZ")
            case exp.CurrentDate():
                return _cast(exp.Literal.string(self._names.now.date().isoformat()), "DATE")
            case exp.Div() | exp.IntDiv() | exp.Mod():
                return self._divided(self._in_double(node))
            case exp.Cast():
                return self._cast_as_spark(node)
            case exp.Add() | exp.Sub():
                return self._in_double(self._moved(node))
            case exp.Predicate() | exp.Mul():
                return self._in_double(self._ordered(node))
            case _:
                return node

    def _rewritten(self, node: Expr) -> Expr:
        changed = rewritings()[type(node)](node, self._type_of)
        if changed is None:
            raise self._refused(f"{node.sql('spark')} {_OTHER}")
        return changed

    def _divided(self, node: Expr) -> Expr:
        types = {self._type_of(node.this), self._type_of(node.expression)}
        if isinstance(node, exp.Div) and not types & {"FLOAT", "DOUBLE"} and any("DECIMAL" in each for each in types):
            raise self._refused(f"it divides decimals, whose last digit {_OTHER}: cast one to double")
        if isinstance(node, exp.IntDiv) and not whole_numbers(types):
            raise self._refused(f"{node.sql('spark')} {_OTHER}: cast both to bigint")
        divisor = node.expression
        if isinstance(divisor, exp.Literal) and not divisor.is_string and float(divisor.name):
            return node
        fails = exp.Case().when(exp.EQ(this=exp.Paren(this=divisor.copy()), expression=_zero()), _error(self._text))
        guarded = node.copy()
        guarded.set("safe", False)
        return exp.Paren(this=fails.else_(guarded))

    def _moved(self, node: Expr) -> Expr:
        """A date and an interval of days or more are a date."""
        interval = node.expression
        if not isinstance(interval, exp.Interval):
            if isinstance(node, exp.Sub) and self._type_of(node.this) == self._type_of(interval) == "DATE":
                raise self._refused("it takes a date from a date: write datediff(…, …)")
            return node
        unit = interval.unit.name.upper() if isinstance(interval.unit, exp.Var) else ""
        if unit not in UNITS:
            raise self._refused(f"{interval.sql('spark')} {_OTHER}")
        is_date = unit in DAYS and self._type_of(node.this) == "DATE"
        return _cast(exp.Paren(this=node.copy()), "DATE") if is_date else node

    def _ordered(self, node: Expr) -> Expr:
        if isinstance(node, exp.LT | exp.LTE | exp.GT | exp.GTE):
            held = self._type_of(node.this)
            if held.endswith("]") or held.startswith(("STRUCT", "MAP")):
                raise self._refused("it orders lists, maps or structs, whose nulls have another order in DuckDB")
        return node

    def _in_double(self, node: Expr) -> Expr:
        """Single floats beside other numbers are compared and computed with as doubles."""
        operands = [child for child in node.iter_expressions() if isinstance(child, exp.Condition)]
        if pa.float32() not in self._names.rows.schema.types or len(operands) < 2:
            return node
        types = [self._type_of(operand) for operand in operands]
        if "FLOAT" not in types or set(types) == {"FLOAT"}:
            return node
        changed = node.copy()
        copies = [child for child in changed.iter_expressions() if isinstance(child, exp.Condition)]
        for held, operand in zip(types, copies, strict=True):
            if held == "FLOAT":
                operand.replace(_cast(operand.copy(), "DOUBLE"))
        return changed

    def _cast_as_spark(self, node: Expr) -> Expr:
        wanted, given = cast("exp.DataType", node.args["to"]).this.value, node.this
        is_whole = isinstance(given, exp.Literal) and not given.is_string and "." not in given.name
        if is_whole or wanted not in {*_TEXTS, *_FORMS, "DECIMAL"}:
            return node
        held = self._type_of(node.this)
        if wanted in _TEXTS:
            return self._cast_to_text(node, held)
        if wanted in INTEGERS and (held in ("FLOAT", "DOUBLE") or held.startswith("DECIMAL")):
            return _with_operand(node, exp.Anonymous(this="trunc", expressions=[node.this.copy()]))
        if wanted in _FORMS:
            return self._cast_from_text(node, held, wanted)
        if held in ("FLOAT", "DOUBLE", "VARCHAR") and not isinstance(node.this, exp.Literal):
            raise self._refused(f"{node.sql('spark')}: it casts to a decimal what is none, whose last digit {_OTHER}")
        return node.copy()

    def _cast_to_text(self, node: Expr, held: str) -> Expr:
        if held in ("FLOAT", "DOUBLE"):
            raise self._refused("it casts a float to text, which each engine spells in its own way")
        if held.startswith("TIMESTAMP WITH"):
            return _with_operand(node, _cast(node.this.copy(), "TIMESTAMP"))
        return node.copy()

    def _cast_from_text(self, node: Expr, held: str, wanted: str) -> Expr:
        """A cast that takes of a text what Spark takes, and nothing else."""
        if isinstance(node.this, exp.Literal) and not isinstance(node, exp.TryCast):
            return _with_operand(node, self._spelled(node.this.name, wanted))
        if held != "VARCHAR":
            return node.copy()
        form = exp.Literal.string(_FORMS[wanted])
        whole = exp.Anonymous(this="regexp_full_match", expressions=[node.this.copy(), form])
        other = exp.Null() if isinstance(node, exp.TryCast) else _error(self._text)
        absent = exp.Is(this=exp.Paren(this=node.this.copy()), expression=exp.Null())
        return exp.Paren(this=exp.Case().when(exp.Or(this=whole, expression=absent), node.copy()).else_(other))

    def _spelled(self, value: str, wanted: str) -> Expr:
        """A text that is cast to a type, as both engines take it.

        At once, since where all files are passed over nothing is evaluated. Raises `InvalidInput`.
        """
        utc = _in_utc(value) if wanted in _INSTANTS else None
        if utc is None and not re.fullmatch(_FORMS[wanted], value):
            raise self._refused(f"{value!r:.100} is no {wanted} that both engines read alike")
        return exp.Literal.string(value if utc is None else utc)

    def _type_of(self, tree: Expr) -> str:
        """DuckDB's type of a translated expression; ``""`` for one that stands on a lambda's variable."""
        try:
            return self._described(tree.sql("duckdb"))
        except duckdb.Error:
            return ""
