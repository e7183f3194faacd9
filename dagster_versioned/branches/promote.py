"""What of an environment can become production's, and making it so, forward only.

A cell (a table, or one of its partitions) is promoted as it is, under the name that it has, or it is left: production
computes it then. What is promoted is closed: each version that a promoted one was built from is production's, or is
promoted before it. All cells of one table are one commit; there is none over several tables.
"""

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Literal, get_args

from dagster_versioned.branches.environments import written_in
from dagster_versioned.branches.judgement import Candidates, JudgedTable, LeftCell, missing_parent, named
from dagster_versioned.branches.open_promotion import SELDOM, PromotionDocument
from dagster_versioned.branches.promotion_write import LeftToProduction, PromotedWrite, Verify, restaged
from dagster_versioned.delta.log.snapshot import Snapshot
from dagster_versioned.engines.staging import Staging
from dagster_versioned.errors import EnvironmentNotFound, IntegrityError, InvalidInput, VersionedError
from dagster_versioned.identity.names import TableName
from dagster_versioned.tables.attestations import carry_attestations
from dagster_versioned.tables.code_details import carry_details
from dagster_versioned.tables.configuration import CONSTRAINT, OWN, constraints_of, personal_columns
from dagster_versioned.tables.environment.registry import Environment
from dagster_versioned.tables.findings import carry_findings
from dagster_versioned.tables.history import Version
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


@dataclass(frozen=True)
class PromotedCell:
    """A version that becomes production's, or is already; ``before`` is what it replaces."""

    table: TableName
    partition: str | None
    before: str | None
    after: str
    nrow: int
    size_bytes: int

    @classmethod
    def of(cls, table: JudgedTable, version: Version) -> "PromotedCell":
        """The entry of a report for a version of a table."""
        before = table.before(version)
        return cls(
            table.name,
            version.partition,
            None if before is None else before.metadata_sha,
            str(version.metadata_sha),
            version.identity.nrow,
            version.facts.size_bytes,
        )


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
        if not dry_run and half != "commit":
            document.check_free()
        plan = _planned(project, environment, document, accept, by, verify, half)
        coming = plan.candidates.coming()
        if check is not None and half != "prepare" and coming:
            check(coming)
        return plan.preview() if dry_run else plan.apply()
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


def _planned(
    project: "Project",
    environment: "Project",
    document: PromotionDocument,
    accept: Collection[str],
    by: str | None,
    verify: Verify,
    half: Half | None,
) -> "PromotionPlan":
    prepared = document.prepared() if half == "commit" else None
    if prepared is not None:
        accept = list(prepared.cells)  # it was accepted when it was prepared
    tables = [JudgedTable(project, environment, written.table, accept) for written in written_in(environment)]
    candidates = Candidates(project, tables, [cell for table in tables for cell in table.left])
    if prepared is not None:
        candidates.keep_prepared(prepared.cells)
    candidates.keep_in_reach(accept)
    candidates.close()
    document.environment.check_current()  # else what was written in it may be gone, which looks like nothing to promote
    return PromotionPlan(document, candidates, by or project.author, verify, half)


@dataclass(frozen=True)
class PromotionPlan:
    """What of an environment may become production's, by the halves of a promotion."""

    document: PromotionDocument
    candidates: Candidates
    by: str | None
    verify: Verify
    half: Half | None

    def preview(self) -> PromotionReport:
        """What would be promoted; nothing is changed, and no part read."""
        return self._each(None, dry_run=True)

    def apply(self) -> PromotionReport:
        """Verify what can be without a commit and open the promotion, or commit what is open, or all of it."""
        if self.half == "prepare":
            report = self._each(lambda table, versions: verify_versions(table, versions, self.verify), dry_run=True)
            self.document.open(self.candidates.shas(), self.by)
            return report
        if self.half is None and self.candidates.coming():
            self.document.open(self.candidates.shas(), self.by)
        renew = self.document.renew
        report = self._each(
            lambda table, versions: commit_versions(table, versions, self.by, self.verify, renew), dry_run=False
        )
        self.document.end()
        return report

    def _each(self, do: "Callable[[JudgedTable, Sequence[Version]], None] | None", *, dry_run: bool) -> PromotionReport:
        done = self.candidates.each(do)
        cells = tuple(PromotedCell.of(table, version) for table, versions in done for version in versions)
        return PromotionReport(self.document.environment.name, dry_run, cells, tuple(self.candidates.left))


