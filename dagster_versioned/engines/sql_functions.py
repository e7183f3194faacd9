"""Functions of Spark's dialect that DuckDB has under other names, types or values: rewritten to Spark's, or refused."""

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.expressions.core import Expr

TypeOf = Callable[[Expr], str]
"""DuckDB's type of a translated expression; ``""`` where it is not known."""

Rewriting = Callable[[Expr, TypeOf], Expr | None]
"""The same in DuckDB's dialect; ``None`` where there is nothing that has the same value."""

DAYS = frozenset(f"{unit}{end}" for unit in ("YEAR", "QUARTER", "MONTH", "WEEK", "DAY") for end in ("", "S"))
"""Units of intervals that move a date to a date."""
UNITS = DAYS | {f"{unit}{end}" for unit in ("HOUR", "MINUTE", "SECOND") for end in ("", "S")}

_DAY_OF_WEEK = ("DOW", "DAYOFWEEK")
_PARTS = {"YEAR", "QUARTER", "MONTH", "WEEK", "DAY", "DOY", "HOUR", "MINUTE", *_DAY_OF_WEEK}
_TRUNCATED = {"YEAR": "year", "YYYY": "year", "YY": "year", "MONTH": "month", "MON": "month", "MM": "month"}
_FORMAT = re.compile(
    r"(?:%Y|%[mdHMS]strict|[-/:., _])*"
)  # as the parser says what Spark calls yyyy, MM, dd, HH, mm, ss
_FORMAT_CODES = {"yyyy": "%Y", "MM": "%m", "dd": "%d", "HH": "%H", "mm": "%M", "ss": "%S"}
_FLOATS = ("FLOAT", "DOUBLE")
_WHOLE_NUMBERS = frozenset({"TINYINT", "SMALLINT", "INTEGER", "BIGINT"})
_SPELLED_ALIKE = _WHOLE_NUMBERS | {"VARCHAR", "BOOLEAN", "DATE", '"NULL"'}
_CONTAINS = (
    "CASE WHEN a IS NULL OR x IS NULL THEN NULL WHEN list_contains(a, x) THEN true"
    " WHEN list_count(a) < len(a) THEN NULL ELSE false END"
)

_ENDS = r"\n\r\x{85}\x{2028}\x{2029}"
_REGULAR = {".": f"[^{_ENDS}]", "$": rf"(?:(?:\r\n|[{_ENDS}])?\z)"}
_CLASS = re.compile(r"\[\^?(?:[^\[\]\\&]|&(?!&)|\\[dwDW]|\\[^\w\s])+\]")
_ESCAPE = re.compile(r"\\(?:[dwDW]|[^\w\s])")


@cache
def rewritings() -> Mapping[type, Rewriting]:
    """What is to be done with which function; the others mean the same."""
    return {
        exp.AddMonths: lambda node, _: built(
            "CAST(CAST(d AS DATE) + to_months(CAST(n AS INTEGER)) AS DATE)", d=node.this, n=node.expression
        ),
        exp.ArrayContains: lambda node, _: built(_CONTAINS, a=node.this, x=node.expression),
        exp.Ceil: _whole,
        exp.Concat: _joined,
        exp.ConcatWs: _joined,
        exp.DPipe: _joined,
        exp.DateTrunc: _truncated_date,
        exp.Dot: _member,
        exp.DayOfWeek: lambda node, _: _sunday_is_1(node),
        exp.Extract: _extracted,
        exp.Floor: _whole,
        exp.Hex: lambda node, type_of: node if type_of(node.this) in {*_WHOLE_NUMBERS, "VARCHAR"} else None,
        exp.ILike: _like,
        exp.IsNan: lambda node, _: built("coalesce(isnan(x), false)", x=node.this),
        exp.Left: _end_of_text,
        exp.Like: _like,
        exp.Lower: _in_case,
        exp.RegexpLike: _matched,
        exp.Right: _end_of_text,
        exp.Round: _rounded,
        exp.Sign: lambda node, type_of: None if type_of(node.this) in _FLOATS else node,
        exp.StrToTime: _parsed_by_format,
        exp.StrPosition: lambda node, _: None if node.args.get("position") is not None else node,
        exp.Substring: lambda node, _: _substring(node),
        exp.TimeStrToTime: _from_text,
        exp.TimeToStr: _formatted,
        exp.TimestampAdd: lambda node, _: node if _unit(node) in UNITS else None,
        exp.TimestampTrunc: lambda node, _: (
            built(f"date_trunc('{_unit(node)}', CAST(d AS TIMESTAMPTZ))", d=node.this) if _unit(node) in UNITS else None
        ),
        exp.TsOrDsAdd: lambda node, _: (
            built("CAST(d AS DATE) + CAST(n AS INTEGER)", d=node.this, n=node.expression)
            if _unit(node) == "DAY"
            else None
        ),
        exp.TsOrDsToDate: _from_text,
        exp.Upper: _in_case,
    }


