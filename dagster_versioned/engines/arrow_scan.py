"""Reading exact files into Arrow, each checked before any of its rows is handed out."""

import hashlib
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dagster_versioned.delta.column_mapping import logical_type, stored_names
from dagster_versioned.delta.deletion_vectors import deleted_rows
from dagster_versioned.delta.files import no_rows
from dagster_versioned.delta.partition_values import decode
from dagster_versioned.delta.schema import DataType, schema_to_arrow
from dagster_versioned.engines.scan import Scan, ScanFile
from dagster_versioned.errors import IntegrityError, ObjectNotFound, UnsupportedType

READERS = 8
"""Parts in flight: enough to hide a store's latency; Arrow's own pool decodes their columns."""

_UNREADABLE = (pa.ArrowException, OSError, UnicodeDecodeError)
"""What comes of bytes that are no Parquet file, or not any more; the last, of a name in its footer."""


def read_table(scan: Scan) -> pa.Table:
    """All rows in file order, in the canonical form of the scan's schema; columns that a file lacks are null.

    Parts are fetched, checked and decoded in parallel. Raises `IntegrityError` for a part that is missing or altered.
    """
    if not scan.files:
        return no_rows(_target(scan))
    with (
        ThreadPoolExecutor(READERS, thread_name_prefix="check") as checks,
        ThreadPoolExecutor(READERS, thread_name_prefix="read") as readers,
    ):
        return pa.concat_tables(readers.map(partial(_read_file, scan, checks), scan.files))


def stream_table(scan: Scan) -> pa.RecordBatchReader:
    """`read_table` as a stream, one part in memory at a time: each is checked as a whole before its first row."""
    return pa.RecordBatchReader.from_batches(_target(scan), _stream(scan))


def _read_file(scan: Scan, checks: ThreadPoolExecutor, file: ScanFile) -> pa.Table:
    data = _bytes(scan, file)
    # Hashing beside decoding: with one large part, one after the other would leave cores idle.
    check: Future[None] = checks.submit(_check, scan, file, data)
    try:
        with _open(data) as parquet:
            names, nrow = _stored_columns(scan, file, parquet.schema_arrow), parquet.metadata.num_rows
            table = parquet.read(columns=list(names.values()))
            table = _remaining(_as_asked(table, names, nrow, scan, file), 0, _deleted(scan, file, nrow))
    except _UNREADABLE as error:
        check.result()
        raise _undecodable(scan, file, error) from error
    check.result()
    return table


def _stream(scan: Scan) -> Iterator[pa.RecordBatch]:
    for file in scan.files:
        data = _bytes(scan, file)
        _check(scan, file, data)
        try:
            with _open(data) as parquet:
                names = _stored_columns(scan, file, parquet.schema_arrow)
                deleted = _deleted(scan, file, parquet.metadata.num_rows)
                position = 0
                for batch in parquet.iter_batches(columns=list(names.values())):
                    table = _as_asked(pa.Table.from_batches([batch]), names, batch.num_rows, scan, file)
                    yield from _remaining(table, position, deleted).to_batches()
                    position += batch.num_rows
        except _UNREADABLE as error:
            raise _undecodable(scan, file, error) from error


def _bytes(scan: Scan, file: ScanFile) -> pa.Buffer:
    path = scan.store.local_path(file.key)
    try:
        if path is None:
            return pa.py_buffer(scan.store.get(file.key))
        with pa.memory_map(str(path)) as mapped:
            return mapped.read_buffer()
    except (ObjectNotFound, FileNotFoundError) as error:
        raise IntegrityError(
            f"The part {file.key} is missing from {scan.store.uri}. No row was returned. Restore it from a copy, or "
            "materialize the version's asset again, which writes the same bytes."
        ) from error


def _check(scan: Scan, file: ScanFile, data: pa.Buffer) -> None:
    if file.sha256 is None:
        return
    found = hashlib.sha256(data).hexdigest()
    if found != file.sha256:
        raise IntegrityError(
            f"The part {file.key} in {scan.store.uri} was altered: its {data.size} bytes (committed: {file.size}) have "
            f"the SHA-256 {found} instead of {file.sha256}. No row of it was returned. Restore it from a copy, or "
            "materialize the version's asset again, which writes the same bytes."
        )


def _undecodable(scan: Scan, file: ScanFile, error: Exception) -> IntegrityError:
    return IntegrityError(f"The part {file.key} in {scan.store.uri} cannot be read as Parquet: {error}.")


def _open(data: pa.Buffer) -> pq.ParquetFile:
    return pq.ParquetFile(pa.BufferReader(data), coerce_int96_timestamp_unit="us")


def _stored_columns(scan: Scan, file: ScanFile, stored: pa.Schema) -> dict[str, str]:
    """The names in the file of the columns to read from it, by their names in the table."""
    wanted = [field for field in scan.selected.fields if field.name not in file.partition_values]
    try:
        return stored_names(wanted, stored, scan.mapping)
    except IntegrityError as error:
        raise _undecodable(scan, file, error) from error


def _as_asked(table: pa.Table, names: Mapping[str, str], nrow: int, scan: Scan, file: ScanFile) -> pa.Table:
    """The columns as the scan has them. ``table`` may hold more: Parquet's names of nested columns are ambiguous."""
    target = _target(scan)
    columns: list[Any] = []
    for i, stored in enumerate(scan.selected.fields):
        field = cast("pa.Field[Any]", target.field(i))
        if field.name in file.partition_values:
            value: Any = decode(file.partition_values[field.name], cast("str", stored.type))
            columns.append(pa.repeat(cast("Any", pa.scalar(value, field.type)), nrow))
        elif field.name in names:
            column = table.column(names[field.name])
            columns.append(_cast(column, stored.type, field, scan, file))
        else:
            columns.append(pa.nulls(nrow, field.type))
    return pa.Table.from_arrays(columns, schema=target)


def _deleted(scan: Scan, file: ScanFile, nrow: int) -> NDArray[np.int64] | None:
    vector = file.deletion_vector
    return None if vector is None else deleted_rows(scan.store, vector, nrow, file.key)


def _remaining(table: pa.Table, position: int, deleted: NDArray[np.int64] | None) -> pa.Table:
    """The rows that are not deleted, of a table that begins at this position of its file."""
    if deleted is None:
        return table
    start, stop = np.searchsorted(deleted, (position, position + table.num_rows))
    if start == stop:
        return table
    remain = np.ones(table.num_rows, np.bool_)
    remain[deleted[start:stop] - position] = False
    return table.filter(pa.array(remain))


def _cast(column: Any, data_type: DataType, field: "pa.Field[Any]", scan: Scan, file: ScanFile) -> Any:
    if scan.mapping == "none" and column.type.equals(field.type, check_metadata=True):
        return column
    try:
        if scan.mapping != "none" and not isinstance(data_type, str):
            named = logical_type(column.type, data_type, scan.mapping)
            renamed: list[Any] = [chunk.view(named) for chunk in column.chunks]
            column = cast("Any", pa.chunked_array)(renamed, named)
        return column.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, UnsupportedType, IntegrityError) as error:
        raise UnsupportedType(
            f"Column {field.name!r} is {column.type} in the part {file.key} of {scan.store.uri} and cannot be read as "
            f"{field.type}: {error}."
        ) from error


def _target(scan: Scan) -> pa.Schema:
    return schema_to_arrow(scan.selected.all_nullable())
