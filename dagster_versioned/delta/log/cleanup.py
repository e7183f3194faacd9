"""Metadata cleanup: the oldest part of a log goes once a checkpoint stands for it. Protocol: *Metadata Cleanup*."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from dagster_versioned.delta.features import protected_version, require_write
from dagster_versioned.delta.log.checkpoint_read import SIDECARS, read_checkpoint, sidecar_names
from dagster_versioned.delta.log.commits import CheckpointFiles, LogFile, list_log, log_files
from dagster_versioned.delta.log.snapshot import Snapshot
from dagster_versioned.delta.properties import earlier, interval
from dagster_versioned.errors import InvalidInput, LogCorrupt, UnsupportedFeature
from dagster_versioned.storage.object_store import ObjectStore

LOG_RETENTION = timedelta(days=30)
"""How long commits stay where ``delta.logRetentionDuration`` does not say."""


@dataclass(frozen=True, slots=True)
class CleanedUp:
    """What a cleanup deleted, or would: the keys, and the oldest version that can still be read."""

    keys: tuple[str, ...]
    oldest_version: int


def require_foreign(snapshot: Snapshot, operation: str) -> None:
    """Raise `UnsupportedFeature` for a versioned table, whose history must not lose what ``operation`` deletes."""
    if snapshot.is_versioned:
        raise UnsupportedFeature(
            f"This is a versioned table: {operation} would take versions out of its history, so it is refused. Nothing"
            " was deleted. Use the table's own verbs, expire and vacuum."
        )


def cleanup_log(store: ObjectStore, snapshot: Snapshot, now: datetime, *, dry_run: bool = False) -> CleanedUp:
    """Delete commits, checkpoints, compactions, checksums and sidecars that are beyond the retention of the log.

    ``snapshot`` is the newest one, ``now`` is aware. The limit is the midnight (UTC) before ``now`` less
    ``delta.logRetentionDuration``; a commit's age is that of its file, and of the files before it. What goes lies
    before the newest checkpoint that is not newer than the limit, and that was read and found whole. Nothing goes
    where the table forbids it (``delta.enableExpiredLogCleanup``, checkpoint protection), or without such a checkpoint.

    Raises `UnsupportedFeature` for a table that cannot be written to, or is versioned; `InvalidInput` for a naive time.
    """
    if now.tzinfo is None:
        raise InvalidInput(f"The time {now} has no zone. Nothing was deleted.")
    require_write(snapshot.protocol, snapshot.metadata)
    require_foreign(snapshot, "cleaning up its log")
    files = list(log_files(store))
    oldest = min((file.version for file in files if file.kind == "commit"), default=snapshot.version)
    checkpoint = _cutoff(store, snapshot, files, _limit(snapshot, now))
    if checkpoint is None or checkpoint.version < protected_version(snapshot.protocol, snapshot.metadata):
        return CleanedUp((), oldest)
    expired = {
        file.key for file in files if file.version < checkpoint.version + (1 if file.kind == "compaction" else 0)
    }
    if not (expired or any(True for _ in store.list(SIDECARS))) or not _is_whole(store, checkpoint):
        return CleanedUp((), oldest)
    kept = [file.key for file in files if file.kind == "checkpoint" and file.key not in expired]
    unused = _unused_sidecars(store, kept, now)
    if not dry_run:
        # Sidecars last: a checkpoint never names one that is gone. Commits from the oldest on: a crash leaves no gap.
        store.delete(sorted(expired))
        store.delete(unused)
    return CleanedUp((*sorted(expired), *unused), max(oldest, checkpoint.version))


def _is_whole(store: ObjectStore, checkpoint: CheckpointFiles) -> bool:
    try:
        read_checkpoint(store, checkpoint)
    except LogCorrupt:
        return False
    return True


def _limit(snapshot: Snapshot, now: datetime) -> datetime:
    return _midnight(
        earlier(now.astimezone(UTC), interval(snapshot.metadata, "delta.logRetentionDuration", LOG_RETENTION))
    )


def _midnight(moment: datetime) -> datetime:
    return moment.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


def _cutoff(
    store: ObjectStore, snapshot: Snapshot, files: Iterable[LogFile], limit: datetime
) -> CheckpointFiles | None:
    """The newest complete checkpoint at or before the newest commit that is not younger than ``limit``.

    ``None`` also where the table forbids cleanups.
    """
    if snapshot.metadata.configuration.get("delta.enableExpiredLogCleanup", "true").lower() == "false":
        return None
    commits = sorted((file.version, file.modified) for file in files if file.kind == "commit")
    young = next((version for version, modified in commits if modified > limit), snapshot.version + 1)
    if not commits or young <= commits[0][0]:
        return None
    return list_log(store, young - 1).checkpoint


def _unused_sidecars(store: ObjectStore, checkpoints: Iterable[str], now: datetime) -> list[str]:
    """Sidecars that no checkpoint names, but those younger than a day, whose checkpoint may be in the making."""
    stored = list(store.list(SIDECARS))
    if not stored:
        return []
    try:
        named = {SIDECARS + name for key in checkpoints for name in sidecar_names(store, key)}
    except LogCorrupt:
        return []
    limit = _midnight(now) - timedelta(days=1)
    return [info.key for info in stored if info.key not in named and info.modified < limit]
