"""Tables that Spark writes and reads, before and after rows were erased and the log was redacted."""

from typing import Any

import pytest
from pyspark.sql import DataFrame

from dagster_versioned.branches.environments import create_environment
from dagster_versioned.projects.project import Project
from dagster_versioned.tables.options import TableOptions
from support.erased import people
from support.spark import spark

__all__ = ["spark"]
pytestmark = [pytest.mark.spark, pytest.mark.slow]

MERGE = TableOptions(mode="merge", merge_key=("id",), properties={"delta.enableDeletionVectors": "true"})


def test_every_version_is_read_and_goes_on_without_them(spark: Any, tmp_path):
    project = Project.open("P", str(tmp_path))
    table = project.table("people")
    for serial, numbers in enumerate(([1, 2, 3, 4, 5], [2, 6], [3, 7])):
        table.write(spark.createDataFrame(people(numbers, serial)), options=MERGE)
    create_environment(project, "dev")
    project.erase("id = 2 or id = 3", ["people"], why="asked", dry_run=False)
    expected = {0: [1, 4, 5], 1: [1, 4, 5, 6], 2: [1, 4, 5, 6, 7]}
    for opened in (Project.open("P", str(tmp_path)), project.in_environment("dev")):
        for at, numbers in expected.items():
            frame = opened.table("people").read(f"@{at}", as_type=DataFrame)
            assert sorted(row.id for row in frame.collect()) == numbers
            assert frame.filter("id = 2").count() == 0
    table.write(spark.createDataFrame(people([4, 8], 4)), options=MERGE)
    rows = {row.id: row.name for row in table.read(as_type=DataFrame).collect()}
    assert rows == {row["id"]: row["name"] for row in people([1, 5, 6, 7], 0).to_pylist()} | {
        4: "person-0004-4",
        6: "person-0006-1",
        7: "person-0007-2",
        8: "person-0008-4",
    }
    assert table.verify().ok, table.verify().findings