def built(sql: str, **operands: Expr) -> Expr:
    """An expression of DuckDB's dialect with others in the place of its columns."""

    def filled(node: Expr) -> Expr:
        return exp.Paren(this=operands[node.name].copy()) if isinstance(node, exp.Column) else node

    return exp.Paren(this=sqlglot.parse_one(sql, dialect="duckdb").transform(filled))


def regular_expression(pattern: str) -> str | None:
    """A regular expression of Java's as one of RE2's; ``None`` for what only one has, or reads otherwise."""
    parts: list[str] = []
    position = 0
    while position < len(pattern):
        known = _CLASS.match(pattern, position) or _ESCAPE.match(pattern, position)
        part = known[0] if known else pattern[position]
        # Behind a quantifier "+" makes another kind of quantifier, and behind a parenthesis "?" of group.
        quantified = bool(parts) and parts[-1] in ("?", "*", "+", "}")
        if part in ("[", "\\") or (part == "+" and quantified) or (part == "?" and parts[-1:] == ["("]):
            return None
        parts.append(_REGULAR.get(part, part))
        position += len(part)
    return "".join(parts)


def _member(node: Expr, _: TypeOf) -> Expr | None:
    if not isinstance(node.expression, exp.Identifier):
        return None
    name = exp.Literal.string(node.expression.name)
    return exp.Anonymous(this="struct_extract", expressions=[node.this.copy(), name])


# --- texts -----------------------------------------------------------------------------------------------------------


def _like(node: Expr, _: TypeOf) -> Expr:
    """A backslash escapes by default."""
    pattern = node.expression
    plain = isinstance(pattern, exp.Literal) and "\\" not in pattern.name
    if plain or isinstance(node.parent, exp.Escape):
        return node
    return exp.Escape(this=node.copy(), expression=exp.Literal.string("\\"))


def _matched(node: Expr, _: TypeOf) -> Expr | None:
    pattern = node.expression
    if not isinstance(pattern, exp.Literal) or node.args.get("flag"):
        return None
    same = regular_expression(pattern.name)
    if same is None:
        return None
    changed = node.copy()
    changed.set("expression", exp.Literal.string(same))
    return changed


def _joined(node: Expr, type_of: TypeOf) -> Expr | None:
    """What is joined becomes text, which not all values do alike."""
    types = [type_of(child) for child in node.iter_expressions()]
    lists = all(each.endswith("]") for each in types)
    alike = all(each in _SPELLED_ALIKE or each.startswith("DECIMAL") for each in types)
    return node if lists or alike else None


def whole_numbers(types: Iterable[str]) -> bool:
    """Whether all of DuckDB's types are integers."""
    return _WHOLE_NUMBERS.issuperset(types)


def _end_of_text(node: Expr, _: TypeOf) -> Expr:
    end = type(node).__name__
    return built(f"CASE WHEN n IS NOT NULL THEN {end}(s, greatest(n, 0)) END", s=node.this, n=node.expression)


def _in_case(node: Expr, _: TypeOf) -> Expr:
    """Texts with letters whose other case the engines tell apart are an error."""
    case = type(node).__name__.lower()
    found = f"regexp_matches(s, '{_strange_letters(case)}')"
    return built(
        f"CASE WHEN {found} THEN error('a value has no result in {case}: letters that change otherwise') ELSE c END",
        s=node.this,
        c=node,
    )


@cache
def _strange_letters(case: str) -> str:
    """Letters that become several, or other ones at the end of a word: not so in DuckDB."""
    changed = [chr(code) for code in range(sys.maxunicode) if len(getattr(chr(code), case)()) > 1]
    return f"[{''.join(changed)}{'Σ' if case == 'lower' else ''}]"


