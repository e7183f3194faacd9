"""Fixtures: a project in a folder, a table of it, and frames for it."""

from pathlib import Path

import pyarrow as pa
import pytest

from dagster_versioned.projects.project import Project
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
