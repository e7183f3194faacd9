"""Partition values: strings in the log, typed values in a frame, folder names on disk.

Protocol: *Partition Value Serialization*.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal, localcontext
from typing import Any, cast

import numpy as np
import pyarrow as pa

from dagster_versioned.delta.paths import Column, compute
from dagster_versioned.delta.schema.column_mapping import ColumnMapping, physical_name
from dagster_versioned.delta.schema.types import StructType, decimal_of, type_to_arrow
from dagster_versioned.errors import InvalidInput, LogCorrupt

NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"

Value = str | bytes | int | float | bool | Decimal | date | datetime | None
"""Days and microseconds since 1970, as Arrow takes them, stand for dates and times in years that Python has not."""

_BITS = {"byte": 8, "short": 16, "integer": 32, "long": 64}
_INTEGER = re.compile(r"[+-]?\d{1,20}", re.ASCII)
_FLOAT = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,4})?|nan|[+-]?inf(?:inity)?", re.ASCII | re.I)
_DECIMAL = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,4})?", re.ASCII)
_DATE = re.compile(r"([+-]?\d{4,6})-(\d{1,2})-(\d{1,2})", re.ASCII)
_TIMESTAMP = re.compile(
    r"([+-]?[-\d]{8,})[ T](\d{2}:\d{2}:\d{2})(?:\.(\d{1,6})0*)?(?:(Z)|([+-])(\d{2}):?(\d{2}))?", re.ASCII
)
_EPOCH = datetime(1970, 1, 1)
_DAY = 86_400_000_000

# What Hive and Spark escape in a folder name (Spark: ExternalCatalogUtils.escapePathName).
_UNSAFE_IN_FOLDER = re.compile(r"[\x00-\x1f\x7f\"#%'*/:=?\\{\[\]^]")
# Polars compares a column's name with its folder as it is, so of a name no more is escaped than has to be: what keys or
# folders cannot hold, and the colon, which is a scheme's where Hadoop has a path without its root.
_UNSAFE_IN_NAME = re.compile(r"[\x00-\x1f\x7f/:=\\]")


def encode(value: Value, data_type: str) -> str | None:
    """The string that the log holds for a value; ``None`` is null.

    ``timestamp`` takes an aware `datetime`, ``timestamp_ntz`` a naive one; they and ``date`` take a number, too (see
    `Value`). Raises `InvalidInput` for a value that is
    not of the type, and for empty strings, which the protocol reads as null.
    """
    if value is None:
        return None
    text = _encode(value, data_type)
    if not text:
        raise InvalidInput(
            f"The partition value {value!r} of type {data_type} has no serialization"
            f" ({'Delta reads an empty string as null' if text == '' else 'it is not of this type'})."
            " Replace it, or partition by another column. Nothing was written."
        )
    return text


def _encode(value: Value, data_type: str) -> str | None:
    match data_type, value:
        case "string", str():
            return value
        case "binary", bytes():
            return _text(value)
        case "timestamp" | "timestamp_ntz" | "date", date():
            return _encode_time(value, data_type)
        case _, bool():
            return str(value).lower() if data_type == "boolean" else None
        case "date" | "timestamp" | "timestamp_ntz", int():
            return _encode_far(value, data_type)
        case _, int() if data_type in _BITS:
            bound = 1 << (_BITS[data_type] - 1)
            return str(value) if -bound <= value < bound else None
        case "float" | "double", float() | int():
            text = repr(float(value))
            return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(text, text)
        case _, Decimal():
            exact = _rescaled(value, data_type)
            return None if exact is None else f"{exact:f}"
        case _:
            return None


def _text(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def _encode_time(value: date, data_type: str) -> str | None:
    if not isinstance(value, datetime):
        return value.isoformat() if data_type == "date" else None
    if data_type == "timestamp" and value.tzinfo is not None:
        # With its zone: the older spelling leaves it open, and a reader may take it for that of its own session.
        return value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
    if data_type == "timestamp_ntz" and value.tzinfo is None:
        return value.isoformat(sep=" ", timespec="microseconds")
    return None


def _encode_far(value: int, data_type: str) -> str:
    moment = str(np.datetime64(value, "D" if data_type == "date" else "us"))
    sign, year, rest = cast("re.Match[str]", re.fullmatch("(-?)([0-9]+)(-.*)", moment)).groups()
    text = f"{sign}{year:0>4}{rest}"
    return f"{text}Z" if data_type == "timestamp" else text.replace("T", " ")


def decode(text: str | None, data_type: str) -> Value:
    """The value of a string in the log: the inverse of `encode`, for each spelling that the protocol or a writer has.

    ``timestamp`` is read as UTC where it names no zone. Raises `LogCorrupt` for a string that is no value of the type.
    """
    if not text:
        return None
    try:
        value = _decode(text, data_type)
    except (ValueError, OverflowError):
        value = None
    if value is None:
        raise LogCorrupt(f"The partition value {text!r:.100} is not of type {data_type}. Nothing was read.")
    return value


def _decode(text: str, data_type: str) -> Value:
    match data_type:
        case "string":
            return text
        case "binary":
            return text.encode()
        case "boolean":
            return {"true": True, "false": False}.get(text.lower())
        case "byte" | "short" | "integer" | "long":
            number = int(text) if _INTEGER.fullmatch(text) else None
            bound = 1 << (_BITS[data_type] - 1)
            return number if number is not None and -bound <= number < bound else None
        case "float" | "double":
            return float(text) if _FLOAT.fullmatch(text) else None
        case "date":
            return _date(_days(text))
        case "timestamp" | "timestamp_ntz":
            return _decode_timestamp(text, data_type)
        case _:
            return _rescaled(Decimal(text), data_type) if _DECIMAL.fullmatch(text) else None


def _days(text: str) -> int:
    match = _DATE.fullmatch(text)
    if match is None:
        raise ValueError(text)
    # Some writers leave out the zeros of months and days, and Spark reads that.
    text = f"{match[1]}-{match[2]:0>2}-{match[3]:0>2}"
    return int(np.datetime64(text, "D").astype(np.int64))


def _date(days: int) -> date | int:
    try:
        return date.fromordinal(_EPOCH.toordinal() + days)
    except (ValueError, OverflowError):
        return days


def _decode_timestamp(text: str, data_type: str) -> datetime | int | None:
    if data_type == "timestamp_ntz" and _DATE.fullmatch(text):
        return _instant(_days(text) * _DAY)  # of a column that was widened from `date`
    match = _TIMESTAMP.fullmatch(text)
    if match is None:
        return None
    clock = time.fromisoformat(match[2])
    seconds = clock.hour * 3600 + clock.minute * 60 + clock.second
    micros = _days(match[1]) * _DAY + seconds * 1_000_000 + int((match[3] or "").ljust(6, "0"))
    if data_type == "timestamp_ntz":
        return None if match[4] or match[5] else _instant(micros)
    hours, minutes = int(match[6] or 0), int(match[7] or 0)
    if hours > 23 or minutes > 59:
        return None
    instant = _instant(micros - int(f"{match[5] or ''}1") * (hours * 60 + minutes) * 60_000_000)
    return instant.replace(tzinfo=UTC) if isinstance(instant, datetime) else instant


def _instant(micros: int) -> datetime | int | None:
    try:
        return _EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        return micros if -(1 << 63) <= micros < 1 << 63 else None


def _rescaled(value: Decimal, data_type: str) -> Decimal | None:
    """The value at the type's scale; ``None`` where it does not fit exactly."""
    decimal = decimal_of(data_type)
    if decimal is None or not value.is_finite():
        return None
    precision, scale = decimal
    if value and value.adjusted() >= precision - scale:
        return None
    with localcontext(prec=100):
        exact = round(value, scale)
    return exact if exact == value else None


