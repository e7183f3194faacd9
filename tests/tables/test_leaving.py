"""Leaving a table to other programs, which read and change it as any other, and taking it back."""

from datetime import timedelta
from pathlib import Path

import deltalake
import polars as pl
import pyarrow as pa
import pytest

from dagster_versioned.delta.table import Table
from dagster_versioned.errors import InvalidInput, ProjectMoved, UnsupportedFeature
from dagster_versioned.governance.fence import raise_fence
from dagster_versioned.projects.project import Project
from dagster_versioned.storage.location import Location
from dagster_versioned.tables.options import TableOptions
from dagster_versioned.tables.relocation.migration_mark import MigrationMark
from dagster_versioned.tables.table import VersionedTable

NOW = "2026-11-30T00:00:00+00:00"


def rows(*numbers: int) -> pa.Table:
    return pa.table({"n": pa.array(numbers, pa.int64()), "word": [f"w{number}" for number in numbers]})


@pytest.fixture
def table(project: Project) -> VersionedTable:
    """A table of three versions."""
    table = project.table("numbers")
    for numbers in ((1, 2), (1, 2, 3), (2, 3, 4)):
        table.write(rows(*numbers))
    return table


def place_of(table: VersionedTable) -> Path:
    path = table.project.data.local_path(str(table.name))
    assert path is not None
    return path


class TestLeaving:
    def test_a_dry_run_says_what_goes_and_changes_nothing(self, table):
        report = table.leave()
        assert report.dry_run
        assert report.dropped == ("domainMetadata", "inCommitTimestamp")
        assert (report.features, report.reader_features, table.state.log_version) == ((), (), 2)

    def test_deltalake_appends_deletes_merges_optimizes_and_reads_every_version(self, table):
        with pytest.raises(Exception, match=r"domainMetadata|inCommitTimestamp|[Ff]eature"):
            deltalake.write_deltalake(place_of(table), rows(9), mode="append")
        table.leave(dry_run=False, why="to be written by the warehouse")
        place = place_of(table)
        opened = deltalake.DeltaTable(place)
        assert (opened.protocol().min_reader_version, opened.protocol().min_writer_version) == (1, 2)
        deltalake.write_deltalake(place, rows(5), mode="append")
        opened = deltalake.DeltaTable(place)
        opened.delete("n = 2")
        merge = opened.merge(rows(3, 6), "t.n = s.n", source_alias="s", target_alias="t")
        merge.when_matched_update({"word": "'three'"}).when_not_matched_insert_all().execute()
        opened.optimize.compact()
        found = pl.read_delta(str(place)).sort("n")
        assert found["n"].to_list() == [3, 4, 5, 6]
        assert found["word"][0] == "three"
        for version, numbers in enumerate(([1, 2], [1, 2, 3], [2, 3, 4])):
            assert sorted(deltalake.DeltaTable(place, version=version).to_pyarrow_table()["n"].to_pylist()) == numbers
        opened.vacuum(retention_hours=None, dry_run=False)
        assert table.read("@0").num_rows == 2

    def test_versions_are_read_and_verified_as_before(self, project, table):
        shas = [version.metadata_sha for version in table.history()]
        table.leave(dry_run=False)
        again = Project(project.name, project.store).table("numbers")
        assert [version.metadata_sha for version in again.history()] == shas
        assert sorted(again.read()["n"].to_pylist()) == [2, 3, 4]
        assert again.read(shas[-1]).num_rows == 2
        again.verify().require_ok()
        again.repair()
        again.verify().require_ok()
        assert [version.metadata_sha for version in again.history()] == shas

    def test_every_verb_that_commits_is_refused_and_left_twice_changes_nothing(self, table):
        table.leave(dry_run=False)
        end = table.state.log_version
        verbs = (
            lambda: table.write(rows(7)),
            lambda: table.write(rows(7), options=TableOptions(mode="append")),
            lambda: table.revert("@0"),
            lambda: table.drop(dry_run=False),
            lambda: table.expire(keep_last=1, dry_run=False),
            lambda: table.purge(["@0"], why="asked", dry_run=False),
            lambda: table.forget(dry_run=False) or table.revert("@1"),
            lambda: table.repartition("same", types={"n": "string"}, dry_run=False),
        )
        for verb in verbs:
            with pytest.raises(UnsupportedFeature, match="left to other programs"):
                verb()
        table.leave(dry_run=False)
        assert table.state.log_version == end
        assert sorted(table.read("@0")["n"].to_pylist()) == [1, 2]

    def test_a_table_whose_heads_are_older_than_what_checkpoints_note(self, project):
        table = project.table("days")
        table.write_partitions({"old": rows(1)})
        for number in range(120):
            table.write_partitions({"new": rows(number)})
        heads = {key: version.metadata_sha for key, version in table.partitions().items()}
        table.leave(dry_run=False)
        table.repair()
        again = Project(project.name, project.store).table("days")
        assert {key: version.metadata_sha for key, version in again.partitions().items()} == heads
        assert again.read(partition="old").num_rows == 1
        again.adopt()
        assert {key: version.metadata_sha for key, version in again.partitions().items()} == heads
        again.write_partitions({"new": rows(500)})
        reopened = Project(project.name, project.store).table("days")
        assert reopened.read(partition="new")["n"].to_pylist() == [500]
        reopened.verify().require_ok()

    def test_a_crash_between_the_two_commits(self, project, table, monkeypatch):
        change = table.operations.change

        def once(plan, **how):
            monkeypatch.setattr(table.operations, "change", lambda *_a, **_k: (_ for _ in ()).throw(OSError("died")))
            return change(plan, **how)

        monkeypatch.setattr(table.operations, "change", once)
        with pytest.raises(OSError, match="died"):
            table.leave(dry_run=False)
        again = Project(project.name, project.store).table("numbers")
        with pytest.raises(UnsupportedFeature, match="left to other programs"):
            again.write(rows(7))
        again.leave(dry_run=False)
        deltalake.write_deltalake(place_of(again), rows(5), mode="append")
        again.adopt()
        assert sorted(again.read()["n"].to_pylist()) == [2, 3, 4, 5]
        again.verify().require_ok()


