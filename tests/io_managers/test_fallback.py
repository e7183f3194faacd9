"""Values that are no assets: the outputs of a job's ops, and what passes between the ops of a graph-backed asset."""

from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest

from dagster_versioned import Project, ProjectResource, VersionedParquetIOManager
from dagster_versioned.errors import InvalidInput

LOCATION = "FALLBACK_TEST_LOCATION"
DAYS = dg.StaticPartitionsDefinition(["a", "b"])


@dg.op
def count(up):
    return {"rows": up.num_rows}


@dg.op
def as_rows(counted):
    return pa.table({"n": [counted["rows"]]})


@dg.asset
def up():
    return pa.table({"n": [1, 2]})


@dg.graph_asset
def counted(up):
    return as_rows(count(up))


@dg.asset
def below(counted):
    return counted


@dg.op
def start():
    return [1, 2, 3]


@dg.op(out=dg.DynamicOut())
def each(numbers):
    for number in numbers:
        yield dg.DynamicOutput(number, str(number))


@dg.op
def doubled(number):
    return 2 * number


@dg.op
def total(numbers):
    return sum(numbers)


@dg.graph
def summed():
    total(each(start()).map(doubled).collect())


def everything():
    """The assets' job and the ops' job, as each process of the multiprocess executor makes them for itself."""
    project = ProjectResource(name="HOUSE", location=dg.EnvVar(LOCATION))
    return dg.Definitions(
        assets=[up, counted, below],
        resources={"io_manager": VersionedParquetIOManager(project=project)},
        jobs=[dg.define_asset_job("assets", "*"), summed.to_job("ops")],
    )


def assets_job():
    return everything().resolve_job_def("assets")


def ops_job():
    return everything().resolve_job_def("ops")


@pytest.fixture
def execute(tmp_path, monkeypatch):
    """Executes a job of `everything` with an instance that has a folder; what it ended in, and what has files there."""
    monkeypatch.setenv(LOCATION, str(tmp_path / "data"))
    with dg.instance_for_test(temp_dir=str(tmp_path)) as instance:

        def execute(job, executor, node):
            config = {"execution": {"config": {executor: {}}}}
            with dg.execute_job(dg.reconstructable(job), instance, run_config=config) as result:
                assert result.success
                files = {path.parent.name for path in Path(instance.storage_directory(), result.run_id).glob("*/*")}
                return result.output_for_node(node), files - {"compute_logs"}

        yield execute


@pytest.mark.parametrize("executor", [pytest.param("multiprocess", marks=pytest.mark.slow), "in_process"])
def test_a_graph_backed_asset_needs_no_other_io_manager_for_what_passes_between_its_ops(execute, tmp_path, executor):
    passed, files = execute(assets_job, executor, "counted.count")
    assert passed == {"rows": 2}
    assert files == {"counted.count"}
    project = Project.open("HOUSE", str(tmp_path / "data"))
    assert project.table("below").read().to_pydict() == {"n": [2]}
    (parent,) = project.table("counted").version().identity.parents
    assert (parent.table, parent.version) == ("up", project.table("up").version().metadata_sha)
    assert {str(name) for name in project.tables()} == {"up", "counted", "below"}


def test_a_job_of_ops_works_under_the_same_io_manager(execute, tmp_path):
    summed, files = execute(ops_job, "in_process", "total")
    assert summed == 12
    assert {"start", "total"} <= files
    assert Project.open("HOUSE", str(tmp_path / "data")).tables() == []


@pytest.mark.parametrize(
    "fallback",
    [
        pytest.param(lambda _: dg.mem_io_manager, id="a definition"),
        pytest.param(lambda _: dg.InMemoryIOManager(), id="an IO manager"),
        pytest.param(lambda folder: dg.FilesystemIOManager(base_dir=str(folder)), id="a factory"),
    ],
)
def test_the_fallback_can_be_any_io_manager(house, tmp_path, fallback):
    given = fallback(tmp_path / "scratch")
    result = house.run(up, counted, io_manager=house.io_manager(fallback=given))
    assert result.success
    assert house.project.table("counted").read().to_pydict() == {"n": [2]}
    assert bool(list(tmp_path.glob("scratch/*/*/*"))) == isinstance(given, dg.FilesystemIOManager)


