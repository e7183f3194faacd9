"""What of an environment can become production's, and making it so, forward only.

A cell (a table, or one of its partitions) is promoted as it is, under the name that it has, or it is left: production
computes it then. What is promoted is closed: each version that a promoted one was built from is production's, or is
promoted before it. All cells of one table are one commit; there is none over several tables.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Literal, get_args

from dagster_versioned.branches.environments import written_in
from dagster_versioned.branches.open_promotion import SELDOM, PromotionDocument
from dagster_versioned.branches.promotion_document import OpenPromotion
from dagster_versioned.branches.promotion_write import (
    LeftToProduction,
    PromotedWrite,
    Verify,
    restaged,
)
from dagster_versioned.engines.staging import Staging
from dagster_versioned.errors import (
    CommitConflict,
    EnvironmentNotFound,
    HeldHead,
    IntegrityError,
    InvalidInput,
    InvalidName,
    UnsupportedFeature,
    VersionedError,
)
from dagster_versioned.identity.names import TableName
from dagster_versioned.identity.version import Parent, partitions_sha
from dagster_versioned.tables.attestations import carry_attestations
from dagster_versioned.tables.code_details import carry_details
from dagster_versioned.tables.configuration import CONSTRAINT, OWN, constraints_of
from dagster_versioned.tables.environment.registry import Environment
from dagster_versioned.tables.findings import carry_findings
from dagster_versioned.tables.history import History, Version
from dagster_versioned.tables.options import TableOptions
from dagster_versioned.tables.parts import parts_of
from dagster_versioned.tables.preconditions import require
from dagster_versioned.tables.state import TableState
from dagster_versioned.tables.table_record import TableRecord
from dagster_versioned.tables.write.clustering import clustering_of
from dagster_versioned.tables.write.commit import CommitDraft
from dagster_versioned.tables.write.stage import staging_folder
from dagster_versioned.tables.write.write import TableWrite

if TYPE_CHECKING:
    from dagster_versioned.projects.project import Project
    from dagster_versioned.tables.table import VersionedTable

_KEPT_SHARE = 0.5
"""A version with fewer than this share of the rows that it replaces looks like one of a sample."""
_OPERATIONS = ("WRITE", "VACUUM", "REBASE")


@dataclass(frozen=True)
class PromotedCell:
    """A version that becomes production's, or is already; ``before`` is what it replaces."""

    table: TableName
    partition: str | None
    before: str | None
    after: str
    nrow: int
    size_bytes: int


@dataclass(frozen=True)
class LeftCell:
    """A version that is left to production to compute, and why; ``partition`` is ``None`` for all of the table."""

    table: TableName
    partition: str | None
    why: str


@dataclass(frozen=True)
class PromotionReport:
    """What was promoted, or (dry run, or the first half alone) would be, upstream first, and what is left."""

    environment: str
    dry_run: bool
    promoted: tuple[PromotedCell, ...]
    left: tuple[LeftCell, ...]

    @property
    def size_bytes(self) -> int:
        """The bytes of all parts of what is promoted."""
        return sum(cell.size_bytes for cell in self.promoted)


Cell = tuple[TableName, str | None]

REASONS = (LeftToProduction, CommitConflict, HeldHead, InvalidInput, UnsupportedFeature)
"""What is a reason to leave the versions of one table and go on; any other error ends a promotion."""

Half = Literal["prepare", "commit"]
"""Of a promotion: judge, verify and open it; commit what was prepared, and end it."""


