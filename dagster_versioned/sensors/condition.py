"""`version_changed`: the sensor's judgement for people who use declarative automation."""

from collections.abc import Collection, Mapping
from typing import Any

import dagster as dg
import orjson

from dagster_versioned.dagster_internals import AssetGraph, AssetGraphView, AssetKeyPartitionKey
from dagster_versioned.errors import InvalidInput
from dagster_versioned.identity.version import On, require_on
from dagster_versioned.process_state import PROCESS
from dagster_versioned.projects.staleness import StaleCell
from dagster_versioned.sensors.blocking_checks import BlockingChecks
from dagster_versioned.sensors.graph import units_of
from dagster_versioned.sensors.judgement import Rules
from dagster_versioned.sensors.plan import Cell, Decision
from dagster_versioned.sensors.runs import STATE_CHARACTERS, RunsInProgress
from dagster_versioned.sensors.watch import Watch


def version_changed(
    *, on: On = "metadata_sha", on_code_version: bool = False, wait_for_checks: bool = True
) -> dg.AutomationCondition[dg.AssetKey]:
    """True for what is not built from the current versions of its upstreams, as `build_version_sensor` judges it.

    For ``automation_condition=version_changed()`` on an asset that is a versioned table. It needs the asset's IO
    manager, so it is only evaluated in user code: by ``dg.AutomationConditionSensorDefinition(…,
    use_user_code_server=True)``, which takes at most 500 assets. Dagster's default sensor passes over it without a
    word; ``dagster-versioned plan`` names the assets that nothing else evaluates.

    What holds here too: the judgement is by heads, so a change that came while something ran, or between a run's end
    and the next look, is not lost, as it is with `AutomationCondition.data_version_changed`. What does not: a state is
    not asked for twice because Dagster's cursor says so, not because run keys do, so a cursor that is lost may repeat
    a run that failed, and so may another sensor over the same asset; runs carry no tags that say why; there is no limit
    of runs in a tick; upstreams in another code location are waited for only while a run of them is seen. Where it is
    combined with other conditions by ``&``, it stays true until the asset is requested.
    """
    require_on(on, "condition")
    return VersionChanged(on, on_code_version, wait_for_checks)


class VersionChanged(dg.AutomationCondition[dg.AssetKey]):
    """The condition that `version_changed` makes."""

    def __init__(self, on: On, on_code_version: bool, wait_for_checks: bool) -> None:
        self.on: On = on
        self.on_code_version = on_code_version
        self.wait_for_checks = wait_for_checks

    @property
    def name(self) -> str:
        """What the UI calls it."""
        return "version_changed"

    @property
    def description(self) -> str:
        """What the UI says of it."""
        code = " or code" if self.on_code_version else ""
        return (
            f"not built from the current {'versions' if self.on == 'metadata_sha' else 'data'} of its upstreams{code}"
        )

    def evaluate(self, context: dg.AutomationContext[dg.AssetKey]) -> dg.AutomationResult[dg.AssetKey]:
        """The stale partitions of the asset that no run is asked for, or is under way for, or must wait."""
        watch, decisions = _look(context.asset_graph_view, (Rules(self.on, self.on_code_version), self.wait_for_checks))
        found = {partition or "": finding for partition, finding in watch.finding(context.key).items()}
        states = {key: finding.state[:STATE_CHARACTERS] for key, finding in found.items()}
        asked = _asked_before(context)
        is_ready = {key: decisions[watch.name(context.key), key or None].standing == "ready" for key in found}
        offered = {key: states[key] for key in sorted(found) if is_ready[key] and asked.get(key) != states[key]}
        unread = {key for key, finding in found.items() if finding.unreadable is not None}
        asked = {key: state for key, state in asked.items() if key in unread or states.get(key) == state}
        cursor = orjson.dumps({"asked": asked, "offered": offered}).decode()
        return dg.AutomationResult(context, _subset(context, offered), cursor=cursor)


def _asked_before(context: dg.AutomationContext[dg.AssetKey]) -> dict[str, str]:
    """The states that runs were asked for, by partition: of what was offered, those that Dagster has requested."""
    memory: Mapping[str, Any] = orjson.loads(context.cursor) if context.cursor else {}
    asked, offered = (dict(memory.get(name, {})) for name in ("asked", "offered"))
    before = context.get_previous_requested_subset(context.key)
    if before is not None and not before.is_empty:
        done = before.expensively_compute_partition_keys() if context.partitions_def is not None else {""}
        asked |= {key: state for key, state in offered.items() if key in done}
    return asked


def _subset(context: dg.AutomationContext[dg.AssetKey], keys: Collection[str]) -> Any:
    """These partitions, of those that Dagster asks about."""
    if not keys:
        return context.get_empty_subset()
    if context.partitions_def is None:
        return context.candidate_subset
    partitions = {AssetKeyPartitionKey(context.key, key) for key in keys}
    wanted = context.asset_graph_view.get_asset_subset_from_asset_partitions(context.key, partitions)
    return wanted.compute_intersection(context.candidate_subset)


Options = tuple[Rules, bool]
"""Of a condition: what counts, and ``wait_for_checks``."""


class Watches(dict[Options, tuple[Watch, BlockingChecks | None]]):
    """What the conditions of an asset graph have seen of its tables, for the next evaluation."""


class Decisions(dict[Options, dict[Cell, Decision]]):
    """What was decided in one evaluation of an asset graph, for all assets of it that ask."""


def _look(view: AssetGraphView, options: Options) -> tuple[Watch, Mapping[Cell, Decision]]:
    """What is stale of everything in the graph; looked at once an evaluation, for all assets that ask."""
    graph = view.asset_graph
    if not isinstance(graph, AssetGraph):
        raise InvalidInput(
            "version_changed() is evaluated in user code only. Nothing was requested. Give the assets an "
            "AutomationConditionSensorDefinition with use_user_code_server=True."
        )
    rules, wait_for_checks = options
    watches, looks = PROCESS.of(Watches, graph), PROCESS.of(Decisions, view)
    if options not in watches:
        units = units_of(graph, graph.materializable_asset_keys)
        watches[options] = Watch(units, rules), BlockingChecks() if wait_for_checks else None
    watch, checks = watches[options]
    if options not in looks:
        runs = RunsInProgress(view.instance)
        watch.look(view.instance)
        looks[options] = watch.decide(dict(watch.findings()), runs, _untried, checks)
    return watch, looks[options]


def _untried(cell: Cell, finding: StaleCell) -> Decision | None:
    """Runs that Dagster's conditions ask for do not say for which state they were."""
    return None
