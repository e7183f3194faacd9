"""Dropping takes versions out of a table and no byte out of the store, and can be taken back until bytes expire."""

from datetime import timedelta

import pyarrow as pa
import pytest

from dagster_versioned.errors import (
    CommitConflict,
    ExpiredVersion,
    HeldHead,
    InvalidInput,
    TableNotFound,
    VersionNotFound,
)
from dagster_versioned.projects.project import Project
from dagster_versioned.projects.staleness import MemberCell, Need, TableHeads, find
from dagster_versioned.tables.documents.head import head_key, read_head
from dagster_versioned.tables.partitioning import Partitioning
from dagster_versioned.tables.table import VersionedTable
from support.crashes import append_as_another_program
from support.stores import contents

DAYS = Partitioning.time_windows("daily")


@pytest.fixture
def parted(table: VersionedTable) -> VersionedTable:
    for n in range(3):
        table.write(pa.table({"n": [n]}), partition=f"2026-10-0{n + 1}", partitioning=DAYS)
    return table


def _parts(table: VersionedTable) -> set[str]:
    return {info.key for info in table.store.list() if info.key.endswith(".parquet") and "/" not in info.key}


def test_a_dropped_partition_is_read_no_more_and_its_bytes_are_kept(parted: VersionedTable) -> None:
    bytes_before = _parts(parted)
    report = parted.drop_partitions(["2026-10-02"], dry_run=False, why="wrong feed")
    assert report.partitions == ("2026-10-02",)
    assert parted.read().to_pydict() == {"n": [0, 2]}
    assert sorted(parted.partitions()) == ["2026-10-01", "2026-10-03"]
    with pytest.raises(VersionNotFound):
        parted.read(partition="2026-10-02")
    assert _parts(parted) == bytes_before
    newest = parted.history(partition="2026-10-02")[0]
    assert (newest.operation, newest.is_drop, newest.is_foreign) == ("DROP PARTITION", True, False)
    assert parted.verify().ok


def test_a_dry_run_says_what_would_go_and_changes_nothing(parted: VersionedTable) -> None:
    before = contents(parted.project.store)
    assert parted.drop_partitions(["2026-10-02"]).partitions == ("2026-10-02",)
    assert len(parted.drop().versions) == 3
    assert contents(parted.project.store) == before


def test_a_dropped_partition_comes_back_by_revert_or_by_a_write(parted: VersionedTable) -> None:
    old = parted.version(partition="2026-10-02")
    parted.drop_partitions(["2026-10-02", "2026-10-03"], dry_run=False)
    assert parted.revert(old.metadata_sha).version.metadata_sha == old.metadata_sha
    parted.write(pa.table({"n": [9]}), partition="2026-10-03")
    assert parted.read().to_pydict() == {"n": [0, 1, 9]}
    assert parted.verify().ok


def test_the_whole_table_has_another_sha_without_the_partition_which_reads_it(parted: VersionedTable) -> None:
    before = parted.state.history.whole.metadata_sha
    parted.drop_partitions(["2026-10-02"], dry_run=False)
    after = parted.state.history.whole.metadata_sha
    assert before != after
    parted.write(pa.table({"n": [9]}), partition="2026-10-02")
    assert parted.read(after).to_pydict() == {"n": [0, 2]}
    assert parted.read(before).to_pydict() == {"n": [0, 1, 2]}


def test_whoever_reads_heads_sees_no_dropped_partition(parted: VersionedTable) -> None:
    parted.drop_partitions(["2026-10-02"], dry_run=False)
    document = parted.head()
    assert document.head is not None
    assert (document.log_version, document.head.partitions) == (3, 2)
    assert set(TableHeads.at(parted).partitions) == {"2026-10-01", "2026-10-03"}
    assert parted.state.history.until(2).heads.keys() == {"2026-10-01", "2026-10-02", "2026-10-03"}
    parted.repair()
    assert parted.head() == document
    assert parted.verify().ok


def test_what_cannot_be_dropped_is_refused_and_nothing_changes(parted: VersionedTable) -> None:
    before = contents(parted.project.store)
    with pytest.raises(VersionNotFound, match="no partition '2026-10-09'"):
        parted.drop_partitions(["2026-10-01", "2026-10-09"], dry_run=False)
    with pytest.raises(InvalidInput, match="No partition is named"):
        parted.drop_partitions([], dry_run=False)
    assert contents(parted.project.store) == before
    parted.revert("@0", partition="2026-10-01", hold=True, why="audit")
    for drop in (lambda: parted.drop(dry_run=False), lambda: parted.drop_partitions(["2026-10-01"], dry_run=False)):
        with pytest.raises(HeldHead, match="audit"):
            drop()


def test_a_dropped_table_says_who_dropped_it_and_is_read_by_version_only(
    project: Project, rows: pa.Table, more: pa.Table
) -> None:
    table = project.table("flights")
    table.write(rows)
    table.write(more)
    table.drop(dry_run=False, why="never used")
    fresh = Project("NYC", project.store).table("flights")
    for read in (fresh.read, fresh.version, fresh.files, fresh.upstream, fresh.drop):
        with pytest.raises(TableNotFound, match=r"flights was dropped by Ada .*never used.*restore flights"):
            read()
    assert fresh.read("@1").equals(more)
    assert project.tables() == ["flights"]
    assert read_head(project.data, head_key(table.name)).head is None
    assert b"flights" not in project.data.get(".metadata/manifest.json")
    assert fresh.verify().ok
    fresh.repair()
    assert fresh.verify().ok


