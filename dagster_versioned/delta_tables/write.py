"""Writing any Delta table, by the engine of the frame or, where there is none, of the session.

A Spark frame, or a ``session`` of Spark, has the session's executors read and write the files: they reach the table
themselves; on S3 with credentials of their own, or ``profile``. All else is done here, over Arrow.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from dagster_versioned.delta.schema.types import StructType, schema_from_arrow
from dagster_versioned.delta_tables import commands
from dagster_versioned.delta_tables.commands import Applied, Mode, Provenance, SchemaMode
from dagster_versioned.delta_tables.dml import Assignments, Clause, RowEngine
from dagster_versioned.engines.dispatch import is_spark_frame
from dagster_versioned.storage import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def create_delta(
    uri: str,
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
    return commands.create(
        _engine(None),
        open_store(uri, profile=profile),
        columns,
        partition_by=partition_by,
        cluster_by=cluster_by,
        properties=properties,
        name=name,
        description=description,
    )


def write_delta(
    uri: str,
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
    return commands.write(
        _engine_of(data),
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
    uri: str,
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
    return commands.delete(_engine(session), open_store(uri, profile=profile), where, provenance=provenance)


def update_delta(
    uri: str,
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
    return commands.update(_engine(session), open_store(uri, profile=profile), set, where, provenance=provenance)


def merge_delta(
    uri: str,
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
    store, provenance = open_store(uri, profile=profile), Provenance.of(app_id, version, user_metadata)
    return commands.merge(_engine_of(source), store, source, on, clauses, schema_mode, provenance=provenance)


def optimize_delta(
    uri: str,
    where: str | None = None,
    *,
    order_by: Sequence[str] = (),
    session: "SparkSession | None" = None,
    profile: str | None = None,
) -> Applied:
    """Join small files and apply deletion vectors, in the partitions that ``where`` chooses; no row changes.

    Files are sorted by ``order_by``, else by the columns that the table is clustered by. Raises as `delete_from`.
    """
    return commands.optimize(_engine(session), open_store(uri, profile=profile), where, order_by)


def add_constraint(
    uri: str, name: str, check: str, *, session: "SparkSession | None" = None, profile: str | None = None
) -> Applied:
    """Have every row satisfy a SQL condition from now on. Raises `InvalidInput` where one does not already."""
    return commands.add_constraint(_engine(session), open_store(uri, profile=profile), name, check)


def _engine_of(frame: Any) -> RowEngine:
    return _engine(frame.sparkSession if is_spark_frame(frame) else None)


def _engine(session: "SparkSession | None") -> RowEngine:
    if session is not None:
        from dagster_versioned.delta_tables.spark.row_engine import SparkRowEngine

        return SparkRowEngine(session)
    from dagster_versioned.delta_tables.arrow.row_engine import ArrowRowEngine

    return ArrowRowEngine()
