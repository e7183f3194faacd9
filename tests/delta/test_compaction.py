from pathlib import Path
from tempfile import TemporaryDirectory

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings

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
from dagster_versioned.delta.log.commits import LogSegment, commit_key, compaction_key, list_log
from dagster_versioned.delta.log.compaction import compact_log
from dagster_versioned.delta.log.snapshot import load_snapshot
from dagster_versioned.errors import InvalidInput, ObjectNotFound
from dagster_versioned.storage.local import LocalStore
from support.delta_logs import SCHEMA, concern, content, put_commit

HEAD: list[Action] = [
    Protocol(3, 7, ("deletionVectors",), ("deletionVectors", "domainMetadata")),
    Metadata("id", SCHEMA),
]


def put(store: LocalStore, version: int, actions: list[Action]) -> None:
    put_commit(store, version, [CommitInfo({"v": version}), *actions])


vectors = st.none() | st.builds(DeletionVector, st.just("u"), st.sampled_from("xy"), st.just(1), st.just(1))
paths = st.sampled_from(["a", "b", "a%20b"])
actions = st.one_of(
    st.builds(Add, paths, st.just({}), st.integers(0, 9), st.just(1), st.booleans(), deletion_vector=vectors),
    st.builds(Remove, paths, st.booleans(), st.integers(0, 9), deletion_vector=vectors),
    st.builds(Txn, st.sampled_from("st"), st.integers(0, 9)),
    st.builds(DomainMetadata, st.sampled_from("mn"), st.just("{}"), st.booleans()),
    st.builds(lambda name: Metadata("id", SCHEMA, (), {}, name), st.sampled_from("kl")),
)


@settings(max_examples=25)
@given(st.lists(st.lists(actions, max_size=5, unique_by=concern), min_size=4, max_size=6), st.integers(0, 2))
def test_what_is_read_by_compactions_is_what_the_commits_say(history: list[list[Action]], first: int) -> None:
    with TemporaryDirectory() as folder:
        store = LocalStore(Path(folder))
        for version, one in enumerate([HEAD, *history]):
            put(store, version, one)
        last = len(history)
        plain = [content(load_snapshot(store, version)) for version in range(last + 1)]
        compact_log(store, first, last - 1)
        # The commits in between are not even looked at.
        for version in range(first, last):
            store.put(commit_key(version), b"not read")
        assert content(load_snapshot(store)) == plain[last]


@pytest.fixture
def table(store: LocalStore) -> LocalStore:
    for version in range(6):
        put(store, version, [*(HEAD if version == 0 else ()), Add(f"f{version}", {}, 1, 1, True)])
    return store


def test_a_compaction_saves_its_commits(table: LocalStore) -> None:
    assert compact_log(table, 1, 4) == compaction_key(range(1, 5))
    assert sorted(load_snapshot(table).files["key"].to_pylist()) == [f"f{number}" for number in range(6)]
    lines = table.get(compaction_key(range(1, 5))).splitlines()
    assert [line[:8] for line in lines] == [b'{"add":{'] * 4


TWICE = encode_action(Add("f1", {}, 1, 1, True))


@pytest.mark.parametrize("data", [b"{", b'{"add":{}}', TWICE + b"\n" + TWICE])
def test_a_compaction_that_is_wrong_is_passed_over(table: LocalStore, data: bytes) -> None:
    table.put(compaction_key(range(1, 5)), data)
    assert load_snapshot(table).num_files == 6


def test_a_compaction_is_not_used_where_commits_must_carry_their_time(store: LocalStore) -> None:
    stamped = Metadata("id", SCHEMA, (), {"delta.enableInCommitTimestamps": "true"})
    for version in range(4):
        lines = [CommitInfo({"inCommitTimestamp": version}), *([HEAD[0], stamped] if version == 0 else ())]
        put_commit(store, version, lines)
    store.put(compaction_key(range(1, 3)), encode_action(Add("ghost", {}, 1, 1, True)))
    assert load_snapshot(store).num_files == 0


def test_segments_take_the_longest_compactions_that_fit() -> None:
    given = [range(2), range(1, 3), range(2, 4), range(2, 6), range(6, 8), range(6, 10), range(8, 9)]
    assert LogSegment(9, None, range(10), given).compactions == (range(2), range(2, 6), range(6, 8))
    assert LogSegment(5, None, range(10), given).compactions == (range(2), range(2, 4))
    assert LogSegment(9, None, range(10), [range(3, 20)]).compactions == ()


def test_only_two_or_more_commits_that_are_there_are_compacted(table: LocalStore) -> None:
    with pytest.raises(InvalidInput, match="two or more"):
        compact_log(table, 2, 2)
    with pytest.raises(ObjectNotFound):
        compact_log(table, 4, 9)
    assert not list_log(table).compactions


def test_compactions_of_a_peer(tmp_path: Path) -> None:
    for number in range(6):
        write_deltalake(tmp_path, pa.table({"x": [number]}), mode="overwrite" if number == 4 else "append")
    plain = content(load_snapshot(LocalStore(tmp_path)))
    DeltaTable(tmp_path).compact_logs(1, 4)
    store = LocalStore(tmp_path)
    assert list_log(store).compactions == (range(1, 5),)
    for version in range(1, 5):
        store.put(commit_key(version), b"not read")
    assert content(load_snapshot(store)) == plain


def test_a_peer_reads_ours(tmp_path: Path) -> None:
    for number in range(6):
        write_deltalake(tmp_path, pa.table({"x": [number]}), mode="overwrite" if number == 4 else "append")
    compact_log(LocalStore(tmp_path), 1, 4)
    assert sorted(DeltaTable(tmp_path).to_pyarrow_table()["x"].to_pylist()) == [4, 5]
