"""Spark where the store, or the session, is somewhere else: S3, executors of a cluster, Connect."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from dagster_versioned.engines.parts import WriteOptions, WriteTuning
from dagster_versioned.engines.spark import SparkEngine
from dagster_versioned.engines.staging import Staging
from dagster_versioned.storage import S3Credentials, open_store
from dagster_versioned.storage.wrappers import CountingStore
from support.how_to import blocks
from support.spark import needs_spark, promoted
from support.spark_cluster import (
    ARROW,
    PAGE,
    arrow_alone,
    arrow_and_boto3,
    cluster,
    connect_server,
    python_of_executors,
)

__all__ = ["arrow_alone", "arrow_and_boto3", "cluster"]

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
@needs_spark(4, 0, "a server of Spark Connect without a JAR")
def test_connect_does_all_that_a_classic_session_does(tmp_path):
    run_job("spark_connect_job", str(tmp_path))


# --- a standalone cluster of two workers, and Spark Connect on it, by the commands of the page

PIPELINE = """
import sys
from dagster_pyspark import LazyPySparkResource
{session}
from support.cluster_pipeline import main

main(spark, sys.argv[1])
"""

WITHOUT_JAVA = {"PATH": str(Path(sys.executable).parent), "JAVA_HOME": ""}


def assert_ran_on_both(printed, python, *packages):
    """Two executors ran tasks, by this Python, which has these packages and what a virtual environment begins with."""
    seen = json.loads(printed.splitlines()[-1])
    assert len(seen["folder"]) == 2, seen
    assert all(re.search(python, prefix) for prefix in seen["python"]), seen
    (has,) = seen["has"]
    assert {one.split()[0] for one in has.split(", ")} - {"pip", "setuptools"} == {"pyarrow", "numpy", *packages}
    assert re.search(r"pyarrow 14\.", has)
    assert re.search(r"numpy 1\.", has)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_pipeline_runs_where_executors_have_nothing_but_pyarrow_and_numpy(cluster, arrow_alone, tmp_path):
    shown = {"spark://master:7077": cluster.master, "/opt/python/bin/python": str(arrow_alone)}
    (session,) = blocks(PAGE, "Standalone", "python", shown)
    printed = cluster.driver(PIPELINE.format(session=session), str(tmp_path / "project"))
    assert_ran_on_both(printed, f"^{arrow_alone.parents[1]}$")


@pytest.mark.slow
@pytest.mark.s3
@pytest.mark.timeout(900)
def test_a_pipeline_runs_on_s3_by_a_python_that_executors_are_sent(cluster, s3, tmp_path):
    """By a path that the driver does not have; with boto3, and room in another folder than /tmp."""
    packages = shlex.join([*ARROW, "boto3"])
    shown = {"python3.11": sys.executable, '"pyarrow>=14,<22" "numpy<2.3" boto3': packages}
    for command in blocks(PAGE, "EMR", "bash", shown)[0].splitlines():
        subprocess.run(shlex.split(command), cwd=tmp_path, check=True, capture_output=True, timeout=600)
    room = tmp_path / "room"
    room.mkdir()
    shown = {
        '"yarn"': repr(cluster.master),
        "s3://bucket/environment.tar.gz": (tmp_path / "environment.tar.gz").as_uri(),
        "/mnt/tmp": str(room),
    }
    (session,) = blocks(PAGE, "EMR", "python", shown)
    keys = {"AWS_ACCESS_KEY_ID": s3.access_key, "AWS_SECRET_ACCESS_KEY": s3.secret_key}
    theirs = [word for name, value in keys.items() for word in ("--conf", f"spark.executorEnv.{name}={value}")]
    printed = cluster.driver(
        PIPELINE.format(session=session),
        uri_of(s3),
        PYSPARK_SUBMIT_ARGS=shlex.join([*theirs, "pyspark-shell"]),
        **keys,
    )
    boto3 = ("boto3", "botocore", "jmespath", "python-dateutil", "s3transfer", "six", "urllib3")
    assert_ran_on_both(printed, "/environment$", *boto3, "venv-pack")
    assert json.loads(printed.splitlines()[-1])["room"] == [str(room)]


@pytest.mark.slow
@pytest.mark.timeout(900)
@needs_spark(4, 0, "a server of Spark Connect without a JAR")
def test_a_pipeline_runs_on_a_server_of_connect_from_a_driver_without_java(cluster, arrow_alone, tmp_path):
    with connect_server(tmp_path, cluster.master, arrow_alone) as url:
        (session,) = blocks(PAGE, "Spark Connect", "python", {"sc://server:15002": url})
        printed = cluster.driver(PIPELINE.format(session=session), str(tmp_path / "by_resource"), **WITHOUT_JAVA)
        assert_ran_on_both(printed, f"^{arrow_alone.parents[1]}$")

        (_, export) = blocks(PAGE, "Spark Connect", "bash", {"sc://server:15002": url})
        name, _, value = export.removeprefix("export ").strip().partition("=")
        program = PIPELINE.format(session="spark = None")
        printed = cluster.driver(program, str(tmp_path / "by_variable"), **WITHOUT_JAVA, **{name: value})
        assert_ran_on_both(printed, f"^{arrow_alone.parents[1]}$")


@pytest.mark.slow
@pytest.mark.s3
@pytest.mark.timeout(900)
@needs_spark(4, 0, "a server of Spark Connect without a JAR")
def test_a_server_of_connect_in_local_mode_has_no_files_of_its_client(cluster, arrow_and_boto3, s3, tmp_path):
    """It may be on another machine: what tables on S3 hold is fetched by its tasks, and not into the client's cache."""
    keys = {"AWS_ACCESS_KEY_ID": s3.access_key, "AWS_SECRET_ACCESS_KEY": s3.secret_key}
    with connect_server(tmp_path, "local[2]", arrow_and_boto3, **keys) as url:
        program = PIPELINE.format(session="spark = None")
        environment = {**WITHOUT_JAVA, **keys, "SPARK_REMOTE": url, "DAGSTER_VERSIONED_CACHE": str(tmp_path / "cache")}
        cluster.driver(program, uri_of(s3), **environment)
    assert not [path for path in tmp_path.glob("cache/**/*") if path.is_file()]


