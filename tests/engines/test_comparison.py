"""What is different between two frames, in one pass over each: Arrow and Spark say the same."""

import math
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from dagster_versioned.engines.comparison import ColumnStatistics, Comparison
from dagster_versioned.engines.dispatch import compare, diff_rows
from dagster_versioned.errors import InvalidInput
from support.spark import spark_frame

NAN = float("nan")
FAR = pa.scalar(10**15 * 300, pa.timestamp("us"))  # year 11476, which Python's datetime has not

Compare = Callable[..., Comparison]


@pytest.fixture(params=["arrow", pytest.param("spark", marks=pytest.mark.spark)])
def compared(request) -> Compare:
    if request.param == "arrow":
        return lambda before, after, key=(): compare(before.to_reader(2), after.to_reader(2), key)
    session = request.getfixturevalue("spark")
    return lambda before, after, key=(): compare(spark_frame(session, before), spark_frame(session, after), key)


def column(values, data_type) -> pa.Table:
    return pa.table({"k": pa.array(range(len(values)), pa.int64()), "v": pa.array(values, data_type)})


def number(nulls, values, mean, minimum, maximum, nans=0) -> ColumnStatistics:
    return ColumnStatistics("number", nulls, nans, values, mean, minimum, maximum)


def moment(nulls, values, minimum, maximum) -> ColumnStatistics:
    return ColumnStatistics("moment", nulls, 0, values, None, minimum, maximum)


BIG = 2**63 - 1
CASES = {
    "integers": (pa.int32(), [1, None, 3, 5], [1, 2, 3, 5], number(1, 3, 3.0, 1, 5), number(0, 4, 2.75, 1, 5)),
    "integers whose sum is none": (
        pa.int64(),
        [BIG, BIG, BIG],
        [BIG, BIG, 1 - BIG],
        number(0, 3, float(BIG), BIG, BIG),
        number(0, 3, BIG / 3, 1 - BIG, BIG),
    ),
    "floats": (
        pa.float64(),
        [NAN, 1.5, None, -2.5],
        [NAN, NAN, None, -0.0],
        number(1, 2, -0.5, -2.5, 1.5, nans=1),
        number(1, 1, 0.0, 0.0, 0.0, nans=2),
    ),
    "floats that are all NaN": (
        pa.float32(),
        [NAN, NAN],
        [NAN, 1.0],
        number(0, 0, None, None, None, nans=2),
        number(0, 1, 1.0, 1.0, 1.0, nans=1),
    ),
    "infinities": (
        pa.float64(),
        [math.inf, 1.0],
        [-math.inf, 1.0],
        number(0, 2, math.inf, 1.0, math.inf),
        number(0, 2, -math.inf, -math.inf, 1.0),
    ),
    "decimals": (
        pa.decimal128(38, 2),
        [Decimal("1.10"), Decimal("-0.10"), Decimal("9" * 36)],
        [Decimal("1.10"), Decimal("-0.20"), Decimal("9" * 36)],
        number(0, 3, 1e36 / 3, Decimal("-0.10"), Decimal("9" * 36 + ".00")),
        number(0, 3, 1e36 / 3, Decimal("-0.20"), Decimal("9" * 36 + ".00")),
    ),
    "booleans": (
        pa.bool_(),
        [True, None, False],
        [True, True, True, False],
        ColumnStatistics("boolean", 1, 0, 2, 0.5),
        ColumnStatistics("boolean", 0, 0, 4, 0.75),
    ),
    "dates": (
        pa.date32(),
        [date(1600, 2, 29), None],
        [date(2020, 1, 1), date(2024, 12, 31)],
        moment(1, 1, "1600-02-29", "1600-02-29"),
        moment(0, 2, "2020-01-01", "2024-12-31"),
    ),
    "timestamps": (
        pa.timestamp("us", "UTC"),
        [datetime(2020, 1, 1), datetime(2020, 6, 1, 12, 30, 0, 1)],
        [None, None],
        moment(0, 2, "2020-01-01T00:00:00Z", "2020-06-01T12:30:00.000001Z"),
        moment(2, 0, None, None),
    ),
    "timestamps without a zone, after year 9999": (
        pa.timestamp("us"),
        [datetime(2020, 1, 1), FAR],
        [datetime(2020, 1, 1)],
        moment(0, 2, "2020-01-01T00:00:00", "11476-08-15T05:20:00"),
        moment(0, 1, "2020-01-01T00:00:00", "2020-01-01T00:00:00"),
    ),
    "nothing before": (pa.int8(), [], [1, 2], number(0, 0, None, None, None), number(0, 2, 1.5, 1, 2)),
    "nothing after": (pa.int8(), [None], [], number(1, 0, None, None, None), number(0, 0, None, None, None)),
}


