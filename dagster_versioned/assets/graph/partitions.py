"""What Dagster's partitions definitions mean by their keys, as tables remember it."""

from typing import Any

import dagster as dg

from dagster_versioned.dagster_internals import BaseAssetGraph, partition_loading_context
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
