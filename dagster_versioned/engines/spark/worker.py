"""What runs inside a Spark task: rows in, parts out, one report back to the driver.

This code travels to executors by value, so it needs nothing there but pyarrow, numpy and, for S3, boto3.
"""

import io
import itertools
import os
import pickle
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dagster_versioned.delta.files.arrow_memory import in_arrow
from dagster_versioned.delta.schema.types import StructType, schema_to_arrow
from dagster_versioned.engines.conform import conform_all
from dagster_versioned.engines.parquet_part import BatchQueue, PartWriter, local_disk, partitioned_parts
from dagster_versioned.engines.parts import MEBIBYTE, Part, RowOrder, RowsSummarizer, WriteOptions
from dagster_versioned.engines.spark.task_errors import OLDEST_ARROW, too_old
from dagster_versioned.errors import StorageError
from dagster_versioned.identity.digest import BagDigest, row_lanes
from dagster_versioned.storage.object_store import ObjectStore

REPORT_SCHEMA = "report binary, rows binary"

SMALL_TOTAL_BYTES = 128 * MEBIBYTE
"""Bounds what many thousand small tasks send home together, far below ``spark.driver.maxResultSize``."""
ORDINALS_PER_TASK = 1 << 20
"""A task numbers its parts from its partition id times this: in the frame's order, and unique without talking."""
PENDING_BYTES = 64 * MEBIBYTE
"""Rows that may wait for the encoder while the next ones are received and hashed."""


@dataclass(frozen=True)
class TaskReport:
    """What one task did: its contribution to the contents, and its parts.

    ``lanes`` are those of a `BagDigest`, or ``sequence`` is the text of the digest of the rows in order. ``size`` is in
    bytes as `row_size` counts. A part's ``source`` is a path on the driver's machine or a key in the table's store.
    ``plain`` is the path of an Arrow file below the shared directory, with the rows of a task without parts.
    """

    task: int
    nrow: int
    size: int
    null_counts: list[int]
    lanes: list[int]
    sequence: str | None
    parts: list[Part]
    plain: str | None = None

    def to_bytes(self) -> bytes:
        # Not JSON: that loses the decimals of the statistics. Built-in types only, since this class travels by value.
        return pickle.dumps(asdict(self))

    @classmethod
    def from_bytes(cls, data: bytes) -> "TaskReport":
        fields: dict[str, Any] = pickle.loads(data)
        parts = [Part(**part) for part in fields.pop("parts")]
        return cls(**fields, parts=parts)


