"""What a task of an executor reads through our own `ObjectStore`: the rows of a part, or of a deletion vector."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from dagster_versioned.delta.schema.types import schema_to_arrow
from dagster_versioned.engines.arrow.scan import stream_table
from dagster_versioned.engines.part_ranges import positions
from dagster_versioned.engines.scan import Scan
from dagster_versioned.engines.spark.types import spark_schema
from dagster_versioned.identity.digest import BagDigest, Sums

SUMS_SCHEMA = "sums binary"

DELETED_BATCH_ROWS = 1 << 20


def rows_of_part(scan: Scan, number: int) -> Iterator[pa.RecordBatch]:
    """The rows of one part, in the canonical Arrow schema, which is the one Spark derives."""
    batches = stream_table(replace(scan, files=(scan.files[number],)))
    if not scan.selected.holds("variant"):
        yield from batches
        return
    from pyspark.sql.pandas.types import to_arrow_schema

    # Spark knows a variant by a mark in Arrow's schema.
    marked = to_arrow_schema(spark_schema(scan.selected))
    for batch in batches:
        yield batch.cast(marked)


def sums_of_part(scan: Scan, key: bytes, number: int) -> Iterator[pa.RecordBatch]:
    """The sums of the rows of one part under a key, for `sums_from`."""
    bag = BagDigest(schema_to_arrow(scan.schema), key)
    for batch in stream_table(replace(scan, files=(scan.files[number],))):
        bag.update(batch)
    packed = b"".join(number.to_bytes(8, "big") for number in bag.lanes)
    yield pa.RecordBatch.from_arrays([pa.array([packed], pa.binary())], ["sums"])


def sums_from(packed: bytes) -> Sums:
    """What `sums_of_part` found."""
    first, second, nrow = (int.from_bytes(packed[at : at + 8], "big") for at in (0, 8, 16))
    return first, second, nrow


def rows_of_vector(scan: Scan, marked: Sequence[int], number: int) -> Iterator[pa.RecordBatch]:
    """The positions in one deletion vector, and which file of the scan it is of."""
    index = marked[number]
    rows = positions(scan, index)
    schema = pa.schema([("_deleted_of", pa.int32()), ("_deleted_row", pa.int64())])
    for start in range(0, len(rows), DELETED_BATCH_ROWS):
        batch = pa.array(rows[start : start + DELETED_BATCH_ROWS])
        of = pa.array(np.full(len(batch), index, np.int32))
        yield pa.RecordBatch.from_arrays([of, batch], schema=schema)
