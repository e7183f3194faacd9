"""Operations with frames of Spark, in a driver that may die while the JVM lives.

Starting a JVM takes seconds, and a death is due at every call of the store. So one JVM serves them all: each driver is
a forked Python process that joins it by the variables PYSPARK_GATEWAY_PORT and PYSPARK_GATEWAY_SECRET, as the
interpreters of notebook servers do. What a death leaves in the store is the same.
"""

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from dagster_versioned.engines.parts import WriteOptions
from dagster_versioned.tables.options import TableOptions
from dagster_versioned.tables.table import VersionedTable
from support.crashes import Operation, nothing
from support.spark import FILES_ONLY

SMALL_PARTS = TableOptions(row_group_bytes=300, target_part_bytes=1)

MapBatches = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def gateway_of(session) -> dict[str, str]:
    """The environment in which a process joins the session's JVM."""
    parameters = session.sparkContext._gateway.gateway_parameters
    return {"PYSPARK_GATEWAY_PORT": str(parameters.port), "PYSPARK_GATEWAY_SECRET": parameters.auth_token}


def session():
    """The session of this process, else one on the JVM that the environment names."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    gateway = launch_gateway()
    jvm = gateway.jvm
    assert jvm is not None
    scala = jvm.org.apache.spark.SparkContext.getOrCreate()
    jsc = jvm.org.apache.spark.api.java.JavaSparkContext.fromSparkContext(scala)
    return SparkSession(SparkContext(gateway=gateway, jsc=jsc, conf=SparkConf(_jconf=jsc.getConf())))


def rows(nrow: int, start: int = 0) -> pa.Table:
    """What `frame` holds."""
    numbers = range(start, start + nrow)
    return pa.table({"n": pa.array(numbers, pa.int64()), "text": [f"row {n}" for n in numbers]})


def frame(nrow: int, start: int = 0, tasks: int = 2):
    return session().range(start, start + nrow, 1, tasks).selectExpr("id as n", "concat('row ', id) as text")


class FilesOnly(TableOptions):
    """Every task makes its own parts, as it would with a lot of data."""

    def write_options(self, partition: str | None) -> WriteOptions:
        return replace(super().write_options(partition), tuning=FILES_ONLY)


MANY_FILES = FilesOnly(**SMALL_PARTS.model_dump(exclude_unset=True))


def write_first(table: VersionedTable) -> None:
    table.write(frame(20))


def write_second(table: VersionedTable) -> None:
    table.write(frame(30, tasks=3))


def write_one_part(table: VersionedTable) -> None:
    table.write(frame(60), options=TableOptions(single_part=True))


def many_parts(table: VersionedTable) -> None:
    table.write(frame(90), options=MANY_FILES)


def more_parts(table: VersionedTable) -> None:
    table.write(frame(130), options=MANY_FILES)


def in_order(table: VersionedTable) -> None:
    table.write(frame(90), options=TableOptions(row_order="significant"))


def partitions(table: VersionedTable) -> None:
    table.write_partitions({"a": frame(3), "b": frame(3)})


def one_partition(table: VersionedTable) -> None:
    table.write(frame(90), partition="b", options=MANY_FILES)


OPERATIONS = {
    "create": Operation(nothing, write_first),
    "create with parts": Operation(nothing, many_parts),
    "replace": Operation(write_first, write_second),
    "none": Operation(write_first, write_first),
    "parts": Operation(many_parts, more_parts),
    "parts to one": Operation(many_parts, write_one_part),
    "order": Operation(write_first, in_order),
    "partition": Operation(partitions, one_partition),
}


def die_while_tasks_run(table: VersionedTable) -> None:
    """The driver is killed by one of its own tasks, which goes on to its end."""
    driver = os.getpid()

    def kill(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        os.kill(driver, signal.SIGKILL)
        yield from batches

    doomed = frame(90)
    table.write(doomed.mapInArrow(kill, doomed.schema), options=MANY_FILES)


def failing_once(marker: Path, *, by_dying: bool) -> MapBatches:
    """Passes rows on; the first attempt of each task raises an error half way, or its process is killed."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        flag = marker / str(context.partitionId())
        for batch in batches:
            yield batch.slice(0, batch.num_rows // 2)
            if not flag.exists():
                flag.touch()
                if by_dying:
                    os.kill(os.getpid(), signal.SIGKILL)
                raise OSError("the disk of this executor went away")
            yield batch.slice(batch.num_rows // 2)

    return run
