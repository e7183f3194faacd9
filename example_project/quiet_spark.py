"""One session of Spark for a whole example, whose greetings go into a file."""

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK_LOG = Path(".example/spark.log")


@contextmanager
def quiet_spark(console: Console) -> Iterator["SparkSession"]:
    """One session for all runs: starting one takes seconds."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas", category=FutureWarning)
    with console.status("Starting Spark"), _stderr_to(SPARK_LOG):
        spark = (
            SparkSession.builder.appName("example")
            .master(os.environ.get("SPARK_MASTER", "local[*]"))
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.log.level", "ERROR")
            .config("spark.driver.memory", "2g")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.sql.execution.arrow.pyspark.enabled", "true")
            .getOrCreate()
        )
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """Let what is started meanwhile complain into a file: a JVM greets with ten lines that nobody needs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    terminal = os.dup(2)
    with path.open("wb") as log:
        os.dup2(log.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(terminal, 2)
            os.close(terminal)
