"""What Dagster's partitions mean by their keys, which of them a run is of, and how they map to those of upstreams."""

from typing import Any

import dagster as dg

from dagster_versioned.dagster_internals import BaseAssetGraph, UpstreamPartitionsResult, partition_loading_context
from dagster_versioned.tables.partitioning import Partitioning


def partitioning_of(definition: dg.PartitionsDefinition[Any]) -> Partitioning:
    """What the keys of a definition mean; where it begins and ends, and which names there are, is no part of it."""
    if isinstance(definition, dg.MultiPartitionsDefinition):
        return Partitioning.multi(
            {def_.name: partitioning_of(def_.partitions_def) for def_ in definition.partitions_defs}
        )
    if isinstance(definition, dg.TimeWindowPartitionsDefinition):
        return Partitioning.time_windows(
            definition.cron_schedule, key_format=definition.fmt, timezone=definition.timezone
        )
    return Partitioning.names("dynamic" if isinstance(definition, dg.DynamicPartitionsDefinition) else "static")


def partitioning_of_asset(graph: BaseAssetGraph[Any], key: dg.AssetKey) -> Partitioning | None:
    """What the keys of an asset mean; ``None`` for one without partitions, and for one that the graph does not have."""
    definition = graph.get(key).partitions_def if graph.has(key) else None
    return None if definition is None else partitioning_of(definition)


def partitions_of_run(context: dg.AssetExecutionContext) -> list[str | None]:
    """The partitions that a step computes, in the order of their definition; of one without, the table as a whole."""
    if context.has_partition_key or context.has_partition_key_range:
        return list(map(str, context.partition_keys))
    return [None]


def keys_in_range(
    definition: dg.PartitionsDefinition[str], keys: dg.PartitionKeyRange, instance: dg.DagsterInstance
) -> frozenset[str]:
    """The partitions from one to another, dynamic ones as the instance has them."""
    with partition_loading_context(dynamic_partitions_store=instance):
        return frozenset(definition.get_partition_keys_in_range(keys))


def reads_whole(mapping: dg.PartitionMapping) -> bool:
    """Whether a mapping means all partitions that there are, so that the table as a whole is the parent."""
    return isinstance(mapping, dg.AllPartitionMapping)


def upstream_result(
    mapping: dg.PartitionMapping,
    theirs: dg.PartitionsDefinition[str],
    ours: dg.PartitionsDefinition[str] | None,
    partition: str | None,
    store: Any,
) -> UpstreamPartitionsResult:
    """What Dagster says; ``store`` knows the dynamic partitions, and is a `DagsterInstance`."""
    return mapping.get_upstream_mapped_partitions_result_for_partitions(
        ours.subset_with_partition_keys([partition]) if ours is not None and partition is not None else None,
        ours,
        theirs,
        dynamic_partitions_store=store,
    )


def upstream_partitions(
    graph: BaseAssetGraph[Any], key: dg.AssetKey, partition: str | None, upstream: dg.AssetKey, store: Any
) -> frozenset[str] | None:
    """The upstream's partitions that one partition of an asset is built from; ``None`` for all there are, as one."""
    theirs, mapping = graph.get(upstream).partitions_def, graph.get_partition_mapping(key, upstream)
    if theirs is None or reads_whole(mapping):
        return None
    result = upstream_result(mapping, theirs, graph.get(key).partitions_def, partition, store)
    return frozenset(map(str, result.partitions_subset.get_partition_keys()))
