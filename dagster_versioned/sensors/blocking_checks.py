"""What blocking checks found of versions: which of those that a run would read are not to be handed on.

A version is handed on once every blocking check of its asset has passed for it. Dagster's event log knows which version
an evaluation is about: it is of the run that materialized the version, or names a materialization of it as its target.
An evaluation of no partition, by a run of none, is about every partition as it was then. One whose run began when the
version was the head already, and still is, is about it too, whatever Dagster names as its target: the version may have
been written outside of Dagster. None is about a version whose step is known to have read other versions only, as where
somebody wrote the table before the check ran. Of several evaluations that are about a version, the one that was
launched last counts.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple, TypeVar

import dagster as dg

from dagster_versioned.assets.graph.materialization_keys import (
    LOG_VERSION_KEY,
    METADATA_SHA_KEY,
    STATE_KEY,
    materializations,
    stated,
)
from dagster_versioned.assets.looks import Looks
from dagster_versioned.dagster_internals import (
    ASSET_PARTITION_RANGE_START_TAG,
    PARTITION_NAME_TAG,
    AssetCheckExecutionRecord,
    AssetCheckExecutionRecordStatus,
    partition_of,
)
from dagster_versioned.projects.staleness import SHORT, cell_text
from dagster_versioned.sensors.runs import CLOCKS

T = TypeVar("T")

AT_ONCE = 500
"""Keys or ids in one query of Dagster's storage."""
PAGE = 500
LOOKUPS = 100
"""Versions of one tick that are looked up one by one; the others follow on later ticks."""
MADE_AGAIN = 200
"""Materializations of one cell among which those of its version are looked for."""
DESCRIPTION = 100


class VersionRead(NamedTuple):
    """A version that a run would read: the current one of an asset, or of a partition of it, since which commit."""

    asset: dg.AssetKey
    partition: str | None
    metadata_sha: str
    log_version: int
    since: str

    def __str__(self) -> str:
        return f"{cell_text(self.asset.to_user_string(), self.partition)} {self.metadata_sha[:SHORT]}"


class _Materialization(NamedTuple):
    """A materialization: where it is in the event log, the version and the commit that it names, and by which run."""

    storage_id: int
    metadata_sha: str | None
    log_version: int | None
    run_id: str
    is_published: bool


Signature = tuple[int, AssetCheckExecutionRecordStatus, float] | None


@dataclass
class _CheckMemory:
    """What is remembered of one check: why each version is not handed on, ``None`` where it is.

    It holds as long as the newest execution is the same one; but for those that are ``open``, an older one is still to
    end, or they are still to be looked up.
    """

    signature: Signature = None
    verdicts: Mapping[VersionRead, str | None] = field(default_factory=dict[VersionRead, str | None])
    open: Collection[VersionRead] = ()


class BlockingChecks:
    """What the blocking checks of upstream versions found; what is remembered between looks is a cache."""

    def __init__(self) -> None:
        self._known: dict[dg.AssetCheckKey, _CheckMemory] = {}

    def look(
        self,
        instance: dg.DagsterInstance,
        readings: Mapping[VersionRead, Sequence[dg.AssetCheckKey]],
        running: Collection[str],
    ) -> None:
        """Ask what the checks of these versions found; ``running`` are the runs in progress.

        Few queries: one for the newest execution of every check, and more only for versions of which nothing is
        remembered, or whose check was executed since.
        """
        wanted: dict[dg.AssetCheckKey, list[VersionRead]] = {}
        for reading, checks in readings.items():
            for check in checks:
                wanted.setdefault(check, []).append(reading)
        newest = _newest(instance, list(wanted))
        asked = {check: self._unsettled(check, of_check, newest.get(check)) for check, of_check in wanted.items()}
        for check in self._known.keys() - wanted.keys():
            del self._known[check]
        log = _Log(
            instance, running, {read for check, of_check in asked.items() if check in newest for read in of_check}
        )
        for check, of_check in asked.items():
            if of_check:
                self._judge(log, check, of_check, newest.get(check))

    def _unsettled(
        self, check: dg.AssetCheckKey, readings: Iterable[VersionRead], newest: AssetCheckExecutionRecord | None
    ) -> list[VersionRead]:
        """Those that a check is to be asked of; what is remembered of the others is kept."""
        known, signature = self._known.get(check, _CheckMemory()), _signature(newest)
        settled = known.verdicts.keys() - known.open if known.signature == signature else frozenset[VersionRead]()
        kept = {reading: known.verdicts[reading] for reading in readings if reading in settled}
        self._known[check] = _CheckMemory(signature, kept)
        return [reading for reading in readings if reading not in kept]

    def _judge(
        self,
        log: "_Log",
        check: dg.AssetCheckKey,
        readings: Sequence[VersionRead],
        newest: AssetCheckExecutionRecord | None,
    ) -> None:
        known = self._known[check]
        found: Mapping[VersionRead, dg.AssetCheckEvaluation] = {}
        if newest is not None:
            found, known.open = log.evaluations(check, readings, newest)
        # What was published after its checks was judged as a draft, perhaps under another name.
        passed = {reading: None for reading in readings if reading not in found and log.was_published(reading)}
        verdicts = {reading: _hindrance(check, reading, found.get(reading)) for reading in readings}
        known.verdicts = {**known.verdicts, **verdicts, **passed}

    def hindrance(self, reading: VersionRead, checks: Iterable[dg.AssetCheckKey]) -> str | None:
        """Why a version is not handed on; ``None`` if it is."""
        found = (self._known[check].verdicts[reading] for check in checks)
        return next((why for why in found if why is not None), None)


