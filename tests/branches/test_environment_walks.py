"""Long walks of production and an environment, with all that both do, against the rows that each cell is to have."""

import random
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta

import pyarrow as pa
import pytest

from dagster_versioned.branches.environments import create_environment, drop_environment
from dagster_versioned.branches.promote import promote
from dagster_versioned.branches.rebase import rebase_environment
from dagster_versioned.engines import refresh as policy
from dagster_versioned.errors import InvalidInput, VersionNotFound
from dagster_versioned.projects.project import Project
from dagster_versioned.storage import ObjectStore
from dagster_versioned.storage.local import LocalStore
from dagster_versioned.tables.history import Version
from dagster_versioned.tables.options import TableOptions
from support.s3_server import S3Server

pytestmark = pytest.mark.slow

ABOVE = {"raw": (), "clean": ("raw",), "daily": ("clean",), "total": ("daily",), "other": ("raw",)}
PARTITIONS = {"daily": ("a", "b", "c")}
REFRESHED = {"clean", "daily"}
EVER = range(-40, 0)
"""What all rows of all versions have in common."""
Cell = tuple[str, str | None]
Rows = dict[Cell, int | None]
"""What is written in rows of each, ``None`` once that was erased."""
CELLS: list[Cell] = [(table, key) for table in ABOVE for key in PARTITIONS.get(table, (None,))]


@dataclass
class Walk:
    """Production, one environment and tags, each with the rows that its cells are to have."""

    store: ObjectStore
    chance: random.Random
    number: int = 0
    promoted: int = 0
    rebased: int = 0
    erased: int = 0
    refreshed: int = 0
    gone: set[tuple[str, int]] = field(default_factory=set)
    production: Rows = field(default_factory=dict)
    branch: Rows | None = None
    tags: dict[str, Rows] = field(default_factory=dict)

    @property
    def project(self) -> Project:
        return Project("NYC", self.store)

    def write(self, project: Project, rows: Rows, code: str) -> None:
        table, key = self.chance.choice(CELLS)
        if not all(any(of == up for of, _ in rows) for up in ABOVE[table]):
            return
        self.number += 1
        parents = [parent for up in ABOVE[table] for parent in project.table(up).upstream()]
        value = self.number if self.chance.random() < 0.8 else self.chance.randrange(3)
        frame = pa.table({"n": [value, None, value, *EVER]})
        options = TableOptions(refresh="changed_rows" if table in REFRESHED else "whole")
        try:
            made = project.table(table).write(frame, parents=parents, code_version=code, partition=key, options=options)
        except InvalidInput as refused:  # what was erased does not come back; an environment is to be rebased
            if not self.erased or "erased" not in str(refused):
                raise
        else:
            self.refreshed += made.change == "full" and made.version.facts.refreshed is not None
            rows[table, key] = value
            self.gone.discard((table, value))  # in a file that lies elsewhere in the order: these are new rows

    def step(self) -> None:
        verbs = {
            self.write_to_production: 8,
            self.write_to_branch: 30,
            self.create: 12,
            self.drop: 5,
            self.promote: 12,
            self.rebase: 12,
            self.expire: 6,
            self.purge: 3,
            self.vacuum: 3,
            self.tag: 2,
            self.untag: 1,
            self.revert: 2,
            self.erase: 5,
        }
        self.chance.choices(list(verbs), list(verbs.values()))[0]()

    def write_to_production(self) -> None:
        self.write(self.project, self.production, "production")

    def write_to_branch(self) -> None:
        if self.branch is not None:
            self.write(self.project.in_environment("pr"), self.branch, "branch")

    def create(self) -> None:
        if self.branch is None:
            create_environment(self.project, "pr")
            self.branch = dict(self.production)

    def drop(self) -> None:
        if self.branch is not None:
            drop_environment(self.project, "pr")
            self.branch = None

    def expire(self) -> None:
        for table in self.project.tables():
            self.project.table(table).expire(keep_last=1, dry_run=False)

    def vacuum(self) -> None:
        for table in self.project.tables():
            self.project.table(table).vacuum(min_age=timedelta(seconds=-1), dry_run=False)

    def tag(self) -> None:
        if self.production and len(self.tags) < 3:
            self.number += 1
            self.project.tag(f"t{self.number}")
            self.tags[f"t{self.number}"] = dict(self.production)

    def untag(self) -> None:
        if self.tags:
            name = self.chance.choice(sorted(self.tags))
            self.project.drop_tag(name)
            del self.tags[name]

    def revert(self) -> None:
        """In the environment, to a version that production may have collected since."""
        if not self.branch:
            return
        project = self.project.in_environment("pr")
        table, key = self.chance.choice(sorted(self.branch, key=str))
        kept = [one for one in project.table(table).history(partition=key) if one.gone is None and not one.is_foreign]
        version = self.chance.choice(kept)
        with suppress(VersionNotFound, InvalidInput):  # it was collected, or erased from
            project.table(table).revert(f"@{version.log_version}", partition=key)
        self.branch[table, key] = value_of(project, table, key)

    def erase(self) -> None:
        """What one table has in some of its cells; of one that was written in the environment nothing can be erased."""
        table = self.chance.choice(sorted({table for table, _ in self.production} or {"raw"}))
        values = {value for (name, _), value in self.production.items() if name == table and value is not None}
        if not values:
            return
        value = self.chance.choice(sorted(values))
        try:
            self.project.erase(f"n = {value}", [table], why="asked", dry_run=False, all_rows=True)
        except InvalidInput as refused:
            if "has written" not in str(refused) and "has files of" not in str(refused):
                raise
            return
        self.erased += 1
        self.gone.add((table, value))
        for rows in (self.production, self.branch or {}, *self.tags.values()):
            rows.update({cell: None for cell, had in rows.items() if cell[0] == table and had == value})

    def promote(self) -> None:
        if self.branch is None:
            return
        before = {cell: head_of(self.project, *cell) for cell in self.production}
        report = promote(self.project, "pr", dry_run=False)
        self.promoted += len(report.promoted)
        for cell in report.promoted:
            head = head_of(self.project, str(cell.table), cell.partition)
            assert head is not None
            assert head.metadata_sha == cell.after
            self.production[str(cell.table), cell.partition] = self.branch[str(cell.table), cell.partition]
            for parent in head.identity.parents:
                history = self.project.table(parent.table).state.history
                wholes = {record.member("partitions_sha") for record in history.records}
                assert parent.version in {one.metadata_sha for one in history.versions} | wholes
        changed = {(str(cell.table), cell.partition) for cell in report.promoted}
        assert all(head_of(self.project, *cell) == head for cell, head in before.items() if cell not in changed)

    def rebase(self) -> None:
        if self.branch is None:
            return
        report = rebase_environment(self.project, "pr", dry_run=False)
        kept = {(str(cell.table), cell.partition) for cell in report.kept}
        self.branch = self.production | {cell: rows for cell, rows in self.branch.items() if cell in kept}
        self.rebased += len(kept)

    def purge(self) -> None:
        """What is no head, unless a tag, the environment, or a copy in it needs the bytes."""
        for table in self.project.tables():
            history = self.project.table(table).state.history
            heads = set(history.heads.values())
            old = [one for one in history.versions if one not in heads and one.gone is None and not one.is_foreign]
            for version in self.chance.sample(old, min(1, len(old))):
                with suppress(InvalidInput):
                    self.project.table(table).purge([str(version.metadata_sha)], why="erasure", dry_run=False)

    def check(self) -> None:
        assert rows_of(self.project, self.production) == self.production
        if self.branch is not None:
            assert rows_of(self.project.in_environment("pr"), self.branch) == self.branch
        for name, rows in self.tags.items():
            assert {cell: value_of(self.project, *cell, version=f"tag:{name}") for cell in rows} == rows


