"""Rows of data files with where they lie: which file of a list, and at which position in it."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from dagster_versioned.delta.actions import Add
from dagster_versioned.delta.files.deletion_vectors import deleted_rows
from dagster_versioned.delta.files.partition_values import decode
from dagster_versioned.delta.schema.column_mapping import PHYSICAL_NAME
from dagster_versioned.delta.schema.types import StructField, StructType, type_to_arrow
from dagster_versioned.delta_tables.dml import Target
from dagster_versioned.delta_tables.read import kept_ids, target_scan
from dagster_versioned.engines.arrow.scan import read_table
from dagster_versioned.engines.part_cache import PartCache
from dagster_versioned.engines.scan import Scan
from dagster_versioned.engines.spark.catalyst import metadata_column
from dagster_versioned.engines.spark.deletions import deleted_frame
from dagster_versioned.engines.spark.executors import runs_here
from dagster_versioned.engines.spark.float_filters import kept_by_spark
from dagster_versioned.engines.spark.numbered_tasks import in_tasks
from dagster_versioned.engines.spark.read import by_name, check_files, has_hidden
from dagster_versioned.engines.spark.releases import from_arrow, parquet_reader
from dagster_versioned.engines.spark.types import file_schema, spark_schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql import types as spark_types

PREFIX = "__versioned_"
"""Of the columns that are added to those of a table."""

_BATCH_ROWS = 1 << 16

FILE, ROW, ROW_ID, ROW_VERSION = (PREFIX + name for name in ("file", "row", "id", "version"))


def rows_with_locations(
    session: "SparkSession", target: Target, files: Sequence[Add], *, ids: bool = False
) -> "DataFrame":
    """The rows of ``files`` that are not deleted: the table's columns by their names, then `FILE` and `ROW`.

    ``ids`` asks for `ROW_ID` and `ROW_VERSION` as well, where the table tracks rows. Raises `IntegrityError`.
    """
    tracked = target.tracked if ids else ()
    scan = target_scan(target, files)
    if not files:
        return session.createDataFrame([], row_locations_schema(scan.schema, tracked))
    check_files(scan)
    if scan.store.local_path(files[0].key) is None and runs_here(session):
        scan = PartCache.default().localized(scan)
    if scan.store.local_path(scan.files[0].key) is not None:
        named = by_name(scan) if scan.mapping == "id" else scan
        if named is not None and not has_hidden(named):
            return _native(session, named, tracked)
    schema = row_locations_schema(scan.schema, tracked)
    return in_tasks(session, len(scan.files), partial(located_rows, scan, tracked, tuple(schema.names)), schema)


def row_locations_schema(schema: StructType, tracked: tuple[str, ...]) -> "spark_types.StructType":
    """The schema of located rows; ``tracked`` are the columns of files that hold what rows keep."""
    added = [StructField(FILE, "integer"), StructField(ROW, "long")]
    added += [StructField(name, "long") for name in (ROW_ID, ROW_VERSION)[: len(tracked)]]
    return spark_schema(StructType((*schema.all_nullable().fields, *added)))


# --- through our own `ObjectStore`, by executors that cannot reach the files with Spark's reader ----------------------


def located_rows(scan: Scan, tracked: tuple[str, ...], names: Sequence[str], number: int) -> Iterator[pa.RecordBatch]:
    """The rows of one file, with their places."""
    file = scan.files[number]
    whole = replace(scan, files=(replace(file, deletion_vector=None),))
    rows = read_table(whole)
    count = rows.num_rows
    places: Any = pa.array(np.arange(count, dtype=np.int64))
    columns: list[Any] = [*rows.columns, pa.repeat(cast("Any", pa.scalar(number, pa.int32())), count), places]
    if tracked:
        columns += kept_ids(whole, tracked)
    table = pa.table(columns, list(names))
    if file.deletion_vector is not None:
        stays = np.ones(count, np.bool_)
        stays[deleted_rows(scan.store, file.deletion_vector, count, file.key)] = False
        table = table.filter(pa.array(stays))
    yield from table.combine_chunks().to_batches(max_chunksize=_BATCH_ROWS)


# --- by Spark's own reader -------------------------------------------------------------------------------------------


def _native(session: "SparkSession", scan: Scan, tracked: tuple[str, ...]) -> "DataFrame":
    from pyspark.sql import functions as sf

    partitioned = [name for name in scan.schema.names if name in scan.files[0].partition_values]
    stored = scan.schema.drop(partitioned)
    kept = [StructField(name, "long", True, {PHYSICAL_NAME: name}) for name in tracked]
    asked = StructType((*stored.fields, *kept))
    paths = [str(scan.store.local_path(file.key)) for file in scan.files]
    # Spark globs what it is given, and there is no other way to say "this file".
    escaped = [re.sub(r"([\\{}\[\]*?])", r"\\\1", path) for path in paths]
    frame = parquet_reader(session, file_schema(asked, scan.mapping)).parquet(*escaped)
    # Only Spark knows how it will spell a file's URI, so it is asked.
    spelled = {_bare(unquote(uri)): _bare(uri) for uri in frame.inputFiles()}
    by_file = _by_file(session, scan, [spelled[path] for path in paths], partitioned)
    about = metadata_column(frame)
    path = sf.regexp_replace(about.getField("file_path"), "^file:/+", "/")
    names = [f"_c{i}" for i in range(len(asked.fields))]
    rows = frame.select("*", path, about.getField("row_index")).toDF(*names, "_path", "_row")
    rows = rows.join(sf.broadcast(by_file), "_path")
    rows = _without_deleted(rows, deleted_frame(scan, session))
    columns = _columns(scan, stored.names, partitioned)
    columns += [sf.col("_of"), sf.col("_row")]
    if tracked:
        first = len(stored.fields)
        columns.append(sf.coalesce(sf.col(f"_c{first}"), sf.col("_base") + sf.col("_row")))
        columns.append(sf.coalesce(sf.col(f"_c{first + 1}"), sf.col("_default")))
    return rows.select(*columns).toDF(*row_locations_schema(scan.schema, tracked).names)


def _without_deleted(rows: "DataFrame", deleted: "DataFrame | None") -> "DataFrame":
    from pyspark.sql import functions as sf

    if deleted is None:
        return rows
    gone = (sf.col("_of") == sf.col("_deleted_of")) & (sf.col("_row") == sf.col("_deleted_row"))
    return rows.join(deleted, gone, "left_anti")


def _columns(scan: Scan, stored: Sequence[str], partitioned: Sequence[str]) -> "list[Column]":
    """The columns of the table, of those of its files and those of `_by_file`."""
    from pyspark.sql import functions as sf

    wanted = spark_schema(scan.schema)
    return [
        sf.col(f"_p{partitioned.index(name)}")
        if name in partitioned
        # A cast between structs goes by place, so it gives nested fields the names that the table has for them.
        else kept_by_spark(sf.col(f"_c{stored.index(name)}").cast(wanted[name].dataType), name, scan)
        for name in scan.schema.names
    ]


def _by_file(session: "SparkSession", scan: Scan, uris: Sequence[str], partitioned: Sequence[str]) -> "DataFrame":
    """What is the same for all rows of a file: its place among the files, what its rows keep, its partition values."""
    values: dict[str, Any] = {
        "_path": pa.array(uris, pa.string()),
        "_of": pa.array(range(len(uris)), pa.int32()),
        "_base": pa.array([file.base_row_id for file in scan.files], pa.int64()),
        "_default": pa.array([file.default_row_commit_version for file in scan.files], pa.int64()),
    }
    types = [StructField("_path", "string"), StructField("_of", "integer")]
    types += [StructField(name, "long") for name in ("_base", "_default")]
    for i, name in enumerate(partitioned):
        data_type = cast("str", scan.schema.field(name).type)  # partition columns are never nested
        texts = [file.partition_values[name] for file in scan.files]
        values[f"_p{i}"] = pa.array([decode(text, data_type) for text in texts], type_to_arrow(data_type))
        types.append(StructField(f"_p{i}", data_type))
    return from_arrow(session, pa.table(values), spark_schema(StructType(types)))


def _bare(uri: str) -> str:
    return re.sub("^file:/+", "/", uri)
