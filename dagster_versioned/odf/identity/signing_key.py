"""A dataset's private key: it makes the identity, and proves later that a head is its owner's.

That is said beside the head; blocks themselves hold no signature. Source: seed 002 ("Unique Identifiers").
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from dagster_versioned.errors import IntegrityError, InvalidInput
from dagster_versioned.extras import requiring
from dagster_versioned.odf.identity.dataset_id import DatasetId
from dagster_versioned.odf.identity.multihash import Multihash

SIGNATURE_KEY = "refs/head.sig"
MAX_SIGNATURE_BYTES = 4096
_CONTEXT = b"dagster-versioned head 1\n"
"""What every signed text begins with, so that no signature can be taken for one of something else."""


@dataclass(frozen=True, slots=True)
class SigningKey:
    """An ed25519 private key: 32 bytes, which are kept out of every store, log and message.

    The constructor raises `InvalidInput` for another length.
    """

    seed: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.seed) != 32:
            raise InvalidInput(f"A private key has 32 bytes, not {len(self.seed)}. Nothing was signed.")

    @classmethod
    def generate(cls) -> Self:
        """A new key, and with it a new identity."""
        from secrets import token_bytes

        return cls(token_bytes(32))

    @classmethod
    def parse(cls, secret: str) -> Self:
        """The key of 64 hexadecimal digits, as `secret` gives it. Raises `InvalidInput`, which does not repeat it."""
        try:
            seed = bytes.fromhex(secret.strip())
        except ValueError:
            raise InvalidInput("A private key is not 64 hexadecimal digits. Nothing was signed.") from None
        return cls(seed)

    @classmethod
    def from_secret(cls, name: str, secrets: Mapping[str, str]) -> Self:
        """The key in the secret of a name. Raises `InvalidInput` where there is none."""
        if not secrets.get(name):
            raise InvalidInput(
                f"There is no private key in the secret {name!r}. Nothing was signed. Set it; if the key is lost, what "
                "was signed stays valid and can be read and extended unsigned, but only a new dataset, with a new key, "
                "can be signed from here on."
            )
        return cls.parse(secrets[name])

    @property
    def secret(self) -> str:
        """The key as 64 hexadecimal digits, to be put into a secret."""
        return self.seed.hex()

    @property
    def dataset_id(self) -> DatasetId:
        """The identity that the key makes."""
        with requiring("odf", "The identity of a dataset"):
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return DatasetId(Ed25519PrivateKey.from_private_bytes(self.seed).public_key().public_bytes_raw())

    def sign_head(self, head: Multihash) -> "HeadSignature":
        """The signature of a head of this key's dataset."""
        with requiring("odf", "The identity of a dataset"):
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        dataset_id = self.dataset_id
        signature = Ed25519PrivateKey.from_private_bytes(self.seed).sign(signed_text(dataset_id, head))
        return HeadSignature(dataset_id, head, signature)


@dataclass(frozen=True, slots=True)
class HeadSignature:
    """The ed25519 signature, by a dataset's key, of one of its heads; checked by the constructor.

    Raises `IntegrityError` where the key did not sign that head.
    """

    dataset_id: DatasetId
    head: Multihash
    signature: bytes

    def __post_init__(self) -> None:
        with requiring("odf", "A signature"):
            from cryptography.exceptions import InvalidSignature
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        try:
            key = Ed25519PublicKey.from_public_bytes(self.dataset_id.public_key)
            key.verify(self.signature, signed_text(self.dataset_id, self.head))
        except (InvalidSignature, ValueError):
            raise IntegrityError(
                f"The signature of head {self.head} is not by the key of {self.dataset_id}. Nothing of it is to be "
                "believed. Ask the owner for the right one."
            ) from None

    @classmethod
    def parse(cls, document: bytes) -> "HeadSignature":
        """The signature of a document, which holds. Raises `IntegrityError`."""
        try:
            members = json.loads(document)
            algorithm, texts = members["algorithm"], (members["dataset_id"], members["head"], members["signature"])
            dataset_id, head, signature = DatasetId.parse(texts[0]), Multihash.parse(texts[1]), bytes.fromhex(texts[2])
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise IntegrityError(
                f"A signature cannot be read: {document[:100]!a}. Nothing of the head is to be believed."
            ) from None
        if algorithm != "ed25519":
            raise IntegrityError(f"A signature is by the algorithm {algorithm!a:.50}, and ed25519 alone is known.")
        return cls(dataset_id, head, signature)

    def document(self) -> bytes:
        """The signature as it is stored beside the head."""
        members = {
            "algorithm": "ed25519",
            "dataset_id": str(self.dataset_id),
            "head": str(self.head),
            "signature": self.signature.hex(),
        }
        return (json.dumps(members, indent=2) + "\n").encode()


def signed_text(dataset_id: DatasetId, head: Multihash) -> bytes:
    """The bytes that are signed."""
    return _CONTEXT + f"{dataset_id}\n{head}\n".encode()
