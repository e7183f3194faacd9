"""What runs inside a Spark task that changes a Delta table: rows in, files out, one report back to the driver.

This code travels to executors by value, so it needs nothing there but what the package itself is made of.
"""

import itertools
import pickle
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dagster_versioned.delta.actions import Add, Cdc, PartitionValues
from dagster_versioned.delta.paths import compute
from dagster_versioned.delta.schema.types import schema_to_arrow
from dagster_versioned.delta_tables.data_files import CHANGE_TYPE, DeltaFiles
from dagster_versioned.delta_tables.dml import Positions, Target
from dagster_versioned.engines.conform import conform_all

REPORT_SCHEMA = "report binary"

COPY, INSERT, UPDATE, DELETE, STAY = range(5)
"""What becomes of a row: it moves, it is new, it gets new values, it goes; it met another one and stays where it is."""

OPERATION, FILE, ROW, BROKEN, ROW_ID, ROW_VERSION, GROUP = "op", "file", "row", "broken", "id", "version", "group"
"""The columns of a task's rows beside the values: `COPY` and so on; where a row lay, as the place of its file in a list
and its position in there; the number of the first rule that it breaks; what row tracking keeps; which rows go to a file
together."""

FLUSH_BYTES = 256 * 1024 * 1024
"""Rows in memory that become files, one a partition of the table."""


def new(position: int) -> str:
    """The column with the values that a column of the table gets, by its place in the schema."""
    return f"n{position}"


def old(position: int) -> str:
    """The column with the values that a column of the table had."""
    return f"o{position}"


def generated(position: int) -> str:
    """The column with the numbers that an identity column got; null where a row has one of another origin."""
    return f"g{position}"


@dataclass
class Report:
    """What a task did, or several together.

    ``rows`` are counts by operation, ``gone`` and ``stay`` positions by file, ``broken`` a count and an example by
    rule, ``marks`` the last identity values by column.
    """

    adds: list[Add] = field(default_factory=list[Add])
    cdcs: list[Cdc] = field(default_factory=list[Cdc])
    rows: dict[int, int] = field(default_factory=dict[int, int])
    gone: dict[int, Positions] = field(default_factory=dict[int, Positions])
    stay: dict[int, Positions] = field(default_factory=dict[int, Positions])
    broken: dict[int, tuple[int, str]] = field(default_factory=dict[int, "tuple[int, str]"])
    marks: dict[str, int] = field(default_factory=dict[str, int])

    def to_bytes(self) -> bytes:
        # Built-in types only, since this class travels by value.
        plain = {
            "adds": [asdict(add) for add in self.adds],
            "cdcs": [asdict(cdc) for cdc in self.cdcs],
            "rows": self.rows,
            "gone": {number: packed(positions) for number, positions in self.gone.items()},
            "stay": {number: packed(positions) for number, positions in self.stay.items()},
            "broken": self.broken,
            "marks": self.marks,
        }
        return pickle.dumps(plain)

    @classmethod
    def from_bytes(cls, data: bytes) -> "Report":
        plain: dict[str, Any] = pickle.loads(data)
        return cls(
            [Add(**add) for add in plain["adds"]],
            [Cdc(**cdc) for cdc in plain["cdcs"]],
            plain["rows"],
            {number: unpacked(data) for number, data in plain["gone"].items()},
            {number: unpacked(data) for number, data in plain["stay"].items()},
            plain["broken"],
            plain["marks"],
        )


def packed(positions: Positions) -> bytes:
    """Ascending positions as few bytes."""
    return pa.compress(np.diff(positions, prepend=0).tobytes(), codec="zstd", asbytes=True) + len(positions).to_bytes(8)


def unpacked(data: bytes) -> Positions:
    """The positions that `packed` made these bytes of."""
    size = int.from_bytes(data[-8:]) * 8
    raw = pa.decompress(data[:-8], size, codec="zstd", asbytes=True)
    return np.cumsum(np.frombuffer(raw, np.int64))


