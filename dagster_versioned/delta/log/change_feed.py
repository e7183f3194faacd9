"""The change data feed of a table: which rows of which files each commit added, changed and took away.

Protocol: *Add CDC File*, *Change Data Files*. A commit with change data files is read from those; of any other, the
added and removed files are the inserted and deleted rows, but for a file that only got another deletion vector: that
is the difference of the two. Commits that changed no data (``dataChange`` false) have none.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, cast

from dagster_versioned.delta.actions import Add, Cdc, DeletionVector, Metadata, PartitionValues, Remove
from dagster_versioned.delta.features import column_mapping
from dagster_versioned.delta.files.external_files import ExternalFiles, reach_of
from dagster_versioned.delta.log.commits import Commit, commit_key, list_log, read_commits
from dagster_versioned.delta.log.history import listed_commits, version_at
from dagster_versioned.delta.log.snapshot import Snapshot, load_snapshot
from dagster_versioned.delta.properties import CHANGE_FEED
from dagster_versioned.delta.schema.column_mapping import PHYSICAL_NAME, ColumnMapping, physical_name
from dagster_versioned.delta.schema.mapped_columns import columns_back
from dagster_versioned.delta.schema.types import ArrayType, DataType, MapType, StructField, StructType, parse_schema
from dagster_versioned.delta.schema.widening import is_wider
from dagster_versioned.errors import InvalidInput, LogCorrupt, ObjectNotFound, VersionNotFound
from dagster_versioned.storage.object_store import ObjectStore

CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP = "_change_type", "_commit_version", "_commit_timestamp"
"""The columns that a change has beside those of its row."""

ChangeType = Literal["insert", "delete", "update_preimage", "update_postimage"]
"""What a change is; the two of an update are the row before and after it."""

FEED = (
    # In files, which have it where they hold changes, it has this name whatever other columns are called there.
    StructField(CHANGE_TYPE, "string", True, {PHYSICAL_NAME: CHANGE_TYPE}),
    StructField(COMMIT_VERSION, "long", True, {PHYSICAL_NAME: COMMIT_VERSION}),
    StructField(COMMIT_TIMESTAMP, "timestamp", True, {PHYSICAL_NAME: COMMIT_TIMESTAMP}),
)


@dataclass(frozen=True, slots=True)
class ChangedFile:
    """The rows of one file that one commit inserted or deleted; ``change`` ``None``: the file's own column says which.

    They are those that ``deletion_vector`` does not have and, if it is given, ``only`` has. ``partition_values`` are
    by physical name. ``size`` is ``None`` where the log does not tell that of a removed file.
    """

    version: int
    timestamp_ms: int
    change: Literal["insert", "delete"] | None
    path: str
    key: str
    size: int | None
    partition_values: PartitionValues
    deletion_vector: DeletionVector | None = None
    only: DeletionVector | None = None


@dataclass(frozen=True, slots=True)
class ChangePlan:
    """The files that hold the changes of the versions ``first`` to ``last``, both included, in the log's order.

    ``schema``, ``mapping`` and ``partition_columns`` are those of version ``last``, as which all of them are read.
    """

    first: int
    last: int
    schema: StructType
    mapping: ColumnMapping
    partition_columns: tuple[str, ...]
    files: tuple[ChangedFile, ...]


def plan_changes(
    store: ObjectStore, first: int | datetime, last: int | datetime | None = None, *, newest: Snapshot | None = None
) -> ChangePlan:
    """The changes from a version or time on, up to a version or time (``None``: the newest version).

    A time stands for the first commit at or after it, or the last one at or before it. ``newest`` is the table as it
    is now, where that is known. Raises `VersionNotFound` for versions that the table or its log has not, `InvalidInput`
    for an empty range and where the feed was off at one of the versions, an older one had other columns than the last
    one can show or one brought a dropped column back, and as `load_snapshot`.
    """
    if newest is None and (isinstance(first, datetime) or isinstance(last, datetime)):
        newest = load_snapshot(store)
    start, end = _range(store, first, last, newest)
    at_start = newest if newest is not None and newest.version == start else load_snapshot(store, start)
    try:
        commits = read_commits(store, start, end)
    except ObjectNotFound as error:
        raise VersionNotFound(
            f"{store.uri}: a commit of the versions {start} to {end} is not in the log any more ({error}). Nothing was"
            " read."
        ) from error
    at_end = at_start.advance(commits[1:])
    _require_feed(at_start, at_end.schema, commits)
    _require_readable(at_start, at_end, commits)
    _require_none_back(store, at_start, commits)
    reach = reach_of(store)
    files = [file for commit, time in _timed(commits) for file in _changes_of(commit, time, reach)]
    return ChangePlan(start, end, at_end.schema, at_end.column_mapping, at_end.partition_columns, tuple(files))


# --- the range -------------------------------------------------------------------------------------------------------


def _range(
    store: ObjectStore, first: int | datetime, last: int | datetime | None, newest: Snapshot | None
) -> tuple[int, int]:
    version = newest.version if newest else list_log(store).version
    end = version if last is None else _last(store, newest, last)
    start = _first(store, newest, first)
    if start > version or end > version:
        raise VersionNotFound(
            f"{store.uri} has no version {max(start, end)}: the newest is {version}. Nothing was read."
        )
    if not 0 <= start <= end:
        raise InvalidInput(f"There are no versions from {start} to {end}. Nothing was read.")
    return start, end


def _last(store: ObjectStore, newest: Snapshot | None, last: int | datetime) -> int:
    if isinstance(last, int):
        return last
    assert newest is not None  # it is loaded for times
    _require_zone(last)
    return newest.version if last > datetime.now(UTC) else version_at(store, newest, last)


def _first(store: ObjectStore, newest: Snapshot | None, first: int | datetime) -> int:
    """The first version at or after a time: the one after the last that is before it."""
    if isinstance(first, int):
        return first
    assert newest is not None  # it is loaded for times
    _require_zone(first)
    try:
        return version_at(store, newest, first - timedelta(milliseconds=1)) + 1
    except VersionNotFound:
        return min((version for version, _ in listed_commits(store)), default=0)


def _require_zone(moment: datetime) -> None:
    if moment.tzinfo is None:
        raise InvalidInput(f"The time {moment.isoformat()} names no zone. Nothing was read; add one, such as Z.")


# --- the rules -------------------------------------------------------------------------------------------------------


def _require_feed(at_start: Snapshot, columns: StructType, commits: list[Commit]) -> None:
    """The feed must be on at every version of the range, from the first one's own commit on, and its columns free."""
    if taken := {field.name for field in FEED} & {name.lower() for name in columns.names}:
        raise InvalidInput(f"The table has columns {sorted(taken)} of its own, which a change has, too.")
    states: list[tuple[int, Metadata]] = [(at_start.version, at_start.metadata)]
    states += [(commit.version, commit.metadata) for commit in commits if commit.metadata]
    for version, metadata in states:
        if not metadata.is_set(CHANGE_FEED):
            raise InvalidInput(
                f"The changes of version {version} were not recorded: {CHANGE_FEED} was not set. Nothing was read; "
                "begin with a later version."
            )


