"""What the steps that evaluate checks have read: by that, and by no order of events, a version has been judged."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import dagster as dg

from dagster_versioned.dagster_internals import AssetGraph, EngineEventData
from dagster_versioned.tables.history import Version
from dagster_versioned.tables.table import VersionedTable

if TYPE_CHECKING:
    from dagster_versioned.dagster_internals import StepExecutionContext

LOOK_KEY = "dagster_versioned/looked_at"
"""Metadata key of the engine event that says what a step has read whose checks are of that table."""


def blocking_checks(graph: AssetGraph, asset_key: dg.AssetKey) -> tuple[dg.AssetCheckKey, ...]:
    """The checks of an asset that what is downstream of it waits for."""
    return tuple(sorted(check for check in graph.get(asset_key).check_keys if graph.get(check).blocking))


def note_look(
    step: "StepExecutionContext",
    asset_key: dg.AssetKey,
    table: VersionedTable,
    versions: Iterable[Version],
    what: str = "",
) -> None:
    """Write to the event log of the run what a step that evaluates checks of an asset has read of its table.

    By that alone it is known of which versions and drafts an evaluation is: Dagster says of which asset, and no more.
    ``what`` is the input, where there are several.
    """
    checks = step.assets_def.check_keys if step.assets_def is not None else ()
    makes = step.assets_def is not None and asset_key in step.assets_def.keys
    if makes or not any(check.asset_key == asset_key for check in checks):
        return
    parked, drafts, shas = table.operations.parked, dict[str, list[str | None]](), list[str]()
    for version in versions:
        if version.metadata_sha is not None:
            shas.append(version.metadata_sha)
        if (draft := parked.get(version.log_version)) is not None:
            drafts.setdefault(draft.sha256, []).append(version.partition)
    known = table.operations.cache.known
    look = {
        "asset_key": list(asset_key.path),
        "input": what,
        "versions": shas,
        "drafts": drafts,
        "log_version": -1 if known is None else known.log_version - len(parked),
    }
    step.instance.report_engine_event(
        f"The checks of {asset_key.to_user_string()} look at {len(shas)} versions, of {len(drafts)} parked drafts.",
        step.dagster_run,
        EngineEventData({LOOK_KEY: dg.JsonMetadataValue(look)}),
        step_key=step.step.key,
    )


@dataclass(frozen=True)
class Look:
    """What a step that evaluates checks of an asset has read: versions, and partitions of drafts, by their SHA-256.

    ``versions`` is ``None`` where an earlier release noted drafts alone. ``log_version`` is where the log of the table
    ended then, without drafts; ``step`` is what its key begins with.
    """

    step: str
    asset_key: dg.AssetKey
    versions: Collection[str] | None
    drafts: Mapping[str, Sequence[str | None]]
    log_version: int


class Looks:
    """What the steps of runs that evaluate checks have read; no run is asked for twice."""

    def __init__(self, instance: dg.DagsterInstance) -> None:
        self._instance = instance
        self._by_run: dict[str, Sequence[Look]] = {}

    def of(self, run_id: str, asset_key: dg.AssetKey, step_keys: Iterable[str]) -> list[Look]:
        """What steps of a run have read of an asset that their checks are of."""
        if run_id not in self._by_run:
            self._by_run[run_id] = _looks_of(self._instance, run_id) if run_id else ()
        steps = {root_of(key) for key in step_keys}
        return [look for look in self._by_run[run_id] if look.asset_key == asset_key and look.step in steps]

    def may_be_of(self, metadata_sha: str, run_id: str, asset_key: dg.AssetKey, step_key: str | None) -> bool:
        """Whether what a step found may be of a version: it has read that one, or nobody knows what it has read."""
        looks = self.of(run_id, asset_key, [step_key or ""])
        return not looks or any(look.versions is None or metadata_sha in look.versions for look in looks)


def _looks_of(instance: dg.DagsterInstance, run_id: str) -> list[Look]:
    """What the steps of a run that evaluate checks have read, each input as the last attempt read it."""
    found: dict[tuple[str, str], Look] = {}
    for entry in instance.all_logs(run_id, of_type=dg.DagsterEventType.ENGINE_EVENT):
        event = entry.dagster_event
        value = event.engine_event_data.metadata.get(LOOK_KEY) if event is not None else None
        if event is not None and event.step_key is not None and isinstance(value, dg.JsonMetadataValue):
            raw = cast("Any", value.value)
            shas = raw.get("versions")
            found[event.step_key, raw["input"]] = Look(
                root_of(event.step_key),
                dg.AssetKey(raw["asset_key"]),
                None if shas is None else frozenset(shas),
                raw["drafts"],
                raw["log_version"],
            )
    return list(found.values())


def root_of(step_key: str) -> str:
    """What the keys of the steps of one definition begin with, be it a graph."""
    return re.split(r"[.[]", step_key)[0]
