"""However an asset's IO manager was made, and whatever loads its inputs: its sensor understands it, or names it."""

import dagster as dg
import pyarrow as pa
import pytest
from dagster._core.remote_representation.external_data import RepositorySnap

from dagster_versioned import (
    FreshParents,
    Project,
    ProjectResource,
    VersionedParquetIOManager,
    build_version_checks,
    build_version_sensor,
)
from dagster_versioned.errors import InvalidInput, InvalidName
from dagster_versioned.sensors.forecast import forecast
from support.dagster_versions import keeps_what_runs_may_configure


def frame(value):
    return pa.table({"n": [value]})


@dg.asset
def up() -> pa.Table:
    return frame(1)


@dg.asset
def down(up: pa.Table) -> pa.Table:
    return up


class Subclass(VersionedParquetIOManager):
    pass


class Wrapper(dg.ConfigurableIOManager):
    inner: VersionedParquetIOManager

    def handle_output(self, context, obj):
        self.inner.handle_output(context, obj)

    def load_input(self, context):
        return self.inner.load_input(context)


class Both(Wrapper):
    other: VersionedParquetIOManager


class WrapperFactory(dg.ConfigurableIOManagerFactory):
    house: ProjectResource

    def create_io_manager(self, context):
        return VersionedParquetIOManager(project=self.house)


class PlainFactory(dg.ConfigurableIOManagerFactory):
    folder: str

    def create_io_manager(self, context):
        return VersionedParquetIOManager(project=ProjectResource(name="HOUSE", location=self.folder))


class House:
    """A project, definitions over it, and one sensor, which is asked without a daemon."""

    def __init__(self, folder, instance):
        self.folder, self.instance = folder, instance
        self.location = str(folder / "house")
        self.project = Project.open("HOUSE", self.location)
        self.resource = ProjectResource(name="HOUSE", location=self.location)
        self.manager = VersionedParquetIOManager(project=self.resource)

    def define(self, *assets, target="*", resources=None, **options):
        selection = dg.AssetSelection.all() if target == "*" else dg.AssetSelection.assets(*target)
        self.sensor = build_version_sensor("keep", selection, **options)
        found = {"io_manager": self.manager, **(resources or {})}
        self.definitions = dg.Definitions(list(assets), sensors=[self.sensor], resources=found)

    def tick(self):
        """What is requested, and what is said."""
        context = dg.build_sensor_context(self.instance, definitions=self.definitions)
        data = self.sensor.evaluate_tick(context)
        return [key.to_user_string() for one in data.run_requests for key in one.asset_selection], data.skip_message

    def load(self):
        """What Dagster does whenever it loads a code location, as `dagster dev` and `dg check defs` do."""
        return RepositorySnap.from_def(self.definitions.get_repository_def())


@pytest.fixture
def house(tmp_path):
    with dg.DagsterInstance.ephemeral() as instance:
        yield House(tmp_path, instance)


def launched(house):
    project = ProjectResource.configure_at_launch(name="HOUSE", location=house.location)
    return {"project": project, "io_manager": VersionedParquetIOManager(project=project)}


UNDERSTOOD = {
    "a subclass": lambda house: {"io_manager": Subclass(project=house.resource)},
    "a wrapper": lambda house: {"io_manager": Wrapper(inner=house.manager)},
    "a wrapper of a wrapper": lambda house: {
        "io_manager": type("W", (Wrapper,), {"__annotations__": {"inner": Wrapper}})(inner=Wrapper(inner=house.manager))
    },
    "a factory on a project": lambda house: {"io_manager": WrapperFactory(house=house.resource)},
    "a factory on its own": lambda house: {"io_manager": PlainFactory(folder=house.location)},
    "a project that runs may configure": launched,
    "an IO manager that runs may configure": lambda house: {
        "io_manager": VersionedParquetIOManager.configure_at_launch(project=house.resource)
    },
}


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(made, marks=keeps_what_runs_may_configure if made is launched else ())
        for made in UNDERSTOOD.values()
    ],
    ids=UNDERSTOOD,
)
def test_an_io_manager_that_is_ours_in_the_end_is_understood(house, made):
    house.define(up, down, resources=made(house))
    house.load()
    assert house.tick()[0] == []
    house.project.table("up").write(frame(1))
    assert house.tick()[0] == ["down"]


@dg.io_manager
def made_by_function(_):
    raise AssertionError("it is not called to find out what it is")


LEFT_OUT = {
    "is made by a function": lambda house: made_by_function,
    "is a FilesystemIOManager": lambda house: dg.FilesystemIOManager(base_dir=str(house.folder)),
    "is on 2 projects": lambda house: Both(
        inner=house.manager,
        other=VersionedParquetIOManager(project=ProjectResource(name="OTHER", location=str(house.folder / "other"))),
    ),
    "is configured by runs alone": lambda house: PlainFactory.configure_at_launch(),
}


@pytest.mark.parametrize(("why", "made"), LEFT_OUT.items(), ids=LEFT_OUT)
def test_a_target_of_another_io_manager_is_named_beside_others(house, why, made):
    @dg.asset(io_manager_key="other")
    def others(up: pa.Table):
        return 1

    house.define(up, down, others, resources={"other": made(house)})
    house.load()
    house.project.table("up").write(frame(1))
    assert house.tick()[0] == ["down"]
    house.project.table("down").write(frame(1), parents=house.project.table("up").upstream())
    requested, said = house.tick()
    assert requested == []
    assert f"Left out: others (its IO manager other {why}" in said
    assert said.endswith("All are built from current versions.")


def test_a_target_below_no_table_is_named_and_one_without_upstreams_is_not(house):
    @dg.asset(io_manager_key="other")
    def pickled():
        return 1

    @dg.asset
    def below(pickled) -> pa.Table:
        return frame(1)

    house.define(up, down, pickled, below, resources={"other": dg.mem_io_manager})
    assert "Left out: below (it depends on no versioned table)." in house.tick()[1]


