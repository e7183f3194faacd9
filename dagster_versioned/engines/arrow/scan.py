"""Reading exact files into Arrow, each checked before any of its rows is handed out."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dagster_versioned.delta.actions import DeletionVector
from dagster_versioned.delta.arrow_versions import cast_to
from dagster_versioned.delta.files.arrow_memory import arrow_reader, in_arrow
from dagster_versioned.delta.files.deletion_vectors import deleted_rows
from dagster_versioned.delta.files.file_actions import no_rows
from dagster_versioned.delta.files.predicate import Predicate
from dagster_versioned.delta.files.skipping import row_groups
from dagster_versioned.delta.paths import compute
from dagster_versioned.delta.schema.column_mapping import logical_type, stored_names
from dagster_versioned.delta.schema.types import DataType, schema_to_arrow
from dagster_versioned.delta.schema.variants import require_whole
from dagster_versioned.engines.scan import ROW_ID, Scan, ScanFile, missing_part
from dagster_versioned.errors import IntegrityError, LogCorrupt, ObjectNotFound, UnsupportedType

READERS = 8
"""Parts in flight: enough to hide a store's latency; Arrow's own pool decodes their columns."""

REFERENCE_BYTES = 2
"""Bytes per value up to which a column of texts is held to consist of references to a dictionary."""

_UNREADABLE = (pa.ArrowException, OSError, UnicodeDecodeError)
"""What comes of bytes that are no Parquet file, or not any more; the last, of a name in its footer."""


@dataclass(frozen=True, slots=True)
class RowFilter:
    """Which rows to keep: those that ``chosen`` says, none of which are where ``predicate`` is true of none."""

    predicate: Predicate
    chosen: Callable[[pa.Table], NDArray[np.bool_]]


def read_table(scan: Scan, only: RowFilter | None = None) -> pa.Table:
    """All rows in file order, in the canonical form of the scan's schema; columns that a file lacks are null.

    ``only`` is asked, one file at a time, which rows to keep. Parts are fetched, checked and decoded in parallel.
    Raises `IntegrityError` for a part that is missing or altered.
    """
    if not scan.files:
        return no_rows(_target(scan))
    with (
        ThreadPoolExecutor(READERS, thread_name_prefix="check") as checks,
        ThreadPoolExecutor(READERS, thread_name_prefix="read") as readers,
    ):
        return pa.concat_tables(readers.map(partial(_read_file, scan, checks, only), scan.files))


def stream_table(scan: Scan) -> pa.RecordBatchReader:
    """`read_table` as a stream, one part in memory at a time: each is checked as a whole before its first row."""
    return pa.RecordBatchReader.from_batches(_target(scan), _stream(scan))


def _read_file(scan: Scan, checks: ThreadPoolExecutor, only: RowFilter | None, file: ScanFile) -> pa.Table:
    data = _bytes(scan, file)
    # Hashing beside decoding: with one large part, one after the other would leave cores idle.
    check: Future[None] = checks.submit(_check, scan, file, data)
    try:
        with _open(data, compact=scan.compact) as parquet:
            names, nrow = _stored_columns(scan, file, parquet.schema_arrow), parquet.metadata.num_rows
            if only is not None and not (file.deletion_vector or file.kept or scan.tracked):  # else positions count
                groups = row_groups(parquet.metadata, only.predicate, scan.schema, scan.mapping)
                table = parquet.read_row_groups(groups, columns=list(names.values()))
                nrow = sum(parquet.metadata.row_group(i).num_rows for i in groups)
            else:
                table = parquet.read(columns=list(names.values()))
            table = _remaining(_as_asked(table, names, nrow, scan, file, 0), 0, *_vectors(scan, file, nrow))
    except _UNREADABLE as error:
        check.result()
        raise _undecodable(scan, file, error) from error
    check.result()
    return table if only is None else table.filter(pa.array(only.chosen(table)))


def _stream(scan: Scan) -> Iterator[pa.RecordBatch]:
    for file in scan.files:
        data = _bytes(scan, file)
        _check(scan, file, data)
        try:
            with _open(data) as parquet:
                names = _stored_columns(scan, file, parquet.schema_arrow)
                deleted, kept = _vectors(scan, file, parquet.metadata.num_rows)
                position = 0
                for batch in parquet.iter_batches(columns=list(names.values())):
                    table = _as_asked(pa.Table.from_batches([batch]), names, batch.num_rows, scan, file, position)
                    yield from _remaining(table, position, deleted, kept).to_batches()
                    position += batch.num_rows
        except _UNREADABLE as error:
            raise _undecodable(scan, file, error) from error


def _bytes(scan: Scan, file: ScanFile) -> pa.Buffer:
    path = scan.store.local_path(file.key)
    try:
        if path is None:
            return in_arrow(scan.store.get(file.key))
        with pa.memory_map(str(path)) as mapped:
            return mapped.read_buffer()
    except (ObjectNotFound, FileNotFoundError) as error:
        raise missing_part(scan.store, file) from error
    except OSError as error:
        raise _undecodable(scan, file, error) from error


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
    return IntegrityError(
        f"The part {file.key} in {scan.store.uri} cannot be read as Parquet: {error}. No row was returned. Verify the "
        "table, and restore the part from a copy."
    )


def _open(data: pa.Buffer, *, compact: bool = False) -> pq.ParquetFile:
    parquet = pq.ParquetFile(arrow_reader(data), coerce_int96_timestamp_unit="us")
    repeated = _repeated(parquet) if compact else []
    if not repeated:
        return parquet
    return pq.ParquetFile(
        arrow_reader(data),
        metadata=parquet.metadata,
        read_dictionary=repeated,
        coerce_int96_timestamp_unit="us",
    )


def _repeated(parquet: pq.ParquetFile) -> list[str]:
    """The text columns that are stored in so few bytes that each value can but refer to a dictionary."""
    metadata = parquet.metadata
    texts = [
        i for i, name in enumerate(parquet.schema.names) if _is_text(parquet, i) and name in parquet.schema_arrow.names
    ]
    chunks = {i: [metadata.row_group(group).column(i) for group in range(metadata.num_row_groups)] for i in texts}
    return [
        parquet.schema.column(i).path
        for i, parts in chunks.items()
        if sum(part.total_uncompressed_size for part in parts)
        <= REFERENCE_BYTES * sum(part.num_values for part in parts)
    ]


def _is_text(parquet: pq.ParquetFile, column: int) -> bool:
    stored = parquet.schema.column(column)
    return stored.path == stored.name and stored.logical_type.type == "STRING"


def _stored_columns(scan: Scan, file: ScanFile, stored: pa.Schema) -> dict[str, str]:
    """The names in the file of the columns to read from it, by their names in the table."""
    wanted = [field for field in scan.selected.fields if field.name not in {*file.partition_values, *scan.tracked}]
    tracked = {name: column for name, column in scan.tracked.items() if name in scan.selected.names}
    try:
        return stored_names(wanted, stored, scan.mapping) | {
            name: column for name, column in tracked.items() if column in stored.names
        }
    except IntegrityError as error:
        raise _undecodable(scan, file, error) from error


def _as_asked(
    table: pa.Table, names: Mapping[str, str], nrow: int, scan: Scan, file: ScanFile, position: int
) -> pa.Table:
    """The columns as the scan has them, of a table that begins at this position of its file.

    ``table`` may hold more: Parquet's names of nested columns are ambiguous.
    """
    target = _target(scan)
    columns: list[Any] = []
    for i, stored in enumerate(scan.selected.fields):
        field = cast("pa.Field[Any]", target.field(i))
        if field.name in file.partition_values:
            value: Any = file.partition_value(field.name, cast("str", stored.type))
            columns.append(pa.repeat(cast("Any", pa.scalar(value, field.type)), nrow))
        elif field.name in scan.tracked:
            column = table.column(names[field.name]) if field.name in names else None
            columns.append(_tracked(field.name, column, nrow, file, position))
        elif field.name in names:
            column = table.column(names[field.name])
            columns.append(_cast(column, stored.type, field, scan, file))
        else:
            columns.append(pa.nulls(nrow, field.type))
    return (
        pa.Table.from_arrays(columns, names=target.names)
        if scan.compact
        else pa.Table.from_arrays(columns, schema=target)
    )


def _tracked(name: str, column: Any, nrow: int, file: ScanFile, position: int) -> Any:
    """The ids or commit versions of rows, from the column that holds what differs from the default, and the default."""
    first = file.base_row_id if name == ROW_ID else file.default_row_commit_version
    if first is None:
        raise LogCorrupt(f"The file {file.key!r} has no {name} for its rows, although the table tracks them.")
    default: Any = pa.repeat(pa.scalar(first, pa.int64()), nrow)
    if name == ROW_ID:
        default = pa.array(np.arange(first + position, first + position + nrow, dtype=np.int64))
    return default if column is None else compute.coalesce(column.cast(pa.int64()), default)


_Rows = NDArray[np.int64] | None


def _vectors(scan: Scan, file: ScanFile, nrow: int) -> tuple[_Rows, _Rows]:
    """The positions of the rows that are deleted, and of those that alone are kept."""

    def rows(vector: DeletionVector | None, sha: str | None = None) -> _Rows:
        return None if vector is None else deleted_rows(scan.store, vector, nrow, file.key, sha)

    return rows(file.deletion_vector, file.vector_sha), rows(file.kept)


def _remaining(table: pa.Table, position: int, deleted: _Rows, kept: _Rows) -> pa.Table:
    """The rows that are not deleted, and are kept, of a table that begins at this position of its file."""
    if deleted is None and kept is None:
        return table
    remain = np.ones(table.num_rows, np.bool_) if kept is None else np.zeros(table.num_rows, np.bool_)
    for rows, remains in ((kept, True), (deleted, False)):
        if rows is not None:
            start, stop = np.searchsorted(rows, (position, position + table.num_rows))
            remain[rows[start:stop] - position] = remains
    return table if remain.all() else table.filter(pa.array(remain))


def _cast(column: Any, data_type: DataType, field: "pa.Field[Any]", scan: Scan, file: ScanFile) -> Any:
    if scan.mapping == "none" and column.type.equals(field.type, check_metadata=True):
        return column
    if scan.compact and data_type == "string" and pa.types.is_dictionary(column.type):
        return column
    try:
        if scan.mapping != "none" and not isinstance(data_type, str):
            named = logical_type(column.type, data_type, scan.mapping)
            renamed: list[Any] = [chunk.view(named) for chunk in column.chunks]
            column = cast("Any", pa.chunked_array)(renamed, named)
        require_whole(column.type, data_type, field.name)
        return cast_to(column, field.type)
    except IntegrityError as error:
        raise _undecodable(scan, file, error) from error
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, UnsupportedType) as error:
        # By the latter Arrow says that there is no cast between two types, by the former that a value does not fit.
        raise UnsupportedType(
            f"Column {field.name!r} is {column.type} in the part {file.key} of {scan.store.uri} and cannot be read as "
            f"{field.type}: {error}. No row was returned; leave the column out, or read a version before the part."
        ) from error


def _target(scan: Scan) -> pa.Schema:
    return schema_to_arrow(scan.selected.all_nullable())
