"""A code location of ten tables that are published after their checks, and of sensors that run and publish them.

Tables of even numbers are the newest version of their source; those of odd numbers get a row from each run.
"""

import os
from pathlib import Path

import dagster as dg
import pyarrow as pa

from dagster_versioned import (
    ProjectResource,
    TableOptions,
    VersionedParquetIOManager,
    build_publication_sensor,
    build_version_sensor,
)

TABLES = 10
BAD = 1_000_000
"""From this number on, the checks fail."""


class Row(dg.Config):
    """What a run adds to a table of an odd number."""

    value: int = 0


def replaced(number: int) -> dg.AssetsDefinition:
    """A table that is what its source is."""

    @dg.asset(name=f"t{number}", ins={"source": dg.AssetIn(f"s{number}")})
    def table(source: pa.Table) -> pa.Table:
        return source

    return table


def appended(number: int) -> dg.AssetsDefinition:
    """A table that each run adds a row to."""

    @dg.asset(name=f"t{number}", metadata=TableOptions(mode="append").as_metadata())
    def table(config: Row) -> pa.Table:
        return pa.table({"n": [config.value]})

    return table


def checked(table: dg.AssetsDefinition) -> dg.AssetChecksDefinition:
    """Its blocking check."""

    @dg.asset_check(asset=table, blocking=True, name="good")
    def good(given: pa.Table) -> dg.AssetCheckResult:
        return dg.AssetCheckResult(passed=max(given["n"].to_pylist()) < BAD)

    return good


tables = [(appended if number % 2 else replaced)(number) for number in range(TABLES)]
jobs = [dg.define_asset_job(f"job{number}", dg.AssetSelection.assets(table)) for number, table in enumerate(tables)]


@dg.sensor(jobs=jobs, minimum_interval_seconds=1, default_status=dg.DefaultSensorStatus.RUNNING)
def wanted(context: dg.SensorEvaluationContext):
    """Requests a run for each file ``serial-table-value`` that somebody has put into a folder."""
    done = int(context.cursor or -1)
    for name in sorted(file.name for file in Path(os.environ["SOAK_WANTED"]).iterdir()):
        serial, number, value = map(int, name.split("-"))
        if serial > done:
            config = {"ops": {f"t{number}": {"config": {"value": value}}}} if number % 2 else {}
            yield dg.RunRequest(run_key=name, job_name=f"job{number}", run_config=config, tags={"value": str(value)})
            context.update_cursor(str(serial))


def want(folder: Path, serial: int, number: int, value: int) -> None:
    """Ask for a run."""
    (folder / f"{serial:06}-{number}-{value}").touch()


RUNNING = dg.DefaultSensorStatus.RUNNING
project = ProjectResource(name="SOAK", location=dg.EnvVar("SOAK_LOCATION"))
defs = dg.Definitions(
    assets=[*tables, *(dg.AssetSpec(f"s{number}") for number in range(0, TABLES, 2))],
    asset_checks=[checked(table) for table in tables],
    jobs=jobs,
    sensors=[
        wanted,
        build_publication_sensor("publish", minimum_interval_seconds=1, default_status=RUNNING),
        build_version_sensor(
            "again", dg.AssetSelection.assets(*tables[::2]), minimum_interval_seconds=1, default_status=RUNNING
        ),
    ],
    resources={"io_manager": VersionedParquetIOManager(project=project, publish="after_checks")},
    executor=dg.in_process_executor,
)
