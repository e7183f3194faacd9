"""Replay against a model: plain dicts, one action at a time."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import hypothesis.strategies as st
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings

from dagster_versioned.delta.actions import (
    NO_COLUMNS,
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
from dagster_versioned.delta.commit.checkpoint import checkpoint_key, write_checkpoint
from dagster_versioned.delta.files.file_actions import FILES, TOMBSTONES, no_rows
from dagster_versioned.delta.log.commits import commit_key, read_commit, read_commits
from dagster_versioned.delta.log.snapshot import Snapshot, load_head, load_snapshot
from dagster_versioned.errors import LogCorrupt, UnsupportedFeature
from dagster_versioned.storage.local import LocalStore
from support.delta_logs import SCHEMA, concern, content, put_commit

PROTOCOL = Protocol(1, 7, None, ("domainMetadata", "inCommitTimestamp"))
METADATA = Metadata("id", SCHEMA, (), {"delta.enableInCommitTimestamps": "true"})

paths = st.sampled_from(["a", "b", "c", "a%20b", "d=1/e", "%C3%BC"])
optional_text = st.none() | st.sampled_from(["", "x", '{"numRecords":1}'])
maps = st.dictionaries(st.sampled_from("pq"), st.none() | st.sampled_from(["", "1"]), max_size=2)
adds = st.builds(
    Add,
    paths,
    maps,
    st.integers(0, 9),
    st.integers(0, 9),
    st.booleans(),
    optional_text,
    st.none() | maps,
    st.none(),
    st.none() | st.integers(0, 9),
    st.none() | st.integers(0, 9),
    optional_text,
)
removes = st.builds(
    Remove,
    paths,
    st.booleans(),
    st.none() | st.integers(0, 9),
    st.none() | st.booleans(),
    st.none() | maps,
    st.none() | st.integers(0, 9),
)
others = st.one_of(
    st.builds(Txn, st.sampled_from("st"), st.integers(0, 9), st.none() | st.integers(0, 9)),
    st.builds(DomainMetadata, st.sampled_from("mn"), st.sampled_from(["", "{}"]), st.booleans()),
    st.builds(lambda name: Metadata("id", SCHEMA, (), METADATA.configuration, name), st.sampled_from("kl")),
    st.just(PROTOCOL),
    st.builds(
        lambda keys: CommitInfo({CommitInfo.FORGOTTEN: keys}),
        st.lists(st.sampled_from(["a", "b", "c", "a b", "d=1/e", "ü"]), min_size=1, max_size=4),
    ),
)
"""What is not about files; the last ends the tombstones of earlier commits."""

commits = st.lists(adds | removes | others, max_size=6, unique_by=concern)


@dataclass
class Model:
    protocol: Protocol | None = None
    metadata: Metadata | None = None
    txns: dict[str, Txn] = field(default_factory=dict)
    domains: dict[str, str] = field(default_factory=dict)
    files: dict[str, Add] = field(default_factory=dict)
    tombstones: dict[str, Remove] = field(default_factory=dict)

    def apply(self, action: Action) -> None:
        match action:
            case Add():
                self.files[action.key] = action
                self.tombstones.pop(action.key, None)
            case Remove():
                self.files.pop(action.key, None)
                self.tombstones[action.key] = action
            case Txn():
                self.txns[action.app_id] = action
            case DomainMetadata(removed=True):
                self.domains.pop(action.domain, None)
            case DomainMetadata():
                self.domains[action.domain] = action.configuration
            case Metadata():
                self.metadata = action
            case Protocol():
                self.protocol = action
            case CommitInfo():
                for key in action.forgotten:
                    self.tombstones.pop(key, None)
            case _:
                pass

    def commit(self, actions: list[Action]) -> None:
        for action in sorted(actions, key=lambda action: not isinstance(action, CommitInfo)):
            self.apply(action)


def put(store: LocalStore, version: int, actions: list[Action]) -> None:
    info: dict[str, object] = {"inCommitTimestamp": 1000 + version}
    for action in actions:
        if isinstance(action, CommitInfo):
            info |= action.value
    put_commit(store, version, [CommitInfo(info), *(one for one in actions if not isinstance(one, CommitInfo))])


def without_files(snapshot: Snapshot) -> Snapshot:
    return replace(snapshot, files=no_rows(FILES), tombstones=no_rows(TOMBSTONES))


def check(snapshot: Snapshot, model: Model) -> None:
    assert snapshot.protocol == model.protocol
    assert snapshot.metadata == model.metadata
    assert snapshot.txns == model.txns
    assert snapshot.domains == model.domains
    assert {add.key: add for add in snapshot.adds()} == model.files
    assert sorted(snapshot.files["key"].to_pylist()) == sorted(model.files)
    assert snapshot.num_files == len(model.files)
    assert snapshot.size_bytes == sum(add.size for add in model.files.values())
    rows = snapshot.tombstones.to_pylist()
    assert {row["key"]: (row["path"], row["deletionTimestamp"], row["size"]) for row in rows} == {
        key: (remove.path, remove.deletion_timestamp, remove.size) for key, remove in model.tombstones.items()
    }
    assert snapshot.timestamp_ms == 1000 + snapshot.version


@given(st.lists(commits, max_size=6), st.sets(st.integers(0, 6), max_size=3), st.integers(0, 6))
def test_replay_advance_and_checkpoints_agree_with_the_model(
    history: list[list[Action]], checkpoints: set[int], start: int
) -> None:
    with TemporaryDirectory() as folder:
        store = LocalStore(Path(folder))
        model = Model()
        for version, actions in enumerate([[PROTOCOL, METADATA], *history]):
            put(store, version, actions)
            model.commit(actions)
            check(load_snapshot(store), model)
        last = len(history)
        plain = [load_snapshot(store, version) for version in range(last + 1)]
        for version in sorted(checkpoints & set(range(last + 1))):
            write_checkpoint(store, load_snapshot(store, version))
        first = min(start, last)
        for version in range(last + 1):
            loaded = load_snapshot(store, version)
            assert content(loaded) == content(plain[version])
            assert content(load_head(store, version)) == content(without_files(loaded))
            if version >= first:
                assert content(plain[first].advance(read_commits(store, first + 1, version))) == content(loaded)
        stepwise = plain[first]
        for version in range(first + 1, last + 1):
            stepwise = stepwise.advance([read_commit(store, version)])
        assert content(stepwise) == content(plain[last])


@settings(max_examples=15)
@given(st.lists(commits, min_size=2, max_size=5))
def test_a_checkpoints_bytes_depend_on_the_log_alone(history: list[list[Action]]) -> None:
    with TemporaryDirectory() as folder:
        store = LocalStore(Path(folder))
        for version, actions in enumerate([[PROTOCOL, METADATA], *history]):
            put(store, version, actions)
        last = len(history)
        write_checkpoint(store, load_snapshot(store))
        whole = store.get(checkpoint_key(last))
        pointer = store.get("_delta_log/_last_checkpoint")
        store.delete([checkpoint_key(last), "_delta_log/_last_checkpoint"])
        write_checkpoint(store, load_snapshot(store, 1))
        write_checkpoint(store, load_snapshot(store, 1).advance(read_commits(store, 2, last)))
        assert store.get(checkpoint_key(last)) == whole
        assert store.get("_delta_log/_last_checkpoint") == pointer
        store.delete([commit_key(version) for version in range(last)])
        write_checkpoint(store, load_snapshot(store))
        assert store.get(checkpoint_key(last)) == whole


@pytest.mark.parametrize("forgotten", ["a", [1], {"a": "b"}, [None]])
def test_files_to_forget_that_are_no_list_of_keys_are_a_corrupt_log(store: LocalStore, forgotten: object) -> None:
    put(store, 0, [PROTOCOL, METADATA])
    put(store, 1, [CommitInfo({CommitInfo.FORGOTTEN: forgotten})])
    for load in (load_snapshot, lambda store: read_commits(store, 0, 1)):
        with pytest.raises(LogCorrupt, match=r"1\.json, line 1, commitInfo: dagsterVersionedForgotten"):
            load(store)


def test_the_snapshot_knows_its_commits_bytes(store: LocalStore) -> None:
    put(store, 0, [PROTOCOL, METADATA])
    put(store, 1, [])
    write_checkpoint(store, load_snapshot(store))
    assert load_snapshot(store).commit_sha256 == read_commit(store, 1).sha256
    assert load_snapshot(store, 0).commit_sha256 == read_commit(store, 0).sha256
    store.delete([commit_key(1)])
    assert load_snapshot(store).commit_sha256 is None


@pytest.mark.parametrize(("left_out", "reason"), [(PROTOCOL, "no protocol"), (METADATA, "no metaData")])
def test_a_log_without_protocol_or_metadata_is_refused(store: LocalStore, left_out: Action, reason: str) -> None:
    put(store, 0, [action for action in (PROTOCOL, METADATA) if action is not left_out])
    with pytest.raises(LogCorrupt, match=reason):
        load_snapshot(store)


def test_commits_that_do_not_follow_are_refused(store: LocalStore) -> None:
    put(store, 0, [PROTOCOL, METADATA])
    for version in (1, 2):
        put(store, version, [])
    base = load_snapshot(store, 0)
    assert base.advance([]) is base
    with pytest.raises(LogCorrupt, match="version 1 comes next"):
        base.advance([read_commit(store, 2)])
    with pytest.raises(LogCorrupt, match="version 2 comes next"):
        base.advance([read_commit(store, 1), read_commit(store, 1)])


def add(path: str, vector: DeletionVector | None = None) -> Add:
    return Add(path, {}, 1, 1, True, deletion_vector=vector)


@pytest.mark.parametrize(
    ("bad", "error", "reason"),
    [
        (add("../outside"), LogCorrupt, "leaves the table's folder"),
        (add("s3://elsewhere/a"), UnsupportedFeature, "absolutePaths"),
        (Protocol(99, 7, None, ()), UnsupportedFeature, "reader version 99"),
        (Protocol(3, 7, ("unheardOf",), ("unheardOf",)), UnsupportedFeature, "unheardOf"),
        (Metadata("i", SCHEMA, ("nope",)), LogCorrupt, "nope"),
        (Metadata("i", "{", ()), LogCorrupt, "not JSON"),
        (Metadata("i", NO_COLUMNS, ()), LogCorrupt, "no columns"),
        (Metadata("i", SCHEMA, (), format_provider="orc"), UnsupportedFeature, "orc"),
    ],
)
def test_what_cannot_be_read_is_refused_when_loaded_and_when_advanced(
    store: LocalStore, bad: Action, error: type[Exception], reason: str
) -> None:
    put(store, 0, [PROTOCOL, METADATA])
    put(store, 1, [bad])
    with pytest.raises(error, match=reason):
        load_snapshot(store)
    with pytest.raises(error, match=reason):
        load_snapshot(store, 0).advance([read_commit(store, 1)])


def test_a_snapshot_says_whether_it_has_deletion_vectors(store: LocalStore) -> None:
    put(store, 0, [PROTOCOL, METADATA, add("a")])
    put(store, 1, [Remove("a", True), add("a", DeletionVector("u", "x", 1, 1))])
    assert [load_snapshot(store, version).has_deletion_vectors for version in (0, 1)] == [False, True]
    write_checkpoint(store, load_snapshot(store))
    assert load_snapshot(store).adds()[0].deletion_vector == DeletionVector("u", "x", 1, 1)


def test_tombstones_of_elsewhere_do_not_matter(store: LocalStore) -> None:
    put(store, 0, [PROTOCOL, METADATA, Remove("../gone", True), Remove("/abs", True)])
    assert load_snapshot(store).num_files == 0


def test_one_file_with_another_vector_is_another_logical_file(store: LocalStore) -> None:
    vector = DeletionVector("u", "x", 1, 1, 4)
    gone = Remove("a", True, deletion_vector=vector)
    put(store, 0, [PROTOCOL, METADATA, add("a"), gone])
    snapshot = load_snapshot(store)
    assert snapshot.files["key"].to_pylist() == ["a"]
    assert snapshot.tombstones["key"].to_pylist() == ["a"]
    write_checkpoint(store, snapshot)
    assert content(load_snapshot(store)) == content(snapshot)
    put(store, 1, [Remove("a", True), add("b")])
    assert load_snapshot(store).tombstones.num_rows == 2
    assert content(snapshot.advance([read_commit(store, 1)])) == content(load_snapshot(store))


def test_transaction_identifiers_and_tombstones_expire_by_the_tables_own_time(store: LocalStore) -> None:
    metadata = Metadata(
        "i",
        SCHEMA,
        (),
        {
            **METADATA.configuration,
            "delta.setTransactionRetentionDuration": "interval 1 second",
            "delta.deletedFileRetentionDuration": "interval 500 milliseconds",
        },
    )
    old = [Txn("old", 1, 1000), Txn("ageless", 1), Remove("old", True, 1000), Remove("timeless", True)]
    put(store, 0, [PROTOCOL, metadata, *old])
    store.put(
        commit_key(1),
        b"\n".join(
            map(
                encode_action,
                [CommitInfo({"inCommitTimestamp": 2001}), Txn("new", 1, 1001), Remove("new", True, 1501)],
            )
        ),
    )
    assert set(load_snapshot(store, 0).txns) == {"old", "ageless"}
    snapshot = load_snapshot(store)
    assert set(snapshot.txns) == {"new", "ageless"}
    assert set(load_snapshot(store, 0).advance([read_commit(store, 1)]).txns) == {"new", "ageless"}
    write_checkpoint(store, snapshot)
    assert load_snapshot(store).tombstones["key"].to_pylist() == ["new"]


def test_many_appends_keep_the_table_in_few_chunks(store: LocalStore) -> None:
    put(store, 0, [PROTOCOL, METADATA])
    snapshot = load_snapshot(store)
    for version in range(1, 80):
        put(store, version, [add(f"f{version}")])
        snapshot = snapshot.advance([read_commit(store, version)])
    assert snapshot.num_files == 79
    assert snapshot.files["key"].num_chunks <= 33


def test_reading_a_checkpoint_needs_no_older_commit(store: LocalStore) -> None:
    put(store, 0, [PROTOCOL, METADATA, add("a")])
    put(store, 1, [add("b")])
    write_checkpoint(store, load_snapshot(store))
    store.delete([commit_key(0)])
    assert sorted(load_snapshot(store).files["key"].to_pylist()) == ["a", "b"]
    file = pq.ParquetFile(store.local_path(checkpoint_key(1)))
    assert file.schema_arrow.names == ["metaData", "protocol", "txn", "domainMetadata", "remove", "add"]


@pytest.mark.parametrize("damage", ["garbage", "empty", "no rows"])
def test_an_unreadable_checkpoint_is_passed_over(store: LocalStore, damage: str) -> None:
    for version in range(6):
        head = [PROTOCOL, METADATA] if version == 0 else []
        put(store, version, [*head, Add(f"f{version}", {}, 1, 1, True)])
        if version in (2, 4):
            write_checkpoint(store, load_snapshot(store))
    expected = sorted(load_snapshot(store).files["key"].to_pylist())
    for version in (4, 2):
        path = store.local_path(checkpoint_key(version))
        if damage == "no rows":
            pq.write_table(pq.read_table(path).slice(0, 0), path)
        else:
            store.put(checkpoint_key(version), b"PAR1 garbage" if damage == "garbage" else b"")
        assert sorted(load_snapshot(store).files["key"].to_pylist()) == expected
        assert load_snapshot(store, 4).version == 4
        assert content(load_head(store)) == content(without_files(load_snapshot(store)))
    store.delete([commit_key(0)])
    for load in (load_snapshot, load_head):
        with pytest.raises(LogCorrupt, match="checkpoint"):
            load(store)


def test_of_a_large_checkpoint_a_head_reads_the_row_groups_that_are_not_about_files(store: LocalStore) -> None:
    put(store, 0, [PROTOCOL, METADATA, *(add(f"f{number}") for number in range(50)), DomainMetadata("d", "", False)])
    write_checkpoint(store, load_snapshot(store))
    path = store.local_path(checkpoint_key(0))
    pq.write_table(pq.read_table(path), path, row_group_size=10)
    expected = content(without_files(load_snapshot(store)))
    data = bytearray(path.read_bytes())
    group = pq.read_metadata(path).row_group(3)
    for column in (group.column(number) for number in range(group.num_columns)):
        start, length = column.dictionary_page_offset or column.data_page_offset, column.total_compressed_size
        data[start : start + length] = bytes(length)
    path.write_bytes(data)
    store.put(commit_key(0), b'{"commitInfo":{"inCommitTimestamp":1000}}')
    head = load_head(store)
    assert (head.protocol, head.metadata, head.domains) == (expected[0][1], expected[0][2], {"d": ""})
    with pytest.raises(LogCorrupt):
        load_snapshot(store)


NO_TIMES = [encode_action(CommitInfo({"inCommitTimestamp": value})) for value in ("1001", 1001.5, True, [1001], None)]


@pytest.mark.parametrize("damage", [b"", b"\n", encode_action(CommitInfo({"operation": "WRITE"})), *NO_TIMES])
def test_a_commit_without_its_time_is_no_commit_where_the_table_asks_for_it(store: LocalStore, damage: bytes) -> None:
    put(store, 0, [PROTOCOL, METADATA, add("a")])
    put(store, 1, [add("b")])
    before = load_snapshot(store, 0)
    store.put(commit_key(1), damage)
    with pytest.raises(LogCorrupt, match="inCommitTimestamp"):
        load_snapshot(store)
    with pytest.raises(LogCorrupt, match="inCommitTimestamp"):
        before.advance(read_commits(store, 1, 1))


@pytest.mark.parametrize("info", NO_TIMES)
def test_a_time_that_is_no_integer_is_passed_over_where_the_table_asks_for_none(store: LocalStore, info: bytes) -> None:
    put(store, 0, [PROTOCOL, Metadata("id", SCHEMA), add("a")])
    before = load_snapshot(store, 0)
    stored = store.put_if_absent(commit_key(1), info + b"\n" + encode_action(add("b")))
    expected = int(stored.modified.timestamp() * 1000)
    for snapshot in (load_snapshot(store), before.advance(read_commits(store, 1, 1))):
        assert (snapshot.num_files, snapshot.timestamp_ms) == (2, expected)
