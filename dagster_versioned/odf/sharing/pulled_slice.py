"""A slice that others wrote, as a table takes it in: what it says, and that it says what its block promises."""

import hashlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dagster_versioned.delta.files.statistics import from_parquet_metadata
from dagster_versioned.delta.schema.types import StructType, schema_to_arrow
from dagster_versioned.engines.conform import conform
from dagster_versioned.engines.parquet_part import nan_columns
from dagster_versioned.engines.parts import Part, RowsSummary
from dagster_versioned.errors import IntegrityError, InvalidInput
from dagster_versioned.identity.digest import BagDigest
from dagster_versioned.odf.blocks.events import DataSlice
from dagster_versioned.odf.event_slice import SliceFile
from dagster_versioned.odf.event_sql import Operation
from dagster_versioned.odf.slice_file import table_columns
from dagster_versioned.odf.slice_records import SliceRecords, SystemTimes
from dagster_versioned.tables.event_history import EventColumns
from dagster_versioned.tables.parts import SLICES


def pulled_slice(
    path: Path,
    staged: str,
    data_slice: DataSlice,
    schema: StructType,
    stated: pa.Schema,
    columns: EventColumns,
    times: SystemTimes,
) -> SliceFile:
    """The slice in a file, which is also in the table's store under the key ``staged``.

    Raises `IntegrityError` where it has other columns than ``schema``, which the chain has as ``stated``, or other
    records than its block says, or earlier system times than ``times``, those of the slices before it, which it goes
    on with; and `UnsupportedType` for columns whose records have no hash.
    """
    name = f"{SLICES}{data_slice.physical_hash}"
    try:
        parquet = pq.ParquetFile(path)
        stored = table_columns(parquet.schema_arrow, columns)
        from_parquet_metadata(parquet.metadata, stored)  # raises where its columns are others
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError, InvalidInput) as error:
        raise IntegrityError(f"it cannot be read as a slice of events ({error}).") from None
    if stored != schema:
        raise IntegrityError(f"it has the columns {_shown(stored)}, and the chain says {_shown(schema)}.")
    digest = BagDigest(schema_to_arrow(stored))
    nulls, nans = np.zeros(len(stored.fields), np.int64), set[str]()
    operations = np.zeros(len(Operation), np.int64)
    records = SliceRecords(data_slice, stated, columns)
    for batch in parquet.iter_batches():
        records.update(batch)
        rows = conform(batch, stored)
        digest.update(rows)
        nans |= nan_columns(pa.Table.from_batches([rows]))
        nulls += [rows.column(index).null_count for index in range(rows.num_columns)]
        kinds = rows.column(columns.operation_type).to_numpy(zero_copy_only=False)
        operations += np.bincount(kinds.astype(np.int64), minlength=len(Operation))
    records.finish()
    times.follow(records.times)
    appended, retracted, corrected, _ = operations.tolist()
    rows_digest = digest.finish()
    statistics = from_parquet_metadata(parquet.metadata, stored, nans)
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    return SliceFile(
        part=Part(sha256, data_slice.size, rows_digest.nrow, 0, statistics, staged, key=name),
        contents=RowsSummary(stored, rows_digest.nrow, tuple(nulls.tolist()), rows_digest),
        inserted=appended,
        updated=corrected,
        removed=retracted,
    )


def _shown(schema: StructType) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema.fields)[:500]
