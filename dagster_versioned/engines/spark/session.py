"""The Spark session to work in: the caller's, or an embedded one with defaults that suit a single machine."""

import os
import shutil
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_versioned.errors import IntegrityError, VersionedError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EMBEDDED_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.shuffle.partitions": str(max(2, os.cpu_count() or 2)),
    "spark.driver.memory": "2g",
}


def default_session() -> "SparkSession":
    """The active session, classic or Connect; where there is none, a new embedded one on all cores.

    Raises `VersionedError` in one sentence where there is neither a session nor a Java to start one with.
    """
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    if session is not None:
        return session
    if not _java_found() and "SPARK_REMOTE" not in os.environ:
        raise VersionedError(
            "Spark needs Java 17 or newer and none was found: install one (for example 'apt-get install "
            "openjdk-17-jre-headless' or 'brew install openjdk@17') or set JAVA_HOME."
        )
    # Python workers are started by name; without this they are whatever 'python3' is on the path.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("dagster-versioned")
    if "SPARK_REMOTE" not in os.environ:
        builder = builder.master(os.environ.get("SPARK_MASTER", "local[*]"))
    for key, value in EMBEDDED_DEFAULTS.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def frame_type() -> "type[DataFrame]":
    """What a table is read as, to be a frame of Spark."""
    from pyspark.sql import DataFrame

    return DataFrame


@contextmanager
def running(what: str) -> Generator[None]:
    """Raise `IntegrityError` where Spark fails within the block, as of ``what``."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        said = " ".join(str(error).partition("JVM stacktrace")[0].split())
        raise IntegrityError(f"Spark failed in {what}: {said:.600}") from error


def runs_here(session: "SparkSession") -> bool:
    """Whether tasks run on the machine of the driver (local mode), so that files can be passed by path."""
    master = session.conf.get("spark.master", "") or ""
    return master == "local" or master.startswith("local[")


def _java_found() -> bool:
    home = os.environ.get("JAVA_HOME")
    return (home is not None and Path(home, "bin", "java").exists()) or shutil.which("java") is not None
