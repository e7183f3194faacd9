"""Column mapping: which column of a data file is which column of the table. Protocol: *Column Mapping*."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal, cast

import pyarrow as pa

from dagster_versioned.delta.schema.types import ArrayType, DataType, MapType, StructField, StructType, parts_of
from dagster_versioned.errors import IntegrityError, LogCorrupt, UnsupportedType

ColumnMapping = Literal["none", "name", "id"]
"""How columns of files are found: by their names, by the physical names in the schema, or by Parquet's field ids."""

ID = "delta.columnMapping.id"
PHYSICAL_NAME = "delta.columnMapping.physicalName"

_LISTS: dict[type, Any] = {pa.ListType: pa.list_, pa.LargeListType: pa.large_list}
_PARQUET_ID = b"PARQUET:field_id"
_IDS = range(-(2**31), 2**31)


def require_mapped(schema: StructType, mapping: ColumnMapping) -> None:
    """Raise `LogCorrupt` unless every column, at any depth, has what the mapping finds it by, and no other of
    its struct the same."""
    if mapping == "none":
        return
    for struct in (schema, *(part.type for part in parts_of(schema))):
        if not isinstance(struct, StructType):
            continue
        names = [physical_name(field, mapping) for field in struct.fields]
        ids = [field_id(field) for field in struct.fields] if mapping == "id" else []
        if len(set(names)) < len(names) or len(set(ids)) < len(ids):
            raise LogCorrupt(
                f"Two columns of one struct have the same physical name or id: {names}, {ids}. Nothing was read."
            )


def physical_name(field: StructField, mapping: ColumnMapping) -> str:
    """The name of a column in partition values, in statistics and, by ``name``, in files. Raises `LogCorrupt`."""
    if mapping == "none":
        return field.name
    name = field.metadata.get(PHYSICAL_NAME)
    if not isinstance(name, str) or not name:
        raise LogCorrupt(f"Column {field.name!r} has no {PHYSICAL_NAME} although its table maps columns.")
    return name


def field_id(field: StructField) -> int:
    """The Parquet field id of a column. Raises `LogCorrupt` where the schema has none."""
    number = field.metadata.get(ID)
    if type(number) is not int or number not in _IDS:
        raise LogCorrupt(f"Column {field.name!r} has no {ID} although its table maps columns by id.")
    return number


def physical_path(schema: StructType, path: Sequence[str], mapping: ColumnMapping) -> tuple[str, ...]:
    """The path of a column, or of a field of its structs, by physical names. Raises `KeyError`, `LogCorrupt`."""
    return tuple(physical_name(field, mapping) for field in _fields_on(schema, path, lambda field: field.name))


def logical_path(schema: StructType, path: Sequence[str], mapping: ColumnMapping) -> tuple[str, ...]:
    """The path by names in the table of what has this path by physical names. Raises `KeyError`, `LogCorrupt`."""
    return tuple(field.name for field in _fields_on(schema, path, lambda field: physical_name(field, mapping)))


def _fields_on(schema: DataType, path: Sequence[str], name: Callable[[StructField], str]) -> Iterator[StructField]:
    for part in path:
        field = (
            next((field for field in schema.fields if name(field) == part), None)
            if isinstance(schema, StructType)
            else None
        )
        if field is None:
            raise KeyError(".".join(path))
        yield field
        schema = field.type


def physical_schema(schema: StructType, mapping: ColumnMapping) -> StructType:
    """The schema as data files have it: every column, at any depth, by its physical name. Raises `LogCorrupt`."""
    return cast("StructType", _physical(schema, mapping))


def _physical(data_type: DataType, mapping: ColumnMapping) -> DataType:
    match data_type:
        case StructType(fields=fields):
            return StructType(
                replace(field, name=physical_name(field, mapping), type=_physical(field.type, mapping))
                for field in fields
            )
        case ArrayType(element_type=element):
            return replace(data_type, element_type=_physical(element, mapping))
        case MapType(key_type=key, value_type=value):
            return replace(data_type, key_type=_physical(key, mapping), value_type=_physical(value, mapping))
        case _:
            return data_type


# --- files -----------------------------------------------------------------------------------------------------------


