"""Spark where the store, or the session, is somewhere else: S3, executors of a cluster, Connect."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dagster_versioned.engines.parts import WriteOptions, WriteTuning
from dagster_versioned.engines.spark import SparkEngine
from dagster_versioned.engines.staging import Staging
from dagster_versioned.storage import S3Credentials, open_store
from dagster_versioned.storage.wrappers import CountingStore
from support.spark import promoted

pytestmark = pytest.mark.spark

PROJECT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def s3(s3_server):
    return s3_server


def uri_of(server):
    return f"s3://{server.new_bucket()}/data?region={server.region}&endpoint_url={server.endpoint_url}"


@pytest.mark.s3
@pytest.mark.slow
@pytest.mark.parametrize("canonical_bytes", [-1, 2**30])
def test_local_mode_uploads_only_what_is_promoted_and_reads_through_the_cache(
    spark, s3, tmp_path, monkeypatch, canonical_bytes
):
    monkeypatch.setenv("DAGSTER_VERSIONED_CACHE", str(tmp_path))
    options = WriteOptions(tuning=WriteTuning(canonical_bytes=canonical_bytes))
    store = CountingStore(open_store(uri_of(s3), credentials=lambda: S3Credentials(s3.access_key, s3.secret_key)))
    frame = spark.range(100_000).selectExpr("id", "uuid() as u").cache()
    staging = Staging(store, "first")
    written = SparkEngine().write(frame, staging, options)
    assert store.bytes_written == 0
    scan = promoted(written, staging)
    assert store.bytes_written == sum(part.size for part in written.parts)
    store.reset()

    again = Staging(store, "again")
    same = SparkEngine().write(frame.repartition(5), again, options)
    again.discard()
    assert same.contents == written.contents
    assert store.bytes_written == 0
    assert not list(store.list("_staging/"))

    assert sorted(SparkEngine(spark).read(scan).collect()) == sorted(frame.collect())


def run_job(name, *arguments, **environment):
    """Run a driver program of tests/support; a second session cannot live in this process."""
    script = PROJECT / "tests" / "support" / f"{name}.py"
    path = os.pathsep.join([str(PROJECT), str(PROJECT / "tests")])
    env = {**os.environ, "PYTHONPATH": path, **environment}
    run = subprocess.run([sys.executable, script, *arguments], env=env, capture_output=True, text=True, timeout=280)
    assert run.returncode == 0, run.stderr[-4000:]
    assert run.stdout.splitlines()[-1] == "done"


@pytest.mark.slow
@pytest.mark.s3
def test_executors_of_a_cluster_upload_their_parts_and_read_through_the_data_source(s3, tmp_path):
    """With credentials of their own, and without having the package installed."""
    keys = {"AWS_ACCESS_KEY_ID": s3.access_key, "AWS_SECRET_ACCESS_KEY": s3.secret_key}
    run_job("spark_cluster_job", uri_of(s3), str(tmp_path), **keys)


@pytest.mark.slow
def test_connect_does_all_that_a_classic_session_does(tmp_path):
    run_job("spark_connect_job", str(tmp_path))
