"""Which versions of an environment may become production's as they are, and why each other one is left to it.

A promotion, and a rebase, in which the environment's next generation stands for production, judge by the same rules:
what a version is, how production went on beside it, and whether all that it was built from is current there.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from dagster_versioned.branches.promotion_write import LeftToProduction
from dagster_versioned.errors import CommitConflict, HeldHead, InvalidInput, InvalidName, UnsupportedFeature
from dagster_versioned.identity.names import TableName
from dagster_versioned.identity.version import Parent, partitions_sha
from dagster_versioned.tables.configuration import DELETION_VECTORS, with_statistics_of
from dagster_versioned.tables.erased_parts import ERASE, REDACT
from dagster_versioned.tables.history import History, Version
from dagster_versioned.tables.state import TableState
from dagster_versioned.tables.table_record import TableRecord
from dagster_versioned.tables.write.clustering import clustering_of

if TYPE_CHECKING:
    from dagster_versioned.projects.project import Project
    from dagster_versioned.tables.table import VersionedTable

Cell = tuple[TableName, str | None]

REASONS = (LeftToProduction, CommitConflict, HeldHead, InvalidInput, UnsupportedFeature)
"""What is a reason to leave the versions of one table and go on; any other error ends a promotion."""

_KEPT_SHARE = 0.5
"""A version with fewer than this share of the rows that it replaces looks like one of a sample."""
_OPERATIONS = ("WRITE", "VACUUM", "REBASE", ERASE, REDACT)


@dataclass(frozen=True)
class LeftCell:
    """A version that is left to production to compute, and why; ``partition`` is ``None`` for all of the table."""

    table: TableName
    partition: str | None
    why: str


class JudgedTable:
    """A table that was written in an environment (``here``), beside production's (``there``), as both are now.

    ``cells`` are the versions that may be promoted, ``left`` says why the others may not. In a rebase, ``there`` is the
    environment's next generation, and ``production`` what that was forked from. Nobody has to accept anything then,
    because nothing becomes production's; ``carried`` are versions that a rebase which died has brought there.
    """

    def __init__(
        self,
        project: "Project",
        environment: "Project",
        name: TableName,
        accept: Collection[str] = (),
        production: "Project | None" = None,
    ) -> None:
        opened = environment.environment
        assert opened is not None
        self.name = name
        self.project = project
        self.there: VersionedTable = project.table(str(name))
        self.here: VersionedTable = environment.table(str(name))
        self.environment = opened.name
        self.forked_at = opened.forked_at(name)
        self.state = self.here.state
        self.left: list[LeftCell] = []
        self.cells: dict[str | None, Version] = {}
        self.carried: list[Version] = []
        self._commit_sha = opened.fork.tables[name].commit_sha256 if name in opened.fork.tables else None
        self._production = production
        self._next = None if production is None else project.environment
        self._is_new = self._next is not None and name not in self._next.fork.tables
        self._next_fork = inf if self._next is None else self._next.forked_at(name)
        self._is_accepted = production is not None or str(name) in accept
        base = self.there.operations.refresh()
        self._before = base.history.heads if base is not None else {}
        self._judge(base)
        if base is not None and self._next is not None:
            self._carry_on(base.history, self._next.forked_at(name))

    @property
    def is_rebased(self) -> bool:
        """Whether the versions stay the environment's own."""
        return self._production is not None

    def before(self, version: Version) -> Version | None:
        """What a version replaces."""
        return self._before.get(version.partition)

    def has(self, version: Version) -> bool:
        """Whether a version was production's already when this was judged."""
        head = self.before(version)
        return head is not None and head.metadata_sha == version.metadata_sha

    def overtaken(self, base: TableState | None, versions: Iterable[Version]) -> str | None:
        """Why production, as it is by now, cannot take one of these any more."""
        whys = (self._moved(version, base) for version in versions)
        return self._is_another(base) or next((why for why in whys if why is not None), None)

    def _judge(self, base: TableState | None) -> None:
        if (why := self._unfit(base)) is not None:
            self.left.append(LeftCell(self.name, None, why))
            return
        for partition, version in self.state.history.heads.items():
            if version.log_version > self.forked_at and not self._is_erased_head(version):
                why = self._why_left(version, base)
                if why is None:
                    self.cells[partition] = version
                else:
                    self.left.append(LeftCell(self.name, partition, why))

    def _carry_on(self, history: History, forked_at: int) -> None:
        """Take out what is in the next generation by now; it may have been replaced there since."""
        there = _carried(history, forked_at)
        for partition, version in self.state.history.heads.items():
            is_there = partition in there and there[partition] == version.metadata_sha
            if is_there and version.log_version > self.forked_at:
                self.carried.append(version)
                self.cells.pop(partition, None)
                self.left = [cell for cell in self.left if cell.partition != partition]
        self._before = history.until(forked_at).heads if forked_at >= 0 else {}

    def _unfit(self, base: TableState | None) -> str | None:
        """Why nothing of the table is promoted."""
        state, fork = self.state, self.forked_at
        if state.is_history:
            return "it is a history of events, and production appends its own"
        for number in range(fork + 1, state.log_version + 1):
            operation = state.history.record(number).operation
            if operation not in _OPERATIONS:
                return f"more than writes happened to it in the environment ({operation})"
        if state.snapshot.partition_columns:
            return "it has partition columns"
        if (why := self._is_another(base)) is not None or fork < 0:
            return why
        before = self.here.operations.cache.older(fork)
        known = with_statistics_of(before.metadata.configuration, state.snapshot.schema.names)
        comes_with_rows = {DELETION_VECTORS: "true"}  # with the first version that has any
        if comes_with_rows | known != comes_with_rows | dict(state.snapshot.metadata.configuration):
            return "its properties or constraints were changed in the environment"
        if clustering_of(before) != clustering_of(state.snapshot):
            return "the columns that it is clustered by were changed in the environment"
        return None

    def _is_erased_head(self, version: Version) -> bool:
        """Whether an erasure made it, in production, too."""
        return self.state.history.record(version.log_version).operation == ERASE

    def _is_another(self, base: TableState | None) -> str | None:
        """Why production's table is not the one that the environment went on with."""
        fork = self.forked_at
        if self._is_new and fork < 0:
            return None  # what is there was carried, or written there since
        if (name := self._name_now()) != self.name:
            return f"production's table is called {name} now"
        if fork < 0:
            is_ours = base is None or _promoted_from(base.history) == self.environment
            return None if is_ours else "production has made a table of this name since the fork"
        if base is None or base.log_version < fork or base.history.record(fork).sha256 != self._commit_sha:
            return "production's table is another one than at the fork"
        return None

    def _name_now(self) -> TableName:
        if self._production is not None and self._is_new:
            operations = self._production.table(str(self.name)).operations
            operations.follow()
            if operations.name != self.name:
                return operations.name
        return self.there.operations.name

    def _why_left(self, version: Version, base: TableState | None) -> str | None:
        moved = self._moved(version, base)
        if moved is not None or self.has(version):
            return moved
        # In a rebase, production's import is the one that it was, or it had moved.
        inexact = _not_exact(version, is_new=self.is_rebased or self.forked_at < 0)
        return inexact or (None if self._is_accepted else self._doubtful(version))

    def _moved(self, version: Version, base: TableState | None) -> str | None:
        """How production went on since the fork, unless it was with this very version.

        By position: a head that came back by a revert, or went by a drop, is a decision, though its name is the same.
        """
        if base is None:
            return None
        history, fork, partition = base.history, self.forked_at, version.partition
        head, other = history.heads.get(partition), self._other_head(version, history)
        if other is not None and other.log_version > self._next_fork:
            return f"version {other.short} was written in its place since the rebase began"
        if (foreign := history.foreign_since(fork)) is not None:
            return f"another program has committed to it in production ({foreign.operation})"
        if head is not None and head.metadata_sha == version.metadata_sha:
            return None
        if other is not None and other.log_version > fork:
            return f"production has made version {other.short} since the fork"
        drops = (dropped for dropped in history.versions if dropped.is_drop and dropped.partition == partition)
        if history.last_drop > fork and any(dropped.log_version > fork for dropped in drops):
            return "production has dropped it since the fork"
        return None

    def _other_head(self, version: Version, history: History) -> Version | None:
        """The head in the place of a version, unless a rebase has brought that one, or an earlier one, as it is, or it
        came of an erasure that the environment followed."""
        head = history.heads.get(version.partition)
        if head is None or head.metadata_sha == version.metadata_sha:
            return None
        operation = history.record(head.log_version).operation
        is_brought = operation == ERASE or (self.is_rebased and operation == "REBASE")
        if is_brought and any(
            stored.metadata_sha == head.metadata_sha and stored.partition == head.partition
            for stored in self.state.history.versions
            if self.forked_at < stored.log_version < version.log_version
        ):
            return None
        return head

    def _doubtful(self, version: Version) -> str | None:
        """What somebody has to accept."""
        identity, head = version.identity, self.before(version)
        if identity.code_version is None:
            return f"it states no code_version, so nobody can tell which code made it (accept {self.name}?)"
        before = head.identity.nrow if head is not None else 0
        if identity.nrow < before * _KEPT_SHARE:
            return f"it has {identity.nrow:,} rows, and production {before:,} (accept {self.name}?)"
        return None


