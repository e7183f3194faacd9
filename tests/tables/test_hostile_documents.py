"""What somebody else put there: malformed members, forged derived documents, heads ahead of their log."""

import json
import time
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest

from dagster_versioned.errors import LogCorrupt
from dagster_versioned.tables.head import head_key
from dagster_versioned.tables.history import CommitRecord
from dagster_versioned.tables.project import Project
from dagster_versioned.tables.table import VersionedTable

SHA = "a" * 64


def numbered(n: int) -> pa.Table:
    return pa.table({"n": [n]})


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
    "told", [{"stats": "not json"}, {"stats": '{"numRecords":"x"}'}, {"tags": {"dagster_versioned/ordinal": "9" * 5000}}]
)
def test_what_an_add_tells_besides_its_file_refuses_no_read(table: VersionedTable, told: dict[str, Any]) -> None:
    table.write(numbered(1))
    table.write(numbered(2))
    key = table.files(0).scan.files[0].key
    size = table.store.head(key).size
    add = {"path": key, "partitionValues": {}, "size": size, "modificationTime": 1, "dataChange": True}
    commit_raw(table, 2, {"add": {**add, **told}})
    assert sorted(table.project.table("flights").read()["n"].to_pylist()) == [1, 2]
