"""One versioned table: everything a user can do with it."""

import logging
import time
import uuid
from collections.abc import Collection as Names
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

from dagster_versioned.__about__ import __version__
from dagster_versioned.delta.actions import Add, DomainMetadata
from dagster_versioned.delta.log import Commit
from dagster_versioned.delta.snapshot import Snapshot, load_snapshot
from dagster_versioned.engines.dispatch import engine_for, engine_for_type
from dagster_versioned.engines.staging import Staging
from dagster_versioned.errors import (
    GovernanceError,
    InvalidInput,
    InvalidName,
    VersionedError,
    VersionNotFound,
)
from dagster_versioned.identity.names import TableName
from dagster_versioned.identity.reference import PinName, ShaPrefix, parse_reference
from dagster_versioned.identity.version import Parent, Run, SourceVersion, TableType, Writer
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.tables.addition import Addition
from dagster_versioned.tables.adopt import Adoption
from dagster_versioned.tables.collect import MIN_AGE, CollectionReport, Collector, Protection
from dagster_versioned.tables.commit import Draft, DraftOf, commit
from dagster_versioned.tables.configuration import constraints_of
from dagster_versioned.tables.constraints import require_frame
from dagster_versioned.tables.diff import VersionDiff, version_diff
from dagster_versioned.tables.head import (
    HeadDocument,
    announce,
    head_key,
    held_domain,
    partition_head_key,
    read_head,
    table_head,
    withdraw_stale_mark,
)
from dagster_versioned.tables.history import Selection, Version
from dagster_versioned.tables.options import TableOptions
from dagster_versioned.tables.parts import parts_of
from dagster_versioned.tables.publish import Publisher, recorded_project
from dagster_versioned.tables.read import ChosenVersions, VersionFiles, choose_versions, version_files
from dagster_versioned.tables.revert import Reversion
from dagster_versioned.tables.state import StateCache, TableState
from dagster_versioned.tables.verify import Progress, VerifyReport, verify_table
from dagster_versioned.tables.whereabouts import MovedTo, Whereabouts
from dagster_versioned.tables.write import CollectionInProgress, Description, Proposal, WriteResult, Writing

if TYPE_CHECKING:
    from dagster_versioned.engines.row_diff import RowDiff
    from dagster_versioned.tables.project import Project

logger = logging.getLogger("dagster_versioned")

WRITER = Writer("dagster-versioned", __version__)

VersionLike = str | int | datetime | None
"""What names a version: a SHA prefix, ``"@12"`` or 12, a time, ``"pin:name"``, or ``None`` for the head."""


@dataclass(frozen=True)
class Upstream:
    """A version that was read, as the lineage of what is built from it: the parent, and where its data comes from."""

    parent: Parent
    sources: tuple[SourceVersion, ...]


