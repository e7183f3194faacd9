"""Table schemas: Delta's JSON (which is Spark SQL's JSON) and its Arrow counterpart."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, NamedTuple, cast

import pyarrow as pa

from dagster_versioned.errors import LogCorrupt, UnsupportedFrame, UnsupportedType
from dagster_versioned.identity.arrow_views import is_list, is_view

MAX_DEPTH = 100
"""Deeper nesting than any engine can read; a bound, so that hostile JSON cannot exhaust the stack."""

# Both engines store a column by way of these: each stored type has an Arrow type of its own, from which `_PRIMITIVE_OF`
# (and `_type_from_arrow`) finds it again.
_ARROW_OF: dict[str, pa.DataType] = {
    "string": pa.string(),
    "long": pa.int64(),
    "integer": pa.int32(),
    "short": pa.int16(),
    "byte": pa.int8(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "void": pa.null(),
    "variant": pa.struct([("metadata", pa.binary()), ("value", pa.binary())]),
}

PRIMITIVES = frozenset(_ARROW_OF)
"""The names of types, but for decimals, that the schema of a log may hold. ``void`` is read only; so is ``variant`` in
versioned tables."""

_PRIMITIVE_OF: dict[pa.DataType, str] = {
    pa.bool_(): "boolean",
    pa.int8(): "byte",
    pa.int16(): "short",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.uint8(): "short",
    pa.uint16(): "integer",
    pa.uint32(): "long",
    pa.float16(): "float",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.binary(): "binary",
    pa.large_binary(): "binary",
    pa.date32(): "date",
    pa.date64(): "date",
}

_SURROGATE = re.compile("[\ud800-\udfff]")
_DECIMAL = re.compile(r"decimal\(\s*(\d{1,2})\s*,\s*(\d{1,2})\s*\)", re.ASCII)


@dataclass(frozen=True, slots=True)
class ArrayType:
    """A list of values of one type. Protocol: *Array Type*."""

    element_type: "DataType"
    contains_null: bool = True

    def to_json(self) -> dict[str, Any]:
        return {"type": "array", "elementType": type_json(self.element_type), "containsNull": self.contains_null}


@dataclass(frozen=True, slots=True)
class MapType:
    """Key-value pairs; keys are never null. Protocol: *Map Type*."""

    key_type: "DataType"
    value_type: "DataType"
    value_contains_null: bool = True

    def to_json(self) -> dict[str, Any]:
        return {
            "type": "map",
            "keyType": type_json(self.key_type),
            "valueType": type_json(self.value_type),
            "valueContainsNull": self.value_contains_null,
        }


@dataclass(frozen=True, slots=True)
class StructField:
    """One column, top-level or nested. Protocol: *Struct Field*."""

    name: str
    type: "DataType"
    nullable: bool = True
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "type": type_json(self.type),
            "nullable": self.nullable,
            "metadata": dict(self.metadata),
        }


@dataclass(frozen=True, slots=True)
class StructType:
    """A table's schema, or a struct column; field names are unique. Protocol: *Struct Type*."""

    fields: tuple[StructField, ...]

    def __init__(self, fields: Iterable[StructField]) -> None:
        object.__setattr__(self, "fields", tuple(fields))
        if len(set(self.names)) != len(self.fields):
            twice = sorted(name for name, times in Counter(self.names).items() if times > 1)
            raise LogCorrupt(f"A schema names a column twice in one struct: {twice}.")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(member.name for member in self.fields)

    def field(self, name: str) -> StructField:
        """The field called ``name``. Raises `KeyError`."""
        for member in self.fields:
            if member.name == name:
                return member
        raise KeyError(name)

    def select(self, names: Sequence[str]) -> "StructType":
        """The named fields, in the order of ``names``. Raises `KeyError`."""
        return StructType(tuple(self.field(name) for name in names))

    def drop(self, names: Sequence[str]) -> "StructType":
        """The schema without the named fields."""
        return StructType(tuple(member for member in self.fields if member.name not in names))

    def without_void(self) -> "StructType":
        """The columns, and fields of structs at any depth, that have a type, as the protocol advises readers; all where
        none has one. Protocol: *Primitive Types*."""
        kept: list[StructField] = []
        for member in self.fields:
            if isinstance(member.type, StructType):
                inner = member.type.without_void()
                if inner is not member.type:
                    member = replace(member, type=inner)
            elif member.type == "void":
                continue
            kept.append(member)
        return self if not kept or tuple(kept) == self.fields else StructType(kept)

    def all_nullable(self) -> "StructType":
        """The same columns, everything nullable at every depth and no field metadata."""
        return cast("StructType", _all_nullable(self))

    def union(self, other: "StructType") -> "StructType":
        """These fields, then those that only ``other`` has; metadata of shared fields is this schema's.

        Raises `UnsupportedType` where a shared field has another type there.
        """
        mine = {member.name.casefold(): member for member in self.fields}
        added: list[StructField] = []
        for theirs in other.fields:
            known = mine.get(theirs.name.casefold())
            if known is None:
                added.append(theirs)
            elif known.name != theirs.name or _all_nullable(known.type) != _all_nullable(theirs.type):
                raise UnsupportedType(
                    f"Column {theirs.name!r} is {type_json(theirs.type)} here, but the table's other rows have"
                    f" {known.name!r} as {type_json(known.type)}. Nothing was written. Convert the column, or write"
                    " all rows with the new type under another asset key."
                )
        return StructType((*self.fields, *added))

    def holds(self, primitive: str) -> bool:
        """Whether any column, at any depth, is of the named primitive type."""
        return any(part.type == primitive for part in parts_of(self))

    def to_json(self) -> dict[str, Any]:
        return {"type": "struct", "fields": [member.to_json() for member in self.fields]}

    def json(self) -> str:
        """The text of a ``schemaString``: compact, members in Spark's order."""
        return json.dumps(self.to_json(), ensure_ascii=False, separators=(",", ":"))


