"""One Spark session for a whole test process: starting one takes seconds."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from dagster_versioned.engines.parts import WriteTuning

FILES_ONLY = WriteTuning(canonical_bytes=-1, sent_home_bytes=1, left_plain_bytes=0)
"""Every task makes its own parts, as it would with a lot of data."""

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.python.authenticate.socketTimeout": "120s",  # how long Python waits for the JVM: 15 s by default
    "spark.driver.memory": "1g",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "OFF",
    # A query over a handful of rows is planned and compiled for longer than it runs. Clusters (test-slow) do as users'.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.adaptive.enabled": "false",
}


def needs_spark(major: int, minor: int, why: str) -> pytest.MarkDecorator:
    """Skips a test on releases of PySpark before this one, which lack ``why``."""
    import pyspark

    found = tuple(int(number) for number in pyspark.__version__.split(".")[:2])
    return pytest.mark.skipif(found < (major, minor), reason=f"{why}: from PySpark {major}.{minor} on")


def speak_arrow() -> None:
    """Give the frames and sessions of PySpark 3.5 what tests make and look at rows with, in terms of our own code.

    The package itself gets what PySpark 3.5 gives: an error.
    """
    from pyspark.sql import DataFrame, SparkSession

    from dagster_versioned.engines.spark.releases import from_arrow, release, to_arrow

    if release() >= (4, 0) or hasattr(DataFrame, "toArrow"):
        return
    create = SparkSession.createDataFrame

    def is_for_tests() -> bool:
        return not sys._getframe(2).f_globals["__name__"].startswith("dagster_versioned.")

    def create_frame(session, data, schema=None, **others):
        if isinstance(data, pa.Table) and is_for_tests():
            return from_arrow(session, data, schema)
        return create(session, data, schema, **others)

    def to_table(frame):
        assert is_for_tests(), "DataFrame.toArrow is not there in PySpark 3.5"
        return to_arrow(frame)

    DataFrame.toArrow = to_table
    SparkSession.createDataFrame = create_frame


@contextmanager
def running_spark(master: str = "local[2,3]", **settings: str) -> Iterator:
    """A classic session, stopped at the end; the default master runs a failed task up to three times."""
    from pyspark.sql import SparkSession

    speak_arrow()
    builder = SparkSession.builder.master(master).appName("tests")
    for key, value in {**SETTINGS, **settings}.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    try:
        yield session
    finally:
        session.stop()


@pytest.fixture(scope="session")
def spark():
    """The session that all tests of a process share; tests leave its configuration as they found it."""
    with running_spark() as session:
        yield session


def staging_in(folder: Path, write_id: str = "w"):
    """The staging of one write into a table at ``folder``."""
    from dagster_versioned.engines.staging import Staging
    from dagster_versioned.storage import LocalStore

    return Staging(LocalStore(folder), write_id)


def promoted(written, staging):
    """Promote the parts as a commit would, discard the staging, and return the scan of the version."""
    from dagster_versioned.engines.scan import Scan, ScanFile

    named = [(part, f"{part.sha256}.parquet") for part in written.parts]
    staging.promote_all(named)
    staging.discard()
    files = tuple(ScanFile(key, part.size, part.sha256, part.num_records) for part, key in named)
    return Scan(staging.store, written.contents.schema, files)


def round_trip(session, frame, folder: Path, options=None):
    """Write ``frame`` to a table at ``folder``, and read it back: the frame read, and what was written."""
    from dagster_versioned.engines.parts import WriteOptions
    from dagster_versioned.engines.spark import SparkEngine

    staging = staging_in(folder)
    written = SparkEngine().write(frame, staging, options or WriteOptions())
    return SparkEngine(session).read(promoted(written, staging)), written


def spark_frame(session, rows):
    """Arrow rows as a Spark frame whose timestamps without a zone stay without one."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return session.createDataFrame(rows, from_arrow_schema(rows.schema, prefer_timestamp_ntz=True))
