"""Rebasing: an environment goes on from production as it is now, and keeps the versions of its own that are current.

A rebase is a promotion from the generation that an environment has to its next one: the same judgement, the same
checks of bytes, the same names. Nobody has to accept anything, because nothing becomes production's. What is left is
listed, and computed anew in the environment.

Each step is one swap of the environment's document, so that whoever comes after a crash, or at the same time, goes on
where the document says; what was committed before the forks were swapped is carried on, before or after.
"""

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dagster_versioned.branches.environments import delete_folder, fork_now
from dagster_versioned.branches.promote import (
    REASONS,
    Cell,
    LeftCell,
    PromotedCell,
    PromotedTable,
    close,
    in_order,
    not_exact,
)
from dagster_versioned.branches.promotion_document import refuse_open_promotion
from dagster_versioned.errors import (
    CommitConflict,
    EnvironmentNotFound,
    GovernanceError,
    IntegrityError,
    ObjectNotFound,
    PreconditionFailed,
    TableNotFound,
)
from dagster_versioned.identity.names import TableName
from dagster_versioned.projects.moment import check_kept
from dagster_versioned.storage.backoff import RACE
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.tables.documents.head import HEADS_FOLDER
from dagster_versioned.tables.documents.parked_draft import read_drafts, refuse_parked
from dagster_versioned.tables.environment.fork import EnvironmentDocument, Fork
from dagster_versioned.tables.environment.registry import Environment, document_of, key_of
from dagster_versioned.tables.history import History, Version
from dagster_versioned.tables.preconditions import require
from dagster_versioned.tables.state import TableState

if TYPE_CHECKING:
    from dagster_versioned.projects.project import Project

_TURNS = 20
"""How often a step may come too late because others rebase the same environment."""


@dataclass(frozen=True)
class RebaseReport:
    """What an environment keeps, or (dry run) would keep, upstream first, and what is left; ``forked`` (RFC 3339, UTC)
    is the moment of production that it goes on from. ``before`` of what is kept is production's version then."""

    environment: str
    dry_run: bool
    forked: str
    kept: tuple[PromotedCell, ...]
    left: tuple[LeftCell, ...]


def rebase_environment(project: "Project", name: str, *, dry_run: bool = True, by: str | None = None) -> RebaseReport:
    """Have an environment go on from production as it is now, with the versions of its own that are current there.

    Left is what production has changed since, what is built from such, and what `promote` would leave, but for imported
    tables, a missing code version and few rows. One that died is finished first: its fork is as old as that. Who has
    the environment open cannot write to it any more, and opens it again.

    Raises `EnvironmentNotFound`, `InvalidInput` in an environment and while a promotion of it is open, `ProjectMoved`
    for a place that a migration is leaving or arriving at, and `CommitConflict`, see `heads_at_one_moment`, or where
    others rebase it all the time.
    """
    require("rebase", project, dry_run=dry_run)
    by = by or project.author
    if dry_run:
        document, _ = document_of(project.store, project.name, name)
        if document.previous is not None:
            return _carried_on(project, document.previous, document.fork, by, dry_run=True)
        if document.next is None:
            _refuse_open(project, document.fork)
        to = document.next or fork_now(project, name, by)
        return _carried_on(project, document.fork, to, by, dry_run=True)
    rebase = _Rebase(project, name, by)
    gone: ObjectNotFound | None = None
    for attempt in range(_TURNS):
        try:
            if (report := rebase.step()) is not None:
                return report
        except ObjectNotFound as error:  # another rebase, which was faster, deletes what this one goes on from
            gone = error
            RACE.pause(attempt)
    if gone is not None:
        raise gone
    raise CommitConflict(
        f"The environment {name} was changed by others {_TURNS} times while it was rebased. It is as they left it. Run "
        "it again when nobody else rebases it."
    )


