"""Columns by their logical types: as the reference implementation encodes them, as Arrow has them, and as people write
them; and chains that state them so are pulled, verified and replayed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_versioned.errors import ChainCorrupt, InvalidInput, UnsupportedFeature, UnsupportedType
from dagster_versioned.odf.blocks import data_schema as odf
from dagster_versioned.odf.blocks.arrow_schema import encode_schema
from dagster_versioned.odf.blocks.block import block_hash, decode_block, encode_block
from dagster_versioned.odf.blocks.data_schema import DataField, DataSchema, ExtraAttributes, TimeUnit
from dagster_versioned.odf.blocks.data_schema_arrow import arrow_schema, from_arrow, logical_columns, to_arrow
from dagster_versioned.odf.blocks.events import AddData, DatasetKind, MetadataEvent, Seed, SetDataSchema
from dagster_versioned.odf.blocks.flatbuffer import decode_table, encode_table
from dagster_versioned.odf.event_table import EventTable
from dagster_versioned.odf.identity.arrow0 import Arrow0
from dagster_versioned.odf.identity.signing_key import SigningKey
from dagster_versioned.odf.manifest import read_snapshot, write_manifest
from dagster_versioned.odf.sharing.transfer import pull
from dagster_versioned.odf.verification.verify import verify
from dagster_versioned.projects.project import Project
from dagster_versioned.tables.event_history import AppendMerge, EventHistory
from support.foreign_blocks import foreign_block, foreign_table
from support.odf_chains import SYSTEM, Chain, schema_of
from support.odf_golden import GOLDEN, SCHEMA, golden_block
from support.odf_graph import SCHEMA as READINGS
from support.odf_graph import Graph, Served, replay


@pytest.mark.parametrize("name", GOLDEN)
def test_a_block_has_the_hash_that_the_reference_gives_it(name: str) -> None:
    event, second, third = GOLDEN[name]
    for version, expected in ((2, second), (3, third)):
        data = encode_block(golden_block(event), version)
        assert block_hash(data).digest.hex() == expected
        assert decode_block(data) == golden_block(event)


# --- Arrow -----------------------------------------------------------------------------------------------------------

TYPES: dict[pa.DataType, odf.DataType] = {
    pa.null(): odf.DataTypeNull(),
    pa.bool_(): odf.DataTypeBool(),
    pa.int8(): odf.DataTypeInt8(),
    pa.uint64(): odf.DataTypeUInt64(),
    pa.float16(): odf.DataTypeFloat16(),
    pa.float64(): odf.DataTypeFloat64(),
    pa.date32(): odf.DataTypeDate(),
    pa.string(): odf.DataTypeString(),
    pa.binary(): odf.DataTypeBinary(),
    pa.binary(16): odf.DataTypeBinary(16),
    pa.decimal128(20, 5): odf.DataTypeDecimal(20, 5),
    pa.decimal256(50, -2): odf.DataTypeDecimal(50, -2),
    pa.duration("us"): odf.DataTypeDuration(TimeUnit.MICROSECOND),
    pa.time32("s"): odf.DataTypeTime(TimeUnit.SECOND),
    pa.time64("ns"): odf.DataTypeTime(TimeUnit.NANOSECOND),
    pa.timestamp("ms", "UTC"): odf.DataTypeTimestamp(TimeUnit.MILLISECOND, "UTC"),
    pa.timestamp("us", "Europe/Oslo"): odf.DataTypeTimestamp(TimeUnit.MICROSECOND, "Europe/Oslo"),
    pa.list_(pa.field("item", pa.int32(), nullable=False)): odf.DataTypeList(odf.DataTypeInt32()),
    pa.list_(pa.string(), 3): odf.DataTypeList(odf.DataTypeOption(odf.DataTypeString()), 3),
    pa.map_(pa.string(), pa.int64()): odf.DataTypeMap(
        odf.DataTypeString(), odf.DataTypeOption(odf.DataTypeInt64()), keys_sorted=False
    ),
    pa.struct([pa.field("x", pa.date32(), nullable=False)]): odf.DataTypeStruct((DataField("x", odf.DataTypeDate()),)),
}


@pytest.mark.parametrize("nullable", [False, True])
def test_every_type_has_one_of_arrow_and_back(nullable: bool) -> None:
    columns = pa.schema([pa.field(str(kind), kind, nullable or kind == pa.null()) for kind in TYPES])
    stated = from_arrow(columns)
    assert [one.type for one in stated.fields] == [
        odf.DataTypeOption(kind) if nullable or kind == odf.DataTypeNull() else kind for kind in TYPES.values()
    ]
    assert to_arrow(stated).equals(columns)


@pytest.mark.parametrize(
    ("other", "plain"),
    [
        (pa.large_string(), pa.string()),
        (pa.string_view(), pa.string()),
        (pa.large_binary(), pa.binary()),
        (pa.date64(), pa.date32()),
        (pa.large_list(pa.int64()), pa.list_(pa.int64())),
    ],
)
def test_how_values_lie_in_memory_is_no_part_of_their_type(other: pa.DataType, plain: pa.DataType) -> None:
    assert to_arrow(from_arrow(pa.schema({"c": other}))).field("c").type == plain


def test_what_is_left_out_has_the_defaults_of_the_specification() -> None:
    stated = DataSchema((DataField("t", odf.DataTypeTimestamp()), DataField("d", odf.DataTypeTime())))
    assert to_arrow(stated).types == [pa.timestamp("ms", "UTC"), pa.time32("ms")]


def test_encodings_that_the_hash_of_records_depends_on_are_kept_to() -> None:
    def stated(kind: odf.DataType, entries: str) -> pa.DataType:
        return to_arrow(DataSchema((DataField("c", kind, ExtraAttributes(entries)),))).field("c").type

    decimal = '{"arrow.apache.org/decimalEncoding":{"bitWidth":%d}}'
    assert stated(odf.DataTypeDecimal(20, 5), decimal % 256) == pa.decimal256(20, 5)
    assert stated(odf.DataTypeDate(), '{"arrow.apache.org/dateEncoding":{"unit":"Millisecond"}}') == pa.date64()
    with pytest.raises(ChainCorrupt, match=r"'c'.*decimalEncoding.*is not known"):
        stated(odf.DataTypeDecimal(20, 5), decimal % 64)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (odf.DataTypeDecimal(500, 0), "'c'"),
        (odf.DataTypeDecimal(0, 0), "'c'"),
        (odf.DataTypeBinary(2**40), "'c'"),
        (odf.DataTypeList(odf.DataTypeInt8(), 2**40), "'c'"),
        (odf.DataTypeStruct((DataField("d", odf.DataTypeDecimal(500, 0)),)), r"'c\.d'"),
    ],
)
def test_types_that_no_values_have_are_refused_by_their_column(kind: odf.DataType, reason: str) -> None:
    with pytest.raises(ChainCorrupt, match=f"{reason} is of a type that Arrow does not have"):
        to_arrow(DataSchema((DataField("c", kind),)))


def test_types_without_a_logical_one_are_refused_by_their_column() -> None:
    with pytest.raises(InvalidInput, match=r"'s\.d' is of the Arrow type dictionary"):
        from_arrow(pa.schema({"s": pa.struct({"d": pa.dictionary(pa.int8(), pa.string())})}))


# --- bytes that are no schema ----------------------------------------------------------------------------------------


def test_a_schema_that_is_cut_is_refused_wherever_it_is() -> None:
    data = encode_table(SetDataSchema(schema=SCHEMA))
    for end in range(len(data)):
        try:
            found = decode_table(data[:end], SetDataSchema)
        except (ChainCorrupt, UnsupportedFeature):
            continue
        assert found == SetDataSchema(schema=SCHEMA), f"the first {end} bytes pass for another schema"
        assert end >= len(data) - 4  # of the last text, but for the zeros that end it


def test_a_type_that_is_not_known_is_refused_by_its_number() -> None:
    data = foreign_table("DataField", DataField("t", odf.DataTypeString()))
    (at,) = [index for index in range(len(data)) if data[index] == 24]
    with pytest.raises(UnsupportedFeature, match=r"DataField\.type is of kind 25, which is not known; 24 kinds are"):
        decode_table(data[:at] + b"\x19" + data[at + 1 :], DataField)


def nested(depth: int) -> odf.DataType:
    kind: odf.DataType = odf.DataTypeInt8()
    for _ in range(depth):
        kind = odf.DataTypeList(kind)
    return kind


def test_types_within_types_have_an_end() -> None:
    assert decode_table(encode_table(DataField("c", nested(60))), DataField).type == nested(60)
    with pytest.raises(InvalidInput, match="nests deeper than 64 tables"):
        encode_table(DataField("c", nested(200)))
    with pytest.raises(ChainCorrupt, match="nests deeper than 64 tables"):
        decode_table(foreign_table("DataField", DataField("c", nested(100))), DataField)


@pytest.mark.parametrize("entries", ["", "[]", "{", '"a"', "nul"])
def test_attributes_are_a_json_object(entries: str) -> None:
    with pytest.raises(InvalidInput, match="Attributes are"):
        ExtraAttributes(entries)

    class Forged:
        def __init__(self) -> None:
            self.entries = entries

    with pytest.raises(ChainCorrupt, match="ExtraAttributes cannot be: Attributes are"):
        decode_table(foreign_table("ExtraAttributes", Forged()), ExtraAttributes)


@pytest.mark.parametrize("both", [False, True])
def test_a_schema_is_stated_in_one_way(both: bool) -> None:
    class Forged:
        raw_arrow_schema = encode_schema(READINGS) if both else None
        schema = SCHEMA if both else None

    with pytest.raises(ChainCorrupt, match=f"and this one as {'both' if both else 'none'}"):
        decode_table(foreign_table("SetDataSchema", Forged()), SetDataSchema)


# --- how columns go on -----------------------------------------------------------------------------------------------


def stated(*added: DataField, **changed: odf.DataType) -> SetDataSchema:
    """The system columns, a text and a number, by their logical types."""
    fields = from_arrow(pa.schema([*SYSTEM, pa.field("name", pa.string()), pa.field("n", pa.int64())])).fields
    kept = [replace(one, type=changed.get(one.name, one.type)) for one in fields]
    return SetDataSchema(schema=DataSchema((*kept, *added)))


MAYBE = odf.DataTypeOption(odf.DataTypeInt64())


def test_logical_types_may_follow_an_arrow_schema_and_say_anew_what_may_be_null() -> None:
    chain = Chain.root().append(schema_of(name=pa.large_string(), n=pa.int64())).add(3)
    chain.append(stated(n=odf.DataTypeInt64())).add(2)
    chain.append(stated(DataField("more", MAYBE), n=odf.DataTypeInt64())).add(1)
    assert chain.state is not None
    assert chain.state.arrow_schema() == arrow_schema(stated(DataField("more", MAYBE), n=odf.DataTypeInt64()))


def test_the_order_of_columns_and_their_attributes_may_change() -> None:
    chain = Chain.root().append(stated())
    schema = stated().schema
    assert schema is not None
    fields = schema.fields
    described = replace(fields[4], extra=ExtraAttributes.of({"opendatafabric.org/description": "what it is"}))
    chain.append(SetDataSchema(schema=DataSchema((*fields[:4], fields[5], described)))).add(1)


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        (stated(), stated(), "changes nothing"),
        (stated(), schema_of(name=pa.string(), n=pa.int64()), "an Arrow schema, and the columns have logical types"),
        (schema_of(name=pa.string(), n=pa.int32()), stated(), "'n' was"),
        (schema_of(name=pa.string(), n=pa.int64(), x=pa.int64()), stated(), "'x' is gone"),
        (stated(), stated(n=odf.DataTypeInt64()), "'n' was"),
        (stated(n=odf.DataTypeInt64()), stated(), "'n' was"),
        (stated(), stated(n=odf.DataTypeOption(odf.DataTypeInt32())), "'n' was"),
        (stated(), stated(DataField("x", odf.DataTypeInt64())), "'x' is new and may not be null"),
        (stated(), stated(DataField("n", MAYBE)), "two columns have the same name"),
    ],
)
def test_columns_that_do_not_go_on_are_refused(before: SetDataSchema, after: SetDataSchema, reason: str) -> None:
    chain = Chain.root().append(before).add(1)
    with pytest.raises(ChainCorrupt, match=reason):
        chain.append(after)


def test_equal_types_are_equal_however_much_of_them_is_said() -> None:
    short = SetDataSchema(schema=DataSchema((DataField("t", odf.DataTypeTimestamp()),)))
    long = SetDataSchema(encode_schema(pa.schema([pa.field("t", pa.timestamp("ms", "UTC"), nullable=False)])))
    assert logical_columns(short) == logical_columns(long)


# --- datasets --------------------------------------------------------------------------------------------------------


def foreign(schema: pa.Schema) -> dict[str, Any]:
    fields = [
        replace(one, extra=ExtraAttributes.of({"example.com/note": {"of": one.name}})) if one.name == "heat" else one
        for one in from_arrow(schema).fields
    ]
    return {"encode": foreign_block, "columns": SetDataSchema(schema=DataSchema(tuple(fields)))}


def with_attributes(root: Served) -> AddData:
    """What a root's last block says, with attributes, as the block that comes next."""
    state = root.last
    note = ExtraAttributes.of({"opendatafabric.org/linkedObjects": {"numObjectsNaive": 1, "sizeNaive": 9}})
    later = replace(state.watermark, ordinal=300) if state.watermark is not None else None
    return AddData(prev_offset=state.last_offset, new_watermark=later, extra=note)


