"""Erasures beside writes, expiries and crashes, held to a model: rows by version, less what was erased."""

import random
import re
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_versioned.branches.environments import create_environment
from dagster_versioned.engines.arrow.scan import read_table
from dagster_versioned.engines.parts import RowsSummarizer
from dagster_versioned.errors import IntegrityError, InvalidInput, VersionedError
from dagster_versioned.identity.version import Run
from dagster_versioned.projects.project import Project
from dagster_versioned.publication.park import park
from dagster_versioned.storage import LocalStore
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.storage.wrappers import AtCall, CountingStore, Fault, FaultStore
from dagster_versioned.tables.options import TableOptions
from dagster_versioned.tables.read import row_order_of
from support.erased import assert_gone, people
from support.hooked_store import HookedStore


def rows_of(table: pa.Table):
    return Counter(map(tuple, (row.values() for row in table.to_pylist())))


class Model:
    """A table and what its versions hold."""

    def __init__(self, folder, seed: int) -> None:
        self.random = random.Random(seed)
        self.project = Project("P", LocalStore(folder))
        self.table = self.project.table("people")
        self.versions: dict[int, Counter] = {}
        self.erased: set[int] = set()
        self.serial = 0
        personal = ("id", "name") if seed % 2 else None
        vectors = {"delta.enableDeletionVectors": "true"} if seed % 3 else {}
        self.options = {"properties": vectors, "personal_columns": personal}

    def write(self) -> None:
        self.serial += 1
        fresh = [number for number in range(40) if number not in self.erased]
        numbers = self.random.sample(fresh, self.random.randint(1, min(12, len(fresh))))
        mode = self.random.choice(["replace", "replace", "append", "merge", "merge", "merge"])
        options = TableOptions(mode=mode, merge_key=("id",) if mode == "merge" else (), **self.options)
        rows = people(numbers, self.serial)
        now = Counter() if mode == "replace" else Counter(self.head)
        if mode == "merge" and len({row[0] for row in now}) < sum(now.values()):
            return  # keys that are there twice cannot be merged into
        if mode == "merge":
            now = Counter({row: count for row, count in now.items() if row[0] not in numbers})
        self.table.write(rows, options=options)
        self.versions[self.table.state.log_version] = now + rows_of(rows)

    @property
    def head(self) -> Counter:
        return self.versions[max(self.versions)] if self.versions else Counter()

    def erase(self) -> None:
        known = sorted({row[0] for rows in self.versions.values() for row in rows})
        gone = set(self.random.sample(known, min(len(known), self.random.randint(1, 3))))
        names = ", ".join(map(str, gone))
        self.project.erase(f"id in ({names})", ["people"], why="asked", dry_run=False, all_rows=True)
        self.erased |= gone
        for rows in self.versions.values():
            for row in [row for row in rows if row[0] in gone]:
                del rows[row]
        head = self.table.version()
        self.versions.setdefault(head.log_version, Counter(self.head))

    def expire(self) -> None:
        self.table.expire(keep_last=self.random.randint(1, 4), dry_run=False)
        gone = {version.log_version for version in self.table.history() if version.gone is not None}
        for at in gone:
            self.versions.pop(at, None)

    def check(self) -> None:
        table = Project("P", LocalStore(self.project.store.local_path("x").parent)).table("people")
        for at, rows in self.versions.items():
            assert rows_of(table.read(f"@{at}")) == rows, f"@{at}"
        report = table.verify()
        assert report.ok, report.findings
        head, files = table.version(), table.files()
        measured = RowsSummarizer(files.scan.schema, row_order_of(head))
        for batch in read_table(files.scan).to_batches():
            measured.update(batch)
        found = measured.finish()
        assert (head.identity.nrow, head.facts.digest) == (found.nrow, found.digest.text)
        assert tuple(head.facts.null_counts) == found.null_counts


@pytest.mark.parametrize("seed", [1, 2, 3, pytest.param(range(4, 60), marks=pytest.mark.slow, id="more")])
def test_versions_hold_what_the_model_says(tmp_path, seed):
    for number in [seed] if isinstance(seed, int) else seed:
        model = Model(tmp_path / str(number), number)
        model.write()
        for _ in range(14):
            step = model.random.choice([model.write] * 5 + [model.erase] * 2 + [model.expire])
            step()
        model.check()


def written(place) -> Project:
    project = Project("P", LocalStore(place) if isinstance(place, Path) else place)
    vectors = {"delta.enableDeletionVectors": "true"}
    options = TableOptions(mode="merge", merge_key=("id",), properties=vectors)
    for serial, numbers in enumerate(([1, 2, 3, 4, 5, 6, 7, 8], [2, 9], [3, 10])):
        project.table("people").write(people(numbers, serial), options=options)
    return project


