"""A query over rows in memory, by Spark: the same rules as for SQL transforms."""

from typing import Any, cast

import pyarrow as pa
from pyspark.sql import functions as sf

from dagster_versioned.engines.spark.releases import from_arrow, to_arrow
from dagster_versioned.engines.spark.session import default_session
from dagster_versioned.odf.spark.query import analyse, in_one_task, query_session
from dagster_versioned.odf.transform_query import TransformQuery


def query_rows(rows: pa.Table, query: TransformQuery) -> pa.Table:
    """What a query with one input makes of rows. Raises `InvalidInput` for a query that is refused (`analyse`)."""
    (name,) = query.inputs
    own = cast("Any", query_session(default_session()))
    in_one_task(own)
    frame = from_arrow(own, rows).coalesce(1)
    # Analysed over the columns alone: a plan that holds rows is written out with them.
    nulls = (sf.lit(None).cast(field.dataType).alias(field.name) for field in frame.schema.fields)
    own.range(0).select(*nulls).createOrReplaceTempView(f"`{name}`")
    analyse(own, query)
    frame.createOrReplaceTempView(f"`{name}`")
    for step in query.steps:
        frame = own.sql(step.query)
        if step.alias is not None:
            frame.createOrReplaceTempView(f"`{step.alias}`")
    return to_arrow(frame)
