"""What may follow what: every rule of a chain, kept and broken."""

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from dagster_versioned.errors import ChainCorrupt
from dagster_versioned.odf.blocks.events import (
    Checkpoint,
    DatasetKind,
    DisablePollingSource,
    DisablePushSource,
    MergeStrategyAppend,
    Seed,
    SetInfo,
    SetVocab,
    SourceState,
)
from dagster_versioned.odf.blocks.validity import VOCABULARY, InputPosition, validate
from support.odf_broken import BROKEN, POLLING, PUSH, Broken, derivative, executed, root, transform
from support.odf_chains import DATASET, OTHER, THIRD, Chain, moment, named, schema_of


def test_a_chain_says_what_its_next_writer_has_to_know() -> None:
    state = root().append(SetVocab(event_time_column="seen")).append(SetInfo("what it is")).state
    assert state is not None
    assert (state.sequence_number, state.last_offset, state.next_offset) == (6, 9, 10)
    assert state.watermark == moment(5)
    assert state.checkpoint == Checkpoint(named("checkpoint"), 10)
    assert state.source_states == {"p": SourceState("p", "odf/etag", "1")}
    assert state.push_sources == {"p": PUSH}
    assert state.vocab == replace(VOCABULARY, event_time_column="seen")
    assert state.info == SetInfo("what it is")
    schema = state.arrow_schema()
    assert schema is not None
    assert schema.names == ["offset", "op", "system_time", "event_time", "id"]


def test_an_input_is_where_it_was_last_taken_to() -> None:
    chain = derivative()
    chain.append(executed(chain))
    chain.append(transform(THIRD, OTHER, query="SELECT 2"))
    assert chain.state is not None
    assert chain.state.inputs == {OTHER: InputPosition(named("c"), 8), THIRD: InputPosition(named("b"), None)}


def test_records_that_a_filter_drops_are_taken_all_the_same() -> None:
    chain = derivative()
    chain.append(executed(chain, new_data=None))
    assert chain.state is not None
    assert chain.state.inputs[OTHER].offset == 8
    assert chain.state.last_offset == 9


def test_a_source_may_follow_the_other_kind_once_that_is_disabled() -> None:
    chain = Chain.root().append(POLLING).append(DisablePollingSource()).append(PUSH)
    chain.append(replace(PUSH, merge=MergeStrategyAppend())).append(DisablePushSource("p")).append(POLLING)


def test_columns_may_be_added_anywhere() -> None:
    chain = root().append(schema_of(new=pa.string(), id=pa.int64()))
    assert chain.state is not None
    assert chain.add(1, prev_checkpoint=named("checkpoint")).state is not None


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN.keys())
def test_a_block_that_breaks_a_rule_is_named_with_the_rule(broken: Broken) -> None:
    build, event, reason = broken
    chain = build()
    block = chain.next(event)
    name = chain.put(block)
    with pytest.raises(ChainCorrupt, match=reason) as refused:
        validate(chain.state, block, name)
    assert f"Block {block.sequence_number} ({name}, {type(event).__name__})" in str(refused.value)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"sequence_number": 6}, "its number is to be 5"),
        ({"sequence_number": 4}, "its number is to be 5"),
        ({"prev_block_hash": named("fork")}, "and the block before it is"),
        ({"prev_block_hash": None}, "it follows None"),
        ({"system_time": moment(1)}, None),
    ],
)
def test_a_block_has_its_place(changed: dict[str, Any], reason: str | None) -> None:
    chain = root()
    block = chain.next(SetInfo("x"), **changed)
    if reason is None:
        assert validate(chain.state, block, chain.put(block)).info == SetInfo("x")
        return
    with pytest.raises(ChainCorrupt, match=reason):
        validate(chain.state, block, chain.put(block))


def test_time_does_not_go_backwards() -> None:
    chain = root().append(SetInfo("x"), system_time=moment(9))
    chain.append(SetInfo("y"), system_time=moment(9))
    block = chain.next(SetInfo("z"), system_time=moment(8))
    with pytest.raises(ChainCorrupt, match="2024-01-08T12:00:00Z is before 2024-01-09T12:00:00Z"):
        validate(chain.state, block, chain.put(block))


@pytest.mark.parametrize(
    "changed", [{"sequence_number": 1}, {"prev_block_hash": named("before the first")}], ids=["number", "previous"]
)
def test_the_first_block_is_the_first(changed: dict[str, Any]) -> None:
    chain = Chain()
    block = chain.next(Seed(DATASET, DatasetKind.ROOT), **changed)
    with pytest.raises(ChainCorrupt, match="the first block"):
        validate(None, block, chain.put(block))
