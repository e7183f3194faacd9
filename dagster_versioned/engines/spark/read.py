"""Exact files to a Spark frame. The frame is pinned to them: a later commit never changes what it returns."""

import hashlib
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote

import pyarrow as pa

from dagster_versioned.delta.partition_values import decode
from dagster_versioned.delta.schema import StructField, StructType, type_to_arrow
from dagster_versioned.delta.snapshot import load_snapshot
from dagster_versioned.engines.delta_table import delta_scan
from dagster_versioned.engines.part_cache import PartCache
from dagster_versioned.engines.scan import Check, Scan, ScanFile
from dagster_versioned.engines.spark.deletions import deleted_frame
from dagster_versioned.engines.spark.session import runs_here
from dagster_versioned.engines.spark.types import file_schema, spark_schema
from dagster_versioned.errors import IntegrityError, ObjectNotFound
from dagster_versioned.storage import open_store

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql import types as spark_types

CHECKERS = 16
RANGE_BYTES = 32 * 1024 * 1024


def read(scan: Scan, session: "SparkSession", *, check: Check = "size", s3_scheme: str | None = None) -> "DataFrame":
    """The scan's rows, with every column nullable and in the scan's order; columns that a file lacks are null.

    ``s3_scheme`` (``"s3a"``, or ``"s3"`` on EMR) says that Spark itself can reach the store on S3. Where it cannot, a
    session on this machine reads from a verified local cache, any other through a Python data source on its executors.
    Raises `IntegrityError` for a part that is missing or altered, before any row is computed.
    """
    if not scan.files:
        return session.createDataFrame([], spark_schema(scan.selected))
    with ThreadPoolExecutor(CHECKERS, thread_name_prefix="check") as pool:
        for done in [pool.submit(_check, scan, file, check) for file in scan.files]:
            done.result()
    if scan.store.local_path(scan.files[0].key) is None and s3_scheme is None and runs_here(session):
        scan = PartCache.default().localized(scan)
    if scan.mapping == "id" or len({file.key for file in scan.files}) < len(scan.files):
        # Spark finds columns by id only where the whole session says so; and only what reads a file with several
        # deletion vectors once for each can tell its rows apart.
        s3_scheme = None
    elif scan.store.local_path(scan.files[0].key) is not None:
        return _native(scan, session, [str(scan.store.local_path(file.key)) for file in scan.files])
    if s3_scheme is not None:
        urls = [re.sub(r"^s3(?=://)", s3_scheme, scan.store.url(file.key)) for file in scan.files]
        return _native(scan, session, urls)
    from dagster_versioned.engines.spark.source import read_through_executors

    return read_through_executors(scan, session)


def read_delta(
    session: "SparkSession",
    uri: str,
    version: int | None = None,
    *,
    profile: str | None = None,
    s3_scheme: str | None = None,
) -> "DataFrame":
    """The Delta table in the folder ``uri`` at a log version (``None``: the newest), without any JAR.

    ``profile`` names a profile of the AWS configuration files. Raises `TableNotFound`, `VersionNotFound`, `LogCorrupt`,
    `IntegrityError`, and `UnsupportedFeature`, by name, for what the table needs and is not implemented.
    """
    store = open_store(uri, profile=profile)
    return read(delta_scan(store, load_snapshot(store, version)), session, s3_scheme=s3_scheme)


def _check(scan: Scan, file: ScanFile, check: Check) -> None:
    try:
        found = scan.store.head(file.key).size
    except ObjectNotFound as error:
        raise IntegrityError(
            f"The part {file.key} is missing from {scan.store.uri}. No row was returned. Restore it from a copy, or "
            "materialize the version's asset again, which writes the same bytes."
        ) from error
    fault = f"has {found} bytes instead of {file.size}" if found != file.size else None
    if fault is None and check == "bytes" and file.sha256 is not None:
        sha256 = hashlib.sha256()
        for start in range(0, file.size, RANGE_BYTES):
            sha256.update(scan.store.get_range(file.key, start, RANGE_BYTES))
        if sha256.hexdigest() != file.sha256:
            fault = f"has the SHA-256 {sha256.hexdigest()} instead of {file.sha256}"
    if fault is not None:
        raise IntegrityError(
            f"The part {file.key} in {scan.store.uri} was altered: it {fault}. No row was returned. Restore it from a "
            "copy, or materialize the version's asset again, which writes the same bytes."
        )


