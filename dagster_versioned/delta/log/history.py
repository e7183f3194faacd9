"""What happened to a table, commit by commit, and which version it had at a moment. Protocol: *Commit Provenance
Information*, *In-Commit Timestamps*."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, cast

from dagster_versioned.delta.actions import TIMES, CommitInfo
from dagster_versioned.delta.log.commits import LOG_FOLDER, commit_key, in_parallel, read_commit
from dagster_versioned.delta.log.snapshot import Snapshot
from dagster_versioned.errors import InvalidInput, TableNotFound, VersionNotFound
from dagster_versioned.storage.object_store import ObjectInfo, ObjectStore

_COMMIT = re.compile(rf"{LOG_FOLDER}([0-9]{{20}})\.json")
_EPOCH = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One commit as its writer described it; what a writer left out is ``None`` or empty.

    ``timestamp`` is the commit's own where the table has in-commit timestamps, else the time of its file, or a
    millisecond after the commit before it if that is later: `version_at` leads from it back to this version.
    ``parameters`` and ``metrics`` are as in the log, by the writer's own names; ``info`` is the whole ``commitInfo``.
    """

    version: int
    timestamp: datetime
    operation: str | None
    parameters: Mapping[str, Any] = field(hash=False)
    metrics: Mapping[str, Any] = field(hash=False)
    engine: str | None
    user: str | None
    info: Mapping[str, Any] = field(hash=False, repr=False)

    @property
    def user_metadata(self) -> str | None:
        """The remark of whoever committed, as the reference records it."""
        value = self.info.get("userMetadata")
        return value if isinstance(value, str) else None


def require_limit(limit: object) -> None:
    """Raise `InvalidInput` for what is no number of things; a negative one would leave out the oldest."""
    if limit is not None and (not isinstance(limit, int) or limit < 0):
        raise InvalidInput(f"The limit is {limit!r:.50}. Nothing was read. Give a number from 0 on, or None for all.")


def history(store: ObjectStore, limit: int | None = None) -> list[HistoryEntry]:
    """The commits that are in the log, newest first, at most ``limit``.

    A log that was cleaned up begins late: what was before is left out. Raises `TableNotFound`, `LogCorrupt`, and
    `InvalidInput` for a limit that is no number of entries.
    """
    require_limit(limit)
    times = _file_times(listed_commits(store))
    if not times:
        raise TableNotFound(f"There is no Delta table at {store.uri}: it has no {LOG_FOLDER} with a commit in it.")
    chosen = times[::-1][:limit]
    return in_parallel(partial(_entry, store), chosen, unless=store.local_path(commit_key(0)) is not None)


def _entry(store: ObjectStore, listed: tuple[int, int]) -> HistoryEntry:
    version, file_time_ms = listed
    commit = read_commit(store, version)
    info = CommitInfo(commit.commit_info or {})
    stamped = info.in_commit_timestamp
    return HistoryEntry(
        version,
        _moment(file_time_ms if stamped is None else stamped),
        _text(info.value, "operation"),
        _members(info.value, "operationParameters"),
        _members(info.value, "operationMetrics"),
        _text(info.value, "engineInfo"),
        _text(info.value, "userName") or _text(info.value, "userId"),
        info.value,
    )


def _text(info: Mapping[str, Any], name: str) -> str | None:
    value = info.get(name)
    return value if isinstance(value, str) else None


def _members(info: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = info.get(name)
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _moment(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(min(max(milliseconds, TIMES.start), TIMES.stop - 1) / 1000, UTC)


def _milliseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(milliseconds=1)


# --- as of a moment --------------------------------------------------------------------------------------------------


def version_at(store: ObjectStore, newest: Snapshot, moment: datetime) -> int:
    """The last version that was committed at or before ``moment``; ``newest`` is the table as it is now.

    By the times in the commits as far as the table has them, else by those of their files, of which none counts as
    earlier than the one before it. Raises `InvalidInput` for a moment without a zone, or in the future, when more may
    yet be committed before it, and `VersionNotFound` for one before the oldest commit that is in the log.
    """
    if moment.tzinfo is None:
        raise InvalidInput(f"The time {moment.isoformat()} names no zone. Nothing was read; add one, such as Z.")
    stamped = _first_stamped(newest)
    is_stamped = stamped <= newest.version
    wanted, now = _milliseconds(moment), _milliseconds(datetime.now(UTC))
    if is_stamped and newest.timestamp_ms <= wanted <= now:
        return newest.version
    commits = [(version, info) for version, info in listed_commits(store) if version <= newest.version]
    by_file = _file_times((version, info) for version, info in commits if version < stamped)
    newest_ms = newest.timestamp_ms if is_stamped or not by_file else by_file[-1][1]
    if wanted > max(now, newest_ms):
        raise InvalidInput(
            f"The time {moment.isoformat()} is in the future: what the table will be by then is not known. Nothing was"
            " read; leave the time out for the newest version."
        )
    found = _by_commit(store, [version for version, _ in commits if version >= stamped], wanted, by_file)
    if found is None:
        oldest = f"; the oldest commit in the log is version {commits[0][0]}" if commits else ""
        raise VersionNotFound(f"{store.uri} has no version of {moment.isoformat()}{oldest}. Nothing was read.")
    return found


def listed_commits(store: ObjectStore) -> Iterator[tuple[int, ObjectInfo]]:
    for info in store.list(LOG_FOLDER):
        if match := _COMMIT.fullmatch(info.key):
            yield int(match[1]), info


def _first_stamped(newest: Snapshot) -> int:
    """The first version whose commit holds its time, beyond the newest where none does."""
    if not newest.metadata.is_set("delta.enableInCommitTimestamps"):
        return newest.version + 1
    text = newest.metadata.configuration.get("delta.inCommitTimestampEnablementVersion", "0")
    return int(text) if re.fullmatch("[0-9]{1,18}", text) else 0


def _by_commit(
    store: ObjectStore, versions: Sequence[int], wanted: int, before: Sequence[tuple[int, int]]
) -> int | None:
    """By bisection: times in commits ascend. ``before`` are the commits before them, with the times of their files."""
    low, high = 0, len(versions)
    while low < high:
        middle = (low + high) // 2
        if read_commit(store, versions[middle]).timestamp_ms <= wanted:
            low = middle + 1
        else:
            high = middle
    if low:
        return versions[low - 1]
    return next((version for version, time in reversed(before) if time <= wanted), None)


def _file_times(commits: Iterable[tuple[int, ObjectInfo]]) -> list[tuple[int, int]]:
    """Commits, oldest first, with their files' times (ms), each later than the one before it."""
    times: list[tuple[int, int]] = []
    for version, info in commits:
        time = _milliseconds(info.modified)
        times.append((version, max(time, times[-1][1] + 1) if times else time))
    return times
