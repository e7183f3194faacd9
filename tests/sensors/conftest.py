"""A project, its definitions as a code location, and Dagster's own daemon, which ticks and launches when told."""

import itertools
import logging
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from dagster._core.definitions.selector import JobSubsetSelector
from dagster._core.events import DagsterEvent, JobFailureData
from dagster._core.execution.api import execute_run
from dagster._core.instance import DagsterInstance
from dagster._core.launcher import RunLauncher
from dagster._core.test_utils import InProcessTestWorkspaceLoadTarget
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._daemon import sensor
from dagster._daemon.auto_run_reexecution.auto_run_reexecution import consume_new_runs_for_automatic_reexecution
from dagster._utils.hosted_user_process import recon_job_from_origin

from dagster_versioned import Project, ProjectResource, VersionedParquetIOManager
from support.dagster_versions import InProcessCodeLocationOrigin

_numbers = itertools.count()
logger = logging.getLogger("sensor tests")
logger.setLevel(logging.CRITICAL)


class HeldLauncher(RunLauncher):
    """Takes runs and does not execute them, until a test says so."""

    def __init__(self):
        super().__init__()
        self.waiting: list[dg.DagsterRun] = []

    def launch_run(self, context):
        self.waiting.append(context.dagster_run)

    def terminate(self, run_id):
        raise NotImplementedError


