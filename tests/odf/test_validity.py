"""What may follow what: every rule of a chain, kept and broken."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from dagster_versioned.errors import ChainCorrupt
from dagster_versioned.odf.blocks.events import (
    AddData,
    AddPushSource,
    AttachmentEmbedded,
    AttachmentsEmbedded,
    Checkpoint,
    DatasetKind,
    DisablePollingSource,
    DisablePushSource,
    ExecuteTransform,
    ExecuteTransformInput,
    FetchStepUrl,
    MergeStrategyAppend,
    MergeStrategyLedger,
    ReadStepNdJson,
    ReadStepParquet,
    Seed,
    SetAttachments,
    SetDataSchema,
    SetInfo,
    SetLicense,
    SetPollingSource,
    SetTransform,
    SetVocab,
    SourceState,
    TransformInput,
    TransformSql,
)
from dagster_versioned.odf.blocks.validity import VOCABULARY, InputPosition, validate
from dagster_versioned.odf.identity.dataset_id import DatasetId
from dagster_versioned.odf.identity.multihash import HashAlgorithm, Multihash
from support.odf_chains import DATASET, OTHER, THIRD, Chain, moment, named, schema_of, slice_of

POLLING = SetPollingSource(
    fetch=FetchStepUrl("https://a/b.parquet"), read=ReadStepParquet(), merge=MergeStrategyAppend()
)
PUSH = AddPushSource(source_name="p", read=ReadStepNdJson(), merge=MergeStrategyLedger(("id",)))
LICENSE = SetLicense(short_name="CC0", name="Creative Commons Zero", website_url="https://example.org")
README = SetAttachments(AttachmentsEmbedded((AttachmentEmbedded("README.md", "# Hello"),)))


def transform(*ids: DatasetId, query: str = "SELECT 1", **inputs: Any) -> SetTransform:
    entries = tuple(TransformInput(str(dataset_id), f"input{index}") for index, dataset_id in enumerate(ids))
    return SetTransform(inputs.get("inputs", entries), TransformSql("spark", "4.3.0", query))


def root() -> Chain:
    """Data in two slices, offsets 0 to 9, up to day 5."""
    chain = Chain.root().append(PUSH).append(schema_of(id=pa.int64()))
    chain.add(6, new_watermark=moment(4), new_source_state=SourceState("p", "odf/etag", "1"))
    return chain.add(4, new_watermark=moment(5), new_checkpoint=Checkpoint(named("checkpoint"), 10))


def taken(dataset_id: DatasetId, before: InputPosition, block: str | None, offset: int | None) -> ExecuteTransformInput:
    new = named(block) if block else None
    return ExecuteTransformInput(dataset_id, before.block_hash, new, before.offset, offset)


def derivative() -> Chain:
    """Two inputs, one of them taken to offset 7, and ten records."""
    chain = Chain.derivative().append(transform(OTHER, THIRD)).append(schema_of(id=pa.int64()))
    inputs = (taken(OTHER, InputPosition(), "a", 7), taken(THIRD, InputPosition(), "b", None))
    return chain.append(ExecuteTransform(inputs, new_data=slice_of(0, 9), new_watermark=moment(5)))


def executed(chain: Chain, **changed: Any) -> ExecuteTransform:
    """The next run over one more block of the first input."""
    state = chain.state
    assert state is not None
    inputs = (taken(OTHER, state.inputs[OTHER], "c", 8), taken(THIRD, state.inputs[THIRD], None, None))
    values: dict[str, Any] = {
        "query_inputs": inputs,
        "prev_offset": state.last_offset,
        "new_data": slice_of(10, 12),
        "new_watermark": state.watermark,
    }
    return ExecuteTransform(**(values | changed))


def added(**changed: Any) -> AddData:
    """Three more records for `root`."""
    values: dict[str, Any] = {
        "prev_checkpoint": named("checkpoint"),
        "prev_offset": 9,
        "new_data": slice_of(10, 12),
        "new_checkpoint": Checkpoint(named("checkpoint"), 10),
        "new_watermark": moment(5),
    }
    return AddData(**(values | changed))


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


Broken = tuple[Callable[[], Chain], Any, str]
BROKEN: dict[str, Broken] = {
    "no seed": (Chain, SetInfo("x"), "begins with Seed"),
    "second seed": (root, Seed(DATASET, DatasetKind.ROOT), "one Seed"),
    "data before a schema": (Chain.root, AddData(new_data=slice_of(0, 3)), "no SetDataSchema before"),
    "no data, watermark or state": (Chain.root, AddData(), "changes nothing"),
    "data that add nothing": (root, added(new_data=None), "changes nothing"),
    "offsets overlap": (root, added(new_data=slice_of(9, 12)), "begin with offset 9, and the next one is 10"),
    "offsets leave a gap": (root, added(new_data=slice_of(11, 12)), "begin with offset 11, and the next one is 10"),
    "offsets end before they begin": (root, added(new_data=slice_of(10, 9)), "before they begin"),
    "previous offset is another": (root, added(prev_offset=8), "previous offset is 8, and the last one is 9"),
    "previous offset is missing": (root, added(prev_offset=None), "previous offset is None, and the last one is 9"),
    "previous checkpoint is another": (root, added(prev_checkpoint=None), "previous checkpoint is None"),
    "watermark falls": (root, added(new_watermark=moment(4)), "watermark 2024-01-04T12:00:00Z is before 2024-01-05"),
    "watermark is dropped": (root, added(new_watermark=None), "watermark None is before"),
    "logical hash of another kind": (
        root,
        added(new_data=replace(slice_of(10, 12), logical_hash=named("x"))),
        "logical hash is of SHA3_256, not ARROW0_SHA3_256",
    ),
    "physical hash of another kind": (
        root,
        added(new_data=replace(slice_of(10, 12), physical_hash=Multihash(HashAlgorithm.ARROW0_SHA3_256, bytes(32)))),
        "physical hash is of ARROW0_SHA3_256, not SHA3_256",
    ),
    "column removed": (root, schema_of(), "'id' is gone"),
    "column narrowed": (root, schema_of(id=pa.int32()), "'id' was int64 and would be int32"),
    "column widened": (root, schema_of(id=pa.float64()), "would be double"),
    "schema again": (root, schema_of(id=pa.int64()), "changes nothing"),
    "schema of nothing": (root, SetDataSchema(b"abcd"), "cannot be read as an Arrow schema"),
    "vocabulary again": (root, SetVocab(), "changes nothing"),
    "no information": (root, SetInfo(), "changes nothing"),
    "license again": (lambda: root().append(LICENSE), LICENSE, "changes nothing"),
    "attachments again": (lambda: root().append(README), README, "changes nothing"),
    "push source again": (root, PUSH, "changes nothing"),
    "polling source again": (lambda: Chain.root().append(POLLING), POLLING, "changes nothing"),
    "polling beside push": (root, POLLING, r"push sources \['p'\] are active"),
    "push beside polling": (lambda: Chain.root().append(POLLING), PUSH, "a polling source is active"),
    "push source that is not active": (root, DisablePushSource("q"), "no push source 'q' is active"),
    "polling source that is not active": (root, DisablePollingSource(), "no polling source is active"),
    "transform of a root": (root, transform(OTHER), "belongs to a dataset of kind Derivative"),
    "execution of a root": (root, ExecuteTransform(()), "belongs to a dataset of kind Derivative"),
    "data of a derivative": (derivative, AddData(new_watermark=moment(9)), "belongs to a dataset of kind Root"),
    "source of a derivative": (derivative, POLLING, "belongs to a dataset of kind Root"),
    "no inputs": (Chain.derivative, transform(), "has no inputs"),
    "input without alias": (
        Chain.derivative,
        transform(inputs=(TransformInput(str(OTHER)),)),
        "an input has no alias",
    ),
    "input by name": (Chain.derivative, transform(inputs=(TransformInput("cities", "c"),)), "is no dataset id"),
    "same alias twice": (
        Chain.derivative,
        transform(inputs=(TransformInput(str(OTHER), "a"), TransformInput(str(THIRD), "a"))),
        "the same alias",
    ),
    "input of itself": (Chain.derivative, transform(DATASET), "is an input of itself"),
    "transform again": (derivative, transform(OTHER, THIRD), "changes nothing"),
    "execution before a transform": (Chain.derivative, ExecuteTransform(()), "no SetTransform before it"),
    "inputs out of order": (
        derivative,
        executed(derivative(), query_inputs=tuple(reversed(executed(derivative()).query_inputs))),
        "its inputs are .*03.*02.*, and SetTransform's, in order, .*02.*03",
    ),
    "input left out": (
        derivative,
        executed(derivative(), query_inputs=executed(derivative()).query_inputs[:1]),
        "inputs are",
    ),
    "input goes on elsewhere": (
        derivative,
        executed(
            derivative(),
            query_inputs=(taken(OTHER, InputPosition(named("z"), 7), "c", 8), *executed(derivative()).query_inputs[1:]),
        ),
        "and was taken up to block",
    ),
    "input goes backwards": (
        derivative,
        executed(
            derivative(),
            query_inputs=(taken(OTHER, InputPosition(named("a"), 7), "c", 7), *executed(derivative()).query_inputs[1:]),
        ),
        "goes from offset 7 to 7",
    ),
    "new records without a new block": (
        derivative,
        executed(
            derivative(),
            query_inputs=(
                taken(OTHER, InputPosition(named("a"), 7), None, 8),
                *executed(derivative()).query_inputs[1:],
            ),
        ),
        "new records and no new block",
    ),
    "new block that is the old one": (
        derivative,
        executed(
            derivative(),
            query_inputs=(taken(OTHER, InputPosition(named("a"), 7), "a", 8), *executed(derivative()).query_inputs[1:]),
        ),
        "a new block that is none",
    ),
    "execution of nothing": (
        derivative,
        executed(
            derivative(),
            query_inputs=tuple(
                replace(entry, new_block_hash=None, new_offset=None) for entry in executed(derivative()).query_inputs
            ),
            new_data=None,
        ),
        "changes nothing",
    ),
}


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
