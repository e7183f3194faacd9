"""Signed heads: a dataset's owner says, beside the head, that it is theirs; blocks themselves hold no signature."""

import json
from dataclasses import dataclass

from dagster_versioned.errors import IntegrityError
from dagster_versioned.extras import requiring
from dagster_versioned.odf.identity.dataset_id import DatasetId
from dagster_versioned.odf.identity.multihash import Multihash

SIGNATURE_KEY = "refs/head.sig"
MAX_SIGNATURE_BYTES = 4096
_CONTEXT = b"dagster-versioned head 1\n"
"""What every signed text begins with, so that no signature can be taken for one of something else."""


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
