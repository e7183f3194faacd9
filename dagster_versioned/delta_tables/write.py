"""Writing any Delta table, by the engine of the frame or, where there is none, of the session; a call is one commit.

A Spark frame, or a ``session`` of Spark, has the session's executors read and write the files: they reach the table
themselves; on S3 with credentials of their own, or ``profile``. All else is done here, over Arrow.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from dagster_versioned.delta.commit.conflicts import NOTHING, WHOLE_TABLE
from dagster_versioned.delta.commit.protocol_upgrade import protocol_with
from dagster_versioned.delta.commit.stored_expressions import check_default, require_admitted
from dagster_versioned.delta.commit.transaction import Transaction, commit
from dagster_versioned.delta.commit.write_rules import WriteRules
from dagster_versioned.delta.schema.types import DataType, StructType, schema_from_arrow
from dagster_versioned.delta_tables.commands.command import Applied, Command, Provenance, compact_json
from dagster_versioned.delta_tables.commands.compaction import optimize
from dagster_versioned.delta_tables.commands.plan import (
    Plan,
    SchemaMode,
    evolved,
    existing,
    exists_already,
    new_table,
    newest,
    require_writable,
)
from dagster_versioned.delta_tables.commands.writing import Mode, write_rows
from dagster_versioned.delta_tables.dml import (
    Assignments,
    Clause,
    Delete,
    FileChanges,
    Merge,
    RowEngine,
    Target,
    Update,
    WhenMatched,
    WhenNotMatched,
    WhenNotMatchedBySource,
)
from dagster_versioned.engines.dispatch import is_spark_frame
from dagster_versioned.engines.sql import Names, evaluate, table_of
from dagster_versioned.errors import InvalidInput, LogCorrupt
from dagster_versioned.storage import ObjectStore, open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def create_delta(
    uri: str | ObjectStore,
    schema: pa.Schema | StructType,
    *,
    partition_by: Sequence[str] = (),
    cluster_by: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
    name: str | None = None,
    description: str | None = None,
    profile: str | None = None,
) -> Applied:
    """Create an empty Delta table in the folder ``uri``.

    A `StructType` may say more than an Arrow schema: defaults, generated and identity columns are in the metadata of
    its fields, as the protocol has them. ``properties`` bring the features that they need into the table's protocol.
    Raises `InvalidInput` where there is a table already, and for a constraint that Arrow cannot judge rows by.
    """
    columns = schema if isinstance(schema, StructType) else schema_from_arrow(schema)
    store = _store(uri, profile)
    if newest(store) is not None:
        raise exists_already(store)
    plan = new_table(columns, partition_by, cluster_by, properties or {}, name, description)
    try:
        require_writable(plan.left)
        target = Target(store, plan.left, WriteRules.of_snapshot(plan.left), "")
    except LogCorrupt as error:
        raise InvalidInput(f"{error} Nothing was written.") from error
    for constraint, sql in target.rules.checks.items():
        _engine(None).violations(target, require_admitted(f"the constraint {constraint!r}", sql))
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


def write_delta(
    uri: str | ObjectStore,
    data: Any,
    mode: Mode = "append",
    *,
    partition_by: Sequence[str] | None = None,
    cluster_by: Sequence[str] = (),
    where: str | None = None,
    dynamic: bool = False,
    schema_mode: SchemaMode | None = None,
    properties: Mapping[str, str] | None = None,
    app_id: str | None = None,
    version: int | None = None,
    user_metadata: str | None = None,
    profile: str | None = None,
) -> Applied:
    """Write a frame's rows to the Delta table in the folder ``uri``, which is created where there is none.

    ``mode`` ``overwrite`` replaces all rows; with ``where`` those that the predicate is true for, and every new row
    must satisfy it; with ``dynamic`` those of the partitions that new rows are in. ``error`` and ``ignore`` write
    nothing where there is a table. Columns are found by name whatever their case, and those that the data lacks get
    their default, or null. ``schema_mode`` ``merge`` adds the columns that the table lacks, ``overwrite`` gives it the
    data's columns. ``partition_by``, ``cluster_by`` and ``properties`` are for a table that is created.

    ``app_id`` and ``version`` say which application writes, and how far it is with this write: where the table has this
    version of it, or a later one, nothing is written (``Applied.skipped``), so a write can be repeated after a failure.
    ``user_metadata`` is a remark for the table's history.

    Raises `InvalidInput` (a row that breaks a rule of the table), `UnsupportedType`, `UnsupportedFeature`,
    `CommitConflict`; nothing is left behind then.
    """
    return write_rows(
        _engine_of(data),
        _store(uri, profile),
        data,
        mode=mode,
        partition_by=partition_by,
        cluster_by=cluster_by,
        where=where,
        dynamic=dynamic,
        schema_mode=schema_mode,
        properties=properties,
        provenance=Provenance.of(app_id, version, user_metadata),
    )


def delete_from(
    uri: str | ObjectStore,
    where: str | None = None,
    *,
    session: "SparkSession | None" = None,
    app_id: str | None = None,
    version: int | None = None,
    user_metadata: str | None = None,
    profile: str | None = None,
) -> Applied:
    """Delete the rows that the SQL condition ``where`` is true for, or all.

    Raises as `write_delta`, and `TableNotFound`.
    """
    provenance = Provenance.of(app_id, version, user_metadata)
    parameters = {"predicate": "[]" if where is None else compact_json([where])}
    return _change(_engine(session), _store(uri, profile), provenance, Delete(where), "DELETE", parameters)


def update_delta(
    uri: str | ObjectStore,
    set: Assignments,  # noqa: A002 - as SQL calls it
    where: str | None = None,
    *,
    session: "SparkSession | None" = None,
    app_id: str | None = None,
    version: int | None = None,
    user_metadata: str | None = None,
    profile: str | None = None,
) -> Applied:
    """Give columns new values, SQL expressions over the old ones, where ``where`` is true. Raises as `delete_from`."""
    provenance = Provenance.of(app_id, version, user_metadata)
    if not set:
        raise InvalidInput("An update that assigns nothing changes nothing. Nothing was written.")
    parameters = {} if where is None else {"predicate": compact_json([where])}
    return _change(_engine(session), _store(uri, profile), provenance, Update(set, where), "UPDATE", parameters)


def _change(
    engine: RowEngine,
    store: ObjectStore,
    provenance: Provenance,
    change: Delete | Update,
    operation: str,
    parameters: Mapping[str, str],
) -> Applied:
    read = existing(store)
    if provenance.is_committed(read):
        return Applied(read.version, skipped=True)
    command = Command(engine, store, Plan(read, read), provenance)
    command.refuse_append_only()
    return command.change(change, operation, parameters, change.where)


def merge_delta(
    uri: str | ObjectStore,
    source: Any,
    on: str,
    clauses: Sequence[Clause],
    *,
    schema_mode: Literal["merge"] | None = None,
    app_id: str | None = None,
    version: int | None = None,
    user_metadata: str | None = None,
    profile: str | None = None,
) -> Applied:
    """Merge a frame's rows into the table: see `dml.Merge` for what ``on`` and the clauses say.

    ``schema_mode`` ``merge`` adds the source's columns to the table where a clause takes ``"all"``. Raises as
    `delete_from`, and `InvalidInput` where one row of the table would be changed by two rows of the source.
    """
    store, provenance, engine = _store(uri, profile), Provenance.of(app_id, version, user_metadata), _engine_of(source)
    change = Merge(source, on, tuple(clauses))
    _check_clauses(change)
    read = existing(store)
    if provenance.is_committed(read):
        return Applied(read.version, skipped=True)
    plan = Plan(read, read)
    if schema_mode == "merge" and any(clause.then == "all" for clause in clauses):
        plan = evolved(read, engine.schema_of(source), "merge", None)
    command = Command(engine, store, plan, provenance)
    if len(change.of_kind(WhenNotMatched)) < len(clauses):
        command.refuse_append_only()
    by_source = change.of_kind(WhenNotMatchedBySource)
    parameters = {
        "predicate": compact_json([on]),
        "matchedPredicates": compact_json([_described(clause) for clause in change.of_kind(WhenMatched)]),
        "notMatchedPredicates": compact_json([_described(clause) for clause in change.of_kind(WhenNotMatched)]),
        "notMatchedBySourcePredicates": compact_json([_described(clause) for clause in by_source]),
    }
    return command.change(change, "MERGE", parameters, None if by_source else on)


def _check_clauses(change: Merge) -> None:
    if not change.clauses:
        raise InvalidInput("A merge without clauses changes nothing. Nothing was written.")
    for kind in (WhenMatched, WhenNotMatched, WhenNotMatchedBySource):
        clauses = change.of_kind(kind)
        if any(clause.condition is None for clause in clauses[:-1]):
            raise InvalidInput(
                f"A {kind.__name__} without condition leaves nothing to the clauses after it. Nothing was written. Put"
                " it last."
            )


def _described(clause: Clause) -> dict[str, str]:
    insert = isinstance(clause, WhenNotMatched)
    action = "delete" if clause.then == "delete" else "insert" if insert else "update"
    return {"actionType": action, **({} if clause.condition is None else {"predicate": clause.condition})}


def optimize_delta(
    uri: str | ObjectStore,
    where: str | None = None,
    *,
    order_by: Sequence[str] = (),
    session: "SparkSession | None" = None,
    profile: str | None = None,
) -> Applied:
    """Join small files and apply deletion vectors, in the partitions that ``where`` chooses; no row changes.

    Files are sorted by ``order_by``, else by the columns that the table is clustered by. Raises as `delete_from`.
    """
    return optimize(_engine(session), _store(uri, profile), where, order_by)


def add_constraint(
    uri: str | ObjectStore, name: str, check: str, *, session: "SparkSession | None" = None, profile: str | None = None
) -> Applied:
    """Have every row satisfy a SQL condition from now on. Raises `InvalidInput` where one does not already."""
    engine, store = _engine(session), _store(uri, profile)
    require_admitted(f"the constraint {name!r}", check)
    read = existing(store)
    key = f"delta.constraints.{name.lower()}"
    if key in read.metadata.configuration:
        raise InvalidInput(f"The table has a constraint {name!r} already. Nothing was written. Drop it first.")
    command = Command(engine, store, Plan(read, read))
    if count := engine.violations(command.target, check):
        raise InvalidInput(f"{count} rows of the table do not satisfy {check}. Nothing was written.")
    configuration = {**read.metadata.configuration, key: check}
    metadata = replace(read.metadata, configuration=configuration)
    protocol = protocol_with(read.protocol, configuration, read.schema)
    command.plan = Plan(read, replace(read, metadata=metadata, protocol=protocol))
    return command.commit(FileChanges(), "ADD CONSTRAINT", {"name": name, "expr": check}, WHOLE_TABLE)


def _store(uri: str | ObjectStore, profile: str | None) -> ObjectStore:
    return open_store(uri, profile=profile) if isinstance(uri, str) else uri


def _engine_of(frame: Any) -> RowEngine:
    return _engine(frame.sparkSession if is_spark_frame(frame) else None)


def _engine(session: "SparkSession | None") -> RowEngine:
    if session is not None:
        from dagster_versioned.delta_tables.spark.row_engine import SparkRowEngine

        return SparkRowEngine(session)
    from dagster_versioned.delta_tables.arrow.row_engine import ArrowRowEngine

    return ArrowRowEngine()
