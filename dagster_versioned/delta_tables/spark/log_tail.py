"""A Delta table as a stream: the rows that are there, then those of each commit that adds some.

The position in the stream is a file: the next one to read, of a commit's or of the snapshot that the stream began with.
Spark keeps it in the query's checkpoint, so that a query which is started again goes on where it was.

Where Spark plans a batch, beside the driver, there is no session that could be asked to replay a log. So the files of a
large snapshot are taken as its checkpoint has them (`stream_snapshot`), and of a batch with many of them only the
places in that checkpoint are planned: tasks read from there which files they read.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any, cast

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow

from dagster_versioned.delta.actions import Add, PartitionValues
from dagster_versioned.delta.features import require_read
from dagster_versioned.delta.files.file_actions import adds_table
from dagster_versioned.delta.files.partition_values import encode
from dagster_versioned.delta.log.change_feed import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION
from dagster_versioned.delta.log.checkpoint_pieces import CheckpointPiece
from dagster_versioned.delta.log.checkpoint_read import read_live_files
from dagster_versioned.delta.log.commits import Commit, newest_version, read_commit
from dagster_versioned.delta.log.history import listed_commits
from dagster_versioned.delta.log.snapshot import Snapshot, load_head
from dagster_versioned.delta.schema.types import StructType, parse_schema
from dagster_versioned.delta.table import Table
from dagster_versioned.delta_tables.change_feed import feed_scan, place
from dagster_versioned.delta_tables.read import delta_scan
from dagster_versioned.delta_tables.spark.data_source_tasks import FilesReader, partitions_of
from dagster_versioned.delta_tables.spark.log_plan import large_log
from dagster_versioned.delta_tables.spark.planned_rows import OPEN_BYTES
from dagster_versioned.delta_tables.stream_snapshot import (
    LiveFiles,
    SnapshotByCheckpoint,
    SnapshotByTime,
    StreamSnapshot,
    large_checkpoint,
)
from dagster_versioned.engines.arrow.scan import stream_table
from dagster_versioned.engines.scan import Scan, ScanFile
from dagster_versioned.errors import InvalidInput, ObjectNotFound, VersionedError, VersionNotFound
from dagster_versioned.storage.object_store import ObjectStore

MAX_FILES = 1000
"""Files a micro-batch at most, as in the reference; ``maxFilesPerTrigger``."""

LARGE = 100_000
"""File actions in a checkpoint beyond which the files that a stream begins with are not held in memory, all at once."""

MANY_FILES = 10_000
"""Files of a batch beyond which tasks find in the checkpoint which they read: as plans, they take a kilobyte each."""

_PLANNED_BYTES = 1 << 30
"""What a task reads that looks into the checkpoint first, which takes as long as reading some 50 MB."""

_CACHED_VERSIONS = 100

_SIZES = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """Where a stream begins and what it does about commits that take rows away.

    ``startingVersion`` is the first commit to read (``latest``: the next one), ``startingTimestamp`` (ISO 8601) the
    time of the first; with neither the stream begins with all rows that are there. ``maxFilesPerTrigger`` (1000) and
    ``maxBytesPerTrigger`` (``512m``) bound a micro-batch, which has one file at least.

    A commit that only removes rows ends the query unless ``ignoreDeletes``; one that changes rows ends it unless
    ``ignoreChanges``, with which all rows of the files it rewrote come (again), or ``skipChangeCommits``, with which
    nothing of it comes. With ``readChangeFeed`` what was changed comes instead, as `change_feed.read_changes` has
    it; the rows that are there at first are inserts.
    """

    starting_version: int | str | None = None
    starting_timestamp: str | None = None
    max_files: int = MAX_FILES
    max_bytes: int | None = None
    ignore_deletes: bool = False
    ignore_changes: bool = False
    skip_changes: bool = False
    feed: bool = False

    @classmethod
    def of(cls, options: Mapping[str, str]) -> "StreamOptions":
        """Parse the options of the format. Raises `InvalidInput`."""
        version, timestamp = options.get("startingVersion"), options.get("startingTimestamp")
        if version is not None and timestamp is not None:
            raise InvalidInput(f"The stream is to begin at version {version} and at {timestamp}. Pass one of them.")
        return cls(
            version if version is None or version == "latest" else _count(version, "startingVersion"),
            timestamp,
            max(1, _count(options.get("maxFilesPerTrigger", str(MAX_FILES)), "maxFilesPerTrigger")),
            None if (size := options.get("maxBytesPerTrigger")) is None else _size(size),
            _flag(options, "ignoreDeletes"),
            _flag(options, "ignoreChanges"),
            _flag(options, "skipChangeCommits"),
            _flag(options, "readChangeFeed"),
        )


def _count(text: str, name: str) -> int:
    if not text.isdecimal():
        raise InvalidInput(f"{name} is {text!r:.50}, which is no whole number of 0 or more.")
    return int(text)


def _size(text: str) -> int:
    number, unit = text.lower().removesuffix("b"), 1
    if number[-1:] in _SIZES:
        number, unit = number[:-1], _SIZES[number[-1]]
    return max(1, _count(number, "maxBytesPerTrigger") * unit)


def _flag(options: Mapping[str, str], name: str) -> bool:
    text = options.get(name, "false").lower()
    if text not in ("true", "false"):
        raise InvalidInput(f"{name} is {text!r:.50}; it is 'true' or 'false'.")
    return text == "true"


@dataclass(frozen=True, slots=True)
class Position:
    """The next file to read: the one at ``index`` of ``version``'s.

    ``base`` is the version that the stream began with; ``whole``: with all rows of its snapshot, else with those that
    its commit added. Both stay, so that an offset says by itself where its stream began: a query that ends before its
    first batch is done asks for the beginning again, when the table may have a newer version. ``checkpoint`` and
    ``etag`` are those in whose order the files of a large snapshot come; of others, and of every stream that began
    before there was such an order, the files come by time.
    """

    base: int
    whole: bool
    version: int
    index: int
    checkpoint: int | None = None
    etag: str | None = None

    @property
    def beginning(self) -> "Position":
        return replace(self, version=self.base, index=0)

    @property
    def in_snapshot(self) -> bool:
        return self.whole and self.version == self.base

    @property
    def next_version(self) -> "Position":
        return replace(self, version=self.version + 1, index=0)

    def to_offset(self) -> dict[str, Any]:
        """What Spark keeps: equal texts for equal positions, those of earlier releases included."""
        return {name: value for name, value in asdict(self).items() if value is not None}


class LogTail(FilesReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The stream of a table whose columns are those of ``scan``, which has no files."""

    def __init__(self, store: ObjectStore, snapshot: Snapshot, scan: Scan, options: StreamOptions) -> None:
        super().__init__(scan)
        self.store = store
        self.options = options
        self.head = snapshot
        self.newest = snapshot.version
        self.last: int | None = None
        self.begun: tuple[Position, Snapshot, StreamSnapshot] | None = None
        self.files: OrderedDict[int, list[ScanFile]] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        """What the tasks need; the rest is for who plans."""
        return {"scan": self.scan, "head": self.head}

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition.value, Mapping):
            files = self._found(cast("dict[str, Any]", partition.value))
            yield from stream_table(replace(self.scan, files=tuple(files)))
        else:
            yield from super().read(partition)

    # --- positions ---

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - PySpark's name
        return self._beginning().to_offset()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - PySpark's name
        position, newest = Position(**start), self._newest()
        if isinstance(limit, ReadAllAvailable):
            ended = position.version > newest
            return (position if ended else replace(position, version=newest + 1, index=0)).to_offset()
        files = bytes_ = 0
        while position.version <= newest:
            for index, size in self._sizes(position):
                full = files >= self.options.max_files
                full |= self.options.max_bytes is not None and bytes_ + size > self.options.max_bytes
                if files and full:
                    return position.to_offset()
                files, bytes_ = files + 1, bytes_ + size
                position = replace(position, index=index + 1)
            position = position.next_version
        return position.to_offset()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - PySpark's name
        return ReadMaxFiles(self.options.max_files)

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 - PySpark's name
        return {"version": self._newest() + 1, "index": 0}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - PySpark's name
        self.last = newest_version(self.store, self.newest)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        first, last = Position(**start), Position(**end)
        if first.beginning != last.beginning:
            first = last.beginning
        tasks: list[InputPartition] = []
        if first.in_snapshot:
            tasks = self._snapshot_tasks(first, last.index if last.in_snapshot else None)
            if last.in_snapshot:
                return tasks
            first = first.next_version
            self.begun = None
        return [*tasks, *partitions_of(self._between(first, last))]

    def _beginning(self) -> Position:
        version = self.options.starting_version
        if self.options.starting_timestamp is not None:
            version = self._version_at(self.options.starting_timestamp)
        newest = self._newest()
        match version:
            case None:
                checkpoint, etag = large_checkpoint(self.store, newest, large_log(LARGE)) or (None, None)
                return Position(newest, True, newest, 0, checkpoint, etag)
            case "latest":
                return Position(newest + 1, False, newest + 1, 0)
            case _:
                first = cast("int", version)
                if first > newest + 1:
                    raise VersionNotFound(f"The stream is to begin at version {first}, but the newest is {newest}.")
                return Position(first, False, first, 0)

    def _version_at(self, timestamp: str) -> int:
        """The first version that was committed at or after a time."""
        table = Table(self.store)
        moment = place(timestamp)
        assert not isinstance(moment, int)
        try:
            before = table.head(timestamp=moment)
        except VersionNotFound:
            return next(version for version, _ in listed_commits(self.store))
        exact = before.timestamp_ms == int(moment.timestamp() * 1000)
        return before.version if exact else before.version + 1

    def _newest(self) -> int:
        if self.last is not None:
            return self.last
        self.newest = newest_version(self.store, self.newest)
        return self.newest

    # --- files of the snapshot ---

    def _sizes(self, position: Position) -> Iterator[tuple[int, int]]:
        """Index and bytes of each file from a position on to the end of its version."""
        if not position.in_snapshot:
            yield from enumerate((file.size for file in self._files(position)[position.index :]), position.index)
            return
        _, files = self._snapshot(position)
        for some in files.between(position.index, files.end):
            yield from zip(some.indices.tolist(), some.sizes.tolist(), strict=True)

    def _snapshot(self, position: Position) -> tuple[Snapshot, StreamSnapshot]:
        beginning = position.beginning
        if self.begun is None or self.begun[0] != beginning:
            head = self.head if self.head.version == position.base else load_head(self.store, position.base)
            _require_columns(head.schema, self.head.schema, head.version)
            if position.checkpoint is None:
                found = SnapshotByTime(self.store, position.base)
            else:
                found = SnapshotByCheckpoint(self.store, position.base, position.checkpoint, position.etag or "")
            self.begun = beginning, head, found
        return self.begun[1:]

    def _snapshot_tasks(self, first: Position, end: int | None) -> list[InputPartition]:
        head, files = self._snapshot(first)
        end = files.end if end is None else end
        values = _values_of_inserts(head) if self.options.feed else {}
        if first.checkpoint is None or end - first.index <= MANY_FILES:
            tables = [some.files for some in files.between(first.index, end)]
            return partitions_of(_with(values, self._located(pa.concat_tables(tables)))) if tables else []
        tasks: list[InputPartition] = []
        for some in files.between(first.index, end):
            if some.piece is None:
                tasks += partitions_of(_with(values, self._located(some.files)))
                continue
            tasks += _tasks_of_piece(some, some.piece, values)
        return tasks

    def _found(self, task: Mapping[str, Any]) -> list[ScanFile]:
        """The files of a task, in the piece of a checkpoint that it names."""
        groups: list[int] | None = task["row_groups"]
        table = read_live_files(
            self.scan.store, task["key"], None if groups is None else range(*groups), task["layout"]
        )
        (first, last), gone = task["rows"], frozenset(task["gone"])
        rows = [row for row in range(first, last + 1) if row not in gone]
        return _with(task["values"], self._located(table.take(pa.array(rows, pa.int64()))))

    # --- files of commits ---

    def _between(self, first: Position, last: Position) -> Iterator[ScanFile]:
        position = first
        while position.version < last.version:
            yield from self._files(position)[position.index :]
            position = position.next_version
        if last.index:
            yield from self._files(last)[position.index : last.index]

    def _files(self, position: Position) -> list[ScanFile]:
        """All files of a commit, in an order that stays."""
        version = position.version
        if version not in self.files:
            commit = self._commit(version)
            self.files[version] = (
                self._changed(commit) if self.options.feed else self._located(adds_table(self._added(commit)))
            )
            if len(self.files) > _CACHED_VERSIONS:
                self.files.popitem(last=False)
        return self.files[version]

    def _commit(self, version: int) -> Commit:
        try:
            return read_commit(self.store, version)
        except ObjectNotFound as error:
            raise VersionNotFound(
                f"The commit {version} is no longer in the log of {self.store.uri}, so the stream would miss its rows."
                " What came until now is complete. Begin anew, with a new checkpoint, or read the table as a batch."
            ) from error

    def _added(self, commit: Commit) -> list[Add]:
        """The files of a commit whose rows are new. Raises `VersionedError` where it is not that simple."""
        self._require_same(commit)
        adds = [add for add in commit.adds if add.data_change]
        if not any(remove.data_change for remove in commit.removes) or self.options.ignore_changes:
            return adds
        if self.options.skip_changes or (not adds and self.options.ignore_deletes):
            return []
        raise self._rows_gone(commit, are_changed=bool(adds))

    def _rows_gone(self, commit: Commit, *, are_changed: bool) -> VersionedError:
        operation = (commit.commit_info or {}).get("operation", "unknown")
        changed, removed = ("changed", "ignoreChanges (rows may come twice)"), ("removed", "ignoreDeletes")
        did, option = changed if are_changed else removed
        return VersionedError(
            f"Version {commit.version} of {self.store.uri} ({operation}) {did} rows that the stream may have read. What"
            f" came until now is complete. Say what is to be done: {option}, skipChangeCommits, or begin anew with a"
            " new checkpoint."
        )

    def _changed(self, commit: Commit) -> list[ScanFile]:
        """The files that say what a commit changed."""
        if commit.metadata is not None:
            _require_columns(parse_schema(commit.metadata.schema_string), self.head.schema, commit.version)
        return list(feed_scan(self.store, commit.version, commit.version, None).files)

    def _require_same(self, commit: Commit) -> None:
        """Refuse a commit behind which the table is not read, or not handed on, as the stream does."""
        require_read(commit.protocol or self.head.protocol, commit.metadata or self.head.metadata)
        if commit.metadata is not None:
            _require_columns(parse_schema(commit.metadata.schema_string), self.head.schema, commit.version)

    def _located(self, table: pa.Table) -> list[ScanFile]:
        """The files of a table with the schema `files.FILES`, in its order."""
        self.head.reach.confine(table["path"])
        scan = delta_scan(self.scan.store, replace(self.head, files=table))
        by_key = {file.key: file for file in scan.files}
        return [by_key[key] for key in cast("list[str]", table["key"].to_pylist())]


