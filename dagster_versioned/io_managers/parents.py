"""Which versions an output was built from, per partition that it writes."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING

import dagster as dg

from dagster_versioned.assets.graph.partitions import partitioning_of_asset, reads_whole, upstream_partitions
from dagster_versioned.assets.graph.places import Places
from dagster_versioned.assets.parked import Publish, table_for
from dagster_versioned.assets.reuse.lazy_input import LazyInput
from dagster_versioned.errors import TableNotFound, VersionNotFound
from dagster_versioned.identity.version import Parent
from dagster_versioned.io_managers.attempt import noted, started_at
from dagster_versioned.tables.choose import ChosenVersions
from dagster_versioned.tables.context import ProjectContext
from dagster_versioned.tables.erased_parts import ErasureName
from dagster_versioned.tables.external import ExternalTable
from dagster_versioned.tables.lineage import reading_of
from dagster_versioned.tables.partitioning import Partitioning
from dagster_versioned.tables.table import VersionedTable, open_table
from dagster_versioned.tables.upstream import Upstream

if TYPE_CHECKING:
    from dagster_versioned.dagster_internals import StepExecutionContext


def parents_of(
    step: "StepExecutionContext",
    asset_key: dg.AssetKey,
    partitions: Sequence[str | None],
    project: ProjectContext,
    publish: Publish = "at_once",
) -> dict[str | None, list[Upstream]]:
    """The parents of each partition that an output writes (``None``: of the whole table).

    Of the output's own dependencies: what the attempt was handed, and what it made of them in this very step. A
    dependency that was declared but not loaded counts with the version that was current when the step started: the
    step may have read it by itself, and whatever came later it may have missed. Were the later one recorded, nobody
    would ever notice that it is not in the data; recording the earlier one costs at most a run that changes nothing.
    It is looked for in the project of the IO manager that it is defined with, and without one in the asset's own. The
    moment is the step's start in Dagster's event log, compared with the commit times in the table's log, so the clocks
    of machines that write should agree. One partition of a ranged run has the parents that it would have alone.
    """
    read = noted(step)
    moment: datetime | None = None
    parents: dict[str | None, list[Upstream]] = {partition: [] for partition in partitions}
    # Of the whole code location: a job knows of what it does not run no more than that it exists.
    graph = step.job_def.asset_layer.asset_graph.source_asset_graph
    places = Places(graph)
    for dependency in sorted(graph.get(asset_key).parent_keys):
        mapped = {key: upstream_partitions(graph, asset_key, key, dependency, step.instance) for key in partitions}
        if dependency in read:
            by_partition = _by_partition(read[dependency])
            for partition, wanted in mapped.items():
                parents[partition] += _of(by_partition, wanted)
            continue
        moment = moment or datetime.fromtimestamp(started_at(step), UTC)
        external = places.external(dependency)
        if external is not None:
            then = _external_as_of(external, moment)
            for partition in partitions:
                parents[partition] += then
            continue
        where = places.project_for(dependency, asset_key, project)
        table = open_table(where, dependency.path)
        seen = table_for(step, table, publish)
        is_whole = all(wanted is None for wanted in mapped.values())
        known = _as_of(
            seen,
            dependency,
            moment if seen is table else None,
            None if is_whole else partitioning_of_asset(graph, dependency),
        )
        for partition, wanted in mapped.items():
            parents[partition] += known(wanted)
    for undeclared in _undeclared(step, read):
        for partition in partitions:
            parents[partition] += undeclared
    return parents


def _undeclared(
    step: "StepExecutionContext", read: Mapping[dg.AssetKey, Sequence[Upstream]]
) -> Iterator[Sequence[Upstream]]:
    """What the function of the step loaded by itself of assets that none of its own depends on.

    Not what it loaded of its own assets: a version that names the one before it would be another one each time.
    """
    graph = step.job_def.asset_layer.asset_graph
    own = step.assets_def.keys if step.assets_def is not None else ()
    known = {key for asset in own for key in graph.get(asset).parent_keys}.union(own)
    yield from (read[key] for key in sorted(read.keys() - known))


def parents_by_input(
    step: "StepExecutionContext",
    asset_key: dg.AssetKey,
    partitions: Sequence[str | None],
    inputs: Mapping[str, LazyInput],
) -> dict[str | None, dict[str, list[Parent]]]:
    """The parents that each input gives each partition which an output writes, as `parents_of` all of them."""
    graph = step.job_def.asset_layer.asset_graph.source_asset_graph
    found: dict[str | None, dict[str, list[Parent]]] = {partition: {} for partition in partitions}
    for name, input_ in inputs.items():
        by_partition = _by_partition(input_.versions)
        for partition, parents in found.items():
            wanted = upstream_partitions(graph, asset_key, partition, input_.asset_key, step.instance)
            parents[name] = [upstream.parent for upstream in _of(by_partition, wanted)]
    return found


def is_read_whole(step: "StepExecutionContext", dependency: dg.AssetKey) -> bool:
    """Whether the step reads all partitions of a dependency by definition, so that its parent is the whole table."""
    graph = step.job_def.asset_layer.asset_graph
    readers = [
        key for key in (step.assets_def.keys if step.assets_def else ()) if dependency in graph.get(key).parent_keys
    ]
    return all(reads_whole(graph.get_partition_mapping(key, dependency)) for key in readers)


def _by_partition(read: Iterable[Upstream]) -> dict[str | None, list[Upstream]]:
    found: dict[str | None, list[Upstream]] = {}
    for upstream in read:
        found.setdefault(upstream.parent.partition, []).append(upstream)
    return found


def _of(by_partition: Mapping[str | None, Sequence[Upstream]], wanted: frozenset[str] | None) -> Iterator[Upstream]:
    """Those of the wanted partitions (``None``: all), and of the table as a whole."""
    partitions = by_partition.keys() if wanted is None else [None, *sorted(wanted)]
    for partition in partitions:
        yield from by_partition.get(partition, ())


def _external_as_of(table: ExternalTable, moment: datetime) -> list[Upstream]:
    """An external table's version at a moment; none where it was not yet.

    S3 rounds the times of files down to seconds, so there a commit counts from a second later on: never too early.
    """
    if table.store.local_path("_delta_log") is None:
        moment -= timedelta(seconds=1)
    try:
        return table.upstream(moment)
    except VersionNotFound:
        return []


def _as_of(
    table: VersionedTable, dependency: dg.AssetKey, moment: datetime | None, partitioning: Partitioning | None
) -> Callable[[frozenset[str] | None], Sequence[Upstream]]:
    """The dependency's versions at a moment (``None``: as the run has parked them), by the partitions that are wanted;
    none where it is not a table of the project, or was not yet.

    Whatever else keeps them from being known is an error: a version without its parents would look complete.
    """
    try:
        then = table.choose(moment, partitioning=partitioning)
    except (TableNotFound, VersionNotFound):
        return lambda wanted: ()
    if moment is not None and not then.versions and table.state.history.versions[0].timestamp > moment:
        return lambda wanted: ()
    if any(tuple(version.recorded["asset_key"]) != tuple(dependency.path) for version in then.versions):
        return lambda wanted: ()

    def read(chosen: ChosenVersions) -> list[Upstream]:
        found = table.upstream_of(chosen)
        if ErasureName.by(table.state.snapshot) is None:
            return found
        snapshot = table.operations.cache.older(then.log_version)  # what the step has seen
        reading = reading_of(table.project, table.name, snapshot, chosen)
        return [replace(upstream, reading=reading) for upstream in found]

    whole = cache(lambda: read(then))
    known = frozenset(version.partition for version in then.versions if version.partition is not None)
    by_partition = _by_partition(read(then.only(sorted(known)))) if known else {}

    def of(wanted: frozenset[str] | None) -> Sequence[Upstream]:
        return whole() if wanted is None or not then.versions else list(_of(by_partition, wanted & known))

    return of
