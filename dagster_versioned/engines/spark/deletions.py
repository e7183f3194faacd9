"""The rows that deletion vectors take away, as a frame to join with."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dagster_versioned.engines.part_ranges import positions
from dagster_versioned.engines.scan import Scan
from dagster_versioned.engines.spark.numbered_tasks import in_tasks
from dagster_versioned.engines.spark.part_rows import rows_of_vector
from dagster_versioned.engines.spark.releases import from_arrow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

READERS = 16
BROADCAST_ROWS = 1_000_000
"""Up to so many deleted rows are read here and sent to every executor: some 12 MB. More are read by the executors."""


def deleted_frame(scan: Scan, session: "SparkSession") -> "DataFrame | None":
    """Positions of deleted rows: ``_deleted_of``, the file's place in the scan, and ``_deleted_row``; ``None`` if none.

    Few are read and checked at once, so that `IntegrityError` comes before any row is computed; many when Spark asks
    for them, in its tasks.
    """
    marked = [i for i, file in enumerate(scan.files) if file.deletion_vector]
    if not marked:
        return None
    total = sum(file.deletion_vector.cardinality for file in scan.files if file.deletion_vector)
    if total > BROADCAST_ROWS:
        rows_of = partial(rows_of_vector, scan, tuple(marked))
        return in_tasks(session, len(marked), rows_of, "_deleted_of int, _deleted_row long")
    from pyspark.sql import functions as sf

    with ThreadPoolExecutor(READERS, thread_name_prefix="vectors") as pool:
        rows = list(pool.map(partial(positions, scan), marked))
    of: NDArray[np.int32] = np.repeat(np.array(marked, np.int32), [len(row) for row in rows])
    positions_of: NDArray[np.int64] = np.concatenate(rows)
    table = pa.table({"_deleted_of": pa.array(of), "_deleted_row": pa.array(positions_of)})
    return sf.broadcast(from_arrow(session, table))


def kept_frame(scan: Scan, session: "SparkSession") -> "DataFrame | None":
    """As `deleted_frame`, of the rows that alone are kept: ``_kept_of`` and ``_kept_row``."""
    files = tuple(replace(file, deletion_vector=file.kept, vector_sha=None) for file in scan.files)
    frame = deleted_frame(replace(scan, files=files), session)
    return None if frame is None else frame.toDF("_kept_of", "_kept_row")
