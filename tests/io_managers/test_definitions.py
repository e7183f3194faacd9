"""Two definitions of one asset: the second to write a table says whose table it was."""

import dagster as dg
import pyarrow as pa
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.execution.api import execute_run
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin

from dagster_versioned.assets.feature import versioned_feature
from support.dagster_versions import InProcessCodeLocationOrigin, RemoteJobOrigin, RemoteRepositoryOrigin
from support.house import materializations

KEY = "dagster_versioned/other_definition"


@dg.asset(name="orders")
def of_the_shop():
    return pa.table({"n": [1]})


@dg.asset(name="orders", code_version="other team")
def of_the_bank():
    return pa.table({"n": ["one"]})


@dg.asset(name="orders", code_version="2")
def changed():
    return pa.table({"n": [2]})


def run_at(house, location, asset):
    """Run an asset's job as a run that a code location of this name was launched for."""
    resources = {"io_manager": house.io_manager()}
    definitions = dg.Definitions(assets=[asset], resources=resources, executor=dg.in_process_executor)
    definition = definitions.resolve_implicit_global_asset_job_def()
    origin = InProcessCodeLocationOrigin(LoadableTargetOrigin(module_name=location), location_name=location)
    remote = RemoteJobOrigin(RemoteRepositoryOrigin(origin, "__repository__"), definition.name)
    run = house.instance.create_run_for_job(definition, remote_job_origin=remote, job_code_origin=None)
    return execute_run(InMemoryJob(definition), run, house.instance, raise_on_error=True)


def told(house, run_id):
    records = house.instance.all_logs(run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION)
    metadata = records[0].dagster_event.event_specific_data.materialization.metadata
    warnings = [entry.user_message for entry in house.instance.all_logs(run_id) if entry.level == 30]
    return metadata[KEY].value if KEY in metadata else None, [text for text in warnings if "definitions" in text]


def test_the_second_code_location_names_the_first(house):
    first = run_at(house, "shop", of_the_shop)
    assert told(house, first.run_id) == (None, [])
    second = run_at(house, "bank", of_the_bank)
    text, warnings = told(house, second.run_id)
    assert text.startswith(f"{__name__}.of_the_shop (code location 'shop') made version ")
    assert f"(run {first.run_id})" in text
    assert text.endswith(f"{__name__}.of_the_bank (code location 'bank', code version 'other team')")
    assert text in warnings[0]
    assert "Give one of the assets another key" in warnings[0]
    run = house.head("orders").facts.run
    assert (run.code_location, run.function) == ("bank", f"{__name__}.of_the_bank")


def test_another_version_of_the_code_in_another_location_is_another_definition(house):
    @dg.asset(name="orders", code_version="1")
    def one():
        return pa.table({"n": [1]})

    later = dg.asset(name="orders", code_version="2")(one.op.compute_fn.decorated_fn)
    run_at(house, "shop", one)
    text, _ = told(house, run_at(house, "staging", later).run_id)
    assert "code location 'shop', code version '1'" in text


def test_a_definition_that_changes_within_its_location_or_moves_as_it_is_is_the_same(house):
    run_at(house, "shop", of_the_shop)
    assert told(house, run_at(house, "shop", changed).run_id) == (None, [])
    assert told(house, run_at(house, "renamed", changed).run_id) == (None, [])


def test_where_no_code_location_is_known_another_function_is_another_definition(house):
    house.run(of_the_shop)
    second = house.run(of_the_bank)
    text = materializations(second)["orders", None].metadata[KEY].value
    assert f"{__name__}.of_the_shop made version" in text
    assert KEY not in materializations(house.run(of_the_bank))["orders", None].metadata


def test_a_run_without_a_location_after_one_with_it_is_taken_for_the_same(house):
    run_at(house, "shop", of_the_shop)
    assert KEY not in materializations(house.run(changed))["orders", None].metadata


def test_the_function_of_a_feature_is_the_users(house):
    @versioned_feature(id_columns=["id"], fields=["n"])
    def samples():
        return pa.table({"id": [1], "n": [1]})

    house.run(samples)
    assert house.head("samples").facts.run.function.endswith(".<locals>.samples")
