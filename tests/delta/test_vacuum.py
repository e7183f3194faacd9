import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from dagster_versioned.delta.actions import (
    Action,
    Add,
    CommitInfo,
    DeletionVector,
    DomainMetadata,
    Metadata,
    Protocol,
    Remove,
)
from dagster_versioned.delta.files.deletion_vectors import z85_encode
from dagster_versioned.delta.log.snapshot import load_snapshot
from dagster_versioned.delta.vacuum import vacuum
from dagster_versioned.errors import InvalidInput, UnsupportedFeature
from dagster_versioned.storage.local import LocalStore
from support.delta_logs import put_commit

SCHEMA = (
    '{"type":"struct","fields":[{"name":"x","type":"long","nullable":true,"metadata":{}},'
    '{"name":"_p","type":"string","nullable":true,"metadata":{}}]}'
)
NOW = datetime(2026, 3, 31, 12, tzinfo=UTC)
KEPT, GONE, OLD, ABSOLUTE = (UUID(int=number) for number in range(4))


def days_ago(days: float) -> int:
    return int((NOW - timedelta(days=days)).timestamp() * 1000)


def vector(name: UUID) -> DeletionVector:
    return DeletionVector("u", z85_encode(name.bytes), 1, 1, 1)


def bin_key(name: UUID) -> str:
    return f"deletion_vector_{name}.bin"


def put(store: LocalStore, *more: Action, **properties: str) -> LocalStore:
    configuration = {f"delta.{name}": value for name, value in properties.items()}
    absolute = DeletionVector("p", f"{store.uri}/{bin_key(ABSOLUTE)}", 1, 1, 1)
    actions: list[Action] = [
        CommitInfo({}),
        Protocol(3, 7, ("deletionVectors",), ("deletionVectors", "domainMetadata")),
        Metadata("id", SCHEMA, ("_p",), configuration),
        Add("live%20one", {"_p": None}, 1, 1, True),
        Add("_p=1/live", {"_p": "1"}, 1, 1, True, deletion_vector=vector(KEPT)),
        Add("absolute", {"_p": "1"}, 1, 1, True, deletion_vector=absolute),
        Add("inline", {"_p": "1"}, 1, 1, True, deletion_vector=DeletionVector("i", "x", 1, 1)),
        Remove("recent", True, days_ago(6)),
        Remove("past", True, days_ago(8), deletion_vector=vector(OLD)),
        Remove("timeless", True),
        *more,
    ]
    put_commit(store, 0, actions)
    names = ["live one", "_p=1/live", "absolute", "inline", "recent", "past", "timeless", "_p=1/orphan", "a/b=_/orphan"]
    hidden = [".hidden", "_hidden", "_other/file", "a/_x/file", ".d/file", "_delta_index/x", "_q=1/file"]
    for key in [*names, *hidden, *map(bin_key, (KEPT, GONE, OLD, ABSOLUTE)), "_change_data/cdc-1", "_change_data/_x"]:
        store.put(key, b"12")
    for info in store.list():
        age(store, info.key, 30)
    for key in ("young", "_change_data/cdc-2"):
        store.put(key, b"12")
        age(store, key, 6)
    return store


def age(store: LocalStore, key: str, days: float) -> None:
    moment = (NOW - timedelta(days=days)).timestamp()
    os.utime(store.local_path(key), (moment, moment))


def run(store: LocalStore, **options: Any) -> Any:
    return vacuum(store, load_snapshot(store), NOW, **options)


DOOMED = {"past", "timeless", "_p=1/orphan", "a/b=_/orphan", bin_key(GONE), bin_key(OLD), "_change_data/cdc-1"}


def test_what_no_retained_version_needs_goes_and_nothing_else(store: LocalStore) -> None:
    put(store)
    before = {info.key for info in store.list()}
    plan = run(store, dry_run=True)
    assert set(plan.keys) == DOOMED
    assert plan.size_bytes == 2 * len(DOOMED)
    assert {info.key for info in store.list()} == before
    assert run(store) == plan
    assert {info.key for info in store.list()} == before - DOOMED
    again = run(store)
    assert (again.keys, again.seen) == ((), plan.seen - len(DOOMED))


def test_the_tables_property_says_how_long(store: LocalStore) -> None:
    put(store, deletedFileRetentionDuration="interval 5 days")
    assert set(run(store, dry_run=True).keys) == DOOMED | {"recent", "young", "_change_data/cdc-2"}


def test_a_longer_retention_is_always_allowed_and_a_shorter_one_only_by_force(store: LocalStore) -> None:
    put(store)
    assert "past" not in run(store, retention=timedelta(days=9), dry_run=True).keys
    with pytest.raises(InvalidInput, match="shorter than the table's, 7 days"):
        run(store, retention=timedelta(days=1))
    assert "recent" in run(store, retention=timedelta(days=1), dry_run=True, force=True).keys
    with pytest.raises(InvalidInput, match="negative"):
        run(store, retention=timedelta(days=-1), force=True)
    assert run(store, retention=timedelta.max, dry_run=True).keys == ()


def test_tables_of_features_that_are_not_known_are_left_alone(store: LocalStore) -> None:
    put(store)
    unknown = Protocol(1, 7, None, ("unheardOf",))
    put_commit(store, 1, [CommitInfo({}), unknown])
    with pytest.raises(UnsupportedFeature, match="unheardOf"):
        run(store)


def test_versioned_tables_are_left_alone(store: LocalStore) -> None:
    put(store, DomainMetadata("dagster_versioned.version", "{}"))
    with pytest.raises(UnsupportedFeature, match="versioned table"):
        run(store, force=True)


def test_a_time_needs_a_zone(store: LocalStore) -> None:
    put(store)
    with pytest.raises(InvalidInput, match="no zone"):
        vacuum(store, load_snapshot(store), datetime(2026, 1, 1))


def test_a_peer_would_vacuum_the_same(tmp_path: Path) -> None:
    for number in range(4):
        write_deltalake(tmp_path, pa.table({"x": [number], "p": ["a b"]}), mode="overwrite", partition_by=["p"])
    (tmp_path / "p=a%20b" / "orphan.parquet").write_bytes(b"1")
    store = LocalStore(tmp_path)
    now = datetime.now(UTC) + timedelta(seconds=5)
    mine = vacuum(store, load_snapshot(store), now, retention=timedelta(0), dry_run=True, force=True)
    theirs = DeltaTable(tmp_path).vacuum(0, dry_run=True, enforce_retention_duration=False, full=True)
    assert set(mine.keys) == {str(path).removeprefix(f"{tmp_path}/") for path in theirs}
    assert len(mine.keys) == 4
    vacuum(store, load_snapshot(store), now, retention=timedelta(0), force=True)
    assert DeltaTable(tmp_path).to_pyarrow_table()["x"].to_pylist() == [3]
