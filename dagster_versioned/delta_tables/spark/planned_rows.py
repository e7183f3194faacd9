"""Rows of a table whose log the cluster replayed: the files of the plan are spread over tasks, which read them."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from dagster_versioned.delta.log.checksum import Checksum
from dagster_versioned.delta.log.snapshot import Snapshot
from dagster_versioned.delta_tables.read import delta_scan
from dagster_versioned.delta_tables.spark.log_plan import LogPlan, files_of
from dagster_versioned.engines.arrow.scan import stream_table
from dagster_versioned.engines.scan import Scan
from dagster_versioned.engines.spark.by_value import self_contained
from dagster_versioned.engines.spark.read import check_files
from dagster_versioned.engines.spark.types import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TASK_BYTES = 64 * 1024 * 1024
"""Small files share a task up to this size."""
OPEN_BYTES = 4 * 1024 * 1024
"""What opening a file costs, as bytes of it (Spark's ``spark.sql.files.openCostInBytes``)."""

_MOST_TASKS = 50_000
"""More tasks than these are more than a driver keeps account of."""


def planned_rows(plan: LogPlan, figures: Checksum, scan: Scan, *, row_ids: bool = False) -> "DataFrame":
    """The rows of the plan's files, as ``scan``, which has none, has them; ``figures`` are those of the plan.

    A task checks its files before it reads the first of them, and reads them with the code of `arrow_scan`.
    """
    from pyspark.sql import functions as sf

    cost = figures.table_size_bytes + figures.num_files * OPEN_BYTES
    tasks = min(-(-cost // TASK_BYTES), figures.num_files, _MOST_TASKS)
    # By random, since files are no larger where their paths are alike; without what only the planning needs.
    files = plan.files.withColumn("stats", sf.lit(None).cast("string")).repartition(max(tasks, 1))
    read = partial(_rows, scan, plan.head, row_ids)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from read(files_of(batch))

    return files.mapInArrow(self_contained(run), spark_schema(scan.selected))


def _rows(scan: Scan, head: Snapshot, row_ids: bool, files: pa.Table) -> Iterator[pa.RecordBatch]:
    found = delta_scan(scan.store, replace(head, files=files), scan.columns, row_ids=row_ids)
    check_files(found)
    yield from stream_table(found)
