"""The example's features: only what is stale is computed, and the example sees that for itself."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    folder = tmp_path_factory.mktemp("features")
    command = [sys.executable, "-m", "example_project.features"]
    environment = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "PYTHONPATH": str(ROOT), "COLUMNS": "120"}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=600
    )


def test_it_finds_everything_as_expected(ran):
    assert (ran.returncode, "Not as expected" in ran.stdout) == (0, False), ran.stdout + ran.stderr


def test_it_counts_what_was_computed_by_asset(ran):
    for told in ("500 stale", "22,188 stale", "1 orphaned", "364 stale"):
        assert told in ran.stdout