class _Log:
    """Dagster's event log during one look, as far as it is read."""

    def __init__(
        self, instance: dg.DagsterInstance, running: Collection[str], readings: Collection[VersionRead]
    ) -> None:
        self._instance = instance
        self._storage = instance.event_log_storage
        self._running = running
        self._runs: dict[str, dg.RunRecord] = {}
        self._by_run: dict[str, list[tuple[str | None, dg.AssetCheckEvaluation]]] = {}
        self._looks = Looks(instance)
        self._lookups = LOOKUPS
        last = self._last_made(readings)
        self._last = {check: made for check, made in last.items() if _is_since(made, check)}
        self._made = {
            reading: [last[reading]] if reading in last and last[reading].metadata_sha == reading.metadata_sha else []
            for reading in readings
        }

    def evaluations(
        self, check: dg.AssetCheckKey, readings: Sequence[VersionRead], newest: AssetCheckExecutionRecord
    ) -> tuple[Mapping[VersionRead, dg.AssetCheckEvaluation], Collection[VersionRead]]:
        """The newest evaluation of each version that has one, and the versions of which that is not the last word."""
        found: dict[VersionRead, dg.AssetCheckEvaluation] = {}
        executions = [newest]
        unsettled = self._match(executions, readings, found)
        pages, is_whole = 1 + len(readings) // PAGE, False
        while len(found) < len(readings) and pages and not is_whole:
            page = self._storage.get_asset_check_execution_history(check, limit=PAGE, cursor=executions[-1].id)
            unsettled |= self._match(page, readings, found)
            executions += page
            pages, is_whole = pages - 1, len(page) < PAGE
        missing = [reading for reading in readings if reading not in found]
        unsettled.update(missing[self._lookups :])
        missing = missing[: self._lookups]
        self._lookups -= len(missing)
        for reading in missing:
            self._made[reading] = self._all_made(reading)
        self._match(executions, missing, found)
        if not is_whole:
            for reading in missing:
                evaluation = None if reading in found else self._of_run(check, reading)
                if evaluation is not None:
                    found[reading] = evaluation
        return found, unsettled

    def was_published(self, reading: VersionRead) -> bool:
        """Whether a version became current by the sensor that waits for its checks."""
        return reading in self._last and self._last[reading].is_published

    def _match(
        self,
        executions: Sequence[AssetCheckExecutionRecord],
        readings: Sequence[VersionRead],
        found: dict[VersionRead, dg.AssetCheckEvaluation],
    ) -> set[VersionRead]:
        """Find the first execution that is about each version; those of which one that may be is still to end."""
        missing = [reading for reading in readings if reading not in found]
        by_run, by_id, by_partition = self._index(missing)
        since = min((_moment(reading) for reading in missing), default=0.0) - CLOCKS.total_seconds()
        self._read_runs(
            execution.run_id
            for execution in executions
            if execution.run_id not in by_run and _is_after(execution, since)
        )
        unsettled: set[VersionRead] = set()
        for execution in executions:
            evaluation = execution.evaluation
            if not isinstance(evaluation, dg.AssetCheckEvaluation):
                if execution.run_id in self._running:
                    unsettled |= set(missing) - found.keys()
                continue
            target = evaluation.target_materialization_data
            about = by_run.get(execution.run_id, []) + (by_id.get(target.storage_id, []) if target else [])
            if execution.run_id not in by_run and _is_after(execution, since):
                about += self._seen_by(execution, evaluation, missing, by_partition)
            step_key = execution.event.step_key if execution.event is not None else None
            for reading in about:
                if reading not in found and self._is_of(reading, execution.run_id, step_key, evaluation):
                    found[reading] = evaluation
        return unsettled

    def _index(
        self, readings: Sequence[VersionRead]
    ) -> tuple[dict[str, list[VersionRead]], dict[int, list[VersionRead]], dict[str | None, list[VersionRead]]]:
        """Versions by the runs that made them, by the materializations that name them, and by partition."""
        by_run: dict[str, list[VersionRead]] = {}
        by_id: dict[int, list[VersionRead]] = {}
        by_partition: dict[str | None, list[VersionRead]] = {}
        for reading in readings:
            by_partition.setdefault(reading.partition, []).append(reading)
            for made in self._made[reading]:
                if made.run_id:  # one that was reported by hand is of no run
                    by_run.setdefault(made.run_id, []).append(reading)
                if _is_since(made, reading):  # else what it names is not what the check saw, if that came back
                    by_id.setdefault(made.storage_id, []).append(reading)
        return by_run, by_id, by_partition

    def _seen_by(
        self,
        execution: AssetCheckExecutionRecord,
        evaluation: dg.AssetCheckEvaluation,
        readings: Sequence[VersionRead],
        by_partition: Mapping[str | None, Sequence[VersionRead]],
    ) -> list[VersionRead]:
        """What an evaluation by another run than those that made the versions is about: parts of the whole, or what was
        the head when the run began."""
        run, target = self._runs.get(execution.run_id), evaluation.target_materialization_data
        tags: Mapping[str, str] = run.dagster_run.tags if run is not None else {}
        partition = tags.get(PARTITION_NAME_TAG, partition_of(evaluation))
        wholes = by_partition.get(None, ())  # of no partitions, so those of the run are not theirs
        begun = run.start_time if run is not None else _reported(execution)

        def saw(reading: VersionRead) -> bool:
            last = self._last.get(reading)
            is_part = reading.partition is not None and partition is None
            if is_part and last is not None and target is not None and target.storage_id >= last.storage_id:
                return True
            return begun is not None and begun >= _moment(reading)

        if ASSET_PARTITION_RANGE_START_TAG in tags:
            about = wholes
        else:
            about = readings if partition is None else [*wholes, *by_partition.get(partition, ())]
        return [reading for reading in about if saw(reading)]

    def _of_run(self, check: dg.AssetCheckKey, reading: VersionRead) -> dg.AssetCheckEvaluation | None:
        """What the check found in the newest run that made a version and evaluated it."""
        for made in filter(lambda event: event.run_id, self._made[reading]):
            if made.run_id not in self._by_run:
                kind = dg.DagsterEventType.ASSET_CHECK_EVALUATION
                records = self._storage.get_records_for_run(made.run_id, of_type=kind).records
                events = [record.event_log_entry.get_dagster_event() for record in reversed(records)]
                self._by_run[made.run_id] = [
                    (event.step_key, event.event_specific_data)
                    for event in events
                    if isinstance(event.event_specific_data, dg.AssetCheckEvaluation)
                ]
            for step_key, evaluation in self._by_run[made.run_id]:
                if evaluation.asset_check_key == check and self._is_of(reading, made.run_id, step_key, evaluation):
                    return evaluation
        return None

    def _is_of(
        self, reading: VersionRead, run_id: str, step_key: str | None, evaluation: dg.AssetCheckEvaluation
    ) -> bool:
        """Whether an evaluation is of the partition of a version, and not known to have read other versions only."""
        is_of_it = reading.partition is None or partition_of(evaluation) in (None, reading.partition)
        return is_of_it and self._looks.may_be_of(reading.metadata_sha, run_id, reading.asset, step_key)

    def _read_runs(self, ids: Iterable[str]) -> None:
        wanted = sorted({id_ for id_ in ids if id_} - self._runs.keys())
        for some in _chunks(wanted):
            for record in self._instance.get_run_records(dg.RunsFilter(run_ids=list(some))):
                self._runs[record.dagster_run.run_id] = record

    def _last_made(self, readings: Collection[VersionRead]) -> dict[VersionRead, _Materialization]:
        """The last materialization of each cell that has one."""
        made: dict[VersionRead, _Materialization] = {}
        whole = {reading.asset: reading for reading in readings if reading.partition is None}
        for some in _chunks(sorted(whole)):
            for record in self._instance.get_asset_records(list(some)):
                if (last := record.asset_entry.last_materialization_record) is not None:
                    made[whole[record.asset_entry.asset_key]] = _made(last)
        parted: dict[dg.AssetKey, dict[str, VersionRead]] = {}
        for seen in readings:
            if seen.partition is not None:
                parted.setdefault(seen.asset, {})[seen.partition] = seen
        for asset, by_partition in parted.items():
            kind = dg.DagsterEventType.ASSET_MATERIALIZATION
            last_ids = self._storage.get_latest_storage_id_by_partition(asset, kind, set(by_partition))
            partition_of = {last_id: partition for partition, last_id in last_ids.items() if partition in by_partition}
            for some in _chunks(sorted(partition_of)):
                records = dg.AssetRecordsFilter(asset, storage_ids=list(some))
                for record in self._instance.fetch_materializations(records, limit=AT_ONCE).records:
                    made[by_partition[partition_of[record.storage_id]]] = _made(record)
        return made

    def _all_made(self, reading: VersionRead) -> list[_Materialization]:
        """The newest materializations of a cell that name its version, newest first."""
        every = map(_made, materializations(self._instance, reading.asset, reading.partition, MADE_AGAIN))
        return [made for made in every if made.metadata_sha == reading.metadata_sha]


