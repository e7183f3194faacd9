"""A code location for ``dagster dev``: a source, and two assets below it that Dagster runs whenever it has run."""

import os
from pathlib import Path

import dagster as dg
import pyarrow as pa

from dagster_versioned import ProjectResource, VersionedParquetIOManager, versioned_asset

EAGER = dg.AutomationCondition.eager()


def call(name: str) -> None:
    """Note that the function of an asset is called."""
    with Path(os.environ["REUSE_CALLS"]).open("a") as calls:
        calls.write(f"{name}\n")


@dg.asset
def numbers() -> pa.Table:
    """What a file says."""
    call("numbers")
    return pa.table({"n": [int(Path(os.environ["REUSE_VALUE"]).read_text())]})


@versioned_asset(code_version="1", automation_condition=EAGER)
def doubled(numbers: pa.Table) -> pa.Table:
    """Twice as much."""
    call("doubled")
    return pa.table({"n": [2 * one for one in numbers["n"].to_pylist()]})


@versioned_asset(code_version="1", automation_condition=EAGER)
def total(doubled: pa.Table) -> pa.Table:
    """The sum."""
    call("total")
    return pa.table({"n": [sum(doubled["n"].to_pylist())]})


defs = dg.Definitions(
    assets=[numbers, doubled, total],
    jobs=[dg.define_asset_job("source", dg.AssetSelection.assets(numbers))],
    sensors=[
        dg.AutomationConditionSensorDefinition(
            "auto", target="*", default_status=dg.DefaultSensorStatus.RUNNING, minimum_interval_seconds=1
        )
    ],
    resources={
        "io_manager": VersionedParquetIOManager(
            project=ProjectResource(name="REUSE", location=dg.EnvVar("REUSE_LOCATION"))
        )
    },
    executor=dg.in_process_executor,
)
