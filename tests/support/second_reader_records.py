"""The records of Open Data Fabric for the second reader: their logical hash and the logical types of their columns.

Written from the README of arrow-digest (the hash) and from RFC-010 and RFC-016 (the schemas) alone.
"""

import hashlib
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from support.second_reader_blocks import Document, Flatbuffer, Refused, Unspecified, refuse

_UNITS = {"s": "Second", "ms": "Millisecond", "us": "Microsecond", "ns": "Nanosecond"}


def _is_binary(kind: pa.DataType) -> bool:
    tests = (pt.is_binary, pt.is_large_binary, pt.is_fixed_size_binary, pt.is_binary_view)
    return any(test(kind) for test in tests)


def _is_text(kind: pa.DataType) -> bool:
    return pt.is_string(kind) or pt.is_large_string(kind) or pt.is_string_view(kind)


def _is_list(kind: pa.DataType) -> bool:
    return pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind)


_DIGEST_TYPES: list[tuple[Callable[[Any], bool], Callable[[Any, bytes, bytes], bytes]]] = [
    (pt.is_boolean, lambda kind, unit, zone: struct.pack("<H", 5)),
    (pt.is_integer, lambda kind, unit, zone: struct.pack("<HBQ", 1, pt.is_signed_integer(kind), kind.bit_width)),
    (pt.is_floating, lambda kind, unit, zone: struct.pack("<HQ", 2, kind.bit_width)),
    (_is_binary, lambda kind, unit, zone: struct.pack("<H", 3)),
    (_is_text, lambda kind, unit, zone: struct.pack("<H", 4)),
    (pt.is_decimal, lambda kind, unit, zone: struct.pack("<HQQq", 6, kind.bit_width, kind.precision, kind.scale)),
    (pt.is_date, lambda kind, unit, zone: struct.pack("<HQH", 7, kind.bit_width, pt.is_date64(kind))),
    (pt.is_time, lambda kind, unit, zone: struct.pack("<HQ", 8, kind.bit_width) + unit),
    (pt.is_timestamp, lambda kind, unit, zone: struct.pack("<H", 9) + unit + zone),
    (_is_list, lambda kind, unit, zone: struct.pack("<H", 11) + _type_bytes(kind.value_type)),
]
_LOGICAL_TYPES: list[tuple[Callable[[Any], bool], Callable[[Any], Document]]] = [
    (pt.is_null, lambda kind: {"kind": "Null"}),
    (pt.is_boolean, lambda kind: {"kind": "Bool"}),
    (pt.is_integer, lambda kind: {"kind": f"{'' if pt.is_signed_integer(kind) else 'U'}Int{kind.bit_width}"}),
    (pt.is_floating, lambda kind: {"kind": f"Float{kind.bit_width}"}),
    (_is_text, lambda kind: {"kind": "String"}),
    (pt.is_fixed_size_binary, lambda kind: {"kind": "Binary", "fixedLength": kind.byte_width}),
    (_is_binary, lambda kind: {"kind": "Binary"}),
    (pt.is_decimal, lambda kind: {"kind": "Decimal", "precision": kind.precision, "scale": kind.scale}),
    (pt.is_date, lambda kind: {"kind": "Date"}),
    (pt.is_timestamp, lambda kind: {"kind": "Timestamp", "unit": _UNITS[kind.unit], "timezone": kind.tz}),
    (pt.is_time, lambda kind: {"kind": "Time", "unit": _UNITS[kind.unit]}),
    (pt.is_duration, lambda kind: {"kind": "Duration", "unit": _UNITS[kind.unit]}),
    (pt.is_fixed_size_list, lambda kind: _list_of(kind) | {"fixedLength": kind.list_size}),
    (_is_list, lambda kind: _list_of(kind)),
    (
        pt.is_map,
        lambda kind: {"kind": "Map", "keyType": logical_type(kind.key_type), "valueType": logical_type(kind.item_type)},
    ),
    (
        pt.is_struct,
        lambda kind: {"kind": "Struct", "fields": [{"name": c.name, "type": logical_type(c.type)} for c in kind]},
    ),
]


def _list_of(kind: Any) -> Document:
    return {"kind": "List", "itemType": logical_type(kind.value_type)}


# --- the logical hash (README of arrow-digest, with sha3-256) ---------------------------------------------------------


def logical_hash(table: pa.Table) -> str:
    """The hash of the records of a table."""
    fields, columns = hashlib.sha3_256(), list[bytes]()
    for item, column in zip(table.schema, table.columns, strict=True):
        array = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
        _hash_column(fields, columns, item, array, [True] * len(table), 0)
    for column in columns:
        fields.update(column)
    return "f9680c00120" + fields.hexdigest()


