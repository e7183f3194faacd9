"""`build_version_sensor`: a run for whatever is not built from the current versions of its upstreams."""

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, get_args

import dagster as dg

from dagster_versioned.dagster_internals import (
    AssetGraph,
    BaseAssetGraph,
    CoercibleToAssetSelection,
    RequiredNeighborsAssetSelection,
)
from dagster_versioned.errors import InvalidInput
from dagster_versioned.identity.version import On, Scope, require_on

ON_KEY = "dagster_versioned/on"
CODE_KEY = "dagster_versioned/on_code_version"
CHECKS_KEY = "dagster_versioned/wait_for_checks"
"""Metadata of a sensor: what of upstreams counts, whether code versions do, whether blocking checks are waited for."""

if TYPE_CHECKING:
    from dagster_versioned.sensors.tick import Trigger


def build_version_sensor(
    name: str,
    target: CoercibleToAssetSelection,
    *,
    on: On = "metadata_sha",
    on_code_version: bool = False,
    wait_for_checks: bool = True,
    scope: Scope = "changed",
    max_runs_per_tick: int = 25,
    max_reruns: int = 0,
    minimum_interval_seconds: int = 30,
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.STOPPED,
    run_tags: Mapping[str, str] | None = None,
    description: str | None = None,
) -> dg.SensorDefinition:
    """A sensor that requests exactly those targets that are not built from their upstreams' current versions.

    It compares the parents recorded in each target's head, partition by partition, with the heads of its upstreams.
    Nothing is remembered that matters: whatever happened since the last tick, and however often, a target is requested
    if and only if it is stale now. Several stale levels run upstream first. A target without a version is requested
    once its upstreams have one. For the same state no run is requested twice; a run that failed is retried as
    ``dagster/max_retries`` in ``run_tags`` says, and requested again once something changes, or with ``max_reruns``.

    ``target``: the assets to keep current; those that are not versioned tables are left out, by name. Where that is all
    of them, definitions do not load. ``on``: what of an upstream counts, ``"data_sha"`` being its data alone.
    ``on_code_version``: whether a target whose asset states another code version than its head is stale.
    ``wait_for_checks``: whether a version is handed on only once every blocking check of its asset that the definitions
    hold has passed for it (a failure with severity WARN counts as passed). ``scope``: in an environment, ``"changed"``
    requests what is not current because of it, ``"all"`` also what was not when it began. ``max_runs_per_tick``: the
    rest follows on later ticks. ``max_reruns``: how often a state is requested again whose runs all failed or were
    cancelled; Dagster's retries of a run do not count. Partitions that lie side by side are one run where the asset's
    backfill policy is single-run, unless a partition is built from another one of the same asset; else each is a run.

    Inputs that are pinned (in `AssetIn` metadata, or in the configuration of the IO manager) are current as they are. A
    version pinned by a run alone lasts until the next tick: hold the head to keep it.
    """
    if max_runs_per_tick < 1:
        raise InvalidInput(f"max_runs_per_tick is {max_runs_per_tick}; at least 1 is needed. No sensor was made.")
    if max_reruns < 0:
        raise InvalidInput(f"max_reruns is {max_reruns}; at least 0 is needed. No sensor was made.")
    require_on(on, "sensor")
    if scope not in get_args(Scope):
        raise InvalidInput(f"scope is {scope!r:.100}; it is 'changed' or 'all'. No sensor was made.")
    selection = dg.AssetSelection.from_coercible(target)

    @cache
    def trigger() -> "Trigger":
        from dagster_versioned.sensors.judgement import Rules
        from dagster_versioned.sensors.tick import Trigger

        rules, tags = Rules(on, on_code_version, scope), dict(run_tags or {})
        return Trigger(name, selection, rules, wait_for_checks, max_runs_per_tick, max_reruns, tags)

    def tick(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        return trigger().tick(context)

    return dg.SensorDefinition(
        name=name,
        evaluation_fn=tick,
        asset_selection=_target(name, selection),
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=default_status,
        metadata={ON_KEY: on, CODE_KEY: on_code_version, CHECKS_KEY: wait_for_checks},
        description=description or f"Runs what is not built from the current versions of its upstreams (by {on}).",
    )


def _target(name: str, selection: dg.AssetSelection) -> dg.AssetSelection:
    class Target(_WithNeighbors):
        sensor = name

    return Target(child=selection)


class _WithNeighbors(RequiredNeighborsAssetSelection):
    """A selection and what only runs together with it; the UI, which shows a stored selection, gets a legible one.

    Dagster asks for that one whenever it loads definitions, with all of them in view: where the sensor has nothing to
    watch, loading fails, unless its target are all assets, of which none may depend on another yet.
    """

    sensor = ""

    def to_serializable_asset_selection(self, asset_graph: BaseAssetGraph[Any]) -> dg.AssetSelection:
        """The selection as it was given, where it is complete, else its keys. Raises `InvalidInput`."""
        from dagster_versioned.sensors.graph import require_something_to_watch

        keys = self.resolve(asset_graph)
        if isinstance(asset_graph, AssetGraph):
            require_something_to_watch(self.sensor, asset_graph, keys)
        if self.child.resolve(asset_graph) == keys:
            return self.child.to_serializable_asset_selection(asset_graph)
        return dg.AssetSelection.assets(*sorted(keys))
