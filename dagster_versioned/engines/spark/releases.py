"""What differs between the releases of PySpark, each with the release that brought it; private API is in `catalyst`.

PySpark 3.5 has neither `DataFrame.toArrow` nor `createDataFrame` of an Arrow table, no Python data sources and no
`Column.try_cast`; 4.0 has these, but no filters that are pushed to data sources and no functions of Arrow arrays, which
came with 4.1, and no limits of what a stream reads at once, which came later.
"""

import io
from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from dagster_versioned.bounds import release_of, require_release
from dagster_versioned.delta.files.arrow_memory import arrow_reader
from dagster_versioned.engines.parts import MEBIBYTE
from dagster_versioned.engines.spark.by_value import self_contained
from dagster_versioned.errors import UnsupportedFeature

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession
    from pyspark.sql import types as spark_types

PIECE_BYTES = 4 * MEBIBYTE
"""Arrow tables go to PySpark 3.5 in pieces of this size, since they are part of the plan."""


@cache
def release() -> tuple[int, int]:
    """Major and minor version of the PySpark that is installed. Raises `MissingExtra` for one that is not supported."""
    import pyspark

    require_release("pyspark", pyspark.__version__)
    major, minor = release_of(pyspark.__version__)[:2]
    return major, minor


def require(wanted: tuple[int, int], what: str, instead: str) -> None:
    """Raise `UnsupportedFeature` unless this is the wanted release or a later one; ``instead`` is what to do then."""
    import pyspark

    if release() < wanted:
        raise UnsupportedFeature(
            f"{what} needs PySpark {wanted[0]}.{wanted[1]} or newer; this is {pyspark.__version__}. Nothing was read "
            f"or written. {instead}"
        )


def has_data_sources() -> bool:
    """Whether there are data sources in Python."""
    return release() >= (4, 0)


def pushes_filters(session: "SparkSession") -> bool:
    """Whether the session hands filters to data sources in Python."""
    return release() >= (4, 1) and session.conf.get("spark.sql.python.filterPushdown.enabled", "false") == "true"


def limits_batch_bytes() -> bool:
    """Whether Spark asks of each row how large a batch has become."""
    return release() >= (4, 0)


def reads_widened() -> bool:
    """Whether Spark's reader of Parquet has values of a narrower type than is asked for."""
    return release() >= (4, 0)


def has_arrow_functions() -> bool:
    """Whether a column can be computed by a function of Arrow arrays."""
    return release() >= (4, 1)


def positional(frame: "DataFrame", prefix: str = "_c") -> "DataFrame":
    """The frame with its columns called by their places: dots and backticks break expressions, and 3.5 takes any name
    for one."""
    return frame.toDF(*(f"{prefix}{i}" for i in range(len(frame.columns))))


def to_arrow(frame: "DataFrame") -> pa.Table:
    """The rows of a frame in this process."""
    if release() >= (4, 0):
        return frame.toArrow()
    from pyspark.sql.pandas.types import to_arrow_schema

    plain = positional(frame)
    streams: list[Any] = plain.mapInArrow(self_contained(_streams), "stream binary").collect()
    tables = [pa.ipc.open_stream(arrow_reader(bytes(row[0]))).read_all() for row in streams]
    if not tables:
        return to_arrow_schema(frame.schema).empty_table()
    return pa.concat_tables(tables).rename_columns(frame.columns)


def from_arrow(session: "SparkSession", table: pa.Table, schema: "spark_types.StructType | None" = None) -> "DataFrame":
    """A frame of a table's rows; without a schema, times without a zone are those of the session."""
    if release() >= (4, 0):
        return session.createDataFrame(table, cast("Any", schema))
    from pyspark.sql import functions as sf
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
    from pyspark.sql.utils import is_timestamp_ntz_preferred

    wanted = schema or from_arrow_schema(table.schema, is_timestamp_ntz_preferred())
    names = [f"_c{i}" for i in range(table.num_columns)]
    # Spark casts times without a zone to instants of the session, which Arrow would take for those of UTC.
    carried = from_arrow_schema(table.rename_columns(names).schema, prefer_timestamp_ntz=True)
    plain = table.rename_columns(names).cast(to_arrow_schema(carried))
    rows = [(piece,) for piece in _pieces(plain)]
    frame = session.createDataFrame(rows, "stream binary").mapInArrow(self_contained(_batches), carried)
    columns = [sf.col(name).cast(field.dataType) for name, field in zip(names, wanted.fields, strict=True)]
    return frame.select(*columns).toDF(*wanted.names)


def parquet_reader(session: "SparkSession", schema: "spark_types.StructType") -> "DataFrameReader":
    """A reader of Parquet that takes old dates and times as they are stored; 3.5 refuses them without these options."""
    reader = session.read.schema(schema).option("datetimeRebaseMode", "CORRECTED")
    return reader.option("int96RebaseMode", "CORRECTED")


def try_cast(column: "Column", data_type: "spark_types.DataType") -> "Column":
    """The value in another type, null where it does not fit, whatever the session's ANSI mode."""
    if release() >= (4, 0):
        return column.try_cast(data_type)
    from pyspark.sql import functions as sf

    # 3.5 has it in SQL alone, where a column is reached by its name; the element of an array has one.
    casting = sf.expr(f"x -> try_cast(x AS {data_type.simpleString()})")
    return sf.call_function("transform", sf.array(column), casting).getItem(0)


def _streams(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Each batch as the bytes of a stream."""
    for batch in batches:
        yield pa.RecordBatch.from_arrays([pa.array([_stream([batch], batch.schema)], pa.binary())], names=["stream"])


def _batches(streams: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches of which `_stream` made bytes."""
    for batch in streams:
        for piece in cast("list[bytes]", batch.column(0).to_pylist()):
            yield from pa.ipc.open_stream(arrow_reader(piece)).read_all().to_batches()


def _pieces(table: pa.Table) -> Iterator[bytes]:
    step = max(1, table.num_rows * PIECE_BYTES // max(table.nbytes, 1))
    for start in range(0, table.num_rows, step):
        piece = table.slice(start, step).combine_chunks()
        yield _stream(piece.to_batches(), piece.schema)


def _stream(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, schema) as stream:
        for batch in batches:
            stream.write_batch(batch)
    return sink.getvalue()
