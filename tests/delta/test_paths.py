import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given

from dagster_versioned.delta.paths import confine, confined_key, decode_path, encode_path, keys_of
from dagster_versioned.errors import LogCorrupt, UnsupportedFeature

segments = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/\0\\"), min_size=1, max_size=8).filter(
    lambda text: text not in (".", "..")
)
keys = st.lists(segments, min_size=1, max_size=3).map("/".join)


@given(keys)
def test_encoding_round_trips(key: str) -> None:
    path = encode_path(key)
    assert path.isascii()
    assert decode_path(path) == key
    assert confined_key(path) == key


@given(st.lists(keys, max_size=5))
def test_columns_are_decoded_as_single_paths_are(some: list[str]) -> None:
    column = pa.chunked_array([pa.array([encode_path(key) for key in some], pa.string())])
    assert keys_of(column).to_pylist() == some
    confine(column)


def test_plain_columns_share_memory() -> None:
    column = pa.chunked_array([["a.parquet"], ["x=1/b.parquet"]])
    assert keys_of(column) is column


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("a%20b", "a b"),
        ("%61", "a"),
        ("./a/b", "a//b"),
        ("file:///x/y%20z", "/x/y z"),
        ("file:/x", "/x"),
        ("s3://bucket/a", "s3://bucket//a"),
    ],
)
def test_spellings_of_one_file_are_one_file(one: str, other: str) -> None:
    assert decode_path(one) == decode_path(other)


def test_encoded_hive_folders_keep_their_own_escapes() -> None:
    assert decode_path("x=A%252FA/p.parquet") == "x=A%2FA/p.parquet"
    assert decode_path("a+b") == "a+b"


@pytest.mark.parametrize("path", ["../a", "a/../../b", "a/..", "", "%2e%2e/a", "a/%2E%2E/b", "a\\b", "a%00b", "."])
def test_paths_that_leave_the_folder_are_refused(path: str) -> None:
    with pytest.raises(LogCorrupt, match="leaves the table's folder"):
        confined_key(path)
    with pytest.raises(LogCorrupt):
        confine(pa.chunked_array([["fine.parquet", path]]))


@pytest.mark.parametrize("path", ["/etc/passwd", "s3://other/x", "file:///x", "%2Fetc/passwd", "C:/x", "//host/x"])
def test_absolute_paths_are_refused_by_name(path: str) -> None:
    with pytest.raises(UnsupportedFeature, match="absolutePaths"):
        confined_key(path)


@pytest.mark.parametrize("path", ["100%", "a%zz", "%FF", "%E9"])
def test_what_is_no_uri_is_refused(path: str) -> None:
    with pytest.raises(LogCorrupt, match="not a URI"):
        decode_path(path)