def ids(table, at):
    return sorted(table.read(at if at is None else f"@{at}")["id"].to_pylist())


def erase(project, sql="id = 2 or id = 3"):
    return project.erase(sql, ["people"], why="asked", dry_run=False)


@pytest.mark.parametrize(
    ("every", "place"),
    [
        (23, "local"),
        pytest.param(1, "local", marks=pytest.mark.slow),
        pytest.param(19, "s3", marks=[pytest.mark.slow, pytest.mark.s3]),
    ],
)
@pytest.mark.timeout(1800)
def test_an_erasure_that_died_anywhere_is_finished_by_the_next(tmp_path, request, every, place):
    server = request.getfixturevalue("s3_server") if place == "s3" else None

    def new(name: str) -> ObjectStore:
        return LocalStore(tmp_path / name) if server is None else server.store(server.new_bucket())

    def begun(store: ObjectStore) -> None:
        """An environment begins with the table, too, and reads it alone."""
        create_environment(written(store), "dev")

    counted = CountingStore(new("count"))
    begun(counted)
    first = len(counted.calls)
    erase(Project("P", counted))
    for number in range(1, len(counted.calls) - first + 1, every):
        for fault in (Fault.BEFORE, Fault.LOST_ANSWER):
            store = new(f"{number}-{fault.name}")
            begun(store)
            with suppress(VersionedError):  # some failures are of what is derived, and only logged
                erase(Project("P", FaultStore(store, AtCall(number, fault))))
            project = Project("P", store)
            before = [project.table("people").read(f"@{at}")["id"].to_pylist() for at in range(3)]
            assert all(set(numbers) >= {1, 4, 5} for numbers in before), "what is not erased can be read meanwhile"
            erase(project)
            table = project.table("people")
            assert [sorted(table.read(f"@{at}")["id"].to_pylist()) for at in range(3)] == [
                [1, 4, 5, 6, 7, 8],
                [1, 4, 5, 6, 7, 8, 9],
                [1, 4, 5, 6, 7, 8, 9, 10],
            ]
            there = project.in_environment("dev").table("people")
            assert [ids(there, at) for at in range(3)] == [ids(table, at) for at in range(3)]
            assert ids(there, None) == ids(table, None)
            assert table.verify().ok
            assert there.verify().ok, there.verify().findings
            assert_gone(store if server else tmp_path / f"{number}-{fault.name}", "person-0002", "person-0003")


def test_rows_that_a_writer_adds_meanwhile_are_erased_too(tmp_path):
    project = written(tmp_path)
    other = Project("P", LocalStore(tmp_path)).table("people")

    def write() -> None:
        other.write(people([2, 77], 9), options=TableOptions(mode="append"))

    report = erase(Project("P", HookedStore(LocalStore(tmp_path), "put_if_absent", "00003.json", write)))
    assert len(report.epochs) == 2
    table = project.table("people")
    assert 77 in table.read()["id"].to_pylist()
    for version in table.history():
        assert not {2, 3} & set(table.read(f"@{version.log_version}")["id"].to_pylist())
    assert table.verify().ok


def test_a_writer_that_began_before_does_not_bring_rows_back(tmp_path):
    project = written(tmp_path)
    hooked = HookedStore(LocalStore(tmp_path), "put_if_absent", "00003.json", lambda: erase(project))
    late = Project("P", hooked).table("people")
    assert late.state.log_version == 2
    late.write(people([11], 5), options=TableOptions(mode="append"))
    assert late.state.log_version == 8
    assert sorted(late.read()["id"].to_pylist()) == [1, 4, 5, 6, 7, 8, 9, 10, 11]
    revert = Project("P", LocalStore(tmp_path)).table("people")
    with pytest.raises(InvalidInput):
        revert.revert("@0")


def test_a_damaged_part_that_would_go_as_a_whole_is_refused_before_anything_is_recorded(tmp_path):
    project = Project("P", LocalStore(tmp_path))
    table = project.table("people")
    for numbers in ([1, 2, 3], [4, 5]):
        table.write(people(numbers, 1), options=TableOptions(mode="append"))
    gone = next(add for add in table.files().adds if pq.read_metadata(table.store.local_path(add.key)).num_rows == 2)
    path = table.store.local_path(gone.key)
    whole = path.read_bytes()
    at = pq.read_metadata(path).row_group(0).column(1).data_page_offset
    path.write_bytes(whole[: at + 20] + bytes([whole[at + 20] ^ 1]) + whole[at + 21 :])
    with pytest.raises(IntegrityError):
        erase(Project("P", LocalStore(tmp_path)), "id = 4 or id = 5")
    path.write_bytes(whole)
    erase(Project("P", LocalStore(tmp_path)), "id = 1 or id = 4 or id = 5")
    assert ids(Project("P", LocalStore(tmp_path)).table("people"), None) == [2, 3]


