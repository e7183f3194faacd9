import json
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
from hypothesis import given, settings

from dagster_versioned.delta.files.struct_statistics import statistics_type, to_struct, to_text
from dagster_versioned.delta.schema.types import ArrayType, StructField, StructType


def field(name: str, kind: Any) -> StructField:
    return StructField(name, kind, True, {})


SCHEMA = StructType(
    (
        field("i", "long"),
        field("s", "string"),
        field("t", "timestamp"),
        field("n", "timestamp_ntz"),
        field("d", "date"),
        field("c", "decimal(10,2)"),
        field("x", "double"),
        field("b", "boolean"),
        field("l", ArrayType("long", True)),
        field("in", StructType((field('a."b', "integer"), field("e", "string")))),
    )
)
LEAVES = [*((name,) for name in "istndcxbl"), ("in", 'a."b'), ("in", "e")]
TYPE = statistics_type(SCHEMA, LEAVES, tight_bounds=True)

instants = st.datetimes().map(lambda moment: moment.isoformat(timespec="milliseconds"))
bounds = st.fixed_dictionaries(
    {},
    optional={
        "i": st.integers(-(2**63), 2**63 - 1),
        "s": st.text(st.characters(codec="utf-8"), max_size=5),
        "t": instants.map(lambda text: text + ("Z" if text >= "1973" else "+00:00")),
        "n": instants,
        "d": st.dates().map(lambda day: day.isoformat()),
        "c": st.integers(-(10**9), 10**9).map(lambda cents: cents / 100),
        "x": st.floats(allow_nan=False, allow_infinity=False),
        "in": st.fixed_dictionaries({'a."b': st.integers(-(2**31), 2**31 - 1)}),
    },
)
counts = st.fixed_dictionaries({}, optional={name: st.integers(0, 2**63 - 1) for name in "sbl"})
statistics = st.fixed_dictionaries(
    {"numRecords": st.integers(0, 2**63 - 1)},
    optional={"minValues": bounds, "maxValues": bounds, "nullCount": counts, "tightBounds": st.booleans()},
)


def round_trip(texts: list[str | None]) -> list[Any]:
    structs = to_struct(pa.array(texts, pa.string()), TYPE)
    assert structs.type == TYPE
    chunked = pa.chunked_array([structs.slice(0, 1), structs.slice(1)])
    return [text and json.loads(text) for text in to_text(chunked).to_pylist()]


@settings(max_examples=20)
@given(st.lists(st.none() | statistics, min_size=1, max_size=4))
def test_what_a_table_has_statistics_of_comes_back(rows: list[dict[str, Any] | None]) -> None:
    texts = [None if row is None else json.dumps(row) for row in rows]
    assert round_trip(texts) == rows
    # Pretty-printed texts go the way of what is unusual.
    assert round_trip([None if row is None else json.dumps(row, indent=1) for row in rows]) == rows


def test_what_is_not_of_its_type_is_left_out_and_nothing_else() -> None:
    good = '{"numRecords":2,"minValues":{"i":1}}'
    wrong = json.dumps(
        {
            "numRecords": "x",
            "minValues": {"i": 1.5, "s": 3, "t": "when?", "d": "2020-13-01", "c": 1.555, "x": "NaN", "in": 4},
            "maxValues": {"i": 2**63, "b": True, "unknown": 1, "s": "kept"},
            "nullCount": [],
        }
    )
    assert round_trip([good, wrong, "[]", "nonsense", None]) == [
        {"numRecords": 2, "minValues": {"i": 1}},
        {"minValues": {}, "maxValues": {"s": "kept"}},
        None,
        None,
        None,
    ]


def test_instants_of_other_zones_are_the_same_instants() -> None:
    text = '{"minValues":{"t":"2020-01-01T00:00:00.000-08:00"}}'
    assert round_trip([text]) == [{"minValues": {"t": "2020-01-01T08:00:00.000Z"}}]


def test_only_columns_with_an_order_have_bounds() -> None:
    bounded = TYPE.field("minValues").type
    assert [member.name for member in bounded] == ["i", "s", "t", "n", "d", "c", "x", "in"]
    assert [member.name for member in TYPE.field("nullCount").type] == [
        "i",
        "s",
        "t",
        "n",
        "d",
        "c",
        "x",
        "b",
        "l",
        "in",
    ]
    assert [member.name for member in statistics_type(SCHEMA, [("b",)], tight_bounds=False)] == [
        "numRecords",
        "nullCount",
    ]
    assert [member.name for member in statistics_type(SCHEMA, [], tight_bounds=False)] == ["numRecords"]


def test_infinite_numbers_of_others_are_not_known() -> None:
    structs = pa.array([{"maxValues": {"x": float("nan")}}, {"maxValues": {"x": 1.5}}])
    assert to_text(pa.chunked_array([structs])).to_pylist() == ['{"maxValues":{}}', '{"maxValues":{"x":1.5}}']
