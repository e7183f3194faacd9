"""Rows that were made to have the open digest of others: they are other rows, through whatever door they come."""

import time
from typing import Any

import pyarrow as pa
import pytest

from dagster_versioned.branches.environments import create_environment
from dagster_versioned.branches.promote import promote
from dagster_versioned.branches.rebase import rebase_environment
from dagster_versioned.engines.dispatch import compare, diff_rows
from dagster_versioned.identity.version import Run
from dagster_versioned.projects.project import Project
from dagster_versioned.publication.park import park
from dagster_versioned.storage import LocalStore
from dagster_versioned.tables.computations import contradicted
from dagster_versioned.tables.options import TableOptions
from dagster_versioned.tables.table import VersionedTable
from dagster_versioned.tables.write.pending import OpenComputation
from support.call_log import CallLog
from support.colliding import colliding_texts
from support.spark import spark

__all__ = ["spark"]

ONE, OTHER = colliding_texts()
UNORDERED = TableOptions(row_order="ignored")
MERGE = TableOptions(mode="merge", merge_key=("id",))
APPEND = TableOptions(mode="append")


def rows(*notes: str, first: int = 0) -> pa.Table:
    return pa.table({"id": range(first, first + len(notes)), "note": list(notes)})


def notes(table: VersionedTable, *at: Any) -> list[str]:
    return table.read(*at).sort_by("id")["note"].to_pylist()


@pytest.fixture(params=["arrow", pytest.param("spark", marks=pytest.mark.spark)])
def framed(request) -> Any:
    """Makes a frame of each engine of Arrow's rows."""
    if request.param == "arrow":
        return lambda table: table
    return request.getfixturevalue("spark").createDataFrame


class TestReplacedRows:
    @pytest.mark.parametrize(
        ("before", "after"),
        [
            pytest.param([ONE, "x"], [OTHER, "x"], id="one value"),
            pytest.param([ONE, OTHER], [OTHER, ONE], id="values that trade places"),
            pytest.param([ONE, ONE, "x"], [ONE, OTHER, "x"], id="one of two"),
        ],
    )
    def test_are_a_version_of_their_own(self, table, framed, before, after):
        first = table.write(framed(rows(*before)), options=UNORDERED)
        second = table.write(framed(rows(*after)), options=UNORDERED)
        assert first.version.facts.digest == second.version.facts.digest
        assert (second.change, notes(table)) == ("full", after)
        assert table.write(framed(rows(*after)), options=UNORDERED).change == "none"
        table.verify().require_ok()

    def test_by_partition_keys_and_partition_columns(self, table, framed):
        by_day = UNORDERED.model_copy(update={"partition_columns": ("day",)})
        for name, options in (("by_key", UNORDERED), ("by_column", by_day)):
            table = table.project.table(name)
            for note in (ONE, OTHER):
                frame = rows(note).append_column("day", pa.array(["mon"]))
                table.write_partitions(
                    {"a": framed(frame), "b": framed(rows("x"))} if name == "by_key" else {None: framed(frame)},
                    options=options,
                )
                assert notes(table)[0] == note

    def test_do_not_take_the_parts_of_an_earlier_version(self, table, framed):
        for note in (ONE, "between", OTHER):
            table.write(framed(rows(note)), options=UNORDERED)
        assert notes(table) == [OTHER]
        again = table.write(framed(rows(ONE)), options=UNORDERED)
        assert (again.bytes_uploaded, notes(table)) == (0, [ONE])
        assert again.version.identity.data_sha == table.version("@0").identity.data_sha

    def test_equal_rows_in_other_files_are_none(self, table, framed):
        small = UNORDERED.model_copy(update={"target_part_bytes": 1, "row_group_bytes": 1})
        table.write(rows(*"abcdef"), options=small)
        again = table.write(framed(rows(*"abcdef")), options=UNORDERED)
        assert (again.change, again.bytes_uploaded) == ("none", 0)

    def test_parts_with_equal_bytes_are_not_read(self, tmp_path):
        log = CallLog(LocalStore(tmp_path / "store"))
        table = Project("P", log).table("notes")
        for _ in range(2):
            log.calls.clear()
            result = table.write(rows(ONE).to_reader(), options=UNORDERED)
        assert result.change == "none"
        assert [call for call in log.calls if call.key.endswith(".parquet") and call.verb != "head"] == []

    def test_take_the_place_of_parts_that_were_damaged(self, table):
        table.write(rows("a"), options=UNORDERED)
        (part,) = (file.key for file in table.files().scan.files)
        data = table.store.get(part)
        table.store.put(part, data[:40] + bytes(4) + data[44:])
        assert table.write(rows("a"), options=UNORDERED).change == "none"
        assert table.write(rows("b"), options=UNORDERED).change == "full"
        assert table.write(rows("a"), options=UNORDERED).change == "full"
        assert notes(table) == ["a"]

    def test_contradict_the_computation_that_gave_others(self, table):
        def compute(note: str) -> Any:
            computing = OpenComputation("0" * 64, time.monotonic())
            return table.write_partitions({None: rows(note)}, options=UNORDERED, computations={None: computing})[0]

        compute(ONE)
        assert not compute(ONE).contradicted
        assert compute(OTHER).contradicted
        assert contradicted(table.state.snapshot) == ["0" * 64]


