"""Which engine a frame, or an annotation, belongs to; decided by names, so that nothing is imported to ask."""

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from importlib.util import find_spec
from typing import Any, Literal

from dagster_versioned.engines.arrow.engine import ArrowEngine
from dagster_versioned.engines.comparison import Comparison, RowDiff
from dagster_versioned.engines.engine import Engine
from dagster_versioned.engines.frames import READABLE, WRITABLE, family_of, name_of, unreadable
from dagster_versioned.engines.row_partitions import RowPartitions
from dagster_versioned.errors import UnsupportedFrame
from dagster_versioned.extras import requiring

EngineName = Literal["arrow", "spark"]

SPARK_FRAME = "pyspark.sql.DataFrame"


def engine_for(frame: object) -> Engine:
    """The engine that writes this frame. Raises `UnsupportedFrame`, which lists what is supported."""
    if family_of(type(frame)) is not None:
        return ArrowEngine()
    if is_spark_frame(frame):
        return _spark()
    raise UnsupportedFrame(
        f"A {name_of(type(frame))} cannot be stored as a table. Nothing was written. "
        f"Return one of: {', '.join((*WRITABLE, SPARK_FRAME))}."
    )


def engine_for_type(annotation: object) -> Engine:
    """The engine that reads tables as this type. Raises `UnsupportedFrame`, which lists what is supported."""
    if isinstance(annotation, type):
        if family_of(annotation) in READABLE:
            return ArrowEngine()
        if _is_spark(annotation):
            return _spark()
    raise unreadable(annotation, (*READABLE, SPARK_FRAME))


def diff_rows(before: Any, after: Any, key: Sequence[str]) -> RowDiff[Any]:
    """Match the rows of two frames by the ``key`` columns, and compare the other columns that both have.

    Null equals null, NaN equals NaN, 0.0 equals -0.0 and the order of a map's entries is nothing, in keys as in values.
    A column that one side has with a wider type is compared in that. One that one side only has, or has with a type
    that is not to be compared with the other, is a difference of schemas and not compared here.
    The result is of pandas or Polars frames where both sides are of that type, else of `pyarrow.Table`; two Spark
    frames give lazy Spark frames, after a job each that checks the keys. Raises `InvalidInput` where the key does not
    identify the rows of each side (missing, of two types, nested, null or not unique), `UnsupportedFrame` and
    `UnsupportedType` for what could not be stored.
    """
    if not isinstance(key, str):
        key = tuple(dict.fromkeys(key))
    on_arrow = [isinstance(engine_for(frame), ArrowEngine) for frame in (before, after)]
    if all(on_arrow):
        from dagster_versioned.engines.arrow.comparison import diff_frames
    elif any(on_arrow):
        raise UnsupportedFrame(
            f"A {type(before).__name__} and a {type(after).__name__} cannot be compared row by row: one of them is "
            "Spark's. Nothing was compared. Read both as the same type."
        )
    else:
        from dagster_versioned.engines.spark.comparison import diff_frames
    return diff_frames(before, after, key)


def compare(before: Any, after: Any, key: Sequence[str] = ()) -> Comparison:
    """Compare two frames in one pass over each: `pyarrow.RecordBatchReader` each, or of Spark each.

    With a ``key``, rows are counted as by `diff_rows`, which says what raises. Of readers, keys and hashes of rows are
    in memory at once, and without a key one batch.
    """
    if is_spark_frame(before):
        from dagster_versioned.engines.spark.comparison import compare_frames
    else:
        from dagster_versioned.engines.arrow.comparison import compare_frames
    return compare_frames(before, after, tuple(dict.fromkeys(key)))


def comparable_type(engine: EngineName) -> type:
    """What tables are read as for `compare`. Raises `MissingExtra` for Spark where PySpark is not installed."""
    if engine == "spark":
        with requiring("spark", "A comparison on Spark"):
            from dagster_versioned.engines.spark.session import frame_type
        return frame_type()
    import pyarrow as pa

    return pa.RecordBatchReader


def can_start_spark() -> bool:
    """Whether PySpark is installed, and what it needs beside: a Java, or the address of a server."""
    if find_spec("pyspark") is None:
        return False
    from dagster_versioned.engines.spark.session import find_java

    return "SPARK_REMOTE" in os.environ or find_java() is not None


def split_rows(
    frame: Any, partitions: RowPartitions, *, allow_empty: bool = False
) -> AbstractContextManager[dict[str, Any]]:
    """The rows of each partition as a frame, with all columns and in the order they had.

    Arrow, pandas and Polars frames become `pyarrow.Table`, lazy ones are computed for it. A Spark frame is computed
    once and kept, in memory and on disk, until the block ends. Raises `InvalidInput` for rows of other partitions, and
    for a column that is missing or of a type that is no key; `EmptyTable`; `UnsupportedFrame`.
    """
    if isinstance(engine_for(frame), ArrowEngine):
        from dagster_versioned.engines.row_partitions import split
    else:
        from dagster_versioned.engines.spark.row_partitions import split
    return split(frame, partitions, allow_empty=allow_empty)


def is_spark_frame(value: object) -> bool:
    """Whether it is a frame of PySpark, classic or Connect."""
    return _is_spark(type(value))


def _is_spark(frame_type: type) -> bool:
    return any(
        base.__module__.startswith("pyspark.sql") and base.__name__ == "DataFrame" for base in frame_type.__mro__
    )


def _spark() -> Engine:
    with requiring("spark", "A Spark DataFrame"):
        from dagster_versioned.engines.spark import SparkEngine
    return SparkEngine()
