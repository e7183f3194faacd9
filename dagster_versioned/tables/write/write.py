"""Writing versions: what changes against the head, and the log entry that says so."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import chain
from typing import Any, Literal

import orjson

from dagster_versioned.delta.actions import Action, Add, Cdc, DomainMetadata, Remove, Txn
from dagster_versioned.delta.log.change_feed import FEED
from dagster_versioned.delta.log.snapshot import load_snapshot
from dagster_versioned.delta.schema.types import StructType
from dagster_versioned.delta.schema.widening import retyped_partition_columns
from dagster_versioned.engines.parts import Part, RowOrder, RowsSummary, StagedParts
from dagster_versioned.engines.staging import PROMOTERS, Staging
from dagster_versioned.errors import CommitConflict, HeldHead, InvalidInput, LogCorrupt, VersionNotFound
from dagster_versioned.identity.names import partition_path
from dagster_versioned.identity.version import (
    Added,
    Facts,
    Identity,
    Parent,
    Run,
    SourceVersion,
    TableType,
    VersionEntry,
    Writer,
    created_at_text,
    data_sha,
)
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.tables.configuration import CHANGE_FEED, configuration, constraints_of, is_set
from dagster_versioned.tables.documents.head import held_domain
from dagster_versioned.tables.history import Collection, History, Version
from dagster_versioned.tables.options import TableOptions
from dagster_versioned.tables.partitioning import Partitioning
from dagster_versioned.tables.parts import (
    SLICES,
    known_line,
    missing_parts,
    objects_of,
    part_key,
    parts_by_partition,
    parts_of,
    stored_bytes,
)
from dagster_versioned.tables.sample_schema import union_of_versions
from dagster_versioned.tables.state import TableState
from dagster_versioned.tables.table_record import TableRecord
from dagster_versioned.tables.write.belonging import Taken, record_after
from dagster_versioned.tables.write.commit import CommitDraft
from dagster_versioned.tables.write.constraints import require_rows
from dagster_versioned.tables.write.table_actions import (
    add_of,
    cdc_of,
    dropped_domains,
    dropped_info,
    retyped_refusal,
    table_actions,
    version_domain,
    whole_sha,
)

REUSE_WINDOW = 64
"""How many versions back equal data is looked for (FORMAT.md, "digest")."""


@dataclass(frozen=True)
class VersionDescription:
    """What describes a version besides its data; all of it is part of the identity."""

    asset_key: tuple[str, ...]
    table_type: TableType
    parents: tuple[Parent, ...] = ()
    source_lineage: tuple[SourceVersion, ...] = ()
    code_version: str | None = None
    message: str | None = None
    custom: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class WriteResult:
    """What a write did.

    ``change``: ``"none"`` (the version was the head already; nothing was committed), ``"metadata_only"`` or
    ``"full"``. ``version`` is the version that the frame is now, ``replayed`` says that an earlier attempt of the same
    step had committed it. ``left_out`` says that the frame has other rows than that attempt, and that they were not
    appended beside its own. ``bytes_uploaded`` counts the bytes of parts that got a final name, ``seconds`` the whole
    write.
    """

    change: Literal["none", "metadata_only", "full"]
    version: Version
    replayed: bool
    bytes_uploaded: int
    seconds: float
    left_out: bool = False


class Repetition(Enum):
    """What an earlier attempt of the step committed, compared with what this one would."""

    SAME_ROWS = "same rows"
    OTHER_ROWS = "other rows"


class CollectionInProgress(Exception):
    """A draft needs parts that an unfinished collection is about to delete; its caller waits and tries again."""

    def __init__(self, collection: Collection) -> None:
        super().__init__(collection.id)
        self.collection = collection


@dataclass(frozen=True)
class HeadParts:
    """What a proposal meets: the head, its parts, the last foreign commit since then, if any, and the properties that
    the table is to have."""

    head: Version | None
    parts: tuple[Add, ...]
    foreign: Version | None
    properties: Mapping[str, str]


class PendingWrite:
    """One frame on its way to be a version of a table, or of one of its partitions.

    ``contents`` are known; the parts may not be written yet, and are written at most once, when they are needed. The
    frame replaces the head; an `Addition` does not.
    """

    added: Added | None = None
    appends_events = False
    """Whether the frame is a slice of events, and therefore its table a history of them."""

    changes_rows = False
    """Whether the parts that come and go do not tell what became of the rows: some are in both, or were updated."""

    def __init__(
        self,
        partition: str | None,
        description: VersionDescription,
        contents: RowsSummary,
        row_order: RowOrder,
        written: StagedParts | None,
        write: Callable[[], StagedParts],
        single_part: bool = False,
    ) -> None:
        self.partition = partition
        self.description = description
        self.contents = contents
        self.row_order: RowOrder = row_order
        self.single_part = single_part
        self.bytes_uploaded = 0
        self.vector_files: Mapping[str, bytes] = {}
        self.change_files: Mapping[str, Part] = {}
        self._written = written
        self._write = write
        self._promoted: dict[str, int] = {}

    def repeats(self, own: Version) -> Repetition | None:
        """Whether what an earlier attempt of the step committed stands for this, whatever the head is now."""
        return None

    def onto(self, base: HeadParts) -> tuple[Add, ...] | None:
        """The parts of the head that the version keeps; ``None`` where it does not depend on the head."""
        return None

    def parts(self) -> tuple[Part, ...]:
        """The parts of the frame, written now if they were not yet."""
        if self._written is None:
            self._written = self._write()
        return self._written.parts

    def write_changes(self) -> Mapping[str, Part]:
        """Files, by key, that tell which rows were updated; none where parts that come and go say all there is."""
        return {}

    def promote(self, staging: Staging, keys: Sequence[str], history: History) -> None:
        """Give parts, vectors and changes their final names, unless that was done and no collection has named them
        since."""
        by_key = {part_key(part): part for part in self.parts()} | dict(self.change_files)
        wanted = [
            key for key in keys if key not in self._promoted or key in history.collected_since(self._promoted[key])
        ]
        staging.promote_all((by_key[key], key) for key in wanted if key in by_key)
        for key in wanted:
            if key in self.vector_files:
                staging.store.put(key, self.vector_files[key])
            if key not in self._promoted:
                self.bytes_uploaded += by_key[key].size if key in by_key else len(self.vector_files[key])
            self._promoted[key] = history.log_version


@dataclass(frozen=True)
class WritePlan:
    """What becomes of one proposal on one state.

    ``entry`` is ``None`` where nothing changes; then ``unchanged`` is the version that the frame already is.
    ``fresh`` are the keys of parts, and of files of their deletion vectors, that need their final name first.
    """

    proposal: PendingWrite
    entry: VersionEntry | None = None
    unchanged: Version | None = None
    repetition: Repetition | None = None
    adds: tuple[Add, ...] = ()
    removes: tuple[Remove, ...] = ()
    fresh: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ended:
    """Heads that end with a commit, and the parts that go with them."""

    versions: tuple[Version, ...] = ()
    parts: tuple[Add, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.versions)

    def removes(self, timestamp: int) -> list[Remove]:
        """The actions that take the parts out of the table."""
        return [add.removed(timestamp) for add in self.parts]

    @property
    def domains(self) -> list[Action]:
        """The actions that take the heads out of checkpoints."""
        return dropped_domains(self.versions)

    def info(self, state: TableState | None, entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """What the commit says of them, beside the ``entries`` of its versions; nothing where there are none."""
        if state is None or not self.versions:
            return {}
        new = {e["identity"].get("partition"): str(e["metadata_sha"]) for e in entries}
        return dropped_info(state, self.versions, new)


class _Met:
    """What the proposals of one draft meet in a state: looked up for all of them at once, however many there are."""

    def __init__(
        self, store: ObjectStore, state: TableState | None, proposals: Sequence[PendingWrite], columns: Sequence[str]
    ) -> None:
        self._store = store
        self._state = state
        self._columns = set(columns)
        self._partitions = [proposal.partition for proposal in proposals]
        self._parts: dict[int, Mapping[str | None, tuple[Add, ...]]] = {}
        history = state.history if state else History([])
        heads = [head for partition in self._partitions if (head := history.heads.get(partition)) is not None]
        self._foreign = history.foreign_since(min(head.log_version for head in heads)) if heads else None
        self._recent = history.recent_of(self._partitions, REUSE_WINDOW)
        candidates = [adds for proposal in proposals if (adds := next(self._equal(proposal), None)) is not None]
        self._looked_at = {add.identity for adds in candidates for add in adds}
        self._missing = {add.identity for add in missing_parts(store, list(chain.from_iterable(candidates)))}

    def parts(self, partition: str | None) -> tuple[Add, ...]:
        """The parts of a partition's head."""
        return () if self._state is None else self._parts_at(self._state.log_version, partition)

    def foreign(self, head: Version | None) -> Version | None:
        """The last foreign commit with file actions since a head."""
        found = self._foreign
        return found if head is not None and found is not None and found.log_version > head.log_version else None

    def parts_of_equal_version(self, proposal: PendingWrite) -> tuple[Add, ...] | None:
        """The parts of the newest version that says the same as a proposal, if they are all still there."""
        return next((adds for adds in self._equal(proposal) if not self._lacks(adds)), None)

    def _lacks(self, adds: tuple[Add, ...]) -> bool:
        if all(add.identity in self._looked_at for add in adds):
            return any(add.identity in self._missing for add in adds)
        return bool(missing_parts(self._store, adds))

    def _equal(self, proposal: PendingWrite) -> Iterator[tuple[Add, ...]]:
        """The parts of each recent version that says the same, newest first."""
        if self._state is None:
            return
        digest = proposal.contents.digest.text
        for version in self._recent[proposal.partition]:
            if version.digest == digest and _says_the_same(version, proposal):
                is_head = version == self._state.history.heads.get(proposal.partition)
                try:
                    at = self._state.log_version if is_head else version.log_version
                    adds = self._parts_at(at, proposal.partition)
                except (LogCorrupt, VersionNotFound):  # other writers clean old commits up: it is written anew
                    continue
                laid_out = all(set(add.partition_values) == self._columns for add in adds)
                if laid_out and len(adds) == version.facts.part_count:
                    yield adds

    def _parts_at(self, log_version: int, partition: str | None) -> tuple[Add, ...]:
        if log_version not in self._parts:
            assert self._state is not None
            snapshot = self._state.snapshot
            if log_version != snapshot.version:
                snapshot = load_snapshot(self._store, log_version)
            if None in self._partitions:
                self._parts[log_version] = {None: parts_of(snapshot)}
            else:
                self._parts[log_version] = parts_by_partition(snapshot, [str(one) for one in self._partitions])
        return self._parts[log_version].get(partition, ())


