"""Columns of text into columns of other types, where the first text that is no such value is named by its row."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import pyarrow as pa
import pyarrow.compute as pc

from dagster_versioned.errors import InvalidInput
from dagster_versioned.odf.blocks.arrow_schema import fields_of
from dagster_versioned.odf.ingest.columns import TEXT_OF
from dagster_versioned.odf.ingest.fetch import SourceFile

Column: TypeAlias = "pa.ChunkedArray[Any]"
_RFC3339 = "rfc3339"
_FRACTION = re.compile(r"%[.:0-9]*f")
_UUID = r"^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$"
_TIMES = {str(kind): kind for kind in (pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns"))}
_ZONED = r"(?:[Zz]|[+-]\d{2}:?\d{2})$"


@dataclass(frozen=True, slots=True)
class TextFormats:
    """How dates and timestamps are written, in the letters of ``strftime``; ``None`` is RFC 3339.

    A timestamp that says no zone is UTC. The constructor raises `InvalidInput` for a format without a ``%``, and for
    one with fractions of a second, which only RFC 3339 can have.
    """

    date: str | None = None
    timestamp: str | None = None

    def __post_init__(self) -> None:
        for name in (self.date, self.timestamp):
            if name is not None and name.lower() != _RFC3339 and ("%" not in name or _FRACTION.search(name)):
                raise InvalidInput(
                    f"The format {name!a:.100} of dates or timestamps is not in the letters of strftime that are known "
                    "here (fractions of a second are read in RFC 3339 alone). Nothing was read. Write it as %Y-%m-%d."
                )

    def of(self, kind: pa.DataType) -> str | None:
        """The format of a type's texts, or ``None`` for RFC 3339."""
        name = self.date if pa.types.is_date(kind) else self.timestamp if pa.types.is_timestamp(kind) else None
        return None if name is None or name.lower() == _RFC3339 else name


class BadText(Exception):
    """A text that is no value of its column's type; ``row`` counts from 0."""

    def __init__(self, row: int, text: str | None) -> None:
        super().__init__(row, text)
        self.row = row
        self.text = text


def typed(texts: Column, kind: pa.DataType, formats: TextFormats) -> Column:
    """The values that texts stand for; null stays null. Raises `BadText` with the first that stands for none."""
    return _converted(texts, _conversion(kind, formats.of(kind)))


def canonical(values: Column, what: str) -> Column:
    """Times of day (of an Arrow type) or UUIDs as texts, in the one form that each has; null stays null.

    Raises `BadText` with the first that is none, and `pa.ArrowInvalid` for a time that is more precise than the type.
    """
    if what == "uuid":
        return _converted(values.cast(pa.string()), _uuids)
    kind = _TIMES[what]
    times = _converted(values, lambda texts: _times(texts, kind)) if pa.types.is_string(values.type) else values
    return times.cast(kind).cast(pa.string())


def _times(texts: Column, kind: Any) -> Column:
    """Arrow reads no times of day, but days with one."""
    join: Any = pc.binary_join_element_wise
    days: Any = join(pa.scalar("1970-01-01 "), texts, "")
    return days.cast(pa.timestamp(kind.unit)).cast(kind)


def _uuids(texts: Column) -> Column:
    found = pc.utf8_lower(texts)
    if pc.all(pc.match_substring_regex(found, _UUID)).as_py() is False:
        raise pa.ArrowInvalid("uuid")
    return found


def _converted(texts: Column, convert: Callable[[Column], Column]) -> Column:
    try:
        return convert(texts)
    except pa.ArrowInvalid:
        pass
    low, high = 0, len(texts)  # the first bad text is in here
    while high - low > 1:
        middle = (low + high) // 2
        try:
            convert(texts.slice(low, middle - low))
        except pa.ArrowInvalid:
            high = middle
        else:
            low = middle
    raise BadText(low, texts[low].as_py())


def in_utc(column: Column) -> Column:
    """The column, with UTC for timestamps that say no zone."""
    if pa.types.is_timestamp(column.type) and column.type.tz is None:
        return cast(Column, pc.assume_timezone(column, "UTC"))
    return column


def _conversion(kind: pa.DataType, form: str | None) -> Callable[[Column], Column]:
    if form is not None:
        return lambda texts: _parsed(texts, kind, form)
    if pa.types.is_timestamp(kind):
        return lambda texts: _with_zone(texts).cast(kind)
    return lambda texts: texts.cast(kind)


def _parsed(texts: Column, kind: pa.DataType, form: str) -> Column:
    moments = cast(Column, pc.strptime(texts, format=form, unit="s", error_is_null=True))
    if moments.null_count > texts.null_count:
        raise pa.ArrowInvalid(form)
    return (moments if pa.types.is_date(kind) else in_utc(moments)).cast(kind)


def _with_zone(texts: Column) -> Column:
    """ISO 8601 with a zone: midnight where there is no time of day, UTC where there is no zone."""
    midnight = pc.if_else(pc.equal(pc.utf8_length(texts), pa.scalar(10)), "T00:00:00Z", "Z")
    missing = pc.if_else(pc.match_substring_regex(texts, _ZONED), "", midnight)
    return cast(Column, pc.binary_join_element_wise(texts, missing, ""))


def typed_rows(
    file: SourceFile, table: pa.Table, schema: pa.Schema, formats: TextFormats, place: Callable[[int], str]
) -> pa.Table:
    """The table's columns in the order and of the types of a schema; ``place`` says where a row (from 0) is.

    Raises `InvalidInput` with place and column for a value that is none of its type, or that is not there and must be.
    """
    columns: list[Column] = []
    for field in fields_of(schema):
        column = _typed_column(file, in_utc(table[field.name]), field, formats, place)
        if not field.nullable and column.null_count:
            row: int = column.is_null().index(pa.scalar(True)).as_py()
            raise file.error("there is no value, and it is declared NOT NULL", place=place(row), column=field.name)
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=pa.schema([field.remove_metadata() for field in fields_of(schema)]))


def _typed_column(
    file: SourceFile, found: Column, field: "pa.Field[Any]", formats: TextFormats, place: Callable[[int], str]
) -> Column:
    written_as = (field.metadata or {}).get(TEXT_OF, b"").decode()
    kind = written_as or field.type
    try:
        if written_as:
            return canonical(found, written_as)
        return typed(found, field.type, formats) if pa.types.is_string(found.type) else found.cast(field.type)
    except BadText as bad:
        raise file.error(f"{bad.text!a:.100} is no {kind}", place=place(bad.row), column=field.name) from None
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        # A value does not fit, or there is no such cast.
        raise file.error(f"it is not of the type {kind} ({error})", column=field.name) from None


def rows_in_utc(table: pa.Table) -> pa.Table:
    """The table, with UTC for timestamps that say no zone."""
    return pa.Table.from_arrays([in_utc(table[name]) for name in table.column_names], names=table.column_names)
