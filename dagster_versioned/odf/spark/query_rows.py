"""A query over rows in memory, by Spark: the same rules as for SQL transforms."""

from collections.abc import Mapping
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import functions as sf

from dagster_versioned.engines.spark.releases import from_arrow, to_arrow
from dagster_versioned.engines.spark.session import default_session
from dagster_versioned.odf.spark.query import analyse, in_one_task, query_session
from dagster_versioned.odf.transform_query import TransformQuery


def query_rows(inputs: Mapping[str, pa.Table], query: TransformQuery, limit: int | None = None) -> pa.Table:
    """What a query makes of rows, by what it calls them; at most ``limit`` rows of it.

    Raises `InvalidInput` for a query that is refused (`analyse`).
    """
    own = cast("Any", query_session(default_session()))
    in_one_task(own)
    frames = {name: from_arrow(own, rows).coalesce(1) for name, rows in inputs.items()}
    for name, frame in frames.items():
        # Analysed over the columns alone: a plan that holds rows is written out with them.
        nulls = (sf.lit(None).cast(field.dataType).alias(field.name) for field in frame.schema.fields)
        own.range(0).select(*nulls).createOrReplaceTempView(f"`{name}`")
    analyse(own, query)
    for name, frame in frames.items():
        frame.createOrReplaceTempView(f"`{name}`")
    result: Any = None
    for step in query.steps:
        result = own.sql(step.query)
        if step.alias is not None:
            result.createOrReplaceTempView(f"`{step.alias}`")
    return to_arrow(result if limit is None else result.limit(limit))
