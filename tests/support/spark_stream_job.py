"""A stream of Parquet files into a Delta table, one file a batch, in a process that may be killed.

Arguments: the folder of the files, the table, the checkpoint, and how the batches are written: ``sink`` or ``batches``.
"""

import sys

from pyspark.sql import SparkSession

from dagster_versioned.delta_tables.spark import register
from dagster_versioned.delta_tables.write import write_delta
from support.spark import SETTINGS


def main(source: str, table: str, checkpoint: str, how: str) -> None:
    builder = SparkSession.builder.master("local[2]")
    for key, value in SETTINGS.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    register(session)
    stream = session.readStream.schema("id long").option("maxFilesPerTrigger", 1).parquet(source)
    writer = stream.writeStream.trigger(availableNow=True).option("checkpointLocation", checkpoint)
    if how == "sink":
        query = writer.format("versioned").start(table)
    else:

        def write(frame, batch):
            write_delta(table, frame, app_id="a stream", version=batch)

        query = writer.foreachBatch(write).start()
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
