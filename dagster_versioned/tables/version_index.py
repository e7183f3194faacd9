"""The history of a table beside its log: an index of versions in segments, and what checkpoints note of it.

A segment holds the commits of one hundred and is written once, so that no commit costs more for a longer history. A
checkpoint notes the commits just before it, from which a writer and a reader of the head go on.
"""

import base64
import hashlib
import io
import threading
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from dagster_versioned.delta.files.arrow_memory import arrow_reader
from dagster_versioned.delta.log.commits import begins_late, read_commit, stream_commits
from dagster_versioned.delta.log.snapshot import LoadedLog
from dagster_versioned.errors import IntegrityError, InvalidName, ObjectNotFound
from dagster_versioned.identity.names import partition_key
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.tables.configuration import LEFT_PROPERTY
from dagster_versioned.tables.document import encode
from dagster_versioned.tables.history import VERSION_DOMAIN, CommitRecord, History, Version

FOLDER = ".metadata/versions/"
SEGMENT = 100
"""Commits in a segment of the index."""

NOTE = "dagster_versioned.versions"
"""The entry of a checkpoint's Parquet footer with the commits just before it: an index after its SHA-256."""

_FEW = 8
"""Commits read one by one before the index is read instead."""

_SCHEMA = pa.schema(
    [
        pa.field("log_version", pa.int64(), nullable=False),
        pa.field("timestamp_ms", pa.int64(), nullable=False),
        pa.field("sha256", pa.string(), nullable=False),
        pa.field("operation", pa.string(), nullable=False),
        pa.field("info", pa.string()),
        pa.field("changes_files", pa.bool_(), nullable=False),
    ]
)


