"""One attempt of a step: what it was handed, and which computation it is an attempt at."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import dagster as dg

from dagster_versioned.assets import asset_code
from dagster_versioned.dagster_internals import RETRY_NUMBER_TAG, EngineEventData, StepEventStatus
from dagster_versioned.errors import InvalidInput
from dagster_versioned.identity.version import Code, Parent, Run, SourceVersion
from dagster_versioned.process_state import PROCESS
from dagster_versioned.publication.guard import ReadsHeeded
from dagster_versioned.tables.code_details import CodeDetails
from dagster_versioned.tables.configuration import TRANSACTIONS_KEPT
from dagster_versioned.tables.state import TableState
from dagster_versioned.tables.table import VersionedTable
from dagster_versioned.tables.upstream import SeenVersions, Upstream
from dagster_versioned.tables.write.pending import OpenComputation

if TYPE_CHECKING:
    from dagster_versioned.dagster_internals import StepExecutionContext

Versions = dict[dg.AssetKey, tuple[Upstream, ...]]


@dataclass(frozen=True)
class _Note:
    """What was read of an asset; where in the log of its table, unless that was asked for or is of drafts."""

    versions: tuple[Upstream, ...]
    log_version: int | None


MESSAGE_TAG = "dagster_versioned/message"
"""Run tag with a message that becomes part of the identity of what the run writes."""

NOTE_KEY = "dagster_versioned/read"
"""Metadata key of the engine event by which the writing step of a graph-backed asset knows what earlier steps read."""

_MOST_LEFT = 256


class Attempt:
    """What one attempt at a step has read and computes. Its owner is the context of the step.

    Dagster makes one for each attempt and passes it to every IO manager of the step, so a retry starts with an empty
    one. ``tables`` are the opened ones in which computations were looked for, and to which what is kept is written;
    the next output is being computed ``since`` then.
    """

    def __init__(self) -> None:
        self.notes: dict[dg.AssetKey, _Note] = {}
        self.tables: dict[dg.AssetKey, VersionedTable] = {}
        self.computations: dict[dg.AssetKey, dict[str | None, OpenComputation]] = {}
        self.since = time.monotonic()
        self.unfollowed: set[dg.AssetKey] = set()
        self.made_by: tuple[Code, CodeDetails] | None = None
        self.is_code_known = False


class LeftTables:
    """How the steps of the newest run have left tables of a project, for its later steps that have the same resource.

    Its owner is the project. All are forgotten when a step has called a function, which may have changed tables by
    itself.
    """

    def __init__(self) -> None:
        self._by_uri: tuple[str, dict[str, TableState]] = "", {}

    def put(self, run_id: str, table: VersionedTable) -> None:
        """Remember how a step of the run has left a table, unless it takes much memory."""
        of_run, states = self._by_uri
        if of_run != run_id or len(states) >= _MOST_LEFT:
            _, states = self._by_uri = run_id, {}
        state = table.operations.cache.known
        if state is not None and state.is_small:
            states[table.store.uri] = state

    def get(self, run_id: str, table: VersionedTable) -> TableState | None:
        """How an earlier step of the run left a table, if no step has called a function since."""
        of_run, states = self._by_uri
        return states.get(table.store.uri) if of_run == run_id else None


def step_of(context: dg.OutputContext | dg.InputContext) -> "StepExecutionContext | None":
    """The running step; there is none in unit tests and where an asset's value is loaded outside of a run.

    What the function of a step loads by itself (``context.load_asset_value``) is an input of that step.
    """
    try:
        return context.step_context
    except dg.DagsterInvariantViolationError:
        return running_step() if isinstance(context, dg.InputContext) else None


def running_step() -> "StepExecutionContext | None":
    """The step whose function is running here."""
    with suppress(dg.DagsterInvariantViolationError):
        return dg.OpExecutionContext.get().get_step_execution_context()
    return None


def input_text(context: dg.InputContext) -> str:
    """What is to be read, for a sentence; it has no name outside of a run."""
    try:
        return f"input {context.name!r}"
    except dg.DagsterInvariantViolationError:
        return "value"


def note(
    step: "StepExecutionContext",
    asset_key: dg.AssetKey,
    versions: Iterable[Upstream],
    *,
    log_version: int | None = None,
    adds: bool = False,
) -> None:
    """Remember that the attempt read these versions of an asset, or made them for a later output of the same step.

    They take the place of what was noted of the asset before, or are added to it. ``log_version`` is what `read_at`
    says from then on. A graph-backed asset reads in one step and writes in another, in another process perhaps, so
    there the note also goes to the event log of the run.
    """
    notes = PROCESS.of(Attempt, step).notes
    before = notes.get(asset_key)
    if adds and before is not None:
        versions = dict.fromkeys((*before.versions, *versions))
        log_version = before.log_version if log_version is None else log_version
    found = notes[asset_key] = _Note(tuple(versions), log_version)
    if step.is_op_in_graph:
        step.instance.report_engine_event(
            f"Read {len(found.versions)} versions of {asset_key.to_user_string()}.",
            step.dagster_run,
            EngineEventData({NOTE_KEY: dg.JsonMetadataValue(_to_json(asset_key, found))}),
            step_key=step.step.key,
        )


def noted(step: "StepExecutionContext") -> Mapping[dg.AssetKey, Sequence[Upstream]]:
    """The versions that the attempt read or made, and for a graph-backed asset those that its other steps did."""
    found: Versions = {}
    for notes in _notes(step).values():
        for key, note in notes.items():
            found[key] = tuple(dict.fromkeys((*found.get(key, ()), *note.versions)))
    return found


def read_at(step: "StepExecutionContext", asset_key: dg.AssetKey) -> int | None:
    """The log version at which the step, or another one of its graph-backed asset, has read an asset's table already.

    So all that is read of a table is of one moment, whoever commits meanwhile. What an earlier attempt at the step
    read does not count.
    """
    found = [one.log_version for notes in _notes(step).values() if (one := notes.get(asset_key)) is not None]
    return next((state for state in found if state is not None), None)


def _read_by_running_step() -> Iterable[Upstream]:
    """What the step has read whose function is running here; nothing outside of one."""
    step = running_step()
    return () if step is None else [note for some in noted(step).values() for note in some]


PROCESS.of(ReadsHeeded).append(_read_by_running_step)


def run_of(step: "StepExecutionContext", *, adds_rows: bool = False) -> Run:
    """The attempt as versions record it.

    Attempts at one computation are those of one run, those of Dagster's own retries of it, and those of re-executions
    of a run in which the step did not succeed. Who executes a step again that succeeded asks for a computation of its
    own.

    Raises `InvalidInput` where ``adds_rows`` and the first attempt is so old that a table has forgotten it: whether it
    added its rows could not be known.
    """
    first = step.run_id
    for again, run in pairwise(_runs(step)):
        stats = step.instance.get_run_step_stats(run.run_id, [step.step.key])
        status = stats[0].status if stats else StepEventStatus.SKIPPED  # the run had other steps to do
        if status is StepEventStatus.SUCCESS and RETRY_NUMBER_TAG not in again.tags:
            break
        if status is not StepEventStatus.SKIPPED:
            first = run.run_id
    if adds_rows and first != step.run_id:
        _require_remembered(step, first)
    return Run(
        step.run_id,
        step.step.key,
        step.previous_attempt_count,
        first if first != step.run_id else None,
        _code_location(step),
        _function(step),
        made[0] if (made := made_by(step)) is not None else None,
    )


def made_by(step: "StepExecutionContext") -> tuple[Code, CodeDetails] | None:
    """The code of the step, as versions record it, and its details; ``None`` where no function of users is called."""
    attempt = PROCESS.of(Attempt, step)
    if not attempt.is_code_known:
        attempt.made_by = None if step.assets_def is None else asset_code.made_by(step.assets_def)
        attempt.is_code_known = True
    return attempt.made_by


def _code_location(step: "StepExecutionContext") -> str | None:
    """Its name; none where the run was not started by Dagster's own processes."""
    origin = step.dagster_run.remote_job_origin
    return origin.location_name if origin is not None else None


