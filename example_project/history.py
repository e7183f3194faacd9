"""A third pipeline: the registers of planes and airports as histories, and a query over them that anyone can verify.

The registers arrive as yearly dumps. The real data has one state of each, so earlier ones are made from it by an edit
(`Registers`): planes come into the register in the year in which they were built, one manufacturer was spelled in
another way until 2012, another one's planes leave the register in 2013, and until 2012 the altitude of some airports
was unknown. ``python -m example_project.history``.
"""

import shutil
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import dagster as dg
import polars as pl
import pyarrow as pa
import typer
from rich.console import Console
from rich.table import Table

from dagster_versioned import (
    EventHistory,
    EventTable,
    LedgerMerge,
    Project,
    ProjectResource,
    SnapshotMerge,
    TableOptions,
    VersionedParquetIOManager,
    sql_asset,
)
from example_project.dagster_home import dagster_home
from example_project.defs.resources import FlightData, spark
from example_project.terminal import end_with, show_command

LOCATION = ".example/history"
PROJECT = "FLIGHT_HISTORY"
YEARS = dg.TimeWindowPartitionsDefinition(start="2011", end="2014", fmt="%Y", cron_schedule="0 0 1 1 *")
OPERATIONS = ("+A", "-R", "-C", "+C")

console = Console()
app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


class Registers(FlightData):
    """The registers of planes and airports, as they were at the beginning of a year, and the delays of January 2013."""

    def planes(self, year: int) -> pl.DataFrame:
        """Planes that were built by then, or nobody knows when."""
        planes = pl.from_pandas(self.frame("planes")).select(
            "tailnum", pl.col("year").cast(pl.Int64).alias("built"), "manufacturer", "model", "seats"
        )
        there = planes.filter(pl.col("built").is_null() | (pl.col("built") <= year))
        if year >= 2013:
            return there.filter(pl.col("manufacturer") != "CANADAIR")
        airbus = pl.col("manufacturer") == "AIRBUS"
        spelled = pl.when(airbus).then(pl.lit("AIRBUS INDUSTRIE")).otherwise("manufacturer")
        return there.with_columns(manufacturer=spelled)

    def airports(self, year: int) -> pl.DataFrame:
        """Airports; nobody knew the altitude of those below 100 feet before 2013."""
        airports = pl.from_pandas(self.frame("airports")).select(
            "faa", "name", "lat", "lon", pl.col("alt").cast(pl.Int64)
        )
        known = airports["alt"] >= 100 if year < 2013 else pl.Series([True] * len(airports))
        return airports.with_columns(alt=pl.when(known).then("alt"))

    def delays(self) -> pl.DataFrame:
        """By day, plane and destination: how many flights of January arrived, and how many minutes late in all."""
        flights = pl.from_pandas(self.frame("flights")).filter(pl.col("month") == 1)
        flown = flights.drop_nulls(["tailnum", "arr_delay"])
        day = pl.date(pl.col("year"), pl.col("month"), pl.col("day")).cast(pl.Datetime("us", "UTC"))
        return (
            flown.group_by(day.alias("event_time"), "tailnum", "dest")
            .agg(flights=pl.len().cast(pl.Int64), minutes=pl.col("arr_delay").cast(pl.Int64).sum())
            .sort("event_time", "tailnum", "dest")
        )


@dg.asset(
    partitions_def=YEARS,
    metadata=TableOptions(history=EventHistory(merge=SnapshotMerge(primary_key=("tailnum",)))).as_metadata(),
)
def planes(context: dg.AssetExecutionContext, registers: dg.ResourceParam[Registers]) -> pl.DataFrame:
    """The register of planes: each year a dump, and what changed becomes events."""
    return registers.planes(int(context.partition_key))


@dg.asset(
    partitions_def=YEARS,
    metadata=TableOptions(history=EventHistory(merge=SnapshotMerge(primary_key=("faa",)))).as_metadata(),
)
def airports(context: dg.AssetExecutionContext, registers: dg.ResourceParam[Registers]) -> pl.DataFrame:
    """The register of airports, likewise."""
    return registers.airports(int(context.partition_key))


@dg.asset(
    metadata=TableOptions(
        history=EventHistory(merge=LedgerMerge(primary_key=("event_time", "tailnum", "dest")))
    ).as_metadata()
)
def delays(registers: dg.ResourceParam[Registers]) -> pl.DataFrame:
    """The delays of January, each of them once."""
    return registers.delays()


late_fleet = sql_asset(
    "late_fleet",
    inputs={"delays": delays, "planes": planes, "airports": airports},
    query="""
SELECT max(d.event_time) AS event_time, p.manufacturer, a.name AS destination, sum(d.flights) AS flights,
       sum(d.minutes) AS minutes
FROM delays d JOIN planes p ON p.tailnum = d.tailnum JOIN airports a ON a.faa = d.dest
GROUP BY p.manufacturer, a.name
""",
)


