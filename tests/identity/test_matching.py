"""Which rows of a frame a table has: each stored row for one of equal ones, whoever compares them."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_versioned.identity.compiled import LIBRARY
from dagster_versioned.identity.matching import match_rows, match_sorted

WAYS = [match_rows, match_sorted]


def lanes(rows):
    """Two hashes of each row; those of a few share the first."""
    words = np.array(rows, np.uint64)
    return words // np.uint64(3), words


def pairs(side, chosen):
    return Counter(zip(*(lane[chosen].tolist() for lane in side), strict=True))


def check(match, frame, table, dead):
    new, old, taken = lanes(frame), lanes(table), np.array(dead, np.bool_)
    known = match(new, old, taken)
    standing = taken & ~np.array(dead, np.bool_)
    assert pairs(new, known) == pairs(old, standing), "each row stands for one"
    left = pairs(new, ~known).keys() & pairs(old, ~taken).keys()
    assert not left, "no row is left on both sides"


@pytest.mark.parametrize("match", WAYS)
@given(
    frame=st.lists(st.integers(0, 20), max_size=60),
    table=st.lists(st.tuples(st.integers(0, 20), st.booleans()), max_size=60),
)
def test_equal_rows_stand_for_each_other_as_often_as_both_have_them(match, frame, table):
    check(match, frame, [row for row, _ in table], [dead for _, dead in table])


@pytest.mark.parametrize("match", WAYS)
@given(data=st.data())
def test_of_rows_in_one_order_some_come_and_go(match, data):
    rows = data.draw(st.lists(st.integers(0, 2**40), min_size=40, max_size=200))
    frame = list(rows)
    for _ in range(data.draw(st.integers(0, 6))):
        at = data.draw(st.integers(0, len(frame)))
        change = data.draw(st.sampled_from(["in", "out", "block", "away"]))
        frame[at : at + {"in": 0, "out": 1, "block": 0, "away": 40}[change]] = {"in": [7], "block": [5] * 50}.get(
            change, []
        )
    check(match, frame, rows, data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows))))


@pytest.mark.parametrize("match", WAYS)
@pytest.mark.parametrize("order", ["as it was", "another", "none in common"])
def test_many_rows(match, order):
    numbers = np.random.default_rng(3)
    rows = numbers.integers(0, 2**60, 50_000)
    frame = {"as it was": rows, "another": numbers.permutation(rows), "none in common": rows + 2**61}[order]
    check(match, frame, rows, numbers.random(len(rows)) < 0.1)


def test_of_a_million_equal_rows_one_goes():
    new, old, taken = lanes([6] * 999_999), lanes([6] * 1_000_000), np.zeros(1_000_000, np.bool_)
    assert match_rows(new, old, taken).all()
    assert np.flatnonzero(~taken).tolist() == [999_999]


@pytest.mark.skipif(LIBRARY.functions is None, reason="nothing was compiled")
def test_the_library_is_used_where_there_is_one(monkeypatch):
    monkeypatch.setattr("dagster_versioned.identity.matching.match_sorted", None)
    assert match_rows(lanes([1]), lanes([1]), np.zeros(1, np.bool_)).all()
