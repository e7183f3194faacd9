"""A Delta table as a stream: the rows that are there, then those of each commit that adds some.

The position in the stream is a file: the next one to read, of a commit's or of the snapshot that the stream began with.
Spark keeps it in the query's checkpoint, so that a query which is started again goes on where it was.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any, cast

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow

from dagster_versioned.delta.actions import Add
from dagster_versioned.delta.features import require_read
from dagster_versioned.delta.files.file_actions import adds_table
from dagster_versioned.delta.files.partition_values import encode
from dagster_versioned.delta.log.change_feed import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION
from dagster_versioned.delta.log.commits import Commit, list_log, read_commit
from dagster_versioned.delta.log.history import listed_commits
from dagster_versioned.delta.log.snapshot import Snapshot, load_snapshot
from dagster_versioned.delta.schema.types import StructType, parse_schema
from dagster_versioned.delta.table import Table
from dagster_versioned.delta_tables.change_feed import feed_scan, place
from dagster_versioned.delta_tables.read import delta_scan
from dagster_versioned.delta_tables.spark.data_source_tasks import FilesReader, partitions_of
from dagster_versioned.engines.scan import Scan, ScanFile
from dagster_versioned.errors import InvalidInput, ObjectNotFound, VersionedError, VersionNotFound
from dagster_versioned.storage.object_store import ObjectStore

MAX_FILES = 1000
"""Files a micro-batch at most, as in the reference; ``maxFilesPerTrigger``."""

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
    first batch is done asks for the beginning again, when the table may have a newer version.
    """

    base: int
    whole: bool
    version: int
    index: int

    @property
    def beginning(self) -> "Position":
        return replace(self, version=self.base, index=0)

    @property
    def in_snapshot(self) -> bool:
        return self.whole and self.version == self.base


class LogTail(FilesReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The stream of a table whose columns are those of ``scan``, which has no files."""

    def __init__(self, store: ObjectStore, snapshot: Snapshot, scan: Scan, options: StreamOptions) -> None:
        super().__init__(scan)
        self.store = store
        self.options = options
        self.schema = snapshot.schema
        self.snapshot: Snapshot | None = snapshot
        self.last: int | None = None
        self.files: OrderedDict[tuple[bool, int], list[ScanFile]] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        """What the tasks need; the rest is for who plans."""
        return {"scan": self.scan}

    # --- positions ---

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - PySpark's name
        return asdict(self._beginning())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - PySpark's name
        position, newest = Position(**start), self._newest()
        files = bytes_ = 0
        bounded = not isinstance(limit, ReadAllAvailable)
        while position.version <= newest:
            for file in self._files(position)[position.index :]:
                full = files >= self.options.max_files
                full |= self.options.max_bytes is not None and bytes_ + file.size > self.options.max_bytes
                if bounded and files and full:
                    return asdict(position)
                files, bytes_ = files + 1, bytes_ + file.size
                position = replace(position, index=position.index + 1)
            position = replace(position, version=position.version + 1, index=0)
        return asdict(position)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - PySpark's name
        return ReadMaxFiles(self.options.max_files)

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 - PySpark's name
        return {"version": self._newest() + 1, "index": 0}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - PySpark's name
        self.last = list_log(self.store).version

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        first, last = Position(**start), Position(**end)
        if (first.base, first.whole) != (last.base, last.whole):
            first = last.beginning
        return partitions_of(self._between(first, last))

    def _beginning(self) -> Position:
        version = self.options.starting_version
        if self.options.starting_timestamp is not None:
            version = self._version_at(self.options.starting_timestamp)
        newest = self._newest()
        match version:
            case None:
                return Position(newest, True, newest, 0)
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
            before = table.snapshot(timestamp=moment)
        except VersionNotFound:
            return next(version for version, _ in listed_commits(self.store))
        exact = before.timestamp_ms == int(moment.timestamp() * 1000)
        return before.version if exact else before.version + 1

    def _newest(self) -> int:
        return list_log(self.store).version if self.last is None else self.last

    # --- files ---

    def _between(self, first: Position, last: Position) -> Iterator[ScanFile]:
        position = first
        while position.version < last.version:
            yield from self._files(position)[position.index :]
            position = replace(position, version=position.version + 1, index=0)
        if last.index:
            yield from self._files(last)[position.index : last.index]

    def _files(self, position: Position) -> list[ScanFile]:
        """All files of the position's version, in an order that stays."""
        key = (position.in_snapshot, position.version)
        if key not in self.files:
            self.files[key] = self._load(position)
            if len(self.files) > _CACHED_VERSIONS:
                self.files.popitem(last=False)
        return self.files[key]

    def _load(self, position: Position) -> list[ScanFile]:
        if not position.in_snapshot:
            commit = self._commit(position.version)
            return self._changed(commit) if self.options.feed else self._located(self._added(commit))
        snapshot = self.snapshot
        if snapshot is None or snapshot.version != position.version:
            snapshot = load_snapshot(self.store, position.version)
        _require_columns(snapshot.schema, self.schema, snapshot.version)
        files = self._located(sorted(snapshot.adds(), key=lambda add: (add.modification_time, add.path)))
        return [_as_inserts(file, snapshot) for file in files] if self.options.feed else files

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
        assert self.snapshot is not None
        require_read(commit.protocol or self.snapshot.protocol, commit.metadata or self.snapshot.metadata)
        if commit.metadata is not None:
            _require_columns(parse_schema(commit.metadata.schema_string), self.schema, commit.version)
        adds = [add for add in commit.adds if add.data_change]
        if not any(remove.data_change for remove in commit.removes) or self.options.ignore_changes:
            return adds
        if self.options.skip_changes or (not adds and self.options.ignore_deletes):
            return []
        operation = (commit.commit_info or {}).get("operation", "unknown")
        raise VersionedError(
            f"Version {commit.version} of {self.store.uri} ({operation}) {'changed' if adds else 'removed'} rows that"
            " the stream may have read. What came until now is complete. Say what is to be done: "
            + ("ignoreChanges (rows may come twice)" if adds else "ignoreDeletes")
            + ", skipChangeCommits, or begin anew with a new checkpoint."
        )

    def _changed(self, commit: Commit) -> list[ScanFile]:
        """The files that say what a commit changed."""
        if commit.metadata is not None:
            _require_columns(parse_schema(commit.metadata.schema_string), self.schema, commit.version)
        return list(feed_scan(self.store, commit.version, commit.version, None).files)

    def _located(self, adds: Sequence[Add]) -> list[ScanFile]:
        assert self.snapshot is not None
        table = adds_table(adds)
        self.snapshot.reach.confine(table["path"])
        scan = delta_scan(self.store, replace(self.snapshot, files=table))
        by_key = {file.key: file for file in scan.files}
        return [by_key[add.key] for add in adds]


def _as_inserts(file: ScanFile, snapshot: Snapshot) -> ScanFile:
    moment = datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC)
    values = {
        CHANGE_TYPE: "insert",
        COMMIT_VERSION: encode(snapshot.version, "long"),
        COMMIT_TIMESTAMP: encode(moment, "timestamp"),
    }
    return replace(file, partition_values={**file.partition_values, **values})


def _require_columns(found: StructType, stream: StructType, version: int) -> None:
    """Refuse a version that has columns which the stream does not hand on as they are."""
    known = stream.all_nullable()
    for field in found.all_nullable().fields:
        if field.name not in known.names or known.field(field.name).type != field.type:
            raise VersionedError(
                f"Version {version} changed the table's schema: column {field.name!r} is new, or of another type, to"
                " the stream. What came until now is complete. Start the query again, which takes the new schema."
            )
