"""Expire, vacuum and purge: what they keep, what they say first, and how others see it."""

import os
import threading
import time
from datetime import UTC, datetime, timedelta

import orjson
import pyarrow as pa
import pytest

from dagster_versioned.errors import ExpiredVersion, InvalidInput
from dagster_versioned.tables import lease
from dagster_versioned.tables.commit import Draft
from dagster_versioned.tables.history import Collection
from dagster_versioned.tables.options import TableOptions
from dagster_versioned.tables.project import Project
from dagster_versioned.tables.table import VersionedTable
from support.stores import contents

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
    done = Project("TYPO", project.store).table("source").expire(keep_last=1, dry_run=False)
    assert done.versions == ()
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


@pytest.mark.parametrize("arguments", [{}, {"keep_last": 0}])
def test_expire_needs_a_retention(table: VersionedTable, arguments: dict[str, int]) -> None:
    table.write(numbered(0))
    with pytest.raises(InvalidInput):
        table.expire(**arguments)  # type: ignore[arg-type]


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


def test_a_collection_of_a_living_process_is_waited_for(table: VersionedTable) -> None:
    table.write(numbered(0))
    table.write(numbered(1))
    (part,) = table.expire(keep_last=1).keys
    collection = open_collection(table, part, owner=f"elsewhere {os.getpid()} 1")
    seen: list[float] = []

    def finish() -> None:
        time.sleep(0.6)
        seen.append(time.monotonic())
        with lease.Lease(collection.id) as held:
            table.project.table("flights")._collector()._delete_and_finish(collection, held)  # pyright: ignore[reportPrivateUsage]

    thread = threading.Thread(target=finish)
    thread.start()
    table.write(numbered(0))
    thread.join()
    assert seen
    assert time.monotonic() >= seen[0]
    assert table.verify().ok


def test_a_collection_that_nobody_finishes_is_taken_over(
    table: VersionedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "TAKEOVER", 0.5)
    table.write(numbered(0))
    table.write(numbered(1))
    (part,) = table.expire(keep_last=1).keys
    open_collection(table, part, owner="elsewhere 1 1")
    began = time.monotonic()
    table.write(numbered(0))
    assert time.monotonic() - began >= 0.5
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
        assert table._collector()._delete_and_finish(collection, held)  # pyright: ignore[reportPrivateUsage]
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
    draft = Draft(kind.upper(), [], {"collect": collection.to_json()}, announces=False)
    table._commit(lambda state, timestamp: draft)  # pyright: ignore[reportPrivateUsage]
    return collection
