"""A fourth pipeline: a version that fails its check reaches nobody, and nothing is computed twice.

Four runs. In the second the weather comes in degrees Celsius instead of Fahrenheit, which a blocking check notices. In
the third it is right again, with one more month. In the fourth nothing is new. In the end, where a table comes from,
and why it is another than before. ``python -m example_project.checked``.
"""

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import dagster as dg
import polars as pl
import typer
from deltalake import DeltaTable
from rich.console import Console
from rich.table import Table

from dagster_versioned import (
    Project,
    ProjectResource,
    TableOptions,
    VersionedParquetIOManager,
    build_publication_sensor,
    build_version_sensor,
    publish_checked,
    versioned_asset,
)
from example_project.dagster_home import dagster_home
from example_project.defs.resources import FlightData
from example_project.terminal import end_with, show_command

LOCATION = ".example/checked"
PROJECT = "CHECKED_WEATHER"
SAVED = "dagster_versioned/saved_seconds"
RUNNING = dg.DefaultSensorStatus.RUNNING

console = Console()
app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
called: list[str] = []
"""The functions of assets that were called, for the table that the example prints."""


class WeatherData(FlightData):
    """The weather of so many months; ``celsius`` is what a provider does who changes a unit and tells nobody."""

    celsius: bool = False

    def weather(self) -> pl.DataFrame:
        """One row for each airport and hour."""
        columns = ("origin", "year", "month", "day", "hour", "temp", "precip")
        frame = pl.from_pandas(self.frame("weather")[list(columns)])
        return frame.with_columns(temp=(pl.col("temp") - 32) / 1.8) if self.celsius else frame


@dg.asset(group_name="checked", metadata=TableOptions(publish="after_checks").as_metadata())
def weather(weather_data: dg.ResourceParam[WeatherData]) -> pl.DataFrame:
    """The weather as it came; read by others once its checks have passed."""
    called.append("weather")
    return weather_data.weather()


@dg.asset_check(asset=weather, blocking=True)
def is_fahrenheit(weather: pl.DataFrame) -> dg.AssetCheckResult:
    """New York's days have a mean between 40 and 80 degrees Fahrenheit, over a year."""
    mean = pl.Series(weather["temp"]).mean()
    return dg.AssetCheckResult(passed=isinstance(mean, float) and 40 < mean < 80, metadata={"mean": repr(mean)})


@versioned_asset(group_name="checked")
def daily_weather(weather: pl.DataFrame) -> pl.DataFrame:
    """Each airport's day."""
    called.append("daily_weather")
    day = weather.group_by("origin", "month", "day").agg(pl.col("temp").mean(), pl.col("precip").sum())
    return day.sort("origin", "month", "day")


@versioned_asset(group_name="checked")
def wettest_days(daily_weather: pl.DataFrame) -> pl.DataFrame:
    """The ten days with most rain of each airport."""
    called.append("wettest_days")
    wet = daily_weather.sort("precip", "month", "day", descending=True).group_by("origin", maintain_order=True).head(10)
    return wet.sort("origin", "month", "day")


def definitions() -> dg.Definitions:
    """What Dagster loads."""
    project = ProjectResource(name=PROJECT, location=LOCATION, default_engine="polars")
    return dg.Definitions(
        assets=[weather, daily_weather, wettest_days],
        asset_checks=[is_fahrenheit],
        sensors=[
            build_publication_sensor("publish", default_status=RUNNING),
            build_version_sensor(
                "follow_weather", dg.AssetSelection.assets(daily_weather, wettest_days), default_status=RUNNING
            ),
        ],
        resources={"weather_data": WeatherData(), "io_manager": VersionedParquetIOManager(project=project)},
        executor=dg.in_process_executor,
    )


defs = definitions()


@dataclass(frozen=True)
class Scenario:
    """One of the runs: what the source gives, which functions have to be called, and whether its check passes."""

    title: str
    months: int
    celsius: bool
    calls: Sequence[str]
    is_published: bool


