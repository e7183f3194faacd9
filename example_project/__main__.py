"""Run the example three times and check what became a version: ``python -m example_project``."""

import hashlib
import logging
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import dagster as dg
import typer
from rich.console import Console
from rich.status import Status
from rich.syntax import Syntax
from rich.table import Table

from dagster_versioned import Project
from dagster_versioned.storage import Location
from example_project import ask, governed
from example_project.branch import show_branch
from example_project.dagster_home import dagster_home
from example_project.definitions import definitions
from example_project.defs.resources import PROJECT, FlightData
from example_project.defs.weather_delays import MONTHS
from example_project.terminal import end_with, show_command

CHANGES = ("full", "metadata_only", "none")
STYLES = {"full": "bold green", "metadata_only": "cyan", "none": "dim"}

Outcomes = dict[str, Counter[str]]
"""By asset: how many of its partitions (one, where it has none) ended in which change."""


@dataclass(frozen=True)
class Scenario:
    """One of the three runs: what is different about it, and what has to come of it.

    An asset whose change is not named under ``expected`` is expected to end as ``otherwise``.
    """

    title: str
    weather_months: int
    spark_settings: Mapping[str, str]
    otherwise: str
    expected: Mapping[str, Mapping[str, int]]


AS_IT_CAME = {
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.files.maxPartitionBytes": "128m",
}
PARTITIONED_DIFFERENTLY = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "7",
    "spark.sql.files.maxPartitionBytes": "1m",
}

SCENARIOS = (
    Scenario("everything is new", 11, AS_IT_CAME, "full", {}),
    Scenario("the same data, partitioned by Spark in another way", 11, PARTITIONED_DIFFERENTLY, "none", {}),
    Scenario(
        "December's weather has arrived",
        12,
        AS_IT_CAME,
        "none",
        {
            "weather": {"full": 1},
            "flight_weather": {"full": 1},
            "monthly_weather_delays": {"metadata_only": 11, "full": 1},
            "hottest_days": {"metadata_only": 1},
        },
    ),
)


