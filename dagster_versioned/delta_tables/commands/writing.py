"""Writing a frame's rows to a table that may not exist yet."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from dagster_versioned.delta.log.snapshot import Snapshot
from dagster_versioned.delta_tables.commands.command import Applied, Command, Provenance
from dagster_versioned.delta_tables.commands.plan import SchemaMode, evolved, exists_already, new_table, newest
from dagster_versioned.delta_tables.dml import RowEngine
from dagster_versioned.errors import InvalidInput
from dagster_versioned.storage.object_store import ObjectStore

Mode = Literal["append", "overwrite", "error", "ignore"]


def write_rows(
    engine: RowEngine,
    store: ObjectStore,
    rows: Any,
    *,
    mode: Mode = "append",
    partition_by: Sequence[str] | None = None,
    cluster_by: Sequence[str] = (),
    where: str | None = None,
    dynamic: bool = False,
    schema_mode: SchemaMode | None = None,
    properties: Mapping[str, str] | None = None,
    provenance: Provenance,
) -> Applied:
    """As `delta_tables.write.write_delta`, by an engine."""
    _require_one_choice(mode, where, dynamic)
    read = newest(store)
    if read is None:
        created = new_table(engine.schema_of(rows), partition_by or (), cluster_by, properties or {})
        name = {"error": "ErrorIfExists", "ignore": "Ignore"}.get(mode, mode.capitalize())
        return Command(engine, store, created, provenance).append(rows, name)
    if provenance.is_committed(read):
        return Applied(read.version, skipped=True)
    if mode == "ignore":
        return Applied(read.version)
    if mode == "error":
        raise exists_already(store)
    if schema_mode == "overwrite":
        _require_all_replaced(mode, where, dynamic)
    _check_existing(read, None if schema_mode == "overwrite" else partition_by, properties)
    command = Command(engine, store, evolved(read, engine.schema_of(rows), schema_mode, partition_by), provenance)
    if mode == "append":
        return command.append(rows)
    return _overwrite(command, rows, where, dynamic)


def _require_all_replaced(mode: Mode, where: str | None, dynamic: bool) -> None:
    if mode != "overwrite" or where is not None or dynamic:
        raise InvalidInput("schema_mode='overwrite' needs every row to be overwritten. Nothing was written.")


def _require_one_choice(mode: Mode, where: str | None, dynamic: bool) -> None:
    if mode != "overwrite" and (where is not None or dynamic):
        raise InvalidInput("where and dynamic choose what is overwritten; pass mode='overwrite'. Nothing was written.")
    if where is not None and dynamic:
        raise InvalidInput("where and dynamic choose differently what is overwritten. Nothing was written. Pass one.")


def _overwrite(command: Command, rows: Any, where: str | None, dynamic: bool) -> Applied:
    command.refuse_append_only()
    if dynamic and command.plan.left.partition_columns:
        return command.overwrite_partitions(rows)
    return command.overwrite(rows) if where is None else command.overwrite_where(rows, where)


def _check_existing(read: Snapshot, partition_by: Sequence[str] | None, properties: Mapping[str, str] | None) -> None:
    if properties:
        raise InvalidInput("The table exists already: properties are set on it by itself. Nothing was written.")
    if partition_by is not None and tuple(partition_by) != read.partition_columns:
        raise InvalidInput(
            f"The table is partitioned by {list(read.partition_columns)}, not by {list(partition_by)}. Nothing was"
            " written."
        )
