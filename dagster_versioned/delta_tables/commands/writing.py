"""Creating a table, and writing a frame's rows to one."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from dagster_versioned.delta.commit.conflicts import NOTHING
from dagster_versioned.delta.commit.stored_expressions import check_default, require_admitted
from dagster_versioned.delta.commit.transaction import Transaction, commit
from dagster_versioned.delta.commit.write_rules import WriteRules
from dagster_versioned.delta.log.snapshot import Snapshot
from dagster_versioned.delta.schema.types import DataType, StructType
from dagster_versioned.delta_tables.commands.command import Applied, Command, compact_json
from dagster_versioned.delta_tables.commands.plan import (
    SchemaMode,
    evolved,
    exists_already,
    new_table,
    newest,
    require_writable,
)
from dagster_versioned.delta_tables.commands.provenance import UNNAMED, Provenance
from dagster_versioned.delta_tables.dml import RowEngine, Target
from dagster_versioned.engines.sql import Names, evaluate, table_of
from dagster_versioned.errors import InvalidInput, LogCorrupt
from dagster_versioned.storage.object_store import ObjectStore

Mode = Literal["append", "overwrite", "error", "ignore"]


def create(
    engine: RowEngine,
    store: ObjectStore,
    schema: StructType,
    *,
    partition_by: Sequence[str] = (),
    cluster_by: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
    name: str | None = None,
    description: str | None = None,
) -> Applied:
    """Create a table without rows. Raises `InvalidInput` where there is one, and for rules that make no sense."""
    if newest(store) is not None:
        raise exists_already(store)
    plan = new_table(schema, partition_by, cluster_by, properties or {}, name, description)
    try:
        require_writable(plan.left)
        target = Target(store, plan.left, WriteRules.of_snapshot(plan.left), "")
    except LogCorrupt as error:
        raise InvalidInput(f"{error} Nothing was written.") from error
    for constraint, sql in target.rules.checks.items():
        engine.violations(target, require_admitted(f"the constraint {constraint!r}", sql))
    for column, sql in target.rules.defaults.items():
        _check_default(column, sql, plan.left.schema.field(column).type)
    actions = [plan.left.protocol, plan.left.metadata, *plan.also]
    parameters = {"partitionBy": compact_json(list(partition_by)), "properties": compact_json(dict(properties or {}))}
    made = Transaction(None, actions, "CREATE TABLE", NOTHING, parameters)
    return Applied(commit(store, None, lambda _: made)[0].version)


def _check_default(column: str, sql: str, data_type: DataType) -> None:
    """Make a default once, as a write over Arrow does. Raises `InvalidInput`."""
    check_default(column, sql, data_type)
    try:
        expression = Names({}).resolve(sql)
    except InvalidInput:  # an expression that Spark alone evaluates
        return
    evaluate(table_of({}, 1), {column: (expression, data_type)})


def write(
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
    provenance: Provenance = UNNAMED,
) -> Applied:
    """Write a frame's rows, creating the table where there is none.

    ``overwrite`` replaces every row, or with ``where`` those that the predicate is true for, or with ``dynamic`` those
    of the partitions that the new rows are in. ``schema_mode`` allows new columns and wider types (``merge``), or
    gives the table the rows' columns (``overwrite``, only where every row is replaced). ``partition_by``,
    ``cluster_by`` and ``properties`` are of a table that is created. Nothing is written where the
    table has this version of the application, or a later one. Raises `InvalidInput`, `UnsupportedFeature`,
    `CommitConflict`.
    """
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
    replaces_all = mode == "overwrite" and where is None and not dynamic
    if schema_mode == "overwrite" and not replaces_all:
        raise InvalidInput("schema_mode='overwrite' needs every row to be overwritten. Nothing was written.")
    _check_existing(read, None if schema_mode == "overwrite" else partition_by, properties)
    command = Command(engine, store, evolved(read, engine.schema_of(rows), schema_mode, partition_by), provenance)
    if mode == "append":
        return command.append(rows)
    return _overwrite(command, read, rows, where, dynamic)


def _require_one_choice(mode: Mode, where: str | None, dynamic: bool) -> None:
    if mode != "overwrite" and (where is not None or dynamic):
        raise InvalidInput("where and dynamic choose what is overwritten; pass mode='overwrite'. Nothing was written.")
    if where is not None and dynamic:
        raise InvalidInput("where and dynamic choose differently what is overwritten. Nothing was written. Pass one.")


def _overwrite(command: Command, read: Snapshot, rows: Any, where: str | None, dynamic: bool) -> Applied:
    command.refuse_append_only()
    if dynamic and read.partition_columns:
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
