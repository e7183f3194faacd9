"""What a function loads by itself while its step runs is an input of the step: pinned, recorded, of one moment."""

import dagster as dg
import pyarrow as pa
import pytest

from dagster_versioned import Project, ProjectResource, VersionedParquetIOManager, versioned_source

LETTERS = dg.StaticPartitionsDefinition(["a", "b"])


@dg.asset
def up() -> pa.Table:
    return pa.table({"n": [0]})


def write(house, n, name="up", partition=None):
    return house.project.table(name).write(pa.table({"n": [n]}), partition=partition).version.metadata_sha


def by_context(context, key="up", **options):
    return context.load_asset_value(dg.AssetKey(key), python_type=pa.Table, **options)


def by_op_context(context, key="up", **options):
    return context.op_execution_context.load_asset_value(dg.AssetKey(key), python_type=pa.Table, **options)


def by_definitions(context, key="up", **options):
    resources = {"io_manager": context.resources.io_manager}
    return dg.Definitions([up], resources=resources).load_asset_value(key, python_type=pa.Table, **options)


def by_loader(context, key="up", **options):
    repository = dg.Definitions([up], resources={"io_manager": context.resources.io_manager}).get_repository_def()
    with repository.get_asset_value_loader(instance=context.instance) as loader:
        return loader.load_asset_value(key, python_type=pa.Table, **options)


WAYS = [by_context, by_op_context, by_definitions, by_loader]


@pytest.mark.parametrize(("how", "load"), [("manager", by_context), *(("tag", load) for load in WAYS)])
def test_pins_hold_for_it(house, load, how):
    @dg.asset(deps=[up], required_resource_keys={"io_manager"})
    def down(context: dg.AssetExecutionContext) -> pa.Table:
        return load(context)

    first, _ = write(house, 1), write(house, 2)
    manager = house.io_manager(pins={"up": first} if how == "manager" else {})
    tags = {"dagster_versioned/pin/up": first} if how == "tag" else {}
    house.run(up, down, io_manager=manager, selection=[down], tags=tags)
    assert house.project.table("down").read()["n"].to_pylist() == [1]
    assert house.parents("down") == [("up", None, first)]


@pytest.mark.parametrize(("is_input", "load"), [(True, by_context), (False, by_context), (False, by_definitions)])
def test_a_step_reads_one_version_of_a_table_whoever_commits_meanwhile(house, load, is_input):
    first, later = write(house, 1), []

    def read(context, given):
        given = load(context) if given is None else given
        later.append(write(house, len(later) + 2))
        return pa.concat_tables([given, load(context)])

    if is_input:

        @dg.asset(required_resource_keys={"io_manager"})
        def down(context: dg.AssetExecutionContext, up: pa.Table) -> pa.Table:
            return read(context, up)
    else:

        @dg.asset(deps=[up], required_resource_keys={"io_manager"})
        def down(context: dg.AssetExecutionContext) -> pa.Table:
            return read(context, None)

    house.run(up, down, selection=[down])
    assert house.project.table("down").read()["n"].to_pylist() == [1, 1]
    assert house.parents("down") == [("up", None, first)]
    house.run(up, down, selection=[down])  # another step looks anew
    assert house.project.table("down").read()["n"].to_pylist() == [2, 2]
    assert house.parents("down") == [("up", None, later[0])]


def test_a_retry_looks_anew(house):
    write(house, 1)

    @dg.asset(deps=[up], retry_policy=dg.RetryPolicy(max_retries=1))
    def down(context: dg.AssetExecutionContext) -> pa.Table:
        found = by_context(context)
        if context.retry_number == 0:
            write(house, 2)
            raise dg.RetryRequested(max_retries=1)
        return found

    house.run(up, down, selection=[down])
    assert house.project.table("down").read()["n"].to_pylist() == [2]
    assert house.parents("down") == [("up", None, house.head("up").metadata_sha)]


