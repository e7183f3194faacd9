"""The blocks of Open Data Fabric, decoded from their bytes for the second reader.

Written from the published specification alone: the layouts of `opendatafabric.fbs` of open-data-fabric 0.36 and 0.39,
the JSON schemas beside them (what is required) and RFC-002 and RFC-012 (hashes). It shares no line with the package.
"""

import hashlib
import json
import struct
from datetime import date, timedelta
from typing import Any, NoReturn

Document = dict[str, Any]


class Refused(Exception):
    """The dataset breaks the specification."""


class Unspecified(Exception):
    """The specification leaves open what this reader would need."""


def refuse(what: str) -> NoReturn:
    raise Refused(what)


# --- hashes (multihash in multibase, RFC-002 and RFC-012) -------------------------------------------------------------

SHA3_256, ARROW0_SHA3_256 = 0x16, 0x300016
_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 56:
            refuse(f"a hash is cut short: {data.hex()}")
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not data[at - 1] & 0x80:
            return value, at


def _check_multihash(data: bytes) -> bytes:
    found, at = _varint(data, 0)
    length, at = _varint(data, at)
    if found not in (SHA3_256, ARROW0_SHA3_256) or length != 32 or len(data) - at != 32:
        refuse(f"{data.hex()} is not a hash of 32 bytes with a code of the specification")
    return data


