"""Schemas of tables of samples: their columns of versions by field are structs whose members come and go."""

from collections.abc import Iterator
from dataclasses import replace

from dagster_versioned.delta.schema import StructField, StructType
from dagster_versioned.engines.samples import SYSTEM_COLUMNS
from dagster_versioned.engines.upsert import grown_schema


def updated_schema(table: StructType, frame: StructType) -> StructType:
    """`grown_schema`, in which versions by field have the members that the frame's have, in any order.

    Raises `InvalidInput` where the frame lacks a column, and `UnsupportedType` where another has a different type.
    """
    members = {name: theirs for name, mine, theirs in _members(table, frame) if set(mine.fields) != set(theirs.fields)}
    table = _with(table, members)
    return grown_schema(table, _with(frame, {name: mine for name, mine, _ in _members(table, frame)}))


def union_of_versions(one: StructType, other: StructType) -> StructType:
    """`StructType.union`, in which versions by field have the members of both."""
    members = {name: mine.union(theirs) for name, mine, theirs in _members(one, other)}
    return _with(one, members).union(_with(other, members))


def lost_columns(table: StructType, recorded: StructType) -> list[str]:
    """The columns that a table cannot hold any more as one of its versions recorded them."""
    fields = table.all_nullable().fields
    held = {
        name
        for name, mine, theirs in _members(table.all_nullable(), recorded)
        if set(mine.fields) >= set(theirs.fields)
    }
    return [field.name for field in recorded.fields if field not in fields and field.name not in held]


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
