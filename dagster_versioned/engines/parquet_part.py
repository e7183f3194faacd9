"""Parquet parts whose bytes are a function of rows, schema, partition key, ordinal and options, and of nothing else.

FORMAT "A part". What makes it true: rows are in the canonical schema; row groups end at exact rows, found from the
values (`row_size`), never at batch boundaries; one ``write_table`` a row group from one chunk; no Arrow schema in the
footer; every setting of the Parquet writer is fixed here; bounds that pass over NaN are taken out at the end. The
version of the Parquet library is part of the bytes and says so in ``created_by``.
"""

import errno
import hashlib
import io
import os
import secrets
import sys
import uuid
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dagster_versioned.delta.arrow_versions import without_hidden_values
from dagster_versioned.delta.files.statistics import from_parquet_metadata
from dagster_versioned.delta.schema.types import StructType, schema_to_arrow
from dagster_versioned.engines.parquet_footer import without_bounds
from dagster_versioned.engines.partition_values import by_values, require_partition_columns
from dagster_versioned.engines.parts import MEBIBYTE, Part, WriteOptions
from dagster_versioned.engines.row_order import canonical_order
from dagster_versioned.engines.row_size import row_sizes, total_size
from dagster_versioned.errors import AccessDenied, StoreUnavailable

STREAM_BYTES = 4 * MEBIBYTE

PARTITION_ENTRY = "dagster_versioned.partition"
ORDINAL_ENTRY = "dagster_versioned.ordinal"
SALT_ENTRY = "dagster_versioned.salt"


class PartEncoder:
    """Rows to the bytes of one part, row group by row group; they go to ``sink``, which has no other writer."""

    def __init__(
        self,
        sink: io.RawIOBase,
        schema: pa.Schema,
        compression: str,
        entries: Mapping[str, str],
        personal: Sequence[str] = (),
    ) -> None:
        self.nan_columns = set[str]()
        """Those of the rows so far, as `nan_columns` has them."""
        self._sink = _HeldSink(sink)
        # The Parquet writer writes page by page, and each call into Python waits for the interpreter lock.
        self._stream = pa.BufferedOutputStream(pa.PythonFile(self._sink, "w"), STREAM_BYTES)
        self._writer = _open_writer(self._stream, schema, compression, entries, personal)

    def write(self, rows: pa.Table) -> None:
        """Write rows in one chunk, all of them, as one row group."""
        self._writer.write_table(without_hidden_values(rows), row_group_size=rows.num_rows)
        self.nan_columns |= nan_columns(rows)
        self._stream.flush()

    def close(self) -> pq.FileMetaData:
        """End the part; what it says of its columns, with bounds that pass over NaN, of which the footer has none."""
        self._sink.held = bytearray()
        self._writer.close()
        self._stream.flush()
        end, self._sink.held = bytes(self._sink.held), None
        self._sink.write(without_bounds(end, self.nan_columns) if self.nan_columns else end)
        return self._writer.writer.metadata


class _HeldSink(io.RawIOBase):
    """Hands on what is written; while it has ``held``, it collects it there."""

    def __init__(self, sink: io.RawIOBase) -> None:
        self.held: bytearray | None = None
        self._sink = sink

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._sink.tell() + len(self.held or b"")

    def write(self, data: Any) -> int:
        if self.held is None:
            return cast("int", self._sink.write(data))
        self.held += data
        return len(data)


def _open_writer(
    sink: Any, schema: pa.Schema, compression: str, entries: Mapping[str, str], personal: Sequence[str]
) -> pq.ParquetWriter:
    """The writer of a part, of rows in these types; every setting that its bytes depend on is here."""
    later = hasattr(pq.ParquetWriter, "add_key_value_metadata")  # which pyarrow 14 and 15 have not
    writer = pq.ParquetWriter(
        sink,
        schema if later or not entries else schema.with_metadata(dict(entries)),
        version="2.6",
        data_page_version="1.0",
        data_page_size=MEBIBYTE,
        write_batch_size=1024,
        use_dictionary=True,
        dictionary_pagesize_limit=MEBIBYTE,
        compression=cast("Any", compression),
        write_statistics=cast("Any", _with_statistics(schema, personal) if personal else True),
        write_page_index=True,
        use_compliant_nested_type=True,
        store_schema=False,
    )
    if later and entries:
        writer.add_key_value_metadata(dict(entries))
    return writer


