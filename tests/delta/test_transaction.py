import json
import multiprocessing
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from dagster_versioned.delta.actions import (
    Action,
    Add,
    Cdc,
    CommitInfo,
    DeletionVector,
    DomainMetadata,
    Metadata,
    Protocol,
    Remove,
    Txn,
)
from dagster_versioned.delta.conflicts import NOTHING
from dagster_versioned.delta.features import protocol_for
from dagster_versioned.delta.files import adds_table
from dagster_versioned.delta.log import commit_key, read_commit
from dagster_versioned.delta.schema import StructField, StructType
from dagster_versioned.delta.snapshot import Snapshot, load_snapshot
from dagster_versioned.delta.transaction import Committed, Conflicted, Retryable, Transaction, now_ms, serialize_commit
from dagster_versioned.errors import InvalidInput, LogCorrupt, UnsupportedFeature
from dagster_versioned.storage.local import LocalStore

SCHEMA = StructType([StructField("x", "long")])
METADATA = Metadata("id", SCHEMA.json(), (), {"delta.enableInCommitTimestamps": "true"})
CREATE: list[Action] = [protocol_for(SCHEMA), METADATA]


def add(path: str) -> Add:
    return Add(path, {}, 1, 1, True)


@pytest.fixture
def created(store: LocalStore) -> Snapshot:
    assert isinstance(Transaction(None, CREATE, "CREATE").attempt(store), Committed)
    return load_snapshot(store)


def test_what_was_committed_is_what_is_read(store: LocalStore, created: Snapshot) -> None:
    actions = [Txn("a", 1, 2), DomainMetadata("d", "{}"), add("f"), Cdc("_change_data/c", {}, 1)]
    transaction = Transaction(
        created, actions, "WRITE", operation_parameters={"mode": "Append"}, commit_info={"mine": {"deep": [1]}}
    )
    outcome = transaction.attempt(store)
    assert isinstance(outcome, Committed)
    assert outcome.version == 1
    assert read_commit(store, 1) == outcome.commit
    assert outcome.commit.actions[1:] == tuple(actions)
    info = outcome.commit.commit_info
    assert info["mine"] == {"deep": [1]}
    assert (info["operation"], info["operationParameters"]) == ("WRITE", {"mode": "Append"})
    assert next(iter(info)) == "inCommitTimestamp"
    assert abs(info["timestamp"] - now_ms()) < 60_000
    assert created.advance([outcome.commit]).commit_sha256 == load_snapshot(store).commit_sha256


def test_in_commit_timestamps_always_increase(store: LocalStore, created: Snapshot) -> None:
    later = replace(created, timestamp_ms=now_ms() + 10**9)
    outcome = Transaction(later, [], "A").attempt(store)
    assert isinstance(outcome, Committed)
    assert outcome.commit.timestamp_ms == later.timestamp_ms + 1
    jump = Transaction(created, [], "B", NOTHING).attempt(store, 2)
    assert isinstance(jump, Committed)
    assert jump.commit.timestamp_ms == later.timestamp_ms + 2


def test_without_the_property_there_is_no_in_commit_timestamp(store: LocalStore) -> None:
    outcome = Transaction(None, [Protocol(1, 2), Metadata("i", SCHEMA.json())], "CREATE").attempt(store)
    assert isinstance(outcome, Committed)
    assert "inCommitTimestamp" not in outcome.commit.commit_info


def test_the_loser_of_a_race_learns_who_won(store: LocalStore, created: Snapshot) -> None:
    for name in "ab":
        assert isinstance(Transaction(load_snapshot(store), [add(name)], "WRITE").attempt(store), Committed)
    append = Transaction(created, [add("mine")], "WRITE", NOTHING)
    outcome = append.attempt(store)
    assert isinstance(outcome, Retryable)
    assert outcome.version == 3
    assert [commit.version for commit in outcome.winners] == [1, 2]
    again = replace(append, read=created.advance(outcome.winners)).attempt(store)
    assert isinstance(again, Committed)
    assert sorted(load_snapshot(store).files["key"].to_pylist()) == ["a", "b", "mine"]
    refused = Transaction(created, [add("other")], "REPLACE").attempt(store)
    assert isinstance(refused, Conflicted)
    assert refused.conflict.rule == "new rows"
    assert "version 1" in refused.reason
    assert load_snapshot(store).version == 3


def test_a_later_version_is_checked_against_what_came_between(store: LocalStore, created: Snapshot) -> None:
    assert isinstance(Transaction(created, [add("a")], "WRITE").attempt(store), Committed)
    assert isinstance(Transaction(created, [add("b")], "REPLACE").attempt(store, 2), Conflicted)
    assert isinstance(Transaction(created, [add("b")], "WRITE", NOTHING).attempt(store, 2), Committed)
    with pytest.raises(InvalidInput, match="Version 0 cannot be committed"):
        Transaction(created, [], "WRITE").attempt(store, 0)


def test_two_creations(store: LocalStore) -> None:
    first, second = (Transaction(None, CREATE, "CREATE", NOTHING) for _ in range(2))
    assert isinstance(first.attempt(store), Committed)
    outcome = second.attempt(store)
    assert isinstance(outcome, Conflicted)
    assert outcome.conflict.rule == "created"


def test_a_repeated_attempt_of_one_transaction_has_its_own_bytes(store: LocalStore, created: Snapshot) -> None:
    one, two = (Transaction(created, [add("a")], "WRITE", NOTHING) for _ in range(2))
    assert one.transaction_id != two.transaction_id
    outcome = one.attempt(store)
    assert isinstance(outcome, Committed)
    assert outcome.commit.commit_info["txnId"] == one.transaction_id