BELOW = ("daily_weather", "wettest_days")
SCENARIOS = (
    Scenario("everything is new", 11, False, ("weather", *BELOW), True),
    Scenario("December came in degrees Celsius", 12, True, ("weather",), False),
    Scenario("December, in degrees Fahrenheit", 12, False, ("weather", *BELOW), True),
    Scenario("nothing is new", 12, False, ("weather",), True),
)


@app.command()
def main(verbose: Annotated[bool, typer.Option("--verbose", help="Show Dagster's own log.")] = False) -> None:
    """Take in the weather four times; show who was called, what a reader sees, and what was saved."""
    began = time.monotonic()
    shutil.rmtree(LOCATION, ignore_errors=True)
    console.rule("A bad version reaches nobody, and nothing is computed twice", align="left")
    shown = Table(header_style="bold")
    for heading in ("run", "functions called", "seconds saved", "deltalake sees"):
        shown.add_column(heading, justify="right" if heading in ("seconds saved", "deltalake sees") else "left")
    project, faults = Project.open(PROJECT, LOCATION), list[str]()
    with dagster_home(), dg.DagsterInstance.get() as instance:
        for number, scenario in enumerate(SCENARIOS, 1):
            faults += _run(number, scenario, project, instance, shown, verbose)
    console.print(shown)
    for verb in (["parked", "ls"], ["trace", "wettest_days"], ["why", "wettest_days"]):
        if ended := show_command(console, ["dagster-versioned", "--location", LOCATION, *verb]):
            faults.append(f"{' '.join(verb)} ended with {ended}")
    console.print(f"\nTook {time.monotonic() - began:.0f} s.")
    end_with(console, faults)


def _run(
    number: int, scenario: Scenario, project: Project, instance: dg.DagsterInstance, shown: Table, verbose: bool
) -> list[str]:
    before = _seen()
    called.clear()
    data = WeatherData(weather_months=scenario.months, celsius=scenario.celsius)
    saved = 0.0
    with console.status(f"Run {number}: {scenario.title}"):
        # The source first, and what is below it once its version is published, as the two sensors would have it.
        if _materialize([weather], data, instance, verbose) is not None:
            publish_checked(project, instance, definitions())
        if scenario.is_published:
            saved = _materialize(list(BELOW), data, instance, verbose) or 0.0
    after = _seen()
    is_as_it_was = "" if before != after else ", as before"
    shown.add_row(f"{number} {scenario.title}", ", ".join(called), f"{saved:.3f}", f"{after:,} rows{is_as_it_was}")
    faults = [] if tuple(called) == tuple(scenario.calls) else [f"run {number} called {called}"]
    if not scenario.is_published and before != after:
        faults.append(f"run {number} has failed its check, and readers see {after} rows instead of {before}")
    return faults


def _materialize(assets: Sequence[Any], data: WeatherData, instance: dg.DagsterInstance, verbose: bool) -> float | None:
    """The seconds that were saved by what was not called; ``None`` where the run has failed."""
    job = dg.define_asset_job("taken_in", selection=dg.AssetSelection.assets(*assets))
    resolved = dg.Definitions.merge(definitions(), dg.Definitions(jobs=[job])).resolve_job_def("taken_in")
    config: Any = dg.RunConfig(
        resources={"weather_data": data},
        loggers={"console": {"config": {"log_level": "INFO" if verbose else "CRITICAL"}}},
    )
    result = resolved.execute_in_process(instance=instance, run_config=config, raise_on_error=False)
    if not result.success:
        return None
    found = [event.event_specific_data.materialization.metadata for event in result.get_asset_materialization_events()]
    return sum(float(one["dagster_versioned/saved_seconds"].value) for one in found if SAVED in one)


def _seen() -> int:
    """How many hours of weather somebody sees who knows nothing of versions."""
    path = f"{LOCATION}/datom/weather"
    return DeltaTable(path).to_pyarrow_table().num_rows if DeltaTable.is_deltatable(path) else 0


if __name__ == "__main__":
    app()
