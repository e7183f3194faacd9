"""What tests of writes to Delta tables ask of a table."""

from collections.abc import Callable
from pathlib import Path

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq

from dagster_versioned.bounds import release_of
from dagster_versioned.delta.files.deletion_vectors import deleted_rows
from dagster_versioned.delta.log.commits import read_commit
from dagster_versioned.delta.log.snapshot import load_snapshot
from dagster_versioned.delta.paths import decode_path
from dagster_versioned.delta.schema.types import StructField, StructType
from dagster_versioned.delta_tables.read import read_delta
from dagster_versioned.storage import LocalStore
from support.hooked_store import HookedStore

FEATURES = {
    "plain": {},
    "vectors": {"delta.enableDeletionVectors": "true"},
    "mapped": {"delta.columnMapping.mode": "name"},
    "mapped by id": {"delta.columnMapping.mode": "id"},
    "everything": {
        "delta.columnMapping.mode": "name",
        "delta.enableDeletionVectors": "true",
        "delta.enableChangeDataFeed": "true",
        "delta.enableRowTracking": "true",
        "delta.enableInCommitTimestamps": "true",
        "delta.enableTypeWidening": "true",
    },
}


def rows_of(table: Path | str, *columns: str) -> list[dict]:
    """Our reading of a table's rows, in an order of their own, which is the peer's reading where it can read at all."""
    rows = read_delta(str(table)).to_pylist()
    # The peer leaves it to pyarrow to cast structs to some with members that a file lacks.
    casts = release_of(pa.__version__) >= (21,)
    if casts and load_snapshot(LocalStore(table)).protocol.min_reader_version == 1:
        theirs = deltalake.DeltaTable(str(table)).to_pyarrow_table().to_pylist()
        assert sorted(theirs, key=repr) == sorted(rows, key=repr)
    chosen = [{name: row[name] for name in columns} if columns else row for row in rows]
    return sorted(chosen, key=repr)


def files_of(table: Path | str) -> set[str]:
    """Every file below the table's folder, but for its log."""
    paths = (path.relative_to(table) for path in Path(table).rglob("*") if path.is_file())
    return {str(path) for path in paths if path.parts[0] != "_delta_log" and not path.parts[0].startswith(".")}


def last_commit(table: Path):
    store = LocalStore(table)
    return read_commit(store, load_snapshot(store).version)


def changes_of(table: Path) -> list[dict]:
    """The rows of the last commit's change data files, by the names in the files."""
    rows = []
    for cdc in last_commit(table).cdcs:
        assert (cdc.path.startswith("_change_data/"), cdc.data_change) == (True, False)
        for row in pq.read_table(table / decode_path(cdc.path), partitioning=None).to_pylist():
            rows.append({**row, **cdc.partition_values})
    return sorted(rows, key=repr)


def row_ids(table: Path, key: str = "id") -> dict:
    """By the value of a column of a table without column mapping: the row's id and its commit version."""
    snapshot = load_snapshot(LocalStore(table))
    names = [
        snapshot.metadata.configuration[f"delta.rowTracking.materialized{name}ColumnName"]
        for name in ("RowId", "RowCommitVersion")
    ]
    found = {}
    for add in snapshot.adds():
        stored = pq.read_table(table / add.key, partitioning=None)
        vector = add.deletion_vector
        gone = set() if vector is None else set(deleted_rows(LocalStore(table), vector, stored.num_rows, add.key))
        for position, row in enumerate(stored.to_pylist()):
            if position in gone:
                continue
            kept = row.get(names[0])
            version = row.get(names[1])
            found[row[key]] = (
                add.base_row_id + position if kept is None else kept,
                add.default_row_commit_version if version is None else version,
            )
    return found


def schema(*fields) -> StructType:
    """A schema of (name, type), (name, type, nullable) or (name, type, nullable, metadata)."""
    return StructType([StructField(*field) for field in fields])


def meanwhile(table: Path | str, other: Callable[[], object]) -> HookedStore:
    """The table's folder, where somebody else commits between what a command reads and its own commit."""
    return HookedStore(LocalStore(table), "put_if_absent", ".json", other)
