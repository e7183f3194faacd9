import io
import json
import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given

from dagster_versioned.delta.files.statistics import (
    from_parquet_metadata,
    merge,
    num_records,
    parse,
    to_json,
    upper_bound,
    with_column,
)
from dagster_versioned.delta.schema.types import StructType, schema_from_arrow
from dagster_versioned.errors import InvalidInput, LogCorrupt


def written(table: pa.Table, row_group_size: int | None = None) -> tuple[pq.FileMetaData, StructType]:
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=row_group_size, store_schema=False)
    return pq.read_metadata(sink), schema_from_arrow(table.schema)


def statistics(table: pa.Table, row_group_size: int | None = None, **options: Any) -> dict[str, Any]:
    return from_parquet_metadata(*written(table, row_group_size), **options)


def one(values: list[Any], arrow: pa.DataType, **options: Any) -> tuple[Any, Any, Any]:
    found = statistics(pa.table({"x": pa.array(values, arrow)}), **options)
    assert found["numRecords"] == len(values)
    return found["minValues"].get("x"), found["maxValues"].get("x"), found["nullCount"].get("x")


@pytest.mark.parametrize(
    ("values", "arrow", "expected"),
    [
        ([3, None, -1], pa.int8(), (-1, 3, 1)),
        ([2**63 - 1, -(2**63)], pa.int64(), (-(2**63), 2**63 - 1, 0)),
        ([True, False], pa.bool_(), (False, True, 0)),
        ([date(2020, 2, 29), date(1, 1, 1)], pa.date32(), ("0001-01-01", "2020-02-29", 0)),
        ([10**7], pa.date32(), (None, None, 0)),
        ([Decimal("-1.50"), Decimal("123456789012345678901234567890123456.78")], pa.decimal128(38, 2),
         (Decimal("-1.50"), Decimal("123456789012345678901234567890123456.78"), 0)),
        ([b"a", b"b"], pa.binary(), (None, None, 0)),
        (["b", "a", None], pa.string(), ("a", "b", 1)),
        ([None, None], pa.string(), (None, None, 2)),
        ([], pa.int32(), (None, None, None)),
        ([datetime(2020, 1, 1, 0, 0, 0, 1999), datetime(2020, 1, 1, 0, 0, 0, 1001)], pa.timestamp("us"),
         ("2020-01-01T00:00:00.001", "2020-01-01T00:00:00.002", 0)),
        ([datetime(1969, 12, 31, 23, 59, 59, 999999, UTC)], pa.timestamp("us", "UTC"),
         ("1969-12-31T23:59:59.999Z", "1970-01-01T00:00:00.000Z", 0)),
        ([datetime(9999, 12, 31, 23, 59, 59, 999001, UTC)], pa.timestamp("us", "UTC"),
         ("9999-12-31T23:59:59.999Z", "9999-12-31T23:59:59.999001Z", 0)),
        ([datetime(2020, 1, 1), datetime.max], pa.timestamp("us"),
         ("2020-01-01T00:00:00.000", "9999-12-31T23:59:59.999999", 0)),
        ([253402300800000000 * 2], pa.timestamp("us"), (None, None, 0)),
        ([1.5, -0.5], pa.float64(), (None, None, 0)),
        ([math.inf, -math.inf], pa.float64(), (None, None, 0)),
        (["x" * 5000], pa.string(), (None, None, 0)),
    ],
)  # fmt: skip
def test_bounds_and_null_counts(values: list[Any], arrow: pa.DataType, expected: tuple[Any, Any, Any]) -> None:
    assert one(values, arrow) == expected


@pytest.mark.parametrize("arrow", [pa.float32(), pa.float64()])
def test_a_float_column_has_bounds_only_where_it_is_known_to_hold_no_nan(arrow: pa.DataType) -> None:
    assert one([1.5, math.nan], arrow) == (None, None, 0)
    assert one([1.5, math.nan], arrow, nan_columns={"x"}) == (None, None, 0)
    assert one([1.5, 2.5], arrow, nan_columns={"y"}) == (1.5, 2.5, 0)
    assert one([math.nan], arrow, nan_columns={"x"}) == (None, None, 0)


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | st.text(
    "\U0010ffff~a", min_size=30, max_size=36
)