class StoredCommits:
    """The commits of a table as far as its history needs them, read when they are asked for. Thread-safe."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._records: tuple[CommitRecord, ...] = ()
        self._single: dict[int, CommitRecord] = {}
        self._lock = threading.RLock()

    def read_by(self, store: ObjectStore) -> None:
        """Read from now on by this store of the same table, whose credentials are those in use now."""
        self._store = store

    def records(self, log_version: int) -> Sequence[CommitRecord]:
        """The records of all commits up to a log version: from segments of the index, and commits between them.

        A missing or unreadable segment is passed over, because it is derived: the log is read instead. One that can be
        read is believed, as a checkpoint is; `verify` compares both with the commits. Raises `LogCorrupt`, and
        `UnsupportedFeature` where the log does not begin at version 0.
        """
        with self._lock:
            known = len(self._records)
            if log_version >= known:
                self._records += tuple(self._read(known, log_version))
                self._single.clear()
            return self._records[: log_version + 1]

    def record(self, log_version: int) -> CommitRecord:
        """The record of one commit. Raises `LogCorrupt`, `ObjectNotFound`."""
        with self._lock:
            if log_version < len(self._records):
                return self._records[log_version]
            if log_version not in self._single:
                if len(self._single) >= _FEW:
                    return self.records(max(log_version, *self._single))[log_version]
                self._single[log_version] = CommitRecord.of(read_commit(self._store, log_version), self)
            return self._single[log_version]

    def raw(self, log_version: int, partition: str | None) -> Mapping[str, Any]:
        """What a commit records of its version of a partition, from the commit itself."""
        record = CommitRecord.of(read_commit(self._store, log_version))
        return next(stored.raw() for stored in record.stored or () if stored.partition == partition)

    def _read(self, first: int, last: int) -> Iterator[CommitRecord]:
        segments = sorted(self._segments(first, last), key=lambda records: records[0].log_version)
        at = first
        try:
            for records in segments:
                yield from self._commits(at, records[0].log_version - 1)
                yield from records
                at = records[-1].log_version + 1
            yield from self._commits(at, last)
        except ObjectNotFound as error:
            if first or segments:
                raise
            raise begins_late(self._store) from error

    def _segments(self, first: int, last: int) -> Iterator[list[CommitRecord]]:
        """Runs of commits that the index holds between two versions, newest first and apart."""
        if last - first < _FEW:
            return
        keys = sorted(info.key for info in self._store.list(FOLDER) if index_key(first) <= info.key)
        keys = keys[: bisect_left(keys, index_key(last)) + 1]  # with the one that goes on behind the last version
        before = last + 1
        for key in reversed(keys):
            if records := [record for record in self._segment(key) if first <= record.log_version < before]:
                before = records[0].log_version
                yield records

    def _segment(self, key: str) -> list[CommitRecord]:
        """The commits of a segment; none where it cannot be read, or is not the one of its name."""
        try:
            records = parse_index(self._store.get(key), self)
        except _UNREADABLE:
            return []
        at = records[0].log_version if records else 0
        is_whole = [record.log_version for record in records] == list(range(at, at + len(records)))
        return records if is_whole and records and index_key(records[-1].log_version) == key else []

    def _commits(self, first: int, last: int) -> Iterator[CommitRecord]:
        yield from (CommitRecord.of(commit, self) for commit in stream_commits(self._store, first, last))


def load_history(loaded: LoadedLog, commits: StoredCommits) -> History:
    """The history at the end of a log that was loaded: as its checkpoint notes it, and the commits since.

    Where the checkpoint notes nothing, or there is none, all commits are read. Raises as `StoredCommits.records`.
    """
    end = loaded.snapshot.version
    checkpoint = end - len(loaded.commits)
    if checkpoint >= 0:
        noted = read_note(loaded.notes, checkpoint, commits)
        heads = _heads(loaded.snapshot.domains, checkpoint, commits)
        # Of a table that was left to other programs, checkpoints know no heads any more.
        metadata = loaded.snapshot.metadata
        is_ours = metadata.is_set("delta.enableInCommitTimestamps") and not metadata.is_set(LEFT_PROPERTY)
        if noted is not None and heads is not None and is_ours:
            return History.at_checkpoint(noted, heads, checkpoint, commits).advance(loaded.commits)
    older = commits.records(checkpoint) if checkpoint >= 0 else ()
    return History([*older, *(CommitRecord.of(commit, commits) for commit in loaded.commits)], commits)


def note_of(history: History) -> dict[str, str]:
    """What the checkpoint at the end of a history notes."""
    data = index_bytes(history.noted())
    return {NOTE: f"{hashlib.sha256(data).hexdigest()}{base64.b64encode(data).decode()}"}


def read_note(
    notes: Mapping[str, bytes], log_version: int, commits: StoredCommits | None = None
) -> list[CommitRecord] | None:
    """The commits that a checkpoint notes; ``None`` where it notes none, or what it notes cannot be believed."""
    note = notes.get(NOTE, b"")
    try:
        data = base64.b64decode(note[64:], validate=True)
        if not note or hashlib.sha256(data).hexdigest().encode() != note[:64]:
            return None
        records = parse_index(data, commits)
    except _UNREADABLE:
        return None
    versions = [record.log_version for record in records]
    return records if versions == sorted(set(versions)) and max(versions, default=0) <= log_version else None


def index_key(log_version: int) -> str:
    """Where the segment of the index that ends with a log version is stored."""
    return f"{FOLDER}{log_version:020d}.parquet"


def index_bytes(records: Iterable[CommitRecord]) -> bytes:
    """Commits as Parquet bytes, a function of the log alone."""
    rows = tuple(records)
    columns = {name: [getattr(record, name) for record in rows] for name in _SCHEMA.names if name != "info"}
    infos = (record.info for record in rows)
    columns["info"] = [None if info is None else encode(info).decode() for info in infos]
    table = pa.table(columns, schema=_SCHEMA)
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd", store_schema=False)
    return sink.getvalue()


_UNREADABLE = (IntegrityError, LookupError, pa.ArrowException, OSError, ValueError)
"""What parsing an index that is none may raise; ``ValueError`` for what is no JSON, no UTF-8 and no base64."""


def parse_index(data: bytes, commits: StoredCommits | None = None) -> list[CommitRecord]:
    """The commits of a segment, or of what a checkpoint notes. Raises what `_UNREADABLE` lists."""
    table = pq.ParquetFile(arrow_reader(data)).read()
    if (table.schema.names, table.schema.types) != (_SCHEMA.names, _SCHEMA.types):
        raise IntegrityError(f"A version index holds columns {table.schema.names}; {_SCHEMA.names} were expected.")
    if any(table[name].null_count for name in _SCHEMA.names if name != "info"):
        raise IntegrityError("A version index lacks values.")
    rows: Iterator[dict[str, Any]] = (
        {**row, "info": _object(row["info"])}
        for batch in table.to_batches(max_chunksize=_FEW)  # the schema of a wide table is in each row
        for row in batch.to_pylist()
    )
    return [CommitRecord(**row, again=commits) for row in rows]


def _heads(domains: Mapping[str, str], log_version: int, commits: StoredCommits) -> list[Version] | None:
    """The heads that a checkpoint knows; ``None`` where what it says of one is not what this package writes."""
    heads: list[Version] = []
    for domain, configuration in domains.items():
        if domain != VERSION_DOMAIN and not domain.startswith(f"{VERSION_DOMAIN}/"):
            continue
        try:
            partition = None if domain == VERSION_DOMAIN else partition_key(domain.removeprefix(f"{VERSION_DOMAIN}/"))
            head = orjson.loads(configuration)
            at, shas = head["log_version"], (head["metadata_sha"], head["data_sha"])
        except (InvalidName, ValueError, LookupError, TypeError):
            return None
        if type(at) is not int or not all(isinstance(sha, str) for sha in shas):
            return None
        if 0 <= at <= log_version:  # the others are of the commits since, which say it themselves
            digest, computation = head.get("digest"), head.get("computation")
            heads.append(Version(at, partition, *shas, again=commits, digest=digest, computation=computation))
    return heads


def _object(text: str | None) -> dict[str, Any] | None:
    value: object = None if text is None else orjson.loads(text)
    if text is not None and not isinstance(value, dict):
        raise IntegrityError("A version index holds something else than an object as a commit's own member.")
    return cast("dict[str, Any] | None", value)
