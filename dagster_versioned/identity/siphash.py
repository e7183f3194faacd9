"""SipHash-2-4 over columns: one hash per row under a secret key, computed for all rows at once.

Who does not know the key cannot foresee a hash, nor find values that have one hash (Aumasson and Bernstein, "SipHash: a
fast short-input PRF", 2012). Where there is a C compiler, `bag_lanes.c` does the same.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]

KEY_BYTES = 16

_FEW = 16
"""Values below which a word is not worth its numpy calls; the rest of them is hashed in Python."""

_START = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)
_MASK = 0xFFFFFFFFFFFFFFFF


class WordsHash:
    """SipHash of rows of ``count`` words, fed a column of words at a time; a column of one word is that of all rows."""

    def __init__(self, count: int, key: bytes) -> None:
        self._size = 8 * count
        self._state = [np.array([word], np.uint64) for word in _started(key)]

    def add(self, words: Words) -> None:
        """The next word of every row."""
        _compress(self._state, words)

    def finish(self) -> Words:
        """The hashes, once all ``count`` columns were added."""
        return _finished(self._state, np.array([(self._size & 0xFF) << 56], np.uint64))


def hash_words(columns: Sequence[Words], key: bytes) -> Words:
    """SipHash of each row's words in column order, 8 bytes each, little-endian."""
    total = WordsHash(len(columns), key)
    for column in columns:
        total.add(column)
    return total.finish()


def hash_ragged(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], key: bytes
) -> Words:
    """SipHash of ``data[start : start + length]`` for each row."""
    padded = np.zeros(data.size + 16, np.uint8)  # so that each value has a whole word after it
    padded[: data.size] = data
    # Longest first, so that the values that still have a word are always a prefix.
    order = np.argsort(-lengths, kind="stable")
    starts, lengths = starts[order], lengths[order]
    whole = lengths >> 3
    state = [np.full(lengths.size, word, np.uint64) for word in _started(key)]
    for at in range(int(whole.max(initial=0))):
        count = int(np.searchsorted(-whole, -at))
        if count < _FEW:
            _finish_words_of_few(state, padded, starts[:count], whole[:count], at)
            break
        words = _gather(padded, starts[:count] + 8 * at)
        some = [part[:count] for part in state]
        _compress(some, words)
        for part, changed in zip(state, some, strict=True):
            part[:count] = changed
    rest = (lengths & 7).astype(np.uint64) * np.uint64(8)
    tail = _gather(padded, np.where(lengths > 0, starts + 8 * whole, 0)) & ((np.uint64(1) << rest) - np.uint64(1))
    hashes = np.empty(lengths.size, np.uint64)
    hashes[order] = _finished(state, tail | lengths.astype(np.uint64) << np.uint64(56))
    return hashes


def hash_one(data: bytes, key: bytes) -> int:
    """SipHash of one value, in Python alone."""
    whole = len(data) & ~7
    words = np.frombuffer(data, "<u8", whole // 8).tolist()
    last = int.from_bytes(data[whole:], "little") | (len(data) & 0xFF) << 56
    a, b, c, d = _compressed(_started(key), [*words, last])
    a, b, c, d = _rounds((a, b, c ^ 0xFF, d), 4)
    return a ^ b ^ c ^ d


def _started(key: bytes) -> "_State":
    first, second = (int.from_bytes(key[at : at + 8], "little") for at in (0, 8))
    a, b, c, d = _START
    return first ^ a, second ^ b, first ^ c, second ^ d


def _finish_words_of_few(
    state: list[Words],
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    whole: npt.NDArray[np.int64],
    at: int,
) -> None:
    for row, (start, count) in enumerate(zip(starts.tolist(), whole.tolist(), strict=True)):
        a, b, c, d = (int(part[row]) for part in state)
        words = np.frombuffer(data[start + 8 * at : start + 8 * count].tobytes(), "<u8").tolist()
        for part, changed in zip(state, _compressed((a, b, c, d), words), strict=True):
            part[row] = changed


def _gather(data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64]) -> Words:
    """The 8 bytes at each position."""
    return np.ascontiguousarray(data[starts[:, None] + np.arange(8)]).view("<u8")[:, 0].astype(np.uint64)


def _compress(state: list[Words], words: Words) -> None:
    state[3] = state[3] ^ words
    _round(state)
    _round(state)
    state[0] = state[0] ^ words


def _finished(state: list[Words], last: Words) -> Words:
    state = list(state)
    _compress(state, last)
    state[2] = state[2] ^ np.uint64(0xFF)
    for _ in range(4):
        _round(state)
    return state[0] ^ state[1] ^ state[2] ^ state[3]


def _round(state: list[Words]) -> None:
    a, b, c, d = state
    a, c = a + b, c + d
    b, d = _rotated(b, 13) ^ a, _rotated(d, 16) ^ c
    a = _rotated(a, 32)
    c, a = c + b, a + d
    b, d = _rotated(b, 17) ^ c, _rotated(d, 21) ^ a
    state[:] = a, b, _rotated(c, 32), d


def _rotated(words: Words, by: int) -> Words:
    return words << np.uint64(by) | words >> np.uint64(64 - by)


_State = tuple[int, int, int, int]


def _compressed(state: _State, words: Sequence[int]) -> _State:
    a, b, c, d = state
    for word in words:
        a, b, c, d = _rounds((a, b, c, d ^ word), 2)
        a ^= word
    return a, b, c, d


def _rounds(state: _State, count: int) -> _State:
    a, b, c, d = state
    for _ in range(count):
        a, c = a + b & _MASK, c + d & _MASK
        b, d = (b << 13 & _MASK | b >> 51) ^ a, (d << 16 & _MASK | d >> 48) ^ c
        c, a = c + b & _MASK, (a << 32 & _MASK | a >> 32) + d & _MASK
        b, d = (b << 17 & _MASK | b >> 47) ^ c, (d << 21 & _MASK | d >> 43) ^ a
        c = c << 32 & _MASK | c >> 32
    return a, b, c, d
