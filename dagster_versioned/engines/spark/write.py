"""A Spark frame to parts, in one pass over its rows."""

import os
import re
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from dagster_versioned.delta.files.arrow_memory import arrow_reader
from dagster_versioned.delta.schema.clustering import require_clusterable
from dagster_versioned.delta.schema.types import StructType, schema_to_arrow
from dagster_versioned.engines.conform import conform_all, refuse_no_rows
from dagster_versioned.engines.parquet_part import PartWriter
from dagster_versioned.engines.partition_values import require_partition_columns
from dagster_versioned.engines.parts import MEBIBYTE, Part, RowOrder, RowsSummary, StagedParts, WriteOptions
from dagster_versioned.engines.row_order import order_rows
from dagster_versioned.engines.row_size import fixed_size
from dagster_versioned.engines.spark.by_value import self_contained
from dagster_versioned.engines.spark.catalyst import is_classic, optimized_text
from dagster_versioned.engines.spark.executors import run_by_executors, runs_here
from dagster_versioned.engines.spark.releases import limits_batch_bytes, positional
from dagster_versioned.engines.spark.types import stored_schema
from dagster_versioned.engines.spark.worker import (
    ORDINALS_PER_TASK,
    REPORT_SCHEMA,
    Task,
    TaskReport,
    rows_from,
    together,
    with_lanes,
)
from dagster_versioned.engines.staging import Staging
from dagster_versioned.errors import InvalidInput
from dagster_versioned.identity.digest import RowsDigest, SequenceDigest

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row


_POSITION = "_position"
_LANES = ("_lane0", "_lane1")
_FLOATING = ("float", "double")

BATCH_BYTES = 128 * MEBIBYTE
"""What a batch of narrow rows may come to: as much as a row group, which a task holds anyway."""

_MAX_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_MAX_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_UNLIMITED = str(2**31 - 1)

# Nodes of plans in which Python gets batches, or may: what an RDD stands for is not in the plan.
_PYTHON = re.compile("Arrow|Pandas|Python|RDD")


def write(frame: "DataFrame", staging: Staging, options: WriteOptions, row_order: RowOrder) -> StagedParts:
    """Write a classic or Connect frame; see `Engine.write`.

    Only parts whose report was collected are returned: what failed, cancelled or speculative attempts leave in the
    staging is not referred to. (A cancelled task sees its input end early, and may finish a truncated part.)
    """
    schema = stored_schema(frame.schema, sort_columns=options.sort_columns, columns=options.columns)
    in_store = staging.store.local_path(staging.key("part")) is not None
    directory = staging.directory() if in_store or runs_here(frame.sparkSession) else None
    if directory is not None:
        directory.mkdir(parents=True, exist_ok=True)
    task = Task(schema, row_order, options, directory, None if in_store else staging.store, staging.prefix)
    with run_by_executors(frame.sparkSession):
        rows = _arranged(_positional(frame, schema), schema, options, row_order)
        reports = _run(rows, task)
    contents = _contents(schema, reports, row_order)
    refuse_no_rows(contents.nrow, allow_empty=options.allow_empty)
    return StagedParts(contents, tuple(_parts(reports, schema, staging, options, row_order)))


# --- before: the frame as the tasks want it --------------------------------------------------------------------------


def _positional(frame: "DataFrame", schema: StructType) -> "DataFrame":
    """The stored columns in their order, named ``_c0``, ``_c1``, …: dots and backticks break expressions."""
    positions = {name: i for i, name in enumerate(frame.columns)}
    by_place = positional(frame)
    order = [positions[name] for name in schema.names]
    if order == sorted(order):
        return by_place
    return positional(by_place.select(*(f"_c{i}" for i in order)))


def _arranged(rows: "DataFrame", schema: StructType, options: WriteOptions, row_order: RowOrder) -> "DataFrame":
    """The rows dealt to tasks: rows whose order counts all go through one task, in that order."""
    from pyspark.sql import functions as sf

    if options.partition_columns:
        require_partition_columns(schema, options.partition_columns)
        keys = [sf.col(f"_c{schema.names.index(name)}") for name in options.partition_columns]
        return rows.repartition(*keys).sortWithinPartitions(*keys)
    if options.cluster_by:
        require_clusterable(schema, options.cluster_by)
        keys = [sf.col(f"_c{schema.names.index(name)}").asc_nulls_last() for name in options.cluster_by]
        dealt = rows.repartition(1) if options.single_part else rows.repartitionByRange(*keys)
        return dealt.sortWithinPartitions(*keys)
    if options.sort_rows:
        keys = _sort_keys(schema, options.sort_rows)
        if all(isinstance(field.type, str) for field in schema.fields):
            return rows.repartition(1).sortWithinPartitions(*keys)
        return _with_lanes(rows, schema).repartition(1).sortWithinPartitions(*keys).drop(*_LANES)
    if row_order == "significant":
        # The order in which the frame would be collected: by partition, then by row. Neither coalesce nor a shuffle
        # promises to keep it. (A non-deterministic column also keeps Spark from dropping a sort below the shuffle.)
        ordered = rows.withColumn(_POSITION, sf.monotonically_increasing_id())
        return ordered.repartition(1).sortWithinPartitions(_POSITION).drop(_POSITION)
    return rows.coalesce(1) if options.single_part else rows


