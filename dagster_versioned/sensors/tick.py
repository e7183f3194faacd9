"""One tick of a version sensor: what is stale, and which runs that calls for."""

import hashlib
import logging
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import dagster as dg
import orjson

from dagster_versioned.dagster_internals import (
    ASSET_PARTITION_RANGE_END_TAG,
    ASSET_PARTITION_RANGE_START_TAG,
    PARTITION_NAME_TAG,
)
from dagster_versioned.errors import InvalidInput, VersionedError
from dagster_versioned.projects.project import Project
from dagster_versioned.projects.staleness import Change, StaleCell
from dagster_versioned.proof.lineage import ProjectLineage, VersionName
from dagster_versioned.proof.why import Cause, causes_between
from dagster_versioned.sensors.blocking_checks import BlockingChecks
from dagster_versioned.sensors.graph import Edge, Unit, left_out, nothing_to_watch, some, units_of
from dagster_versioned.sensors.judgement import Rules
from dagster_versioned.sensors.plan import Cell, Decision, Standing, runs_of
from dagster_versioned.sensors.runs import (
    STATE_CHARACTERS,
    STATES_TAG,
    TARGET_TAG,
    WHY_TAG,
    RunsInProgress,
    RunsTried,
)
from dagster_versioned.sensors.watch import StalenessReport, Watch

logger = logging.getLogger("dagster_versioned")

LONGEST_RANGE = 1000
"""Partitions in one ranged run: their states travel in its tags."""

_EXPLAINED = 3
_CAUSES = 3
_TABLES = 24
"""Of each project, in one tick: a tick has to end in a minute, however much has changed."""
_CHARACTERS = 600
"""Of a tag, which the UI shows on one line."""

_SAYS: Mapping[Standing, str] = {
    "ready": "left for the next tick",
    "waiting": "waiting for an upstream that is about to change",
    "running": "being built by a run in progress, parked, or promoted",
    "tried": "built from older versions; a run for just this state has ended, and the next change requests another",
    "made": "left as they were by a run for just this state that succeeded",
    "behind": "waiting for a value that is not current, and that no table's version names",
    "unchecked": "waiting for a blocking check of what it would read",
    "absent": "waiting for an upstream that has no version",
    "held": "held",
    "unreadable": "not judged, because heads cannot be read",
}


