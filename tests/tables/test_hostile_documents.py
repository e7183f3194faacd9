"""What somebody else put there: malformed members, forged derived documents, heads ahead of their log."""

import json
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_versioned.delta.commit.checkpoint import checkpoint_key, write_checkpoint
from dagster_versioned.delta.log.commits import commit_key
from dagster_versioned.errors import LogCorrupt, UnsupportedFeature
from dagster_versioned.identity.version import Identity
from dagster_versioned.projects.project import Project
from dagster_versioned.tables.documents.head import HeadDocument, Pending, head_key
from dagster_versioned.tables.history import CommitRecord
from dagster_versioned.tables.table import VersionedTable
from dagster_versioned.tables.version_index import index_key
from support.one_table import numbered
from support.stores import contents

SHA = "a" * 64


def commit_raw(table: VersionedTable, version: int, *actions: Mapping[str, Any], **info: Any) -> None:
    """Put a commit that only has to be JSON."""
    now = int(time.time() * 1000) + 1000 * version
    lines = [{"commitInfo": {"inCommitTimestamp": now, "timestamp": now, "operation": "X", **info}}, *actions]
    table.store.put(f"_delta_log/{version:020d}.json", "\n".join(map(json.dumps, lines)).encode())


def identity(**changed: Any) -> dict[str, Any]:
    whole = {"asset_key": ["t"], "data_sha": SHA, "schema": {"type": "struct", "fields": []}}
    return {"metadata_sha": SHA, "change": "full", "facts": {"created_at": "x"}, "identity": {**whole, **changed}}


MALFORMED = [
    ({"versions": 5}, "versions"),
    ({"versions": None}, "versions"),
    ({"versions": [5]}, "versions"),
    ({"versions": [{}]}, "change"),
    ({"versions": [{**identity(), "identity": 3}]}, "identity"),
    ({"versions": [{**identity(), "facts": None}]}, "facts"),
    ({"versions": [{**identity(), "metadata_sha": 5}]}, "metadata_sha"),
    ({"versions": [identity(data_sha="x")]}, "data_sha"),
    ({"versions": [identity(partition=["l"])]}, "partition"),
    ({"versions": [identity(partition="p" * 300)]}, "partition"),
    ({"versions": [identity(asset_key="abc")]}, "asset_key"),
    ({"versions": [identity(schema={"fields": [{}]})]}, "name"),
    ({"versions": [identity(parents=[{}])]}, "version"),
    ({"collect": "x"}, "collect"),
    ({"collect": {"id": 1}}, "id"),
    ({"collect": {"id": "i", "kind": "vacuum", "done": False, "paths": 5}}, "paths"),
    ({"collect": {"id": "i", "kind": "expire", "done": True, "versions": [{"log_version": "x"}]}}, "log_version"),
    ({"held": 3}, "held"),
    ({"partitions_sha": 7}, "partitions_sha"),
    ({"prev": 7}, "prev"),
]


@pytest.mark.parametrize(("member", "named"), MALFORMED)
def test_a_malformed_member_names_its_commit(table: VersionedTable, member: dict[str, Any], named: str) -> None:
    table.write(numbered(1))
    commit_raw(table, 1, dagsterVersioned=member)
    fresh = table.project.table(str(table.name))
    for attempt in (fresh.history, lambda: fresh.write(numbered(2)), lambda: fresh.read("abcdef12")):
        with pytest.raises(LogCorrupt, match=rf"0{{19}}1\.json, dagsterVersioned.*{named}"):
            attempt()
    report = fresh.verify()
    assert [finding.subject for finding in report.findings] == ["log"]
    with pytest.raises(LogCorrupt, match=named):
        CommitRecord(1, 0, SHA, "X", member, False)


def test_a_time_beyond_the_calendar_names_its_commit(table: VersionedTable) -> None:
    table.write(numbered(1))
    commit_raw(table, 1, inCommitTimestamp=10**17)
    with pytest.raises(LogCorrupt, match="inCommitTimestamp"):
        table.project.table("flights").history()
    assert not table.verify().ok
    with pytest.raises(LogCorrupt, match="timestamp"):
        CommitRecord(1, 10**17, SHA, "X", None, False)


HEAD = {"table": "t", "asset_key": ["t"], "log_version": 0, "metadata_sha": SHA, "data_sha": SHA, "timestamp": "x"}