@given(st.lists(texts, min_size=1, max_size=4))
def test_truncated_strings_still_bound(values: list[str]) -> None:
    low, high, _ = one(values, pa.string())
    for value in values:
        assert low.encode() <= value.encode() <= high.encode()
    assert len(low) <= 32


@given(st.text("\U0010ffffa", max_size=50), st.text("\U0010ffffb", max_size=5))
def test_an_upper_bound_bounds_what_it_was_made_from(text: str, more: str) -> None:
    assert upper_bound(text) >= text
    assert upper_bound(text + more) >= text + more


@given(st.lists(st.none() | st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)), min_size=1, max_size=5))
def test_timestamps_are_bounded_within_a_millisecond(values: list[datetime | None]) -> None:
    low, high, nulls = one(values, pa.timestamp("us"))
    present = [value for value in values if value is not None]
    assert nulls == len(values) - len(present)
    if present:
        assert datetime.fromisoformat(low) <= min(present) < datetime.fromisoformat(low) + timedelta(milliseconds=1)
        assert datetime.fromisoformat(high) - timedelta(milliseconds=1) < max(present) <= datetime.fromisoformat(high)


def nested() -> pa.Table:
    return pa.table(
        {
            "a.b": pa.array([1, 2], pa.int64()),
            "a": pa.array([{"b": {"c": 5}, "l": [1]}, None]),
            "m": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int8())),
            "last": [1.0, 2.0],
        }
    )


def test_structs_nest_and_collections_have_no_bounds() -> None:
    found = statistics(nested(), nan_columns=())
    assert found == {
        "numRecords": 2,
        "minValues": {"a.b": 1, "a": {"b": {"c": 5}}, "last": 1.0},
        "maxValues": {"a.b": 2, "a": {"b": {"c": 5}}, "last": 2.0},
        "nullCount": {"a.b": 0, "a": {"b": {"c": 1}}, "last": 0},
    }


@pytest.mark.parametrize("value", [None, {"inner": None}, {"inner": {"c": None}}], ids=["struct", "inner", "leaf"])
def test_a_struct_of_nulls_throughout_has_empty_bounds(value: Any) -> None:
    kind = pa.struct([("inner", pa.struct([("c", pa.int64())]))])
    found = statistics(pa.table({"x": [1, 2], "s": pa.array([value] * 2, kind)}), row_group_size=1)
    empty: dict[str, Any] = {"s": {"inner": {}}}
    assert found == {
        "numRecords": 2,
        "minValues": {"x": 1, **empty},
        "maxValues": {"x": 2, **empty},
        "nullCount": {"x": 0, "s": {"inner": {"c": 2}}},
    }
    beside = with_column({**found, "nullCount": {"x": 0}}, {**found, "minValues": {}, "maxValues": {}}, ("s", "more"))
    assert (beside["minValues"], beside["maxValues"]) == (found["minValues"], found["maxValues"])


def test_only_the_first_leaf_columns_are_indexed() -> None:
    # a.b, a.b.c, a.l, m, last: collections count as one column.
    assert list(statistics(nested(), indexed_columns=4)["nullCount"]) == ["a.b", "a"]
    assert list(statistics(nested(), indexed_columns=1)["nullCount"]) == ["a.b"]
    wide = pa.table({f"c{number}": [number] for number in range(40)})
    assert list(statistics(wide)["minValues"]) == [f"c{number}" for number in range(32)]


def test_a_schema_of_another_file_is_refused() -> None:
    footer, _ = written(pa.table({"x": [1]}))
    for names in (["y"], ["x", "y"]):
        with pytest.raises(InvalidInput, match="column"):
            from_parquet_metadata(footer, schema_from_arrow(pa.table({name: [1] for name in names}).schema))


