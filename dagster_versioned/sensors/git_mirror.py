"""The sensor that brings a git mirror of version documents up to date, with one commit for each run."""

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import dagster as dg

from dagster_versioned.assets.graph.materialization_keys import METADATA_SHA_KEY
from dagster_versioned.errors import InvalidName
from dagster_versioned.governance.version_mirror import VersionMirror
from dagster_versioned.identity.names import table_name_of
from dagster_versioned.resources.field_values import value_of
from dagster_versioned.resources.project import ProjectResource

ENDED = (dg.DagsterEventType.RUN_SUCCESS, dg.DagsterEventType.RUN_FAILURE, dg.DagsterEventType.RUN_CANCELED)
"""A run that failed or was cancelled may have made versions before it did."""


def build_git_mirror_sensor(
    name: str,
    *,
    project: ProjectResource,
    remote: str,
    clone: str | Path | None = None,
    minimum_interval_seconds: int = 30,
    max_runs_per_tick: int = 20,
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.STOPPED,
) -> dg.SensorDefinition:
    """A sensor that commits the version documents of what a run made to a git repository, one commit for a run.

    ``remote`` is the repository and ``clone`` a folder for a bare clone of it, which is made if it is not there (by
    default in the user's cache); both may be a `dagster.EnvVar`. Runs that ended since the last tick are taken in
    order, whether they succeeded, failed or were cancelled; one that changed no table of the project makes no commit.
    The first tick mirrors the whole project (for a large one, run ``dagster-versioned gov mirror`` before).

    Nothing is lost where the remote cannot be reached: the tick fails, the cursor stays, and the next tick begins with
    the same run, whose versions the log has. A table whose log does not continue what the mirror saw stays as it is in
    git, and every tick that looks at it logs an error.
    """

    @dg.sensor(
        name=name,
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=default_status,
        description="Mirrors version documents to git, with one commit for each run that made versions.",
    )
    def mirror_runs(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        since = int(context.cursor) if context.cursor else None
        ended = _ended(context.instance, since, max_runs_per_tick)
        cursor = str(ended[-1].storage_id) if ended else context.cursor or "0"
        runs = {record.run_id: record for record in ended} if since is not None else {}
        touched = {run: tables for run, end in runs.items() if (tables := _tables(context.instance, end))}
        if since is not None and not touched:
            return dg.SensorResult(skip_reason="No run that ended made versions.", cursor=cursor)
        with project.process_config_and_initialize_cm() as resource:
            opened = cast("ProjectResource", resource).project()
            folder = Path(_text("clone", clone)) if clone is not None else None
            mirror = VersionMirror.open(opened, _text("remote", remote), folder)
            if since is None:
                reports = [mirror.update()]
            else:
                reports = [
                    mirror.update(known, title=f"Run {run}")
                    for run, tables in touched.items()
                    if (known := [table for table in tables if opened.table(table).exists()])
                ]
        for table, why in {table: why for report in reports for table, why in report.refused.items()}.items():
            context.log.error("%s was not mirrored: %s", table, why)
        commits = [report.commit[:12] for report in reports if report.commit is not None]
        return dg.SensorResult(skip_reason=f"Committed {', '.join(commits) or 'nothing'}.", cursor=cursor)

    return mirror_runs


def _ended(instance: dg.DagsterInstance, since: int | None, limit: int) -> Sequence[dg.EventLogRecord]:
    """The first runs that ended after a place in the event log, oldest first; without one, the last that ended."""
    found = [
        record
        for kind in ENDED
        for record in instance.fetch_run_status_changes(
            dg.RunStatusChangeRecordsFilter(kind, after_storage_id=since),
            limit=limit if since is not None else 1,
            ascending=since is not None,
        ).records
    ]
    found.sort(key=lambda record: record.storage_id)
    return found[:limit] if since is not None else found[-1:]


def _tables(instance: dg.DagsterInstance, end: dg.EventLogRecord) -> list[str]:
    """The tables that a run made versions of, or found unchanged; of one that did not succeed, all that it was to make.

    Between a commit and Dagster's event of it, a run may be killed.
    """
    kinds = {dg.DagsterEventType.ASSET_MATERIALIZATION}
    if end.event_log_entry.dagster_event_type is not dg.DagsterEventType.RUN_SUCCESS:
        kinds.add(dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED)
    keys: set[dg.AssetKey] = set()
    for entry in instance.all_logs(end.run_id, of_type=kinds):
        one = entry.asset_materialization
        if (one is None or METADATA_SHA_KEY in one.metadata) and (key := entry.get_dagster_event().asset_key):
            keys.add(key)
    return sorted(str(name) for key in keys if (name := _name(key)))


def _name(key: dg.AssetKey) -> str | None:
    try:
        return table_name_of(key.path)
    except InvalidName:
        return None  # not written by our IO manager, whatever its metadata says


def _text(field: str, value: str | Path) -> str:
    return str(value_of(field, value))