@pytest.mark.parametrize(
    "document",
    [
        {"log_version": 0, "head": None, "pending": {"log_version": 99, "since": "garbage"}},
        {"log_version": 0, "head": None, "pending": {"log_version": 99, "since": "2026-01-01T00:00:00"}},
        {"log_version": 0, "head": None, "pending": [1]},
        {"log_version": 2**70, "head": None},
        {"log_version": 0},
        {"log_version": 0, "head": {**HEAD, "parents": "xyz"}},
        {"log_version": 0, "head": {**HEAD, "parents": [], "asset_key": "abc"}},
        {"log_version": 0, "head": {**HEAD, "parents": [], "held": 5}},
        [],
        5,
    ],
)
def test_a_head_that_is_none_stops_nobody(project: Project, document: Any) -> None:
    table = project.table("flights")
    table.write(numbered(1))
    project.data.put(head_key(table.name), json.dumps(document).encode())
    assert table.head().pending is not None
    assert not table.verify().ok
    assert table.resolve().head is not None
    assert table.verify().ok
    project.data.put(head_key(table.name), json.dumps(document).encode())
    assert table.write(numbered(2)).change == "full"
    assert table.verify().ok


@pytest.mark.parametrize(
    "told",
    [{"stats": "not json"}, {"stats": '{"numRecords":"x"}'}, {"tags": {"dagster_versioned/ordinal": "9" * 5000}}],
)
def test_what_an_add_tells_besides_its_file_refuses_no_read(table: VersionedTable, told: dict[str, Any]) -> None:
    table.write(numbered(1))
    table.write(numbered(2))
    key = table.files(0).scan.files[0].key
    size = table.store.head(key).size
    add = {"path": key, "partitionValues": {}, "size": size, "modificationTime": 1, "dataChange": True}
    commit_raw(table, 2, {"add": {**add, **told}})
    assert sorted(table.project.table("flights").read()["n"].to_pylist()) == [1, 2]


# --- derived documents that somebody changed


@pytest.fixture
def held(project: Project, every_fourth: None) -> VersionedTable:
    """A table whose newest commit is a hold, with a checkpoint and an index of it."""
    table = project.table("flights")
    for n in range(4):
        table.write(numbered(n), message=f"m{n}")
    table.revert(1, hold=True, why="do not rebuild")
    assert table.verify().ok
    table.repair()
    return table


def forge_checkpoint(table: VersionedTable) -> None:
    path = table.store.local_path(checkpoint_key(4))
    forged = pq.read_table(path)
    rows = [row for row in forged.to_pylist() if "held" not in str((row["domainMetadata"] or {}).get("domain"))]
    assert len(rows) == forged.num_rows - 1
    pq.write_table(pa.Table.from_pylist(rows, schema=forged.schema), path)


def forge_index(table: VersionedTable) -> None:
    path = table.store.local_path(index_key(4))
    forged = pq.read_table(path)
    rows = forged.to_pylist()
    info = json.loads(rows[2]["info"])
    entry = info["versions"][0]
    entry["identity"]["message"] = "FORGED"
    entry["metadata_sha"] = Identity.from_json(entry["identity"]).metadata_sha()
    rows[2]["info"] = json.dumps(info)
    pq.write_table(pa.Table.from_pylist(rows, schema=forged.schema), path)


def spoil(key: str) -> Callable[[VersionedTable], None]:
    return lambda table: table.store.put(key, b"garbage") and None


