"""The columns by which a table's rows lie together, and what a commit of versions says of them.

Source: the protocol, "Clustered Table". Statistics are no part of a version, so that commits may add to them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from dagster_versioned.delta.actions import Action, Add, DomainMetadata, Metadata, Remove
from dagster_versioned.delta.commit.cluster_by import with_statistics
from dagster_versioned.delta.log.snapshot import Snapshot
from dagster_versioned.delta.schema.clustering import (
    DOMAIN,
    clustering_columns,
    clustering_domain,
    is_clusterable,
    require_clusterable,
)
from dagster_versioned.delta.schema.types import StructType, parse_schema
from dagster_versioned.storage.object_store import ObjectStore


def clustering_of(table: Snapshot) -> tuple[tuple[str, ...], ...]:
    """The columns that a table is clustered by, as paths of names."""
    return clustering_columns(table.domains, table.schema, table.column_mapping)


def clustering_actions(
    table: Snapshot | None, schema: StructType, cluster_by: Sequence[str] | None
) -> list[DomainMetadata]:
    """What a commit that leaves the table with ``schema`` says of its clustering, if that changes.

    ``None`` leaves what the table has, but for columns that go, or get a type without bounds. Raises `InvalidInput` for
    a column that is none, or has none.
    """
    before = clustering_of(table) if table is not None else ()
    if cluster_by is None:
        columns = tuple(path for path in before if _is_clusterable(schema, path))
    else:
        require_clusterable(schema, cluster_by)
        columns = tuple((name,) for name in cluster_by)
    return [] if columns == before else [clustering_domain(columns, schema, "none")]


def with_clustering_statistics(
    store: ObjectStore, table: Snapshot | None, actions: Sequence[Action]
) -> Sequence[Action]:
    """The actions of a commit, with statistics of the clustering columns for every file that is to have them.

    Those are the files that it adds, and, where the columns change, those that stay. Raises what `with_statistics`
    does.
    """
    changes = {action.domain: action for action in actions if isinstance(action, DomainMetadata)}
    change = changes.get(DOMAIN)
    clustering = change.configuration if change is not None else None if table is None else table.domains.get(DOMAIN)
    if clustering is None or (change is not None and change.removed):
        return actions
    schema = _schema_after(table, actions)
    paths = clustering_columns({DOMAIN: clustering}, schema, "none")
    again = with_statistics(store, schema, "none", paths, _staying(table, actions) if DOMAIN in changes else [])
    added = with_statistics(store, schema, "none", paths, [action for action in actions if isinstance(action, Add)])
    return [*_restated(actions, added), *(replace(file, data_change=False) for file in again)]


def _restated(actions: Sequence[Action], files: Sequence[Add]) -> Iterator[Action]:
    """The actions, of which those that add these files add them as they are here."""
    known = {file.identity: file for file in files}
    for action in actions:
        yield known.get(action.identity, action) if isinstance(action, Add) else action


def _schema_after(table: Snapshot | None, actions: Sequence[Action]) -> StructType:
    metadata = next((action for action in actions if isinstance(action, Metadata)), table.metadata if table else None)
    assert metadata is not None  # a commit that creates a table has its metadata
    return parse_schema(metadata.schema_string)


def _staying(table: Snapshot | None, actions: Sequence[Action]) -> list[Add]:
    named = {action.identity for action in actions if isinstance(action, Add | Remove)}
    return [file for file in (table.adds() if table is not None else ()) if file.identity not in named]


def _is_clusterable(schema: StructType, path: tuple[str, ...]) -> bool:
    kind = schema
    for name in path:
        if not isinstance(kind, StructType) or name not in kind.names:
            return False
        kind = kind.field(name).type
    return is_clusterable(kind)
