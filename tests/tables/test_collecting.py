"""Expire, vacuum and purge: what they keep, what they say first, and how others see it."""

import os
import shutil
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_versioned.errors import CommitConflict, ExpiredVersion, IntegrityError, InvalidInput, LogCorrupt
from dagster_versioned.projects.project import Project
from dagster_versioned.storage import ObjectStore
from dagster_versioned.storage.wrappers import Call, CountingStore, StoreWrapper, Verb
from dagster_versioned.tables.history import Collection, Version
from dagster_versioned.tables.maintenance import collect, lease
from dagster_versioned.tables.options import TableOptions
from dagster_versioned.tables.parts import parts_of
from dagster_versioned.tables.table import VersionedTable
from dagster_versioned.tables.write.commit import CommitDraft
from support.remote_store import RemoteStore
from support.stores import contents

T = TypeVar("T")

PARTS = ("_delta_log", ".metadata")


def numbered(n: int) -> pa.Table:
    return pa.table({"n": [n]})


def parts(table: VersionedTable) -> set[str]:
    return set(contents(table.store, without=PARTS))


def test_expire_says_what_it_would_do_before_it_does_it(table: VersionedTable) -> None:
    for n in range(4):
        table.write(numbered(n))
    before = contents(table.project.store)
    plan = table.expire(keep_last=2)
    assert plan.dry_run
    assert contents(table.project.store) == before
    done = table.expire(keep_last=2, dry_run=False, why="retention")
    assert [v.log_version for v in done.versions] == [v.log_version for v in plan.versions] == [0, 1]
    assert set(done.keys) == set(plan.keys)
    assert len(parts(table)) == 2
    assert done.size_bytes == plan.size_bytes > 0


def test_an_expired_version_stays_in_the_history_and_says_so(table: VersionedTable) -> None:
    first = table.write(numbered(0)).version
    table.write(numbered(1))
    table.expire(keep_last=1, dry_run=False)
    assert [v.gone for v in table.history() if not v.is_foreign] == [None, "expire"]
    for reference in (first.metadata_sha, 0):
        with pytest.raises(ExpiredVersion, match="expired"):
            table.read(reference)
    with pytest.raises(ExpiredVersion):
        table.revert(0)
    report = table.verify()
    assert report.ok
    assert len(report.gaps) == 1


def test_parts_that_a_kept_version_shares_are_kept(table: VersionedTable) -> None:
    table.write(numbered(0), code_version="1")
    table.write(numbered(0), code_version="2")
    done = table.expire(keep_last=1, dry_run=False)
    assert len(done.versions) == 1
    assert done.keys == ()
    assert table.read().num_rows == 1


def test_pins_and_parents_of_kept_versions_are_kept_and_named(project: Project) -> None:
    source, derived = project.table("source"), project.table("derived")
    source.write(numbered(0))
    project.pin("filed", "source", why="audit")
    source.write(numbered(1))
    derived.write(numbered(9), parents=source.upstream())
    source.write(numbered(2))
    source.write(numbered(3))
    done = source.expire(keep_last=1, dry_run=False)
    assert [v.log_version for v in done.versions] == [2]
    assert sorted(done.kept.values()) == [f"a parent of derived {derived.version().short}", "pinned as 'filed'"]
    assert source.read("pin:filed").num_rows == 1


def test_parents_are_kept_whatever_the_project_was_opened_as(project: Project) -> None:
    source, derived = project.table("source"), project.table("derived")
    source.write(numbered(0))
    derived.write(numbered(9), parents=source.upstream())
    source.write(numbered(1))
    planned = Project("TYPO", project.store).table("source").expire(keep_last=1)
    assert planned.versions == ()
    assert source.read(0).num_rows == 1


def test_an_expired_version_cannot_be_pinned(project: Project) -> None:
    table = project.table("flights")
    first = table.write(numbered(0)).version
    table.write(numbered(1))
    table.expire(keep_last=1, dry_run=False)
    with pytest.raises(ExpiredVersion):
        project.pin("late", "flights", first.metadata_sha)
    assert project.pins() == {}


def test_partitions_keep_their_own_last_versions(table: VersionedTable) -> None:
    for n in range(3):
        table.write(numbered(n), partition="a")
    table.write(numbered(0), partition="b")
    table.expire(keep_last=1, dry_run=False)
    assert table.read().num_rows == 2
    assert len(parts(table)) == 2


