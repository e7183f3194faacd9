"""Vacuum: files below a table's folder that no retained version needs. Protocol: *Add File and Remove File*,
*Vacuum Protocol Check*."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import cast

import pyarrow as pa

from dagster_versioned.delta.features import require_write
from dagster_versioned.delta.files.deletion_vectors import vector_key
from dagster_versioned.delta.files.external_files import ExternalFiles
from dagster_versioned.delta.files.file_actions import to_vector
from dagster_versioned.delta.log.cleanup import require_foreign
from dagster_versioned.delta.log.snapshot import Snapshot
from dagster_versioned.delta.paths import compute
from dagster_versioned.delta.properties import earlier, interval
from dagster_versioned.delta.schema.column_mapping import physical_name
from dagster_versioned.errors import InvalidInput
from dagster_versioned.storage.object_store import ObjectInfo, ObjectStore

FILE_RETENTION = timedelta(weeks=1)
"""How long removed files stay where ``delta.deletedFileRetentionDuration`` does not say."""

CHANGE_DATA = "_change_data/"
"""Where change data files are; of the folders that begin with ``_`` the one that is vacuumed."""

_BATCH = 1000


@dataclass(frozen=True, slots=True)
class VacuumReport:
    """What a vacuum deleted, or would: the keys, and how many bytes they hold; and how many files it looked at."""

    keys: tuple[str, ...]
    size_bytes: int
    seen: int


def vacuum(
    store: ObjectStore,
    snapshot: Snapshot,
    now: datetime,
    *,
    retention: timedelta | None = None,
    dry_run: bool = False,
    force: bool = False,
) -> VacuumReport:
    """Delete files that the newest version does not need, nor an older one within ``retention`` of ``now``.

    ``snapshot`` is the newest one, ``now`` is aware; the retention is by default that of the table
    (``delta.deletedFileRetentionDuration``, else a week). A file goes if it was written before then, is not live, and
    was not removed since then, and the like for files of deletion vectors and of change data. Names that begin with
    ``_`` or ``.`` are left alone, except for change data and for folders of partition columns. Versions that still
    need what was deleted can be described, but not read any more.

    Raises `InvalidInput` for a retention below the table's, unless it is forced, as it may delete the files of writers
    at work and of readers of older versions; `UnsupportedFeature` for a table that cannot be written to, of which it is
    not known what it needs, or that is versioned; `LogCorrupt` for a deletion vector that makes no sense.
    """
    if now.tzinfo is None:
        raise InvalidInput(f"The time {now} has no zone. Nothing was deleted.")
    require_write(snapshot.protocol, snapshot.metadata)
    require_foreign(snapshot, "vacuuming its files")
    limit = earlier(now, _retention(snapshot, retention, force))
    needed = _needed(store, snapshot, limit)
    starts = tuple(_partition_starts(snapshot))
    seen, doomed = 0, list[ObjectInfo]()
    for info in store.list():
        if _is_vacuumed(info.key, starts):
            seen += 1
            if info.modified < limit and info.key not in needed:
                doomed.append(info)
    keys = [info.key for info in doomed]
    if not dry_run:
        for start in range(0, len(keys), _BATCH):
            store.delete(keys[start : start + _BATCH])
    return VacuumReport(tuple(keys), sum(info.size for info in doomed), seen)


def _retention(snapshot: Snapshot, asked: timedelta | None, force: bool) -> timedelta:
    own = interval(snapshot.metadata, "delta.deletedFileRetentionDuration", FILE_RETENTION)
    chosen = own if asked is None else asked
    if chosen < timedelta(0):
        raise InvalidInput(f"The retention {chosen} is negative. Nothing was deleted.")
    if chosen < own and not force:
        raise InvalidInput(
            f"The retention {chosen} is shorter than the table's, {own}: files that older versions, writers at work or"
            " long readers need could be deleted. Nothing was deleted. Set delta.deletedFileRetentionDuration, or force"
            " it where nobody else uses the table."
        )
    return chosen


def _partition_starts(snapshot: Snapshot) -> Iterator[str]:
    """How folders of partition columns begin, by their names and by their physical ones."""
    for name in snapshot.partition_columns:
        yield f"{name}="
        yield f"{physical_name(snapshot.schema.field(name), snapshot.column_mapping)}="


def _is_vacuumed(key: str, partition_starts: tuple[str, ...]) -> bool:
    """Whether a file is the table's, by its name and those of its folders."""
    path = key.removeprefix(CHANGE_DATA)
    return all(not part.startswith(("_", ".")) or part.startswith(partition_starts) for part in path.split("/"))


def _needed(store: ObjectStore, snapshot: Snapshot, limit: datetime) -> set[str]:
    """Keys that live files, and those removed since ``limit``, have, with those of their deletion vectors."""
    milliseconds = int(limit.timestamp() * 1000)
    times = compute.fill_null(snapshot.tombstones["deletionTimestamp"], 0)
    removed = snapshot.tombstones.filter(compute.greater_equal(times, milliseconds))
    own = ExternalFiles((store.uri,))
    needed: set[str] = set()
    for files in (snapshot.files, removed):
        keys = cast("list[str]", files["key"].to_pylist())
        needed.update(keys)
        needed.update(_vector_keys(store, files))
    # Absolute paths may name files in the table's own folder, which alone is looked through.
    return needed | {found[1] for key in needed if (found := own.located(key))}


def _vector_keys(store: ObjectStore, files: pa.Table) -> Iterator[str]:
    with_vector = files.filter(compute.is_valid(files["deletionVector"])).select(["path", "deletionVector"])
    for row in with_vector.to_pylist():
        vector = to_vector(row["deletionVector"], row["path"])
        if vector is not None and vector.storage_type != "i":
            yield vector_key(store, vector, row["path"])
