"""A project, its definitions as a code location, and Dagster's own daemon, which ticks and launches when a test says."""

import itertools
import logging
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import ModuleType

import dagster as dg
import pytest
from dagster._core.execution.api import execute_run
from dagster._core.instance import DagsterInstance
from dagster._core.launcher import RunLauncher
from dagster._core.remote_origin import InProcessCodeLocationOrigin
from dagster._core.test_utils import InProcessTestWorkspaceLoadTarget
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._daemon import sensor
from dagster._utils.hosted_user_process import recon_job_from_origin

from dagster_versioned import Project, ProjectResource, VersionedParquetIOManager

SETTINGS = {
    "telemetry": {"enabled": False},
    "run_coordinator": {"module": "dagster._core.run_coordinator", "class": "DefaultRunCoordinator"},
}
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
    runs: list[dg.DagsterRun] = field(default_factory=list)

    def io_manager(self, **options):
        return VersionedParquetIOManager(
            project=ProjectResource(name=self.project.name, location=self.location), preview_rows=0, **options
        )

    def deploy(self, *assets, sensors=(), resources=None, jobs=()):
        """Load these definitions as the code location, in the place of those before."""
        self.definitions = dg.Definitions(
            assets=list(assets),
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
        name = f"sensor_test_location_{next(_numbers)}"
        module = ModuleType(name)
        module.definitions = self.definitions
        sys.modules[name] = module
        origin = InProcessCodeLocationOrigin(
            LoadableTargetOrigin(module_name=name, attribute="definitions"), location_name="here"
        )
        self.place = WorkspaceProcessContext(self.instance, InProcessTestWorkspaceLoadTarget(origin)).__enter__()

    def _repository(self):
        entries = self.place.create_request_context().get_code_location_entries()
        entry = next(iter(entries.values()))
        assert entry.code_location is not None, entry.load_error
        return next(iter(entry.code_location.get_repositories().values()))

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
                return [one for run in launched for one in asked(run)]
            launched += new
            self.go()
        raise AssertionError(f"no end after {most} ticks: {[asked(run) for run in launched[-5:]]}")

    def write(self, name, frame, partition=None, **options):
        """A version written by hand, without parents."""
        return self.project.table([name]).write(frame, partition=partition, **options)

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


def asked(run):
    """What a run was requested for: (asset, partition) or (asset, (first, last))."""
    names = sorted(key.to_user_string() for key in run.asset_selection)
    partition = run.tags.get("dagster/partition")
    first = run.tags.get("dagster/asset_partition_range_start")
    if first is not None:
        partition = (first, run.tags["dagster/asset_partition_range_end"])
    return [(name, partition) for name in names]


@pytest.fixture
def daemon(tmp_path, monkeypatch) -> Iterator[Daemon]:
    monkeypatch.setattr(sensor, "is_under_min_interval", lambda *_: False)  # tests do not wait between ticks
    location = str(tmp_path / "data")
    home = tmp_path / "dagster"
    home.mkdir()
    with DagsterInstance.local_temp(str(home), overrides=SETTINGS) as instance:
        launcher = HeldLauncher()
        launcher.register_instance(instance)
        instance._run_launcher = launcher
        one = Daemon(Project.open("HOUSE", location), location, instance, launcher)
        yield one
        if one.place is not None:
            one.place.__exit__(None, None, None)
