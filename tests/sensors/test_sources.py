"""Tables of elsewhere: what they make stale here, and how Dagster hears of their versions."""

import dagster as dg
import pyarrow as pa
import pytest

from dagster_versioned import (
    Project,
    ProjectResource,
    VersionedParquetIOManager,
    build_source_sensor,
    build_version_sensor,
    version_changed,
    versioned_source,
)

ABC = dg.StaticPartitionsDefinition(["a", "b", "c"])


def frame(value):
    return pa.table({"n": [value]})


@pytest.fixture
def other(tmp_path):
    """Another project, and the IO manager that reads it."""
    location = str(tmp_path / "other")
    manager = VersionedParquetIOManager(project=ProjectResource(name="OTHER", location=location))
    return Project.open("OTHER", location), manager


def down():
    @dg.asset
    def down(rates: pa.Table) -> pa.Table:
        return rates

    return down


def test_a_source_in_another_project_is_waited_for_and_makes_stale(daemon, other):
    project, manager = other
    source = versioned_source("rates", io_manager_key="elsewhere")
    target = down()
    sensor = build_version_sensor("keep", dg.AssetSelection.assets(target))
    daemon.deploy(source, target, sensors=[sensor], resources={"elsewhere": manager})
    assert daemon.tick() == []
    assert "has no version: down (rates)" in daemon.last_tick().skip_reason
    for value in (1, 2):
        project.table("rates").write(frame(value))
        assert daemon.settle() == [("down", None)]
        (parent,) = daemon.head("down").identity.parents
        assert (parent.source, parent.version) == ("OTHER", project.table("rates").version().metadata_sha)
    assert daemon.settle() == []


@pytest.mark.slow
def test_a_source_that_is_not_loaded_is_waited_for_too(daemon):
    source = versioned_source("rates")

    @dg.asset(deps=[source])
    def down() -> pa.Table:
        return frame(0)

    daemon.deploy(source, down, sensors=[build_version_sensor("keep", dg.AssetSelection.assets(down))])
    assert daemon.tick() == []
    daemon.write("rates", frame(1))
    assert daemon.settle() == [("down", None)]
    daemon.write("rates", frame(2))
    assert daemon.settle() == [("down", None)]
    assert daemon.is_built("down", ("rates", None))


@pytest.mark.slow
def test_a_source_of_another_project_that_is_not_loaded_is_waited_for_and_makes_stale(daemon, other):
    project, manager = other
    source = versioned_source("rates", io_manager_key="elsewhere", partitions_def=ABC)

    @dg.asset(deps=[source])
    def down(base: pa.Table) -> pa.Table:
        return base

    sensor = build_version_sensor("keep", dg.AssetSelection.assets(down))
    daemon.deploy(source, dg.AssetSpec("base"), down, sensors=[sensor], resources={"elsewhere": manager})
    daemon.write("base", frame(0))
    assert daemon.tick() == []
    assert "has no version: down (rates" in daemon.last_tick().skip_reason
    project.table("rates").write_partitions({key: frame(1) for key in "abc"})
    assert daemon.settle() == [("down", None)]
    project.table("rates").write(frame(2), partition="b")
    assert daemon.settle() == [("down", None)]
    (parent,) = [one for one in daemon.head("down").identity.parents if one.source == "OTHER"]
    assert parent == project.table("rates").upstream()[0].parent
    assert daemon.settle() == []


@pytest.mark.slow
def test_a_dependency_that_nothing_defines_counts_once_it_is_a_table_of_the_project(daemon):
    @dg.asset(deps=["rates", "file"])
    def down(base: pa.Table) -> pa.Table:
        return base

    daemon.deploy(dg.AssetSpec("base"), down, sensors=[build_version_sensor("keep", dg.AssetSelection.assets(down))])
    daemon.write("base", frame(0))
    assert daemon.settle() == [("down", None)]
    daemon.write("rates", frame(1))
    assert daemon.settle() == [("down", None)]
    assert daemon.is_built("down", ("base", None), ("rates", None))


def observed(daemon, key="rates"):
    records = daemon.instance.fetch_observations(dg.AssetKey(key), limit=100).records
    return [(one.asset_observation.partition, one.asset_observation.data_version) for one in reversed(records)]


def test_every_version_of_a_source_is_reported_once(daemon, other):
    project, manager = other
    source = versioned_source("rates", io_manager_key="elsewhere")
    sensor = build_source_sensor("report", dg.AssetSelection.assets("rates"))
    daemon.deploy(source, sensors=[sensor], resources={"elsewhere": manager})
    daemon.tick()
    assert observed(daemon) == []
    versions = []
    for value in (1, 1, 2, 1):  # the second changes nothing
        versions.append((None, project.table("rates").write(frame(value)).version.metadata_sha))
        daemon.tick()
        daemon.tick()
        daemon.lose_cursor()
        daemon.tick()
    assert observed(daemon) == [versions[0], versions[2], versions[3]]
    assert "every version is known" in daemon.last_tick().skip_reason


def test_a_version_that_comes_back_before_anybody_looked_is_reported_again(daemon):
    daemon.deploy(versioned_source("rates"), sensors=[build_source_sensor("report")])
    first = daemon.write("rates", frame(1)).version.metadata_sha
    daemon.tick()
    daemon.tick()  # which reads that the first is reported
    second = daemon.write("rates", frame(2)).version.metadata_sha
    daemon.tick()
    daemon.project.table("rates").revert("@0")
    daemon.tick()
    daemon.tick()
    assert observed(daemon) == [(None, first), (None, second), (None, first)]


