"""Reading any Delta table with Spark, ours or not: as it was at a log version, and what changed."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from dagster_versioned.delta.files.external_files import with_external_files
from dagster_versioned.delta.log.change_feed import plan_changes
from dagster_versioned.delta.table import Table
from dagster_versioned.delta_tables.change_feed import Place, change_scans, place
from dagster_versioned.delta_tables.read import delta_scan, reading
from dagster_versioned.delta_tables.spark.log_plan import LogPlan, large_log, plan_if_large
from dagster_versioned.engines.scan import Scan
from dagster_versioned.engines.spark.assignment import spelled
from dagster_versioned.engines.spark.read import read
from dagster_versioned.engines.spark.refused_expressions import translate_spark_errors
from dagster_versioned.storage import open_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read_delta(
    session: "SparkSession",
    uri: str,
    version: int | None = None,
    columns: Sequence[str] | None = None,
    filter: str | None = None,  # noqa: A002 - what it is called everywhere
    *,
    timestamp: datetime | str | None = None,
    row_ids: bool = False,
    profile: str | None = None,
    allow: Sequence[str] = (),
    s3_scheme: str | None = None,
) -> "DataFrame":
    """The Delta table in the folder ``uri`` at a log version, or at a time (neither: the newest), without any JAR.

    ``filter`` is a condition in Spark SQL: rows of which it is true are returned, and files that can hold none by
    their partition values and statistics are not part of the plan. ``row_ids`` adds the columns `_row_id` and
    `_row_commit_version` of a table that tracks its rows. ``timestamp`` is a `datetime` with a zone, or ISO 8601.
    ``profile`` names a profile of the AWS configuration files, ``allow`` the folders outside the table's own that its
    files may be in.

    A log with more than five million file actions in its checkpoint (``DAGSTER_VERSIONED_LARGE_LOG``) is replayed by
    the cluster, which then also finds out which files are read, and checks them as it reads them. Raises
    `TableNotFound`, `VersionNotFound`, `LogCorrupt`, `IntegrityError`, `InvalidInput`, and `UnsupportedFeature`, by
    name, for what the table needs and is not implemented.
    """
    table = Table(uri, profile=profile, allow=allow)
    plan = None
    if version is None or timestamp is None:  # of both, the table says that it is one too many
        plan = plan_if_large(session, table.store, version, timestamp)
    snapshot = table.snapshot(version, timestamp) if plan is None else plan.head
    # A filter may need columns that are not asked for.
    wanted = columns if filter is None else None
    with reading(table.store, snapshot):
        scan = delta_scan(table.store, snapshot, wanted, filter, row_ids=row_ids)
        if plan is None:
            frame = read(scan, session, s3_scheme=s3_scheme)
        else:
            frame = _planned(plan, scan, session, filter, row_ids=row_ids, s3_scheme=s3_scheme)
        if filter is None:
            return frame
        with translate_spark_errors([filter], "Nothing was read."):
            frame = frame.where(filter)
    return frame if columns is None else _selected(frame, scan, columns)


def _selected(frame: "DataFrame", scan: Scan, columns: Sequence[str]) -> "DataFrame":
    names = replace(scan, columns=(*columns, *(name for name in scan.tracked if name not in columns))).selected.names
    return frame.select(*(frame[spelled(name)] for name in names))


def read_changes(
    session: "SparkSession",
    uri: str,
    start: Place,
    end: Place | None = None,
    *,
    columns: Sequence[str] | None = None,
    profile: str | None = None,
    allow: Sequence[str] = (),
    s3_scheme: str | None = None,
) -> "DataFrame":
    """What the commits from ``start`` to ``end`` changed, as `change_feed.read_changes` has it, in no order."""
    store = with_external_files(open_store(uri, profile=profile), allow, profile=profile)
    plan = plan_changes(store, place(start), None if end is None else place(end))
    recorded, derived = (read(scan, session, s3_scheme=s3_scheme) for scan in change_scans(store, plan, columns))
    return recorded.unionAll(derived)


def _planned(
    plan: LogPlan, scan: Scan, session: "SparkSession", condition: str | None, *, row_ids: bool, s3_scheme: str | None
) -> "DataFrame":
    """The rows of a log that the cluster replayed, as ``scan``, which has no files, has them.

    Where the condition leaves few files, they are read as those of any other table.
    """
    from dagster_versioned.delta_tables.spark.planned_rows import planned_rows  # which imports pyspark

    plan = plan.narrowed(condition)
    figures = plan.figures()
    if figures.num_files > large_log():
        return planned_rows(plan, figures, scan, row_ids=row_ids)
    few = delta_scan(scan.store, plan.live(), scan.columns, row_ids=row_ids)
    return read(few, session, s3_scheme=s3_scheme)
