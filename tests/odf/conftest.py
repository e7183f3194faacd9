"""A dataset that a test may do with as it likes, and Spark."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

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