class TestAddedRows:
    @pytest.mark.parametrize("vectors", [False, True], ids=["new parts", "vectors"])
    def test_are_merged(self, table, framed, vectors):
        options = MERGE.model_copy(
            update={"properties": {"delta.enableDeletionVectors": "true", "delta.enableChangeDataFeed": "true"}}
        )
        options = options if vectors else MERGE
        table.write(rows(ONE, "x", "y"), options=options)
        result = table.write(framed(rows(OTHER)), options=options)
        assert (result.change, result.version.facts.added.updated) == ("full", 1)
        assert notes(table) == [OTHER, "x", "y"]
        assert table.write(framed(rows(OTHER)), options=options).change == "none"

    def test_of_a_later_attempt_are_merged(self, table, framed):
        attempt = Run("run-1", "notes", 0)
        table.write(framed(rows(ONE, "x")), options=MERGE, run=attempt)
        table.write(framed(rows("y", first=1)), options=MERGE)
        again = table.write(framed(rows(ONE, "x")), options=MERGE, run=attempt)
        assert (again.replayed, notes(table)) == (True, [ONE, "y"])
        assert table.write(framed(rows(OTHER, "x")), options=MERGE, run=attempt).change == "full"
        assert notes(table) == [OTHER, "x"]

    def test_of_a_later_attempt_are_told_from_those_that_were_appended(self, table, framed):
        table.write(framed(rows("before")), options=APPEND)
        attempt = Run("run-1", "notes", 0)
        table.write(framed(rows(ONE, first=1)), options=APPEND, run=attempt)
        again, other = (table.write(framed(rows(note, first=1)), options=APPEND, run=attempt) for note in (ONE, OTHER))
        assert (again.replayed, again.left_out) == (True, False)
        assert (other.replayed, other.left_out) == (True, True)
        assert notes(table) == ["before", ONE]


class TestDrafts:
    def test_of_forged_rows_are_published_as_they_are(self, table, framed):
        table.write(rows(ONE), options=UNORDERED)
        parked = park(table, {None: framed(rows(OTHER))}, run=Run("r1", "notes", 0), options=UNORDERED)
        assert notes(parked.seen) == [OTHER]
        assert notes(table) == [ONE]
        (published,) = table.project.publish("r1", by="me").published
        assert (published.results[0].change, notes(table)) == ("full", [OTHER])

    def test_that_keep_the_parts_of_an_earlier_version_keep_those_alone(self, table):
        for note in (ONE, OTHER):
            table.write(rows(note), options=UNORDERED)
        parked = park(table, {None: rows(ONE)}, run=Run("r1", "notes", 0), options=UNORDERED)
        assert parked.draft.versions[0].parts is None
        (published,) = table.project.publish("r1", by="me").published
        assert (published.results[0].change, notes(table)) == ("full", [ONE])

    def test_that_are_merged(self, table):
        table.write(rows(ONE, "x"), options=MERGE)
        park(table, {None: rows(OTHER)}, run=Run("r1", "notes", 0), options=MERGE)
        table.project.publish("r1", by="me")
        assert notes(table) == [OTHER, "x"]


class TestEnvironments:
    def test_forged_rows_are_promoted(self, project):
        def write(to: Project, note: str) -> Any:
            parents = to.table("raw").upstream()
            return to.table("notes").write(rows(note), options=UNORDERED, parents=parents, code_version="1")

        project.table("raw").write(rows("x"))
        write(project, ONE)
        create_environment(project, "pr-1")
        assert write(project.in_environment("pr-1"), OTHER).change == "full"
        promote(project, "pr-1", dry_run=False)
        assert notes(project.table("notes")) == [OTHER]
        assert write(project, ONE).change == "full"

    def test_forged_rows_are_carried_by_a_rebase(self, project):
        project.table("notes").write(rows(ONE), options=UNORDERED)
        create_environment(project, "pr-1")
        project.in_environment("pr-1").table("notes").write(rows(OTHER), options=UNORDERED)
        project.table("more").write(rows("x"))
        rebase_environment(project, "pr-1", dry_run=False)
        assert notes(project.in_environment("pr-1").table("notes")) == [OTHER]


class TestComparisons:
    def test_forged_rows_are_changes_in_a_diff(self, framed):
        diff = diff_rows(framed(rows(ONE, "x")), framed(rows(OTHER, "x")), ["id"])
        assert diff.counts() == {"added": 0, "removed": 0, "changed": 1, "unchanged": 1}

    def test_forged_keys_are_other_keys(self, framed):
        before, after = (framed(pa.table({"k": [note], "n": [1]})) for note in (ONE, OTHER))
        assert diff_rows(before, after, ["k"]).counts() == {"added": 1, "removed": 1, "changed": 0, "unchanged": 0}

    def test_forged_rows_are_counted_in_a_comparison(self):
        found = compare(*(rows(note, "x").to_reader() for note in (ONE, OTHER)), ["id"])
        assert found.rows == {"added": 0, "removed": 0, "changed": 1, "unchanged": 1}