def test_retention_by_age_counts_commit_times(table: VersionedTable) -> None:
    table.write(numbered(0))
    table.write(numbered(1))
    assert table.expire(older_than=datetime.now(UTC) - timedelta(days=1)).versions == ()
    assert len(table.expire(older_than=datetime.now(UTC) + timedelta(days=1)).versions) == 1


@pytest.mark.parametrize("arguments", [{}, {"keep_last": 0}, {"older_than": datetime(2024, 1, 1)}])
def test_expire_needs_a_retention(table: VersionedTable, arguments: dict[str, Any]) -> None:
    table.write(numbered(0))
    with pytest.raises(InvalidInput):
        table.expire(**arguments)


def test_vacuum_takes_old_orphans_and_staging_only(table: VersionedTable) -> None:
    table.write(numbered(0))
    table.store.put("a" * 64 + ".parquet", b"left by a writer that died")
    table.store.put("_staging/dead/part", b"left too")
    assert table.vacuum(min_age=timedelta(days=7)).keys == ()
    plan = table.vacuum(min_age=timedelta(0))
    assert set(plan.keys) == {"a" * 64 + ".parquet", "_staging/dead/part"}
    done = table.vacuum(min_age=timedelta(0), dry_run=False)
    assert done.keys == plan.keys
    assert len(parts(table)) == 1
    assert table.verify().ok


def test_rows_of_an_expired_version_can_be_written_again(table: VersionedTable) -> None:
    first = table.write(numbered(0)).version
    table.write(numbered(1))
    table.expire(keep_last=1, dry_run=False)
    again = table.write(numbered(0))
    assert again.version.metadata_sha == first.metadata_sha
    assert again.bytes_uploaded > 0
    assert table.read(first.metadata_sha).num_rows == 1
    assert table.verify().ok


def test_purge_deletes_named_bytes_and_records_why(table: VersionedTable) -> None:
    first = table.write(numbered(0)).version
    table.write(numbered(1))
    with pytest.raises(InvalidInput, match="reason"):
        table.purge([first.metadata_sha], why=" ")
    assert table.purge([first.metadata_sha], why="erasure request 12").dry_run
    table.purge([first.metadata_sha], why="erasure request 12", dry_run=False)
    assert len(parts(table)) == 1
    with pytest.raises(ExpiredVersion, match="purged"):
        table.read(first.metadata_sha)
    assert [c.why for c in table.state.history.collections if not c.done] == ["erasure request 12"]
    assert table.verify().ok


def test_purge_refuses_the_head_pins_and_shared_bytes(project: Project) -> None:
    table = project.table("flights")
    first = table.write(numbered(0), code_version="1").version
    table.write(numbered(0), code_version="2")
    with pytest.raises(InvalidInput, match="head"):
        table.purge([None], why="x")
    with pytest.raises(InvalidInput, match="also those of"):
        table.purge([first.metadata_sha], why="x")
    table.write(numbered(5))
    project.pin("keep", "flights", first.metadata_sha)
    with pytest.raises(InvalidInput, match="Unpin"):
        table.purge([first.metadata_sha, 1], why="x")


def test_a_writer_that_needs_collected_parts_waits_and_puts_them_again(table: VersionedTable) -> None:
    table.write(numbered(0))
    table.write(numbered(1))
    (part,) = table.expire(keep_last=1).keys
    open_collection(table, part)
    result = table.write(numbered(0))
    assert result.change == "full"
    assert table.verify().ok
    assert table.state.history.open_collections == ()


def test_a_writer_of_several_parts_waits_for_the_collection_of_one_of_them(table: VersionedTable) -> None:
    table.write_partitions({"a": numbered(0), "b": numbered(10)})
    table.write_partitions({"a": numbered(1), "b": numbered(11)})
    part, _ = table.expire(keep_last=1).keys
    open_collection(table, part)
    table.write_partitions({"a": numbered(0), "b": numbered(10)})
    assert table.state.history.open_collections == ()
    assert table.verify().ok


def test_a_collection_of_a_living_process_is_waited_for(table: VersionedTable) -> None:
    table.write(numbered(0))
    table.write(numbered(1))
    (part,) = table.expire(keep_last=1).keys
    collection = open_collection(table, part, owner=f"elsewhere {os.getpid()} 1")
    seen: list[str] = []

    def finish() -> None:
        time.sleep(0.6)
        seen.append("the end")
        with lease.Lease(collection.id) as held:
            table.project.table("flights").operations.collector()._delete_and_finish(collection, held)  # pyright: ignore[reportPrivateUsage]

    thread = threading.Thread(target=finish)
    thread.start()
    table.write(numbered(0))
    assert seen
    thread.join()
    assert table.verify().ok


