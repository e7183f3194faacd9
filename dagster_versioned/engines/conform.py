"""From what a frame calls its columns to the one form that is stored, losing nothing or saying so.

The canonical form is `schema_to_arrow` of the stored schema: 32-bit offsets, microseconds, UTC, everything nullable, no
metadata. Session zones, ``large_*`` types and nullability flags differ between runs of one program, so none of them may
reach a part's bytes (FORMAT "A part").
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dagster_versioned.delta.arrow_versions import cast_to, with_offsets
from dagster_versioned.delta.schema.types import StructType, schema_from_arrow, schema_to_arrow
from dagster_versioned.errors import EmptyTable, UnsupportedType
from dagster_versioned.identity.arrow_views import is_view, nbytes

MAX_BATCH_BYTES = 512 * 1024 * 1024
"""A batch is split above this size, far below the 2 GiB that 32-bit offsets reach."""


def stored_schema(schema: pa.Schema, *, sort_columns: bool = False, columns: Sequence[str] = ()) -> StructType:
    """The schema under which a frame is stored: everything nullable, no metadata; columns in the order that is asked.

    ``columns``, if any are given, are all of the frame's. Raises `UnsupportedType` by column and type,
    `UnsupportedFrame` for column names that are equal but for case, and `EmptyTable` for a frame without columns.
    """
    if len(schema) == 0:
        raise EmptyTable(
            "The frame has no columns, so there is nothing to store. Nothing was written. Give it the columns that the "
            "table is to have; once there is a table, pandas may leave them out (with TableOptions(allow_empty=True))."
        )
    stored = schema_from_arrow(schema).all_nullable()
    for name, data_type in zip(schema.names, cast("list[Any]", schema.types), strict=True):
        if _holds_inner_view(data_type):
            raise UnsupportedType(
                f"Column {name!r} has the type {data_type}, a list view inside another type. Cast it to a list. "
                "Nothing was written."
            )
    if columns:
        return stored.select(columns)
    return StructType(sorted(stored.fields, key=lambda field: field.name)) if sort_columns else stored


def refuse_no_rows(nrow: int, *, allow_empty: bool) -> None:
    """Raise `EmptyTable` for a frame without rows, unless that was allowed."""
    if nrow == 0 and not allow_empty:
        raise EmptyTable(
            "The frame has no rows. Nothing was written. If an empty table is what you mean, say so: give the write "
            "options=TableOptions(allow_empty=True), or the asset "
            "metadata=TableOptions(allow_empty=True).as_metadata()."
        )


def conform(batch: pa.RecordBatch, schema: StructType) -> pa.RecordBatch:
    """The batch as the stored schema has it: columns by name, cast without loss.

    Raises `UnsupportedType`, naming the column, for a value that the stored type cannot hold, such as a timestamp with
    nanoseconds, or text that is not UTF-8. Arrays that are canonical already are passed on, not copied.
    """
    target = schema_to_arrow(schema)
    if not batch.schema.equals(target, check_metadata=True):
        fields = cast("list[pa.Field[Any]]", list(target))
        columns = [_cast(batch.column(field.name), field) for field in fields]
        batch = pa.RecordBatch.from_arrays(columns, schema=target)
    for name, column in zip(target.names, cast("list[Any]", batch.columns), strict=True):
        if _holds_text(column.type):
            _require_text(name, column)
    return batch


def conform_all(batches: Iterable[pa.RecordBatch], schema: StructType) -> Iterator[pa.RecordBatch]:
    """`conform` for a stream, splitting batches that are too large for 32-bit offsets."""
    for batch in batches:
        for piece in _split(with_offsets(batch)):
            yield conform(piece, schema)


def _require_text(name: str, column: Any) -> None:
    # Arrow takes any bytes for text, so does Spark; who reads them again fails on the whole file.
    try:
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        raise UnsupportedType(
            f"Column {name!r} holds text that is not UTF-8 ({error}). Nothing was written. Decode it with the encoding "
            "that it has, or cast the column to binary."
        ) from error


@cache
def _holds_text(data_type: Any) -> bool:
    return pa.types.is_string(data_type) or any(
        _holds_text(data_type.field(i).type) for i in range(data_type.num_fields)
    )


def _split(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if batch.num_rows > 1 and nbytes(batch) > MAX_BATCH_BYTES:
        half = batch.num_rows // 2
        yield from _split(batch.slice(0, half))
        yield from _split(batch.slice(half))
    elif batch.num_rows:
        yield batch


def _cast(array: Any, field: "pa.Field[Any]") -> Any:
    if array.type.equals(field.type, check_metadata=True):
        return array
    try:
        plain = _plain(array)
        try:
            return cast_to(plain, field.type)
        except pa.ArrowInvalid as error:
            if "too large" not in str(error):
                raise
            # The offsets of a slice of something large do not fit 32 bits, but counted from the slice's start they do;
            # concatenating, unlike casting, counts anew.
            return cast_to(pa.concat_arrays([plain, plain.slice(0, 0)]), field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:  # a value does not fit, or there is no such cast
        raise UnsupportedType(
            f"Column {field.name!r} cannot be stored as {field.type} without loss from {array.type}: {error}. "
            "Nothing was written. Round or cast the column first."
        ) from error


def _plain(array: Any) -> Any:
    """The array without the encodings that Arrow 26 cannot cast, or casts to broken offsets (list views)."""
    if pa.types.is_dictionary(array.type):
        dictionary = array.dictionary
        values = pa.string() if is_view(dictionary.type, "string") else dictionary.type
        return cast_to(dictionary, values).take(array.indices)
    if pa.types.is_run_end_encoded(array.type):
        return _plain(pc.call_function("run_end_decode", [array]))
    if is_view(array.type, "list", "large_list"):
        lengths: Any = cast("Any", pc.list_value_length(array)).fill_null(0).to_numpy(zero_copy_only=False)
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]), pa.int64())
        lists: Any = pa.large_list(array.type.value_field)
        return cast("Any", pa.LargeListArray).from_arrays(offsets, array.flatten(), type=lists, mask=array.is_null())
    return array


def _holds_inner_view(data_type: Any, *, inner: bool = False) -> bool:
    if inner and is_view(data_type, "list", "large_list"):
        return True
    if pa.types.is_dictionary(data_type) or pa.types.is_run_end_encoded(data_type):
        return _holds_inner_view(data_type.value_type, inner=True)
    return any(_holds_inner_view(data_type.field(i).type, inner=True) for i in range(data_type.num_fields))
