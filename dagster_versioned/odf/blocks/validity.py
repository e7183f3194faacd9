"""What may follow what in a metadata chain. Source: seed 002 ("Metadata Chain", "Dataset Evolution").

`validate` is a pure function from the chain's state so far and the next block to its state then: readers, writers
and `verify` use the same one. What it returns is also what the next writer has to know.
"""

from collections.abc import Mapping
from dataclasses import astuple, dataclass, field, replace
from typing import Any, Final, NoReturn

import pyarrow as pa

from dagster_versioned.errors import ChainCorrupt, InvalidInput
from dagster_versioned.odf.blocks.block import Block
from dagster_versioned.odf.blocks.data_schema import DataTypeOption, required
from dagster_versioned.odf.blocks.data_schema_arrow import arrow_schema, logical_columns
from dagster_versioned.odf.blocks.events import (
    AddData,
    AddPushSource,
    Checkpoint,
    DatasetKind,
    DataSlice,
    DisablePollingSource,
    DisablePushSource,
    ExecuteTransform,
    ExecuteTransformInput,
    Seed,
    SetAttachments,
    SetDataSchema,
    SetInfo,
    SetLicense,
    SetPollingSource,
    SetTransform,
    SetVocab,
    SourceState,
    Timestamp,
)
from dagster_versioned.odf.identity.dataset_id import DatasetId
from dagster_versioned.odf.identity.multihash import HashAlgorithm, Multihash
from dagster_versioned.tables.event_history import EventColumns

VOCABULARY: Final = SetVocab(*EventColumns().names)
"""What the system columns are called where the chain says nothing."""

NO_INFO: Final = SetInfo()


@dataclass(frozen=True, slots=True)
class InputPosition:
    """How far a transformation has taken an input: its last block, and the last offset."""

    block_hash: Multihash | None = None
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class ChainState:
    """What a chain says up to and with the block ``head``.

    ``push_sources`` are the active ones by name; ``source_states`` the last of each source; ``inputs`` how far a
    transformation has taken each of its inputs. ``vocab`` names every system column.
    """

    head: Multihash
    sequence_number: int
    system_time: Timestamp
    seed: Seed
    vocab: SetVocab = VOCABULARY
    schema: SetDataSchema | None = None
    transform: SetTransform | None = None
    polling_source: SetPollingSource | None = None
    push_sources: Mapping[str, AddPushSource] = field(default_factory=dict[str, AddPushSource])
    attachments: SetAttachments | None = None
    info: SetInfo = NO_INFO
    license: SetLicense | None = None
    last_offset: int | None = None
    watermark: Timestamp | None = None
    checkpoint: Checkpoint | None = None
    source_states: Mapping[str, SourceState] = field(default_factory=dict[str, SourceState])
    inputs: Mapping[DatasetId, InputPosition] = field(default_factory=dict[DatasetId, InputPosition])

    @property
    def next_offset(self) -> int:
        """The offset of the next record."""
        return 0 if self.last_offset is None else self.last_offset + 1

    @property
    def columns(self) -> EventColumns:
        """What the columns are called that every event has."""
        return EventColumns(*astuple(self.vocab))

    def arrow_schema(self) -> "pa.Schema | None":
        """The columns of the data, system columns among them; ``None`` before there is a schema."""
        return None if self.schema is None else arrow_schema(self.schema)


def validate(previous: ChainState | None, block: Block, name: Multihash) -> ChainState:
    """The chain's state with the block, whose hash is ``name``, after its state before (``None``: it is empty).

    Raises `ChainCorrupt`, naming the block and the rule that it breaks.
    """
    try:
        if previous is None:
            return _first(block, name)
        _require(
            block.sequence_number == previous.sequence_number + 1,
            f"its number is to be {previous.sequence_number + 1}: the chain has a gap or a fork",
        )
        _require(
            block.prev_block_hash == previous.head,
            f"it follows {block.prev_block_hash}, and the block before it is {previous.head}",
        )
        _require(
            block.system_time >= previous.system_time,
            f"its system time {block.system_time} is before {previous.system_time}, the one before it",
        )
        state = replace(previous, head=name, sequence_number=block.sequence_number, system_time=block.system_time)
        return _apply(state, block)
    except (_BrokenRule, InvalidInput, ChainCorrupt) as rule:
        event = type(block.event).__name__
        raise ChainCorrupt(
            f"Block {block.sequence_number} ({name}, {event}) breaks the rules of a chain: {str(rule).rstrip('.')}. "
            "Nothing of it is believed."
        ) from None


class _BrokenRule(Exception):
    """A rule that a block breaks; `validate` says which block."""


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise _BrokenRule(otherwise)


