"""A write of which one task is so slow that Spark starts it a second time, as a program of its own.

Arguments: the folder of the store, an empty folder, and which of the two attempts ends first: "slow" or "twin". Spark
starts the second on another machine only, so this is a cluster of two workers with an address each.
"""

import sys
import time
from pathlib import Path

import pytest

from dagster_versioned.engines.parts import Part
from dagster_versioned.engines.spark import worker
from dagster_versioned.storage import LocalStore
from support.crashes import table_in
from support.readers import assert_same
from support.spark import running_spark
from support.spark_driver import MANY_FILES, frame, rows

TASKS = 4
HOSTS = ("127.0.0.1", "127.0.0.2")
SETTINGS = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.minTaskRuntime": "200ms",
    "spark.python.task.killTimeout": "60s",  # the slow attempt is told to end, and does not listen
}


def main(root: Path, marks: Path, first: str) -> None:
    """Both attempts at the last task have made their part; one stages it at once, the other when the write is over."""
    stage = worker.Task._stage  # pyright: ignore[reportPrivateUsage]

    def stage_late(task: worker.Task, part: Part, directory: Path, folder: str) -> Part:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        if context.partitionId() != TASKS - 1:
            return stage(task, part, directory, folder)
        attempt = "twin" if context.attemptNumber() else "slow"
        (marks / attempt).touch()
        awaited = marks / ("twin" if attempt == first else "written")
        deadline = time.monotonic() + 100
        while not awaited.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        try:
            return stage(task, part, directory, folder)
        finally:
            (marks / f"{attempt} ended").touch()

    table = table_in(LocalStore(root))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker.Task, "_stage", stage_late)
        assert table.write(frame(200, tasks=TASKS), options=MANY_FILES).change == "full"
    (marks / "written").touch()
    deadline = time.monotonic() + 60
    while not all((marks / f"{attempt} ended").exists() for attempt in ("slow", "twin")):
        assert time.monotonic() < deadline, sorted(marks.iterdir())
        time.sleep(0.05)
    assert not (root / "datom" / "flights" / "_staging").exists()
    assert len(table.history()) == 1
    assert_same(table.read(), rows(200))
    table.verify().require_ok()
    print("done")


def start_cluster(work: Path) -> str:
    """A master and two workers in the JVM of this process; returns the master's URL."""
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()
    gateway, jvm = SparkContext._gateway, SparkContext._jvm
    assert gateway is not None
    assert jvm is not None
    conf, deploy, option = SparkConf()._jconf, jvm.org.apache.spark.deploy, jvm.scala.Option
    master = deploy.master.Master.startRpcEnvAndEndpoint(HOSTS[0], 0, 0, conf)._1()
    masters = gateway.new_array(jvm.java.lang.String, 1)
    masters[0] = f"spark://{HOSTS[0]}:{master.address().port()}"
    for number, host in enumerate(HOSTS):
        deploy.worker.Worker.startRpcEnvAndEndpoint(
            host, 0, 0, 1, 1024, masters, str(work / host), option.apply(number), conf, option.empty()
        )
    return masters[0]


if __name__ == "__main__":
    store, marks = map(Path, sys.argv[1:3])
    with running_spark(start_cluster(marks.with_name("work")), **SETTINGS):
        main(store, marks, sys.argv[3])
