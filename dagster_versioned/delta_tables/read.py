"""Reading any Delta table, ours or not, as it was at a log version."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dagster_versioned.delta.actions import Add, PartitionValues
from dagster_versioned.delta.commit.row_tracking import ENABLED, RowTracking
from dagster_versioned.delta.files.file_actions import to_adds
from dagster_versioned.delta.files.predicate import parse_predicate
from dagster_versioned.delta.files.skipping import candidates
from dagster_versioned.delta.log.snapshot import Snapshot
from dagster_versioned.delta.paths import compute
from dagster_versioned.delta.schema.column_mapping import PHYSICAL_NAME, physical_name
from dagster_versioned.delta.schema.types import StructField, StructType
from dagster_versioned.delta.table import Table
from dagster_versioned.delta_tables.dml import Target
from dagster_versioned.engines.arrow.scan import RowFilter, read_table
from dagster_versioned.engines.part_order import part_order
from dagster_versioned.engines.scan import ROW_COMMIT_VERSION, ROW_ID, Scan, ScanFile
from dagster_versioned.errors import InvalidInput, LogCorrupt, VersionedError
from dagster_versioned.storage.object_store import ObjectStore


def read_delta(
    uri: str | ObjectStore,
    version: int | None = None,
    columns: Sequence[str] | None = None,
    filter: str | None = None,  # noqa: A002 - what it is called everywhere
    *,
    timestamp: datetime | str | None = None,
    row_ids: bool = False,
    profile: str | None = None,
    allow: Sequence[str] = (),
) -> pa.Table:
    """The rows of the Delta table in the folder ``uri`` at a log version, or at a time (neither: the newest).

    ``filter`` is a condition in Spark SQL: rows of which it is true are returned, and files that can hold none by
    their partition values and statistics are not read. ``row_ids`` adds the columns `_row_id` and
    `_row_commit_version` of a table that tracks its rows. ``timestamp`` is a `datetime` with a zone, or ISO 8601.

    Partition values are columns, in the place that the schema gives them; columns of type ``void`` are left out. Rows
    of tables written by this package come in their order; Delta gives other tables' files none, so theirs come in path
    order. ``profile`` names a profile of the AWS configuration files, ``allow`` the folders outside the table's own
    that its files may be in. Raises `TableNotFound`, `VersionNotFound`, `LogCorrupt`, `IntegrityError`, `InvalidInput`
    for a filter or column that the table cannot answer, and `UnsupportedFeature`, by name, for what the table needs and
    is not implemented, before a row is returned.
    """
    table = Table(uri, profile=profile, allow=allow)
    snapshot = table.snapshot(version, timestamp)
    with reading(table.store, snapshot):
        scan = delta_scan(table.store, snapshot, columns, filter, row_ids=row_ids)
        return read_table(scan) if filter is None else _filtered(scan, filter)


def _filtered(scan: Scan, condition: str) -> pa.Table:
    from dagster_versioned.engines import sql
    from dagster_versioned.engines.expression import stored

    names = sql.Names({"": scan.schema})
    resolved = names.resolve(condition)
    asked = scan.selected.names
    needed = [name for name in scan.schema.names if name in resolved.of("") and name not in asked]
    wider = replace(scan, columns=(*asked, *needed))

    def chosen(rows: pa.Table) -> NDArray[np.bool_]:
        columns = {stored("", name): rows[name] for name in resolved.of("")}
        return sql.is_true(sql.table_of(columns, rows.num_rows), resolved)

    only = RowFilter(parse_predicate(condition, scan.schema), chosen)
    return read_table(wider, only).select(list(asked))


@contextmanager
def reading(store: ObjectStore, snapshot: Snapshot) -> Generator[None]:
    """Have every error of ours tell which version of which table could not be read."""
    try:
        yield
    except VersionedError as error:
        error.add_note(f"While reading version {snapshot.version} of {store.uri}.")
        raise


def delta_scan(
    store: ObjectStore,
    snapshot: Snapshot,
    columns: Sequence[str] | None = None,
    filter: str | None = None,  # noqa: A002 - what it is called everywhere
    *,
    row_ids: bool = False,
) -> Scan:
    """The scan that reads a snapshot of the table whose folder is the store's root.

    With a ``filter``, of the files that may hold a row which satisfies it; the rows are still to be filtered.
    """
    files, schema, mapping = snapshot.files, snapshot.schema, snapshot.column_mapping
    if filter is not None:
        predicate = parse_predicate(filter, schema)
        files = candidates(files, predicate, schema, mapping, snapshot.partition_columns)
    named = {name: physical_name(schema.field(name), mapping) for name in snapshot.partition_columns}
    schema = schema.without_void()
    tracked = _tracked(snapshot) if row_ids else {}
    if tracked:
        # No file has a column that is called so, whatever its columns are called.
        added = [StructField(name, "long", True, {PHYSICAL_NAME: name}) for name in tracked]
        schema = StructType([*schema.fields, *added])
    asked = None if columns is None else (*columns, *(name for name in tracked if name not in columns))
    scanned = tuple(scan_file(add, _partition_values(add, named)) for add in sorted(to_adds(files), key=part_order))
    return Scan(store, schema, scanned, asked, mapping, tracked)


def target_scan(target: Target, files: Sequence[Add]) -> Scan:
    """All columns of files of a table that is written to."""
    schema, mapping = target.snapshot.schema, target.rules.mapping
    named = {name: physical_name(schema.field(name), mapping) for name in target.snapshot.partition_columns}
    scanned = tuple(scan_file(add, _partition_values(add, named)) for add in files)
    return Scan(target.store, schema, scanned, None, mapping)


def kept_ids(scan: Scan, tracked: Sequence[str]) -> tuple[Any, Any]:
    """The ids and commit versions that the rows of a scan's one file keep, of deleted rows too; ``tracked`` are the
    columns that hold those of rows that have moved."""
    (file,) = scan.files
    schema = StructType([StructField(name, "long") for name in tracked])
    ids, versions = read_table(replace(scan, schema=schema, mapping="none")).columns
    if file.base_row_id is not None:
        places: Any = pa.array(np.arange(len(ids), dtype=np.int64) + file.base_row_id)
        ids = compute.coalesce(ids, pa.chunked_array([places]))
    if file.default_row_commit_version is not None:
        versions = compute.fill_null(versions, file.default_row_commit_version)
    return ids, versions


def scan_file(add: Add, partition_values: PartitionValues) -> ScanFile:
    """The file of an action; ``partition_values`` are by the columns' names in the table."""
    return ScanFile(
        add.key,
        add.size,
        partition_values=partition_values,
        deletion_vector=add.deletion_vector,
        base_row_id=add.base_row_id,
        default_row_commit_version=add.default_row_commit_version,
    )


def _tracked(snapshot: Snapshot) -> dict[str, str]:
    if not snapshot.metadata.is_set(ENABLED):
        raise InvalidInput(f"The table does not track its rows: {ENABLED} is not set. Read it without row_ids.")
    if taken := {ROW_ID, ROW_COMMIT_VERSION} & set(snapshot.schema.names):
        raise InvalidInput(f"The table has columns {sorted(taken)} of its own. Read it without row_ids.")
    tracking = RowTracking.of(snapshot.metadata)
    return {ROW_ID: tracking.materialized_row_id, ROW_COMMIT_VERSION: tracking.materialized_row_commit_version}


def _partition_values(add: Add, named: Mapping[str, str]) -> PartitionValues:
    """The file's values by the columns' names in the table."""
    try:
        return {name: add.partition_values[physical] for name, physical in named.items()}
    except KeyError as missing:
        raise LogCorrupt(
            f"The file {add.path!r} has no value for the partition column {missing}. Nothing was read."
        ) from missing
