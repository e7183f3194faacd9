"""Reading any Delta table, ours or not, as it was at a log version."""

from collections.abc import Mapping, Sequence

import pyarrow as pa

from dagster_versioned.delta.actions import Add, PartitionValues
from dagster_versioned.delta.column_mapping import physical_name
from dagster_versioned.delta.snapshot import Snapshot, load_snapshot
from dagster_versioned.engines.arrow_scan import read_table
from dagster_versioned.engines.part_order import part_order
from dagster_versioned.engines.scan import Scan, ScanFile
from dagster_versioned.errors import LogCorrupt
from dagster_versioned.storage import open_store
from dagster_versioned.storage.object_store import ObjectStore


def read_delta(
    uri: str, version: int | None = None, columns: Sequence[str] | None = None, *, profile: str | None = None
) -> pa.Table:
    """The rows of the Delta table in the folder ``uri`` at a log version (``None``: the newest).

    Partition values are columns, in the place that the schema gives them. Rows of tables written by this package come
    in their order; Delta gives other tables' files none, so theirs come in path order. ``profile`` names a profile of
    the AWS configuration files. Raises `TableNotFound`, `VersionNotFound`, `LogCorrupt`, `IntegrityError`, and
    `UnsupportedFeature`, by name, for what the table needs and is not implemented, before a row is returned.
    """
    store = open_store(uri, profile=profile)
    return read_table(delta_scan(store, load_snapshot(store, version), columns))


def delta_scan(store: ObjectStore, snapshot: Snapshot, columns: Sequence[str] | None = None) -> Scan:
    """The scan that reads a snapshot of the table whose folder is the store's root."""
    adds = sorted(snapshot.adds(), key=part_order)
    mapping = snapshot.column_mapping
    named = {name: physical_name(snapshot.schema.field(name), mapping) for name in snapshot.partition_columns}
    files = tuple(
        ScanFile(add.key, add.size, None, None, _partition_values(add, named), add.deletion_vector) for add in adds
    )
    return Scan(store, snapshot.schema, files, None if columns is None else tuple(columns), mapping)


def _partition_values(add: Add, named: Mapping[str, str]) -> PartitionValues:
    """The file's values by the columns' names in the table."""
    try:
        return {name: add.partition_values[physical] for name, physical in named.items()}
    except KeyError as missing:
        raise LogCorrupt(
            f"The file {add.path!r} has no value for the partition column {missing}. Nothing was read."
        ) from missing