def head_of(project: Project, table: str, key: str | None) -> Version | None:
    return project.table(table).state.history.heads.get(key)


def value_of(project: Project, table: str, key: str | None, **given) -> int | None:
    values = {*project.table(table).read(partition=key, **given)["n"].to_pylist()}
    assert values >= {*EVER}
    (value,) = values - {*EVER, None} or {None}
    return value


def rows_of(project: Project, cells: Rows) -> Rows:
    return {cell: value_of(project, *cell) for cell in cells}


def walked(store: ObjectStore, seed: int, steps: int) -> None:
    walk = Walk(store, random.Random(seed))
    for number in range(steps):
        walk.step()
        if number % 20 == 19:
            walk.check()
    walk.check()
    assert walk.promoted > 0
    assert walk.rebased > 0
    assert walk.erased
    assert walk.refreshed > 10
    for table in walk.project.tables():
        assert not walk.project.table(table).verify().findings, table
        gone = {value for name, value in walk.gone if name == table}
        for version in walk.project.table(table).history():
            if version.gone is None and not version.is_drop:
                read = walk.project.table(table).read(f"@{version.log_version}", partition=version.partition)
                assert not gone & {*read["n"].to_pylist()}


@pytest.fixture(autouse=True)
def small_tables_are_refreshed(monkeypatch):
    monkeypatch.setattr(policy, "FEWEST_BYTES", 1)


@pytest.mark.parametrize("seed", [1])
@pytest.mark.timeout(600)
def test_five_hundred_steps(tmp_path, seed):
    walked(LocalStore(tmp_path), seed, 500)


@pytest.mark.s3
@pytest.mark.parametrize("seed", [4])
@pytest.mark.timeout(1800)
def test_five_hundred_steps_on_s3(s3_server: S3Server, seed):
    walked(s3_server.store(s3_server.new_bucket()), seed, 500)
