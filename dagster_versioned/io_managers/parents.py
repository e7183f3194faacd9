"""Which versions an output was built from, per partition that it writes."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import dagster as dg

from dagster_versioned.errors import TableNotFound
from dagster_versioned.io_managers.attempt import noted, started_at
from dagster_versioned.tables.project import Project
from dagster_versioned.tables.table import Upstream

if TYPE_CHECKING:
    from dagster._core.execution.context.system import StepExecutionContext


def parents_of(
    step: "StepExecutionContext", asset_key: dg.AssetKey, partitions: Sequence[str | None], project: Project
) -> dict[str | None, list[Upstream]]:
    """The parents of each partition that an output writes (``None``: of the whole table).

    Of the output's own dependencies: what the attempt was handed, and what it made of them in this very step. A
    dependency that was declared but not loaded counts with the version that was current when the step started: the
    step may have read it by itself, and whatever came later it may have missed. Were the later one recorded, nobody
    would ever notice that it is not in the data; recording the earlier one costs at most a run that changes nothing.
    The moment is the step's start in Dagster's event log, compared with the commit times in the table's log, so the
    clocks of machines that write should agree. One partition of a ranged run has the parents that it would have alone.
    """
    read = noted(step)
    moment: datetime | None = None
    parents: dict[str | None, list[Upstream]] = {partition: [] for partition in partitions}
    for dependency in sorted(step.job_def.asset_layer.get(asset_key).parent_keys):
        mapped = {partition: _mapped(step, asset_key, partition, dependency) for partition in partitions}
        if dependency in read:
            for partition, wanted in mapped.items():
                parents[partition] += [one for one in read[dependency] if _concerns(one, wanted)]
            continue
        moment = moment or datetime.fromtimestamp(started_at(step), UTC)
        for partition, wanted in mapped.items():
            parents[partition] += _as_of(project, dependency, moment, wanted)
    return parents


def reads_whole(step: "StepExecutionContext", dependency: dg.AssetKey) -> bool:
    """Whether the step reads all partitions of a dependency by definition, so that its parent is the whole table."""
    readers = [key for key in (step.assets_def.keys if step.assets_def else ()) if _depends(step, key, dependency)]
    return all(isinstance(_mapping(step, key, dependency), dg.AllPartitionMapping) for key in readers)


def _depends(step: "StepExecutionContext", asset_key: dg.AssetKey, dependency: dg.AssetKey) -> bool:
    return dependency in step.job_def.asset_layer.get(asset_key).parent_keys


def _concerns(upstream: Upstream, wanted: frozenset[str] | None) -> bool:
    return wanted is None or upstream.parent.partition is None or upstream.parent.partition in wanted


def _as_of(
    project: Project, dependency: dg.AssetKey, moment: datetime, wanted: frozenset[str] | None
) -> list[Upstream]:
    """The dependency's versions at a moment; none where it is not a table of this project, or was not yet.

    Whatever else keeps them from being known is an error: a version without its parents would look complete.
    """
    table = project.table(dependency.path)
    try:
        first = table.state.history.versions[0]
    except TableNotFound:
        return []
    if first.timestamp > moment:
        return []
    then = table.choose(moment)
    if any(tuple(version.identity.asset_key) != tuple(dependency.path) for version in then.versions):
        return []
    if wanted is None or not then.versions:
        return table.upstream_of(then)
    known = wanted & {version.partition for version in then.versions}
    return table.upstream_of(table.choose(moment, partitions=sorted(known))) if known else []


def _mapped(
    step: "StepExecutionContext", asset_key: dg.AssetKey, partition: str | None, dependency: dg.AssetKey
) -> frozenset[str] | None:
    """The dependency's partitions that one partition of the asset is built from; ``None`` for all there are."""
    graph = step.job_def.asset_layer.asset_graph
    theirs, ours = graph.get(dependency).partitions_def, graph.get(asset_key).partitions_def
    mapping = _mapping(step, asset_key, dependency)
    if theirs is None or isinstance(mapping, dg.AllPartitionMapping):
        return None
    result = mapping.get_upstream_mapped_partitions_result_for_partitions(
        ours.subset_with_partition_keys([partition]) if ours is not None and partition is not None else None,
        ours,
        theirs,
        dynamic_partitions_store=step.instance,
    )
    return frozenset(map(str, result.partitions_subset.get_partition_keys()))


def _mapping(step: "StepExecutionContext", asset_key: dg.AssetKey, dependency: dg.AssetKey) -> dg.PartitionMapping:
    return step.job_def.asset_layer.asset_graph.get_partition_mapping(asset_key, dependency)