class Candidates:
    """The versions that may be promoted, fewer of them as a promotion goes on, and what is left.

    They are closed: each version that one was built from is current in ``project``, or among them.
    """

    def __init__(self, project: "Project", tables: Iterable[JudgedTable], left: Iterable[LeftCell]) -> None:
        self._project = project
        self._tables = {table.name: table for table in tables}
        self._versions = {
            (name, partition): version
            for name, table in self._tables.items()
            for partition, version in table.cells.items()
        }
        self.left = list(left)

    def coming(self) -> list[Version]:
        """Those that are not production's already."""
        return [version for (table, _), version in self._versions.items() if not self._tables[table].has(version)]

    def shas(self) -> dict[TableName, dict[str | None, str]]:
        """The names of all of them, by table and partition."""
        shas: dict[TableName, dict[str | None, str]] = {}
        for (table, partition), version in self._versions.items():
            shas.setdefault(table, {})[partition] = str(version.metadata_sha)
        return shas

    def each(
        self,
        do: Callable[[JudgedTable, Sequence[Version]], None] | None,
        reasons: tuple[type[Exception], ...] = REASONS,
    ) -> Iterator[tuple[JudgedTable, Sequence[Version]]]:
        """Do this with the versions of each table, upstream first; what it refuses is left, and what is below it."""
        for name in in_order(self._versions):
            versions = [version for (of, _), version in self._versions.items() if of == name]
            if not versions:
                continue
            try:
                if do is not None:
                    do(self._tables[name], versions)
            except reasons as error:
                self._leave({(name, version.partition): str(error) for version in versions})
                self.close()
                continue
            yield self._tables[name], versions

    def keep_prepared(self, cells: Mapping[TableName, Mapping[str | None, str]]) -> None:
        """Leave what is not what was prepared."""
        self._leave(
            {
                (table, partition): f"version {version.short} was not prepared; prepare it anew"
                for (table, partition), version in self._versions.items()
                if cells.get(table, {}).get(partition) != version.metadata_sha
            }
        )

    def keep_in_reach(self, accepted: Collection[str]) -> None:
        """Leave what is built from what production does not read, as far as is known."""
        out_of_reach: dict[Cell, str] = {}
        known: set[tuple[str, str | None]] | None = None
        for (table, partition), version in self._versions.items():
            parents = version.identity.parents
            others = [parent for parent in parents if parent.environment or not _is_own(self._project, parent)]
            if others and not self._tables[table].has(version):
                if known is None:
                    known = _read_by_production(self._project)
                if (why := _out_of_reach(table, others, known, is_accepted=str(table) in accepted)) is not None:
                    out_of_reach[table, partition] = why
        self._leave(out_of_reach)

    def close(self) -> None:
        """Leave what is built from what is, and will be, not current in production."""
        while True:
            found = {
                cell: f"it was built from {named(parent)}, which is not current in production, nor promoted"
                for cell, version in self._versions.items()
                if (parent := next(_not_current(self._project, version, self._versions), None)) is not None
            }
            if not found:
                return
            self._leave(found)

    def _leave(self, whys: Mapping[Cell, str]) -> None:
        for (table, partition), why in whys.items():
            del self._versions[table, partition]
            self.left.append(LeftCell(table, partition, why))


