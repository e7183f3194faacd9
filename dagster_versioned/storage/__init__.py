"""Bytes in places: one protocol; a local folder, S3, Google Cloud Storage and Azure behind it.

Importing this package imports neither boto3 nor obstore; what needs them is loaded when first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from dagster_versioned.storage.credentials import CredentialsSource, S3Credentials
from dagster_versioned.storage.local import LocalStore
from dagster_versioned.storage.location import Location
from dagster_versioned.storage.object_store import Durability, ObjectInfo, ObjectStore
from dagster_versioned.storage.opening import open_store

if TYPE_CHECKING:
    from dagster_versioned.storage.cloud import CloudOptions, CloudStore
    from dagster_versioned.storage.s3 import S3Options, S3Store

__all__ = [
    "CloudOptions",
    "CloudStore",
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


_HOME = {"S3Options": "s3", "S3Store": "s3", "CloudOptions": "cloud", "CloudStore": "cloud"}


def __getattr__(name: str) -> object:
    if name in _HOME:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
