"""The example keeps its promises: three runs, and exactly the versions that they should make."""

import json
import re
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(900)]

OUTCOMES = {
    "airlines": ["full", "none", "none"],
    "airports": ["full", "none", "none"],
    "flights": ["full", "none", "none"],
    "planes": ["full", "none", "none"],
    "weather": ["full", "none", "full"],
    "daily_delays": ["full", "none", "none"],
    "flights_enriched": ["full", "none", "none"],
    "flight_weather": ["full", "none", "full"],
    "plane_usage": ["full", "none", "none"],
    "hottest_days": ["full", "none", "metadata_only"],
    "busiest_routes": ["full", "none", "none"],
    "carrier_delays": ["full", "none", "none"],
    "monthly_weather_delays": ["full × 12", "none × 12", "full × 1"],
}


def run(folder, *arguments):
    """The example as a person runs it, in a folder of its own."""
    command = [sys.executable, "-m", "example_project", *arguments]
    return subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    folder = tmp_path_factory.mktemp("example")
    return folder, run(folder)


def test_it_succeeds_and_says_so(ran):
    _, process = ran
    assert process.returncode == 0, process.stdout + process.stderr
    assert "Not as expected" not in process.stdout


def test_exactly_what_should_become_a_version_does(ran):
    _, process = ran
    rows = [[cell.strip() for cell in re.split("[│┃]", line)[1:-1]] for line in process.stdout.splitlines()]
    assert {row[0]: row[1:] for row in rows if len(row) == 4 and row[0] in OUTCOMES} == OUTCOMES
    assert ["", "", "", "metadata_only × 11"] in rows


def test_equal_data_dealt_out_in_another_way_leaves_every_object_as_it_was(ran):
    _, process = ran
    assert re.search(r"the same \d+ objects as before it, byte for byte", process.stdout)


def test_a_branch_becomes_production_s_as_it_is(ran):
    _, process = ran
    assert "The environment pr-142 of NYC_FLIGHTS is ready: 13 tables" in process.stdout
    assert "15 changed" in process.stdout
    assert "1 version of pr-142 became production's, 0 are left to it." in process.stdout
    assert "The environment pr-142 is dropped" in process.stdout


def test_a_user_s_script_says_the_same_before_and_after_the_project_moved(ran):
    folder, process = ran
    before, after = re.findall(r"example_project\.ask \w+\n(.+)\n", process.stdout)
    assert before == after == "23971 weather reports, at 1 the thermometer failed"
    assert "verified by content" in process.stdout
    projects = folder / ".example/governance/datom/projects"
    assert json.loads((projects / "NYC_FLIGHTS/ref.json").read_text())["current"]["root"].endswith("moved")


def test_the_registry_has_one_commit_for_each_event(ran):
    folder, _ = ran
    command = ["git", "-C", str(folder / ".example/registry.git"), "log", "--reverse", "--format=%s"]
    subjects = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    assert [subject.partition(":")[0] for subject in subjects] == [
        "Begin the registry",
        "Registered",
        "Migration prepared",
        "Migrated",
    ]


def test_its_log_is_quiet(ran):
    _, process = ran
    assert "DEBUG" not in process.stderr
    assert "WARN" not in process.stderr


def test_it_does_not_touch_tables_that_it_did_not_make(ran):
    folder, _ = ran
    process = run(folder, "--location", ".example/warehouse")
    assert process.returncode == 2
    assert "Nothing was touched" in " ".join(re.findall(r"[\w.]+", process.stderr))
