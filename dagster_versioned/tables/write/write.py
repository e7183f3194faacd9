"""Writing versions: what changes against the head, and the log entry that says so."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Literal

import orjson

from dagster_versioned.delta.actions import Action, Add, Cdc, DomainMetadata, Remove, Txn
from dagster_versioned.delta.log.change_feed import FEED
from dagster_versioned.delta.schema.clustering import DOMAIN
from dagster_versioned.delta.schema.types import StructType, parse_schema
from dagster_versioned.delta.schema.widening import retyped_partition_columns
from dagster_versioned.engines.parts import Part
from dagster_versioned.engines.staging import Staging
from dagster_versioned.errors import CommitConflict, HeldHead, IntegrityError, InvalidInput
from dagster_versioned.identity.version import (
    Change,
    Facts,
    Run,
    VersionEntry,
    created_at_text,
    data_sha,
)
from dagster_versioned.tables.code_details import is_made_by
from dagster_versioned.tables.computations import contradiction, contradicts
from dagster_versioned.tables.configuration import (
    CHANGE_FEED,
    DELETION_VECTORS,
    configuration,
    constraints_of,
    is_set,
    personal_columns,
)
from dagster_versioned.tables.history import History, Version
from dagster_versioned.tables.options import TableOptions
from dagster_versioned.tables.partitioning import Partitioning
from dagster_versioned.tables.parts import (
    SLICES,
    known_line,
    missing_parts,
    objects_of,
    part_key,
    partition_of,
    parts_of,
    stored_bytes,
)
from dagster_versioned.tables.sample_schema import union_of_versions
from dagster_versioned.tables.state import TableState, next_version
from dagster_versioned.tables.table_record import TableRecord
from dagster_versioned.tables.write.base import WriteBase
from dagster_versioned.tables.write.belonging import WriteTarget, record_after
from dagster_versioned.tables.write.changes import write_changes
from dagster_versioned.tables.write.clustering import clustering_of
from dagster_versioned.tables.write.column_rules import require_values, with_column_rules
from dagster_versioned.tables.write.commit import WRITER, CommitDraft, refuse_collected
from dagster_versioned.tables.write.constraints import require_rows
from dagster_versioned.tables.write.drop import refuse_held
from dagster_versioned.tables.write.pending import HeadParts, PendingFiles, PendingWrite, Repetition, app_id
from dagster_versioned.tables.write.table_actions import (
    add_of,
    cdc_of,
    dropped_domains,
    dropped_info,
    replaced_parts,
    retyped_refusal,
    table_actions,
    version_domain,
    whole_sha,
)


@dataclass(frozen=True)
class WriteResult:
    """What a write did.

    ``change``: ``"none"`` (the version was the head already; nothing was committed), ``"metadata_only"`` or
    ``"full"``. ``version`` is the version that the frame is now, ``replayed`` says that an earlier attempt of the same
    step had committed it. ``left_out`` says that the frame has other rows than that attempt, and that they were not
    appended beside its own. ``bytes_uploaded`` counts the bytes of parts that got a final name, ``seconds`` the whole
    write. ``reused`` says that the version was kept instead of being computed again, ``contradicted`` that the
    computation had given other rows before, so that it is not reused any more.
    """

    change: Literal["none", "metadata_only", "full"]
    version: Version
    replayed: bool
    bytes_uploaded: int
    seconds: float
    left_out: bool = False
    reused: bool = False
    contradicted: bool = False


@dataclass(frozen=True)
class WritePlan:
    """What becomes of one pending on one state.

    ``entry`` is ``None`` where nothing changes; then ``unchanged`` is the version that the frame already is.
    ``removed`` are the parts of the ``head`` that ``removes`` takes out.
    ``fresh`` are the keys of parts, and of files of their deletion vectors, that need their final name first.
    """

    pending: PendingWrite
    entry: VersionEntry | None = None
    unchanged: Version | None = None
    repetition: Repetition | None = None
    adds: tuple[Add, ...] = ()
    removes: tuple[Remove, ...] = ()
    removed: tuple[Add, ...] = ()
    head: Version | None = None
    fresh: tuple[str, ...] = ()
    contradicted: bool = False


@dataclass(frozen=True)
class DroppedHeads:
    """Heads that end with a commit, and the parts that go with them."""

    versions: tuple[Version, ...] = ()
    parts: tuple[Add, ...] = ()


@dataclass
class TableWrite:
    """A write of one or more partitions of a table: the plan that `commit` asks against each new state.

    Guarantees: a pending that equals the head makes no entry, and heals parts that are lost; what is added exists
    under its final name; nothing is added that an open collection is about to delete; every row of the table satisfies
    its constraints. ``satisfied`` are those that the rows of the writes do. ``partitioning`` is what the partitions
    are, and ``began`` where the log ended when the write began, where these are known. ``operation`` is what the log
    calls it; a repartition ends all partitions that it does not write.
    """

    staging: Staging
    writes: Sequence[PendingWrite]
    options: TableOptions
    satisfied: Mapping[str, str]
    run: Run | None = None
    author: str | None = None
    partitioning: Partitioning | None = None
    began: int | None = None
    operation: Literal["WRITE", "PROMOTE", "REBASE", "REPARTITION", "ERASE"] = "WRITE"
    planned: tuple[WritePlan, ...] = field(default=(), init=False)
    """What the last attempt came to, by partition."""

    _derived: dict[Any, Mapping[str, Part]] = field(
        default_factory=dict[Any, Mapping[str, Part]], init=False, repr=False
    )
    _committed_by: dict[int, Mapping[str | None, Version]] = field(default_factory=dict, init=False, repr=False)

    def draft(self, state: TableState | None, timestamp: int) -> CommitDraft | None:
        """The next log entry against a state, or ``None`` where every pending is the head already."""
        self._committed_by = {}
        record = self._record(state)
        base = WriteBase(self.staging, state, self.writes, self.options.partition_columns)
        self.planned = tuple(self._plan(pending, state, base, timestamp) for pending in self.writes)
        changing = [plan for plan in self.planned if plan.entry is not None]
        properties = self._properties(state, changing)
        ended = self._ended(state)
        recorded = record.actions(TableRecord.of(state.snapshot) if state else TableRecord())
        if not changing and not ended.versions:
            return self._unchanged(state, timestamp, properties, recorded)
        changes = self._changes(state, changing, properties)
        staying = _staying(state, changing, ended)
        schema = _schema_after(state, changing, staying=staying)
        self._require_personal(state, schema)
        columns = self._partition_columns(state, changing, schema, staying=staying)
        return CommitDraft(
            operation=self.operation,
            actions=[
                *table_actions(state, schema, timestamp, properties, columns, cluster_by=self.options.cluster_by),
                *recorded,
                *chain.from_iterable(plan.adds for plan in changing),
                *chain.from_iterable(plan.removes for plan in changing),
                *(add.removed(timestamp) for add in ended.parts),
                *changes,
                *self._head_actions(state, changing, ended, timestamp),
            ],
            info=_versions_info(state, changing, ended),
            parameters={"mode": "Overwrite"},
            built_from=[*chain.from_iterable(plan.pending.description.built_from for plan in changing)],
            needs=self._needs(changes),
            staged=self._staged(changes),
        )

    def _head_actions(
        self, state: TableState | None, changing: Sequence[WritePlan], ended: DroppedHeads, timestamp: int
    ) -> list[Action]:
        """What says of the versions who committed them, and that they are heads, or none any more."""
        partitions = [plan.pending.partition for plan in changing]
        return [
            *(Txn(app_id(self.run, key), next_version(state), timestamp) for key in partitions if self.run is not None),
            *(version_domain(plan.entry, state) for plan in changing if plan.entry),
            *dropped_domains(ended.versions),
            *(contradiction(key) for key in sorted(_contradicted(changing))),
        ]

    def results(self, state: TableState | None, began: float) -> list[WriteResult]:
        """What became of each pending write, with the state after the commit; it ``began`` by the monotonic clock."""
        seconds = time.monotonic() - began
        committed = {v.partition: v for v in state.history.heads.values()} if state else {}
        return [
            WriteResult(
                change=plan.entry.change if plan.entry else "none",
                version=plan.unchanged or committed[plan.pending.partition],
                replayed=plan.repetition is not None,
                bytes_uploaded=plan.pending.bytes_uploaded,
                seconds=seconds,
                left_out=plan.repetition is Repetition.OTHER_ROWS,
                reused=plan.pending.computation is not None,
                contradicted=plan.contradicted,
            )
            for plan in self.planned
        ]

    def _record(self, state: TableState | None) -> TableRecord:
        """What the table is after the write. Raises what `record_after` does where that is another one."""
        if self.operation == "REPARTITION":
            assert state is not None  # its rows were read
            return replace(TableRecord.of(state.snapshot), partitioning=self.partitioning, since=state.log_version + 1)
        first = self.writes[0]  # they are all of one asset and of one kind
        partitions = [pending.partition for pending in self.writes]
        asset_key = first.description.asset_key
        return record_after(
            WriteTarget(asset_key, partitions, first.appends_events, self.partitioning, self.began), state
        )

    def _ended(self, state: TableState | None) -> DroppedHeads:
        """The heads that end with the write, besides those that it replaces. Raises `HeldHead`."""
        if self.operation != "REPARTITION":
            return DroppedHeads()
        assert state is not None
        keys = {pending.partition for pending in self.writes}
        ended = tuple(version for key, version in state.history.heads.items() if key not in keys)
        refuse_held(state, ended)
        if None in keys:  # it replaces all parts that there are
            return DroppedHeads(ended)
        return DroppedHeads(ended, tuple(add for add in parts_of(state.snapshot) if partition_of(add) not in keys))

    def _unchanged(
        self,
        state: TableState | None,
        timestamp: int,
        properties: Mapping[str, str],
        record: Sequence[DomainMetadata],
    ) -> CommitDraft | None:
        """The draft that changes no version: the table's record, properties and clustering, and lost files."""
        assert state is not None  # a table without a log has no head that a pending could equal
        self._require_personal(state, state.snapshot.schema)
        needs, staged = self._needs(), self._staged()
        if self.operation == "REPARTITION":
            return CommitDraft(self.operation, record, announces=False, needs=needs, staged=staged)
        cluster_by = self.options.cluster_by
        actions = table_actions(state, state.snapshot.schema, timestamp, properties, cluster_by=cluster_by)
        if not actions and not staged:
            return None
        # Files get statistics of the columns that they are clustered by, and are the files of the same versions.
        is_clustering = DOMAIN in {getattr(action, "domain", None) for action in actions}
        info = {"versions": list[Any]()} if is_clustering else {}
        return CommitDraft(
            "SET TBLPROPERTIES",
            actions,
            info,
            announces=False,
            needs=needs,
            staged=staged,
            commits=bool(actions),
        )

    def _needs(self, changes: Sequence[Cdc] = ()) -> frozenset[str]:
        added = objects_of(self.staging.store, (add for plan in self.planned for add in plan.adds))
        return frozenset({*added, *(key for plan in self.planned for key in plan.fresh), *(cdc.key for cdc in changes)})

    def _staged(self, changes: Sequence[Cdc] = ()) -> list[PendingFiles]:
        of_changes = {cdc.key for cdc in changes}
        keys = [(plan, (*plan.fresh, *(plan.pending.change_files.keys() & of_changes))) for plan in self.planned]
        return [PendingFiles(plan.pending, self.staging, of_plan) for plan, of_plan in keys if of_plan]

    def _changes(
        self, state: TableState | None, changing: Sequence[WritePlan], properties: Mapping[str, str]
    ) -> list[Cdc]:
        """The files that tell what the commit changed: all of it, or none where its parts say the same.

        Else rows that were updated, or are in another part now, would look as if they had been deleted, and others
        inserted; and readers differ in what they take from a part that goes with a vector.
        """
        if not is_set(properties, CHANGE_FEED) or not any(map(_needs_changes, changing)):
            return []
        before = None if state is None else state.snapshot.schema
        written = [(plan.pending.partition, self._changes_of(plan, before)) for plan in changing]
        return [cdc_of(key, part, partition) for partition, files in written for key, part in files.items()]

    def _changes_of(self, plan: WritePlan, before: StructType | None) -> Mapping[str, Part]:
        """The files, by key, that tell which rows a plan changes; written now if they were not yet."""
        pending = plan.pending
        if files := pending.write_changes():
            return files
        what = tuple(add.identity for add in (*plan.removed, *plan.adds))
        if what not in self._derived:
            is_written = {*plan.fresh} - {*pending.vector_files}
            written = {part_key(part): part for part in pending.parts()} if is_written else {}
            new, head = pending.contents.schema, plan.head
            if head is not None and head.raw is not None:
                before = parse_schema(dict(head.identity.schema))
            old = before or new
            options = self.options.write_options(pending.partition)
            self._derived[what] = write_changes(self.staging, options, plan.removed, old, plan.adds, new, written)
        pending.change_files = self._derived[what]
        return pending.change_files

    def _properties(self, state: TableState | None, changing: Sequence[WritePlan]) -> dict[str, str]:
        """The table's properties after the write, once its other rows satisfy the constraints among them.

        Raises `InvalidInput` where they do not, and `CommitConflict` where others were added meanwhile.
        """
        known = state.snapshot.metadata if state else None
        personal = self.options.personal_columns
        properties = configuration(known, self._asked_properties(changing), self.options.constraints, personal)
        if not set(personal_columns(properties)) <= set(self.options.hidden_columns):
            raise CommitConflict(
                f"The table got the personal columns {list(personal_columns(properties))} while it was written, of "
                "which the files that were made tell. Nothing was written. Try again."
            )
        if is_set(properties, CHANGE_FEED):
            staying = _staying(state, changing, DroppedHeads())
            _require_feed_columns(_merged_schema(state, changing, staying=staying).names)
        constraints = constraints_of(properties)
        if not constraints.items() <= self.satisfied.items():
            raise CommitConflict(
                f"The table got the constraints {sorted(constraints)} while it was written, which the rows were not "
                "checked for. Nothing was written. Try again."
            )
        had = constraints_of(known.configuration) if known else {}
        if state is not None and (new := dict(constraints.items() - had.items())):
            self._require_rows(state, changing, new)
        return properties

    def _asked_properties(self, changing: Sequence[WritePlan]) -> Mapping[str, str]:
        """The properties that the write sets: deletion vectors come with the first part that has one."""
        marked = any(add.deletion_vector is not None for plan in changing for add in plan.adds)
        return {**self.options.properties, **({DELETION_VECTORS: "true"} if marked else {})}

    def _require_personal(self, state: TableState | None, schema: StructType) -> None:
        """Raise `InvalidInput` where a personal column is none, or the log tells its values."""
        known = personal_columns(state.snapshot.metadata.configuration) if state else ()
        personal = known if self.options.personal_columns is None else self.options.personal_columns
        if strange := sorted({*personal} - {*known, *schema.names}):
            raise InvalidInput(
                f"The table has no column {strange[0]!r}, which is to be personal. Nothing was written. It has: "
                f"{', '.join(map(repr, schema.names))}."
            )
        clustered = self.options.cluster_by
        if clustered is None:
            clustered = [path[0] for path in clustering_of(state.snapshot)] if state else ()
        if shown := sorted({*personal} & {*clustered, *self.options.partition_columns}):
            raise InvalidInput(
                f"The table would be clustered or partitioned by {shown[0]!r}, whose values its log would tell, and "
                "which is personal. Nothing was written. Choose other columns, or none: TableOptions(cluster_by=())."
            )

    def _require_rows(self, state: TableState, changing: Sequence[WritePlan], constraints: Mapping[str, str]) -> None:
        """Raise `InvalidInput` where rows that stay in the table do not satisfy constraints that are new."""
        removed = {remove.identity for plan in changing for remove in plan.removes}
        staying = [add for add in state.snapshot.adds() if add.identity not in removed]
        # Rows that were added to others are in parts with these, which are read at the place where they will be.
        adding = [plan for plan in changing if plan.pending.added]
        refuse_collected(self._needs(), state.history)
        for plan in adding:
            plan.pending.promote(self.staging, plan.fresh, state.history)
        staying += [add for plan in adding for add in plan.adds]
        require_rows(self.staging.store, state.snapshot.schema.all_nullable(), staying, constraints)

    def _partition_columns(
        self, state: TableState | None, changing: Sequence[WritePlan], schema: StructType, *, staying: bool
    ) -> tuple[str, ...]:
        """The table's partition columns after the write. Raises `InvalidInput` where others, or others of their types,
        have rows that stay."""
        columns = self.options.partition_columns
        if state is None:
            return columns
        known = state.snapshot.partition_columns
        retyped = retyped_partition_columns(state.snapshot.schema, schema, columns)
        if retyped and (staying or any(plan.pending.added for plan in changing)):
            raise retyped_refusal(retyped, schema)
        if columns != known and _keeps_files(state, changing):
            raise InvalidInput(
                f"The table is partitioned by {list(known)}, and would be by {list(columns)}, but some of its rows "
                "stay. Nothing was written. Replace the whole table with the new columns, or keep the old ones."
            )
        return columns

    def _plan(self, pending: PendingWrite, state: TableState | None, base: WriteBase, timestamp: int) -> WritePlan:
        """What becomes of one pending write: it was committed before, it is the head, or it is a new version."""
        pending.recheck(state)
        own = self._own_commit(pending, state)
        # Rows that were added are in the head, though the version that added them may not be kept any more.
        if own is not None and (repetition := pending.repeats(own)) is not None:
            return WritePlan(pending, unchanged=own, repetition=repetition)
        onto = base.onto(pending.partition, self.options.properties)
        head = onto.head
        adds, written = self._parts(pending, onto, base, own, timestamp)
        sha = data_sha(list(map(known_line, adds)), pending.row_order)
        identity = pending.description.identity(pending.partition, pending.contents, sha)
        name = identity.metadata_sha()
        if own is not None and (own.metadata_sha, own.gone) == (name, None):
            return self._healed(pending, own, written, Repetition.SAME_ROWS)
        if head is not None and onto.is_version(name, adds) and (onto.held or not self._is_news(pending, head)):
            return self._healed(pending, head, written)
        if onto.held:
            raise HeldHead(_held_message(pending.partition, onto.held))
        return _new_version(
            pending,
            onto,
            VersionEntry(identity, self._facts(pending, head, adds, timestamp), name, "full"),
            adds,
            timestamp,
            fresh=(*(add.key for add in written), *pending.vector_files),
            contradicted=_contradicts(pending, state, base, sha, self.run),
        )

    def _parts(
        self, pending: PendingWrite, onto: HeadParts, base: WriteBase, own: Version | None, timestamp: int
    ) -> tuple[tuple[Add, ...], tuple[Add, ...]]:
        """The parts of the version, and those of them that are written now. Raises `IntegrityError`."""
        equal = None if pending.stands_alone else base.parts_of_equal_version(pending, own)
        if equal is not None:
            return equal, ()
        kept = pending.onto(onto)
        is_ours = self.operation not in ("PROMOTE", "REBASE")  # else they are as they were written elsewhere
        clustered_by = (self.options.cluster_by or ()) if is_ours else ()
        parts = pending.parts()
        written = tuple(pending.marked(add_of(part, pending.partition, timestamp, clustered_by)) for part in parts)
        adds = (*(kept or ()), *written)
        _require_each_once(adds)
        return adds, written

    def _healed(
        self, pending: PendingWrite, version: Version, written: tuple[Add, ...], repetition: Repetition | None = None
    ) -> WritePlan:
        """The version that the pending write is already; parts of it that are lost are put again."""
        lost = tuple(add.key for add in missing_parts(self.staging.store, written))
        return WritePlan(pending, unchanged=version, repetition=repetition, fresh=lost)

    def _facts(self, pending: PendingWrite, head: Version | None, adds: Sequence[Add], timestamp: int) -> Facts:
        computing = pending.computing
        return Facts(
            created_at=created_at_text(timestamp),
            writer=WRITER,
            size_bytes=sum(map(stored_bytes, adds)),
            part_count=len(adds),
            digest=pending.contents.digest.text,
            run=self.run or pending.made_by,
            parquet_sha=_parquet_sha(adds),
            previous=head.metadata_sha if head else None,
            author=self.author,
            null_counts=pending.contents.null_counts,
            added=pending.added,
            refreshed=pending.refreshed,
            promoted_from=pending.promoted_from,
            computation=computing.computation() if computing is not None else pending.computation,
        )

    def _is_news(self, pending: PendingWrite, head: Version) -> bool:
        """Whether the head was made by another computation, or by other code, so that it is remembered that this one
        gives the same."""
        code = None if self.run is None else self.run.code
        is_other_code = code is not None and not code.opaque and not is_made_by(head, code)
        return is_other_code or _is_other_computation(pending, head)

    def _own_commit(self, pending: PendingWrite, state: TableState | None) -> Version | None:
        """What an earlier attempt at this computation committed (seed 001, "Transaction Identifiers")."""
        if state is None or self.run is None:
            return None
        txn = state.snapshot.txns.get(app_id(self.run, pending.partition))
        if txn is None:
            return None
        if txn.version not in self._committed_by:
            self._committed_by[txn.version] = state.history.made_by(txn.version)
        found = self._committed_by[txn.version].get(pending.partition)
        if found is not None and self._is_own(found):
            return found
        # Written by a release whose transactions did not say which commit they are of.
        versions = (backward for backward in state.history.backwards() if backward.partition == pending.partition)
        return next(filter(self._is_own, versions), None)

    def _is_own(self, version: Version) -> bool:
        assert self.run is not None
        run: dict[str, Any] = (version.raw["facts"].get("run") if version.raw is not None else None) or {}
        first = run.get("first_run_id", run.get("run_id"))
        return (first, run.get("step_key")) == (self._first_run_id, self.run.step_key)

    @property
    def _first_run_id(self) -> str:
        assert self.run is not None
        return self.run.first_run_id or self.run.run_id