def promote(
    project: "Project",
    name: str,
    *,
    dry_run: bool = True,
    accept: Collection[str] = (),
    by: str | None = None,
    verify: Verify = "rows",
    half: Half | None = None,
    check: Callable[[Sequence[Version]], None] | None = None,
) -> PromotionReport:
    """Make the versions of an environment production's, as far as they are current there; computes nothing.

    Left are cells that production has moved on with, whose upstreams are left, or which are not a function of what they
    name: appended or merged rows, features, histories of events, imported tables that production has too, what was read
    in another environment, versions built from projects and external tables of which nothing in production is built,
    without a code version, and such as have lost more than half of their rows. ``accept`` names tables for which the
    last three are no reason. ``verify`` "bytes" believes what is said of
    rows, for environments that are written by whoever writes production. Run again, it goes on where it died: what is
    production's already is not committed twice.

    While a promotion is open, production's sensors wait for its versions, until an hour after its last renewal. With
    ``half``, "prepare" verifies all that can be without a commit and opens it, "commit" commits just what was prepared;
    without, one call does both. ``check`` is given the versions that are to be committed before the first one is; what
    it raises ends the call. Raises `EnvironmentNotFound`, also where the environment is dropped meanwhile,
    `IntegrityError` where its bytes are not what its log says, `CommitConflict` while the promotion of another one is
    open, and `InvalidInput` for a "commit" of what was not prepared, and for another ``verify``.
    """
    if verify not in get_args(Verify):
        raise InvalidInput(f"verify is one of {', '.join(get_args(Verify))}, not {verify!r}. Nothing was promoted.")
    environment = project.in_environment(name)
    require("promote", project)
    opened = environment.environment
    assert opened is not None
    document = PromotionDocument(project, opened)
    try:
        return _promote(project, environment, document, dry_run, accept, by or project.author, verify, half, check)
    except VersionedError as error:
        is_gone = _is_gone(opened)
        if not dry_run and (is_gone or isinstance(error, IntegrityError)):
            with suppress(VersionedError):
                document.end()  # it cannot go on, so nobody should wait for it
        if is_gone:
            raise EnvironmentNotFound(
                f"The environment {name} was dropped, or made anew, while it was promoted. What was committed by then "
                "is production's, each version with all that it was built from; the rest is left to production, whose "
                f"sensors compute it. `dagster-versioned env ls` shows which there are."
            ) from error
        raise


def _promote(
    project: "Project",
    environment: "Project",
    document: PromotionDocument,
    dry_run: bool,
    accept: Collection[str],
    by: str | None,
    verify: Verify,
    half: Half | None,
    check: Callable[[Sequence[Version]], None] | None,
) -> PromotionReport:
    prepared = document.prepared() if half == "commit" else None
    if not dry_run and prepared is None:
        document.check_free()
    promotable = _Promotable(project, environment, accept, verify, prepared)
    document.environment.check_current()  # else what was written in it may be gone, which looks like nothing to promote
    coming = promotable.coming()
    if check is not None and half != "prepare" and coming:
        check(coming)
    if dry_run:
        promoted = promotable.each(None)
    elif half == "prepare":
        promoted = promotable.each(PromotedTable.verify)
        document.open(promotable.shas(), by)
    else:
        if prepared is None and coming:
            document.open(promotable.shas(), by)
        promoted = promotable.each(lambda table, versions: table.commit(versions, by, document.renew))
        document.end()
    name = document.environment.name
    return PromotionReport(name, dry_run or half == "prepare", tuple(promoted), tuple(promotable.left))


class _Promotable:
    """The versions of an environment that may be promoted, fewer of them as a promotion goes on, and what is left."""

    def __init__(
        self,
        project: "Project",
        environment: "Project",
        accept: Collection[str],
        verify: Verify,
        prepared: OpenPromotion | None,
    ) -> None:
        accepted = accept if prepared is None else [*prepared.cells]  # it was accepted when it was prepared
        tables = [
            PromotedTable(project, environment, written.table, accepted, verify) for written in written_in(environment)
        ]
        self._project = project
        self._tables = {table.name: table for table in tables}
        self._candidates = {
            (table.name, version.partition): version for table in tables for version in table.cells.values()
        }
        self.left = [cell for table in tables for cell in table.left]
        if prepared is not None:
            self.left += _unprepared(self._candidates, prepared)
        self.left += self._out_of_reach(accepted)
        self.left += close(project, self._candidates)

    def _out_of_reach(self, accepted: Collection[str]) -> list[LeftCell]:
        """Take those away that are built from what production does not read, as far as is known; returns them."""
        left: list[LeftCell] = []
        known: set[tuple[str, str | None]] | None = None
        for (table, partition), version in list(self._candidates.items()):
            others = [
                parent
                for parent in version.identity.parents
                if parent.environment or not _is_own(self._project, parent)
            ]
            if not others or self._tables[table].has(version):
                continue
            made_in = next((parent for parent in others if parent.environment is not None), None)
            if known is None:
                known = _read_by_production(self._project)
            strange = next((parent for parent in others if (parent.source, parent.table_id) not in known), None)
            if made_in is not None:
                why = (
                    f"it was built from {_named(made_in)} of {made_in.source} in the environment "
                    f"{made_in.environment}, which production does not read"
                )
            elif strange is not None and str(table) not in accepted:
                why = (
                    f"it was built from {_named(strange)} of {strange.source}, of which nothing in production is "
                    f"built, so nobody can tell whether production reads it (accept {table}?)"
                )
            else:
                continue
            del self._candidates[table, partition]
            left.append(LeftCell(table, partition, why))
        return left

    def coming(self) -> list[Version]:
        """Those that are not production's already."""
        return [version for (table, _), version in self._candidates.items() if not self._tables[table].has(version)]

    def shas(self) -> dict[TableName, dict[str | None, str]]:
        """The names of all of them, by table and partition."""
        shas: dict[TableName, dict[str | None, str]] = {}
        for (table, partition), version in self._candidates.items():
            shas.setdefault(table, {})[partition] = str(version.metadata_sha)
        return shas

    def each(self, do: "Callable[[PromotedTable, Sequence[Version]], None] | None") -> list[PromotedCell]:
        """Do this with the versions of each table, upstream first; what it refuses is left, and what is below it."""
        promoted: list[PromotedCell] = []
        for table in in_order(self._candidates):
            versions = [version for (name, _), version in self._candidates.items() if name == table]
            if not versions:
                continue
            try:
                if do is not None:
                    do(self._tables[table], versions)
            except REASONS as error:
                for version in versions:
                    del self._candidates[table, version.partition]
                self.left += [LeftCell(table, version.partition, str(error)) for version in versions]
                self.left += close(self._project, self._candidates)
                continue
            promoted += [self._tables[table].promoted(version) for version in versions]
        return promoted


