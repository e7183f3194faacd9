"""Rows of parts, and of deletion vectors, that executors fetch through our own `ObjectStore`: stores that Spark cannot
reach, with no JAR."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from dagster_versioned.engines.arrow.scan import stream_table
from dagster_versioned.engines.part_ranges import positions
from dagster_versioned.engines.scan import Scan
from dagster_versioned.engines.spark.numbered_tasks import in_tasks
from dagster_versioned.engines.spark.releases import pushes_filters
from dagster_versioned.engines.spark.types import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DELETED_BATCH_ROWS = 1 << 20


def read_through_executors(scan: Scan, session: "SparkSession") -> "DataFrame":
    """The scan's rows, fetched by the session's executors, one task a part; every part's SHA-256 is checked there."""
    schema, read = spark_schema(scan.selected), partial(rows_of_part, scan)
    if pushes_filters(session):
        from dagster_versioned.engines.spark.source import FilteredPartsSource, loaded

        return loaded(session, FilteredPartsSource, (scan, read), schema)
    return in_tasks(session, len(scan.files), read, schema)


def deleted_through_executors(scan: Scan, marked: Sequence[int], session: "SparkSession") -> "DataFrame":
    """`deletions.deleted_frame`, read by the session's executors, one task a deletion vector."""
    read = partial(rows_of_vector, scan, tuple(marked))
    return in_tasks(session, len(marked), read, "_deleted_of int, _deleted_row long")


def rows_of_part(scan: Scan, number: int) -> Iterator[pa.RecordBatch]:
    """The rows of one part, in the canonical Arrow schema, which is the one Spark derives."""
    batches = stream_table(replace(scan, files=(scan.files[number],)))
    if not scan.selected.holds("variant"):
        yield from batches
        return
    from pyspark.sql.pandas.types import to_arrow_schema

    # Spark knows a variant by a mark in Arrow's schema.
    marked = to_arrow_schema(spark_schema(scan.selected))
    for batch in batches:
        yield batch.cast(marked)


def rows_of_vector(scan: Scan, marked: Sequence[int], number: int) -> Iterator[pa.RecordBatch]:
    """The positions in one deletion vector, and which file of the scan it is of."""
    index = marked[number]
    rows = positions(scan, index)
    schema = pa.schema([("_deleted_of", pa.int32()), ("_deleted_row", pa.int64())])
    for start in range(0, len(rows), DELETED_BATCH_ROWS):
        batch = pa.array(rows[start : start + DELETED_BATCH_ROWS])
        of = pa.array(np.full(len(batch), index, np.int32))
        yield pa.RecordBatch.from_arrays([of, batch], schema=schema)