def _with_statistics(schema: pa.Schema, personal: Sequence[str]) -> list[str]:
    """The dotted paths, as a file has them, of the columns that are not personal."""
    pending = [(field.name, field.type) for field in cast("Any", schema) if field.name not in personal]
    found: list[str] = []
    while pending:
        path, kind = pending.pop()
        if pa.types.is_struct(kind):
            pending += [(f"{path}.{kind.field(i).name}", kind.field(i).type) for i in range(kind.num_fields)]
        elif pa.types.is_list(kind):
            pending.append((f"{path}.list.element", kind.value_type))
        elif pa.types.is_map(kind):
            pending += [(f"{path}.key_value.key", kind.key_type), (f"{path}.key_value.value", kind.item_type)]
        else:
            found.append(path)
    return found


class BatchQueue:
    """Batches that another thread is at, of at most so many bytes together."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._futures: deque[tuple[Future[None], int]] = deque()
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._futures)

    def add(self, future: Future[None], size: int) -> None:
        """Add one, and wait for the oldest as long as there are too many bytes."""
        self._futures.append((future, size))
        self._bytes += size
        while self._bytes > self._most:
            self._await_oldest()

    def wait(self) -> None:
        """Wait for all."""
        while self._futures:
            self._await_oldest()

    def _await_oldest(self) -> None:
        future, size = self._futures.popleft()
        future.result()
        self._bytes -= size


def part_entries(ordinal: int, partition: str | None, *, salted: bool = False) -> dict[str, str]:
    """What the footer of a part says of its place; ``salted`` with random bytes, so that nobody can make it again."""
    entries = {ORDINAL_ENTRY: str(ordinal)}
    if partition is not None:
        entries[PARTITION_ENTRY] = partition
    return entries | ({SALT_ENTRY: secrets.token_hex(16)} if salted else {})


class PartWriter:
    """Streams rows into parts of about ``options.target_part_bytes``, numbered from its ``first_ordinal``.

    Memory: at most one row group (``options.row_group_bytes`` or ``options.tuning.row_group_rows``) and
    ``options.tuning.in_memory_bytes`` of parts.
    ``directory`` is created once a part becomes a file, without ``make_parents`` only in a folder that is there. No
    rows: no parts. Not thread-safe.

    ``stored_as`` are the types of rows and files where they are not the canonical ones of ``schema``; such files say
    nothing of partitions and ordinals.
    """

    def __init__(
        self,
        schema: StructType,
        directory: Path,
        options: WriteOptions,
        *,
        make_parents: bool = True,
        stored_as: pa.Schema | None = None,
    ) -> None:
        self.schema = stored_as or schema_to_arrow(schema)
        self._has_entries = stored_as is None
        self.size = 0
        """Bytes of all rows so far, as `row_sizes` counts."""
        self._stored = schema
        self._directory = directory
        self._make_parents = make_parents
        self._options = options
        self._ordinal = options.first_ordinal
        self._parts: list[Part] = []
        self._in_memory = 0
        self._buffered: list[pa.RecordBatch] = []
        self._rows = 0
        self._bytes = 0
        self._sink: _Spool | None = None
        self._encoder: PartEncoder | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows in the canonical schema (`conform`); they are referenced until their row group is written."""
        if not batch.num_rows:
            return
        size = total_size(batch)
        self.size += size
        start, most = 0, self._options.tuning.row_group_rows
        if self._rows + batch.num_rows < most and self._bytes + size < self._options.row_group_bytes:
            self._buffer(batch, size)
            return
        written, ends = 0, np.cumsum(row_sizes(batch))
        while start < batch.num_rows:
            room = self._options.row_group_bytes - self._bytes
            full = int(np.searchsorted(ends, written + room)) + 1
            stop = min(full, start + most - self._rows, batch.num_rows)
            self._buffer(batch.slice(start, stop - start), int(ends[stop - 1]) - written)
            start, written = stop, int(ends[stop - 1])
            if self._rows == most or self._bytes >= self._options.row_group_bytes:
                self._write_row_group()

    def _buffer(self, batch: pa.RecordBatch, size: int) -> None:
        self._buffered.append(batch)
        self._rows += batch.num_rows
        self._bytes += size

    def take_buffered(self) -> pa.Table | None:
        """All rows so far, if none has left memory yet, else ``None``.

        They stay in the writer: `abort` it if they go somewhere else, `close` it if they do not.
        """
        if self._encoder is not None or self._parts:
            return None
        return pa.Table.from_batches(self._buffered, self.schema)

    def close(self) -> list[Part]:
        """Write what is left; the parts in ordinal order. Part files are on disk, durable, named by their SHA-256."""
        if self._buffered:
            self._write_row_group()
        if self._encoder is not None:
            self._end_part()
        return self._parts

    def abort(self) -> None:
        """Forget everything and remove every file that this writer made."""
        self._buffered = []
        if self._sink is not None:
            self._sink.remove()
        for part in self._parts:
            if isinstance(part.source, Path):
                part.source.unlink(missing_ok=True)
        self._sink, self._encoder, self._parts = None, None, []

    def _write_row_group(self) -> None:
        table = pa.Table.from_batches(self._buffered, self.schema).combine_chunks()
        self._buffered, self._rows, self._bytes = [], 0, 0
        encoder, sink = self._open_part()
        encoder.write(table)
        if not self._options.single_part and sink.size >= self._options.target_part_bytes:
            self._end_part()

    def _open_part(self) -> "tuple[PartEncoder, _Spool]":
        if self._encoder is None or self._sink is None:
            self._sink = _Spool(
                self._directory, self._options.tuning.in_memory_bytes - self._in_memory, self._make_parents
            )
            options = self._options
            self._encoder = PartEncoder(self._sink, self.schema, options.compression, self._entries(), options.personal)
        return self._encoder, self._sink

    def _entries(self) -> dict[str, str]:
        """What a part says of itself."""
        if not self._has_entries:
            return {}
        return part_entries(self._ordinal, self._options.partition, salted=bool(self._options.personal))

    def _end_part(self) -> None:
        encoder, sink = self._open_part()
        metadata = encoder.close()
        sha256, source = sink.finish()
        self._parts.append(
            Part(
                sha256=sha256,
                size=sink.size,
                num_records=metadata.num_rows,
                ordinal=self._ordinal,
                statistics=from_parquet_metadata(metadata, self._stored, encoder.nan_columns),
                source=source,
            )
        )
        if isinstance(source, bytes):
            self._in_memory += sink.size
        self._ordinal += 1
        self._sink, self._encoder = None, None


