"""What of an environment can become production's, and making it so, forward only.

A cell (a table, or one of its partitions) is promoted as it is, under the name that it has, or it is left: production
computes it then. What is promoted is closed: each version that a promoted one was built from is production's, or is
promoted before it. All cells of one table are one commit; there is none over several tables.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dagster_versioned.engines.staging import Staging
from dagster_versioned.errors import CommitConflict, HeldHead, InvalidInput, InvalidName, UnsupportedFeature
from dagster_versioned.identity.names import TableName
from dagster_versioned.identity.version import Parent, partitions_sha
from dagster_versioned.tables.configuration import CONSTRAINT, OWN, constraints_of
from dagster_versioned.tables.environments import written_in
from dagster_versioned.tables.history import Version
from dagster_versioned.tables.operations import WRITER
from dagster_versioned.tables.options import TableOptions
from dagster_versioned.tables.parts import parts_of
from dagster_versioned.tables.state import TableState
from dagster_versioned.tables.table_record import TableRecord
from dagster_versioned.tables.write.commit import CommitDraft
from dagster_versioned.tables.write.promotion import LeftToProduction, PromotedWrite, Promotion, restaged
from dagster_versioned.tables.write.stage import staging_folder

if TYPE_CHECKING:
    from dagster_versioned.tables.project import Project
    from dagster_versioned.tables.table import VersionedTable

_KEPT_SHARE = 0.5
"""A version with fewer than this share of the rows that it replaces looks like one of a sample."""
_OPERATIONS = ("WRITE", "VACUUM")


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
    """What was promoted, or (dry run) would be, upstream first, and what is left."""

    environment: str
    dry_run: bool
    promoted: tuple[PromotedCell, ...]
    left: tuple[LeftCell, ...]

    @property
    def size_bytes(self) -> int:
        """The bytes of all parts of what is promoted."""
        return sum(cell.size_bytes for cell in self.promoted)


Cell = tuple[TableName, str | None]


def promote(
    project: "Project",
    name: str,
    *,
    dry_run: bool = True,
    accept: Collection[str] = (),
    by: str | None = None,
) -> PromotionReport:
    """Make the versions of an environment production's, as far as they are current there; computes nothing.

    Left are cells that production has moved on with, whose upstreams are left, or which are not a function of what they
    name: appended or merged rows, features, histories of events, imported tables that production has too, versions
    without a code version, and such as have lost more than half of their rows. ``accept`` names tables for which the
    last two are no reason. Run again, it goes on where it died: what is production's already is not committed twice.
    Raises `EnvironmentNotFound`, and `IntegrityError` where the environment's bytes are not what its log says.
    """
    environment = project.in_environment(name)
    project.check_write()
    tables = [_Table(project, environment, written.table, accept) for written in written_in(environment)]
    candidates = {(one.name, version.partition): version for one in tables for version in one.cells.values()}
    left = [cell for one in tables for cell in one.left]
    left += _close(project, candidates)
    by_name = {one.name: one for one in tables}
    promoted: list[PromotedCell] = []
    for table in _in_order(candidates):
        versions = [version for (one, _), version in candidates.items() if one == table]
        if not versions:
            continue
        if not dry_run:
            try:
                by_name[table].commit(versions, by or project.author)
            except (LeftToProduction, CommitConflict, HeldHead, InvalidInput, UnsupportedFeature) as error:
                for version in versions:
                    del candidates[table, version.partition]
                left += [LeftCell(table, version.partition, str(error)) for version in versions]
                left += _close(project, candidates)
                continue
        promoted += [by_name[table].promoted(version) for version in versions]
    return PromotionReport(name, dry_run, tuple(promoted), tuple(left))


class _Table:
    """A table that was written in an environment, beside production's: which versions may be promoted, which not."""

    def __init__(self, project: "Project", environment: "Project", name: TableName, accept: Collection[str]) -> None:
        self.name = name
        self._project = project
        self._there: VersionedTable = project.table(str(name))
        self._here: VersionedTable = environment.table(str(name))
        opened = environment.environment
        assert opened is not None
        self._environment = opened.name
        self._forked_at = opened.forked_at(name)
        self._commit_sha = opened.fork.tables[name].commit_sha256 if name in opened.fork.tables else None
        self._accept = accept
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

    def commit(self, versions: Sequence[Version], by: str | None) -> None:
        """Copy and check the parts, and commit the versions; nothing where they are production's already.

        Raises `LeftToProduction`, and what a write raises.
        """
        known = self._there.operations.refresh()
        heads = known.history.heads if known is not None else {}
        if all(one.partition in heads and heads[one.partition].metadata_sha == one.metadata_sha for one in versions):
            self._there.operations.resolve()  # whoever committed them may have died before the head named them
            return
        settings = self._state.snapshot.metadata.configuration
        constraints = constraints_of(settings)
        others = {
            key: value for key, value in settings.items() if not key.startswith(CONSTRAINT) and OWN.get(key) != value
        }
        store = self._there.store
        with staging_folder(store) as staging:
            pending = [self._pending(version, staging, constraints) for version in versions]

            def drafted(state: TableState | None, timestamp: int) -> CommitDraft | None:
                """The draft, judged anew: at each attempt, production may be another one."""
                if (why := self._is_another(state)) is not None:
                    raise LeftToProduction(why)
                for version in versions:
                    if (why := self._moved(version, state)) is not None:
                        raise LeftToProduction(why)
                if (parent := _missing_parent(self._project, versions)) is not None:
                    raise LeftToProduction(f"what it was built from, {_named(parent)}, is not current in production")
                plan = Promotion(
                    store,
                    staging,
                    pending,
                    WRITER,
                    TableOptions(properties=others, constraints=constraints) if state is None else TableOptions(),
                    constraints,
                    author=by,
                    partitioning=TableRecord.of(self._state.snapshot).partitioning,
                    began=self._forked_at if self._forked_at >= 0 else None,
                )
                return plan.draft(state, timestamp)

            if self._forked_at < 0:
                self._there.operations.check_name_is_free()
            self._there.operations.change(drafted)

    def _pending(self, version: Version, staging: Staging, constraints: Mapping[str, str]) -> PromotedWrite:
        adds = parts_of(self._state.snapshot, version.partition)
        summary, row_order, written = restaged(version, adds, self._here.store, staging, constraints)
        return PromotedWrite(version, summary, row_order, written, self._environment)

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
        before = self._here.operations.cache.older(fork).metadata.configuration
        if before != state.snapshot.metadata.configuration:
            return "its properties or constraints were changed in the environment"
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
        return _not_exact(version, is_new=self._forked_at < 0) or (
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
        if head is not None and head.log_version > fork:
            return f"production has made version {head.short} since the fork"
        if history.last_drop > fork and any(
            one.is_drop and one.log_version > fork and one.partition == partition for one in history.versions
        ):
            return "production has dropped it since the fork"
        return None

    def _doubtful(self, version: Version, head: Version | None) -> str | None:
        """What somebody has to accept."""
        identity = version.identity
        if identity.code_version is None:
            return f"it states no code_version, so nobody can tell which code made it (accept {self.name}?)"
        before = head.identity.nrow if head is not None else 0
        if identity.nrow < before * _KEPT_SHARE:
            return f"it has {identity.nrow:,} rows, and production {before:,} (accept {self.name}?)"
        return None


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


def _close(project: "Project", candidates: dict[Cell, Version]) -> list[LeftCell]:
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
    return next((parent for one in versions for parent in _not_current(project, one, {})), None)


def _not_current(project: "Project", version: Version, coming: Mapping[Cell, Version]) -> Iterator[Parent]:
    """The parents of a version that are not heads of production, once what is ``coming`` is.

    Those of other projects are taken as recorded: a sensor says afterwards where one has moved on.
    """
    for parent in version.identity.parents:
        is_ours = parent.source == project.name
        try:
            table = project.table(parent.table)
        except InvalidName:
            if is_ours:
                yield parent
            continue
        state = table.operations.refresh()
        former = TableRecord.of(state.snapshot).former if state is not None else ()
        if not is_ours and (parent.source, parent.table) not in former:  # else as the project was called
            continue
        name = table.name
        heads = dict(state.history.heads) if state is not None else {}
        heads |= {partition: one for (of, partition), one in coming.items() if of == name}
        if parent.partition is None and None not in heads:
            shas = {key: one.metadata_sha for key, one in heads.items() if key is not None and one.metadata_sha}
            is_current = bool(shas) and partitions_sha(shas) == parent.version
        else:
            head = heads.get(parent.partition)
            is_current = head is not None and head.metadata_sha == parent.version
        if not is_current:
            yield parent


def _in_order(candidates: Mapping[Cell, Version]) -> list[TableName]:
    """The tables of the candidates, each after those that its versions are built from."""
    tables = {table for table, _ in candidates}
    above = {table: set[TableName]() for table in tables}
    for (table, _), version in candidates.items():
        names = {parent.table for parent in version.identity.parents}
        above[table] |= {one for one in tables if str(one) in names and one != table}
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
