"""Reading the change data feed of any Delta table."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import pyarrow as pa

from dagster_versioned.delta.files.external_files import with_external_files
from dagster_versioned.delta.files.partition_values import encode
from dagster_versioned.delta.log.change_feed import (
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    FEED,
    ChangedFile,
    ChangePlan,
    plan_changes,
)
from dagster_versioned.delta.paths import compute
from dagster_versioned.delta.schema.column_mapping import physical_name
from dagster_versioned.delta.schema.types import StructType
from dagster_versioned.engines.arrow.scan import read_table
from dagster_versioned.engines.scan import Scan, ScanFile
from dagster_versioned.errors import IntegrityError, InvalidInput, LogCorrupt, ObjectNotFound
from dagster_versioned.storage import open_store
from dagster_versioned.storage.object_store import ObjectStore

Place = int | datetime | str
"""Where a range begins or ends: a version, or a time with a zone, also as ISO 8601."""


def read_changes(
    uri: str,
    start: Place,
    end: Place | None = None,
    *,
    columns: Sequence[str] | None = None,
    profile: str | None = None,
    allow: Sequence[str] = (),
) -> pa.Table:
    """What the commits from ``start`` to ``end`` (both included; ``None``: the newest) changed, one row a change.

    The columns are the table's as of the last of these versions (or ``columns`` of them), then ``_change_type``
    (``insert``, ``delete``, ``update_preimage``, ``update_postimage``), ``_commit_version`` and ``_commit_timestamp``.
    Rows come by version. ``allow`` is that of `read_delta`. The table must have had ``delta.enableChangeDataFeed`` at
    all of them. Raises as `changes.plan_changes` and `read_delta`, and `IntegrityError` for a file that is gone, as
    vacuum takes them.
    """
    store = with_external_files(open_store(uri, profile=profile), allow, profile=profile)
    plan = plan_changes(store, place(start), None if end is None else place(end))
    table = pa.concat_tables([read_table(scan) for scan in change_scans(store, plan, columns)])
    return table.take(compute.sort_indices(table[COMMIT_VERSION]))


def place(given: Place) -> int | datetime:
    """A version or a time, however it was written. Raises `InvalidInput`."""
    if not isinstance(given, str):
        return given
    try:
        return datetime.fromisoformat(given)
    except ValueError:
        raise InvalidInput(
            f"{given!r:.50} is no time. Nothing was read. Write it as in 2026-01-31T12:00:00Z."
        ) from None


def change_scans(store: ObjectStore, plan: ChangePlan, columns: Sequence[str] | None = None) -> list[Scan]:
    """The scans that read a plan's changes: of files that tell what each change is, and of those that do not."""
    schema = StructType([*plan.schema.without_void().fields, *FEED])
    asked = None if columns is None else (*columns, *(field.name for field in FEED if field.name not in columns))
    named = {name: physical_name(plan.schema.field(name), plan.mapping) for name in plan.partition_columns}
    recorded = [_file(store, file, named) for file in plan.files if file.change is None]
    derived = [_file(store, file, named) for file in plan.files if file.change is not None]
    return [Scan(store, schema, tuple(files), asked, plan.mapping) for files in (recorded, derived)]


def _file(store: ObjectStore, file: ChangedFile, named: Mapping[str, str]) -> ScanFile:
    """What is the same for all changes of a file is read like partition values."""
    if missing := [name for name, physical in named.items() if physical not in file.partition_values]:
        raise LogCorrupt(
            f"Version {file.version}: the file {file.path!r} has no value for the partition columns {missing}."
            " Nothing was read."
        )
    values = {name: file.partition_values[physical] for name, physical in named.items()}
    values[COMMIT_VERSION] = encode(file.version, "long")
    values[COMMIT_TIMESTAMP] = encode(datetime.fromtimestamp(file.timestamp_ms / 1000, UTC), "timestamp")
    if file.change is not None:
        values[CHANGE_TYPE] = file.change
    return ScanFile(
        file.key,
        _size(store, file),
        partition_values=values,
        deletion_vector=file.deletion_vector,
        kept=file.only,
    )


def _size(store: ObjectStore, file: ChangedFile) -> int:
    if file.size is not None:
        return file.size
    try:
        return store.head(file.key).size
    except ObjectNotFound as error:
        raise IntegrityError(
            f"The file {file.key} in {store.uri}, which version {file.version} removed, is gone, so its rows are not"
            " known. No row was returned. Begin with a later version, or restore the file from a copy."
        ) from error


def feed_scan(
    store: ObjectStore, start: Place, end: Place | None, columns: Sequence[str] | None, newest: int | None = None
) -> Scan:
    """The changes from ``start`` to ``end``, or to the version ``newest``."""
    last = newest if end is None else place(end)
    recorded, derived = change_scans(store, plan_changes(store, place(start), last), columns)
    return replace(recorded, files=(*recorded.files, *derived.files))
