"""What Dagster's runs say of cells: which are under way, and which states were tried already."""

from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg

from dagster_versioned.dagster_internals import (
    ASSET_PARTITION_RANGE_END_TAG,
    ASSET_PARTITION_RANGE_START_TAG,
    FINISHED_STATUSES,
    NOT_FINISHED_STATUSES,
    PARTITION_NAME_TAG,
    WILL_RETRY_TAG,
)
from dagster_versioned.sensors.plan import Decision

TARGET_TAG = "dagster_versioned/target"
"""Run tag: what a sensor requested, as the UI spells asset keys."""
STATES_TAG = ".dagster/versioned_states"
"""Run tag: digests of the states that were requested, one a partition, with spaces between.

Of a ranged run they would fill a page: by its prefix, the UI does not show it.
"""
WHY_TAG = "dagster_versioned/why"
"""Run tag: which upstream went from which version to which."""

STATE_CHARACTERS = 16
LAUNCH = timedelta(minutes=10)
"""A run that was created is launched, and one that failed retried, within moments; nothing waits for it any longer."""
CLOCKS = timedelta(minutes=10)
"""How far the clocks of those who write tables and of Dagster's storage may be apart."""


class RunsInProgress:
    """The runs under way, by what they are going to write; taken before heads are looked at.

    A run that ends in between has its versions in the heads, so nothing is missed. A run without a partition covers
    all of its assets' partitions.
    """

    def __init__(self, instance: dg.DagsterInstance, *repositories: dg.RepositoryDefinition) -> None:
        self.ids: set[str] = set()
        self._all: dict[dg.AssetKey, str] = {}
        self._one: dict[dg.AssetKey, dict[str, str]] = {}
        self._ranges: dict[dg.AssetKey, list[tuple[str, str, str]]] = {}
        begun = datetime.now(UTC) - LAUNCH
        for record in instance.get_run_records(dg.RunsFilter(statuses=NOT_FINISHED_STATUSES)):
            run = record.dagster_run
            if run.status != dg.DagsterRunStatus.NOT_STARTED or _utc(record.create_timestamp) > begun:
                self._add(run, _assets_of(run, repositories))
        failed = dg.RunsFilter(
            statuses=[dg.DagsterRunStatus.FAILURE], tags={WILL_RETRY_TAG: "true"}, updated_after=begun
        )
        for run in instance.get_runs(failed):
            if run.is_complete_and_waiting_to_retry:
                self._add(run, _assets_of(run, repositories))

    def running(self, key: dg.AssetKey, partition: str | None, order: Mapping[str, int]) -> str | None:
        """The id of a run that is going to write a partition of an asset, or all of it, if there is one."""
        if (run_id := self._all.get(key)) is not None:
            return run_id
        ones, ranges = self._one.get(key, {}), self._ranges.get(key, ())
        if partition is None:
            return next((run_id for run_id in (*ones.values(), *(range_[2] for range_ in ranges))), None)
        if partition in ones:
            return ones[partition]
        place = order.get(partition, -1)
        for first, last, run_id in ranges:
            if first not in order or last not in order or order[first] <= place <= order[last]:
                return run_id
        return None

    def _add(self, run: dg.DagsterRun, keys: Iterable[dg.AssetKey]) -> None:
        self.ids.add(run.run_id)
        first, last = (run.tags.get(tag) for tag in (ASSET_PARTITION_RANGE_START_TAG, ASSET_PARTITION_RANGE_END_TAG))
        partition = run.tags.get(PARTITION_NAME_TAG)
        for key in keys:
            if first is not None and last is not None:
                self._ranges.setdefault(key, []).append((first, last, run.run_id))
            elif partition is not None:
                self._one.setdefault(key, {})[partition] = run.run_id
            else:
                self._all[key] = run.run_id


