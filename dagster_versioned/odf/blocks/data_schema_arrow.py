"""Columns between their logical types and Arrow's, and what a `SetDataSchema` says of either kind.

Source: RFC-016 ("ODF Schema from/to Arrow Conversion").
"""

from collections.abc import Callable
from typing import Any, Final, cast

import pyarrow as pa

from dagster_versioned.errors import ChainCorrupt, InvalidInput
from dagster_versioned.odf.blocks import data_schema as odf
from dagster_versioned.odf.blocks.arrow_schema import decode_schema, fields_of
from dagster_versioned.odf.blocks.data_schema import DataField, DataSchema, DataType, ExtraAttributes, TimeUnit
from dagster_versioned.odf.blocks.events import SetDataSchema

_PLAIN: Final[dict[pa.DataType, type]] = {
    pa.null(): odf.DataTypeNull,
    pa.bool_(): odf.DataTypeBool,
    pa.int8(): odf.DataTypeInt8,
    pa.int16(): odf.DataTypeInt16,
    pa.int32(): odf.DataTypeInt32,
    pa.int64(): odf.DataTypeInt64,
    pa.uint8(): odf.DataTypeUInt8,
    pa.uint16(): odf.DataTypeUInt16,
    pa.uint32(): odf.DataTypeUInt32,
    pa.uint64(): odf.DataTypeUInt64,
    pa.float16(): odf.DataTypeFloat16,
    pa.float32(): odf.DataTypeFloat32,
    pa.float64(): odf.DataTypeFloat64,
    pa.date32(): odf.DataTypeDate,
    pa.string(): odf.DataTypeString,
}
_ARROW: Final[dict[type, pa.DataType]] = {kind: arrow for arrow, kind in _PLAIN.items()}
_UNITS: Final = {
    TimeUnit.SECOND: "s",
    TimeUnit.MILLISECOND: "ms",
    TimeUnit.MICROSECOND: "us",
    TimeUnit.NANOSECOND: "ns",
}
_UNIT_OF: Final = {text: unit for unit, text in _UNITS.items()}

_DATE_ENCODING: Final = "arrow.apache.org/dateEncoding"
_DECIMAL_ENCODING: Final = "arrow.apache.org/decimalEncoding"
"""The encodings that the hash of records depends on; those of buffers are no part of any value."""


def arrow_schema(event: SetDataSchema) -> pa.Schema:
    """The columns that a block states, in Arrow's types. Raises `ChainCorrupt` for those that Arrow does not have."""
    if event.raw_arrow_schema is not None:
        return decode_schema(event.raw_arrow_schema)
    assert event.schema is not None  # the event has one of them
    return to_arrow(event.schema)


def logical_columns(event: SetDataSchema) -> dict[str, DataType]:
    """The columns that a block states, in either form, by their names. Raises `ChainCorrupt`."""
    if event.schema is not None:
        return {field.name: odf.logical(field.type) for field in event.schema.fields}
    try:
        stated = from_arrow(arrow_schema(event))
    except InvalidInput as error:
        raise ChainCorrupt(str(error)) from None
    return {field.name: odf.logical(field.type) for field in stated.fields}


def from_arrow(schema: pa.Schema) -> DataSchema:
    """The logical types of Arrow's columns. Raises `InvalidInput` for a type that has none, naming the column."""
    return DataSchema(tuple(_from_field(field, field.name) for field in fields_of(schema)))


def to_arrow(schema: DataSchema) -> pa.Schema:
    """Arrow's columns of logical types, with 32-bit offsets. Raises `ChainCorrupt` for types that Arrow has not."""
    return pa.schema([_to_field(field, field.name) for field in schema.fields])


def _from_field(field: "pa.Field[Any]", path: str) -> DataField:
    return DataField(field.name, _from_type(field, path))


def _from_type(field: "pa.Field[Any]", path: str) -> DataType:
    found = _from_required(field.type, path)
    return odf.DataTypeOption(found) if field.nullable else found


def _from_required(arrow: Any, path: str) -> DataType:
    if (plain := _PLAIN.get(arrow)) is not None:
        return plain()
    for kinds, logical in _LOGICAL:
        if any(is_kind(arrow) for is_kind in kinds):
            return logical(arrow, path)
    raise InvalidInput(
        f"The column {path!r:.200} is of the Arrow type {arrow}, for which Open Data Fabric has no logical type. "
        "Convert it."
    )


def _from_list(arrow: Any, path: str) -> DataType:
    return odf.DataTypeList(
        _from_type(arrow.value_field, f"{path}[]"), arrow.list_size if pa.types.is_fixed_size_list(arrow) else None
    )


def _from_map(arrow: Any, path: str) -> DataType:
    key, value = (_from_type(field, f"{path}[]") for field in (arrow.key_field, arrow.item_field))
    return odf.DataTypeMap(key, value, arrow.keys_sorted)


def _from_struct(arrow: Any, path: str) -> DataType:
    return odf.DataTypeStruct(tuple(_from_field(field, f"{path}.{field.name}") for field in arrow))


