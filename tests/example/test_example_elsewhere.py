"""The example makes the same versions wherever it runs and stores, and other programs read every one of them."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

from dagster_versioned import Project
from support.readers import by_deltalake, by_polars, types
from support.spark_cluster import Cluster, arrow_and_boto3, cluster, python_of_executors

__all__ = ["arrow_and_boto3", "cluster"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.spark,
    pytest.mark.s3,
    pytest.mark.timeout(1_800),
]

PROJECT = "NYC_FLIGHTS"
HERE = "local[2]"
CLUSTER = "spark://"
VERSIONS = 40
"""16 of tables without partitions, and 12 months twice."""


@dataclass(frozen=True)
class Run:
    """The example, run to its end: what it left, and Spark's own account of it."""

    project: Project
    executors: set[str]
    master: str
    jars: list[str]
    same_writer: bool = True
    """Whether its executors write Parquet with the driver's release of pyarrow."""


def run_example(
    folder: Path, master: str, location: str, open_project: Callable[[], Project], **environment: str
) -> Run:
    """The example as a person runs it, in a folder of its own, told by the environment alone where Spark is."""
    events = folder / "events"
    events.mkdir()
    log = {"enabled": "true", "dir": events.as_uri(), "compress": "false", "rolling.enabled": "false"}
    arguments = [f"--conf spark.eventLog.{key}={value}" for key, value in log.items()]
    keys = {name: value for name, value in environment.items() if name.startswith("AWS_")}
    arguments += [f"--conf spark.executorEnv.{name}={value}" for name, value in keys.items()]
    process = subprocess.run(
        [sys.executable, "-m", "example_project", "--location", location],
        cwd=folder,
        env={
            **os.environ,
            "SPARK_MASTER": master,
            "PYSPARK_SUBMIT_ARGS": " ".join([*arguments, "pyspark-shell"]),
            "DAGSTER_VERSIONED_CACHE": str(folder / "cache"),
            **environment,
        },
        check=False,
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    (told,) = events.iterdir()
    executors, spark = set(), {}
    with told.open() as lines:
        for line in lines:
            if line.startswith('{"Event":"SparkListenerTaskEnd"'):
                executors.add(json.loads(line)["Task Info"]["Executor ID"])
            elif line.startswith('{"Event":"SparkListenerEnvironmentUpdate"'):
                spark = json.loads(line)
    return Run(open_project(), executors, spark["Spark Properties"]["spark.master"], list(spark["Classpath Entries"]))


def run_on_disk(folder: Path, master: str, **environment: str) -> Run:
    warehouse = str(folder / "warehouse")
    return run_example(folder, master, warehouse, partial(Project.open, PROJECT, warehouse), **environment)


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """On this machine's disk, with all of Spark in one process."""
    return run_on_disk(tmp_path_factory.mktemp("disk"), HERE)


@pytest.fixture(scope="module")
def s3(s3_server):
    return s3_server


@pytest.fixture(scope="module")
def drivers_arrow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of executors that write the bytes that the driver would write."""
    return python_of_executors(tmp_path_factory.mktemp("python") / "same", f"pyarrow=={pa.__version__}", "numpy")


@pytest.fixture(scope="module", params=[("s3", HERE), ("disk", CLUSTER), ("s3", CLUSTER)], ids=" ".join)
def elsewhere(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """On S3, on a cluster of two workers, and both at once; there the executors have the oldest pyarrow."""
    store, master = request.param
    folder = tmp_path_factory.mktemp("elsewhere")
    environment: dict[str, str] = {}
    if master == CLUSTER:
        python: Path = request.getfixturevalue("drivers_arrow" if store == "disk" else "arrow_and_boto3")
        running: Cluster = request.getfixturevalue("cluster")
        master, environment = running.master, {"PYSPARK_PYTHON": str(python)}
    if store == "disk":
        run = run_on_disk(folder, master, **environment)
    else:
        server = request.getfixturevalue("s3")
        bucket = server.new_bucket()
        run = run_example(
            folder,
            master,
            f"s3://{bucket}/flights?region={server.region}&endpoint_url={server.endpoint_url}",
            lambda: Project(PROJECT, server.store(bucket, "flights")),
            AWS_ACCESS_KEY_ID=server.access_key,
            AWS_SECRET_ACCESS_KEY=server.secret_key,
            **environment,
        )
    assert run.master == master
    assert run.executors == ({"driver"} if master == HERE else {"0", "1"})
    assert not [jar for jar in run.jars if "hadoop-aws" in jar]
    return replace(run, same_writer=(store, request.param[1]) != ("s3", CLUSTER))


def versions(project: Project) -> dict[tuple[str, int, str | None], tuple[str | None, str | None]]:
    """``metadata_sha`` and ``data_sha`` of every version by table, log version and partition."""
    return {
        (str(name), version.log_version, version.partition): (version.metadata_sha, version.data_sha)
        for name in project.tables()
        for version in project.table(str(name)).history()
    }


def contents(project: Project) -> dict[tuple[str, int, str | None], tuple[str | None, object]]:
    """The digest of the rows and the schema of every version, whatever wrote its files."""
    return {
        (str(name), version.log_version, version.partition): (version.digest, (version.raw or {})["identity"]["schema"])
        for name in project.tables()
        for version in project.table(str(name)).history()
    }


def test_every_version_has_the_identity_that_it_has_on_a_local_disk(on_disk: Run, elsewhere: Run) -> None:
    expected = versions(on_disk.project)
    assert len(expected) == VERSIONS
    assert all(chain.from_iterable(expected.values()))
    found = versions(elsewhere.project)
    if elsewhere.same_writer:
        assert found == expected
    else:  # one table has parts that executors write: it, and what is computed from it, have other identities
        others = {key[0] for key in found.keys() | expected.keys() if found.get(key) != expected.get(key)}
        assert others == {"flights_enriched", "carrier_delays", "busiest_routes"}


def test_every_version_has_the_rows_and_the_schema_that_it_has_on_a_local_disk(on_disk: Run, elsewhere: Run) -> None:
    assert contents(elsewhere.project) == contents(on_disk.project)


def test_every_table_elsewhere_verifies_and_nothing_stays_staged(elsewhere: Run) -> None:
    check(elsewhere.project)


def test_every_table_on_disk_verifies_and_nothing_stays_staged(on_disk: Run) -> None:
    check(on_disk.project)


def check(project: Project) -> None:
    reports = [project.table(str(name)).verify() for name in project.tables()]
    assert [finding for report in reports for finding in report.findings] == []
    assert sum(report.versions for report in reports) == VERSIONS
    assert not [info.key for info in project.store.list() if "_staging" in info.key]


# --- other programs, on what the local run left


def test_deltalake_reads_every_version_by_number(on_disk: Run) -> None:
    for name in on_disk.project.tables():
        table = on_disk.project.table(str(name))
        numbers = {version.log_version for version in table.history()}
        assert numbers == set(range(max(numbers) + 1))
        for number in numbers:
            assert_equal(by_deltalake(folder_of(on_disk, str(name)), number), table.read(number), table.partitions())


def test_polars_reads_every_head(on_disk: Run) -> None:
    for name in on_disk.project.tables():
        table = on_disk.project.table(str(name))
        assert_equal(by_polars(folder_of(on_disk, str(name))), table.read(), table.partitions())


def test_datom_reads_every_version_of_every_table_without_partitions_by_sha_prefix(on_disk: Run) -> None:
    datom = pytest.importorskip("datom")  # needs pyarrow 20
    conn = datom.get_conn(datom.store_local(folder_of(on_disk, "weather").parents[1]), PROJECT)
    tables = [on_disk.project.table(str(name)) for name in on_disk.project.tables()]
    eligible = {str(table.name): table for table in tables if not table.partitions()}
    assert len(eligible) == len(tables) - 1
    assert sorted(datom.list_artifacts(conn)["name"]) == sorted(eligible)
    for name, table in eligible.items():
        table.repair()  # what is put now and then is as new as the log
        history = table.history()
        assert list(datom.history(conn, name)["version"]) == [version.metadata_sha for version in history]
        for version in history:
            assert_equal(datom.read(conn, name, version.short, as_arrow=True), table.read(version.metadata_sha))


def folder_of(run: Run, name: str) -> Path:
    log = run.project.table(name).store.local_path("_delta_log")
    assert log is not None
    return log.parent


def assert_equal(found: pa.Table, expected: pa.Table, partitions: object = None) -> None:
    """The same columns, types and rows, in the same order unless there are partitions: they have none among them."""
    assert types(found) == types(expected)
    assert expected.num_rows > 0
    ours, theirs = (pl.DataFrame(table.select(sorted(expected.column_names))) for table in (expected, found))
    if partitions:
        ours, theirs = ours.sort(pl.all()), theirs.sort(pl.all())
    assert theirs.equals(ours)
