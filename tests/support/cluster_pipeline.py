"""A pipeline of assets on Spark, for a driver whose executors are elsewhere.

It is run twice, with a replaced, a partitioned, an appended and a merged table; every table is read back and verified.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import nullcontext

import dagster as dg
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from dagster_versioned import Project, ProjectResource, TableOptions, VersionedParquetIOManager
from dagster_versioned.engines.spark import default_session
from dagster_versioned.engines.spark.session import session_from

READINGS = 2_000
WIDE = 40_000
DAYS = dg.StaticPartitionsDefinition(["day0", "day1"])


@dg.asset
def readings() -> pa.Table:
    """Rows that the driver wrote, with nulls, times and decimals."""
    ids = range(READINGS)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "station": [f"s{i % 7}" for i in ids],
            "value": [None if i % 11 == 0 else i / 4 for i in ids],
            "at": pa.array([i * 1_000_000 for i in ids], pa.timestamp("us", "UTC")),
        }
    )


@dg.asset
def stations(readings: DataFrame) -> DataFrame:
    """Few rows, which tasks send home."""
    return readings.groupBy("station").agg(sf.count("*").alias("n"), sf.max("at").alias("last"))


@dg.asset(metadata=TableOptions(target_part_bytes=1 << 20).as_metadata())
def wide(readings: DataFrame) -> DataFrame:
    """Rows enough that each task makes parts of its own."""
    numbers = readings.sparkSession.range(0, WIDE, 1, 4)
    text = sf.concat(*(sf.sha2(sf.concat(sf.lit(str(i)), sf.col("id").cast("string")), 512) for i in range(16)))
    return numbers.select("id", text.alias("text"))


@dg.asset(partitions_def=DAYS, backfill_policy=dg.BackfillPolicy.single_run())
def by_day(context: dg.AssetExecutionContext, readings: DataFrame) -> dict[str, DataFrame]:
    return {key: readings.where(sf.col("id") % 2 == int(key[-1])) for key in context.partition_keys}


@dg.asset(metadata=TableOptions(mode="append").as_metadata())
def journal(readings: DataFrame) -> DataFrame:
    return readings.where("id < 10")


@dg.asset(metadata=TableOptions(mode="merge", merge_key=["id"]).as_metadata())
def latest(readings: DataFrame) -> DataFrame:
    return readings.where("id < 100")


ASSETS = [readings, stations, wide, by_day, journal, latest]


def main(spark: object, location: str) -> None:
    """Run it twice, with frames on the session of ``spark`` (a resource, or none), and check all that it wrote.

    Prints, as JSON, what ran the tasks (`executors`).
    """
    resource = ProjectResource(name="CLUSTER", location=location)
    project = resource.project()
    manager = VersionedParquetIOManager(project=resource, pyspark=spark)
    assert set(changes(manager).values()) == {"full"}
    stored = objects(project)
    assert sum(key.endswith(".parquet") and "wide/" in key for key in stored) > 1
    again = changes(manager)
    assert again.pop("journal") == "full"  # the same rows are appended again
    assert set(again.values()) == {"none"}, again
    assert objects(project) == stored
    assert project.table("journal").read().num_rows == 20

    with session_from(lambda: spark.spark_session) if spark else nullcontext():
        session = default_session()
        frame = project.table("readings").read(as_type=DataFrame)
        more = frame.withColumns({"id": sf.col("id") + 90, "value": sf.lit(-1.0)}).where("id < 110")
        project.table("latest").write(more, options=TableOptions(mode="merge", merge_key=["id"]))
        latest = project.table("latest").read().sort_by("id")
        assert latest["id"].to_pylist() == list(range(110))
        assert latest["value"].to_pylist()[90:] == [-1.0] * 20
        for name in map(str, project.tables()):
            assert project.table(name).verify().findings == ()
            rows = project.table(name).read(as_type=DataFrame)
            assert rows.count() == project.table(name).read().num_rows
    assert not [info.key for info in project.store.list() if "_staging" in info.key]
    print(json.dumps(executors(session)))


def changes(manager: VersionedParquetIOManager) -> dict[str, str]:
    """What the pipeline's materializations came to."""
    keys = DAYS.get_partition_keys()
    tags = {"dagster/asset_partition_range_start": keys[0], "dagster/asset_partition_range_end": keys[-1]}
    result = dg.Definitions(ASSETS, resources={"io_manager": manager}, executor=dg.in_process_executor)
    run = result.resolve_implicit_global_asset_job_def().execute_in_process(tags=tags)
    found = [event.event_specific_data.materialization for event in run.get_asset_materialization_events()]
    return {
        ":".join(filter(None, (one.asset_key.to_user_string(), one.partition))): one.metadata[
            "dagster_versioned/change"
        ].value
        for one in found
    }


def objects(project: Project) -> dict[str, str]:
    """All that the store holds, by its SHA-256, but for the table that grows."""
    kept = (info.key for info in project.store.list() if "journal" not in info.key)
    return {key: hashlib.sha256(project.store.get(key)).hexdigest() for key in kept}


def executors(session) -> dict[str, list[str]]:
    """Of the tasks of a job: the folders of their executors, their Pythons, the packages of these, and their room."""

    def describe(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import sys
        import tempfile
        import time
        from importlib.metadata import distributions
        from pathlib import Path

        time.sleep(1)  # so that no executor does it all
        has = sorted({f"{one.metadata['Name']} {one.version}" for one in distributions(path=sys.path)})
        for _ in batches:
            found = (str(Path.cwd()), sys.prefix, ", ".join(has), tempfile.gettempdir())
            yield pa.RecordBatch.from_pydict({name: [value] for name, value in zip(names, found, strict=True)})

    names = ("folder", "python", "has", "room")
    rows = session.range(0, 8, 1, 8).mapInArrow(describe, ", ".join(f"{name} string" for name in names)).collect()
    return {name: sorted({row[name] for row in rows}) for name in names}
