"""Fixtures: a project in a folder, a table of it, and frames for it."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dagster_versioned.projects.project import Project
from dagster_versioned.tables import version_index
from dagster_versioned.tables.documents import publish
from dagster_versioned.tables.table import VersionedTable


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project.open("NYC", str(tmp_path / "store"), author="Ada <ada@example.org>")


@pytest.fixture
def table(project: Project) -> VersionedTable:
    return project.table("flights")


@pytest.fixture
def rows() -> pa.Table:
    return pa.table({"carrier": ["AA", "UA", None], "delay": [1, -2, 3]})


@pytest.fixture
def more(rows: pa.Table) -> pa.Table:
    return pa.concat_tables([rows, pa.table({"carrier": ["B6"], "delay": [10]})])


@pytest.fixture
def every_fourth(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint, and a segment of the index, after every fourth commit."""
    monkeypatch.setattr(publish, "CHECKPOINT_INTERVAL", 4)
    monkeypatch.setattr(version_index, "SEGMENT", 4)


def numbered(*numbers: int) -> pa.Table:
    return pa.table({"n": list(numbers)})


def folder(table: VersionedTable) -> Path:
    """Where a local table lies."""
    path = table.store.local_path("_delta_log")
    assert path is not None
    return path.parent


def by_key(table: VersionedTable, version: int | str | None = None, *, key: str = "key") -> dict[Any, Any]:
    """The values of a table's rows, each of which has another key."""
    read = table.read(version)
    assert read.num_rows == len(set(read[key].to_pylist()))
    return dict(zip(read[key].to_pylist(), read["value"].to_pylist(), strict=True))