def _function(step: "StepExecutionContext") -> str | None:
    """The function that defines the asset, with its module; none where this package made it up."""
    definition = step.assets_def.node_def if step.assets_def is not None else None
    if not isinstance(definition, dg.OpDefinition):
        return definition.name if definition is not None else None
    function = getattr(definition.compute_fn, "decorated_fn", definition.compute_fn)
    module, name = (getattr(function, part, None) for part in ("__module__", "__qualname__"))
    is_own = not isinstance(module, str) or module.split(".")[0] == __name__.split(".")[0]
    return None if is_own else f"{module}.{name}"


def _require_remembered(step: "StepExecutionContext", first: str) -> None:
    record = step.instance.get_run_record_by_id(first)
    if record is None or datetime.now(UTC) - record.create_timestamp.astimezone(UTC) < TRANSACTIONS_KEPT:
        return
    raise InvalidInput(
        f"The first attempt at the step {step.step.key!r} is of {record.create_timestamp:%Y-%m-%d} (run {first}), and "
        f"a table remembers for {TRANSACTIONS_KEPT.days} days what a step has added to it. So it cannot be known "
        "whether these rows are in the table. Nothing was written. Look for that run in history(); if it has no "
        "version there, start a new run instead of executing this one again."
    )


def started_at(step: "StepExecutionContext") -> float:
    """When the attempt started, in seconds since the epoch; for a graph-backed asset, when its first step did.

    By the clock of the machine that logged the start.
    """
    keys = [step.step.key] if not step.is_op_in_graph else None
    starts = [
        started
        for run in (_runs(step) if step.is_op_in_graph else [step.dagster_run])
        for stats in step.instance.get_run_step_stats(run.run_id, keys)
        if keys or _is_sibling(step, stats.step_key)
        if (started := stats.partial_attempt_start or stats.start_time) is not None
    ]
    return min(starts)


