"""Hashes that name their own algorithm, and their text. Source: seed 002 ("Hash Representation")."""

import hashlib
from base64 import b32decode, b64decode
from dataclasses import dataclass
from enum import IntEnum
from typing import Self

from dagster_versioned.errors import InvalidInput


class HashAlgorithm(IntEnum):
    """The multicodec codes of the hashes that Open Data Fabric knows; both are 32 bytes long."""

    SHA3_256 = 0x16
    ARROW0_SHA3_256 = 0x300016


_DIGEST_SIZE = 32
_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_MAX_TEXT = 512


@dataclass(frozen=True, slots=True, order=True)
class Multihash:
    """A digest with its algorithm; ``str`` is its text in base16, ``bytes`` its binary form.

    The constructor raises `InvalidInput` for a digest of the wrong length.
    """

    algorithm: HashAlgorithm
    digest: bytes

    def __post_init__(self) -> None:
        if len(self.digest) != _DIGEST_SIZE:
            raise InvalidInput(
                f"A {self.algorithm.name} digest has {_DIGEST_SIZE} bytes, not {len(self.digest)}. Nothing was changed."
            )

    @classmethod
    def sha3_256(cls, data: bytes | memoryview) -> Self:
        """The physical hash of bytes."""
        return cls(HashAlgorithm.SHA3_256, hashlib.sha3_256(data).digest())

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """The hash that ``bytes`` gave. Raises `InvalidInput`, also for an algorithm that is not `HashAlgorithm`'s."""
        code, rest = split_varint(data)
        length, digest = split_varint(rest)
        try:
            algorithm = HashAlgorithm(code)
        except ValueError:
            raise InvalidInput(
                f"A hash of the algorithm {code:#x} cannot be checked: {data[:64].hex()}. Known are "
                + ", ".join(f"{known.name} ({known.value:#x})" for known in HashAlgorithm)
                + "."
            ) from None
        if length != len(digest):
            raise InvalidInput(f"A hash says that it has {length} bytes and has {len(digest)}: {data[:64].hex()}.")
        return cls(algorithm, digest)

    @classmethod
    def parse(cls, text: str) -> Self:
        """The hash of a text in any final multibase. Raises `InvalidInput`."""
        return cls.from_bytes(from_multibase(text))

    def __bytes__(self) -> bytes:
        return varint(self.algorithm) + varint(len(self.digest)) + self.digest

    def __str__(self) -> str:
        return to_multibase(bytes(self))


def to_multibase(data: bytes) -> str:
    """Bytes as multibase base16, the encoding that Open Data Fabric recommends."""
    return "f" + data.hex()


def from_multibase(text: str) -> bytes:
    """The bytes of a text in a multibase whose state is *final*. Raises `InvalidInput`."""
    digits = text[1:]
    try:
        if len(text) > _MAX_TEXT or not text.isascii():
            raise ValueError
        match text[:1]:
            case "f" | "F" as base if _has_case_of(base, digits):
                return _from_hex(digits)
            case "b" | "B" as base if _has_case_of(base, digits):
                return b32decode(digits.upper() + "=" * (-len(digits) % 8))
            case "z":
                return _from_base58(digits)
            case "m":
                return b64decode(_unpadded(digits) + "=" * (-len(digits) % 4), validate=True)
            case "u":
                return _from_base64url(_unpadded(digits) + "=" * (-len(digits) % 4))
            case "U":
                return _from_base64url(digits)
            case _:
                raise ValueError
    except ValueError:
        raise InvalidInput(
            f"{text!a:.200} is no multibase text: its first letter is to be one of f, F (base16), b, B (base32), "
            "z (base58), m, u, U (base64), and the rest digits of that base. Nothing was changed."
        ) from None


def varint(number: int) -> bytes:
    """A number as unsigned varint: 7 bits a byte, the lowest first."""
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def split_varint(data: bytes) -> tuple[int, bytes]:
    """The varint that the bytes begin with, and what follows it. Raises `InvalidInput`."""
    number = 0
    for index, byte in enumerate(data[:9]):
        number |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            if byte or not index:
                return number, data[index + 1 :]
            break  # a longer text for a shorter number: one value would have two names
    raise InvalidInput(f"{data[:64].hex()!r} does not begin with a varint. Nothing was changed.")


def _has_case_of(base: str, digits: str) -> bool:
    return digits == (digits.lower() if base.islower() else digits.upper())


def _from_hex(digits: str) -> bytes:
    if digits != digits.strip() or " " in digits:
        raise ValueError(digits)
    return bytes.fromhex(digits)


def _unpadded(digits: str) -> str:
    if "=" in digits:
        raise ValueError(digits)
    return digits


def _from_base64url(digits: str) -> bytes:
    if set(digits) & set("+/"):
        raise ValueError(digits)
    return b64decode(digits.translate(str.maketrans("-_", "+/")), validate=True)


def _from_base58(digits: str) -> bytes:
    number = 0
    for digit in digits:
        number = number * 58 + _BASE58.index(digit)
    zeros = len(digits) - len(digits.lstrip("1"))
    return bytes(zeros) + number.to_bytes((number.bit_length() + 7) // 8, "big")