DataType = str | ArrayType | MapType | StructType


def decimal_of(primitive: str) -> tuple[int, int] | None:
    """Precision and scale of a ``decimal(p,s)``, ``None`` for every other primitive."""
    match = _DECIMAL.fullmatch(primitive)
    return (int(match[1]), int(match[2])) if match else None


# --- JSON ------------------------------------------------------------------------------------------------------------


def parse_schema(source: str | Mapping[str, Any]) -> StructType:
    """Parse a ``schemaString``, or the object it holds.

    Raises `LogCorrupt` where the JSON is no schema and `UnsupportedType` for a type name that is not known, both
    naming the column. Protocol: *Schema Serialization Format*.
    """
    try:
        value = json.loads(source) if isinstance(source, str) else source
    except (ValueError, RecursionError) as error:
        raise LogCorrupt(f"The schema is not JSON: {error}.") from error
    parsed = _parse_type(value, ())
    if not isinstance(parsed, StructType):
        raise LogCorrupt("The schema's outermost type is not a struct.")
    return parsed


def _parse_type(value: object, path: tuple[str, ...]) -> DataType:
    if len(path) > MAX_DEPTH:
        raise LogCorrupt(f"The schema nests deeper than {MAX_DEPTH} levels at {_dotted(path[:3])}.")
    if isinstance(value, str):
        return _parse_primitive(value, path)
    if not isinstance(value, Mapping):
        raise LogCorrupt(f"The type of column {_dotted(path)} is neither a name nor an object: {value!r:.100}.")
    members = cast("Mapping[str, object]", value)
    match members.get("type"):
        case "struct":
            fields = members.get("fields")
            if not isinstance(fields, list):
                raise LogCorrupt(f"The struct {_dotted(path)} has no list of fields.")
            return StructType([_parse_field(member, path) for member in cast("list[object]", fields)])
        case "array":
            return ArrayType(
                _parse_type(members.get("elementType"), (*path, "element")), _flag(members, "containsNull", path)
            )
        case "map":
            return MapType(
                _parse_type(members.get("keyType"), (*path, "key")),
                _parse_type(members.get("valueType"), (*path, "value")),
                _flag(members, "valueContainsNull", path),
            )
        case "udt":
            # Spark's user-defined types are stored as the SQL type they are made of.
            return _parse_type(members.get("sqlType"), (*path, "sqlType"))
        case other:
            raise _unknown(other, path)


def _parse_field(value: object, path: tuple[str, ...]) -> StructField:
    if not isinstance(value, Mapping):
        raise LogCorrupt(f"A field of {_dotted(path)} is not an object: {value!r:.100}.")
    members = cast("Mapping[str, object]", value)
    name, metadata = members.get("name"), members.get("metadata")
    if not isinstance(name, str):
        raise LogCorrupt(f"A field of {_dotted(path)} has no name.")
    if _SURROGATE.search(name):
        raise LogCorrupt(f"The name {name!r:.100} of a field of {_dotted(path)} is not UTF-8.")
    if metadata is not None and not isinstance(metadata, Mapping):
        raise LogCorrupt(f"The metadata of column {_dotted((*path, name))} is not an object: {metadata!r:.100}.")
    return StructField(
        name,
        _parse_type(members.get("type"), (*path, name)),
        _flag(members, "nullable", (*path, name)),
        dict(cast("Mapping[str, Any]", metadata or {})),
    )


