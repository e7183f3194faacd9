"""Spark's executors: which Python runs their tasks, and whether it has what this package's code needs there."""

import os
import shutil
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

import pyarrow as pa

from dagster_versioned.engines.spark.by_value import self_contained
from dagster_versioned.engines.spark.catalyst import running_tasks, spark_errors
from dagster_versioned.engines.spark.task_errors import OLDEST_ARROW, lacking, own_error, too_old
from dagster_versioned.process_state import PROCESS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LATE_SECONDS = 30
"""How long at most a failure waits for tasks that run still, as on a machine that is no longer there."""


class ExecutorPython:
    """The Python that was found to have everything, of a Spark context or a Connect session."""

    path: str | None = None


def runs_here(session: "SparkSession") -> bool:
    """Whether tasks run on the machine of the driver (local mode), so that files can be passed by path.

    The server of a Connect session may be in local mode as well, on a machine of its own.
    """
    master = session.conf.get("spark.master", "") or ""
    in_local_mode = master == "local" or master.startswith("local[")
    return in_local_mode and (is_classic_session(session) or "SPARK_LOCAL_REMOTE" in os.environ)


def is_classic_session(session: "SparkSession") -> bool:
    """Whether the session is of classic PySpark, beside a JVM."""
    return ".connect." not in f"{type(session).__module__}."


def choose_python(session: "SparkSession") -> "SparkSession":
    """The session, with the Python for its tasks that its settings name; on this machine else this one.

    Spark's own order is: spark.pyspark.python, PYSPARK_PYTHON, ``python3``. PySpark reads the setting only where
    spark-submit started the driver, and nothing here but the variable. The server of a Connect session chooses by
    itself.
    """
    if is_classic_session(session):
        named = session.conf.get("spark.pyspark.python", None)
        if named is None and "PYSPARK_PYTHON" not in os.environ:
            named = session.conf.get("spark.executorEnv.PYSPARK_PYTHON", None)
            if named is None and runs_here(session):
                named = sys.executable
        if named is not None:
            session.sparkContext.pythonExec = named
    return session


def plans_here(session: "SparkSession") -> bool:
    """Whether Spark can plan a data source in Python, which it does by the executors' Python beside the driver."""
    return not is_classic_session(session) or shutil.which(session.sparkContext.pythonExec) is not None


@contextmanager
def run_by_executors(session: "SparkSession") -> Generator[None]:
    """Within it, what functions raise in tasks is raised here, once no other task can write a file any more.

    Raises `MissingExtra`, in one sentence, where the executors cannot run our code.
    """
    require_python(session)
    try:
        with _no_task_after(session):
            yield
    except spark_errors() as error:
        raise own_error(error) or error from error


@contextmanager
def _no_task_after(session: "SparkSession") -> Generator[None]:
    """Within it, what fails ends only when all tasks of its jobs have ended.

    Spark reports a job as failed with its first task, and stops the others in the two seconds that follow; meanwhile
    they go on, and a file that one of them writes after a clean-up stays. What the server of a Connect session runs
    cannot be seen.
    """
    if not is_classic_session(session):
        yield
        return
    tag = f"dagster-versioned-{uuid4()}"
    session.sparkContext.addJobTag(tag)
    try:
        yield
    except BaseException:
        until = time.monotonic() + _LATE_SECONDS
        with suppress(Exception):  # of a JVM that has ended, and all tasks with it
            while running_tasks(session, tag) and time.monotonic() < until:
                time.sleep(0.05)
        raise
    finally:
        with suppress(Exception):
            session.sparkContext.removeJobTag(tag)


def require_python(session: "SparkSession") -> None:
    """Raise `MissingExtra` unless an executor can run this package's code; each Python is asked once, in a small job.

    So that whoever waits for a long job does not learn in its last stage that pyarrow is missing.
    """
    python = ""
    executors: Any = session
    if is_classic_session(session):
        executors = choose_python(session).sparkContext
        python = cast("str", executors.pythonExec)
    known = PROCESS.of(ExecutorPython, executors)
    if known.path == python or (python == sys.executable and runs_here(session)):
        return
    try:
        one = session.range(0, 1, 1, 1)
        found = one.mapInArrow(self_contained(_versions), "host string, pyarrow string").collect()[0]
    except spark_errors() as error:
        raise lacking(str(error), _where(python), surely=_runs_jobs(session)) or error from error
    if int(found["pyarrow"].partition(".")[0]) < OLDEST_ARROW:
        raise too_old(found["host"], found["pyarrow"], _where(python))
    known.path = python


def _runs_jobs(session: "SparkSession") -> bool:
    """Whether Spark runs a job that needs no Python: not where it was stopped, cannot be reached, or cancels all."""
    try:
        session.range(1).collect()
    except Exception:  # noqa: BLE001 - PySpark says of a stopped session what Python says of None
        return False
    return True


def _where(python: str) -> str:
    """Which Python it is that lacks something, as a sentence."""
    if not python:
        return "The server of Spark Connect takes the variable from its own environment."
    unset = "PYSPARK_PYTHON" not in os.environ and python == "python3"
    return f"Now it is {python}{', since neither is set' if unset else ''}."


def _versions(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import numpy  # noqa: F401, ICN001 - is it there?  # pyright: ignore[reportUnusedImport]

    for _ in batches:
        yield pa.RecordBatch.from_pydict({"host": [os.uname().nodename], "pyarrow": [pa.__version__]})
