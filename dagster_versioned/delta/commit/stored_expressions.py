"""SQL that a table brings along, whoever wrote it: Spark evaluates of it what is admitted here by name, and no more.

Constraints, generated columns and defaults are texts of others. Some of Spark's functions run code, read files or
know the session, and a session may have more of its own; so a function is refused unless it is one of those below,
which make a value of their arguments. (Over Arrow, `engines.sql` admits what DuckDB computes alike.)
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

import pyarrow as pa

from dagster_versioned.delta.schema.types import DataType, type_to_arrow
from dagster_versioned.errors import InvalidInput

_FUNCTIONS = """
array array_append array_compact array_contains array_distinct array_except array_insert array_intersect array_join
array_max array_min array_position array_prepend array_remove array_repeat array_size array_union arrays_overlap
arrays_zip flatten get sequence slice sort_array bit_count bit_get getbit shiftleft shiftright shiftrightunsigned
cardinality concat element_at reverse size try_element_at coalesce if ifnull nanvl nullif nullifzero nvl nvl2
zeroifnull bigint binary boolean cast date decimal double float int smallint string time timestamp tinyint try_cast
from_csv schema_of_csv to_csv add_months convert_timezone curdate current_date current_time current_timestamp date_add
date_diff date_format date_from_unix_date date_part date_sub date_trunc dateadd datediff datepart day dayname
dayofmonth dayofweek dayofyear extract from_unixtime from_utc_timestamp hour last_day localtimestamp make_date
make_dt_interval make_interval make_time make_timestamp make_timestamp_ltz make_timestamp_ntz make_ym_interval minute
month monthname months_between next_day now quarter second time_diff time_trunc timestamp_micros timestamp_millis
timestamp_seconds timestampadd timestampdiff to_date to_time to_timestamp to_timestamp_ltz to_timestamp_ntz
to_unix_timestamp to_utc_timestamp trunc try_make_interval try_make_timestamp try_make_timestamp_ltz
try_make_timestamp_ntz try_to_date try_to_time try_to_timestamp unix_date unix_micros unix_millis unix_seconds
unix_timestamp weekday weekofyear year crc32 hash md5 sha sha1 sha2 xxhash64 from_json get_json_object
json_array_length json_object_keys schema_of_json to_json aggregate array_sort exists filter forall map_filter
map_zip_with reduce transform transform_keys transform_values zip_with map map_concat map_contains_key map_entries
map_from_arrays map_from_entries map_keys map_values str_to_map abs acos acosh asin asinh atan atan2 atanh bin bround
cbrt ceil ceiling conv cos cosh cot csc degrees e exp expm1 factorial floor greatest hex hypot least ln log log10
log1p log2 mod negative pi pmod positive pow power radians rint round sec sign signum sin sinh sqrt tan tanh try_add
try_divide try_mod try_multiply try_subtract unhex width_bucket typeof equal_null isnan isnotnull isnull regexp_like
ascii base64 bit_length btrim char char_length character_length charindex chr collate collation concat_ws contains
decode elt encode endswith find_in_set format_number format_string initcap instr is_valid_utf8 lcase left len length
levenshtein locate lower lpad ltrim luhn_check make_valid_utf8 mask octet_length overlay position printf quote
regexp_count regexp_extract regexp_extract_all regexp_instr regexp_replace regexp_substr repeat replace right rpad
rtrim sentences soundex space split split_part startswith substr substring substring_index to_binary to_char to_number
to_varchar translate trim try_to_binary try_to_number try_validate_utf8 ucase unbase64 upper validate_utf8
named_struct struct parse_url try_parse_url try_url_decode url_decode url_encode is_variant_null parse_json
schema_of_variant to_variant_object try_parse_json try_variant_get variant_get
"""
FUNCTIONS = frozenset(_FUNCTIONS.split())
"""Functions of Spark whose value is made of their arguments alone, and those of the present time."""

OF_DEFAULTS = FUNCTIONS | {"uuid", "rand", "randn", "random", "current_user", "session_user", "user"}
"""What the value of a column without one may be made of: it is computed once, and stored."""

_WORDS = """
and or not in case when then else between like ilike rlike regexp is from both leading trailing placing for div
escape interval dec numeric character varchar any all some
"""
_BEFORE_PARENTHESES = frozenset(_WORDS.split())
_QUERIES = frozenset({"from", "table", "values", "with"})
_LITERALS = frozenset({"STRING", "NUMBER", "NATIONAL_STRING", "RAW_STRING", "BYTE_STRING", "HEX_STRING"})
_SESSION = frozenset({"current_user", "session_user"})


def require_admitted(what: str, sql: str, functions: frozenset[str] = FUNCTIONS) -> str:
    """The SQL of ``what``, such as *the constraint 'x'*. Raises `InvalidInput` naming what is not admitted."""
    for refused in _refused(sql, functions):
        raise InvalidInput(
            f"{what[:1].upper()}{what[1:]} of the table is {sql!r:.300}, and {refused} is not admitted in expressions"
            " that a table brings along. Nothing was written. Write it with Spark's functions of the row's values, or"
            " drop it."
        )
    return sql


def check_default(name: str, sql: object, data_type: DataType) -> None:
    """Raise `InvalidInput` for the default of a column by which no engine could write a row.

    It is read, not run: one expression of admitted functions and of no column, and a plain value is one of the type.
    """
    from sqlglot import exp

    if not isinstance(sql, str):
        raise _no_default(name, sql, "it is no text", "Give the expression as SQL.")
    tree = _parse_default(name, sql)
    require_admitted(f"the default of column {name!r}", sql, OF_DEFAULTS)
    own = {variable.name for each in tree.find_all(exp.Lambda) for variable in each.expressions} | OF_DEFAULTS
    if named := sorted({each.name for each in tree.find_all(exp.Column)} - own):
        raise _no_default(name, sql, f"it needs the column {named[0]!r} of a row", "Only generated columns do that.")
    if isinstance(tree, exp.Literal) and tree.is_string and data_type in _PARSED:
        try:
            pa.scalar(tree.name.strip()).cast(type_to_arrow(data_type))
        except (pa.ArrowException, ValueError):
            raise _no_default(name, sql, f"it is no {data_type}", "Give a value of the column's type.") from None


_PARSED = ("byte", "short", "integer", "long", "float", "double", "boolean", "date")
"""Types of which every text that is a value is one to Arrow, Spark and DuckDB alike."""


def _parse_default(name: str, sql: str) -> Any:
    from sqlglot import parse
    from sqlglot.errors import SqlglotError

    try:
        (tree,) = parse(sql, dialect="spark")
    except (SqlglotError, RecursionError, ValueError) as error:
        raise _no_default(name, sql, f"it is no SQL: {error}", "Give one expression.") from error
    if tree is None:
        raise _no_default(name, sql, "it is no SQL", "Give one expression; drop_default takes a default away.")
    return tree


def _no_default(name: str, sql: object, reason: str, fix: str) -> InvalidInput:
    return InvalidInput(f"{sql!r:.300} cannot be the default of {name!r}: {reason}. Nothing was written. {fix}")


def _refused(sql: str, functions: frozenset[str]) -> Iterator[str]:
    tokens = _tokens(sql)
    if not tokens:
        yield "what cannot be read as SQL"
        return
    if "${" in sql:  # in strings as well: before it parses, Spark fills in variables of the process and the session
        yield "a variable ${…}"
    before = ""
    for token, following in zip(tokens, [*tokens[1:], None], strict=True):
        calls = following is not None and following.token_type.name == "L_PAREN"
        if refused := _refused_token(token, before, calls, functions):
            yield refused
        before = "" if token.token_type.name in _LITERALS else token.text.casefold()


def _refused_token(token: Any, before: str, calls: bool, functions: frozenset[str]) -> str | None:
    """What is not admitted of a token behind a word; ``calls``: whether a parenthesis follows."""
    quoted = token.token_type.name == "IDENTIFIER"
    word = "" if token.token_type.name in _LITERALS else token.text.casefold()
    if not quoted and (word in ("select", "using") or (word in _QUERIES and before == "(")):
        return "a query"
    if calls and (quoted or word.replace("_", "").isalnum()):
        known = word in functions or (not quoted and word in _BEFORE_PARENTHESES)
        return None if known and before != "." else f"the function {token.text}"
    return token.text if not quoted and word in _SESSION - functions and before != "." else None


@cache
def _spark() -> Any:
    from sqlglot.dialects.spark import Spark

    return Spark()


def _tokens(sql: str) -> list[Any] | None:
    from sqlglot.errors import SqlglotError

    try:
        return list(_spark().tokenize(sql))
    except SqlglotError:
        return None
