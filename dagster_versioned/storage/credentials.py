"""What a caller hands over to sign S3 requests; never stored, never pickled, never shown."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True, slots=True)
class S3Credentials:
    """One set of S3 keys; with an ``expiration`` (timezone-aware) the source is asked again before that time."""

    access_key: str = field(repr=False)
    secret_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)
    expiration: datetime | None = None


CredentialsSource = Callable[[], S3Credentials]
"""Called when keys are first needed, and again when they are about to expire."""
