"""One versioned table: everything a user can do with it."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Collection as Names
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from dagster_versioned.delta.actions import Add, DomainMetadata
from dagster_versioned.delta.log.commits import Commit
from dagster_versioned.delta.log.snapshot import Snapshot, load_snapshot
from dagster_versioned.delta.properties import require_values
from dagster_versioned.delta.schema.types import StructType
from dagster_versioned.engines.dispatch import engine_for_type
from dagster_versioned.errors import IntegrityError, InvalidInput, ObjectNotFound
from dagster_versioned.identity.names import TableName, table_name, table_name_of
from dagster_versioned.identity.reference import HeadReference, LogVersion, PinName, ShaPrefix, TagName, parse_reference
from dagster_versioned.identity.version import Run
from dagster_versioned.storage.object_store import ObjectInfo, ObjectStore
from dagster_versioned.tables.chain_head import chain_head
from dagster_versioned.tables.choose import ChosenVersions, VersionLike, choose_version, choose_versions
from dagster_versioned.tables.code_details import code_of, compare_codes
from dagster_versioned.tables.computations import ForgottenVersions, affected, find, made_by_computations, remember
from dagster_versioned.tables.configuration import RETENTION, constraints_of, personal_columns
from dagster_versioned.tables.context import ProjectContext
from dagster_versioned.tables.diff import VersionDiff, version_diff
from dagster_versioned.tables.documents.head import HeadDocument, held_domain
from dagster_versioned.tables.documents.parked_draft import collected_drafts
from dagster_versioned.tables.documents.publish import Publisher
from dagster_versioned.tables.documents.tag import find_tagged
from dagster_versioned.tables.erased_parts import ErasureName
from dagster_versioned.tables.history import Selection, Version
from dagster_versioned.tables.lineage import Parents, parents_by_partition, upstreams
from dagster_versioned.tables.maintenance.collect import MIN_AGE, CollectionReport
from dagster_versioned.tables.operations import TableOperations
from dagster_versioned.tables.options import TableOptions
from dagster_versioned.tables.partitioning import Partitioning, misread
from dagster_versioned.tables.parts import parts_of
from dagster_versioned.tables.pins import resolve_pin
from dagster_versioned.tables.preconditions import require
from dagster_versioned.tables.read import VersionFiles, version_files
from dagster_versioned.tables.repartition import KeyOf, RepartitionPlan, RepartitionReport, Same
from dagster_versioned.tables.state import TableState
from dagster_versioned.tables.table_record import TableRecord, asset_key_of
from dagster_versioned.tables.upstream import Upstream
from dagster_versioned.tables.verify import Progress, VerifyReport, verify_table
from dagster_versioned.tables.write.adopt import Adoption
from dagster_versioned.tables.write.belonging import WriteTarget
from dagster_versioned.tables.write.commit import CommitDraft, PlanCommit
from dagster_versioned.tables.write.drop import Drop, DropReport, Restoration, refuse_dropped
from dagster_versioned.tables.write.kept import KeptVersion, keep, stand
from dagster_versioned.tables.write.leave import Departure, LeaveReport, Readmission
from dagster_versioned.tables.write.pending import OpenComputation, PendingWrite, VersionDescription
from dagster_versioned.tables.write.revert import Reversion
from dagster_versioned.tables.write.stage import check_partitions, describe, stage, staging_folder
from dagster_versioned.tables.write.write import TableWrite, WriteResult

if TYPE_CHECKING:
    from dagster_versioned.engines.comparison import RowDiff
    from dagster_versioned.tables.rename import RenameReport


_JUST_NOW = 10.0
"""Seconds for which a log that was opened is surely the one that is there."""


class VersionedTable:
    """A table whose every write is an immutable version; get one from `Project.table`.

    Cheap to make: nothing is read before it is needed. Thread-safe.
    """

    def __init__(self, project: ProjectContext, name: TableName, asset_key: Sequence[str] | None = None) -> None:
        self._asset_key = tuple(asset_key) if asset_key is not None else None
        self.operations = TableOperations(project, name)
        """The table's log, followed and committed to: what the verbs of other kinds of tables are built on, too."""

    @property
    def name(self) -> TableName:
        """The table's name: the one that it has now, once it was read after a rename."""
        return self.operations.name

    @property
    def project(self) -> ProjectContext:
        """The project that the table is in; at its new place, once a migration was followed there."""
        return self.operations.project

    @property
    def store(self) -> ObjectStore:
        """The table's own folder."""
        return self.operations.store

    def __repr__(self) -> str:
        return f"VersionedTable({str(self.name)!r}, {self.store.uri!r})"

    def __reduce__(self) -> tuple[object, ...]:
        # What is remembered stays behind: it is read again where the table is unpickled.
        return type(self), (self.project, self.operations.asked_for, self._asset_key)

    @property
    def asset_key(self) -> tuple[str, ...]:
        """The asset that the table belongs to: as it was opened, else as recorded, else its name."""
        return self._asset_key_of(self.operations.refresh) if self._asset_key is None else self._asset_key

    def _asset_key_of(self, state_of: Callable[[], TableState | None]) -> tuple[str, ...]:
        if self._asset_key is not None:
            return self._asset_key
        state = state_of()
        recorded = asset_key_of(state) if state is not None else None
        return recorded or (str(self.name),)

    def beside(self, name: str | Sequence[str]) -> "VersionedTable":
        """The table of a name, or of an asset key, in the same project; it need not exist yet."""
        return open_table(self.project, name)

    # Writing

    def write(
        self,
        frame: Any,
        *,
        asset_key: Sequence[str] | None = None,
        partition: str | None = None,
        parents: Iterable[Upstream] = (),
        code_version: str | None = None,
        message: str | None = None,
        options: TableOptions | None = None,
        run: Run | None = None,
        partitioning: Partitioning | None = None,
    ) -> WriteResult:
        """Make the frame the current version of the table, or of one of its partitions.

        The frame is a pyarrow Table or RecordBatchReader, a pandas, Polars or PySpark frame; or a `SampleUpdate` of
        such frames, which is committed against the version that it was computed from. ``parents`` are what it
        was built from (`upstream`); ``asset_key`` defaults to the table's. A ``run`` whose earlier attempt
        committed the same version gets that one back. Nothing is committed where the frame is the head already.
        ``partitioning`` is what the table's partitions are, which it remembers: a key that is none of them is refused.

        Raises `UnsupportedFrame`, `UnsupportedType`, `EmptyTable`, `InvalidInput`, `InvalidMetadata`, `InvalidName`,
        `HeldHead`, `CommitConflict`, `GovernanceError`, `StorageError`; in each case the table is as it was. Source:
        FORMAT.md, "Order of a write".
        """
        return self.write_partitions(
            {partition: frame},
            asset_key=asset_key,
            parents=parents,
            code_version=code_version,
            message=message,
            options=options,
            run=run,
            partitioning=partitioning,
        )[0]

    def write_partitions(
        self,
        frames: Mapping[str | None, Any],
        *,
        asset_key: Sequence[str] | None = None,
        parents: Parents = (),
        code_version: str | None = None,
        message: str | None = None,
        options: TableOptions | None = None,
        run: Run | None = None,
        partitioning: Partitioning | None = None,
        computations: Mapping[str | None, OpenComputation] | None = None,
        as_found: bool = False,
    ) -> list[WriteResult]:
        """`write` several partitions in one commit: all of them become current, or none does.

        ``parents`` are those of every partition, or a mapping with each partition's own. ``computations`` are what the
        frames come from, by partition, where that is to be remembered; a `KeptVersion` may take the place of a frame.
        Where all are kept, ``as_found`` writes them as of the moment in which they were found.
        """
        clock = time.monotonic()
        is_new = self.operations.cache.known is None
        self._require("write")
        options = options or TableOptions()
        if options.history is not None:
            raise InvalidInput(
                f"{self.name} is to be a history of events, and rows are no events yet. Nothing was written. Write "
                "with EventTable(table, options.history).write(frame)."
            )
        began = self.operations.check_name_is_free()
        options = self.with_personal_columns(options)
        if kept := self._kept_heads(frames, asset_key, partitioning, began, options, run, as_found=as_found):
            self.operations.resolve_unless_seen()
            seconds = time.monotonic() - clock
            return [WriteResult("none", known.version, False, 0, seconds, reused=True) for known in kept]
        descriptions = self.describe(frames, asset_key, parents, code_version, message, options)
        with staging_folder(self.store) as staging, ExitStack() as pinned:
            constraints = self.constraints(options)
            writes = [
                stage(frame, key, descriptions[key], staging, options, constraints, pinned, self.known_schema)
                for key, frame in frames.items()
            ]
            _note_computations(writes, computations or {})
            author = self.project.author
            write = TableWrite(staging, writes, options, constraints, run, author, partitioning, began)
            just_opened = is_new and time.monotonic() - clock < _JUST_NOW
            state = self.operations.change(write.draft, just_opened=just_opened)
        results = write.results(state, clock)
        made = zip(results, writes, strict=True)
        remember(
            self.store, [result.version for result, pending in made if pending.computing and result.change != "none"]
        )
        return results

    def _kept_heads(
        self,
        frames: Mapping[str | None, Any],
        asset_key: Sequence[str] | None,
        partitioning: Partitioning | None,
        began: int,
        options: TableOptions,
        run: Run | None,
        *,
        as_found: bool,
    ) -> Sequence[KeptVersion]:
        """The frames, where all are kept versions and the table's heads, here, so that nothing is to be written."""
        kept = [frame for frame in frames.values() if isinstance(frame, KeptVersion)]
        if len(kept) < len(frames):
            return ()
        described_key = asset_key if asset_key is not None else self._asset_key_of(self.operations.remembered)
        taken = WriteTarget(tuple(described_key), list(frames), partitioning=partitioning, log_version=began)
        state = self.operations.remembered() if as_found else self.operations.refresh()
        if state is None or not self.operations.is_here(state):
            return ()
        return kept if stand(state, kept, taken, options, run) else ()

    def computed(self, keys: Mapping[str | None, str]) -> dict[str | None, Version]:
        """The newest version that each of these computations (`computation_key`) made, as far as that is known.

        Whether it may take the place of computing it again, `kept` says. Raises `StorageError`.
        """
        return find(self.store, self.operations.refresh(), keys)

    def kept(self, version: Version) -> KeptVersion | None:
        """A version as what `write_partitions` makes current again without its rows; ``None`` where it cannot be.

        Its key must not be contradicted or forgotten, and all its parts must be there.
        """
        state = self.operations.remembered()
        return None if state is None else keep(self.operations.cache, state, version)

    def forget(
        self, *, key: str | None = None, code_version: str | None = None, dry_run: bool = True
    ) -> tuple[Version, ...]:
        """Have what was computed so far under a key, by a code version, or (neither) at all computed again.

        Returns the versions that are not reused any more; their rows stay as they are. Raises `InvalidInput`,
        `TableNotFound`.
        """
        self._require("forget", dry_run=dry_run)
        if key is not None and code_version is not None:
            raise InvalidInput("Forget a key or a code version, not both at once. Nothing was forgotten.")
        concerned: tuple[Version, ...] = tuple(affected(self._known(), key, code_version))

        def draft(state: TableState | None, _: int) -> CommitDraft | None:
            assert state is not None  # which was asked for first
            limit = ForgottenVersions.of(state.snapshot).with_limit(state.log_version, key, code_version)
            return CommitDraft("FORGET", [limit.action()], announces=False)

        if not dry_run and concerned:
            self.operations.change(draft)
        return concerned

    def describe(
        self,
        frames: Mapping[str | None, Any],
        asset_key: Sequence[str] | None,
        parents: Parents,
        code_version: str | None,
        message: str | None,
        options: TableOptions,
    ) -> dict[str | None, VersionDescription]:
        """What a write says of each of its frames. Raises `InvalidInput` where they cannot be written together."""
        check_partitions(frames)
        own_parents = parents_by_partition(parents, frames, self.project, self.name)
        described_key = asset_key if asset_key is not None else self._asset_key_of(self.operations.remembered)
        return {
            partition: describe(described_key, own_parents[partition], code_version, message, options)
            for partition in frames
        }

    def revert(
        self,
        version: VersionLike,
        *,
        partition: str | None = None,
        hold: bool = False,
        by: str | None = None,
        why: str | None = None,
    ) -> WriteResult:
        """Make an older version current again, as a new commit with the old identity; no part is written.

        ``hold`` marks the head, so that sensors do not rebuild it before `release`. Raises `ExpiredVersion`,
        `VersionNotFound`, `InvalidInput`.
        """
        if hold and not why:
            raise InvalidInput("A held head needs a reason: revert(…, hold=True, why='…'). Nothing was changed.")
        if why and not hold:
            raise InvalidInput("The reason of a revert is that of its hold: give hold=True too. Nothing was changed.")
        began = time.monotonic()
        self._require("revert")
        target = self.version(version, partition=partition)
        self._refuse_erased(target)
        made = Reversion(self.store, target, by or self.project.author, why)
        state = self.operations.change(made.draft)
        head = (state or self._known()).history.heads[target.partition]
        return WriteResult(made.change if state else "none", head, False, 0, time.monotonic() - began)

    def release(self, *, partition: str | None = None) -> bool:
        """Take the hold off a head; returns whether there was one."""
        domain = held_domain(partition)

        def draft(state: TableState | None, _: int) -> CommitDraft | None:
            if state is None or domain not in state.snapshot.domains:
                return None
            held = {"partition": partition} if partition is not None else {}
            return CommitDraft("RELEASE", [DomainMetadata(domain, "", True)], {"held": held})

        self._require("release")
        return self.operations.change(draft) is not None

    def drop_partitions(
        self, partitions: Iterable[str], *, dry_run: bool = True, by: str | None = None, why: str | None = None
    ) -> DropReport:
        """Make versions of no partition of these, in one commit; their bytes are kept until they are expired.

        `revert` to a version of one brings it back. Raises `VersionNotFound`, `HeldHead`, `InvalidInput`.
        """
        return self._drop(list(partitions), dry_run, by, why)

    def drop(self, *, dry_run: bool = True, by: str | None = None, why: str | None = None) -> DropReport:
        """Make the table one without a version, in one commit; its bytes are kept until they are expired.

        Until then `restore` takes it back, and old versions are read by name. The next write begins another table in
        the same log, with partitions as it says. Raises `TableNotFound` where it is dropped already, `HeldHead`, and
        `InvalidInput` for a history of events.
        """
        return self._drop(None, dry_run, by, why)

    def restore(self) -> bool:
        """Take a drop of the table back; returns whether there was one.

        Raises `ExpiredVersion` where its bytes are not kept any more, `VersionNotFound` where one is missing, and
        `InvalidInput` where another program committed to the table since.
        """
        self._require("restore")
        self._known()
        made = Restoration(self.name, self.store, self.project.author)
        return self.operations.change(made.draft) is not None

    def repartition(
        self,
        partitioning: Partitioning | Same | None,
        column: KeyOf | None = None,
        *,
        types: Mapping[str, str] | None = None,
        dry_run: bool = True,
    ) -> RepartitionReport:
        """Give the rows that are there other partitions (``None``: none), in one commit; the old ones end with it.

        ``types`` gives columns other types, by Delta's names, that hold every value there is: ``{"code": "string"}``.
        With ``"same"`` only these change.

        ``column`` gives the key of a row: a column of dates, timestamps or keys, for several dimensions a mapping of
        dimensions to columns, or a function from a `pyarrow.Table` to keys. Versions of before can still be read. All
        rows are held in memory. Where others write meanwhile, their rows are read again.

        Raises `InvalidInput` where the rows do not tell, `HeldHead`, `CommitConflict` after fifty lost races.
        """
        self._require("repartition", dry_run=dry_run)
        plan = RepartitionPlan(self.operations, partitioning, column, types or {})
        return plan.preview() if dry_run else plan.apply()

    def record_domain(self, domain: DomainMetadata) -> None:
        """Commit what a domain of the log says from now on; no version changes by it. Raises `TableNotFound`."""

        def draft(state: TableState | None, _: int) -> CommitDraft | None:
            return None if state is None else CommitDraft("SET DOMAIN", [domain], announces=False)

        self._require("record")
        self._known()
        self.operations.change(draft)

    def leave(
        self, *, retention: str | None = None, dry_run: bool = True, by: str | None = None, why: str | None = None
    ) -> LeaveReport:
        """Leave the table to other programs: it is a Delta table like any other, and takes no more versions.

        Versions are read as before, here and by their numbers. Other programs keep what they remove for
        ``retention``, such as ``"interval 30 days"``; ``None``: as the table says, which is a hundred years unless its
        properties were set. What they commit is foreign until `adopt` takes the table back. Raises `InvalidInput` for
        a history of events, a draft that waits, a retention that is none, and one that would not keep what pins, tags
        and environments need; `TableNotFound`.
        """
        self._require("leave", dry_run=dry_run)
        refuse_dropped(self.name, self._known())
        if ErasureName.by(self._known().snapshot) is not None:
            raise InvalidInput(
                f"Rows were erased from older versions of {self.name}, and only this package knows which files "
                "stand for theirs. Nothing was changed. Hand versions over with `dagster-versioned export`, or write "
                "the newest rows to another table and leave that."
            )
        if retention is not None:
            require_values({RETENTION: retention})
            if kept := self.operations.collector().protected():
                raise InvalidInput(
                    f"Of {self.name}, {next(iter(kept.values()))}, which other programs would not keep for longer than "
                    f"the {retention!r}. Nothing was changed. Leave it without a retention, or unpin and drop those."
                )
        made = Departure(retention, by or self.project.author, why)
        report = made.report(self._known().snapshot, dry_run=dry_run)
        if not dry_run:
            self.operations.collector().settle_all()
            while self.operations.change(made.draft) is not None:
                pass
        return report

    def adopt(self, *, message: str | None = None) -> WriteResult | None:
        """Give the table as a foreign commit left it an identity; ``None`` where there is nothing to adopt.

        Nobody knows what a foreign program built it from, so the version is an imported one, without parents. Reads
        every part, to know its SHA-256 and the digest of its rows. A table that was left (`leave`) is taken back first,
        with what its log said of it then; where nobody changed it since, its versions are current as before.
        """
        began = time.monotonic()
        self._require("adopt")
        taken = self.operations.change(Readmission(self.store).draft)
        if taken is not None and taken.history.unadopted is None:
            newest = max(taken.history.heads.values(), key=lambda version: version.log_version)
            return WriteResult("none", newest, False, 0, time.monotonic() - began)
        made = Adoption(self.store, self.asset_key, self.project.author, message)
        state = self.operations.change(made.draft)
        if state is None:
            return None
        return WriteResult("full", state.history.heads[None], False, 0, time.monotonic() - began)

    # Reading

    def exists(self) -> bool:
        """Whether anything was ever written under this name."""
        return self.operations.refresh() is not None

    def read(
        self,
        version: VersionLike = None,
        *,
        as_type: type | None = None,
        columns: Sequence[str] | None = None,
        partition: str | None = None,
        partitions: Names[str] | None = None,
    ) -> Any:
        """The rows of a version as ``as_type`` (default `pyarrow.Table`; pandas, Polars or PySpark frames).

        The result is pinned: a later commit never changes it. Arrow reads check every part's SHA-256 before a row is
        returned; Spark reads check that every part exists with its size. Raises `VersionNotFound`,
        `AmbiguousVersion`, `ExpiredVersion`, `IntegrityError`, `UnsupportedFrame`.
        """
        files = self.files(version, columns=columns, partition=partition, partitions=partitions)
        return self.read_files(files, as_type)

    def read_files(self, files: VersionFiles, as_type: type | None = None) -> Any:
        """The rows of exactly these files (`files`)."""
        if as_type is None:
            import pyarrow as pa

            as_type = pa.Table
        try:
            return engine_for_type(as_type).read(files.scan, as_type)
        except IntegrityError as error:
            is_missing = isinstance(error.__cause__, ObjectNotFound | FileNotFoundError)
            if is_missing and chain_head(self.state.snapshot) is not None:
                raise IntegrityError(
                    f"{error} If a query computes the history, as where `odf discard` deleted slices, run "
                    f"`dagster-versioned odf rebuild {self.name}`."
                ) from error
            raise

    def files(
        self,
        version: VersionLike = None,
        *,
        columns: Sequence[str] | None = None,
        partition: str | None = None,
        partitions: Names[str] | None = None,
    ) -> VersionFiles:
        """The exact files of a version, and the versions that they make up; reads the log, not the files."""
        return self.files_of(self.choose(version, partition=partition, partitions=partitions), columns=columns)

    def files_of(self, chosen: ChosenVersions, *, columns: Sequence[str] | None = None) -> VersionFiles:
        """The exact files of versions that were chosen."""
        state = self.operations.cache.known or self._known()  # by which they were chosen, most often
        snapshot = self._snapshot(state, chosen.log_version)
        erased = self.project.erasures.of(state.snapshot, snapshot)
        return version_files(self.store, snapshot, chosen, columns, erased)

    def choose(
        self,
        version: VersionLike = None,
        *,
        partition: str | None = None,
        partitions: Names[str] | None = None,
        as_last_seen: bool = False,
        partitioning: Partitioning | None = None,
    ) -> ChosenVersions:
        """The versions that a reference means, in these partitions or in all of them, even if their bytes are gone.

        ``as_last_seen`` takes the log as this object saw it last. ``partitioning`` is what who looks takes the
        partitions of the table for; raises `InvalidInput` where they were others at that version.
        """
        state = self.last_state if as_last_seen else self._known()
        chosen = choose_versions(state.history, self._select(state, version), partition, partitions)
        if partitioning is not None and not state.is_history:
            record = TableRecord.of(state.snapshot)
            if chosen.log_version < record.since:  # it was another table then
                record = TableRecord.of(load_snapshot(self.store, chosen.log_version))
            keys = [version.partition for version in chosen.versions]
            if why := misread("/".join(self.asset_key), record.partitioning, partitioning, keys):
                raise InvalidInput(why)
        return chosen

    def history(self, *, partition: str | None = None) -> list[Version]:
        """Every version, newest first; of one partition only, if named."""
        versions = self._known().history.versions
        return [v for v in reversed(versions) if partition is None or v.partition == partition]

    def version(self, reference: VersionLike = None, *, partition: str | None = None) -> Version:
        """The one version that a reference means. Raises `VersionNotFound`, `AmbiguousVersion`.

        A log version or a time means the table's head then, which is a foreign commit where one came last; of a
        partitioned table, name the ``partition``.
        """
        state = self._known()
        return choose_version(self.name, state.history, self._select(state, reference), partition)

    def partitions(self) -> dict[str, Version]:
        """The current version of each partition; empty for a table without partitions."""
        return {key: version for key, version in self._known().history.heads.items() if key is not None}

    def upstream(
        self, version: VersionLike = None, *, partition: str | None = None, partitions: Names[str] | None = None
    ) -> list[Upstream]:
        """What to record as parents of something built from a version, from these partitions, or from all of them.

        Taken from the history, so that a version whose bytes are gone is recorded too.
        """
        return self.upstream_of(self.choose(version, partition=partition, partitions=partitions))

    def upstream_of(self, chosen: ChosenVersions) -> list[Upstream]:
        """What to record as parents of something built from these versions, or from their chosen.

        A partitioned table that was read as a whole is one parent: its ``partitions_sha``.
        """
        state = self.last_state if self.last_state.log_version >= chosen.log_version else self._known()
        parked = {at: draft.id for at, draft in self.operations.parked.items()}
        return upstreams(self.project, self.name, state, chosen, parked)

    # Comparing and verifying

    def diff(self, before: VersionLike, after: VersionLike = None, *, partition: str | None = None) -> VersionDiff:
        """What changed between two versions: schema, rows, parts, parents and metadata; reads no data."""
        old, new = self.version(before, partition=partition), self.version(after, partition=partition)
        found = version_diff(old, new, self._parts(old), self._parts(new))
        return replace(found, code=compare_codes(self.store, code_of(old), code_of(new)))

    def diff_rows(
        self,
        before: VersionLike,
        after: VersionLike = None,
        *,
        key: Sequence[str],
        partition: str | None = None,
        as_type: type | None = None,
    ) -> "RowDiff[Any]":
        """Which rows were added, removed and changed between two versions, matched by the ``key`` columns.

        Compared by Arrow, or by Spark where ``as_type`` is PySpark's DataFrame. Raises `InvalidInput` where the key is
        not unique or holds nulls.
        """
        from dagster_versioned.engines.dispatch import diff_rows

        frames = [self.read(self._exactly(ref, partition), as_type=as_type) for ref in (before, after)]
        return diff_rows(frames[0], frames[1], key)

    def verify(
        self,
        version: VersionLike = None,
        *,
        partition: str | None = None,
        witnesses: Mapping[int, str] | None = None,
        progress: Progress | None = None,
    ) -> VerifyReport:
        """Check that everything still is what was committed; the whole table, or one version.

        Parts by size and SHA-256 of their bytes, every identity by its ``metadata_sha`` and ``data_sha``, the log by
        its hash chain, derived documents (checkpoints too) by what the commits imply, which are replayed from the
        first. The chain cannot see a log that was cut at its end:
        ``witnesses`` (log version -> SHA-256 of that commit, from the Dagster event log or a git mirror) can; with that
        of its outline after a colon they show what became of it in a redaction, too. Nothing remembered is trusted:
        the log is read again. Whatever cannot be read is a finding, not an error.

        Raises `TableNotFound`, and `InvalidInput` for what is no reference.
        """
        self.operations.follow()
        return verify_table(self, version, partition, witnesses or {}, progress)

    # Maintenance

    def vacuum(self, *, dry_run: bool = True, min_age: timedelta = MIN_AGE, by: str | None = None) -> CollectionReport:
        """Delete objects that no version needs (left by writes that died), if they are older than ``min_age``.

        So are the documents of drafts that were closed before, and of those that waited for more than 7 days.
        """
        self._require("vacuum", dry_run=dry_run)
        before = datetime.now(UTC) - min_age
        plan = self.operations.collector().plan_vacuum(
            before,
            by or self.project.author,
            drafts=collected_drafts(self.project.data, str(self.name), before),
            former=lambda: self._former_files(min_age),
        )
        return plan.preview() if dry_run else plan.apply()

    def expire(
        self,
        *,
        keep_last: int | None = None,
        older_than: datetime | None = None,
        dry_run: bool = True,
        by: str | None = None,
        why: str | None = None,
    ) -> CollectionReport:
        """Give up the bytes of old versions: beyond the last ``keep_last``, and made before ``older_than``.

        Kept in any case: heads, pinned versions, and what kept versions name as their parents, be it in other tables
        or in this one. The history keeps every entry. Raises `InvalidInput` without a retention.
        """
        self._require("expire", dry_run=dry_run)
        plan = self.operations.collector().plan_expiry(keep_last, older_than, by or self.project.author, why)
        return plan.preview() if dry_run else plan.apply()

    def purge(
        self,
        versions: Iterable[VersionLike],
        *,
        why: str,
        dry_run: bool = True,
        by: str | None = None,
    ) -> CollectionReport:
        """Delete the bytes of named versions now, and record the gap with ``why``; `Project.erase` takes rows alone.

        The files of data go. What stays: the smallest and largest value of each of the first 32 columns (text: up to
        32 characters) in the log and its checkpoints, messages and custom metadata in the history, and previews in
        Dagster's event log.

        Raises `InvalidInput` for a head, a pinned version, or bytes that another version shares.
        """
        if not why.strip():
            raise InvalidInput("A purge needs a reason, which the log keeps: why='…'. Nothing was deleted.")
        self._require("purge", dry_run=dry_run)
        chosen = [self.version(version) for version in versions]
        self._former_files(timedelta(0))  # refuses where bytes would have to stay
        plan = self.operations.collector().plan_purge(
            chosen,
            by or self.project.author,
            why,
            former=lambda: self._former_files(timedelta(0)),
        )
        return plan.preview() if dry_run else plan.apply()

    def repair(self) -> None:
        """Write every derived document again from the log: heads, datom documents, manifest, checkpoints, index.

        The commits alone are believed, from the first on. Raises `UnsupportedFeature` where that is not there any more.
        """
        self.operations.repair()
        remember(self.store, made_by_computations(self._known().history.versions))

    def rename(self, to: str | Sequence[str], *, dry_run: bool = True, by: str | None = None) -> "RenameReport":
        """Give the table another name and asset key, with its history; run again, it goes on where it died.

        The name is a text, or the parts of an asset key. Its log and files are copied within the store. Lineage, pins
        and readers by the old name find it; writers by it are refused. The old files go with the first `vacuum` that is
        7 days later, or with a `purge`. Raises `InvalidName` for a name that is taken, or was.
        """
        from dagster_versioned.tables.rename import rename

        self._require("rename table", dry_run=dry_run)
        return rename(self.project, self.operations.asked_for, to, dry_run=dry_run, by=by or self.project.author)

    # What sensors ask

    def head(self, *, partition: str | None = None) -> HeadDocument:
        """The stored head, without reading the log, which may carry a mark of a commit in flight; that of a partition
        from the log."""
        return self.operations.head(partition)

    def resolve(self) -> HeadDocument:
        """The head, brought up to the end of the log if a writer died between its commit and its head.

        One that is beyond the end of the log is not of this log, and all that is derived is written again. Who may not
        write here, such as a governed reader, gets the head and writes nothing.
        """
        return self.operations.resolve()

    @property
    def state(self) -> TableState:
        """Snapshot and history at the end of the log. Raises `TableNotFound`."""
        return self._known()

    @property
    def last_state(self) -> TableState:
        """`state` as this object saw it last; looked at now, where it did not yet. Raises `TableNotFound`."""
        return self.operations.cache.known or self._known()

    @property
    def is_void(self) -> bool:
        """Whether all that there is of the table is the fence that kept it from being created."""
        return self.operations.whereabouts.is_void

    def replay(self) -> tuple[TableState, Sequence[Commit]]:
        """State and commits from the log alone. Raises `TableNotFound`, `LogCorrupt`, `UnsupportedFeature`."""
        self.operations.arrive()
        return self.operations.cache.replay()

    @property
    def publisher(self) -> Publisher:
        """What writes, and knows, the derived documents."""
        return self.operations.publisher

    def commit_as_migration(self, draft: PlanCommit) -> TableState | None:
        """Commit what a migration has to say, which its own fence does not stop; `fence` is who calls this."""
        return self.operations.commit_as_migration(draft)

    # Inside

    def _known(self) -> TableState:
        return self.operations.existing_state()

    def _drop(self, partitions: Sequence[str] | None, dry_run: bool, by: str | None, why: str | None) -> DropReport:
        self._require("drop", dry_run=dry_run, partitions=partitions)
        state = self._known()
        made = Drop(self.name, partitions, by or self.project.author, why)
        if dry_run:
            made.draft(state, 0)
        else:
            self.operations.change(made.draft)
        return DropReport(dry_run, made.dropped, sum(version.facts.size_bytes for version in made.dropped))

    def _former_files(self, min_age: timedelta) -> Sequence[ObjectInfo]:
        """What is left under names that the table had."""
        from dagster_versioned.tables.rename import former_files

        return former_files(self.project, self._known(), min_age)

    def known_schema(self) -> StructType | None:
        """The table's columns as of a moment ago; ``None`` where it has none yet."""
        state = self.operations.cache.known
        return state.snapshot.schema if state is not None and state.history.heads else None

    def _require(self, verb: str, *, dry_run: bool = False, partitions: Sequence[str] | None = None) -> None:
        require(verb, self.project, self, dry_run=dry_run, partitions=partitions)

    def constraints(self, options: TableOptions) -> Mapping[str, str]:
        """What every row must satisfy: as the options say, else as the table does."""
        if options.constraints is not None:
            return options.constraints
        state = self.operations.cache.known
        if state is None or not constraints_of(state.snapshot.metadata.configuration):
            return {}  # as of a moment ago; the draft looks again
        return constraints_of(self._known().snapshot.metadata.configuration)

    def with_personal_columns(self, options: TableOptions) -> TableOptions:
        """The options with the personal columns that the table has, as of a moment ago; the draft looks again."""
        state = self.operations.cache.known
        known = () if state is None else personal_columns(state.snapshot.metadata.configuration)
        return options.model_copy(update={"known_personal_columns": known}) if known else options

    def _select(self, state: TableState, reference: VersionLike) -> Selection:
        parsed = parse_reference(reference)
        if isinstance(parsed, HeadReference) and state.history.unadopted is None:
            refuse_dropped(self.name, state)
        former = [name for _, name in TableRecord.of(state.snapshot).former]
        if isinstance(parsed, PinName):
            parsed = ShaPrefix(resolve_pin(self.project, parsed.name, str(self.name), former))
        elif isinstance(parsed, TagName):
            parsed = LogVersion(find_tagged(self.project.data, parsed.name, (str(self.name), *former), state.history))
        return state.history.find(parsed)

    def _snapshot(self, state: TableState, log_version: int) -> Snapshot:
        return state.snapshot if log_version == state.log_version else self.operations.cache.older(log_version)

    def _parts(self, version: Version) -> tuple[Add, ...]:
        state = self._known()
        snapshot = self._snapshot(state, version.log_version)
        return self.project.erasures.of(state.snapshot, snapshot).of(parts_of(snapshot, version.partition))

    def _refuse_erased(self, version: Version) -> None:
        """Raise `InvalidInput` for a version that some rows were erased from, which cannot be current again."""
        state = self._known()
        snapshot = self._snapshot(state, version.log_version)
        erased = self.project.erasures.of(state.snapshot, snapshot)
        if any(add.identity in erased.substitutes for add in parts_of(snapshot, version.partition) if erased):
            raise InvalidInput(
                f"Rows were erased from version {version.short} (@{version.log_version}), so it cannot be current again"
                " under its name. Nothing was changed. Read it, and write its rows as a new version."
            )

    def _exactly(self, reference: VersionLike, partition: str | None) -> VersionLike:
        version = self.version(reference, partition=partition)
        return version.metadata_sha or f"@{version.log_version}"


def open_table(project: ProjectContext, name: str | Sequence[str]) -> VersionedTable:
    """The table of a name or of an asset key (a sequence of parts); it need not exist yet."""
    if isinstance(name, str):
        return VersionedTable(project, table_name(name))
    return VersionedTable(project, table_name_of(name), asset_key=name)


def _note_computations(writes: Sequence[PendingWrite], computations: Mapping[str | None, OpenComputation]) -> None:
    """Note what versions are computed from, of which a part of the time falls to each."""
    computed = [write for write in writes if write.computation is None and write.partition in computations]
    for write in computed:
        write.computing = replace(computations[write.partition], share=len(computed))
