"""Located rows read through our own `ObjectStore`, by executors that cannot reach the files with Spark's reader."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dagster_versioned.delta.files.deletion_vectors import deleted_rows
from dagster_versioned.delta.schema.types import StructField, StructType
from dagster_versioned.engines.arrow.scan import read_table
from dagster_versioned.engines.scan import Scan
from dagster_versioned.engines.spark.numbered_tasks import in_tasks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql import types as spark_types

BATCH_ROWS = 1 << 16

Bases = Sequence[tuple[int | None, int | None]]
"""By file: the first row id, and the default commit version."""


def located_through_executors(
    session: "SparkSession", scan: Scan, bases: Bases, tracked: tuple[str, ...], schema: "spark_types.StructType"
) -> "DataFrame":
    """`located.rows_with_locations`, one task a file."""
    read = partial(located_rows, scan, bases, tracked, tuple(schema.names))
    return in_tasks(session, len(scan.files), read, schema)


def located_rows(
    scan: Scan, bases: Bases, tracked: tuple[str, ...], names: Sequence[str], number: int
) -> Iterator[pa.RecordBatch]:
    """The rows of one file, with their places."""
    file = scan.files[number]
    whole = replace(file, deletion_vector=None)
    rows = read_table(replace(scan, files=(whole,)))
    count = rows.num_rows
    columns: list[Any] = [*rows.columns, pa.repeat(cast("Any", pa.scalar(number, pa.int32())), count)]
    places: Any = pa.array(np.arange(count, dtype=np.int64))
    columns.append(places)
    if tracked:
        schema = StructType([StructField(name, "long") for name in tracked])
        stored = read_table(replace(scan, files=(whole,), schema=schema, mapping="none"))
        base, default = bases[number]
        ids = None if base is None else pa.array(np.arange(count, dtype=np.int64) + base)
        columns.append(stored.column(0) if ids is None else _coalesced(stored.column(0), ids))
        versions = stored.column(1)
        columns.append(versions if default is None else _coalesced(versions, pa.repeat(default, count)))
    table = pa.table(columns, list(names))
    if file.deletion_vector is not None:
        stays = np.ones(count, np.bool_)
        stays[deleted_rows(scan.store, file.deletion_vector, count, file.key)] = False
        table = table.filter(pa.array(stays))
    yield from table.combine_chunks().to_batches(max_chunksize=BATCH_ROWS)


def _coalesced(column: Any, other: Any) -> Any:
    return cast("Any", pc).coalesce(column, pa.chunked_array([other]))
