"""A fourth pipeline: a version that fails its check reaches nobody; what is not new is not computed; all is proved.

Five runs. In the second the weather comes in degrees Celsius instead of Fahrenheit, which a blocking check notices. In
the third it is right again, with one more month. In the fourth nothing is new. In the fifth somebody has edited a
helper of one asset. In the end, where a table comes from, why it is another than before, and what proves it.
``python -m example_project.checked``.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
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
from dagster_versioned.proof.keys import PublicKey
from example_project.dagster_home import dagster_home
from example_project.defs.resources import FlightData
from example_project.rain import wettest
from example_project.terminal import end_with, show_command

LOCATION = ".example/checked"
KEY = Path(".example/checked.pem")
EVIDENCE, EDITED, REPORT = Path(".example/evidence"), Path(".example/edited"), Path(".example/wettest_days.html")
PROJECT = "CHECKED_WEATHER"
SAVED = "dagster_versioned/saved_seconds"
RUNNING = dg.DefaultSensorStatus.RUNNING

console = Console()
app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


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
    return weather_data.weather()


@dg.asset_check(asset=weather, blocking=True)
def is_fahrenheit(weather: pl.DataFrame) -> dg.AssetCheckResult:
    """New York's days have a mean between 40 and 80 degrees Fahrenheit, over a year."""
    mean = pl.Series(weather["temp"]).mean()
    return dg.AssetCheckResult(passed=isinstance(mean, float) and 40 < mean < 80, metadata={"mean": repr(mean)})


@versioned_asset(group_name="checked")
def daily_weather(weather: pl.DataFrame) -> pl.DataFrame:
    """Each airport's day."""
    day = weather.group_by("origin", "month", "day").agg(pl.col("temp").mean(), pl.col("precip").sum())
    return day.sort("origin", "month", "day")


@versioned_asset(group_name="checked")
def wettest_days(daily_weather: pl.DataFrame) -> pl.DataFrame:
    """The ten days with most rain of each airport."""
    return wettest(daily_weather)


def project_resource() -> ProjectResource:
    """The project, whose commits are signed where there is a key."""
    key = str(KEY) if KEY.exists() else None
    return ProjectResource(name=PROJECT, location=LOCATION, default_engine="polars", signing_key=key)


def definitions() -> dg.Definitions:
    """What Dagster loads."""
    project = project_resource()
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


@dataclass(frozen=True)
class Made:
    """What came of a run: which functions were called, and the seconds that the others would have taken."""

    is_success: bool
    called: tuple[str, ...]
    saved: float


BELOW = ("daily_weather", "wettest_days")
SCENARIOS = (
    Scenario("everything is new", 11, False, ("weather", *BELOW), True),
    Scenario("December came in degrees Celsius", 12, True, ("weather",), False),
    Scenario("December, in degrees Fahrenheit", 12, False, ("weather", *BELOW), True),
    Scenario("nothing is new", 12, False, ("weather",), True),
)


@app.command()
def main(
    verbose: Annotated[bool, typer.Option("--verbose", help="Show Dagster's own log.")] = False,
    below: Annotated[bool, typer.Option("--below", help="Make what is below the weather alone.")] = False,
) -> None:
    """Take in the weather five times; show who was called, what a reader sees, what was saved, and what proves it."""
    if below:
        with dagster_home(), dg.DagsterInstance.get() as instance:
            made = _materialize(list(BELOW), WeatherData(), instance, verbose)
        print(", ".join(made.called), f"{made.saved:.3f}", sep="|")
        return
    began = time.monotonic()
    for path in (LOCATION, EVIDENCE, EDITED):
        shutil.rmtree(path, ignore_errors=True)
    for key in (KEY, KEY.with_suffix(".pem.pub")):
        key.unlink(missing_ok=True)
    KEY.parent.mkdir(exist_ok=True)
    console.rule("A bad version reaches nobody, nothing is computed twice, all can be proved", align="left")
    faults = [f"no key: {ended}"] if (ended := _show("key", "new", str(KEY))) else []
    shown = Table(header_style="bold")
    for heading in ("run", "functions called", "seconds saved", "deltalake sees"):
        shown.add_column(heading, justify="right" if heading in ("seconds saved", "deltalake sees") else "left")
    project = project_resource().project()
    with dagster_home(), dg.DagsterInstance.get() as instance:
        for number, scenario in enumerate(SCENARIOS, 1):
            faults += _run(number, scenario, project, instance, shown, verbose)
    faults += _run_edited(shown)
    console.print(shown)
    trust = ("--trust", f"{KEY}.pub")
    for verb in (
        ("parked", "ls"),
        ("trace", "wettest_days"),
        ("why", "wettest_days"),
        ("verify", *trust),
        ("reproduce", "wettest_days", "@1", "-m", "example_project.checked"),
        ("report", "wettest_days", *trust, "--output", str(REPORT)),
        ("audit", "wettest_days", *trust, "--output", str(EVIDENCE), "--verifier", f"{EDITED}/verify.py"),
    ):
        if ended := _show(*verb):
            faults.append(f"{' '.join(verb)} ended with {ended}")
    key_id = PublicKey.parse(Path(f"{KEY}.pub").read_bytes()).key_id
    if ended := show_command(console, ["python", f"{EDITED}/verify.py", str(EVIDENCE), "--trust", key_id]):
        faults.append(f"verify.py ended with {ended}")
    console.print(f"\nTook {time.monotonic() - began:.0f} s.")
    end_with(console, faults)


