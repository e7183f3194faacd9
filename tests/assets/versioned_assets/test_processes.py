"""The same in Dagster's jobs, with all steps in one process and with each in a process of its own."""

import os
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest

from dagster_versioned import ProjectResource, VersionedParquetIOManager, versioned_asset, versioned_multi_asset

LOCATION = "VERSIONED_ASSETS_TEST_LOCATION"
DAYS = dg.StaticPartitionsDefinition(["a", "b", "c"])


def called(name):
    with Path(os.environ[LOCATION], "calls").open("a") as calls:
        calls.write(f"{name}\n")


class More(dg.Config):
    amount: int = 1


@dg.asset(code_version="1")
def source():
    return pa.table({"n": [1, 2]})


@versioned_asset(code_version="1")
async def plain(context: dg.AssetExecutionContext, source: pa.Table, config: More) -> pa.Table:
    called("plain")
    return source


@versioned_asset(code_version="1", retry_policy=dg.RetryPolicy(max_retries=1))
def flaky(context: dg.AssetExecutionContext, plain):
    called(f"flaky {context.retry_number}")
    if context.retry_number == 0:
        raise RuntimeError("once")
    yield dg.Output(plain)


@versioned_multi_asset(outs={name: dg.AssetOut(code_version="1") for name in ("left", "right")})
def both(flaky: pa.Table):
    called("both")
    return flaky, flaky


@versioned_asset(code_version="1", check_specs=[dg.AssetCheckSpec("rows", asset="checked")])
def checked(left: pa.Table, right: pa.Table):
    called("checked")
    yield dg.Output(left)
    yield dg.AssetCheckResult(passed=True)


def everything():
    project = ProjectResource(name="PROCESSES", location=dg.EnvVar(LOCATION))
    return dg.Definitions(
        assets=[source, plain, flaky, both, checked],
        resources={"io_manager": VersionedParquetIOManager(project=project)},
        jobs=[dg.define_asset_job("everything", "*")],
    ).resolve_job_def("everything")


@pytest.mark.parametrize("executor", ["in_process", pytest.param("multiprocess", marks=pytest.mark.slow)])
def test_a_job_calls_nothing_twice(tmp_path, monkeypatch, executor):
    monkeypatch.setenv(LOCATION, str(tmp_path))
    config = {"execution": {"config": {executor: {"max_concurrent": 1} if executor == "multiprocess" else {}}}}
    calls = tmp_path / "calls"
    with dg.instance_for_test() as instance:

        def run(**options):
            calls.unlink(missing_ok=True)
            job = dg.reconstructable(everything)
            with dg.execute_job(job, instance=instance, run_config={**config, **options}) as result:
                assert result.success
            return calls.read_text().split("\n")[:-1] if calls.exists() else []

        assert run() == ["plain", "flaky 0", "flaky 1", "both", "checked"]
        assert run() == []
        # Another key, but equal rows and parents: the same version, so nothing below is called.
        assert run(ops={"plain": {"config": {"amount": 2}}}) == ["plain"]
        assert run() == []