@pytest.mark.parametrize("key", [(), ("k",)], ids=["alone", "beside rows by key"])
@pytest.mark.parametrize(("data_type", "before", "after", "old", "new"), CASES.values(), ids=CASES)
def test_statistics_of(data_type, before, after, old, new, key):
    found = compare(column(before, data_type).to_reader(2), column(after, data_type).to_reader(2), key)
    assert alike(found.columns["v"], (old, new))
    assert (found.rows is None) == (not key)


@pytest.mark.spark
@pytest.mark.parametrize("key", [(), ("k",)], ids=["alone", "beside rows by key"])
def test_spark_says_of_columns_what_arrow_says(spark, key):
    before, after = (wide(side) for side in (1, 2))
    expected = compare(before.to_reader(2), after.to_reader(2), key)
    found = compare(spark_frame(spark, before), spark_frame(spark, after), key)
    assert found.rows == expected.rows
    assert set(found.columns) == set(expected.columns) >= CASES.keys() - {"nothing after"}
    assert all(alike(found.columns[name], sides) for name, sides in expected.columns.items())


def wide(side: int) -> pa.Table:
    """All cases beside each other, of as many rows as the longest has; and columns that have no statistics."""
    nrow = 4
    columns = {
        name: pa.array([*case[side], *[None] * (nrow - len(case[side]))], case[0]) for name, case in CASES.items()
    }
    others = {"text": pa.array(["a"] * side + [None] * (nrow - side)), "list": pa.array([[side]] * nrow)}
    return pa.table({"k": pa.array(range(side, side + nrow)), **columns, **others})


def alike(found, expected) -> bool:
    """Equal, a mean within what the order of rows does to it, and values of the very same type."""
    return all(
        vars(one) | {"mean": 0} == vars(other) | {"mean": 0}
        and (repr(one.minimum), repr(one.maximum)) == (repr(other.minimum), repr(other.maximum))
        and (one.mean == other.mean or one.mean == pytest.approx(other.mean, rel=1e-9))
        for one, other in zip(found, expected, strict=True)
    )


def test_text_and_what_is_nested_have_none(compared):
    values = {"string": "a", "binary": b"a", "list": [1], "struct": {"a": 1}}
    before = pa.table({"k": [1, 2], **{name: [value, None] for name, value in values.items()}})
    after = pa.table({"k": [1, 2], **{name: pa.nulls(2, before[name].type) for name in values}})
    assert compared(before, after, ["k"]) == Comparison({"added": 0, "removed": 0, "changed": 1, "unchanged": 1}, {})


def test_columns_without_a_difference_are_left_out(compared):
    before, after = column([1, 2, 3], pa.int64()), column([3, 2, 1], pa.int64())
    assert compared(before, after).columns == {}
    assert compared(before, after, ["k"]).rows == {"added": 0, "removed": 0, "changed": 2, "unchanged": 1}


def test_the_order_of_rows_is_no_difference(compared):
    random = np.random.default_rng(7)
    some = random.normal(size=500)
    # Of the latter, all but noise cancels out, so that two means have no digit in common.
    for values in (some, np.concatenate([some, -some]) * 1e9):
        others = random.permutation(values)
        assert sum(values) != sum(others)
        assert compared(column(values, pa.float64()), column(others, pa.float64())).columns == {}


