"""A query over rows in memory, by DuckDB: it sees its inputs, and neither files nor the network."""

from collections.abc import Mapping

import pyarrow as pa

from dagster_versioned.engines.sql import arrow_reader, arrow_rows, database
from dagster_versioned.errors import InvalidInput
from dagster_versioned.odf.transform_query import TransformQuery


def query_rows(inputs: Mapping[str, pa.Table], query: TransformQuery, limit: int | None = None) -> pa.Table:
    """What a query makes of rows, by what it calls them; at most ``limit`` rows of it.

    Raises `InvalidInput` for what is not one SELECT, and for what DuckDB refuses.
    """
    import duckdb

    with database() as connection:
        for name, rows in inputs.items():
            connection.register(name, rows)
        result = pa.table({})
        for step in query.steps:
            try:
                statements = connection.extract_statements(step.query)
                if [statement.type for statement in statements] != [duckdb.StatementType.SELECT]:
                    raise _refused(step.query, "it is not one SELECT")
                executed = connection.execute(statements[0])
                if step.alias is None and limit is not None:
                    # Rows are computed as they are asked for, so a result without end ends here.
                    result = _first(arrow_reader(executed), limit)
                else:
                    result = arrow_rows(executed)
            except duckdb.Error as error:
                raise _refused(step.query, str(error).splitlines()[0]) from None
            if step.alias is not None:
                connection.register(step.alias, result)
    return result


def _first(reader: pa.RecordBatchReader, limit: int) -> pa.Table:
    batches: list[pa.RecordBatch] = []
    left = limit
    while left > 0 and (batch := next(reader, None)) is not None:
        batches.append(batch.slice(0, left))
        left -= batches[-1].num_rows
    return pa.Table.from_batches(batches, reader.schema)


def _refused(query: str, reason: str) -> InvalidInput:
    return InvalidInput(f"The query {' '.join(query.split())!r:.300} is refused: {reason}. Nothing was written.")
