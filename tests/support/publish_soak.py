"""A code location of ten tables that are published after their checks, and of sensors that run and publish them.

Tables of even numbers are the newest version of their source; those of odd numbers get a row from each run. Below each
of even number are two that nobody checks, by IO managers that publish at once: `below` in its project, `there` in
another. Both are of the run that makes the table itself, or of one that makes it without its check, or the sensor's.
"""

import os
from pathlib import Path

import dagster as dg
import pyarrow as pa
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

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


def copied(name: str, number: int, io_manager: str) -> dg.AssetsDefinition:
    """What is built from a table and is not checked."""

    @dg.asset(name=f"{name}{number}", ins={"table": dg.AssetIn(f"t{number}")}, io_manager_key=io_manager)
    def copy(table: pa.Table) -> pa.Table:
        return table

    return copy


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
copies = {
    number: [copied("below", number, "at_once"), copied("there", number, "other_project")]
    for number in range(0, TABLES, 2)
}


def job(number: int) -> UnresolvedAssetJobDefinition:
    """A table and, of two in three, what is below it: with the check, or without."""
    beside = copies.get(number, []) if number % 6 else []
    selection = dg.AssetSelection.assets(tables[number], *beside)
    return dg.define_asset_job(f"job{number}", selection.without_checks() if number % 6 == 2 else selection)


jobs = [job(number) for number in range(TABLES)]


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
there = ProjectResource(name="THERE", location=dg.EnvVar("SOAK_THERE"))
below = [copy for some in copies.values() for copy in some]
defs = dg.Definitions(
    assets=[*tables, *below, *(dg.AssetSpec(f"s{number}") for number in range(0, TABLES, 2))],
    asset_checks=[checked(table) for table in tables],
    jobs=jobs,
    sensors=[
        wanted,
        build_publication_sensor("publish", minimum_interval_seconds=1, default_status=RUNNING),
        build_version_sensor(
            "again",
            dg.AssetSelection.assets(*tables[::2], *below),
            minimum_interval_seconds=1,
            default_status=RUNNING,
        ),
    ],
    resources={
        "io_manager": VersionedParquetIOManager(project=project, publish="after_checks"),
        "at_once": VersionedParquetIOManager(project=project),
        "other_project": VersionedParquetIOManager(project=there),
    },
    executor=dg.in_process_executor,
)
