"""Sparing Spark the question how large a batch has become, which it otherwise asks before every row.

Spark hands rows to Python in batches of at most ``maxRecordsPerBatch`` rows and ``maxBytesPerBatch`` (64 MB), and to
keep to the latter it adds up all buffers of all columns once a row: half of what the JVM did in a write of 7 columns.
Rows that are all narrow keep within a bound without being asked, since their number is bounded.
"""

import os
import re
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dagster_versioned.delta.schema.types import StructType, schema_to_arrow
from dagster_versioned.engines.parts import MEBIBYTE
from dagster_versioned.engines.row_size import fixed_size
from dagster_versioned.engines.spark.catalyst import is_classic, optimized_text
from dagster_versioned.engines.spark.releases import limits_batch_bytes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BATCH_BYTES = 128 * MEBIBYTE
"""What a batch of narrow rows may come to: as much as a row group, which a task holds anyway."""

_MAX_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_MAX_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_UNLIMITED = str(2**31 - 1)

# Nodes of plans in which Python gets batches, or may: what an RDD stands for is not in the plan.
_PYTHON = re.compile("Arrow|Pandas|Python|RDD")


def narrow(rows: "DataFrame", schema: StructType) -> "DataFrame | None":
    """The rows and one more column that says whether a row is too wide; the strings of such a row are null.

    ``None`` where that is unknown or would not help: columns that are neither strings nor of fixed size (a binary
    is wide as a rule), a session that sets the limit itself, Spark Connect, a release without the limit.
    """
    session = rows.sparkSession
    if not limits_batch_bytes() or not is_classic(type(rows)) or not _pinned_threads():
        return None
    if session.conf.get(_MAX_BYTES, None) is not None:
        return None
    batch_rows = int(session.conf.get(_MAX_ROWS) or 0)
    sizes = [fixed_size(data_type) for data_type in schema_to_arrow(schema).types]
    strings = [name for name, size in zip(rows.columns, sizes, strict=True) if size is None]
    if batch_rows <= 0 or any(schema.fields[rows.columns.index(name)].type != "string" for name in strings):
        return None
    room = BATCH_BYTES // batch_rows - sum(size for size in sizes if size is not None)
    # As text: each function of PySpark's is several calls to the JVM. The names are `_c0`, `_c1`, …
    wide = " + ".join(["0L", *(f"coalesce(CAST(octet_length({name}) AS BIGINT), 0L)" for name in strings)])
    kept = [f"CASE WHEN NOT _wide THEN {name} END AS {name}" if name in strings else name for name in rows.columns]
    return rows.selectExpr("*", f"{wide} > {room}L AS _wide").selectExpr(*kept, "_wide")


def takes_all_batches(result: "DataFrame") -> bool:
    """Whether the last node of the query is the only one that gets batches: others may have wider rows."""
    return not _PYTHON.search(optimized_text(result).partition("\n")[2])


@contextmanager
def unlimited_batches(rows: "DataFrame") -> Generator[None]:
    """Within it, this thread's queries have batches without a limit in bytes; other threads keep theirs.

    A local property, not a setting of the session: tasks take from it what the session does not set.
    """
    context = rows.sparkSession.sparkContext
    before = context.getLocalProperty(_MAX_BYTES)
    context.setLocalProperty(_MAX_BYTES, _UNLIMITED)
    try:
        yield
    finally:
        # Spark takes None for "remove it"; its stubs do not say so.
        context.setLocalProperty(_MAX_BYTES, before)  # pyright: ignore[reportArgumentType]


def _pinned_threads() -> bool:
    """Whether a thread here has a thread of its own in the JVM, so that its local properties are its own (default)."""
    return os.environ.get("PYSPARK_PIN_THREAD", "true").lower() == "true"
