"""The one form that is stored: nothing is lost of what a frame holds, or it is refused by column and type."""

import datetime as dt
import uuid
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_versioned.delta.schema.types import schema_to_arrow
from dagster_versioned.engines import conform as conform_module
from dagster_versioned.engines.conform import conform, conform_all, refuse_no_rows, stored_schema
from dagster_versioned.errors import EmptyTable, InvalidInput, UnsupportedFrame, UnsupportedType
from support.arrow_rows import tables
from support.arrow_types import newer

NEW_YORK = "America/New_York"


def conformed(array: pa.Array) -> pa.Array:
    batch = pa.record_batch([array], names=["c"])
    result = conform(batch, stored_schema(batch.schema))
    result.validate(full=True)
    return result.column(0)


LOSSLESS = {
    "large string": (pa.array(["a", None, ""], pa.large_string()), pa.string()),
    "string view": (pa.array(["a", None, "b" * 40], pa.string_view()), pa.string()),
    "large binary": (pa.array([b"a", None], pa.large_binary()), pa.binary()),
    "binary view": (pa.array([b"a", None, b"b" * 40], pa.binary_view()), pa.binary()),
    "fixed-size binary": (pa.array([b"ab", None], pa.binary(2)), pa.binary()),
    "uint8": (pa.array([255, None], pa.uint8()), pa.int16()),
    "uint16": (pa.array([65535, None], pa.uint16()), pa.int32()),
    "uint32": (pa.array([2**32 - 1, None], pa.uint32()), pa.int64()),
    "float16": (pa.array([np.float16(1.5), None], pa.float16()), pa.float32()),
    "date64": (pa.array([dt.date(2013, 1, 1), None], pa.date64()), pa.date32()),
    "seconds": (pa.array([1, None], pa.timestamp("s")), pa.timestamp("us")),
    "milliseconds with a zone": (pa.array([1, None], pa.timestamp("ms", NEW_YORK)), pa.timestamp("us", "UTC")),
    "whole nanoseconds": (pa.array([5000, None], pa.timestamp("ns")), pa.timestamp("us")),
    "session zone": (pa.array([1, None], pa.timestamp("us", NEW_YORK)), pa.timestamp("us", "UTC")),
    "decimal256": (pa.array([Decimal("1.5"), None], pa.decimal256(38, 2)), pa.decimal128(38, 2)),
    **{
        str(arrow): (pa.array([Decimal("1.5"), None], arrow), pa.decimal128(10, 2))
        for arrow in newer(("decimal64", 10, 2))
    },
    "dictionary": (pa.array(["a", None, "a"]).dictionary_encode(), pa.string()),
    "dictionary of large strings": (
        pa.DictionaryArray.from_arrays(pa.array([1, None, 0], pa.uint32()), pa.array(["a", "b"], pa.large_string())),
        pa.string(),
    ),
    "dictionary of views": (
        pa.DictionaryArray.from_arrays(pa.array([1, None, 0], pa.uint8()), pa.array(["a", "b"], pa.string_view())),
        pa.string(),
    ),
    "dictionary of integers": (pa.array([7, None, 7], pa.int64()).dictionary_encode(), pa.int64()),
    "run ends": (pa.RunEndEncodedArray.from_arrays([2, 3], pa.array(["a", None])), pa.string()),
    "large list": (pa.array([[1, None], None, []], pa.large_list(pa.int8())), pa.list_(pa.int8())),
    "fixed-size list": (pa.array([[1, 2], None], pa.list_(pa.int8(), 2)), pa.list_(pa.int8())),
    "list view": (pa.array([[1, None], None, [], [3]], pa.list_view(pa.int8())), pa.list_(pa.int8())),
    "large list view": (pa.array([[1, None], None, [3]], pa.large_list_view(pa.int8())), pa.list_(pa.int8())),
    "list of zoned times": (
        pa.array([[5000, None], None], pa.list_(pa.timestamp("ns", NEW_YORK))),
        pa.list_(pa.timestamp("us", "UTC")),
    ),
    "struct with a member that is wrongly not null": (
        pa.array([{"a": 1}, None], pa.struct([pa.field("a", pa.uint8(), nullable=False)])),
        pa.struct([("a", pa.int16())]),
    ),
    "map": (
        pa.array([[("k", 1), ("l", None)], None], pa.map_(pa.large_string(), pa.uint8())),
        pa.map_(pa.string(), pa.int16()),
    ),
    "sorted map": (
        pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int8(), keys_sorted=True)),
        pa.map_(pa.string(), pa.int8()),
    ),
}


