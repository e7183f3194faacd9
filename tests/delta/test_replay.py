"""The fast way through many commits finds what the strict parser finds: the same state, or the same error."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

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
    encode_action,
)
from dagster_versioned.delta.log import replay
from dagster_versioned.delta.log.commits import commit_key, read_commits
from dagster_versioned.delta.log.replay import Changes, read_changes
from dagster_versioned.errors import LogCorrupt, VersionedError
from dagster_versioned.storage.local import LocalStore
from support.delta_logs import SCHEMA

paths = st.sampled_from(["a", "b", "c", "a%20b", "d=1/e", "%C3%BC", "./a", "%", "ü"])
texts = st.none() | st.sampled_from(["", "x", '{"numRecords":1}'])
maps = st.dictionaries(st.sampled_from("pq"), st.none() | st.sampled_from(["", "1"]), max_size=2)
numbers = st.sampled_from([0, 1, 2**63 - 1])
vectors = st.none() | st.builds(DeletionVector, st.just("u"), st.sampled_from("xy"), numbers.map(bool), numbers)
adds = st.builds(
    Add, paths, maps, numbers, numbers, st.booleans(), texts, st.none() | maps, vectors, st.none() | numbers
)
removes = st.builds(
    Remove, paths, st.booleans(), st.none() | numbers, st.none() | st.booleans(), st.none() | maps, st.none() | numbers,
    texts, st.none() | maps, vectors,
)  # fmt: skip
others = st.one_of(
    st.builds(Txn, st.sampled_from("st"), st.integers(0, 9)),
    st.builds(DomainMetadata, st.sampled_from("mn"), st.just("{}"), st.booleans()),
    st.builds(Cdc, paths, maps, numbers),
    st.builds(CommitInfo, st.sampled_from([{}, {"inCommitTimestamp": 5}, {"inCommitTimestamp": "x"}])),
    st.just(Protocol(1, 7, None, ())),
    st.just(Metadata("id", SCHEMA)),
)
wrong = st.sampled_from(
    [
        b"",
        b"  \r",
        b"{}",
        b"[]",
        b"3",
        b'"a"',
        b'{"unknown":1}',
        b'{"add":null}',
        b'{"add":1}',
        b'{"add":{}}',
        b'{"add":{"path":1}}',
        b'{"add":{"path":"a","partitionValues":{},"size":1,"modificationTime":1,"dataChange":1}}',
        b'{"add":{"path":"a","partitionValues":{},"size":1.0,"modificationTime":1,"dataChange":true}}',
        b'{"add":{"path":"a","partitionValues":{},"size":true,"modificationTime":1,"dataChange":true}}',
        b'{"add":{"path":"a","partitionValues":{},"size":-1,"modificationTime":1,"dataChange":true}}',
        b'{"add":{"path":"a","partitionValues":{},"size":9223372036854775808,"modificationTime":1,"dataChange":true}}',
        b'{"add":{"path":"a","partitionValues":{"p":1},"size":1,"modificationTime":1,"dataChange":true}}',
        b'{"add":{"path":"z","partitionValues":null,"size":1,"modificationTime":1,"dataChange":true}}',
        b'{"add":{"path":"z","partitionValues":{},"size":1,"modificationTime":1,"dataChange":true,"tags":{"a":1}}}',
        b'{"add":{"path":"z","partitionValues":{},"size":1,"modificationTime":1,"dataChange":true,"new":[1]}}',
        b'{"add":{"path":"z","partitionValues":{},"size":1,"modificationTime":1,"dataChange":true},"txn":null}',
        b'{"add":{"path":"z","partitionValues":{},"size":1,"modificationTime":1,"dataChange":true},"remove":{}}',
        b'{"add":{"path":"z","partitionValues":{},"size":1,"modificationTime":1,"dataChange":true,"deletionVector":{}}}',
        b'{"remove":{"path":"a","dataChange":true,"stats":1}}',
        b'{"remove":{"path":"a","dataChange":true,"tags":{"a":1}}}',
        b'{"remove":{"path":"a","dataChange":null}}',
        b'{"remove":{"path":"a"',
        b'{"remove":{"path":"\\ud800","dataChange":true}}',
        b'{"remove":{"path":"a\xff","dataChange":true}}',
        b'{"txn":{}}{"txn":{}}',
    ]
)


def outcome(read: Any) -> Any:
    try:
        changes: Changes = read()
    except VersionedError as error:
        return type(error), str(error)
    headers = [(header.version, header.stamped, header.actions) for header in changes.headers]
    last = changes.last
    return (
        headers,
        last and (last.sha256, last.timestamp_ms),
        *(sorted(map(repr, table.to_pylist())) for table in (changes.adds, changes.removes)),
        sorted(changes.touched.to_pylist()),
    )


def put(store: LocalStore, commits: list[list[bytes]]) -> range:
    for version, lines in enumerate(commits):
        store.put(commit_key(version), b"\n".join(lines))
    return range(len(commits))


def both(store: LocalStore, versions: range) -> tuple[Any, Any]:
    strict = outcome(lambda: Changes.of(read_commits(store, versions.start, versions.stop - 1)))
    return outcome(lambda: read_changes(store, versions)), strict


def lines_of(actions: list[Action]) -> list[bytes]:
    return list(map(encode_action, actions))


@given(st.lists(st.lists(adds | removes | others, max_size=5).map(lines_of), min_size=1, max_size=5))
def test_any_commits_mean_the_same_to_both(commits: list[list[bytes]]) -> None:
    with TemporaryDirectory() as folder:
        store = LocalStore(Path(folder))
        fast, strict = both(store, put(store, commits))
        assert fast == strict


@given(st.lists(st.lists(adds.map(encode_action) | wrong, max_size=3), min_size=1, max_size=3))
def test_what_is_wrong_is_refused_in_the_same_words(commits: list[list[bytes]]) -> None:
    with TemporaryDirectory() as folder:
        store = LocalStore(Path(folder))
        fast, strict = both(store, put(store, commits))
        assert fast == strict


def test_an_error_names_file_and_line(store: LocalStore) -> None:
    versions = put(store, [[], [b"", b'{"remove":{"path":"a","dataChange":true}}', b'{"add":{"path":"a"}}']])
    kind, words = outcome(lambda: read_changes(store, versions))
    assert kind.__name__ == "LogCorrupt"
    assert "00000000000000000001.json, line 3, add: partitionValues" in words


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_commits_longer_than_what_is_held_at_a_time(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(replay, "_MANY_ROWS", limit)
    vector = DeletionVector("u", "x", 1, 1)
    first: list[Action] = [Add(f"f{number}", {"p": str(number)}, number, 1, True) for number in range(7)]
    second: list[Action] = [
        Remove("f1", True),
        Remove("f2", True, 5),
        Add("f2", {}, 1, 1, True, deletion_vector=vector),
        Add("a%20b", {}, 1, 1, True),
    ]
    versions = put(store, [lines_of(first), lines_of(second)])
    monkeypatch.setattr(replay, "read_commits", None)  # the fast way must not need it
    changes = read_changes(store, versions)
    assert sorted(changes.adds["key"].to_pylist()) == ["a b", "f0", "f2", "f3", "f4", "f5", "f6"]
    assert sorted(changes.removes["key"].to_pylist()) == ["f1", "f2"]
    monkeypatch.undo()
    fast, strict = both(store, versions)
    assert fast == strict


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("vector", [None, DeletionVector("u", "x", 1, 1)])
def test_a_file_that_one_commit_removes_and_adds_without_a_change_of_rows_stays(
    store: LocalStore, order: int, vector: DeletionVector | None
) -> None:
    added = Add("a", {}, 1, 1, True, deletion_vector=vector)
    stated = [Remove("./a", False, 5, deletion_vector=vector), replace(added, data_change=False, tags={"t": "u"})]
    versions = put(
        store, [lines_of([added, Add("b", {}, 1, 1, True)]), lines_of([*stated[::order], Remove("b", True)])]
    )
    changes = read_changes(store, versions)
    assert changes.adds.select(["key", "tags"]).to_pylist() == [{"key": "a", "tags": [("t", "u")]}]
    assert changes.removes["key"].to_pylist() == ["b"]


@pytest.mark.parametrize(
    ("added", "removed"), [(True, False), (False, True), (True, True)], ids=["added", "removed", "both"]
)
def test_a_file_that_one_commit_removes_and_adds_with_a_change_of_rows_is_refused(
    store: LocalStore, added: bool, removed: bool
) -> None:
    versions = put(store, [lines_of([Remove("a", removed), Add("a", {}, 1, 1, added)])])
    with pytest.raises(LogCorrupt, match=r"0000\.json: the file 'a' is both added and removed"):
        read_changes(store, versions)


def test_no_commits_change_nothing(store: LocalStore) -> None:
    changes = read_changes(store, range(3, 3))
    assert (changes.headers, changes.adds.num_rows, changes.removes.num_rows, len(changes.touched)) == ((), 0, 0, 0)
    assert changes.last is None
