"""The actions in which commits of versions say what they do. Source: FORMAT.md, "The commit"."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dagster_versioned.delta.actions import Action, Add, Cdc, DomainMetadata, Metadata, Remove
from dagster_versioned.delta.commit.protocol_upgrade import ASKED, protocol_with
from dagster_versioned.delta.features import OWN_PROTOCOL, merge_protocol
from dagster_versioned.delta.files.statistics import to_json as statistics_json
from dagster_versioned.delta.paths import encode_path
from dagster_versioned.delta.schema.clustering import CLUSTERED_BY, PROVIDER, clustering_tag
from dagster_versioned.delta.schema.types import StructType
from dagster_versioned.engines.part_order import ORDINAL_TAG, PARTITION_TAG, SHA_TAG
from dagster_versioned.engines.parts import Part
from dagster_versioned.errors import InvalidInput, UnsupportedFeature
from dagster_versioned.identity.names import partition_path
from dagster_versioned.identity.version import VersionEntry, partitions_sha
from dagster_versioned.tables.configuration import LEFT_PROPERTY, OWN, configuration, with_statistics_of
from dagster_versioned.tables.document import encode
from dagster_versioned.tables.history import VERSION_DOMAIN, History, Version
from dagster_versioned.tables.parts import part_key
from dagster_versioned.tables.state import TableState, next_version
from dagster_versioned.tables.write.clustering import clustering_actions

STAMPED = "delta.enableInCommitTimestamps"


def table_actions(
    state: TableState | None,
    schema: StructType,
    timestamp: int,
    properties: Mapping[str, str] | None = None,
    partition_columns: tuple[str, ...] | None = None,
    *,
    takes_over: bool = False,
    cluster_by: Sequence[str] | None = None,
) -> list[Action]:
    """What a commit says of the table itself: everything when it creates it, else what changes.

    ``properties``, ``partition_columns`` and ``cluster_by`` of ``None`` are those that it has; ``takes_over`` says that
    a table that another program created holds versions from now on. Raises `UnsupportedFeature` where the table demands
    what this package cannot write, and `InvalidInput` for columns that it cannot be clustered by.
    """
    properties = with_statistics_of(_properties_after(state, properties, takes_over=takes_over), schema.names)
    clustering = clustering_actions(state.snapshot if state else None, schema, cluster_by)
    asked = {f"{ASKED}clustering": "supported"} if clustering else {}
    needed = protocol_with(OWN_PROTOCOL, {**properties, **asked}, schema)
    if state is None:
        name, columns = str(uuid.uuid4()), partition_columns or ()
        created = Metadata(name, schema.json(), columns, configuration=properties, created_time=timestamp)
        return [needed, created, *clustering]
    metadata = state.snapshot.metadata
    columns = metadata.partition_columns if partition_columns is None else partition_columns
    protocol = merge_protocol(state.snapshot.protocol, needed)
    after = replace(metadata, schema_string=schema.json(), configuration=properties, partition_columns=columns)
    changed = [action for action in (protocol, after) if action not in (state.snapshot.protocol, metadata)]
    return [*changed, *clustering]


def has_left(state: TableState) -> bool:
    """Whether the table had versions and is now another program's: its log says nothing for this package any more."""
    metadata = state.snapshot.metadata
    return metadata.is_set(LEFT_PROPERTY) or (bool(state.history.heads) and not metadata.is_set(STAMPED))


def refuse_left(state: TableState) -> None:
    """Raise `UnsupportedFeature` for a table that was left to other programs."""
    if has_left(state):
        raise UnsupportedFeature(
            "This table was left to other programs (`dagster-versioned leave`), so it takes no versions. Nothing was "
            "written. Take it back with `dagster-versioned adopt`, or write under another asset key."
        )


def _properties_after(
    state: TableState | None, given: Mapping[str, str] | None, *, takes_over: bool
) -> Mapping[str, str]:
    known = state.snapshot.metadata if state else None
    properties = configuration(known, {}, None) if given is None else given
    if takes_over:
        return {**properties, **OWN}
    if state is not None:
        refuse_left(state)
    if state is not None and not state.snapshot.metadata.is_set(STAMPED):
        raise UnsupportedFeature(
            "This Delta table was created by another program, without in-commit timestamps: it holds no versions yet. "
            "Nothing was written. Make a version of it with `dagster-versioned adopt`, or read it with read_delta() "
            "and write it under another asset key."
        )
    return properties


