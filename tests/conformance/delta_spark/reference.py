"""The reference implementation, Delta Spark 4.0.0, as a Spark session; in a venv with `requirements.txt`, with Java 17.

The JAR inside `jsoniq` holds Delta Spark, but the registration of its data source was overwritten by another, so a
second JAR, of nothing but that registration, is put beside it.
"""

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

_SERVICE = "META-INF/services/org.apache.spark.sql.sources.DataSourceRegister"
_SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.readSideCharPadding": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
}


@contextmanager
def reference_session() -> Iterator[Any]:
    """A session on one core, so that one statement writes one file; stopped at the end."""
    import jsoniq
    from pyspark.sql import SparkSession

    (delta,) = (Path(jsoniq.__file__).parent / "jars").glob("rumbledb-*.jar")
    with TemporaryDirectory() as folder:
        registration = Path(folder) / "registration.jar"
        with zipfile.ZipFile(registration, "w") as jar:
            jar.writestr(_SERVICE, "org.apache.spark.sql.delta.sources.DeltaDataSource\n")
        builder = SparkSession.builder.master("local[1]").appName("reference")
        builder = builder.config("spark.jars", f"{delta},{registration}")
        builder = builder.config("spark.driver.extraClassPath", f"{delta}:{registration}")
        builder = builder.config("spark.sql.warehouse.dir", str(Path(folder) / "warehouse"))
        for key, value in _SETTINGS.items():
            builder = builder.config(key, value)
        spark = builder.getOrCreate()
        try:
            yield spark
        finally:
            spark.stop()
