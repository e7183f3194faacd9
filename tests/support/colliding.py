"""Two different texts of 64 printable characters with one XXH64, under most seeds: what a supplier makes in no time.

An accumulator of XXH64 takes each fourth word of a text: ``accumulator = rotated(accumulator + word * P2) * P1``. Two
first words leave a difference that is nearly always the same, whatever the accumulator began with; a second word that
takes it back is solved for. A few thousand tries find one of printable characters.
"""

import random
import string
from functools import cache

_P1, _P2 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F
_MASK = (1 << 64) - 1


@cache
def colliding_texts(seed: int = 7) -> tuple[str, str]:
    """Two texts with one XXH64 under both seeds of ``bag-xxh64x2``, and under most others; by ``seed``."""
    chance = random.Random(seed)

    def word() -> int:
        return int.from_bytes(bytes(chance.choice(string.ascii_letters.encode()) for _ in range(8)), "little")

    while True:
        first, other, second = word(), word(), word()
        difference = (_step(0, first) - _step(0, other)) & _MASK
        if difference != (_step(1, first) - _step(1, other)) & _MASK:
            continue
        takes_back = (second + difference * pow(_P2, -1, 1 << 64)) & _MASK
        if all(32 < byte < 127 for byte in takes_back.to_bytes(8, "little")):
            break
    words = [word() for _ in range(8)]
    texts = []
    for words[2], words[6] in ((first, second), (other, takes_back)):
        texts.append(b"".join(one.to_bytes(8, "little") for one in words).decode())
    return texts[0], texts[1]


def _step(accumulator: int, word: int) -> int:
    total = (accumulator + word * _P2) & _MASK
    return (total << 31 | total >> 33) * _P1 & _MASK
