"""The example keeps its promises: three runs, and exactly the versions that they should make."""

import os
import re
import subprocess
import sys

import pytest

from dagster_versioned import Project
from support.s3_server import running_s3_server

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.xdist_group("spark"), pytest.mark.timeout(900)]

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


def run(folder, *arguments, **environment):
    """The example as a person runs it, in a folder of its own."""
    command = [sys.executable, "-m", "example_project", *arguments]
    environment = {**os.environ, **environment}
    return subprocess.run(command, cwd=folder, env=environment, check=False, capture_output=True, text=True)


def identities(project):
    """Every version of every table, in order."""
    return {
        str(name): [(version.partition, version.metadata_sha) for version in project.table(str(name)).history()]
        for name in project.tables()
    }


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


def test_its_log_is_quiet(ran):
    _, process = ran
    assert "DEBUG" not in process.stderr
    assert "WARN" not in process.stderr


def test_it_does_not_touch_tables_that_it_did_not_make(ran):
    folder, _ = ran
    process = run(folder, "--location", ".example/warehouse")
    assert process.returncode == 2
    assert "Nothing was touched" in " ".join(re.findall(r"[\w.]+", process.stderr))


@pytest.mark.s3
def test_on_s3_without_a_jar_it_makes_the_same_identities_as_on_a_local_disk(ran, tmp_path, monkeypatch):
    folder, _ = ran
    with running_s3_server() as server:
        keys = {"AWS_ACCESS_KEY_ID": server.access_key, "AWS_SECRET_ACCESS_KEY": server.secret_key}
        for name, value in keys.items():
            monkeypatch.setenv(name, value)
        location = f"s3://{server.new_bucket()}/flights?region={server.region}&endpoint_url={server.endpoint_url}"
        process = run(tmp_path, "--location", location, **keys)
        assert process.returncode == 0, process.stdout + process.stderr
        remote = identities(Project.open("NYC_FLIGHTS", location))
    assert remote == identities(Project.open("NYC_FLIGHTS", str(folder / ".example/warehouse")))
    assert sum(map(len, remote.values())) == 39