def version_domain_key(partition: str | None) -> str:
    """The metadata domain that keeps the head of a partition, or of a table without them."""
    return VERSION_DOMAIN if partition is None else f"{VERSION_DOMAIN}/{partition_path(partition)}"


def retyped_refusal(columns: Sequence[str], schema: StructType) -> InvalidInput:
    """The error where partition columns would get other types, while some of the table's rows stay."""
    return InvalidInput(
        f"The partition column {columns[0]!r} would be {schema.field(columns[0]).type}, but the log has the values of"
        " rows that stay in another type, which not every reader widens. Nothing was written. Convert the column, or"
        f" the rows that are there: `dagster-versioned repartition TABLE --by same --type {columns[0]}="
        f"{schema.field(columns[0]).type}`; or replace all partitions in one write_partitions()."
    )


def version_domain(entry: VersionEntry, state: TableState | None) -> DomainMetadata:
    """The action that keeps a head in checkpoints (FORMAT.md, The commit)."""
    computation = entry.facts.computation
    head = {
        "metadata_sha": entry.metadata_sha,
        "data_sha": entry.identity.data_sha,
        "digest": entry.facts.digest,
        "log_version": next_version(state),
        **({} if computation is None else {"computation": computation.key}),
    }
    return DomainMetadata(version_domain_key(entry.identity.partition), encode(head).decode(), False)


def add_of(part: Part, partition: str | None, timestamp: int, clustered_by: Sequence[str] = ()) -> Add:
    """The action that adds a part; ``clustered_by`` are the columns that its rows are sorted by to lie together."""
    tags = {ORDINAL_TAG: str(part.ordinal)} | ({PARTITION_TAG: partition} if partition is not None else {})
    if part.key is not None:
        tags[SHA_TAG] = part.sha256
    if clustered_by:
        tags[CLUSTERED_BY] = clustering_tag([(name,) for name in clustered_by])
    return Add(
        path=encode_path(part_key(part)),
        partition_values=dict(part.partition_values),
        size=part.size,
        modification_time=timestamp,
        data_change=True,
        stats=statistics_json(part.statistics),
        tags=tags,
        clustering_provider=PROVIDER if clustered_by else None,
    )


def replaced_parts(
    current: Sequence[Add], wanted: Sequence[Add], timestamp: int
) -> tuple[tuple[Add, ...], tuple[Remove, ...]]:
    """The actions that put parts in the place of others: those that are in both are neither added nor removed."""
    had, has = ({add.identity for add in adds} for adds in (current, wanted))
    added = tuple(replace(add, data_change=True) for add in wanted if add.identity not in had)
    return added, tuple(add.removed(timestamp) for add in current if add.identity not in has)


def cdc_of(key: str, part: Part, partition: str | None) -> Cdc:
    tags = {PARTITION_TAG: partition} if partition is not None else None
    return Cdc(encode_path(key), dict(part.partition_values), part.size, data_change=False, tags=tags)


def whole_sha(history: History, entries: Sequence[Mapping[str, Any]], ended: Sequence[Version] = ()) -> dict[str, str]:
    """The ``partitions_sha`` of a partitioned table after the commit of versions, with which those that ``ended`` are
    no heads any more: so that a reference to it can be resolved."""
    gone = {version.partition for version in ended}
    shas = {partition: sha for partition, sha in history.partition_shas.items() if partition not in gone}
    new = {e["identity"]["partition"]: e["metadata_sha"] for e in entries if "partition" in e["identity"]}
    return {"partitions_sha": partitions_sha(shas | new)} if new or (ended and shas) else {}


def dropped_domains(versions: Sequence[Version]) -> list[Action]:
    """The actions that take heads out of checkpoints."""
    return [DomainMetadata(version_domain_key(version.partition), "", True) for version in versions]


def dropped_info(
    state: TableState, versions: Sequence[Version], entries: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """What a commit says of the heads that end with it, and of the table as a whole after it, with new versions."""
    ended = [{} if version.partition is None else {"partition": version.partition} for version in versions]
    return {"dropped": ended, **whole_sha(state.history, entries, versions)}