console = Console()
# Typer's own tracebacks print every local variable, whole frames of data among them.
app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@app.command()
def main(
    location: Annotated[
        str | None,
        typer.Option(
            help="Data root: a new folder, or s3://bucket/prefix, without governance. Default: a governed project in "
            f"{governed.LOCATION}, made anew, which is moved to {governed.MOVED_TO} in the end."
        ),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show Dagster's own log.")] = False,
) -> None:
    """Materialize the flights of New York City 2013 three times, and show what became a version."""
    began = time.monotonic()
    project = _empty_project(location)
    results: list[Outcomes] = []
    stored: list[dict[str, str]] = []
    with dagster_home(), dg.DagsterInstance.get() as instance:
        for number, scenario in enumerate(SCENARIOS, 1):
            results.append(_run(number, scenario, location, instance, verbose))
            stored.append(_objects(project))
    console.print(_outcome_table(results))
    faults = _unexpected(results)
    if stored[0] == stored[1]:
        console.print(f"After run 2 the store held the same {len(stored[0])} objects as before it, byte for byte.")
    else:
        changed = sorted(dict(stored[0].items() ^ stored[1].items()))
        faults.append(f"run 2 was to leave the store as it was, but these objects changed: {changed}")
    oldest = project.table("weather").history()[-1].short
    before_the_move = _ask(oldest) if location is None else None
    faults += _show_old_versions(project, location or governed.LOCATION)
    faults += show_branch(console, project, location, location or governed.LOCATION)
    if before_the_move:
        faults += _show_a_move(oldest, before_the_move)
    console.print(f"\nTook {time.monotonic() - began:.0f} s. `make ui` opens the same project in Dagster.")
    end_with(console, faults)


def _run(
    number: int, scenario: Scenario, location: str | None, instance: dg.DagsterInstance, verbose: bool
) -> Outcomes:
    """Materialize every asset, with all months in the one run."""
    began = time.monotonic()
    keys = MONTHS.get_partition_keys()
    with console.status(f"Run {number}: {scenario.title}") as status:
        defs = dg.Definitions.merge(
            definitions(location, scenario.spark_settings),
            dg.Definitions(loggers={"console": dg.colored_console_logger, "progress": _progress(status, number)}),
        )
        result = defs.resolve_implicit_global_asset_job_def().execute_in_process(
            instance=instance,
            tags={"dagster/asset_partition_range_start": keys[0], "dagster/asset_partition_range_end": keys[-1]},
            run_config=dg.RunConfig(
                resources={"flight_data": FlightData(weather_months=scenario.weather_months)},
                loggers={
                    "console": {"config": {"log_level": "INFO" if verbose else "ERROR"}},
                    "progress": {},
                },
            ),
        )
    outcomes: Outcomes = {}
    for event in result.get_asset_materialization_events():
        materialization = event.event_specific_data.materialization
        change = materialization.metadata["dagster_versioned/change"].value
        outcomes.setdefault(materialization.asset_key.to_user_string(), Counter())[change] += 1
    console.print(f"[bold]Run {number}[/]  {scenario.title}  [dim]{time.monotonic() - began:.1f} s[/]")
    return outcomes


def _progress(status: Status, number: int) -> dg.LoggerDefinition:
    """A Dagster logger that shows on the status line which step is running."""

    class StepNames(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            step = getattr(record, "dagster_meta", {}).get("step_key")
            if step:
                status.update(f"Run {number}: {step}")

    @dg.logger
    def progress(_: dg.InitLoggerContext) -> logging.Logger:
        logger = logging.Logger("progress", logging.DEBUG)
        logger.addHandler(StepNames())
        return logger

    return progress


def _empty_project(location: str | None) -> Project:
    """The project with nothing in it, for run 1 is about a beginning; without a location, a governed one."""
    if location is None:
        for name in (governed.LOCATION, governed.MOVED_TO, governed.REGISTRY, governed.CLONE, governed.STORAGE):
            shutil.rmtree(name, ignore_errors=True)
        return governed.govern().project(PROJECT)
    project = Project.open(PROJECT, location)
    if project.tables():
        raise typer.BadParameter(
            f"There are tables at {project.store.uri} already. Nothing was touched.", param_hint="--location"
        )
    return project


def _objects(project: Project) -> dict[str, str]:
    """Every object of the store, by the SHA-256 of its bytes."""
    return {info.key: hashlib.sha256(project.store.get(info.key)).hexdigest() for info in project.store.list()}


def _show_old_versions(project: Project, location: str) -> list[str]:
    """The weather as run 1 left it, after December arrived: from Python, with a Delta reader, and from a terminal."""
    from deltalake import DeltaTable

    table = project.table("weather")
    newest, oldest = table.history()
    place = Location.parse(location)
    options = {"endpoint_url": place.endpoint_url, "allow_http": "true"} if place.endpoint_url else None
    uri = table.store.uri.partition("?")[0]
    head = table.read().num_rows
    rows = {
        "ours": table.read(oldest.metadata_sha).num_rows,
        "deltalake": DeltaTable(uri, oldest.log_version, options).to_pyarrow_table().num_rows,
    }
    console.rule("The weather before December arrived", align="left")
    _show(
        "from Python",
        f"""\
weather = Project.open("{project.name}", "{location}").table("weather")
weather.read("{oldest.short}").num_rows  # {rows["ours"]}; the head, {newest.short}, has {head}""",
    )
    _show(
        "with any Delta reader",
        f"""\
DeltaTable("{uri}", version={oldest.log_version}).to_pyarrow_table().num_rows  # {rows["deltalake"]}""",
    )
    console.print("[dim]from a terminal[/]")
    for verb in (["history", "weather"], ["diff", "weather", oldest.short, newest.short]):
        if ended := show_command(console, ["dagster-versioned", "--location", location, *verb]):
            return [f"{verb[0]} ended with {ended}"]
    fewer = rows["ours"] == rows["deltalake"] < head
    return [] if fewer else [f"reading the weather of run 1 gave {rows} rows, and the head has {head}"]


def _show_a_move(oldest: str, asking: subprocess.Popen[str]) -> list[str]:
    """Another folder for the whole project, and a script that neither knows nor notices."""
    before = _answer(asking)
    report = governed.move()
    asking = _ask(oldest)
    console.rule("The project moves to another folder", align="left")
    _show("the script of a user", Path(ask.__file__).read_text().rstrip())
    console.print(f"$ python -m example_project.ask {oldest}\n{before}", highlight=False)
    moved = f"{report.objects} objects, {report.bytes / 1e6:.0f} MB, {report.tables} tables"
    console.print(f"[dim]moved: {moved}, verified by {report.verified}[/]\n{report.source.uri} -> {report.target.uri}")
    after = _answer(asking)
    console.print(f"$ python -m example_project.ask {oldest}\n{after}", highlight=False)
    console.print("[dim]what the registry recorded[/]")
    if show_command(console, ["git", "-C", str(governed.REGISTRY), "log", "--reverse", "--format=%h %s"]):
        return ["the registry's log cannot be read"]
    return [] if before == after else [f"the script printed {before!r} before the move and {after!r} after it"]


def _ask(version: str) -> subprocess.Popen[str]:
    """The user's script, started; it is a process of its own, so this one goes on meanwhile."""
    return subprocess.Popen([sys.executable, "-m", "example_project.ask", version], stdout=subprocess.PIPE, text=True)


def _answer(asking: subprocess.Popen[str]) -> str:
    """What the script printed, once it has ended; raises what subprocess does if it failed."""
    printed, _ = asking.communicate()
    if asking.returncode:
        raise subprocess.CalledProcessError(asking.returncode, asking.args)
    return printed.strip()


def _show(title: str, code: str, language: str = "python") -> None:
    console.print(f"[dim]{title}[/]")
    console.print(Syntax(code, language, background_color="default", word_wrap=True))


def _outcome_table(results: list[Outcomes]) -> Table:
    table = Table(title="What became a version", title_justify="left", header_style="bold")
    table.add_column("asset", no_wrap=True)
    for number in range(1, len(SCENARIOS) + 1):
        table.add_column(f"run {number}")
    for asset in results[0]:
        table.add_row(asset, *(_outcome_text(outcomes.get(asset, Counter())) for outcomes in results))
    return table


def _outcome_text(outcome: Counter[str]) -> str:
    several = outcome.total() > 1
    return "\n".join(
        f"[{STYLES[change]}]{change}{f' × {outcome[change]}' if several else ''}[/]"
        for change in CHANGES
        if outcome[change]
    )


def _unexpected(results: list[Outcomes]) -> list[str]:
    faults: list[str] = []
    for number, (scenario, outcomes) in enumerate(zip(SCENARIOS, results, strict=True), 1):
        for asset, outcome in outcomes.items():
            expected = scenario.expected.get(asset, {scenario.otherwise: outcome.total()})
            if outcome != Counter(expected):
                faults.append(f"{asset} in run {number} was to be {dict(expected)}, but is {dict(outcome)}")
        if outcomes.keys() != results[0].keys():
            faults.append(f"run {number} materialized {sorted(outcomes)}")
    return faults


if __name__ == "__main__":
    app()
