"""A table that is a history of events: what becomes of a frame, the rows that events make, and their chain.

Source: seed 002 ("Merge Strategies", "Watermark", "Projection", "Schema Evolution").
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime, time, timedelta
from typing import Any, Unpack, cast

import pyarrow as pa

from dagster_versioned.delta.actions import Add
from dagster_versioned.delta.schema.types import StructType
from dagster_versioned.engines.comparison import EXAMPLES
from dagster_versioned.engines.dispatch import engine_for
from dagster_versioned.engines.frames import family_of, to_frame
from dagster_versioned.engines.staging import Staging
from dagster_versioned.engines.upsert import nothing
from dagster_versioned.errors import ChainCorrupt, EmptyTable, InvalidInput, ObjectNotFound, VersionNotFound
from dagster_versioned.odf import event_sql as queries
from dagster_versioned.odf.blocks.block import Block, block_hash, decode_block
from dagster_versioned.odf.blocks.block_iterator import iterate_blocks, state_at
from dagster_versioned.odf.blocks.events import (
    AddData,
    AddPushSource,
    DatasetKind,
    ExecuteTransform,
    MetadataEvent,
    ReadStepParquet,
    Seed,
    SetPollingSource,
    SourceState,
)
from dagster_versioned.odf.blocks.validity import ChainState
from dagster_versioned.odf.dispatch import event_engine_for
from dagster_versioned.odf.event_blocks import (
    HistoryState,
    add_data,
    chain_entry,
    given_watermark,
    key_of,
    merge_event,
    new_schema,
    new_source,
    new_watermark,
    vocabulary,
)
from dagster_versioned.odf.event_slice import EventSlice, GivenRows, WriteDescription, append_events, stated_bounds
from dagster_versioned.odf.event_sql import EventEngine, EventQuery, EventSchema
from dagster_versioned.odf.identity.multihash import Multihash
from dagster_versioned.odf.identity.signing_key import SIGNATURE_KEY, SigningKey
from dagster_versioned.odf.slice_file import RowsRefused, Slice, SliceTask
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.tables.chain_head import BLOCKS, chain_head
from dagster_versioned.tables.choose import VersionLike
from dagster_versioned.tables.event_history import (
    AppendMerge,
    ChangelogMerge,
    EventColumns,
    EventHistory,
    LedgerMerge,
    SnapshotMerge,
    UpsertMerge,
)
from dagster_versioned.tables.options import TableOptions
from dagster_versioned.tables.read import VersionFiles
from dagster_versioned.tables.state import TableState
from dagster_versioned.tables.table import VersionedTable
from dagster_versioned.tables.write.write import WriteResult

SOURCE_NAME = "default"
"""What the source is called that an asset's frames are pushed into."""

BlockLike = str | int | Multihash
"""What names a block: its hash, or its number in the chain."""