@pytest.mark.parametrize(
    ("target", "why"),
    [
        (["down"], "down (its IO manager io_manager is made by a function"),
        (["others"], "others (its IO manager other is made by a function"),
        (["up"], "of its target, no asset is a versioned table with an upstream"),
    ],
)
def test_a_sensor_that_watches_nothing_fails_when_definitions_load(house, target, why):
    @dg.asset(io_manager_key="other")
    def others(up: pa.Table):
        return 1

    made = {"io_manager": made_by_function} if target == ["down"] else {}
    house.define(up, down, others, target=target, resources={"other": dg.mem_io_manager, **made})
    with pytest.raises(InvalidInput, match="The sensor keep watches nothing") as raised:
        house.load()
    assert why in str(raised.value)
    with pytest.raises(InvalidInput, match="The sensor keep watches nothing"):
        house.tick()


def test_a_sensor_over_all_assets_loads_where_none_depends_on_another_yet(house):
    house.define(up, target="*")
    house.load()
    with pytest.raises(InvalidInput, match="The sensor keep watches nothing"):
        house.tick()


def test_an_asset_that_can_have_no_table_is_refused_when_definitions_load(house):
    @dg.asset(name="1_down")
    def unnamed(up: pa.Table) -> pa.Table:
        return up

    house.define(up, down, unnamed)
    with pytest.raises(InvalidName, match=r"The asset key \['1_down'\] gives no table name"):
        house.load()


def test_whether_it_watches_something_is_known_before_anything_is_made(house, monkeypatch):
    monkeypatch.delenv("NOT_SET", raising=False)
    unset = VersionedParquetIOManager(project=ProjectResource(name="HOUSE", location=dg.EnvVar("NOT_SET")))
    house.define(up, down, resources={"io_manager": unset})
    house.load()
    house.define(up, down, target=["up"], resources={"io_manager": unset})
    with pytest.raises(InvalidInput, match="watches nothing"):
        house.load()


class TestInputsOfAnotherProject:
    @pytest.fixture(params=["made here", "source"])
    def both(self, house, request):
        """An asset that loads production's table of a name which its own project has as well."""
        self.production = Project.open("PROD", str(house.folder / "prod"))
        loader = VersionedParquetIOManager(project=ProjectResource(name="PROD", location=str(house.folder / "prod")))

        @dg.asset_check(asset="up", blocking=True)
        def good():
            return dg.AssetCheckResult(passed=True)

        @dg.op(ins={"up": dg.In(input_manager_key="prod")})
        def copied(up: pa.Table) -> pa.Table:
            return up

        @dg.graph_asset
        def graph_down(up):
            return copied(up)

        @dg.asset(ins={"up": dg.AssetIn(input_manager_key="prod")})
        def plain_down(up: pa.Table) -> pa.Table:
            return up

        assets = (up if request.param == "made here" else dg.AssetSpec("up"), plain_down, graph_down)
        house.define(*assets, resources={"prod": loader})
        names = ("plain_down", "graph_down")
        house.definitions = dg.Definitions.merge(
            house.definitions,
            dg.Definitions(asset_checks=[good, *build_version_checks([plain_down, graph_down], [FreshParents()])]),
        )
        self.production.table("up").write(frame(1))
        for name in names:
            house.project.table(name).write(frame(1), parents=self.production.table("up").upstream())
        house.project.table("up").write(frame(99))
        return house

    def test_a_sensor_compares_with_what_is_loaded(self, both):
        assert both.tick()[1].endswith("All are built from current versions.")
        both.project.table("up").write(frame(100))
        assert both.tick()[1].endswith("All are built from current versions.")
        self.production.table("up").write(frame(2))
        assert sorted(both.tick()[0]) == ["graph_down", "plain_down"]
        told = {one.asset: one.why for one in forecast([both.definitions.get_repository_def()]).cells}
        assert told["plain_down"] == told["graph_down"]
        assert told["plain_down"].startswith("up ")

    def test_so_does_the_check_of_its_parents(self, both):
        job = both.definitions.resolve_implicit_global_asset_job_def()
        keys = {one for one in both.definitions.get_repository_def().asset_graph.asset_check_keys if one.name != "good"}

        def passed():
            subset = job.get_subset(asset_selection=set(), asset_check_selection=keys)
            result = subset.execute_in_process(instance=both.instance)
            return [one.passed for one in result.get_asset_check_evaluations()]

        assert passed() == [True, True]
        self.production.table("up").write(frame(2))
        assert passed() == [False, False]


def test_what_the_input_of_an_op_in_a_graph_says_is_known(house):
    parts = dg.StaticPartitionsDefinition(["a", "b"])
    source = dg.AssetSpec("parted", partitions_def=parts)

    allowed = {"allow_missing_partitions": True}

    @dg.op(ins={"rows": dg.In(metadata={**allowed, "dagster_versioned/columns": ["n"]})})
    def first(rows: pa.Table) -> pa.Table:
        return rows

    @dg.op(ins={"rows": dg.In(metadata=allowed)})
    def second(rows: pa.Table, found: pa.Table) -> pa.Table:
        return rows

    @dg.op
    def strict(rows: pa.Table, found: pa.Table) -> pa.Table:
        return rows

    @dg.graph
    def inner(rows, found):
        return second(rows, found)

    @dg.graph_asset
    def lenient(parted):
        return inner(parted, first(parted))

    @dg.graph_asset
    def partly(parted):
        return strict(parted, first(parted))

    house.define(source, lenient, partly)
    house.project.table("parted").write(frame(1), partition="a")
    assert house.tick()[0] == ["lenient"]