def _parse_primitive(name: str, path: tuple[str, ...]) -> str:
    if name in PRIMITIVES:
        return name
    if name == "decimal":
        return "decimal(10,0)"
    if decimal := decimal_of(name):
        precision, scale = decimal
        if 1 <= precision <= 38 and scale <= precision:
            return f"decimal({precision},{scale})"
    raise _unknown(name, path)


def _unknown(name: object, path: tuple[str, ...]) -> UnsupportedType:
    """The error of a type that no feature of the table announces, such as Spark's intervals."""
    return UnsupportedType(
        f"Column {_dotted(path)} has the type {name!r:.100}, which is not known here. Nothing was read or written. Have"
        " a program that knows it copy the table with the column cast to another type."
    )


def _flag(members: Mapping[str, object], key: str, path: tuple[str, ...]) -> bool:
    value = members.get(key, True)
    if not isinstance(value, bool):
        raise LogCorrupt(f"{key} of column {_dotted(path)} is not a boolean: {value!r:.100}.")
    return value


def sql_text(data_type: Any) -> str:
    """A type, or its JSON, as SQL spells it: ``array<struct<x: long>>``."""
    form = cast("Any", data_type if isinstance(data_type, str | dict) else type_json(data_type))
    match form:
        case {"type": "struct", "fields": fields}:
            members = (f"{field['name']}: {sql_text(field['type'])}" for field in fields)
            return f"struct<{', '.join(members)}>"
        case {"type": "array", "elementType": element}:
            return f"array<{sql_text(element)}>"
        case {"type": "map", "keyType": key, "valueType": value}:
            return f"map<{sql_text(key)}, {sql_text(value)}>"
        case _:
            return str(form)


def type_json(data_type: DataType) -> str | dict[str, Any]:
    """A type as a ``schemaString`` has it."""
    return data_type if isinstance(data_type, str) else data_type.to_json()


def _all_nullable(data_type: DataType) -> DataType:
    match data_type:
        case StructType(fields=fields):
            return StructType(tuple(StructField(member.name, _all_nullable(member.type)) for member in fields))
        case ArrayType(element_type=element):
            return ArrayType(_all_nullable(element))
        case MapType(key_type=key, value_type=value):
            return MapType(_all_nullable(key), _all_nullable(value))
        case _:
            return data_type


class Inside(StrEnum):
    """The steps of a path that lead into a list or map; as text they are not told from a field of that name."""

    ELEMENT = "element"
    KEY = "key"
    VALUE = "value"


class Part(NamedTuple):
    """A field, element, key or value: its path, its type, whether it may be null, and what is noted of it."""

    path: tuple[str, ...]
    type: "DataType"
    nullable: bool
    metadata: Mapping[str, Any]

    @property
    def is_inside(self) -> bool:
        """Whether it is, at any depth, in a list or map."""
        return any(isinstance(step, Inside) for step in self.path)


def parts_of(data_type: DataType, path: tuple[str, ...] = ()) -> Iterator[Part]:
    """Every field, element, key and value of a type at any depth, parents first."""
    parts: list[Part] = []
    match data_type:
        case StructType(fields=fields):
            parts = [Part((*path, own.name), own.type, own.nullable, own.metadata) for own in fields]
        case ArrayType(element_type=element, contains_null=nullable):
            parts = [Part((*path, Inside.ELEMENT), element, nullable, {})]
        case MapType(key_type=key, value_type=value, value_contains_null=nullable):
            # no map has a key that is null
            parts = [Part((*path, Inside.KEY), key, True, {}), Part((*path, Inside.VALUE), value, nullable, {})]
        case _:
            pass
    for part in parts:
        yield part
        yield from parts_of(part.type, part.path)


def _dotted(path: tuple[str, ...]) -> str:
    return repr(".".join(path)) if path else "the table"


# --- Arrow -----------------------------------------------------------------------------------------------------------


def schema_to_arrow(schema: StructType) -> pa.Schema:
    """The canonical Arrow schema: ``string`` and ``binary`` with 32-bit offsets, timestamps in microseconds.

    ``timestamp`` is UTC, ``timestamp_ntz`` has no zone, ``void`` is ``null``, ``variant`` a struct of two binaries (see
    `variants`). Nullability is kept, field metadata not.
    """
    return pa.schema([_field_to_arrow(member.name, member.type, member.nullable) for member in schema.fields])


