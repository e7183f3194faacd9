"""Keys that sign: ed25519 and ECDSA on P-256, in files or in key management services, named by what they are.

The name of a key (its id) is the SHA-256 of its public half (SubjectPublicKeyInfo, DER): nobody assigns it, and two
people can compare it by telephone.
"""

import base64
import hashlib
import os
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Protocol, Self

from dagster_versioned.errors import InvalidInput
from dagster_versioned.extras import requiring

Algorithm = Literal["ed25519", "ecdsa-p256-sha256"]

PASSPHRASE_VARIABLE = "DAGSTER_VERSIONED_KEY_PASSPHRASE"
"""What opens an encrypted key file; never an option, which other users of the machine can read."""

_WHAT = "A signature"


class Signer(Protocol):
    """Who signs: a key whose private half is in this process, or elsewhere."""

    @property
    def public(self) -> "PublicKey":
        """The half that everybody may know."""
        ...

    def sign(self, data: bytes) -> bytes:
        """The signature of these bytes. Raises `InvalidInput` where a service refuses."""
        ...


@dataclass(frozen=True)
class PublicKey:
    """The half of a key that everybody may know, as SubjectPublicKeyInfo in DER.

    Raises `InvalidInput` for bytes that are none, and for an algorithm that is not allowed.
    """

    der: bytes

    def __post_init__(self) -> None:
        _ = self.algorithm

    @classmethod
    def parse(cls, text: str | bytes) -> Self:
        """The key of a PEM text (``BEGIN PUBLIC KEY``). Raises `InvalidInput`, which does not repeat it."""
        with requiring("attest", _WHAT):
            from cryptography.hazmat.primitives import serialization

        data = text.encode() if isinstance(text, str) else text
        try:
            key = serialization.load_pem_public_key(data)
        except Exception as error:  # noqa: BLE001 - cryptography has no common error
            raise InvalidInput(f"This is no public key in PEM ({type(error).__name__}). Nothing was done.") from None
        return cls(_der(key))

    @cached_property
    def _key(self) -> Any:
        with requiring("attest", _WHAT):
            from cryptography.hazmat.primitives import serialization

        try:
            return serialization.load_der_public_key(self.der)
        except Exception as error:  # noqa: BLE001 - cryptography has no common error
            raise InvalidInput(f"This is no public key ({type(error).__name__}). Nothing was done.") from None

    @cached_property
    def algorithm(self) -> Algorithm:
        """Which of the two it is of."""
        from cryptography.hazmat.primitives.asymmetric import ec, ed25519

        if isinstance(self._key, ed25519.Ed25519PublicKey):
            return "ed25519"
        if isinstance(self._key, ec.EllipticCurvePublicKey) and isinstance(self._key.curve, ec.SECP256R1):
            return "ecdsa-p256-sha256"
        raise InvalidInput(
            f"A key of {type(self._key).__name__} is not taken. Nothing was done. Use ed25519 (`dagster-versioned key "
            "new`), or ECDSA on the curve P-256, which key management services have."
        )

    @property
    def hashing(self) -> tuple[Any, ...]:
        """What `cryptography` has to be told of how data are hashed before they are signed."""
        from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
        from cryptography.hazmat.primitives.hashes import SHA256

        return () if self.algorithm == "ed25519" else (ECDSA(SHA256()),)

    @cached_property
    def key_id(self) -> str:
        """Its name: 64 hex digits."""
        return hashlib.sha256(self.der).hexdigest()

    @property
    def pem(self) -> str:
        """The key as PEM."""
        lines = base64.encodebytes(self.der).decode()
        return f"-----BEGIN PUBLIC KEY-----\n{lines}-----END PUBLIC KEY-----\n"

    def has_signed(self, signature: bytes, data: bytes) -> bool:
        """Whether a signature of bytes is this key's."""
        from cryptography.exceptions import InvalidSignature

        try:
            self._key.verify(signature, data, *self.hashing)
        except (InvalidSignature, ValueError):
            return False
        return True

    def __repr__(self) -> str:
        return f"PublicKey({self.key_id[:16]!r}, {self.algorithm!r})"


