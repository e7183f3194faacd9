import json

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given

from dagster_versioned.delta.schema.types import (
    PRIMITIVES,
    ArrayType,
    MapType,
    StructField,
    StructType,
    parse_schema,
    schema_from_arrow,
    schema_to_arrow,
)
from dagster_versioned.errors import LogCorrupt, UnsupportedFrame, UnsupportedType
from support import arrow_rows, digest_columns, frames
from support.arrow_types import newer

decimals = st.integers(1, 38).flatmap(lambda p: st.integers(0, p).map(lambda s: f"decimal({p},{s})"))
STORED = PRIMITIVES - {"void", "variant"}
primitives = decimals | st.sampled_from(sorted(STORED))
names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)


no_metadata = st.just({})


def structs(types: st.SearchStrategy, metadata: st.SearchStrategy) -> st.SearchStrategy[StructType]:
    return st.lists(
        st.builds(StructField, names, types, st.booleans(), metadata),
        min_size=1,
        max_size=4,
        unique_by=lambda member: member.name.casefold(),
    ).map(StructType)


def schemas(metadata: st.SearchStrategy = no_metadata) -> st.SearchStrategy[StructType]:
    return structs(
        st.recursive(
            primitives,
            lambda inner: (
                st.builds(ArrayType, inner, st.booleans())
                | st.builds(MapType, inner, inner, st.booleans())
                | structs(inner, metadata)
            ),
            max_leaves=5,
        ),
        metadata,
    )


any_metadata = st.dictionaries(names, st.integers() | names | st.booleans() | st.none(), max_size=2)


@given(schemas(any_metadata))
def test_json_round_trip(schema: StructType) -> None:
    assert parse_schema(schema.json()) == schema
    assert parse_schema(schema.to_json()) == schema


@given(schemas())
def test_arrow_round_trip(schema: StructType) -> None:
    arrow = schema_to_arrow(schema)
    assert schema_from_arrow(arrow) == schema
    assert schema_to_arrow(schema_from_arrow(arrow)).equals(arrow)


@given(schemas(any_metadata))
def test_all_nullable_forgets_nullability_and_metadata_only(schema: StructType) -> None:
    nullable = schema.all_nullable()
    text = nullable.json()
    assert "false" not in text.replace(json.dumps("false"), "") or any(
        "false" in name for name in text.split('"')[1::2]
    )
    assert nullable.all_nullable() == nullable
    assert nullable.names == schema.names

    def shape(arrow: pa.DataType) -> object:
        if pa.types.is_struct(arrow):
            return [(member.name, shape(member.type)) for member in arrow]
        if pa.types.is_list(arrow):
            return ["list", shape(arrow.value_type)]
        if pa.types.is_map(arrow):
            return ["map", shape(arrow.key_type), shape(arrow.item_type)]
        return arrow

    before, after = schema_to_arrow(schema), schema_to_arrow(nullable)
    assert [shape(member.type) for member in before] == [shape(member.type) for member in after]


def test_the_protocols_example_is_read() -> None:
    text = """{"type": "struct", "fields": [
      {"name": "a", "type": "integer", "nullable": false, "metadata": {}},
      {"name": "b", "type": {"type": "struct", "fields": [
          {"name": "d", "type": "integer", "nullable": false, "metadata": {}}]}, "nullable": true, "metadata": {}},
      {"name": "c", "type": {"type": "array", "elementType": "integer", "containsNull": false},
       "nullable": true, "metadata": {}},
      {"name": "f", "type": {"type": "map", "keyType": "string", "valueType": "string", "valueContainsNull": true},
       "nullable": true, "metadata": {}}]}"""
    assert parse_schema(text) == StructType(
        [
            StructField("a", "integer", False),
            StructField("b", StructType([StructField("d", "integer", False)])),
            StructField("c", ArrayType("integer", False)),
            StructField("f", MapType("string", "string", True)),
        ]
    )
    assert json.loads(parse_schema(text).json()) == json.loads(text)


@pytest.mark.parametrize(
    ("arrow", "delta"),
    [
        (pa.uint8(), "short"),
        (pa.uint16(), "integer"),
        (pa.uint32(), "long"),
        (pa.float16(), "float"),
        (pa.large_string(), "string"),
        (pa.string_view(), "string"),
        (pa.binary_view(), "binary"),
        (pa.binary(16), "binary"),
        (pa.date64(), "date"),
        (pa.timestamp("ns"), "timestamp_ntz"),
        (pa.timestamp("s", "Europe/Paris"), "timestamp"),
        (pa.dictionary(pa.int8(), pa.large_string()), "string"),
        *((arrow, "decimal(5,2)") for arrow in newer(("decimal32", 5, 2))),
        (pa.decimal256(38, 10), "decimal(38,10)"),
        (pa.run_end_encoded(pa.int32(), pa.int16()), "short"),
        (pa.list_(pa.int8(), 3), ArrayType("byte")),
        (pa.large_list(pa.field("x", pa.int8(), nullable=False)), ArrayType("byte", False)),
        (pa.list_view(pa.int8()), ArrayType("byte")),
    ],
)
def test_lossless_widening(arrow: pa.DataType, delta: object) -> None:
    assert schema_from_arrow(pa.schema([("x", arrow)])).fields[0].type == delta


