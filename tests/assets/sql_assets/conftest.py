"""Fixtures of the tests of SQL transforms."""

import pytest

from dagster_versioned.projects.project import Project
from dagster_versioned.storage import LocalStore
from support.spark import spark

__all__ = ["spark"]


@pytest.fixture
def project(tmp_path):
    return Project("flying", LocalStore(tmp_path))
