"""A branch: one asset's code changes, is computed in an environment, compared, and becomes production's as it is."""

import dagster as dg
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from rich.console import Console

from dagster_versioned import Project, TableOptions
from example_project.defs.resources import PROJECT, io_manager, spark
from example_project.governed import CLONE, STORAGE
from example_project.terminal import show_command

ENVIRONMENT = "pr-142"

flights_enriched = dg.AssetSpec("flights_enriched").with_io_manager_key("io_manager")


@dg.asset(code_version="2", metadata=TableOptions(sort_rows=("carrier",)).as_metadata())
def carrier_delays(flights_enriched: DataFrame) -> DataFrame:
    """How late each airline is, by the branch: of the flights that left, and with the share of those that did not."""
    left = sf.col("dep_delay").isNotNull()
    return flights_enriched.groupBy("carrier", "airline").agg(
        sf.count(sf.when(left, 1)).alias("flights"),
        sf.count(sf.when(~left, 1)).alias("cancelled"),
        sf.avg("dep_delay").alias("mean_departure_delay"),
        sf.avg("arr_delay").alias("mean_arrival_delay"),
        sf.max("dep_delay").alias("worst_departure_delay"),
        (sf.count(sf.when(~left, 1)) / sf.count("*")).alias("share_cancelled"),
    )


def show_branch(console: Console, project: Project, location: str | None, place: str) -> list[str]:
    """Fork, compute, compare, promote and drop; what was not as expected. ``place`` is where the project is."""
    console.rule("A branch changes one asset", align="left")
    before = project.table("carrier_delays").version().metadata_sha
    if ended := _run(console, place, "env", "create", ENVIRONMENT):
        return [f"env create ended with {ended}"]
    # Dagster knows materializations by asset key alone, so each environment has an instance of its own.
    with dg.DagsterInstance.ephemeral() as instance:
        result = dg.materialize(
            [flights_enriched, carrier_delays],
            instance=instance,
            resources={"io_manager": io_manager(location, spark(), ENVIRONMENT)},
            run_config={"loggers": {"console": {"config": {"log_level": "ERROR"}}}},
        )
    branch = project.in_environment(ENVIRONMENT)
    made = branch.table("carrier_delays").version().metadata_sha
    faults = [] if result.success and made != before else ["the branch was to make another version"]
    if project.table("carrier_delays").version().metadata_sha != before:
        faults.append("production was to stay as it is while the branch computes")
    # Whether a promotion needs approvals, the registry says.
    governed = ("--governance", str(STORAGE), "--clone", str(CLONE))
    for verb in (
        ("env", "diff", ENVIRONMENT, "--key", "carrier_delays=carrier"),
        ("promote", ENVIRONMENT, "--apply", *(governed if location is None else ())),
        ("env", "drop", ENVIRONMENT, "--apply"),
    ):
        if ended := _run(console, place, *verb):
            return [*faults, f"{' '.join(verb)} ended with {ended}"]
    if project.table("carrier_delays").version().metadata_sha != made:
        faults.append("production was to have the very version that the branch made")
    return faults


def _run(console: Console, place: str, *verb: str) -> int:
    return show_command(console, ["dagster-versioned", "--project", PROJECT, "--location", place, *verb])
