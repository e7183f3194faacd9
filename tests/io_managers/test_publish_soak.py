"""Sixty runs under the daemon, two at once on each table, a third bad; workers and the daemon are killed.

``SOAK_ROUNDS=10`` makes them two hundred, in 35 minutes.
"""

import os
import random
import signal
import statistics
import subprocess
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import dagster as dg
import deltalake
import pyarrow as pa
import pytest

from dagster_versioned import Project
from dagster_versioned.tables.documents.parked_draft import ParkedDraft
from support import publish_soak
from support.dagster_dev import tool, wait_for
from support.publish_soak import BAD, TABLES, want
from support.s3_server import free_ports

pytestmark = [pytest.mark.slow, pytest.mark.timeout(4800)]

ROUNDS = int(os.environ.get("SOAK_ROUNDS", "3"))
KILLED = 2
"""Workers in each round."""
HOME = """
telemetry: {enabled: false}
nux: {enabled: false}
concurrency: {runs: {max_concurrent_runs: 6}}
run_monitoring: {enabled: true, poll_interval_seconds: 5}
run_retries: {enabled: true, max_retries: 5, retry_on_asset_or_op_failure: false}
"""


class House:
    """Dagster as it is deployed: a code server, and a daemon beside it, which may be killed."""

    def __init__(self, home: Path) -> None:
        self._home, (self._port,) = home, free_ports(1)
        (home / "workspace.yaml").write_text(
            f"load_from: [grpc_server: {{host: 127.0.0.1, port: {self._port}, location_name: soak}}]\n"
        )
        self.code = self._start("dagster", "code-server", "start", "-f", publish_soak.__file__, "-p", str(self._port))
        self.daemon = self._start_daemon()

    def _start(self, *command: str) -> "subprocess.Popen[bytes]":
        with (self._home / "log").open("ab") as log:
            return subprocess.Popen([tool(command[0]), *command[1:]], stdout=log, stderr=log, start_new_session=True)

    def _start_daemon(self) -> "subprocess.Popen[bytes]":
        return self._start("dagster-daemon", "run", "-w", str(self._home / "workspace.yaml"))

    def kill_daemon(self) -> None:
        os.killpg(self.daemon.pid, signal.SIGKILL)
        self.daemon.wait()
        self.daemon = self._start_daemon()

    def workers(self) -> list[int]:
        """The processes that execute runs."""
        found, left = list[int](), [self.code.pid]
        while left:
            for task in Path(f"/proc/{left.pop()}/task").glob("*/children"):
                below = list(map(int, task.read_text().split()))
                left += below
                found += [pid for pid in below if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        return found

    def end(self) -> None:
        for process in (self.daemon, self.code):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def delta(location: str | Path, name: str) -> list[int]:
    """The rows that a reader sees who knows nothing of us."""
    try:
        return deltalake.DeltaTable(f"{location}/datom/{name}").to_pyarrow_table()["n"].to_pylist()
    except deltalake.exceptions.TableNotFoundError:
        return []


def ours(project: Project, name: str) -> list[int]:
    table = project.table(name)
    return table.read()["n"].to_pylist() if table.exists() else []


class Soak:
    """What was asked for, and what there should be: by table its good values, and the last one."""

    def __init__(self, project: Project, there: Project, instance: dg.DagsterInstance, folder: Path) -> None:
        self.project, self.there, self.instance, self.folder = project, there, instance, folder
        self.chance, self.serial, self.killed = random.Random(4), 0, Counter[str]()
        self.good: dict[int, list[int]] = {number: [] for number in range(TABLES)}
        self.last: dict[int, int] = {}
        self.doomed = 0

    def ask(self, *, may_be_bad: bool) -> None:
        """For two runs of each table: of a new version of its source, or of a row each."""
        self.doomed = KILLED
        for number in range(TABLES):
            value = self._value(number, may_be_bad=may_be_bad)
            if number % 2 == 0:
                self.project.table(f"s{number}").write(pa.table({"n": [value]}))
            want(self.folder, self.serial, number, value)
            if number % 2:
                value = self._value(number, may_be_bad=may_be_bad)
            else:
                self.serial += 1
            want(self.folder, self.serial, number, value)
        wait_for(lambda: self.instance.get_runs_count() >= len(list(self.folder.iterdir())), "runs")

    def _value(self, number: int, *, may_be_bad: bool) -> int:
        self.serial += 1
        is_bad = may_be_bad and self.chance.random() < 1 / 3
        value = self.serial + (BAD if is_bad else 0)
        self.good[number] += [] if is_bad else [value]
        self.last[number] = value
        return value

    def in_progress(self) -> int:
        some = [dg.DagsterRunStatus[name] for name in ("QUEUED", "NOT_STARTED", "STARTING", "STARTED")]
        return self.instance.get_runs_count(dg.RunsFilter(statuses=some))

    def wait_and_kill(self, house: House) -> bool | None:
        """Whether most runs have ended: the next round meets the others."""
        if self.doomed and self.chance.random() < 0.03 and (workers := house.workers()):
            self.doomed -= 1
            with suppress(ProcessLookupError):
                os.kill(self.chance.choice(workers), signal.SIGKILL)
                self.killed["workers"] += 1
        return self.in_progress() <= 4

    def is_over(self) -> bool:
        return (
            self.in_progress() == 0
            and not any(one.standing == "parked" and not self.is_stranded(one) for one in self.project.parked())
            and all(self.has_arrived(number) for number in range(0, TABLES, 2))
            and all(sorted(ours(self.project, f"t{number}")) == self.good[number] for number in range(1, TABLES, 2))
        )

    def is_stranded(self, draft: ParkedDraft) -> bool:
        """Whether it waits for what failed, and so for somebody's decision: runs without checks leave such drafts."""
        above = [one for one in self.project.parked() if one.id in draft.upon]
        return any(one.standing == "failed" for one in above)

    def has_arrived(self, number: int) -> bool:
        """Whether the last value is in a table of even number, and in both that are below it."""
        own = [ours(self.project, f"{name}{number}") for name in ("t", "below")]
        return all(rows == [self.last[number]] for rows in [*own, ours(self.there, f"there{number}")])


def polled(lake: Path, other: Path, over: threading.Event) -> Counter[int]:
    """What two readers of all tables have seen until it is over."""
    names = {lake: [f"t{number}" for number in range(TABLES)], other: list[str]()}
    for number in range(0, TABLES, 2):
        names[lake].append(f"below{number}")
        names[other].append(f"there{number}")
    projects, seen = {lake: Project.open("SOAK", str(lake)), other: Project.open("THERE", str(other))}, Counter[int]()
    while not over.wait(1):
        for place, project in projects.items():
            for name in names[place]:
                seen.update(delta(place, name))
                seen.update(ours(project, name))
    return seen


def test_no_reader_sees_a_bad_version_and_every_good_one_is_published_once_or_computed_again(tmp_path, monkeypatch):
    home, lake, other, folder = (tmp_path / name for name in ("home", "lake", "there", "wanted"))
    home.mkdir()
    folder.mkdir()
    (home / "dagster.yaml").write_text(HOME)
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    monkeypatch.setenv("SOAK_LOCATION", str(lake))
    monkeypatch.setenv("SOAK_THERE", str(other))
    monkeypatch.setenv("SOAK_WANTED", str(folder))
    project, there = Project.open("SOAK", str(lake)), Project.open("THERE", str(other))
    over = threading.Event()
    with ThreadPoolExecutor(1) as reader, dg.DagsterInstance.from_config(str(home)) as instance:
        soak, house = Soak(project, there, instance, folder), House(home)
        reading = reader.submit(polled, lake, other, over)
        try:
            for number in range(ROUNDS):
                soak.ask(may_be_bad=number < ROUNDS - 1)
                wait_for(lambda: soak.wait_and_kill(house), "runs to end", 900)
                if number % 3 == 1:
                    house.kill_daemon()
                    soak.killed["daemon"] += 1
            with suppress(TimeoutError):  # what is missing is said below
                wait_for(soak.is_over, "the end", 900)
        finally:
            over.set()
            house.end()
        seen = reading.result()
        ordered, runs = sorted(published(instance, project)), instance.get_runs_count()
    standings = Counter(one.standing for one in project.parked())
    print(
        f"{runs} runs, {dict(soak.killed)} killed, {seen.total()} rows seen, drafts {dict(standings)}: from the check "
        f"to the commit median {statistics.median(ordered):.2f} s, p99 {ordered[int(len(ordered) * 0.99)]:.2f} s"
    )
    assert not [one for one in seen if one > BAD]
    assert runs >= 20 * ROUNDS
    assert soak.killed["workers"] >= ROUNDS
    assert soak.killed["daemon"] >= ROUNDS // 3
    for number in range(TABLES):
        require_all_good(soak, number)


def require_all_good(soak: Soak, number: int) -> None:
    """Each good value was published once, or closed and computed again; nothing else was, and nothing waits."""
    own = [one for one in soak.project.parked() if str(one.table) == f"t{number}"]
    assert {one.standing for one in own} <= {"published", "superseded", "failed"}
    for one in own:
        assert one.standing != "failed" or "good" in (one.why or "") or "its step" in (one.why or ""), one.why
    table = soak.project.table(f"t{number}")
    history = table.history()
    if number % 2:
        assert sorted(ours(soak.project, f"t{number}")) == soak.good[number]
        assert len(history) == len(soak.good[number])
    else:
        made = [value for one in history for value in table.read(f"@{one.log_version}")["n"].to_pylist()]
        assert made[0] == soak.last[number]
        assert len(made) == len(set(made))
        assert set(made) <= set(soak.good[number])
        assert soak.has_arrived(number)
    assert table.verify().ok


def published(instance: dg.DagsterInstance, project: Project) -> list[float]:
    """Seconds from when the check of a draft was logged until its version was committed."""
    found: list[float] = []
    for number in range(TABLES):
        check = dg.AssetCheckKey(dg.AssetKey(f"t{number}"), "good")
        records = instance.event_log_storage.get_asset_check_execution_history(check, limit=1000)
        logged = {one.run_id: one.event.timestamp for one in records if one.event is not None}
        versions = {one.metadata_sha: one for one in project.table(f"t{number}").history()}
        for draft in project.parked():
            if str(draft.table) == f"t{number}" and draft.standing == "published" and draft.run.run_id in logged:
                for sha in (draft.published or {}).values():
                    at = versions[sha].timestamp.timestamp()
                    if at >= logged[draft.run.run_id]:  # else another run's draft of the same version was there before
                        found.append(at - logged[draft.run.run_id])
    return found