CHANGES: dict[str, tuple[str, Callable[[VersionedTable], None]]] = {
    "a checkpoint without the hold": (checkpoint_key(4), forge_checkpoint),
    "a garbage checkpoint": (checkpoint_key(4), spoil(checkpoint_key(4))),
    "a forged index": (index_key(4), forge_index),
    "a garbage index": (index_key(4), spoil(index_key(4))),
    "a garbage pointer": ("_delta_log/_last_checkpoint", spoil("_delta_log/_last_checkpoint")),
    "no pointer": ("_delta_log/_last_checkpoint", lambda table: table.store.delete(["_delta_log/_last_checkpoint"])),
    "no checkpoint": (checkpoint_key(4), lambda table: table.store.delete([checkpoint_key(4)])),
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_log_decides_over_what_is_derived(project: Project, held: VersionedTable, change: str) -> None:
    before = contents(project.store)
    history = held.history()
    key, spoiled = CHANGES[change]
    spoiled(held)
    assert contents(project.store) != before
    fresh = project.table("flights")
    assert fresh.read().equals(numbered(1))
    assert key in [finding.where for finding in fresh.verify().findings if finding.subject == "document"]
    fresh = project.table("flights")
    fresh.repair()
    assert fresh.verify().ok
    assert contents(project.store) == before
    head = fresh.head().head
    assert head is not None
    assert head.held is not None
    assert project.table("flights").history() == history


def test_an_index_that_no_publisher_wrote_is_taken_away(project: Project, held: VersionedTable) -> None:
    held.write(numbered(9), message="m9") if held.release() else None
    held.repair()
    before = contents(project.store)
    held.store.put(index_key(5), held.store.get(index_key(4)))
    assert [finding.where for finding in project.table("flights").verify().findings] == [index_key(5)]
    project.table("flights").repair()
    assert contents(project.store) == before


@pytest.mark.parametrize("partition", [None, "a"])
@pytest.mark.parametrize("by", ["resolve", "repair"])
def test_a_head_ahead_of_its_log_is_taken_back(project: Project, partition: str | None, by: str) -> None:
    gone = project.table("flights")
    for n in range(3):
        gone.write(numbered(n), partition=partition)
    gone.write(numbered(7), partition=partition and "b")
    document = project.data.get(head_key(gone.name))
    gone.store.delete([info.key for info in gone.store.list()])
    table = Project.open("NYC", project.store.uri).table("flights")
    table.write(numbered(77), partition=partition)
    project.data.put(head_key(table.name), document)
    assert not table.verify().ok
    getattr(table, by)()
    assert table.head().log_version == 0
    assert table.verify().ok
    assert partition is None or table.head(partition="b").head is None


def test_a_mark_beyond_the_log_outlives_a_repair(project: Project) -> None:
    table = project.table("flights")
    table.write(numbered(1))
    pending = Pending(9, datetime.now(UTC).isoformat())
    project.data.put(head_key(table.name), HeadDocument(7, table.head().head, pending).to_bytes())
    table.repair()
    assert table.head().log_version == 0
    assert table.head().pending == pending


def test_a_log_without_its_oldest_commits_says_so(project: Project) -> None:
    table = project.table("flights")
    table.write(numbered(1))
    table.write(numbered(2))
    write_checkpoint(table.store, table.state.snapshot)
    table.store.delete([commit_key(0)])
    fresh = project.table("flights")
    for attempt in (fresh.read, fresh.history, fresh.repair, lambda: fresh.write(numbered(3))):
        with pytest.raises(UnsupportedFeature, match="read_delta"):
            attempt()
    assert [finding.subject for finding in fresh.verify().findings] == ["log"]


def test_a_removal_hidden_by_a_write_elsewhere_is_found(table: VersionedTable) -> None:
    table.write(numbered(1), partition="x")
    table.write(numbered(2), partition="y")
    key = table.files(partition="x").scan.files[0].key
    commit_raw(table, 2, {"remove": {"path": key, "dataChange": True, "deletionTimestamp": 1}})
    table.write(numbered(3), partition="y")
    report = table.project.table("flights").verify()
    assert any("as of @3" in finding.where for finding in report.findings)


def test_an_expired_version_is_a_gap_and_no_finding(table: VersionedTable) -> None:
    sha = table.write(numbered(1)).version.metadata_sha
    table.write(numbered(2))
    table.expire(keep_last=1, dry_run=False)
    report = table.verify(sha)
    assert report.ok
    assert len(report.gaps) == 1
    assert not table.verify("abcdef99").ok


def test_a_writer_that_remembers_a_deleted_table_writes_to_the_new_one(project: Project) -> None:
    warm = project.table("flights")
    for n in range(3):
        warm.write(numbered(n))
    warm.store.delete([info.key for info in warm.store.list()])
    Project.open("NYC", project.store.uri).table("flights").write(numbered(77))
    assert warm.write(numbered(5)).version.log_version == 1
    fresh = project.table("flights")
    assert fresh.read().equals(numbered(5))
    fresh.resolve()
    assert fresh.verify().ok
