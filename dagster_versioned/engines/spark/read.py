"""Exact files to a Spark frame. The frame is pinned to them: a later commit never changes what it returns."""

import hashlib
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self, cast
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from dagster_versioned.delta.schema.column_mapping import PHYSICAL_NAME, logical_type, stored_names
from dagster_versioned.delta.schema.types import StructField, StructType, schema_from_arrow, type_to_arrow
from dagster_versioned.delta.schema.widening import is_wider_within
from dagster_versioned.engines.part_cache import PartCache
from dagster_versioned.engines.scan import ROW_ID, Check, Scan, ScanFile, missing_part
from dagster_versioned.engines.spark.catalyst import metadata_column
from dagster_versioned.engines.spark.deletions import deleted_frame, kept_frame
from dagster_versioned.engines.spark.executors import plans_here, runs_here
from dagster_versioned.engines.spark.float_filters import holds_floats, kept_by_spark, reader_options
from dagster_versioned.engines.spark.numbered_tasks import in_tasks
from dagster_versioned.engines.spark.part_rows import rows_of_part
from dagster_versioned.engines.spark.releases import (
    from_arrow,
    parquet_reader,
    positional,
    pushes_filters,
    reads_widened,
    release,
)
from dagster_versioned.engines.spark.types import file_schema, spark_schema
from dagster_versioned.errors import IntegrityError, ObjectNotFound, VersionedError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


CHECKERS = 16
_HIDDEN = re.compile(r"(^|/)[_.][^/]*$|\._COPYING_$")
"""Names that Spark takes for files in the making, though the log says that they are the table's."""

RANGE_BYTES = 32 * 1024 * 1024
MANY_FOOTERS = 1_000
"""Files whose footers are read to see whether Spark's own reader can find their columns."""


def read(scan: Scan, session: "SparkSession", *, check: Check = "size", s3_scheme: str | None = None) -> "DataFrame":
    """The scan's rows, with every column nullable and in the scan's order; columns that a file lacks are null.

    ``s3_scheme`` (``"s3a"``, or ``"s3"`` on EMR) says that Spark itself can reach the store on S3. Where it cannot, a
    session on this machine reads from a verified local cache, any other through its executors.
    Raises `IntegrityError` for a part that is missing or altered, before any row is computed.
    """
    release()
    if not scan.files:
        return session.createDataFrame([], spark_schema(scan.selected))
    check_files(scan, check)
    paths = _local_paths(scan)
    if paths is None and s3_scheme is None and runs_here(session):
        scan = PartCache.default().localized(scan)
        paths = _local_paths(scan)
    scan = by_name(scan) or scan
    if not _finds_all(scan):
        return read_through_executors(scan, session)
    if paths is not None:
        return _native(scan, session, paths)
    if s3_scheme is not None:
        urls = [re.sub(r"^s3(?=://)", s3_scheme, scan.store.url(file.key)) for file in scan.files]
        return _native(scan, session, urls)
    return read_through_executors(scan, session)


def read_through_executors(scan: Scan, session: "SparkSession") -> "DataFrame":
    """The scan's rows, fetched by the session's executors through our own `ObjectStore`, one task a part.

    For stores that Spark cannot reach, with no JAR; every part's SHA-256 is checked there.
    """
    schema = spark_schema(scan.selected)
    if pushes_filters(session) and plans_here(session):
        from dagster_versioned.engines.spark.source import FilteredPartsSource, loaded

        return loaded(session, FilteredPartsSource, scan, schema)
    return in_tasks(session, len(scan.files), partial(rows_of_part, scan), schema)


def _finds_all(scan: Scan) -> bool:
    """Whether Spark's own reader finds all columns of all files.

    It finds columns by id only where the whole session says so; some files it passes over without a word; and that of
    3.5 has no values of a narrower type than it is asked for.
    """
    return scan.mapping != "id" and not has_hidden(scan) and (reads_widened() or _all_footers(scan, _none_narrower))


def _local_paths(scan: Scan) -> list[str] | None:
    """Where the files are, if all of them are in local folders."""
    paths = list[str]()
    for file in scan.files:
        path = scan.store.local_path(file.key)
        if path is None:
            return None
        paths.append(str(path))
    return paths


def has_hidden(scan: Scan) -> bool:
    """Whether Spark's own reader would pass over a file of the scan without a word."""
    return any(_HIDDEN.search(file.key) for file in scan.files)


def check_files(scan: Scan, check: Check = "size") -> None:
    """Raise `IntegrityError` for a file that is missing or altered."""
    with ThreadPoolExecutor(CHECKERS, thread_name_prefix="check") as pool:
        for done in [pool.submit(_check, scan, file, check) for file in scan.files]:
            done.result()


