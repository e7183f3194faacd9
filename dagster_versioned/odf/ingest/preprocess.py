"""Rows as a file has them into rows as the table is to have them, by the source's own query."""

import pyarrow as pa

from dagster_versioned.errors import InvalidInput
from dagster_versioned.odf.blocks.events import SqlQueryStep, TransformSql
from dagster_versioned.odf.ingest.typed_rows import rows_in_utc
from dagster_versioned.odf.transform_query import QueryStep, TransformQuery

INPUT = "input"
"""What the query calls the rows of the file."""


def preprocess(rows: pa.Table, transform: TransformSql | None) -> pa.Table:
    """What the query makes of the rows, which it calls ``input``; the rows themselves without one.

    The engine is ``spark``, or ``duckdb``, which needs no Java. Raises `InvalidInput` for another, and for a query that
    cannot be run.
    """
    if transform is None:
        return rows
    query = _query(transform)
    match transform.engine.lower():
        case "spark":
            from dagster_versioned.odf.spark.query_rows import query_rows
        case "duckdb":
            from dagster_versioned.odf.arrow.query_rows import query_rows
        case other:
            raise InvalidInput(
                f"The source's rows are to be reshaped by the engine {other!a:.50}, which is not here; spark and "
                "duckdb are. Nothing was added. Name one of these in the manifest, with the query in its SQL."
            )
    return rows_in_utc(query_rows({INPUT: rows}, query))


def _query(transform: TransformSql) -> TransformQuery:
    if transform.temporal_tables:
        raise InvalidInput(
            "The rows of a source have no versions, so its query has no temporal tables. Nothing was added."
        )
    steps = transform.queries or ()
    if transform.query is not None:
        steps = (*steps, SqlQueryStep(query=transform.query))
    return TransformQuery((INPUT,), tuple(QueryStep(step.query, step.alias) for step in steps))
