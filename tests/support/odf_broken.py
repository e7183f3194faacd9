"""Chains that keep the rules, and blocks that would break one: by its name, with what is then reported."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa

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
from dagster_versioned.odf.blocks.validity import InputPosition
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
    "hash of a checkpoint of another kind": (
        root,
        added(new_checkpoint=Checkpoint(Multihash(HashAlgorithm.ARROW0_SHA3_256, bytes(32)), 10)),
        "checkpoint's physical hash is of ARROW0_SHA3_256, not SHA3_256",
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