def _is_gone(environment: Environment) -> bool:
    try:
        environment.check_current()
    except EnvironmentNotFound:
        return True
    except VersionedError:
        return False  # who knows; what was raised before says more
    return False


def _unprepared(candidates: dict[Cell, Version], prepared: OpenPromotion) -> list[LeftCell]:
    """Take those away that are not what was prepared; returns them."""
    left: list[LeftCell] = []
    for (table, partition), version in list(candidates.items()):
        if prepared.cells.get(table, {}).get(partition) != version.metadata_sha:
            del candidates[table, partition]
            left.append(LeftCell(table, partition, f"version {version.short} was not prepared; prepare it anew"))
    return left


class PromotedTable:
    """A table that was written in an environment, beside production's: which versions may be promoted, which not.

    A rebase (`branches.rebase`) judges by the same rules, with the environment's next generation as production.
    """

    operation: Literal["PROMOTE", "REBASE"] = "PROMOTE"

    def __init__(
        self, project: "Project", environment: "Project", name: TableName, accept: Collection[str], verify: Verify
    ) -> None:
        self.name = name
        self._project = project
        self._there: VersionedTable = project.table(str(name))
        self._here: VersionedTable = environment.table(str(name))
        opened = environment.environment
        assert opened is not None
        self._environment = opened.name
        self._promoted_from: str | None = opened.name
        self._forked_at = opened.forked_at(name)
        self._commit_sha = opened.fork.tables[name].commit_sha256 if name in opened.fork.tables else None
        self._accept = accept
        self._verify: Verify = verify
        self._state = self._here.state
        self.left: list[LeftCell] = []
        self.cells: dict[str | None, Version] = {}
        base = self._there.operations.refresh()
        self._before = base.history.heads if base is not None else {}
        if (why := self._unfit(base)) is not None:
            self.left.append(LeftCell(name, None, why))
            return
        for partition, version in self._state.history.heads.items():
            if version.log_version > self._forked_at:
                why = self._left(version, self._before.get(partition), base)
                if why is None:
                    self.cells[partition] = version
                else:
                    self.left.append(LeftCell(name, partition, why))

    def promoted(self, version: Version) -> PromotedCell:
        """The entry of the report for a version that is promoted."""
        before = self._before.get(version.partition)
        facts, sha = version.facts, str(version.metadata_sha)
        return PromotedCell(
            self.name,
            version.partition,
            None if before is None else before.metadata_sha,
            sha,
            version.identity.nrow,
            facts.size_bytes,
        )

    def has(self, version: Version) -> bool:
        """Whether a version was production's already when this was opened."""
        head = self._before.get(version.partition)
        return head is not None and head.metadata_sha == version.metadata_sha

    def verify(self, versions: Sequence[Version]) -> None:
        """Read and check all that a commit would, but for those that are production's already; nothing of it is kept.

        Raises `LeftToProduction`.
        """
        constraints = constraints_of(self._state.snapshot.metadata.configuration)
        for version in versions:
            if not self.has(version):
                with staging_folder(self._there.store) as staging:
                    self._pending(version, staging, constraints)

    def commit(
        self, versions: Sequence[Version], by: str | None, renew: Callable[[timedelta], None] = lambda _: None
    ) -> None:
        """Copy and check the parts, and commit the versions; nothing where they are production's already.

        ``renew`` says that somebody is at it, unless that was said not that long ago. Raises `LeftToProduction`, and
        what a write raises.
        """
        known = self._there.operations.refresh()
        heads = known.history.heads if known is not None else {}
        if all(
            version.partition in heads and heads[version.partition].metadata_sha == version.metadata_sha
            for version in versions
        ):
            self._there.operations.resolve()  # whoever committed them may have died before the head named them
            self._carry(versions)
            return
        renew(timedelta(0))
        constraints = constraints_of(self._state.snapshot.metadata.configuration)
        store = self._there.store
        with staging_folder(store) as staging:
            pending: list[PromotedWrite] = []
            for version in versions:
                renew(SELDOM)
                pending.append(self._pending(version, staging, constraints))

            def drafted(state: TableState | None, timestamp: int) -> CommitDraft | None:
                """The draft, judged anew: at each attempt, production may be another one."""
                if (why := self._is_another(state)) is not None:
                    raise LeftToProduction(why)
                for version in versions:
                    if (why := self._moved(version, state)) is not None:
                        raise LeftToProduction(why)
                if (parent := _missing_parent(self._project, versions)) is not None:
                    raise LeftToProduction(f"what it was built from, {_named(parent)}, is not current in production")
                write = TableWrite(
                    staging,
                    pending,
                    self._settings() if state is None else TableOptions(),
                    constraints,
                    author=by,
                    partitioning=TableRecord.of(self._state.snapshot).partitioning,
                    began=self._forked_at if self._forked_at >= 0 else None,
                    operation=self.operation,
                )
                return write.draft(state, timestamp)

            if self._forked_at < 0:
                self._there.operations.check_name_is_free()
            self._there.operations.change(drafted)
        self._carry(versions)

    def _carry(self, versions: Sequence[Version]) -> None:
        """Keep in production what the environment knows of versions that are committed; again, after one that died."""
        here, there = self._here.store, self._there.store
        carry_details(here, there, versions)
        carry_findings(here, there, [str(version.metadata_sha) for version in versions])
        heads = self._there.state.history.heads
        for version in versions:
            head = heads.get(version.partition)
            if head is not None and head.metadata_sha == version.metadata_sha:
                carry_attestations(here, there, [version.record.sha256], head.record.sha256)

    def _settings(self) -> TableOptions:
        """What the environment's table says of itself beside its rows, for one that production has not."""
        snapshot = self._state.snapshot
        known = snapshot.metadata.configuration
        return TableOptions(
            properties={k: v for k, v in known.items() if not k.startswith(CONSTRAINT) and OWN.get(k) != v},
            constraints=constraints_of(known),
            cluster_by=tuple(".".join(path) for path in clustering_of(snapshot)) or None,
        )

    def _pending(self, version: Version, staging: Staging, constraints: Mapping[str, str]) -> PromotedWrite:
        adds = parts_of(self._state.snapshot, version.partition)
        summary, row_order, written = restaged(version, adds, self._here.store, staging, constraints, self._verify)
        return PromotedWrite(version, summary, row_order, written, self._promoted_from)

    def _unfit(self, base: TableState | None) -> str | None:
        """Why nothing of the table is promoted."""
        state, fork = self._state, self._forked_at
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
        before = self._here.operations.cache.older(fork)
        if before.metadata.configuration != state.snapshot.metadata.configuration:
            return "its properties or constraints were changed in the environment"
        if clustering_of(before) != clustering_of(state.snapshot):
            return "the columns that it is clustered by were changed in the environment"
        return None

    def _is_another(self, base: TableState | None) -> str | None:
        """Why production's table is not the one that the environment went on with."""
        fork = self._forked_at
        if self._there.operations.name != self.name:
            return f"production's table is called {self._there.operations.name} now"
        if fork < 0:
            first = None if base is None else next(iter(base.history.versions), None)
            made_by = None if first is None or first.raw is None else first.facts.promoted_from
            is_ours = base is None or made_by == self._environment
            return None if is_ours else "production has made a table of this name since the fork"
        if base is None or base.log_version < fork or base.history.record(fork).sha256 != self._commit_sha:
            return "production's table is another one than at the fork"
        return None

    def _left(self, version: Version, head: Version | None, base: TableState | None) -> str | None:
        """Why a version is not promoted."""
        moved = self._moved(version, base)
        if moved is not None or (head is not None and head.metadata_sha == version.metadata_sha):
            return moved
        return not_exact(version, is_new=self._forked_at < 0) or (
            None if str(self.name) in self._accept else self._doubtful(version, head)
        )

    def _moved(self, version: Version, base: TableState | None) -> str | None:
        """How production went on since the fork, unless it was with this very version.

        By position: a head that came back by a revert, or went by a drop, is a decision, though its name is the same.
        """
        if base is None:
            return None
        history, fork, partition = base.history, self._forked_at, version.partition
        if (foreign := history.foreign_since(fork)) is not None:
            return f"another program has committed to it in production ({foreign.operation})"
        head = history.heads.get(partition)
        if head is not None and head.metadata_sha == version.metadata_sha:
            return None
        if head is not None and head.log_version > fork and not self._precedes(head, version, history):
            return f"production has made version {head.short} since the fork"
        if history.last_drop > fork and any(
            version.is_drop and version.log_version > fork and version.partition == partition
            for version in history.versions
        ):
            return "production has dropped it since the fork"
        return None

    def _precedes(self, head: Version, version: Version, history: History) -> bool:
        """Whether a head that was made since the fork is an earlier version of the environment's, brought as it is."""
        return False

    def _doubtful(self, version: Version, head: Version | None) -> str | None:
        """What somebody has to accept."""
        identity = version.identity
        if identity.code_version is None:
            return f"it states no code_version, so nobody can tell which code made it (accept {self.name}?)"
        before = head.identity.nrow if head is not None else 0
        if identity.nrow < before * _KEPT_SHARE:
            return f"it has {identity.nrow:,} rows, and production {before:,} (accept {self.name}?)"
        return None