class TableWrite:
    """One write of one or more partitions: the draft that `commit` runs against each new state.

    Guarantees: a proposal that equals the head makes no entry, and heals parts that are lost; what is added exists
    under its final name; nothing is added that an open collection is about to delete; every row of the table satisfies
    its constraints. ``satisfied`` are those that the rows of the proposals do. ``partitioning`` is what the partitions
    are, and ``began`` where the log ended when the write began, where these are known.
    """

    operation = "WRITE"

    def __init__(
        self,
        store: ObjectStore,
        staging: Staging,
        proposals: Sequence[PendingWrite],
        writer: Writer,
        options: TableOptions,
        satisfied: Mapping[str, str],
        run: Run | None = None,
        author: str | None = None,
        partitioning: Partitioning | None = None,
        began: int | None = None,
    ) -> None:
        self._store = store
        self._partitioning = partitioning
        self._began = began
        self._staging = staging
        self._proposals = proposals
        self._options = options
        self._satisfied = satisfied
        self._writer = writer
        self._run = run
        self._author = author
        self.planned: tuple[WritePlan, ...] = ()
        self._made: dict[int, Mapping[str | None, Version]] = {}
        """The versions of the commits that earlier attempts made."""

    def draft(self, state: TableState | None, timestamp: int) -> CommitDraft | None:
        """The next log entry against a state, or ``None`` where every proposal is the head already."""
        history = state.history if state else History([])
        self._made = {}
        record = self._record(state)
        met = _Met(self._store, state, self._proposals, self._options.partition_columns)
        self.planned = tuple(self._plan(proposal, state, met, timestamp) for proposal in self._proposals)
        used = objects_of(self._store, (add for plan in self.planned for add in plan.adds))
        used |= {key for plan in self.planned for key in plan.fresh}
        _require_free(used, history)
        self._promote([plan for plan in self.planned if plan.fresh], history)
        changing = [plan for plan in self.planned if plan.entry is not None]
        properties = self._properties(state, changing)
        ended = self._ended(state)
        recorded = record.actions(TableRecord.of(state.snapshot) if state else TableRecord())
        if not changing and not ended:
            return self._unchanged(state, timestamp, properties, recorded)
        changes = self._changes(changing, properties, history)
        staying = _staying(state, changing, ended)
        schema = _merged_schema(state, changing, staying=staying)
        entries = [plan.entry.to_json() for plan in changing if plan.entry]
        return CommitDraft(
            operation=self.operation,
            actions=[
                *table_actions(
                    state,
                    schema,
                    timestamp,
                    properties,
                    self._partition_columns(state, changing, schema, staying=staying),
                ),
                *recorded,
                *(add for plan in changing for add in plan.adds),
                *(remove for plan in changing for remove in plan.removes),
                *ended.removes(timestamp),
                *changes,
                *(self._txn(plan.proposal, state, timestamp) for plan in changing if self._run),
                *(version_domain(plan.entry, state) for plan in changing if plan.entry),
                *ended.domains,
            ],
            info={"versions": entries, **whole_sha(history, entries), **ended.info(state, entries)},
            parameters={"mode": "Overwrite"},
        )

    def _promote(self, plans: Sequence[WritePlan], history: History) -> None:
        """Give what is fresh its final names: of several partitions at once."""
        if len(plans) < 2:
            for plan in plans:
                plan.proposal.promote(self._staging, plan.fresh, history)
            return
        with ThreadPoolExecutor(PROMOTERS, thread_name_prefix="promote") as pool:
            promoted = [pool.submit(plan.proposal.promote, self._staging, plan.fresh, history) for plan in plans]
        for done in promoted:
            done.result()

    def _record(self, state: TableState | None) -> TableRecord:
        """What the table is after the write. Raises what `record_after` does where that is another one."""
        return record_after(self._taken(), state)

    def _ended(self, state: TableState | None) -> Ended:
        """The heads that end with the write, besides those that it replaces."""
        return Ended()

    def _unchanged(
        self,
        state: TableState | None,
        timestamp: int,
        properties: Mapping[str, str],
        record: Sequence[DomainMetadata],
    ) -> CommitDraft | None:
        """The draft where every proposal is the head already."""
        return _configuring(state, timestamp, properties)

    def _taken(self) -> Taken:
        """What the proposals take the table for; they are all of one asset and of one kind."""
        first = self._proposals[0]
        return Taken(
            first.description.asset_key,
            [proposal.partition for proposal in self._proposals],
            first.appends_events,
            self._partitioning,
            self._began,
        )

    def _changes(self, changing: Sequence[WritePlan], properties: Mapping[str, str], history: History) -> list[Cdc]:
        """The files that tell what the commit changed, in place: all of it, or none where its parts say the same.

        Else rows that were updated, or are in another part now, would look as if they had been deleted, and others
        inserted.
        """
        if not any(plan.proposal.changes_rows for plan in changing) or not is_set(properties, CHANGE_FEED):
            return []
        files_of = [(plan.proposal, plan.proposal.write_changes()) for plan in changing]
        _require_free({key for _, files in files_of for key in files}, history)
        for proposal, files in files_of:
            proposal.promote(self._staging, tuple(files), history)
        return [cdc_of(key, part, proposal.partition) for proposal, files in files_of for key, part in files.items()]

    def _properties(self, state: TableState | None, changing: Sequence[WritePlan]) -> dict[str, str]:
        """The table's properties after the write, once its other rows satisfy the constraints among them.

        Raises `InvalidInput` where they do not, and `CommitConflict` where others were added meanwhile.
        """
        known = state.snapshot.metadata if state else None
        properties = configuration(known, self._options.properties, self._options.constraints)
        if is_set(properties, CHANGE_FEED):
            staying = _staying(state, changing, Ended())
            _require_feed_columns(_merged_schema(state, changing, staying=staying).names)
        constraints = constraints_of(properties)
        if not constraints.items() <= self._satisfied.items():
            raise CommitConflict(
                f"The table got the constraints {sorted(constraints)} while it was written, which the rows were not "
                "checked for. Nothing was written. Try again."
            )
        had = constraints_of(known.configuration) if known else {}
        if state is not None and (new := dict(constraints.items() - had.items())):
            removed = {remove.identity for plan in changing for remove in plan.removes}
            staying = [add for add in state.snapshot.adds() if add.identity not in removed]
            # Where rows were added to others, those are in its parts as well.
            staying += [add for plan in changing if plan.proposal.added for add in plan.adds]
            require_rows(self._store, state.snapshot.schema.all_nullable(), staying, new)
        return properties

    def _partition_columns(
        self, state: TableState | None, changing: Sequence[WritePlan], schema: StructType, *, staying: bool
    ) -> tuple[str, ...]:
        """The table's partition columns after the write. Raises `InvalidInput` where others, or others of their types,
        have rows that stay."""
        columns = self._options.partition_columns
        if state is None:
            return columns
        known = state.snapshot.partition_columns
        retyped = retyped_partition_columns(state.snapshot.schema, schema, columns)
        if retyped and (staying or any(plan.proposal.added for plan in changing)):
            raise retyped_refusal(retyped, schema)
        if columns != known:
            removed = {remove.key for plan in changing for remove in plan.removes}
            removed -= {add.key for plan in changing for add in plan.adds}
            if len(removed) < state.snapshot.num_files:
                raise InvalidInput(
                    f"The table is partitioned by {list(known)}, and would be by {list(columns)}, but some of its rows "
                    "stay. Nothing was written. Replace the whole table with the new columns, or keep the old ones."
                )
        return columns

    def _plan(self, proposal: PendingWrite, state: TableState | None, met: _Met, timestamp: int) -> WritePlan:
        history = state.history if state else History([])
        current = met.parts(proposal.partition)
        head = history.heads.get(proposal.partition)
        foreign = met.foreign(head)
        own = self._own_commit(proposal, state)
        # Rows that were added are in the head, though the version that added them may not be kept any more.
        if own is not None and (repetition := proposal.repeats(own)) is not None:
            return WritePlan(proposal, unchanged=own, repetition=repetition)
        properties = configuration(state.snapshot.metadata if state else None, self._options.properties, None)
        kept = proposal.onto(HeadParts(head, current, foreign, properties))
        adds = met.parts_of_equal_version(proposal) if kept is None else None
        written: tuple[Add, ...] = ()
        if adds is None:
            written = tuple(add_of(part, proposal.partition, timestamp) for part in proposal.parts())
            adds = (*(kept or ()), *written)
        shas = [known_line(add) for add in adds]
        identity = _identity(proposal, data_sha(shas, proposal.row_order))
        sha = identity.metadata_sha()
        listed = {add.identity for add in adds}
        known = {add.identity for add in current}
        is_own = own is not None and own.metadata_sha == sha and own.gone is None
        is_head = (
            head is not None
            and head.metadata_sha == sha
            and head.gone is None
            and foreign is None
            and known == listed  # whatever the log says of versions, this is what its readers get
        )
        if is_own or is_head:
            lost = tuple(add.key for add in missing_parts(self._store, written))
            repetition = Repetition.SAME_ROWS if is_own else None
            return WritePlan(proposal, unchanged=own if is_own else head, repetition=repetition, fresh=lost)
        if state is not None and (held := state.snapshot.domains.get(held_domain(proposal.partition))):
            raise HeldHead(_held_message(proposal.partition, held))
        new = tuple(replace(add, data_change=True) for add in adds if add.identity not in known)
        removed = tuple(add.removed(timestamp) for add in current if add.identity not in listed)
        facts = Facts(
            created_at=created_at_text(timestamp),
            writer=self._writer,
            size_bytes=sum(map(stored_bytes, adds)),
            part_count=len(adds),
            digest=proposal.contents.digest.text,
            run=self._run,
            parquet_sha=_parquet_sha(adds),
            previous=head.metadata_sha if head else None,
            author=self._author,
            null_counts=proposal.contents.null_counts,
            added=proposal.added,
        )
        return WritePlan(
            proposal,
            entry=VersionEntry(identity, facts, sha, "full" if new or removed or head is None else "metadata_only"),
            adds=new,
            removes=removed,
            fresh=(*(add.key for add in written), *proposal.vector_files),
        )

    def _own_commit(self, proposal: PendingWrite, state: TableState | None) -> Version | None:
        """What an earlier attempt at this computation committed (seed 001, "Transaction Identifiers")."""
        if state is None or self._run is None:
            return None
        txn = state.snapshot.txns.get(self._app_id(proposal))
        if txn is None:
            return None
        if txn.version not in self._made:
            self._made[txn.version] = state.history.made_by(txn.version)
        found = self._made[txn.version].get(proposal.partition)
        if found is not None and self._is_own(found):
            return found
        # Written by a release whose transactions did not say which commit they are of.
        versions = (one for one in state.history.backwards() if one.partition == proposal.partition)
        return next(filter(self._is_own, versions), None)

    def _is_own(self, version: Version) -> bool:
        assert self._run is not None
        run: dict[str, Any] = (version.raw["facts"].get("run") if version.raw is not None else None) or {}
        first = run.get("first_run_id", run.get("run_id"))
        return (first, run.get("step_key")) == (self._first_run_id, self._run.step_key)

    @property
    def _first_run_id(self) -> str:
        assert self._run is not None
        return self._run.first_run_id or self._run.run_id

    def _app_id(self, proposal: PendingWrite) -> str:
        assert self._run is not None
        partition = partition_path(proposal.partition) if proposal.partition is not None else ""
        return f"dagster/{self._first_run_id}/{self._run.step_key}/{partition}"

    def _txn(self, proposal: PendingWrite, state: TableState | None, timestamp: int) -> Txn:
        return Txn(self._app_id(proposal), 0 if state is None else state.log_version + 1, timestamp)


