"""The vectorised XXH64 against the ``xxhash`` package, value by value; with the package and where it is not there."""

import sys
from collections.abc import Iterator

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from dagster_versioned.identity import xxh64

SEEDS = (0, 1)


@pytest.fixture(autouse=True, scope="module", params=["with the package", "without it"])
def package(request: pytest.FixtureRequest) -> Iterator[None]:
    """As on a driver, then as on an executor that has numpy alone."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "without it":
            patch.setitem(sys.modules, "xxhash", None)
        xxh64._one_by_one.cache_clear()
        assert (xxh64._one_by_one() is xxh64.hash_one) == (request.param == "without it")
        yield
    xxh64._one_by_one.cache_clear()


def check_ragged(data: bytes, starts: list[int], lengths: list[int], shift: int = 0) -> None:
    buffer = np.frombuffer(b"\x00" * shift + data, np.uint8)[shift:]
    hashed = xxh64.hash_ragged(buffer, np.array(starts, np.int64), np.array(lengths, np.int64), SEEDS)
    for seed, lane in zip(SEEDS, hashed, strict=True):
        expected = [
            xxhash.xxh64_intdigest(data[start : start + length], seed)
            for start, length in zip(starts, lengths, strict=True)
        ]
        assert lane.tolist() == expected


@given(st.lists(st.integers(0, 2**64 - 1), max_size=20))
def test_single_words(words: list[int]) -> None:
    lanes = xxh64.hash_single_words(np.array(words, np.uint64))
    for seed, lane in zip(SEEDS, lanes, strict=True):
        assert lane.tolist() == [xxhash.xxh64_intdigest(word.to_bytes(8, "little"), seed) for word in words]


@given(st.integers(0, 12), st.integers(1, 5), st.randoms(use_true_random=False), st.sampled_from([0, 1, 2**64 - 1]))
def test_rows_of_words(columns: int, rows: int, chance: object, seed: int) -> None:
    words = [[chance.getrandbits(64) for _ in range(columns)] for _ in range(rows)]  # pyright: ignore
    if not columns:
        assert xxh64.hash_words([], seed).tolist() == [xxhash.xxh64_intdigest(b"", seed)]
        return
    hashed = xxh64.hash_words([np.array(column, np.uint64) for column in zip(*words, strict=True)], seed)
    data = [b"".join(word.to_bytes(8, "little") for word in row) for row in words]
    assert hashed.tolist() == [xxhash.xxh64_intdigest(row, seed) for row in data]


@given(st.lists(st.binary(max_size=300), max_size=12), st.integers(0, 9))
def test_values_of_any_length_and_alignment(parts: list[bytes], shift: int) -> None:
    starts = np.cumsum([0, *(len(part) for part in parts)])[:-1].tolist()
    check_ragged(b"".join(parts), starts, [len(part) for part in parts], shift)


@pytest.mark.parametrize("longest", [3, 7, 8, 31, 32, 100, 700, 5000])
def test_many_values_share_stripes(longest: int) -> None:
    chance = np.random.default_rng(longest)
    data = chance.integers(0, 256, longest * 30, np.uint8).tobytes()
    lengths = chance.integers(0, longest + 1, 1500)
    starts = chance.integers(0, len(data) - lengths + 1)
    check_ragged(data, starts.tolist(), lengths.tolist())


def test_every_length_up_to_a_few_stripes() -> None:
    data = bytes(range(256)) * 4
    lengths = [length for length in range(140) for _ in range(3)]
    check_ragged(data, [length % 11 for length in lengths], lengths)


def test_values_at_the_very_end_of_the_buffer() -> None:
    for size in range(1, 40):
        data = bytes(range(size))
        check_ragged(data, list(range(size + 1)), [size - start for start in range(size + 1)])


def test_no_values() -> None:
    check_ragged(b"", [], [])
    check_ragged(b"", [0, 0], [0, 0])


@given(st.binary(max_size=200), st.sampled_from([0, 1, 2**64 - 1]))
def test_one_value_in_python_alone(data: bytes, seed: int) -> None:
    assert xxh64.hash_one(data, seed) == xxhash.xxh64_intdigest(data, seed)
    assert xxh64.hash_one(memoryview(data)[3:], seed) == xxhash.xxh64_intdigest(data[3:], seed)
