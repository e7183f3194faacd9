"""What a removed file leaves in the log's checkpoints and in memory: nothing, once no version needs the file."""

from pathlib import Path
from typing import Any

import deltalake
import pytest

from dagster_versioned.delta.commit.checkpoint import checkpoint_key, write_checkpoint
from dagster_versioned.delta.log.checkpoint_read import read_files
from dagster_versioned.delta.log.commits import read_commits
from dagster_versioned.delta.log.snapshot import load_snapshot, replayed
from dagster_versioned.projects.project import Project
from dagster_versioned.tables.documents import publish
from dagster_versioned.tables.maintenance import collect
from dagster_versioned.tables.table import VersionedTable
from support.interleaving import Died, Stepped
from support.one_table import numbered
from support.stores import contents


def tombstones(table: VersionedTable) -> set[str]:
    return set(table.state.snapshot.tombstones["key"].to_pylist())


def anew(table: VersionedTable) -> VersionedTable:
    return Project("NYC", table.project.store).table(str(table.name))


def removed(table: VersionedTable) -> set[str]:
    """The parts that the log ever named, but for those of the head."""
    commits = read_commits(table.store, 0, table.state.log_version)
    return {remove.key for commit in commits for remove in commit.removes}


def part(table: VersionedTable, version: int) -> str:
    return f"{table.version(version).data_sha}.parquet"


def test_tombstones_end_with_the_files_and_stay_with_those_of_claimed_versions(project: Project) -> None:
    table = project.table("flights")
    for n in range(6):
        table.write(numbered(n))
    project.pin("filed", "flights", table.version(2).metadata_sha)
    assert tombstones(table) == removed(table)
    table.expire(keep_last=1, dry_run=False)
    assert tombstones(table) == {part(table, 2)}
    again = anew(table)
    assert tombstones(again) == {part(table, 2)}
    write_checkpoint(again.store, again.state.snapshot)
    _, stored = read_files(again.store, checkpoint_key(again.state.log_version))
    assert set(stored["key"].to_pylist()) == {part(table, 2)}
    assert tombstones(anew(table)) == {part(table, 2)}
    project.unpin("filed")
    again.expire(keep_last=1, dry_run=False)
    assert tombstones(again) == set()
    assert tombstones(table) == set()


def test_other_programs_keep_off_the_files_of_claimed_versions_and_read_them(project: Project, tmp_path: Path) -> None:
    table = project.table("flights")
    for n in range(6):
        table.write(numbered(n))
    project.pin("filed", "flights", table.version(2).metadata_sha)
    table.expire(keep_last=1, dry_run=False)
    write_checkpoint(table.store, table.state.snapshot)
    folder = str(tmp_path / "store" / "datom" / "flights")
    assert deltalake.DeltaTable(folder).vacuum(dry_run=True, full=True) == []
    assert deltalake.DeltaTable(folder, version=2).to_pyarrow_table()["n"].to_pylist() == [2]
    assert deltalake.DeltaTable(folder).to_pyarrow_table()["n"].to_pylist() == [5]
    assert table.read("pin:filed")["n"].to_pylist() == [2]


def test_a_part_that_is_written_again_and_removed_again_has_a_tombstone_again(table: VersionedTable) -> None:
    for n in (0, 1):
        table.write(numbered(n))
    table.expire(keep_last=1, dry_run=False)
    assert tombstones(table) == set()
    for n in (0, 2):
        table.write(numbered(n))
    assert tombstones(table) == {part(table, 0), part(table, 1)}
    assert tombstones(anew(table)) == tombstones(table)


def test_a_collection_that_is_cancelled_ends_no_tombstone(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    table = project.table("flights")
    for n in (0, 1):
        table.write(numbered(n))
    with monkeypatch.context() as pinned_meanwhile:
        answers = iter([True, False])
        is_cancelled = collect.Collector._is_cancelled  # pyright: ignore[reportPrivateUsage]
        pinned_meanwhile.setattr(
            collect.Collector, "_is_cancelled", lambda self, one: next(answers) or is_cancelled(self, one)
        )
        # Cancelled once, and then collected.
        table.expire(keep_last=1, dry_run=False)
    first, cancelled, second, done = read_commits(table.store, 2, 5)
    assert [bool(one.forgotten) for one in (first, cancelled, second, done)] == [False, False, False, True]


def test_a_collector_that_dies_before_it_is_done_leaves_tombstones_to_who_ends_it(table: VersionedTable) -> None:
    for n in range(4):
        table.write(numbered(n))
    before = tombstones(table)
    store = Stepped(table.project.store)
    store.shared["before"] = lambda call: store.die() if call.verb == "delete" and ".parquet" in call.key else None
    with pytest.raises(Died):
        Project("NYC", store).table("flights").expire(keep_last=1, dry_run=False)
    assert tombstones(anew(table)) == before
    table.write(numbered(0))
    assert part(table, 1) not in tombstones(anew(table))


def test_the_tombstones_of_a_collection_that_may_still_be_cancelled_stay(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = project.table("flights")
    for n in range(3):
        table.write(numbered(n))
    before = tombstones(table)
    store = Stepped(table.project.store)
    store.shared["before"] = lambda call: store.die() if call.verb == "delete" and ".parquet" in call.key else None
    # Between the intent and the deletion there is no public step at which another collection could begin.
    run = collect.Collector._run  # pyright: ignore[reportPrivateUsage]

    def and_then_another_begins(*args: Any) -> Any:
        monkeypatch.undo()
        done = run(*args)
        with pytest.raises(Died):
            Project("NYC", store).table("flights").expire(keep_last=1, dry_run=False)
        return done

    monkeypatch.setattr(collect.Collector, "_run", and_then_another_begins)
    table.vacuum(dry_run=False)
    assert len(table.state.history.open_collections) == 1
    assert tombstones(table) == before


def test_tombstones_that_earlier_collections_left_end_with_the_next_one(
    table: VersionedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(4):
        table.write(numbered(n))
    with monkeypatch.context() as earlier:
        earlier.setattr(collect.Collector, "_unneeded", lambda *_: ())
        table.expire(keep_last=1, dry_run=False)
    assert len(tombstones(table)) == 3
    monkeypatch.setattr(collect, "FORGOTTEN_PER_COMMIT", 2)
    before = table.state.log_version
    table.vacuum(dry_run=False)
    assert tombstones(table) == set()
    assert table.state.log_version == before + 2
    assert [v.gone for v in table.history()] == [None, "expire", "expire", "expire"]
    assert table.verify().ok
    table.vacuum(dry_run=False)
    assert table.state.log_version == before + 2


def test_checkpoints_without_tombstones_are_what_the_log_says(
    table: VersionedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish, "CHECKPOINT_INTERVAL", 10)
    for n in range(25):
        table.write(numbered(n))
        if n % 6 == 5:
            anew(table).expire(keep_last=2, dry_run=False)
    assert len(tombstones(table)) < 8 < len(removed(table))
    assert table.verify().ok
    before = contents(table.store)
    table.repair()
    assert {key: data for key, data in contents(table.store).items() if "checkpoint" in key} == {
        key: data for key, data in before.items() if "checkpoint" in key
    }
    commits = read_commits(table.store, 0, table.state.log_version)
    for at in range(0, len(commits), 3):
        whole, loaded = replayed(commits[: at + 1]), load_snapshot(table.store, at)
        assert set(whole.tombstones["key"].to_pylist()) == set(loaded.tombstones["key"].to_pylist())
