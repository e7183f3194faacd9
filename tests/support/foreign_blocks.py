"""Blocks as another program writes them, from the published FlatBuffers schema alone: nothing of our encoder is used.

The tables are those of schemas-generated/flatbuffers/opendatafabric.fbs of Open Data Fabric 0.39 (0ed3347), as far as
these tests need them. Slots are filled from the last to the first and equal strings are stored once, so that no byte of
a block depends on how we lay one out.
"""

from enum import Enum
from typing import Any

import flatbuffers

from dagster_versioned.odf.blocks.block import Block

_UNIONS = {
    "MetadataEvent": "AddData ExecuteTransform Seed SetPollingSource SetTransform SetVocab SetAttachments SetInfo "
    "SetLicense SetDataSchema AddPushSource DisablePushSource DisablePollingSource",
    "ReadStep": "ReadStepCsv ReadStepGeoJson ReadStepEsriShapefile ReadStepParquet ReadStepJson ReadStepNdJson",
    "Transform": "TransformSql",
    "MergeStrategy": "MergeStrategyAppend MergeStrategyLedger MergeStrategySnapshot MergeStrategyChangelogStream "
    "MergeStrategyUpsertStream",
    "DataType": "DataTypeBinary DataTypeBool DataTypeDate DataTypeDecimal DataTypeDuration DataTypeFloat16 "
    "DataTypeFloat32 DataTypeFloat64 DataTypeInt8 DataTypeInt16 DataTypeInt32 DataTypeInt64 DataTypeUInt8 "
    "DataTypeUInt16 DataTypeUInt32 DataTypeUInt64 DataTypeList DataTypeMap DataTypeNull DataTypeOption DataTypeStruct "
    "DataTypeTime DataTypeTimestamp DataTypeString",
}
_TABLES = {
    "MetadataBlock": "system_time:Timestamp prev_block_hash:[ubyte] sequence_number:uint64 event:MetadataEvent",
    "Seed": "dataset_id:[ubyte] dataset_kind:enum32",
    "AddPushSource": "source_name:string read:ReadStep preprocess:Transform merge:MergeStrategy",
    "ReadStepParquet": "ddl_schema:[string] schema:DataSchema",
    "MergeStrategyAppend": "",
    "SetTransform": "inputs:[TransformInput] transform:Transform",
    "TransformInput": "dataset_ref:string alias:string",
    "TransformSql": "engine:string version:string query:string queries:[SqlQueryStep] temporal_tables:[TemporalTable]",
    "SqlQueryStep": "alias:string query:string",
    "SetDataSchema": "raw_arrow_schema:[ubyte] schema:DataSchema",
    "DataSchema": "fields:[DataField] extra:ExtraAttributes",
    "DataField": "name:string type:DataType extra:ExtraAttributes",
    "ExtraAttributes": "entries:string",
    "AddData": "prev_checkpoint:[ubyte] prev_offset:uint64? new_data:DataSlice new_checkpoint:Checkpoint "
    "new_watermark:Timestamp new_source_state:SourceState extra:ExtraAttributes",
    "ExecuteTransform": "query_inputs:[ExecuteTransformInput] prev_checkpoint:[ubyte] prev_offset:uint64? "
    "new_data:DataSlice new_checkpoint:Checkpoint new_watermark:Timestamp",
    "ExecuteTransformInput": "dataset_id:[ubyte] prev_block_hash:[ubyte] new_block_hash:[ubyte] prev_offset:uint64? "
    "new_offset:uint64?",
    "DataSlice": "logical_hash:[ubyte] physical_hash:[ubyte] offset_interval:OffsetInterval size:uint64",
    "OffsetInterval": "start:uint64 end:uint64",
    "DataTypeDecimal": "precision:uint32 scale:int32",
    "DataTypeTimestamp": "unit:enum16? timezone:string",
    "DataTypeTime": "unit:enum16?",
    "DataTypeOption": "inner:DataType",
    "DataTypeList": "item_type:DataType fixed_length:uint64?",
    "DataTypeStruct": "fields:[DataField]",
    "DataTypeInt8": "",
    "DataTypeInt32": "",
    "DataTypeInt64": "",
    "DataTypeUInt8": "",
    "DataTypeUInt64": "",
    "DataTypeString": "",
}
_NUMBERS = {"uint64": "Uint64", "uint32": "Uint32", "int32": "Int32", "enum32": "Int32", "enum16": "Int16"}


def foreign_block(block: Block, manifest_version: int = 2) -> bytes:
    """The bytes of a block. Times are aligned as stock FlatBuffers aligns them, whatever the manifest's version."""
    builder = flatbuffers.Builder(0)
    builder.Finish(_table(builder, "MetadataBlock", block))
    content = bytes(builder.Output())
    outer = flatbuffers.Builder(0)
    vector = outer.CreateByteVector(content)
    outer.StartObject(3)
    outer.PrependUOffsetTRelativeSlot(2, vector, 0)
    outer.PrependInt32Slot(1, manifest_version, 0)
    outer.PrependInt64Slot(0, 0x400000, 0)
    outer.Finish(outer.EndObject())
    return bytes(outer.Output())


def foreign_table(name: str, value: Any) -> bytes:
    """The bytes of a table alone."""
    builder = flatbuffers.Builder(0)
    builder.Finish(_table(builder, name, value))
    return bytes(builder.Output())


def _table(builder: Any, name: str, value: Any) -> int:
    slots: list[tuple[int, str, Any, int]] = []
    slot = 0
    for declared in _TABLES[name].split():
        field, _, kind = declared.partition(":")
        part = getattr(value, field)
        is_union = kind in _UNIONS
        if part is not None:
            slots.append((slot, kind, part, _written(builder, kind, part)))
        slot += 1 + is_union
    builder.StartObject(slot)
    for at, kind, part, offset in reversed(slots):
        if kind in _UNIONS:
            builder.PrependUOffsetTRelativeSlot(at + 1, offset, 0)
            builder.PrependUint8Slot(at, _UNIONS[kind].split().index(type(part).__name__) + 1, 0)
        elif kind == "Timestamp":
            builder.PrependStructSlot(at, _timestamp(builder, part), 0)
        elif kind.rstrip("?") in _NUMBERS:
            number = list(type(part)).index(part) if isinstance(part, Enum) else part
            default = None if kind.endswith("?") else 0
            getattr(builder, f"Prepend{_NUMBERS[kind.rstrip('?')]}Slot")(at, number, default)
        else:
            builder.PrependUOffsetTRelativeSlot(at, offset, 0)
    return int(builder.EndObject())


def _written(builder: Any, kind: str, part: Any) -> int:
    if kind == "string":
        return int(builder.CreateSharedString(part))
    if kind == "[ubyte]":
        return int(builder.CreateByteVector(bytes(part)))
    if kind in _UNIONS:
        return _table(builder, type(part).__name__, part)
    if kind.startswith("["):
        offsets = [_written(builder, kind.strip("[]"), one) for one in part]
        builder.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            builder.PrependUOffsetTRelative(offset)
        return int(builder.EndVector())
    return _table(builder, kind, part) if kind in _TABLES else 0


def _timestamp(builder: Any, moment: Any) -> int:
    builder.Prep(4, 16)
    builder.PrependUint32(moment.nanoseconds)
    builder.PrependUint32(moment.seconds_from_midnight)
    builder.Pad(2)
    builder.PrependUint16(moment.ordinal)
    builder.PrependInt32(moment.year)
    return int(builder.Offset())