WITHOUT = """
import json, sys
from pathlib import Path
from dagster_versioned.engines.parts import WriteOptions
from dagster_versioned.engines.spark import SparkEngine, default_session
from dagster_versioned.engines.spark.numbered_tasks import in_tasks
from dagster_versioned.errors import MissingExtra
from support.spark import staging_in

session = default_session()
for name, python in json.loads(sys.argv[1]).items():
    if python is not None:
        session.sparkContext.pythonExec = python
    shuffled = session.range(5).repartition(2)
    for action in (
        lambda: SparkEngine().write(shuffled, staging_in(Path(sys.argv[2], "table")), WriteOptions()),
        lambda: in_tasks(session, 2, None, "n int"),
    ):
        try:
            action()
        except MissingExtra as error:
            print(json.dumps([name, str(error)]))
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_executors_lack_is_one_sentence_before_anything_is_computed(cluster, tmp_path):
    ends = tmp_path / "ends"
    ends.write_text("#!/bin/sh\necho no such option >&2\nexit 3\n")
    ends.chmod(0o755)
    pythons = {
        "unset": None,
        "no pyarrow": python_of_executors(tmp_path / "bare"),
        "pyarrow 13": python_of_executors(tmp_path / "old", "pyarrow==13.*", "numpy<2"),
        "no numpy": python_of_executors(tmp_path / "without", "--no-deps", "pyarrow==14.*"),
        "no program": tmp_path / "none",
        "no Python": ends,
        "another Python": says_that_it_is_another(tmp_path / "another"),
    }
    named = {name: python and str(python) for name, python in pythons.items()}
    printed = cluster.driver(WITHOUT, json.dumps(named), str(tmp_path), SPARK_MASTER=cluster.master)
    found = [json.loads(line) for line in printed.splitlines() if line.startswith("[")]
    assert [name for name, _ in found] == [name for name in pythons for _ in range(2)]
    of_driver = "{}.{}".format(*sys.version_info)
    wanted = {
        "unset": r"there is no pyarrow\. .* Now it is python3, since neither is set\.$",
        "no pyarrow": r"there is no pyarrow\. .* Now it is .*/bare/bin/python\.$",
        "pyarrow 13": r"\S+ has pyarrow 13\.0\.0\. .* Now it is .*/old/bin/python\.$",
        "no numpy": r"there is no numpy\. ",
        "no program": r"there is no program .*/none\. ",
        "no Python": r"theirs cannot run a task: .*\. Nothing was committed",
        "another Python": r"theirs is \d+\.\d+\. ",
    }
    for name, message in found:
        assert message.startswith(f"Spark's executors need a Python of the driver's minor version ({of_driver}), with")
        assert re.search(f"; {wanted[name]}", message), (name, message)
        assert "PYSPARK_PYTHON, or spark.pyspark.python." in message
        assert not re.search(r"\n|Traceback|py4j|pickle|org\.apache", message), (name, message)
    assert not list(tmp_path.glob("table/**/*.parquet"))


def says_that_it_is_another(folder):
    """A Python that has all that it needs and gives another minor version as its own."""
    python = python_of_executors(folder, *ARROW)
    (site,) = folder.glob("lib/python*/site-packages")
    members = "{'major': 3, 'minor': 9, 'micro': 2}"
    (site / "version.pth").write_text(f"import sys; sys.version_info = type('v', (tuple,), {members})((3, 9, 2))\n")
    return python