def type_to_arrow(data_type: DataType) -> pa.DataType:
    """The canonical Arrow type of one Delta type; see `schema_to_arrow`."""
    match data_type:
        case StructType(fields=fields):
            return pa.struct([_field_to_arrow(member.name, member.type, member.nullable) for member in fields])
        case ArrayType(element_type=element, contains_null=nullable):
            return pa.list_(_field_to_arrow("element", element, nullable))
        case MapType(key_type=key, value_type=value, value_contains_null=nullable):
            entry: Any = pa.map_  # which takes fields, though the stubs ask for types
            return entry(_field_to_arrow("key", key, False), _field_to_arrow("value", value, nullable))
        case _:
            decimal = decimal_of(data_type)
            return pa.decimal128(*decimal) if decimal else _ARROW_OF[data_type]


def _field_to_arrow(name: str, data_type: DataType, nullable: bool) -> "pa.Field[Any]":
    return pa.field(name, type_to_arrow(data_type), nullable)


def schema_from_arrow(schema: pa.Schema) -> StructType:
    """The Delta schema that holds every value of an Arrow schema without loss.

    Widened where Delta has no equal: unsigned integers of up to 32 bits, ``float16``, offsets and views, dictionaries
    and run ends (their values), ``date64``, ``timestamp`` of any unit (an engine checks that nanoseconds lose nothing),
    fixed-size binaries and lists. Raises `UnsupportedType`, naming column and type, for everything else, and
    `UnsupportedFrame` for two columns whose names are equal but for case (Spark could not tell them apart).
    """
    return _struct_from_arrow(list(schema), ())


def _struct_from_arrow(fields: "list[pa.Field[Any]]", path: tuple[str, ...]) -> StructType:
    seen: dict[str, str] = {}
    for member in fields:
        if (other := seen.get(member.name.casefold())) is not None:
            raise UnsupportedFrame(
                f"Columns {_dotted((*path, other))} and {_dotted((*path, member.name))} have the same name"
                " (case does not count); rename one. Nothing was written."
            )
        seen[member.name.casefold()] = member.name
    return StructType(
        tuple(
            StructField(member.name, _type_from_arrow(member.type, (*path, member.name)), member.nullable)
            for member in fields
        )
    )


def _type_from_arrow(
    arrow: Any, path: tuple[str, ...]
) -> DataType:  # pyarrow-stubs has no common base with .value_type
    types = pa.types
    primitive = _PRIMITIVE_OF.get(arrow) or _primitive_from_arrow(arrow)
    if primitive is not None:
        return primitive
    if types.is_dictionary(arrow) or types.is_run_end_encoded(arrow):
        return _type_from_arrow(arrow.value_type, path)
    if is_list(arrow):
        lists: Any = arrow
        return ArrayType(_type_from_arrow(lists.value_type, (*path, "element")), lists.value_field.nullable)
    if types.is_map(arrow):
        return MapType(
            _type_from_arrow(arrow.key_type, (*path, "key")),
            _type_from_arrow(arrow.item_type, (*path, "value")),
            arrow.item_field.nullable,
        )
    if types.is_struct(arrow) and arrow.num_fields:
        return _struct_from_arrow(list(arrow), path)
    raise UnsupportedType(
        f"Column {_dotted(path)} has the type {arrow}, which Delta cannot store without loss. {_fix(arrow)}"
        " Nothing was written."
    )


def _primitive_from_arrow(arrow: Any) -> str | None:
    types = pa.types
    if is_view(arrow, "string"):
        return "string"
    if types.is_fixed_size_binary(arrow) or is_view(arrow, "binary"):
        return "binary"
    if types.is_timestamp(arrow):
        return "timestamp_ntz" if arrow.tz is None else "timestamp"
    if types.is_decimal(arrow) and 0 <= arrow.scale <= arrow.precision <= 38:
        return f"decimal({arrow.precision},{arrow.scale})"
    return None


def _fix(arrow: pa.DataType) -> str:
    types = pa.types
    if types.is_null(arrow):
        return (
            "Every value is null, and no version of the table knows the type: cast it to the type it should have, such "
            "as string."
        )
    if types.is_uint64(arrow):
        return "Cast it to int64, or to decimal(20, 0) where values exceed 2^63 - 1."
    if types.is_interval(arrow):
        return "Split it into numbers of months, days and nanoseconds."
    if types.is_duration(arrow) or types.is_time(arrow):
        return "Cast it to int64 and put the unit into the column's name."
    if types.is_struct(arrow):
        return "Parquet has no struct without fields: drop it."
    if types.is_decimal(arrow):
        return "Cast it to a decimal with precision at most 38 and a scale between 0 and the precision."
    return "Cast it to a supported type, or drop it."