class _Rebase:
    """One rebase of an environment, by steps that each begin with its document as it is then."""

    def __init__(self, project: "Project", name: str, by: str | None) -> None:
        self._project = project
        self._name = name
        self._by = by
        self._done: RebaseReport | None = None
        self._to: Fork | None = None

    def step(self) -> RebaseReport | None:
        """Take the next step, whoever took the ones before; returns the report once there is none."""
        project, by = self._project, self._by
        document, etag = document_of(project.store, project.name, self._name)
        if document.previous is not None:
            return _finished(project, document.previous, document, etag, by)
        if self._to is not None and document.fork.generation == self._to.generation:
            return self._done  # another rebase has finished this one
        if document.next is None:
            _refuse_open(project, document.fork)  # what is on its way is finished all the same
            with suppress(PreconditionFailed):
                _swap(project.store, replace(document, next=fork_now(project, self._name, by)), etag)
            return None
        _check_next(project, document.next, document, etag)
        self._to = None  # until all of it is carried
        self._done = _carried_on(project, document.fork, document.next, by)
        self._to = document.next
        try:
            _swap(project.store, EnvironmentDocument(self._to, previous=document.fork), etag)
        except PreconditionFailed:
            with suppress(EnvironmentNotFound):  # the next step says what became of it
                _environment(project, self._to).check_committed()
        return None


def _refuse_open(project: "Project", fork: Fork) -> None:
    """Raise `InvalidInput` where a promotion of the environment is open, or drafts wait there, which stay behind."""
    refuse_open_promotion(project.data, fork.environment, "rebased")
    refuse_parked(_opened(project, fork).data, f"A rebase of the environment {fork.environment}")


def _check_next(project: "Project", to: Fork, document: EnvironmentDocument, etag: str) -> None:
    """Whether production keeps all of the next fork, which is taken back if not. By whoever goes on with a rebase:
    who began it may have died before."""
    try:
        check_kept(project, to.heads, f"the rebase of {to.environment}")
    except (CommitConflict, GovernanceError):
        with suppress(PreconditionFailed):
            _swap(project.store, replace(document, next=None), etag)
            delete_folder(project.store, to.path)
        raise


def _finished(
    project: "Project", previous: Fork, document: EnvironmentDocument, etag: str, by: str | None
) -> RebaseReport:
    """The end of a rebase: what was committed until the swap is carried on, then the previous generation is deleted."""
    report = _carried_on(project, previous, document.fork, by)
    own = Environment(previous, project.store, "").own_data()
    # First by what its tables are found: half of one must not be taken for what was written.
    own.delete([info.key for info in own.list(HEADS_FOLDER)])
    delete_folder(project.store, previous.path)
    with suppress(PreconditionFailed):  # another rebase was faster
        _swap(project.store, replace(document, previous=None), etag)
    # As long as the document names the generation, a writer that is late leaves what it wrote.
    delete_folder(project.store, previous.path)
    return report


def _swap(store: ObjectStore, document: EnvironmentDocument, etag: str) -> None:
    store.put_if_match(key_of(document.fork.environment), document.to_bytes(), etag)


def _environment(project: "Project", fork: Fork) -> Environment:
    # No ETag: a generation is opened here that the document may not name as the environment's.
    return Environment(fork, project.store, "")


_REASONS = (*REASONS, IntegrityError)
"""Why the versions of a table are left. A store that fails is none: what is left is deleted in the end."""


def _carried_on(
    project: "Project", before: Fork, after: Fork, by: str | None, *, dry_run: bool = False
) -> RebaseReport:
    """Carry what can be from one generation to another (``dry_run``: nothing); says why the rest is left."""
    there = _opened(project, after)
    tables, left = _tables(project, there, _opened(project, before))
    candidates: dict[Cell, Version] = {
        (name, version.partition): version for name, table in tables.items() for version in table.cells.values()
    }
    left += close(there, candidates)
    kept: dict[Cell, Version] = {
        (name, version.partition): version for name, table in tables.items() for version in table.carried
    }
    for name in in_order(candidates):
        versions = [version for (of, _), version in candidates.items() if of == name]
        try:
            if versions and not dry_run:
                tables[name].commit(versions, by)
        except _REASONS as error:
            for version in versions:
                del candidates[name, version.partition]
            left += [LeftCell(name, version.partition, str(error)) for version in versions]
            left += close(there, candidates)
        else:
            kept |= {(name, version.partition): version for version in versions}
    if not dry_run:
        for table in tables.values():
            table.resolve()
    for draft in read_drafts(_opened(project, before).data)[0]:  # parked since the rebase began
        if draft.is_living:
            why = f"it was parked as the draft {draft.id[:8]}, which is not carried on: run its step again"
            left += [LeftCell(draft.table, partition, why) for partition in draft.partitions]
    cells = [
        tables[name].promoted(version)
        for name in in_order(kept)
        for (of, _), version in sorted(kept.items(), key=lambda item: str(item[0]))
        if of == name
    ]
    return RebaseReport(after.environment, dry_run, after.created, tuple(cells), tuple(left))