def _is_gone(environment: Environment) -> bool:
    try:
        environment.check_current()
    except EnvironmentNotFound:
        return True
    except VersionedError:
        return False  # who knows; what was raised before says more
    return False


def verify_versions(table: JudgedTable, versions: Sequence[Version], verify: Verify) -> None:
    """Read and check all that a commit would, but for those that are production's already; nothing of it is kept.

    Raises `LeftToProduction`.
    """
    for version in versions:
        if not table.has(version):
            with staging_folder(table.there.store) as staging:
                _restaged(table, version, staging, verify)


def commit_versions(
    table: JudgedTable,
    versions: Sequence[Version],
    by: str | None,
    verify: Verify,
    renew: Callable[[timedelta], None] = lambda _: None,
) -> None:
    """Copy and check the parts, and commit the versions; nothing where they are production's already.

    ``renew`` says that somebody is at it, unless that was said not that long ago. Raises `LeftToProduction`, and
    what a write raises.
    """
    operations = table.there.operations
    known = operations.refresh()
    heads = known.history.heads if known is not None else {}
    if all(
        version.partition in heads and heads[version.partition].metadata_sha == version.metadata_sha
        for version in versions
    ):
        operations.resolve()  # whoever committed them may have died before the head named them
        _carry(table, versions)
        return
    renew(timedelta(0))
    snapshot = table.state.snapshot
    with staging_folder(table.there.store) as staging:
        pending: list[PromotedWrite] = []
        for version in versions:
            renew(SELDOM)
            pending.append(_restaged(table, version, staging, verify))

        def drafted(state: TableState | None, timestamp: int) -> CommitDraft | None:
            """The draft, judged anew: at each attempt, production may be another one."""
            if (why := table.overtaken(state, versions)) is not None:
                raise LeftToProduction(why)
            if (parent := missing_parent(table.project, versions)) is not None:
                raise LeftToProduction(f"what it was built from, {named(parent)}, is not current in production")
            write = TableWrite(
                staging,
                pending,
                _settings(snapshot, is_new=state is None),
                constraints_of(snapshot.metadata.configuration),
                author=by,
                partitioning=TableRecord.of(snapshot).partitioning,
                began=table.forked_at if table.forked_at >= 0 else None,
                operation="REBASE" if table.is_rebased else "PROMOTE",
            )
            return write.draft(state, timestamp)

        if table.forked_at < 0:
            operations.check_name_is_free()
        operations.change(drafted)
    _carry(table, versions)


def _restaged(table: JudgedTable, version: Version, staging: Staging, verify: Verify) -> PromotedWrite:
    """A version on its way to production, whose bytes were checked."""
    snapshot = table.state.snapshot
    constraints = constraints_of(snapshot.metadata.configuration)
    adds = parts_of(snapshot, version.partition)
    copied = restaged(version, adds, table.here.store, staging, constraints, verify)
    return PromotedWrite(version, copied, None if table.is_rebased else table.environment)


def _carry(table: JudgedTable, versions: Sequence[Version]) -> None:
    """Keep in production what the environment knows of versions that are committed; again, after one that died."""
    here, there = table.here.store, table.there.store
    carry_details(here, there, versions)
    carry_findings(here, there, [str(version.metadata_sha) for version in versions])
    heads = table.there.state.history.heads
    for version in versions:
        head = heads.get(version.partition)
        if head is not None and head.metadata_sha == version.metadata_sha:
            carry_attestations(here, there, [version.record.sha256], head.record.sha256)


def _settings(snapshot: Snapshot, *, is_new: bool) -> TableOptions:
    """What an environment's table says of itself beside its rows, for one that production has not; of which columns
    its files say nothing."""
    known = snapshot.metadata.configuration
    hidden = personal_columns(known)
    if not is_new:
        return TableOptions(known_personal_columns=hidden)
    return TableOptions(
        known_personal_columns=hidden,
        properties={k: v for k, v in known.items() if not k.startswith(CONSTRAINT) and OWN.get(k) != v},
        constraints=constraints_of(known),
        cluster_by=tuple(".".join(path) for path in clustering_of(snapshot)) or None,
    )
