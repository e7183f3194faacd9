"""Hashes and dataset identities as text and bytes."""

import base64
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_versioned.errors import InvalidInput
from dagster_versioned.odf.identity.dataset_id import DatasetId
from dagster_versioned.odf.identity.multihash import HashAlgorithm, Multihash, from_multibase, split_varint, varint

HASH = Multihash.sha3_256(b"abc")


def test_a_hash_is_sha3_256_and_says_so() -> None:
    digest = hashlib.sha3_256(b"abc").hexdigest()
    assert str(HASH) == f"f1620{digest}"
    assert Multihash.parse(str(HASH)) == HASH
    assert str(Multihash(HashAlgorithm.ARROW0_SHA3_256, HASH.digest)) == f"f9680c00120{digest}"


def base58(data: bytes) -> str:
    digits = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
    number, text = int.from_bytes(data, "big"), ""
    while number:
        number, digit = divmod(number, 58)
        text = digits[digit] + text
    return "1" * (len(data) - len(data.lstrip(b"\0"))) + text


@given(st.binary(max_size=40))
def test_every_final_multibase_is_read(data: bytes) -> None:
    url = base64.urlsafe_b64encode(data).decode()
    for text in (
        "f" + data.hex(),
        "F" + data.hex().upper(),
        "b" + base64.b32encode(data).decode().rstrip("=").lower(),
        "B" + base64.b32encode(data).decode().rstrip("="),
        "z" + base58(data),
        "m" + base64.b64encode(data).decode().rstrip("="),
        "u" + url.rstrip("="),
        "U" + url,
    ):
        assert from_multibase(text) == data, text


@pytest.mark.parametrize(
    "text", ["", "x00", "f0", "f0g", "fAB", "Fab", "f 00", "f00 ", "z0", "m=", "uab+", "ü", "b1", "ma"]
)
def test_what_is_no_multibase_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="is no multibase text"):
        from_multibase(text)


@given(st.integers(0, 2**63 - 1), st.binary(max_size=3))
def test_numbers_come_back(number: int, rest: bytes) -> None:
    assert split_varint(varint(number) + rest) == (number, rest)


@pytest.mark.parametrize("data", [b"", b"\x80", b"\x80\x00", b"\xff" * 10])
def test_a_number_has_one_form(data: bytes) -> None:
    with pytest.raises(InvalidInput, match="varint"):
        split_varint(data)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x12\x20" + bytes(32), "algorithm 0x12"),
        (b"\x16\x20" + bytes(31), "says that it has 32 bytes and has 31"),
        (b"\x16\x14" + bytes(20), "has 32 bytes, not 20"),
        (b"", "varint"),
    ],
)
def test_what_is_no_hash_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        Multihash.from_bytes(data)


def test_an_identity_is_its_key() -> None:
    identity = DatasetId(bytes(range(32)))
    assert str(identity) == "did:odf:fed01" + bytes(range(32)).hex()
    assert DatasetId.parse(str(identity)) == DatasetId.from_bytes(bytes(identity)) == identity


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("did:key:fed01" + "00" * 32, "does not begin with did:odf:"),
        ("did:odf:fec01" + "00" * 32, "not ed25519"),
        ("did:odf:fed01" + "00" * 31, "32 bytes, not 31"),
        ("did:odf:", "multibase"),
    ],
)
def test_what_is_no_identity_is_refused(text: str, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        DatasetId.parse(text)
