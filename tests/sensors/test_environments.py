"""The version sensor in an environment: it judges its heads, and what production had is handed on."""

import dagster as dg
import pyarrow as pa
import pytest
from dagster._core.definitions.data_version import CachingStaleStatusResolver
from dagster._core.loader import LoadingContextForTest

from dagster_versioned import ProjectResource, VersionedParquetIOManager, build_version_sensor, versioned_source
from dagster_versioned.branches.environments import create_environment
from dagster_versioned.branches.promote import promote
from dagster_versioned.dagster_internals import partition_loading_context
from dagster_versioned.io_managers.promotion_events import report_promotion
from dagster_versioned.sensors.forecast import forecast


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


def line(daemon, version, calls, environment=None, scope="changed"):
    """``raw``, ``middle`` by this code version, and two assets below it; each call is noted."""

    @dg.asset
    def raw() -> pa.Table:
        calls.append("raw")
        return frame(1)

    @dg.asset(code_version=version)
    def middle(raw: pa.Table) -> pa.Table:
        calls.append("middle")
        return frame(10 * int(version))

    @dg.asset(code_version="1")
    def top(middle: pa.Table) -> pa.Table:
        calls.append("top")
        return middle

    @dg.asset(code_version="1")
    def beside(middle: pa.Table) -> pa.Table:
        calls.append("beside")
        return middle

    @dg.asset(code_version="1")
    def apart(raw: pa.Table) -> pa.Table:
        calls.append("apart")
        return raw

    targets = dg.AssetSelection.assets(middle, top, beside, apart)
    sensor = build_version_sensor("keep", targets, on_code_version=True, scope=scope)
    resource = ProjectResource(name=daemon.project.name, location=daemon.location, environment=environment)
    manager = VersionedParquetIOManager(project=resource)
    daemon.deploy(raw, middle, top, beside, apart, sensors=[sensor], resources={"io_manager": manager})


def statuses(daemon):
    """What the UI says of each asset."""
    graph = daemon.definitions.get_repository_def().asset_graph
    with partition_loading_context(dynamic_partitions_store=daemon.instance):
        resolver = CachingStaleStatusResolver(daemon.instance, graph, LoadingContextForTest(daemon.instance))
        return {key: resolver.get_status(key) for key in graph.materializable_asset_keys}


def test_from_a_branch_to_production_without_a_second_computation(daemons):
    """Two instances, as a team has them: production's, and the branch's."""
    calls: list[str] = []
    with daemons() as production:
        line(production, "1", calls)
        production.materialize("raw")
        production.settle()
        create_environment(production.project, "pr-1")
        calls.clear()
        with daemons() as branch:
            branch.location = production.location
            branch.project = production.project
            line(branch, "2", calls, "pr-1")
            assert sorted(branch.settle()) == [("beside", None), ("middle", None), ("top", None)]
        assert sorted(calls) == ["beside", "middle", "top"]
        made = production.project.in_environment("pr-1").table("top").version().metadata_sha
        report = promote(production.project, "pr-1", dry_run=False)
        assert [cell.table for cell in report.promoted] == ["middle", "beside", "top"]
        assert not report.left
        assert report_promotion(production.instance, production.project, report) == 3
        assert report_promotion(production.instance, production.project, report) == 0
        calls.clear()
        line(production, "2", calls)
        assert production.settle() == []
        assert calls == []
        assert production.head("top").metadata_sha == made
        event = production.instance.get_latest_materialization_event(dg.AssetKey("top"))
        assert event.asset_materialization.metadata["dagster_versioned/promoted_from"].value == "pr-1"
        assert event.asset_materialization.metadata["dagster_versioned/metadata_sha"].value == made
        assert {key.to_user_string(): status.name for key, status in statuses(production).items()} == dict.fromkeys(
            ("raw", "middle", "top", "beside", "apart"), "FRESH"
        )


@pytest.mark.slow
def test_what_a_promotion_leaves_production_computes(daemons):
    """Production's raw moved on meanwhile, so nothing below it is promoted, and the sensor runs all of it."""
    calls: list[str] = []
    with daemons() as production:
        line(production, "1", calls)
        production.materialize("raw")
        production.settle()
        create_environment(production.project, "pr-1")
        with daemons() as branch:
            branch.location = production.location
            branch.project = production.project
            line(branch, "2", calls, "pr-1")
            branch.settle()
        production.write("raw", frame(5))
        report = promote(production.project, "pr-1", dry_run=False)
        assert not report.promoted
        calls.clear()
        line(production, "2", calls)
        assert sorted(production.settle()) == [("apart", None), ("beside", None), ("middle", None), ("top", None)]
        assert sorted(calls) == ["apart", "beside", "middle", "top"]


@pytest.mark.slow
def test_what_was_stale_when_it_began_is_not_the_branches(daemons):
    """Production is in the middle of its night: a branch requests what it changes, and nothing of that."""
    calls: list[str] = []
    with daemons() as production:
        line(production, "1", calls)
        production.materialize("raw")
        production.settle()
        production.write("raw", frame(5))  # so that all below it is stale
        create_environment(production.project, "pr-1")
        with daemons() as branch:
            branch.location, branch.project = production.location, production.project
            line(branch, "1", calls, "pr-1")
            calls.clear()
            assert branch.settle() == []
            assert "2 were not current when the environment began" in branch.last_tick().skip_reason
            line(branch, "2", calls, "pr-1")
            assert sorted(branch.settle()) == [("beside", None), ("middle", None), ("top", None)]
            line(branch, "2", calls, "pr-1", scope="all")
            assert branch.settle() == [("apart", None)]
            branch.project.in_environment("pr-1").table(["raw"]).write(frame(6))
            assert sorted(branch.settle()) == [("apart", None), ("beside", None), ("middle", None), ("top", None)]


def test_what_a_sensor_does_not_count_is_left_all_the_same(daemon):
    """Each of the two sees another part of what was not current when the environment began."""
    raw = daemon.project.table(["raw"])
    raw.write(frame(1))

    @dg.asset
    def middle(raw: pa.Table) -> pa.Table:
        return raw

    def deploy(environment):
        resource = ProjectResource(name=daemon.project.name, location=daemon.location, environment=environment)
        sensor = build_version_sensor("data", dg.AssetSelection.assets(middle), on="data_sha")
        manager = VersionedParquetIOManager(project=resource)
        daemon.deploy(versioned_source("raw"), middle, sensors=[sensor], resources={"io_manager": manager})
        return forecast([daemon.definitions.get_repository_def()], instance=daemon.instance)

    deploy(None)
    daemon.materialize("middle")
    raw.write(frame(1), message="another identity of the same rows")
    create_environment(daemon.project, "pr-1")
    found = deploy("pr-1")
    assert (found.left, found.current, found.cells) == (1, 0, ())
