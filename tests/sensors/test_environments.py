"""The version sensor in an environment: it judges its heads, and what production had is handed on."""

import dagster as dg
import pyarrow as pa

from dagster_versioned import ProjectResource, VersionedParquetIOManager, build_version_sensor
from dagster_versioned.tables.environments import create_environment


def frame(value):
    return pa.table({"n": [value]})


def definitions(daemon, environment):
    @dg.asset
    def up() -> pa.Table:
        return frame(5)

    @dg.asset_check(asset=up, blocking=True)
    def positive() -> dg.AssetCheckResult:
        return dg.AssetCheckResult(passed=True)

    @dg.asset
    def down(up: pa.Table) -> pa.Table:
        return up

    resource = ProjectResource(name=daemon.project.name, location=daemon.location, environment=environment)
    sensor = build_version_sensor("keep", dg.AssetSelection.assets(down))
    manager = VersionedParquetIOManager(project=resource)
    daemon.deploy(up, down, checks=[positive], sensors=[sensor], resources={"io_manager": manager})


def test_what_production_had_is_handed_on_though_nobody_checked_it_here(daemon):
    daemon.write("up", frame(1))
    create_environment(daemon.project, "pr-1")
    definitions(daemon, None)
    assert not daemon.tick()
    assert "blocking check" in daemon.last_tick().skip_reason
    definitions(daemon, "pr-1")
    assert [daemon.asked(run) for run in daemon.tick()] == [[("down", None)]]
    daemon.go()
    assert daemon.project.in_environment("pr-1").table("down").exists()
    assert not daemon.project.table("down").exists()
    assert not daemon.tick()


def test_what_the_environment_made_waits_for_its_check(daemon):
    daemon.write("up", frame(1))
    create_environment(daemon.project, "pr-1")
    branch = daemon.project.in_environment("pr-1")
    branch.table(["up"]).write(frame(2))
    definitions(daemon, "pr-1")
    assert not daemon.tick()
    assert "blocking check" in daemon.last_tick().skip_reason
    daemon.materialize("up")
    assert [daemon.asked(run) for run in daemon.tick()] == [[("down", None)]]
    daemon.go()
    assert branch.table("down").read()["n"].to_pylist() == [5]
    assert daemon.project.table("up").read()["n"].to_pylist() == [1]


def test_production_asks_for_nothing_because_of_it(daemon):
    made = daemon.write("up", frame(1))
    daemon.write("down", frame(1), parents=daemon.project.table("up").upstream())
    create_environment(daemon.project, "pr-1")
    definitions(daemon, None)
    assert not daemon.tick()
    daemon.project.in_environment("pr-1").table(["up"]).write(frame(2))
    assert not daemon.tick()
    assert daemon.head("up").metadata_sha == made.version.metadata_sha
