"""Blocks of known hashes: values and SHA3-256 are those of the reference implementation's own test of stable bytes.

From https://github.com/kamu-data/kamu-cli, src/odf/metadata/tests/tests/test_serde_flatbuffers.rs: at f95532386 for
manifests of version 3, at 130b30f83^ for version 2 (kamu 0.248 to 0.264).
"""

from typing import Any

from dagster_versioned.odf.blocks.block import Block
from dagster_versioned.odf.blocks.data_schema import (
    DataField,
    DataSchema,
    DataTypeInt32,
    DataTypeList,
    DataTypeOption,
    DataTypeString,
    DataTypeUInt64,
    ExtraAttributes,
)
from dagster_versioned.odf.blocks.events import (
    AddData,
    CompressionFormat,
    DataSlice,
    EventTimeSourceFromMetadata,
    ExecuteTransform,
    ExecuteTransformInput,
    FetchStepFilesGlob,
    MergeStrategyLedger,
    MetadataEvent,
    OffsetInterval,
    PrepStepDecompress,
    ReadStepGeoJson,
    SetDataSchema,
    SetPollingSource,
    SetTransform,
    SourceCachingForever,
    SourceOrdering,
    SourceState,
    Timestamp,
    TransformInput,
    TransformSql,
)
from dagster_versioned.odf.identity.dataset_id import DatasetId
from dagster_versioned.odf.identity.multihash import Multihash

_NOON = Timestamp(2020, 1, 43_200)
_INPUT_1 = DatasetId(bytes.fromhex("816ef0a9abe93aba816ef0a9abe93aba90e6065747170300c0d3d30c2cd8d7a4"))
_INPUT_2 = DatasetId(bytes.fromhex("826ef0a9abea3a3a826ef0a9abea3a3a90e6065747270300c1d3b30a2cd9d724"))


def _hash(text: str) -> Multihash:
    return Multihash.sha3_256(text.encode())


def _slice(logical: str, physical: str, end: int, size: int) -> DataSlice:
    return DataSlice(_hash(logical), _hash(physical), OffsetInterval(10, end), size)


def _added(**changed: Any) -> AddData:
    return AddData(**({"prev_checkpoint": _hash("checkpoint"), "prev_offset": 9} | changed))


def _polled(read: ReadStepGeoJson) -> SetPollingSource:
    return SetPollingSource(
        fetch=FetchStepFilesGlob(
            "./*.csv", EventTimeSourceFromMetadata(), SourceCachingForever(), SourceOrdering.BY_NAME
        ),
        prepare=(PrepStepDecompress(CompressionFormat.GZIP),),
        read=read,
        preprocess=TransformSql("spark", "1.0.0", "SELECT * FROM input"),
        merge=MergeStrategyLedger(("a",)),
    )


_STATE = SourceState("push-source-1", "kamu/kafka-offset", "SOME_OFFSET")
_SLICE = _slice("logical", "physical", 99, 100)

SCHEMA = DataSchema(
    (
        DataField(
            "city",
            DataTypeString(),
            ExtraAttributes('{"arrow.apache.org/bufferEncoding":{"kind":"View","offsetBitWidth":32}}'),
        ),
        DataField("population", DataTypeUInt64()),
        DataField(
            "census",
            DataTypeOption(DataTypeString()),
            ExtraAttributes('{"opendatafabric.org/type":{"kind":"ObjectLink","linkType":{"kind":"Multihash"}}}'),
        ),
        DataField("links", DataTypeList(DataTypeString())),
    ),
    ExtraAttributes('{"kamu.dev/archetype":"Collection"}'),
)

