"""Environments, while other programs, purges, drops and whoever deletes folders are at work beside them."""

import shutil

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_versioned.branches.environments import create_environment, drop_environment
from dagster_versioned.errors import EnvironmentNotFound, IntegrityError, InvalidInput
from dagster_versioned.projects.project import Project
from dagster_versioned.storage.overlay import OverlayStore
from dagster_versioned.tables.options import TableOptions
from dagster_versioned.tables.table import VersionedTable
from support.chain import forked, rows
from support.chain import sorted_numbers as numbers
from support.crashes import append_as_another_program
from support.hooked_store import HookedStore
from support.stores import contents, left_of_environments


@pytest.fixture
def project(tmp_path) -> Project:
    made = Project.open("NYC", str(tmp_path / "lake"))
    for n in range(4):
        made.table("numbers").write(rows(n))
    return made


class TestOtherProgramsBeforeTheFork:
    """Their files were in the table at the fork, so production keeps them, as it keeps its own versions."""

    def expire_all(self, project):
        project.table("numbers").write(rows(98))
        project.table("numbers").write(rows(99))
        report = project.table("numbers").expire(keep_last=1, dry_run=False)
        assert any("environment 'pr-1'" in reason for reason in report.kept.values())

    def test_rows_that_nobody_adopted(self, project):
        append_as_another_program(project.table("numbers"), rows(50))
        project.table("numbers").resolve()
        create_environment(project, "pr-1")
        self.expire_all(project)
        assert numbers(project.in_environment("pr-1")) == [3, 50]
        with pytest.raises(InvalidInput, match="Drop that environment first"):
            project.table("numbers").purge(["@4"], why="erasure request 12", dry_run=False)

    def test_rows_that_were_adopted_later(self, project):
        append_as_another_program(project.table("numbers"), rows(50))
        project.table("numbers").resolve()
        create_environment(project, "pr-1")
        project.table("numbers").adopt()
        self.expire_all(project)
        assert numbers(project.in_environment("pr-1")) == [3, 50]

    def test_files_that_were_compacted(self, project):
        for n in range(3):
            project.table("numbers").write(rows(n), options=TableOptions(mode="append"))
        compact_as_another_program(project.table("numbers"))
        project.table("numbers").resolve()
        create_environment(project, "pr-1")
        self.expire_all(project)
        assert numbers(project.in_environment("pr-1")) == [0, 1, 2, 3]


class TestPurge:
    def test_a_copy_in_an_environment_is_named(self, project):
        """The environment went back to a version that production keeps for nobody."""
        create_environment(project, "pr-1")
        project.in_environment("pr-1").table("numbers").revert("@1")
        for dry_run in (True, False):
            with pytest.raises(InvalidInput, match=r"environment 'pr-1' has a copy .* Drop that environment first"):
                project.table("numbers").purge(["@1"], why="erasure request 12", dry_run=dry_run)
        assert numbers(project, version="@1") == [1]
        drop_environment(project, "pr-1")
        project.table("numbers").purge(["@1"], why="erasure request 12", dry_run=False)

    def test_a_copy_of_what_was_expired_before_is_named(self, project):
        create_environment(project, "pr-1")
        project.in_environment("pr-1").table("numbers").revert("@1")
        project.table("numbers").expire(keep_last=1, dry_run=False)
        with pytest.raises(InvalidInput, match="environment 'pr-1' has a copy"):
            project.table("numbers").purge(["@1"], why="erasure request 12", dry_run=False)

    def test_an_environment_without_a_copy_is_no_reason(self, project):
        create_environment(project, "pr-1")
        project.in_environment("pr-1").table("numbers").write(rows(50))
        assert project.table("numbers").purge(["@1"], why="erasure request 12", dry_run=False).keys
        assert numbers(project.in_environment("pr-1")) == [50]


