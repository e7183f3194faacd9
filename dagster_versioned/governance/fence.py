"""The fence of a migration: from when it stands, nothing more is committed at the old place (FORMAT.md, "Fence").

A write may take an hour between asking where the bytes belong and its commit. So the migration makes the last entry of
every table's log itself: whoever was in flight loses that put, sees who won, and commits nothing. What is not a commit
to a known table is caught by the order of things:

- A table that is being created: its creator writes its head (pending), then looks for the mark, then puts commit 0. The
  fence puts the mark, then lists heads, then puts commit 0 of a table that has none yet.
- Pins: who changes them reads them, looks for the mark, and swaps them by ETag. The fence puts the mark, then rewrites
  them.
- Tags, and pushes of definitions: who made one looks for the mark after it was put, and takes it away. What was put
  before the mark is copied.

Where the old place is emptied, the fence stays (`fence_of`): a writer that slept all the while would else find the
entry that it wants to put free again, and commit to nobody.
"""

import logging
import re
from collections.abc import Callable, Iterable

from dagster_versioned.delta.actions import DomainMetadata
from dagster_versioned.delta.schema.types import StructField, StructType
from dagster_versioned.errors import GovernanceError, InvalidName, UnsupportedFeature
from dagster_versioned.governance.governance_marker import MARKER_KEY
from dagster_versioned.identity.names import TableName, table_name
from dagster_versioned.projects.project import Project
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.tables.document import encode, update_document
from dagster_versioned.tables.documents.head import HEADS_FOLDER, head_key, read_head
from dagster_versioned.tables.pins import PINS_KEY
from dagster_versioned.tables.relocation.migration_mark import (
    MARK_KEY,
    MOVE,
    MOVED_DOMAIN,
    STAY,
    MigrationMark,
    clear_mark,
    migration_of,
    put_mark,
)
from dagster_versioned.tables.state import TableState
from dagster_versioned.tables.write.commit import CollectionInProgress, CommitDraft
from dagster_versioned.tables.write.table_actions import table_actions

logger = logging.getLogger("dagster_versioned")

_LOG_ENTRY = re.compile(r"(.*/_delta_log/)\d{20}\.json", re.ASCII)
_NO_COLUMNS = StructType((StructField("moved", "string"),))
"""The schema of a table that was not created: Delta readers refuse one without columns."""


def raise_fence(project: Project, mark: MigrationMark) -> None:
    """End every table's log at this place; may be repeated, also by another process.

    ``mark`` is *leaving*. Waits for collections that are deleting. Raises `GovernanceError` where another migration is
    under way.
    """
    put_mark(project.data, mark)
    # Bytes that differ, though they say the same: a swap by the ETag of before fails.
    update_document(project.data, PINS_KEY, lambda data: (b"{}" if data is None else data) + b"\n")
    for name in sorted({*project.tables(), *_announced(project.data)}):
        if (arriving := read_head(project.data, head_key(name)).arriving) is not None and arriving.has_left:
            raise GovernanceError(
                f"The table {arriving.source} is being renamed to {name}. The project stays where it is. Finish that "
                f"first: `dagster-versioned rename {arriving.source} {name} --apply`; then migrate again."
            )
        try:
            project.table(str(name)).commit_as_migration(_moved(mark))
        except UnsupportedFeature:
            # This package never commits to such a table of another program's, and others know no fence.
            logger.info("%s holds no versions and cannot be fenced.", name)


def lift_fence(project: Project, migration_id: str) -> None:
    """Let writers go on at this place; may be repeated.

    Taking the mark away is enough; that each table's log says so too is for those who read it.
    """
    clear_mark(project.data, migration_id)
    for name in project.tables():
        project.table(str(name)).commit_as_migration(_stays(migration_id))


def fence_of(keys: Iterable[str]) -> set[str]:
    """Of the keys of a place that was left, those that stay: the mark, the pins, the end of every log, who governs."""
    found = sorted(keys)
    ends = {match[1]: key for key in found if (match := _LOG_ENTRY.fullmatch(key))}
    return {MARK_KEY, PINS_KEY, MARKER_KEY, *ends.values()}.intersection(found)


def is_moved_with(project: Project) -> Callable[[str], bool]:
    """Whether an object of the data folder belongs to the project, and so to the place that it moves to.

    Left behind: marks, what running writes stage, and what the fence made of tables whose creator came too late.
    """
    void = [name for name in project.tables() if project.table(str(name)).is_void]
    left = tuple(f"{name}/" for name in void)
    alone = {MARK_KEY, *(head_key(name) for name in void)}

    def belongs(key: str) -> bool:
        return key not in alone and not key.startswith(left) and key.split("/")[1:2] != ["_staging"]

    return belongs


def _announced(data: ObjectStore) -> list[TableName]:
    """The tables that have a head, and so perhaps a creator that has announced commit 0."""
    names: list[TableName] = []
    for info in data.list(HEADS_FOLDER):
        try:
            names.append(table_name(info.key.removeprefix(HEADS_FOLDER).removesuffix(".json")))
        except InvalidName:
            continue
    return names


def _moved(mark: MigrationMark) -> Callable[[TableState | None, int], CommitDraft | None]:
    moved = {"id": mark.id, "to": mark.target.to_json()}

    def draft(state: TableState | None, timestamp: int) -> CommitDraft | None:
        if state is not None:
            if migration_of(state.snapshot) == mark.id:
                return None
            for collection in state.history.open_collections:
                raise CollectionInProgress(collection)
        schema = state.snapshot.schema if state is not None else _NO_COLUMNS
        domain = DomainMetadata(MOVED_DOMAIN, encode(moved).decode(), False)
        return CommitDraft(MOVE, [*table_actions(state, schema, timestamp), domain], {"moved": moved}, announces=False)

    return draft


def _stays(migration_id: str) -> Callable[[TableState | None, int], CommitDraft | None]:
    def draft(state: TableState | None, _: int) -> CommitDraft | None:
        if state is None or migration_of(state.snapshot) != migration_id:
            return None
        return CommitDraft(
            STAY, [DomainMetadata(MOVED_DOMAIN, "", True)], {"moved": {"id": migration_id}}, announces=False
        )

    return draft
