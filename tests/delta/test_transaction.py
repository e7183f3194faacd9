import json
import multiprocessing
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
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
from dagster_versioned.delta.commit.conflicts import NOTHING
from dagster_versioned.delta.commit.transaction import (
    Committed,
    Conflicted,
    Retryable,
    Transaction,
    commit,
    now_ms,
    serialize_commit,
)
from dagster_versioned.delta.features import OWN_PROTOCOL
from dagster_versioned.delta.log.commits import commit_key, read_commit
from dagster_versioned.delta.log.snapshot import Snapshot, load_snapshot
from dagster_versioned.delta.schema.identity_columns import with_high_water_marks
from dagster_versioned.delta.schema.types import StructField, StructType
from dagster_versioned.errors import CommitConflict, InvalidInput, LogCorrupt, UnsupportedFeature
from dagster_versioned.storage.local import LocalStore

SCHEMA = StructType([StructField("x", "long")])
METADATA = Metadata("id", SCHEMA.json(), (), {"delta.enableInCommitTimestamps": "true"})
CREATE: list[Action] = [OWN_PROTOCOL, METADATA]


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


VECTOR = DeletionVector("i", "x", 1, 1)
WITH_VECTORS = Protocol(3, 7, ("deletionVectors",), ("deletionVectors", "inCommitTimestamp"))
PARTITIONED = Metadata("id", SCHEMA.json(), ("x",), {})
APPEND_ONLY = Metadata("id", SCHEMA.json(), (), {"delta.appendOnly": "true"})


@pytest.mark.parametrize(
    ("actions", "error", "reason"),
    [
        ([METADATA], InvalidInput, "protocol action"),
        ([OWN_PROTOCOL], InvalidInput, "metaData action"),
        ([*CREATE, METADATA], InvalidInput, "metaData occurs twice"),
        ([*CREATE, add("a"), add("./a")], InvalidInput, "occurs twice"),
        ([*CREATE, add("a"), Remove("a", True)], InvalidInput, "both added and removed"),
        ([*CREATE, CommitInfo({})], InvalidInput, "commitInfo"),
        ([*CREATE, add("../a")], LogCorrupt, "leaves"),
        ([*CREATE, add("/a")], UnsupportedFeature, "absolutePaths"),
        ([*CREATE, Add("a", {"x": "1"}, 1, 1, True)], InvalidInput, "partition columns"),
        ([OWN_PROTOCOL, PARTITIONED, add("a")], InvalidInput, "partition columns"),
        ([OWN_PROTOCOL, APPEND_ONLY, Remove("a", True)], InvalidInput, "append-only"),
        ([*CREATE, DomainMetadata("delta.x", "")], InvalidInput, "belongs to the protocol"),
        ([Protocol(1, 2), METADATA, DomainMetadata("x", "")], InvalidInput, "needs the feature domainMetadata"),
        ([Protocol(1, 7, None, ("somethingNew",)), METADATA], UnsupportedFeature, "somethingNew"),
        ([*CREATE, DomainMetadata("delta.clustering", "")], InvalidInput, "belongs to the protocol"),
        ([*CREATE, replace(add("a"), deletion_vector=VECTOR)], InvalidInput, "needs the feature deletionVectors"),
        ([WITH_VECTORS, METADATA, replace(add("a"), deletion_vector=VECTOR)], InvalidInput, "how many rows"),
        ([CREATE[0], replace(PARTITIONED, partition_columns=("y",))], InvalidInput, "partitioned by 'y'"),
    ],
)
def test_an_invalid_transaction_is_refused_before_anything_is_written(
    store: LocalStore, actions: list[Action], error: type[Exception], reason: str
) -> None:
    with pytest.raises(error, match=reason):
        Transaction(None, actions, "CREATE")


def test_a_table_with_deletion_vectors_is_continued(store: LocalStore) -> None:
    deleted = replace(add("a"), stats='{"numRecords":2}', deletion_vector=VECTOR)
    Transaction(None, [WITH_VECTORS, METADATA, deleted], "CREATE").attempt(store)
    snapshot = load_snapshot(store)
    assert snapshot.has_deletion_vectors
    restored = [deleted.removed(1), replace(deleted, deletion_vector=None)]
    assert isinstance(Transaction(snapshot, restored, "RESTORE").attempt(store), Committed)
    assert not load_snapshot(store).has_deletion_vectors


def test_partition_values_go_by_physical_names(store: LocalStore) -> None:
    mapped = StructField("x", "long", True, {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "col-1"})
    metadata = Metadata("i", StructType([mapped]).json(), ("x",), {"delta.columnMapping.mode": "name"})
    by_name, by_physical_name = (Add("a", {key: "1"}, 1, 1, True) for key in ("x", "col-1"))
    with pytest.raises(InvalidInput, match="partition columns"):
        Transaction(None, [Protocol(2, 5), metadata, by_name], "CREATE")
    assert isinstance(
        Transaction(None, [Protocol(2, 5), metadata, by_physical_name], "CREATE").attempt(store), Committed
    )
    with pytest.raises(LogCorrupt, match="physicalName"):
        Transaction(None, [Protocol(2, 5), replace(metadata, schema_string=SCHEMA.json())], "CREATE")


def test_an_append_only_table_may_be_rearranged(store: LocalStore) -> None:
    Transaction(None, [Protocol(1, 2), APPEND_ONLY, add("a")], "CREATE").attempt(store)
    actions = [Remove("a", False), Add("b", {}, 1, 1, False)]
    assert isinstance(Transaction(load_snapshot(store), actions, "OPTIMIZE").attempt(store), Committed)


