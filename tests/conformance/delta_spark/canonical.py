"""Rows as text that any two readers agree on: one line a row, in an order of its own."""

import json
from collections.abc import Iterable, Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa


def lines(table: pa.Table) -> list[str]:
    """The table's rows, sorted. Maps are sets of pairs, members of structs stand by name, times are in UTC."""
    return lines_of(table.to_pylist())


def lines_of(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """The same of rows as Python has them."""
    return sorted(json.dumps(_plain(row), ensure_ascii=False) for row in rows)


def lines_of_frame(frame: Any) -> list[str]:
    """The same of a Spark frame. PySpark makes no Arrow of a variant that is null, so those come row by row."""
    if "variant" not in frame.schema.json():
        return lines(frame.toArrow())
    return lines_of(row.asDict(recursive=True) for row in frame.collect())


def _plain(value: Any) -> Any:
    match value:
        case Mapping():
            return {name: _plain(member) for name, member in sorted(value.items())}
        case tuple():  # an entry of a map
            return [_plain(member) for member in value]
        case list() if value and all(isinstance(entry, tuple) for entry in value):
            return sorted((_plain(entry) for entry in value), key=json.dumps)
        case list():
            return [_plain(member) for member in value]
        case _:
            return _scalar(value)


def _scalar(value: Any) -> Any:
    match value:
        case datetime():
            text = value.replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")
            return f"{text}Z" if value.tzinfo else text
        case date():
            return value.isoformat()
        case Decimal():
            return str(value)
        case bytes() | bytearray():
            return value.hex()
        case float():
            return repr(value)
        case _ if type(value).__name__ == "VariantVal":
            return {"metadata": bytes(value.metadata).hex(), "value": bytes(value.value).hex()}
        case _:
            return value