def missing_parent(project: "Project", versions: Iterable[Version]) -> Parent | None:
    """A parent of these that is not current in production as it is now."""
    return next((parent for version in versions for parent in _not_current(project, version, {})), None)


def in_order(candidates: Mapping[Cell, Version]) -> list[TableName]:
    """The tables of the candidates, each after those that its versions are built from."""
    above: dict[TableName, set[str]] = {table: set() for table, _ in candidates}
    for (table, _), version in candidates.items():
        above[table] |= {parent.table for parent in version.identity.parents} - {str(table)}
    ordered: list[TableName] = []
    while above:
        # A circle is of assets that read each other's older versions: any of them may be first.
        names = set(map(str, above))
        ready = sorted(table for table, others in above.items() if not others & names) or sorted(above)[:1]
        ordered += ready
        for table in ready:
            del above[table]
    return ordered


def named(parent: Parent) -> str:
    """A parent as reasons name it."""
    partition = "" if parent.partition is None else f"[{parent.partition}]"
    return f"{parent.table}{partition} {parent.version[:8]}"


def _carried(history: History, forked_at: int) -> dict[str | None, str | None]:
    """By partition, the version that a rebase brought last to a generation."""
    return {
        version.partition: version.metadata_sha
        for version in history.versions
        if version.log_version > forked_at and history.record(version.log_version).operation == "REBASE"
    }


