"""A stream of a table with a large log into another table, by executors that are processes without our package.

Arguments: a folder of its own, the table, the one that is written, the checkpoint of the query.
"""

import sys
from pathlib import Path

from dagster_versioned.delta_tables.spark import register
from support.spark import running_spark
from support.spark_delta_job import NOT_ON_EXECUTORS


def main(folder: str, source: str, target: str, checkpoint: str) -> None:
    Path(folder, "dagster_versioned.py").write_text(NOT_ON_EXECUTORS)
    with running_spark("local-cluster[2,1,1024]", **{"spark.executorEnv.PYTHONPATH": folder}) as session:
        register(session)
        stream = session.readStream.format("versioned").options(maxFilesPerTrigger=40, skipChangeCommits="true")
        writer = stream.load(source).writeStream.format("versioned").trigger(availableNow=True)
        writer.option("checkpointLocation", checkpoint).start(target).awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