def plain_values(array: pa.Array) -> list:
    def plain(value):
        if isinstance(value, dt.datetime) and value.tzinfo is not None:
            return value.astimezone(dt.UTC)
        return [plain(item) for item in value] if isinstance(value, list) else value

    if pa.types.is_timestamp(array.type) and array.type.unit == "ns":
        array = array.cast(pa.timestamp("us", array.type.tz))
    return [plain(value) for value in array.to_pylist()]


@pytest.mark.parametrize("name", LOSSLESS)
@pytest.mark.parametrize("offset", [0, 1])
def test_other_types_are_cast_without_loss(name, offset):
    array, expected = LOSSLESS[name]
    array = array.slice(offset)
    result = conformed(array)
    if "ns" in str(array.type):
        assert result.cast(pa.int64()).to_pylist() == [5, None][offset:] if not pa.types.is_list(array.type) else True
    else:
        assert plain_values(result) == plain_values(array)
    assert result.type.equals(schema_to_arrow(stored_schema(pa.schema([("c", expected)]))).field(0).type)


@given(tables())
def test_canonical_batches_are_passed_on_and_not_copied(table):
    schema = stored_schema(table.schema)
    canonical = table.cast(schema_to_arrow(schema))
    for batch in canonical.to_batches():
        assert conform(batch, schema) is batch


@given(tables(), st.booleans())
def test_every_row_survives_with_metadata_and_nullability_dropped(table, sort_columns):
    described = table.replace_schema_metadata({"pandas": "{}"})
    schema = stored_schema(described.schema, sort_columns=sort_columns)
    result = pa.Table.from_batches(conform_all(described.to_batches(), schema), schema_to_arrow(schema))
    assert result.schema.metadata is None
    assert result.select(table.column_names).to_pylist() == table.to_pylist()


def test_keys_of_maps_that_are_structs_are_cast():
    rows = [[({"n": 1}, "a")], None, [({"n": 2}, None), ({"n": None}, "b")]]
    given, wanted = (
        pa.record_batch({"c": pa.array(rows, pa.map_(pa.struct([("n", kind)]), pa.string()))})
        for kind in (pa.int32(), pa.int64())
    )
    result = conform(given, stored_schema(wanted.schema))
    result.validate(full=True)
    assert result == wanted


def test_columns_are_put_in_name_order_on_request():
    table = pa.table({"b": [1], "a": ["x"], "B2": [2]})
    assert stored_schema(table.schema).names == ("b", "a", "B2")
    schema = stored_schema(table.schema, sort_columns=True)
    assert schema.names == ("B2", "a", "b")
    assert conform(table.to_batches()[0], schema).to_pylist() == [{"B2": 2, "a": "x", "b": 1}]


@pytest.mark.parametrize(
    "array",
    [
        pa.array([1001], pa.timestamp("ns")),
        pa.array([1001], pa.timestamp("ns", NEW_YORK)),
        pa.array([[1001]], pa.list_(pa.timestamp("ns"))),
        pa.array([{"t": 1001}], pa.struct([("t", pa.timestamp("ns"))])),
        pa.array([2**62], pa.timestamp("s")),
        pa.array([86_400_001], pa.int64()).cast(pa.date64()),
    ],
    ids=lambda array: str(array.type),
)
def test_a_value_that_would_lose_precision_is_refused_by_column(array):
    with pytest.raises(UnsupportedType, match=r"'c'.*Nothing was written"):
        conformed(array)


