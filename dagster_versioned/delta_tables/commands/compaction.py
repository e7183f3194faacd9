"""Compaction: files joined, sorted, and rid of their deletion vectors; no row changes."""

import re
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from dagster_versioned.delta.actions import Add, Metadata
from dagster_versioned.delta.commit.conflicts import Reads
from dagster_versioned.delta.files.file_actions import to_adds
from dagster_versioned.delta.files.predicate import parse_predicate
from dagster_versioned.delta.files.skipping import candidates, certain
from dagster_versioned.delta.log.snapshot import Snapshot
from dagster_versioned.delta.schema.clustering import CLUSTERED_BY, PROVIDER, clustering_columns, clustering_tag
from dagster_versioned.delta.schema.column_mapping import physical_path
from dagster_versioned.delta_tables.commands.command import Applied, Command, compact_json
from dagster_versioned.delta_tables.commands.plan import Plan, existing
from dagster_versioned.delta_tables.dml import FileChanges, RowEngine
from dagster_versioned.errors import InvalidInput
from dagster_versioned.storage.object_store import ObjectStore

OPTIMIZED_BYTES = 128 * 1024 * 1024
"""The size that compaction makes files of; the property ``delta.targetFileSize`` says another."""


def optimize(engine: RowEngine, store: ObjectStore, where: str | None = None, order_by: Sequence[str] = ()) -> Applied:
    """Join small files, and apply deletion vectors; no row changes. Raises as `delete`.

    ``where`` names partition columns only. Files are sorted by ``order_by``, or by the columns that the table is
    clustered by: then every file is written that no earlier call has sorted by them, or that lost rows since; files
    that another program has clustered stay as they are.
    """
    read = existing(store)
    command = Command(engine, store, Plan(read, read))
    files = read.files if where is None else _of_partitions(read, where)
    target_bytes = _target_bytes(read.metadata)
    clustered = () if order_by else tuple(".".join(path) for path in command.target.rules.clustering)
    tag = _clustering_tag(read) if clustered else None
    groups = _groups(to_adds(files), target_bytes, everything=bool(order_by), clustering=tag)
    if not groups:
        return Applied(read.version)
    keys = {add.key for group in groups for add in group}
    parameters = {
        "predicate": compact_json([] if where is None else [where]),
        "zOrderBy": compact_json(list(order_by)),
        "auto": "false",
    }
    if clustered:
        parameters["clusterBy"] = compact_json(list(clustered))

    def rewritten() -> FileChanges:
        changes = engine.rewrite(command.target, groups, tuple(order_by) or clustered)
        if tag is None:
            return changes
        marked = {"clustering_provider": PROVIDER, "tags": {CLUSTERED_BY: tag}}
        return replace(changes, adds=tuple(replace(add, **marked) for add in changes.adds))

    return command.run(rewritten, "OPTIMIZE", parameters, Reads(lambda add: add.key in keys))


_SIZE = re.compile(r"(\d{1,12})\s*([kmgt]?)i?b?", re.ASCII)


def _target_bytes(metadata: Metadata) -> int:
    match = _SIZE.fullmatch(metadata.configuration.get("delta.targetFileSize", "").strip().lower())
    return int(match[1]) * 1024 ** " kmgt".index(match[2] or " ") or 1 if match else OPTIMIZED_BYTES


def _of_partitions(read: Snapshot, where: str) -> pa.Table:
    predicate = parse_predicate(where, read.schema)
    files = candidates(read.files, predicate, read.schema, read.column_mapping, read.partition_columns)
    sure = certain(files, predicate, read.schema, read.column_mapping, read.partition_columns)
    if sure.num_rows != files.num_rows:
        raise InvalidInput(
            f"{where!r} does not choose whole partitions (the table is partitioned by {list(read.partition_columns)})."
            " Nothing was written."
        )
    return files


def _clustering_tag(read: Snapshot) -> str:
    columns = clustering_columns(read.domains, read.schema, read.column_mapping)
    return clustering_tag([physical_path(read.schema, path, read.column_mapping) for path in columns])


def _is_unclustered(add: Add, clustering: str | None) -> bool:
    """Whether the file is to be clustered; one of another provider is only for that to cluster again."""
    if clustering is None:
        return True
    if add.clustering_provider not in (None, PROVIDER):
        return False
    sorted_by = (add.tags or {}).get(CLUSTERED_BY) if add.clustering_provider else None
    return sorted_by != clustering or add.deletion_vector is not None


def _groups(adds: Sequence[Add], target_bytes: int, *, everything: bool, clustering: str | None) -> list[list[Add]]:
    """Files of one partition that together are to become one file, or several sorted ones."""
    partitions: dict[tuple[tuple[str, str | None], ...], list[Add]] = {}
    for add in adds:
        partitions.setdefault(tuple(sorted(add.partition_values.items())), []).append(add)
    groups: list[list[Add]] = []
    for members in partitions.values():
        if everything or clustering is not None:
            groups += _bins([add for add in members if _is_unclustered(add, clustering)], 8 * target_bytes)
        else:
            small = [add for add in members if add.size < target_bytes or add.deletion_vector is not None]
            groups += filter(_is_joined, _bins(small, target_bytes))
    return groups


def _is_joined(group: Sequence[Add]) -> bool:
    """Whether the files become another one by being written together."""
    return len(group) > 1 or group[0].deletion_vector is not None


def _bins(adds: Sequence[Add], capacity: int) -> list[list[Add]]:
    """First come, first packed, by size: neighbours in size are likely to be of one age."""
    groups: list[list[Add]] = []
    room = 0
    for add in sorted(adds, key=lambda add: (add.size, add.key)):
        if not groups or add.size > room:
            groups.append([])
            room = capacity
        groups[-1].append(add)
        room -= add.size
    return groups
