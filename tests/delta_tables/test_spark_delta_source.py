"""`spark.read.format("versioned")`: any Delta table as a batch or as a stream, with no JAR."""

from importlib import import_module

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from tenacity import retry, retry_if_exception_message, stop_after_attempt

from dagster_versioned.delta.table import Table
from dagster_versioned.delta_tables.read import read_delta
from dagster_versioned.delta_tables.spark import register
from dagster_versioned.delta_tables.write import delete_from, write_delta
from support.spark import needs_spark

pytest.importorskip("pyspark.sql.datasource", reason="data sources in Python: from PySpark 4.0 on")
data_source_tasks = import_module("dagster_versioned.delta_tables.spark.data_source_tasks")

pytestmark = [pytest.mark.spark, needs_spark(4, 2, "data sources in Python with streams that are limited")]


def load(session, uri, **options):
    return session.read.format("versioned").options(**options).load(str(uri))


def rows_of(frame):
    return sorted(map(tuple, frame.collect()))


def appended(uri, *tables, **options):
    for table in tables:
        write_deltalake(str(uri), table, mode="append", **options)


def numbers(first, last):
    return pa.table({"id": range(first, last), "word": [f"w{i % 3}" for i in range(first, last)]})


def test_a_table_is_read_as_it_is_at_a_version(session, tmp_path):
    appended(tmp_path, numbers(0, 3), numbers(3, 5), partition_by=["word"])
    assert rows_of(load(session, tmp_path)) == [(i, f"w{i % 3}") for i in range(5)]
    assert rows_of(load(session, tmp_path, version=0)) == [(i, f"w{i % 3}") for i in range(3)]


@pytest.mark.slow
def test_a_frame_stays_at_the_version_it_was_loaded_at(session, tmp_path):
    appended(tmp_path, numbers(0, 3))
    frame = load(session, tmp_path)
    appended(tmp_path, numbers(3, 5))
    assert frame.count() == 3
    assert load(session, tmp_path).count() == 5


@pytest.mark.parametrize("columns", ["word, id", '["word", "id"]'])
def test_only_the_columns_asked_for_are_read(session, tmp_path, columns):
    appended(tmp_path, pa.table({"id": [1], "x,y": [2], "word": ["a"]}))
    assert load(session, tmp_path, columns=columns).columns == ["word", "id"]
    chosen = session.read.format("versioned").schema("word string, id long").load(str(tmp_path))
    assert rows_of(chosen) == [("a", 1)]


def test_rows_that_deletion_vectors_or_partitions_say_are_gone_do_not_come(session, tmp_path):
    appended(tmp_path, numbers(0, 9), partition_by=["word"])
    DeltaTable(str(tmp_path)).delete("id % 2 = 0")
    assert rows_of(load(session, tmp_path)) == [(i, f"w{i % 3}") for i in range(1, 9, 2)]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"versoin": "1"}, "no option 'versoin'"),
        ({"version": "-1"}, "no number of a commit"),
        ({"version": "1", "timestamp": "2020-01-01"}, "Pass one of them"),
        ({"version": "7"}, "VersionNotFound"),
        ({"columns": "nothing"}, "No column 'nothing'"),
    ],
)
def test_what_cannot_be_read_is_refused_in_words(session, tmp_path, options, sentence):
    appended(tmp_path, numbers(0, 3))
    with pytest.raises(Exception, match=sentence):
        load(session, tmp_path, **options).collect()


def test_a_schema_of_other_types_is_refused(session, tmp_path):
    appended(tmp_path, numbers(0, 3))
    with pytest.raises(Exception, match="is not that of the table's columns"):
        session.read.format("versioned").schema("id string").load(str(tmp_path)).collect()


def test_small_files_share_a_task(session, tmp_path, monkeypatch):
    appended(tmp_path, *[numbers(i, i + 1) for i in range(5)])
    assert load(session, tmp_path).rdd.getNumPartitions() == 1
    files = [data_source_tasks.ScanFile(str(i), size) for i, size in enumerate([10, 60 << 20, 1, 2, 65 << 20])]
    sizes = [[file["size"] for file in task.value] for task in data_source_tasks.partitions_of(files)]
    assert sizes == [[10], [60 << 20], [1, 2], [65 << 20]]


