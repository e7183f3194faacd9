"""What parked rows become: the versions that a direct write makes, from frames of both engines."""

import logging
import os
import random
from datetime import timedelta
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from dagster_versioned.errors import InvalidInput
from dagster_versioned.identity.version import Run
from dagster_versioned.projects.project import Project
from dagster_versioned.publication.park import park
from dagster_versioned.publication.view import view
from dagster_versioned.publication.write import Superseded
from dagster_versioned.storage import LocalStore
from dagster_versioned.storage.wrappers import Call
from dagster_versioned.tables.documents import parked_draft
from dagster_versioned.tables.documents.parked_draft import PARKED_FOLDER, draft_keys
from dagster_versioned.tables.options import TableOptions
from dagster_versioned.tables.partitioning import Partitioning
from support.call_log import CallLog
from support.interleaving import Stepped
from support.spark import spark

__all__ = ["spark"]

MODES = {
    "replace": TableOptions(),
    "append": TableOptions(mode="append"),
    "merge": TableOptions(mode="merge", merge_key=("n",)),
}


def rows(*numbers: int) -> pa.Table:
    return pa.table({"n": list(numbers), "word": [str(number) for number in numbers]})


def parked(project: Project, frame: Any, run: str = "r1", options: TableOptions = MODES["append"]) -> Any:
    return park(project.table("raw"), {None: frame}, run=Run(run, "raw", 0), options=options)


def published(project: Project, run: str = "r1") -> Any:
    report = project.publish(run, by="me")
    assert (report.superseded, report.waiting) == ([], [])
    return report.published[0].results[0]


def numbers(project: Project, name: str = "raw") -> list[int]:
    return sorted(project.table(name).read()["n"].to_pylist())


@pytest.fixture
def project(tmp_path) -> Project:
    project = Project("P", LocalStore(tmp_path / "store"))
    project.table("raw").write(rows(1, 2), options=MODES["append"])
    return project


@pytest.mark.parametrize("name", ["raw", "new"])
def test_what_is_recorded_of_a_draft_may_be_large(project, name):
    """Memory keeps what is short, and reads the rest again: of a draft, from the log that goes on in memory."""
    options = TableOptions(custom={"noise": random.Random(1).randbytes(4096).hex()})
    table = project.table(name)
    for number in range(3, 6):
        written = park(table, {None: rows(number)}, run=Run(f"r{number}", name, 0), options=options)
        seen = view(table, [written.draft])
        for result in (*written.results, *seen.results[written.draft.id]):
            assert result.version.identity.custom == options.custom
        assert seen.table.version().identity.custom == options.custom
        assert seen.table.read()["n"].to_pylist() == [number]


class TestAppendedRows:
    def test_are_taken_as_they_are_onto_the_head_that_they_saw(self, project, tmp_path):
        parked(project, rows(3, 4))
        log = CallLog(LocalStore(tmp_path / "store"))
        result = published(Project("P", log))
        moved = [call for call in log.calls if call.key.endswith(".parquet") and call.verb != "head"]
        assert (moved, result.bytes_uploaded) == ([], 0)
        direct = Project("P", LocalStore(tmp_path / "direct"))
        for given in (rows(1, 2), rows(3, 4)):
            version = direct.table("raw").write(given, options=MODES["append"]).version
        assert version.identity.data_sha == result.version.identity.data_sha
        project.table("raw").verify().require_ok()

    def test_are_written_again_where_others_came_first(self, project):
        parked(project, rows(3, 4))
        project.table("raw").write(rows(3, 4), options=MODES["append"])
        result = published(project)
        assert result.bytes_uploaded > 0
        assert numbers(project) == [1, 2, 3, 3, 4, 4]
        project.table("raw").verify().require_ok()

    def test_are_written_again_in_the_types_of_a_head_that_grew(self, project):
        small = rows(3, 4).cast(pa.schema([("n", pa.int32()), ("word", pa.string())]))
        parked(project, small)
        assert published(project).bytes_uploaded > 0
        assert numbers(project) == [1, 2, 3, 4]
        project.table("raw").verify().require_ok()


@pytest.mark.spark
@pytest.mark.parametrize("mode", MODES)
def test_a_frame_of_spark_is_parked_and_published(project, spark, mode):
    seen = parked(project, spark.createDataFrame(rows(2, 3).to_pandas()), options=MODES[mode]).seen
    expected = {"replace": [2, 3], "append": [1, 2, 2, 3], "merge": [1, 2, 3]}[mode]
    assert sorted(seen.read()["n"].to_pylist()) == expected
    assert numbers(project) == [1, 2]
    published(project)
    assert numbers(project) == expected
    project.table("raw").verify().require_ok()


@pytest.mark.spark
def test_a_frame_of_spark_that_breaks_a_constraint_is_not_parked(project, spark):
    options = TableOptions(mode="append", constraints={"positive": "n > 0"})
    with pytest.raises(InvalidInput, match="positive"):
        parked(project, spark.createDataFrame(rows(0).to_pandas()), options=options)
    assert project.parked() == []