def definitions() -> dg.Definitions:
    """What Dagster loads."""
    project = ProjectResource(name=PROJECT, location=LOCATION, default_engine="polars")
    return dg.Definitions(
        assets=[planes, airports, delays, late_fleet],
        resources={"registers": Registers(), "io_manager": VersionedParquetIOManager(project=project, pyspark=spark())},
        executor=dg.in_process_executor,
    )


defs = definitions()


@app.command()
def main(verbose: Annotated[bool, typer.Option("--verbose", help="Show Dagster's own log.")] = False) -> None:
    """Take in the registers of three years, query them after each of the last two, and verify all that was done."""
    began = time.monotonic()
    shutil.rmtree(LOCATION, ignore_errors=True)
    console.rule("Yearly dumps become events", align="left")
    with dagster_home(), dg.DagsterInstance.get() as instance:
        for year in YEARS.get_partition_keys():
            _run([planes, airports], instance, verbose, year)
            if year == "2012":
                _run([delays, late_fleet], instance, verbose)
        _run([late_fleet], instance, verbose)
    project = Project.open(PROJECT, LOCATION)
    faults = [*_show_events(project), *_show_times(project), *_verify()]
    console.print(f"\nTook {time.monotonic() - began:.0f} s.")
    end_with(console, faults)


def _run(
    assets: Sequence[dg.AssetsDefinition], instance: dg.DagsterInstance, verbose: bool, year: str | None = None
) -> None:
    config: Any = {"loggers": {"console": {"config": {"log_level": "INFO" if verbose else "ERROR"}}}}
    names = [asset.key.to_user_string() for asset in assets]
    with console.status(f"{', '.join(names)} {year or ''}"):
        job = dg.define_asset_job("taken_in", selection=list(assets))
        resolved = dg.Definitions.merge(definitions(), dg.Definitions(jobs=[job])).resolve_job_def("taken_in")
        resolved.execute_in_process(instance=instance, run_config=config, partition_key=year)


def _show_events(project: Project) -> list[str]:
    """How many events of which kind each year brought."""
    faults: list[str] = []
    shown = Table(title="Events", title_justify="left", header_style="bold")
    for heading in ("table", "known since", *OPERATIONS):
        shown.add_column(heading, justify="right" if heading in OPERATIONS else "left", no_wrap=True)
    for name in ("planes", "airports", "delays", "late_fleet"):
        events = pl.DataFrame(EventTable(project.table(name)).events(as_type=pl.DataFrame))
        counted = events.group_by("system_time", "op").len().pivot("op", index="system_time", values="len")
        for row in counted.sort("system_time").iter_rows(named=True):
            counts = (f"{row.get(str(op)) or 0:,}" for op in range(len(OPERATIONS)))
            shown.add_row(name, f"{row['system_time']:%H:%M:%S.%f}"[:-3], *counts)
        if (taken := int((events["op"] == 2).sum())) != int((events["op"] == 3).sum()):
            faults.append(f"{taken} events of {name} correct nothing")
    console.print(shown)
    corrected = EventTable(project.table("planes")).events(as_type=pl.DataFrame).filter(pl.col("op") > 1).head(2)
    console.print("The first correction of a plane:", corrected.drop("system_time", "built").to_dicts())
    return faults


def _show_times(project: Project) -> list[str]:
    """The register as it is known now, as it was known before the last dump, and what is known now of 2012."""
    register = EventTable(project.table("planes"))
    slices = register.events(as_type=pl.DataFrame)["system_time"].unique().sort().to_list()
    reads: dict[str, pa.Table] = {
        "current()": register.current(),
        f"as_at({slices[1]:%H:%M:%S}), before the dump of 2013": register.as_at(slices[1]),
        "as_of(2012-06-01)": register.as_of(datetime(2012, 6, 1, tzinfo=UTC)),
    }
    found: dict[str, tuple[int, int]] = {}
    for title, rows in reads.items():
        frame = pl.DataFrame(rows)
        found[title] = frame.height, int((frame["manufacturer"] == "AIRBUS").sum())
        console.print(f"[dim]{title}[/]  {found[title][0]:,} planes, {found[title][1]} of them by AIRBUS")
    expected = pl.DataFrame(register.as_at(slices[1])).drop("event_time").sort("tailnum")
    dump = Registers().planes(2012).sort("tailnum")
    return [] if expected.equals(dump) else ["the register as it was known in 2012 is not the dump of 2012"]


def _verify() -> list[str]:
    """Every hash, and every run of the query repeated."""
    console.rule("Anyone can check it", align="left")
    verb = ["odf", "verify", "late_fleet", "--recursive", "--replay"]
    ended = show_command(console, ["dagster-versioned", "--location", LOCATION, *verb])
    return [f"verification ended with {ended}"] if ended else []


if __name__ == "__main__":
    app()
