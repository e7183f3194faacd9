"""Rows by the values of a table's partition columns: each group of rows is stored in files of its own, without them."""

import hashlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dagster_versioned.delta.actions import PartitionValues
from dagster_versioned.delta.files.partition_values import Value, encode, folder
from dagster_versioned.delta.schema.types import StructField, StructType, decimal_of
from dagster_versioned.errors import InvalidInput

FOLDER_BYTES = 200
"""Below what file systems take as a name (255), so that tools may add to it."""

_PLAIN = frozenset({"string", "long", "integer", "short", "byte", "boolean", "date", "timestamp", "timestamp_ntz"})


def require_partition_columns(schema: StructType, columns: Sequence[str]) -> None:
    """Raise `InvalidInput` unless the columns are of the schema, of types with one text a value, and not all it has."""
    for name in columns:
        if name not in schema.names:
            raise InvalidInput(
                f"partition_columns names {name!r}, which is no column. Nothing was written. The frame has: "
                f"{', '.join(map(repr, schema.names))}."
            )
        kind = schema.field(name).type
        if kind not in _PLAIN and decimal_of(str(kind)) is None:
            raise InvalidInput(
                f"Column {name!r} has the type {kind}, by which rows cannot be partitioned. Nothing was written. "
                "Choose text, whole numbers, decimals, booleans, dates or timestamps."
            )
    if columns and len(columns) == len(schema.fields):
        raise InvalidInput("Every column is a partition column, so files would have none. Nothing was written.")


def by_values(rows: pa.Table, fields: Sequence[StructField]) -> Iterator[tuple[PartitionValues, pa.Table]]:
    """The rows with each combination of values, in their order, and the values as Delta serializes them.

    Raises `InvalidInput` for a value that has no serialization.
    """
    if not fields:
        yield {}, rows
        return
    if not rows.num_rows:
        return
    codes = np.zeros(rows.num_rows, np.int64)
    for field in fields:
        column: Any = pc.dictionary_encode(cast("Any", rows[field.name]).combine_chunks())
        indices: Any = pc.fill_null(column.indices, -1)
        # Made dense again each time, so that many columns do not leave 64 bits.
        numbers = indices.to_numpy(zero_copy_only=False).astype(np.int64) + 1
        codes = np.unique(codes * (len(column.dictionary) + 1) + numbers, return_inverse=True)[1]
    order = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    ordered = rows if len(starts) == 1 else rows.take(cast("Any", pa.array(order)))
    for start, stop in itertools.pairwise([*starts.tolist(), rows.num_rows]):
        group = ordered.slice(start, stop - start)
        yield {field.name: encode(_value(group[field.name][0]), cast("str", field.type)) for field in fields}, group


def _value(scalar: Any) -> Value:
    try:
        return scalar.as_py()
    except (OverflowError, ValueError):  # a date or time in a year that Python has not
        return scalar.value


def place(values: PartitionValues) -> str:
    """The folder of the files with these values, ``""`` without any; different values never share one."""
    named = folder(values, list(values))
    if all(len(part.encode()) <= FOLDER_BYTES for part in named.split("/")):
        return named
    # Readers go by the log alone; what no file system takes as a name gets one that none of the others has.
    return f"partition-{hashlib.sha256(named.encode()).hexdigest()[:32]}"
