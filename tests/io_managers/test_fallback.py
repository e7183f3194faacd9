"""Values that are no assets: the outputs of a job's ops, and what passes between the ops of a graph-backed asset."""

import os
import pickle
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest

from dagster_versioned import Project, ProjectResource, VersionedParquetIOManager
from dagster_versioned.errors import InvalidInput

LOCATION = "FALLBACK_TEST_LOCATION"
BROKEN = "FALLBACK_TEST_BROKEN"
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


@dg.op
def breaks(numbers):
    if BROKEN in os.environ:
        raise OSError("broken")
    return sum(numbers)


@dg.graph
def breakable():
    breaks(start())


def everything():
    """The assets' job and the ops' job, as each process of the multiprocess executor makes them for itself."""
    project = ProjectResource(name="HOUSE", location=dg.EnvVar(LOCATION))
    return dg.Definitions(
        assets=[up, counted, below],
        resources={"io_manager": VersionedParquetIOManager(project=project)},
        jobs=[dg.define_asset_job("assets", "*"), summed.to_job("ops"), breakable.to_job("breakable")],
    )


def assets_job():
    return everything().resolve_job_def("assets")


def ops_job():
    return everything().resolve_job_def("ops")


def breakable_job():
    return everything().resolve_job_def("breakable")


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


def test_each_output_of_an_op_goes_where_it_belongs(house):
    """Of an op with two outputs in a graph of two assets, one is an asset and one is not."""

    @dg.op(out={"rows": dg.Out(), "count": dg.Out()})
    def split():
        yield dg.Output(pa.table({"n": [1, 2]}), "rows")
        yield dg.Output(2, "count")

    @dg.op
    def as_counts(count):
        return pa.table({"n": [count]})

    @dg.graph_multi_asset(outs={"rows": dg.AssetOut(), "counts": dg.AssetOut()})
    def both():
        rows, count = split()
        return {"rows": rows, "counts": as_counts(count)}

    assert house.run(both).success
    assert house.project.table("rows").read().to_pydict() == {"n": [1, 2]}
    assert house.project.table("counts").read().to_pydict() == {"n": [2]}
    assert {str(name) for name in house.project.tables()} == {"rows", "counts"}


def test_an_op_of_a_job_reads_an_asset_s_table(house):
    @dg.job
    def report():
        count(dg.SourceAsset("up", io_manager_key="io_manager"))

    house.run(up)
    result = report.execute_in_process(instance=house.instance, resources={"io_manager": house.io_manager()})
    assert result.output_for_node("count") == {"rows": 2}
    assert {str(name) for name in house.project.tables()} == {"up"}


def test_a_step_that_is_tried_again_finds_what_earlier_ones_made(house):
    attempts = []

    @dg.op(retry_policy=dg.RetryPolicy(max_retries=2))
    def flaky(counted):
        attempts.append(counted)
        if len(attempts) < 3:
            raise OSError("not yet")
        return pa.table({"n": [counted["rows"]]})

    @dg.graph_asset
    def stubborn(up):
        return flaky(count(up))

    assert house.run(up, stubborn).success
    assert attempts == [{"rows": 2}] * 3
    assert house.parents("stubborn") == [("up", None, house.head("up").metadata_sha)]


def test_a_run_that_is_executed_again_from_its_failure_finds_what_the_first_one_made(tmp_path, monkeypatch):
    monkeypatch.setenv(LOCATION, str(tmp_path / "data"))
    monkeypatch.setenv(BROKEN, "yes")
    with dg.instance_for_test(temp_dir=str(tmp_path)) as instance:
        job = dg.reconstructable(breakable_job)
        config = {"execution": {"config": {"in_process": {}}}}
        with dg.execute_job(job, instance, run_config=config, raise_on_error=False) as first:
            assert [event.step_key for event in first.get_step_failure_events()] == ["breaks"]
        monkeypatch.delenv(BROKEN)
        again = dg.ReexecutionOptions.from_failure(first.run_id, instance)
        with dg.execute_job(job, instance, run_config=config, reexecution_options=again) as second:
            assert {event.step_key for event in second.get_step_success_events()} == {"breaks"}
            assert second.output_for_node("breaks") == 6


def test_the_fallback_may_need_resources_as_dagster_aws_s_do(house, tmp_path):
    """`s3_pickle_io_manager` names the resource that it needs, `S3PickleIOManager` holds it."""

    class Bucket(dg.ConfigurableResource):
        folder: str

    class Pickles(dg.ConfigurableIOManager):
        bucket: dg.ResourceDependency[Bucket]
        prefix: str = "dagster"

        def handle_output(self, context, obj):
            Path(self.bucket.folder, f"{self.prefix}-{context.step_key}").write_bytes(pickle.dumps(obj))

        def load_input(self, context):
            step = context.upstream_output.step_key
            return pickle.loads(Path(self.bucket.folder, f"{self.prefix}-{step}").read_bytes())

    @dg.io_manager(required_resource_keys={"bucket"}, config_schema={"prefix": dg.Field(str, default_value="old")})
    def pickles(context):
        return Pickles(bucket=context.resources.bucket, prefix=context.resource_config["prefix"])

    bucket = Bucket(folder=str(tmp_path))
    for fallback, prefix in ((Pickles(bucket=bucket), "dagster"), (pickles, "old")):
        manager = house.io_manager(fallback=fallback)
        assert house.run(up, counted, io_manager=manager, resources={"bucket": bucket}).success
        assert Path(tmp_path, f"{prefix}-counted.count").exists()


@pytest.mark.spark
def test_a_frame_of_spark_that_the_fallback_cannot_keep_is_refused_in_one_sentence(house, spark):
    from pyspark.sql import DataFrame

    @dg.op
    def halved(up: DataFrame) -> DataFrame:
        return up.where("n = 1")

    @dg.op
    def named(rows: DataFrame) -> DataFrame:
        return rows.selectExpr("n AS number")

    @dg.graph_asset
    def half(up):
        return named(halved(up))

    with pytest.raises(InvalidInput, match=r"'result' is no asset.*frame of Spark.*fallback=dg\.mem_io_manager"):
        house.run(up, half)
    assert house.run(up, half, io_manager=house.io_manager(fallback=dg.mem_io_manager)).success
    assert house.project.table("half").read().to_pydict() == {"number": [1]}
    assert house.parents("half") == [("up", None, house.head("up").metadata_sha)]


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
