"""Columns that have no type of their own, all null or of a pandas frame without rows: they take that of the table."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import pyarrow as pa

from dagster_versioned.delta.schema.types import StructType, schema_to_arrow
from dagster_versioned.engines.frames import family_of, in_memory, stream


def typed(frame: Any, known: Callable[[], StructType | None]) -> Any:
    """A frame of the Arrow family, with the types of a known schema where it has none.

    pandas guesses the types of a frame without rows, so such a frame takes all types, and without columns these too.
    ``known`` is asked only where something is to be typed; what stays untyped is refused by who writes it.
    """
    table = in_memory(frame)
    schema, batches = (table.schema, iter(table.to_batches())) if table is not None else stream(frame)
    guessed = (
        table is not None and not table.num_rows and family_of(cast("type[Any]", type(frame))) == "pandas.DataFrame"
    )
    if not (guessed or _is_untyped(schema.types)) or (given := known()) is None:
        return frame if table is None else table
    target = schema_to_arrow(given)
    if guessed:
        own, theirs = cast("list[Any]", list(schema)), cast("list[Any]", list(target))
        by_name = {field.name: field for field in theirs}
        fields = [by_name.get(field.name, field) for field in own]
        return pa.schema(fields or theirs).empty_table()
    filled = _schema(schema, target)
    if table is not None:
        return table.cast(filled)
    return pa.RecordBatchReader.from_batches(filled, (batch.cast(filled) for batch in batches))


def _schema(schema: pa.Schema, target: pa.Schema) -> pa.Schema:
    fields = cast("list[Any]", list(schema))
    return pa.schema(
        [
            field.with_type(_filled(field.type, target.field(field.name).type)) if field.name in target.names else field
            for field in fields
        ]
    )


def _filled(data_type: Any, known: Any) -> Any:
    """The type with that of the known one wherever it says nothing but null; itself where the two are of two kinds."""
    types = pa.types
    if types.is_null(data_type):
        return known
    if (types.is_list(data_type) or types.is_large_list(data_type)) and types.is_list(known):
        item = data_type.value_field
        kind = pa.large_list if types.is_large_list(data_type) else pa.list_
        return kind(item.with_type(_filled(item.type, known.value_type)))
    if types.is_struct(data_type) and types.is_struct(known):
        members = cast("list[Any]", [data_type.field(i) for i in range(data_type.num_fields)])
        return pa.struct([_member(member, known) for member in members])
    if types.is_map(data_type) and types.is_map(known):
        return pa.map_(_filled(data_type.key_type, known.key_type), _filled(data_type.item_type, known.item_type))
    return data_type


def _member(member: Any, known: Any) -> Any:
    at = known.get_field_index(member.name)
    return member.with_type(_filled(member.type, known.field(at).type)) if at >= 0 else member


def _is_untyped(data_types: Sequence[Any]) -> bool:
    return any(
        pa.types.is_null(one) or _is_untyped([one.field(i).type for i in range(one.num_fields)]) for one in data_types
    )
