"""Bytes in places: one protocol, a local folder and S3 behind it.

Importing this package does not import boto3; `S3Store` and `S3Options` are loaded when first asked for.
"""

from typing import TYPE_CHECKING

from dagster_versioned.storage.credentials import CredentialsSource, S3Credentials
from dagster_versioned.storage.local import LocalStore
from dagster_versioned.storage.location import Location
from dagster_versioned.storage.object_store import Durability, ObjectInfo, ObjectStore
from dagster_versioned.storage.opening import open_store

if TYPE_CHECKING:
    from dagster_versioned.storage.s3 import S3Options, S3Store

__all__ = [
    "CredentialsSource",
    "Durability",
    "LocalStore",
    "Location",
    "ObjectInfo",
    "ObjectStore",
    "S3Credentials",
    "S3Options",
    "S3Store",
    "open_store",
]


def __getattr__(name: str) -> object:
    if name in ("S3Options", "S3Store"):
        from dagster_versioned.storage import s3

        return getattr(s3, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
