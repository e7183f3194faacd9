"""Take the screenshots of ``docs/how-to``, and check what they show: ``make screenshots``.

Runs the example, then lets a source change by hand below a running ``dagster dev``, waits until the sensor has brought
everything up to date, and looks at it with a headless Chromium; then computes a pull request in an environment, and
promotes it. A page without the words that it is there for is an error, and writes no picture. Needs ``chromium`` and
``chromedriver`` (Debian: ``chromium chromium-driver``).
"""

import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import UTC
from pathlib import Path
from typing import Annotated

import dagster as dg
import typer
from PIL import Image

from dagster_versioned import Governance
from example_project.defs.resources import PROJECT
from example_project.defs.weather_delays import MONTHS

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.dagster_dev import DagsterDev, dagster_dev, tool
from support.pages import Pages, opened_browser
from support.pull_request import open_shop, propose

IMAGES = Path(__file__).parent / "images"
LOCATION = "example_project.definitions"
FEATURES = "example_project.features"
CHECKED = "example_project.checked"
SENSOR = "keep_current"
MONTHLY = "monthly_weather_delays"
LONG = 600.0
"""Seconds for a run of Spark, or a backfill."""
DERIVED = ("flight_weather", "hottest_days", MONTHLY)
"""What is built from the weather."""
LARGEST_BYTES = 150_000

_LAUNCH_BACKFILL = """
mutation ($params: LaunchBackfillParams!) {
  launchPartitionBackfill(backfillParams: $params) {
    __typename
    ... on LaunchBackfillSuccess { backfillId }
    ... on PythonError { message }
  }
}"""


