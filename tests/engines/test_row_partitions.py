"""One frame becomes a frame for each partition key: no row is lost, none is in another's place."""

from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_versioned.engines.dispatch import split_rows
from dagster_versioned.engines.row_partitions import KeyColumn, RowPartitions
from dagster_versioned.errors import EmptyTable, InvalidInput, UnsupportedFrame

AB = RowPartitions(("a", "b"), (KeyColumn("k", ("a", "b")),))


def days(first, count, zone=UTC):
    """Partitions by day from a date on, in a time zone."""
    dates = [first + timedelta(days=i) for i in range(count + 1)]
    moments = [datetime(one.year, one.month, one.day, tzinfo=zone) for one in dates]
    keys = tuple(str(one) for one in dates[:-1])
    return RowPartitions(keys, (KeyColumn("t", keys, tuple(pairwise(moments))),))


def pieces(frame, partitions, **options):
    with split_rows(frame, partitions, **options) as frames:
        return {key: frame.to_pylist() for key, frame in frames.items()}


@pytest.mark.parametrize(
    "make",
    [pa.table, pd.DataFrame, pl.DataFrame, pl.LazyFrame, lambda rows: pa.table(rows).to_reader()],
    ids=["arrow", "pandas", "polars", "lazy", "reader"],
)
def test_every_kind_of_frame_is_split_in_the_order_it_had(make):
    found = pieces(make({"k": ["b", "a", "b"], "n": [1, 2, 3]}), AB)
    assert found == {"a": [{"k": "a", "n": 2}], "b": [{"k": "b", "n": 1}, {"k": "b", "n": 3}]}


@given(
    codes=st.lists(st.integers(0, 3), max_size=60),
    kind=st.sampled_from([pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string()), pa.int16()]),
)
def test_each_row_is_in_exactly_the_partition_that_it_names(codes, kind):
    keys = ("0", "1", "2", "3")
    values = pa.array(codes, kind) if kind == pa.int16() else pa.array(map(str, codes), pa.string()).cast(kind)
    table = pa.table({"k": values, "n": list(range(len(codes)))})
    with split_rows(table, RowPartitions(keys, (KeyColumn("k", keys),)), allow_empty=True) as frames:
        for key in keys:
            assert frames[key]["n"].to_pylist() == [n for n, code in enumerate(codes) if str(code) == key]
            assert frames[key].schema == table.schema


@given(
    seconds=st.lists(st.integers(-10, 3 * 86_400 - 1), min_size=1, max_size=40),
    kind=st.sampled_from([pa.timestamp("s"), pa.timestamp("ns", "America/New_York"), pa.timestamp("ms", "UTC")]),
)
def test_a_moment_is_of_the_day_that_its_zone_says(seconds, kind):
    zone = ZoneInfo("America/New_York")
    partitions = days(date(2024, 3, 9), 4, zone)  # the clocks change on the 10th
    start = datetime(2024, 3, 9, tzinfo=zone)
    if kind.tz is None:  # the wall clock itself
        moments = [datetime(2024, 3, 9) + timedelta(seconds=one) for one in seconds]
        expected = [str(moment.date()) for moment in moments]
    else:
        moments = [start.astimezone(UTC) + timedelta(seconds=one) for one in seconds]
        expected = [str(moment.astimezone(zone).date()) for moment in moments]
    table = pa.table(
        {"t": pa.array(moments, pa.timestamp("us", kind.tz and "UTC")).cast(kind), "n": range(len(seconds))}
    )
    if min(seconds) < 0:
        with pytest.raises(InvalidInput, match="belong to none"):
            pieces(table, partitions, allow_empty=True)
        return
    found = pieces(table, partitions, allow_empty=True)
    assert {row["n"]: key for key, rows in found.items() for row in rows} == dict(enumerate(expected))


@pytest.mark.parametrize("kind", [pa.date32(), pa.date64(), pa.string()])
def test_a_day_may_be_a_date_or_its_text(kind):
    texts = pa.array(["2024-01-02", "2024-01-01"])
    values = texts if kind == pa.string() else texts.cast(pa.date32()).cast(kind)
    found = pieces(pa.table({"t": values, "n": [1, 2]}), days(date(2024, 1, 1), 2))
    assert {key: [row["n"] for row in rows] for key, rows in found.items()} == {"2024-01-01": [2], "2024-01-02": [1]}


