"""How Spark is configured in the examples."""

import os
from contextlib import suppress

from dagster_versioned import VersionedError

SPARK_CONFIG = {
    "spark.master": os.environ.get("SPARK_MASTER", "local[*]"),
    "spark.app.name": "example",
    "spark.driver.memory": "2g",
    # Such small data is through before the JVM's optimizing compiler pays: half the time. Leave it out for more.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.log.level": "ERROR",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def start_spark() -> None:
    """Start the session that every example asks for later, and finds; where it cannot start, whoever asks says why."""
    from pyspark.sql import SparkSession

    from dagster_versioned.engines.spark.session import default_session, session_from

    with suppress(VersionedError), session_from(SparkSession.builder.config(map=SPARK_CONFIG).getOrCreate):
        default_session()