@pytest.mark.slow
def test_filters_reach_the_statistics_of_files(spark, tmp_path):
    appended(tmp_path, numbers(0, 10), numbers(10, 20), numbers(20, 30))
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        register(spark)
        frame = load(spark, tmp_path).where("id >= 20 and word is not null and word like 'w%'")
        assert rows_of(frame.select("id")) == [(i,) for i in range(20, 30)]
        for path in list(tmp_path.glob("*.parquet")):
            if pq.read_table(path)["id"][0].as_py() < 20:
                path.unlink()
        assert frame.count() == 10, "files of which the statistics say that they hold nothing are not opened"
        assert load(spark, tmp_path).where("id = 20 or id = 21").select("id").where("id in (20, 25)").count() == 1
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
        register(spark)


# --- streams ---------------------------------------------------------------------------------------------------------


class Query:
    """A stream of a table into memory, started anew for each look."""

    def __init__(self, session, uri, checkpoint, **options):
        self.session, self.uri, self.checkpoint, self.options = session, uri, checkpoint, options
        self.sink = f"sink_{checkpoint.name}"
        self.batches = []

    # Spark gives the Python of a stream ten seconds to start, whatever else the machine does; a stream is started anew.
    @retry(
        retry=retry_if_exception_message(match="(?s).*Python worker failed to connect back"),
        stop=stop_after_attempt(3),
        reraise=True,
    )
    def run(self):
        """Everything that there is to read now, in rows."""
        found = []

        def collect(frame, _batch):
            rows = rows_of(frame)
            self.batches.append(len(rows))
            found.extend(rows)

        stream = self.session.readStream.format("versioned").options(**self.options).load(str(self.uri))
        query = (
            stream.writeStream.foreachBatch(collect)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
        finally:
            query.stop()
        return sorted(found)


def ids(rows):
    return [row[0] for row in rows]


def test_a_stream_begins_with_all_rows_and_goes_on_with_each_commit(session, tmp_path):
    table = tmp_path / "table"
    appended(table, numbers(0, 3), numbers(3, 6))
    query = Query(session, table, tmp_path / "checkpoint")
    assert ids(query.run()) == [0, 1, 2, 3, 4, 5]
    assert query.run() == []
    appended(table, numbers(6, 8))
    DeltaTable(str(table)).optimize.compact()
    assert ids(query.run()) == [6, 7], "what only moves rows does not come"


@pytest.mark.slow
def test_a_stream_begins_at_a_version_and_takes_a_few_files_at_a_time(session, tmp_path):
    table = tmp_path / "table"
    appended(table, *[numbers(i, i + 1) for i in range(6)])
    query = Query(session, table, tmp_path / "checkpoint", startingVersion=2, maxFilesPerTrigger=2)
    assert ids(query.run()) == [2, 3, 4, 5]
    assert [size for size in query.batches if size] == [2, 2]
    small = Query(session, table, tmp_path / "other", startingVersion="1", maxBytesPerTrigger="1b")
    assert ids(small.run()) == [1, 2, 3, 4, 5]
    assert [size for size in small.batches if size] == [1] * 5
    latest = Query(session, table, tmp_path / "latest", startingVersion="latest")
    assert latest.run() == []


@pytest.mark.slow
def test_a_commit_that_changes_rows_ends_the_stream_unless_told_what_to_do(session, tmp_path):
    table = tmp_path / "table"
    appended(table, numbers(0, 3), numbers(3, 6))
    DeltaTable(str(table)).delete("id = 1")
    appended(table, numbers(6, 8))
    with pytest.raises(Exception, match=r"Version 2 .*DELETE.* changed rows.*ignoreChanges"):
        Query(session, table, tmp_path / "a", startingVersion=0).run()
    skipping = Query(session, table, tmp_path / "b", startingVersion=1, skipChangeCommits="true")
    assert ids(skipping.run()) == [3, 4, 5, 6, 7]
    changes = Query(session, table, tmp_path / "c", startingVersion=1, ignoreChanges="true")
    assert ids(changes.run()) == [0, 2, 3, 4, 5, 6, 7]


@pytest.mark.slow
def test_a_new_column_ends_the_stream_and_a_new_start_takes_it(session, tmp_path):
    table = tmp_path / "table"
    appended(table, numbers(0, 2))
    query = Query(session, table, tmp_path / "checkpoint")
    assert ids(query.run()) == [0, 1]
    wider = numbers(2, 3).append_column("x", pa.array([1.5]))
    write_deltalake(str(table), wider, mode="append", schema_mode="merge")
    assert query.run() == [(2, "w2", 1.5)]


@pytest.mark.slow
def test_a_commit_that_is_gone_is_an_error(session, tmp_path):
    table = tmp_path / "table"
    appended(table, numbers(0, 2))
    query = Query(session, table, tmp_path / "checkpoint")
    query.run()
    appended(table, numbers(2, 3), numbers(3, 4))
    DeltaTable(str(table)).create_checkpoint()
    (table / "_delta_log" / f"{1:020}.json").unlink()
    with pytest.raises(Exception, match="commit 1 is no longer in the log"):
        query.run()


@pytest.mark.slow
def test_reading_through_the_source_equals_reading_directly(session, tmp_path):
    nested = pa.table(
        {
            "s": pa.array(
                [{"x": 1, "y": [1, None]}, None], pa.struct([("x", pa.int32()), ("y", pa.list_(pa.int64()))])
            ),
            "m": pa.array([[("a", 1.5)], None], pa.map_(pa.string(), pa.float64())),
            "t": pa.array([0, None], pa.timestamp("us", tz="UTC")),
            "a.b": [b"x", None],
        }
    )
    appended(tmp_path, nested)
    assert load(session, tmp_path).toArrow().to_pylist() == read_delta(str(tmp_path)).to_pylist()


# --- times, changes, writing -----------------------------------------------------------------------------------------


def stamped(session, uri):
    """A table with a change feed and times of its own, and the time of each version."""
    properties = {"delta.enableChangeDataFeed": "true", "delta.enableInCommitTimestamps": "true"}
    write_delta(str(uri), numbers(0, 3), properties=properties)
    write_delta(str(uri), numbers(3, 5))
    delete_from(str(uri), "id = 1")
    return [version.timestamp.isoformat() for version in sorted(Table(str(uri)).history(), key=lambda one: one.version)]


@pytest.mark.slow
def test_a_table_is_read_as_it_was_at_a_time(session, tmp_path):
    times = stamped(session, tmp_path)
    assert load(session, tmp_path, timestamp=times[1]).count() == 5
    with pytest.raises(Exception, match="is no time"):
        load(session, tmp_path, timestamp="yesterday")
    stream = Query(session, tmp_path, tmp_path.parent / "c", startingTimestamp=times[1], ignoreChanges="true")
    assert ids(stream.run()) == [0, 2, 3, 4]


@pytest.mark.slow
def test_the_change_feed_is_a_batch_and_a_stream(session, tmp_path):
    table = tmp_path / "table"
    stamped(session, table)
    expected = [(i, f"w{i % 3}", "insert", int(i > 2)) for i in range(5)] + [(1, "w1", "delete", 2)]
    frame = load(session, table, readChangeFeed="true", startingVersion=0)
    assert sorted(row[:4] for row in rows_of(frame)) == sorted(expected)
    part = load(session, table, readChangeFeed="true", startingVersion=1, endingVersion=1)
    assert [row[0] for row in rows_of(part)] == [3, 4]
    query = Query(session, table, tmp_path / "checkpoint", readChangeFeed="true", startingVersion=1)
    assert sorted(row[:4] for row in query.run()) == sorted(row for row in expected if row[3] > 0)
    write_delta(str(table), numbers(9, 10))
    assert [row[:4] for row in query.run()] == [(9, "w0", "insert", 3)]


def test_frames_are_appended_and_overwritten(session, tmp_path):
    uri = str(tmp_path / "table")
    frame = session.range(6).selectExpr("id", "cast(id % 2 as string) as p", "array(struct(id as x)) as s")
    frame.write.format("versioned").mode("append").option("partitionBy", "P").save(uri)
    frame.selectExpr("id + 6 as ID", "p").write.format("versioned").mode("append").save(uri)
    assert DeltaTable(uri).metadata().partition_columns == ["p"]
    theirs = DeltaTable(uri).to_pyarrow_table().sort_by("id").to_pylist()
    assert [(row["id"], row["p"], row["s"]) for row in theirs] == [
        (i, str(i % 2), [{"x": i}] if i < 6 else None) for i in range(12)
    ]
    frame.where("id > 3").write.format("versioned").mode("overwrite").save(uri)
    assert ids(rows_of(load(session, uri))) == [4, 5]


@pytest.mark.slow
def test_a_frame_that_breaks_a_rule_or_asks_for_more_is_refused_in_words(session, tmp_path):
    uri = str(tmp_path)
    add = {"delta.constraints.small": "id < 3"}
    write_delta(uri, pa.table({"id": [0]}), properties=add)
    before = sorted(path.name for path in tmp_path.rglob("*.parquet"))
    writer = session.range(9).write.format("versioned").mode("append")
    with pytest.raises(Exception, match="rows break the constraint 'small': id < 3"):
        writer.save(uri)
    with pytest.raises(Exception, match=r"no option 'mergeschema'.*delta_tables.write.write_delta"):
        writer.option("mergeSchema", "true").save(uri)
    assert sorted(path.name for path in tmp_path.rglob("*.parquet")) == before
