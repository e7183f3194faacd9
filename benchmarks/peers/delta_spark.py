"""Delta Spark as a contestant of `delta_ops.py`: one JSON object a line in, the seconds that it took out.

Run by the Python of an environment with `tests/conformance/delta_spark/requirements.txt`, and Java 17.
"""

import json
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import jsoniq
from pyspark.sql import SparkSession

_SERVICE = "META-INF/services/org.apache.spark.sql.sources.DataSourceRegister"
_SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "6g",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "8",
}


def session(folder: Path) -> SparkSession:
    (delta,) = (Path(jsoniq.__file__).parent / "jars").glob("rumbledb-*.jar")
    # The registration of Delta's data source was overwritten in that JAR.
    registration = folder / "registration.jar"
    with zipfile.ZipFile(registration, "w") as jar:
        jar.writestr(_SERVICE, "org.apache.spark.sql.delta.sources.DeltaDataSource\n")
    builder = SparkSession.builder.master("local[*]").appName("benchmark")
    builder = builder.config("spark.jars", f"{delta},{registration}")
    builder = builder.config("spark.driver.extraClassPath", f"{delta}:{registration}")
    for key, value in _SETTINGS.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def run(spark: SparkSession, asked: dict[str, str]) -> None:
    table = f"delta.`{asked['uri']}`"
    match asked["operation"]:
        case "merge":
            spark.read.parquet(asked["source"]).createOrReplaceTempView("source")
            spark.sql(
                f"MERGE INTO {table} AS target USING source ON {asked['on']}"
                " WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
            ).collect()
        case "delete":
            spark.sql(f"DELETE FROM {table} WHERE {asked['where']}").collect()
        case "overwrite":
            rows = spark.read.parquet(asked["rows"])
            rows.write.format("delta").mode("overwrite").save(asked["uri"])
        case "read":
            spark.sql(f"SELECT * FROM {table} WHERE {asked['filter']}").toPandas()
        case other:
            raise ValueError(other)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        spark = session(Path(folder))
        print("ready", flush=True)
        for line in sys.stdin:
            start = time.perf_counter()
            run(spark, json.loads(line))
            print(json.dumps(time.perf_counter() - start), flush=True)
        spark.stop()


if __name__ == "__main__":
    main()
