"""Erasures beside writers, other erasures, expiry, vacuum, reverts, environments, in threads: nothing comes back."""

import random
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta

import pytest

from dagster_versioned.branches.environments import create_environment, drop_environment
from dagster_versioned.errors import VersionedError
from dagster_versioned.projects.project import Project
from dagster_versioned.storage import LocalStore
from dagster_versioned.tables.options import TableOptions
from support.erased import assert_gone, people

GONE = (2, 3)
MERGE = TableOptions(mode="merge", merge_key=("id",), properties={"delta.enableDeletionVectors": "true"})
APPEND = TableOptions(mode="append")


class Race:
    """A table that everybody works on; each write has a serial number of its own, which all of its rows say."""

    def __init__(self, folder, seed: int) -> None:
        self.folder, self.seed = folder, seed
        self.written: dict[int, set[int]] = {}
        for serial, numbers in enumerate(([1, 2, 3, 4, 5], [2, 6], [3, 7])):
            self.write(self.open(), serial, numbers)

    def open(self) -> Project:
        return Project("P", LocalStore(self.folder))

    def write(self, project: Project, serial: int, numbers: list[int]) -> None:
        self.written[serial] = {*numbers}
        project.table("people").write(people(numbers, serial), options=MERGE if serial < 3 else APPEND)

    def writer(self, number: int) -> None:
        chance, project = random.Random(f"{self.seed} {number}"), self.open()
        for serial in range(number * 100, number * 100 + 5):
            numbers = chance.sample(range(10, 40), 3) + ([2] if serial % 5 == 1 else [])
            self.write(project, serial, numbers)

    def eraser(self, person: int) -> None:
        for _ in range(2):
            self.open().erase(f"id = {person}", ["people"], why="asked", dry_run=False)

    def keeper(self) -> None:
        """Whoever tidies up, and goes back: what is refused is refused."""
        table = self.open().table("people")
        for number in range(3):
            with suppress(VersionedError):
                table.expire(keep_last=6, dry_run=False)
            with suppress(VersionedError):
                table.vacuum(min_age=timedelta(0), dry_run=False)
            with suppress(VersionedError):
                table.revert(f"@{number}")
            table.operations.repair()

    def brancher(self) -> None:
        """Environments, of which one writes the table, and goes."""
        project = self.open()
        for number in range(2):
            with suppress(VersionedError):
                create_environment(project, f"dev{number}")
                project.in_environment(f"dev{number}").table("people").write(people([50], 900), options=APPEND)
        drop_environment(project, "dev0")

    def run(self) -> None:
        works: list[Callable[[], None]] = [
            *(lambda number=number: self.writer(number) for number in (1, 2)),
            *(lambda person=person: self.eraser(person) for person in GONE),
            self.keeper,
            self.brancher,
        ]
        with ThreadPoolExecutor(len(works)) as pool:
            ended = [pool.submit(work) for work in works]
        failed = [error for each in ended if (error := each.exception()) is not None]
        assert all(isinstance(error, VersionedError) for error in failed), failed
        for number in range(2):
            with suppress(VersionedError):
                drop_environment(self.open(), f"dev{number}")

    def check(self) -> None:
        table = self.open().table("people")
        table.vacuum(min_age=timedelta(0), dry_run=False)  # what an eraser or a writer put who then lost a race
        report = table.verify()
        assert report.ok, report.findings
        assert_gone(self.folder, *(f"person-{person:04d}" for person in GONE))
        for version in table.history():
            found: dict[int, set[int]] = defaultdict(set)
            for row in table.read(f"@{version.log_version}").to_pylist() if version.gone is None else ():
                found[int(row["name"].rpartition("-")[2])].add(row["id"])
            for serial, numbers in found.items():
                whole = self.written[serial] - {*GONE}
                assert numbers == whole if serial >= 3 else numbers <= whole, (version.short, serial)


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 11))])
def test_whatever_comes_between_nothing_comes_back(tmp_path, seed):
    race = Race(tmp_path, seed)
    race.run()
    race.open().erase("id = 2 or id = 3", ["people"], why="asked", dry_run=False)
    race.check()
