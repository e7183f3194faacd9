"""One table's log, followed and committed to: what every verb of a table is built on.

Named after Iceberg's ``TableOperations``, which is the same thing there: refresh, commit, and what has to follow.
"""

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress

from dagster_versioned.errors import GovernanceError, InvalidInput, TableNotFound, VersionedError
from dagster_versioned.identity.names import TableName, table_name
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.tables.context import ProjectContext
from dagster_versioned.tables.documents.datom_documents import hidden_by
from dagster_versioned.tables.documents.head import (
    EMPTY,
    HeadDocument,
    TableHead,
    head_key,
    partition_head,
    table_head,
)
from dagster_versioned.tables.documents.parked_draft import ParkedDraft
from dagster_versioned.tables.documents.publish import Publisher, checkpoint_before
from dagster_versioned.tables.history import Collection, Version
from dagster_versioned.tables.maintenance.collect import Collector
from dagster_versioned.tables.maintenance.protection import Protectors
from dagster_versioned.tables.preconditions import require
from dagster_versioned.tables.state import StateCache, TableState
from dagster_versioned.tables.table_record import TableRecord
from dagster_versioned.tables.whereabouts import MovedTo, Whereabouts, left
from dagster_versioned.tables.write.commit import Guard, PlanCommit, commit

logger = logging.getLogger("dagster_versioned")