def _show(*verb: str) -> int:
    return show_command(console, ["dagster-versioned", "--location", LOCATION, *verb])


def _run_edited(shown: Table) -> list[str]:
    """Have somebody edit a helper, and make what is below the weather: by another process, which loads that code."""
    edited = shutil.copytree(Path(__file__).parent, EDITED / "example_project")
    rain = edited / "rain.py"
    rain.write_text(rain.read_text("utf-8").replace("DAYS = 10", "DAYS = 5"), "utf-8")
    command = [sys.executable, "-P", "-m", "example_project.checked", "--below"]
    with console.status("Run 5: somebody edits rain.py"):
        path = os.pathsep.join(filter(None, [str(EDITED), os.environ.get("PYTHONPATH")]))
        ran = subprocess.run(
            command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False
        )
    functions, _, saved = ran.stdout.strip().rpartition("|")
    shown.add_row("5 somebody edits rain.py: DAYS = 5", functions, saved, f"{_seen():,} rows, as before")
    return [] if functions == "wettest_days" else [f"run 5 called {functions!r}: {ran.stderr[-2000:]}"]


def _run(
    number: int, scenario: Scenario, project: Project, instance: dg.DagsterInstance, shown: Table, verbose: bool
) -> list[str]:
    before = _seen()
    data = WeatherData(weather_months=scenario.months, celsius=scenario.celsius)
    with console.status(f"Run {number}: {scenario.title}"):
        # The source first, and what is below it once its version is published, as the two sensors would have it.
        made = _materialize([weather], data, instance, verbose)
        if made.is_success:
            publish_checked(project, instance, definitions())
        if scenario.is_published:
            more = _materialize(list(BELOW), data, instance, verbose)
            made = Made(more.is_success, (*made.called, *more.called), more.saved)
    called = made.called
    after = _seen()
    is_as_it_was = "" if before != after else ", as before"
    shown.add_row(f"{number} {scenario.title}", ", ".join(called), f"{made.saved:.3f}", f"{after:,} rows{is_as_it_was}")
    faults = [] if tuple(called) == tuple(scenario.calls) else [f"run {number} called {called}"]
    if not scenario.is_published and before != after:
        faults.append(f"run {number} has failed its check, and readers see {after} rows instead of {before}")
    return faults


def _materialize(assets: Sequence[Any], data: WeatherData, instance: dg.DagsterInstance, verbose: bool) -> Made:
    job = dg.define_asset_job("taken_in", selection=dg.AssetSelection.assets(*assets))
    resolved = dg.Definitions.merge(definitions(), dg.Definitions(jobs=[job])).resolve_job_def("taken_in")
    config: Any = dg.RunConfig(
        resources={"weather_data": data},
        loggers={"console": {"config": {"log_level": "INFO" if verbose else "CRITICAL"}}},
    )
    result = resolved.execute_in_process(instance=instance, run_config=config, raise_on_error=False)
    found = {
        event.step_key: event.event_specific_data.materialization.metadata
        for event in result.get_asset_materialization_events()
    }
    saved = {step: float(shown[SAVED].value) for step, shown in found.items() if SAVED in shown}
    called = tuple(str(step) for step in found if step not in saved)
    return Made(result.success, called, sum(saved.values()))


def _seen() -> int:
    """How many hours of weather somebody sees who knows nothing of versions."""
    path = f"{LOCATION}/datom/weather"
    return DeltaTable(path).to_pyarrow_table().num_rows if DeltaTable.is_deltatable(path) else 0


if __name__ == "__main__":
    app()
