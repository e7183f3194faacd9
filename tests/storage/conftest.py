"""The stores that the storage tests run against."""

from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest

from dagster_versioned.storage import CloudStore, LocalStore, ObjectStore, S3Options, S3Store
from dagster_versioned.storage.overlay import OverlayStore
from dagster_versioned.storage.wrappers import CountingStore
from dagster_versioned.tables.environment.fork import Fork
from support.azurite import AzureServer
from support.gcs_server import GcsServer
from support.s3_server import S3Server

# Small enough that a test of some megabytes goes through the multipart code (S3's least part is 5 MiB).
SMALL_PARTS = S3Options(part_bytes=5 * 1024**2, whole_copy_bytes=6 * 1024**2)


NO_FORK = Fork("pr-1", "0" * 12, "NYC", "2026-11-24T14:02:00+00:00", None, {})
"""Of a project without tables: all that is written is own."""


@pytest.fixture(scope="session")
def s3_store(s3_server: S3Server) -> S3Store:
    return s3_server.store(s3_server.new_bucket(), "some/pre-fix", SMALL_PARTS)


@pytest.fixture(scope="session")
def moto_store(moto_server: S3Server) -> S3Store:
    return moto_server.store(moto_server.new_bucket(), "some/pre-fix", SMALL_PARTS)


@pytest.fixture(scope="session")
def azure_store(azurite: AzureServer) -> CloudStore:
    return azurite.store(azurite.new_container(), "some/pre-fix")


@pytest.fixture(scope="session")
def gcs_store(gcs_server: GcsServer) -> CloudStore:
    return gcs_server.store(gcs_server.new_bucket(), "some/pre-fix")


REAL_S3 = pytest.param("s3", marks=pytest.mark.s3)
MOTO = pytest.param("moto", marks=pytest.mark.slow)
AZURE = pytest.param("azure", marks=[pytest.mark.azure, pytest.mark.slow])
BACKENDS = ["local", "local-subfolder", "counting", "overlay", "gcs", MOTO, REAL_S3, AZURE]


@pytest.fixture(params=BACKENDS)
def new_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], ObjectStore]:
    """Makes empty stores, each with a place of its own."""
    made = 0

    def make() -> ObjectStore:
        nonlocal made
        made += 1
        folder = tmp_path / f"root{made}"
        match request.param:
            case "local":
                return LocalStore(folder)
            case "local-subfolder":
                return LocalStore(folder).subfolder("a/b")
            case "overlay":
                return OverlayStore(LocalStore(folder), LocalStore(tmp_path / f"base{made}"), NO_FORK)
            case "counting":
                return CountingStore(LocalStore(folder))
            case _:
                return request.getfixturevalue(f"{request.param}_store").subfolder(f"test {uuid4().hex}")

    return make


@pytest.fixture
def prefix() -> str:
    return f"test-{uuid4().hex}"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"data")
    return path


@pytest.fixture
def store(new_store: Callable[[], ObjectStore]) -> ObjectStore:
    return new_store()


@pytest.fixture
def s3_environment(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """Puts the keys of the store under test where its library looks for them, and returns them; none if local."""
    cloud = {"azure": "azurite", "gcs": "gcs_server"}.get(request.node.callspec.params["new_store"])
    if cloud is not None:
        return tuple(request.getfixturevalue(cloud).environment.values())
    server_fixture = {"moto": "moto_server", "s3": "s3_server"}.get(request.node.callspec.params["new_store"])
    if server_fixture is None:
        return ()
    server: S3Server = request.getfixturevalue(server_fixture)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", server.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", server.secret_key)
    return server.access_key, server.secret_key
