"""The example's histories: dumps become events, any time can be read, and what was computed is verified by replay."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    folder = tmp_path_factory.mktemp("history")
    command = [sys.executable, "-m", "example_project.history"]
    environment = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "PYTHONPATH": str(ROOT), "COLUMNS": "120"}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=800
    )


def test_it_finds_everything_as_expected(ran):
    assert (ran.returncode, "Not as expected" in ran.stdout) == (0, False), ran.stdout + ran.stderr


def test_it_shows_the_registers_at_three_times(ran):
    for told in ("3,313 planes, 336 of them by AIRBUS", "3,230 planes, 0 of them by AIRBUS", "3,221 planes"):
        assert told in ran.stdout