def _require_readable(at_start: Snapshot, at_end: Snapshot, commits: list[Commit]) -> None:
    """Every schema of the range must be part of the last one: columns may have come, widened, and become nullable."""
    states: list[tuple[int, StructType, ColumnMapping, tuple[str, ...]]] = [
        (at_start.version, at_start.schema, at_start.column_mapping, at_start.partition_columns)
    ]
    protocol = at_start.protocol
    for commit in commits:
        protocol = commit.protocol or protocol
        metadata = commit.metadata
        if metadata is not None and commit.version > at_start.version:
            mapping = column_mapping(protocol, metadata)
            states.append((commit.version, parse_schema(metadata.schema_string), mapping, metadata.partition_columns))
    for version, schema, mapping, partition_columns in states:
        reason = _unreadable(schema, mapping, at_end.schema, at_end.column_mapping, ())
        if reason is None and partition_columns != at_end.partition_columns:
            reason = f"it was partitioned by {list(partition_columns)}"
        if reason is not None:
            raise InvalidInput(
                f"The changes of version {version} cannot be shown with the columns of version {at_end.version}:"
                f" {reason}. Nothing was read; read the versions before the change on their own."
            )


def _unreadable(
    old: DataType, old_mapping: ColumnMapping, new: DataType, new_mapping: ColumnMapping, path: tuple[str, ...]
) -> str | None:
    """Why values of an old type cannot be read as a newer one; ``None`` if they can."""
    match old, new:
        case StructType(), StructType():
            later = {field.name: field for field in new.fields}
            reasons = (
                _unreadable_field(field, old_mapping, later.get(field.name), new_mapping, (*path, field.name))
                for field in old.fields
            )
            return next(filter(None, reasons), None)
        case ArrayType(), ArrayType():
            return _unreadable(old.element_type, old_mapping, new.element_type, new_mapping, (*path, "element"))
        case MapType(), MapType():
            return _unreadable(old.key_type, old_mapping, new.key_type, new_mapping, (*path, "key")) or _unreadable(
                old.value_type, old_mapping, new.value_type, new_mapping, (*path, "value")
            )
        case str(), str() if old == new or is_wider(old, new):
            return None
        case _:
            return f"column {'.'.join(path)!r} had another type"


