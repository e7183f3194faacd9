"""Every change of a Delta table, by a driver of its own whose executors cannot import our package.

Arguments: ``cluster``, ``local`` or ``connect``, a folder whose ``dagster_versioned.py`` executors of a cluster find
first, the folder of a table to make, and places on S3 of others.
"""

import sys
from pathlib import Path

import pyarrow as pa
import pytest

from dagster_versioned.delta.log.commits import read_commit
from dagster_versioned.delta.log.snapshot import load_snapshot
from dagster_versioned.delta_tables import spark as on_spark
from dagster_versioned.delta_tables.dml import WhenMatched, WhenNotMatched
from dagster_versioned.delta_tables.read import read_delta
from dagster_versioned.delta_tables.write import delete_from, merge_delta, optimize_delta, update_delta, write_delta
from dagster_versioned.errors import InvalidInput
from dagster_versioned.storage import open_store
from support.spark import SETTINGS, running_spark

PROPERTIES = {
    "delta.enableDeletionVectors": "true",
    "delta.enableChangeDataFeed": "true",
    "delta.enableRowTracking": "true",
    "delta.constraints.small": "v < 1000000",
}


def change(spark, uri):
    frame = spark.range(0, 20_000, numPartitions=4).selectExpr(
        "id", "cast(id % 2 as string) as p", "cast(id as int) as v", "named_struct('x', array(id)) as s"
    )
    write_delta(uri, frame, partition_by=["p"], properties=PROPERTIES)
    expected = {i: i for i in range(20_000)}
    delete_from(uri, "id % 1000 = 7", session=spark)
    expected = {i: v for i, v in expected.items() if i % 1000 != 7}
    update_delta(uri, {"v": "v + 1"}, "id < 100 and p = '0'", session=spark)
    expected |= {i: i + 1 for i in range(0, 100, 2)}
    source = spark.range(19_990, 20_010).selectExpr("id", "cast(id % 2 as string) as p", "-1 as v")
    clauses = [WhenMatched({"v": "source.v"}), WhenNotMatched("all")]
    merge_delta(uri, source, "target.id = source.id", clauses)
    expected |= dict.fromkeys(range(19_990, 20_010), -1)
    store = open_store(uri)
    merged = read_commit(store, load_snapshot(store).version)
    assert merged.cdcs
    before = sorted(info.key for info in store.list())
    with pytest.raises(InvalidInput, match=r"rows break the constraint 'small': v < 1000000, such as \(id="):
        update_delta(uri, {"v": "v + 999990"}, "id < 100", session=spark)
    assert sorted(info.key for info in store.list()) == before
    optimize_delta(uri, session=spark)
    assert not load_snapshot(store).has_deletion_vectors
    rows = read_delta(uri)
    assert dict(zip(rows["id"].to_pylist(), rows["v"].to_pylist(), strict=True)) == expected
    assert rows.num_rows == len(expected)


def in_a_folder(spark, uri):
    """Executors that share a folder with the driver."""
    frame = spark.range(0, 1000, numPartitions=2).selectExpr("id", "-1 as v")
    write_delta(uri, frame, properties=PROPERTIES)
    update_delta(uri, {"v": "v - 1"}, "id >= 20", session=spark)
    assert sorted(read_delta(uri)["v"].to_pylist()) == [-2] * 980 + [-1] * 20


def through_the_format(spark, uri):
    """The table by ``spark.read.format("versioned")``."""
    on_spark.register(spark)
    frame = spark.read.format("versioned").option("columns", "id,v").load(uri)
    assert pa.table(frame.where("v = -1").toArrow()).num_rows == 20


NOT_ON_EXECUTORS = """
import os, sys
if "SPARK_EXECUTOR_DIRS" in os.environ:
    raise ImportError("not installed here")
sys.path.remove(os.path.dirname(__file__))
del sys.modules[__name__]
import dagster_versioned
"""
"""A module in the place of our package. Beside the driver, where Spark plans with Python, it gives way."""


def main(kind, folder, place, *uris):
    Path(folder, "dagster_versioned.py").write_text(NOT_ON_EXECUTORS)
    if kind == "local":
        with running_spark() as spark:
            for uri in uris:
                change(spark, uri)
                through_the_format(spark, uri)
    elif kind == "cluster":
        with running_spark("local-cluster[2,1,1024]", **{"spark.executorEnv.PYTHONPATH": folder}) as spark:
            in_a_folder(spark, place)
            through_the_format(spark, place)
            for uri in uris:
                change(spark, uri)
                through_the_format(spark, uri)
    else:
        from pyspark.sql import SparkSession

        builder = SparkSession.builder.remote("local[2]")
        for key, value in SETTINGS.items():
            builder = builder.config(key, value)
        spark = builder.getOrCreate()
        change(spark, place)
        through_the_format(spark, place)
        spark.stop()
    print("done")


if __name__ == "__main__":
    main(*sys.argv[1:])
