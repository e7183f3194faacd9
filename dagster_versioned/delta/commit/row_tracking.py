"""Row tracking: ids and commit versions that rows keep while files come and go. Protocol: *Row Tracking*."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, cast
from uuid import uuid4

import pyarrow as pa

from dagster_versioned.delta.actions import Action, Add, DomainMetadata, LogicalFile, Metadata, Remove, of_kind
from dagster_versioned.delta.files.file_actions import to_adds
from dagster_versioned.delta.files.statistics import num_records
from dagster_versioned.delta.log.snapshot import Snapshot
from dagster_versioned.delta.paths import compute
from dagster_versioned.errors import InvalidInput, LogCorrupt

DOMAIN = "delta.rowTracking"

ENABLED = "delta.enableRowTracking"
SUSPENDED = "delta.rowTrackingSuspended"
"""The property with which files get no ids, although the table's protocol supports them."""

ROW_ID_COLUMN = "delta.rowTracking.materializedRowIdColumnName"
ROW_COMMIT_VERSION_COLUMN = "delta.rowTracking.materializedRowCommitVersionColumnName"

PRESERVED_TAG = "delta.rowTracking.preserved"
"""The tag in ``commitInfo`` that says whether every row that was updated or copied kept its id."""

_MARK = "rowIdHighWaterMark"
_MARKS = (_MARK, "highWaterMark")
"""What the reference calls the mark, and what the protocol's text once called it."""

NO_ID = -1
"""The high water mark of a table that gave no row an id yet."""


@dataclass(frozen=True, slots=True)
class RowTracking:
    """The columns of data files that hold what rows keep, where it is not what their place in the file says.

    A null in them, or a file without them, means the default: ``baseRowId`` plus the row's position, and
    ``defaultRowCommitVersion``. Updated rows keep the id alone; rows that were only copied keep both.
    """

    materialized_row_id: str
    materialized_row_commit_version: str

    @classmethod
    def of(cls, metadata: Metadata) -> Self:
        """What a table that tracks its rows has in its properties. Raises `LogCorrupt` where it has not."""
        names = [metadata.configuration.get(key) for key in (ROW_ID_COLUMN, ROW_COMMIT_VERSION_COLUMN)]
        if not all(names):
            raise LogCorrupt(
                f"The table has {ENABLED}, but its properties do not name the columns {ROW_ID_COLUMN} and"
                f" {ROW_COMMIT_VERSION_COLUMN}. Nothing was written."
            )
        return cls(*cast("list[str]", names))


def new_columns() -> dict[str, str]:
    """The properties that name a table's columns for row ids and commit versions; no other column has these names."""
    return {
        ROW_ID_COLUMN: f"_row-id-col-{uuid4()}",
        ROW_COMMIT_VERSION_COLUMN: f"_row-commit-version-col-{uuid4()}",
    }


def high_water_mark(domains: Mapping[str, str]) -> int:
    """The highest row id that was given, `NO_ID` if none was. ``domains``: those of a snapshot. Raises `LogCorrupt`."""
    text = domains.get(DOMAIN)
    if text is None:
        return NO_ID
    try:
        value: Any = json.loads(text)
        marks = [value[name] for name in _MARKS if name in value]
    except (ValueError, TypeError, RecursionError) as error:
        raise LogCorrupt(f"The metadata domain {DOMAIN} is not a JSON object: {text!r:.100}.") from error
    if len(marks) != 1 or type(marks[0]) is not int or not NO_ID <= marks[0] < 2**63:
        raise LogCorrupt(f"The metadata domain {DOMAIN} holds no {_MARK}: {text!r:.100}.")
    return marks[0]


def with_row_ids(actions: Sequence[Action], read: Snapshot | None, version: int) -> list[Action]:
    """The actions as commit ``version`` has them: every file with its first row id and commit version.

    ``read`` is the snapshot right before, ``None`` where this creates the table. A file that the table has already
    keeps what it has, a file that comes with ids of its own keeps them, and any other gets ids above the high water
    mark. The new mark is the last action where there is one. Raises `InvalidInput` for a file whose statistics do not
    say how many rows it has.
    """
    before = high_water_mark(read.domains if read else {})
    kept = _kept(actions, read)
    given = [_with_kept(action, kept) if isinstance(action, Add | Remove) else action for action in actions]
    mark = max([before, *map(_last_id, of_kind(given, Add))])
    result: list[Action] = []
    for action in given:
        if isinstance(action, Add):
            action, mark = _with_ids(action, mark, version)
        result.append(action)
    if mark >= 2**63:
        raise InvalidInput(f"The table has no row ids left: {mark} is no 64-bit integer. Nothing was written.")
    if mark > before:
        result.append(DomainMetadata(DOMAIN, json.dumps({_MARK: mark}, separators=(",", ":"))))
    return result