@pytest.mark.parametrize(
    "arrow",
    [
        pa.null(),
        pa.uint64(),
        pa.time32("s"),
        pa.time64("us"),
        pa.duration("us"),
        pa.month_day_nano_interval(),
        pa.dense_union([pa.field("a", pa.int8())]),
        *newer(("uuid",)),
        pa.decimal256(39, 0),
        pa.decimal128(5, -2),
        pa.struct([]),
        pa.list_(pa.null()),
    ],
)
@pytest.mark.parametrize("nested", [False, True])
def test_what_delta_cannot_hold_is_refused_by_column_and_type(arrow: pa.DataType, nested: bool) -> None:
    bad = pa.field("bad", pa.struct([("in", arrow)]) if nested else arrow)
    leaf = arrow.value_type if pa.types.is_list(arrow) else arrow
    with pytest.raises(UnsupportedType, match="bad.in" if nested else "bad") as error:
        schema_from_arrow(pa.schema([pa.field("good", pa.int8()), bad]))
    assert str(leaf) in str(error.value)


@pytest.mark.parametrize("pair", [("a", "a"), ("Größe", "GRÖSSE"), ("x", "X")])
def test_columns_equal_but_for_case_are_refused(pair: tuple[str, str]) -> None:
    with pytest.raises(UnsupportedFrame, match="rename"):
        schema_from_arrow(pa.schema([pa.field(name, pa.int8()) for name in pair]))


def field_json(data_type: object, **other: object) -> str:
    return json.dumps({"type": "struct", "fields": [{"name": "x", "type": data_type, **other}]})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "not JSON"),
        ('"string"', "not a struct"),
        ("[]", "neither a name"),
        ('{"type": "struct"}', "no list of fields"),
        ('{"type": "struct", "fields": [1]}', "not an object"),
        ('{"type": "struct", "fields": [{"type": "long"}]}', "no name"),
        (field_json(3), "'x' is neither"),
        (field_json("long", nullable=1), "nullable of column 'x'"),
        (field_json("long", metadata=[]), "metadata of column 'x'"),
        (field_json({"type": "array", "elementType": "long", "containsNull": "yes"}), "containsNull"),
        ('{"type":"array","elementType":' * 2000 + '"long"' + "}" * 2000, "nests deeper|not JSON"),
        (json.dumps({"type": "struct", "fields": [{"name": "x", "type": "long"}] * 2}), "twice"),
    ],
)
def test_what_is_no_schema_is_refused_with_its_reason(text: str, reason: str) -> None:
    with pytest.raises(LogCorrupt, match=reason):
        parse_schema(text)


@pytest.mark.parametrize("name", ["decimal(39,0)", "decimal(2,3)", "decimal(0,0)", "int128", "decimal(5)", "variants"])
def test_an_unknown_type_is_refused_by_name(name: str) -> None:
    with pytest.raises(UnsupportedType, match="'x'") as error:
        parse_schema(field_json(name))
    assert name in str(error.value)


def test_spark_reads_the_same_json() -> None:
    types = pytest.importorskip("pyspark.sql.types")
    schema = StructType(
        [
            StructField("a", ArrayType(MapType("string", "decimal(5,2)")), True, {"comment": "x"}),
            StructField("t", "byte"),
        ]
    )
    assert parse_schema(types.StructType.fromJson(schema.to_json()).json()) == schema


def test_fields_are_found_selected_and_dropped_by_name() -> None:
    schema = StructType(
        [StructField("a", "long"), StructField("b", ArrayType("timestamp_ntz")), StructField("c", "date")]
    )
    assert schema.field("b").type == ArrayType("timestamp_ntz")
    assert schema.select(["c", "a"]).names == ("c", "a")
    assert schema.drop(["a", "c"]).names == ("b",)
    assert schema.holds("timestamp_ntz")
    assert not schema.drop(["b"]).holds("timestamp_ntz")
    with pytest.raises(KeyError):
        schema.field("A")


def test_a_user_defined_type_is_the_type_it_is_made_of() -> None:
    udt = {"type": "udt", "class": "x.Y", "sqlType": {"type": "array", "elementType": "double", "containsNull": False}}
    assert parse_schema(field_json(udt)).field("x").type == ArrayType("double", False)
    with pytest.raises(UnsupportedType, match="'x' has the type 'enum'"):
        parse_schema(field_json({"type": "enum"}))


def test_decimal_without_arguments_is_hives_default() -> None:
    assert parse_schema(field_json("decimal")).field("x").type == "decimal(10,0)"


def test_columns_without_a_type_are_left_out() -> None:
    inner = StructType([StructField("x", "long"), StructField("y", "void")])
    schema = StructType([StructField("a", "void"), StructField("s", inner), StructField("b", "string")])
    assert schema.without_void() == StructType(
        [StructField("s", StructType([StructField("x", "long")])), StructField("b", "string")]
    )
    assert StructType([StructField("a", "void")]).without_void().names == ("a",)
    assert inner.drop(["y"]).without_void() == inner.drop(["y"])


@pytest.mark.parametrize(
    "arrow",
    [
        [array.type for array in frames.FLAT.values()],
        [data_type for data_type, _ in arrow_rows.SCALARS],
        [data_type for kind, data_type in digest_columns.ARROW.items() if kind != "time"],  # no table can hold it
    ],
    ids=["frames", "rows", "digests"],
)
def test_what_other_tests_take_their_columns_from_has_every_type(arrow: list[pa.DataType]) -> None:
    schema = schema_from_arrow(pa.schema([(f"c{i}", data_type) for i, data_type in enumerate(arrow)]))
    assert {field.type for field in schema.fields} >= STORED


def test_an_interval_is_refused_with_what_it_is_made_of() -> None:
    with pytest.raises(UnsupportedType, match="months, days and nanoseconds"):
        schema_from_arrow(pa.schema([("c", pa.month_day_nano_interval())]))
