"""Rows in an order that the values alone decide."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_versioned.engines import row_order
from dagster_versioned.engines.row_order import canonical_order, order_rows
from dagster_versioned.errors import InvalidInput
from support.arrow_rows import tables

NAN = float("nan")


@given(st.data())
@settings(max_examples=30)
def test_canonical_order_does_not_depend_on_the_order_before(data):
    table = data.draw(tables())
    shuffled = table.take(data.draw(st.permutations(range(table.num_rows)))) if table.num_rows else table
    # As text, because -0.0 equals 0.0 and both may be there.
    if "0.0" not in str(table.to_pylist()):
        assert canonical_order(shuffled).equals(canonical_order(table))
    assert sorted(map(str, canonical_order(shuffled).to_pylist())) == sorted(map(str, table.to_pylist()))


@given(st.data())
@settings(max_examples=20)
def test_rows_are_ordered_by_the_keys_and_ties_by_everything_else(data):
    key = data.draw(st.lists(st.none() | st.integers(0, 3), min_size=1, max_size=20))
    other = data.draw(st.lists(st.text(max_size=2), min_size=len(key), max_size=len(key)))
    nested = data.draw(st.lists(st.lists(st.integers(0, 2), max_size=2), min_size=len(key), max_size=len(key)))
    table = pa.table(
        {"nested": pa.array(nested, pa.list_(pa.int64())), "other": other, "key": pa.array(key, pa.int64())}
    )
    result = order_rows(table, ["key"])
    shuffled = table.take(data.draw(st.permutations(range(len(key)))))
    assert order_rows(shuffled, ["key"]).equals(result)
    pairs = [
        (k is None, k or 0, o.encode())
        for k, o in zip(result["key"].to_pylist(), result["other"].to_pylist(), strict=True)
    ]
    assert pairs == sorted(pairs)


def test_keys_go_before_columns_in_the_order_in_which_they_are_named():
    table = pa.table({"a": [1, 1, 2], "b": [2, 1, 0], "c": ["x", "y", "z"]})
    assert order_rows(table, ["b"])["c"].to_pylist() == ["z", "y", "x"]
    assert order_rows(table, ["a", "b"])["c"].to_pylist() == ["y", "x", "z"]
    assert order_rows(table, ["c"])["c"].to_pylist() == ["x", "y", "z"]


def test_nan_and_null_go_last():
    table = pa.table({"f": [NAN, None, 1.0, -1.0]})
    assert str(order_rows(table, ["f"])["f"].to_pylist()) == "[-1.0, 1.0, nan, None]"


def test_zeros_are_ordered_by_their_sign_after_everything_else():
    table = pa.table({"f": [-0.0, 0.0, 0.0, -0.0], "n": [1, 0, 1, 0]})
    assert str(order_rows(table, ["f"]).to_pydict()) == "{'f': [0.0, -0.0, 0.0, -0.0], 'n': [0, 0, 1, 1]}"


@pytest.mark.parametrize("name", [".a", "a.b", "", "a[0]"])
def test_names_that_look_like_paths_are_names(name):
    table = pa.table({name: [2, 1]})
    assert order_rows(table, [name])[name].to_pylist() == [1, 2]


def test_an_unknown_key_and_one_without_an_order_are_refused():
    table = pa.table({"a": [1], "l": [[1]]})
    with pytest.raises(InvalidInput, match=r"'b', which is no column.*'a', 'l'"):
        order_rows(table, ["b"])
    with pytest.raises(InvalidInput, match=r"'l', whose type list.* has no order"):
        order_rows(table, ["l"])


def test_rows_are_gathered_in_pieces(monkeypatch):
    monkeypatch.setattr(row_order, "TAKE_ROWS", 7)
    table = pa.table({"a": list(range(100, 0, -1)), "s": [str(i) for i in range(100)]})
    result = canonical_order(table)
    assert result["a"].to_pylist() == list(range(1, 101))
    assert result["s"].to_pylist() == [str(i) for i in range(99, -1, -1)]
