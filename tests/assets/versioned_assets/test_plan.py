"""A plan names the steps whose functions would not be called, and the versions that they would take."""

import dagster as dg
import pandas as pd
import pytest

from dagster_versioned import versioned_asset, versioned_multi_asset
from dagster_versioned.branches.environments import create_environment
from dagster_versioned.branches.promote import promote
from dagster_versioned.sensors.forecast import forecast

DAYS = dg.StaticPartitionsDefinition(["a", "b"])


class Add(dg.Config):
    amount: int = 1


@pytest.fixture
def code():
    return {"up": "1", "down": "1", "value": 1}


@pytest.fixture
def assets(bench, code):
    def make():
        @dg.asset(code_version="1", partitions_def=DAYS)
        def source(context) -> pd.DataFrame:
            return pd.DataFrame({"value": [code["value"]]})

        @versioned_asset(code_version=code["up"], partitions_def=DAYS)
        def up(source: pd.DataFrame, config: Add):
            bench.calls.append("up")
            return source + config.amount

        @versioned_multi_asset(outs={name: dg.AssetOut(code_version=code["down"]) for name in ("left", "right")})
        def both(up):
            bench.calls.append("both")
            return up, up

        return [source, up, both]

    return make


def named(bench, assets, io=None):
    """What is not current, and what it would take."""
    definitions = dg.Definitions(assets=assets, resources={"io_manager": io or bench.io()})
    found = forecast([definitions.get_repository_def()])
    return {(cell.asset, cell.partition): (cell.what, cell.reused) for cell in found.cells}, found


def run_all(bench, assets, io=None):
    calls = []
    for key in ("a", "b"):
        calls += bench.run(assets, io=io, partition_key=key, selection=["source", "up"])
    return calls + bench.run(assets, io=io, selection=["left", "right"])


def test_what_went_back_to_a_version_is_named(bench, code, assets):
    run_all(bench, assets())
    first = {key: version.metadata_sha for key, version in bench.table("up").partitions().items()}
    code["up"] = "2"
    assert named(bench, assets())[0]["up", "a"] == ("runs", None)
    run_all(bench, assets())
    assert named(bench, assets())[0] == {}
    code["up"] = "1"
    found, report = named(bench, assets())
    assert found == {
        ("up", "a"): ("runs", first["a"]),
        ("up", "b"): ("runs", first["b"]),
        ("left", None): ("may run", None),
        ("right", None): ("may run", None),
    }
    assert report.cells[0].why == f"code version 2 -> 1; reused from version {first['a'][:8]}"
    assert run_all(bench, assets()) == []


def test_outputs_of_one_step_are_named_together(bench, code, assets):
    run_all(bench, assets())
    first = {name: bench.table(name).version().metadata_sha for name in ("left", "right")}
    code["down"] = "2"
    run_all(bench, assets())
    code["down"] = "1"
    assert named(bench, assets())[0] == {(name, None): ("runs", sha) for name, sha in first.items()}
    bench.table("left").forget(dry_run=False)
    assert named(bench, assets())[0] == {(name, None): ("runs", None) for name in first}


@pytest.mark.slow
def test_promoted_versions_do_not_run(bench, code, assets):
    run_all(bench, assets())
    create_environment(bench.project, "branch")
    bench.instance = dg.DagsterInstance.ephemeral()
    code["down"] = "2"
    run_all(bench, assets(), io=bench.io(environment="branch"))
    promote(bench.project, "branch", dry_run=False)
    assert named(bench, assets())[0] == {}