def test_the_fallback_can_be_configured_at_launch(house, tmp_path):
    fallback = dg.FilesystemIOManager.configure_at_launch()
    result = house.run(
        up,
        counted,
        io_manager=house.io_manager(fallback=fallback),
        resources={"scratch": fallback},
        run_config={"resources": {"scratch": {"config": {"base_dir": str(tmp_path / "scratch")}}}},
    )
    assert result.success
    assert list(tmp_path.glob("scratch/*/counted.count/result"))


def test_a_fallback_that_is_an_io_manager_of_ours_gets_no_assets(house, tmp_path):
    other = ProjectResource(name="OTHER", location=str(tmp_path / "other"))
    fallback = VersionedParquetIOManager(project=other, fallback=dg.mem_io_manager)
    assert house.run(up, counted, io_manager=house.io_manager(fallback=fallback)).success
    assert other.project().tables() == []


def test_what_the_fallback_says_of_an_output_is_recorded(house):
    class Says(dg.InMemoryIOManager):
        def handle_output(self, context, obj):
            super().handle_output(context, obj)
            yield {"length": len(obj)}

    result = house.run(up, counted, io_manager=house.io_manager(fallback=Says()))
    said = [event.event_specific_data for event in result.filter_events(lambda event: event.is_handled_output)]
    assert [one.metadata["length"].value for one in said if "length" in one.metadata] == [1]


def test_a_partitioned_graph_backed_asset_has_what_passes_between_its_ops_in_the_fallback(house):
    @dg.op
    def numbered(context):
        return {key: number for number, key in enumerate(sorted(context.partition_keys))}

    @dg.op
    def by_day(numbers):
        return {key: pa.table({"n": [number]}) for key, number in numbers.items()}

    @dg.graph_asset(partitions_def=DAYS, backfill_policy=dg.BackfillPolicy.single_run())
    def daily():
        return by_day(numbered())

    tags = {"dagster/asset_partition_range_start": "a", "dagster/asset_partition_range_end": "b"}
    house.run(daily, tags=tags)
    assert house.project.table("daily").read(partition="b").to_pydict() == {"n": [1]}


@pytest.mark.parametrize("wrong", ["a text", dg.ResourceDefinition.hardcoded_resource(7)])
def test_what_is_no_io_manager_is_refused_as_a_fallback_when_it_is_needed(house, wrong):
    assert house.run(up, io_manager=house.io_manager(fallback=wrong)).success
    with pytest.raises(InvalidInput, match=r"output 'result' is no asset.*fallback=.* IO manager"):
        house.run(up, counted, io_manager=house.io_manager(fallback=wrong))


class TestOutsideOfARun:
    """Where Dagster starts no resource, nobody asks a factory for its IO manager."""

    def test_an_io_manager_is_used(self, house):
        manager = house.io_manager(fallback=dg.InMemoryIOManager())
        with dg.build_output_context(step_key="s", name="result", run_id="r") as out:
            manager.handle_output(out, 7)
            with dg.build_input_context(name="x", upstream_output=out) as into:
                assert manager.load_input(into) == 7

    def test_a_factory_is_refused_with_what_to_give(self, house):
        refused = pytest.raises(InvalidInput, match=r"output 'result' is no asset.*FilesystemIOManager.*fallback=")
        with refused, dg.build_output_context(step_key="s", name="result") as context:
            house.io_manager().handle_output(context, 7)
        refused = pytest.raises(InvalidInput, match=r"input 'x' is no asset.*FilesystemIOManager.*fallback=")
        with refused, dg.build_input_context(name="x") as context:
            house.io_manager().load_input(context)
