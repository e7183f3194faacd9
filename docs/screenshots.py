"""Take the screenshots of ``docs/how-to/dagster-ui.md``, and check what they show: ``make screenshots``.

Runs the example, then lets a source change by hand below a running ``dagster dev``, waits until the sensor has brought
everything up to date, and looks at it with a headless Chromium. A page without the words that it is there for is an
error, and writes no picture. Needs ``chromium`` and ``chromedriver`` (Debian: ``chromium chromium-driver``).
"""

import io
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC
from pathlib import Path
from typing import Annotated, Any, TypeVar

import dagster as dg
import typer
from PIL import Image
from selenium import webdriver
from selenium.webdriver.common.by import By

from dagster_versioned import Governance
from example_project.defs.resources import PROJECT
from example_project.defs.weather_delays import MONTHS

IMAGES = Path(__file__).parent / "images"
LOCATION = "example_project.definitions"
FEATURES = "example_project.features"
SENSOR = "keep_current"
MONTHLY = "monthly_weather_delays"
DERIVED = ("flight_weather", "hottest_days", MONTHLY)
"""What is built from the weather."""
SIZE = (1400, 900)
LARGEST_BYTES = 150_000
PATIENCE = 180.0
"""Seconds for a page to show what it should."""

Found = TypeVar("Found")

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
    with dg.DagsterInstance.get() as instance, _dagster_dev() as url:
        change = _change_the_weather(instance)
        runs = [_wait_for(lambda key=key: _run_of_sensor(instance, key, change), f"a run of {key}") for key in DERIVED]
        _wait_for(lambda: _settled_tick(instance), "a tick that finds everything current")
        with _browser() as browser:
            pages = Pages(browser, url)
            _look_at_features(pages, _run_of_corrected_flights(instance))
            _look_at_the_sensor(pages)  # while the ticks that requested something are in sight
            backfill = _backfill(url)
            _wait_for(lambda: _is_done(instance, backfill), "the backfill")
            _look_at_assets_and_runs(pages, runs[-1], backfill)


# What is to be seen


def _change_the_weather(instance: dg.DagsterInstance) -> float:
    """December's reports are withdrawn, or, where they were, arrive; returns since when."""
    _say("changing the weather")
    began = time.time()
    rows = Governance(".example/governance", role="reader").project(PROJECT).table("weather").read().column("month")
    months = 11 if 12 in rows.unique().to_pylist() else 12
    config = {"resources": {"flight_data": {"config": {"weather_months": months}}}}
    command = ["dagster", "asset", "materialize", "-m", LOCATION, "--select", "weather"]
    _run(*command, "--config-json", json.dumps(config))
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


