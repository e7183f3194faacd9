"""Who a dataset is: a public key, so that its owner can prove to be. Source: seed 002 ("Dataset Identity")."""

from dataclasses import dataclass
from typing import Self

from dagster_versioned.errors import InvalidInput
from dagster_versioned.odf.identity.multihash import from_multibase, split_varint, to_multibase, varint

_PREFIX = "did:odf:"
_ED25519_PUBLIC = 0xED
_KEY_SIZE = 32


@dataclass(frozen=True, slots=True, order=True)
class DatasetId:
    """The ed25519 public key of a dataset; ``str`` is ``did:odf:fed01…``, ``bytes`` the key behind its multicodec.

    The constructor raises `InvalidInput` for a key of another length than 32 bytes.
    """

    public_key: bytes

    def __post_init__(self) -> None:
        if len(self.public_key) != _KEY_SIZE:
            raise InvalidInput(
                f"An ed25519 key has {_KEY_SIZE} bytes, not {len(self.public_key)}. Nothing was changed."
            )

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """The identity that ``bytes`` gave. Raises `InvalidInput`."""
        code, key = split_varint(data)
        if code != _ED25519_PUBLIC:
            raise InvalidInput(f"{data[:64].hex()} is no dataset id: its key is of kind {code:#x}, not ed25519 (0xed).")
        return cls(key)

    @classmethod
    def parse(cls, text: str) -> Self:
        """The identity of ``did:odf:`` and a multibase. Raises `InvalidInput`."""
        if not text.startswith(_PREFIX):
            raise InvalidInput(
                f"{text!a:.200} is no dataset id: it does not begin with {_PREFIX}. Nothing was changed."
            )
        return cls.from_bytes(from_multibase(text.removeprefix(_PREFIX)))

    def __bytes__(self) -> bytes:
        return varint(_ED25519_PUBLIC) + self.public_key

    def __str__(self) -> str:
        return _PREFIX + to_multibase(bytes(self))
