"""Which rows two frames have in common: by Arrow for pyarrow, pandas and Polars."""

import math
import re
from datetime import date, datetime
from decimal import Decimal

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_versioned.engines.dispatch import diff_rows
from dagster_versioned.errors import InvalidInput, UnsupportedFrame, UnsupportedType

NAN = float("nan")

# --- what counts as a change -----------------------------------------------------------------------------------------

SAME = {
    "null": (pa.int64(), None, None),
    "nan": (pa.float64(), NAN, NAN),
    "zero": (pa.float64(), 0.0, -0.0),
    "nan in a list": (pa.list_(pa.float32()), [NAN, None], [NAN, None]),
    "map in another order": (pa.map_(pa.string(), pa.int8()), [("a", 1), ("b", None)], [("b", None), ("a", 1)]),
    "struct": (pa.struct({"x": pa.int8(), "y": pa.list_(pa.string())}), {"x": None, "y": ["a"]}, {"y": ["a"]}),
}
DIFFERENT = {
    "int": (pa.int64(), 1, 2),
    "null and zero": (pa.int64(), None, 0),
    "nan and null": (pa.float64(), NAN, None),
    "null and empty": (pa.string(), None, ""),
    "timestamp": (pa.timestamp("us"), datetime(2020, 1, 1), datetime(2020, 1, 1, 0, 0, 0, 1)),
    "decimal": (pa.decimal128(38, 2), Decimal("1.00"), Decimal("1.01")),
    "null list and empty list": (pa.list_(pa.int8()), None, []),
    "order in a list": (pa.list_(pa.int8()), [1, 2], [2, 1]),
    "null item": (pa.list_(pa.int8()), [0], [None]),
    "value in a map": (pa.map_(pa.string(), pa.int8()), [("a", 1), ("b", 2)], [("a", 2), ("b", 1)]),
    "null struct and struct of nulls": (pa.struct({"x": pa.int8()}), None, {"x": None}),
    "deep": (pa.list_(pa.struct({"m": pa.map_(pa.int8(), pa.int8())})), [{"m": [(1, 2)]}], [{"m": [(1, 3)]}]),
}


@pytest.mark.parametrize(("data_type", "old", "new"), SAME.values(), ids=SAME)
def test_equal_values_are_no_change(data_type, old, new):
    before, after = (pa.table({"k": [1], "v": pa.array([value], data_type)}) for value in (old, new))
    assert diff_rows(before, after, ["k"]).counts() == counts(unchanged=1)


@pytest.mark.parametrize(("data_type", "old", "new"), DIFFERENT.values(), ids=DIFFERENT)
def test_different_values_are_a_change(data_type, old, new):
    before, after = (pa.table({"k": [1], "v": pa.array([value], data_type)}) for value in (old, new))
    diff = diff_rows(before, after, ["k"])
    assert diff.counts() == counts(changed=1)
    assert plain(rows(diff.changed_before)) == plain(rows(before))
    assert plain(rows(diff.changed_after)) == plain(rows(after))


def test_swapping_the_values_of_two_columns_is_a_change():
    before = pa.table({"k": [1, 2], "a": [1, None], "b": [2, 3]})
    after = pa.table({"k": [1, 2], "a": [2, 3], "b": [1, None]})
    assert diff_rows(before, after, ["k"]).counts() == counts(changed=2)


# --- keys ------------------------------------------------------------------------------------------------------------

KEYS = {
    "bool": (pa.bool_(), [True, False]),
    "int8": (pa.int8(), [-1, 1]),
    "int64": (pa.int64(), [-(2**63), 2**63 - 1]),
    "float": (pa.float32(), [0.5, NAN]),
    "double": (pa.float64(), [math.inf, NAN]),
    "decimal": (pa.decimal128(38, 2), [Decimal("-1.50"), Decimal("1.50")]),
    "date": (pa.date32(), [date(1, 1, 1), date(9999, 1, 1)]),
    "timestamp": (pa.timestamp("us", "UTC"), [0, 1]),
    "string": (pa.string(), ["", "ä"]),
    "large string": (pa.large_string(), ["", "ä"]),
    "string view": (pa.string_view(), ["", "a string of more than twelve bytes"]),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), ["b", "a"]),
    "binary": (pa.binary(), [b"", b"\x00"]),
}


