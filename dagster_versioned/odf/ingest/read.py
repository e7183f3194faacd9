"""A source's file into rows, by the step that its block names."""

import pyarrow as pa
import pyarrow.parquet as pq

from dagster_versioned.errors import InvalidInput
from dagster_versioned.odf.blocks.events import (
    ReadStep,
    ReadStepCsv,
    ReadStepEsriShapefile,
    ReadStepGeoJson,
    ReadStepJson,
    ReadStepNdGeoJson,
    ReadStepNdJson,
    ReadStepParquet,
)
from dagster_versioned.odf.ingest.columns import read_schema
from dagster_versioned.odf.ingest.fetch import MAX_BYTES
from dagster_versioned.odf.ingest.read_csv import read_csv
from dagster_versioned.odf.ingest.read_json import read_json, read_nd_json
from dagster_versioned.odf.ingest.source_file import SourceFile
from dagster_versioned.odf.ingest.texts import TextFormats
from dagster_versioned.odf.ingest.typed_rows import rows_in_utc, typed_rows


def read(file: SourceFile, step: ReadStep, *, max_bytes: int = MAX_BYTES) -> pa.Table:
    """All rows of a file, of at most ``max_bytes`` where it is packed.

    Raises `InvalidInput` for what does not parse, and for formats that are not read here.
    """
    match step:
        case ReadStepCsv():
            return read_csv(file, step)
        case ReadStepJson():
            return read_json(file, step)
        case ReadStepNdJson():
            return read_nd_json(file, step)
        case ReadStepParquet():
            return read_parquet(file, step, max_bytes=max_bytes)
        case ReadStepGeoJson() | ReadStepNdGeoJson() | ReadStepEsriShapefile():
            kind = type(step).__name__.removeprefix("ReadStep")
            raise InvalidInput(
                f"{file.name} is to be read as {kind}, which is recorded but not read here: geometries have no type in "
                "these tables. Nothing was added. Convert it to Parquet or CSV before it is fetched."
            )


def read_parquet(file: SourceFile, step: ReadStepParquet, *, max_bytes: int) -> pa.Table:
    """The rows of a Parquet file, its columns and types as they are, or cast to the declared ones without loss.

    Timestamps without a zone are UTC. Raises `InvalidInput` with the file and the column, and for rows of more than
    ``max_bytes`` in memory, which a small file can hold.
    """
    batches: list[pa.RecordBatch] = []
    size = 0
    try:
        with pq.ParquetFile(file.path) as opened:
            for batch in opened.iter_batches():
                size += batch.nbytes
                if size > max_bytes:
                    raise file.error(f"its rows have more than {max_bytes} bytes")
                batches.append(batch)
            table = pa.Table.from_batches(batches, schema=opened.schema_arrow)
    except (pa.ArrowException, OSError) as error:
        raise file.error(f"it cannot be read as Parquet ({error})") from None
    schema = read_schema(step)
    if schema is None:
        return rows_in_utc(table)
    file.require_columns(table.column_names, schema)
    return typed_rows(file, table, schema, TextFormats(), lambda row: f"row {row + 1}")