def _no_change() -> NoReturn:
    raise _BrokenRule("it changes nothing")


def _first(block: Block, name: Multihash) -> ChainState:
    event = block.event
    if not isinstance(event, Seed):
        raise _BrokenRule("a chain begins with Seed")
    _require(block.sequence_number == 0, "the first block has the number 0")
    _require(block.prev_block_hash is None, f"the first block follows none, and this one {block.prev_block_hash}")
    return ChainState(name, 0, block.system_time, event)


def _apply(state: ChainState, block: Block) -> ChainState:  # noqa: C901 - one case an event
    match block.event:
        case Seed():
            raise _BrokenRule("a chain has one Seed, its first block")
        case AddData() as event:
            _require_kind(state, DatasetKind.ROOT)
            return _add_data(state, event)
        case ExecuteTransform() as event:
            _require_kind(state, DatasetKind.DERIVATIVE)
            return _execute_transform(state, event)
        case SetTransform() as event:
            _require_kind(state, DatasetKind.DERIVATIVE)
            return _set_transform(state, event)
        case SetPollingSource() | AddPushSource() | DisablePushSource() | DisablePollingSource() as event:
            _require_kind(state, DatasetKind.ROOT)
            return _set_source(state, event)
        case SetDataSchema() as event:
            return _set_schema(state, event)
        case SetVocab() as event:
            names = zip(astuple(event), astuple(VOCABULARY), strict=True)
            return _changed(state, replace(state, vocab=SetVocab(*(given or usual for given, usual in names))))
        case SetAttachments() as event:
            return _changed(state, replace(state, attachments=event))
        case SetInfo() as event:
            return _changed(state, replace(state, info=event))
        case SetLicense() as event:
            return _changed(state, replace(state, license=event))


def _changed(before: ChainState, after: ChainState) -> ChainState:
    return after if after != before else _no_change()


def _require_kind(state: ChainState, kind: DatasetKind) -> None:
    _require(state.seed.dataset_kind is kind, f"it belongs to a dataset of kind {kind.value}, which this is not")


def _set_source(
    state: ChainState, event: SetPollingSource | AddPushSource | DisablePushSource | DisablePollingSource
) -> ChainState:
    match event:
        case SetPollingSource():
            _require(not state.push_sources, f"the push sources {sorted(state.push_sources)} are active")
            return _changed(state, replace(state, polling_source=event))
        case AddPushSource():
            _require(state.polling_source is None, "a polling source is active")
            return _changed(state, replace(state, push_sources={**state.push_sources, event.source_name: event}))
        case DisablePushSource():
            _require(event.source_name in state.push_sources, f"no push source {event.source_name!r} is active")
            rest = {name: source for name, source in state.push_sources.items() if name != event.source_name}
            return replace(state, push_sources=rest)
        case DisablePollingSource():
            _require(state.polling_source is not None, "no polling source is active")
            return replace(state, polling_source=None)


def _set_transform(state: ChainState, event: SetTransform) -> ChainState:
    _require(bool(event.inputs), "it has no inputs")
    aliases = [entry.alias for entry in event.inputs]
    _require(all(aliases), "an input has no alias")
    _require(len(set(aliases)) == len(aliases), f"two inputs have the same alias: {aliases}")
    ids = [DatasetId.parse(entry.dataset_ref) for entry in event.inputs]
    _require(state.seed.dataset_id not in ids, "the dataset is an input of itself")
    return _changed(state, replace(state, transform=event))


def _set_schema(state: ChainState, event: SetDataSchema) -> ChainState:
    new, before = arrow_schema(event), state.schema
    _require(len(set(new.names)) == len(new.names), "two columns have the same name")
    if before is None:
        return replace(state, schema=event)
    if event.schema is not None:
        _require_evolved(before, event)
    else:
        _require(before.schema is None, "it is an Arrow schema, and the columns have logical types by now")
        old = arrow_schema(before)
        _require(not new.equals(old), "it changes nothing")
        for name in old.names:
            _require(name in new.names, f"the column {name!r} is gone, and columns are only added")
            _require(
                new.field(name).equals(old.field(name)),
                f"the column {name!r} was {_described(old.field(name))} and would be {_described(new.field(name))}; "
                "columns are only added",
            )
    return replace(state, schema=event)


def _require_evolved(before: SetDataSchema, event: SetDataSchema) -> None:
    """Columns of logical types stay as they were, but for their order and attributes, and what is added may be null.

    In place of an Arrow schema, which did not say it well, they may also say anew what may be null (RFC-016).
    """
    _require(event != before, "it changes nothing")
    old, new = logical_columns(before), logical_columns(event)
    for name, kind in old.items():
        _require(name in new, f"the column {name!r} is gone, and columns are only added")
        same = new[name] == kind if before.schema is not None else required(new[name]) == required(kind)
        _require(same, f"the column {name!r} was {kind} and would be {new[name]}; columns are only added")
    for name in new.keys() - old.keys():
        _require(
            isinstance(new[name], DataTypeOption), f"the column {name!r} is new and may not be null, as it was before"
        )