class Trigger:
    """The sensor's evaluation, and what it remembers between ticks of one process: a cache."""

    def __init__(
        self,
        name: str,
        selection: dg.AssetSelection,
        rules: Rules,
        wait_for_checks: bool,
        max_runs: int,
        max_reruns: int,
        run_tags: Mapping[str, str],
    ) -> None:
        self._name = name
        self._max_reruns = max_reruns
        self._selection = selection
        self._rules = rules
        self._checks = BlockingChecks() if wait_for_checks else None
        self._max_runs = max_runs
        self._run_tags = run_tags
        self._repository: dg.RepositoryDefinition | None = None
        self._watch: Watch | None = None
        self._left_out: list[str] = []
        self._tried = RunsTried()
        self._lock = threading.Lock()  # a tick that ran into its time limit may still be going on

    def tick(self, context: dg.SensorEvaluationContext) -> dg.SensorResult:
        """One evaluation."""
        repository = context.repository_def
        if repository is None:
            raise InvalidInput(
                "The sensor needs the definitions: build_sensor_context(definitions=…). Nothing was requested."
            )
        with self._lock:
            watch = self._watching(repository)
            if not any(unit.is_target for unit in watch.units):
                raise nothing_to_watch(self._name, self._left_out)
            runs = RunsInProgress(context.instance, repository)  # before the heads, see there
            seen = watch.look(context.instance, _settled(context.cursor))
            if watch.is_settled:
                cursor = orjson.dumps({"settled": seen.digest} if seen.digest else {}).decode()
                return dg.SensorResult(
                    skip_reason=f"{self._checked(seen)} All are built from current versions.", cursor=cursor
                )
            findings = dict(watch.findings())
            self._tried.begin(oldest(findings))

            def tried(cell: Cell, finding: StaleCell) -> Decision | None:
                ended = self._tried.tried(context.instance, cell[0], finding.state)
                if ended is None or ended.standing == "made":
                    return ended
                is_rerun = self._tried.failures(cell[0], finding.state) <= self._max_reruns
                return None if is_rerun else Decision("tried", f"{ended.because}: re-execute it, or see max_reruns")

            decided = watch.decide(findings, runs, tried, self._checks)
            decisions = {cell: decision for cell, decision in decided.items() if watch.unit(cell[0]).is_target}
            requests = [
                request
                for _, request in zip(range(self._max_runs), self._requests(watch, findings, decisions), strict=False)
            ]
        if requests:
            context.log.info(self._checked(seen))
            for request in requests:
                context.log.info(f"Requested {_covered(request)}, because of {request.tags[WHY_TAG]}.")
            return dg.SensorResult(run_requests=requests, cursor="{}")
        summary = _summary(decisions) or "All are built from current versions."
        return dg.SensorResult(skip_reason=f"{self._checked(seen)} {summary}", cursor="{}")

    def _checked(self, seen: StalenessReport) -> str:
        others = f" Left out: {some(self._left_out)}." if self._left_out else ""
        return _checked(seen) + others

    def _watching(self, repository: dg.RepositoryDefinition) -> Watch:
        if self._watch is None or self._repository is not repository:
            graph = repository.asset_graph
            targets = self._selection.resolve(graph)
            units = units_of(graph, targets)
            self._left_out = left_out(graph, targets, units)
            self._watch = Watch(units, self._rules)
            self._repository = repository
        return self._watch

    def _requests(
        self, watch: Watch, findings: Mapping[Cell, StaleCell], decisions: Mapping[Cell, Decision]
    ) -> Iterator[dg.RunRequest]:
        ready: dict[str, list[str | None]] = {}
        causes = ChangeCauses(watch.seen.projects)
        for (name, partition), decision in decisions.items():
            if decision.standing == "ready":
                ready.setdefault(name, []).append(partition)
        for name, partitions in ready.items():
            unit = watch.unit(name)
            keys = [key for key in partitions if key is not None]
            if not keys:
                yield self._request(unit, [None], [findings[name, None]], causes)
            longest = LONGEST_RANGE if _takes_ranges(unit) else 1
            for run in runs_of(keys, watch.order(name), longest):
                yield self._request(unit, run, [findings[name, key] for key in run], causes)

    def _request(
        self, unit: Unit, partitions: Sequence[str | None], findings: Sequence[StaleCell], causes: "ChangeCauses"
    ) -> dg.RunRequest:
        states = [finding.state for finding in findings]
        keys = [f"{state}{self._tried.last(unit.name, state)}" for state in states]
        first, last = partitions[0], partitions[-1]
        is_range = len(partitions) > 1
        tags: dict[str, Any] = {
            **self._run_tags,
            TARGET_TAG: unit.name,
            STATES_TAG: " ".join(state[:STATE_CHARACTERS] for state in states),
            WHY_TAG: causes.text(unit, findings[0])
            + (f"; and {len(findings) - 1} more partitions" if is_range else ""),
        }
        if is_range:
            tags |= {ASSET_PARTITION_RANGE_START_TAG: first, ASSET_PARTITION_RANGE_END_TAG: last}
        elif first is not None and not _is_product(unit):
            tags[PARTITION_NAME_TAG] = first  # else Dagster looks for the key among all keys, for each request
        return dg.RunRequest(
            run_key=keys[0] if not is_range else hashlib.sha256(" ".join(keys).encode()).hexdigest(),
            asset_selection=list(unit.keys),
            partition_key=None if is_range else first,
            tags=tags,
        )


