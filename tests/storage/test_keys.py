"""Which keys, prefixes and starts are accepted."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_versioned.errors import InvalidName
from dagster_versioned.storage import LocalStore
from dagster_versioned.storage.keys import check_folder, check_key, check_prefix, check_start, is_key

any_text = st.text(st.characters(exclude_categories=[])) | st.text(st.sampled_from("ab./\\\0\n~é\ud800")).map("".join)


def is_plain(key: str) -> bool:
    """What a key is, said a second time."""
    return (
        re.search(r"[\\\x00-\x1f\x7f-\x9f\ud800-\udfff]", key) is None
        and all(segment not in {"", ".", "..", ".tmp"} and len(segment.encode()) <= 255 for segment in key.split("/"))
        and len(key.encode()) <= 1024
    )


@given(any_text)
def test_a_key_is_returned_as_it_is_or_refused(key: str):
    assert is_key(key) == is_plain(key)
    if is_plain(key):
        assert check_key(key) is key
        assert check_prefix(key) == check_start(key) == key
        assert check_folder(f"{key}/") == f"{key}/"
    else:
        with pytest.raises(InvalidName, match="is refused"):
            check_key(key)


@given(any_text)
def test_an_accepted_key_stays_below_the_root(tmp_path_factory: pytest.TempPathFactory, key: str):
    root = tmp_path_factory.getbasetemp()
    if is_key(key):
        path = LocalStore(root).local_path(key)
        assert path.relative_to(root).as_posix() == key


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]))))
def test_text_is_ordered_as_its_bytes(keys: list[str]):
    assert sorted(keys) == sorted(keys, key=lambda key: key.encode())


@pytest.mark.parametrize("segment", ["a" * 256, "é" * 128, "/".join(["a" * 200] * 6)])
def test_what_no_file_system_or_bucket_takes_is_refused(segment: str):
    with pytest.raises(InvalidName, match="longer than"):
        check_key(segment)
    assert is_key("é" * 127)


@pytest.mark.parametrize("prefix", ["", "a", "a/", "a/b", ".", "..", "a/.."])
def test_a_prefix_may_end_within_a_segment(prefix: str):
    assert check_prefix(prefix) == prefix


@pytest.mark.parametrize("prefix", ["/", "a//", "./", "../a", ".tmp/", "a\0"])
def test_a_prefix_is_refused_where_its_folder_is(prefix: str):
    with pytest.raises(InvalidName, match="storage prefix"):
        check_prefix(prefix)


def test_a_start_may_be_any_text_that_has_bytes():
    assert check_start("../a//") == "../a//"
    with pytest.raises(InvalidName, match="start_after"):
        check_start("\ud800")
