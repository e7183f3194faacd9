"""A Connect session in a process of its own, since it cannot share one with a classic session. Argument: a folder."""

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from dagster_versioned.delta_tables.spark import read_delta
from dagster_versioned.engines.arrow.engine import ArrowEngine
from dagster_versioned.engines.content_versions import content_versions
from dagster_versioned.engines.dispatch import engine_for
from dagster_versioned.engines.parts import WriteOptions
from dagster_versioned.engines.scan import Scan, ScanFile
from dagster_versioned.engines.spark import SparkEngine, default_session
from dagster_versioned.engines.spark.read import read_through_executors
from dagster_versioned.errors import EmptyTable, InvalidInput, StorageError, UnsupportedType
from dagster_versioned.features.sample_update import SampleUpdate
from dagster_versioned.features.spark.content_versions import content_version
from dagster_versioned.odf.event_table import EventTable
from dagster_versioned.projects.project import Project
from dagster_versioned.storage import LocalStore
from dagster_versioned.tables.event_history import EventHistory, SnapshotMerge
from support.spark import SETTINGS, round_trip, staging_in

BY_ID = EventHistory(merge=SnapshotMerge(primary_key=("id",)))


def raised(kind, action):
    try:
        action()
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__}")


def main(spark, folder):
    assert type(spark).__module__ == "pyspark.sql.connect.session"
    assert default_session() is spark
    frame = spark.range(1000).selectExpr(
        "id", "cast(id % 5 as string) as `a.b`", "named_struct('x', id) as s", "timestamp_seconds(id) as t"
    )
    assert SparkEngine().accepts(frame)
    assert isinstance(engine_for(frame), SparkEngine)
    for name, options in {
        "ignored": WriteOptions(row_order="ignored"),
        "significant": WriteOptions(row_order="significant"),
        "sorted": WriteOptions(sort_rows=("a.b",), sort_columns=True),
    }.items():
        read, written = round_trip(
            spark, frame.repartition(3) if name != "significant" else frame, folder / name, options
        )
        table = pq.read_table(next((folder / name).rglob("*.parquet")))
        arrow = ArrowEngine().write(table, staging_in(folder / "arrow"), options)
        assert written.contents == arrow.contents
        assert [part.sha256 for part in written.parts] == [part.sha256 for part in arrow.parts]
        assert sorted(map(str, read.select(*map("`{}`".format, frame.columns)).collect())) == sorted(
            map(str, frame.collect())
        )

    # An empty relation of Connect returns no result rows at all.
    nothing = spark.createDataFrame([], "a int, b string")
    raised(EmptyTable, lambda: SparkEngine().write(nothing, staging_in(folder / "n"), WriteOptions()))
    empty = SparkEngine().write(nothing, staging_in(folder / "n"), WriteOptions(allow_empty=True))
    assert (empty.contents.nrow, empty.contents.schema.names, empty.parts) == (0, ("a", "b"), ())
    raised(
        UnsupportedType,
        lambda: SparkEngine().write(spark.sql("select null as v"), staging_in(folder / "v"), WriteOptions()),
    )

    write_deltalake(folder / "delta", pa.table({"k": ["a", "b"], "n": [1, 2]}), partition_by=["k"])
    assert sorted(map(tuple, read_delta(spark, str(folder / "delta")).collect())) == [("a", 1), ("b", 2)]

    pq.write_table(pa.table({"n": pa.array([1, 2, None]), "s": ["x", None, "z"]}), folder / "part.parquet")
    stored = Scan(
        LocalStore(folder),
        SparkEngine().write(spark.sql("select 1L n, '' s"), staging_in(folder / "s"), WriteOptions()).contents.schema,
        (ScanFile("part.parquet", (folder / "part.parquet").stat().st_size),),
    )
    for pushed in ("false", "true"):
        spark.conf.set("spark.sql.python.filterPushdown.enabled", pushed)
        source = read_through_executors(stored, spark)
        assert source.count() == 3
        assert source.where("n >= 2").collect() == [(2, None)]

    rows = pa.table({"id": [1, 2, 3], "value": ["a", None, "c"]})
    samples = spark.createDataFrame(rows)
    texts = samples.select("id", content_version(samples, ["value", "id"]).alias("version")).toArrow().sort_by("id")
    assert texts["version"].to_pylist() == content_versions(rows, ["value", "id"]).to_pylist()
    facts = []
    for name, given_as in {"connect": spark.createDataFrame, "arrow": lambda table: table}.items():
        made = Project.open("P", str(folder / "project")).table(name)
        gone = given_as(rows.select(["id"]).slice(0, 1))
        for some in (rows, rows.slice(1, 1).set_column(1, "value", pa.array(["b"]))):
            base = made.version().metadata_sha if made.exists() else None
            made.write(SampleUpdate(given_as(some), gone, ("id",), ("id",), base))
        facts.append((made.version().facts.digest, made.version().facts.added))
    assert facts[0] == facts[1]

    history = EventTable(Project.open("P", str(folder / "project")).table("dumps"), BY_ID)
    first = spark.createDataFrame([(1, 1), (2, 2)], "id long, other long")
    history.write(first)
    for others in ([(1, 1), (1, 1)], [(1, 1), (1, 5)], [(1, 4), (1, 5)], [(3, 1), (3, 2)]):
        dump = first.where("id = 2").union(spark.createDataFrame(others, first.schema))
        assert "several rows have the same" in raised(InvalidInput, lambda dump=dump: history.write(dump))
    assert history.write(first).change == "none"
    history.write(spark.createDataFrame([(1, 5), (3, 3)], first.schema))
    events = [tuple(event.values()) for event in history.events().select(["op", "id", "other"]).to_pylist()]
    assert events == [(0, 1, 1), (0, 2, 2), (2, 1, 1), (3, 1, 5), (1, 2, 2), (0, 3, 3)]

    # What a task raises arrives as our own error, from a server as well.
    from dagster_versioned.engines.spark import by_value, worker

    def unwilling(*_):
        raise StorageError("No room.")

    worker._compressed = unwilling
    by_value._pickled.cache_clear()  # What is shipped is pickled once.
    assert (
        raised(StorageError, lambda: SparkEngine().write(frame, staging_in(folder / "e"), WriteOptions())) == "No room."
    )
    print("done")


if __name__ == "__main__":
    builder = SparkSession.builder.remote("local[2]")
    for key, value in SETTINGS.items():
        builder = builder.config(key, value)
    main(builder.getOrCreate(), Path(sys.argv[1]))