@pytest.mark.parametrize(
    ("array", "fix"),
    [
        (pa.nulls(2), "cast it to the type it should have"),
        (pa.array([[None]], pa.list_(pa.null())), "cast it to the type it should have"),
        (pa.array([{"v": None}], pa.struct([("v", pa.null())])), "cast it to the type it should have"),
        (pa.array([1], pa.uint64()), "int64"),
        (pa.array([dt.time(1)], pa.time64("us")), "int64"),
        (pa.array([dt.timedelta(1)], pa.duration("us")), "int64"),
        (pa.array([(1, 2, 3)], pa.month_day_nano_interval()), "months, days and nanoseconds"),
        (pa.array([Decimal(1)], pa.decimal256(39, 0)), "38"),
        (pa.array([Decimal(100)], pa.decimal128(3, -2)), "decimal"),
        (pa.array([{}], pa.struct([])), "drop it"),
        (pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])]), "supported type"),
        *((pa.array([uuid.uuid4().bytes], arrow), "supported type") for arrow in newer(("uuid",))),
        (pa.array([[[1]]], pa.list_(pa.list_view(pa.int8()))), "Cast it to a list"),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
def test_types_that_cannot_be_stored_are_refused_with_column_type_and_fix(array, fix):
    with pytest.raises(UnsupportedType, match="'c") as refused:
        conformed(array)
    assert fix in str(refused.value)
    assert "Nothing was written" in str(refused.value)


@pytest.mark.parametrize("names", [["a", "a"], ["a", "A"], ["straße", "STRASSE"], ["ä", "Ä"]])
def test_names_that_are_equal_but_for_case_are_refused(names):
    with pytest.raises(UnsupportedFrame, match="same name"):
        stored_schema(pa.schema([(name, pa.int8()) for name in names]))


def test_nested_names_that_are_equal_but_for_case_are_refused():
    with pytest.raises(UnsupportedFrame, match="same name"):
        stored_schema(pa.schema([("s", pa.struct([("x", pa.int8()), ("X", pa.int8())]))]))


@pytest.mark.parametrize("name", ["a.b", ".a", "`a`", "A/ä", "x,y=z", " ", ""])
def test_unusual_names_are_kept(name):
    batch = pa.record_batch([pa.array([1], pa.uint8())], names=[name])
    assert conform(batch, stored_schema(batch.schema)).schema.names == [name]


def test_no_columns_and_no_rows_are_refused():
    with pytest.raises(EmptyTable, match="no columns"):
        stored_schema(pa.schema([]))
    with pytest.raises(EmptyTable, match="allow_empty=True"):
        refuse_no_rows(0, allow_empty=False)
    refuse_no_rows(0, allow_empty=True)
    refuse_no_rows(1, allow_empty=False)
    assert issubclass(EmptyTable, InvalidInput)


def test_large_batches_are_split_so_that_32_bit_offsets_hold(monkeypatch):
    monkeypatch.setattr(conform_module, "MAX_BATCH_BYTES", 1000)
    batch = pa.record_batch([pa.array(["x" * 100] * 64, pa.large_string())], names=["s"])
    pieces = list(conform_all([batch], stored_schema(batch.schema)))
    assert len(pieces) == 8
    assert pa.Table.from_batches(pieces).to_pylist() == batch.to_pylist()


@pytest.mark.slow
def test_a_slice_far_into_more_than_2_gib_of_strings_is_cast():
    big = pa.concat_arrays([pa.array(["x" * 2**20] * 64, pa.large_string())] * 48)
    batch = pa.record_batch([big], names=["s"]).slice(2500, 10)
    assert conform(batch, stored_schema(batch.schema)).column(0).to_pylist() == ["x" * 2**20] * 10
