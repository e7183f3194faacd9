"""Signed bytes: DSSE envelopes. Source: secure-systems-lab/dsse, "Protocol" and "Envelope" (v1.0)."""

import base64
import binascii
import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self, cast

from dagster_versioned.errors import IntegrityError
from dagster_versioned.proof.keys import PublicKey, Signer
from dagster_versioned.tables.document import encode

PAYLOAD_TYPE = "application/vnd.in-toto+json"
MAX_BYTES = 8 << 20
"""An envelope beyond this is refused unread."""


@dataclass(frozen=True)
class Envelope:
    """A payload with signatures of it, by the ids of the keys that are said to have made them.

    What an id says is not believed: `is_signed_by` asks a key.
    """

    payload: bytes
    signatures: tuple[tuple[str, bytes], ...]

    @classmethod
    def sign(cls, payload: bytes, signer: Signer) -> Self:
        """The payload, signed. Raises `InvalidInput` where the signer cannot."""
        return cls(payload, ((signer.public.key_id, signer.sign(signed_bytes(payload))),))

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Read a stored envelope. Raises `IntegrityError` for whatever is not exactly one."""
        try:
            if len(data) > MAX_BYTES:
                raise ValueError(f"it has more than {MAX_BYTES} bytes")
            members = parse_strictly(data)
            if members["payloadType"] != PAYLOAD_TYPE:
                raise ValueError("its payload is no statement of in-toto")
            signatures = tuple((str(each["keyid"]), _base64(each["sig"])) for each in members["signatures"])
            return cls(_base64(members["payload"]), signatures)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise IntegrityError(f"An attestation cannot be read ({str(error)[:200]}). It proves nothing.") from None

    def to_bytes(self) -> bytes:
        """The envelope as it is stored: JSON with sorted keys."""
        signatures = [{"keyid": key_id, "sig": _text(signature)} for key_id, signature in self.signatures]
        return encode({"payload": _text(self.payload), "payloadType": PAYLOAD_TYPE, "signatures": signatures})

    @property
    def sha(self) -> str:
        """The SHA-256 of the stored envelope."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    def statement(self) -> dict[str, Any]:
        """What was signed. Raises `IntegrityError` where it is no JSON object."""
        try:
            return parse_strictly(self.payload)
        except (ValueError, RecursionError) as error:
            raise IntegrityError(f"A statement cannot be read ({str(error)[:200]}). It proves nothing.") from None

    def signers(self, keys: Iterable[PublicKey]) -> list[str]:
        """The ids of those of these keys that signed it."""
        data = signed_bytes(self.payload)
        given = list(self.signatures)
        return [
            key.key_id
            for key in keys
            if any(key_id == key.key_id and key.has_signed(signature, data) for key_id, signature in given)
        ]


def signed_bytes(payload: bytes) -> bytes:
    """What is signed for a payload: its type, its length, itself (DSSE's pre-authentication encoding)."""
    kind = PAYLOAD_TYPE.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def parse_strictly(data: bytes) -> dict[str, Any]:
    """The JSON object of a text whose members occur once each. Raises `ValueError`."""
    found: object = json.loads(data.decode(), object_pairs_hook=_members_once)
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")
    return cast("dict[str, Any]", found)


def _members_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a member occurs twice in one object")
    return members


def _base64(text: object) -> bytes:
    if not isinstance(text, str):
        raise ValueError("a member is no text in base64")
    try:
        data = base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ValueError("a member is no text in base64") from None
    if _text(data) != text:
        raise ValueError("a member is not base64 as it is written")  # else an envelope could be changed unseen
    return data


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