def stored_names(wanted: Sequence[StructField], stored: pa.Schema, mapping: ColumnMapping) -> dict[str, str]:
    """The names in a file of the wanted columns that it has, by their names in the table.

    Raises `IntegrityError` where the file does not tell its columns apart, or, by ``id``, has no ids.
    """
    positions = _positions(list(stored), mapping)
    # The protocol's own columns, such as `_change_type`, have a name but no id.
    named = [field for field in wanted if mapping == "id" and ID not in field.metadata]
    found = {field.name: name for field in named if (name := physical_name(field, mapping)) in stored.names}
    keys = {field.name: _key(field, mapping) for field in wanted if field not in named}
    return found | {name: stored.names[positions[key]] for name, key in keys.items() if key in positions}


def stored_leaf(schema: StructType, path: Sequence[str], stored: pa.Schema, mapping: ColumnMapping) -> int | None:
    """The position among a file's leaf columns of the column with this path in the table; ``None`` where it has none.

    Raises `KeyError` for a path that is no column, and `IntegrityError` as `stored_names` does.
    """
    members: list[Any] = list(stored)
    position = 0
    for field in _fields_on(schema, path, lambda field: field.name):
        at = _positions(members, mapping).get(_key(field, mapping))
        if at is None:
            return None
        position += sum(_leaves(member.type) for member in members[:at])
        members = list(members[at].type) if pa.types.is_struct(members[at].type) else []
    return position


def _leaves(stored: Any) -> int:
    return sum(_leaves(stored.field(i).type) for i in range(stored.num_fields)) if stored.num_fields else 1


def logical_type(stored: pa.DataType, wanted: DataType, mapping: ColumnMapping) -> pa.DataType:
    """A stored type with its nested fields called as in the table; those that the table lacks get names of no column.

    Its values are laid out as the stored type's, so that `pyarrow.Array.view` gives them. Raises `UnsupportedType`
    where the two differ in kind, and `IntegrityError` as `stored_names` does.
    """
    held = cast("Any", stored)
    match wanted:
        case StructType(fields=fields) if pa.types.is_struct(stored):
            positions = _positions(list(held), mapping)
            known = {positions[key]: field for field in fields if (key := _key(field, mapping)) in positions}
            return pa.struct([_renamed(member, known.get(i), i, mapping) for i, member in enumerate(held)])
        case ArrayType(element_type=element) if (list_of := _LISTS.get(type(stored))) is not None:
            return list_of(_inner(held.value_field, element, mapping))
        case MapType(key_type=key, value_type=value) if pa.types.is_map(stored):
            entries: Any = pa.map_  # which takes fields, though the stubs ask for types
            return entries(_inner(held.key_field, key, mapping), _inner(held.item_field, value, mapping))
        case str() if not pa.types.is_nested(stored) or (wanted == "variant" and pa.types.is_struct(stored)):
            return stored
        case _:
            raise UnsupportedType(f"A column is stored as {stored}, which cannot be read as the table has it.")


def _renamed(stored: "pa.Field[Any]", wanted: StructField | None, i: int, mapping: ColumnMapping) -> "pa.Field[Any]":
    if wanted is None:
        return pa.field(f"\0{i}", stored.type, stored.nullable)
    return pa.field(wanted.name, logical_type(stored.type, wanted.type, mapping), stored.nullable)


def _inner(stored: "pa.Field[Any]", wanted: DataType, mapping: ColumnMapping) -> "pa.Field[Any]":
    return pa.field(stored.name, logical_type(stored.type, wanted, mapping), stored.nullable)


def _key(field: StructField, mapping: ColumnMapping) -> str | int:
    return field_id(field) if mapping == "id" else physical_name(field, mapping)


def _positions(stored: "Sequence[pa.Field[Any]]", mapping: ColumnMapping) -> dict[str | int, int]:
    """Where the columns of a file, or of one of its structs, are, by what the mapping finds them by."""
    keys: list[tuple[str | int, int]] = []
    for i, field in enumerate(stored):
        if mapping != "id":
            keys.append((field.name, i))
        elif (number := (field.metadata or {}).get(_PARQUET_ID)) is not None:
            keys.append((int(number), i))
    positions = dict(keys)
    if len(positions) < len(keys):
        raise IntegrityError(f"Two columns have one name: {[field.name for field in stored]!r:.200}.")
    if stored and not positions:
        raise IntegrityError(f"No column has a field id, by which the table finds them: {list(stored)!r:.200}.")
    return positions
