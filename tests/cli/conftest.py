"""A project to look at, and the command line that looks at it."""

import sys
from pathlib import Path

import pyarrow as pa
import pytest

from dagster_versioned.projects.project import Project
from support.command_line import Cli
from support.git_identity import git_identity

__all__ = ["git_identity"]


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch):
    for name in ("PROJECT", "LOCATION", "AUTHOR", "ENVIRONMENT", "GOVERNANCE", "REGISTRY", "CLONE", "ROLE", "MIRROR"):
        monkeypatch.delenv(f"DAGSTER_VERSIONED_{name}", raising=False)


@pytest.fixture
def code_folder(tmp_path, monkeypatch):
    """A working directory for modules, which are forgotten afterwards."""
    folder = tmp_path / "code"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("DAGSTER_VERSIONED_ENVIRONMENT", "")  # so that what a verb sets is taken back
    for name in ("DAGSTER_HOME", "DAGSTER_VERSIONED_MODULE"):
        monkeypatch.delenv(name, raising=False)
    yield folder
    for name in [name for name, module in sys.modules.items() if str(folder) in str(getattr(module, "__file__", ""))]:
        del sys.modules[name]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project.open("NYC", str(tmp_path / "store"), author="Ada <ada@example.org>")


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path / "store")


@pytest.fixture
def rows() -> pa.Table:
    return pa.table({"id": [1, 2, 3], "carrier": ["AA", "UA", None], "delay": [1.5, -2.0, 3.25]})


@pytest.fixture
def flights(project, rows):
    """Three versions: @0 of three rows, @1 with row 2 changed, @2 with a row more."""
    table = project.table("flights")
    table.write(rows, message="first")
    changed = rows.set_column(1, "carrier", pa.array(["AA", "B6", None]))
    table.write(changed)
    table.write(pa.concat_tables([changed, pa.table({"id": [4], "carrier": ["DL"], "delay": [0.0]})]))
    return table


@pytest.fixture
def monthly(project):
    """Two partitions, a version each."""
    table = project.table("monthly")
    table.write_partitions({"2013-01": pa.table({"n": [1]}), "2013-02": pa.table({"n": [2, 3]})})
    return table