@dataclass(frozen=True)
class PrivateKey:
    """A key in this process; kept out of every store, log and message."""

    _key: Any = field(repr=False)
    public: PublicKey

    @classmethod
    def generate(cls) -> Self:
        """A new ed25519 key."""
        with requiring("attest", _WHAT):
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        key = Ed25519PrivateKey.generate()
        return cls(key, PublicKey(_der(key.public_key())))

    @classmethod
    def read(cls, path: Path, passphrase: str | None = None) -> Self:
        """The key in a PEM file (PKCS 8). Raises `InvalidInput`, which repeats nothing of it."""
        with requiring("attest", _WHAT):
            from cryptography.hazmat.primitives import serialization

        passphrase = passphrase or os.environ.get(PASSPHRASE_VARIABLE)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise InvalidInput(
                f"The key {path} cannot be read ({error.strerror}). Nothing was signed. `dagster-versioned key new` "
                "makes one."
            ) from None
        try:
            key: Any = serialization.load_pem_private_key(data, passphrase.encode() if passphrase else None)
        except TypeError:
            is_encrypted = passphrase is None
            how = f"Set {PASSPHRASE_VARIABLE}." if is_encrypted else f"Unset {PASSPHRASE_VARIABLE}."
            what = "is encrypted" if is_encrypted else "is not encrypted, and there is a passphrase"
            raise InvalidInput(f"The key {path} {what}. Nothing was signed. {how}") from None
        except Exception as error:  # noqa: BLE001 - cryptography has no common error
            raise InvalidInput(
                f"{path} is no private key in PEM, or the passphrase is wrong ({type(error).__name__}). Nothing was "
                "signed."
            ) from None
        return cls(key, PublicKey(_der(key.public_key())))

    def sign(self, data: bytes) -> bytes:
        """The signature of these bytes."""
        return self._key.sign(data, *self.public.hashing)

    def to_pem(self, passphrase: str | None = None) -> bytes:
        """The key as PEM (PKCS 8), encrypted where there is a passphrase."""
        from cryptography.hazmat.primitives import serialization as pem

        how = pem.BestAvailableEncryption(passphrase.encode()) if passphrase else pem.NoEncryption()
        return self._key.private_bytes(pem.Encoding.PEM, pem.PrivateFormat.PKCS8, how)

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("A private key is not pickled: give the worker the path of its file.")


@dataclass(frozen=True)
class ServiceKey:
    """A key that never leaves its service: AWS, Azure or Google KMS, Vault, or a hardware module."""

    _signer: Any = field(repr=False)
    public: PublicKey

    @classmethod
    def open(cls, uri: str) -> Self:
        """The key of a URI as securesystemslib has them: ``awskms:ID``, ``gcpkms:…``, ``azurekms:…``, ``hv:…``.

        Raises `InvalidInput` where the service refuses or does not know it.
        """
        with requiring("kms", "A key in a key management service"):
            services: Any = import_module("securesystemslib.signer")

        kinds: dict[str, Any] = {
            "awskms": services.AWSSigner,
            "gcpkms": services.GCPSigner,
            "azurekms": services.AzureSigner,
            "hv": services.VaultSigner,
        }
        scheme, _, name = uri.partition(":")
        arguments = name.split("/", 1) if scheme == "azurekms" else [name]
        try:
            known, public = kinds[scheme].import_(*arguments)
            signer = services.Signer.from_priv_key_uri(known, public)
            return cls(signer, PublicKey.parse(public.keyval["public"]))
        except InvalidInput:
            raise
        except Exception as error:  # of the service's own library
            raise _refused(uri, error) from error

    def sign(self, data: bytes) -> bytes:
        """The signature of these bytes. Raises `InvalidInput` where the service refuses."""
        try:
            return bytes.fromhex(self._signer.sign(data).signature)
        except Exception as error:  # of the service's own library
            raise _refused(self.public.key_id[:16], error) from error


_SERVICES = ("awskms:", "gcpkms:", "azurekms:", "hv:")


def open_signer(place: str | Path) -> Signer:
    """The key at a place: a PEM file, or the URI of a key in a service (`ServiceKey.open`). Raises `InvalidInput`."""
    text = str(place)
    return ServiceKey.open(text) if text.startswith(_SERVICES) else PrivateKey.read(Path(text).expanduser())


def write_new(path: Path, key: PrivateKey, passphrase: str | None = None) -> Path:
    """Write a key and, beside it (``.pub``), its public half; for its owner alone. Raises `InvalidInput`.

    Returns the path of the public half. A file that is there is left as it is.
    """
    public = path.with_name(f"{path.name}.pub")
    for target, data, mode in ((path, key.to_pem(passphrase), 0o600), (public, key.public.pem.encode(), 0o644)):
        try:
            with os.fdopen(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode), "wb") as file:
                file.write(data)
        except OSError as error:
            raise InvalidInput(
                f"{target} cannot be written ({error.strerror}). Nothing that was there was changed. Choose another "
                "path."
            ) from None
    return public


def _der(key: Any) -> bytes:
    from cryptography.hazmat.primitives import serialization

    return key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def _refused(key: str, error: Exception) -> InvalidInput:
    return InvalidInput(
        f"The service did not give or use the key {key} ({type(error).__name__}: {str(error)[:200]}). Nothing was "
        "signed. Check its name and your rights to it."
    )
