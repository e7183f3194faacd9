"""Parts, and deletion vectors, that executors fetch through our own `ObjectStore`: stores that Spark cannot reach, with
no JAR."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from dagster_versioned.engines.scan import Scan
from dagster_versioned.engines.spark.executors import plans_here
from dagster_versioned.engines.spark.numbered_tasks import in_tasks
from dagster_versioned.engines.spark.part_rows import rows_of_part, rows_of_vector
from dagster_versioned.engines.spark.releases import pushes_filters
from dagster_versioned.engines.spark.types import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read_through_executors(scan: Scan, session: "SparkSession") -> "DataFrame":
    """The scan's rows, fetched by the session's executors, one task a part; every part's SHA-256 is checked there."""
    schema = spark_schema(scan.selected)
    if pushes_filters(session) and plans_here(session):
        from dagster_versioned.engines.spark.source import FilteredPartsSource, loaded

        return loaded(session, FilteredPartsSource, scan, schema)
    return in_tasks(session, len(scan.files), partial(rows_of_part, scan), schema)


def deleted_through_executors(scan: Scan, marked: Sequence[int], session: "SparkSession") -> "DataFrame":
    """`deletions.deleted_frame`, read by the session's executors, one task a deletion vector."""
    read = partial(rows_of_vector, scan, tuple(marked))
    return in_tasks(session, len(marked), read, "_deleted_of int, _deleted_row long")