def _check(scan: Scan, file: ScanFile, check: Check) -> None:
    try:
        found = scan.store.head(file.key).size
    except ObjectNotFound as error:
        raise missing_part(scan.store, file) from error
    fault = f"has {found} bytes instead of {file.size}" if found != file.size else None
    if found == 0:
        fault = "is empty, which no Parquet file is"  # and which Spark passes over
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

    if unsigned := _unsigned(scan):
        # Spark has such values as decimals alone.
        fields = [
            replace(field, type="decimal(20,0)") if field.name in unsigned else field for field in scan.schema.fields
        ]
        wide = _by_spark(replace(scan, schema=StructType(fields)), session, paths)
        named = {name: sf.col(f"`{name.replace('`', '``')}`") for name in scan.selected.names}
        longs = {name: named[name].cast("long").alias(name) for name in unsigned if name in named}
        return wide.select(*(named | longs).values())
    return _by_spark(scan, session, paths)


def _unsigned(scan: Scan) -> set[str]:
    """The columns of a history's slices that are ``uint64`` in the files and ``long`` in the table.

    Slices, unlike parts, have a name without a suffix. A chain gives a column one type, so the first answers for all.
    """
    first = scan.files[0]
    if "." in first.key.rpartition("/")[2]:
        return set()
    found: set[str] = set()

    def asked(_: Scan, __: Sequence[StructField], stored: pa.Schema) -> bool:
        kinds = dict(zip(stored.names, cast("list[Any]", stored.types), strict=True))
        found.update(
            field.name for field in scan.schema.fields if kinds.get(field.name) == pa.uint64() and field.type == "long"
        )
        return True

    _by_footer(scan, asked, first)
    return found


def _by_spark(scan: Scan, session: "SparkSession", paths: Sequence[str]) -> "DataFrame":
    from pyspark.sql import functions as sf

    plan = _Columns.of(scan)
    reader = parquet_reader(session, file_schema(plan.read, scan.mapping)).options(**reader_options(scan))
    # Spark globs what it is given, and there is no other way to say "this file".
    once = list(dict.fromkeys(paths))
    frame = reader.parquet(*(re.sub(r"([\\{}\[\]*?])", r"\\\1", path) for path in once))
    deleted, kept = deleted_frame(scan, session), kept_frame(scan, session)
    if plan.constant or plan.tracked or deleted is not None or kept is not None or len(once) < len(paths):
        frame = _with_files(frame, scan, session, paths, plan, deleted, kept)
    elif scan.mapping == "none" and not holds_floats(scan.selected, scan.without_nan):
        return frame
    else:
        frame = positional(frame)
    targets = spark_schema(scan.selected)

    def column(name: str) -> "Column":
        if name in plan.constant:
            return sf.col(f"_p{plan.constant.index(name)}")
        if name in plan.tracked:
            held = sf.col(f"_c{len(plan.stored.fields) + plan.tracked.index(name)}")
            first = sf.col("_base") + sf.col("_row") if name == ROW_ID else sf.col("_default")
            return sf.coalesce(held, first)
        stored = sf.col(f"_c{plan.stored.names.index(name)}")
        # A cast between structs goes by place, so it gives nested fields the names that the table has for them.
        stored = stored if scan.mapping == "none" else stored.cast(targets[name].dataType)
        return kept_by_spark(stored, name, scan)

    return frame.select(*map(column, scan.selected.names)).toDF(*scan.selected.names)


@dataclass(frozen=True, slots=True)
class _Columns:
    """Where the columns of a scan come from: files, what is known by file, or both, as ids of rows do.

    ``read`` is what is read from files: ``stored``, then the columns that hold what is ``tracked``.
    """

    stored: StructType
    constant: list[str]
    tracked: list[str]
    read: StructType

    @classmethod
    def of(cls, scan: Scan) -> Self:
        selected = scan.selected
        constant = [name for name in selected.names if name in scan.files[0].partition_values]
        tracked = [name for name in selected.names if name in scan.tracked]
        stored = selected.drop([*constant, *tracked])
        physical = [scan.tracked[name] for name in tracked]
        held = [StructField(name, "long", True, {PHYSICAL_NAME: name}) for name in physical]
        return cls(stored, constant, tracked, StructType([*stored.fields, *held]))


