"""A query over rows in memory, by Spark: the same rules as for SQL transforms."""

from typing import Any, cast

import pyarrow as pa

from dagster_versioned.engines.spark.query import analyse, in_one_task, query_session
from dagster_versioned.engines.spark.session import default_session
from dagster_versioned.engines.transform import TransformQuery


def query_rows(rows: pa.Table, query: TransformQuery) -> pa.Table:
    """What a query with one input makes of rows. Raises `InvalidInput` for a query that is refused (`analyse`)."""
    own = query_session(default_session())
    in_one_task(own)
    frame = cast("Any", own).createDataFrame(rows).coalesce(1)
    frame.createOrReplaceTempView(f"`{query.inputs[0]}`")
    return cast("Any", analyse(own, query).frame(own)).toArrow()
