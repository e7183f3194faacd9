"""The Arrow engine's writes to any Delta table: rows appended, deleted, updated, merged and compacted.

Files are worked on in parallel, each by itself. What a change needs to find its rows is read first, only those columns;
of the files that it concerns, all columns then.
"""

import os
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dagster_versioned.delta.actions import Add, Cdc, Remove
from dagster_versioned.delta.commit.transaction import now_ms
from dagster_versioned.delta.files import statistics
from dagster_versioned.delta.files.deletion_vectors import deleted_rows
from dagster_versioned.delta.paths import compute
from dagster_versioned.delta_tables.arrow.rules import RowRules, sided
from dagster_versioned.delta_tables.data_files import CHANGE_TYPE, DeltaFiles
from dagster_versioned.delta_tables.dml import (
    TARGET,
    FileChanges,
    Positions,
    Target,
    ThinnedFile,
    path_of,
    thinned_files,
)
from dagster_versioned.delta_tables.read import kept_ids, target_scan
from dagster_versioned.engines.arrow.scan import read_table
from dagster_versioned.engines.scan import Scan
from dagster_versioned.engines.sql import ResolvedExpression, is_true

T = TypeVar("T")
R = TypeVar("R")

WORKERS = os.cpu_count() or 1

BELIEVED_ROWS = 1 << 24
"""Statistics that tell of more rows are not taken at their word, which would cost memory for each."""

NO_ROWS: Positions = np.zeros(0, np.int64)


# --- one write -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FileRows:
    """Some columns of a data file: all its rows, and which of them are not deleted."""

    add: Add
    rows: pa.Table
    live: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class FileChange:
    """A file some of whose ``live`` rows go: positions to delete, and to update by ``renew``, which is given the rows
    at ``update`` and returns what they become."""

    add: Add
    live: Positions
    num_records: int
    delete: Positions
    update: Positions = field(default_factory=lambda: NO_ROWS)
    renew: Callable[[pa.Table], pa.Table] | None = None

    @property
    def gone(self) -> Positions:
        return np.concatenate([self.delete, self.update])

    @property
    def whole(self) -> bool:
        """Whether no row stays as it is."""
        return len(self.delete) + len(self.update) == len(self.live)


