"""A dataset that a test may do with as it likes, and Spark."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from dagster_versioned.projects.project import Project
from dagster_versioned.tables.table import VersionedTable
from support.odf_graph import Served, root_of
from support.spark import spark

__all__ = ["spark"]


@pytest.fixture(scope="session")
def _served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    return root_of(tmp_path_factory.mktemp("source") / "readings")


@pytest.fixture
def source(_served: Served, tmp_path: Path) -> Served:
    """A dataset of 12 records in two slices."""
    return replace(_served, folder=Path(shutil.copytree(_served.folder, tmp_path / "source")))


@pytest.fixture
def copy(tmp_path: Path) -> VersionedTable:
    """The table that it is pulled into, which is not there yet."""
    return Project.open("COPY", str(tmp_path / "copy")).table("readings")