class TestRetention:
    def test_other_programs_keep_what_they_remove_for_so_long(self, table):
        table.leave(retention="interval 2 days", dry_run=False)
        properties = deltalake.DeltaTable(place_of(table)).metadata().configuration
        assert properties["delta.deletedFileRetentionDuration"] == "interval 2 days"
        assert properties["delta.logRetentionDuration"] == "interval 36500 days"  # or nobody could come back

    def test_what_is_no_duration_or_would_lose_a_pinned_version_is_refused(self, project, table):
        with pytest.raises(InvalidInput, match="such as 'interval 30 days'"):
            table.leave(retention="a month", dry_run=False)
        project.pin("audit", "numbers", "@0")
        with pytest.raises(InvalidInput, match=r"pinned as 'audit'.*Nothing was changed"):
            table.leave(retention="interval 2 days", dry_run=False)
        assert table.state.log_version == 2
        table.leave(dry_run=False)


class TestLeftAgain:
    def test_what_it_was_comes_back_however_often_it_was_left(self, project):
        table = project.table("days")
        table.write_partitions({"a": rows(1), "b": rows(2)})
        table.revert(table.partitions()["a"].metadata_sha, partition="a", hold=True, why="checked")
        before = dict(table.state.snapshot.domains)
        table.leave(dry_run=False)
        end = table.state.log_version
        table.leave(retention="interval 30 days", dry_run=False)
        assert table.state.log_version == end
        table.adopt()
        assert dict(table.state.snapshot.domains) == before
        again = Project(project.name, project.store).table("days")
        assert sorted(again.partitions()) == ["a", "b"]

    def test_a_program_that_turns_times_in_commits_on_makes_it_no_table_of_versions(self, project, table):
        table.leave(dry_run=False)
        other = Table(str(place_of(table)))
        other.set_properties({"delta.enableInCommitTimestamps": "true", "delta.feature.domainMetadata": "supported"})
        again = Project(project.name, project.store).table("numbers")
        with pytest.raises(UnsupportedFeature, match="left to other programs"):
            again.write(rows(100))
        assert again.adopt() is not None
        again.write(rows(100))
        assert again.head().head is not None
        again.verify().require_ok()

    def test_a_project_with_such_a_table_is_fenced_as_a_whole(self, project, table, tmp_path):
        project.table("others").write(rows(1))
        project.table("zeros").write(rows(1))
        project.table("others").leave(dry_run=False)
        place = Location.parse(project.store.uri)
        raise_fence(project, MigrationMark("m1", "leaving", place, Location.parse(str(tmp_path / "new")), NOW))
        for name in ("numbers", "zeros"):
            with pytest.raises(ProjectMoved):
                Project(project.name, project.store).table(name).write(rows(8))


