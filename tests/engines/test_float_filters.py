"""A filter on Spark finds the rows that SQL says it finds, whatever footers, page indexes and dictionaries say."""

import math

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame

from dagster_versioned.delta.schema.types import schema_from_arrow
from dagster_versioned.engines.scan import Scan, ScanFile
from dagster_versioned.engines.spark import SparkEngine
from dagster_versioned.projects.project import Project
from dagster_versioned.storage import LocalStore
from support.float_values import COLUMNS, CONDITIONS, GROUPS, VALUES, expected, table

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def frame(spark, tmp_path_factory):
    """Files of another writer, whose bounds leave NaN out, with two row groups each."""
    folder, files, first = tmp_path_factory.mktemp("floats"), [], 0
    for i in range(0, len(GROUPS), 2):
        with pq.ParquetWriter(folder / f"{i}", table([]).schema, write_page_index=True) as writer:
            for group in GROUPS[i : i + 2]:
                writer.write_table(table(group, first))
                first += len(group)
        files.append(ScanFile(f"{i}", (folder / f"{i}").stat().st_size))
    schema = schema_from_arrow(table([]).schema).all_nullable()
    return SparkEngine(spark).read(Scan(LocalStore(folder), schema, tuple(files)))


def found(frame):
    return sorted(row.id for row in frame.select("id").collect())


@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_filter_finds_every_row_in_files_of_other_writers(frame, condition):
    for name in COLUMNS if len(condition) < 100 else ["d"]:
        assert found(frame.where(condition.format(name))) == expected(condition), name


def test_a_join_with_a_constant_finds_every_row(spark, frame):
    bound = spark.createDataFrame([(100.0,)], "least double")
    beyond = expected("{} > 100")
    assert found(frame.join(bound, frame.d > bound.least)) == beyond
    keys = spark.createDataFrame([(0.0, "zero"), (float("nan"), "nan")], "d double, k string").where(
        "d = 0 or isnan(d)"
    )
    assert found(frame.join(keys, "d")) == sorted(expected("{} = 0") + expected("isnan({})"))


def test_values_come_as_they_are_stored_and_other_columns_keep_their_filters(frame):
    rows = frame.orderBy("id").collect()
    for values in ([row.d for row in rows], [row.f for row in rows], [row.s.v for row in rows]):
        assert [repr(value) for value in values] == [repr(value) for value in VALUES]
    assert found(frame.where("s is not null and s.v > 100")) == expected("{} > 100")
    plan = frame.where("id = 5 and d > 100").select("id", "s.n")._jdf.queryExecution().executedPlan().toString()
    assert "EqualTo(id,5)" in plan
    assert "ReadSchema: struct<id:bigint,d:double,s:struct<n:bigint>>" in plan


def test_parts_that_are_known_to_hold_no_nan_keep_their_filters(spark, tmp_path):
    table = Project.open("P", str(tmp_path)).table("t")
    numbers = {"zeros": [-0.0, -5.0, 5.0], "large": [1.0, 2.0, 3.0], "odd": [1.0, 2.0, math.nan]}
    rows = pa.table({"id": [0, 1, 2], **numbers, "s": [{"x": value} for value in numbers["large"]]})
    table.write(rows)

    def pushed(condition):
        return table.read(as_type=DataFrame).where(condition)._jdf.queryExecution().executedPlan().toString()

    assert "GreaterThan(large,2.5)" in pushed("large > 2.5")
    assert "GreaterThan(s.x,2.5)" in pushed("s.x > 2.5")
    assert "GreaterThan(odd" not in pushed("odd > 2.5")
    frame = table.read(as_type=DataFrame)
    assert (found(frame.where("zeros = 0")), found(frame.where("zeros >= 0 and large < 2"))) == ([0], [0])
    assert (found(frame.where("odd > 2.5")), found(frame.where("s.x <> 1 and large > 2"))) == ([2], [2])
    table.write(pa.table({"id": [0], **{name: [None] for name in numbers}, "s": [None]}).cast(rows.schema))
    assert "GreaterThan(odd,2.5)" in pushed("odd > 2.5")
