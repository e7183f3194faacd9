"""Putting rows in an order that their values alone decide.

There is one order for all engines (Spark sorts by the same keys in `engines.spark.write`): ascending, NaN after the
numbers and null last, strings and binaries by their bytes; ties go to the remaining columns that are not nested, in
schema order, then to the row's two hashes if any column is nested, then to the signs of zeros.
"""

from collections.abc import Sequence
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from dagster_versioned.errors import InvalidInput
from dagster_versioned.identity.digest import row_lanes

TAKE_ROWS = 131_072
"""Rows are gathered in pieces, so that no gathered string column exceeds the 2 GiB of 32-bit offsets."""


def canonical_order(table: pa.Table) -> pa.Table:
    """The rows ordered by every column in schema order: tables with equal rows become equal tables, row by row.

    Only rows that the digests call equal but whose bits differ (two NaNs; 0.0 and -0.0 inside nested columns) keep the
    order in which they came.
    """
    return order_rows(table, ())


def order_rows(table: pa.Table, keys: Sequence[str]) -> pa.Table:
    """The rows ordered by ``keys`` ascending (NaN, then null, last); equal ones as in `canonical_order`.

    Raises `InvalidInput` for a key that is no column, or one that has no order.
    """
    _require_orderable(table, keys)
    if table.num_rows < 2:
        return table
    ordered = _sort_columns(table, keys)
    # Positional names: Arrow would read a column name such as ".a" as a path.
    by = pa.Table.from_arrays(ordered, [f"c{i}" for i in range(len(ordered))]).combine_chunks()
    indices = cast("pa.Array[Any]", pc.sort_indices(by, [(name, "ascending") for name in by.column_names]))
    pieces = [table.take(indices.slice(start, TAKE_ROWS)) for start in range(0, table.num_rows, TAKE_ROWS)]
    return pa.concat_tables(pieces)


def _sort_columns(table: pa.Table, keys: Sequence[str]) -> "list[pa.ChunkedArray[Any]]":
    names = [*keys, *(name for name in table.column_names if name not in keys)]
    ordered = [table.column(name) for name in names if _orderable(table.column(name).type)]
    signs = [_is_below_zero(column) for column in ordered if pa.types.is_floating(column.type)]
    hashes = lanes_of(table) if len(ordered) < table.num_columns else []
    return [*ordered, *hashes, *signs]


def _require_orderable(table: pa.Table, keys: Sequence[str]) -> None:
    for key in keys:
        if key not in table.column_names:
            raise InvalidInput(
                f"sort_rows names {key!r}, which is no column. The frame has: "
                f"{', '.join(map(repr, table.column_names))}. Nothing was written."
            )
        if not _orderable(table.column(key).type):
            raise InvalidInput(
                f"sort_rows names {key!r}, whose type {table.column(key).type} has no order. Nothing was written."
            )


def _orderable(data_type: Any) -> bool:
    return not pa.types.is_nested(data_type)


def _is_below_zero(column: "pa.ChunkedArray[Any]") -> "pa.ChunkedArray[Any]":
    """Distinguishes -0.0 from 0.0; its answer for other numbers does not matter, as equal ones get the same answer."""
    reciprocal = pc.divide(pa.scalar(1.0), column.cast(pa.float64()))
    return cast("pa.ChunkedArray[Any]", pc.less(reciprocal, pa.scalar(0.0)))


def lanes_of(table: pa.Table, key: bytes | None = None) -> "list[pa.ChunkedArray[Any]]":
    """The two hashes of each row (`row_lanes`)."""
    lanes = [row_lanes(batch, key) for batch in table.to_batches()]
    return [pa.chunked_array([lane[i] for lane in lanes], pa.uint64()) for i in range(2)]
