"""Parquet into Arrow, of the declared columns and types."""

import pyarrow as pa
import pyarrow.parquet as pq

from dagster_versioned.chain.events import ReadStepParquet
from dagster_versioned.chain.ingest.columns import declared_schema
from dagster_versioned.chain.ingest.source_file import SourceFile
from dagster_versioned.chain.ingest.texts import TextFormats
from dagster_versioned.chain.ingest.typed_rows import rows_in_utc, typed_rows


def read_parquet(file: SourceFile, step: ReadStepParquet) -> pa.Table:
    """The rows of a Parquet file, its columns and types as they are, or cast to the declared ones without loss.

    Timestamps without a zone are UTC. Raises `InvalidInput` with the file and the column.
    """
    try:
        table = pq.read_table(file.path)
    except (pa.ArrowInvalid, OSError) as error:
        raise file.error(f"it cannot be read as Parquet ({error})") from None
    if not step.schema:
        return rows_in_utc(table)
    schema = declared_schema(step.schema)
    file.require_columns(table.column_names, schema)
    return typed_rows(file, table, schema, TextFormats(), lambda row: f"row {row + 1}")