def _sort_keys(schema: StructType, keys: Sequence[str]) -> "list[Column]":
    """The order of `row_order.order_rows`, in which Spark agrees with Arrow about strings, NaN and zeros."""
    from pyspark.sql import functions as sf

    plain = [field.name for field in schema.fields if isinstance(field.type, str)]
    _require_sortable(schema, keys, plain)
    columns = {name: sf.col(f"_c{schema.names.index(name)}") for name in (*keys, *plain)}
    order = list(columns.values())
    if len(plain) < len(schema.fields):
        order += [sf.col(name) for name in _LANES]
    # Sorting takes -0.0 and 0.0 for equal. Asked only of rows that are equal in all else, so the text costs nothing.
    order += [c.cast("string") == "-0.0" for name, c in columns.items() if schema.field(name).type in _FLOATING]
    return [column.asc_nulls_last() for column in order]


def _require_sortable(schema: StructType, keys: Sequence[str], plain: Sequence[str]) -> None:
    for key in keys:
        if key not in schema.names:
            raise InvalidInput(
                f"sort_rows names {key!r}, which is no column. The frame has: "
                f"{', '.join(map(repr, schema.names))}. Nothing was written."
            )
        if key not in plain:
            raise InvalidInput(f"sort_rows names {key!r}, a nested column, which has no order. Nothing was written.")


def _with_lanes(rows: "DataFrame", schema: StructType) -> "DataFrame":
    """The rows and the two hashes of each, as signed numbers in the order of the unsigned ones."""
    from pyspark.sql import types as spark_types

    # A plain function, because Spark asks for its argument count and wants no other callable.
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return with_lanes(batches, schema, _LANES)

    lanes = [spark_types.StructField(name, spark_types.LongType()) for name in _LANES]
    return rows.mapInArrow(self_contained(run), spark_types.StructType([*rows.schema.fields, *lanes]))


# --- the pass --------------------------------------------------------------------------------------------------------


def _run(rows: "DataFrame", task: Task) -> list[tuple[TaskReport, bytes | None]]:
    """The reports of all tasks in the order of their partitions, with the rows of those that sent them home."""
    collected = _collected_narrow(rows, task) or _results(rows, task).collect()
    reports = [(TaskReport.from_bytes(bytes(row["report"])), _bytes(row["rows"])) for row in collected]
    return sorted(reports, key=lambda report: report[0].task)


def _bytes(value: bytes | bytearray | None) -> bytes | None:
    """A binary, which PySpark before 4.1 has as a `bytearray`."""
    return None if value is None else bytes(value)


def _results(rows: "DataFrame", task: Task) -> "DataFrame":
    # A plain function, because Spark asks for its argument count and wants no other callable.
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return task(batches)

    return rows.mapInArrow(self_contained(run), REPORT_SCHEMA)


def _collected_narrow(rows: "DataFrame", task: Task) -> "list[Row] | None":
    """What the tasks yield if all rows are narrow, at about half the cost to the JVM; ``None`` if that is not so."""
    guarded = narrow(rows, task.schema)
    if guarded is None:
        return None
    results = _results(guarded, replace(task, guarded=True))
    if not takes_all_batches(results):
        return None
    with unlimited_batches(rows):
        collected = results.collect()
    return collected if all(row["report"] is not None for row in collected) else None


# --- after: one version out of many tasks ----------------------------------------------------------------------------


def _contents(schema: StructType, reports: list[tuple[TaskReport, bytes | None]], row_order: RowOrder) -> RowsSummary:
    bag, null_counts = together((report for report, _ in reports), schema)
    digest = bag.finish()
    if row_order == "significant":
        texts = [report.sequence for report, _ in reports]
        empty = SequenceDigest(schema_to_arrow(schema))
        digest = RowsDigest.parse(texts[0]) if texts and texts[0] is not None else empty.finish()
    return RowsSummary(schema, digest.nrow, null_counts, digest)