@pytest.mark.parametrize("parts", [None, DAYS])
def test_restore_takes_a_drop_back_with_the_same_identities(
    table: VersionedTable, rows: pa.Table, parts: Partitioning | None
) -> None:
    keys = [None] if parts is None else ["2026-10-01", "2026-10-02"]
    for key in keys:
        table.write(rows, partition=key, partitioning=parts)
    before = table.state.history
    read = table.read()
    table.drop(dry_run=False)
    assert table.restore()
    assert not table.restore()
    after = table.state.history
    assert {k: v.metadata_sha for k, v in after.heads.items()} == {k: v.metadata_sha for k, v in before.heads.items()}
    assert table.read().equals(read)
    assert table.verify().ok
    if parts is not None:
        with pytest.raises(InvalidInput, match="would overlap"):
            table.write(rows, partition="2026-11-01", partitioning=Partitioning.time_windows("monthly"))


def test_what_was_built_from_it_is_current_after_a_restore_though_the_project_got_another_name_meanwhile(
    project: Project, rows: pa.Table
) -> None:
    source = project.table("source")
    source.write(rows)
    project.table("derived").write(rows, parents=source.upstream())
    source.drop(dry_run=False)
    renamed = project.rename("other")
    assert renamed.table("source").restore()
    need = Need("source", ("other", "source"), TableHeads.at(renamed.table("source")))
    assert find("derived", None, [MemberCell(TableHeads.at(renamed.table("derived")), None, [need], None)]) is None


def test_a_restore_is_refused_where_another_program_committed_since(
    project: Project, table: VersionedTable, rows: pa.Table, more: pa.Table
) -> None:
    table.write(rows)
    table.drop(dry_run=False)
    append_as_another_program(table, more)
    log_version = table.state.log_version
    with pytest.raises(InvalidInput, match="another program committed"):
        table.restore()
    assert table.state.log_version == log_version
    assert table.verify().ok
    table.adopt()
    assert table.read().equals(more)
    table.revert("@0")
    assert table.read().equals(rows)
    assert table.verify().ok


def test_the_next_write_begins_another_table_in_the_same_log(table: VersionedTable, rows: pa.Table) -> None:
    table.write(rows, partition="2026-10-01", partitioning=DAYS)
    table.drop(dry_run=False)
    whole = table.write(pa.table({"other": [1.5]}))
    assert whole.version.log_version == 2
    assert table.read().to_pydict() == {"other": [1.5]}
    assert table.read("@0").equals(rows)
    assert not table.restore()
    with pytest.raises(InvalidInput, match="repartition"):
        table.revert("@0")
    assert table.verify().ok


def test_a_dropped_table_expires_counting_from_the_drop_and_is_then_not_restored(
    table: VersionedTable, rows: pa.Table
) -> None:
    table.write(rows)
    soon = table.version().timestamp + timedelta(milliseconds=1)
    table.drop(dry_run=False)
    assert table.expire(older_than=soon).versions == ()
    assert table.vacuum(min_age=timedelta(0)).keys == ()
    done = table.expire(keep_last=1, dry_run=False)
    assert len(done.versions) == 1
    assert not _parts(table)
    with pytest.raises(ExpiredVersion, match="not kept since"):
        table.restore()
    assert table.verify().ok
    assert table.write(rows).change == "full"
    assert table.verify().ok


def test_what_others_were_built_from_outlives_the_drop(project: Project, rows: pa.Table) -> None:
    source, derived = project.table("source"), project.table("derived")
    source.write(rows)
    derived.write(rows.slice(1), parents=source.upstream())
    source.drop(dry_run=False)
    kept = source.expire(keep_last=1, dry_run=False)
    assert kept.versions == ()
    assert "derived" in next(iter(kept.kept.values()))
    assert source.restore()


def test_a_dropped_version_is_purged_at_once(table: VersionedTable, rows: pa.Table) -> None:
    table.write(rows)
    table.drop(dry_run=False)
    table.purge(["@0"], why="erasure", dry_run=False)
    assert not _parts(table)


@pytest.mark.parametrize("verb", ["drop", "restore"])
def test_a_write_that_began_before_is_refused_and_writes_nothing(
    project: Project, rows: pa.Table, more: pa.Table, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    table, other = project.table("flights"), project.table("flights")
    table.write(rows)
    if verb == "restore":
        other.drop(dry_run=False)
        table.state  # noqa: B018 -- the writer has seen the drop
    change = table.operations.change

    def overtaken(draft, **given):
        other.drop(dry_run=False) if verb == "drop" else other.restore()
        return change(draft, **given)

    monkeypatch.setattr(table.operations, "change", overtaken)
    with pytest.raises(CommitConflict, match=rf"\({'log version 1: DROP' if verb == 'drop' else 'log version 2: RES'}"):
        table.write(more)
    assert table.state.log_version == (1 if verb == "drop" else 2)
    monkeypatch.undo()
    assert table.write(more).change == "full"