class TestDroppedDuringAWrite:
    @pytest.mark.parametrize("again", [False, True], ids=["dropped", "made anew"])
    @pytest.mark.parametrize("verb", ["put_if_match", "put_if_absent"])
    def test_the_write_fails_and_leaves_nothing(self, project, verb, again):
        create_environment(project, "pr-1")

        def drop() -> None:
            drop_environment(project, "pr-1")
            if again:
                create_environment(project, "pr-1")

        table = project.in_environment("pr-1").table("numbers")
        own = HookedStore(table.project.environment.own_data(), verb, ".json", drop)
        production = project.store.subfolder("datom")
        table.project.data = OverlayStore(own, production, table.project.environment.fork)
        table = table.project.table("numbers")
        before = contents(production)
        said = "while this was committed" if again else "Nothing was committed"
        with pytest.raises(EnvironmentNotFound, match=said):
            table.write(rows(50))
        assert contents(production) == before
        assert left_of_environments(project.store) == ["environments/forks/pr-1.json"] * again
        if again:
            assert numbers(project.in_environment("pr-1")) == [3]


class TestRenamedBeforeTheFork:
    def test_it_is_forked_once(self, project):
        project.table("numbers").rename("digits", dry_run=False)
        branch = forked(project)
        assert branch.tables() == ["digits"] == project.tables()
        assert list(branch.environment.fork.tables) == ["digits"]
        project.table("digits").write(rows(50))
        assert project.table("digits").purge(["@1"], why="erasure request 12", dry_run=False).keys

    def test_a_dropped_one_is_forked(self, project):
        project.table("numbers").drop(dry_run=False)
        create_environment(project, "pr-1")
        branch = project.in_environment("pr-1").table("numbers")
        branch.restore()
        assert numbers(branch.project) == [3]


class TestMadeAnew:
    """Somebody deleted the folder of a table in production, and wrote it again."""

    @pytest.mark.parametrize("count", [1, 4, 6])
    def test_it_is_not_taken_for_the_one_that_was_forked(self, project, count):
        create_environment(project, "pr-1")
        shutil.rmtree(f"{project.data.uri}/numbers")
        for n in range(count):
            project.table("numbers").write(rows(100 + n))
        before = contents(project.store)
        for attempt in (
            lambda table: table.read(),
            lambda table: table.history(),
            lambda table: table.write(rows(50)),
            lambda table: table.drop(dry_run=False),
        ):
            with pytest.raises(IntegrityError, match="another table than the one that the environment pr-1 began with"):
                attempt(project.in_environment("pr-1").table("numbers"))
        assert contents(project.store) == before

    def test_nor_is_one_that_the_environment_has_written(self, project):
        create_environment(project, "pr-1")
        project.in_environment("pr-1").table("numbers").write(rows(50))
        shutil.rmtree(f"{project.data.uri}/numbers")
        for n in range(6):
            project.table("numbers").write(rows(100 + n))
        with pytest.raises(IntegrityError):
            numbers(project.in_environment("pr-1"))


def compact_as_another_program(table: VersionedTable) -> None:
    """All rows in one file, with no change to them."""
    state, sink = table.state, pa.BufferOutputStream()
    pq.write_table(table.read(), sink)
    data, name, now = sink.getvalue().to_pybytes(), "part-00000-compact.snappy.parquet", state.snapshot.timestamp_ms + 1
    table.store.put(name, data)
    file = {"partitionValues": {}, "size": len(data), "modificationTime": now}
    lines = [
        {"commitInfo": {"inCommitTimestamp": now, "timestamp": now, "operation": "OPTIMIZE"}},
        *(
            {"remove": {"path": add.path, "deletionTimestamp": now, "dataChange": False}}
            for add in state.snapshot.adds()
        ),
        {"add": {"path": name, "dataChange": False, **file}},
    ]
    data = b"\n".join(map(orjson.dumps, lines)) + b"\n"
    table.store.put_if_absent(f"_delta_log/{state.log_version + 1:020d}.json", data)