@dataclass
class Daemon:
    """Dagster's sensor daemon over one code location, tick by tick; runs wait until they are told to go."""

    project: Project
    location: str
    instance: DagsterInstance
    launcher: HeldLauncher
    place: WorkspaceProcessContext | None = None
    definitions: dg.Definitions | None = None
    beside: dict[str, dg.Definitions] = field(default_factory=dict)  # other code locations, by name
    runs: list[dg.DagsterRun] = field(default_factory=list)

    def io_manager(self, **options):
        return VersionedParquetIOManager(
            project=ProjectResource(name=self.project.name, location=self.location), preview_rows=0, **options
        )

    def deploy(self, *assets, sensors=(), resources=None, jobs=(), checks=()):
        """Load these definitions as the code location, in the place of those before."""
        self.definitions = dg.Definitions(
            assets=list(assets),
            asset_checks=list(checks),
            sensors=list(sensors),
            jobs=list(jobs),
            resources={"io_manager": self.io_manager(), **(resources or {})},
            executor=dg.in_process_executor,
        )
        self.restart()
        repository = self._repository()
        for one in repository.get_sensors():
            if self.instance.get_instigator_state(one.get_remote_origin_id(), one.selector_id) is None:
                self.instance.start_sensor(one)

    def restart(self):
        """Load the code location again, as a new process would."""
        if self.place is not None:
            self.place.__exit__(None, None, None)
        load = InProcessTestWorkspaceLoadTarget(
            [_origin(*one) for one in {"here": self.definitions, **self.beside}.items()]
        )
        self.place = WorkspaceProcessContext(self.instance, load).__enter__()

    def _location(self, name="here"):
        entry = self.place.create_request_context().get_code_location_entries()[name]
        assert entry.code_location is not None, entry.load_error
        return entry.code_location

    def _repository(self):
        return next(iter(self._location().get_repositories().values()))

    def tick(self, **options):
        """One iteration of the daemon; the runs that it launched."""
        before = len(self.launcher.waiting)
        list(sensor.execute_sensor_iteration(self.place, logger, None, None, **options))
        launched = self.launcher.waiting[before:]
        self.runs += launched
        return launched

    def last_tick(self, name=None):
        """What the daemon recorded of the last tick of a sensor."""
        found = next(one for one in self._repository().get_sensors() if name in (None, one.name))
        return self.instance.get_ticks(found.get_remote_origin_id(), found.selector_id, limit=1)[0]

    def lose_cursor(self):
        """Forget the cursors of all sensors, and everything that the process knows."""
        for one in self._repository().get_sensors():
            state = self.instance.get_instigator_state(one.get_remote_origin_id(), one.selector_id)
            self.instance.update_instigator_state(state.with_data(state.instigator_data._replace(cursor=None)))
        self.restart()

    def go(self, *runs):
        """Execute runs that wait (all of them, if none is named), and whatever is to be retried."""
        for run in list(runs) or list(self.launcher.waiting):
            self.launcher.waiting = [one for one in self.launcher.waiting if one.run_id != run.run_id]
            execute_run(recon_job_from_origin(run.job_code_origin), run, self.instance)

    def settle(self, most=100):
        """Ticks and runs until nothing is requested; the runs, in order, as (asset, partition)."""
        launched = []
        for _ in range(most):
            new = self.tick()
            if not new:
                return [one for run in launched for one in self.asked(run)]
            launched += new
            self.go()
        raise AssertionError(f"no end after {most} ticks: {[self.asked(run) for run in launched[-5:]]}")

    def pretend(self, run, write=None, fails=False):
        """What a run does to tables and to Dagster's storage, without its seconds: write, then end."""
        self.launcher.waiting = [one for one in self.launcher.waiting if one.run_id != run.run_id]
        if write is not None and not fails:
            write()
        kind = dg.DagsterEventType.RUN_FAILURE if fails else dg.DagsterEventType.RUN_SUCCESS
        data = JobFailureData(None) if fails else None
        self.instance.report_dagster_event(DagsterEvent(kind.value, run.job_name, event_specific_data=data), run.run_id)

    def write(self, name, frame, partition=None, **options):
        """A version written by hand, without parents."""
        return self.project.table([name]).write(frame, partition=partition, **options)

    def approve(self, kind):
        """Pin or tag what `flights` is now, in the place of what was approved before."""
        if kind == "pin":
            self.project.pin("approved", "flights")
        else:
            self.project.tag("approved")

    def disapprove(self, kind):
        (self.project.unpin if kind == "pin" else self.project.drop_tag)("approved")

    @staticmethod
    def pinned(reference, name="delays", mapping=None):
        """An asset that is `flights` at a version."""
        given = dg.AssetIn(metadata={"dagster_versioned/version": reference}, partition_mapping=mapping)

        @dg.asset(name=name, ins={"flights": given})
        def built(flights) -> pa.Table:
            return flights

        return built

    def head(self, name, partition=None):
        return self.project.table(name).version(partition=partition)

    def is_built(self, name, *parents, partition=None):
        """Whether a head was built from exactly its upstreams' heads."""
        identity = self.head(name, partition).identity
        recorded = {(p.table, p.partition, p.version) for p in identity.parents}
        return recorded == {(up, key, self.head(up, key).metadata_sha) for up, key in parents}

    def materialize(self, name, partition=None, tags=None):
        """A run by hand, executed at once."""
        job = self.definitions.resolve_implicit_global_asset_job_def()
        return job.execute_in_process(
            asset_selection=[dg.AssetKey(name)],
            partition_key=partition,
            instance=self.instance,
            tags=tags,
            raise_on_error=False,
        )

    def check(self, *checks, partition=None):
        """A run of checks alone, executed at once."""
        job = self.definitions.resolve_implicit_global_asset_job_def()
        keys = {key for check in checks for key in check.check_keys}
        subset = job.get_subset(asset_selection=set(), asset_check_selection=keys)
        return subset.execute_in_process(instance=self.instance, partition_key=partition, raise_on_error=False)

    @staticmethod
    def asked(run):
        """What a run was requested for: (asset, partition) or (asset, (first, last))."""
        names = sorted(key.to_user_string() for key in run.asset_selection)
        partition = run.tags.get("dagster/partition")
        first = run.tags.get("dagster/asset_partition_range_start")
        if first is not None:
            partition = (first, run.tags["dagster/asset_partition_range_end"])
        return [(name, partition) for name in names]

    def begin_by_hand(self, name=None, partition=None, job="__ASSET_JOB", tags=None, at="here", and_with=()):
        """A run as the UI launches it, that has not begun yet."""
        selection = [dg.AssetKey(one) for one in (name, *and_with)] if name else None
        location = self._location(at)
        repository = next(iter(location.get_repositories().values()))
        selector = JobSubsetSelector(location.name, repository.name, job, None, asset_selection=selection)
        remote = location.get_job(selector)
        plan = location.get_execution_plan(remote, {}, None, None, self.instance)
        run = self.instance.create_run(
            job_name=job,
            run_id=None,
            run_config={},
            status=dg.DagsterRunStatus.NOT_STARTED,
            tags={**({"dagster/partition": partition} if partition else {}), **(tags or {})},
            root_run_id=None,
            parent_run_id=None,
            step_keys_to_execute=None,
            execution_plan_snapshot=plan.execution_plan_snapshot,
            job_snapshot=remote.job_snapshot,
            parent_job_snapshot=remote.parent_job_snapshot,
            asset_selection=frozenset(selection) if selection else None,
            asset_check_selection=None,
            resolved_op_selection=None,
            op_selection=None,
            remote_job_origin=remote.get_remote_origin(),
            job_code_origin=remote.get_python_origin(),
            asset_graph=repository.asset_graph,
        )
        self.instance.submit_run(run.run_id, self.place.create_request_context())
        return self.launcher.waiting[-1]

    def retry(self):
        """What Dagster's retry daemon does with runs that failed."""
        records = self.instance.get_run_records()
        list(consume_new_runs_for_automatic_reexecution(self.place, records, logger))