@pytest.mark.s3
def test_in_a_bucket_nothing_is_left_either(s3_server):
    store = s3_server.store(s3_server.new_bucket())
    written(store)
    erase(Project("P", store))
    table = Project("P", store).table("people")
    assert [sorted(table.read(f"@{at}")["id"].to_pylist()) for at in (0, 2)] == [
        [1, 4, 5, 6, 7, 8],
        [1, 4, 5, 6, 7, 8, 9, 10],
    ]
    assert table.verify().ok
    parts = [info.key for info in table.store.list() if info.key.endswith(".parquet") and "/" not in info.key]
    names = [pq.read_table(pa.BufferReader(table.store.get(key)))["name"].to_pylist() for key in parts]
    assert not [name for part in names for name in part if name.startswith(("person-0002", "person-0003"))]
    gone = re.compile(rb"person-000[23]")
    assert not [info.key for info in store.list() if gone.search(store.get(info.key))]


class TestWhatHappensMeanwhile:
    """Between the record of an erasure, its commit, and the deletion."""

    ROWS = ([1, 4, 5, 6, 7, 8], [1, 4, 5, 6, 7, 8, 9], [1, 4, 5, 6, 7, 8, 9, 10])

    @staticmethod
    def versions(table):
        return tuple(sorted(table.read(f"@{at}")["id"].to_pylist()) for at in range(3))

    @staticmethod
    def died(folder) -> Project:
        """A project whose erasure died right after it was recorded."""
        project = written(folder)

        def decide(call):
            return Fault.BEFORE if call.verb == "put_if_absent" and call.key.endswith("00003.json") else None

        with pytest.raises(VersionedError):
            erase(Project("P", FaultStore(LocalStore(folder), decide)))
        assert [info.key for info in project.data.list(".metadata/erasures/")]
        return project

    def test_a_vacuum_after_a_death_costs_nobody_a_row(self, tmp_path):
        project = self.died(tmp_path)
        table = project.table("people")
        before = self.versions(table)
        table.vacuum(dry_run=False, min_age=timedelta(0))
        assert self.versions(table) == before
        erase(project)
        assert self.versions(table) == self.ROWS
        assert table.verify().ok, table.verify().findings
        assert_gone(tmp_path, "person-0002", "person-0003")

    def test_another_erasure_after_a_death_finishes_it(self, tmp_path):
        project = self.died(tmp_path)
        erase(project, "id = 99")
        assert self.versions(project.table("people")) == self.ROWS
        assert_gone(tmp_path, "person-0002", "person-0003")

    def test_an_environment_that_is_made_meanwhile_reads_what_is_left(self, tmp_path):
        project = written(tmp_path)
        hooked = HookedStore(
            LocalStore(tmp_path), "put_if_absent", "00003.json", lambda: create_environment(project, "dev")
        )
        erase(Project("P", hooked))
        assert self.versions(project.table("people")) == self.ROWS
        there = project.in_environment("dev").table("people")
        assert self.versions(there) == self.ROWS
        assert_gone(tmp_path, "person-0002", "person-0003")

    def test_two_at_once_leave_nothing_of_the_other(self, tmp_path):
        project = written(tmp_path)
        hooked = HookedStore(LocalStore(tmp_path), "put_if_absent", f"{0:020d}.json", lambda: erase(project, "id = 2"))
        erase(Project("P", hooked), "id = 3")
        assert self.versions(project.table("people")) == self.ROWS
        assert_gone(tmp_path, "person-0002", "person-0003")

    def test_one_that_comes_between_what_is_found_and_what_is_written(self, tmp_path):
        project = written(tmp_path)
        hooked = HookedStore(LocalStore(tmp_path), "put", ".parquet", lambda: erase(project, "id = 2"))
        erase(Project("P", hooked), "id = 3")
        assert self.versions(project.table("people")) == self.ROWS
        assert_gone(tmp_path, "person-0002", "person-0003")

    def test_a_draft_that_is_parked_meanwhile_is_named(self, tmp_path):
        project = written(tmp_path)
        run = Run("r1", "people", 0)

        def parked() -> None:
            park(project.table("people"), {None: people([2, 44])}, run=run)

        hooked = HookedStore(LocalStore(tmp_path), "put_if_absent", "00004.json", parked)
        with pytest.raises(InvalidInput, match="would leave parked drafts behind"):
            erase(Project("P", hooked))