def _needs_changes(plan: WritePlan) -> bool:
    """Whether the parts of a plan that come and go do not tell every reader what became of the rows."""
    added = {add.key for add in plan.adds}
    is_marked = any(add.deletion_vector is not None and add.key not in added for add in plan.removed)
    return plan.pending.changes_rows or (is_marked and not plan.pending.vector_files)


def _is_other_computation(pending: PendingWrite, head: Version) -> bool:
    """Whether the head was made by another computation, or nobody knows by which, so that this one is remembered."""
    return pending.computing is not None and head.computation != pending.computing.key


def _contradicts(pending: PendingWrite, state: TableState | None, base: WriteBase, sha: str, run: Run | None) -> bool:
    """Whether the computation gave other rows before, by the same code: where that is known to be another, they may be
    others, whatever code version it is said to be of."""
    if pending.computing is None:
        return False
    made = base.made_by(pending.computing, pending.partition)
    code = None if run is None else run.code
    others = [version for version in made if base.says_others(version, pending, sha) and is_made_by(version, code)]
    return contradicts(state, others, pending.computing.key)


def _new_version(
    pending: PendingWrite,
    onto: HeadParts,
    entry: VersionEntry,
    adds: Sequence[Add],
    timestamp: int,
    *,
    fresh: tuple[str, ...],
    contradicted: bool,
) -> WritePlan:
    """What takes the place of the head: only parts that it has not are added, and those that stay are not removed."""
    new, removed = replaced_parts(onto.parts, adds, timestamp)
    change: Change = "full" if new or removed or onto.head is None else "metadata_only"
    entry = replace(entry, change=change)
    identities = {remove.identity for remove in removed}
    gone = tuple(add for add in onto.parts if add.identity in identities)
    return WritePlan(
        pending,
        entry=entry,
        adds=new,
        removes=removed,
        removed=gone,
        head=onto.head,
        fresh=fresh,
        contradicted=contradicted,
    )


