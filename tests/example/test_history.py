"""The example's histories: dumps become events, any time can be read, and what was computed is verified by replay."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("history")


@pytest.fixture(scope="module")
def run(folder):
    environment = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "PYTHONPATH": str(ROOT), "COLUMNS": "120"}

    def run(*command):
        return subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=800
        )

    return run


@pytest.fixture(scope="module")
def ran(run):
    return run(sys.executable, "-m", "example_project.history")


def test_it_finds_everything_as_expected(ran):
    assert (ran.returncode, "Not as expected" in ran.stdout) == (0, False), ran.stdout + ran.stderr


def test_it_shows_the_registers_at_three_times(ran):
    for told in ("3,313 planes, 336 of them by AIRBUS", "3,230 planes, 0 of them by AIRBUS", "3,221 planes"):
        assert told in ran.stdout


def test_the_command_line_explains_a_row(ran, run):
    command = ["dagster-versioned", "--location", ".example/history", "--json", "odf", "explain", "late_fleet", "3"]
    done = run(*command)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert {column["column"] for column in told["columns"]} >= {"manufacturer", "destination", "minutes"}
    assert len({dataset for dataset, _ in told["rows"]}) == 3