class VersionedTable:
    """A table whose every write is an immutable version; get one from `Project.table`.

    Cheap to make: nothing is read before it is needed. Thread-safe.
    """

    def __init__(self, project: "Project", name: TableName, asset_key: Sequence[str] | None = None) -> None:
        self.name = name
        self._asset_key = tuple(asset_key) if asset_key is not None else None
        self._open(project)

    def _open(self, project: "Project") -> None:
        name = self.name
        self.project = project
        self.store: ObjectStore = project.data.subfolder(str(name))
        self._cache = StateCache(self.store)
        self._whereabouts = Whereabouts(project, name, self._cache)
        self._publisher = Publisher(project.name, name, project.data, self.store)

    def __repr__(self) -> str:
        return f"VersionedTable({str(self.name)!r}, {self.store.uri!r})"

    def __reduce__(self) -> tuple[object, ...]:
        # What is remembered stays behind: it is read again where the table is unpickled.
        return type(self), (self.project, self.name, self._asset_key)

    @property
    def asset_key(self) -> tuple[str, ...]:
        """The asset that the table belongs to: as it was opened, else as recorded, else its name."""
        if self._asset_key is not None:
            return self._asset_key
        state = self._refresh()
        recorded = state.history.asset_key if state is not None else None
        return recorded or (str(self.name),)

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
    ) -> WriteResult:
        """Make the frame the current version of the table, or of one of its partitions.

        The frame is a pyarrow Table or RecordBatchReader, a pandas, Polars or PySpark frame. ``parents`` are what it
        was built from (`upstream`); ``asset_key`` defaults to the table's. A ``run`` whose earlier attempt
        committed the same version gets that one back. Nothing is committed where the frame is the head already.

        Raises `UnsupportedFrame`, `UnsupportedType`, `EmptyTable`, `InvalidMetadata`, `InvalidName`, `HeldHead`,
        `CommitConflict`, `StorageError`; in each case the table is as it was. Source: FORMAT.md, "Order of a write".
        """
        return self.write_partitions(
            {partition: frame},
            asset_key=asset_key,
            parents=parents,
            code_version=code_version,
            message=message,
            options=options,
            run=run,
        )[0]

    def write_partitions(
        self,
        frames: Mapping[str | None, Any],
        *,
        asset_key: Sequence[str] | None = None,
        parents: Iterable[Upstream] | Mapping[str | None, Iterable[Upstream]] = (),
        code_version: str | None = None,
        message: str | None = None,
        options: TableOptions | None = None,
        run: Run | None = None,
    ) -> list[WriteResult]:
        """`write` several partitions in one commit: all of them become current, or none does.

        ``parents`` are those of every partition, or a mapping with each partition's own.
        """
        began = time.monotonic()
        self.project.check_write()
        options = options or TableOptions()
        if wrong := [key for key in frames if key is not None and not isinstance(key, str)]:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidInput(f"A partition key must be text, not {wrong[0]!r:.100}. Nothing was written.")
        if len(frames) > 1 and None in frames:
            raise InvalidInput(
                "One write holds a whole table (key None) and partitions. Nothing was written. Write one or the other."
            )
        if isinstance(parents, Mapping):
            parents_of = cast("Mapping[str | None, Iterable[Upstream]]", parents)
        else:
            parents_of = dict.fromkeys(frames, tuple(parents))
        descriptions = {
            partition: _describe(
                asset_key if asset_key is not None else self.asset_key,
                [one for one in parents_of.get(partition, ()) if not self._is_itself(one, frames)],
                code_version,
                message,
                options,
            )
            for partition in frames
        }
        self._check_name_is_free()
        staging = Staging(self.store, str(uuid.uuid4()))
        try:
            with ExitStack() as pinned:
                constraints = self._constraints(options)
                proposals = [
                    _propose(frame, key, descriptions[key], staging, options, constraints, pinned)
                    for key, frame in frames.items()
                ]
                writing = Writing(
                    self.store, staging, proposals, WRITER, options, constraints, run, self.project.author
                )
                state = self._change(writing.draft)
        finally:
            _discard(staging)
        seconds = time.monotonic() - began
        committed = {v.partition: v for v in state.history.heads.values()} if state else {}
        return [
            WriteResult(
                change=plan.entry.change if plan.entry else "none",
                version=plan.unchanged or committed[plan.proposal.partition],
                replayed=plan.replayed,
                bytes_uploaded=plan.proposal.bytes_uploaded,
                seconds=seconds,
            )
            for plan in writing.planned
        ]

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
        began = time.monotonic()
        self.project.check_write()
        target = self.version(version, partition=partition)
        made = Reversion(self.store, target, WRITER, by or self.project.author, why if hold else None)
        state = self._change(made.draft)
        head = (state or self._known()).history.heads[target.partition]
        return WriteResult(made.change if state else "none", head, False, 0, time.monotonic() - began)

    def release(self, *, partition: str | None = None) -> bool:
        """Take the hold off a head; returns whether there was one."""
        domain = held_domain(partition)

        def draft(state: TableState | None, _: int) -> Draft | None:
            if state is None or domain not in state.snapshot.domains:
                return None
            held = {"partition": partition} if partition is not None else {}
            return Draft("RELEASE", [DomainMetadata(domain, "", True)], {"held": held})

        self.project.check_write()
        return self._change(draft) is not None

    def adopt(self, *, message: str | None = None) -> WriteResult | None:
        """Give the table as a foreign commit left it an identity; ``None`` where there is nothing to adopt.

        Nobody knows what a foreign program built it from, so the version is an imported one, without parents. Reads
        every part, to know its SHA-256 and the digest of its rows.
        """
        began = time.monotonic()
        self.project.check_write()
        self._known()
        made = Adoption(self.store, self.asset_key, WRITER, self.project.author, message)
        state = self._change(made.draft)
        if state is None:
            return None
        return WriteResult("full", state.history.heads[None], False, 0, time.monotonic() - began)

    # Reading

    def exists(self) -> bool:
        """Whether anything was ever written under this name."""
        return self._refresh() is not None

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
        return engine_for_type(as_type).read(files.scan, as_type)

    def files(
        self,
        version: VersionLike = None,
        *,
        columns: Sequence[str] | None = None,
        partition: str | None = None,
        partitions: Names[str] | None = None,
    ) -> VersionFiles:
        """The exact files of a version, and the versions that they make up; reads the log, not the files."""
        chosen = self.choose(version, partition=partition, partitions=partitions)
        snapshot = self._snapshot(self._known(), chosen.log_version)
        return version_files(self.store, snapshot, chosen, columns)

    def choose(
        self, version: VersionLike = None, *, partition: str | None = None, partitions: Names[str] | None = None
    ) -> ChosenVersions:
        """The versions that a reference means, in these partitions or in all of them, even if their bytes are gone."""
        state = self._known()
        selection = self._select(state, version)
        if selection.version is not None and (partition is not None or partitions is not None):
            wanted = {partition} if partition is not None else set(partitions or ())
            if wanted != {selection.version.partition}:
                raise VersionNotFound(
                    f"Version {selection.version.short} is of partition {selection.version.partition!r}, not of "
                    f"{sorted(map(str, wanted))}. Nothing was read."
                )
        if partitions is not None and not partitions:
            raise InvalidInput("An empty list of partitions names nothing to read. Leave it out to read all of them.")
        wanted_keys = [partition] if partition is not None else partitions
        chosen = None if selection.version or wanted_keys is None else tuple(dict.fromkeys(wanted_keys))
        return choose_versions(selection, state.history.until(selection.log_version).current, chosen)

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
        selection = self._select(state, reference)
        if selection.version is not None:
            if partition is not None and selection.version.partition != partition:
                raise VersionNotFound(
                    f"Version {selection.version.short} is of partition {selection.version.partition!r}, not "
                    f"{partition!r}."
                )
            return selection.version
        history = state.history.until(selection.log_version)
        if partition is None and history.is_partitioned:
            at = [version for version in history.versions if version.log_version == selection.log_version]
            if len(at) == 1:
                return at[0]
            raise VersionNotFound(
                f"{self.name} has {len(history.heads)} partitions, each with versions of its own. Name the partition."
            )
        if partition is None and (foreign := history.unadopted) is not None:
            return foreign
        found = history.heads.get(partition)
        if found is None:
            raise VersionNotFound(f"{self.name} has no version of partition {partition!r} at @{selection.log_version}.")
        return found

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
        if not chosen.versions:
            raise VersionNotFound(
                f"{self.name} has no version yet: another program committed to it, and nobody adopted that. "
                "Nothing was changed. Give it an identity with adopt()."
            )
        if chosen.whole and chosen.versions[0].partition is not None:
            history = self._known().history.until(chosen.log_version)
            sources = tuple(source for version in chosen.versions for source in self._sources(version))
            whole = Parent(self.project.name, str(self.name), history.whole.metadata_sha, history.whole.data_sha)
            return [Upstream(whole, sources)]
        return [
            Upstream(
                Parent(
                    self.project.name,
                    str(self.name),
                    version.entry.metadata_sha,
                    version.identity.data_sha,
                    version.partition,
                ),
                self._sources(version),
            )
            for version in chosen.versions
        ]

    # Comparing and verifying

    def diff(self, before: VersionLike, after: VersionLike = None, *, partition: str | None = None) -> VersionDiff:
        """What changed between two versions: schema, rows, parts, parents and metadata; reads no data."""
        old, new = self.version(before, partition=partition), self.version(after, partition=partition)
        return version_diff(old, new, self._parts(old), self._parts(new))

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
        from dagster_versioned.engines.row_diff import diff_rows

        frames = [self.read(self._exactly(one, partition), as_type=as_type) for one in (before, after)]
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
        ``witnesses`` (log version -> SHA-256 of that commit, from the Dagster event log or a git mirror) can. Nothing
        remembered is trusted: the log is read again. Whatever cannot be read is a finding, not an error.

        Raises `TableNotFound`, and `InvalidInput` for what is no reference.
        """
        return verify_table(self, version, partition, witnesses or {}, progress)

    # Maintenance

    def vacuum(self, *, dry_run: bool = True, min_age: timedelta = MIN_AGE, by: str | None = None) -> CollectionReport:
        """Delete objects that no version needs (left by writes that died), if they are older than ``min_age``."""
        self._check_unless(dry_run)
        return self._collector().vacuum(min_age=min_age, dry_run=dry_run, by=by or self.project.author)

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
        self._check_unless(dry_run)
        return self._collector().expire(
            keep_last=keep_last, older_than=older_than, dry_run=dry_run, by=by or self.project.author, why=why
        )

    def purge(
        self, versions: Iterable[VersionLike], *, why: str, dry_run: bool = True, by: str | None = None
    ) -> CollectionReport:
        """Delete the bytes of named versions now (legal erasure), and record the gap with ``why``.

        The files of data go. What stays: the smallest and largest value of each column (text: up to 32 characters) in
        the log and its checkpoints, messages and custom metadata in the history, and previews in Dagster's event log.

        Raises `InvalidInput` for a head, a pinned version, or bytes that another version shares.
        """
        if not why.strip():
            raise InvalidInput("A purge needs a reason, which the log keeps: why='…'. Nothing was deleted.")
        self._check_unless(dry_run)
        chosen = [self.version(one) for one in versions]
        same = {v.metadata_sha for v in chosen if not v.is_foreign}
        at = {(v.log_version, v.partition) for v in chosen}
        history = self._known().history
        every = [v for v in history.versions if v.metadata_sha in same or (v.log_version, v.partition) in at]
        return self._collector().purge(every, dry_run=dry_run, by=by or self.project.author, why=why)

    def repair(self) -> None:
        """Write every derived document again from the log: heads, datom documents, manifest, checkpoints, index.

        The commits alone are believed, from the first on. Raises `UnsupportedFeature` where that is not there any more.
        """
        self.project.check_write()
        self._publisher.rebuild(self._cache)

    # What sensors ask

    def head(self, *, partition: str | None = None) -> HeadDocument:
        """The stored head, without reading the log; it may carry a mark of a commit in flight."""
        self._arrive()
        key = head_key(self.name) if partition is None else partition_head_key(self.name, partition)
        return read_head(self.project.data, key)

    def resolve(self) -> HeadDocument:
        """The head, brought up to the end of the log if a writer died between its commit and its head.

        One that is beyond the end of the log is not of this log, and all that is derived is written again. Who may not
        write here, such as a governed reader, is told the head and writes nothing.
        """
        self._arrive()
        document = self.head()  # before the log, which then holds whatever a true head knows
        state = self._refresh()
        if state is not None:
            if document.log_version > state.log_version:
                self._repair_quietly()
                return self.head()
            if document.log_version < state.log_version:
                if not self._may_write():
                    pending = document.pending
                    later = pending if pending and pending.log_version > state.log_version else None
                    return HeadDocument(state.log_version, table_head(self.name, state), later)
                self._publish(state)
                return self.head()
            data, key = self.project.data, head_key(self.name)
            if document.pending and self._may_write() and withdraw_stale_mark(data, key, state.log_version):
                return self.head()
        return document

    @property
    def state(self) -> TableState:
        """Snapshot and history at the end of the log. Raises `TableNotFound`."""
        return self._known()

    @property
    def is_void(self) -> bool:
        """Whether all that there is of the table is the fence that kept it from being created."""
        return self._whereabouts.is_void

    def replay(self) -> tuple[TableState, Sequence[Commit]]:
        """State and commits from the log alone. Raises `TableNotFound`, `LogCorrupt`, `UnsupportedFeature`."""
        self._arrive()
        return self._cache.replay()

    @property
    def publisher(self) -> Publisher:
        """What writes, and knows, the derived documents."""
        return self._publisher

    def commit_as_migration(self, draft: DraftOf) -> TableState | None:
        """Commit what a migration has to say, which its own fence does not stop; `fence` is who calls this."""
        return self._commit(draft)

    # Inside

    def _refresh(self) -> TableState | None:
        """The state at the end of the log, or ``None`` without one; at the new place if a migration took it away."""
        found = self._whereabouts.look()
        if isinstance(found, MovedTo):
            self._open(found.project)
            return self._cache.refresh()
        return found

    def _arrive(self) -> None:
        """Be where the project is now, before something is read that is not the log."""
        if self.project.custody is not None:
            self._refresh()

    def _may_write(self) -> bool:
        try:
            self.project.check_write()
        except GovernanceError:
            return False
        return True

    def _check_unless(self, dry_run: bool) -> None:
        if not dry_run:
            self.project.check_write()

    def _known(self) -> TableState:
        """`_refresh`, but raises `TableNotFound` where the table has no log."""
        return self._refresh() or self._cache.require()

    def _change(self, draft: DraftOf) -> TableState | None:
        """`_commit` what a user asked for: not at a place that a migration has ended."""
        with self._whereabouts.telling_of_the_fence():
            return self._commit(self._whereabouts.unfenced(draft))

    def _commit(self, draft: DraftOf) -> TableState | None:
        """Commit a draft, waiting for collections in its way, and publish what follows from it."""
        while True:
            try:
                state = commit(self.store, self._cache, draft, self._announce, f"{WRITER.name}/{WRITER.version}")
            except CollectionInProgress as busy:
                self._collector().settle(busy.collection)
                continue
            if state is None:
                self.resolve()
            else:
                self._publish(state)
            return state

    def _publish(self, state: TableState) -> None:
        """Publish; what fails here is derived and the commit stands, so it is logged and left to the next publisher."""
        try:
            self._publisher.publish(self._cache, state)
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

    def _announce(self, log_version: int) -> None:
        announce(self.project.data, head_key(self.name), log_version)
        if log_version == 0:
            self.project.check_unmarked()  # after the announcement: see `fence`

    def _collector(self) -> Collector:
        return Collector(self.store, self._cache, self._change, self._protected)

    def _protected(self) -> dict[str, Protection]:
        """Why a version must be kept, by its ``metadata_sha``: pins, and parents of kept versions of other tables."""
        history = self._known().history
        reasons: dict[str, Protection] = {}
        for other in self.project.tables():
            if other == self.name:
                continue
            for child in self.project.table(str(other)).history():
                if child.gone is None and child.raw is not None:
                    for parent in child.raw["identity"].get("parents", ()):
                        # By SHA alone: whoever opens the project under another name must not lose parents by that.
                        for sha in history.versions_of(parent["version"]):
                            reasons[sha] = Protection("parent", f"a parent of {other} {child.short}")
        for pin in self.project.pins().values():
            if pin.table == self.name:
                reasons[pin.version] = Protection("pin", f"pinned as {pin.name!r}")
        return reasons

    def _constraints(self, options: TableOptions) -> Mapping[str, str]:
        """What every row must satisfy: as the options say, else as the table does."""
        if options.constraints is not None:
            return options.constraints
        state = self._cache.known
        if state is None or not constraints_of(state.snapshot.metadata.configuration):
            return {}  # as of a moment ago; the draft looks again
        return constraints_of(self._known().snapshot.metadata.configuration)

    def _check_name_is_free(self) -> None:
        """Refuse to create a table under a wrong project name, or beside one whose name differs only in case.

        Lineage names its project for ever; and many file systems cannot tell such table names apart.
        """
        with self._whereabouts.telling_of_the_fence():
            if self._cache.known or self._cache.refresh():
                return
        known = recorded_project(self.project.data)
        if known is not None and known != self.project.name:
            raise InvalidInput(
                f"{self.project.store.uri} holds the project {known!r}, but was opened as {self.project.name!r}. "
                "Nothing was written. Open it by its own name, or choose another location."
            )
        for folder in self.project.data.folders():
            if folder != self.name and folder.casefold() == self.name.casefold():
                raise InvalidName(
                    f"The table {self.name!r} cannot be created beside {folder!r}: their names differ only in case. "
                    "Nothing was written. Choose another asset key."
                )

    def _is_itself(self, upstream: Upstream, partitions: Iterable[str | None]) -> bool:
        if not isinstance(upstream, Upstream):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidInput(
                f"A parent must be what upstream() of a table returns, not {upstream!r:.100}. Nothing was written."
            )
        parent = upstream.parent
        return (parent.source, parent.table) == (self.project.name, self.name) and parent.partition in partitions

    def _select(self, state: TableState, reference: VersionLike) -> Selection:
        parsed = parse_reference(reference)
        if isinstance(parsed, PinName):
            parsed = ShaPrefix(self.project.resolve_pin(parsed.name, str(self.name)))
        return state.history.find(parsed)

    def _snapshot(self, state: TableState, log_version: int) -> Snapshot:
        return state.snapshot if log_version == state.log_version else load_snapshot(self.store, log_version)

    def _parts(self, version: Version) -> tuple[Add, ...]:
        return parts_of(self._snapshot(self._known(), version.log_version), version.partition)

    def _exactly(self, reference: VersionLike, partition: str | None) -> VersionLike:
        version = self.version(reference, partition=partition)
        return version.metadata_sha or f"@{version.log_version}"

    def _sources(self, version: Version) -> tuple[SourceVersion, ...]:
        """Where a version's data comes from in the end: an imported version is its own source."""
        identity = version.identity
        if identity.table_type == "imported":
            return (SourceVersion(self.project.name, str(self.name), version.entry.metadata_sha),)
        return tuple(identity.source_lineage)


