"""A source's file into rows, by the step that its block names."""

import pyarrow as pa

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
from dagster_versioned.odf.ingest.fetch import MAX_BYTES
from dagster_versioned.odf.ingest.read_csv import read_csv
from dagster_versioned.odf.ingest.read_json import read_json, read_nd_json
from dagster_versioned.odf.ingest.read_parquet import read_parquet
from dagster_versioned.odf.ingest.source_file import SourceFile


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
