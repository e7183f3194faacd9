"""The Spark engine's writes to any Delta table: distributed, with stock PySpark and no JAR.

Rows never pass through the driver. It gets reports: which files were written, which rows of which files are gone.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dagster_versioned.delta.actions import Add, Cdc
from dagster_versioned.delta.files.file_actions import FILES, TOMBSTONES, no_rows
from dagster_versioned.delta.paths import decode_path
from dagster_versioned.delta_tables.dml import Positions, Target
from dagster_versioned.delta_tables.read import target_scan
from dagster_versioned.delta_tables.spark import task as delta_task
from dagster_versioned.delta_tables.spark.row_locations import (
    FILE,
    ROW,
    ROW_ID,
    ROW_VERSION,
    rows_with_locations,
)
from dagster_versioned.delta_tables.spark.rules import CompletedRows, new_columns, refuse_broken
from dagster_versioned.delta_tables.spark.task import REPORT_SCHEMA, DeltaTask, Report, packed
from dagster_versioned.engines.spark.by_value import self_contained
from dagster_versioned.engines.spark.executors import run_by_executors, runs_here
from dagster_versioned.errors import IntegrityError, ObjectNotFound, StorageError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


READERS = 16


class SparkWrites:
    """Rows of a table with where they lie, and rows written to files, by one session."""

    def __init__(self, session: "SparkSession") -> None:
        self._session = session

    def located(self, target: Target, files: Sequence[Add], *, ids: bool = False) -> "DataFrame":
        return rows_with_locations(self._session, target, files, ids=ids)

    def run(
        self,
        target: Target,
        rows: CompletedRows,
        *,
        change_feed: bool = False,
        data_change: bool = True,
        gone: Mapping[int, Positions] | None = None,
    ) -> Report:
        """Write the rows, in one pass. Raises `InvalidInput` for rows that break a rule."""
        task = DeltaTask(
            _without_files(target),
            change_feed,
            data_change,
            rows.steps,
            {number: packed(positions) for number, positions in (gone or {}).items()},
        )

        # A plain function, because Spark asks for its argument count and wants no other callable.
        def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return task(batches)

        with run_by_executors(self._session):
            collected = rows.frame.mapInArrow(self_contained(work), REPORT_SCHEMA).collect()
        steps = {name: column.step for name, column in target.rules.identity.items()}
        outcome = _joined([Report.from_bytes(bytes(row["report"])) for row in collected], steps)
        refuse_broken(rows.rules, outcome.broken, sum(outcome.rows.get(kind, 0) for kind in (1, 2)))
        if not runs_here(self._session):
            _require_files(target, [*outcome.adds, *outcome.cdcs])
        return outcome


def _joined(reports: Sequence[Report], steps: Mapping[str, int]) -> Report:
    found = Report(
        gone=_joined_places(report.gone for report in reports), stay=_joined_places(report.stay for report in reports)
    )
    for report in reports:
        found.adds += report.adds
        found.cdcs += report.cdcs
        for operation, count in report.rows.items():
            found.rows[operation] = found.rows.get(operation, 0) + count
        for rule, (count, example) in report.broken.items():
            known = found.broken.get(rule)
            found.broken[rule] = (count + known[0], known[1]) if known else (count, example)
        for name, mark in report.marks.items():
            furthest = max if steps[name] > 0 else min
            found.marks[name] = furthest(mark, found.marks.get(name, mark))
    return found


def _joined_places(reports: Iterable[Mapping[int, Positions]]) -> dict[int, Positions]:
    places: dict[int, list[Positions]] = {}
    for report in reports:
        for number, positions in report.items():
            places.setdefault(number, []).append(positions)
    return {number: np.sort(np.concatenate(found)) for number, found in places.items()}


def copied_columns(target: Target) -> "list[Column]":
    """The columns of located rows that move as they are, as a task takes them."""
    from pyspark.sql import functions as sf

    columns = [*new_columns(target), sf.lit(delta_task.COPY).cast("tinyint").alias(delta_task.OPERATION)]
    columns += [sf.col(FILE).alias(delta_task.FILE), sf.col(ROW).alias(delta_task.ROW)]
    if target.tracked:
        columns.append(sf.col(ROW_ID).alias(delta_task.ROW_ID))
        columns.append(sf.col(ROW_VERSION).alias(delta_task.ROW_VERSION))
    return columns


def row_counts(target: Target, files: Sequence[Add]) -> list[int]:
    """The rows of data files, with those that are deleted, by their footers: statistics may lie."""
    from dagster_versioned.engines.part_ranges import ranges

    def count(add: Add) -> int:
        scan = target_scan(target, [add])
        return pq.read_metadata(ranges(scan.store, scan.files[0])).num_rows

    with ThreadPoolExecutor(READERS, thread_name_prefix="footers") as pool:
        return list(pool.map(count, files))


def cardinality(add: Add) -> int:
    """How many rows of a file are deleted."""
    return 0 if add.deletion_vector is None else add.deletion_vector.cardinality


def require_all(copied: int, expected: int, target: Target) -> None:
    """Raise `IntegrityError` unless as many rows were copied as the log counts in the files: none may get lost."""
    if copied != expected:
        raise IntegrityError(
            f"{copied} rows of {target.store.uri} were read to be copied where the log counts {expected} in its files."
            " Nothing was committed. Look for a file that was altered, or whose statistics are wrong."
        )


def _without_files(target: Target) -> Target:
    """What a task needs to know of the table."""
    bare = replace(target.snapshot, files=no_rows(FILES), tombstones=no_rows(TOMBSTONES), domains={}, txns={})
    return replace(target, snapshot=bare)


def _require_files(target: Target, written: Sequence[Add | Cdc]) -> None:
    """Executors of other machines may have written to folders of their own, which nobody would ever read."""
    for action in written:
        if target.store.local_path(action.path) is None:
            return
        try:
            found = target.store.head(decode_path(action.path)).size
        except ObjectNotFound:
            found = None
        if found != action.size:
            raise StorageError(
                f"The folder {target.store.uri} is not the same for the Spark executors and the driver: {action.path!r}"
                " is not there. Nothing was committed. Use a folder that every executor shares, or a store on S3."
            )