def _discard(staging: Staging) -> None:
    """Delete what a write staged; what is left if that fails is garbage that vacuum collects."""
    try:
        staging.discard()
    except VersionedError:
        logger.warning("The staged files of write %s could not be deleted.", staging.write_id, exc_info=True)


def _describe(
    asset_key: Sequence[str],
    parents: Sequence[Upstream],
    code_version: str | None,
    message: str | None,
    options: TableOptions,
) -> Description:
    if isinstance(asset_key, str):  # which tuple() would take apart, letter by letter
        raise InvalidInput(f"asset_key must be the parts of a key: [{asset_key!r:.100}]. Nothing was written.")
    kind: TableType = options.table_type or ("derived" if parents else "imported")
    return Description(
        asset_key=tuple(asset_key),
        table_type=kind,
        parents=tuple(upstream.parent for upstream in parents),
        source_lineage=tuple(source for upstream in parents for source in upstream.sources),
        code_version=code_version,
        message=message,
        custom=options.custom,
    )


def _propose(
    frame: Any,
    partition: str | None,
    description: Description,
    staging: Staging,
    options: TableOptions,
    constraints: Mapping[str, str],
    pinned: ExitStack,
) -> Proposal:
    """The frame as a proposal, which can be used until ``pinned`` is closed."""
    engine = engine_for(frame)
    if constraints or options.mode != "replace":
        frame = pinned.enter_context(engine.pinned(frame))
    require_frame(engine, frame, constraints)
    if options.mode != "replace":
        return Addition(partition, description, frame, engine, staging, options)
    write_options = options.write_options(partition)
    contents = engine.contents(frame, write_options)
    written = None if contents is not None else engine.write(frame, staging, write_options)
    known = contents if contents is not None else written.contents  # pyright: ignore[reportOptionalMemberAccess]
    return Proposal(
        partition,
        description,
        known,
        write_options.resolved_row_order(engine.default_row_order),
        written,
        lambda: engine.write(frame, staging, write_options, known),
        single_part=options.single_part,
    )
