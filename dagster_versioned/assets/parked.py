"""Which parked drafts a step sees: those of its run, of the runs that it goes on with, and of its backfill."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

import dagster as dg

from dagster_versioned.assets.graph.inputs import plain
from dagster_versioned.assets.graph.materialization_keys import DRAFT_KEY, DRAFT_SHA_KEY, STATE_KEY
from dagster_versioned.assets.graph.places import Places
from dagster_versioned.dagster_internals import BACKFILL_ID_TAG, AssetGraph, AssetNode, steps_of
from dagster_versioned.errors import InvalidInput
from dagster_versioned.process_state import PROCESS
from dagster_versioned.publication.view import view
from dagster_versioned.tables.documents.parked_draft import ParkedDraft, drafts_of
from dagster_versioned.tables.options import METADATA_KEY
from dagster_versioned.tables.table import VersionedTable

if TYPE_CHECKING:
    from dagster_versioned.dagster_internals import StepExecutionContext

Publish = Literal["at_once", "after_checks"]
"""When the versions of an IO manager become current."""

PARKED_TAG = "dagster_versioned/parked"
"""Run tag: the id of a run whose parked drafts this one sees, such as one that evaluates checks alone."""


class ParkingPolicy:
    """Whether there may be drafts of an asset graph; ``None`` until somebody looks."""

    is_possible: bool | None = None


def table_for(step: "StepExecutionContext", table: VersionedTable, publish: Publish) -> VersionedTable:
    """The table as the step sees it: with the drafts that it may read."""
    drafts = visible(step, table, publish)
    return view(table, drafts).table if drafts else table


def visible(step: "StepExecutionContext", table: VersionedTable, publish: Publish) -> list[ParkedDraft]:
    """The drafts of a table that the step sees, in the order in which they were parked; of one cell, the last one.

    Those of a run that this one goes on with are, but for what it, or a run between, computes again: to execute *all
    steps* again is to start afresh.
    """
    if not is_parking(step, publish):
        return []
    redone = dict(_runs(step.instance, step.dagster_run))
    backfill = step.dagster_run.tags.get(BACKFILL_ID_TAG)
    seen: list[ParkedDraft] = []
    for draft in reversed(drafts_of(table.project.data, str(table.name), list(redone), backfill)):
        run, key = draft.run.run_id, draft.run.step_key
        is_mine = key not in redone[run] if run in redone else backfill is not None and draft.backfill == backfill
        replaces = draft.options.mode == "replace"
        is_replaced = replaces and any(set(earlier.partitions) & set(draft.partitions) for earlier in seen)
        if is_mine and draft.is_living and not is_replaced:
            seen.append(draft)
    return seen[::-1]


def is_parking(step: "StepExecutionContext", publish: Publish) -> bool:
    """Whether there may be drafts: the IO manager parks, or another one of the code location, or an asset of it, may
    do; or the run asks for it."""
    if publish == "after_checks" or PARKED_TAG in step.dagster_run.tags:
        return True
    graph = step.job_def.asset_layer.asset_graph.source_asset_graph
    parking = PROCESS.of(ParkingPolicy, graph)
    if parking.is_possible is None:
        asks = any(publish_of(node) == "after_checks" for node in graph.asset_nodes)
        parking.is_possible = asks or len(_parking_managers(graph)) > 1
    return parking.is_possible


def _parking_managers(graph: AssetGraph) -> set[int]:
    places = Places(graph)
    made = [places.definition(node.key) for node in graph.asset_nodes if node.is_materializable]
    return {id(manager) for manager in made if manager is not None and _may_park(manager)}


def _may_park(definition: dg.ResourceDefinition) -> bool:
    """Whether an IO manager may be one of ours, which is not known of one that a function makes, but for Dagster's."""
    cls = getattr(definition, "configurable_resource_cls", None)
    if cls is not None:
        return "publish" in getattr(cls, "model_fields", {})
    return not str(getattr(definition.resource_fn, "__module__", "")).startswith("dagster.")


def publish_of(node: AssetNode) -> str | None:
    """What the options of an asset say of when its versions become current."""
    options = plain(node.metadata, METADATA_KEY)
    # What users wrote into metadata is a mapping of anything.
    return options.get("publish") if isinstance(options, Mapping) else None  # pyright: ignore[reportUnknownVariableType,reportUnknownMemberType]


def _runs(instance: dg.DagsterInstance, run: dg.DagsterRun) -> Iterator[tuple[str, frozenset[str]]]:
    """The runs whose drafts one sees, each with the steps that were, or are, computed again since."""
    first = run
    redone: frozenset[str] = frozenset()
    current: dg.DagsterRun | None = run
    while current is not None:
        yield current.run_id, redone
        redone |= steps_of(instance, current)
        current = instance.get_run_by_id(current.parent_run_id) if current.parent_run_id else None
    named = first.tags.get(PARKED_TAG)
    other = instance.get_run_by_id(named) if named else None
    if other is not None and other.run_id != first.run_id:
        yield from _runs(instance, other)


def continues(instance: dg.DagsterInstance, run: dg.DagsterRun, draft: ParkedDraft) -> bool:
    """Whether a run sees what the step of a draft has parked."""
    redone = dict(_runs(instance, run))
    return draft.run.run_id in redone and draft.run.step_key not in redone[draft.run.run_id]


def parked_text(draft: ParkedDraft) -> str:
    """A line of the run's log."""
    return (
        f"{draft.table}: parked as the draft {draft.id[:8]}. This run reads it; others will once every blocking check "
        "has passed and a sensor of build_publication_sensor, or Project.publish, has published it."
    )


def draft_metadata(draft: ParkedDraft) -> dict[str, Any]:
    """What Dagster shows of a parked version; the SHA-256 is a witness to the document, outside of its store."""
    return {STATE_KEY: "parked", DRAFT_KEY: draft.id, DRAFT_SHA_KEY: draft.sha256}


def refuse_early_conditions(step: "StepExecutionContext", asset_key: dg.AssetKey, publish: Publish) -> None:
    """Raise `InvalidInput` where an asset below one that parks is requested by its events, which come too early."""
    graph = step.job_def.asset_layer.asset_graph.source_asset_graph
    if not graph.has(asset_key):
        return
    node = graph.get(asset_key)
    if (publish_of(node) or publish) == "after_checks":
        refuse_conditions_below(graph, node)


def refuse_conditions_below(graph: AssetGraph, node: AssetNode) -> None:
    """`refuse_early_conditions` of one asset."""
    for child in sorted(node.child_keys):
        condition = cast("Any", graph.get(child).automation_condition) if graph.has(child) else None
        if condition is not None and _hears_of_deps(condition):
            asset, below = node.key.to_user_string(), child.to_user_string()
            raise InvalidInput(
                f"{asset} is published after its checks, and the automation condition of {below} is true once Dagster "
                f"logs that {asset} was materialized, which is before. Nothing was written. Give {below} "
                "version_changed(), or a sensor of build_version_sensor: they look at what is published."
            )


def _hears_of_deps(condition: Any, *, is_of_deps: bool = False) -> bool:
    """Whether a condition looks for events of upstreams."""
    automation, missing = dg.AutomationCondition, dg.AutomationCondition.missing()
    of_deps = (type(automation.any_deps_match(missing)), type(automation.all_deps_match(missing)))
    events = (type(automation.newly_updated()), type(automation.data_version_changed()))
    if is_of_deps and isinstance(condition, events):
        return True
    below = is_of_deps or isinstance(condition, of_deps)
    children = cast("Sequence[Any]", condition.children)
    return any(_hears_of_deps(child, is_of_deps=below) for child in children)