def _backfill(url: str) -> str:
    """One backfill over the year of the table by month."""
    _say("starting a backfill")
    params = {"assetSelection": [{"path": [MONTHLY]}], "partitionNames": list(MONTHS.get_partition_keys())}
    body = json.dumps({"query": _LAUNCH_BACKFILL, "variables": {"params": params}}).encode()
    request = urllib.request.Request(f"{url}/graphql", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as response:
        answer: dict[str, Any] = json.load(response)
    launched = answer["data"]["launchPartitionBackfill"]
    assert launched["__typename"] == "LaunchBackfillSuccess", launched
    return launched["backfillId"]


def _is_done(instance: dg.DagsterInstance, backfill_id: str) -> bool:
    backfill = instance.get_backfill(backfill_id)
    assert backfill is not None
    assert "FAIL" not in backfill.status.value, f"the backfill is {backfill.status.value}"
    return backfill.status.value == "COMPLETED_SUCCESS"


# Looking at it


class Pages:
    """A browser on the running UI that asserts before it takes a picture."""

    def __init__(self, browser: webdriver.Chrome, url: str) -> None:
        self._browser = browser
        self._url = url

    def open(self, path: str) -> None:
        """Go to a page."""
        self._browser.get(self._url + path)

    def click(self, xpath: str) -> None:
        """Click on the first of these, once there is one."""
        found = _wait_for(lambda: self._browser.find_elements(By.XPATH, xpath), f"something at {xpath}", PATIENCE)
        self._browser.execute_script("arguments[0].click()", found[0])

    def show(self, xpath: str) -> None:
        """Scroll until the last of these is at the lower edge."""
        found = _wait_for(lambda: self._browser.find_elements(By.XPATH, xpath), f"something at {xpath}", PATIENCE)
        self._browser.execute_script("arguments[0].scrollIntoView({block: 'end'})", found[-1])

    def picture(self, name: str, *words: str) -> None:
        """Write the page as ``docs/images/<name>.png``, once it shows all these words and nothing moves any more."""
        missing = list(words)

        def shows_all() -> bool:
            text = " ".join(self._browser.find_element(By.TAG_NAME, "body").text.split())
            missing[:] = [word for word in words if word not in text]
            return not missing

        try:
            _wait_for(shows_all, f"the page of {name}", PATIENCE)
        except AssertionError as error:
            self._browser.save_screenshot(str(Path(tempfile.gettempdir()) / f"{name}-failed.png"))
            text = self._browser.find_element(By.TAG_NAME, "body").text
            raise AssertionError(
                f"{name}.png was not written: the page does not say {missing}, but:\n{text}"
            ) from error
        time.sleep(2)
        image = Image.open(io.BytesIO(self._browser.get_screenshot_as_png())).convert("RGB")
        path = IMAGES / f"{name}.png"
        image.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(path, optimize=True)
        size = path.stat().st_size
        assert size <= LARGEST_BYTES, f"{path} has {size} bytes; at most {LARGEST_BYTES} are wanted"
        _say(f"{path.name}: {size / 1000:.0f} kB")


def _look_at_the_sensor(pages: Pages) -> None:
    sensor = f"/locations/__repository__@{LOCATION}/sensors/{SENSOR}"
    pages.open(sensor)
    pages.show("//tr[.//button[.='2 runs requested']]")
    pages.picture("sensor", SENSOR, 'not group:"sources"', "2 runs requested", "0 runs requested")
    pages.open(sensor)
    pages.click("//button[.='0 runs requested']")
    pages.picture("tick", "Skip reason: Checked 8 targets", "All are built from current versions")
    pages.open(sensor)
    pages.click("//button[.='2 runs requested']/following::button[.='View logs'][1]")
    pages.picture(
        "reasons", "Requested flight_weather, because of weather", "Requested hottest_days, because of weather"
    )


def _look_at_assets_and_runs(pages: Pages, run: str, backfill: str) -> None:
    pages.open("/assets/weather?view=lineage&lineageScope=downstream&lineageDepth=4")
    pages.picture("lineage", "weather", *DERIVED, "Delta Lake", "100% filled")
    pages.open("/assets/weather?view=events")
    pages.picture(
        "versions", *(f"dagster_versioned/{key}" for key in ("change", "diff", "metadata_sha")), "full", "rows"
    )
    pages.open(f"/runs/{run}")
    pages.click("//button[.='View tags and config']")
    pages.picture("run", "dagster_versioned/why: flight_weather", "and 11 more partitions", SENSOR)
    pages.open(f"/assets/{MONTHLY}?view=partitions&partition=2013-12-01")
    pages.picture("partitions", "Materialized (12)", "dagster_versioned/change", "Nothing changed: it is still version")
    pages.open(f"/runs/b/{backfill}")
    pages.picture("backfill", MONTHLY, "100% completed", "Succeeded")


def _look_at_features(pages: Pages, run: str) -> None:
    pages.open(f"/runs/{run}?levels=info")
    pages.picture("features", "delay_label: 0 new, 1193 stale, 0 orphaned", "stale by label of 1193")


@contextmanager
def _browser() -> Iterator[webdriver.Chrome]:
    chromedriver = shutil.which("chromedriver")
    assert chromedriver, "chromedriver is not installed; on Debian: apt-get install chromium chromium-driver"
    with tempfile.TemporaryDirectory() as profile:
        options = webdriver.ChromeOptions()
        for option in (
            "headless",
            "no-sandbox",
            "disable-gpu",
            "disable-quic",
            "no-first-run",
            "disable-background-networking",
            "disable-component-update",
            "disable-sync",
            "hide-scrollbars",
            f"user-data-dir={profile}",
        ):
            options.add_argument(f"--{option}")
        browser = webdriver.Chrome(options, webdriver.ChromeService(chromedriver))
        metrics = {"width": SIZE[0], "height": SIZE[1], "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        try:
            yield browser
        finally:
            browser.quit()


# Dagster


@contextmanager
def _dagster_dev() -> Iterator[str]:
    """``dagster dev`` on a free port, up and with the example loaded."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    _say("starting dagster dev")
    with Path(".example/dagster-dev.log").open("wb") as log:
        command = [_tool("dagster"), "dev", "-m", LOCATION, "-m", FEATURES, "-h", "127.0.0.1", "-p", str(port)]
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        _wait_for(lambda: _answers(url, process), "dagster dev", 2 * PATIENCE)
        yield url
    finally:
        process.terminate()
        process.wait(PATIENCE)


def _answers(url: str, process: "subprocess.Popen[bytes]") -> bool:
    assert process.poll() is None, "dagster dev has ended; see .example/dagster-dev.log"
    try:
        with urllib.request.urlopen(f"{url}/server_info", timeout=5):
            return True
    except (urllib.error.URLError, TimeoutError):
        return False


def _run(tool: str, *arguments: str) -> None:
    subprocess.run([_tool(tool), *arguments], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _tool(name: str) -> str:
    """A command installed beside this Python."""
    return str(Path(sys.executable).parent / name)


def _wait_for(look: Callable[[], Found | None], what: str, seconds: float = 600) -> Found:
    """What ``look`` finds, once it finds something."""
    until = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < until, f"waited {seconds:.0f} s for {what}"
        time.sleep(1)
    return found


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


if __name__ == "__main__":
    typer.run(main)