# --- whole columns ---------------------------------------------------------------------------------------------------


def typed_columns(
    files: pa.Table, schema: StructType, columns: Sequence[str], mapping: ColumnMapping = "none"
) -> pa.Table:
    """One typed column per partition column, a row per row of ``files`` (schema `files.FILES`).

    Each distinct string is decoded once. Raises `LogCorrupt` where a file has no value for a column, or one that is not
    of its type.
    """
    fields = [schema.field(name) for name in columns]
    arrays: list[Any] = [
        decode_column(_texts(files, physical_name(field, mapping)), cast("str", field.type)) for field in fields
    ]
    return pa.Table.from_arrays(arrays, names=list(columns))


def _texts(files: pa.Table, name: str) -> Column:
    found = compute.map_lookup(files["partitionValues"].combine_chunks(), name, "all")
    wrong = compute.fill_null(compute.not_equal(compute.list_value_length(found), 1), True)
    if compute.any(wrong).as_py():
        path = files["path"].filter(wrong)[0].as_py()
        raise LogCorrupt(
            f"The file {path!r} does not have one value for the partition column {name!r}. Nothing was read."
        )
    return pa.chunked_array([found.flatten()])


def decode_column(texts: Column, data_type: str) -> Column:
    """`decode` of a column, in the Arrow type of ``data_type``."""
    encoded = cast("Any", texts.combine_chunks().dictionary_encode())
    values: list[Any] = [decode(text, data_type) for text in encoded.dictionary.to_pylist()]
    return pa.chunked_array([pa.array(values, type_to_arrow(data_type)).take(encoded.indices)])


# --- folders ---------------------------------------------------------------------------------------------------------


def folder(values: Mapping[str, str | None], columns: Sequence[str]) -> str:
    """The Hive folder of partition values, ``a=1/b=x`` in the order of ``columns``; ``""`` without any.

    It is a key, not a URI: a file's path in the log is `paths.encode_path` of it. Readers must not rely on it (*Data
    Files*), but Polars takes the columns from it.
    """
    return "/".join(
        f"{_escaped(_UNSAFE_IN_NAME, name)}={_escaped(_UNSAFE_IN_FOLDER, values[name])}" for name in columns
    )


def _escaped(unsafe: re.Pattern[str], text: str | None) -> str:
    return unsafe.sub(lambda match: f"%{ord(match[0]):02X}", text) if text else NULL_FOLDER