def _configuring(state: TableState | None, timestamp: int, properties: Mapping[str, str]) -> CommitDraft | None:
    """The draft that changes nothing but the table's properties, if they change."""
    assert state is not None  # a table without a log has no head that a proposal could equal
    actions = table_actions(state, state.snapshot.schema, timestamp, properties)
    return CommitDraft("SET TBLPROPERTIES", actions, announces=False) if actions else None


def _identity(proposal: PendingWrite, sha: str) -> Identity:
    described, contents = proposal.description, proposal.contents
    return Identity(
        asset_key=described.asset_key,
        table_type=described.table_type,
        data_sha=sha,
        nrow=contents.nrow,
        schema=contents.schema.to_json(),
        partition=proposal.partition,
        parents=described.parents,
        source_lineage=described.source_lineage,
        code_version=described.code_version,
        message=described.message,
        custom=described.custom,
    )


def _says_the_same(version: Version, proposal: PendingWrite) -> bool:
    """Whether a version of equal digest is the same data under the same schema."""
    if version.raw is None:
        return False
    identity, facts, contents = version.raw["identity"], version.raw["facts"], proposal.contents
    return (
        identity["nrow"] == contents.nrow
        and facts.get("null_counts", []) == list(contents.null_counts)
        and identity["schema"] == contents.schema.to_json()
        and not (proposal.single_part and facts["part_count"] and "parquet_sha" not in facts)
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


def _require_free(keys: set[str], history: History) -> None:
    for collection in history.open_collections:
        if keys & collection.paths:
            raise CollectionInProgress(collection)


def _held_message(partition: str | None, configuration: str) -> str:
    held = orjson.loads(configuration)
    of = "" if partition is None else f" of partition {partition!r}"
    return (
        f"The head{of} is held{' by ' + held['by'] if held.get('by') else ''}: {held.get('why')}. Nothing was written. "
        "release() it first."
    )


def _staying(state: TableState | None, changing: Sequence[WritePlan], ended: Ended) -> bool:
    """Whether the table keeps versions that the commit neither replaces nor ends."""
    if state is None:
        return False
    gone = {version.partition for version in ended.versions} | {plan.proposal.partition for plan in changing}
    return not set(state.history.heads) <= gone


def _merged_schema(state: TableState | None, changing: Sequence[WritePlan], *, staying: bool) -> StructType:
    """The table's schema after the commit: the frame's, or, for partitions, the union of all partitions'."""
    if not changing and state is not None:
        return state.snapshot.schema
    schemas = [plan.proposal.contents.schema for plan in changing]
    if state is not None and staying:
        schemas = [state.snapshot.schema, *schemas]
    merged = schemas[0]
    for schema in schemas[1:]:
        merged = union_of_versions(merged, schema)
    return merged