class ChangeCauses:
    """Where the changes began that a run is requested because of: what `why` would say of the upstreams.

    The logs of a few tables are read, each once and no further back than is needed; what is in others is not followed.
    """

    def __init__(self, projects: Iterable[Project]) -> None:
        self._known = {project.name: project for project in projects if project.environment is None}
        self._lineages: dict[int, ProjectLineage] = {}

    def text(self, unit: Unit, finding: StaleCell) -> str:
        """Why a cell is to run: which upstreams went from which version to which, and where that began."""
        causes = self._of(unit, finding.changes[:_EXPLAINED])
        shown = "; ".join(map(str, causes[:_CAUSES]))
        more = f"; and {len(causes) - _CAUSES} more" if len(causes) > _CAUSES else ""
        text = f"{finding.why}: {shown}{more}" if causes else finding.why
        return text if len(text) <= _CHARACTERS else f"{text[: _CHARACTERS - 1]}…"

    def _of(self, unit: Unit, changes: Iterable[Change]) -> list[Cause]:
        edges = {edge.upstream.to_user_string(): edge for member in unit.members for edge in member.edges}
        found: dict[tuple[str, str], Cause] = {}
        for change in changes:
            edge = edges.get(change.upstream or "")
            if edge is None or change.before is None or change.after is None:
                continue
            try:
                causes = self._between(edge, change.partition, change.before, change.after)
            except VersionedError:  # the run is requested all the same
                logger.warning("%s: where its change began could not be read.", change, exc_info=True)
                continue
            found |= {(cause.kind, cause.text): cause for cause in causes}
        return list(found.values())

    def _between(self, edge: Edge, partition: str | None, before: str, after: str) -> tuple[Cause, ...]:
        project = edge.place.project
        if not isinstance(project, Project):
            return ()
        lineage = self._lineages.setdefault(id(project), ProjectLineage(project, self._open, most_tables=_TABLES))
        environment = None if project.environment is None else project.environment.name
        names = (
            VersionName(project.name, str(edge.place.table), sha, partition, environment) for sha in (before, after)
        )
        return causes_between(lineage, *names)

    def _open(self, name: str) -> Project:
        if name not in self._known:
            raise VersionedError(f"The project {name} is none that the sensor watches.")
        return self._known[name]


def _takes_ranges(unit: Unit) -> bool:
    """Whether one run may cover several partitions. In a product of dimensions, a range is not what lies in a row."""
    return unit.is_single_run and not unit.is_self_dependent and not _is_product(unit)


def _is_product(unit: Unit) -> bool:
    return unit.partitions is not None and isinstance(unit.partitions.definition, dg.MultiPartitionsDefinition)


def oldest(findings: Mapping[Cell, StaleCell]) -> dict[str, str]:
    """Since when the oldest state of each unit is."""
    since: dict[str, str] = {}
    for (name, _), finding in findings.items():
        since[name] = min(since.get(name, finding.since), finding.since)
    return since


def _settled(cursor: str | None) -> str | None:
    """What the cursor says was settled; whatever else it holds says nothing."""
    try:
        value: Any = orjson.loads(cursor or "{}")
    except orjson.JSONDecodeError:
        return None
    settled = cast("dict[str, Any]", value).get("settled") if isinstance(value, dict) else None
    return settled if isinstance(settled, str) else None


def _checked(seen: StalenessReport) -> str:
    new = "1 document was new" if seen.reads == 1 else f"{seen.reads} documents were new"
    news = new if seen.reads else "nothing new since the last tick"
    text = f"Checked {seen.units} targets against the current versions of {seen.tables} tables ({news})."
    if seen.left:
        text += f" {seen.left} were not current when the environment began, and are left (scope)."
    if seen.pending:
        text += f" A commit is under way on {some(seen.pending)}."
    for problem in seen.problems:
        text += f" {problem}"
    return text


def _covered(request: dg.RunRequest) -> str:
    first = request.partition_key or request.tags.get(ASSET_PARTITION_RANGE_START_TAG)
    last = request.tags.get(ASSET_PARTITION_RANGE_END_TAG)
    partitions = f"[{first}...{last}]" if last else f"[{first}]" if first else ""
    return f"{request.tags[TARGET_TAG]}{partitions}"


def _summary(decisions: Mapping[Cell, Decision]) -> str:
    """How many cells stand how, with some of each and why."""
    counts: Counter[Standing] = Counter(decision.standing for decision in decisions.values())
    parts: list[str] = []
    for standing, count in counts.items():
        those = [
            f"{name if partition is None else f'{name}[{partition}]'} ({decision.because})"
            for (name, partition), decision in decisions.items()
            if decision.standing == standing
        ]
        parts.append(f"{count} {_SAYS[standing]}: {some(those)}.")
    return " ".join(parts)