class EventTable:
    """A versioned table as a history of events.

    Without a ``history`` it is read as its chain says, and written by those alone who make events themselves
    (`append`). With a ``key`` its head is signed by it, and where the table is new its identity is the key's; else one
    is made up, whose key nobody has.
    """

    def __init__(
        self, table: VersionedTable, history: EventHistory | None = None, *, key: SigningKey | None = None
    ) -> None:
        self.table = table
        self.history = history
        self._key = key

    def __repr__(self) -> str:
        return f"EventTable({self.table!r}, {self.history!r})"

    # Writing

    def write(
        self,
        frame: Any,
        *,
        event_time: datetime | None = None,
        watermark: datetime | None = None,
        source: AddPushSource | SetPollingSource | None = None,
        source_state: SourceState | None = None,
        **described: Unpack[WriteDescription],
    ) -> WriteResult:
        """Make events of a frame, as the history says, and append them: one slice, its blocks, one commit.

        ``event_time`` is that of rows which bring none (default: now); of a `SnapshotMerge`, when the rows were all
        that there was. ``watermark`` is the event time before which no more events are expected, if the events
        themselves do not tell. ``source`` is recorded where the chain has another (default: frames are pushed), with
        ``source_state``, which says how far it was read. ``described`` is as of `VersionedTable.write`. Nothing is
        committed where nothing happened.

        Raises what `VersionedTable.write` does, and `InvalidInput` for keys that are null or (in a `SnapshotMerge`)
        repeated, nulls in columns that the chain states as required, dumps out of order, watermarks that decrease,
        columns that are lost or change their type.
        """
        if self.history is None:
            raise InvalidInput(f"{self!r} was opened for reading. Nothing was written. Open it with an EventHistory.")
        history, options = self.history, described.get("options") or TableOptions()
        described["options"] = options.model_copy(update={"history": None})
        ground = self.ground()
        at = _moment(event_time, "event_time") or ground.system_time
        source = source or AddPushSource(source_name=SOURCE_NAME, read=ReadStepParquet(), merge=merge_event(history))
        engine = event_engine_for(cast("type[Any]", type(frame)))
        is_dump = isinstance(history.merge, SnapshotMerge)
        repeats = isinstance(history.merge, AppendMerge | ChangelogMerge) and described.get("run") is not None
        takes_back = isinstance(history.merge, ChangelogMerge) and ground.next_offset > 0
        with _readable(frame, often=repeats or takes_back or (is_dump and not engine.counts_current)) as rows:
            given = engine.schema(rows)
            self.check_columns(ground, history.columns)
            schema = EventSchema.of(data_columns(given, history), history.columns, ground.schema)
            if is_dump and history.event_time not in given.names:
                _check_order(ground, at, history)
            repeated = _given_rows(rows, given, schema) if repeats else None
            needs_times = takes_back and bool(engine.examine(rows, schema, queries.UNTIMED))
            dumped_at = at if is_dump and event_time is not None else None

            def attempt(*, thorough: bool) -> WriteResult:
                query, reads = _query(history, schema, thorough=thorough, needs_times=needs_times)
                events = engine.merge(rows, self._events_so_far(ground, rows, reads), schema, query, at)

                def recorded(made: Slice | None) -> AddData | None:
                    _check_told_apart(made, rows, engine, schema, history, thorough=thorough)
                    _check_is_meant(made, rows, options)
                    reached = new_watermark(history, ground, made, dumped_at, _moment(watermark, "watermark"))
                    return add_data(ground, made, reached, source_state)

                return self.append(
                    events,
                    schema,
                    ground,
                    engine,
                    kind=DatasetKind.ROOT,
                    before=(*vocabulary(ground, history.columns), *new_source(ground, source)),
                    event=recorded,
                    given=repeated,
                    **described,
                )

            # Several current rows may have one key where others than dumps were merged before, or by another key.
            for thorough in (False, True) if engine.counts_current else (True,):
                try:
                    return attempt(thorough=thorough)
                except RowsRefused:
                    _check_keys(rows, engine, schema, history)
            raise InvalidInput(
                f"The primary key {list(history.primary_key)} did not tell the rows of the frame apart, but when they "
                "were computed again, it did. Nothing was written. Write a frame that is the same each time."
            )

    def set_watermark(self, watermark: datetime, **described: Unpack[WriteDescription]) -> WriteResult:
        """State, in a block without data, before which event time no more events are expected; none where it is so.

        ``described`` is passed on to `append`. Raises `InvalidInput` for a watermark that goes back, or has no zone,
        for a dataset that a query computes, and for a table that is no history of events yet.
        """
        moment = _required_moment(watermark, "watermark")
        ground = self.ground()
        if self.chain.seed.dataset_kind is not DatasetKind.ROOT:
            raise InvalidInput(
                f"{self.table.name} is computed by a query, and its watermark is that of its inputs. Nothing was "
                "written. Set the watermark of an input, and run the query."
            )
        moved = add_data(ground, None, given_watermark(ground, moment), None)
        assert ground.schema is not None  # a table with a chain has columns
        return self.append_blocks(ground, ground.schema, DatasetKind.ROOT, event=moved, **described)

    def ground(self) -> HistoryState:
        """What events are to be computed from, as of now. Raises `ChainCorrupt`, `LogCorrupt`."""
        state = self.table.state if self.table.exists() else None
        chain = self._chain(state)
        now = datetime.now(UTC)
        now = now.replace(microsecond=now.microsecond // 1000 * 1000)
        if chain is None or state is None:
            return HistoryState(None, state, now, None)
        # Later than any before, so that a time always means a state between two commits.
        now = max(now, _next_millisecond(chain.system_time.to_datetime()))
        return HistoryState(chain, state, now, EventSchema.parse(state.snapshot.schema, chain.columns))

    def append(
        self,
        events: Any,
        schema: EventSchema,
        ground: HistoryState,
        engine: EventEngine,
        *,
        kind: DatasetKind,
        before: Sequence[MetadataEvent],
        event: Callable[[Slice | None], AddData | ExecuteTransform | None],
        given: GivenRows | None = None,
        **described: Unpack[WriteDescription],
    ) -> WriteResult:
        """Append events that were computed on a ground: ``op``, ``et`` and the data, as `EventEngine.merge` gives them.

        ``before`` are events of metadata that come first, a schema that grew is added to them; ``event`` says what is
        recorded of the slice, if anything. Raises `CommitConflict` where the ground is not the chain's end any more.
        """
        written = (described.get("options") or TableOptions()).write_options(None)

        def make(staging: Staging) -> EventSlice:
            task = SliceTask.to(staging, schema, ground.arrow, ground.next_offset, ground.system_time, written)
            made = task.slice_of(engine.through(events, task))
            recorded = event(made)
            recorded_events = [*self._seed(ground, kind), *before, *new_schema(ground, schema, kind)]
            entry = chain_entry(ground, recorded_events if recorded is None else [*recorded_events, recorded])
            contents = made.contents if made is not None else nothing(schema.stored)
            base = str(ground.chain.head) if ground.chain is not None else None
            return EventSlice(base, made, contents, entry, given)

        result = append_events(self.table, make, **described)
        if self._key is not None and (end := self._chain(self.table.state)) is not None:
            self._sign(end.head, self._key)
        return result

    def append_blocks(
        self,
        ground: HistoryState,
        schema: EventSchema,
        kind: DatasetKind,
        before: Sequence[MetadataEvent] = (),
        event: AddData | None = None,
        **described: Unpack[WriteDescription],
    ) -> WriteResult:
        """`append` events of metadata, or one that brings no data."""
        engine = event_engine_for(pa.Table)
        return self.append(
            pa.table({}), schema, ground, engine, kind=kind, before=before, event=lambda made: event, **described
        )

    def _sign(self, head: Multihash, key: SigningKey) -> None:
        """Sign the chain's end, unless that is done; a write may have died before it."""
        signature, store = key.sign_head(head).document(), self.table.store
        try:
            if store.get(SIGNATURE_KEY) == signature:
                return
        except ObjectNotFound:
            pass
        store.put(SIGNATURE_KEY, signature)

    def check_columns(self, ground: HistoryState, columns: EventColumns) -> None:
        """Raise `InvalidInput` where the chain has other names for the columns that events are given."""
        known = columns if ground.chain is None else ground.chain.columns
        if known != columns:
            raise InvalidInput(
                f"The columns that events are given are {known.names} in the chain, and {columns.names} in the "
                "EventHistory or SetVocab. Nothing was written. Columns are never renamed: keep the old names."
            )

    # Reading

    def events(self, version: VersionLike = None, *, as_type: type | None = None) -> Any:
        """Every event, in the order of offsets, with all columns."""
        return self.table.read(version, as_type=as_type)

    def current(self, version: VersionLike = None, *, as_type: type | None = None) -> Any:
        """The rows that the events come to: their event time, and their data."""
        return self.read(version, as_type=as_type)

    def as_at(self, system_time: datetime, *, as_type: type | None = None) -> Any:
        """The rows as they were known at a time; a `SnapshotMerge`'s dump that was current then."""
        return self.read(as_at=system_time, as_type=as_type)

    def as_of(self, event_time: datetime, *, as_type: type | None = None) -> Any:
        """The rows as they were at a time in the world, as far as is known now.

        What was retracted since is not among them: it is not known to have been so.
        """
        return self.read(as_of=event_time, as_type=as_type)

    def read(
        self,
        version: VersionLike = None,
        *,
        as_at: datetime | None = None,
        as_of: datetime | None = None,
        as_type: type | None = None,
    ) -> Any:
        """The rows that the events come to, of those until a system time, until an event time, or both.

        Raises `InvalidInput` for a time without a zone, and what `VersionedTable.read` does.
        """
        files = self.table.files(version)
        frame_type = as_type or pa.Table
        chain = self.chain
        schema = EventSchema.parse(files.scan.schema, chain.columns)
        bounds = {schema.columns.system_time: as_at, schema.columns.event_time: as_of}
        until = {name: moment for name, given in bounds.items() if (moment := _moment(given, "The time")) is not None}
        key = schema.positions(key_of(chain), "The primary key")
        if as_at is not None:
            files = _only(files, schema.columns.system_time, until=until[schema.columns.system_time])
        return self._rows(
            self.table.read_files(files, _native(frame_type)),
            frame_type,
            lambda engine, events: engine.current(events, schema, key, until),
        )

    def changes(self, after: BlockLike, until: BlockLike | None = None, *, as_type: type | None = None) -> Any:
        """The events that came after a block, until another one (default: the last), in the order of offsets.

        Raises `VersionNotFound` for what is no block of the chain.
        """
        chain = self.chain
        bounds = [self._last_offset(chain, after), self._last_offset(chain, until if until is not None else chain.head)]
        frame_type = as_type or pa.Table
        files = self.table.files()
        schema = EventSchema.parse(files.scan.schema, chain.columns)
        files = _only(files, schema.columns.offset, after=bounds[0], until=bounds[1])
        return self._rows(
            self.table.read_files(files, _native(frame_type)),
            frame_type,
            lambda engine, events: engine.between(events, schema, *bounds),
        )

    def blocks(self) -> Iterator[tuple[Multihash, Block]]:
        """The blocks of the chain, newest first. Raises `ChainCorrupt` for one that is missing or altered."""
        for link in iterate_blocks(_Blocks(self.table.store), self.chain.head):
            yield link.name, link.block

    @property
    def chain(self) -> ChainState:
        """What the chain says up to its end. Raises `InvalidInput` for a table without one, `ChainCorrupt`."""
        chain = self._chain(self.table.state)
        if chain is None:
            raise InvalidInput(
                f"{self.table.name} is no history of events: it was written as rows. Nothing was read. Read it with "
                "table.read()."
            )
        return chain

    # Inside

    def _chain(self, state: TableState | None) -> ChainState | None:
        end = chain_head(state.snapshot) if state is not None else None
        return None if end is None else state_at(_Blocks(self.table.store), Multihash.parse(end.head))

    def _last_offset(self, chain: ChainState, block: BlockLike) -> int:
        """The offset of the last record that a block, or one before it, brought; -1 before the first."""
        if isinstance(block, str):
            block = Multihash.parse(block)
        for name, found in self.blocks():
            if block in (name, found.sequence_number):
                return state_at(_Blocks(self.table.store), name).next_offset - 1
        raise VersionNotFound(
            f"No block {block} in the chain of {self.table.name}, which has {chain.sequence_number + 1}."
        )

    def _events_so_far(self, ground: HistoryState, rows: Any, columns: Sequence[str]) -> Any | None:
        """These columns of the events so far, in a frame of the kind of the rows."""
        if ground.state is None or ground.schema is None or not columns or ground.next_offset == 0:
            return None
        known = [name for name in ground.schema.stored.names if name in columns]
        return self.table.read(ground.state.log_version, as_type=cast("type[Any]", type(rows)), columns=known)

    def _rows(self, events: Any, frame_type: type, project: Callable[[EventEngine, Any], Any]) -> Any:
        found = project(event_engine_for(frame_type), events)
        return to_frame(found, frame_type) if family_of(frame_type) is not None else found

    def _seed(self, ground: HistoryState, kind: DatasetKind) -> list[MetadataEvent]:
        if ground.chain is None:
            return [Seed((self._key or SigningKey.generate()).dataset_id, kind)]
        known = ground.chain.seed.dataset_id
        if self._key is not None and self._key.dataset_id != known:
            raise InvalidInput(
                f"The key is that of {self._key.dataset_id}, but the chain of {self.table.name} is that of {known}. "
                "Nothing was written. Give the dataset's own key, or none."
            )
        return []


# --- what is merged --------------------------------------------------------------------------------------------------


def _query(
    history: EventHistory, schema: EventSchema, *, thorough: bool, needs_times: bool
) -> tuple[EventQuery, tuple[str, ...]]:
    """The query that makes events of a frame, and which columns of earlier events it needs; see `queries.snapshot`."""
    width = len(schema.data.fields)
    key = schema.positions(history.primary_key, "primary_key")
    match history.merge:
        case AppendMerge():
            return queries.append(width), ()
        case LedgerMerge():
            return queries.ledger(width, key), (*schema.columns.names, *history.primary_key)
        case UpsertMerge():
            return queries.upsert(width, key), schema.stored.names
        case ChangelogMerge():
            # Of the events so far, the times alone count, where rows that take others back bring none.
            return queries.changelog(width, key), (*schema.columns.names, *history.primary_key) if needs_times else ()
        case SnapshotMerge(compare_columns=compared):
            others = [name for name in schema.data.names if name not in history.primary_key]
            chosen = (history.event_time, *others) if compared is None else compared
            compare = schema.positions(chosen, "compare_columns")
            return queries.snapshot(width, key, compare, thorough=thorough), schema.stored.names


def _given_rows(rows: Any, given: StructType, schema: EventSchema) -> GivenRows:
    engine = engine_for(rows)
    data = schema.data.select([name for name in schema.data.names if name in given.names])
    return GivenRows(rows, engine, engine.measure(rows, given).digest.text, data)


def data_columns(given: StructType, history: EventHistory) -> StructType:
    """The columns of a frame but for that of operations, where it may have one. Raises `InvalidInput`."""
    name = history.operation_type
    if not history.takes_operations:
        return given
    found = given.field(name).type if name in given.names else None
    if found not in ("byte", "short", "integer", "long", None if isinstance(history.merge, UpsertMerge) else "integer"):
        has = "has none" if found is None else f"has it as {found if isinstance(found, str) else 'a nested column'}"
        raise InvalidInput(
            f"A frame says what its rows do in the column {name!r}, a whole number (0 append, 1 retract, 2 and 3 from "
            f"and to in a correction), and this one {has}. Nothing was written."
        )
    return given.drop([name])


def _readable(frame: Any, *, often: bool) -> AbstractContextManager[Any]:
    """The frame, to be read ``often`` or once.

    A frame of Spark that is read once is computed once, so that nothing has to keep it.
    """
    is_plan = family_of(cast("type[Any]", type(frame))) is None
    return nullcontext(frame) if is_plan and not often else engine_for(frame).pinned(frame)


def _check_told_apart(
    made: Slice | None, rows: Any, engine: EventEngine, schema: EventSchema, history: EventHistory, *, thorough: bool
) -> None:
    """Raise `InvalidInput` where rows of a frame may have been taken for one, and `RowsRefused` where others were."""
    if engine.may_repeat(made.inserted if made else 0, made.removed if made else 0):
        _check_keys(rows, engine, schema, history)
        if not thorough:
            raise RowsRefused


def _check_keys(rows: Any, engine: EventEngine, schema: EventSchema, history: EventHistory) -> None:
    """Raise `InvalidInput` where keys of a frame do not tell its rows apart."""
    key = history.primary_key
    if history.takes_operations and (none := engine.examine(rows, schema, queries.no_operations(EXAMPLES))):
        raise InvalidInput(
            f"The column {history.operation_type!r} has {none[0]}, which is no operation: there are 0 (append), "
            "1 (retract), 2 and 3 (from and to in a correction). Nothing was written."
        )
    nulls, repeated = engine.bad_keys(rows, schema, schema.positions(key, "primary_key"))
    if not isinstance(history.merge, SnapshotMerge):
        repeated = []  # of a ledger's, the first counts
    if nulls or repeated:
        raise InvalidInput(
            f"The primary key {list(key)} does not tell the rows of the frame apart: {nulls} rows have a null in "
            f"it{f', and several rows have the same, for example {repeated[0]}' if repeated else ''}. Nothing was "
            "written. Add columns to the key, or drop these rows."
        )
    if isinstance(history.merge, ChangelogMerge):
        half = engine.examine(rows, schema, queries.half_corrections(schema.positions(key, "primary_key"), EXAMPLES))
        if half:
            raise InvalidInput(
                f"A correction is two rows, from (2) and to (3), one right after the other, and of the {key[0]!r} "
                f"{half[0]} there is half a one. Nothing was written. Add the other half, or write the rows with an "
                "UpsertMerge, which looks up what was."
            )


def _check_is_meant(made: Slice | None, rows: Any, options: TableOptions) -> None:
    """Raise `EmptyTable` where all that happened is that every row is gone, because the dump has none."""
    only_removed = made is not None and made.removed and not made.inserted and not made.updated
    if only_removed and not options.allow_empty and _is_empty(rows):
        raise EmptyTable(
            "The dump has no rows, so every row of the history would be retracted. Nothing was written. If you mean "
            "that, give the write options=TableOptions(allow_empty=True, …), or the asset these as_metadata()."
        )


def _check_order(ground: HistoryState, at: datetime, history: EventHistory) -> None:
    """Raise `InvalidInput` for a dump that is older than what is known."""
    latest = max(filter(None, (_latest_event(ground, history), ground.watermark)), default=None)
    if latest is not None and at < latest:
        raise InvalidInput(
            f"The dump is of {at.isoformat()}, but the history knows of {latest.isoformat()} already: it is "
            "outdated. Nothing was written. Write dumps in the order of their times."
        )


def _is_empty(rows: Any) -> bool:
    return not rows.num_rows if isinstance(rows, pa.Table) else rows.isEmpty()


def _latest_event(ground: HistoryState, history: EventHistory) -> datetime | None:
    """The latest event time so far, as the files' statistics say."""
    found: list[datetime] = []
    for add in ground.state.snapshot.adds() if ground.state is not None else ():
        if isinstance(text := stated_bounds(add, history.event_time)[1], str):
            moment = datetime.fromisoformat(text)
            found.append(moment if moment.tzinfo is not None else datetime.combine(moment, time(), UTC))
    return max(found, default=None)


def _only(files: VersionFiles, column: str, *, until: Any, after: Any = None) -> VersionFiles:
    """The files that may have events with a column in ``(after, until]``, by their statistics."""
    outside = {add.path for add in files.adds if _is_outside(add, column, until, after)}
    kept = tuple(file for file in files.scan.files if file.key not in outside)
    return replace(files, scan=replace(files.scan, files=kept))


def _is_outside(add: Add, column: str, until: Any, after: Any) -> bool:
    least, greatest = stated_bounds(add, column)
    if isinstance(until, datetime):
        least, greatest = (bound and datetime.fromisoformat(bound) for bound in (least, greatest))
    return (least is not None and least > until) or (after is not None and greatest is not None and greatest <= after)


def _native(frame_type: type) -> type:
    """The type in which an engine works on what is asked for as another."""
    return pa.Table if family_of(frame_type) is not None else frame_type


def _moment(given: datetime | None, what: str) -> datetime | None:
    return None if given is None else _required_moment(given, what)


def _required_moment(given: object, what: str) -> datetime:
    if not isinstance(given, datetime):
        raise InvalidInput(
            f"{what}={given!r:.50} is no datetime, so it is no moment. Nothing was changed. Give it as one, with a time"
            " zone."
        )
    if given.tzinfo is None:
        raise InvalidInput(f"{what}={given!r} has no time zone, so it is no moment. Nothing was changed. Give it one.")
    return given.astimezone(UTC)


def _next_millisecond(moment: datetime) -> datetime:
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000) + timedelta(milliseconds=1)


class _Blocks:
    """The blocks in a table's folder."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def block(self, name: Multihash) -> tuple[bytes, Block]:
        try:
            data = self._store.get(f"{BLOCKS}{name}")
        except ObjectNotFound as error:
            raise ChainCorrupt(
                f"The block {name} is missing from {self._store.uri}. Restore it from a copy."
            ) from error
        if (found := block_hash(data)) != name:
            raise ChainCorrupt(f"The block {name} in {self._store.uri} was altered: it has the hash {found}.")
        return data, decode_block(data)
