"""What a command sets out from, and the table as its commit will leave it, but for files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal
from uuid import uuid4

from dagster_versioned.delta.actions import Action, DomainMetadata, Metadata, Protocol
from dagster_versioned.delta.commit.alter import CHANGE_FEED, CHANGE_FEED_COLUMNS, require_settable
from dagster_versioned.delta.commit.column_path import found_path, type_at
from dagster_versioned.delta.commit.protocol_upgrade import protocol_with, require_one_layout
from dagster_versioned.delta.commit.row_tracking import ENABLED as ROW_TRACKING
from dagster_versioned.delta.commit.row_tracking import new_columns
from dagster_versioned.delta.commit.transaction import now_ms
from dagster_versioned.delta.commit.write_rules import require_enforceable
from dagster_versioned.delta.features import require_write
from dagster_versioned.delta.files.file_actions import FILES, TOMBSTONES, no_rows
from dagster_versioned.delta.log.snapshot import Snapshot, load_snapshot
from dagster_versioned.delta.properties import require_values
from dagster_versioned.delta.schema.clustering import clustering_columns, clustering_domain, is_clusterable
from dagster_versioned.delta.schema.mapped_columns import with_mapped_columns
from dagster_versioned.delta.schema.schema_merge import merged_schema, replaced_schema
from dagster_versioned.delta.schema.types import StructType
from dagster_versioned.delta.schema.widening import ENABLED as WIDENING
from dagster_versioned.errors import InvalidInput, TableNotFound
from dagster_versioned.storage.object_store import ObjectStore

SchemaMode = Literal["merge", "overwrite"]

FIRST_PROTOCOL = Protocol(1, 2)
"""What a new table asks for that uses no feature; as the reference has it."""

_NOT_STORED = ("delta.feature.", "delta.minReaderVersion", "delta.minWriterVersion")


@dataclass(frozen=True, slots=True)
class Plan:
    """What a command read (``None``: there is no table), and the table as its commit will leave it, but for files."""

    read: Snapshot | None
    left: Snapshot
    also: tuple[Action, ...] = ()


def new_table(
    schema: StructType,
    partition_by: Sequence[str],
    cluster_by: Sequence[str],
    properties: Mapping[str, str],
    name: str | None = None,
    description: str | None = None,
) -> Plan:
    """A table that is to be created, as a snapshot before its first version. Raises `InvalidInput`."""
    require_values(properties)
    require_settable(properties)
    partitions = tuple(_named(schema, column) for column in partition_by)
    clustering = [(_named(schema, column),) for column in cluster_by]
    _check_layout(schema, partitions, [column for (column,) in clustering])
    configuration = {key: value for key, value in properties.items() if not key.startswith(_NOT_STORED)}
    if configuration.get(ROW_TRACKING, "").lower() == "true":
        configuration = {**new_columns(), **configuration}
    schema, configuration = with_mapped_columns(schema, configuration)
    asked = dict(properties)
    if clustering:
        asked |= {"delta.feature.clustering": "supported", "delta.feature.domainMetadata": "supported"}
    protocol = protocol_with(FIRST_PROTOCOL, {**configuration, **asked}, schema)
    metadata = Metadata(
        str(uuid4()), schema.json(), partitions, configuration, name, description, created_time=now_ms()
    )
    require_one_layout(protocol, metadata)
    snapshot = Snapshot(
        -1, protocol, metadata, schema, {}, {}, no_rows(FILES), no_rows(TOMBSTONES), metadata.created_time or 0, None
    )
    domain = clustering_domain(clustering, schema, snapshot.column_mapping) if clustering else None
    return _planned(None, snapshot, domain)


def _check_layout(schema: StructType, partitions: Sequence[str], clustering: Sequence[str]) -> None:
    for column in (*partitions, *clustering):
        kind = schema.field(column).type
        if not (is_clusterable(kind) or (kind == "binary" and not clustering)):
            raise InvalidInput(
                f"{column!r} is no single value with bounds, to lay rows out by (it is {kind!s:.50}). Nothing was"
                " written."
            )
    if partitions and clustering:
        raise InvalidInput("A table is either partitioned or clustered. Nothing was written.")
    if len(partitions) == len(schema.fields):
        raise InvalidInput("Every column is a partition column, so files would hold none. Nothing was written.")


def evolved(
    read: Snapshot, rows: StructType, schema_mode: SchemaMode | None, partition_by: Sequence[str] | None
) -> Plan:
    """A table whose schema takes in that of rows, as ``schema_mode`` allows. Raises `InvalidInput`."""
    if schema_mode is None:
        return Plan(read, read)
    if schema_mode == "merge":
        schema = merged_schema(read.schema, rows, widen=read.metadata.is_set(WIDENING))
    else:
        schema = replaced_schema(read.schema, rows)
    partitions = read.partition_columns
    if schema_mode == "overwrite":
        partitions = tuple(_named(schema, column) for column in (partitions if partition_by is None else partition_by))
    if schema == read.schema and partitions == read.partition_columns:
        return Plan(read, read)
    schema, configuration = with_mapped_columns(schema, read.metadata.configuration)
    metadata = replace(
        read.metadata, schema_string=schema.json(), configuration=configuration, partition_columns=partitions
    )
    protocol = protocol_with(read.protocol, configuration, schema)
    if partitions != read.partition_columns:
        require_one_layout(protocol, metadata)
    left = replace(read, metadata=metadata, schema=schema, protocol=protocol)
    return _planned(read, left, _clustering_of(read, schema) if schema_mode == "overwrite" else None)


def _planned(read: Snapshot | None, left: Snapshot, domain: DomainMetadata | None) -> Plan:
    """A plan whose table is clustered as ``domain`` says, where it says another thing than the one before."""
    if domain is None or domain.configuration == left.domains.get(domain.domain):
        return Plan(read, left)
    return Plan(read, replace(left, domains={**left.domains, domain.domain: domain.configuration}), (domain,))


def _clustering_of(read: Snapshot, schema: StructType) -> DomainMetadata | None:
    """What has a table that gets another schema clustered by the columns that it is clustered by."""
    columns = clustering_columns(read.domains, read.schema, read.column_mapping)
    try:
        paths = [found_path(schema, path) for path in columns]
    except InvalidInput as error:
        raise InvalidInput(f"The table is clustered by it: {error} Cluster it by other columns first.") from error
    for path in paths:
        if not is_clusterable(type_at(schema, path)):
            raise InvalidInput(
                f"The table is clustered by {'.'.join(path)!r}, which the new rows have with a type that has no bounds."
                " Nothing was written. Cluster it by other columns first."
            )
    return clustering_domain(paths, schema, read.column_mapping) if paths else None


def newest(store: ObjectStore) -> Snapshot | None:
    """`existing`, or ``None`` where there is no table."""
    try:
        return existing(store)
    except TableNotFound:
        return None


def existing(store: ObjectStore) -> Snapshot:
    """The newest snapshot. Raises `TableNotFound`, and `InvalidInput` for a versioned table."""
    snapshot = load_snapshot(store)
    if snapshot.is_versioned:
        raise InvalidInput(
            f"{store.uri} is a versioned table, whose rows are written by materializing its asset. Nothing was "
            "written. Materialize it, or write to another table."
        )
    return snapshot


def exists_already(store: ObjectStore) -> InvalidInput:
    """What to raise where a table was to be created and there is one."""
    return InvalidInput(f"There is a table in {store.uri} already. Nothing was written. Append to it, or overwrite it.")


def require_writable(left: Snapshot) -> None:
    """Check, before a file is written and not with the commit, that rows can be written to a table.

    Raises `UnsupportedFeature`, and `InvalidInput` for columns whose names the change data feed takes, if there is one.
    """
    require_write(left.protocol, left.metadata)
    require_enforceable(left.protocol, left.schema)
    taken = [name for name in left.schema.names if name.casefold() in CHANGE_FEED_COLUMNS]
    if taken and left.metadata.is_set(CHANGE_FEED):
        raise InvalidInput(
            f"The column {taken[0]!r} has the name of one that the change data feed adds. Nothing was written. Rename"
            " it, or leave delta.enableChangeDataFeed off."
        )


def _named(schema: StructType, column: str) -> str:
    for name in schema.names:
        if name.casefold() == column.casefold():
            return name
    raise InvalidInput(f"There is no column {column!r} among {', '.join(schema.names):.500}. Nothing was written.")
