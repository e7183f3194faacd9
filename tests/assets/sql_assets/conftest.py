"""Fixtures of the tests of SQL transforms."""

import pytest

from dagster_versioned.storage import LocalStore
from dagster_versioned.tables.project import Project
from support.spark import spark

__all__ = ["spark"]


@pytest.fixture
def project(tmp_path):
    return Project("flying", LocalStore(tmp_path))
