"""Columns as sources declare them, in SQL: ``id BIGINT NOT NULL``. Source: seed 002 ("Schema Format")."""

import re
from collections.abc import Sequence
from typing import Any, cast

import pyarrow as pa

from dagster_versioned.errors import InvalidInput

_COLUMN = re.compile(
    r"""\s*(?:`(?P<backticks>[^`]+)`|"(?P<quotes>[^"]+)"|(?P<plain>[^\s`"]+))
        \s+(?P<type>\w+)\s*(?:\(\s*(?P<first>\d{1,4})\s*(?:,\s*(?P<second>\d{1,4})\s*)?\))?
        (?P<required>\s+NOT\s+NULL)?\s*""",
    re.VERBOSE | re.IGNORECASE,
)
_PLAIN = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "STRING": pa.string(),
    "DATE": pa.date32(),
}


def declared_schema(columns: Sequence[str]) -> pa.Schema:
    """The Arrow schema of columns in SQL; ``NOT NULL`` makes a field that is not nullable.

    ``TIMESTAMP(p)`` is in UTC, in milliseconds up to ``p`` = 3, else in microseconds. Raises `InvalidInput`.
    """
    schema = pa.schema([_field(column) for column in columns])
    twice = {name for name in schema.names if schema.names.count(name) > 1}
    if twice or not columns:
        what = f"the column {min(twice)!r} twice" if twice else "no column"
        raise InvalidInput(f"The schema of a source declares {what}. Nothing was read. Declare each column once.")
    return schema


def fields_of(schema: pa.Schema) -> "list[pa.Field[Any]]":
    """The fields of a schema, in order."""
    return [cast("pa.Field[Any]", schema.field(index)) for index in range(len(schema))]


def _field(column: str) -> "pa.Field[pa.DataType]":
    match = _COLUMN.fullmatch(column)
    if not match:
        raise _refused(column, "it is not a name and a type")
    name = match["backticks"] or match["quotes"] or match["plain"]
    return pa.field(name, _type(column, match), nullable=not match["required"])


def _type(column: str, match: re.Match[str]) -> pa.DataType:
    name, first, second = match["type"].upper(), match["first"], match["second"]
    if name in _PLAIN and first is None:
        return _PLAIN[name]
    if name == "TIMESTAMP" and second is None and int(first or 6) <= 6:
        return pa.timestamp("ms" if int(first or 6) <= 3 else "us", "UTC")
    if name in ("DECIMAL", "NUMERIC"):
        precision, scale = int(first or 10), int(second or 0)
        if 1 <= precision <= 38 and scale <= precision:
            return pa.decimal128(precision, scale)
    raise _refused(
        column,
        f"its type is none of {', '.join(_PLAIN)}, DECIMAL(p,s) with p up to 38, and TIMESTAMP(p) with p up to 6",
    )


def _refused(column: str, reason: str) -> InvalidInput:
    return InvalidInput(
        f"The schema of a source declares {column!a:.100}: {reason}. Nothing was read. Write it as "
        "`id BIGINT NOT NULL`."
    )