def _settings(home: Path) -> dict[str, Any]:
    """Of an instance at ``home``; the events of all runs are in one database, since to make one a run takes long."""
    return {
        "telemetry": {"enabled": False},
        "run_retries": {"enabled": True},
        "run_coordinator": {"module": "dagster._core.run_coordinator", "class": "DefaultRunCoordinator"},
        "event_log_storage": {
            "module": "dagster._core.storage.event_log",
            "class": "ConsolidatedSqliteEventLogStorage",
            "config": {"base_dir": str(home / "events")},
        },
    }


def _origin(location_name, definitions):
    name = f"sensor_test_location_{next(_numbers)}"
    module = ModuleType(name)
    module.definitions = definitions
    sys.modules[name] = module
    loadable = LoadableTargetOrigin(module_name=name, attribute="definitions")
    return InProcessCodeLocationOrigin(loadable, location_name=location_name)


@contextmanager
def running_daemon(folder: Path, empty_home: Path) -> Iterator[Daemon]:
    """A daemon over an empty project below a folder; its storage is a copy of an empty one."""
    location, home = str(folder / "data"), folder / "dagster"
    shutil.copytree(empty_home, home)
    with DagsterInstance.local_temp(str(home), overrides=_settings(home)) as instance:
        launcher = HeldLauncher()
        launcher.register_instance(instance)
        instance._run_launcher = launcher
        one = Daemon(Project.open("HOUSE", location), location, instance, launcher)
        yield one
        if one.place is not None:
            one.place.__exit__(None, None, None)


@pytest.fixture(scope="session")
def empty_home(tmp_path_factory) -> Path:
    """Dagster's SQLite storage with its tables made, which takes longer than most tests."""
    home = tmp_path_factory.mktemp("home")
    with DagsterInstance.local_temp(str(home), overrides=_settings(home)) as instance:
        instance.get_runs()
        instance.all_instigator_state()
        instance.fetch_observations(dg.AssetKey("none"), limit=1)
    return home


@pytest.fixture
def daemons(empty_home, tmp_path, monkeypatch) -> Callable[[], AbstractContextManager[Daemon]]:
    """Makes daemons, each with a project and a storage of its own."""
    monkeypatch.setattr(sensor, "is_under_min_interval", lambda *_: False)  # tests do not wait between ticks
    numbers = itertools.count()

    def make():
        folder = tmp_path / f"daemon{next(numbers)}"
        folder.mkdir()
        return running_daemon(folder, empty_home)

    return make


@pytest.fixture
def daemon(daemons) -> Iterator[Daemon]:
    with daemons() as one:
        yield one