_types: Final[Any] = pa.types
_LOGICAL: Final[tuple[tuple[tuple[Callable[[Any], bool], ...], Callable[[Any, str], DataType]], ...]] = (
    ((_types.is_large_string, _types.is_string_view), lambda arrow, path: odf.DataTypeString()),
    ((_types.is_fixed_size_binary,), lambda arrow, path: odf.DataTypeBinary(arrow.byte_width)),
    ((_types.is_binary, _types.is_large_binary, _types.is_binary_view), lambda arrow, path: odf.DataTypeBinary()),
    ((_types.is_date64,), lambda arrow, path: odf.DataTypeDate()),
    ((_types.is_decimal,), lambda arrow, path: odf.DataTypeDecimal(arrow.precision, arrow.scale)),
    ((_types.is_timestamp,), lambda arrow, path: odf.DataTypeTimestamp(_UNIT_OF[arrow.unit], arrow.tz)),
    ((_types.is_time,), lambda arrow, path: odf.DataTypeTime(_UNIT_OF[arrow.unit])),
    ((_types.is_duration,), lambda arrow, path: odf.DataTypeDuration(_UNIT_OF[arrow.unit])),
    ((_types.is_fixed_size_list, _types.is_list, _types.is_large_list, _types.is_list_view), _from_list),
    ((_types.is_map,), _from_map),
    ((_types.is_struct,), _from_struct),
)
"""What a type of Arrow is that stands in no table; the path of the column is for what is nested in it."""


def _to_field(field: DataField, path: str) -> "pa.Field[Any]":
    arrow, nullable = _to_type(field.type, path, field.extra)
    return pa.field(field.name, arrow, nullable)


def _to_type(data_type: DataType, path: str, extra: ExtraAttributes | None = None) -> "tuple[Any, bool]":
    if isinstance(data_type, odf.DataTypeOption):
        return _to_type(data_type.inner, path, extra)[0], True
    try:
        # What is nothing but null may be null, whatever a block says of it.
        return _to_required(data_type, path, extra), isinstance(data_type, odf.DataTypeNull)
    except (pa.ArrowException, ValueError, OverflowError) as error:
        raise ChainCorrupt(f"The column {path!r:.200} is of a type that Arrow does not have: {error}") from None


def _to_required(data_type: DataType, path: str, extra: ExtraAttributes | None) -> pa.DataType:
    if (plain := _ARROW.get(type(data_type))) is not None:
        return pa.date64() if plain == pa.date32() and _encoding(extra, _DATE_ENCODING, "unit") != "day" else plain
    match data_type:
        case odf.DataTypeBinary(fixed_length=length):
            return pa.binary(-1 if length is None else length)
        case odf.DataTypeDecimal(precision=precision, scale=scale):
            width = _encoding(extra, _DECIMAL_ENCODING, "bitWidth")
            decimal = pa.decimal256 if width == 256 or precision > 38 else pa.decimal128
            return decimal(precision, scale)
        case odf.DataTypeDuration(unit=unit):
            return pa.duration(cast("Any", _unit(unit)))
        case odf.DataTypeTime(unit=unit):
            small = _unit(unit) in ("s", "ms")
            return (pa.time32 if small else pa.time64)(cast("Any", _unit(unit)))
        case odf.DataTypeTimestamp(unit=unit, timezone=zone):
            return pa.timestamp(cast("Any", _unit(unit)), zone or "UTC")
        case odf.DataTypeList(item_type=item, fixed_length=length):
            inner: Any = pa.field("item", *_to_type(item, f"{path}[]"))
            return pa.list_(inner, -1 if length is None else length)
        case odf.DataTypeMap(key_type=key, value_type=value, keys_sorted=is_sorted):
            arrow, nullable = _to_type(value, f"{path}[]")
            keys = _to_type(key, f"{path}[]")[0]
            values: Any = pa.field("value", arrow, nullable)
            map_: Any = pa.map_  # whose stubs know no field as the type of the values
            return map_(keys, values, keys_sorted=bool(is_sorted))
        case odf.DataTypeStruct(fields=members):
            return pa.struct([_to_field(member, f"{path}.{member.name}") for member in members])
        case _:
            raise AssertionError(data_type)


def _unit(unit: TimeUnit | None) -> str:
    return _UNITS[unit or TimeUnit.MILLISECOND]


def _encoding(extra: ExtraAttributes | None, name: str, member: str) -> Any:
    """How an extension says that values are encoded, where the hash of records depends on it."""
    stated = extra.members.get(name) if extra is not None else None
    known: dict[str, tuple[Any, ...]] = {"unit": ("day", "millisecond"), "bitWidth": (128, 256)}
    if stated is None:
        return known[member][0]
    value: Any = cast("dict[str, Any]", stated).get(member) if isinstance(stated, dict) else stated
    value = value.lower() if isinstance(value, str) else value
    if value not in known[member]:
        raise ValueError(f"its {name} is {stated!r:.100}, which is not known")
    return value
