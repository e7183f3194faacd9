"""A project to look at, and two ways to run the command line: in this process, and as a process of its own."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from dagster_versioned.tables.project import Project

PROGRAM = (sys.executable, "-c", "from dagster_versioned.cli import main; main()")


@dataclass
class Outcome:
    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)


@dataclass
class Cli:
    """Runs verbs on one project."""

    location: Path

    @property
    def where(self):
        return ("--project", "NYC", "--location", str(self.location))

    def __call__(self, *args, stdin=None, ok=None):
        from dagster_versioned.cli.app import app

        result = CliRunner().invoke(app, [*self.where, *map(str, args)], input=stdin)
        outcome = Outcome(result.exit_code, result.stdout, result.stderr)
        assert ok is None or outcome.code == ok, outcome
        return outcome

    def json(self, *args, ok=0, stdin=None):
        return self(*args, "--json", ok=ok, stdin=stdin).json

    def process(self, *args, env=None, **options):
        return subprocess.Popen(
            [*PROGRAM, *self.where, *args],
            stdin=options.pop("stdin", subprocess.PIPE),
            stdout=options.pop("stdout", subprocess.PIPE),
            stderr=options.pop("stderr", subprocess.PIPE),
            text=True,
            env={**os.environ, **(env or {})},
            **options,
        )

    def run(self, *args, env=None):
        process = self.process(*args, env=env)
        out, err = process.communicate(timeout=60)
        return Outcome(process.returncode, out, err)


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch):
    for name in ("PROJECT", "LOCATION", "AUTHOR"):
        monkeypatch.delenv(f"DAGSTER_VERSIONED_{name}", raising=False)


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