def _promoted_from(history: History) -> str | None:
    """The environment that a table came from."""
    first = next(iter(history.versions), None)
    return None if first is None or first.raw is None else first.facts.promoted_from


def _not_exact(version: Version, *, is_new: bool) -> str | None:
    """Why production would not make this very version of what it names."""
    identity = version.identity
    if version.facts.added is not None:
        return "its rows were added to those that were there, and production adds its own"
    if "feature" in identity.custom:
        return "it is a feature, of which production computes what is stale"
    if identity.table_type == "imported" and not is_new:
        return "it is an imported table, which production reads from its source itself"
    return None


def _out_of_reach(
    table: TableName, others: Sequence[Parent], known: Collection[tuple[str, str | None]], *, is_accepted: bool
) -> str | None:
    """Why production would not read one of these parents, which are not its own tables."""
    for parent in others:
        if parent.environment is not None:
            return (
                f"it was built from {named(parent)} of {parent.source} in the environment {parent.environment}, which "
                "production does not read"
            )
    for parent in () if is_accepted else others:
        if (parent.source, parent.table_id) not in known:
            return (
                f"it was built from {named(parent)} of {parent.source}, of which nothing in production is built, so "
                f"nobody can tell whether production reads it (accept {table}?)"
            )
    return None


def _not_current(project: "Project", version: Version, coming: Mapping[Cell, Version]) -> Iterator[Parent]:
    """The parents of a version that are not heads of production, once what is ``coming`` is.

    Those of other projects and environments are taken as recorded: a sensor says afterwards where one has moved on.
    """
    for parent in version.identity.parents:
        if parent.environment is None and _is_own(project, parent) and not _is_current(project, parent, coming):
            yield parent


def _is_current(project: "Project", parent: Parent, coming: Mapping[Cell, Version]) -> bool:
    try:
        table = project.table(parent.table)
    except InvalidName:
        return False
    heads = _heads_with(table, coming)
    if parent.partition is None and None not in heads:
        shas = {key: head.metadata_sha for key, head in heads.items() if key is not None and head.metadata_sha}
        return bool(shas) and partitions_sha(shas) == parent.version
    head = heads.get(parent.partition)
    return head is not None and head.metadata_sha == parent.version


def _heads_with(table: "VersionedTable", coming: Mapping[Cell, Version]) -> dict[str | None, Version]:
    state = table.operations.refresh()
    heads = dict(state.history.heads) if state is not None else {}
    return heads | {partition: head for (of, partition), head in coming.items() if of == table.name}


def _is_own(project: "Project", parent: Parent) -> bool:
    """Whether a parent is of the project, be it by a name that the project had."""
    if parent.source == project.name:
        return True
    try:
        state = project.table(parent.table).operations.refresh()
    except InvalidName:
        return False
    return state is not None and (parent.source, parent.table) in TableRecord.of(state.snapshot).former


def _read_by_production(project: "Project") -> set[tuple[str, str | None]]:
    """The projects, and the ids of external tables, that something current in production is built from."""
    states = [project.table(str(name)).operations.refresh() for name in project.tables()]
    heads = [head for state in states if state is not None for head in state.history.heads.values()]
    return {
        (parent.source, parent.table_id)
        for head in heads
        if head.raw is not None
        for parent in head.identity.parents
        if parent.environment is None
    }