def test_a_source_with_partitions_is_reported_by_partition(daemon):
    source = versioned_source("rates", partitions_def=ABC)
    daemon.deploy(source, sensors=[build_source_sensor("report")])
    daemon.project.table("rates").write_partitions({"a": frame(1), "b": frame(1)})
    daemon.tick()
    daemon.write("rates", frame(2), "b")
    daemon.lose_cursor()
    daemon.tick()
    shas = daemon.project.table("rates").partitions()
    found = observed(daemon)
    assert sorted(partition for partition, _ in found) == ["a", "b", "b"]
    assert found[-1] == ("b", shas["b"].metadata_sha)


# The same judgement as an automation condition


def conditional(**options):
    @dg.asset(automation_condition=version_changed(**options))
    def down(rates: pa.Table) -> pa.Table:
        return rates

    @dg.asset(partitions_def=ABC, automation_condition=version_changed(**options))
    def parts(down, raw) -> pa.Table:
        raise NotImplementedError

    return down, parts


class Evaluator:
    """Dagster's evaluation of conditions, with its cursor."""

    def __init__(self, daemon, *assets):
        self.daemon, self.cursor = daemon, None
        sources = [dg.AssetSpec("rates"), dg.AssetSpec("raw", partitions_def=ABC)]
        resources = {"io_manager": daemon.io_manager()}
        self.definitions = dg.Definitions(assets=[*sources, *assets], resources=resources)

    def ask(self):
        found = dg.evaluate_automation_conditions(self.definitions, self.daemon.instance, cursor=self.cursor)
        self.cursor = found.cursor
        every = {name: found.get_requested_partitions(dg.AssetKey(name)) for name in ("down", "parts")}
        return {name: set(keys) for name, keys in every.items() if keys}


def build(daemon, name, *parents, partition=None):
    above = [one for up, key in parents for one in daemon.project.table(up).upstream(partitions=key and [key])]
    daemon.project.table([name]).write(frame(0), partition=partition, parents=above)


def test_the_condition_asks_once_for_a_state_and_again_for_the_next(daemon):
    evaluator = Evaluator(daemon, *conditional())
    assert evaluator.ask() == {}
    daemon.write("rates", frame(1))
    assert evaluator.ask() == {"down": {None}}
    assert evaluator.ask() == {}  # asked for, and nothing came of it: no storm
    daemon.write("rates", frame(2))
    assert evaluator.ask() == {"down": {None}}
    build(daemon, "down", ("rates", None))
    daemon.write("rates", frame(3))  # between the end of the run and the next look
    assert evaluator.ask() == {"down": {None}}
    build(daemon, "down", ("rates", None))
    assert evaluator.ask() == {}


def test_the_condition_asks_for_no_state_again_because_a_head_could_not_be_read_meanwhile(daemon):
    evaluator = Evaluator(daemon, *conditional())
    daemon.write("rates", frame(1))
    assert evaluator.ask() == {"down": {None}}
    log = "rates/_delta_log/00000000000000000000.json"
    head, entry = ".metadata/heads/rates.json", daemon.project.data.get(log)
    stored = daemon.project.data.get(head)
    daemon.project.data.put(head, b"")
    daemon.project.data.put(log, b"torn")
    assert evaluator.ask() == {}
    daemon.project.data.put(log, entry)
    daemon.project.data.put(head, stored)
    assert evaluator.ask() == {}


def test_the_condition_knows_partitions_and_waits_for_upstreams(daemon):
    evaluator = Evaluator(daemon, *conditional())
    daemon.write("rates", frame(1))
    daemon.write("raw", frame(1), "a")
    daemon.write("raw", frame(1), "c")
    assert evaluator.ask() == {"down": {None}}
    build(daemon, "down", ("rates", None))
    assert evaluator.ask() == {"parts": {"a", "c"}}
    for key in "ac":
        build(daemon, "parts", ("down", None), ("raw", key), partition=key)
    assert evaluator.ask() == {}
    daemon.write("raw", frame(2), "c")
    assert evaluator.ask() == {"parts": {"c"}}


def test_the_condition_can_look_at_data_alone(daemon):
    evaluator = Evaluator(daemon, *conditional(on="data_sha"))
    daemon.write("rates", frame(1))
    evaluator.ask()
    build(daemon, "down", ("rates", None))
    daemon.write("rates", frame(1), message="checked")
    assert evaluator.ask() == {}


def test_the_condition_in_dagsters_own_sensor(daemon):
    """In user code, as it must be: the definitions are loaded, the sensor is evaluated, and a run is launched."""
    target, _ = conditional()
    sensor = dg.AutomationConditionSensorDefinition("automation", target=[target], use_user_code_server=True)
    daemon.deploy(dg.AssetSpec("rates"), target, sensors=[sensor])
    daemon.write("rates", frame(1))
    assert daemon.settle() == [("down", None)]
    assert daemon.is_built("down", ("rates", None))
    daemon.write("rates", frame(2))
    assert daemon.settle() == [("down", None)]