def test_a_chain_of_another_program_is_pulled_verified_replayed_and_gone_on_with(tmp_path: Path) -> None:
    graph = Graph.build(tmp_path / "remote", **foreign(READINGS))
    event = with_attributes(graph.readings)
    graph.readings.append(event)
    report = verify(graph.named.remote, resolve=graph.resolve, replay=replay)
    report.require_ok()
    assert [one.replayed for one in report.datasets] == [2, 2, 0]

    project = Project.open("COPY", str(tmp_path / "copy"))
    table = project.table("readings")
    pull(graph.readings.remote, table)
    copied = EventTable(table)
    assert copied.chain.head == graph.readings.remote.head()
    assert next(block.event for _, block in copied.blocks()) == event
    assert copied.current().num_rows == 18
    assert table.verify().ok
    (path,) = [one for one in graph.readings.files() if one.name == str(copied.chain.head)]
    assert decode_block(table.store.get(f"blocks/{path.name}")).event == event

    derived = project.table("named")
    pull(graph.named.remote, derived)
    assert derived.verify().ok
    assert EventTable(derived).current().num_rows > 0


UNSIGNED = pa.schema(
    [pa.field("offset", pa.uint64(), nullable=False), pa.field("op", pa.uint8(), nullable=False), *list(READINGS)[2:]]
)