def _parquet_sha(adds: Sequence[Add]) -> str | None:
    """The SHA-256 of the one file that holds all that the version says; ``None`` where none does."""
    # A slice of events is found by another name.
    alone = len(adds) == 1 and not adds[0].partition_values and adds[0].deletion_vector is None
    alone = alone and not adds[0].key.startswith(SLICES)
    return known_line(adds[0]) if alone else None


def _require_feed_columns(names: Sequence[str]) -> None:
    if taken := {field.name for field in FEED} & {name.lower() for name in names}:
        raise InvalidInput(
            f"{CHANGE_FEED} is set, but the table has columns {sorted(taken)} of its own, which a change has, too. "
            "Nothing was written. Rename them, or leave the property out."
        )


def _held_message(partition: str | None, configuration: str) -> str:
    held = orjson.loads(configuration)
    of = "" if partition is None else f" of partition {partition!r}"
    return (
        f"The head{of} is held{' by ' + held['by'] if held.get('by') else ''}: {held.get('why')}. Nothing was written. "
        "release() it first."
    )


def _contradicted(changing: Sequence[WritePlan]) -> set[str]:
    made = [plan.pending.computing for plan in changing if plan.contradicted]
    return {computing.key for computing in made if computing is not None}


def _keeps_files(state: TableState, changing: Sequence[WritePlan]) -> bool:
    removed = {remove.key for plan in changing for remove in plan.removes}
    return len(removed - {add.key for plan in changing for add in plan.adds}) < state.snapshot.num_files