def _with_files(
    frame: "DataFrame",
    scan: Scan,
    session: "SparkSession",
    paths: Sequence[str],
    plan: _Columns,
    deleted: "DataFrame | None",
    kept: "DataFrame | None",
) -> "DataFrame":
    """The rows that remain, once for each time that their file is in the scan, as columns ``_c0``, …, and what is known
    by file: the values of ``plan.constant`` as ``_p0``, …, and ``_base`` and ``_default`` for ids.

    What is known by file is joined on by file: one broadcast table, however many files and partitions there are.
    """
    from pyspark.sql import functions as sf

    # Only Spark knows how it will spell a file's URI, so it is asked.
    spelled = {_bare(unquote(uri)): _bare(uri) for uri in frame.inputFiles()}
    known, schema = _known_by_file(scan, [spelled[path] for path in paths], plan.constant)
    about = metadata_column(frame)
    names = [*(f"_c{i}" for i in range(len(frame.columns))), "_file"]
    extra = [sf.regexp_replace(about.getField("file_path"), "^file:/+", "/").alias("_file")]
    if deleted is not None or kept is not None or plan.tracked:
        names.append("_row")
        extra.append(about.getField("row_index").alias("_row"))
    rows = frame.select("*", *extra).toDF(*names)
    # With its schema, because Spark takes Arrow's timestamps without a zone for instants.
    rows = rows.join(sf.broadcast(from_arrow(session, known, spark_schema(schema))), "_file")
    # `_of` and `_only` are null in rows of files without such a vector, and null matches nothing.
    if deleted is not None:
        gone = (sf.col("_of") == sf.col("_deleted_of")) & (sf.col("_row") == sf.col("_deleted_row"))
        rows = rows.join(deleted, gone, "left_anti")
    if kept is not None:
        chosen = (sf.col("_only") == sf.col("_kept_of")) & (sf.col("_row") == sf.col("_kept_row"))
        rows = rows.join(kept, chosen, "left").where("_only is null or _kept_row is not null")
    return rows


def _known_by_file(scan: Scan, paths: Sequence[str], constant: Sequence[str]) -> tuple[pa.Table, StructType]:
    """What is known of each file, and the types of that; ``paths`` are as Spark spells them."""
    files = scan.files
    held: list[tuple[str, str, Any]] = [
        ("_file", "string", pa.array(paths, pa.string())),
        ("_of", "integer", pa.array([i if file.deletion_vector else None for i, file in enumerate(files)], pa.int32())),
        ("_only", "integer", pa.array([i if file.kept else None for i, file in enumerate(files)], pa.int32())),
        ("_base", "long", pa.array([file.base_row_id for file in files], pa.int64())),
        ("_default", "long", pa.array([file.default_row_commit_version for file in files], pa.int64())),
    ]
    for i, name in enumerate(constant):
        held.append((f"_p{i}", cast("str", scan.schema.field(name).type), _column(files, name, scan.schema)))
    schema = StructType([StructField(name, data_type) for name, data_type, _ in held])
    return pa.table({name: values for name, _, values in held}), schema


def by_name(scan: Scan) -> Scan | None:
    """A scan by ids with columns found by their physical names; ``None`` where that may be another column in a file.

    Writers give columns both, so both are the same in every file but those that were taken over from elsewhere.
    """
    is_same = scan.mapping == "id" and _all_footers(scan, _same_by_name)
    return replace(scan, mapping="name") if is_same else None


def _all_footers(scan: Scan, asked: Callable[[Scan, Sequence[StructField], pa.Schema], bool]) -> bool:
    """Whether what is asked of a file's columns is so in each file, by its footer; not if there are too many."""
    if len(scan.files) > MANY_FOOTERS:
        return False
    with ThreadPoolExecutor(CHECKERS, thread_name_prefix="footers") as pool:
        return all(pool.map(partial(_by_footer, scan, asked), scan.files))


def _by_footer(scan: Scan, asked: Callable[[Scan, Sequence[StructField], pa.Schema], bool], file: ScanFile) -> bool:
    from dagster_versioned.engines.part_ranges import ranges

    wanted = [field for field in scan.schema.fields if field.name not in {*file.partition_values, *scan.tracked}]
    try:
        return asked(scan, wanted, pq.read_schema(ranges(scan.store, file)))
    except (VersionedError, pa.ArrowException, OSError):
        return False  # Whoever reads the file says what is wrong with it.


def _same_by_name(_: Scan, wanted: Sequence[StructField], stored: pa.Schema) -> bool:
    names = stored_names(wanted, stored, "id")
    types = {name: cast("Any", stored.field(column)).type for name, column in names.items()}
    return names == stored_names(wanted, stored, "name") and all(
        logical_type(types[field.name], field.type, "id") == logical_type(types[field.name], field.type, "name")
        for field in wanted
        if field.name in names
    )


def _none_narrower(scan: Scan, wanted: Sequence[StructField], stored: pa.Schema) -> bool:
    """Whether no column, at any depth, has a narrower type than the table has by now."""
    types = {
        name: logical_type(cast("Any", stored.field(column)).type, scan.schema.field(name).type, scan.mapping)
        for name, column in stored_names(wanted, stored, scan.mapping).items()
    }
    return not is_wider_within(schema_from_arrow(pa.schema(types)), scan.schema)


def _bare(uri: str) -> str:
    return re.sub("^file:/+", "/", uri)


def _column(files: Sequence[ScanFile], name: str, schema: StructType) -> Any:
    data_type = cast("str", schema.field(name).type)  # partition columns are never nested
    distinct = {file.partition_values[name]: file for file in reversed(files)}
    positions = {text: i for i, text in enumerate(distinct)}
    values = pa.array([file.partition_value(name, data_type) for file in distinct.values()], type_to_arrow(data_type))
    return values.take(pa.array([positions[file.partition_values[name]] for file in files], pa.int64()))