def _notes(step: "StepExecutionContext") -> "Mapping[str, Mapping[dg.AssetKey, _Note]]":
    """By step: those of the attempt, and for a graph-backed asset those of its other steps, from the event log.

    Where one of these was tried again, or by a later run, its last note of an asset counts.
    """
    own = PROCESS.of(Attempt, step).notes
    if not step.is_op_in_graph:
        return {step.step.key: own}
    found: dict[str, dict[dg.AssetKey, _Note]] = {}
    for run in reversed(_runs(step)):
        for entry in step.instance.all_logs(run.run_id, of_type=dg.DagsterEventType.ENGINE_EVENT):
            event = entry.dagster_event
            if event is not None and event.step_key is not None and _is_sibling(step, event.step_key):
                value = event.engine_event_data.metadata.get(NOTE_KEY)
                if isinstance(value, dg.JsonMetadataValue):
                    found.setdefault(event.step_key, {}).update([_from_json(value.value)])
    return {**found, step.step.key: own}


def _is_sibling(step: "StepExecutionContext", step_key: str) -> bool:
    """Whether the step belongs to the same graph-backed asset."""
    return step_key.startswith(f"{step.node_handle.root.name}.")


def _runs(step: "StepExecutionContext") -> list[dg.DagsterRun]:
    """The run and those it is a re-execution of, the newest first."""
    return list(_ancestry(step.instance, step.dagster_run))


def _ancestry(instance: dg.DagsterInstance, run: dg.DagsterRun | None) -> Iterator[dg.DagsterRun]:
    while run is not None:
        yield run
        run = instance.get_run_by_id(run.parent_run_id) if run.parent_run_id else None


def _to_json(asset_key: dg.AssetKey, note: _Note) -> dict[str, Any]:
    return {
        "asset_key": list(asset_key.path),
        "versions": [
            {
                "parent": version.parent.to_json(),
                "sources": [source.to_json() for source in version.sources],
                "drafts": list(version.drafts),
                "reading": _reading_json(version.reading),
            }
            for version in note.versions
        ],
        "log_version": note.log_version,
    }


def _reading_json(reading: SeenVersions | None) -> dict[str, Any] | None:
    if reading is None:
        return None
    versions = None if reading.versions is None else sorted(map(list, reading.versions), key=str)
    return {"table_id": reading.table_id, "epoch": reading.epoch, "versions": versions}


def _reading(raw: Any) -> SeenVersions | None:
    if raw is None:
        return None
    versions = None if raw["versions"] is None else frozenset((int(at), key) for at, key in raw["versions"])
    return SeenVersions(raw["table_id"], raw["epoch"], versions)


def _from_json(raw: Any) -> tuple[dg.AssetKey, _Note]:
    versions = tuple(
        Upstream(
            Parent.from_json(version["parent"]),
            tuple(SourceVersion.from_json(source) for source in version["sources"]),
            tuple(version.get("drafts", ())),
            _reading(version.get("reading")),
        )
        for version in raw["versions"]
    )
    return dg.AssetKey(raw["asset_key"]), _Note(versions, raw.get("log_version"))
