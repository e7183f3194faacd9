"""The rows that benchmarks write and read: seven mixed columns, some nulls, about 75 bytes a row in memory."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def spark_session() -> Iterator:
    """A session on all cores, warm enough to run; zstd, as we write."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "OFF",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "4g",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.parquet.compression.codec": "zstd",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
    }
    builder = SparkSession.builder.master("local[*]")
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    try:
        yield session
    finally:
        session.stop()


def write_rows(session, rows: int, folder: Path) -> None:
    """Write the rows as plain Parquet, from which every contestant's frame is read."""
    from pyspark.sql import functions as sf

    mixed = sf.xxhash64("id")
    colours = sf.array(*map(sf.lit, ("red", "green", "blue", "yellow")))
    session.range(rows).select(
        "id",
        (mixed % 1000).cast("int").alias("key"),
        (mixed / 1e9).alias("amount"),
        sf.when(mixed % 10 != 0, sf.sin("id")).alias("maybe"),
        sf.concat(sf.lit("name-"), (mixed % 100_000).cast("string")).alias("name"),
        sf.element_at(colours, (sf.abs(mixed) % 4 + 1).cast("int")).alias("colour"),
        sf.timestamp_micros(sf.lit(1_600_000_000_000_000) + sf.col("id") * 1_000_000).alias("at"),
    ).write.parquet(str(folder))
