"""The blocks that say what becomes of a history: its columns, its source, its data, and its watermark.

Source: seed 002 ("Merge Strategies", "Watermark", "Schema Evolution").
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from typing import Any, Final

import pyarrow as pa

from dagster_versioned.errors import InvalidInput
from dagster_versioned.odf.blocks.arrow_schema import encode_schema, fields_of
from dagster_versioned.odf.blocks.block import Block, block_hash, encode_block
from dagster_versioned.odf.blocks.data_schema_arrow import from_arrow
from dagster_versioned.odf.blocks.events import (
    AddData,
    AddPushSource,
    DatasetKind,
    DisablePollingSource,
    DisablePushSource,
    MergeStrategy,
    MergeStrategyAppend,
    MergeStrategyChangelogStream,
    MergeStrategyLedger,
    MergeStrategySnapshot,
    MergeStrategyUpsertStream,
    MetadataEvent,
    SetDataSchema,
    SetPollingSource,
    SetVocab,
    SourceState,
    Timestamp,
)
from dagster_versioned.odf.blocks.validity import ChainState, validate
from dagster_versioned.odf.event_slice import ChainEntry
from dagster_versioned.odf.event_sql import EventSchema
from dagster_versioned.odf.slice_file import Slice, slice_schema
from dagster_versioned.tables.chain_head import ChainHead
from dagster_versioned.tables.event_history import (
    AppendMerge,
    ChangelogMerge,
    EventColumns,
    EventHistory,
    LedgerMerge,
    SnapshotMerge,
    UpsertMerge,
)
from dagster_versioned.tables.event_history import MergeStrategy as Merge
from dagster_versioned.tables.state import TableState


@dataclass(frozen=True)
class HistoryState:
    """What events are computed from: what the ``chain`` says (``None``: there is none yet), and what may follow it.

    ``system_time`` is that of the events, later than any before. ``schema`` are the columns so far.
    """

    chain: ChainState | None
    state: TableState | None
    system_time: datetime
    schema: EventSchema | None

    @property
    def next_offset(self) -> int:
        """The offset of the next record."""
        return 0 if self.chain is None else self.chain.next_offset

    @property
    def arrow(self) -> "pa.Schema | None":
        """The columns so far, in the types that the chain gives them."""
        return None if self.chain is None else self.chain.arrow_schema()

    @property
    def watermark(self) -> datetime | None:
        """The event time before which no more events were expected."""
        known = self.chain and self.chain.watermark
        return known and known.to_datetime()


_EVENT_OF: Final[dict[type[Merge], type[MergeStrategy]]] = {
    AppendMerge: MergeStrategyAppend,
    LedgerMerge: MergeStrategyLedger,
    SnapshotMerge: MergeStrategySnapshot,
    UpsertMerge: MergeStrategyUpsertStream,
    ChangelogMerge: MergeStrategyChangelogStream,
}
"""By how rows become events: what a block says of it, with the same members."""


def merge_event(history: EventHistory) -> MergeStrategy:
    """How rows become events, as a block says it."""
    event = _EVENT_OF[type(history.merge)]
    return event(**{member.name: getattr(history.merge, member.name) for member in fields(event)})


def merge_strategy(event: MergeStrategy) -> Merge:
    """How rows become events, as a block says it. Raises `ValidationError` for columns that are none."""
    merge = next(merge for merge, said in _EVENT_OF.items() if said is type(event))
    return merge(**{member.name: getattr(event, member.name) for member in fields(event)})


def key_of(chain: ChainState) -> tuple[str, ...]:
    """The columns that identify a row, as the chain's source says; none where every row is on its own."""
    polled = [chain.polling_source] if chain.polling_source is not None else []
    for source in (*polled, *chain.push_sources.values()):
        if not isinstance(source.merge, MergeStrategyAppend):
            return source.merge.primary_key
    return ()


def chain_entry(ground: HistoryState, events: Sequence[MetadataEvent]) -> ChainEntry | None:
    """The events as blocks that follow the ground. Raises `ChainCorrupt` for what must not follow it."""
    blocks: dict[str, bytes] = {}
    chain = ground.chain
    for event in events:
        head, number = (None, 0) if chain is None else (chain.head, chain.sequence_number + 1)
        block = Block(Timestamp.of(ground.system_time), head, number, event)
        data = encode_block(block)
        chain = validate(chain, block, block_hash(data))
        blocks[str(chain.head)] = data
    if chain is None or not blocks:
        return None
    return ChainEntry(blocks, ChainHead(str(chain.head), chain.sequence_number, str(chain.seed.dataset_id)))


