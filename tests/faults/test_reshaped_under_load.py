"""Writers, readers and sensors go on while a table is repartitioned, dropped, restored and renamed: no row is lost to a
reader, none is seen twice, and a write is committed to what it was meant for or not at all."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from dagster_versioned.errors import CommitConflict, InvalidInput, TableNotFound, VersionNotFound
from dagster_versioned.projects.project import Project
from dagster_versioned.sensors.heads import ProjectHeads
from dagster_versioned.tables.partitioning import Partitioning

pytestmark = pytest.mark.slow

DAYS, MONTHS = Partitioning.time_windows("daily"), Partitioning.time_windows("monthly")
FIRST = date(2026, 10, 1)


def _rows(day: date, attempt: int) -> pa.Table:
    return pa.table({"day": [day] * 3, "n": [0, 1, 2], "attempt": [attempt] * 3})


def _days(project: Project, name: str, count: int = 40) -> None:
    for number in range(count):
        day = FIRST + timedelta(days=number)
        project.table(name).write(_rows(day, -1), partition=str(day), partitioning=DAYS)


class _Load:
    """Threads that go on until they are stopped; what any of them raises is raised at the end."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._failed: list[Exception] = []
        self._threads: list[threading.Thread] = []
        self.counts: Counter[str] = Counter()

    def start(self, what: Callable[[int], None]) -> None:
        def run() -> None:
            attempt = 0
            while not self._stop.is_set():
                try:
                    what(attempt)
                except Exception as error:  # noqa: BLE001 -- raised again in the thread of the test
                    self._failed.append(error)
                    return
                attempt += 1

        self._threads.append(threading.Thread(target=run))
        self._threads[-1].start()

    def end(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        for error in self._failed:
            raise error


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project.open("NYC", str(tmp_path))


@pytest.fixture
def load(project: Project, tmp_path: Path):
    """A writer of days, a reader and a sensor of the table "sales"."""
    _days(project, "sales")
    load = _Load()
    heads = ProjectHeads(Project.open("NYC", str(tmp_path)))

    def write(attempt: int) -> None:
        day = FIRST + timedelta(days=attempt % 40)
        try:
            Project.open("NYC", str(tmp_path)).table("sales").write(
                _rows(day, attempt), partition=str(day), partitioning=DAYS
            )
            load.counts["written"] += 1
            time.sleep(0.3)  # else a repartition, which reads all rows, never comes to its turn
        except (InvalidInput, CommitConflict):
            load.counts["refused"] += 1

    def read(_: int) -> None:
        try:
            found = Project.open("NYC", str(tmp_path)).table("sales").read()
        except (TableNotFound, VersionNotFound):
            load.counts["dropped"] += 1
            return
        seen = Counter(zip(found["day"].to_pylist(), found["n"].to_pylist(), strict=True))
        assert set(seen.values()) <= {1}, "a row is there twice"
        attempts = {day: set() for day in found["day"].to_pylist()}
        for day, attempt in zip(found["day"].to_pylist(), found["attempt"].to_pylist(), strict=True):
            attempts[day].add(attempt)
        assert all(len(of) == 1 for of in attempts.values()), "half of a write is there"
        load.counts["read"] += 1

    def look(_: int) -> None:
        listing = heads.listing()
        heads.look(listing, [name for name in Project.open("NYC", str(tmp_path)).tables() if name in listing])
        load.counts["looked"] += 1

    for what in (write, read, look):
        load.start(what)
    yield load
    load.end()
    assert load.counts["read"] > 5
    assert load.counts["looked"] > 5


def test_repartitioned_to_and_fro(project: Project, load: _Load) -> None:
    for _ in range(4):
        for partitioning in (MONTHS, DAYS):
            project.table("sales").repartition(partitioning, "day", dry_run=False)
            table = project.table("sales")
            assert table.read().num_rows == 120
    load.end()
    assert load.counts["written"]
    assert project.table("sales").verify().ok


def test_dropped_and_restored(project: Project, load: _Load) -> None:
    for _ in range(8):
        table = project.table("sales")
        table.drop(dry_run=False)
        table.restore()
    load.end()
    assert load.counts["written"]
    assert project.table("sales").verify().ok


def test_partitions_dropped_and_brought_back(project: Project, load: _Load) -> None:
    for _ in range(8):
        table = project.table("sales")
        old = table.version(partition=str(FIRST))
        table.drop_partitions([str(FIRST)], dry_run=False)
        table.revert(old.metadata_sha, partition=str(FIRST))
    load.end()
    assert project.table("sales").read().num_rows == 120
    assert project.table("sales").verify().ok


def test_renamed_again_and_again(project: Project, load: _Load) -> None:
    before = "sales"
    for number in range(5):
        project.table(before).rename(f"sales{number}", dry_run=False)
        before = f"sales{number}"
        assert project.table("sales").read().num_rows == 120
    load.end()
    assert load.counts["refused"]
    assert project.tables() == ["sales4"]
    assert project.table("sales4").verify().ok
