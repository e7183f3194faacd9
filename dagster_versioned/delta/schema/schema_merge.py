"""The schema of a table that takes rows with more columns, or wider types, than it has."""

from dataclasses import replace
from typing import cast

from dagster_versioned.delta.schema.types import ArrayType, DataType, MapType, StructField, StructType, type_json
from dagster_versioned.delta.schema.widening import common_type, is_wider, with_change
from dagster_versioned.errors import UnsupportedType


def merged_schema(table: StructType, rows: StructType, *, widen: bool) -> StructType:
    """The table's schema with the columns, at any depth, that only the rows have, nullable and last.

    Names are compared without regard to case. With ``widen`` a column whose type is wider in the rows gets that type,
    which is put on record (*Type Widening*); any other difference is left for the cast of the rows to judge.
    """
    return _struct(table, rows, widen)


def replaced_schema(table: StructType, rows: StructType) -> StructType:
    """The rows' schema, with what the table knows of columns that stay what they are: ids, rules, comments."""
    known = {field.name: field for field in table.fields}
    return StructType(
        [
            known[field.name]
            if field.name in known and _same(known[field.name].type, field.type)
            else replace(field, nullable=True)
            for field in rows.fields
        ]
    )


def common_schema(table: StructType, rows: StructType) -> StructType:
    """The table's columns, each of the narrowest type that holds its rows and the others, then those of the rows alone.

    Raises `UnsupportedType` where no type holds both, or where names differ in case alone.
    """
    given = {field.name.casefold(): field for field in rows.fields}
    fields: list[StructField] = []
    for field in table.fields:
        theirs = given.pop(field.name.casefold(), None)
        found = field.type if theirs is None else common_type(field.type, theirs.type)
        if found is None or (theirs is not None and theirs.name != field.name):
            assert theirs is not None
            wanted = theirs.type if isinstance(theirs.type, str) else "TYPE"
            raise UnsupportedType(
                f"Column {theirs.name!r} is {type_json(theirs.type)} here, but the table's other rows have"
                f" {field.name!r} as {type_json(field.type)}, and no type that either may widen to holds both. Nothing"
                " was written. Convert the column, or the rows that are there: `dagster-versioned repartition TABLE"
                f" --by same --type {theirs.name}={wanted}`; or replace all partitions in one write_partitions()."
            )
        fields.append(replace(field, type=found))
    return StructType([*fields, *given.values()])


def _same(one: DataType, other: DataType) -> bool:
    def plain(data_type: DataType) -> StructType:
        return StructType([StructField("x", data_type)]).all_nullable()

    return plain(one) == plain(other)


def _struct(table: StructType, rows: StructType, widen: bool) -> StructType:
    given = {field.name.casefold(): field for field in rows.fields}
    fields = [_field(field, given.pop(field.name.casefold(), None), widen) for field in table.fields]
    return StructType([*fields, *(replace(field, nullable=True, metadata={}) for field in given.values())])


def _field(field: StructField, rows: StructField | None, widen: bool) -> StructField:
    if rows is None:
        return field
    changes: list[tuple[tuple[str, ...], str, str]] = []
    data_type = _type(field.type, rows.type, widen, (), changes)
    metadata = dict(field.metadata)
    for inside, old, new in changes:
        metadata = with_change(metadata, old, new, inside)
    return replace(field, type=data_type, metadata=metadata)


def _type(
    table: DataType,
    rows: DataType,
    widen: bool,
    inside: tuple[str, ...],
    changes: list[tuple[tuple[str, ...], str, str]],
) -> DataType:
    match table, rows:
        case StructType(), StructType():
            return _struct(table, rows, widen)
        case ArrayType(), ArrayType():
            element = _type(table.element_type, rows.element_type, widen, (*inside, "element"), changes)
            return replace(table, element_type=element)
        case MapType(), MapType():
            key = _type(table.key_type, rows.key_type, widen, (*inside, "key"), changes)
            value = _type(table.value_type, rows.value_type, widen, (*inside, "value"), changes)
            return replace(table, key_type=key, value_type=value)
        case _ if widen and is_wider(table, rows):
            changes.append((inside, cast("str", table), cast("str", rows)))
            return rows
        case _:
            return table