@given(
    st.lists(st.none() | st.integers(-9, 9), max_size=9),
    st.lists(st.none() | st.text("ab", max_size=3), min_size=9, max_size=9),
    st.integers(1, 4),
)
def test_row_groups_and_files_merge_to_the_whole(numbers: list[int | None], words: list[str | None], size: int) -> None:
    structs = pa.array([{"w": word} for word in words[: len(numbers)]], pa.struct([("w", pa.string())]))
    table = pa.table({"n": pa.array(numbers, pa.int32()), "s": structs})
    whole = statistics(table)
    pieces = [statistics(table.slice(start, size)) for start in range(0, len(numbers), size)]
    if numbers:
        assert statistics(table, size) == whole
        assert merge(pieces) == whole
        assert merge([*pieces, statistics(table.slice(0, 0))])["minValues"] == whole["minValues"]


def test_a_bound_that_one_file_lacks_is_unknown() -> None:
    known = {"numRecords": 2, "minValues": {"x": 1}, "maxValues": {"x": 2}, "nullCount": {"x": 0}}
    unknown = {"numRecords": 2, "minValues": {}, "maxValues": {}, "nullCount": {"x": 0}}
    all_null = {"numRecords": 2, "minValues": {}, "maxValues": {}, "nullCount": {"x": 2}}
    silent = {"numRecords": 2}
    assert merge([known, unknown]) == {"numRecords": 4, "minValues": {}, "maxValues": {}, "nullCount": {"x": 0}}
    assert merge([known, all_null]) == {**known, "numRecords": 4, "nullCount": {"x": 2}}
    assert merge([known, silent]) == {"numRecords": 4, "minValues": {}, "maxValues": {}, "nullCount": {}}
    other = {**known, "minValues": {"x": "1"}}
    assert merge([known, other])["minValues"] == {}
    assert merge([]) == {"numRecords": 0, "minValues": {}, "maxValues": {}, "nullCount": {}}


def test_json_is_compact_and_exact() -> None:
    value = {
        "numRecords": 1,
        "minValues": {
            "d": Decimal("123456789012345678901234567890.10"),
            "ü\n": "é\U0010ffff",
            "t": True,
            "n": Decimal("1E+3"),
        },
    }
    text = to_json(value)
    assert text == (
        '{"numRecords":1,"minValues":{"d":123456789012345678901234567890.10,"ü\\n":"é\U0010ffff","t":true,"n":1000}}'
    )
    assert parse(text)["minValues"]["d"] == Decimal("123456789012345678901234567890.10")
    assert json.loads(text)["numRecords"] == 1


@given(
    st.dictionaries(
        st.text(max_size=3), st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=3)
    )
)
def test_json_round_trips(values: dict[str, Any]) -> None:
    text = to_json({"numRecords": 1, "minValues": values})
    read = parse(text)["minValues"]
    assert {key: float(value) if isinstance(value, Decimal) else value for key, value in read.items()} == values


@pytest.mark.parametrize("text", ["", "{", "[]", "1", "[" * 100000])
def test_what_is_no_statistics_is_refused(text: str) -> None:
    with pytest.raises(LogCorrupt, match="statistics"):
        parse(text)


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        (None, None),
        ("", None),
        ("{}", None),
        ('{"numRecords":3}', 3),
        ('{"numRecords":0,"minValues":{"x":NaN}}', 0),
        ('{"numRecords":1,"minValues":{"x":123456789012345678901234567890}}', 1),
        ('{"numRecords":9223372036854775807}', 2**63 - 1),
        ('{"numRecords":9223372036854775808}', None),
        ('{"numRecords":-1}', None),
        ('{"numRecords":true}', None),
        ('{"numRecords":2.0}', None),
        ('{"numRecords":1,"numRecords":2}', 2),
        ("[3]", None),
        ("no JSON", None),
    ],
)
def test_the_number_of_rows_is_taken_from_any_statistics(text: str | None, rows: int | None) -> None:
    assert num_records(text) == rows
