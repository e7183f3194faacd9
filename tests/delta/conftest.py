from collections.abc import Callable
from pathlib import Path

import pytest

from dagster_versioned.storage.local import LocalStore


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "table")


@pytest.fixture
def put_log(store: LocalStore) -> Callable[..., LocalStore]:
    """Write commits 0, 1, … given as raw bytes; the store they are in."""

    def put(*commits: bytes) -> LocalStore:
        for version, data in enumerate(commits):
            store.put(f"_delta_log/{version:020d}.json", data)
        return store

    return put