def test_ops_of_one_asset_read_one_version_of_a_table(house):
    first = write(house, 1)

    @dg.op
    def early(up: pa.Table) -> pa.Table:
        write(house, 2)
        return up

    @dg.op
    def late(context: dg.OpExecutionContext, earlier: pa.Table, up: pa.Table) -> pa.Table:
        return pa.concat_tables([earlier, up, by_context(context)])

    @dg.graph_asset
    def both(up):
        return late(early(up), up)

    house.run(up, both, selection=[both])
    assert house.project.table("both").read()["n"].to_pylist() == [1, 1, 1]
    assert house.parents("both") == [("up", None, first)]


def test_partitions_that_are_loaded_one_by_one_are_all_parents(house):
    @dg.asset(partitions_def=LETTERS)
    def parts() -> pa.Table:
        return pa.table({"n": [0]})

    @dg.asset(deps=[parts])
    def down(context: dg.AssetExecutionContext) -> pa.Table:
        return pa.concat_tables(by_context(context, "parts", partition_key=key) for key in ("a", "b"))

    shas = {key: write(house, n, "parts", key) for n, key in enumerate("ab")}
    house.run(parts, down, selection=[down])
    assert house.project.table("down").read()["n"].to_pylist() == [0, 1]
    assert sorted(house.parents("down")) == [("parts", key, sha) for key, sha in shas.items()]


def test_what_no_dependency_says_is_recorded_too(house):
    first = write(house, 1)

    @dg.asset
    def down(context: dg.AssetExecutionContext) -> pa.Table:
        return by_definitions(context)

    house.run(down, resources={"other": house.io_manager()}, selection=[down])
    assert house.parents("down") == [("up", None, first)]


def test_it_is_read_from_the_project_of_its_own_io_manager(house, tmp_path):
    place = str(tmp_path / "other")
    sha = Project.open("OTHER", place).table("up").write(pa.table({"n": [7]})).version.metadata_sha
    other = VersionedParquetIOManager(project=ProjectResource(name="OTHER", location=place))
    source = versioned_source("up", io_manager_key="other")

    @dg.asset(deps=[source])
    def down(context: dg.AssetExecutionContext) -> pa.Table:
        return by_context(context)

    house.run(source, down, resources={"other": other}, selection=[down])
    (parent,) = house.head("down").identity.parents
    assert (parent.source, parent.table, parent.version) == ("OTHER", "up", sha)


def test_it_is_the_draft_of_the_run_and_what_is_built_from_it_waits_for_its_checks(house):
    values = [1]

    @dg.asset(name="up")
    def source() -> pa.Table:
        return pa.table({"n": values})

    @dg.asset(deps=[source], check_specs=[dg.AssetCheckSpec("positive", asset="down", blocking=True)])
    def down(context: dg.AssetExecutionContext):
        found = by_context(context)
        yield dg.Output(found)
        yield dg.AssetCheckResult(passed=found["n"][0].as_py() > 0)

    house.run(source)
    values[0] = -5
    run = house.run(source, down, io_manager=house.io_manager(publish="after_checks"), raise_on_error=False)
    assert [check.passed for check in run.get_asset_check_evaluations()] == [False]
    assert not house.project.table("down").exists()


def test_what_a_check_loads_is_the_draft_of_its_run(house):
    @dg.asset_check(asset="up", blocking=True)
    def positive(context: dg.AssetCheckExecutionContext):
        return dg.AssetCheckResult(passed=by_op_context(context)["n"][0].as_py() > 0)

    write(house, 1)
    run = house.run(up, positive, io_manager=house.io_manager(publish="after_checks"), raise_on_error=False)
    assert [check.passed for check in run.get_asset_check_evaluations()] == [False]


def test_outside_of_a_step_the_head_is_loaded(house):
    write(house, 1)
    definitions = dg.Definitions([up], resources={"io_manager": house.io_manager()})
    assert definitions.load_asset_value("up", python_type=pa.Table)["n"].to_pylist() == [1]
