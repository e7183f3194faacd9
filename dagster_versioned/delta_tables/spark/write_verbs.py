"""Writing to any Delta table with Spark: the verbs of `engines.arrow.engine`, with the session first."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from dagster_versioned.delta_tables import commands
from dagster_versioned.delta_tables.commands import Applied, Mode, Provenance, SchemaMode
from dagster_versioned.delta_tables.dml import Assignments, Clause
from dagster_versioned.delta_tables.spark.row_engine import SparkRowEngine
from dagster_versioned.storage import open_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def write_delta(
    session: "SparkSession",
    uri: str,
    data: "DataFrame",
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
    """Write a frame's rows to the Delta table in the folder ``uri``; see `commands.write`.

    Executors write the files, and reach ``uri`` themselves; on S3 with credentials of their own, or ``profile``.
    """
    return commands.write(
        SparkRowEngine(session),
        open_store(uri, profile=profile),
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
    session: "SparkSession",
    uri: str,
    where: str | None = None,
    *,
    app_id: str | None = None,
    version: int | None = None,
    user_metadata: str | None = None,
    profile: str | None = None,
) -> Applied:
    """Delete the rows that ``where`` is true for, or all; see `commands.delete`."""
    provenance = Provenance.of(app_id, version, user_metadata)
    return commands.delete(SparkRowEngine(session), open_store(uri, profile=profile), where, provenance=provenance)


def update_delta(
    session: "SparkSession",
    uri: str,
    set: Assignments,  # noqa: A002 - SQL's own word
    where: str | None = None,
    *,
    app_id: str | None = None,
    version: int | None = None,
    user_metadata: str | None = None,
    profile: str | None = None,
) -> Applied:
    """Give new values to the rows that ``where`` is true for, or to all; see `commands.update`."""
    provenance = Provenance.of(app_id, version, user_metadata)
    return commands.update(SparkRowEngine(session), open_store(uri, profile=profile), set, where, provenance=provenance)


def merge_delta(
    session: "SparkSession",
    uri: str,
    source: "DataFrame",
    on: str,
    clauses: Sequence[Clause],
    *,
    schema_mode: Literal["merge"] | None = None,
    app_id: str | None = None,
    version: int | None = None,
    user_metadata: str | None = None,
    profile: str | None = None,
) -> Applied:
    """Merge a frame's rows into the table; see `dml.Merge` and `commands.merge`."""
    store, provenance = open_store(uri, profile=profile), Provenance.of(app_id, version, user_metadata)
    return commands.merge(SparkRowEngine(session), store, source, on, clauses, schema_mode, provenance=provenance)


def optimize_delta(
    session: "SparkSession",
    uri: str,
    where: str | None = None,
    *,
    order_by: Sequence[str] = (),
    profile: str | None = None,
) -> Applied:
    """Join small files and apply deletion vectors; see `commands.optimize`."""
    return commands.optimize(SparkRowEngine(session), open_store(uri, profile=profile), where, order_by)


def add_constraint(session: "SparkSession", uri: str, name: str, check: str, *, profile: str | None = None) -> Applied:
    """Have every row satisfy a SQL condition from now on; see `commands.add_constraint`."""
    return commands.add_constraint(SparkRowEngine(session), open_store(uri, profile=profile), name, check)