@pytest.mark.parametrize("damage", [(b'"standing"', b'"stands"'), (b'"facts":', b'"facts":7,"f":'), (b"}", b"")])
def test_of_a_draft_that_cannot_be_read_the_parts_that_it_names_are_kept(project, tmp_path, damage):
    table = project.table("raw")
    parked(project, rows(3, 4))
    key = next(draft_keys(project.data)).key
    whole = project.data.get(key)
    project.data.put(key, whole.replace(*damage))
    project.data.put(f"{PARKED_FOLDER}other/{key.rpartition('/')[2]}", b"{}")
    for part in tmp_path.rglob("*.parquet"):
        os.utime(part, (1_700_000_000, 1_700_000_000))
    found = table.vacuum(dry_run=False, min_age=timedelta(hours=1))
    assert (found.unreadable, found.keys) == ((key,), ())
    project.data.put(key, whole)
    published(project)
    assert numbers(project) == [1, 2, 3, 4]


@pytest.mark.parametrize("mode", ["append", "merge"])
def test_parts_that_a_collection_takes_while_they_are_parked_are_missed_by_name(project, tmp_path, mode):
    """The parts are in their places, the document that keeps them is not there yet."""
    taken: list[str] = []

    def collecting(call: Call) -> None:
        if call.verb == "head" and call.key.endswith(".parquet") and not taken:
            taken.append(call.key)
            table = Project("P", LocalStore(tmp_path / "store")).table("raw")
            assert len(table.vacuum(dry_run=False, min_age=timedelta(0)).keys) == 1

    hindered = Project("P", Stepped(project.store, collecting))
    with pytest.raises(Superseded, match=r"parquet of raw, which the draft needs, was collected.*Run its step again"):
        parked(hindered, rows(3, 4), options=MODES[mode])
    assert taken
    assert (numbers(project), project.parked()) == ([1, 2], [])
    parked(project, rows(3, 4), options=MODES[mode])
    published(project)
    assert numbers(project) == [1, 2, 3, 4]


class TestATableThatBecameAnother:
    """Nothing that waited is put onto what is there now."""

    @pytest.fixture
    def old(self, project, monkeypatch):
        """A draft of long ago, which vacuum may collect any day."""
        parked(project, rows(3))
        [draft] = project.parked()
        monkeypatch.setattr(parked_draft, "KEPT", timedelta(0))
        return draft

    VERBS: ClassVar = {
        "drop": lambda table: table.drop(dry_run=False),
        "rename": lambda table: table.rename("other", dry_run=False),
        "repartition": lambda table: table.repartition(Partitioning.names(), "word", dry_run=False),
        "purge": lambda table: table.purge(["@0"], why="law", dry_run=False),
    }

    @pytest.mark.parametrize("verb", sorted(VERBS))
    def test_is_refused_while_a_draft_waits_however_old(self, project, old, verb):
        with pytest.raises(InvalidInput, match=f"parked drafts behind: {old.id[:8]}"):
            self.VERBS[verb](project.table("raw"))
        project.drop_parked(old.id, by="ann")
        assert numbers(project) == [1, 2]

    def test_is_refused_for_a_partition_of_which_one_waits(self, project):
        table = project.table("by_day")
        for day in ("a", "b"):
            table.write(rows(1), partition=day)
        park(table, {"a": rows(2)}, run=Run("r1", "by_day", 0), options=MODES["append"])
        with pytest.raises(InvalidInput, match="Dropping partitions of by_day would leave"):
            table.drop_partitions(["a"], dry_run=False)
        table.drop_partitions(["b"], dry_run=False)
        assert list(table.partitions()) == ["a"]

    @pytest.mark.parametrize("mode", sorted(MODES))
    @pytest.mark.parametrize("began_anew", [False, True])
    def test_gets_no_draft_of_before_where_somebody_was_faster(self, project, monkeypatch, mode, began_anew):
        parked(project, rows(3), options=MODES[mode])
        monkeypatch.setattr("dagster_versioned.tables.preconditions.refuse_parked", lambda *given: None)
        project.table("raw").drop(dry_run=False)
        if began_anew:
            project.table("raw").write(rows(9))
        report = project.publish("r1", by="me")
        assert (report.published, report.waiting) == ([], [])
        assert "raw became another table (log version 1: DROP)" in report.superseded[0].why
        if began_anew:
            assert numbers(project) == [9]

    def test_a_draft_that_vacuum_gives_up_is_named_beside_one_that_cannot_be_read(self, project, old, caplog):
        project.data.put(f"{PARKED_FOLDER}raw/{'0' * 16}.-.{'0' * 32}.json", b"{}")
        with caplog.at_level(logging.WARNING, "dagster_versioned"):
            project.table("raw").vacuum(dry_run=False)
        assert f"The draft {old.id[:8]} of {old} was not published in time" in caplog.text
        assert project.parked() == []


def test_a_purge_takes_the_bounds_of_its_rows_out_of_the_draft_that_brought_them(project):
    parked(project, rows(471100815), options=MODES["replace"])
    version = published(project).version.metadata_sha
    table = project.table("raw")
    table.write(rows(1))
    (key,) = [info.key for info in draft_keys(project.data)]
    assert b"471100815" in project.data.get(key)
    table.purge([version], dry_run=False, by="ada", why="erased")
    assert b"471100815" not in project.data.get(key)
