"""Spark changes Delta tables on S3 without S3A, on the executors of a cluster, and through Spark Connect."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

PROJECT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def s3(s3_server):
    return s3_server


def run_job(*arguments, **environment):
    """Run the driver program; a second session cannot live in this process."""
    script = PROJECT / "tests" / "support" / "spark_delta_job.py"
    path = os.pathsep.join([str(PROJECT), str(PROJECT / "tests")])
    env = {**os.environ, "PYTHONPATH": path, **environment}
    command = [sys.executable, script, *map(str, arguments)]
    run = subprocess.run(command, env=env, capture_output=True, text=True, timeout=890)
    assert run.returncode == 0, run.stderr[-4000:]
    assert run.stdout.splitlines()[-1] == "done"


def keys(server):
    return {"AWS_ACCESS_KEY_ID": server.access_key, "AWS_SECRET_ACCESS_KEY": server.secret_key}


def place(server):
    return f"s3://{server.new_bucket()}/table?region={server.region}&endpoint_url={server.endpoint_url}"


@pytest.mark.s3
def test_executors_of_a_cluster_change_tables_in_a_folder_and_on_s3(s3, tmp_path):
    """With credentials of their own, and without having the package installed."""
    run_job("cluster", tmp_path, tmp_path / "table", place(s3), **keys(s3))


@pytest.mark.s3
def test_a_session_on_this_machine_changes_a_table_on_s3(s3, tmp_path):
    run_job("local", tmp_path, tmp_path / "table", place(s3), DAGSTER_VERSIONED_CACHE=str(tmp_path), **keys(s3))


def test_connect_does_all_that_a_classic_session_does(tmp_path):
    run_job("connect", tmp_path, tmp_path / "table")