def hash_text(text: str) -> str:
    """The hash that a text names, in base16; the text may be in base16 or base58."""
    try:
        if (text[:1] == "f" and text == text.lower()) or (text[:1] == "F" and text == text.upper()):
            data = bytes.fromhex(text[1:])
        elif text[:1] == "z":
            number = 0
            for letter in text[1:]:
                number = number * 58 + _BASE58.index(letter)
            data = number.to_bytes((number.bit_length() + 7) // 8, "big")
        else:
            refuse(f"{text!r} is in an encoding that is not base16 or base58")
    except ValueError:
        refuse(f"{text!r} is not what its prefix promises")
    return "f" + _check_multihash(data).hex()


def physical_hash(data: bytes) -> str:
    return "f1620" + hashlib.sha3_256(data).hexdigest()


# --- flatbuffers (layouts of opendatafabric.fbs; `!` required by the JSON schemas, `?` null unless present) -----------

_NUMBERS = {"u64": "Q", "u32": "I", "i64": "q", "i32": "i", "bool": "B"}
_ENUMS = {
    "DatasetKind": ("i", "Root Derivative"),
    "MqttQos": ("i", "AtMostOnce AtLeastOnce ExactlyOnce"),
    "SourceOrdering": ("i", "ByEventTime ByName"),
    "CompressionFormat": ("i", "Gzip Zip"),
    "TimeUnit": ("h", "Second Millisecond Microsecond Nanosecond"),
}
_UNIONS = {
    "ReadStep": "Csv GeoJson EsriShapefile Parquet Json NdJson NdGeoJson",
    "Transform": "Sql",
    "MergeStrategy": "Append Ledger Snapshot ChangelogStream UpsertStream",
    "Attachments": "Embedded",
    "EventTimeSource": "FromMetadata FromPath FromSystemTime",
    "SourceCaching": "Forever",
    "FetchStep": "Url FilesGlob Container Mqtt EthereumLogs",
    "PrepStep": "Decompress Pipe",
    "DataType": "Binary Bool Date Decimal Duration Float16 Float32 Float64 Int8 Int16 Int32 Int64 UInt8 UInt16 UInt32"
    " UInt64 List Map Null Option Struct Time Timestamp String",
    "MetadataEvent": "AddData ExecuteTransform Seed SetPollingSource SetTransform SetVocab SetAttachments SetInfo"
    " SetLicense SetDataSchema AddPushSource DisablePushSource DisablePollingSource",
}
_TABLES = {
    "Manifest": "kind:i64 version:i32 content!:bytes",
    "MetadataBlock": "system_time!:time prev_block_hash:hash sequence_number:u64 event!:MetadataEvent",
    "OffsetInterval": "start:u64 end:u64",
    "DataSlice": "logical_hash!:hash physical_hash!:hash offset_interval!:OffsetInterval size:u64",
    "Checkpoint": "physical_hash!:hash size:u64",
    "SourceState": "source_name!:str kind!:str value!:str",
    "ExtraAttributes": "entries!:json",
    "AddData": "prev_checkpoint:hash prev_offset:u64? new_data:DataSlice new_checkpoint:Checkpoint new_watermark:time"
    " new_source_state:SourceState extra:ExtraAttributes",
    "ExecuteTransformInput": "dataset_id!:did prev_block_hash:hash new_block_hash:hash prev_offset:u64?"
    " new_offset:u64?",
    "ExecuteTransform": "query_inputs!:[ExecuteTransformInput] prev_checkpoint:hash prev_offset:u64? new_data:DataSlice"
    " new_checkpoint:Checkpoint new_watermark:time",
    "Seed": "dataset_id!:did dataset_kind:DatasetKind",
    "SetPollingSource": "fetch!:FetchStep prepare:[PrepStepWrapper] read!:ReadStep preprocess:Transform"
    " merge!:MergeStrategy",
    "SetTransform": "inputs!:[TransformInput] transform!:Transform",
    "TransformInput": "dataset_ref!:str alias:str",
    "SetVocab": "offset_column:str operation_type_column:str system_time_column:str event_time_column:str",
    "SetAttachments": "attachments!:Attachments",
    "AttachmentsEmbedded": "items!:[AttachmentEmbedded]",
    "AttachmentEmbedded": "path!:str content!:str",
    "SetInfo": "description:str keywords:[str]",
    "SetLicense": "short_name!:str name!:str spdx_id:str website_url!:str",
    "SetDataSchema": "raw_arrow_schema:bytes schema:DataSchema",
    "DataSchema": "fields!:[DataField] extra:ExtraAttributes",
    "DataField": "name!:str type!:DataType extra:ExtraAttributes",
    "AddPushSource": "source_name!:str read!:ReadStep preprocess:Transform merge!:MergeStrategy",
    "DisablePushSource": "source_name!:str",
    "DisablePollingSource": "",
    "ReadStepCsv": "ddl_schema:[str] separator:str encoding:str quote:str escape:str header:bool? infer_schema:bool?"
    " null_value:str date_format:str timestamp_format:str schema:DataSchema",
    "ReadStepGeoJson": "ddl_schema:[str] schema:DataSchema",
    "ReadStepEsriShapefile": "ddl_schema:[str] sub_path:str schema:DataSchema",
    "ReadStepParquet": "ddl_schema:[str] schema:DataSchema",
    "ReadStepJson": "sub_path:str ddl_schema:[str] date_format:str encoding:str timestamp_format:str schema:DataSchema",
    "ReadStepNdJson": "ddl_schema:[str] date_format:str encoding:str timestamp_format:str schema:DataSchema",
    "ReadStepNdGeoJson": "ddl_schema:[str] schema:DataSchema",
    "TransformSql": "engine!:str version:str query:str queries:[SqlQueryStep] temporal_tables:[TemporalTable]",
    "SqlQueryStep": "alias:str query!:str",
    "TemporalTable": "name!:str primary_key!:[str]",
    "MergeStrategyAppend": "",
    "MergeStrategyLedger": "primary_key!:[str]",
    "MergeStrategySnapshot": "primary_key!:[str] compare_columns:[str]",
    "MergeStrategyChangelogStream": "primary_key!:[str]",
    "MergeStrategyUpsertStream": "primary_key!:[str]",
    "EventTimeSourceFromMetadata": "",
    "EventTimeSourceFromPath": "pattern!:str timestamp_format:str",
    "EventTimeSourceFromSystemTime": "",
    "SourceCachingForever": "",
    "RequestHeader": "name!:str value!:str",
    "EnvVar": "name!:str value:str",
    "MqttTopicSubscription": "path!:str qos:MqttQos?",
    "FetchStepUrl": "url!:str event_time:EventTimeSource cache:SourceCaching headers:[RequestHeader]",
    "FetchStepFilesGlob": "path!:str event_time:EventTimeSource cache:SourceCaching order:SourceOrdering?",
    "FetchStepContainer": "image!:str command:[str] args:[str] env:[EnvVar]",
    "FetchStepMqtt": "host!:str port:i32 username:str password:str topics!:[MqttTopicSubscription]",
    "FetchStepEthereumLogs": "chain_id:u64? node_url:str filter:str signature:str",
    "PrepStepWrapper": "value!:PrepStep",
    "PrepStepDecompress": "format:CompressionFormat sub_path:str",
    "PrepStepPipe": "command!:[str]",
    "DataTypeBinary": "fixed_length:u64?",
    "DataTypeDecimal": "precision:u32 scale:i32",
    "DataTypeDuration": "unit:TimeUnit?",
    "DataTypeList": "item_type!:DataType fixed_length:u64?",
    "DataTypeMap": "key_type!:DataType value_type!:DataType keys_sorted:bool?",
    "DataTypeOption": "inner!:DataType",
    "DataTypeStruct": "fields!:[DataField]",
    "DataTypeTime": "unit:TimeUnit?",
    "DataTypeTimestamp": "unit:TimeUnit? timezone:str",
}


_BARE = {"ExtraAttributes": "entries", "PrepStepWrapper": "value"}  # tables that only FlatBuffers needs


class Flatbuffer:
    """Decodes a table of the specification from its bytes; an offset that leaves the buffer is refused."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.left = len(data)  # tables that may still be decoded: shared parts must not multiply without end

    def root(self, table: str) -> Document:
        try:
            return self._table(self._follow(0), table)
        except RecursionError:
            refuse(f"{table} is nested too deep")

    def number(self, at: int, code: str) -> int:
        if not 0 <= at <= len(self.data) - struct.calcsize("<" + code):
            refuse("a flatbuffer points beyond its end")
        return struct.unpack_from("<" + code, self.data, at)[0]

    def _follow(self, at: int) -> int:
        return at + (self.number(at, "I") or refuse("a flatbuffer points at itself"))

    def _vector(self, at: int, width: int) -> range:
        start, count = at + 4, self.number(at, "I")
        if start + count * width > len(self.data):
            refuse("a vector of a flatbuffer is longer than the buffer")
        return range(start, start + count * width, width)

    def _table(self, at: int, table: str) -> Document:
        self.left -= 1
        if self.left < 0:
            refuse("a flatbuffer names more tables than it has bytes")
        vtable = at - self.number(at, "i")
        length = self.number(vtable, "H")
        if length < 4 or length % 2:
            refuse(f"the vtable of {table} has {length} bytes")
        slots = [self.number(vtable + entry, "H") for entry in range(4, length, 2)]
        document: Document = {}
        taken = iter(slots)
        for text in _TABLES.get(table, "").split():
            name, _, kind = text.partition(":")
            tag = next(taken, 0) if kind in _UNIONS else 0
            slot = next(taken, 0)
            parts = name.rstrip("!").split("_")
            value = self._value(at + slot, kind, at + tag if tag else None) if slot else _absent(kind)
            if value is not None:
                document[parts[0] + "".join(part.title() for part in parts[1:])] = value
            elif name.endswith("!"):
                refuse(f"{table} has no {name[:-1]}")
        if any(taken):
            refuse(f"{table} has fields that the specification does not know")
        return document[_BARE[table]] if table in _BARE else document

    def _value(self, at: int, kind: str, tag: int | None) -> Any:
        plain = kind.rstrip("?")
        if plain in _NUMBERS:
            number = self.number(at, _NUMBERS[plain])
            return bool(number) if plain == "bool" else number
        if plain in _ENUMS:
            code, names = _ENUMS[plain]
            return _named(names, self.number(at, code), plain)
        if kind == "time":
            return self._time(at)
        at = self._follow(at)
        if kind in _UNIONS:
            if tag is None:
                refuse(f"a {kind} has no tag")
            name = _named(_UNIONS[kind], self.number(tag, "B") - 1, kind)
            return {"kind": name} | self._table(at, name if kind == "MetadataEvent" else kind + name)
        if kind.startswith("["):
            item = kind[1:-1]
            rows = self._vector(at, 4)
            return [self._bytes(self._follow(row), item) if item == "str" else self._table(self._follow(row), item)
                    for row in rows]  # fmt: skip
        return self._table(at, kind) if kind in _TABLES else self._bytes(at, kind)

    def _bytes(self, at: int, kind: str) -> Any:
        span = self._vector(at, 1)
        data = self.data[span.start : span.stop]
        if kind in ("str", "json"):
            if self.number(span.stop, "B"):
                refuse("a string of a flatbuffer has no end")
            try:
                return data.decode() if kind == "str" else json.loads(data)
            except ValueError as error:
                refuse(f"a {kind} of a flatbuffer cannot be read: {error}")
        if kind == "did":
            if data[:2] != b"\xed\x01" or len(data) != 34:
                refuse(f"{data.hex()} is not the identity of a dataset (an ed25519 key)")
            return "did:odf:f" + data.hex()
        if kind == "bytes":
            return data
        return "f" + _check_multihash(data).hex()

    def _time(self, at: int) -> str:
        year, ordinal = self.number(at, "i"), self.number(at + 4, "H")
        seconds, nanoseconds = self.number(at + 8, "I"), self.number(at + 12, "I")
        if not (1 <= year <= 9999 and seconds < 86400 and nanoseconds < 10**9):
            refuse(f"{year}/{ordinal}, second {seconds}, nanosecond {nanoseconds} is no time")
        day = date(year, 1, 1).toordinal() + ordinal - 1
        if not 1 <= day <= date.max.toordinal() or date.fromordinal(day).year != year:
            refuse(f"year {year} has no day {ordinal}")
        fraction = f".{nanoseconds:09}".rstrip("0").rstrip(".")
        return f"{date.fromordinal(day)}T{timedelta(seconds=seconds)!s:0>8}{fraction}Z"


def _absent(kind: str) -> Any:
    if kind in _ENUMS:
        return _named(_ENUMS[kind][1], 0, kind)
    return (False if kind == "bool" else 0) if kind in _NUMBERS else None


def _named(names: str, number: int, kind: str) -> str:
    known = names.split()
    return known[number] if 0 <= number < len(known) else refuse(f"{kind} has no member {number}")


def moment(text: str) -> tuple[str, str]:
    """A time of a block as a value that sorts."""
    whole, _, fraction = text.rstrip("Z").partition(".")
    return whole, fraction.ljust(9, "0")