def _unreadable_field(
    old: StructField,
    old_mapping: ColumnMapping,
    new: StructField | None,
    new_mapping: ColumnMapping,
    path: tuple[str, ...],
) -> str | None:
    if new is None or _stored_as(old, old_mapping) != _stored_as(new, new_mapping):
        return f"it had a column {'.'.join(path)!r}, which is gone or another one"
    if old.nullable and not new.nullable:
        return f"column {'.'.join(path)!r} could be null"
    return _unreadable(old.type, old_mapping, new.type, new_mapping, path)


def _require_none_back(store: ObjectStore, at_start: Snapshot, commits: list[Commit]) -> None:
    """No commit may bring a dropped column back, as a restore does: rows that stay show its values again without a
    change, and those that an earlier commit took away had none."""
    altering = [(commit.version, commit.metadata) for commit in commits if commit.metadata is not None]
    if not altering:
        return
    known = at_start.metadata
    if altering[0][0] == at_start.version > 0:
        with suppress(VersionNotFound):  # where the log begins with a checkpoint of the first one
            known = load_snapshot(store, at_start.version - 1).metadata
    for version, metadata in altering:
        back = columns_back(
            parse_schema(known.schema_string), known.configuration, parse_schema(metadata.schema_string)
        )
        if back:
            raise InvalidInput(
                f"Version {version} brought the dropped column {back[0]!r} back, and with it values of rows that it did"
                " not change. Nothing was read; read the changes before and after that version on their own, and the"
                " table at it."
            )
        known = metadata


def _stored_as(field: StructField, mapping: ColumnMapping) -> str:
    return physical_name(field, mapping)


# --- the files -------------------------------------------------------------------------------------------------------


def _timed(commits: list[Commit]) -> Iterator[tuple[Commit, int]]:
    """Commits with their times, of which none counts as earlier than the one before it, as in `history.version_at`."""
    before: int | None = None
    for commit in commits:
        time = commit.timestamp_ms if before is None else max(commit.timestamp_ms, before + 1)
        yield commit, time
        before = time


def _changes_of(commit: Commit, time: int, reach: ExternalFiles) -> Iterator[ChangedFile]:
    if commit.cdcs:
        for cdc in commit.cdcs:
            key = _key(cdc, commit, reach)
            yield ChangedFile(commit.version, time, None, cdc.path, key, cdc.size, cdc.partition_values)
    elif not _merged_nothing(commit.commit_info or {}):
        yield from _changes_by_files(commit, time, reach)


def _changes_by_files(commit: Commit, time: int, reach: ExternalFiles) -> Iterator[ChangedFile]:
    adds = {add.key: add for add in commit.adds if add.data_change}
    removes = {remove.key: remove for remove in commit.removes if remove.data_change}
    sides: list[tuple[Literal["insert", "delete"], Mapping[str, Add | Remove], Mapping[str, Add | Remove]]]
    sides = [("delete", removes, adds), ("insert", adds, removes)]
    for change, files, others in sides:
        for key, action in files.items():
            other = others.get(key)
            if other is None:
                yield _file(commit, time, reach, change, action, action.deletion_vector)
            elif other.deletion_vector is not None:
                # Rows that are deleted now and were not before, or were before and are back.
                yield _file(commit, time, reach, change, adds[key], action.deletion_vector, other.deletion_vector)


def _merged_nothing(info: Mapping[str, Any]) -> bool:
    """Whether a merge changed no row. Older writers rewrite files then, and call that a change of data."""
    metrics = info.get("operationMetrics")
    if info.get("operation") != "MERGE" or not isinstance(metrics, Mapping):
        return False
    counts = cast("Mapping[str, Any]", metrics)
    names = ("numTargetRowsInserted", "numTargetRowsUpdated", "numTargetRowsDeleted")
    return all(str(counts.get(name)) == "0" for name in names)


def _key(action: Add | Remove | Cdc, commit: Commit, reach: ExternalFiles) -> str:
    try:
        return reach.admitted(action.path)
    except LogCorrupt as error:
        raise LogCorrupt(f"{commit_key(commit.version)}: {error}") from error


def _file(
    commit: Commit,
    time: int,
    reach: ExternalFiles,
    change: Literal["insert", "delete"],
    action: Add | Remove,
    deletion_vector: DeletionVector | None,
    only: DeletionVector | None = None,
) -> ChangedFile:
    key, values = _key(action, commit, reach), action.partition_values or {}
    return ChangedFile(commit.version, time, change, action.path, key, action.size, values, deletion_vector, only)