def not_exact(version: Version, *, is_new: bool) -> str | None:
    """Why production would not make this very version of what it names."""
    identity = version.identity
    if version.facts.added is not None:
        return "its rows were added to those that were there, and production adds its own"
    if "feature" in identity.custom:
        return "it is a feature, of which production computes what is stale"
    if identity.table_type == "imported" and not is_new:
        return "it is an imported table, which production reads from its source itself"
    return None


def close(project: "Project", candidates: dict[Cell, Version]) -> list[LeftCell]:
    """Take those away that are built from what is, and will be, not current in production; returns them."""
    left: list[LeftCell] = []
    while True:
        found = {
            cell: parent
            for cell, version in candidates.items()
            if (parent := next(_not_current(project, version, candidates), None)) is not None
        }
        if not found:
            return left
        for cell, parent in found.items():
            del candidates[cell]
            left.append(
                LeftCell(*cell, f"it was built from {_named(parent)}, which is not current in production, nor promoted")
            )


def _missing_parent(project: "Project", versions: Iterable[Version]) -> Parent | None:
    """A parent of these that is not current in production as it is now."""
    return next((parent for version in versions for parent in _not_current(project, version, {})), None)


def _not_current(project: "Project", version: Version, coming: Mapping[Cell, Version]) -> Iterator[Parent]:
    """The parents of a version that are not heads of production, once what is ``coming`` is.

    Those of other projects and environments are taken as recorded: a sensor says afterwards where one has moved on.
    """
    for parent in version.identity.parents:
        if parent.environment is not None or not _is_own(project, parent):
            continue
        try:
            table = project.table(parent.table)
        except InvalidName:
            yield parent
            continue
        state = table.operations.refresh()
        name = table.name
        heads = dict(state.history.heads) if state is not None else {}
        heads |= {partition: head for (of, partition), head in coming.items() if of == name}
        if parent.partition is None and None not in heads:
            shas = {key: head.metadata_sha for key, head in heads.items() if key is not None and head.metadata_sha}
            is_current = bool(shas) and partitions_sha(shas) == parent.version
        else:
            head = heads.get(parent.partition)
            is_current = head is not None and head.metadata_sha == parent.version
        if not is_current:
            yield parent


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


def in_order(candidates: Mapping[Cell, Version]) -> list[TableName]:
    """The tables of the candidates, each after those that its versions are built from."""
    tables = {table for table, _ in candidates}
    above = {table: set[TableName]() for table in tables}
    for (table, _), version in candidates.items():
        names = {parent.table for parent in version.identity.parents}
        above[table] |= {other for other in tables if str(other) in names and other != table}
    ordered: list[TableName] = []
    while above:
        # A circle is of assets that read each other's older versions: any of them may be first.
        ready = sorted(table for table, others in above.items() if not others & above.keys()) or sorted(above)[:1]
        for table in ready:
            ordered.append(table)
            del above[table]
    return ordered


def _named(parent: Parent) -> str:
    partition = "" if parent.partition is None else f"[{parent.partition}]"
    return f"{parent.table}{partition} {parent.version[:8]}"