def partitioned_parts(
    rows: pa.Table, schema: StructType, directory: Path, options: WriteOptions, *, make_parents: bool = True
) -> list[Part]:
    """Rows without an order as parts for each combination of values in the partition columns.

    Rows that fit one part are put into canonical order first, so that its bytes depend on nothing else. Raises
    `InvalidInput` for columns by which rows cannot be grouped, and leaves no file behind then.
    """
    require_partition_columns(schema, options.partition_columns)
    stored = schema.drop(options.partition_columns)
    fields = [schema.field(name) for name in options.partition_columns]
    writers: list[PartWriter] = []
    parts: list[Part] = []
    try:
        for values, group in by_values(rows, fields):
            held = group.select(list(stored.names))
            if sum(map(total_size, held.to_batches())) <= options.target_part_bytes:
                held = canonical_order(held)
            writer = PartWriter(stored, directory, options, make_parents=make_parents)
            writers.append(writer)
            for batch in held.to_batches(max_chunksize=options.tuning.row_group_rows):
                writer.write(batch)
            parts += [replace(part, partition_values=values) for part in writer.close()]
    except BaseException:
        for writer in writers:
            writer.abort()
        raise
    return parts


class _Spool(io.RawIOBase):
    """A file object that hashes what passes and stays in memory up to a limit, then goes on in a file.

    What goes to a file is hashed and written by a thread of its own, a piece while the next one is encoded.
    """

    def __init__(self, directory: Path, limit: int, make_parents: bool) -> None:
        self.size = 0
        self._directory = directory
        self._make_parents = make_parents
        self._limit = limit
        self._path = directory / f".{uuid.uuid4().hex}.tmp"
        self._hash = hashlib.sha256()
        self._memory = io.BytesIO()
        self._file: io.FileIO | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._passing: Future[None] | None = None

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.size

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if self._file is None and self.size + len(view) > self._limit:
            with local_disk(self._directory):
                self._directory.mkdir(parents=self._make_parents, exist_ok=True)
                self._file = self._path.open("xb", buffering=0)
                _write_all(self._file, self._memory.getbuffer())
            self._memory = io.BytesIO()
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="spool")
        self.size += len(view)
        if self._file is None or self._thread is None:
            self._hash.update(view)
            return self._memory.write(view)
        self._await()
        self._passing = self._thread.submit(self._pass, self._file, bytes(data))  # no copy of what is bytes already
        return len(view)

    def _pass(self, file: io.FileIO, data: bytes) -> None:
        self._hash.update(data)
        with local_disk(self._directory):
            _write_all(file, memoryview(data))

    def _await(self) -> None:
        if self._passing is not None:
            passing, self._passing = self._passing, None
            passing.result()

    def finish(self) -> tuple[str, bytes | Path]:
        """The SHA-256 of everything written, and where it is: in memory, or a durable file named by that SHA-256."""
        if self._file is None:
            return self._hash.hexdigest(), self._memory.getvalue()
        self._await()
        self._end_thread()
        sha256 = self._hash.hexdigest()
        with local_disk(self._directory):
            os.fsync(self._file.fileno())
            self._file.close()
            return sha256, self._path.rename(self._directory / f"{sha256}.parquet")

    def _end_thread(self) -> None:
        if self._thread is not None:
            self._thread.shutdown()
        self._thread = self._passing = None

    def remove(self) -> None:
        """Drop everything; what a Parquet writer still writes when it is collected goes nowhere."""
        self._end_thread()
        if self._file is not None:
            self._file.close()
            self._path.unlink(missing_ok=True)
        self._file, self._limit = None, sys.maxsize


