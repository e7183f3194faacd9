"""XXH64 over columns: one hash per row, computed for all rows at once.

The algorithm is that of https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md; the tests compare it with the
``xxhash`` package value by value. Arrays of ``uint64`` wrap around modulo 2^64, which is what the algorithm wants.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]
"""One 64-bit word per row; where all rows have the same, an array of length 1 will do."""

LONG = 512
"""Bytes beyond which a value goes to the ``xxhash`` package: a call costs 0.3 µs, a vectorised stripe 20 ns."""

_FEW = 100
"""Rows below which a stripe is not worth its 60 µs of numpy calls; the package takes those rows, too."""

_FEW_IN_PYTHON = 16
"""The same where the package is not there, and a stripe takes `hash_one` some 4 µs."""

_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(prime)
    for prime in (
        0x9E3779B185EBCA87,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    )
)

# What follows the exclusive or with a tail's word, half word or byte: rotation, factor, summand.
_WORD = (27, _P1, _P4)
_HALF = (23, _P2, _P3)
_BYTE = (11, _P1, np.uint64(0))


def hash_words(columns: Sequence[Words], seed: int) -> Words:
    """XXH64 of each row's words in column order, 8 bytes each, little-endian."""
    total = WordsHash(len(columns), seed)
    for column in columns:
        total.add(column)
    return total.finish()


def hash_single_words(words: Words) -> tuple[Words, Words]:
    """XXH64 of each 8-byte word, with seed 0 and with seed 1; they share the first half of the work."""
    mixed = _mixed(words)
    first, second = (_fold(mixed ^ _u64(int(_P5) + 8 + seed), *_WORD) for seed in (0, 1))
    return _avalanche(first), _avalanche(second)


class WordsHash:
    """XXH64 of rows of ``count`` words, fed a column of words at a time, so that each is used while it is cached."""

    def __init__(self, count: int, seed: int) -> None:
        self._striped = count // 4 * 4
        self._count = count
        self._seed = seed
        self._position = 0
        self._lanes = _start(seed)
        self._hash: Words = _u64(seed + int(_P5) + 8 * count)

    def add(self, words: Words) -> None:
        """The next word of every row."""
        lane = self._position % 4
        self._position += 1
        if self._position > self._striped:
            self._hash = _fold(self._hash ^ _mixed(words), *_WORD)
            return
        self._lanes[lane] = _round(self._lanes[lane], words)
        if self._position == self._striped:
            self._hash = _converge(self._lanes) + np.uint64(8 * self._count)

    def finish(self) -> Words:
        """The hashes, once all ``count`` columns were added."""
        return _avalanche(self._hash.copy())


