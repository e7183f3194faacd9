"""From a location to the store at it."""

from pathlib import Path

from dagster_versioned.extras import requiring
from dagster_versioned.storage.credentials import CredentialsSource
from dagster_versioned.storage.local import LocalStore
from dagster_versioned.storage.location import Location
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.storage.wrappers import read_alone


def open_store(
    location: Location | str, *, profile: str | None = None, credentials: CredentialsSource | None = None
) -> ObjectStore:
    """The store at a location or URI; nothing is read or written yet.

    ``profile`` names a profile of the AWS configuration files, ``credentials`` supplies keys itself; with neither,
    boto3 looks where it always does. Both are for S3 alone. Raises `InvalidInput`, and `MissingExtra` where the library
    for such a store is not installed.
    """
    if isinstance(location, str):
        location = Location.parse(location)
    return read_alone(_opened(location, profile, credentials))


def _opened(location: Location, profile: str | None, credentials: CredentialsSource | None) -> ObjectStore:
    match location.type:
        case "local":
            return LocalStore(Path(location.root, location.prefix))
        case "s3":
            with requiring("s3", "A store on S3"):
                from dagster_versioned.storage.s3 import S3Store  # on first use: boto3 takes a while
            return S3Store(location, profile=profile, credentials=credentials)
        case "gcs" | "azure" as kind:
            with requiring(kind, "A store on Google Cloud Storage" if kind == "gcs" else "A store on Azure"):
                from dagster_versioned.storage.cloud import CloudStore
            return CloudStore(location)