class TestColumnWithAnotherType:
    def of(self, compared, before, after, key=()):
        return compared(column(*before), column(*after), key)

    @pytest.mark.parametrize("key", [(), ("k",)])
    def test_a_wider_one(self, compared, key):
        found = self.of(compared, ([1, 2], pa.int32()), ([1, 2], pa.int64()), key)
        assert found.columns == {}
        found = self.of(compared, ([1, 2], pa.int32()), ([1, 3], pa.float64()), key)
        assert found.columns["v"] == (number(0, 2, 1.5, 1, 2), number(0, 2, 2.0, 1, 3))

    @pytest.mark.parametrize("key", [(), ("k",)])
    def test_one_of_the_same_kind_that_is_not_compared_row_by_row(self, compared, key):
        found = self.of(compared, ([1, 2], pa.int64()), ([1.5, 2.5], pa.float64()), key)
        assert found.columns["v"] == (number(0, 2, 1.5, 1, 2), number(0, 2, 2.0, 1.5, 2.5))
        assert found.rows in (None, {"added": 0, "removed": 0, "changed": 0, "unchanged": 2})

    @pytest.mark.parametrize("key", [(), ("k",)])
    def test_one_of_another_kind(self, compared, key):
        found = self.of(compared, ([1, 2], pa.int64()), (["1", "2"], pa.string()), key)
        assert found.columns == {}

    def test_columns_of_one_side(self, compared):
        before = column([1, 2], pa.int64())
        assert compared(before, before.select(["k"]).append_column("new", pa.array([1, 2])), ["k"]).columns == {}


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (pa.array([1, None, None]), pa.array([1]), r"'before': 2 rows have a null in it, and 0 .* \{'a.b': None\}"),
        (pa.array([1]), pa.array([2, 1, 2]), r"'after': 0 rows .* 1 keys have more than one row, .* \{'a.b': 2\}[.]"),
        (pa.array([NAN, NAN]), pa.array([1.0]), r"1 keys .* \{'a.b': nan\}"),
        (pa.array([1]), pa.array(["1"]), "'a.b' has the type long before and string after"),
    ],
    ids=["null", "twice", "nan twice", "of two types"],
)
def test_a_key_that_does_not_identify_rows_is_refused(compared, before, after, message):
    with pytest.raises(InvalidInput, match=message):
        compared(pa.table({"a.b": before}), pa.table({"a.b": after}), ["a.b"])


def test_a_key_of_two_columns_some_of_which_are_odd(compared):
    schema = pa.schema({"a`b": pa.string(), "x": pa.float64(), "before0": pa.int8(), "is": pa.bool_()})
    rows = [("a", 0.0, 1, True), ("a", NAN, 2, True), ("b", 1.0, 3, None)]
    others = [("a", -0.0, 1, True), ("a", NAN, 9, True), ("c", 1.0, 3, None)]
    before, after = (
        pa.table(
            [pa.array(values, kind) for values, kind in zip(zip(*side, strict=True), schema.types, strict=True)], schema
        )
        for side in (rows, others)
    )
    found = compared(before, after, ["a`b", "x"])
    assert found.rows == {"added": 1, "removed": 1, "changed": 1, "unchanged": 1}
    assert set(found.columns) == {"before0"}


def test_counts_are_those_of_the_rows_of_a_random_difference(compared):
    random = np.random.default_rng(7)
    sides = [
        pa.table(
            {
                "k": pa.array(random.permutation(400)[:300], pa.int32()),
                "v": pa.array(random.integers(0, 3, 300), pa.int8()),
                "m": pa.array(
                    [[("a", int(i)), ("b", 1)] for i in random.integers(0, 2, 300)], pa.map_(pa.string(), pa.int8())
                ),
            }
        )
        for _ in range(2)
    ]
    assert compared(*sides, ["k"]).rows == diff_rows(*sides, ["k"]).counts()
