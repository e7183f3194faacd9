"""Spark in an environment: tasks write there, and read parts of both sides."""

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

from dagster_versioned.branches.environments import create_environment
from dagster_versioned.branches.promote import promote
from dagster_versioned.projects.project import Project
from support.s3_server import S3Server
from support.spark import spark
from support.stores import contents

__all__ = ["spark"]
pytestmark = pytest.mark.spark


def numbers(frame) -> list[int]:
    return sorted(row["n"] for row in frame.collect())


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.s3)])
def project(request, tmp_path) -> Project:
    if request.param == "local":
        return Project.open("NYC", str(tmp_path / "lake"))
    server: S3Server = request.getfixturevalue("s3_server")
    return Project("NYC", server.store(server.new_bucket()))


@pytest.mark.every(2)
def test_writes_reads_and_promotes(project, spark):
    project.table("raw").write(pa.table({"n": [0]}))
    parents = project.table("raw").upstream()
    for key in ("a", "b"):
        project.table("daily").write(pa.table({"n": [1, 2]}), partition=key, code_version="1", parents=parents)
    create_environment(project, "pr-1")
    before = contents(project.data)
    branch = project.in_environment("pr-1").table("daily")
    branch.write(spark.range(10).withColumnRenamed("id", "n"), partition="b", code_version="2", parents=parents)
    assert numbers(branch.read(as_type=DataFrame)) == sorted([1, 2, *range(10)])
    assert contents(project.data) == before
    report = promote(project, "pr-1", dry_run=False)
    assert [(cell.table, cell.partition) for cell in report.promoted] == [("daily", "b")]
    assert numbers(project.table("daily").read(as_type=DataFrame)) == sorted([1, 2, *range(10)])
    assert not project.table("daily").verify().findings
