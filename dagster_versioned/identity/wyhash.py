"""Wyhash, version 1 with the seed 0, of one value: how samples of some Metaxy stores are hashed.

Facts about the algorithm: https://github.com/wangyi-fudan/wyhash, and its port to Rust that Metaxy uses,
https://github.com/eldruin/wyhash-rs. The tests compare it with what Metaxy has.
"""

import struct

_WORD = (1 << 64) - 1
_P0, _P1, _P2, _P3, _P4, _P5 = (
    0xA0761D6478BD642F,
    0xE7037ED1A0B428DB,
    0x8EBC6AF09C88C6E3,
    0x589965CC75374CC3,
    0x1D8E4E27C47D124F,
    0xEB44ACCAB455D165,
)


def wyhash(data: bytes) -> int:
    """The hash of some bytes, a number of 64 bits."""
    seed, striped = 0, len(data) & ~31
    for a, b, c, d in struct.iter_unpack("<4Q", data[:striped]):
        seed = _mixed(seed ^ _P0, _mixed(a ^ _P1, b ^ _P2) ^ _mixed(c ^ _P3, d ^ _P4))
    seed ^= _P0
    if tail := data[striped:]:
        words = [_word(tail[i : i + 8]) for i in range(0, len(tail), 8)]
        match words:
            case [a]:
                seed = _mixed(seed, a ^ _P1)
            case [a, b]:
                seed = _mixed(a ^ seed, b ^ _P2)
            case [a, b, c]:
                seed = _mixed(a ^ seed, b ^ _P2) ^ _mixed(seed, c ^ _P3)
            case [a, b, c, d]:
                seed = _mixed(a ^ seed, b ^ _P2) ^ _mixed(c ^ seed, d ^ _P4)
            case _:
                raise AssertionError("A tail has at most 31 bytes.")
    return _mixed(seed, len(data) ^ _P5)


def _mixed(one: int, other: int) -> int:
    product = one * other
    return (product >> 64) ^ (product & _WORD)


def _word(octets: bytes) -> int:
    """Up to 8 bytes of the tail: halves of 4 and of 2 bytes in little endian, the first one highest, then a byte."""
    found = 0
    for size in (4, 4) if len(octets) == 8 else (4, 2, 1):
        if len(octets) >= size:
            found = found << 8 * size | int.from_bytes(octets[:size], "little")
            octets = octets[size:]
    return found
