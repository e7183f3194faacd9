"""Runs of several tables at once, two on each, a third bad, workers killed, while publishers and readers go on."""

import os
import random
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import dagster as dg
import deltalake
import pyarrow as pa
import pytest

from dagster_versioned import Project, ProjectResource, TableOptions, VersionedParquetIOManager, publish_checked

pytestmark = pytest.mark.slow

TABLES, ROUNDS, SECONDS = 4, 2, 540
BAD = 1_000_000


def definitions(location: str) -> dg.Definitions:
    def made(number: int):
        options = TableOptions(mode="append" if number % 2 else "replace").as_metadata()

        @dg.asset(name=f"t{number}", metadata=options)
        def table():
            return pa.table({"n": [int(os.environ["VALUE"])]})

        @dg.asset_check(asset=table, blocking=True, name="good")
        def good(given: pa.Table):
            return dg.AssetCheckResult(passed=max(given["n"].to_pylist()) < BAD)

        return table, good

    pairs = [made(number) for number in range(TABLES)]
    manager = VersionedParquetIOManager(project=ProjectResource(name="SOAK", location=location), publish="after_checks")
    return dg.Definitions(
        assets=[one for one, _ in pairs],
        asset_checks=[one for _, one in pairs],
        resources={"io_manager": manager},
        jobs=[dg.define_asset_job(f"job{n}", selection=dg.AssetSelection.assets(f"t{n}")) for n in range(TABLES)],
        executor=dg.in_process_executor,
    )


def worker(location: str, number: str) -> None:
    with dg.DagsterInstance.get() as instance:
        job = definitions(location).resolve_job_def(f"job{number}")
        job.execute_in_process(instance=instance, raise_on_error=False)


def read(location: str, number: int) -> list[int]:
    try:
        return deltalake.DeltaTable(f"{location}/datom/t{number}").to_pyarrow_table()["n"].to_pylist()
    except deltalake.exceptions.TableNotFoundError:
        return []


def test_no_reader_sees_a_bad_version_and_every_good_one_is_published_once_or_superseded(tmp_path, monkeypatch):
    home, location = tmp_path / "home", str(tmp_path / "lake")
    home.mkdir()
    (home / "dagster.yaml").write_text("telemetry:\n  enabled: false\n")
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    project, chance = Project.open("SOAK", location), random.Random(4)
    ending, killed, value, latencies = time.monotonic() + SECONDS, 0, 0, list[float]()
    seen: set[int] = set()

    def publish(instance: dg.DagsterInstance) -> None:
        for made in publish_checked(project, instance, definitions(location)).published:
            records = instance.event_log_storage.get_asset_check_execution_history(
                dg.AssetCheckKey(dg.AssetKey(str(made.draft.table)), "good"), limit=20
            )
            checked = next(one for one in records if one.run_id == made.draft.run.run_id)
            latencies.append(made.results[0].version.timestamp.timestamp() - checked.event.timestamp)

    with dg.DagsterInstance.get() as instance:
        for _ in range(ROUNDS):
            workers: list[subprocess.Popen[bytes]] = []
            for number in list(range(TABLES)) * 2:
                value += 1
                given = str(value + (BAD if value % 3 == 0 else 0))
                code = f"import test_publish_soak as s; s.worker({location!r}, {str(number)!r})"
                env = {**os.environ, "VALUE": given, "PYTHONPATH": f"{Path(__file__).parent}:{':'.join(sys.path)}"}
                workers.append(subprocess.Popen([sys.executable, "-c", code], env=env, stderr=subprocess.DEVNULL))
            doomed = chance.choice(workers)
            dies = time.monotonic() + chance.uniform(8, 14)
            while any(one.poll() is None for one in workers):
                assert time.monotonic() < ending
                if time.monotonic() > dies and doomed.poll() is None:
                    doomed.send_signal(signal.SIGKILL)
                    killed, dies = killed + 1, float("inf")
                publish(instance)
                seen |= {one for number in range(TABLES) for one in read(location, number)}
        publish(instance)
        shown = {number: read(location, number) for number in range(TABLES)}
    assert not [one for one in seen if one > BAD]
    assert not [one for rows in shown.values() for one in rows if one > BAD]
    for number, rows in shown.items():
        drafts = [one for one in project.parked() if str(one.table) == f"t{number}"]
        published = [one for one in drafts if one.standing == "published"]
        assert len(rows) == (len(published) if number % 2 else 1)
        assert len(project.table(f"t{number}").history()) == len(published)
        assert {one.standing for one in drafts} <= {"published", "superseded", "failed", "parked"}
        assert all("good has failed" in (one.why or "") for one in drafts if one.standing == "failed")
        assert project.table(f"t{number}").verify().ok
    ordered = sorted(latencies)
    print(
        f"{value} runs, {killed} killed, {len(latencies)} published: from the check to the commit "
        f"median {statistics.median(ordered):.2f} s, p99 {ordered[int(len(ordered) * 0.99)]:.2f} s"
    )