class Write:
    """What one call of the engine writes, as it comes together. Its methods may be called from any thread."""

    def __init__(self, target: Target, readers: ThreadPoolExecutor, writers: ThreadPoolExecutor) -> None:
        self.target = target
        self.rules = RowRules(target)
        self.files = DeltaFiles(target)
        self.removes: list[Remove] = []
        self.inserted = self.deleted = self.updated = self.copied = 0
        self._readers, self._writers = readers, writers
        self._room = threading.Semaphore(2 * WORKERS)
        self._adds: list[Future[Add]] = []
        self._cdcs: list[Future[Cdc]] = []
        self._thinned: dict[str, ThinnedFile] = {}
        self._now = now_ms()
        self._tracked = target.tracked

    def each(self, work: "Callable[[T], R]", items: "Iterable[T]") -> "Iterator[R]":
        """Do the work for every item, in parallel; results in order."""
        return self._readers.map(work, items)

    # --- reading

    def read(self, add: Add, columns: Sequence[str] | None = None, *, compact: bool = False) -> pa.Table:
        """Columns of all rows of a data file, deleted ones too; ``None``: all columns. ``compact``: see `Scan`."""
        return read_table(
            replace(self._scan(add), columns=None if columns is None else tuple(columns), compact=compact)
        )

    def _scan(self, add: Add) -> Scan:
        return target_scan(self.target, [replace(add, deletion_vector=None)])

    def look(self, add: Add, columns: Iterable[str]) -> FileRows:
        """Some columns of a data file, and which of its rows are not deleted."""
        wanted = sorted(columns) or [self.target.snapshot.schema.names[0]]
        rows = self.read(add, wanted)
        live = np.ones(rows.num_rows, np.bool_)
        if add.deletion_vector is not None:
            live[deleted_rows(self.target.store, add.deletion_vector, rows.num_rows, add.key)] = False
        return FileRows(add, rows, live)

    def find(self, files: Sequence[Add], condition: ResolvedExpression) -> list[FileChange]:
        """The files that have rows for which a condition is true, with these as rows to delete."""

        def found(add: Add) -> FileChange:
            file = self.look(add, condition.of(TARGET))
            hits = is_true(sided(file.rows, condition.of(TARGET)), condition) & file.live
            return FileChange(add, np.flatnonzero(file.live), len(file.live), np.flatnonzero(hits))

        return [file for file in self.each(found, files) if len(file.delete)]

    def all_of(self, add: Add) -> FileChange:
        """All rows of a file, which is not read where its statistics say how many they are, and nothing but a metric
        depends on that."""
        count = None if self.target.rules.change_feed else statistics.num_records(add.stats)
        if count is not None and count > BELIEVED_ROWS:
            count = None
        if count is None:
            file = self.look(add, ())
            return FileChange(add, np.flatnonzero(file.live), len(file.live), np.flatnonzero(file.live))
        live = np.ones(count, np.bool_)
        if add.deletion_vector is not None:
            live[deleted_rows(self.target.store, add.deletion_vector, count, add.key)] = False
        rows = np.flatnonzero(live)
        return FileChange(add, rows, count, rows)

    def with_ids(self, add: Add, rows: pa.Table) -> pa.Table:
        """All rows of a data file with the ids and commit versions that they keep, where the table tracks rows."""
        if not self._tracked:
            return rows
        identity, version = kept_ids(self._scan(add), self._tracked)
        return rows.append_column(self._tracked[0], identity).append_column(self._tracked[1], version)

    # --- writing

    def insert(self, rows: pa.Table, *, changes: bool) -> None:
        """Write complete rows as new files, and as inserts to change data files if asked."""
        self.inserted += rows.num_rows
        self._data(rows)
        if changes:
            self._changes(rows, "insert")

    def settle(self, touched: Sequence[FileChange], inserts: pa.Table | None = None) -> None:
        """Write what becomes of the files' rows, and new rows with them."""
        rows_say_it = any(not file.whole or len(file.update) for file in touched)
        changes = self.target.rules.change_feed and rows_say_it
        moved: list[pa.Table] = []
        for file, (rows, copied) in zip(
            touched, self.each(lambda file: self._settle(file, changes), touched), strict=True
        ):
            self.deleted += len(file.delete)
            self.updated += len(file.update)
            self.copied += copied
            if rows is not None:
                moved.append(rows)
        if moved:
            self._data(pa.concat_tables(moved))
        if inserts is not None and inserts.num_rows:
            self.insert(inserts, changes=changes)

    def _settle(self, file: FileChange, changes: bool) -> tuple[pa.Table | None, int]:
        """One file; returns updated rows that are to be written with those of others, and how many rows were copied."""
        copies = not self.target.rules.deletion_vectors and not file.whole
        new: pa.Table | None = None
        rows: pa.Table | None = None
        if len(file.update) or changes or copies:
            rows = self.with_ids(file.add, self.read(file.add, compact=copies))
            new = self._renewed(file, rows, changes)
        if file.whole:
            self.removes.append(file.add.removed(self._now))
            return new, 0
        stays = np.zeros(file.num_records, np.bool_)
        stays[file.live] = True
        stays[file.gone] = False
        if not copies or rows is None:
            self._thinned[file.add.key] = ThinnedFile(file.add, np.flatnonzero(~stays), file.num_records)
            return new, 0
        kept = _take(rows, np.flatnonzero(stays))
        self._data(kept if new is None else _joined(kept, new))
        self.removes.append(file.add.removed(self._now))
        return None, kept.num_rows

    def _renewed(self, file: FileChange, rows: pa.Table, changes: bool) -> pa.Table | None:
        """What the updated rows of a file become, if there are any; ``changes``: the change feed is told of all."""
        if changes and len(file.delete):
            self._changes(_spelled(_take(rows, file.delete)), "delete")
        if not len(file.update) or file.renew is None:
            return None
        old = _spelled(_take(rows, file.update))
        new = self._kept(old, file.renew(old))
        if changes:
            self._changes(old, "update_preimage")
            self._changes(new, "update_postimage")
        return new

    def _kept(self, old: pa.Table, new: pa.Table) -> pa.Table:
        """Updated rows with the ids of what they were; their commit version is that of this commit."""
        if not self._tracked:
            return new
        return new.append_column(self._tracked[0], old[self._tracked[0]]).append_column(
            self._tracked[1], cast("Any", pa.nulls(new.num_rows, pa.int64()))
        )

    def compact(self, group: Sequence[Add], order: Sequence[str]) -> list[Remove]:
        """Write the rows of files of one partition anew; the files that are gone."""
        tables: list[pa.Table] = []
        for add in group:
            rows = self.with_ids(add, self.read(add))
            if add.deletion_vector is not None:
                gone = deleted_rows(self.target.store, add.deletion_vector, rows.num_rows, add.key)
                rows = _take(rows, np.setdiff1d(np.arange(rows.num_rows), gone, assume_unique=True))
            tables.append(rows)
        rows = pa.concat_tables(tables)
        if order:
            keys: dict[str, Any] = {}
            for path in (path_of(self.rules.schema, name) for name in order):
                column: Any = rows[path[0]]
                keys[str(len(keys))] = compute.struct_field(column, list(path[1:])) if path[1:] else column
            rows = rows.take(compute.sort_indices(pa.Table.from_pydict(keys), [(name, "ascending") for name in keys]))
        self._data(rows, data_change=False)
        return [add.removed(self._now, data_change=False) for add in group]

    def _data(self, rows: pa.Table, *, data_change: bool = True) -> None:
        for values, piece in self.files.split(rows):
            if piece.num_rows:
                self._adds.append(self._written(self.files.data, values, piece, data_change=data_change))

    def _changes(self, rows: pa.Table, kind: str) -> None:
        rows = rows.select(self.target.snapshot.schema.names)
        rows = rows.append_column(CHANGE_TYPE, cast("Any", pa.repeat(kind, rows.num_rows)))
        for values, piece in self.files.split(rows, parallel=False):
            if piece.num_rows:
                self._cdcs.append(self._written(self.files.changes, values, piece))

    def _written(self, work: "Callable[..., R]", *given: Any, **named: Any) -> "Future[R]":
        """Have a file written; waits while as many as there are workers for wait already, so that memory is bounded."""
        self._room.acquire()
        future = self._writers.submit(work, *given, **named)
        future.add_done_callback(lambda _: self._room.release())
        return future

    def finish(self, metrics: dict[str, int]) -> FileChanges:
        """What was written, once all of it is. Deletion vectors are written last, in one file."""
        adds, cdcs = [future.result() for future in self._adds], [future.result() for future in self._cdcs]
        thinned, lost = thinned_files(self.target.store, list(self._thinned.values()), self._now)
        adds, removes = adds + thinned, self.removes + lost
        return FileChanges(tuple(adds), tuple(removes), tuple(cdcs), metrics, dict(self.rules.marks))


