"""Runs in an environment: where they write, how Dagster knows them, and what is refused."""

import dagster as dg
import pyarrow as pa
import pytest

from dagster_versioned import ProjectResource, VersionedParquetIOManager
from dagster_versioned.branches.environments import create_environment
from dagster_versioned.errors import EnvironmentNotFound, InvalidInput
from support.house import changes, materializations

TAG = "dagster_versioned/environment"


@dg.asset
def up() -> pa.Table:
    return pa.table({"n": [1]})


@dg.asset
def down(up: pa.Table) -> pa.Table:
    return up.append_column("m", pa.array([2]))


@pytest.fixture
def manager(house):
    def make(environment):
        resource = ProjectResource(name="HOUSE", location=house.location, environment=environment)
        return VersionedParquetIOManager(project=resource)

    return make


@pytest.fixture
def branch(house):
    with dg.DagsterInstance.ephemeral() as instance:
        create_environment(house.project, "pr-1")
        yield type(house)(house.project.in_environment("pr-1"), house.location, instance)


def test_a_run_writes_to_it_and_is_marked(house, branch, manager):
    house.run(up, down)
    create_environment(house.project, "pr-2")
    with dg.DagsterInstance.ephemeral() as instance:
        result = dg.materialize([up, down], instance=instance, resources={"io_manager": manager("pr-2")})
        assert instance.get_run_by_id(result.run_id).tags[TAG] == "pr-2"
        assert changes(result) == {"up": "none", "down": "none"}
        made = materializations(result)["up", None].metadata
        assert made[TAG].value == "pr-2"
        assert made["dagster/table_name"].value == "HOUSE@pr-2.up"
    assert changes(branch.run(up, down, io_manager=manager("pr-1"))) == {"up": "full", "down": "full"}
    assert len(house.project.table("up").history()) == 1
    assert branch.parents("down") == [("up", None, branch.head("up").metadata_sha)]


def test_an_asset_alone_reads_what_production_had(house, branch, manager):
    house.run(up, down)
    create_environment(house.project, "pr-2")
    with dg.DagsterInstance.ephemeral() as instance:
        result = dg.materialize(
            [up, down], instance=instance, resources={"io_manager": manager("pr-2")}, selection=[down]
        )
        assert changes(result) == {"down": "none"}


def test_a_run_of_another_environment_is_not_gone_on_with(house, branch, manager):
    for tag, environment in (("pr-9", "pr-1"), ("pr-1", None)):
        with dg.DagsterInstance.ephemeral() as instance, pytest.raises(InvalidInput, match=r"The run .* is of the env"):
            dg.materialize([up], instance=instance, resources={"io_manager": manager(environment)}, tags={TAG: tag})
    assert not house.project.table("up").exists()
    assert not branch.project.table("up").exists()


def test_an_instance_of_production_is_refused(house, branch, manager):
    house.run(up)
    with pytest.raises(InvalidInput, match="has materializations of up in production"):
        house.run(up, io_manager=manager("pr-1"))
    assert not branch.project.table("up").exists()


def test_a_project_in_two_environments_in_one_run(house, branch, manager):
    @dg.asset(io_manager_key="other")
    def elsewhere(up: pa.Table) -> pa.Table:
        return up

    with pytest.raises(InvalidInput, match="State one environment for all IO managers of a run"):
        branch.run(up, elsewhere, io_manager=manager("pr-1"), resources={"other": manager(None)})
    assert not house.project.table("elsewhere").exists()


def test_what_another_projects_environment_made_is_recorded_as_such(house, branch, manager, tmp_path):
    here = str(tmp_path / "other")
    other = ProjectResource(name="OTHER", location=here)
    house.run(up, io_manager=VersionedParquetIOManager(project=other))
    create_environment(other.project(), "pr-1")
    there = VersionedParquetIOManager(project=ProjectResource(name="OTHER", location=here, environment="pr-1"))

    @dg.asset(name="up", io_manager_key="there")
    def changed() -> pa.Table:
        return pa.table({"n": [2]})

    @dg.multi_asset(
        outs={"a": dg.AssetOut(io_manager_key="there"), "b": dg.AssetOut()},
        internal_asset_deps={"b": {dg.AssetKey("a")}, "a": set()},
        can_subset=False,
    )
    def both():
        yield dg.Output(pa.table({"n": [1]}), "a")
        yield dg.Output(pa.table({"n": [1]}), "b")

    def made_in(asset):
        (parent,) = branch.project.table(asset).version().identity.parents
        return parent.source, parent.environment

    branch.run(up, io_manager=there)  # equal rows: it stays production's
    spec = dg.AssetSpec("up").with_io_manager_key("there")
    branch.run(spec, down, io_manager=manager("pr-1"), resources={"there": there})
    assert made_in("down") == ("OTHER", None)
    branch.run(changed, down, both, io_manager=manager("pr-1"), resources={"there": there})
    assert made_in("down") == made_in("b") == ("OTHER", "pr-1")


class TestTheResource:
    def test_names_production(self, house, manager):
        house.run(up, io_manager=manager("production"))
        assert house.project.table("up").exists()

    @pytest.mark.parametrize("name", ["prod", "main", "A b", "../x", "x" * 500])
    def test_refuses_names(self, house, name):
        with pytest.raises(ValueError, match="environment"):
            ProjectResource(name="HOUSE", location=house.location, environment=name)

    def test_reads_a_variable_that_has_to_be_set(self, house, branch, monkeypatch):
        resource = ProjectResource(name="HOUSE", location=house.location, environment=dg.EnvVar("BRANCH_OF_TEST"))
        with pytest.raises(Exception, match="BRANCH_OF_TEST"):
            resource.project()
        monkeypatch.setenv("BRANCH_OF_TEST", "pr-1")
        assert resource.project().environment.name == "pr-1"

    def test_an_unknown_one_is_not_made(self, house, manager):
        with pytest.raises(EnvironmentNotFound, match="no environment 'pr-7'"):
            house.run(up, io_manager=manager("pr-7"))

    def test_the_shells_variable_is_not_overlooked(self, house, branch, monkeypatch, manager):
        monkeypatch.setenv("DAGSTER_VERSIONED_ENVIRONMENT", "pr-1")
        with pytest.raises(InvalidInput, match=r"DAGSTER_VERSIONED_ENVIRONMENT is 'pr-1'.*states no environment"):
            manager(None).project.project()
        assert manager("production").project.project().environment is None
        assert manager("pr-1").project.project().environment.name == "pr-1"