def _tables(
    production: "Project", there: "Project", here: "Project"
) -> "tuple[dict[TableName, _RebasedTable], list[LeftCell]]":
    """The tables that were written in a generation, judged, and what of them is left."""
    assert here.environment is not None
    tables: dict[TableName, _RebasedTable] = {}
    left: list[LeftCell] = []
    for name in here.environment.written_names():
        try:
            tables[name] = _RebasedTable(production, there, here, name)
        except TableNotFound:
            continue  # no commit came of it
        except IntegrityError as error:
            left.append(LeftCell(name, None, str(error)))
            continue
        left += tables[name].left
    return tables, left


def _opened(project: "Project", fork: Fork) -> "Project":
    opened = _environment(project, fork)
    return type(project)(project.name, project.store, author=project.author, environment=opened)


class _RebasedTable(PromotedTable):
    """A table that was written in one generation of an environment, beside the same one in another generation."""

    operation = "REBASE"

    def __init__(self, production: "Project", there: "Project", here: "Project", name: TableName) -> None:
        assert there.environment is not None
        self._production = production
        self._next = there.environment
        self.carried: list[Version] = []
        """Those that are there already, and may have been replaced there since."""
        super().__init__(there, here, name, (), "bytes")  # what is said of rows stays the environment's own word
        self._promoted_from = None  # they stay the environment's own
        base = self._there.operations.refresh()
        if base is None:
            return
        there_by_now = _carried(base.history, self._next.forked_at(name))
        for partition, version in self._state.history.heads.items():
            is_there = partition in there_by_now and there_by_now[partition] == version.metadata_sha
            if is_there and version.log_version > self._forked_at:
                self.carried.append(version)
                self.cells.pop(partition, None)
                self.left = [cell for cell in self.left if cell.partition != partition]
        self._before = base.history.until(forked_at).heads if (forked_at := self._next.forked_at(name)) >= 0 else {}

    def resolve(self) -> None:
        """Have the head name what was carried: who committed it may have died before."""
        if self.carried:
            self._there.operations.resolve()

    def _moved(self, version: Version, base: TableState | None) -> str | None:
        head = base.history.heads.get(version.partition) if base is not None else None
        if (
            base is not None
            and head is not None
            and head.log_version > self._next.forked_at(self.name)
            and head.metadata_sha != version.metadata_sha
            and not self._precedes(head, version, base.history)
        ):
            return f"version {head.short} was written in its place since the rebase began"
        return super()._moved(version, base)

    def _left(self, version: Version, head: Version | None, base: TableState | None) -> str | None:
        moved = self._moved(version, base)
        if moved is not None or (head is not None and head.metadata_sha == version.metadata_sha):
            return moved
        return not_exact(version, is_new=True)  # production's import is the one that it was, or it had moved

    def _is_another(self, base: TableState | None) -> str | None:
        if self.name not in self._next.fork.tables:
            if self._forked_at < 0:
                return None  # what is there was carried, or written there since
            operations = self._production.table(str(self.name)).operations
            operations.follow()
            if operations.name != self.name:
                return f"production's table is called {operations.name} now"
        return super()._is_another(base)

    def _precedes(self, head: Version, version: Version, history: History) -> bool:
        return history.record(head.log_version).operation == "REBASE" and any(
            stored.metadata_sha == head.metadata_sha and stored.partition == head.partition
            for stored in self._state.history.versions
            if self._forked_at < stored.log_version < version.log_version
        )


def _carried(history: History, forked_at: int) -> dict[str | None, str | None]:
    """By partition, the version that a rebase brought last to a generation."""
    return {
        version.partition: version.metadata_sha
        for version in history.versions
        if version.log_version > forked_at and history.record(version.log_version).operation == "REBASE"
    }