class TableOperations:
    """The log of one table, at the place where the table is: a migration that took it away is followed.

    Cheap to make: nothing is read before it is needed. Thread-safe.
    """

    parked: Mapping[int, ParkedDraft] = {}
    """The log versions that are of parked drafts: only a view has any."""

    def __init__(self, project: ProjectContext, name: TableName) -> None:
        self.name = name
        self.asked_for = name
        self._open(project)

    def _open(self, project: ProjectContext) -> None:
        self.project = project
        self.store: ObjectStore = project.data.subfolder(str(self.name))
        self.table_head = TableHead(project.data, head_key(self.name))
        self.cache = StateCache(self.store, self._near, project.loaded)
        self.whereabouts = Whereabouts(project, self.name, self.cache)
        forked_at = None if project.environment is None else project.environment.forked_at(self.name)
        self.publisher = Publisher(
            project.name, self.name, project.data, self.store, self.table_head, forked_at=forked_at
        )
        self._guards = tuple(make(project, self.name, self.store) for make in project.guards)
        self._is_as_forked = project.environment is None

    def refresh(self) -> TableState | None:
        """The state at the end of the log, or ``None`` without one; at the new place if a migration took it away."""
        found = self.whereabouts.look()
        if isinstance(found, MovedTo):
            self._open(found.project)
            found = self.cache.refresh()
        if found is not None and not self._is_as_forked and self.project.environment is not None:
            self.project.environment.check_forked(self.name, found)
            self._is_as_forked = True
        left_for = TableRecord.of(found.snapshot).left_for(self.name) if found is not None else None
        if left_for is not None:
            there = TableOperations(self.project, table_name(left_for))
            if there.refresh() is not None:  # else it is on its way, and can be read here still
                self.name = there.name
                self._open(there.project)
                return self.cache.refresh()
        return found

    def remembered(self) -> TableState | None:
        """The state that is remembered, be there a newer one or not; `refresh` where there is none."""
        return self.cache.known or self.refresh()

    def existing_state(self) -> TableState:
        """`refresh`, but raises `TableNotFound` where the table has no log."""
        if (state := self.refresh()) is not None:
            return state
        if self.whereabouts.is_arriving():
            raise TableNotFound(
                f"A table that is being renamed is on its way to {self.name}. Nothing was read. Read it by the name "
                "that it had, or finish the rename: run it again."
            )
        return self.cache.existing_state()

    def arrive(self) -> None:
        """Be where the project is now, before something is read that is not the log."""
        if self.project.placement_authority is not None:
            self.refresh()

    def follow(self) -> None:
        """Be where a rename took the table, as far as its log can be read."""
        with suppress(VersionedError):
            self.refresh()

    # Committing

    def is_here(self, state: TableState) -> bool:
        """Whether a change would go to this log: no rename and no migration took the table from where it was opened."""
        return self.name == self.asked_for and self.whereabouts.mark_of(state) is None

    def check_name_is_free(self) -> int:
        """Refuse a name that no table may have; returns where the log of the table ends, -1 without one."""
        with self.whereabouts.explain_fence():
            if known := self.cache.known or self.cache.refresh():
                return known.log_version
        self.project.check_new_table(self.name)
        return -1

    def change(self, plan: PlanCommit, *, just_opened: bool = False) -> TableState | None:
        """Commit what a user asked for: not at a place that a migration has ended."""
        with self.whereabouts.explain_fence():
            if self.name != self.asked_for:
                raise left(self.asked_for, TableRecord.of(self.existing_state().snapshot))
            return self._commit(plan, (self.whereabouts, *self._guards), just_opened=just_opened)

    def commit_as_migration(self, plan: PlanCommit) -> TableState | None:
        """`change` on behalf of a migration or a rename, which ends or begins the log here itself."""
        return self._commit(plan, self._guards)

    def _commit(self, plan: PlanCommit, guards: Sequence[Guard], *, just_opened: bool = False) -> TableState | None:
        """Commit a plan, once no collection is in its way, and publish what follows from it."""
        if not self._is_as_forked:
            self.refresh()
        state = commit(self.store, self.cache, plan, self._announce, self._settle, guards, just_opened=just_opened)
        if state is None:
            self.resolve_unless_seen()
            return None
        for guard in guards:
            guard.committed()
        if self.project.environment is None and (version := hidden_by(state.history)) is not None:
            self._warn_of_hiding(version)
        self._publish(state)
        self.tell(state)
        return state

    def tell(self, state: TableState) -> None:
        """Tell who observes the project of the commit at the end of the log."""
        for observer in self.project.observers:
            observer.committed(self, state)

    def _warn_of_hiding(self, version: Version) -> None:
        parts = version.facts.part_count
        logger.warning(
            "%s is not for datom's readers any more from version @%d on: they open a version as one file, and this one "
            "has %s. Delta readers and this package read it as before. A version that replaces the table by one file "
            "(TableOptions(single_part=True)) brings it back to them; rows that are appended or merged do not.",
            self.name,
            version.log_version,
            "columns of partitions or deleted rows" if parts == 1 else f"{parts} files",
        )

    def _settle(self, collection: Collection) -> None:
        for guard in self._guards:
            guard.before_waiting(collection)
        self.collector().settle(collection)

    def collector(self) -> Collector:
        """What runs collections on the table, and ends those that others left open."""
        return Collector(self.store, self.cache, self.change, Protectors(self.project, self.name, self._former))

    # What is derived

    def head(self, partition: str | None = None) -> HeadDocument:
        """The stored head, without reading the log, which may carry a mark of a commit in flight; that of a partition
        from the log."""
        if partition is not None:
            state = self.refresh()
            version = state.history.heads.get(partition) if state is not None else None
            if state is None or version is None:
                return EMPTY
            return HeadDocument(state.log_version, partition_head(self.name, version, state))
        self.arrive()
        return self.table_head.read()

    def resolve(self) -> HeadDocument:
        """The head, brought up to the end of the log if a writer died between its commit and its head.

        One that is beyond the end of the log is not of this log, and all that is derived is written again. Who may not
        write here, such as a governed reader, gets the head and writes nothing.
        """
        self.arrive()
        name, document = self.name, self.head()  # before the log, which then holds whatever a true head knows
        state = self.refresh()
        if self.name != name:
            return self.resolve()  # the document is that of the name that the table had
        if state is None:
            return document
        at = state.log_version
        if document.log_version > at:
            self._repair_quietly()
            return self.head()
        if document.published < at:
            if not self._may_write():
                return HeadDocument(at, table_head(self.name, state), document.pending_after(at))
            self._publish(state)
            return self.head()
        if document.pending and self._may_write() and self.table_head.withdraw_stale_mark(at):
            return self.head()
        return document

    def repair(self) -> None:
        """Write every derived document again from the commits. Raises `UnsupportedFeature` where the first are gone."""
        require("repair", self.project)
        self.follow()
        self.publisher.rebuild(self.cache)

    # Inside

    def _former(self) -> tuple[tuple[str, str], ...]:
        return TableRecord.of(self.existing_state().snapshot).former

    def _near(self) -> int | None:
        """A log version from which on the log has a checkpoint, as far as the head knows."""
        seen = self.table_head.read().log_version
        return checkpoint_before(seen) if seen >= 0 else None

    def resolve_unless_seen(self) -> None:
        """`resolve`, unless the head as this process saw it is at the end of the log, and nothing is announced."""
        known, seen = self.cache.known, self.table_head.remembered()
        if seen is None and known is not None and self.project.loaded.has_head(self.store, known):
            return
        if known is None or seen is None or not seen.is_settled_at(known.log_version):
            seen = self.resolve()
        if known is not None and seen.is_settled_at(known.log_version):
            self.project.loaded.note_head(self.store, known)

    def _announce(self, log_version: int) -> None:
        self.table_head.announce(log_version)
        if log_version == 0:
            self.project.check_unmarked()  # after the announcement: see `fence`

    def _publish(self, state: TableState) -> None:
        """Publish; what fails here is derived and the commit stands, so it is logged and left to the next publisher."""
        try:
            self.publisher.publish(self.cache, state)
            if self.table_head.last_seen().log_version > state.log_version:
                self.resolve()  # the head of a log that is no more would hide what is committed to this one
        except VersionedError:
            logger.warning(
                "%s: log version %d is committed, but its derived documents could not be written. The next write, "
                "sensor tick or repair() brings them up to date.",
                self.name,
                state.log_version,
                exc_info=True,
            )

    def _repair_quietly(self) -> None:
        try:
            self.repair()
        except VersionedError:
            logger.warning("%s: its head is ahead of its log and could not be corrected.", self.name, exc_info=True)

    def _may_write(self) -> bool:
        try:
            self.project.check_write()
        except (GovernanceError, InvalidInput):
            return False
        return True