def test_offsets_and_operations_may_be_unsigned_as_the_specification_has_them(tmp_path: Path) -> None:
    graph = Graph.build(tmp_path / "remote", **foreign(UNSIGNED))
    verify(graph.named.remote, resolve=graph.resolve, replay=replay).require_ok()
    table = Project.open("COPY", str(tmp_path / "copy")).table("readings")
    pull(graph.readings.remote, table)
    copied = EventTable(table, EventHistory(merge=AppendMerge()))
    events = copied.events()
    assert events.schema.field("offset").type == pa.int64()
    assert events["offset"].to_pylist() == list(range(18))
    copied.write(pa.table({"station": ["s"], "heat": [1]}))
    assert copied.changes(copied.chain.sequence_number - 2)["offset"].to_pylist() == [18]
    last = table.files().scan.files[-1]
    assert pq.read_schema(pa.BufferReader(table.store.get(last.key))).types[:2] == [pa.uint64(), pa.uint8()]
    assert table.verify().ok
    newest = next(block.event for _, block in copied.blocks())
    assert isinstance(newest, AddData)
    assert newest.new_data is not None
    digest = Arrow0(UNSIGNED)
    digest.update(pq.read_table(pa.BufferReader(table.store.get(last.key))))
    assert newest.new_data.logical_hash == digest.digest()