def _parts(
    reports: list[tuple[TaskReport, bytes | None]],
    schema: StructType,
    staging: Staging,
    options: WriteOptions,
    row_order: RowOrder,
) -> list[Part]:
    staged = [_located(part, staging) for report, _ in reports for part in report.parts]
    small = [
        (report.task, rows) for report, at_home in reports if (rows := _rows(report, at_home, staging)) is not None
    ]
    if row_order == "ignored" and not options.partition_columns and _fit_one_part(reports, options):
        tables = [table for _, table in small] + [_rows_of(part, schema, staging) for part in staged]
        return _written(order_rows(pa.concat_tables(tables), options.cluster_by), schema, staging, options)
    if small:
        rows = pa.concat_tables([table for _, table in small])
        # The number of a task that made no part of its own: no other part can have it.
        own = replace(options, first_ordinal=options.first_ordinal + small[0][0] * ORDINALS_PER_TASK)
        ordered = order_rows(rows, options.cluster_by) if options.cluster_by else rows
        staged += _written(ordered, schema, staging, own)
    return sorted(staged, key=lambda part: part.ordinal)


def _fit_one_part(reports: list[tuple[TaskReport, bytes | None]], options: WriteOptions) -> bool:
    """Whether there are rows, and no more than the driver puts in order."""
    most = options.tuning.canonical_bytes
    if not options.single_part:
        most = min(most, options.target_part_bytes)
    return bool(reports) and sum(report.size for report, _ in reports) <= most


def _rows(report: TaskReport, at_home: bytes | None, staging: Staging) -> pa.Table | None:
    """The rows of a task that made no part of them."""
    if report.plain is not None:
        return rows_from(staging.directory() / report.plain)
    return None if at_home is None else rows_from(at_home)


def _written(rows: pa.Table, schema: StructType, staging: Staging, options: WriteOptions) -> list[Part]:
    writer = PartWriter(schema, staging.directory(), options)
    try:
        for batch in rows.to_batches():
            writer.write(batch)
        return writer.close()
    except BaseException:
        writer.abort()
        raise


def _located(part: Part, staging: Staging) -> Part:
    """The part with a source that `Staging.promote` understands."""
    source = str(part.source)
    if source.startswith(staging.prefix):
        return part
    if staging.store.local_path(staging.key(source)) is not None:
        return replace(part, source=staging.key(source))
    return replace(part, source=staging.directory() / source)


def _rows_of(part: Part, schema: StructType, staging: Staging) -> pa.Table:
    path = part.source if isinstance(part.source, Path) else staging.store.local_path(str(part.source))
    source = arrow_reader(staging.store.get(str(part.source))) if path is None else path
    table = pq.read_table(source)
    return pa.Table.from_batches(conform_all(table.to_batches(), schema), schema_to_arrow(schema))


def narrow(rows: "DataFrame", schema: StructType) -> "DataFrame | None":
    """The rows and one more column that says whether a row is too wide; the strings of such a row are null.

    Spark hands rows to Python in batches of at most ``maxRecordsPerBatch`` rows and ``maxBytesPerBatch`` (64 MB), and
    to keep to the latter it adds up all buffers of all columns once a row: half of what the JVM did in a write of 7
    columns. Rows that are all narrow keep within a bound without being asked, since their number is bounded.

    ``None`` where that is unknown or would not help: columns that are neither strings nor of fixed size (a binary
    is wide as a rule), a session that sets the limit itself, Spark Connect, a release without the limit.
    """
    if (batch_rows := _bounding_rows(rows)) <= 0:
        return None
    sizes = dict(zip(rows.columns, map(fixed_size, schema_to_arrow(schema).types), strict=True))
    strings = [name for name, field in zip(rows.columns, schema.fields, strict=True) if field.type == "string"]
    if any(size is None and name not in strings for name, size in sizes.items()):
        return None
    room = BATCH_BYTES // batch_rows - sum(size or 0 for size in sizes.values())
    # As text: each function of PySpark's is several calls to the JVM. The names are `_c0`, `_c1`, …
    wide = " + ".join(["0L", *(f"coalesce(CAST(octet_length({name}) AS BIGINT), 0L)" for name in strings)])
    kept = [f"CASE WHEN NOT _wide THEN {name} END AS {name}" if name in strings else name for name in rows.columns]
    return rows.selectExpr("*", f"{wide} > {room}L AS _wide").selectExpr(*kept, "_wide")


def _bounding_rows(rows: "DataFrame") -> int:
    """How many rows of a batch bound it where its bytes are not asked for; 0 where they are, or cannot but be."""
    session = rows.sparkSession
    if not limits_batch_bytes() or not is_classic(type(rows)) or not _pinned_threads():
        return 0
    return int(session.conf.get(_MAX_ROWS) or 0) if session.conf.get(_MAX_BYTES, None) is None else 0


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
