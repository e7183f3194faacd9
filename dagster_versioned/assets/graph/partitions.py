"""What Dagster's partitions definitions mean by their keys, as tables remember it."""

from typing import Any

import dagster as dg

from dagster_versioned.dagster_internals import BaseAssetGraph
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