def test_a_collection_that_nobody_finishes_is_taken_over(
    table: VersionedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "TAKEOVER", 0.5)
    table.write(numbered(0))
    table.write(numbered(1))
    (part,) = table.expire(keep_last=1).keys
    open_collection(table, part, owner="elsewhere 1 1")
    began = lease._now()  # pyright: ignore[reportPrivateUsage]
    table.write(numbered(0))
    assert lease._now() - began >= 0.5  # pyright: ignore[reportPrivateUsage]
    assert table.verify().ok


def test_a_version_pinned_between_plan_and_intent_cancels_the_collection(project: Project) -> None:
    table = project.table("flights")
    first = table.write(numbered(0)).version
    table.write(numbered(1))
    (part,) = table.expire(keep_last=1).keys
    collection = open_collection(table, part, versions=((0, None),), kind="expire")
    pins = {"late": {"table": "flights", "version": first.metadata_sha}}
    project.data.put(".metadata/pins.json", orjson.dumps(pins))
    with lease.Lease(collection.id) as held:
        deleted = table.operations.collector()._delete_and_finish(collection, held)  # pyright: ignore[reportPrivateUsage]
    assert deleted is None
    assert table.read("pin:late").num_rows == 1
    assert table.verify().ok
    assert table.verify().gaps == ()


def test_options_are_validated_by_name() -> None:
    with pytest.raises(InvalidInput, match="target_part_bytes"):
        TableOptions.from_metadata({"dagster_versioned/options": {"target_part_bytes": -1}})


def open_collection(
    table: VersionedTable,
    *paths: str,
    owner: str = "",
    versions: tuple[tuple[int, str | None], ...] = (),
    kind: str = "vacuum",
) -> Collection:
    """Commit an intent and stop there, as a collector that was killed would."""
    collection = Collection(
        id="11111111-1111-1111-1111-111111111111",
        kind=kind,
        log_version=table.state.log_version + 1,
        done=False,
        paths=frozenset(paths),
        versions=versions,
        owner=owner or lease.owner(),
        by=None,
        why=None,
    )
    draft = CommitDraft(kind.upper(), [], {"collect": collection.to_json()}, announces=False)
    table.commit_as_migration(lambda state, timestamp: draft)
    return collection


# Commits of other programs


def test_expire_gives_up_foreign_versions_once_and_ends(table: VersionedTable) -> None:
    table.write(numbered(0))
    replace_as_another_program(table, numbered(1))
    replace_as_another_program(table, numbered(2))
    table.write(numbered(3))
    done = table.expire(keep_last=1, dry_run=False)
    assert [v.log_version for v in done.versions] == [0, 1, 2]
    assert [v.gone for v in table.history()] == [None, "expire", "expire", "expire"]
    assert len(parts(table)) == 1
    assert table.expire(keep_last=1, dry_run=False).versions == ()


def test_purge_of_a_foreign_version_takes_that_one_only(table: VersionedTable) -> None:
    table.write(numbered(0))
    replace_as_another_program(table, numbered(1))
    replace_as_another_program(table, numbered(2))
    table.write(numbered(3))
    done = table.purge(["@1"], why="erasure", dry_run=False)
    assert [v.log_version for v in done.versions] == [1]
    assert len(done.keys) == 1
    assert table.read("@2").column("n").to_pylist() == [2]
    assert [v.gone for v in table.history()] == [None, None, "purge", None]


def test_rows_of_a_foreign_version_are_compared_not_those_of_the_head(table: VersionedTable) -> None:
    table.write(numbered(0))
    replace_as_another_program(table, numbered(1))
    table.write(numbered(2))
    difference = table.diff_rows("@1", None, key=["n"])
    assert difference.removed.column("n").to_pylist() == [1]


# More paths than one intent may name


def many_parts(table: VersionedTable) -> Version:
    """A version of five parts, with a head of one part after it."""
    options = TableOptions(target_part_bytes=1, row_group_bytes=8)
    version = table.write(pa.table({"n": [1, 2, 3, 4, 5]}), options=options).version
    assert version.facts.part_count == 5
    table.write(numbered(9))
    return version