@dataclass(frozen=True)
class DeltaTask:
    """One task of a change, as a function for ``mapInArrow``.

    ``target`` is without its files. ``change_feed``: rows go to change data files, too. ``data_change`` is that of the
    files. ``steps`` are the steps of identity columns by place. ``gone`` are rows to leave out, by file (`packed`).
    """

    target: Target
    change_feed: bool = False
    data_change: bool = True
    steps: Mapping[int, int] = field(default_factory=dict[int, int])
    gone: Mapping[int, bytes] = field(default_factory=dict[int, bytes])

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        # Every attempt has names of its own, so that one that is late does no harm to its twin.
        name = f"{context.partitionId():05d}-{context.taskAttemptId()}-{self.target.write_id}"
        writer = _TaskWriter(replace(self, target=replace(self.target, write_id=name)))
        for batch in batches:
            if batch.num_rows:
                writer.take(batch)
        report = writer.finish()
        if report.rows:
            yield pa.RecordBatch.from_arrays([pa.array([report.to_bytes()], pa.binary())], names=["report"])


class _TaskWriter:
    def __init__(self, task: DeltaTask) -> None:
        self._task = task
        self._files = DeltaFiles(task.target)
        self._schema = task.target.snapshot.schema.all_nullable()
        self._tracked = task.target.tracked
        self._data: list[pa.Table] = []
        self._changes: list[pa.Table] = []
        self._left_out = {number: unpacked(bytes_) for number, bytes_ in task.gone.items()}
        self._gone: dict[int, list[Positions]] = {}
        self._stay: dict[int, list[Positions]] = {}
        self._group: int | None = None
        self.report = Report()

    def take(self, batch: pa.RecordBatch) -> None:
        if self._left_out:
            batch = self._remaining(batch)
        names = batch.schema.names
        operations = _numbers(batch, OPERATION).astype(np.int8)
        for operation, count in zip(*np.unique(operations, return_counts=True), strict=True):
            self.report.rows[int(operation)] = self.report.rows.get(int(operation), 0) + int(count)
        if BROKEN in names and self._is_broken(batch):
            return
        self._note(batch, (operations == UPDATE) | (operations == DELETE), self._gone)
        self._note(batch, operations == STAY, self._stay)
        self._mark(batch)
        if new(0) in names:
            self._keep(batch, operations)
        if self._task.change_feed:
            self._record(batch, operations)

    def finish(self) -> Report:
        self._flush_data()
        self._flush_changes()
        self.report.gone = {number: np.sort(np.concatenate(found)) for number, found in self._gone.items()}
        self.report.stay = {number: np.sort(np.concatenate(found)) for number, found in self._stay.items()}
        return self.report

    # --- what the rows say

    def _remaining(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        stays = np.ones(batch.num_rows, np.bool_)
        for number, rows, mask in _by_file(batch):
            left_out = self._left_out.get(number)
            if left_out is not None:
                stays[mask] = ~_among(rows, left_out)
        return batch.filter(pa.array(stays))

    def _is_broken(self, batch: pa.RecordBatch) -> bool:
        """Count the rows that break a rule; once there is one, nothing more is written."""
        broken = cast("Any", batch.column(BROKEN))
        if broken.null_count < len(broken):
            numbers = compute.fill_null(broken, -1).to_numpy(zero_copy_only=False)
            for number, first, count in zip(*np.unique(numbers, return_index=True, return_counts=True), strict=True):
                if number >= 0:
                    before = self.report.broken.get(int(number))
                    example = before[1] if before else self._shown(batch, int(first))
                    self.report.broken[int(number)] = ((before[0] if before else 0) + int(count), example)
            self._data, self._changes = [], []
        return bool(self.report.broken)

    def _mark(self, batch: pa.RecordBatch) -> None:
        """Keep the last numbers of identity columns."""
        for place, step in self._task.steps.items():
            numbers = compute.drop_null(batch.column(generated(place)))
            if len(numbers):
                name = self._schema.names[place]
                furthest = (compute.max if step > 0 else compute.min)(numbers).as_py()
                known = self.report.marks.get(name, furthest)
                self.report.marks[name] = max(known, furthest) if step > 0 else min(known, furthest)

    def _shown(self, batch: pa.RecordBatch, row: int) -> str:
        columns: list[Any] = [batch.column(new(i)) for i in range(len(self._schema.fields))]
        values: dict[str, object] = {
            name: column[row].as_py() for name, column in zip(self._schema.names, columns, strict=True)
        }
        text = ", ".join(f"{name}={value!r:.50}" for name, value in values.items())
        return text if len(text) <= 300 else f"{text[:300]}…"

    def _note(self, batch: pa.RecordBatch, which: NDArray[np.bool_], places: dict[int, list[Positions]]) -> None:
        if which.any():
            for number, rows, _ in _by_file(batch.filter(pa.array(which))):
                places.setdefault(number, []).append(rows)

    # --- files

    def _keep(self, batch: pa.RecordBatch, operations: NDArray[np.int8]) -> None:
        """Take the rows that are in the table from now on."""
        stays = operations < DELETE
        kept = batch if stays.all() else batch.filter(pa.array(stays))
        if not kept.num_rows:
            return
        table = self._values(kept, new)
        if self._tracked and ROW_ID in kept.schema.names:
            for name, column in zip(self._tracked, (ROW_ID, ROW_VERSION), strict=True):
                table = table.append_column(name, cast("Any", kept.column(column)))
        if GROUP not in kept.schema.names:
            self._add(table)
            return
        groups = _numbers(kept, GROUP)
        starts = [0, *(np.flatnonzero(np.diff(groups)) + 1).tolist(), len(groups)]
        for start, stop in itertools.pairwise(starts):
            if self._group != groups[start]:
                self._flush_data()
                self._group = int(groups[start])
            self._add(table.slice(start, stop - start))

    def _add(self, table: pa.Table) -> None:
        self._data.append(table)
        if sum(batch.nbytes for batch in self._data) >= FLUSH_BYTES:
            self._flush_data()

    def _record(self, batch: pa.RecordBatch, operations: NDArray[np.int8]) -> None:
        """Take what the change feed says of the rows."""
        for operation, side, kind in (
            (DELETE, old, "delete"),
            (UPDATE, old, "update_preimage"),
            (UPDATE, new, "update_postimage"),
            (INSERT, new, "insert"),
        ):
            rows = batch.filter(cast("Any", pa.array(operations == operation)))
            if rows.num_rows:
                table = self._values(rows, side)
                kinds: Any = pa.repeat(kind, table.num_rows)
                self._changes.append(table.append_column(CHANGE_TYPE, kinds))
        if sum(change.nbytes for change in self._changes) >= FLUSH_BYTES:
            self._flush_changes()

    def _values(self, batch: pa.RecordBatch, side: Any) -> pa.Table:
        """The columns of the table, by their names there and in the canonical types."""
        chosen = batch.select([side(i) for i in range(len(self._schema.fields))])
        named = chosen.rename_columns(list(self._schema.names))
        return pa.Table.from_batches(conform_all([named], self._schema), schema_to_arrow(self._schema))

    def _flush_data(self) -> None:
        for values, rows in self._split(self._data):
            self.report.adds.append(self._files.data(values, rows, data_change=self._task.data_change))
        self._data = []

    def _flush_changes(self) -> None:
        for values, rows in self._split(self._changes):
            self.report.cdcs.append(self._files.changes(values, rows))
        self._changes = []

    def _split(self, tables: list[pa.Table]) -> Iterator[tuple[PartitionValues, pa.Table]]:
        return self._files.split(pa.concat_tables(tables), parallel=False) if tables else iter(())


def _numbers(batch: pa.RecordBatch, name: str) -> NDArray[np.int64]:
    return batch.column(name).to_numpy(zero_copy_only=False)


def _by_file(batch: pa.RecordBatch) -> Iterator[tuple[int, Positions, NDArray[np.bool_]]]:
    """The files of which there are rows: each with the positions, and which rows of the batch they are."""
    files, rows = _numbers(batch, FILE), _numbers(batch, ROW)
    for number in np.unique(files):
        mask = files == number
        yield int(number), rows[mask].astype(np.int64), mask


def _among(rows: Positions, sorted_positions: Positions) -> NDArray[np.bool_]:
    places = np.minimum(np.searchsorted(sorted_positions, rows), len(sorted_positions) - 1)
    return sorted_positions[places] == rows