GOLDEN: dict[str, tuple[MetadataEvent, str, str]] = {
    "data: nothing": (
        AddData(),
        "73e2977b8beae4aef53670067c1173b9d68e69721908d080b84286ab366d1e14",
        "a93874702479f83ddff1e7a660ca78085def333c86501b0d895fa3aec79c7189",
    ),
    "data: what was before": (
        AddData(prev_checkpoint=_hash("prev"), prev_offset=9),
        "32516689d582e02e77778af75a71b6d131a640d0bebed99b99d96b385cee915f",
        "86aeb7dee0502b4886761de5e45b5111c0bc9e0fbfee02e3685487109305ef56",
    ),
    "data: a watermark": (
        AddData(prev_checkpoint=_hash("prev"), prev_offset=9, new_watermark=_NOON),
        "1ad91cabca81e1f1771f28070980bfdcf409e5f8a877b3976b611401d2998189",
        "d1b412dab2a6af53f3e1b183834557bbf1c4689e2fc9b92fc0d04741ef607ecc",
    ),
    "data: a slice": (
        AddData(prev_checkpoint=_hash("prev"), prev_offset=9, new_data=_SLICE, new_watermark=_NOON),
        "ec1d3f6aa39bb256fcae16d79a95705f614e26d9a86d393b6f9e6b19a60d0df6",
        "1fcf10cb843746c4c44e6c288e216995701aa073426fc4bebe14f1680f8ec6d1",
    ),
    "polling source: columns in SQL": (
        _polled(ReadStepGeoJson(("a: INT", "b: INT"))),
        "18cc1680b3d36f63358b59d469d76dcbf71ddac3ea66a693ce4158cfc5dfb28d",
        "eb61498b7362d334131a8486a5ce4cc2638d7c1aa3e4da82a19cf834a77df718",
    ),
    "polling source: logical types": (
        _polled(ReadStepGeoJson(schema=DataSchema((DataField("a", DataTypeInt32()), DataField("b", DataTypeInt32()))))),
        "39cfd70254179a7cdea4263f951b8acbdc2b8a20dc0c1c4c572ab6da2dd9b28a",
        "f96c90e9e9700819ba05d87f66b200a18a08404706ac62cde6d68bc350e73861",
    ),
    "data: the state of a source": (
        _added(new_data=_SLICE, new_source_state=_STATE),
        "db5044313bbd596fb54bef9387ad61a18206d1e93e833db4d1159d20cd3cac58",
        "9326dc5daab04877a9f006ff6b1636a8fa9dcec9615b54f741a1a90091eaf694",
    ),
    "data: attributes": (
        _added(
            new_data=_SLICE,
            new_source_state=_STATE,
            extra=ExtraAttributes('{"opendatafabric.org/linkedObjects":{"numObjectsNaive":10,"sizeNaive":100}}'),
        ),
        "00b4cf8b3b22ff71931696f13cc5c06f80eb3360b6d7dccdd3a3b4fb1b5d943c",
        "54f64c642cca6f67416ebe2b29e5d9414ece91f819efe97cd437fbe542c61bbb",
    ),
    "transform": (
        SetTransform(
            (TransformInput(str(_INPUT_1), "input1"), TransformInput("input2", "input2")),
            TransformSql("spark", query="SELECT * FROM input1 UNION ALL SELECT * FROM input2"),
        ),
        "dc2ab3737792021b6794d3969315bb521701780c91548104f149906d98c8da70",
        "bb6aa1f9689b794c75affa709ae2477b209411d9ad092c2318ecd9ea94121bcc",
    ),
    "run of a transform": (
        ExecuteTransform(
            query_inputs=(
                ExecuteTransformInput(_INPUT_1, _hash("a"), _hash("b"), 9, 20),
                ExecuteTransformInput(_INPUT_2, _hash("a"), _hash("b")),
            ),
            prev_checkpoint=_hash("checkpoint"),
            prev_offset=9,
            new_data=_slice("foo", "bar", 19, 10),
            new_watermark=_NOON,
        ),
        "a955281dca303056a88e39291d17e045d88ecdafca3ef9e75b09b83169633b52",
        "21cab7396525e614beeafe21c05a38bf597a39a191cc14147b9c5ec32210cf82",
    ),
    "schema: logical types": (
        SetDataSchema(schema=SCHEMA),
        "33d0a65cfb9853f14830fc84e443767d9acfedd24d13c3c22bdc82f3be1b507f",
        "80865248519d55fa04598e24ba42884728efe70956e640dca4df5ec8043c69ca",
    ),
}
"""An event, and the hashes of its block with a manifest of version 2 and 3."""


def golden_block(event: MetadataEvent) -> Block:
    """The block in which the reference implementation puts each of them."""
    return Block(_NOON, _hash("prev"), 117, event)
