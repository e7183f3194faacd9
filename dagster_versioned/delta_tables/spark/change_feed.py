"""Reading the change data feed of any Delta table with Spark."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dagster_versioned.delta.files.external_files import with_external_files
from dagster_versioned.delta.log.change_feed import plan_changes
from dagster_versioned.delta_tables.change_feed import Place, change_scans, place
from dagster_versioned.engines.spark.read import read
from dagster_versioned.storage import open_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


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