def test_windows_that_overlap_on_the_wall_clock_need_a_zone():
    start = datetime(2024, 11, 3, 4, tzinfo=UTC)  # midnight in New York, where the clocks go back at two
    bounds = [(start + timedelta(minutes=30 * i)).astimezone(ZoneInfo("America/New_York")) for i in range(9)]
    keys = tuple(map(str, range(8)))
    partitions = RowPartitions(keys, (KeyColumn("t", keys, tuple(pairwise(bounds))),))
    with pytest.raises(InvalidInput, match=r"overlap on the wall clock.*with a zone"):
        pieces(pa.table({"t": [datetime(2024, 11, 3, 1, 15)]}), partitions)
    moments = pa.array([start + timedelta(minutes=75), start + timedelta(minutes=135)], pa.timestamp("us", "UTC"))
    found = pieces(pa.table({"t": moments}), partitions, allow_empty=True)
    assert [key for key, rows in found.items() if rows] == ["2", "4"]


def test_every_row_of_a_thousand_days_is_in_its_day():
    partitions = days(date(2020, 1, 1), 1000)
    at = np.datetime64("2020-01-01") + np.random.default_rng(1).integers(0, 1000, 200_000)
    found = pieces(pa.table({"t": pa.array(at), "n": np.arange(len(at))}), partitions)
    assert all(str(row["t"]) == key for key, rows in found.items() for row in rows)
    assert sum(map(len, found.values())) == len(at)


def test_columns_of_several_dimensions_are_matched_together():
    keys = ("1|x", "1|y", "2|x")
    partitions = RowPartitions(keys, (KeyColumn("d", ("1", "1", "2")), KeyColumn("w", ("x", "y", "x"))))
    table = pa.table({"d": [2, 1, 1], "w": ["x", "y", "x"], "n": [1, 2, 3]})
    assert {key: rows[0]["n"] for key, rows in pieces(table, partitions).items()} == {"1|x": 3, "1|y": 2, "2|x": 1}
    with pytest.raises(InvalidInput, match=r"'2'\|'y' \(1 rows\)"):
        pieces(pa.table({"d": [2], "w": ["y"]}), partitions, allow_empty=True)


@pytest.mark.parametrize(("values", "shown"), [(["a", "c", "c"], r"'c' \(2 rows\)"), (["a", None], r"null \(1 rows\)")])
def test_a_row_of_no_partition_is_refused_with_its_value(values, shown):
    with pytest.raises(InvalidInput, match=f"belong to none of the 2 partitions.*'k' is {shown}"):
        pieces(pa.table({"k": values}), AB)


def test_a_partition_without_rows_is_refused_by_its_key_unless_that_is_allowed():
    table = pa.table({"k": ["a"]})
    with pytest.raises(EmptyTable, match=r"partitions 'b', by 'k'.*allow_empty"):
        pieces(table, AB)
    assert pieces(table, AB, allow_empty=True)["b"] == []


@pytest.mark.parametrize(
    ("frame", "fault"),
    [
        (pa.table({"n": [1]}), "0 columns 'k'"),
        (pa.table([pa.array([1]), pa.array([2])], ["k", "k"]), "2 columns 'k'"),
        (pa.table({"k": [1.5]}), "type double, which cannot say"),
        (pa.table({"k": [["a"]]}), "which cannot say"),
        (pa.table({"k": [datetime(2024, 1, 1)]}), "which cannot say"),
    ],
)
def test_a_column_that_is_missing_or_no_key_is_refused(frame, fault):
    with pytest.raises(InvalidInput, match=fault):
        pieces(frame, AB)


def test_what_is_no_frame_is_refused():
    with pytest.raises(UnsupportedFrame):
        pieces([1], AB)


def test_rows_that_lie_together_are_not_copied():
    table = pa.table({"k": ["a"] * 5 + ["b"] * 5, "n": np.arange(10)})
    with split_rows(table, AB) as frames:
        addresses = {frame["n"].chunk(0).buffers()[1].address for frame in frames.values()}
    assert addresses == {table["n"].chunk(0).buffers()[1].address}
