"""Columns as sources declare them: in SQL, ``id BIGINT NOT NULL``, or by logical types. Source: seed 002 ("Schema
Format"), RFC-016."""

import re
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from dagster_versioned.errors import ChainCorrupt, InvalidInput
from dagster_versioned.odf.blocks.arrow_schema import fields_of
from dagster_versioned.odf.blocks.data_schema_arrow import to_arrow
from dagster_versioned.odf.blocks.events import ReadStep

TEXT_OF: Final = b"text of"
"""In the metadata of a field of texts: which Arrow type, or ``uuid``, each of them is written as.

Delta has neither times of day nor UUIDs, so a table has them as texts, in the one form that each has."""

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
_TIMES = ("time32[s]", "time32[ms]", "time64[us]", "time64[ns]")
"""For each three digits after the second, rounded up."""


def read_schema(step: ReadStep) -> pa.Schema | None:
    """The Arrow schema that a step declares, ``None`` where it declares none. Raises `InvalidInput`."""
    if step.schema is None:
        return declared_schema(step.ddl_schema) if step.ddl_schema else None
    if step.ddl_schema:
        raise InvalidInput(
            "A source declares its columns twice, as schema and as ddlSchema. Nothing was read. Leave one of them out."
        )
    try:
        columns = to_arrow(step.schema)
    except ChainCorrupt as error:
        raise InvalidInput(f"The schema of a source cannot be used: {error} Nothing was read.") from None
    _require_once(columns)
    return pa.schema(
        [_text_of(field, str(field.type)) if pa.types.is_time(field.type) else field for field in fields_of(columns)]
    )


def declared_schema(columns: Sequence[str]) -> pa.Schema:
    """The Arrow schema of columns in SQL; ``NOT NULL`` makes a field that is not nullable.

    ``TIMESTAMP(p)`` is in UTC, in milliseconds up to ``p`` = 3, else in microseconds. ``UUID`` and ``TIME(p)`` are
    texts, marked as `TEXT_OF`. Raises `InvalidInput`.
    """
    schema = pa.schema([_field(column) for column in columns])
    _require_once(schema)
    return schema


def _require_once(schema: pa.Schema) -> None:
    twice = {name for name in schema.names if schema.names.count(name) > 1}
    if twice or not schema.names:
        what = f"the column {min(twice)!r} twice" if twice else "no column"
        raise InvalidInput(f"The schema of a source declares {what}. Nothing was read. Declare each column once.")


def _field(column: str) -> "pa.Field[pa.DataType]":
    match = _COLUMN.fullmatch(column)
    if not match:
        raise _refused(column, "it is not a name and a type")
    name = match["backticks"] or match["quotes"] or match["plain"]
    kind, text_of = _type(column, match)
    field = pa.field(name, kind, nullable=not match["required"])
    return field if text_of is None else _text_of(field, text_of)


def _text_of(field: "pa.Field[Any]", what: str) -> "pa.Field[Any]":
    return pa.field(field.name, pa.string(), field.nullable, {TEXT_OF: what.encode()})


def _type(column: str, match: re.Match[str]) -> tuple[pa.DataType, str | None]:
    """The Arrow type of a column, and of texts what each is written as, if that is no text."""
    name, first, second = match["type"].upper(), match["first"], match["second"]
    if name in _PLAIN and first is None:
        return _PLAIN[name], None
    if name == "UUID" and first is None:
        return pa.string(), "uuid"
    digits = int(first or 6)
    if name == "TIME" and second is None and digits <= 9:
        return pa.string(), _TIMES[-(-digits // 3)]
    if name == "TIMESTAMP" and second is None and digits <= 6:
        return pa.timestamp("ms" if digits <= 3 else "us", "UTC"), None
    precision, scale = int(first or 10), int(second or 0)
    if name in ("DECIMAL", "NUMERIC") and 1 <= precision <= 38 and scale <= precision:
        return pa.decimal128(precision, scale), None
    raise _refused(
        column,
        f"its type is none of {', '.join(_PLAIN)}, UUID, DECIMAL(p,s) with p up to 38, TIMESTAMP(p) with p up to 6, "
        "and TIME(p) with p up to 9",
    )


def _refused(column: str, reason: str) -> InvalidInput:
    return InvalidInput(
        f"The schema of a source declares {column!a:.100}: {reason}. Nothing was read. Write it as "
        "`id BIGINT NOT NULL`."
    )
