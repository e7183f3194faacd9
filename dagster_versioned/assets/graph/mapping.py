"""Which partitions of an upstream one partition of an asset is built from: Dagster's partition mappings, asked once."""

from typing import Any

import dagster as dg

from dagster_versioned.dagster_internals import BaseAssetGraph, UpstreamPartitionsResult


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
