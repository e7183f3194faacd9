"""A second pipeline, of features: only what is stale is computed. ``python -m example_project.features``."""

import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import dagster as dg
import polars as pl
import typer
from rich.console import Console
from rich.table import Table

from dagster_versioned import (
    FeatureDep,
    Field,
    FieldDep,
    Increment,
    Lineage,
    ProjectResource,
    VersionedParquetIOManager,
    versioned_feature,
)
from example_project.dagster_home import dagster_home
from example_project.defs.resources import FlightData
from example_project.terminal import end_with

LOCATION = ".example/features"
PROJECT = "FLIGHT_FEATURES"
MONTH = 1
CORRECTED, REMOVED = 500, "N14228"

console = Console()
app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


class Season(FlightData):
    """The flights of one month by planes that are known, and what happened to them since."""

    corrected_flights: int = 0
    removed_plane: str | None = None

    def flights(self) -> pl.DataFrame:
        """Every flight that left, with an id; the first ``corrected_flights`` arrived a minute later than recorded."""
        flights = pl.from_pandas(self.frame("flights").reset_index(names="flight_id"))
        flown = flights.filter(pl.col("month") == MONTH).drop_nulls(["tailnum", "arr_delay"])
        late = pl.int_range(pl.len()) < self.corrected_flights
        return flown.select(
            "flight_id",
            "tailnum",
            "distance",
            "air_time",
            pl.col("dep_delay").cast(pl.Int64),
            (pl.col("arr_delay") + late.cast(pl.Int64)).cast(pl.Int64),
        )

    def planes(self) -> pl.DataFrame:
        """Every plane, but the one that was removed."""
        planes = pl.from_pandas(self.frame("planes")).select("tailnum", "model", "seats")
        return planes if self.removed_plane is None else planes.filter(pl.col("tailnum") != self.removed_plane)


def features(label_code: str = "1") -> list[dg.AssetsDefinition]:
    """The pipeline; ``label_code`` is the code version of the labels."""

    @versioned_feature(
        id_columns=["flight_id", "tailnum"],
        fields=[Field("delay", columns=["dep_delay", "arr_delay"]), Field("leg", columns=["distance", "air_time"])],
    )
    def flight(season: dg.ResourceParam[Season]) -> pl.DataFrame:
        """Flights: two fields, each the version of its columns."""
        return season.flights()

    @versioned_feature(id_columns=["tailnum"], fields=[Field("kind", columns=["model", "seats"])])
    def plane(season: dg.ResourceParam[Season]) -> pl.DataFrame:
        """Planes."""
        return season.planes()

    @versioned_feature(
        id_columns=["flight_id", "tailnum"],
        fields=[Field("mph", deps=[FieldDep(flight, ["leg"])])],
        deps=[flight],
    )
    def flight_speed(increment: Increment[pl.DataFrame]) -> pl.DataFrame:
        """How fast a flight was: no delay matters."""
        mph = pl.col("distance") * 60 / pl.col("air_time")
        return increment.changed.select("flight_id", "tailnum", mph=mph)

    @versioned_feature(
        id_columns=["tailnum"],
        fields=[Field("habit", deps=[FieldDep(flight, ["delay"]), FieldDep(plane, ["kind"])])],
        deps=[FeatureDep(flight, lineage=Lineage.aggregation(on=["tailnum"])), plane],
    )
    def plane_habits(increment: Increment[pl.DataFrame]) -> pl.DataFrame:
        """How late a plane usually is; where that is as it was, nothing downstream is computed again."""
        habits = increment.changed.group_by("tailnum").agg(usual=pl.col("arr_delay").median(), flights=pl.len())
        versions = pl.struct(habit=pl.col("usual").cast(pl.String))
        return habits.with_columns(versions.alias("metaxy_data_version_by_field"))

    @versioned_feature(
        id_columns=["flight_id", "tailnum"],
        fields=[
            Field("label", label_code, [FieldDep(flight, ["delay"]), FieldDep(plane_habits, ["habit"])]),
        ],
        deps=[
            FeatureDep(flight, select=["arr_delay"]),
            FeatureDep(plane_habits, lineage=Lineage.expansion(on=["tailnum"]), select=["usual"]),
        ],
    )
    def delay_label(increment: Increment[pl.DataFrame]) -> pl.DataFrame:
        """Whether a flight was later than its plane usually is."""
        margin = 15 if label_code == "1" else 10
        later = pl.col("arr_delay") > pl.col("usual") + margin
        return increment.changed.select("flight_id", "tailnum", is_unusual=later)

    return [flight, plane, flight_speed, plane_habits, delay_label]


def definitions(season: Season | None = None, label_code: str = "1") -> dg.Definitions:
    """What Dagster loads."""
    project = ProjectResource(name=PROJECT, location=LOCATION, default_engine="polars")
    return dg.Definitions(
        assets=features(label_code),
        resources={"season": season or Season(), "io_manager": VersionedParquetIOManager(project=project)},
        executor=dg.in_process_executor,
    )


