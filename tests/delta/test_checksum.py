from dataclasses import replace
from typing import Any

import orjson
import pytest

from dagster_versioned.delta.actions import Action, Add, CommitInfo, DeletionVector, Metadata, Protocol
from dagster_versioned.delta.commit.checkpoint import checkpoint_key, write_checkpoint
from dagster_versioned.delta.log.checksum import Checksum
from dagster_versioned.delta.log.commits import checksum_key, commit_key, list_log
from dagster_versioned.delta.log.snapshot import load_snapshot, write_checksum
from dagster_versioned.errors import LogCorrupt
from dagster_versioned.storage.local import LocalStore
from support.delta_logs import SCHEMA, put_commit

VECTOR = DeletionVector("u", "x", 1, 7)
COMMITS: list[list[Action]] = [
    [Protocol(3, 7, ("deletionVectors",), ("deletionVectors",)), Metadata("id", SCHEMA), Add("a", {}, 5, 1, True)],
    [Add("b", {}, 6, 1, True, deletion_vector=VECTOR)],
    [Add("c", {}, 7, 1, True)],
]


@pytest.fixture
def table(store: LocalStore) -> LocalStore:
    for version, actions in enumerate(COMMITS):
        put_commit(store, version, [CommitInfo({"inCommitTimestamp": 1000 + version}), *actions])
    return store


def put(store: LocalStore, version: int, **members: Any) -> None:
    store.put(checksum_key(version), orjson.dumps({"numFiles": 2, "tableSizeBytes": 11, **members}))


def test_a_checksum_holds_the_figures_of_its_version(table: LocalStore) -> None:
    write_checksum(table, load_snapshot(table, 1))
    value = orjson.loads(table.get(checksum_key(1)))
    assert value == {
        "tableSizeBytes": 11,
        "numFiles": 2,
        "numDeletedRecordsOpt": 7,
        "numDeletionVectorsOpt": 1,
        "numMetadata": 1,
        "numProtocol": 1,
        "metadata": Metadata("id", SCHEMA).to_json(),
        "protocol": COMMITS[0][0].to_json(),
    }
    assert list_log(table, 1).checksums == {1}
    assert load_snapshot(table, 1).num_files == 2


def test_the_in_commit_timestamp_is_written_and_not_compared(store: LocalStore) -> None:
    configuration = {"delta.enableInCommitTimestamps": "true"}
    actions = [Protocol(1, 7, None, ("inCommitTimestamp",)), Metadata("id", SCHEMA, (), configuration)]
    put_commit(store, 0, [CommitInfo({"inCommitTimestamp": 5}), *actions])
    write_checksum(store, load_snapshot(store))
    value = orjson.loads(store.get(checksum_key(0)))
    assert value["inCommitTimestampOpt"] == 5
    store.put(checksum_key(0), orjson.dumps({**value, "inCommitTimestampOpt": 6}))
    assert load_snapshot(store).timestamp_ms == 5


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({"numFiles": 3}, "num_files is 3 there, and 2 by the log"),
        ({"tableSizeBytes": 12}, "table_size_bytes is 12 there, and 11"),
        ({"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}, "protocol is"),
        ({"metadata": Metadata("other", SCHEMA).to_json()}, "metadata is"),
        ({"numDeletionVectorsOpt": 2}, "num_deletion_vectors is 2"),
        ({"numDeletedRecordsOpt": 8}, "num_deleted_records is 8"),
    ],
)
def test_a_checksum_that_disagrees_is_an_error_that_names_it(
    table: LocalStore, members: dict[str, Any], reason: str
) -> None:
    put(table, 1, **members)
    with pytest.raises(LogCorrupt, match=r"0001\.crc: " + reason):
        load_snapshot(table, 1)
    assert load_snapshot(table).num_files == 3  # of which no checksum says anything


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"{}", b'{"numFiles":-1,"tableSizeBytes":0}'])
def test_a_checksum_that_cannot_be_read_says_nothing(table: LocalStore, data: bytes) -> None:
    table.put(checksum_key(1), data)
    assert load_snapshot(table, 1).num_files == 2


def test_what_a_checksum_leaves_out_agrees_with_anything(table: LocalStore) -> None:
    put(table, 1)
    assert load_snapshot(table, 1).num_files == 2
    assert Checksum.parse(table.get(checksum_key(1)), "").protocol is None


def test_a_checkpoint_is_checked_before_anything_is_built_on_it(table: LocalStore) -> None:
    before = load_snapshot(table, 1)
    write_checkpoint(table, before)
    write_checksum(table, before)
    expected = load_snapshot(table).num_files
    less = replace(before, files=before.files.slice(1))
    write_checkpoint(table, less)
    assert load_snapshot(table).num_files == expected  # by the log, for the checkpoint is not believed
    table.delete([commit_key(0)])
    with pytest.raises(LogCorrupt, match=r"0001\.crc: num_files is 2 there, and 1"):
        load_snapshot(table)
    table.delete([checkpoint_key(1)])


def test_features_are_a_set_however_they_are_ordered(store: LocalStore) -> None:
    protocol = Protocol(3, 7, ("deletionVectors", "v2Checkpoint"), ("deletionVectors", "v2Checkpoint"))
    other = Protocol(3, 7, ("v2Checkpoint", "deletionVectors"), ("v2Checkpoint", "deletionVectors"))
    put_commit(store, 0, [protocol, Metadata("id", SCHEMA)])
    store.put(checksum_key(0), orjson.dumps({"numFiles": 0, "tableSizeBytes": 0, "protocol": other.to_json()}))
    assert load_snapshot(store).protocol == protocol
