"""File actions as rows of Arrow, and back."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from dagster_versioned.delta.actions import Add, DeletionVector
from dagster_versioned.delta.files.file_actions import adds_table, to_adds
from dagster_versioned.tables.parts import named_sha

LONG = st.none() | st.integers(-(2**63), 2**63 - 1)
COUNT = st.integers(0, 2**63 - 1)
TEXT = st.text(max_size=8)
VECTORS = st.builds(
    DeletionVector, st.sampled_from("uip"), TEXT, st.integers(0, 2**31 - 1), COUNT, st.none() | st.integers(0, 9)
)
ADDS = st.builds(
    Add,
    st.text("ab/._-é", min_size=1, max_size=9),
    st.dictionaries(TEXT, st.none() | TEXT, max_size=3),
    COUNT,
    st.integers(-(2**63), 2**63 - 1),
    st.booleans(),
    st.none() | TEXT,
    st.none() | st.dictionaries(TEXT, st.none() | TEXT, max_size=3),
    st.none() | VECTORS,
    LONG,
    LONG,
    st.none() | TEXT,
)


@given(st.lists(ADDS, max_size=6), st.integers(0, 6), st.integers(0, 6))
def test_actions_are_what_they_were(adds: list[Add], start: int, length: int) -> None:
    table = adds_table(adds)
    assert to_adds(table) == adds
    assert to_adds(table.slice(start, length)) == adds[start : start + length]


@pytest.mark.parametrize(
    ("key", "sha"),
    [
        ("a" * 64 + ".parquet", "a" * 64),
        ("year=1/é/" + "0" * 64 + ".parquet", "0" * 64),
        ("/" + "0" * 64 + ".parquet", "0" * 64),
        ("x" + "0" * 64 + ".parquet", None),
        ("0" * 63 + ".parquet", None),
        ("0" * 64 + ".parquet\n", None),
        ("0" * 64 + ".parquet/part", None),
        ("A" * 64 + ".parquet", None),
        ("", None),
    ],
)
def test_a_name_is_a_sha_or_none(key: str, sha: str | None) -> None:
    assert named_sha(key) == sha