@contextmanager
def local_disk(directory: Path) -> Generator[None]:
    """Within it, what the disk of ``directory`` refuses is raised as `AccessDenied` or `StoreUnavailable`."""
    try:
        yield
    except OSError as error:
        kind = AccessDenied if isinstance(error, PermissionError) or error.errno == errno.EROFS else StoreUnavailable
        raise kind(
            f"A part could not be written to {directory}: {error.strerror}. No version was written. Make room, or give "
            "write permission there (TMPDIR names another place where the table's store is remote)."
        ) from error


def _write_all(file: io.FileIO, view: memoryview) -> None:
    while view:  # an unbuffered file may take less than it is given
        view = view[file.write(view) :]


def nan_columns(table: pa.Table) -> set[str]:
    """Dotted paths, as a file has them, of the float columns at any depth that hold a NaN: bounds pass over it."""
    found: set[str] = set()
    pending: list[tuple[str, Any]] = list(zip(table.column_names, table.columns, strict=True))
    while pending:
        path, column = pending.pop()
        kind: Any = column.type
        if not holds_floats(kind):
            continue
        if pa.types.is_struct(kind):
            names = [kind.field(i).name for i in range(kind.num_fields)]
            pending += [(f"{path}.{name}", pc.struct_field(column, [i])) for i, name in enumerate(names)]
        elif pa.types.is_list(kind):
            pending.append((f"{path}.list.element", cast("Any", pc.list_flatten(column))))
        elif pa.types.is_map(kind):
            entries = pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)]))
            pending.append((f"{path}.key_value", cast("Any", pc.list_flatten(column.cast(entries)))))
        elif pc.any(cast("Any", pc.is_nan(column))).as_py():
            found.add(path)
    return found


@cache
def holds_floats(data_type: Any) -> bool:
    """Whether values of an Arrow type are floats or, at any depth, hold some."""
    return pa.types.is_floating(data_type) or any(
        holds_floats(data_type.field(i).type) for i in range(data_type.num_fields)
    )