@dataclass(frozen=True)
class Task:
    """One task of a write, as a function for ``mapInArrow``.

    Parts go below ``directory`` if tasks share it with the driver; the driver has created it, which is how a task can
    tell. Otherwise they are spooled locally and uploaded below ``prefix`` of ``store``. ``guarded``: rows have one more
    column (`batches.narrow`), and a task that meets a wide row reports nothing.
    """

    schema: StructType
    row_order: RowOrder
    options: WriteOptions
    directory: Path | None
    store: ObjectStore | None
    prefix: str
    guarded: bool = False

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        require_arrow()
        context = TaskContext.get()
        assert context is not None
        partition, attempt = context.partitionId(), context.taskAttemptId()
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            return
        with tempfile.TemporaryDirectory(prefix="dagster-versioned-") as spool:
            # A folder for each attempt: one that fails removes its files, and must not remove an equal twin's.
            folder = f"{partition}-{attempt}"
            directory = self._shared(folder) or Path(spool)
            try:
                report, rows = self._run(_chain(first, batches), partition, directory)
            except _WideRow:
                yield _result(None, None)
                return
            parts = [self._stage(part, directory, folder) for part in report.parts]
        yield _result(replace(report, parts=parts).to_bytes(), rows)

    def _shared(self, folder: str) -> Path | None:
        if self.directory is not None and self.directory.exists():
            return self.directory / folder
        if self.store is None:
            raise StorageError(
                f"The folder {self.directory} is not visible to the Spark executor on {os.uname().nodename}. Nothing "
                "was committed. Use a folder that every executor shares, or a store on S3."
            )
        return None

    def _is_shared(self, directory: Path) -> bool:
        return self.directory is not None and directory.parent == self.directory

    def _run(
        self, batches: Iterator[pa.RecordBatch], partition: int, directory: Path
    ) -> tuple[TaskReport, bytes | None]:
        if self.guarded:
            batches = _narrow(batches)
        if self.options.partition_columns:
            return self._run_by_values(batches, partition, directory), None
        # An attempt may go on when the write is over and its folder gone, which it must not make anew.
        first = self.options.first_ordinal + partition * ORDINALS_PER_TASK
        options = replace(self.options, first_ordinal=first)
        writer = PartWriter(self.schema, directory, options, make_parents=False)
        tally = RowsSummarizer(self.schema, self.row_order)
        try:
            # Encoding releases the GIL and so does most of hashing: the two run side by side while the JVM goes on.
            with ThreadPoolExecutor(1) as encoder:
                pending = BatchQueue(PENDING_BYTES)
                for batch in conform_all(_renamed(batches, self.schema), self.schema):
                    pending.add(encoder.submit(writer.write, batch), batch.nbytes)
                    tally.update(batch)
                pending.wait()
                report = _report(tally, partition, writer.size)
                rows = writer.take_buffered()
                small = _compressed(rows, self.options.tuning.sent_home_bytes, partition)
                if small is None and rows is not None and self._stays_plain(writer.size, partition, directory):
                    report = replace(report, plain=_left_plain(rows, directory))
                elif small is None:
                    return replace(report, parts=writer.close()), None
                writer.abort()
                return report, small
        except BaseException:
            writer.abort()
            raise

    def _run_by_values(self, batches: Iterator[pa.RecordBatch], partition: int, directory: Path) -> TaskReport:
        """The rows of one combination of values after the other; all rows of a combination are in one task."""
        tally = RowsSummarizer(self.schema, self.row_order)
        parts: list[Part] = []
        waiting: list[pa.RecordBatch] = []
        size = 0
        last: tuple[Any, ...] | None = None

        def write() -> None:
            rows = pa.Table.from_batches(waiting, schema_to_arrow(self.schema))
            parts.extend(partitioned_parts(rows, self.schema, directory, self.options, make_parents=False))
            waiting.clear()

        for batch in conform_all(_renamed(batches, self.schema), self.schema):
            tally.update(batch)
            for values, rows in _runs(batch, self.options.partition_columns):
                if last is not None and values != last and waiting:
                    write()
                waiting.append(rows)
                last = values
            size += batch.nbytes
        if waiting:
            write()
        return replace(_report(tally, partition, size), parts=parts)

    def _stays_plain(self, size: int, partition: int, directory: Path) -> bool:
        share = self.options.tuning.left_plain_bytes // (partition + 1)
        return self._is_shared(directory) and self.row_order == "ignored" and size <= share

    def _stage(self, part: Part, directory: Path, folder: str) -> Part:
        """The part where the driver, or the store's server, can take it from."""
        if self._is_shared(directory):
            path = directory / f"{part.sha256}.parquet"
            if isinstance(part.source, bytes):
                _write_durably(path, part.source)
            return replace(part, source=f"{folder}/{path.name}")
        assert self.store is not None
        key = f"{self.prefix}{part.sha256}.parquet"
        if isinstance(part.source, bytes):
            self.store.put(key, part.source)
        else:
            self.store.put_file(key, Path(part.source))
        return replace(part, source=key)


def require_arrow() -> None:
    """Raise `MissingExtra` where this runs with a pyarrow that is too old."""
    if int(pa.__version__.partition(".")[0]) < OLDEST_ARROW:
        raise too_old(os.uname().nodename, pa.__version__)


class _WideRow(Exception):
    """A row for which Spark needs smaller batches."""


def _report(tally: RowsSummarizer, partition: int, size: int) -> TaskReport:
    lanes = list(tally.digest.lanes) if isinstance(tally.digest, BagDigest) else []
    sequence = None if isinstance(tally.digest, BagDigest) else tally.digest.finish().text
    return TaskReport(partition, tally.nrow, size, tally.null_counts, lanes, sequence, parts=[])