class TestTakingBack:
    def test_a_table_that_nobody_changed_is_as_it_was(self, project, table):
        table.revert("@1", hold=True, why="checked")
        before = table.history()[0].metadata_sha
        table.leave(dry_run=False)
        result = table.adopt()
        assert (result.change, result.version.metadata_sha) == ("none", before)
        again = Project(project.name, project.store).table("numbers")
        assert again.head().head.held
        again.verify().require_ok()
        again.release()
        again.write(rows(8))
        assert again.history()[0].facts.previous == before
        again.verify().require_ok()
        assert again.adopt() is None

    def test_what_others_committed_is_a_version(self, project, table):
        table.leave(dry_run=False)
        deltalake.write_deltalake(place_of(table), rows(5), mode="append")
        deltalake.DeltaTable(place_of(table)).create_checkpoint()
        again = Project(project.name, project.store).table("numbers")
        with pytest.raises(UnsupportedFeature, match="left to other programs"):
            again.write(rows(7))
        result = again.adopt(message="back")
        assert (result.change, result.version.identity.nrow) == ("full", 4)
        again.write(rows(7), options=TableOptions(mode="append"))
        assert sorted(again.read()["n"].to_pylist()) == [2, 3, 4, 5, 7]
        assert again.read("@0").num_rows == 2
        times = [version.timestamp for version in again.history()]
        assert times == sorted(times, reverse=True)
        assert times[0] - times[-1] < timedelta(hours=1)
        again.verify().require_ok()
        with pytest.raises(Exception, match=r"domainMetadata|inCommitTimestamp|[Ff]eature"):
            deltalake.write_deltalake(place_of(table), rows(9), mode="append")

    def test_former_names_and_partitions_come_back(self, project):
        table = project.table("days")
        table.write_partitions({"a": rows(1), "b": rows(2)})
        table.rename("nights", dry_run=False)
        moved = project.table("nights")
        moved.leave(dry_run=False)
        moved.adopt()
        assert sorted(moved.partitions()) == ["a", "b"]
        assert project.table("days").read(partition="b")["n"].to_pylist() == [2]
        moved.verify().require_ok()

    def test_of_partitions_that_others_changed_nothing_is_adopted_and_a_revert_is_possible(self, project):
        table = project.table("days")
        table.write_partitions({"a": rows(1), "b": rows(2)})
        table.leave(dry_run=False)
        deltalake.write_deltalake(place_of(table), rows(3), mode="append")
        with pytest.raises(InvalidInput, match="partitions cannot be adopted"):
            table.adopt()
        for key in ("a", "b"):
            table.revert(table.partitions()[key].metadata_sha, partition=key)
        assert sorted(table.read()["n"].to_pylist()) == [1, 2]

    def test_clustering_goes_and_a_write_brings_it_back(self, table):
        clustered = TableOptions(cluster_by=("n",))
        table.write(rows(1, 5), options=clustered)
        assert table.leave().dropped == ("clustering", "domainMetadata", "inCommitTimestamp")
        table.leave(dry_run=False)
        deltalake.write_deltalake(place_of(table), rows(6), mode="append")
        table.adopt()
        table.write(rows(1, 9), options=clustered)
        assert table.state.snapshot.domains["delta.clustering"]
        table.verify().require_ok()


class TestWhatStays:
    def test_features_that_the_rows_need_are_named(self, project):
        table = project.table("stamped")
        constraint = {"positive": "n > 0"}
        vectors = {"delta.enableDeletionVectors": "true"}
        table.write(rows(1), options=TableOptions(constraints=constraint, properties=vectors))
        report = table.leave(dry_run=False)
        assert report.features == ("checkConstraints", "deletionVectors")
        assert report.reader_features == ("deletionVectors",)
        assert deltalake.DeltaTable(place_of(table)).protocol().writer_features

    def test_a_domain_of_another_program_stays_with_its_feature(self, project, table):
        from dagster_versioned.delta.actions import DomainMetadata

        table.record_domain(DomainMetadata("org.example", "{}"))
        assert table.leave(dry_run=False).features == ("domainMetadata",)
        assert table.state.snapshot.domains == {"org.example": "{}"}
