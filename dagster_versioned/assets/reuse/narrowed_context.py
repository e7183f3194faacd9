"""The context of a ranged run, of which only some of the partitions are to be computed."""

from collections.abc import Sequence
from typing import Any

import dagster as dg

from dagster_versioned.assets.graph.mapping import upstream_partitions


class NarrowedContext(dg.AssetExecutionContext):
    """The step's own context, whose partitions are a contiguous stretch of those of the run.

    Run, tags and what is reached through ``op_execution_context`` are those of the run.
    """

    def __init__(self, context: dg.AssetExecutionContext, keys: Sequence[str]) -> None:
        super().__init__(context.op_execution_context)
        self._keys = list(keys)

    @property
    def partition_keys(self) -> Sequence[str]:
        return list(self._keys)

    @property
    def has_partition_key(self) -> bool:
        return len(self._keys) == 1

    @property
    def has_partition_key_range(self) -> bool:
        return True

    @property
    def partition_key(self) -> str:
        if len(self._keys) != 1:
            raise dg.DagsterInvariantViolationError(f"{len(self._keys)} partitions are computed: use partition_keys.")
        return self._keys[0]

    @property
    def partition_key_range(self) -> dg.PartitionKeyRange:
        return dg.PartitionKeyRange(self._keys[0], self._keys[-1])

    @property
    def asset_partition_key_range(self) -> dg.PartitionKeyRange:
        return self.partition_key_range

    @property
    def partition_time_window(self) -> dg.TimeWindow:
        definition: Any = self.assets_def.partitions_def
        first, last = (definition.time_window_for_partition_key(key) for key in (self._keys[0], self._keys[-1]))
        return dg.TimeWindow(first.start, last.end)

    def asset_partition_key_for_output(self, output_name: str = "result") -> str:
        return self.partition_key

    def asset_partition_keys_for_output(self, output_name: str = "result") -> Sequence[str]:
        return self.partition_keys

    def asset_partition_key_range_for_output(self, output_name: str = "result") -> dg.PartitionKeyRange:
        return self.partition_key_range

    def asset_partitions_time_window_for_output(self, output_name: str = "result") -> dg.TimeWindow:
        return self.partition_time_window

    def asset_partition_keys_for_input(self, input_name: str) -> Sequence[str]:
        upstream = self.asset_key_for_input(input_name)
        graph = self.job_def.asset_layer.asset_graph.source_asset_graph
        (asset,) = self.selected_asset_keys
        wanted: set[str] = set()
        for key in self._keys:
            mapped = upstream_partitions(graph, asset, key, upstream, self.instance)
            if mapped is None:
                return super().asset_partition_keys_for_input(input_name)
            wanted |= mapped
        return sorted(wanted)