def _tasks_of_piece(files: LiveFiles, piece: CheckpointPiece, values: PartitionValues) -> Iterator[InputPartition]:
    """Tasks that find in the piece of a checkpoint which files they read (`LogTail._found`)."""
    groups = piece.row_groups
    where = {
        "key": piece.key,
        "row_groups": None if groups is None else [groups.start, groups.stop],
        "layout": piece.layout,
    }
    costs = np.cumsum(files.sizes + OPEN_BYTES) // _PLANNED_BYTES
    for rows in np.split(files.rows, np.nonzero(np.diff(costs))[0] + 1):
        first, last = int(rows[0]), int(rows[-1])
        gone = sorted(set(range(first, last + 1)).difference(rows.tolist()))
        yield InputPartition({**where, "rows": [first, last], "gone": gone, "values": values})


def _with(values: PartitionValues, files: Sequence[ScanFile]) -> list[ScanFile]:
    if not values:
        return list(files)
    return [replace(file, partition_values={**file.partition_values, **values}) for file in files]


def _values_of_inserts(head: Snapshot) -> dict[str, str | None]:
    """What the feed says of rows that are there at first."""
    moment = datetime.fromtimestamp(head.timestamp_ms / 1000, UTC)
    return {
        CHANGE_TYPE: "insert",
        COMMIT_VERSION: encode(head.version, "long"),
        COMMIT_TIMESTAMP: encode(moment, "timestamp"),
    }


def _require_columns(found: StructType, stream: StructType, version: int) -> None:
    """Refuse a version that has columns which the stream does not hand on as they are."""
    known = stream.all_nullable()
    for field in found.all_nullable().fields:
        if field.name not in known.names or known.field(field.name).type != field.type:
            raise VersionedError(
                f"Version {version} changed the table's schema: column {field.name!r} is new, or of another type, to"
                " the stream. What came until now is complete. Start the query again, which takes the new schema."
            )