def _is_since(made: _Materialization, reading: VersionRead) -> bool:
    """Whether a materialization names the version as it is the head now, and not one that came back."""
    return (made.metadata_sha, made.log_version) == (reading.metadata_sha, reading.log_version)


def _moment(reading: VersionRead) -> float:
    return datetime.fromisoformat(reading.since).timestamp()


def _is_after(execution: AssetCheckExecutionRecord, since: float) -> bool:
    return execution.event is not None and execution.event.timestamp >= since


def _reported(execution: AssetCheckExecutionRecord) -> float | None:
    """When an evaluation that no run made was reported."""
    return execution.event.timestamp if execution.event is not None and not execution.run_id else None


def _newest(
    instance: dg.DagsterInstance, checks: Sequence[dg.AssetCheckKey]
) -> dict[dg.AssetCheckKey, AssetCheckExecutionRecord]:
    found: dict[dg.AssetCheckKey, AssetCheckExecutionRecord] = {}
    for some in _chunks(sorted(checks)):
        found |= instance.event_log_storage.get_latest_asset_check_execution_by_key(list(some))
    return found


def _signature(newest: AssetCheckExecutionRecord | None) -> Signature:
    if newest is None:
        return None
    return newest.id, newest.status, newest.event.timestamp if newest.event is not None else 0.0


def _made(record: dg.EventLogRecord) -> _Materialization:
    sha, log_version, state = (stated(record, key) for key in (METADATA_SHA_KEY, LOG_VERSION_KEY, STATE_KEY))
    return _Materialization(record.storage_id, sha, log_version, record.run_id, state == "published")


def _hindrance(check: dg.AssetCheckKey, reading: VersionRead, evaluation: dg.AssetCheckEvaluation | None) -> str | None:
    if evaluation is None:
        return f"check {check.name} has not judged {reading}"
    if evaluation.passed or evaluation.severity is not dg.AssetCheckSeverity.ERROR:
        return None
    line = (evaluation.description or "").partition("\n")[0]
    why = f": {line[:DESCRIPTION]}" if line else ""
    return f"check {check.name} of {reading} failed{why}"


def _chunks(every: Sequence[T]) -> Iterator[Sequence[T]]:
    return (every[start : start + AT_ONCE] for start in range(0, len(every), AT_ONCE))
