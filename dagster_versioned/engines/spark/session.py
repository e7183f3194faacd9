"""The Spark session to work in: the caller's, or an embedded one with defaults that suit a single machine."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import getproxies

from dagster_versioned.engines.spark.catalyst import spark_errors
from dagster_versioned.engines.spark.executors import choose_python
from dagster_versioned.engines.spark.greeting import without_greeting
from dagster_versioned.engines.spark.releases import release
from dagster_versioned.errors import IntegrityError, VersionedError
from dagster_versioned.extras import requiring
from dagster_versioned.process_state import PROCESS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EMBEDDED_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.shuffle.partitions": str(max(2, os.cpu_count() or 2)),
    "spark.driver.memory": "2g",
}


_CONNECT_PORT = 15002
"""Of a URL of Spark Connect that names none."""

_MAY_COALESCE = "spark.sql.optimizer.canChangeCachedPlanOutputPartitioning"

_NO_JAVA = (
    "Spark needs Java 17 or newer, and no Java was found in JAVA_HOME or, if it is not set, on the PATH. Nothing was "
    "read or written. Install one (such as 'apt-get install openjdk-17-jre-headless' or 'brew install openjdk@17'), or "
    "use frames of pyarrow, pandas or Polars, which need no Java."
)


class GivenSession:
    """The session that `session_from` gives, of this thread or task."""

    def __init__(self) -> None:
        self.session: ContextVar[Callable[[], SparkSession] | None] = ContextVar("session", default=None)


@contextmanager
def session_from(session: "Callable[[], SparkSession]") -> Generator[None]:
    """Within it, the `default_session` is what ``session`` returns, which is called where one is needed only."""
    given = PROCESS.of(GivenSession).session
    before = given.set(session)
    try:
        yield
    finally:
        given.reset(before)


def default_session() -> "SparkSession":
    """The session that was given (`session_from`), else the active one, classic or Connect, else a new embedded one.

    That is on all cores. Raises `VersionedError` where there is neither a session nor a Java that starts one, or where
    no server is at SPARK_REMOTE, and `MissingExtra` without PySpark, or with one that is too old or too new.
    """
    is_remote = "SPARK_REMOTE" in os.environ
    needs = ("connect", "A session of Spark Connect") if is_remote else ("spark", "A session of Spark")
    with requiring(*needs):
        from pyspark.sql import SparkSession

    release()
    given = PROCESS.of(GivenSession).session.get()
    session = SparkSession.getActiveSession()
    if given is not None:
        if session is not None:
            return choose_python(given())
        with _starting():
            return choose_python(given())
    if session is not None:
        return choose_python(session)
    if is_remote:
        with requiring(*needs):
            import_module("pyspark.sql.connect.session")
        _require_server(os.environ["SPARK_REMOTE"])
    elif find_java() is None:
        raise VersionedError(_NO_JAVA)
    builder = SparkSession.builder.appName("dagster-versioned")
    if not is_remote:
        builder = builder.master(os.environ.get("SPARK_MASTER", "local[*]"))
    elif os.environ["SPARK_REMOTE"].startswith("local"):
        # A server that is started here runs tasks by the Python that its environment names.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    for key, value in EMBEDDED_DEFAULTS.items():
        builder = builder.config(key, value)
    with _starting(), requiring(*needs):
        return choose_python(builder.getOrCreate())


def frame_type() -> "type[DataFrame]":
    """What a table is read as, to be a frame of Spark."""
    with requiring("spark", "A frame of Spark"):
        from pyspark.sql import DataFrame
    return DataFrame


@contextmanager
def kept(frame: "DataFrame") -> "Generator[DataFrame]":
    """Within it, the session keeps the frame in memory or on disk once it was computed; one that is kept stays so.

    It is kept in as many pieces as its size calls for, not in as many as shuffles have: each costs each pass of Python
    over it a seventh of a second. Spark looks at the setting when a frame is to be kept, so it need not stay set.
    """
    if frame.storageLevel.useDisk or frame.storageLevel.useMemory:
        yield frame
        return
    settings = frame.sparkSession.conf
    before = settings.get(_MAY_COALESCE)
    settings.set(_MAY_COALESCE, "true")
    try:
        persisted = frame.persist()
    finally:
        settings.set(_MAY_COALESCE, str(before))
    try:
        yield persisted
    finally:
        persisted.unpersist()


@contextmanager
def running(what: str) -> Generator[None]:
    """Raise `IntegrityError` where Spark fails within the block, as of ``what``."""
    try:
        yield
    except spark_errors() as error:
        message = " ".join(str(error).partition("JVM stacktrace")[0].split())
        raise IntegrityError(
            f"Spark failed in {what}: {message:.600} Nothing was changed. Run it again; where it fails in the same "
            "way, the recorded query cannot be run over what its inputs have."
        ) from error


@contextmanager
def _starting() -> Generator[None]:
    """Within it a JVM may be started, which greets nobody; one that ends at once is named, with its version."""
    try:
        with without_greeting():
            yield
    except Exception as error:
        if "Java gateway process exited" not in str(error):
            raise
        java = find_java()
        if java is None:
            raise VersionedError(_NO_JAVA) from error
        asked = subprocess.run([java, "-version"], check=False, capture_output=True, text=True, timeout=60)
        version = (asked.stderr.splitlines() or ["of an unknown version"])[0]
        pyspark, needed = ".".join(map(str, release())), 17 if release() >= (4, 0) else 8
        raise VersionedError(
            f"Spark did not start: {java} is {version}, and PySpark {pyspark} needs Java {needed} or "
            "newer. Nothing was read or written. What Java wrote on stderr has the reason; another Java is named by "
            "JAVA_HOME."
        ) from error


def _require_server(remote: str) -> None:
    """Raise `VersionedError` where no server is at the URL of a Connect session, to which PySpark goes on for minutes.

    Behind a proxy nobody but the proxy can see that.
    """
    try:
        url = urlsplit(remote)
        port = url.port or _CONNECT_PORT
    except ValueError:  # whose text may hold a token
        raise VersionedError(
            f"SPARK_REMOTE is no URL of Spark Connect, such as sc://server:{_CONNECT_PORT}. Nothing was read."
        ) from None
    if url.scheme != "sc" or url.hostname is None or getproxies():
        return
    try:
        socket.create_connection((url.hostname, port), timeout=10).close()
    except OSError as error:
        raise VersionedError(
            f"No Spark Connect server is at {url.hostname}:{port}, which SPARK_REMOTE names: {error}. Nothing was read "
            "or written. Start it (`start-connect-server.sh`), or correct SPARK_REMOTE."
        ) from error


def find_java() -> str | None:
    """The Java that PySpark starts; ``None`` where there is none."""
    home = os.environ.get("JAVA_HOME")
    return shutil.which(Path(home, "bin", "java") if home else "java")
