"""The git mirror follows runs: one commit for a run that made versions, whatever became of it, and none for others."""

import subprocess

import dagster as dg
import pyarrow as pa
import pytest
from dagster._core.scheduler.instigation import TickStatus

from dagster_versioned import GovernanceResource, ProjectResource, VersionedParquetIOManager, build_git_mirror_sensor
from dagster_versioned.governance.enroll import enroll
from dagster_versioned.governance.migrate import migrate
from dagster_versioned.governance.mirror import GovernanceStore
from dagster_versioned.governance.registry import Registry
from dagster_versioned.governance.version_mirror import VersionMirror
from dagster_versioned.storage import LocalStore, Location
from support.house import House, house

__all__ = ["house"]


@pytest.fixture(autouse=True)
def ada(monkeypatch, tmp_path):
    """A git identity, and nothing else of anybody's git configuration."""
    config = tmp_path / "gitconfig"
    config.write_text("[user]\n\tname = Ada\n\temail = ada@example.org\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")


class Mirrored:
    """The sensor as the daemon runs it: tick by tick, with the cursor that the tick before left."""

    def __init__(self, house: House, remote, clone):
        self.house, self.remote, self.clone = house, remote, clone
        self.cursor = None
        self.sensor = build_git_mirror_sensor(
            "mirror",
            project=ProjectResource(name=house.project.name, location=house.location),
            remote=str(remote),
            clone=clone,
        )

    def tick(self):
        context = dg.build_sensor_context(instance=self.house.instance, cursor=self.cursor)
        ticked = self.sensor.evaluate_tick(context)
        self.cursor = ticked.cursor
        return ticked.skip_message

    def git(self, *arguments):
        return subprocess.run(["git", "-C", self.remote, *arguments], check=True, capture_output=True, text=True).stdout

    def log(self):
        return subjects(self.remote)


@pytest.fixture
def mirrored(house, tmp_path):
    one = Mirrored(house, bare(tmp_path / "mirror.git"), tmp_path / "clone.git")
    one.tick()  # of a project without tables
    return one


def bare(path):
    """An empty repository for others to push to."""
    subprocess.run(["git", "init", "--quiet", "--bare", "--initial-branch=main", path], check=True)
    return path


