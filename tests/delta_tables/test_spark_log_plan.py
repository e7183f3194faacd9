"""A log that Spark replays gives what Arrow makes of it, and is refused for the same reasons."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from dagster_versioned.delta.actions import (
    Action,
    Add,
    CommitInfo,
    DeletionVector,
    DomainMetadata,
    Metadata,
    Protocol,
    Remove,
    Txn,
    encode_action,
)
from dagster_versioned.delta.commit import checkpoint
from dagster_versioned.delta.commit.checkpoint import checkpoint_key, write_checkpoint
from dagster_versioned.delta.log.checksum import put_checksum
from dagster_versioned.delta.log.commits import commit_key, list_log
from dagster_versioned.delta.log.snapshot import load_snapshot, write_checksum
from dagster_versioned.delta_tables.spark import log_plan
from dagster_versioned.delta_tables.spark.log_plan import plan_if_large, plan_log
from dagster_versioned.errors import InvalidInput, LogCorrupt, UnsupportedFeature
from dagster_versioned.storage import LocalStore
from support.delta_logs import SCHEMA, content, put_commit

FEATURES = ("deletionVectors", "v2Checkpoint")
VECTOR = DeletionVector("u", "x", 1, 1, 4)
HISTORY: list[list[Action]] = [
    [
        Protocol(3, 7, FEATURES, (*FEATURES, "domainMetadata")),
        Metadata("id", SCHEMA, (), {"delta.checkpointPolicy": "v2"}),
        *(Add(f"f{number}", {"p": None, "q": "1"}, number, 1, True, '{"numRecords":1}') for number in range(9)),
        Add("a%20b", {}, 1, 1, True, tags={"t": "u"}),
        Remove("gone", True, 10**15, True, {"p": "1"}, 5),
    ],
    [Remove("f1", True, 10**15), Add("f1", {}, 1, 1, True, deletion_vector=VECTOR), Txn("app", 1)],
    # --- after the checkpoint
    [Remove("f2", True, 10**15), Add("a%20b", {}, 7, 7, True), Add("gone", {}, 7, 7, True)],
    [Remove("f1", True, 10**15, deletion_vector=VECTOR), DomainMetadata("d", "{}"), Metadata("id", SCHEMA, name="new")],
    [Add("f2", {}, 8, 8, False), Remove("./a%20b", True, 10**15), Txn("app", 2)],
    [Add("f3", {}, 3, 3, False, tags={"t": "u"}), Remove("f3", False, 10**15), Remove("f4", False, 10**15)],
]

pytestmark = pytest.mark.spark


def put(folder: Path, *more: list[Action]) -> LocalStore:
    store = LocalStore(folder)
    for version, actions in enumerate([*HISTORY, *more]):
        put_commit(store, version, [CommitInfo({"n": version}), *actions])
    return store


slow = pytest.mark.slow


@pytest.mark.slow
@pytest.mark.parametrize("form", ["none", "classic", "sidecars"])
def test_spark_and_arrow_agree(spark, tmp_path, monkeypatch, form):
    store = put(tmp_path)
    monkeypatch.setattr(log_plan, "_COMMITS_PER_TASK", 2)
    monkeypatch.setattr(log_plan, "_GROUPS_PER_TASK", 2)
    monkeypatch.setattr(checkpoint, "_ROW_GROUP", 2)
    if form != "none":
        monkeypatch.setattr(checkpoint, "_INLINE", 0 if form == "sidecars" else 100)
        monkeypatch.setattr(checkpoint, "_PER_SIDECAR", 6)
        write_checkpoint(store, load_snapshot(store, 1))
        assert list_log(store).checkpoint.version == 1
    for version in (None, 1):
        assert content(plan_log(spark, store, version).collected()) == content(load_snapshot(store, version))


@slow
def test_only_large_checkpoints_are_planned(spark, tmp_path, monkeypatch):
    store = put(tmp_path)
    assert plan_if_large(spark, store, large=0) is None  # without a checkpoint there is nothing large
    write_checkpoint(store, load_snapshot(store, 1))
    assert plan_if_large(spark, store) is None
    plan = plan_if_large(spark, store, large=3)
    assert plan is not None
    assert plan.head.num_files == 0
    assert plan.files.count() == load_snapshot(store).num_files
    monkeypatch.setenv("DAGSTER_VERSIONED_LARGE_LOG", "5e6")
    with pytest.raises(InvalidInput, match="5e6"):
        plan_if_large(spark, store)


@slow
def test_a_log_that_a_checksum_contradicts_is_refused(spark, tmp_path):
    store = put(tmp_path)
    write_checkpoint(store, load_snapshot(store, 1))
    newest = load_snapshot(store)
    write_checksum(store, newest)
    assert content(plan_log(spark, store).collected()) == content(newest)
    put_checksum(store, newest.version, replace(newest.checksum, table_size_bytes=1))
    with pytest.raises(LogCorrupt, match=r"0005\.crc: table_size_bytes"):
        plan_log(spark, store)


@slow
def test_what_is_wrong_is_refused_in_the_same_words(spark, tmp_path):
    for number, (bad, error, words) in enumerate(
        [
            (b'{"add":{"path":1}}', LogCorrupt, r"0006\.json, line 1, add: path"),
            (encode_action(Protocol(9, 7, None, ())), UnsupportedFeature, "reader version 9"),
        ]
    ):
        store = put(tmp_path / str(number))
        store.put(commit_key(6), bad)
        with pytest.raises(error, match=words):
            load_snapshot(store)
        with pytest.raises(error, match=words):
            plan_log(spark, store)


@slow
def test_a_file_twice_in_a_checkpoint_is_refused(spark, tmp_path, monkeypatch):
    store = put(tmp_path)
    before = load_snapshot(store, 1)
    object.__setattr__(before, "files", pa.concat_tables([before.files, before.files.slice(0, 1)]))
    monkeypatch.setattr(checkpoint, "_is_v2", lambda _: False)
    write_checkpoint(store, before)
    assert list_log(store).checkpoint.keys == (checkpoint_key(1),)
    with pytest.raises(LogCorrupt, match="occurs twice"):
        plan_log(spark, store)


@slow
def test_a_path_that_leaves_the_folder_is_refused(spark, tmp_path):
    store = put(tmp_path, [Add("../outside", {}, 1, 1, True)], [Remove("../outside", True, 10**15)])
    with pytest.raises(LogCorrupt, match="leaves the table's folder"):
        plan_log(spark, store, 6).collected()
    assert content(plan_log(spark, store).collected()) == content(load_snapshot(store))