def _native(scan: Scan, session: "SparkSession", paths: Sequence[str]) -> "DataFrame":
    """Spark's own Parquet reader on exactly these paths, one for each file of the scan."""
    from pyspark.sql import functions as sf

    partitioned = [name for name in scan.selected.names if name in scan.files[0].partition_values]
    stored = scan.selected.drop(partitioned)
    reader = session.read.schema(file_schema(stored, scan.mapping))
    # Spark globs what it is given, and there is no other way to say "this file".
    frame = reader.parquet(*(re.sub(r"([\\{}\[\]*?])", r"\\\1", path) for path in paths))
    deleted = deleted_frame(scan, session)
    if partitioned or deleted is not None:
        frame = _with_files(frame, scan, session, paths, partitioned, deleted)
    elif scan.mapping == "none":
        return frame
    else:
        frame = frame.toDF(*(f"_c{i}" for i in range(len(stored.fields))))
    targets = spark_schema(scan.selected)
    columns: list[Column] = []
    for name in scan.selected.names:
        if name in partitioned:
            columns.append(sf.col(f"_p{partitioned.index(name)}"))
            continue
        column = sf.col(f"_c{stored.names.index(name)}")
        # A cast between structs goes by place, so it gives nested fields the names that the table has for them.
        columns.append(column if scan.mapping == "none" else column.cast(targets[name].dataType))
    return frame.select(*columns).toDF(*scan.selected.names)


def _with_files(
    frame: "DataFrame",
    scan: Scan,
    session: "SparkSession",
    paths: Sequence[str],
    partitioned: list[str],
    deleted: "DataFrame | None",
) -> "DataFrame":
    """The rows that are not deleted, as columns ``_c0``, …, and their partition values, as ``_p0``, ….

    What is known by file is joined on by file: one broadcast table, however many files and partitions there are.
    """
    from pyspark.sql import functions as sf

    # Only Spark knows how it will spell a file's URI, so it is asked.
    spelled = {_bare(unquote(uri)): _bare(uri) for uri in frame.inputFiles()}
    values: dict[str, Any] = {
        "_file": pa.array([spelled[path] for path in paths], pa.string()),
        "_of": pa.array([i if file.deletion_vector else None for i, file in enumerate(scan.files)], pa.int32()),
    }
    for i, name in enumerate(partitioned):
        values[f"_p{i}"] = _column([file.partition_values[name] for file in scan.files], name, scan.schema)
    about = frame.metadataColumn("_metadata")
    names = [*(f"_c{i}" for i in range(len(frame.columns))), "_file"]
    extra = [sf.regexp_replace(about.getField("file_path"), "^file:/+", "/").alias("_file")]
    if deleted is not None:
        names.append("_row")
        extra.append(about.getField("row_index").alias("_row"))
    rows = frame.select("*", *extra).toDF(*names)
    # With its schema, because Spark takes Arrow's timestamps without a zone for instants.
    by_file = session.createDataFrame(pa.table(values), _schema_of(partitioned, scan.schema))
    joined = rows.join(sf.broadcast(by_file), "_file")
    if deleted is None:
        return joined
    # `_of` is null in rows of files without a vector, and null matches nothing.
    gone = (sf.col("_of") == sf.col("_deleted_of")) & (sf.col("_row") == sf.col("_deleted_row"))
    return joined.join(deleted, gone, "left_anti")


def _schema_of(partitioned: list[str], schema: StructType) -> "spark_types.StructType":
    values = [StructField(f"_p{i}", schema.field(name).type) for i, name in enumerate(partitioned)]
    return spark_schema(StructType([StructField("_file", "string"), StructField("_of", "integer"), *values]))


def _bare(uri: str) -> str:
    return re.sub("^file:/+", "/", uri)


def _column(texts: list[str | None], name: str, schema: StructType) -> Any:
    distinct = list(dict.fromkeys(texts))
    positions = {text: i for i, text in enumerate(distinct)}
    data_type = cast("str", schema.field(name).type)  # partition columns are never nested
    values = pa.array([decode(text, data_type) for text in distinct], type_to_arrow(data_type))
    return values.take(pa.array([positions[text] for text in texts], pa.int64()))
