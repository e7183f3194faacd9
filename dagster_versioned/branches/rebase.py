"""Rebasing: an environment goes on from production as it is now, and keeps the versions of its own that are current.

A rebase is a promotion from the generation that an environment has to its next one: the same judgement, the same
checks of bytes, the same names. Nobody has to accept anything, because nothing becomes production's. What is left is
listed, and computed anew in the environment.

Each step is one swap of the environment's document, so that whoever comes after a crash, or at the same time, goes on
where the document says; what was committed before the forks were swapped is carried on, before or after.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

from dagster_versioned.branches.environments import delete_folder, fork_now
from dagster_versioned.branches.judgement import REASONS, Candidates, Cell, JudgedTable, LeftCell, in_order
from dagster_versioned.branches.promote import PromotedCell, commit_versions
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
from dagster_versioned.tables.history import Version
from dagster_versioned.tables.preconditions import require

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
            return RebasePlan(project, document.previous, document.fork, by).preview()
        if document.next is None:
            _refuse_open(project, document.fork)
        to = document.next or fork_now(project, name, by)
        return RebasePlan(project, document.fork, to, by).preview()
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
        self._done = RebasePlan(project, document.fork, document.next, by).apply()
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
    report = RebasePlan(project, previous, document.fork, by).apply()
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


class RebasePlan:
    """What can be carried from one generation of an environment to another, and why the rest is left."""

    def __init__(self, project: "Project", before: Fork, after: Fork, by: str | None) -> None:
        self._after = after
        self._by = by
        self._here, there = _opened(project, before), _opened(project, after)
        self._tables, left = _judged(project, there, self._here)
        self._candidates = Candidates(there, self._tables.values(), left)
        self._candidates.close()

    def preview(self) -> RebaseReport:
        """What would be carried."""
        return self._report(self._candidates.each(None), dry_run=True)

    def apply(self) -> RebaseReport:
        """Carry it. A store that fails is no reason to leave something: what is left is deleted in the end."""
        report = self._report(self._candidates.each(self._commit, (*REASONS, IntegrityError)), dry_run=False)
        for table in self._tables.values():
            if table.carried:
                table.there.operations.resolve()  # who committed it may have died before the head named it
        return report

    def _commit(self, table: JudgedTable, versions: Sequence[Version]) -> None:
        commit_versions(table, versions, self._by, "bytes")  # what is said of rows stays the environment's own word

    def _report(self, done: Iterable[tuple[JudgedTable, Sequence[Version]]], *, dry_run: bool) -> RebaseReport:
        carried = ((table, table.carried) for table in self._tables.values())
        kept: dict[Cell, Version] = {
            (table.name, version.partition): version for table, versions in chain(carried, done) for version in versions
        }
        left = self._candidates.left
        for draft in read_drafts(self._here.data)[0]:  # parked since the rebase began
            if draft.is_living:
                why = f"it was parked as the draft {draft.id[:8]}, which is not carried on: run its step again"
                left += [LeftCell(draft.table, partition, why) for partition in draft.partitions]
        order = in_order(kept)
        cells = sorted(kept.items(), key=lambda item: (order.index(item[0][0]), str(item[0])))
        promoted = tuple(PromotedCell.of(self._tables[name], version) for (name, _), version in cells)
        return RebaseReport(self._after.environment, dry_run, self._after.created, promoted, tuple(left))


def _judged(
    production: "Project", there: "Project", here: "Project"
) -> tuple[dict[TableName, JudgedTable], list[LeftCell]]:
    """The tables that were written in a generation, judged, and what of them is left."""
    assert here.environment is not None
    tables: dict[TableName, JudgedTable] = {}
    left: list[LeftCell] = []
    for name in here.environment.written_names():
        try:
            if not here.environment.commits_in(name, here.table(str(name)).state):
                continue
            tables[name] = JudgedTable(there, here, name, production=production)
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
