"""Names of tables and partitions."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_versioned.errors import InvalidName
from dagster_versioned.identity.names import TableName, partition_key, partition_path, table_name, table_name_of


@pytest.mark.parametrize("name", ["a", "Z9", "daily delays (v2)-x", "a__b", "A" * 128, "datoms", "renv2"])
def test_names_that_datom_takes(name: str) -> None:
    assert table_name(name) == name
    assert isinstance(table_name(name), TableName)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "9a",
        "_a",
        " a",
        "a.b",
        "a/b",
        "a\\b",
        "../a",
        "/a",
        "..",
        "a\n",
        "a\0b",
        "a%2e",
        "é",
        "aé",
        "a\u0661",
        "A" * 129,
        "datom",
        "DATOM",
        "Renv",
        "input_files",
        "Input_Files",
        ".git",
        ".gitignore",
        ".metadata",
        ".datom",
    ],
)
def test_names_that_are_refused(name: str) -> None:
    with pytest.raises(InvalidName, match="Nothing was written"):
        table_name(name)


@given(st.text(max_size=20))
def test_a_table_name_is_what_the_rule_says(text: str) -> None:
    allowed = re.fullmatch(r"[A-Za-z][A-Za-z0-9_ ()\-]{0,127}", text, re.ASCII)
    try:
        assert table_name(text) == text
    except InvalidName:
        assert not allowed or text.lower() in ("datom", "renv", "input_files")
    else:
        assert allowed


def test_an_asset_key_is_joined() -> None:
    assert table_name_of(["flights", "daily_delays"]) == "flights__daily_delays"
    assert table_name_of(["a__b"]) == table_name_of(("a", "b"))


@pytest.mark.parametrize("key", [[], [""], ["a", ""], ["", "a"], "ab", ["a", "b/c"], ["a", ".."], ["datom"], ["9"]])
def test_asset_keys_without_a_table_name_are_refused(key: list[str]) -> None:
    with pytest.raises(InvalidName, match="asset key"):
        table_name_of(key)


partition_keys = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=16)


@given(partition_keys | st.text("./%~ ", min_size=1, max_size=5))
def test_a_partition_key_is_one_safe_segment_and_comes_back(key: str) -> None:
    path = partition_path(key)
    assert re.fullmatch(r"(?:[A-Za-z0-9_.\-]|%[0-9A-F]{2})+", path)
    assert path.strip(".")
    assert partition_key(path) == key


@given(partition_keys, partition_keys)
def test_two_partitions_have_two_paths(one: str, other: str) -> None:
    assert (partition_path(one) == partition_path(other)) == (one == other)


@pytest.mark.parametrize(
    ("key", "path"),
    [
        ("2013-01-01", "2013-01-01"),
        ("a.b", "a.b"),
        (".", "%2E"),
        ("..", "%2E%2E"),
        ("a/b", "a%2Fb"),
        ("a|b", "a%7Cb"),
        ("~", "%7E"),
        ("%2e", "%252e"),
        ("é", "%C3%A9"),
        (" ", "%20"),
        ("x" * 200, "x" * 200),
    ],
)
def test_partition_paths(key: str, path: str) -> None:
    assert partition_path(key) == path


@pytest.mark.parametrize("key", ["", "\0", "a\0", "\ud800", "x" * 201, "é" * 34])
def test_partition_keys_that_are_refused(key: str) -> None:
    with pytest.raises(InvalidName, match="Nothing was written"):
        partition_path(key)


@pytest.mark.parametrize("path", ["", ".", "..", "a/b", "%2e", "%41", "%", "%zz", "a b", "%FF", "%00", "~"])
def test_segments_that_no_key_has_are_refused(path: str) -> None:
    with pytest.raises(InvalidName):
        partition_key(path)
