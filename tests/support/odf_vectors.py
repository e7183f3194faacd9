"""What other programs made of Open Data Fabric's encodings: beside the repository, in ``../shared/conformance/odf``."""

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

ROOT = (Path(__file__).resolve().parents[3] / "shared" / "conformance" / "odf").resolve()
ABSENT = "../shared/conformance/odf is not here (CI has it, a clone has not)"

BLOCKS: list[dict[str, Any]] = json.loads((ROOT / "blocks.json").read_text()) if ROOT.is_dir() else []
ARROW0: dict[str, Any] = json.loads((ROOT / "arrow0.json").read_text()) if ROOT.is_dir() else {}


_TYPES: dict[str, pa.DataType] = {
    "date32[day]": pa.date32(),
    "time32[s]": pa.time32("s"),
    "timestamp[ms, tz=UTC]": pa.timestamp("ms", "UTC"),
    "decimal128(10, 2)": pa.decimal128(10, 2),
    "fixed_size_binary[3]": pa.binary(3),
    "fixed_size_binary[4]": pa.binary(4),
    "binary_view": pa.binary_view(),
    "string_view": pa.string_view(),
    "list<item: int32>": pa.list_(pa.int32()),
    "list<item: string>": pa.list_(pa.string()),
    "fixed_size_list<item: int32>[2]": pa.list_(pa.int32(), 2),
    "struct<c: string not null, d: int32 not null>": pa.struct(
        [pa.field("c", pa.string(), False), pa.field("d", pa.int32(), False)]
    ),
}


def type_of(text: str) -> pa.DataType:
    return _TYPES.get(text) or pa.type_for_alias(text)


def value_of(type_: pa.DataType, value: Any) -> Any:
    if value is None:
        return None
    if "binary" in str(type_):
        return bytes.fromhex(value)
    if pa.types.is_date(type_):
        return dt.date.fromisoformat(value)
    if pa.types.is_time(type_):
        return dt.time.fromisoformat(value)
    if pa.types.is_timestamp(type_):
        return dt.datetime.fromisoformat(value)
    if pa.types.is_decimal(type_):
        return Decimal(value)
    return np.float16(value) if type_ == pa.float16() else value


def values_of(vector: dict[str, Any]) -> pa.Array:
    """The column whose digest a vector has."""
    type_ = type_of(vector["type"])
    return pa.array([value_of(type_, value) for value in vector["values"]], type_)


def records_of(vector: dict[str, Any]) -> pa.Table:
    """The records whose hash a vector has."""
    schema = pa.schema([pa.field(name, type_of(text), null) for name, text, null in vector["schema"]])
    return pa.table([pa.array(vector["rows"][field.name], field.type) for field in schema], schema=schema)
