"""Fixtures of proofs."""

from pathlib import Path

import pytest

from dagster_versioned import Project
from support.git_identity import git_identity

__all__ = ["git_identity"]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project.open("SHOP", str(tmp_path / "shop"))
