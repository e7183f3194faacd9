"""A head is signed by the key that made its dataset's identity, and by no other."""

import json

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dagster_versioned.errors import IntegrityError, InvalidInput
from dagster_versioned.odf.identity.dataset_id import DatasetId
from dagster_versioned.odf.identity.multihash import Multihash
from dagster_versioned.odf.identity.signing_key import HeadSignature, SigningKey

KEY = SigningKey(bytes(range(32)))
HEAD = Multihash.sha3_256(b"a block")


def test_the_identity_is_the_public_key_and_the_secret_makes_it_again():
    public = Ed25519PrivateKey.from_private_bytes(bytes(range(32))).public_key().public_bytes_raw()
    assert KEY.dataset_id == DatasetId(public)
    assert SigningKey.parse(f"{KEY.secret}\n") == KEY
    assert SigningKey.generate() != SigningKey.generate()


def test_a_signature_survives_its_document():
    signature = KEY.sign_head(HEAD)
    assert HeadSignature.parse(signature.document()) == signature


@pytest.mark.parametrize(
    "change",
    [
        {"head": str(Multihash.sha3_256(b"another"))},
        {"dataset_id": str(SigningKey.generate().dataset_id)},
        {"signature": "00" * 64},
        {"signature": "00"},
        {"signature": "x"},
        {"algorithm": "rsa"},
        {"head": None},
        {"dataset_id": "did:odf:f00"},
    ],
)
def test_a_signature_of_anything_else_is_refused(change: dict[str, object]):
    document = json.loads(KEY.sign_head(HEAD).document()) | change
    with pytest.raises(IntegrityError):
        HeadSignature.parse(json.dumps(document).encode())


@pytest.mark.parametrize("document", [b"", b"\xff", b"[]", b"null", b"{}", b"[" * 100_000])
def test_what_is_no_signature_is_refused(document: bytes):
    with pytest.raises(IntegrityError, match="cannot be read"):
        HeadSignature.parse(document)


def test_a_lost_private_key_is_named_and_says_what_is_left():
    with pytest.raises(InvalidInput, match=r"'NYC_KEY'.*if the key is lost, what was signed stays valid"):
        SigningKey.from_secret("NYC_KEY", {})
    with pytest.raises(InvalidInput, match="64 hexadecimal digits") as refused:
        SigningKey.from_secret("NYC_KEY", {"NYC_KEY": "hunter2"})
    assert "hunter2" not in str(refused.value)
    with pytest.raises(InvalidInput, match="32 bytes"):
        SigningKey.parse("00")
    assert KEY.secret not in repr(KEY)
    assert SigningKey.from_secret("NYC_KEY", {"NYC_KEY": KEY.secret}) == KEY