def main(
    folder: Annotated[
        Path | None, typer.Option(help="Where the example runs; one that has run there is used. Default: a new folder.")
    ] = None,
) -> None:
    """Write the images, or say which page does not show what it should."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        _take(folder.absolute())
        return
    with tempfile.TemporaryDirectory(prefix="example-") as new:
        _take(Path(new))


def _take(folder: Path) -> None:
    os.chdir(folder)
    os.environ["DAGSTER_HOME"] = str(folder / ".example" / "dagster")
    if not Path(".example/dagster/history").exists():
        _say("running the example")
        for module in ("example_project", FEATURES):
            subprocess.run([sys.executable, "-m", module], check=True, stdout=subprocess.DEVNULL)
    log = Path(".example/dagster-dev.log")
    with (
        dg.DagsterInstance.get() as instance,
        dagster_dev("-m", LOCATION, "-m", FEATURES, log=log) as dagster,
        opened_browser() as pages,
    ):
        change = _change_the_weather()
        runs = [
            dagster.wait_for(lambda key=key: _run_of_sensor(instance, key, change), f"a run of {key}", LONG)
            for key in DERIVED
        ]
        dagster.wait_for(lambda: _settled_tick(instance), "a tick that finds everything current", LONG)
        ui = Pictures(pages, dagster.url)
        _look_at_features(ui, _run_of_corrected_flights(instance))
        _look_at_the_sensor(ui)  # while the ticks that requested something are in sight
        backfill = _backfill(dagster)
        dagster.wait_for(lambda: _is_done(instance, backfill), "the backfill", LONG)
        _look_at_assets_and_runs(ui, runs[-1], backfill)
    with opened_browser() as pages:
        _look_at_checked_versions(pages)
        _look_at_a_pull_request(pages, folder / "shop")


# What is to be seen


def _look_at_checked_versions(pages: Pages) -> None:
    """What a check has stopped, what was published, and what was not computed again."""
    _say("running the example of checks")
    subprocess.run([sys.executable, "-m", CHECKED], check=True, stdout=subprocess.DEVNULL)
    report = Pictures(pages, Path(".example/wettest_days.html").resolve().as_uri())
    report.open("")
    report.take("report", "wettest_days has other code", "example_project.rain:DAYS", "What it was built from")
    with dg.DagsterInstance.get() as instance, dagster_dev("-m", CHECKED, log=Path(".example/checked.log")) as dagster:
        ui = Pictures(pages, dagster.url)
        # Newest first: the fourth run's, the published one of the third, what it parked, and what failed in the second.
        events = instance.fetch_materializations(dg.AssetKey("weather"), limit=4).records
        for name, event, words in (
            ("parked", events[3], ("dagster_versioned/state parked", "dagster_versioned/draft_sha256")),
            ("published", events[1], ("dagster_versioned/state published", "dagster_versioned/parked_by")),
        ):
            ui.open(f"/assets/weather?view=events&time={event.timestamp * 1000:.0f}")
            ui.pages.read(*words)
            ui.pages.show(f"//tr[.//*[.='{words[1]}']]")
            ui.take(name, *words)
        ui.open("/assets/daily_weather?view=events")
        ui.pages.read("dagster_versioned/saved_seconds")
        ui.pages.show("//tr[.//*[.='dagster_versioned/saved_bytes']]")
        ui.take("reused", "dagster_versioned/reused", "dagster_versioned/saved_seconds")


def _look_at_a_pull_request(pages: Pages, folder: Path) -> None:
    """Of a small shop: what a branch computes in an environment, and production once it is promoted."""
    _say("computing and promoting a pull request")
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir()
    shop = open_shop(folder)
    production = shop.side("main")
    production.materialize("*")
    branch = propose(shop, "pr-142")
    branch.materialize("revenue*")
    with branch.dagster_dev() as dagster:
        ui = Pictures(pages, dagster.url)
        ui.open("/assets/revenue?view=events")
        ui.take("environment", "SHOP@pr-142.revenue", "dagster_versioned/environment pr-142")
    production.cli("promote", "pr-142", "--apply", "--instance")
    production.merge("pr-142")
    with production.dagster_dev() as dagster:
        ui = Pictures(pages, dagster.url)
        ui.open("/assets/revenue?view=events")
        ui.pages.read("Promoted from the environment pr-142")
        ui.pages.show("//tr[.//*[.='dagster_versioned/promoted_from']]")
        ui.take("promoted", "SHOP.revenue", "dagster_versioned/promoted_from pr-142")


def _change_the_weather() -> float:
    """December's reports are withdrawn, or, where they were, arrive; returns since when."""
    _say("changing the weather")
    began = time.time()
    rows = Governance(".example/governance", role="reader").project(PROJECT).table("weather").read().column("month")
    months = 11 if 12 in rows.unique().to_pylist() else 12
    config = {"resources": {"flight_data": {"config": {"weather_months": months}}}}
    command = [tool("dagster"), "asset", "materialize", "-m", LOCATION, "--select", "weather"]
    subprocess.run([*command, "--config-json", json.dumps(config)], check=True, capture_output=True)
    return began


def _run_of_sensor(instance: dg.DagsterInstance, key: str, since: float) -> str | None:
    """The run of an asset that the sensor asked for, once it has succeeded."""
    wanted = dg.RunsFilter(tags={"dagster/sensor_name": SENSOR, "dagster_versioned/target": key})
    for record in instance.get_run_records(wanted, limit=1):
        if record.create_timestamp.replace(tzinfo=UTC).timestamp() > since:
            run = record.dagster_run
            assert run.status != dg.DagsterRunStatus.FAILURE, f"run {run.run_id} of {key} failed"
            return run.run_id if run.status == dg.DagsterRunStatus.SUCCESS else None
    return None


def _settled_tick(instance: dg.DagsterInstance) -> bool:
    (state,) = [state for state in instance.all_instigator_state() if state.instigator_name == SENSOR]
    ticks = instance.get_ticks(state.instigator_origin_id, state.selector_id, limit=1)
    return bool(ticks) and "All are built from current versions" in (ticks[0].skip_reason or "")


def _run_of_corrected_flights(instance: dg.DagsterInstance) -> str:
    """The last but one of the five runs of features."""
    return instance.fetch_materializations(dg.AssetKey("delay_label"), limit=2).records[1].run_id