def test_bytes_are_a_function_of_the_actions() -> None:
    data = serialize_commit([*CREATE, add("a")], {"b": 1, "a": {"z": 1}})
    assert data == serialize_commit([*CREATE, add("a")], {"b": 1, "a": {"z": 1}})
    assert data.splitlines()[0] == b'{"commitInfo":{"b":1,"a":{"z":1}}}'
    assert data.splitlines()[1] == (
        b'{"protocol":{"minReaderVersion":1,"minWriterVersion":7,"writerFeatures":["domainMetadata","inCommitTimestamp"]}}'
    )
    assert data.splitlines()[3] == (
        b'{"add":{"path":"a","partitionValues":{},"size":1,"modificationTime":1,"dataChange":true}}'
    )
    assert data.endswith(b"}\n")
    assert all(json.loads(line) for line in data.splitlines())


PARTITIONED = Metadata("id", SCHEMA.json(), ("x",), {})
APPEND_ONLY = Metadata("id", SCHEMA.json(), (), {"delta.appendOnly": "true"})


@pytest.mark.parametrize(
    ("actions", "error", "reason"),
    [
        ([METADATA], InvalidInput, "protocol action"),
        ([protocol_for(SCHEMA)], InvalidInput, "metaData action"),
        ([*CREATE, METADATA], InvalidInput, "metaData occurs twice"),
        ([*CREATE, add("a"), add("./a")], InvalidInput, "occurs twice"),
        ([*CREATE, add("a"), Remove("a", True)], InvalidInput, "both added and removed"),
        ([*CREATE, CommitInfo({})], InvalidInput, "commitInfo"),
        ([*CREATE, add("../a")], LogCorrupt, "leaves"),
        ([*CREATE, add("/a")], UnsupportedFeature, "absolutePaths"),
        ([*CREATE, Add("a", {"x": "1"}, 1, 1, True)], InvalidInput, "partition columns"),
        ([protocol_for(SCHEMA), PARTITIONED, add("a")], InvalidInput, "partition columns"),
        ([protocol_for(SCHEMA), APPEND_ONLY, Remove("a", True)], InvalidInput, "append-only"),
        ([*CREATE, DomainMetadata("delta.x", "")], InvalidInput, "belongs to the protocol"),
        ([Protocol(1, 2), METADATA, DomainMetadata("x", "")], InvalidInput, "needs the feature domainMetadata"),
        ([Protocol(1, 7, None, ("rowTracking",)), METADATA], UnsupportedFeature, "rowTracking"),
    ],
)
def test_an_invalid_transaction_is_refused_before_anything_is_written(
    store: LocalStore, actions: list[Action], error: type[Exception], reason: str
) -> None:
    with pytest.raises(error, match=reason):
        Transaction(None, actions, "CREATE")


VECTOR = DeletionVector("i", "x", 1, 1)


def test_deletion_vectors_are_refused_by_name(store: LocalStore, created: Snapshot) -> None:
    deleted = replace(add("a"), deletion_vector=VECTOR)
    with pytest.raises(UnsupportedFeature, match="deletionVectors"):
        Transaction(created, [deleted], "DELETE")
    holding = replace(created, files=adds_table([deleted]))
    with pytest.raises(UnsupportedFeature, match="deletionVectors"):
        Transaction(holding, [add("b")], "WRITE")


def test_an_append_only_table_may_be_rearranged(store: LocalStore) -> None:
    Transaction(None, [Protocol(1, 2), APPEND_ONLY, add("a")], "CREATE").attempt(store)
    actions = [Remove("a", False), Add("b", {}, 1, 1, False)]
    assert isinstance(Transaction(load_snapshot(store), actions, "OPTIMIZE").attempt(store), Committed)


def append(root: Path, writer: int, times: int) -> None:
    store = LocalStore(root)
    snapshot = load_snapshot(store)
    for number in range(times):
        transaction = Transaction(snapshot, [add(f"{writer}-{number}")], "WRITE", NOTHING)
        while not isinstance(outcome := transaction.attempt(store), Committed):
            assert isinstance(outcome, Retryable)
            transaction = replace(transaction, read=transaction.read.advance(outcome.winners))
        snapshot = transaction.read.advance([outcome.commit])


def check_all_there(store: LocalStore, writers: int, times: int) -> None:
    snapshot = load_snapshot(store)
    assert snapshot.version == writers * times
    assert sorted(snapshot.files["key"].to_pylist()) == sorted(
        f"{writer}-{number}" for writer in range(writers) for number in range(times)
    )
    stamps = [read_commit(store, version).timestamp_ms for version in range(snapshot.version + 1)]
    assert stamps == sorted(set(stamps))


def test_racing_threads_lose_nothing(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    Transaction(None, CREATE, "CREATE").attempt(store)
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda writer: append(tmp_path, writer, 5), range(6)))
    check_all_there(store, 6, 5)


def test_racing_processes_lose_nothing(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    Transaction(None, CREATE, "CREATE").attempt(store)
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=append, args=(tmp_path, writer, 6)) for writer in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    check_all_there(store, 4, 6)


def test_the_key_of_a_commit_is_only_written_once(store: LocalStore, created: Snapshot) -> None:
    before = store.get(commit_key(0))
    Transaction(created, [add("a")], "WRITE").attempt(store)
    assert store.get(commit_key(0)) == before
