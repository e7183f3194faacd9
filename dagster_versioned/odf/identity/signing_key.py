"""A dataset's private key: it makes the identity, and proves later that a head is its owner's. Source: seed 002
("Unique Identifiers")."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from dagster_versioned.errors import InvalidInput
from dagster_versioned.extras import requiring
from dagster_versioned.odf.identity.dataset_id import DatasetId
from dagster_versioned.odf.identity.multihash import Multihash
from dagster_versioned.odf.identity.signature import HeadSignature, signed_text


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

    def sign_head(self, head: Multihash) -> HeadSignature:
        """The signature of a head of this key's dataset."""
        with requiring("odf", "The identity of a dataset"):
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        dataset_id = self.dataset_id
        signature = Ed25519PrivateKey.from_private_bytes(self.seed).sign(signed_text(dataset_id, head))
        return HeadSignature(dataset_id, head, signature)
