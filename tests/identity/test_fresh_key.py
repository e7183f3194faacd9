"""Rows under a key that is drawn for one comparison: equal sums are equal rows, whoever supplied them."""

from collections import Counter
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from dagster_versioned.identity import compiled, siphash
from dagster_versioned.identity.digest import BagDigest, fresh_key, row_lanes
from support import reference_digest
from support.colliding import colliding_texts
from support.digest_columns import batch_of, nullable, tables

ONE, OTHER = colliding_texts()
KEY = bytes(range(16))
VECTORS = {  # of the reference implementation, for 0, 1, 2, … in so many bytes under KEY
    0: 0x726FDB47DD0E0E31,
    1: 0x74F839C593DC67FD,
    7: 0xAB0200F58B01D137,
    8: 0x93F5F5799A932462,
    15: 0xA129CA6149BE45E5,
}

implementations = pytest.mark.parametrize("library", [compiled.LIBRARY, compiled.Library(b"")], ids=["c", "numpy"])


def sums(key: bytes | None, *batches: pa.RecordBatch) -> tuple[int, int, int]:
    bag = BagDigest(batches[0].schema, key)
    for batch in batches:
        bag.update(batch)
    return bag.lanes


def test_the_two_texts_have_one_open_hash() -> None:
    assert ONE != OTHER
    assert ONE.isprintable()
    for seed in range(100):
        assert xxhash.xxh64_intdigest(ONE.encode(), seed) == xxhash.xxh64_intdigest(OTHER.encode(), seed)


@pytest.mark.parametrize(("size", "hashed"), VECTORS.items())
def test_it_is_siphash(size: int, hashed: int) -> None:
    data = bytes(range(size))
    assert siphash.hash_one(data, KEY) == hashed
    many = np.frombuffer(data * 40, np.uint8)
    starts = np.arange(40, dtype=np.int64) * size
    assert siphash.hash_ragged(many, starts, np.full(40, size, np.int64), KEY).tolist() == [hashed] * 40
    if size == 8:
        assert siphash.hash_words([np.frombuffer(data, np.uint64)], KEY).tolist() == [hashed]


@given(st.lists(st.binary(max_size=300), max_size=40), st.binary(min_size=16, max_size=16))
def test_values_of_any_length_are_hashed_as_alone(parts: list[bytes], key: bytes) -> None:
    lengths = np.array([len(part) for part in parts], np.int64)
    hashed = siphash.hash_ragged(np.frombuffer(b"".join(parts), np.uint8), np.cumsum(lengths) - lengths, lengths, key)
    assert hashed.tolist() == [siphash.hash_one(part, key) for part in parts]


ROWS: dict[str, tuple[list[Any], list[Any]]] = {
    "a value for the other": ([ONE], [OTHER]),
    "one of two equal rows": ([ONE, ONE], [ONE, OTHER]),
    "values that trade places": ([[ONE, "x"], [OTHER, "y"]], [[OTHER, "x"], [ONE, "y"]]),
    "in structs": ([{"a": {"b": ONE}}], [{"a": {"b": OTHER}}]),
    "in maps of lists": ([[("k", [ONE])]], [[("k", [OTHER])]]),
    "as keys of maps": ([[(ONE, 1)]], [[(OTHER, 1)]]),
    "bytes": ([ONE.encode()], [OTHER.encode()]),
}
KINDS = {"in maps of lists": pa.map_(pa.string(), pa.list_(pa.string())), "as keys of maps": pa.map_(pa.string(), "i8")}


@implementations
@pytest.mark.parametrize("case", ROWS)
def test_rows_with_one_open_digest_are_told_apart(library: compiled.Library, case: str) -> None:
    one, other = (pa.record_batch({"c": pa.array(rows, KINDS.get(case))}) for rows in ROWS[case])
    key = fresh_key()
    with mock.patch.object(compiled, "LIBRARY", library):
        assert sums(None, one) == sums(None, other)
        assert sums(key, one) != sums(key, other)
        assert sums(key, one) == sums(key, one.slice(0, 1), one.slice(1))
        differing = [a != b for a, b in zip(row_lanes(one, key)[0], row_lanes(other, key)[0], strict=True)]
    assert differing == [a != b for a, b in zip(one["c"].to_pylist(), other["c"].to_pylist(), strict=True)]


@given(table=tables(), data=st.data())
def test_sums_are_equal_where_the_rows_are(table: Any, data: st.DataObject) -> None:
    """Rows and what a few changes make of them, in another order."""
    columns, rows = table
    kinds = [kind for _, kind in columns]
    changed = list(data.draw(st.permutations(rows)))
    for _ in range(data.draw(st.integers(0, 2))):
        at = data.draw(st.integers(0, len(changed)))
        new = data.draw(st.tuples(*(nullable(kind) for kind in kinds)) | st.sampled_from(rows or [None]))
        changed[at : at + data.draw(st.integers(0, 1))] = [new] if new is not None else []
    one, other = batch_of(columns, rows), batch_of(columns, changed)
    key = fresh_key()
    equal = _as_values(kinds, rows) == _as_values(kinds, changed)
    assert (sums(key, one) == sums(key, other)) == equal
    assert sums(key, one) != sums(fresh_key(), one) or not rows


def _as_values(kinds: list[Any], rows: list[Any]) -> Counter[tuple[int, int]]:
    """The multiset of rows, each by its open hashes: nobody made these examples collide."""
    return Counter(tuple(reference_digest.record(kinds, list(row), seed) for seed in (0, 1)) for row in rows)