def _substring(node: Expr) -> Expr:
    """Positions count from the end where they are negative, and 0 is 1; what lies before the text counts, too."""
    start, length = node.args["start"], node.args.get("length")
    if isinstance(start, exp.Literal) and start.is_int and int(start.name) > 0 and length is None:
        return node
    first = "CASE WHEN p > 0 THEN p - 1 WHEN p < 0 THEN length(s) + p ELSE 0 END"
    if length is None:
        return built(f"CASE WHEN p IS NOT NULL THEN substring(s, greatest({first}, 0) + 1) END", s=node.this, p=start)
    count = f"greatest({first} + n - greatest({first}, 0), 0)"
    text = f"CASE WHEN p IS NOT NULL AND n IS NOT NULL THEN substring(s, greatest({first}, 0) + 1, {count}) END"
    return built(text, s=node.this, p=start, n=length)


# --- numbers ---------------------------------------------------------------------------------------------------------


def _whole(node: Expr, type_of: TypeOf) -> Expr | None:
    if node.args.get("decimals") is not None:
        return None
    return exp.Cast(this=node.copy(), to=exp.DataType.build("BIGINT")) if type_of(node.this) in _FLOATS else node


def _rounded(node: Expr, type_of: TypeOf) -> Expr | None:
    digits = node.args.get("decimals")
    plain = digits is None or (isinstance(digits, exp.Literal) and digits.is_int)
    return node if plain and type_of(node.this) not in _FLOATS else None


# --- dates and times -------------------------------------------------------------------------------------------------


def _unit(node: Expr) -> str:
    unit: Any = node.args.get("unit")
    return unit.name.upper() if unit is not None else ""


def _extracted(node: Expr, _: TypeOf) -> Expr | None:
    part = node.name.upper()
    if part not in _PARTS:
        return None
    return _sunday_is_1(node) if part in _DAY_OF_WEEK else node


def _sunday_is_1(node: Expr) -> Expr:
    return exp.Paren(this=exp.Add(this=node.copy(), expression=exp.Literal.number(1)))


def _truncated_date(node: Expr, _: TypeOf) -> Expr | None:
    unit = _TRUNCATED.get(_unit(node)) if isinstance(node.args.get("unit"), exp.Literal) else None
    return built(f"CAST(date_trunc('{unit}', CAST(d AS DATE)) AS DATE)", d=node.this) if unit else None


def _formatted(node: Expr, _: TypeOf) -> Expr | None:
    wanted = node.args.get("format")
    return node if isinstance(wanted, exp.Literal) and _FORMAT.fullmatch(wanted.name) else None


def _parsed_by_format(node: Expr, type_of: TypeOf) -> Expr | None:
    """The instant that a text says by a format of a year and other parts, all of their full width."""
    wanted = node.args.get("format")
    if not isinstance(wanted, exp.Literal) or not wanted.is_string or type_of(node.this) != "VARCHAR":
        return None
    parts = _format_parts(wanted.name)
    if parts is None:
        return None
    form = "".join(_FORMAT_CODES.get(part, part) for part in parts)
    shape = "".join("[0-9]" * len(part) if part in _FORMAT_CODES else f"[{part}]" for part in parts)
    return built(
        f"CASE WHEN x IS NULL THEN NULL WHEN regexp_full_match(x, '{shape}') THEN CAST(strptime(x, '{form}') AS"
        f" TIMESTAMPTZ) ELSE error('a value has no result in to_timestamp: it is not like {wanted.name}') END",
        x=node.this,
    )


def _format_parts(text: str) -> list[str] | None:
    """The parts of a format, and what is between them; ``None`` without a year, with a part twice or an unknown one."""
    parts: list[str] = re.findall("yyyy|MM|dd|HH|mm|ss|[-/:., _]|.", text, re.DOTALL)
    read = [part for part in parts if part in _FORMAT_CODES]
    if "yyyy" not in read or len(read) > len({*read}) or not {*parts} - {*read} <= {*"-/:., _"}:
        return None
    return parts


def _from_text(node: Expr, type_of: TypeOf) -> Expr | None:
    return None if node.args.get("format") is not None or type_of(node.this) == "VARCHAR" else node