def subjects(remote):
    """The first lines of its commits, newest first."""
    command = ["git", "-C", remote, "log", "--format=%s", "--all"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def numbers(name, *values, fails_at=None):
    """An asset whose runs return one value after the other."""
    rows = iter(values)

    @dg.asset(name=name)
    def asset():
        if (n := next(rows)) == fails_at:
            raise ValueError("as asked")
        return pa.table({"n": [n]})

    return asset


def test_a_run_is_one_commit_and_a_run_that_changed_nothing_is_none(house, mirrored):
    one, two = numbers("one", 1, 1, 2), numbers("two", 5, 5, 5)
    assert mirrored.log() == []
    first = house.run(one, two)
    mirrored.tick()
    assert mirrored.log() == [f"Run {first.run_id}: 2 tables"]
    house.run(one, two)  # the same rows
    assert mirrored.tick() == "Committed nothing."
    assert len(mirrored.log()) == 1
    third = house.run(one, two)
    mirrored.tick()
    assert mirrored.log() == [f"Run {third.run_id}: 1 table", f"Run {first.run_id}: 2 tables"]
    assert mirrored.tick() == "No run that ended made versions."
    assert len(mirrored.log()) == 2


def test_runs_that_ended_between_two_ticks_have_a_commit_each(house, mirrored):
    one, two = numbers("one", 1, 2), numbers("two", 1)
    runs = [house.run(one), house.run(two)]
    mirrored.tick()
    assert mirrored.log() == [f"Run {run.run_id}: 1 table" for run in reversed(runs)]


def test_what_a_run_that_failed_had_made_is_mirrored(house, mirrored):
    good, bad = numbers("good", 1), numbers("bad", 0, fails_at=0)
    run = house.run(good, bad, raise_on_error=False)
    assert not run.success
    mirrored.tick()
    assert mirrored.log() == [f"Run {run.run_id}: 1 table"]
    assert mirrored.git("ls-tree", "--name-only", "main").split() == ["good", "project.json"]


def test_what_a_run_committed_before_it_was_killed_is_mirrored(house, mirrored, monkeypatch):
    from dagster_versioned.io_managers import outputs

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt  # after the commit, before Dagster hears of a materialization

    with monkeypatch.context() as patch:
        patch.setattr(outputs._Report, "tell", killed)
        with pytest.raises(KeyboardInterrupt):
            house.run(numbers("one", 1))
    assert house.project.table("one").exists()
    mirrored.tick()
    (run,) = house.instance.get_runs()
    assert mirrored.log() == [f"Run {run.run_id}: 1 table"]


def test_runs_of_other_assets_are_nothing_to_it(house, mirrored):
    @dg.asset(io_manager_key="memory")
    def elsewhere():
        return 1

    house.run(elsewhere, resources={"memory": dg.mem_io_manager})
    assert mirrored.tick() == "No run that ended made versions."
    assert mirrored.log() == []


def test_partitions_of_a_ranged_run_are_one_commit(house, mirrored):
    days = dg.StaticPartitionsDefinition(["a", "b", "c"])

    @dg.asset(partitions_def=days, backfill_policy=dg.BackfillPolicy.single_run())
    def daily(context):
        return {key: pa.table({"key": [key]}) for key in context.partition_keys}

    tags = {"dagster/asset_partition_range_start": "a", "dagster/asset_partition_range_end": "b"}
    run = house.run(daily, tags=tags)
    mirrored.tick()
    assert mirrored.log() == [f"Run {run.run_id}: 1 table"]
    assert mirrored.git("ls-tree", "--name-only", "main:daily/partitions").split() == ["a", "b"]


def test_the_first_tick_mirrors_the_whole_project(house, mirrored):
    house.run(numbers("one", 1))
    house.project.table("two").write(pa.table({"n": [1]}))  # by nobody's run
    mirrored.cursor = None
    mirrored.tick()
    assert mirrored.log() == ["Mirror: 2 tables"]
    assert mirrored.tick() == "No run that ended made versions."


def test_a_remote_that_was_down_loses_no_run(house, mirrored):
    one = numbers("one", 1, 2)
    runs = [house.run(one)]
    away = mirrored.remote.rename(mirrored.remote.with_name("away"))
    with pytest.raises(Exception, match="did not answer"):
        mirrored.tick()
    runs.append(house.run(one))
    away.rename(mirrored.remote)
    mirrored.tick()
    # The first run's commit has both versions of the table, as its log had by then.
    assert mirrored.log() == [f"Run {runs[0].run_id}: 1 table"]
    seen = VersionMirror.open(house.project, str(mirrored.remote), mirrored.clone).witnesses("one")
    assert house.project.table("one").verify(witnesses=seen).witnessed == 1


def test_a_log_that_was_cut_is_an_error_in_the_tick_s_log_and_fails_nothing(house, mirrored):
    one = numbers("one", 1, 2, 3)
    for _ in range(2):
        house.run(one)
    mirrored.tick()
    table = house.project.table("one")
    table.store.delete([f"_delta_log/{1:020d}.json"])
    table.repair()
    house.run(one)
    context = dg.build_sensor_context(instance=house.instance, cursor=mirrored.cursor)
    said = []
    context.log.error = lambda text, *arguments: said.append(text % arguments)
    assert mirrored.sensor.evaluate_tick(context).skip_message == "Committed nothing."
    assert said[0].startswith("one was not mirrored: the mirror saw ")
    assert len(mirrored.log()) == 1


def test_its_settings_may_come_from_the_environment(house, mirrored, monkeypatch):
    monkeypatch.setenv("HERE", house.location)
    monkeypatch.setenv("REMOTE", str(mirrored.remote))
    monkeypatch.setenv("CLONE", str(mirrored.clone))
    mirrored.sensor = build_git_mirror_sensor(
        "mirror",
        project=ProjectResource(name=house.project.name, location=dg.EnvVar("HERE")),
        remote=dg.EnvVar("REMOTE"),
        clone=dg.EnvVar("CLONE"),
    )
    run = house.run(numbers("one", 1))
    mirrored.tick()
    assert mirrored.log() == [f"Run {run.run_id}: 1 table"]


def test_dagster_s_daemon_mirrors_each_run_once_through_failures_and_restarts(daemon, tmp_path):
    remote = bare(tmp_path / "mirror.git")
    project = ProjectResource(name=daemon.project.name, location=daemon.location)
    sensor = build_git_mirror_sensor("mirror", project=project, remote=str(remote), clone=tmp_path / "clone.git")
    daemon.deploy(numbers("one", 1, 1, 2, 3), sensors=[sensor])
    assert daemon.tick() == []  # never a run
    runs = []
    for expected in (1, 1, 2):  # the second run changes nothing
        runs.append(daemon.materialize("one").run_id)
        daemon.tick()
        daemon.tick()
        assert len(subjects(remote)) == expected
    assert subjects(remote) == [f"Run {runs[2]}: 1 table", f"Run {runs[0]}: 1 table"]
    away = remote.rename(tmp_path / "away")
    runs.append(daemon.materialize("one").run_id)
    daemon.tick()
    failed = daemon.last_tick()
    assert failed.status == TickStatus.FAILURE
    assert "did not answer" in failed.error.to_string()
    away.rename(remote)
    daemon.restart()
    daemon.tick()
    assert subjects(remote)[0] == f"Run {runs[3]}: 1 table"
    assert daemon.last_tick().status == TickStatus.SKIPPED


def test_a_governed_project_that_moves_goes_on_in_the_same_mirror(house, tmp_path):
    registry = Registry.init(str(tmp_path / "registry.git"), tmp_path / "registry")
    storage = GovernanceStore(LocalStore(tmp_path / "governance"))
    enroll(registry, storage, house.project.name, Location.parse(house.location))
    governance = GovernanceResource(storage=str(tmp_path / "governance"), clone=str(tmp_path / "registry"))
    project = ProjectResource(name=house.project.name, governance=governance)
    io_manager = VersionedParquetIOManager(project=project)
    mirrored = Mirrored(house, bare(tmp_path / "mirror.git"), tmp_path / "clone.git")
    mirrored.sensor = build_git_mirror_sensor(
        "mirror", project=project, remote=str(mirrored.remote), clone=mirrored.clone
    )
    one = numbers("one", 1, 2)
    mirrored.tick()
    house.run(one, io_manager=io_manager)
    mirrored.tick()
    migrate(registry, storage, house.project.name, Location.parse(str(tmp_path / "elsewhere")))
    io_manager = VersionedParquetIOManager(project=ProjectResource(name=house.project.name, governance=governance))
    run = house.run(one, io_manager=io_manager)
    mirrored.tick()
    assert mirrored.log()[0] == f"Run {run.run_id}: 1 table"
    assert len(mirrored.log()) == 2
    table = project.project().table("one")
    seen = VersionMirror.open(project.project(), str(mirrored.remote), mirrored.clone).witnesses("one")
    assert table.verify(witnesses=seen).ok
    assert max(seen) == table.state.log_version


def test_it_loads_from_definitions_and_is_stopped_unless_asked_otherwise(house, mirrored):
    loaded = dg.Definitions(sensors=[mirrored.sensor]).get_repository_def().sensor_defs
    assert [(one.name, one.default_status) for one in loaded] == [("mirror", dg.DefaultSensorStatus.STOPPED)]
