"""Nested values from one struct's fields to another's: by name, whatever the case, and none left out unseen."""

from typing import Any, cast

import pyarrow as pa

from dagster_versioned.delta.schema.types import ArrayType, DataType, MapType, StructField, StructType
from dagster_versioned.errors import InvalidInput

_OF_VARIANTS = StructType([StructField("metadata", "binary"), StructField("value", "binary")])


def renamed(column: Any, wanted: DataType, name: str) -> Any:
    """A column whose structs' fields are called as in ``wanted``; casting it is then by name.

    Without this a cast takes a field of another spelling for one that is missing, and drops what has no place.
    Raises `InvalidInput` for a field that ``wanted`` lacks.
    """
    if not pa.types.is_nested(column.type):
        return column
    target = _renamed(column.type, wanted, name)
    if target.equals(column.type):
        return column
    if hasattr(column, "chunks"):
        return cast("Any", pa).chunked_array([chunk.view(target) for chunk in column.chunks], target)
    return column.view(target)


def _renamed(held: Any, wanted: DataType, name: str) -> Any:
    match wanted:
        case "variant" if pa.types.is_struct(held):
            return _renamed(held, _OF_VARIANTS, name)
        case StructType(fields=fields) if pa.types.is_struct(held):
            known = {field.name.casefold(): field for field in fields}
            members: list[pa.Field[Any]] = []
            for member in cast("list[Any]", list(held)):
                field = known.get(member.name.casefold())
                if field is None:
                    raise InvalidInput(
                        f"Column {name!r} has no field {member.name!r} in the table (it has:"
                        f" {', '.join(field.name for field in fields):.500}). Nothing was written. Drop the field, or"
                        " pass schema_mode='merge' to add it to the table."
                    )
                inner = _renamed(member.type, field.type, f"{name}.{field.name}")
                members.append(pa.field(field.name, inner, member.nullable))
            return pa.struct(members)
        case ArrayType(element_type=element) if pa.types.is_list(held):
            field = held.value_field
            return pa.list_(pa.field(field.name, _renamed(field.type, element, f"{name}.element"), field.nullable))
        case MapType(key_type=key, value_type=value) if pa.types.is_map(held):
            entries: Any = pa.map_  # which takes fields, though the stubs ask for types
            inner = [
                pa.field(field.name, _renamed(field.type, kind, f"{name}.{part}"), field.nullable)
                for field, kind, part in ((held.key_field, key, "key"), (held.item_field, value, "value"))
            ]
            return entries(*inner)
        case _:
            return held