class RunsTried:
    """Runs that ended, by the states that they were requested for; what is remembered between looks is a cache."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, dict[str, dg.DagsterRun]]] = {}  # by target, state and id
        self._read: dict[str, tuple[str, datetime | None]] = {}  # since when, and up to which update, runs were read
        self._since: Mapping[str, str] = {}
        self._asked: set[str] = set()

    def begin(self, since: Mapping[str, str]) -> None:
        """Begin a look: of each target with stale cells, since when the oldest of their states is; no run is older."""
        self._since, self._asked = since, set()
        self._known = {target: self._known.get(target, {}) for target in since}
        self._read = {target: self._read[target] for target in since if target in self._read}

    def tried(self, instance: dg.DagsterInstance, target: str, state: str) -> Decision | None:
        """The run that was requested for a state of a target, and how it ended, if it did and is not retried."""
        tag = state[:STATE_CHARACTERS]
        # After a failure another run for the state may have been requested, and have ended too.
        may_be_more = tag not in self._known[target] or self.failures(target, state) > 0
        if may_be_more and target not in self._asked:
            self._asked.add(target)
            self._ask(instance, target)
        ended = list(self._known[target].get(tag, {}).values())
        if not ended:
            return None
        standing = "tried" if self.failures(target, state) else "made"
        return Decision(standing, f"run {ended[-1].run_id[:8]}, {ended[-1].status.value.lower()}")

    def failures(self, target: str, state: str) -> int:
        """How many runs for a state were requested, retries not counted; 0 if any of them, or a retry, succeeded."""
        ended = self._known.get(target, {}).get(state[:STATE_CHARACTERS], {}).values()
        if any(run.status == dg.DagsterRunStatus.SUCCESS for run in ended):
            return 0
        return len({run.root_run_id or run.run_id for run in ended})

    def last(self, target: str, state: str) -> str:
        """What tells a run for a state from the last one that failed; of the first run, nothing."""
        ended = list(self._known.get(target, {}).get(state[:STATE_CHARACTERS], {}))
        return f"-{ended[-1]}" if ended else ""

    def _ask(self, instance: dg.DagsterInstance, target: str) -> None:
        """Read the runs of a target that ended; after the first time, only those that were updated since.

        Those that somebody deleted meanwhile are forgotten.
        """
        known = self._known[target]
        self._forget_deleted(instance, known)
        since = self._since[target]
        start, updated = self._read.get(target, (since, None))
        limits: dict[str, Any] = {}
        if updated is not None and start <= since:
            limits = {"updated_after": updated - CLOCKS}
        elif since:
            start, limits = since, {"created_after": datetime.fromisoformat(since) - CLOCKS}
        found = instance.get_run_records(dg.RunsFilter(tags={TARGET_TAG: target}, statuses=FINISHED_STATUSES, **limits))
        for record in reversed(found):
            run, updated_at = record.dagster_run, _utc(record.update_timestamp)
            updated = max(updated or updated_at, updated_at)
            is_awaited = run.is_complete_and_waiting_to_retry and datetime.now(UTC) - updated_at < LAUNCH
            for state in () if is_awaited else run.tags.get(STATES_TAG, "").split():
                known.setdefault(state, {})[run.run_id] = run
        self._read[target] = (start, updated)

    @staticmethod
    def _forget_deleted(instance: dg.DagsterInstance, known: Mapping[str, dict[str, dg.DagsterRun]]) -> None:
        ids = [run_id for runs in known.values() for run_id in runs]
        there = {run.run_id for run in instance.get_runs(dg.RunsFilter(run_ids=ids))} if ids else set[str]()
        for runs in known.values():
            for run_id in runs.keys() - there:
                del runs[run_id]


def _assets_of(run: dg.DagsterRun, repositories: Iterable[dg.RepositoryDefinition]) -> Collection[dg.AssetKey]:
    """What a run materializes; a run of a whole job does not say so itself."""
    if run.asset_selection is not None:
        return run.asset_selection
    found = [repository.get_job(run.job_name) for repository in repositories if repository.has_job(run.job_name)]
    return {key for job in found for key in job.asset_layer.selected_asset_keys}


def _utc(moment: datetime) -> datetime:
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