def test_a_protocol_has_what_schema_and_properties_need(store: LocalStore) -> None:
    for metadata in (
        Metadata("i", SCHEMA.json(), (), {"delta.enableChangeDataFeed": "true"}),
        Metadata("i", StructType([StructField("x", "timestamp_ntz")]).json()),
        Metadata("i", StructType([StructField("x", "long", nullable=False)]).json()),
    ):
        with pytest.raises(InvalidInput, match=r"need (changeDataFeed|timestampNtz|invariants), which its"):
            Transaction(None, [Protocol(1, 1), metadata], "CREATE")
    # Who changes nothing about it is not bothered with what others left.
    sloppy = Protocol(1, 1), Metadata("i", SCHEMA.json(), (), {"delta.enableChangeDataFeed": "true"})
    store.put(commit_key(0), serialize_commit(sloppy, {}))
    assert isinstance(Transaction(load_snapshot(store), [add("a")], "WRITE").attempt(store), Committed)


def test_a_protocol_loses_nothing(created: Snapshot) -> None:
    with pytest.raises(InvalidInput, match="lacks domainMetadata, which the table has"):
        Transaction(created, [Protocol(1, 7, None, ("inCommitTimestamp",))], "UPGRADE PROTOCOL")


def test_when_in_commit_timestamps_began_is_on_record(store: LocalStore) -> None:
    Transaction(None, [OWN_PROTOCOL, replace(METADATA, configuration={})], "CREATE").attempt(store)
    snapshot = load_snapshot(store)
    Transaction(snapshot, [add("a")], "WRITE", NOTHING).attempt(store)
    after, committed = commit(store, snapshot, lambda read: Transaction(read, [METADATA], "SET TBLPROPERTIES", NOTHING))
    assert committed.version == 2
    assert committed.commit.timestamp_ms == committed.commit.commit_info["inCommitTimestamp"]
    assert after.metadata.configuration == {
        "delta.enableInCommitTimestamps": "true",
        "delta.inCommitTimestampEnablementVersion": "2",
        "delta.inCommitTimestampEnablementTimestamp": str(committed.commit.timestamp_ms),
    }
    assert load_snapshot(store).metadata == after.metadata
    again = Transaction(after, [replace(after.metadata, name="t")], "RENAME").attempt(store)
    assert isinstance(again, Committed)
    assert again.commit.metadata is not None
    assert again.commit.metadata.configuration == after.metadata.configuration


def test_going_on_with_identity_columns_is_called_so(store: LocalStore) -> None:
    column = StructField("x", "long", True, {"delta.identity.start": 1, "delta.identity.step": 1})
    metadata = Metadata("i", StructType([column]).json())
    Transaction(None, [Protocol(1, 7, None, ("identityColumns",)), metadata], "CREATE").attempt(store)
    snapshot = load_snapshot(store)

    def tags(changed: Metadata) -> object:
        outcome = Transaction(load_snapshot(store), [changed], "WRITE", NOTHING).attempt(store)
        assert isinstance(outcome, Committed)
        return outcome.commit.commit_info.get("tags")

    assert tags(with_high_water_marks(snapshot.metadata, {"x": 3})) == {"delta.identity.schemaUpdate": "true"}
    assert tags(replace(with_high_water_marks(snapshot.metadata, {"x": 4}), name="t")) is None


def test_a_table_that_had_them_from_the_start_needs_no_record(created: Snapshot) -> None:
    assert created.metadata.configuration == METADATA.configuration


def test_commit_rebases_what_still_holds(store: LocalStore, created: Snapshot) -> None:
    built: list[int] = []

    def build(snapshot: Snapshot | None) -> Transaction:
        assert snapshot is not None
        built.append(snapshot.version)
        return Transaction(snapshot, [add("mine")], "WRITE", NOTHING)

    for name in "ab":
        Transaction(load_snapshot(store), [add(name)], "WRITE").attempt(store)
    after, committed = commit(store, created, build)
    assert (after.version, committed.version, built) == (3, 3, [0, 2])
    assert sorted(after.files["key"].to_pylist()) == ["a", "b", "mine"]
    assert after.commit_sha256 == load_snapshot(store).commit_sha256


def test_commit_says_what_is_in_the_way(store: LocalStore, created: Snapshot) -> None:
    Transaction(created, [add("a")], "WRITE", NOTHING).attempt(store)
    with pytest.raises(CommitConflict, match=r"UPDATE on .* version 1: rows were added .* Nothing of it was committed"):
        commit(store, created, lambda snapshot: Transaction(snapshot, [add("b")], "UPDATE"))
    with pytest.raises(CommitConflict, match="created by someone else"):
        commit(store, None, lambda snapshot: Transaction(snapshot, CREATE, "CREATE"))
    with pytest.raises(CommitConflict, match="1 attempts"):
        commit(store, created, lambda snapshot: Transaction(snapshot, [add("b")], "WRITE", NOTHING), attempts=1)
    assert load_snapshot(store).version == 1


def test_commit_creates_a_table(store: LocalStore) -> None:
    after, committed = commit(store, None, lambda snapshot: Transaction(snapshot, [*CREATE, add("a")], "CREATE"))
    assert (after.version, committed.version) == (0, 0)
    assert after.files.equals(load_snapshot(store).files)


def append(root: Path, writer: int, times: int) -> None:
    store = LocalStore(root)
    snapshot = load_snapshot(store)
    for number in range(times):
        actions = [add(f"{writer}-{number}")]
        snapshot, _ = commit(store, snapshot, partial(Transaction, actions=actions, operation="WRITE", reads=NOTHING))


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