def test_values_that_the_chains_type_does_not_hold_are_refused(tmp_path: Path) -> None:
    fields = [*UNSIGNED, pa.field("seen", pa.timestamp("s", "UTC"))]
    root = Served(tmp_path / "remote", SigningKey(bytes(32)))
    root.append(Seed(root.dataset_id, DatasetKind.ROOT))
    root.append(SetDataSchema(schema=from_arrow(pa.schema(fields))))
    table = Project.open("COPY", str(tmp_path / "copy")).table("readings")
    pull(root.remote, table)
    copied = EventTable(table, EventHistory(merge=AppendMerge()))
    rows = pa.table(
        {"station": ["s"], "heat": [1], "seen": pa.array([1_500], pa.timestamp("ms", "UTC"))},
    )
    with pytest.raises(UnsupportedType, match=r"'seen' is timestamp\[s, tz=UTC\] in the chain, which does not hold"):
        copied.write(rows)


def columns_stated(table: EventTable) -> list[MetadataEvent]:
    return [block.event for _, block in table.blocks() if isinstance(block.event, SetDataSchema)][::-1]


def test_a_chain_begins_with_logical_types_and_goes_on_in_them(tmp_path: Path) -> None:
    table = EventTable(Project.open("P", str(tmp_path)).table("t"), EventHistory(merge=AppendMerge()))
    table.write(pa.table({"n": [1]}))
    table.write(pa.table({"n": [2], "more": ["x"]}))
    first, second = columns_stated(table)
    assert isinstance(first, SetDataSchema)
    assert isinstance(second, SetDataSchema)
    assert first.schema is not None
    assert second.schema == DataSchema(
        (*first.schema.fields, DataField("more", odf.DataTypeOption(odf.DataTypeString())))
    )


