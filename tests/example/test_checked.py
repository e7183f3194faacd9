"""The example's checks: a version that fails one reaches no reader, and what is not new is not computed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]


def test_a_bad_version_reaches_nobody_and_nothing_is_computed_twice(tmp_path):
    environment = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "PYTHONPATH": str(ROOT), "COLUMNS": "140"}

    def run(*command):
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    ran = run(sys.executable, "-m", "example_project.checked")
    assert (ran.returncode, "Not as expected" in ran.stdout) == (0, False), ran.stdout + ran.stderr
    seen = [line.split("│")[4].strip() for line in ran.stdout.splitlines() if line.startswith("│ ")]
    assert seen == [
        *("23,971 rows", "23,971 rows, as before", "26,115 rows"),
        *("26,115 rows, as before", "26,115 rows, as before"),
    ]
    assert "example_project.rain:DAYS" in ran.stdout  # by what the helper was another, in `why`
    assert "reproduced, the same bytes" in ran.stdout
    assert "PROVED   what the signer said" in ran.stdout
    listed = run("dagster-versioned", "--location", ".example/checked", "--json", "parked", "ls")
    assert {one["state"] for one in json.loads(listed.stdout)["drafts"]} == {"published", "failed"}