@pytest.mark.parametrize(("data_type", "values"), KEYS.values(), ids=KEYS)
def test_keys_of_every_plain_type_match(data_type, values):
    before = pa.table({"k": pa.array(values, data_type), "v": [1, 2]})
    after = pa.table({"k": pa.array(values[::-1], data_type), "v": [2, 0]})
    diff = diff_rows(before, after, ["k"])
    assert diff.counts() == counts(changed=1, unchanged=1)
    assert rows(diff.changed_before) == rows(before)[:1]
    assert rows(diff.changed_after) == rows(after)[1:]


def test_a_key_matches_however_its_type_is_held():
    before = pa.table({"k": pa.array(["a", "b"]).dictionary_encode(), "j": pa.array([0.0, -0.0])})
    after = pa.table({"k": pa.array(["b", "a"], pa.large_string()), "j": pa.array([0.0, -0.0])})
    assert diff_rows(before, after, ["j", "k"]).counts() == counts(unchanged=2)


def test_column_names_are_never_read_as_paths():
    names = [".k", "before_row", "k0", "a.b", ""]
    before = pa.table([pa.array([i, i + 10]) for i in range(5)], names)
    after = pa.table([pa.array([i, i + 20]) for i in range(5)], names)
    assert diff_rows(before, after, ["before_row", ".k", ""]).counts() == counts(added=1, removed=1, unchanged=1)


BAD_KEYS = {
    "null": ({"k": [1, None, None, 2]}, {"k": [1]}, "'before': 2 rows have a null in it, and 0 keys .* {'k': None}"),
    "null in one of two": (
        {"k": [1, 1], "j": ["a", None]},
        {"k": [1], "j": ["a"]},
        "'before': 1 rows have a null in it, and 0 keys .* {'k': 1, 'j': None}",
    ),
    "twice": ({"k": [1]}, {"k": [7, 5, 7, 5, 5, 6]}, "'after': 0 rows .* 2 keys .* example {'k': 7}, {'k': 5}[.]"),
    "nan twice": ({"k": [NAN, NAN]}, {"k": [NAN]}, "1 keys have more than one row, for example {'k': nan}"),
    "zero twice": ({"k": [0.0, -0.0]}, {"k": [1.0]}, "1 keys have more than one row, for example {'k': 0.0}"),
    "both": ({"k": [None, None, 1, 1]}, {"k": [1]}, "2 rows have a null in it, and 1 keys have more"),
    "missing": ({"K": [1], "x": [1]}, {"k": [1], "x": [1]}, "'k', which is no column of before.*both are: 'x'"),
    "missing on both sides": ({"x": [1]}, {"x": [1]}, "'k', which is no column of before and after"),
    "of two types": ({"k": [1]}, {"k": ["1"]}, "'k' has the type long before and string after"),
    "nested": ({"k": [[1]]}, {"k": [[1]]}, "'k' is nested"),
}


@pytest.mark.parametrize(("before", "after", "message"), BAD_KEYS.values(), ids=BAD_KEYS)
def test_a_key_that_does_not_identify_rows_is_refused(before, after, message):
    key = [name for name in ("k", "j") if name in before or name == "k"]
    with pytest.raises(InvalidInput, match=message) as raised:
        diff_rows(pa.table(before), pa.table(after), key)
    assert "Nothing was compared" in str(raised.value)


def test_an_error_shows_five_keys_at_most():
    with pytest.raises(InvalidInput) as raised:
        diff_rows(pa.table({"k": [*range(50), *range(50)]}), pa.table({"k": [1]}), ["k"])
    assert re.findall(r"{'k': (\d+)}", str(raised.value)) == ["0", "1", "2", "3", "4"]
    assert "50 keys have more than one row" in str(raised.value)


@pytest.mark.parametrize("key", [[], "k"], ids=["no column", "a string"])
def test_a_key_must_be_a_list_of_names(key):
    with pytest.raises(InvalidInput, match="must be a list of column names"):
        diff_rows(pa.table({"k": [1]}), pa.table({"k": [1]}), key)


