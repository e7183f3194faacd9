"""Schemas of tables of samples: their columns of versions by field are structs whose members come and go."""

from collections.abc import Iterator
from dataclasses import replace

from dagster_versioned.delta.schema.schema_merge import common_schema
from dagster_versioned.delta.schema.types import StructField, StructType
from dagster_versioned.delta.schema.widening import common_type
from dagster_versioned.engines.samples import SYSTEM_COLUMNS
from dagster_versioned.engines.upsert import require_all_columns


def updated_schema(table: StructType, frame: StructType) -> StructType:
    """The table's columns, then those of the frame alone; versions by field have the frame's members, in any order.

    No column becomes wider: which samples are stale is found by comparing their values, which would leave the rows
    that are not stale in the narrower type. Raises `InvalidInput` where the frame lacks a column, and `UnsupportedType`
    where another has a different type.
    """
    members = {name: theirs for name, mine, theirs in _members(table, frame) if set(mine.fields) != set(theirs.fields)}
    table = _with(table, members)
    frame = _with(frame, {name: mine for name, mine, _ in _members(table, frame)})
    require_all_columns(table, frame)
    return table.union(frame)


def union_of_versions(one: StructType, other: StructType) -> StructType:
    """`common_schema`, in which versions by field have the members of both. Raises `UnsupportedType`."""
    members = {name: mine.union(theirs) for name, mine, theirs in _members(one, other)}
    return common_schema(_with(one, members), _with(other, members))


def lost_columns(table: StructType, recorded: StructType) -> list[str]:
    """The columns that a table cannot hold any more as one of its versions recorded them."""
    types = {field.name: field.type for field in table.all_nullable().fields}
    held = {
        name
        for name, mine, theirs in _members(table.all_nullable(), recorded)
        if set(mine.fields) >= set(theirs.fields)
    }
    return [
        field.name
        for field in recorded.fields
        if field.name not in held
        and (field.name not in types or common_type(types[field.name], field.type) != types[field.name])
    ]


def _members(one: StructType, other: StructType) -> Iterator[tuple[str, StructType, StructType]]:
    """The columns of versions by field that both have."""
    for name in SYSTEM_COLUMNS:
        if name in one.names and name in other.names:
            mine, theirs = one.field(name).type, other.field(name).type
            if isinstance(mine, StructType) and isinstance(theirs, StructType):
                yield name, mine, theirs


def _with(schema: StructType, types: dict[str, StructType]) -> StructType:
    def of(field: StructField) -> StructField:
        return replace(field, type=types[field.name]) if field.name in types else field

    return StructType(map(of, schema.fields))