@pytest.mark.parametrize("kind", ["expire", "purge"])
def test_a_collection_of_more_paths_than_an_intent_names_deletes_all(
    table: VersionedTable, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(collect, "PATHS_PER_INTENT", 2)
    old = many_parts(table)
    done = collected(table, kind, old)
    assert len(done.keys) == 5
    assert [v.metadata_sha for v in done.versions] == [old.metadata_sha]
    assert len(parts(table)) == 1
    intents = [c for c in table.state.history.collections if not c.done]
    assert [len(c.paths) for c in intents] == [2, 2, 1]
    assert [len(c.versions) for c in intents] == [1, 0, 0]
    assert table.verify().ok


@pytest.mark.parametrize("kind", ["expire", "purge"])
def test_what_is_written_again_between_two_intents_is_kept(
    table: VersionedTable, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(collect, "PATHS_PER_INTENT", 2)
    old = many_parts(table)
    finish = collect.Collector._delete_and_finish  # pyright: ignore[reportPrivateUsage]
    written: list[Version] = []

    def finish_and_write(self: collect.Collector, collection: Collection, held: lease.Lease) -> frozenset[str] | None:
        deleted = finish(self, collection, held)
        if not written:
            written.append(many_parts(Project("NYC", table.project.store).table("flights")))
        return deleted

    monkeypatch.setattr(collect.Collector, "_delete_and_finish", finish_and_write)
    done = collected(table, kind, old)
    assert len(done.keys) == 2
    assert table.read(old.metadata_sha).num_rows == 5
    assert table.verify().ok


def test_purge_again_finishes_a_purge_that_died_between_two_intents(
    table: VersionedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collect, "PATHS_PER_INTENT", 2)
    old = many_parts(table)
    finish = collect.Collector._delete_and_finish  # pyright: ignore[reportPrivateUsage]

    def finish_and_die(self: collect.Collector, collection: Collection, held: lease.Lease) -> bool:
        finish(self, collection, held)
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr(collect.Collector, "_delete_and_finish", finish_and_die)
        with pytest.raises(KeyboardInterrupt):
            collected(table, "purge", old)
    assert len(parts(table)) == 4
    assert len(collected(table, "purge", old).keys) == 3
    assert len(parts(table)) == 1
    log_version = table.state.log_version
    assert collected(table, "purge", old).keys == ()
    assert table.state.log_version == log_version


# Lineage inside one table


def test_parents_in_the_same_table_are_kept_as_long_as_their_children(table: VersionedTable) -> None:
    monday = table.write(numbered(1), partition="monday").version
    upstream = table.upstream(partition="monday")
    tuesday = table.write(numbered(2), partition="tuesday", parents=upstream).version
    table.write(numbered(3), partition="wednesday", parents=table.upstream(partition="tuesday"))
    table.write(numbered(4), partition="tuesday")
    table.write(numbered(5), partition="monday")
    done = table.expire(keep_last=1, dry_run=False)
    assert done.versions == ()
    assert set(done.kept) == {monday.short, tuesday.short}
    table.write(numbered(6), partition="wednesday")
    done = table.expire(keep_last=1, dry_run=False)
    assert len(done.versions) == 3
    assert table.read().num_rows == 3


# What a log may say, and what is deleted because of it


@pytest.mark.parametrize(
    "path",
    [
        "_delta_log/00000000000000000000.json",
        "_DELTA_LOG/00000000000000000000.json",
        ".metadata/version_history.json",
        "_staging/w/part",
        "blocks/x",
        "refs/x",
        "checkpoints/x",
        "../other/part.parquet",
        "",
    ],
)
def test_a_collection_that_names_anything_but_data_is_refused(table: VersionedTable, path: str) -> None:
    table.write(numbered(0))
    table.write(numbered(1))
    before = contents(table.store)
    with pytest.raises(LogCorrupt, match="collect"):
        open_collection(table, path)
    fresh = Project("NYC", table.project.store).table("flights")
    with pytest.raises(LogCorrupt, match="nothing was deleted"):
        fresh.vacuum(dry_run=False)
    assert before.items() <= contents(table.store).items()


@pytest.mark.parametrize(
    "raw",
    [
        "x",
        {"id": 1},
        {"id": "i", "kind": "vacuum", "done": False, "paths": 5},
        {"id": "i", "kind": "vacuum", "done": False, "paths": [5]},
        {"id": "i", "kind": "expire", "done": False, "versions": [{"log_version": "x"}]},
        {"id": "i", "kind": "expire", "done": False, "versions": [3]},
    ],
)
def test_a_collection_that_is_malformed_is_a_corrupt_log(raw: Any) -> None:
    with pytest.raises(LogCorrupt, match=r"00000000000000000007\.json"):
        Collection.from_json(raw, 7)


def test_parts_below_column_folders_may_be_collected() -> None:
    raw = {"id": "i", "kind": "vacuum", "done": False, "paths": [f"day=1/{'a' * 64}.parquet", "left over.csv"]}
    assert Collection.from_json(raw, 7).paths == set(raw["paths"])


def test_finishing_a_collection_spares_what_versions_need(table: VersionedTable) -> None:
    table.write(numbered(0))
    table.write(numbered(1))
    needed = sorted(parts(table))
    orphan = "a" * 64 + ".parquet"
    table.store.put(orphan, b"left")
    collection = open_collection(table, *needed, orphan)
    table.operations.collector().settle(collection)
    assert parts(table) == set(needed)
    assert table.state.history.open_collections == ()
    assert table.verify().ok


# Leases


def test_who_was_second_to_take_a_collection_over_deletes_nothing(
    table: VersionedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.write(numbered(0))
    table.write(numbered(1))
    (part,) = table.expire(keep_last=1).keys
    data = table.store.get(part)
    collection = open_collection(table, part, owner="elsewhere 1 1", versions=((0, None),), kind="expire")

    def slowly(*_: object) -> bool:
        monkeypatch.setattr(collect, "wait_until_free", lambda *_: True)
        fresh = Project("NYC", table.project.store).table("flights")
        fresh.operations.collector().settle(collection)
        assert len(parts(table)) == 1
        table.store.put(part, data)  # a writer is about to commit it again
        return True

    monkeypatch.setattr(collect, "wait_until_free", slowly)
    table.operations.collector().settle(collection)
    assert part in parts(table)


def test_the_lease_is_looked_at_before_each_batch(table: VersionedTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "PATHS_PER_DELETE", 2)
    many_parts(table)
    asked: list[bool] = []

    def once(_: lease.Lease) -> bool:
        asked.append(not asked)
        return asked[-1]

    with monkeypatch.context() as expiring:
        expiring.setattr(lease.Lease, "is_valid", property(once))
        with pytest.raises(CommitConflict, match="stalled"):
            table.expire(keep_last=1, dry_run=False)
    assert len(parts(table)) == 4
    (left,) = table.state.history.open_collections
    table.operations.collector().settle(left)
    assert len(parts(table)) == 1


def test_what_a_lease_is_too_short_for_is_announced_anew(
    table: VersionedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collect, "PATHS_PER_DELETE", 2)
    clock = Clock(monkeypatch)
    old = many_parts(table)
    slow = HookedCalls(table.project.store, lambda call: clock.wait(lease.DELETING if call.verb == "delete" else 0))
    done = Project("NYC", slow).table("flights").expire(keep_last=1, dry_run=False)
    assert len(done.keys) == 5
    assert len(parts(table)) == 1
    intents = [c for c in table.state.history.collections if not c.done]
    assert [len(c.paths) for c in intents] == [5, 3, 1]
    assert [len(c.versions) for c in intents] == [1, 0, 0]
    assert table.state.history.open_collections == ()
    assert table.verify().ok
    with pytest.raises(ExpiredVersion):
        table.read(old.metadata_sha)


def test_one_batch_that_began_in_time_ends_before_others_take_over() -> None:
    assert lease.DELETING + lease.BATCH < lease.TAKEOVER


@pytest.mark.parametrize("hidden", [PermissionError(13, "hidepid=1"), FileNotFoundError(2, "hidepid=2")])
def test_a_process_that_cannot_be_seen_counts_as_alive(monkeypatch: pytest.MonkeyPatch, hidden: OSError) -> None:
    me = lease.owner()
    read_text = Path.read_text

    def hide(self: Path, *arguments: Any, **named: Any) -> str:
        if self.name == "stat":
            raise hidden
        return read_text(self, *arguments, **named)

    monkeypatch.setattr(Path, "read_text", hide)
    assert lease.owner() != me
    assert not lease._is_dead("id", me)  # pyright: ignore[reportPrivateUsage]


def test_a_process_that_is_gone_counts_as_dead() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    machine = lease._machine()  # pyright: ignore[reportPrivateUsage]
    assert lease._is_dead("id", f"{machine} {process.pid} 1")  # pyright: ignore[reportPrivateUsage]
    assert lease._is_dead("id", f"{machine} {os.getpid()} 1")  # pyright: ignore[reportPrivateUsage]
    assert not lease._is_dead("id", f"{machine} {10**30} 1")  # pyright: ignore[reportPrivateUsage]


class Clock:
    """The clock of leases, which goes on only when a test waits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(lease, "_now", lambda: self.now)

    def wait(self, seconds: float) -> None:
        self.now += seconds


class HookedCalls(StoreWrapper):
    """Calls ``before`` with every call."""

    def __init__(self, store: ObjectStore, before: Callable[[Call], object]) -> None:
        super().__init__(store)
        self.before = before

    def _around(self, verb: Verb, key: str, size: int, action: Callable[[], T]) -> T:
        self.before(Call(0, verb, key, size))
        return action()


# Looking at the other tables


def family(project: Project, children: int) -> tuple[VersionedTable, list[Version]]:
    """A table of which each other table's kept version names another version as its parent; one is nobody's parent."""
    table = project.table("source")
    versions: list[Version] = []
    for n in range(children):
        versions.append(table.write(numbered(n)).version)
        child = project.table(f"child{n}")
        child.write(numbered(n), parents=table.upstream())
    versions.append(table.write(numbered(children)).version)
    table.write(numbered(children + 1))
    return table, versions


def test_expire_takes_its_lease_with_its_intent_however_long_the_other_tables_take(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    table, versions = family(project, 3)
    slow = HookedCalls(project.store, lambda call: clock.wait(lease.DELETING if "/child" in call.key else 0))
    done = Project("NYC", slow).table("source").expire(keep_last=1, dry_run=False)
    assert [v.metadata_sha for v in done.versions] == [versions[-1].metadata_sha]
    assert len(done.keys) == 1
    assert len(done.kept) == 3
    assert not table.store.local_path(done.keys[0]).exists()  # pyright: ignore[reportOptionalMemberAccess]
    assert table.state.history.open_collections == ()
    assert table.verify().ok


@pytest.mark.parametrize("is_remote", [False, True])
def test_expire_opens_each_other_table_once(project: Project, tmp_path: Path, is_remote: bool) -> None:
    family(project, 4)
    store = CountingStore(RemoteStore(tmp_path / "store") if is_remote else project.store)
    done = Project("NYC", store).table("source").expire(keep_last=1, dry_run=False)
    assert len(done.keys) == 1
    first = [call.key for call in store.calls if call.key.endswith("/_delta_log/00000000000000000000.json")]
    opened = [call.key for call in store.calls if "/child" in call.key and call.verb == "list"]
    per_table = {f"child{n}": sum(f"/child{n}/" in key for key in opened) for n in range(4)}
    once = CountingStore(store._store)  # pyright: ignore[reportPrivateUsage]
    assert Project("NYC", once).table("child0").exists()
    assert set(per_table.values()) == {once.count("list")}
    assert all(sum(f"/child{n}/" in key for key in first) <= 3 for n in range(4))


def test_a_child_that_is_written_while_expire_looks_keeps_its_parent(project: Project) -> None:
    table, versions = family(project, 2)
    upstream = table.upstream(versions[-1].metadata_sha)
    written: list[object] = []

    def write_child(call: Call) -> None:
        if call.verb == "put_if_absent" and "/source/_delta_log/" in call.key and not written:
            written.append(call)
            project.table("child1").write(numbered(77), parents=upstream)

    done = Project("NYC", HookedCalls(project.store, write_child)).table("source").expire(keep_last=1, dry_run=False)
    assert written
    assert done.versions == ()
    assert table.read(versions[-1].metadata_sha).num_rows == 1
    assert [c.cancelled for c in table.state.history.collections] == [False, True]


def test_a_new_table_that_is_written_while_expire_looks_keeps_its_parent(project: Project) -> None:
    table, versions = family(project, 2)
    upstream = table.upstream(versions[-1].metadata_sha)
    written: list[object] = []

    def write_child(call: Call) -> None:
        if call.verb == "put_if_absent" and "/source/_delta_log/" in call.key and not written:
            written.append(call)
            project.table("late").write(numbered(77), parents=upstream)

    done = Project("NYC", HookedCalls(project.store, write_child)).table("source").expire(keep_last=1, dry_run=False)
    assert done.versions == ()
    assert table.read(versions[-1].metadata_sha).num_rows == 1


@pytest.mark.slow
def test_expire_ends_in_a_project_of_a_thousand_tables_and_ten_thousand_versions(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    table, child = project.table("source"), project.table("child")
    for n in range(20):
        table.write(numbered(n))
        if n < 10:
            child.write(numbered(n), parents=table.upstream())
    folder = tmp_path / "store" / "datom"
    for n in range(998):
        shutil.copytree(folder / "child", folder / f"child{n}")
    store = HookedCalls(RemoteStore(tmp_path / "store"), lambda call: clock.wait(0.05))
    done = Project("NYC", store).table("source").expire(keep_last=5, dry_run=False)
    assert len(done.versions) == 5
    assert len(done.kept) == 10
    assert len(parts(table)) == 15
    assert table.state.history.open_collections == ()


def test_purge_does_not_look_at_other_tables(project: Project) -> None:
    _, versions = family(project, 2)
    store = CountingStore(project.store)
    done = Project("NYC", store).table("source").purge([versions[0].metadata_sha], why="erasure", dry_run=False)
    assert len(done.keys) == 1
    assert not [call.key for call in store.calls if "/child" in call.key]


# What else lies in a project


@pytest.mark.parametrize("key", ["my.table/_delta_log/x", "other/_delta_log/x.tmp", "other/_delta_log/0.json"])
def test_a_folder_that_is_no_table_does_not_disable_the_project(project: Project, key: str) -> None:
    table = project.table("flights")
    table.write(numbered(0))
    table.write(numbered(1))
    project.data.put(key, b"")
    assert project.tables() == ["flights"]
    assert len(table.expire(keep_last=1, dry_run=False).versions) == 1


def test_a_table_that_cannot_be_read_stops_expire(project: Project) -> None:
    table = project.table("flights")
    table.write(numbered(0))
    table.write(numbered(1))
    project.data.put("other/_delta_log/00000000000000000003.json", b"")
    with pytest.raises(IntegrityError):
        table.expire(keep_last=1, dry_run=False)


@pytest.mark.parametrize(
    "pin",
    [
        {"table": "flights", "version": 5},
        {"table": "flights", "version": ""},
        {"table": "flights", "version": "a" * 12},
        {"table": "flights", "version": "A" * 64},
        {"table": ["flights"], "version": "a" * 64},
        {"table": "flights", "version": "a" * 64, "why": 5},
        None,
    ],
)
def test_pins_that_cannot_be_understood_are_refused_by_reads_and_by_expire(project: Project, pin: Any) -> None:
    table = project.table("flights")
    table.write(numbered(0))
    table.write(numbered(1))
    project.data.put(".metadata/pins.json", orjson.dumps({"x": pin}))
    with pytest.raises(IntegrityError, match=r"pins\.json"):
        table.read("pin:x")
    with pytest.raises(IntegrityError, match=r"pins\.json"):
        table.expire(keep_last=1)


def collected(table: VersionedTable, kind: str, old: Version) -> collect.CollectionReport:
    if kind == "expire":
        return table.expire(keep_last=1, dry_run=False)
    return table.purge([old.metadata_sha], why="erasure", dry_run=False)


def replace_as_another_program(table: VersionedTable, frame: pa.Table) -> None:
    """What a Delta writer that knows nothing of versions would commit to overwrite the table."""
    name = f"part-00000-{uuid.uuid4()}.snappy.parquet"
    path = table.store.local_path(name)
    assert path is not None
    pq.write_table(frame, path)
    state = table.state
    now = max(time.time_ns() // 1_000_000, state.snapshot.timestamp_ms + 1)
    lines: list[dict[str, Any]] = [
        {"commitInfo": {"inCommitTimestamp": now, "timestamp": now, "operation": "WRITE"}},
        *({"remove": {"path": a.path, "dataChange": True, "deletionTimestamp": now}} for a in parts_of(state.snapshot)),
        {
            "add": {
                "path": name,
                "partitionValues": {},
                "size": path.stat().st_size,
                "modificationTime": now,
                "dataChange": True,
            }
        },
    ]
    data = b"\n".join(orjson.dumps(line) for line in lines) + b"\n"
    table.store.put_if_absent(f"_delta_log/{state.log_version + 1:020d}.json", data)