# --- what comes back -------------------------------------------------------------------------------------------------


def test_rows_come_back_whole_and_in_order():
    before = pa.table({"k": [9, 1, 8, 2, 7], "v": [0, 0, 0, 0, 0], "old": list("abcde")})
    after = pa.table({"new": list("vwxyz"), "v": [1, 0, 1, 0, 0], "k": [2, 5, 9, 3, 1]})
    diff = diff_rows(before, after, ["k"])
    assert diff.added == after.take([1, 3])
    assert diff.removed == before.take([2, 4])
    assert diff.changed_before == before.take([0, 3])
    assert diff.changed_after == after.take([2, 0])
    assert diff.counts() == counts(added=2, removed=2, changed=2, unchanged=1)


def test_columns_of_one_side_or_of_two_types_are_not_compared():
    before = pa.table({"k": [1], "gone": [1], "typed": [1], "same": ["x"]})
    after = pa.table({"k": [1], "came": [1], "typed": ["2"], "same": ["x"]})
    assert diff_rows(before, after, ["k"]).counts() == counts(unchanged=1)
    assert diff_rows(before, after.set_column(3, "same", pa.array(["y"])), ["k"]).counts() == counts(changed=1)


def test_frames_of_keys_alone_are_compared_by_presence():
    assert diff_rows(pa.table({"k": [1, 2]}), pa.table({"k": [2, 3]}), ["k"]).counts() == counts(1, 1, 0, 1)


FULL = pa.table({"k": [1, 2], "v": ["a", None]})
EMPTY = FULL.schema.empty_table()


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (EMPTY, FULL, {"added": 2}),
        (FULL, EMPTY, {"removed": 2}),
        (EMPTY, EMPTY, {}),
        (FULL, pa.table({"k": [3], "v": ["a"]}), {"added": 1, "removed": 2}),
    ],
    ids=["from nothing", "to nothing", "nothing", "nothing in common"],
)
def test_sides_with_no_rows_in_common(before, after, expected):
    diff = diff_rows(before, after, ["k"])
    assert diff.counts() == counts(**expected)
    assert (diff.added, diff.removed) == (after, before)
    assert (diff.changed_before, diff.changed_after) == (EMPTY, EMPTY)


@pytest.mark.parametrize(
    ("convert", "result"),
    [
        (pa.Table.to_pandas, pd.DataFrame),
        (pl.from_arrow, pl.DataFrame),
        (lambda table: pl.from_arrow(table).lazy(), pl.LazyFrame),
        (pa.Table.to_reader, pa.Table),
        (lambda table: table.to_batches()[0], pa.Table),
    ],
    ids=["pandas", "polars", "polars lazy", "reader", "batch"],
)
def test_each_kind_of_frame_gives_its_own_kind(convert, result):
    diff = diff_rows(convert(FULL), convert(pa.table({"k": [2, 3], "v": ["b", "c"]})), ["k"])
    frames = [diff.added, diff.removed, diff.changed_before, diff.changed_after]
    assert all(isinstance(frame, result) for frame in frames)
    assert [rows(frame) for frame in frames] == [[(3, "c")], [(1, "a")], [(2, None)], [(2, "b")]]


def test_frames_of_two_kinds_give_arrow():
    diff = diff_rows(FULL.to_pandas(), pl.from_arrow(FULL), ["k"])
    assert isinstance(diff.added, pa.Table)
    assert diff.counts() == counts(unchanged=2)


def test_a_large_table_of_many_chunks_is_taken_in_pieces():
    many = pa.table({"k": range(300_000), "v": range(300_000)})
    before = pa.concat_tables([many.slice(i * 1000, 1000) for i in range(300)])
    after = many.set_column(1, "v", pa.array(range(1, 300_001)))
    diff = diff_rows(before, after, ["k"])
    assert diff.counts() == counts(changed=300_000)
    assert (diff.changed_before, diff.changed_after) == (many, after)


