"""The index of versions that is written beside checkpoints, so that a long history is one read and a short tail."""

import io
from collections.abc import Mapping
from typing import Any, cast

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from dagster_versioned.delta.log import begins_late, read_commits
from dagster_versioned.errors import IntegrityError, ObjectNotFound
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.tables.document import encode
from dagster_versioned.tables.history import CommitRecord, History

FOLDER = ".metadata/versions/"

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


def load_history(store: ObjectStore, log_version: int) -> History:
    """The history up to a log version: the newest index at or below it, then the commits after that.

    A missing or unreadable index is passed over, because it is derived: the log is read from its start instead. One
    that can be read is believed, as a checkpoint is; `verify` compares both with the commits.

    Raises `LogCorrupt`, and `UnsupportedFeature` where the log does not begin at version 0.
    """
    records = _newest_index(store, log_version)
    try:
        commits = read_commits(store, len(records), log_version)
    except ObjectNotFound as error:
        if records:
            raise
        raise begins_late(store) from error
    return History([*records, *(CommitRecord.of(commit) for commit in commits)])


def index_key(log_version: int) -> str:
    """Where the index up to a log version is stored."""
    return f"{FOLDER}{log_version:020d}.parquet"


def index_bytes(history: History) -> bytes:
    """The index as Parquet bytes, a function of the log alone."""
    rows = history.records
    table = pa.table(
        [
            pa.array([r.log_version for r in rows], pa.int64()),
            pa.array([r.timestamp_ms for r in rows], pa.int64()),
            pa.array([r.sha256 for r in rows], pa.string()),
            pa.array([r.operation for r in rows], pa.string()),
            pa.array([None if r.info is None else encode(r.info).decode() for r in rows], pa.string()),
            pa.array([r.changes_files for r in rows], pa.bool_()),
        ],
        schema=_SCHEMA,
    )
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd", store_schema=False)
    return sink.getvalue()


def _newest_index(store: ObjectStore, log_version: int) -> list[CommitRecord]:
    keys = [info.key for info in store.list(FOLDER) if info.key <= index_key(log_version)]
    for key in reversed(keys):
        try:
            return _parse(store.get(key))
        except (IntegrityError, LookupError, pa.ArrowException, OSError, ValueError):  # no JSON, or no UTF-8
            continue
    return []


def _parse(data: bytes) -> list[CommitRecord]:
    table = pq.read_table(pa.BufferReader(data))
    if (table.schema.names, table.schema.types) != (_SCHEMA.names, _SCHEMA.types):
        raise IntegrityError(f"A version index holds columns {table.schema.names}; {_SCHEMA.names} were expected.")
    if any(table[name].null_count for name in _SCHEMA.names if name != "info"):
        raise IntegrityError("A version index lacks values.")
    records = [
        CommitRecord(
            row["log_version"],
            row["timestamp_ms"],
            row["sha256"],
            row["operation"],
            None if row["info"] is None else _object(row["info"]),
            row["changes_files"],
        )
        for row in table.to_pylist()
    ]
    if any(record.log_version != position for position, record in enumerate(records)):
        raise IntegrityError("A version index must be contiguous from log version 0.")
    return records


def _object(text: str) -> Mapping[str, Any]:
    value = orjson.loads(text)
    if not isinstance(value, dict):
        raise IntegrityError("A version index holds something else than an object as a commit's own member.")
    return cast("Mapping[str, Any]", value)
