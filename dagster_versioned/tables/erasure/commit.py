"""The commit of an erasure to one table: its heads as new versions, and what every reader and writer has to know."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from dagster_versioned.delta.actions import Action, Add, Protocol
from dagster_versioned.delta.commit.protocol_upgrade import ASKED, protocol_with
from dagster_versioned.delta.features import ERASURES
from dagster_versioned.engines.arrow.scan import read_table, stream_table
from dagster_versioned.engines.parts import RowOrder, RowsSummarizer, RowsSummary, StagedParts
from dagster_versioned.engines.samples import DATA_VERSION_BY_FIELD
from dagster_versioned.engines.staging import Staging
from dagster_versioned.engines.upsert import nothing, summed
from dagster_versioned.errors import CommitConflict, InvalidInput
from dagster_versioned.identity.names import TableName, table_name
from dagster_versioned.identity.version import Parent
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.tables.configuration import constraints_of, personal_columns
from dagster_versioned.tables.context import ProjectContext
from dagster_versioned.tables.erased_parts import ERASE, ErasedParts, ErasureName, TableErasure
from dagster_versioned.tables.erasure.substitute import Changes
from dagster_versioned.tables.feature_record import FEATURE_MEMBER, FeatureRecord, digests_together
from dagster_versioned.tables.history import Version
from dagster_versioned.tables.options import TableOptions
from dagster_versioned.tables.parts import missing_parts, objects_of, parts_by_partition, parts_of, recorded_rows
from dagster_versioned.tables.read import row_order_of, scan_of
from dagster_versioned.tables.state import StateCache, TableState
from dagster_versioned.tables.table_record import TableRecord, asset_key_of
from dagster_versioned.tables.upstream import SeenVersions, Upstream
from dagster_versioned.tables.write.commit import CommitDraft, Guard
from dagster_versioned.tables.write.pending import HeadParts, PendingWrite, VersionDescription
from dagster_versioned.tables.write.write import TableWrite


class ErasedRows(Guard):
    """Refuses what would bring erased rows back, whoever commits it: a part that was erased is in no version again."""

    def __init__(self, project: ProjectContext, name: TableName, store: ObjectStore) -> None:
        self._project = project
        self._register = project.erasures
        self._name = name

    def check(self, state: TableState | None, draft: CommitDraft) -> None:
        """Raise `InvalidInput` for a draft that adds, or needs, an erased part, or is built from erased rows."""
        refuse_erased_since(self._project, self._name, draft.built_from)
        if state is None or not (erased := self._register.of(state.snapshot)):
            return
        needed = draft.needs | {action.key for action in draft.actions if isinstance(action, Add)}
        if back := sorted(needed & erased.keys):
            raise InvalidInput(
                f"Rows that were erased from {self._name} would be in it again: the part {back[0]} was erased. Nothing"
                " was committed. Write the rows without those that were erased; an older version can be read, and its"
                " rows written anew."
            )


def refuse_erased_since(project: ProjectContext, name: TableName, read: Iterable[Upstream]) -> None:
    """Raise `InvalidInput` where rows were erased from a version after it was read: what is built from it has them."""
    own = [(each.parent, each.reading) for each in read if each.reading is not None]
    for parent, reading in own if own and project.erasures.all() else ():
        if _is_erased_since(project, parent.table, reading):
            raise InvalidInput(
                f"Rows were erased from version {parent.version[:8]} of {parent.table} since it was read for {name}, "
                "which would have what was made of them. Nothing was committed. Run it again: it reads what is left."
            )


def _is_erased_since(project: ProjectContext, table: str, reading: SeenVersions) -> bool:
    later = {
        named
        for named, erasure in project.erasures.all()
        if named.epoch > reading.epoch
        and (own := erasure.tables.get(reading.table_id)) is not None
        and (reading.versions is None or not reading.versions.isdisjoint(own.versions))
    }
    name = table_name(table)
    if later and (state := newest_state(project, name)) is not None:
        is_renamed = TableRecord.of(state.snapshot).left_for(name) is not None
        if state.snapshot.metadata.id == reading.table_id and not is_renamed:
            later &= {*project.erasures.named(state.snapshot)}  # of those that the log never named, nothing was erased
    return bool(later)


def refuse_erased_after(project: ProjectContext, name: TableName, parents: Iterable[Parent], since: datetime) -> None:
    """Raise `InvalidInput` where rows were erased from one of the parents of a version after a moment.

    Clocks of machines differ, so that what was erased in the hour before counts, too.
    """
    recorded = [
        erasure
        for _, erasure in project.erasures.all()
        if datetime.fromisoformat(erasure.at) > since - timedelta(hours=1)
    ]
    for parent in {parent for parent in parents if parent.source == project.name} if recorded else ():
        if (state := newest_state(project, table_name(parent.table))) is None:
            continue
        versions = [version for version in state.history.versions if version.metadata_sha == parent.version]
        keys = {(version.log_version, version.partition) for version in versions}
        for erasure in recorded:
            own = erasure.tables.get(state.snapshot.metadata.id)
            if own is not None and (not keys or not keys.isdisjoint(own.versions)):
                raise InvalidInput(
                    f"Rows were erased from version {parent.version[:8]} of {parent.table} since {name} was built from"
                    " it, which would have what was made of them. It is not published. Drop the draft, and run its step"
                    " again: it reads what is left."
                )


def newest_state(project: ProjectContext, name: TableName) -> TableState | None:
    """The newest state of a table of a project; ``None`` where there is none."""
    return StateCache(project.data.subfolder(str(name)), loaded=project.loaded).refresh()


class ErasedHead(PendingWrite):
    """A head on its way to be a version without the rows that were erased; its files are there already.

    The parts of which the ``changes`` are known are not read.
    """

    stands_alone = True

    def __init__(
        self,
        store: ObjectStore,
        head: Version,
        erased: ErasedParts,
        asset_key: tuple[str, ...] | None,
        changes: Changes,
    ) -> None:
        contents = nothing(recorded_rows(head.entry).schema)
        described = VersionDescription.of(head.identity)
        if asset_key is not None:  # which a rename may have changed since the head was made
            described = replace(described, asset_key=asset_key)
        written = StagedParts(contents, ())
        super().__init__(head.partition, described, contents, row_order_of(head), written, lambda: written)
        self._store = store
        self._erased = erased
        self._changes = changes

    def onto(self, base: HeadParts) -> tuple[Add, ...]:
        """What stands for the parts of the head. Raises `CommitConflict` after a foreign commit."""
        if base.foreign is not None or base.head is None:
            raise CommitConflict(
                "Another program changed the table, or dropped it, while rows of it were erased. What was erased"
                " before stays erased. Look at history(), adopt() that, and erase once more."
            )
        parts = self._erased.of(base.parts)
        known = recorded_rows(base.head.entry)
        before = [add for add in base.parts if add.identity in self._erased.substitutes]
        if (record := self._without(FeatureRecord.of(base.head.identity.custom), known, before)) is not None:
            custom = {**base.head.identity.custom, FEATURE_MEMBER: record.to_json()}
            self.description = replace(self.description, custom=custom)
        if self.row_order == "significant" or known.digest.kind != "bag-xxh64x2":
            self.contents = self._measured(known, parts)
        else:
            self.contents = summed(known.schema, [(known, 1), *self._change(known, before)])
        return parts

    def _change(self, known: RowsSummary, before: Sequence[Add]) -> Iterator[tuple[RowsSummary, int]]:
        """The terms by which parts say something else than these, in whose place they stand."""
        unknown: list[Add] = []
        for add in before:
            after = self._erased.substitutes[add.identity]
            change = self._changes.get((add.identity, None if after is None else after.identity))
            if change is None or change[0].schema != known.schema:
                unknown.append(add)
            else:
                yield change[0], -1
                yield change[1], 1
        yield self._measured(known, unknown), -1
        yield self._measured(known, self._erased.of(unknown)), 1

    def _without(self, record: FeatureRecord | None, known: RowsSummary, before: Sequence[Add]) -> FeatureRecord | None:
        """The record of a feature's samples without those that go, which are computed again where an upstream still has
        them; ``None`` of a table that has none: anybody may write what looks like one."""
        if record is None or not {*record.ids, DATA_VERSION_BY_FIELD} <= {*known.schema.names}:
            return None
        columns = [*record.ids, DATA_VERSION_BY_FIELD]
        had, have = (
            read_table(scan_of(self._store, known.schema, parts, columns))
            for parts in (before, self._erased.of(before))
        )
        try:
            digests = digests_together([record.digests, record.digests_of(have)], [record.digests_of(had)])
        except InvalidInput:
            return None
        if digests is None:
            return None
        is_derived = bool(record.upstreams or self.description.parents)
        gone = had.num_rows - have.num_rows
        return replace(record, digests=digests, left=record.left + (gone if is_derived else 0))

    def _measured(self, known: RowsSummary, parts: Sequence[Add]) -> RowsSummary:
        order: RowOrder = self.row_order
        tally = RowsSummarizer(known.schema, order)
        if parts:
            for batch in stream_table(scan_of(self._store, known.schema, parts)):
                tally.update(batch)
        return tally.finish()


class ErasureCommit:
    """The draft of an erasure in one table, whose log names it from then on.

    ``check`` is asked of each state, and raises where nothing may be erased from the table by now. ``changes`` are what
    is known of them.
    """

    def __init__(
        self,
        staging: Staging,
        name: ErasureName,
        erasure: TableErasure,
        by: str | None,
        check: Callable[[], None],
        changes: Changes,
    ) -> None:
        self._staging = staging
        self._changes = changes
        self._name = name
        self._erasure = erasure
        self._erased = ErasedParts(erasure.parts)
        self._by = by
        self._check = check

    def is_open(self, state: TableState) -> bool:
        """Whether the table's log may still name it: neither it nor another one was named since it was recorded."""
        return ErasureName.by(state.snapshot) == self._erasure.previous

    def draft(self, state: TableState | None, timestamp: int) -> CommitDraft | None:
        """The next log entry; ``None`` where the log names it already, or another one, or what is to stand for parts
        was collected meanwhile: then it is void, since the parts are there."""
        assert state is not None  # its parts were looked at
        stands = [add for add in self._erasure.parts.values() if add is not None]
        if not self.is_open(state) or missing_parts(self._staging.store, stands):
            return None
        self._check()
        heads = self._heads(state)
        drafted = CommitDraft(ERASE, [], {"versions": []})
        if heads:
            drafted = self._write(state, heads).draft(state, timestamp) or drafted
        protocol = next((each for each in drafted.actions if isinstance(each, Protocol)), state.snapshot.protocol)
        needed = protocol_with(protocol, {f"{ASKED}{ERASURES}": "supported"}, state.snapshot.schema)
        actions = [action for action in drafted.actions if not isinstance(action, Protocol)]
        changed: list[Action] = [] if needed == state.snapshot.protocol else [needed]
        return replace(
            drafted,
            actions=[*changed, *actions, *self._tombstones(drafted, state, timestamp), self._name.action()],
            needs=drafted.needs | objects_of(self._staging.store, stands),
        )

    def _heads(self, state: TableState) -> list[Version]:
        """The heads that have erased parts."""
        history = state.history
        if history.unadopted is not None:
            raise InvalidInput("Another program committed to the table. Adopt that, and erase once more.")
        erased = self._erased.substitutes
        if not history.is_partitioned:
            has = any(add.identity in erased for add in parts_of(state.snapshot))
            return [*history.heads.values()] if has else []
        parts = parts_by_partition(state.snapshot)
        return [
            head for key, head in history.heads.items() if any(add.identity in erased for add in parts.get(key, ()))
        ]

    def _write(self, state: TableState, heads: Sequence[Version]) -> TableWrite:
        configuration = state.snapshot.metadata.configuration
        options = TableOptions(
            partition_columns=state.snapshot.partition_columns,
            allow_empty=True,
            known_personal_columns=personal_columns(configuration),
        )
        asset_key = asset_key_of(state)
        writes = [ErasedHead(self._staging.store, head, self._erased, asset_key, self._changes) for head in heads]
        satisfied = constraints_of(configuration)
        return TableWrite(self._staging, writes, options, satisfied, author=self._by, operation=ERASE)

    def _tombstones(self, drafted: CommitDraft, state: TableState, timestamp: int) -> list[Action]:
        """Of what stands for parts of older versions alone, one of each file: for programs that delete what no log
        entry has."""
        added = {action.key for action in drafted.actions if isinstance(action, Add)} | {*parts_keys(state)}
        stands = {add.key: add for add in self._erased.substitutes.values() if add is not None}
        return [add.removed(timestamp, data_change=False) for add in stands.values() if add.key not in added]


def parts_keys(state: TableState) -> set[str]:
    """The keys of the table's current parts."""
    return {add.key for add in parts_of(state.snapshot)}