def _versions_info(state: TableState | None, changing: Sequence[WritePlan], ended: DroppedHeads) -> dict[str, Any]:
    """What the commit says of its versions, and of the heads that end with it."""
    entries = [plan.entry.to_json() for plan in changing if plan.entry]
    of_whole = whole_sha(state.history if state else History([]), entries)
    dropped = dropped_info(state, ended.versions, entries) if state is not None and ended.versions else {}
    return {"versions": entries, **of_whole, **dropped}


def _staying(state: TableState | None, changing: Sequence[WritePlan], ended: DroppedHeads) -> bool:
    """Whether the table keeps versions that the commit neither replaces nor ends."""
    if state is None:
        return False
    gone = {version.partition for version in ended.versions} | {plan.pending.partition for plan in changing}
    return not set(state.history.heads) <= gone


def _require_each_once(adds: Sequence[Add]) -> None:
    """Raise `IntegrityError` where a version would have a file twice: its rows would be there once."""
    keys = Counter(add.key for add in adds)
    if twice := next((key for key, times in keys.items() if times > 1), None):
        raise IntegrityError(
            f"The part {twice} is in the table already, and the rows that are added would be the same file: its number "
            "in the log is not the one in its bytes. Nothing was written. Replace the table's rows once "
            "(mode='replace'), and add to them then."
        )


def _schema_after(state: TableState | None, changing: Sequence[WritePlan], *, staying: bool) -> StructType:
    """The table's schema after the commit, with the rules of its columns. Raises what `require_values` does."""
    schema = _merged_schema(state, changing, staying=staying)
    if state is None:
        return schema
    contents = [plan.pending.contents for plan in changing]
    require_values(state.snapshot, schema, [rows.schema for rows in contents])
    return with_column_rules(state.snapshot, schema, [(rows.schema, rows.null_counts, rows.nrow) for rows in contents])


def _merged_schema(state: TableState | None, changing: Sequence[WritePlan], *, staying: bool) -> StructType:
    """The table's schema after the commit: the frame's, or, for partitions, the union of all partitions'."""
    if not changing and state is not None:
        return state.snapshot.schema
    schemas = [plan.pending.contents.schema for plan in changing]
    if state is not None and staying:
        schemas = [state.snapshot.schema, *schemas]
    merged = schemas[0]
    for schema in schemas[1:]:
        merged = union_of_versions(merged, schema)
    return merged
