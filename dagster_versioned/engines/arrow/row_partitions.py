"""Rows of Arrow tables to partitions by the values of columns."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import pyarrow as pa

from dagster_versioned.engines.frames import to_table
from dagster_versioned.engines.row_order import TAKE_ROWS
from dagster_versioned.engines.row_partitions import KeyColumn, RowPartitions, missing_column, no_key, unknown_keys


@contextmanager
def split(frame: Any, partitions: RowPartitions, *, allow_empty: bool) -> Generator[dict[str, Any]]:
    """See `dagster_versioned.engines.dispatch.split_rows`."""
    yield _split_table(to_table(frame), partitions, allow_empty)


def _split_table(table: pa.Table, partitions: RowPartitions, allow_empty: bool) -> dict[str, pa.Table]:
    values, walls = zip(*(_normal(table, column) for column in partitions.columns), strict=True)
    codes = partitions.of_rows(values, walls)
    alien = np.flatnonzero(codes < 0)
    shown = [table.column(column.name).take(alien[:1000]).to_pylist() for column in partitions.columns]
    found = unknown_keys(shown, [1] * min(len(alien), 1000))
    if len(alien) > 1000:
        found["other values"] = len(alien) - 1000
    counts = np.bincount(codes[codes >= 0], minlength=len(partitions.keys))
    partitions.check(counts, found, allow_empty=allow_empty)
    order = np.argsort(codes, kind="stable")
    ends = np.cumsum(counts)
    return {
        key: _taken(table, order[end - count : end])
        for key, count, end in zip(partitions.keys, counts, ends, strict=True)
    }


def _taken(table: pa.Table, indices: "np.ndarray[Any, Any]") -> pa.Table:
    if len(indices) == 0 or indices[-1] - indices[0] == len(indices) - 1:  # in one piece already: nothing is copied
        return table.slice(int(indices[0]) if len(indices) else 0, len(indices))
    pieces = (indices[start : start + TAKE_ROWS] for start in range(0, len(indices), TAKE_ROWS))
    return pa.concat_tables([table.take(piece) for piece in pieces])


def _normal(table: pa.Table, column: KeyColumn) -> "tuple[pa.ChunkedArray[Any], bool]":
    """The column as text, or in microseconds and whether these are the wall clock's."""
    if table.column_names.count(column.name) != 1:
        raise missing_column(column.name, table.column_names)
    values = table.column(column.name)
    kind: Any = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
    if column.windows is not None and (pa.types.is_date(kind) or pa.types.is_timestamp(kind)):
        wall = getattr(kind, "tz", None) is None
        moments = values.cast(kind).cast(pa.timestamp("us", tz=getattr(kind, "tz", None)), safe=False)
        return cast("pa.ChunkedArray[Any]", moments.cast(pa.int64())), wall
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    if not (is_text or pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_date(kind)):
        raise no_key(column.name, kind)
    if pa.types.is_date(kind):
        values = values.cast(kind).cast(pa.date32())
    return cast("pa.ChunkedArray[Any]", values.cast(pa.string())), False