def _described(column: Any) -> str:
    return f"{column.type}{'' if column.nullable else ' not null'}"


def _add_data(state: ChainState, event: AddData) -> ChainState:
    source = event.new_source_state
    states = state.source_states if source is None else {**state.source_states, source.source_name: source}
    return _with_data(replace(state, source_states=states), event, state)


def _execute_transform(state: ChainState, event: ExecuteTransform) -> ChainState:
    transform = state.transform
    if transform is None:
        raise _BrokenRule("there is no SetTransform before it")
    expected = [DatasetId.parse(entry.dataset_ref) for entry in transform.inputs]
    given = [entry.dataset_id for entry in event.query_inputs]
    _require(
        given == expected,
        f"its inputs are {', '.join(map(str, given))}, and SetTransform's, in order, {', '.join(map(str, expected))}",
    )
    taken = {
        entry.dataset_id: _advance(state.inputs.get(entry.dataset_id, InputPosition()), entry)
        for entry in event.query_inputs
    }
    return _with_data(replace(state, inputs={**state.inputs, **taken}), event, state)


def _advance(known: InputPosition, entry: ExecuteTransformInput) -> InputPosition:
    """How far an input is taken after a run that found it at a position."""
    _require(
        (entry.prev_block_hash, entry.prev_offset) == (known.block_hash, known.offset),
        f"the input {entry.dataset_id} goes on after block {entry.prev_block_hash} and offset {entry.prev_offset}, "
        f"and was taken up to block {known.block_hash} and offset {known.offset}",
    )
    _require(
        entry.new_offset is None or known.offset is None or entry.new_offset > known.offset,
        f"the input {entry.dataset_id} goes from offset {known.offset} to {entry.new_offset}",
    )
    _require(
        entry.new_offset is None or entry.new_block_hash is not None,
        f"the input {entry.dataset_id} has new records and no new block",
    )
    _require(
        entry.new_block_hash is None or entry.new_block_hash != known.block_hash,
        f"the input {entry.dataset_id} has a new block that is none",
    )
    return InputPosition(
        entry.new_block_hash if entry.new_block_hash is not None else known.block_hash,
        entry.new_offset if entry.new_offset is not None else known.offset,
    )


def _with_data(state: ChainState, event: AddData | ExecuteTransform, before: ChainState) -> ChainState:
    """What both events have in common: offsets go on, the watermark does not fall, and something happens."""
    checkpoint = before.checkpoint.physical_hash if before.checkpoint is not None else None
    _require(
        event.prev_checkpoint == checkpoint,
        f"its previous checkpoint is {event.prev_checkpoint}, and the last one is {checkpoint}",
    )
    _require(
        event.prev_offset == before.last_offset,
        f"its previous offset is {event.prev_offset}, and the last one is {before.last_offset}",
    )
    if before.watermark is not None:
        _require(
            event.new_watermark is not None and event.new_watermark >= before.watermark,
            f"its watermark {event.new_watermark} is before {before.watermark}, the last one",
        )
    if event.new_data is not None:
        _require(before.schema is not None, "there is no SetDataSchema before it")
        _require_slice(before, event.new_data)
        state = replace(state, last_offset=event.new_data.offset_interval.end)
    if event.new_checkpoint is not None:
        _require_algorithm(event.new_checkpoint.physical_hash, HashAlgorithm.SHA3_256, "checkpoint's physical hash")
    return _changed(before, replace(state, watermark=event.new_watermark, checkpoint=event.new_checkpoint))


def _require_slice(before: ChainState, new: DataSlice) -> None:
    interval = new.offset_interval
    _require(
        interval.start == before.next_offset,
        f"its records begin with offset {interval.start}, and the next one is {before.next_offset}",
    )
    _require(interval.end >= interval.start, f"its records end with offset {interval.end}, before they begin")
    _require(interval.end < 2**63, f"its records end with offset {interval.end}, which no column can hold")
    _require_algorithm(new.logical_hash, HashAlgorithm.ARROW0_SHA3_256, "logical hash")
    _require_algorithm(new.physical_hash, HashAlgorithm.SHA3_256, "physical hash")


def _require_algorithm(given: Multihash, expected: HashAlgorithm, what: str) -> None:
    _require(given.algorithm is expected, f"its {what} is of {given.algorithm.name}, not {expected.name}")
