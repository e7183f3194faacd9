"""New buckets on servers of S3, Azure and Google, which other processes reach, too."""

import pytest

from dagster_versioned.storage import ObjectStore
from support.azurite import AzureServer
from support.gcs_server import GcsServer
from support.s3_server import S3Server

BUCKETS = (pytest.param("s3", marks=pytest.mark.s3), pytest.param("azure", marks=pytest.mark.azure), "gcs")
SERVERS = {"s3": "s3_server", "azure": "azurite", "gcs": "gcs_server"}


def new_bucket(request: pytest.FixtureRequest, patch: pytest.MonkeyPatch) -> ObjectStore:
    """One of the server that a fixture is parametrized by."""
    server: S3Server | AzureServer | GcsServer = request.getfixturevalue(SERVERS[request.param])
    if isinstance(server, AzureServer):
        return server.store(server.new_container())
    if isinstance(server, S3Server):
        # A pickled store carries no credentials: the processes find theirs in the environment.
        patch.setenv("AWS_ACCESS_KEY_ID", server.access_key)
        patch.setenv("AWS_SECRET_ACCESS_KEY", server.secret_key)
    return server.store(server.new_bucket())