def _backfill(dagster: DagsterDev) -> str:
    """One backfill over the year of the table by month."""
    _say("starting a backfill")
    params = {"assetSelection": [{"path": [MONTHLY]}], "partitionNames": list(MONTHS.get_partition_keys())}
    launched = dagster.query(_LAUNCH_BACKFILL, params=params)["launchPartitionBackfill"]
    assert launched["__typename"] == "LaunchBackfillSuccess", launched
    return launched["backfillId"]


def _is_done(instance: dg.DagsterInstance, backfill_id: str) -> bool:
    backfill = instance.get_backfill(backfill_id)
    assert backfill is not None
    assert "FAIL" not in backfill.status.value, f"the backfill is {backfill.status.value}"
    return backfill.status.value == "COMPLETED_SUCCESS"


# Looking at it


class Pictures:
    """A browser on a running UI that takes pictures of what its pages are there for."""

    def __init__(self, pages: Pages, url: str) -> None:
        self.pages = pages
        self._url = url

    def open(self, path: str) -> None:
        """Go to a page."""
        self.pages.open(self._url + path)

    def take(self, name: str, *words: str) -> None:
        """Write the page as ``docs/images/<name>.png``, once it shows all these words and nothing moves any more."""
        try:
            self.pages.read(*words)
        except AssertionError as error:
            Path(tempfile.gettempdir(), f"{name}-failed.png").write_bytes(self.pages.png())
            raise AssertionError(f"{name}.png was not written: {error}") from None
        time.sleep(2)
        image = Image.open(io.BytesIO(self.pages.png())).convert("RGB")
        path = IMAGES / f"{name}.png"
        image.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(path, optimize=True)
        size = path.stat().st_size
        assert size <= LARGEST_BYTES, f"{path} has {size} bytes; at most {LARGEST_BYTES} are wanted"
        _say(f"{path.name}: {size / 1000:.0f} kB")


def _look_at_the_sensor(ui: Pictures) -> None:
    sensor = f"/locations/__repository__@{LOCATION}/sensors/{SENSOR}"
    ui.open(sensor)
    ui.pages.show("//tr[.//button[.='2 runs requested']]")
    ui.take("sensor", SENSOR, 'not group:"sources"', "2 runs requested", "0 runs requested")
    ui.open(sensor)
    ui.pages.click("//button[.='0 runs requested']")
    ui.take("tick", "Skip reason: Checked 8 targets", "All are built from current versions")
    ui.open(sensor)
    ui.pages.click("//button[.='2 runs requested']/following::button[.='View logs'][1]")
    ui.take("reasons", "Requested flight_weather, because of weather", "Requested hottest_days, because of weather")


def _look_at_assets_and_runs(ui: Pictures, run: str, backfill: str) -> None:
    ui.open("/assets/weather?view=lineage&lineageScope=downstream&lineageDepth=4")
    ui.take("lineage", "weather", *DERIVED, "Delta Lake", "100% filled")
    ui.open("/assets/weather?view=events")
    ui.take("versions", *(f"dagster_versioned/{key}" for key in ("change", "diff", "metadata_sha")), "full", "rows")
    ui.open(f"/runs/{run}")
    ui.pages.click("//button[.='View tags and config']")
    ui.take("run", "dagster_versioned/why: flight_weather", "and 11 more partitions", SENSOR)
    ui.open(f"/assets/{MONTHLY}?view=partitions&partition=2013-12-01")
    ui.take("partitions", "Materialized (12)", "dagster_versioned/change", "Nothing changed: it is still version")
    ui.open(f"/runs/b/{backfill}")
    ui.take("backfill", MONTHLY, "100% completed", "Succeeded")


def _look_at_features(ui: Pictures, run: str) -> None:
    ui.open(f"/runs/{run}?levels=info")
    ui.take("features", "delay_label: 0 new, 1193 stale, 0 orphaned", "stale by label of 1193")


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


if __name__ == "__main__":
    typer.run(main)