def hash_ragged(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], seeds: Sequence[int]
) -> list[Words]:
    """XXH64 of ``data[start : start + length]`` for each row, once per seed; ``data`` is aligned to 8 bytes or copied.

    Stripes of 32 bytes run over the rows that still have one; the tails (words, half a word, bytes) run over all rows,
    and those without one keep what they have.
    """
    if not lengths.size:
        return [np.empty(0, np.uint64) for _ in seeds]
    if data.ctypes.data % 8:
        data = data.copy()
    words = data[: data.size // 8 * 8].view(np.uint64) if data.size >= 8 else np.zeros(1, np.uint64)
    whole = data.size // 8 * 8
    stripes = lengths >> 5
    hash_alone = _one_by_one()
    few, longest = (_FEW_IN_PYTHON, int(stripes.max())) if hash_alone is hash_one else (_FEW, LONG // 32)
    alone = np.flatnonzero(
        (stripes > _stripes_in_common(stripes, few, longest)) | ((starts + lengths > whole) & (lengths > 0))
    )
    together = lengths.copy()
    together[alone] = 0
    hashes = _tails(words, starts, together, _stripes(words, starts, together, seeds))
    view = data.data
    for row, start, length in zip(alone.tolist(), starts[alone].tolist(), lengths[alone].tolist(), strict=True):
        for seed, hashed in zip(seeds, hashes, strict=True):
            hashed[row] = hash_alone(view[start : start + length], seed)
    return hashes


@cache
def _one_by_one() -> Callable[[Any, int], int]:
    """What hashes a value alone: the ``xxhash`` package, or `hash_one` on executors, which need not have it."""
    try:
        from xxhash import xxh64_intdigest
    except ModuleNotFoundError:
        return hash_one
    return xxh64_intdigest


def hash_one(data: memoryview | bytes, seed: int) -> int:
    """XXH64 of one value, in Python alone."""
    p1, p2, p3, p4, p5 = (int(prime) for prime in (_P1, _P2, _P3, _P4, _P5))
    size, mask = len(data), 0xFFFFFFFFFFFFFFFF

    def rotated(number: int, by: int) -> int:
        return (number << by | number >> (64 - by)) & mask

    def mixed(number: int) -> int:
        return rotated(number * p2 & mask, 31) * p1 & mask

    striped, whole = size & ~31, size & ~7
    # The first half of a round, of all words at once.
    words = np.frombuffer(data, "<u8", whole // 8)
    if striped:
        lanes: list[int] = []
        for lane, start in enumerate((seed + p1 + p2, seed + p2, seed, seed - p1)):
            total = start & mask
            for product in (words[lane : striped // 8 : 4] * _P2).tolist():
                total = total + product & mask
                total = (total << 31 | total >> 33) * p1 & mask
            lanes.append(total)
        total = sum(rotated(lane, by) for lane, by in zip(lanes, (1, 7, 12, 18), strict=True)) & mask
        for lane in lanes:
            total = (total ^ mixed(lane)) * p1 + p4 & mask
    else:
        total = seed + p5
    total = total + size & mask
    for word in words[striped // 8 :].tolist():
        total = rotated(total ^ mixed(word), 27) * p1 + p4 & mask
    rest = bytes(data[whole:])
    if len(rest) >= 4:
        total = rotated(total ^ int.from_bytes(rest[:4], "little") * p1 & mask, 23) * p2 + p3 & mask
        rest = rest[4:]
    for byte in rest:
        total = rotated(total ^ byte * p5 & mask, 11) * p1 & mask
    total = (total ^ total >> 33) * p2 & mask
    total = (total ^ total >> 29) * p3 & mask
    return total ^ total >> 32


def _stripes_in_common(stripes: npt.NDArray[np.int64], few: int, longest: int) -> int:
    """The number of stripes, at most ``longest``, up to which more than a ``few`` rows have them."""
    rows = np.bincount(np.minimum(stripes, longest + 1), minlength=longest + 2)
    with_more = rows[::-1].cumsum()[::-1][1:]
    scarce = np.flatnonzero(with_more[:-1] < few)
    return int(scarce[0]) if scarce.size else longest


def _stripes(
    words: Words, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], seeds: Sequence[int]
) -> list[Words]:
    """The hashes before the tail: what the stripes left, or the constant of short rows, plus the length."""
    stripes = lengths >> 5
    hashes = [np.full(lengths.size, np.uint64(int(_P5) + seed)) for seed in seeds]
    # Longest first, so that the rows that still have a stripe are always a prefix.
    order = np.argsort(-stripes, kind="stable")[: np.count_nonzero(stripes)]
    if order.size:
        descending, position = stripes[order], starts[order]
        lanes = [[np.repeat(lane, order.size) for lane in _start(seed)] for seed in seeds]
        for stripe in range(int(descending[0])):
            active = int(np.searchsorted(-descending, -stripe))
            for index in range(4):
                word = _gather(words, position[:active] + (32 * stripe + 8 * index))
                for of_seed in lanes:
                    of_seed[index][:active] = _round(of_seed[index][:active], word)
        for hashed, of_seed in zip(hashes, lanes, strict=True):
            hashed[order] = _converge(of_seed)
    size = lengths.astype(np.uint64)
    return [hashed + size for hashed in hashes]


def _tails(
    words: Words, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], hashes: list[Words]
) -> list[Words]:
    rest = lengths & 31
    longest = int(rest.max())
    position = starts + (lengths - rest)
    for index in range(longest // 8):
        word = _mixed(_gather(words, position + 8 * index))
        hashes = _fold_where(rest >= 8 * (index + 1), hashes, word, _WORD)
    tail = _gather(words, starts + (lengths & ~7))
    has_half = (lengths & 4) != 0
    hashes = _fold_where(has_half, hashes, (tail & np.uint64(0xFFFFFFFF)) * _P1, _HALF)
    tail >>= has_half.astype(np.uint64) << np.uint64(5)
    for index in range(min(longest, 3)):
        byte = (tail & np.uint64(0xFF)) * _P5
        hashes = _fold_where((lengths & 3) > index, hashes, byte, _BYTE)
        tail >>= np.uint64(8)
    return [_avalanche(hashed) for hashed in hashes]


def _fold_where(
    rows: npt.NDArray[np.bool_], hashes: list[Words], mixed: Words, step: tuple[int, np.uint64, np.uint64]
) -> list[Words]:
    if not rows.any():
        return hashes
    folded = [_fold(hashed ^ mixed, *step) for hashed in hashes]
    if rows.all():
        return folded
    return [np.where(rows, new, old) for new, old in zip(folded, hashes, strict=True)]


def _gather(words: Words, position: npt.NDArray[np.int64]) -> Words:
    """The 8 bytes at each position, from the two aligned words they lie in.

    Past the end the last word stands in: such bytes belong to no row. 3.0 ns a word; an unaligned view takes 4.8.
    """
    index = position >> 3
    shift = ((position & 7) << 3).astype(np.uint64)
    low = words.take(index, mode="clip")
    low >>= shift
    index += 1
    high = words.take(index, mode="clip")
    # A shift by 64, of an aligned word, gives 0 in numpy.
    high <<= np.uint64(64) - shift
    low |= high
    return low


def _u64(number: int) -> Words:
    return np.array([number & 0xFFFFFFFFFFFFFFFF], np.uint64)


def _start(seed: int) -> list[Words]:
    p1, p2 = int(_P1), int(_P2)
    return [_u64(seed + p1 + p2), _u64(seed + p2), _u64(seed), _u64(seed - p1)]


def _round(lane: Words, words: Words) -> Words:
    return _rotate(lane + words * _P2, 31) * _P1


def _mixed(words: Words) -> Words:
    """A round on a lane of zero."""
    mixed = _rotate(words * _P2, 31)
    mixed *= _P1
    return mixed


def _converge(lanes: Sequence[Words]) -> Words:
    total = _rotate(lanes[0].copy(), 1)
    for lane, by in zip(lanes[1:], (7, 12, 18), strict=True):
        total = total + _rotate(lane.copy(), by)
    for lane in lanes:
        total = total ^ _mixed(lane)
        total *= _P1
        total += _P4
    return total


def _fold(words: Words, by: int, factor: np.uint64, summand: np.uint64) -> Words:
    """In place."""
    words = _rotate(words, by)
    words *= factor
    if summand:
        words += summand
    return words


def _avalanche(words: Words) -> Words:
    """In place."""
    words ^= words >> np.uint64(33)
    words *= _P2
    words ^= words >> np.uint64(29)
    words *= _P3
    words ^= words >> np.uint64(32)
    return words


def _rotate(words: Words, by: int) -> Words:
    """In place: a new array each step would leave the cache (measured: 1.6 times the whole digest)."""
    high = words << np.uint64(by)
    words >>= np.uint64(64 - by)
    words |= high
    return words