@pytest.mark.parametrize(
    ("frame", "error"),
    [
        (pa.table({"k": [1], "v": pa.nulls(1)}), UnsupportedType),
        (pa.table([[1], [2]], ["k", "K"]), UnsupportedFrame),
        ({"k": [1]}, UnsupportedFrame),
    ],
    ids=["void", "names equal but for case", "a dict"],
)
def test_what_could_not_be_stored_is_refused(frame, error):
    for sides in ((frame, FULL), (FULL, frame)):
        with pytest.raises(error):
            diff_rows(*sides, ["k"])


def test_nanoseconds_are_refused_where_they_would_be_compared():
    before, after = (pa.table({"k": [1], "v": pa.array([ns], pa.timestamp("ns"))}) for ns in (1000, 1001))
    assert diff_rows(before, before, ["k"]).counts() == counts(unchanged=1)
    with pytest.raises(UnsupportedType, match="'v'"):
        diff_rows(before, after, ["k"])


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["a", "b"], pa.string_view()),
        pa.array([["a"], None], pa.list_(pa.string_view())),
        pa.array([["a"], None], pa.list_view(pa.string())),
        pa.RunEndEncodedArray.from_arrays([2], ["a"]),
    ],
    ids=["view", "view in a list", "list view", "runs"],
)
def test_rows_of_columns_that_arrow_cannot_gather_come_back_in_stored_types(column):
    before, after = pa.table({"k": [1, 2], "v": column}), pa.table({"k": [2, 3], "v": column})
    diff = diff_rows(before, after, ["k"])
    assert rows(diff.removed) == rows(before)[:1]
    assert rows(diff.added) == rows(after)[1:]


# --- against a model -------------------------------------------------------------------------------------------------

FLOATS = st.sampled_from([None, 0.0, -0.0, 1.5, NAN])
VALUES = st.tuples(
    FLOATS,
    st.sampled_from([None, "", "a"]),
    st.none() | st.lists(st.sampled_from([None, 0.0, -0.0, NAN]), max_size=2),
)
SIDES = st.dictionaries(
    st.tuples(st.integers(0, 6), st.sampled_from([0.0, 1.0, math.inf])), VALUES, max_size=12
).flatmap(lambda side: st.permutations(list(side.items())))
SCHEMA = pa.schema(
    {"i": pa.int32(), "x": pa.float64(), "f": pa.float64(), "s": pa.string(), "l": pa.list_(pa.float64())}
)


@given(SIDES, SIDES, st.integers(1, 4))
def test_agrees_with_a_dict(before, after, chunk):
    old, new = dict(before), dict(after)
    diff = diff_rows(table_of(before, chunk), table_of(after, chunk + 1), ["x", "i"])
    changed = [key for key in old if key in new and plain(old[key]) != plain(new[key])]
    expected = {
        "added": [(key, value) for key, value in new.items() if key not in old],
        "removed": [(key, value) for key, value in old.items() if key not in new],
        "changed_before": [(key, old[key]) for key in changed],
        "changed_after": [(key, new[key]) for key in changed],
    }
    for name, model in expected.items():
        assert plain(rows(getattr(diff, name))) == plain([(*key, *value) for key, value in model]), name
    added, removed = len(expected["added"]), len(expected["removed"])
    assert diff.counts() == counts(added, removed, len(changed), len(old) - removed - len(changed))


def table_of(side, chunk):
    columns = list(zip(*((*key, *value) for key, value in side), strict=True)) or [()] * len(SCHEMA)
    table = pa.table([pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)], SCHEMA)
    return pa.Table.from_batches(table.to_batches(max_chunksize=chunk), SCHEMA)


def plain(value):
    """Values that `==` compares as the diff does: NaN equals itself, -0.0 equals 0.0 anyway."""
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


def counts(added=0, removed=0, changed=0, unchanged=0):
    return {"added": added, "removed": removed, "changed": changed, "unchanged": unchanged}


def rows(frame):
    if isinstance(frame, pl.LazyFrame):
        frame = frame.collect()
    if isinstance(frame, pl.DataFrame):
        frame = frame.to_arrow()
    if isinstance(frame, pd.DataFrame):
        frame = pa.Table.from_pandas(frame, preserve_index=False)
    return [tuple(row.values()) for row in frame.to_pylist()]