defs = definitions()


@dataclass(frozen=True)
class Scenario:
    """One run: what is different about it, and what is known of it beforehand."""

    title: str
    season: Season
    label_code: str
    expected: Callable[["Counts"], Mapping[str, bool]]


Counts = Mapping[str, Counter[str]]
"""By asset: how many samples are new, stale, orphaned, unchanged."""


def _new(counts: Counts) -> Mapping[str, bool]:
    return {"every sample is new": all(set(+count) == {"new"} for count in counts.values())}


def _nothing(counts: Counts) -> Mapping[str, bool]:
    return {"nothing is to be done": all(set(+count) == {"unchanged"} for count in counts.values())}


def _labels(counts: Counts) -> Mapping[str, bool]:
    others = {name: count for name, count in counts.items() if name != "delay_label"}
    return {
        "every label is stale": set(+counts["delay_label"]) == {"stale"},
        "and nothing else": all(_nothing(others).values()),
    }


def _corrected(counts: Counts) -> Mapping[str, bool]:
    return {
        f"{CORRECTED} flights are stale": counts["flight"]["stale"] == CORRECTED,
        "no speed is": counts["flight_speed"]["stale"] == 0,
        "at most as many planes are": 0 < counts["plane_habits"]["stale"] <= CORRECTED,
        "labels are stale by their own flight, or by what its plane usually is": (
            CORRECTED * 0.8 < counts["delay_label"]["stale"] < counts["delay_label"]["unchanged"]
        ),
    }


def _removed(counts: Counts) -> Mapping[str, bool]:
    gone = counts["delay_label"]["orphaned"]
    return {
        "the plane goes": counts["plane"]["orphaned"] == counts["plane_habits"]["orphaned"] == 1,
        "its labels go": gone > 0,
        "nothing is computed": not any(count["new"] + count["stale"] for count in counts.values()),
    }


CHANGED = Season(corrected_flights=CORRECTED)
SCENARIOS = (
    Scenario("everything is new", Season(), "1", _new),
    Scenario("nothing has changed", Season(), "1", _nothing),
    Scenario("the code of one field has", Season(), "2", _labels),
    Scenario(f"{CORRECTED} flights are corrected", CHANGED, "2", _corrected),
    Scenario("a plane is removed", Season(corrected_flights=CORRECTED, removed_plane=REMOVED), "2", _removed),
)
KINDS = ("new", "stale", "orphaned", "unchanged")


@app.command()
def main(verbose: Annotated[bool, typer.Option("--verbose", help="Show Dagster's own log.")] = False) -> None:
    """Compute features of flights five times, and count what is computed."""
    began = time.monotonic()
    shutil.rmtree(LOCATION, ignore_errors=True)
    counted: list[Counts] = []
    faults: list[str] = []
    with dagster_home(), dg.DagsterInstance.get() as instance:
        for number, scenario in enumerate(SCENARIOS, 1):
            start = time.monotonic()
            with console.status(f"Run {number}: {scenario.title}"):
                counted.append(_run(scenario, instance, verbose))
            console.print(f"[bold]Run {number}[/]  {scenario.title}  [dim]{time.monotonic() - start:.1f} s[/]")
            holds = scenario.expected(counted[-1])
            faults += [f"run {number}: {what}, but {counted[-1]}" for what, holding in holds.items() if not holding]
    console.print(_table(counted))
    console.print(f"\nTook {time.monotonic() - began:.0f} s.")
    end_with(console, faults)


def _run(scenario: Scenario, instance: dg.DagsterInstance, verbose: bool) -> Counts:
    config: Any = {"loggers": {"console": {"config": {"log_level": "INFO" if verbose else "ERROR"}}}}
    job = definitions(scenario.season, scenario.label_code).resolve_implicit_global_asset_job_def()
    result = job.execute_in_process(instance=instance, run_config=config)
    counts: dict[str, Counter[str]] = {}
    for event in result.get_asset_materialization_events():
        materialization = event.step_materialization_data.materialization
        metadata = materialization.metadata
        counts[materialization.asset_key.to_user_string()] = Counter(
            {kind: int(str(metadata[f"dagster_versioned/samples_{kind}"].value)) for kind in KINDS}
        )
    return counts


def _table(counted: list[Counts]) -> Table:
    table = Table(title="Samples; those not counted are unchanged", title_justify="left", header_style="bold")
    table.add_column("asset", no_wrap=True)
    for number in range(1, len(SCENARIOS) + 1):
        table.add_column(f"run {number}", justify="right", no_wrap=True)
    for asset in counted[0]:
        cells = [
            "\n".join(f"{each[asset][kind]:,} {kind}" for kind in KINDS[:3] if each[asset][kind]) for each in counted
        ]
        table.add_row(asset, *cells)
    return table


if __name__ == "__main__":
    app()