def add_data(
    ground: HistoryState, made: Slice | None, watermark: datetime | None, source_state: SourceState | None
) -> AddData | None:
    """What is recorded of a slice; ``None`` where nothing happened: no data, and neither time nor source moved."""
    chain = ground.chain
    states: Mapping[str, SourceState] = {} if chain is None else chain.source_states
    if source_state is not None and states.get(source_state.source_name) == source_state:
        source_state = None
    if made is None and watermark == ground.watermark and source_state is None:
        return None
    return AddData(
        **going_on(chain),
        new_data=made and made.data,
        new_watermark=watermark and Timestamp.of(watermark),
        # Carried forward, so that a reader of the last block knows.
        new_source_state=source_state or next(iter(states.values()), None),
    )


def going_on(chain: ChainState | None) -> dict[str, Any]:
    """The members by which an event of data says what it follows: offset and checkpoint, which stays as it is."""
    checkpoint = chain and chain.checkpoint
    return {
        "prev_checkpoint": checkpoint and checkpoint.physical_hash,
        "prev_offset": chain and chain.last_offset,
        "new_checkpoint": checkpoint,
    }


def vocabulary(ground: HistoryState, columns: EventColumns) -> list[MetadataEvent]:
    """What says once, at the start of a chain, that its columns have other names than the usual ones."""
    usual = EventColumns()
    if ground.chain is not None or columns == usual:
        return []
    given = (name if name != known else None for name, known in zip(columns.names, usual.names, strict=True))
    return [SetVocab(*given)]


def new_source(ground: HistoryState, source: AddPushSource | SetPollingSource) -> list[MetadataEvent]:
    """What makes this the chain's source, where it is not yet: pushed and polled sources are never active together."""
    chain = ground.chain
    if chain is None:
        return [source]
    if isinstance(source, AddPushSource):
        ended = [DisablePollingSource()] if chain.polling_source is not None else []
        return [] if chain.push_sources.get(source.source_name) == source else [*ended, source]
    ended = [DisablePushSource(name) for name in chain.push_sources]
    return [] if chain.polling_source == source else [*ended, source]


def new_schema(ground: HistoryState, schema: EventSchema, kind: DatasetKind) -> list[MetadataEvent]:
    """What says which columns the data have, where they have other ones than so far."""
    known = ground.chain.schema if ground.chain is not None else None
    if known is not None and ground.schema == schema:
        return []
    columns = slice_schema(schema, ground.arrow)
    if known is None:
        # A query may leave event times out; a source's rows get one.
        given = schema.columns.names if kind is DatasetKind.ROOT else schema.columns.given
        return [SetDataSchema(schema=from_arrow(_never_null(columns, given)))]
    had = ground.arrow
    assert had is not None  # the schema that is known
    added = [field for field in fields_of(columns) if field.name not in had.names]
    if known.schema is None:
        return [SetDataSchema(encode_schema(pa.schema([*fields_of(had), *added]).with_metadata(had.metadata)))]
    fields = (*known.schema.fields, *from_arrow(pa.schema(added)).fields)
    return [SetDataSchema(schema=replace(known.schema, fields=fields))]


def _never_null(columns: pa.Schema, names: Sequence[str]) -> pa.Schema:
    """The columns, of which these are in every row."""
    return pa.schema([field.with_nullable(False) if field.name in names else field for field in fields_of(columns)])


def new_watermark(
    history: EventHistory, ground: HistoryState, made: Slice | None, dumped_at: datetime | None, given: datetime | None
) -> datetime | None:
    """The watermark after a write: never earlier than before. ``dumped_at`` is when a dump was all that there was."""
    known = ground.watermark
    if given is not None:
        return given_watermark(ground, given)
    if history.watermark == "manual":
        return known
    delay = history.watermark if isinstance(history.watermark, timedelta) else timedelta(0)
    seen = [moment for moment in (made.latest if made is not None else None, dumped_at) if moment is not None]
    reached = [moment - delay for moment in seen] + ([known] if known is not None else [])
    return max(reached, default=None)


def given_watermark(ground: HistoryState, given: datetime) -> datetime:
    """A watermark that somebody sets. Raises `InvalidInput` for one that goes back."""
    known = ground.watermark
    if known is not None and given < known:
        raise InvalidInput(
            f"The watermark is at {known.isoformat()}, and {given.isoformat()} is earlier. Nothing was written. A "
            "watermark never goes back; events before it may still come."
        )
    return given