def test_a_chain_that_began_with_an_arrow_schema_goes_on_with_one(tmp_path: Path) -> None:
    folder = tmp_path / "remote"
    root = Graph.build(folder).readings
    table = Project.open("P", str(tmp_path / "p")).table("t")
    pull(root.remote, table)
    history = EventHistory(merge=AppendMerge())
    copied = EventTable(table, history)
    before = table.store.get(f"blocks/{copied.chain.head}")
    copied.write(pa.table({"station": ["s"], "heat": [1], "more": [1.5]}))
    _, second = columns_stated(copied)
    assert isinstance(second, SetDataSchema)
    assert second.schema is None
    assert arrow_schema(second) == pa.schema([*READINGS, pa.field("more", pa.float64())])
    assert table.store.get(f"blocks/{root.remote.head()}") == before
    assert table.verify().ok


# --- manifests -------------------------------------------------------------------------------------------------------

WRITTEN = """\
kind: DatasetSnapshot
version: 1
content:
  name: a
  kind: Root
  metadata:
    - kind: AddPushSource
      sourceName: default
      merge: Append
      read:
        kind: NdJson
        schema:
          fields:
            - name: at
              type: Timestamp
            - name: price
              type: {kind: Option, inner: {kind: Decimal, precision: 10, scale: 2}}
              extra:
                opendatafabric.org/description: What it costs
                example.com/nested: {b: [1, null], a: 1.5}
"""


def test_logical_types_are_read_in_either_form_and_attributes_as_they_are() -> None:
    (event,) = read_snapshot(WRITTEN).metadata
    schema = event.read.schema
    assert schema == DataSchema(
        (
            DataField("at", odf.DataTypeTimestamp()),
            DataField(
                "price",
                odf.DataTypeOption(odf.DataTypeDecimal(10, 2)),
                ExtraAttributes(
                    '{"example.com/nested":{"a":1.5,"b":[1,null]},"opendatafabric.org/description":"What it costs"}'
                ),
            ),
        )
    )
    assert "opendatafabric.org/description: What it costs" in write_manifest("DataSchema", schema)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ("type: Timestamp", None),
        ("type: Moment", r"schema\.fields\[0\]\.type\.kind .*expected one of Binary"),
        ("type: Decimal", r"type\.precision .*is missing"),
        ("type: {kind: Time, unit: Hour}", r"unit .*expected one of Second"),
        ("type: {kind: Option, inner: {kind: Option, inner: String}}", "An Option of an Option"),
        ("type: String, extra: {note: 1}", r"extra .*'note' is not named as domain/name"),
        ("type: String, extra: [1]", r"extra .*expected a mapping of attributes"),
    ],
)
def test_what_is_wrong_with_a_schema_is_named_with_its_place(wrong: str, reason: str | None) -> None:
    text = WRITTEN.replace(
        "            - name: at\n              type: Timestamp\n", f"            - {{name: at, {wrong}}}\n"
    )
    if reason is None:
        read_snapshot(text)
        return
    with pytest.raises(InvalidInput, match=reason):
        read_snapshot(text)