def together(
    reports: Iterable[TaskReport], schema: StructType, key: bytes | None = None
) -> tuple[BagDigest, tuple[int, ...]]:
    """The digest of the rows of all tasks that they have no order in, under a key or not, and the nulls by column."""
    bag, null_counts = BagDigest(schema_to_arrow(schema), key), [0] * len(schema.fields)
    for report in reports:
        null_counts = [a + b for a, b in zip(null_counts, report.null_counts, strict=True)]
        if report.lanes:
            bag.merge(*report.lanes)
    return bag, tuple(null_counts)


def _runs(batch: pa.RecordBatch, columns: Sequence[str]) -> Iterator[tuple[tuple[Any, ...], pa.RecordBatch]]:
    """The batch cut where a value of the columns changes; nulls are one value."""
    changes = np.zeros(batch.num_rows, np.bool_)
    for name in columns:
        encoded: Any = pc.dictionary_encode(cast("Any", batch.column(name)))
        codes: NDArray[np.int32] = pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False)
        changes[1:] |= codes[1:] != codes[:-1]
    starts: list[int] = [0, *np.flatnonzero(changes).tolist(), batch.num_rows]
    for start, stop in itertools.pairwise(starts):
        if stop > start:
            values: list[Any] = [batch.column(name)[start].as_py() for name in columns]
            yield tuple(values), batch.slice(start, stop - start)


def with_lanes(
    batches: Iterator[pa.RecordBatch], schema: StructType, names: tuple[str, str]
) -> Iterator[pa.RecordBatch]:
    """The batches as they are, and in two more columns the hashes of each row (`row_lanes`).

    Spark knows no unsigned numbers, so they are shifted into the signed ones, which keeps their order.
    """
    for batch in batches:
        if not batch.num_rows:
            continue
        conformed = list(conform_all(_renamed(iter([batch]), schema), schema))
        both = zip(*(row_lanes(part) for part in conformed), strict=True)
        signed = [pa.array((np.concatenate(lanes) ^ np.uint64(1 << 63)).view(np.int64)) for lanes in both]
        yield pa.RecordBatch.from_arrays([*batch.columns, *signed], [*batch.schema.names, *names])


def tallied(
    batches: Iterator[pa.RecordBatch], schema: StructType, key: bytes | None = None
) -> Iterator[pa.RecordBatch]:
    """One report of what the rows of a task say without an order, under a key or not, and of no parts."""
    tally = RowsSummarizer(schema, "ignored", key)
    for batch in conform_all(_renamed(batches, schema), schema):
        tally.update(batch)
    yield _result(_report(tally, 0, 0).to_bytes(), None)


def rows_from(source: bytes | Path) -> pa.Table:
    """The rows that a task sent home, or left in a file."""
    return pa.ipc.open_stream(in_arrow(source) if isinstance(source, bytes) else pa.memory_map(str(source))).read_all()


def _compressed(table: pa.Table | None, at_most: int, partition: int) -> bytes | None:
    """The rows in a form small enough to send home, if there is one."""
    limit = min(at_most, SMALL_TOTAL_BYTES // (partition + 1))
    if table is None or table.nbytes > 32 * limit:
        return None
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as stream:
        stream.write_table(table.combine_chunks())
    return sink.getvalue() if sink.tell() <= limit else None


def _left_plain(table: pa.Table, directory: Path) -> str:
    """The path, below the shared directory, of a file with these rows. Not durable: no version ever refers to it."""
    path = directory / "rows.arrow"
    with local_disk(directory):
        directory.mkdir(exist_ok=True)
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
    return f"{directory.name}/{path.name}"


def _result(report: bytes | None, rows: bytes | None) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array([report], pa.binary()), pa.array([rows], pa.binary())], names=["report", "rows"]
    )


def _narrow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches without their last column, which says of each row whether it is wide."""
    for batch in batches:
        if pc.any(cast("Any", batch.column(batch.num_columns - 1))).as_py():
            raise _WideRow
        yield batch.select(range(batch.num_columns - 1))


def _renamed(batches: Iterator[pa.RecordBatch], schema: StructType) -> Iterator[pa.RecordBatch]:
    names = list(schema.names)
    for batch in batches:
        yield pa.RecordBatch.from_arrays(batch.columns, names)  # pyarrow 14 has no `rename_columns` of batches


def _chain(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from rest


def _write_durably(path: Path, data: bytes) -> None:
    path.parent.mkdir(exist_ok=True)
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