def _last_id(add: Add) -> int:
    """The id of a file's last row, if it comes with ids."""
    return NO_ID if add.base_row_id is None else add.base_row_id + (num_records(add.stats) or 0) - 1


def _with_ids(add: Add, mark: int, version: int) -> tuple[Add, int]:
    """A file with what it lacks, and the new high water mark."""
    if add.base_row_id is not None:
        is_known = add.default_row_commit_version is not None
        return (add if is_known else replace(add, default_row_commit_version=version)), mark
    count = num_records(add.stats)
    if count is None:
        raise InvalidInput(
            f"The table tracks its rows, so the statistics of {add.path!r} must say how many it has. Nothing was "
            "written."
        )
    return replace(add, base_row_id=mark + 1, default_row_commit_version=version), mark + count


def backfill(snapshot: Snapshot) -> list[Add]:
    """The live files that have no row ids, to be added once more by a commit that supports row tracking.

    A table needs them before, or in the commit in which, ``delta.enableRowTracking`` is set.
    """
    missing = snapshot.files.filter(compute.is_null(snapshot.files["baseRowId"]))
    return [replace(add, data_change=False) for add in to_adds(missing)]


def require_trackable(metadata: Metadata, names: Collection[str]) -> None:
    """Raise `InvalidInput` unless the properties name columns for ids that no column of the files (``names``) has."""
    columns = [metadata.configuration.get(key) for key in (ROW_ID_COLUMN, ROW_COMMIT_VERSION_COLUMN)]
    if not all(columns) or columns[0] == columns[1] or set(columns) & set(names):
        raise InvalidInput(
            f"{ENABLED} cannot be set: {ROW_ID_COLUMN} and {ROW_COMMIT_VERSION_COLUMN} must name two columns that the"
            f" table does not have, and are {columns}. Nothing was written. `row_tracking.new_columns` names some."
        )
    if metadata.is_set(SUSPENDED):
        raise InvalidInput(f"{ENABLED} cannot be set while {SUSPENDED} is. Nothing was written.")


def refuse_id_columns(metadata: Metadata, before: Collection[str], names: Collection[str]) -> None:
    """Raise `InvalidInput` for columns (``names``, those in files too) that are new and called as one that keeps ids.

    No version has such a column, not even one that tracks no rows: older files, and later versions, have the ids.
    """
    keeping = (metadata.configuration.get(key) for key in (ROW_ID_COLUMN, ROW_COMMIT_VERSION_COLUMN))
    kept = {name.casefold() for name in keeping if name}
    if taken := [name for name in names if name.casefold() in kept and name not in before]:
        raise InvalidInput(
            f"The column {taken[0]!r} has the name of one that keeps the ids of rows or their versions. Nothing was"
            " written. Rename it."
        )


def require_ids(snapshot: Snapshot | None, actions: Sequence[Action]) -> None:
    """Raise `InvalidInput` where a live file that ``actions`` leave in place has no row ids."""
    if snapshot is None:
        return
    touched = [action.key for action in of_kind(actions, LogicalFile)]
    files = snapshot.files.filter(compute.is_null(snapshot.files["baseRowId"]))
    left = files.filter(compute.invert(compute.is_in(files["key"], value_set=pa.array(touched, pa.string()))))
    if left.num_rows:
        raise InvalidInput(
            f"{ENABLED} cannot be set: {left.num_rows} files, such as {left['path'][0].as_py()!r}, have no row ids."
            " Nothing was written. Add them once more in this commit (`row_tracking.backfill`)."
        )


def _kept(actions: Sequence[Action], read: Snapshot | None) -> dict[str, tuple[int | None, int | None]]:
    """What the table's own files have, of those that the actions name without it."""
    named = {action.key for action in actions if isinstance(action, Add | Remove) and action.base_row_id is None}
    if read is None or not named:
        return {}
    hit = read.files.filter(compute.is_in(read.files["key"], value_set=pa.array(list(named), pa.string())))
    columns = [hit[name].to_pylist() for name in ("key", "baseRowId", "defaultRowCommitVersion")]
    return {key: (first, commit) for key, first, commit in zip(*columns, strict=True)}


def _with_kept(action: Add | Remove, kept: Mapping[str, tuple[int | None, int | None]]) -> Add | Remove:
    if action.base_row_id is not None or action.key not in kept:
        return action
    base_row_id, commit_version = kept[action.key]
    return replace(action, base_row_id=base_row_id, default_row_commit_version=commit_version)
