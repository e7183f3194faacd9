"""Tasks that read by themselves: each calls a function of its number, which has batches of rows."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from dagster_versioned.engines.spark.by_value import self_contained
from dagster_versioned.engines.spark.executors import plans_here, require_python
from dagster_versioned.engines.spark.releases import has_data_sources

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql import types as spark_types

    from dagster_versioned.engines.spark.source import ReadTask


def in_tasks(
    session: "SparkSession", count: int, read: "ReadTask", schema: "spark_types.StructType | str"
) -> "DataFrame":
    """The batches of ``read(0)`` to ``read(count - 1)``, each in a task of the session's executors.

    By a data source in Python where there are any: unlike a function of batches, it leaves a write of such rows free
    to take batches without a limit in bytes (`batches.takes_all_batches`).
    """
    require_python(session)
    if has_data_sources() and plans_here(session):
        from dagster_versioned.engines.spark.source import NumberedTasks, loaded

        return loaded(session, NumberedTasks, (read, count), schema)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in cast("list[int]", batch.column(0).to_pylist()):
                yield from read(number)

    return session.range(0, count, 1, count).mapInArrow(self_contained(run), schema)