@contextmanager
def writing(target: Target) -> Generator[Write]:
    with (
        ThreadPoolExecutor(WORKERS, thread_name_prefix="rows") as readers,
        ThreadPoolExecutor(WORKERS, thread_name_prefix="files") as writers,
    ):
        try:
            yield Write(target, readers, writers)
        except BaseException:
            readers.shutdown(cancel_futures=True)
            writers.shutdown(cancel_futures=True)
            raise


def _spelled(rows: pa.Table) -> pa.Table:
    """The rows in the canonical types, without dictionaries."""
    for i, column in enumerate(rows.columns):
        if pa.types.is_dictionary(column.type):
            rows = rows.set_column(i, rows.column_names[i], column.cast(pa.string()))
    return rows


def _joined(kept: pa.Table, new: pa.Table) -> pa.Table:
    """Both tables' rows; where the first has dictionaries, both."""
    for i, column in enumerate(kept.columns):
        if pa.types.is_dictionary(column.type):
            encoded = compute.dictionary_encode(new.column(i))
            new = new.set_column(i, kept.column_names[i], encoded)
    return pa.concat_tables([kept, new]).unify_dictionaries()


def _take(rows: pa.Table, positions: Positions) -> pa.Table:
    return rows if len(positions) == rows.num_rows else rows.take(cast("Any", pa.array(positions)))
