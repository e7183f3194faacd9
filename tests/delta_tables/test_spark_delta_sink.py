"""Streams into Delta tables, and frames that are written again: no row is lost, and none comes twice."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_versioned.delta import Table
from dagster_versioned.delta_tables.read import read_delta
from dagster_versioned.delta_tables.write import write_delta
from dagster_versioned.errors import InvalidInput, TableNotFound
from support import spark_stream_job
from support.spark import needs_spark

pytest.importorskip("pyspark", minversion="4.1", reason="streams that are written by Arrow: from PySpark 4.1 on")
from pyspark.sql.types import LongType, StructField, StructType

from dagster_versioned.delta_tables.spark.data_source_stream_write import stream_writer

pytestmark = [pytest.mark.spark, needs_spark(4, 1, "data sources in Python that streams are written to by Arrow")]


@pytest.fixture
def places(tmp_path):
    """The source, the table and the checkpoint of a stream."""
    (tmp_path / "source").mkdir()
    return [str(tmp_path / name) for name in ("source", "table", "checkpoint")]


def offered(source, first, last):
    for number in range(first, last):
        pq.write_table(pa.table({"id": range(number * 10, number * 10 + 10)}), f"{source}/{number:03d}.parquet")


def run(session, source, table, checkpoint, mode="append", **options):
    stream = session.readStream.schema("id long").option("maxFilesPerTrigger", 1).parquet(source)
    if mode == "complete":
        stream = stream.groupBy((stream.id % 2).alias("odd")).count()
    writer = stream.writeStream.format("versioned").trigger(availableNow=True).outputMode(mode)
    query = writer.options(checkpointLocation=checkpoint, **options).start(table)
    query.awaitTermination()
    return query.id


def ids(table):
    return sorted(read_delta(table)["id"].to_pylist())


def files(table):
    return sorted(path.name for path in Path(table).rglob("*.parquet"))


def forget_last_batch(checkpoint):
    """What Spark's checkpoint is like when its driver dies after the commit to the table."""
    last = max(Path(checkpoint, "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)


@pytest.mark.slow
def test_a_batch_that_is_repeated_after_a_restart_comes_once(session, places):
    source, table, checkpoint = places
    offered(source, 0, 2)
    query = run(session, *places)
    assert Table(table).app_version(query) == 1
    before = files(table)
    forget_last_batch(checkpoint)
    run(session, *places)
    assert (Table(table).version, files(table)) == (1, before)
    offered(source, 2, 3)
    assert run(session, *places) == query
    assert ids(table) == list(range(30))
    assert Table(table).app_version(query) == 2


@pytest.mark.slow
def test_an_application_has_the_name_that_it_is_given(session, places):
    source, table, _ = places
    offered(source, 0, 1)
    run(session, *places, txnAppId="loader")
    assert Table(table).app_version("loader") == 0
    offered(source, 1, 2)
    with pytest.raises(Exception, match="a stream numbers its batches"):
        run(session, *places, txnVersion="1")
    with pytest.raises(Exception, match="no option 'mergeschema'"):
        run(session, *places, mergeSchema="true")


@pytest.mark.slow
def test_a_result_is_replaced_by_each_batch(session, places):
    source, table, checkpoint = places
    offered(source, 0, 2)
    run(session, *places, mode="complete")
    assert sorted(read_delta(table).to_pylist(), key=str) == [{"odd": 0, "count": 10}, {"odd": 1, "count": 10}]
    version = Table(table).version
    forget_last_batch(checkpoint)
    run(session, *places, mode="complete")
    assert Table(table).version == version


@pytest.mark.slow
class TestABatchWithoutTasks:
    """Spark starts at least one for what it writes, of no rows too; its interface does not promise it."""

    @staticmethod
    def writer(table, *, overwrite=True, **options):
        schema = StructType([StructField("id", LongType())])
        return stream_writer({"path": table, **options}, schema, overwrite=overwrite)

    def test_replaces_every_row_by_none_once(self, places):
        table = places[1]
        write_delta(table, pa.table({"id": [1, 2]}))
        for _ in range(2):
            self.writer(table, txnAppId="a stream").commit([], 7)
            assert (ids(table), Table(table).version, Table(table).app_version("a stream")) == ([], 1, 7)

    def test_of_a_query_that_nobody_named_is_refused(self, places):
        table = places[1]
        write_delta(table, pa.table({"id": [1, 2]}))
        with pytest.raises(InvalidInput, match=r"which query.*Nothing was committed.*txnAppId"):
            self.writer(table).commit([None], 7)
        assert ids(table) == [1, 2]

    def test_appends_nothing(self, places):
        table = places[1]
        write_delta(table, pa.table({"id": [1, 2]}))
        self.writer(table, overwrite=False).commit([], 7)
        assert (ids(table), Table(table).version) == ([1, 2], 0)


@pytest.mark.slow
def test_a_batch_that_breaks_a_rule_leaves_no_file(session, places):
    source, table, _ = places
    write_delta(table, pa.table({"id": [0]}), properties={"delta.constraints.small": "id < 5"})
    before = files(table)
    offered(source, 0, 1)
    with pytest.raises(Exception, match="rows break the constraint 'small'"):
        run(session, *places)
    assert (Table(table).version, files(table)) == (0, before)


@pytest.mark.slow
def test_frames_have_the_identifiers_of_the_reference(session, places):
    table = places[1]
    frame = session.range(3)
    writer = frame.write.format("versioned").mode("append").option("txnAppId", "loader").option("txnVersion", 4)
    writer.save(table)
    before = files(table)
    writer.save(table)
    writer.option("txnVersion", 3).save(table)
    assert (ids(table), files(table), Table(table).app_version("loader")) == ([0, 1, 2], before, 4)
    writer.option("txnVersion", 5).save(table)
    assert ids(table) == [0, 0, 1, 1, 2, 2]
    with pytest.raises(Exception, match="no number of 0 or more"):
        writer.option("txnVersion", "five").save(table)
    with pytest.raises(Exception, match="go together"):
        frame.write.format("versioned").mode("append").option("txnAppId", "loader").save(table)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("how", ["sink", "batches"])
def test_a_stream_whose_driver_is_killed_loses_nothing_and_doubles_nothing(places, how):
    source, table, checkpoint = places
    offered(source, 0, 12)
    chance = random.Random(how)
    killed = 0
    for wanted in (1, 6):
        process = started(places, how)
        while process.poll() is None and version_of(table) < wanted:
            time.sleep(0.02)
        time.sleep(chance.random())
        killed += process.poll() is None
        os.killpg(process.pid, signal.SIGKILL)  # with its JVM and its workers
        process.wait()
    assert killed
    assert started(places, how).wait() == 0
    assert ids(table) == list(range(120))
    assert version_of(table) == 11
    forget_last_batch(checkpoint)
    assert started(places, how).wait() == 0
    assert (ids(table), version_of(table)) == (list(range(120)), 11)


def started(places, how):
    program = [sys.executable, spark_stream_job.__file__, *places, how]
    path = os.pathsep.join([str(Path(spark_stream_job.__file__).parents[1]), *sys.path])
    return subprocess.Popen(program, start_new_session=True, env={**os.environ, "PYTHONPATH": path})


def version_of(table):
    try:
        return Table(table).version
    except TableNotFound:
        return -1
