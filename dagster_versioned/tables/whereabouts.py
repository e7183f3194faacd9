"""Where a table is: its log at one place, until a migration ends it there (`fence`), and then at another.

Whoever reads follows to the new place, if governance says where that is; whoever writes at the old one is refused.
"""

import logging
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from dagster_versioned.errors import InvalidName, LogCorrupt, UnsupportedFeature
from dagster_versioned.identity.names import TableName
from dagster_versioned.tables.context import ProjectContext
from dagster_versioned.tables.documents.head import TableHead, head_key, read_head
from dagster_versioned.tables.relocation.migration_mark import MOVE, MigrationMark, migration_of, moved, read_mark
from dagster_versioned.tables.state import StateCache, TableState
from dagster_versioned.tables.table_record import TableRecord
from dagster_versioned.tables.write.commit import Guard

logger = logging.getLogger("dagster_versioned")


@dataclass(frozen=True)
class MovedTo:
    """The table is not here any more: it is in this project, which is the same one at its new place."""

    project: ProjectContext


class Whereabouts(Guard):
    """What is known of one table's place: the migration that brought it here, and the one that took it away.

    As a guard it lets nobody commit where a migration, or a rename, has ended the log.
    """

    def __init__(self, project: ProjectContext, name: TableName, cache: StateCache) -> None:
        self._project = project
        self._name = name
        self._cache = cache
        self._arrived: str | None = None  # the migration that is known to have brought the table here
        self._warned_of: str | None = None  # the migration that took it away, of which the user was warned

    def look(self) -> TableState | MovedTo | None:
        """The state at the end of the log, ``None`` without one, or where to look instead.

        Raises `ProjectMoved` where nothing but the fence is left here, and nobody says where the table is.
        """
        try:
            state = self._cache.refresh()
        except (LogCorrupt, UnsupportedFeature):  # all that is left of the log may be the fence
            if self.is_arriving():
                return None
            mark = read_mark(self._project.data)
            if mark is None or mark.state != "leaving":
                raise
            if (moved_to := self._relocated()) is not None:
                return moved_to
            raise moved(self._project.store.uri, mark) from None
        if state is None:
            return self._relocated()
        mark = self.mark_of(state)
        if mark is None or mark.state == "arriving":
            return state
        if (moved_to := self._relocated()) is not None:
            return moved_to
        self._warn_of(mark, state)
        return state

    def _relocated(self) -> MovedTo | None:
        authority = self._project.placement_authority
        store = authority.relocated() if authority is not None else None
        if store is None:
            return None
        logger.warning(
            "%s is not at %s any more: it is read at %s. Bring your registry up to date: dagster-versioned gov pull.",
            self._name,
            self._project.store.uri,
            store.uri,
        )
        return MovedTo(self._project.at(store))

    def _warn_of(self, mark: MigrationMark, state: TableState) -> None:
        """Warn once that the table goes on elsewhere, where nobody says so by itself."""
        if mark.id == self._warned_of or self._project.placement_authority is not None:
            return
        self._warned_of = mark.id
        logger.warning(
            "%s was moved, or is being moved, from %s to %s: what is read here ends with log version %d.",
            self._name,
            self._project.store.uri,
            mark.target.uri,
            state.log_version,
        )

    @property
    def is_void(self) -> bool:
        """Whether all that there is of the table is the fence that kept it from being created."""
        try:
            state = self._cache.refresh()
        except (LogCorrupt, UnsupportedFeature):
            return False  # of such a table, the first commit can be read
        if state is None or state.history.heads or state.history.versions:
            return False
        return state.history.record(0).operation == MOVE

    def mark_of(self, state: TableState) -> MigrationMark | None:
        """The mark beside the table of the migration that its log names, if it lies there; it is at both ends or none.

        Without a mark the table has arrived here, or it never left.
        """
        migration = migration_of(state.snapshot)
        if migration is None or migration == self._arrived:
            return None
        mark = read_mark(self._project.data)
        if mark is not None and (mark.id == migration or mark.state == "arriving"):
            return mark
        self._arrived = migration
        return None

    def before(self, state: TableState | None) -> None:
        """Raise `ProjectMoved` or `InvalidName` where the table is not here any more."""
        if state is None:
            return
        mark = self.mark_of(state)
        if mark is not None and self._project.is_barred_by(mark):
            raise moved(self._project.store.uri, mark)
        if (record := TableRecord.of(state.snapshot)).left_for(self._name) is not None:
            raise left(self._name, record)

    @contextmanager
    def explain_fence(self) -> Generator[None]:
        """Where the log cannot be read in the block, say that the project was moved, if that is why."""
        try:
            yield
        except (LogCorrupt, UnsupportedFeature):  # all that is left of the log may be the fence
            self._project.check_unmarked()
            if self.is_arriving():
                TableHead(self._project.data, head_key(self._name)).announce(0)  # which says what is on its way
            raise

    def is_arriving(self) -> bool:
        """Whether all that there is of the log is what a rename has copied of it so far."""
        return read_head(self._project.data, head_key(self._name)).arriving is not None


def left(table: str, record: TableRecord) -> InvalidName:
    """The error of who wanted to write to a table by a name that it has no more."""
    key = list(record.renamed.asset_key) if record.renamed is not None else []
    return InvalidName(
        f"{table} {record.renamed or 'was renamed'}. Nothing was committed. Give the asset the key {key}; if the "
        f"rename did not end, run it again: `dagster-versioned rename {table}`."
    )
