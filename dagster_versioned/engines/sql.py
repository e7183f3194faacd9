"""SQL expressions over Arrow tables: text in Spark's dialect, evaluated by DuckDB.

An expression computes one value a row and reaches nothing but that row: statements, subqueries, aggregates, windows
and what differs from call to call are refused, and the database is locked out of files and the network. What is known
to have one value in both dialects, or is rewritten to Spark's (in ANSI mode), is evaluated; all else is refused.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any, cast
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dagster_versioned.delta.files.file_actions import no_rows
from dagster_versioned.delta.schema.types import DataType, StructType, type_to_arrow
from dagster_versioned.engines.nested_fields import renamed
from dagster_versioned.engines.sql_functions import DAYS, UNITS, rewritings, whole_numbers
from dagster_versioned.errors import InvalidInput
from dagster_versioned.process_state import PROCESS

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection
    from sqlglot.expressions.core import Expr

_LOCKED = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",
}

_KNOWN = """
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
"""What expressions are made of, by the parser's names: it has the same values in DuckDB as in Spark, or is given them.

The two are compared on values at the edges (tests/engines/test_sql_in_spark.py).
"""

_INTEGERS = {"TINYINT": "byte", "SMALLINT": "short", "INT": "integer", "BIGINT": "long"}
_WHOLE, _DAY = r"\s*[+-]?\d+\s*", r"\d{4}-\d{1,2}-\d{1,2}"
_NUMBER = r"(?i)\s*(nan|[+-]?(inf|infinity|(\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?))\s*"
_TIME = rf"{_DAY}([ T]\d{{1,2}}:\d{{1,2}}(:\d{{1,2}}(\.\d{{1,6}})?)?)?"
_INSTANT = rf"{_DAY}([ T]\d{{1,2}}:\d{{1,2}}(:\d{{1,2}}(\.\d{{1,6}})?)?(Z| ?UTC|[+-]((0\d|1[0-7]):[0-5]\d|18:00))?)?"
_INSTANTS = ("TIMESTAMPTZ", "TIMESTAMPLTZ")
_REGION = re.compile(
    r"(\d{4}-\d{2}-\d{2})[ T](\d{2}:\d{2}:\d{2}(?:\.\d{1,6})?) ?([A-Za-z_]+(?:/[A-Za-z_]+)+)", re.ASCII
)
_FORMS = {
    **dict.fromkeys(_INTEGERS, _WHOLE),
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


# --- names -----------------------------------------------------------------------------------------------------------


def stored(side: str, column: str) -> str:
    """What a column of a side is called in the tables that are evaluated."""
    return f"{side}.{column}"


def quoted(side: str, column: str) -> str:
    """The same in SQL."""
    return _in_quotes(stored(side, column))


def _in_quotes(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@dataclass(frozen=True, slots=True)
class ResolvedExpression:
    """An expression for DuckDB over tables whose columns are called as `stored` says, and the columns it needs."""

    text: str
    sql: str
    columns: frozenset[tuple[str, str]]

    @property
    def plain_column(self) -> tuple[str, str] | None:
        """The side and the column, where the expression is nothing else."""
        if len(self.columns) != 1:
            return None
        (column,) = self.columns
        return column if self.sql == quoted(*column) else None

    def of(self, side: str) -> frozenset[str]:
        """The columns of one side."""
        return frozenset(column for name, column in self.columns if name == side)


class Names:
    """The columns that expressions may use, of one table or of two sides: found without regard to case.

    A name that several sides have needs its side's name before it. ``now`` is what `current_timestamp` says.
    """

    def __init__(self, sides: Mapping[str, StructType], now: datetime | None = None) -> None:
        self._sides = {side.casefold(): (side, schema) for side, schema in sides.items()}
        self._now = now or datetime.now(UTC)
        self._rows = no_rows(pa.schema([field for side, schema in sides.items() for field in _fields(schema, side)]))

    def resolve(self, text: str) -> ResolvedExpression:
        """Parse, check and translate one expression. Raises `InvalidInput` naming the expression and the reason."""
        return self.translate(text, parse_expression(text))

    def condition(self, text: str) -> ResolvedExpression:
        """`resolve`, for a text whose value is true, false or null. Raises `InvalidInput` for any other as well."""
        import duckdb

        resolved = self.resolve(text)
        try:
            held = self._described(resolved.sql)
        except duckdb.Error as error:
            raise _unevaluated(repr(text), error) from error
        if held != "BOOLEAN":
            raise _no_condition(text, held)
        return resolved

    def equalities(self, text: str, one: str, other: str) -> list[tuple[str, str]]:
        """The columns of two sides that must be equal where ``text`` is true, as far as that is plain to see."""
        from sqlglot import exp

        found: list[tuple[str, str]] = []
        for part in conjuncts(parse_expression(text)):
            if isinstance(part, exp.EQ):
                plain = [self.translate(text, child.unnest()).plain_column for child in (part.this, part.expression)]
                columns = dict(column for column in plain if column is not None)
                if columns.keys() == {one, other}:
                    found.append((columns[one], columns[other]))
        return found

    def translate(self, text: str, tree: "Expr") -> ResolvedExpression:
        """As `resolve`, for a part of an expression that was parsed from ``text``."""
        import sqlglot
        from sqlglot import exp

        used: set[tuple[str, str]] = set()

        def named(node: "Expr") -> "Expr":
            return self._named(node, text, used)

        tree = tree.copy().transform(named)
        tree = self._in_order(tree, text)
        if tree.find(exp.Column) is None:
            used = set()
        try:
            sql = tree.sql("duckdb", unsupported_level=sqlglot.ErrorLevel.RAISE)
        except sqlglot.UnsupportedError as error:
            raise _refused(text, f"it has no equal in DuckDB, which evaluates it: {error}") from error
        return ResolvedExpression(text, sql, frozenset(used))

    def column(self, name: str, side: str | None = None) -> tuple[str, str]:
        """The side and the column that a name, alone or behind its side's, means. Raises `InvalidInput`."""
        return self._find([name] if side is None else [side, name], name)[:2]

    def _find(self, parts: list[str], text: str) -> tuple[str, str, list[str]]:
        """The side, the column, and the fields of structs below it."""
        known = self._sides.get(parts[0].casefold())
        if known is not None and len(parts) > 1 and (column := _column(known[1], parts[1])) is not None:
            return known[0], column, parts[2:]
        found = [
            (side, column, parts[1:])
            for side, schema in self._sides.values()
            if (column := _column(schema, parts[0])) is not None
        ]
        if len(found) == 1:
            return found[0]
        if found:
            sides = " and ".join(side for side, _, _ in found)
            raise _refused(text, f"{parts[0]!r} is a column of {sides}: write {found[0][0]}.{parts[0]}")
        columns = [name for _, schema in self._sides.values() for name in schema.names]
        raise _refused(text, f"there is no column {'.'.join(parts)!r} (there are: {', '.join(columns):.500})")

    def _named(self, node: "Expr", text: str, used: set[tuple[str, str]]) -> "Expr":
        from sqlglot import exp

        if isinstance(node, exp.Literal) and "\x00" in node.name:
            return _with_nul(node.name)
        if not isinstance(node, exp.Column):
            return node
        side, column, fields = self._find([part.name for part in node.parts], text)
        used.add((side, column))
        result: Any = exp.column(stored(side, column), quoted=True)
        result.set("resolved", True)
        for name in fields:
            result = exp.Anonymous(this="struct_extract", expressions=[result, exp.Literal.string(name)])
        # A copy that `transform` does not visit again: its name is no name of the user's.
        return exp.Paren(this=result) if fields else result

    def _in_order(self, tree: "Expr", text: str) -> "Expr":
        """The tree with Spark's meaning where DuckDB's differs, from the leaves up."""
        for node in list(tree.walk(bfs=False))[::-1]:
            replacement = self._as_spark(node, text)
            if replacement is not node:
                if node is tree:
                    tree = replacement
                else:
                    node.replace(replacement)
        return tree

    def _as_spark(self, node: "Expr", text: str) -> "Expr":
        from sqlglot import exp

        if type(node) in rewritings():
            return self._rewritten(node, text)
        match node:
            case exp.CurrentTimestamp():
                return _cast(exp.Literal.string(self._now.isoformat()), "TIMESTAMPTZ")
            case exp.CurrentDate():
                return _cast(exp.Literal.string(self._now.date().isoformat()), "DATE")
            case exp.Div() | exp.IntDiv() | exp.Mod():
                return self._divided(self._in_double(node), text)
            case exp.Cast():
                return self._cast_as_spark(node, text)
            case exp.Add() | exp.Sub():
                return self._in_double(self._moved(node, text))
            case exp.Predicate() | exp.Mul():
                return self._in_double(self._ordered(node, text))
            case _:
                return node

    def _rewritten(self, node: "Expr", text: str) -> "Expr":
        changed = rewritings()[type(node)](node, self._type_of)
        if changed is None:
            raise _refused(text, f"{node.sql('spark')} {_OTHER}")
        return changed

    def _divided(self, node: "Expr", text: str) -> "Expr":
        from sqlglot import exp

        types = {self._type_of(node.this), self._type_of(node.expression)}
        if isinstance(node, exp.Div) and not types & {"FLOAT", "DOUBLE"} and any("DECIMAL" in each for each in types):
            raise _refused(text, f"it divides decimals, whose last digit {_OTHER}: cast one to double")
        if isinstance(node, exp.IntDiv) and not whole_numbers(types):
            raise _refused(text, f"{node.sql('spark')} {_OTHER}: cast both to bigint")
        divisor = node.expression
        if isinstance(divisor, exp.Literal) and not divisor.is_string and float(divisor.name):
            return node
        fails = exp.Case().when(exp.EQ(this=exp.Paren(this=divisor.copy()), expression=_zero()), _error(text))
        guarded = node.copy()
        guarded.set("safe", False)
        return exp.Paren(this=fails.else_(guarded))

    def _moved(self, node: "Expr", text: str) -> "Expr":
        """A date and an interval of days or more are a date."""
        from sqlglot import exp

        interval = node.expression
        if not isinstance(interval, exp.Interval):
            if isinstance(node, exp.Sub) and self._type_of(node.this) == self._type_of(interval) == "DATE":
                raise _refused(text, "it takes a date from a date: write datediff(…, …)")
            return node
        unit = interval.unit.name.upper() if isinstance(interval.unit, exp.Var) else ""
        if unit not in UNITS:
            raise _refused(text, f"{interval.sql('spark')} {_OTHER}")
        is_date = unit in DAYS and self._type_of(node.this) == "DATE"
        return _cast(exp.Paren(this=node.copy()), "DATE") if is_date else node

    def _ordered(self, node: "Expr", text: str) -> "Expr":
        from sqlglot import exp

        if isinstance(node, exp.LT | exp.LTE | exp.GT | exp.GTE):
            held = self._type_of(node.this)
            if held.endswith("]") or held.startswith(("STRUCT", "MAP")):
                raise _refused(text, "it orders lists, maps or structs, whose nulls have another order in DuckDB")
        return node

    def _in_double(self, node: "Expr") -> "Expr":
        """Single floats beside other numbers are compared and computed with as doubles."""
        from sqlglot import exp

        operands = [child for child in node.iter_expressions() if isinstance(child, exp.Condition)]
        if pa.float32() not in self._rows.schema.types or len(operands) < 2:
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

    def _cast_as_spark(self, node: "Expr", text: str) -> "Expr":
        from sqlglot import exp

        wanted = cast("exp.DataType", node.args["to"]).this.value
        if wanted not in _TEXTS and wanted not in _FORMS and wanted != "DECIMAL":
            return node
        if isinstance(node.this, exp.Literal) and not node.this.is_string and "." not in node.this.name:
            return node
        held = self._type_of(node.this)
        if wanted in _TEXTS:
            return _cast_to_text(node, held, text)
        if wanted in _INTEGERS and (held in ("FLOAT", "DOUBLE") or held.startswith("DECIMAL")):
            return _with_operand(node, exp.Anonymous(this="trunc", expressions=[node.this.copy()]))
        if wanted in _FORMS:
            return _cast_from_text(node, held, wanted, text)
        if held in ("FLOAT", "DOUBLE", "VARCHAR") and not isinstance(node.this, exp.Literal):
            raise _refused(text, f"{node.sql('spark')}: it casts to a decimal what is none, whose last digit {_OTHER}")
        return node.copy()

    def _type_of(self, tree: "Expr") -> str:
        """DuckDB's type of a translated expression; ``""`` for one that stands on a lambda's variable."""
        import duckdb

        try:
            return self._described(tree.sql("duckdb"))
        except duckdb.Error:
            return ""

    def _described(self, sql: str) -> str:
        source = " FROM nothing" if self._rows.schema.names else ""  # DuckDB knows no table without columns
        with database() as cursor:
            if source:
                cursor.register("nothing", self._rows)
            return str(cursor.execute(f"DESCRIBE SELECT {sql}{source}").fetchall()[0][1])


def _column(schema: StructType, name: str) -> str | None:
    folded = name.casefold()
    return next((known for known in schema.names if known.casefold() == folded), None)


# --- parsing ---------------------------------------------------------------------------------------------------------


def parse_expression(text: str) -> "Expr":
    """Parse one expression of Spark's dialect. Raises `InvalidInput` for what is none, or is refused here."""
    import sqlglot
    from sqlglot import exp

    try:
        # In parentheses, so that a column called like a statement is none.
        trees = sqlglot.parse(f"SELECT (\n{text}\n)", dialect=_spark())
    except (sqlglot.ParseError, sqlglot.TokenError, RecursionError) as error:
        raise _refused(text, f"it is no SQL ({_COLOURS.sub('', str(error)).splitlines()[0]})") from error
    tree = _sole(trees)
    if tree is None:
        raise _refused(text, "it is no single expression")
    for node in tree.walk():
        if isinstance(node, exp.Query | exp.Table | exp.Exists):
            raise _refused(text, "it holds a subquery")
        if isinstance(node, exp.AggFunc | exp.Window | exp.UDTF | exp.Explode):
            raise _refused(text, f"{node.sql('spark')} is more than a value of the row")
        if isinstance(node, exp.Rand | exp.Randn | exp.Uuid | exp.CurrentUser):
            raise _refused(text, f"{node.sql('spark')} is not the same each time")
        if isinstance(node, exp.Star | exp.Columns | exp.Placeholder | exp.Parameter | exp.Command):
            raise _refused(text, f"{node.sql('spark')} is no value")
        if isinstance(node, exp.Anonymous):
            raise _refused(text, f"the function {node.name} is not known here")
        if type(node) not in _known() or (isinstance(node, exp.DateDiff) and node.unit is not None):
            raise _refused(text, f"{node.sql('spark')} {_OTHER}")
    return tree


@cache
def _known() -> frozenset[type]:
    from sqlglot import exp

    return frozenset(getattr(exp, name) for name in _KNOWN.split())


def _sole(trees: "Sequence[Expr | None]") -> "Expr | None":
    """The one expression in parentheses that is selected, from nothing, where there is no more."""
    from sqlglot import exp

    select = trees[0] if len(trees) == 1 else None
    if not isinstance(select, exp.Select):
        return None
    others = [value for name, value in select.args.items() if name not in ("expressions", "kind") and value]
    if others or len(select.expressions) != 1 or not isinstance(select.expressions[0], exp.Paren | exp.Subquery):
        return None
    tree: Expr = select.expressions[0]
    if isinstance(tree, exp.Subquery):
        return tree
    return tree.this if isinstance(tree.this, exp.Condition) else None


def conjuncts(tree: "Expr") -> "list[Expr]":
    """What an expression joins by ``AND``."""
    from sqlglot import exp

    tree = tree.unnest()
    if isinstance(tree, exp.And):
        return [*conjuncts(tree.this), *conjuncts(tree.expression)]
    return [tree]


@cache
def _spark() -> Any:
    """Spark's dialect with ANSI casts, which fail where the dialect's own would give null."""
    from sqlglot import exp
    from sqlglot.dialects.spark import Spark

    def casting(kind: str) -> Callable[[list[Any]], Any]:
        return lambda given: _cast(given[0], kind)

    def instant(given: list[Any]) -> Any:
        """An instant, which the parser's own function takes for a time without a zone."""
        if len(given) == 1:
            return _cast(given[0], "TIMESTAMPTZ")
        return exp.StrToTime(this=given[0], format=given[1])

    def day(given: list[Any]) -> Any:
        return _cast(given[0] if len(given) == 1 else instant(given), "DATE")

    functions: dict[str, Any] = {
        **Spark.Parser.FUNCTIONS,
        "NOW": lambda _: exp.CurrentTimestamp(),  # pyright: ignore[reportUnknownLambdaType]
        "TO_DATE": day,
        "TO_TIMESTAMP": instant,
        "TIMESTAMP": instant,
        **{name: casting(name) for name in ("TINYINT", "SMALLINT", "BIGINT", "DOUBLE", "FLOAT", "BOOLEAN")},
    }

    def is_null(given: list[Any]) -> Any:
        return exp.Is(this=given[0], expression=exp.Null())

    functions["ISNULL"] = is_null
    functions["ISNOTNULL"] = lambda given: exp.Not(this=is_null(given))  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]

    class AnsiSpark(Spark):
        class Parser(Spark.Parser):
            STRICT_CAST = True
            FUNCTIONS = functions

    return AnsiSpark


def _cast(tree: "Expr", kind: str) -> "Expr":
    from sqlglot import exp

    return exp.Cast(this=tree, to=exp.DataType.build(kind))


def _with_operand(node: "Expr", operand: "Expr") -> "Expr":
    changed = node.copy()
    changed.set("this", operand)
    return changed


def _cast_to_text(node: "Expr", held: str, text: str) -> "Expr":
    if held in ("FLOAT", "DOUBLE"):
        raise _refused(text, "it casts a float to text, which each engine spells in its own way")
    if held.startswith("TIMESTAMP WITH"):
        return _with_operand(node, _cast(node.this.copy(), "TIMESTAMP"))
    return node.copy()


def _cast_from_text(node: "Expr", held: str, wanted: str, text: str) -> "Expr":
    """A cast that takes of a text what Spark takes, and nothing else."""
    from sqlglot import exp

    if isinstance(node.this, exp.Literal) and not isinstance(node, exp.TryCast):
        return _with_operand(node, _spelled(node.this.name, wanted, text))
    if held != "VARCHAR":
        return node.copy()
    form = exp.Literal.string(_FORMS[wanted])
    whole = exp.Anonymous(this="regexp_full_match", expressions=[node.this.copy(), form])
    other = exp.Null() if isinstance(node, exp.TryCast) else _error(text)
    absent = exp.Is(this=exp.Paren(this=node.this.copy()), expression=exp.Null())
    return exp.Paren(this=exp.Case().when(exp.Or(this=whole, expression=absent), node.copy()).else_(other))


def _spelled(value: str, wanted: str, text: str) -> "Expr":
    """A text that is cast to a type, as both engines take it; at once, since where all files are passed over nothing is
    evaluated. Raises `InvalidInput`."""
    from sqlglot import exp

    utc = _in_utc(value) if wanted in _INSTANTS else None
    if utc is None and not re.fullmatch(_FORMS[wanted], value):
        raise _refused(text, f"{value!r:.100} is no {wanted} that both engines read alike")
    return exp.Literal.string(value if utc is None else utc)


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


def _with_nul(text: str) -> "Expr":
    """DuckDB's parser ends at a NUL."""
    from sqlglot import exp

    first, *others = text.split("\x00")
    joined: Expr = exp.Literal.string(first)
    for other in others:
        nul = exp.Anonymous(this="chr", expressions=[_zero()])
        joined = exp.DPipe(this=exp.DPipe(this=joined, expression=nul), expression=exp.Literal.string(other))
    return exp.Paren(this=joined)


def _zero() -> "Expr":
    from sqlglot import exp

    return exp.Literal.number(0)


def _error(text: str) -> "Expr":
    from sqlglot import exp

    message = f"a value has no result in {text[:100]}".replace("\x00", "\\0")
    return exp.Anonymous(this="error", expressions=[exp.Literal.string(message)])


def _refused(text: str, reason: str) -> InvalidInput:
    return InvalidInput(f"The expression {text!r:.300} cannot be used: {reason}. Nothing was written.")


# --- evaluation ------------------------------------------------------------------------------------------------------


def table_of(columns: Mapping[str, Any], count: int) -> pa.Table:
    """A table of columns that are called as expressions call them; of ``count`` rows even where there is none."""
    return pa.Table.from_pydict(dict(columns) or {"": pa.nulls(count, pa.bool_())})


def evaluate(rows: pa.Table, expressions: Mapping[str, tuple[ResolvedExpression, DataType | None]]) -> pa.Table:
    """One column an expression, cast to a type where one is given, in the order of the rows.

    The cast is Spark's store assignment: fractions are cut off for integers, decimals rounded, and what does not fit
    is an error; floats are not made decimals. ``rows`` has the columns that the expressions need, called as `stored`
    says. Raises `InvalidInput`.
    """
    import duckdb

    with database() as cursor:
        cursor.register("given", rows)
        columns: dict[str, Any] = {}
        texts: list[str] = []
        for position, (expression, wanted) in enumerate(expressions.values()):
            texts.append(f"{_assigned(cursor, expression, wanted)} AS c{position}")
        try:
            result = arrow_rows(cursor.execute(f"SELECT {', '.join(texts)} FROM given"))
        except duckdb.Error as error:
            given = " or ".join(dict.fromkeys(repr(expression.text) for expression, _ in expressions.values()))
            raise _unevaluated(given, error) from error
    for position, (name, (expression, wanted)) in enumerate(expressions.items()):
        column = result.column(position)
        if wanted is not None:
            try:
                column = renamed(column, wanted, name).cast(type_to_arrow(wanted))
            except pa.ArrowException as error:
                raise _unevaluated(repr(expression.text), error) from error
        columns[name] = column
    return table_of(columns, rows.num_rows)


def is_true(rows: pa.Table, condition: ResolvedExpression) -> NDArray[np.bool_]:
    """For each row whether the condition is true: not false and not null. Raises `InvalidInput`."""
    column = evaluate(rows, {"truth": (condition, None)}).column(0)
    if pa.types.is_boolean(column.type):
        return column.combine_chunks().fill_null(False).to_numpy(zero_copy_only=False)
    if column.null_count < len(column):  # DuckDB takes numbers and texts for true and false, where Spark does not
        raise _no_condition(condition.text, str(column.type))
    return np.zeros(len(column), np.bool_)


def pairs(target: pa.Table, source: pa.Table, condition: ResolvedExpression, columns: Mapping[str, str]) -> pa.Table:
    """The inner join of two tables where the condition is true; ``columns`` are what to return, by their names there.

    Every column of both tables has another name. In no particular order. Raises `InvalidInput`.
    """
    import duckdb

    chosen = ", ".join(f'"{column}" AS "{name}"' for name, column in columns.items())
    with database() as cursor:
        register(cursor, "target", target)
        register(cursor, "source", source)
        try:
            # The order of pairs says nothing, and keeping one would cost.
            return arrow_rows(cursor.execute(f"SELECT {chosen} FROM target JOIN source ON ({condition.sql})"))
        except duckdb.Error as error:
            raise _unevaluated(repr(condition.text), error) from error


def _fields(schema: StructType, side: str) -> "list[pa.Field[Any]]":
    return [pa.field(stored(side, field.name), type_to_arrow(field.type)) for field in schema.all_nullable().fields]


def _assigned(cursor: "DuckDBPyConnection", expression: ResolvedExpression, wanted: DataType | None) -> str:
    import duckdb

    sql = f"({expression.sql})"
    if not isinstance(wanted, str) or wanted in ("void", "variant"):
        return sql
    try:
        held = str(cursor.execute(f"DESCRIBE SELECT {sql} FROM given").fetchall()[0][1])
    except duckdb.Error as error:
        raise _unevaluated(repr(expression.text), error) from error
    if wanted in _INTEGERS.values() and (held in ("FLOAT", "DOUBLE") or held.startswith("DECIMAL")):
        sql = f"trunc({sql})"
    if wanted.startswith("decimal") and held in ("FLOAT", "DOUBLE"):
        raise InvalidInput(
            f"The values of {expression.text!r:.300} are {held}, and go into a {wanted}, where Spark and DuckDB may "
            "round to other digits. Nothing was written. Bring decimals, or change the column with Spark."
        )
    return f"CAST({sql} AS {_DUCKDB.get(wanted) or wanted.upper()})"


_DUCKDB = {
    "string": "VARCHAR",
    "long": "BIGINT",
    "integer": "INTEGER",
    "short": "SMALLINT",
    "byte": "TINYINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "boolean": "BOOLEAN",
    "binary": "BLOB",
    "date": "DATE",
    "timestamp": "TIMESTAMPTZ",
    "timestamp_ntz": "TIMESTAMP",
}


def _no_condition(text: str, held: str) -> InvalidInput:
    return InvalidInput(
        f"{text!r:.300} is no condition: its value is {held}, and not true or false. Nothing was written."
    )


def _unevaluated(given: str, error: Exception) -> InvalidInput:
    reason = str(error).partition("\n")[0]
    return InvalidInput(f"{given:.300} cannot be evaluated: {reason}. Nothing was written.")


class Database:
    """A database in memory that sees neither files nor the network, in UTC."""

    def __init__(self) -> None:
        import duckdb

        self.connection = connection = duckdb.connect(":memory:", config=cast("Any", _LOCKED))
        connection.execute("SET GLOBAL TimeZone = 'UTC'")  # of every cursor, which is a session of its own
        # A join would hand the bounds of one side to the other as Python's values, which has not every year that Arrow
        # has.
        connection.execute("SET disabled_optimizers = 'join_filter_pushdown'")
        connection.execute("SET lock_configuration = true")


def database() -> "DuckDBPyConnection":
    """A connection of its own to a database in memory: registered tables are seen by it alone, and threads do not wait
    for each other."""
    return PROCESS.of(Database).connection.cursor()


def register(connection: "DuckDBPyConnection", name: str, rows: pa.Table) -> None:
    """Have a connection see rows as a table.

    DuckDB hands filters on to Arrow, to which NaN is above no number, and which looks up the bits of zeros. It keeps
    those of computed columns, so here all are that hold floats.
    """
    floats = [field.name for field in cast("list[pa.Field[Any]]", list(rows.schema)) if _holds_floats(field.type)]
    if not floats:
        connection.register(name, rows)
        return
    given = f"{name}, as Arrow has it"
    connection.register(given, rows)
    columns = map(_in_quotes, floats)
    computed = ", ".join(f"CASE WHEN {column} IS NOT NULL THEN {column} END AS {column}" for column in columns)
    query = f"SELECT * REPLACE ({computed}) FROM {_in_quotes(given)}"
    connection.execute(f"CREATE OR REPLACE TEMP VIEW {_in_quotes(name)} AS {query}")


def _holds_floats(data_type: Any) -> bool:
    """Whether it is a type of floats, or a struct of such; no filter of what is in lists and maps is handed on."""
    if pa.types.is_struct(data_type):
        return any(_holds_floats(data_type.field(i).type) for i in range(data_type.num_fields))
    return pa.types.is_floating(data_type)


def arrow_rows(result: "DuckDBPyConnection") -> pa.Table:
    """The rows of what a connection executed last."""
    # DuckDB has the first name from 1.4 on; there it warns of the second, by which older ones know it.
    return result.to_arrow_table() if hasattr(result, "to_arrow_table") else result.fetch_arrow_table()


def arrow_reader(result: "DuckDBPyConnection") -> pa.RecordBatchReader:
    """The rows of what a connection executed last, in batches that are computed as they are read."""
    return result.to_arrow_reader() if hasattr(result, "to_arrow_reader") else result.fetch_record_batch()