def column_digest(array: pa.Array, rows: list[bool]) -> bytes:
    """The digest of a column that is no struct, in whose other ``rows`` a struct around it is null."""
    column = hashlib.sha3_256(_type_bytes(array.type))
    for part in _value_bytes(array, rows):
        column.update(part)
    return column.digest()


def _hash_column(
    fields: Any, columns: list[bytes], item: pa.Field, array: pa.Array, rows: list[bool], level: int
) -> None:
    fields.update(_text(item.name) + _u64(level))
    if pt.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pt.is_struct(array.type):
        rows = [a and b for a, b in zip(rows, array.is_valid().to_pylist(), strict=True)]
        for index, child in enumerate(array.type):
            _hash_column(fields, columns, child, array.field(index), rows, level + 1)
    else:
        columns.append(column_digest(array, rows))


def _u64(number: int) -> bytes:
    return struct.pack("<Q", number)


def _text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return _u64(len(data)) + data


def _type_bytes(kind: pa.DataType) -> bytes:
    unit = struct.pack("<H", list(_UNITS).index(kind.unit)) if hasattr(kind, "unit") else b""
    zone = _text(kind.tz) if getattr(kind, "tz", None) else b"\0"
    for test, described in _DIGEST_TYPES:
        if test(kind):
            return described(kind, unit, zone)
    raise Unspecified(f"how {kind} is hashed")


def _value_bytes(array: pa.Array, rows: list[bool]) -> Iterator[bytes]:
    kind, width = array.type, 0
    present = [a and b for a, b in zip(rows, array.is_valid().to_pylist(), strict=True)]
    plain = not (pt.is_boolean(kind) or _is_binary(kind) or _is_text(kind) or _is_list(kind))
    raw = array.buffers()[1] if plain and len(array) else None
    if raw is not None:
        width = kind.bit_width // 8
    for index, here in enumerate(present):
        if not here:
            yield b"\0"
        elif raw is not None:
            start = (array.offset + index) * width
            yield raw[start : start + width].to_pybytes()
        elif pt.is_boolean(kind):
            yield b"\2" if array[index].as_py() else b"\1"
        elif _is_list(kind):
            items = array[index].values
            yield _u64(len(items))
            yield from _value_bytes(items, [True] * len(items))
        else:
            yield _text(array[index].as_py())


# --- schemas (RFC-010 and RFC-016): the logical types of a file and of a SetDataSchema --------------------------------


def logical_type(kind: pa.DataType) -> Document:
    """The type of RFC-016 that an Arrow type has, without optionality and encoding."""
    kind = kind.value_type if pt.is_dictionary(kind) else kind
    for test, described in _LOGICAL_TYPES:
        if test(kind):
            return described(kind)
    raise Refused(f"{kind} is no logical type")


def _plain(declared: Document) -> Document:
    """A declared type without what a file need not repeat: optionality, extras, the order of keys of a map."""
    if declared["kind"] == "Option":
        return _plain(declared["inner"])
    if declared["kind"] == "Struct":
        return declared | {"fields": [{"name": f["name"], "type": _plain(f["type"])} for f in declared["fields"]]}
    nested = {key: _plain(declared[key]) for key in ("itemType", "keyType", "valueType") if key in declared}
    unit = {"unit": "Millisecond"} if declared["kind"] in ("Time", "Timestamp", "Duration") else {}
    zone = {"timezone": "UTC"} if declared["kind"] == "Timestamp" else {}
    return {key: value for key, value in (unit | zone | declared | nested).items() if key != "keysSorted"}


def _arrow_schema(data: bytes) -> pa.Schema:
    """The schema whose bare flatbuffer is given: Arrow reads it as the header of a message."""
    root = 32 + Flatbuffer(data).number(0, "I")
    message = struct.pack("<I6HiIhBx4x", 16, 12, 12, 8, 10, 4, 0, 12, root - 20, 4, 1) + data
    message += bytes(-len(message) % 8)
    try:
        return pa.ipc.read_schema(pa.py_buffer(struct.pack("<II", 0xFFFFFFFF, len(message)) + message))
    except (pa.ArrowException, OSError) as error:
        refuse(f"the Arrow schema of a SetDataSchema cannot be read: {error}")


def declared_types(event: Document) -> dict[str, Document]:
    if (schema := event.get("schema")) is not None:
        return {item["name"]: _plain(item["type"]) for item in schema["fields"]}
    raw = event.get("rawArrowSchema") or refuse("a SetDataSchema holds no schema")
    return {item.name: logical_type(item.type) for item in _arrow_schema(raw)}
