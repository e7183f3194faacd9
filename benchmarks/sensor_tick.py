"""What does a tick of the sensor cost? Seconds beside Dagster's own evaluation of conditions over the same assets.

Run with ``python benchmarks/sensor_tick.py [--quick]``. Half of the assets are built from the other half; heads are
stored as writers store them, in a local folder. Dagster's conditions are asked in the process too, with their cursor,
and with no event in the event log: the cheapest case for them. Idle ticks are compared, because most ticks are. Ours
asks for the runs in progress and lists the heads each time. What 50 changes cost, and a first tick, is said as well.
"""

import argparse
import hashlib
import os
import tempfile
import time
import warnings
from pathlib import Path

import dagster as dg
import pyarrow as pa
from rounds import alternate, print_ratios, ratio

from dagster_versioned import Project, ProjectResource, VersionedParquetIOManager, build_version_sensor
from dagster_versioned.tables.documents.head import Head, HeadDocument, head_key

CHANGED = 50


def sha(*of: object) -> str:
    return hashlib.sha256(repr(of).encode()).hexdigest()


def pair(number: int, condition: dg.AutomationCondition | None) -> tuple[dg.AssetsDefinition, dg.AssetsDefinition]:
    @dg.asset(name=f"up{number}")
    def up() -> pa.Table: ...

    @dg.asset(name=f"down{number}", ins={"up": dg.AssetIn(f"up{number}")}, automation_condition=condition)
    def down(up) -> pa.Table: ...

    return up, down


class Ours:
    """The sensor over many pairs of tables, of which there are only heads."""

    def __init__(self, pairs: int, folder: str) -> None:
        self.project = Project.open("BENCH", folder)
        for number in range(pairs):
            self.put(f"up{number}", sha(number, 0), 0, [])
            parent = {"source": "BENCH", "table": f"up{number}", "version": sha(number, 0), "data_sha": sha(number, 0)}
            self.put(f"down{number}", sha("down", number), 0, [parent])
        self.sensor = build_version_sensor("all", dg.AssetSelection.all(), max_runs_per_tick=CHANGED)
        io_manager = VersionedParquetIOManager(project=ProjectResource(name="BENCH", location=folder))
        assets = [asset for number in range(pairs) for asset in pair(number, None)]
        self.definitions = dg.Definitions(assets=assets, sensors=[self.sensor], resources={"io_manager": io_manager})
        self.definitions.get_repository_def()
        self.instance = dg.DagsterInstance.ephemeral()
        self.cursor: str | None = None

    def put(self, table: str, version: str, log_version: int, parents: list[dict[str, str]]) -> None:
        moment = "2026-01-01T00:00:00.000000Z"
        head = Head(table, (table,), None, log_version, version, version, None, tuple(parents), moment)
        self.project.data.put(head_key(table), HeadDocument(log_version, head).to_bytes(), durability="later")

    def tick(self) -> int:
        """One evaluation; how many runs it requests."""
        context = dg.build_sensor_context(self.instance, cursor=self.cursor, definitions=self.definitions)
        result = self.sensor.evaluate_tick(context)
        self.cursor = result.cursor
        return len(result.run_requests or ())


class Theirs:
    """Dagster's evaluation of one condition on the same assets."""

    def __init__(self, pairs: int, condition: dg.AutomationCondition) -> None:
        assets = [asset for number in range(pairs) for asset in pair(number, condition)]
        self.definitions = dg.Definitions(assets=assets)
        self.definitions.get_repository_def()
        self.instance = dg.DagsterInstance.ephemeral()
        self.cursor = None

    def tick(self) -> None:
        found = dg.evaluate_automation_conditions(self.definitions, self.instance, cursor=self.cursor)
        self.cursor = found.cursor


def say(label: str, tick: object, begin: float) -> None:
    print(f"{label:<28} {time.perf_counter() - begin:7.3f} s   {tick} runs requested")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="1,000 assets and 3 rounds: ends in less than 50 seconds")
    quick = parser.parse_args().quick
    pairs, rounds = (500, 3) if quick else (5_000, 5)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as home:
        Path(home, "dagster.yaml").write_text("telemetry:\n  enabled: false\n")
        os.environ["DAGSTER_HOME"] = home
        print(f"{2 * pairs:,} assets, {rounds} rounds of idle ticks")
        ours = Ours(pairs, folder)
        begin = time.perf_counter()
        say("ours, first tick", ours.tick(), begin)
        changed = dg.AutomationCondition.any_deps_match(dg.AutomationCondition.data_version_changed())
        eager, by_version = Theirs(pairs, dg.AutomationCondition.eager()), Theirs(pairs, changed)
        seconds = alternate({"ours": ours.tick, "eager": eager.tick, "data_version_changed": by_version.tick}, rounds)
        for number in range(CHANGED):
            ours.put(f"up{number}", sha(number, 1), 1, [])
        begin = time.perf_counter()
        say(f"ours, {CHANGED} changed", ours.tick(), begin)
        print_ratios(
            ratio("sensor_tick_vs_data_version_changed", seconds["ours"], seconds["data_version_changed"]),
            ratio("sensor_tick_vs_eager", seconds["ours"], seconds["eager"]),
        )


if __name__ == "__main__":
    main()
