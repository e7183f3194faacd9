"""What an older pyarrow lacks, done another way: the only place that asks which pyarrow is installed."""

from functools import cache
from typing import Any, cast

import numpy as np
import pyarrow as pa

from dagster_versioned.bounds import require_release

require_release("pyarrow", pa.__version__)
require_release("numpy", np.__version__)


@cache
def _major() -> int:
    """Of the pyarrow where this runs: an executor of Spark can have another than the driver."""
    return int(pa.__version__.partition(".")[0])


def cast_to(column: Any, wanted: Any) -> Any:
    """An array or a chunked array, cast: members of structs are found by name, and those that it lacks are null.

    Raises what Arrow's own cast raises.
    """
    if _major() >= 21:  # older ones want all members (19: not all), in the same order
        return column.cast(wanted)
    if isinstance(column, pa.ChunkedArray):
        chunks: list[Any] = [_cast(chunk, wanted) for chunk in cast("list[Any]", column.chunks)]
        return cast("Any", pa.chunked_array)(chunks, wanted)
    return _cast(column, wanted)


def with_offsets(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch; an older pyarrow gets a copy of nested columns that has an offset where there was none.

    Java sends no values without their one offset, in nested columns of nulls alone, and what reads those then ends in a
    segmentation fault.
    """
    if _major() >= 26:
        return batch
    columns: list[Any] = [
        pa.concat_arrays([column, column.slice(0, 0)]) if pa.types.is_nested(column.type) else column
        for column in cast("list[Any]", batch.columns)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def without_hidden_values(table: pa.Table) -> pa.Table:
    """The table, of one chunk a column, with nothing below nulls in lists: an older writer of Parquet refuses them."""
    if _major() >= 24:
        return table
    for i, column in enumerate(cast("list[Any]", table.columns)):
        if _holds_list(column.type):
            chunks: list[Any] = [_shown(chunk) for chunk in column.chunks]
            table = table.set_column(i, table.field(i), cast("Any", pa.chunked_array)(chunks, column.type))
    return table


def _shown(array: Any) -> Any:
    held = array.type
    if not _holds_list(held):
        return array
    if pa.types.is_struct(held):
        members: list[Any] = [_shown(member) for member in array.flatten()]
        return _struct(members, held, array)
    array = array.take(pa.array(np.arange(len(array))))  # counts the offsets anew
    if pa.types.is_map(held):
        return _rebuilt(array, held, _entries(held, _shown(array.keys), _shown(array.items)))
    return _rebuilt(array, held, _shown(array.values))


def _holds_list(data_type: Any) -> bool:
    return (
        pa.types.is_list(data_type)
        or pa.types.is_map(data_type)
        or any(_holds_list(data_type.field(i).type) for i in range(data_type.num_fields))
    )


def _cast(array: Any, wanted: Any) -> Any:
    held = array.type
    if held.equals(wanted, check_metadata=True):
        return array
    if not _holds_struct(held):
        return array.cast(wanted)
    if pa.types.is_struct(held) and pa.types.is_struct(wanted):
        members: list[Any] = []
        for field in cast("list[pa.Field[Any]]", list(wanted)):
            i = held.get_field_index(field.name)
            members.append(pa.nulls(len(array), field.type) if i < 0 else _cast(array.field(i), field.type))
        return _struct(members, wanted, array)
    if pa.types.is_large_list(held) or pa.types.is_fixed_size_list(held):
        return _cast(array.cast(pa.list_(held.value_field)), wanted)
    if pa.types.is_list(held) and pa.types.is_list(wanted):
        return _rebuilt(array, wanted, _cast(array.values, wanted.value_type))
    if pa.types.is_map(held) and pa.types.is_map(wanted):
        keys, items = _cast(array.keys, wanted.key_type), _cast(array.items, wanted.item_type)
        return _rebuilt(array, wanted, _entries(wanted, keys, items))
    return array.cast(wanted)


def _struct(members: list[Any], wanted: Any, array: Any) -> Any:
    """The structs of these members, null where an array is. A mask of no nulls would be one to a map's keys."""
    mask = array.is_null() if array.null_count else None
    return cast("Any", pa.StructArray).from_arrays(members, fields=list(wanted), mask=mask)


def _entries(wanted: Any, keys: Any, items: Any) -> Any:
    return cast("Any", pa.StructArray).from_arrays([keys, items], fields=[wanted.key_field, wanted.item_field])


def _rebuilt(array: Any, wanted: Any, values: Any) -> Any:
    """The lists with other values, which are all that its offsets count."""
    buffers = cast("list[Any]", array.buffers())[:2]
    return cast("Any", pa.Array).from_buffers(wanted, len(array), buffers, offset=array.offset, children=[values])


def _holds_struct(data_type: Any) -> bool:
    return pa.types.is_struct(data_type) or any(
        _holds_struct(data_type.field(i).type) for i in range(data_type.num_fields)
    )
