import hashlib
import json
from collections.abc import Callable

import pytest

from dagster_versioned.delta.log.commits import (
    CheckpointFiles,
    LogSegment,
    canonical_form,
    commit_key,
    commits_after,
    json_checksum,
    last_checkpoint_version,
    list_log,
    newest_version,
    parse_commit,
    read_commit,
    read_commits,
    read_log,
)
from dagster_versioned.errors import LogCorrupt, ObjectNotFound, TableNotFound, UnsupportedFeature, VersionNotFound
from dagster_versioned.storage.local import LocalStore
from dagster_versioned.storage.wrappers import CountingStore, StoreWrapper

PutLog = Callable[..., LocalStore]
EMPTY = b'{"commitInfo":{}}\n'


def test_keys_have_twenty_digits() -> None:
    assert commit_key(12) == "_delta_log/00000000000000000012.json"


# --- commits


def test_a_commit_keeps_its_bytes_hash_and_the_whole_commit_info() -> None:
    info = {"inCommitTimestamp": 7, "dagsterVersioned": {"versions": [{"identity": {"x": [1, None]}}]}}
    data = json.dumps({"commitInfo": info}).encode() + b"\n\n" + b'{"txn":{"appId":"a","version":3}}'
    commit = parse_commit(4, data, 99)
    assert commit.commit_info == info
    assert commit.timestamp_ms == 7
    assert commit.size == len(data)
    assert commit.sha256 == hashlib.sha256(data).hexdigest()
    assert [txn.version for txn in commit.txns] == [3]


def test_without_an_in_commit_timestamp_the_files_time_counts(put_log: PutLog) -> None:
    store = put_log(b'{"commitInfo":{"timestamp":5}}', b"")
    modified = store.head(commit_key(0)).modified.timestamp()
    assert abs(read_commit(store, 0).timestamp_ms - modified * 1000) < 1
    assert read_commit(store, 1).commit_info is None


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (EMPTY + b'{"add":{"path"', 2),
        (b'{"commitInfo":{}}\n{"txn":{"appId":"a","version":1}}{"txn":{}}', 2),
        (b'\xff\xfe{"commitInfo":{}}', 1),
        (EMPTY * 4 + b'{"metaData":{"id":1}}', 5),
    ],
)
def test_a_malformed_commit_names_file_and_line(put_log: PutLog, data: bytes, line: int) -> None:
    store = put_log(EMPTY, data)
    with pytest.raises(LogCorrupt, match=rf"_delta_log/0{{19}}1\.json, line {line}\b"):
        read_commit(store, 1)


def test_a_commit_that_contradicts_itself_names_its_file() -> None:
    protocol = b'{"protocol":{"minReaderVersion":1,"minWriterVersion":2}}\n'
    with pytest.raises(LogCorrupt, match=r"0002\.json: protocol occurs twice"):
        parse_commit(2, protocol * 2, 0)
    with pytest.raises(LogCorrupt, match=r"0002\.json: The path '%' is not a URI"):
        parse_commit(2, b'{"remove":{"path":"%","dataChange":true}}', 0)


def test_commits_are_read_in_order(put_log: PutLog) -> None:
    store = put_log(*[b'{"commitInfo":{"n":%d}}' % number for number in range(12)])
    assert [commit.commit_info["n"] for commit in read_commits(store, 3, 9)] == [3, 4, 5, 6, 7, 8, 9]
    assert read_commits(store, 5, 4) == []
    with pytest.raises(ObjectNotFound):
        read_commits(store, 10, 12)


class Remote(StoreWrapper):
    """A store without files of its own, as one over a network."""

    def local_path(self, key: str) -> None:
        return None


def test_a_remote_stores_commits_are_read_in_parallel_and_in_order(put_log: PutLog) -> None:
    store = Remote(put_log(*[b'{"commitInfo":{"n":%d}}' % number for number in range(40)]))
    assert [commit.version for commit in read_commits(store, 1, 38)] == list(range(1, 39))
    with pytest.raises(ObjectNotFound):
        read_commits(store, 30, 40)


@pytest.mark.parametrize(("count", "after"), [(3, 2), (3, 0), (9, 0), (40, 0), (40, -1)])
def test_the_tail_is_followed_to_its_end(put_log: PutLog, count: int, after: int) -> None:
    store = put_log(*[EMPTY] * count)
    assert [commit.version for commit in commits_after(store, after)] == list(range(after + 1, count))


def test_a_short_tail_is_followed_without_a_listing(put_log: PutLog) -> None:
    store = CountingStore(put_log(EMPTY, EMPTY, EMPTY))
    assert len(commits_after(store, 0)) == 2
    assert [call.verb for call in store.calls] == ["get"] * 2


@pytest.mark.parametrize("known", [0, 5, 19])
def test_the_newest_version_is_found_from_one_that_was(put_log: PutLog, known: int) -> None:
    assert newest_version(put_log(*[EMPTY] * 20), known) == 19


def test_the_newest_version_is_found_without_a_listing_where_little_is_new(put_log: PutLog) -> None:
    store = CountingStore(put_log(*[EMPTY] * 20))
    assert newest_version(store, 18) == 19
    assert {call.verb for call in store.calls} == {"head"}


def test_the_newest_version_is_found_where_the_known_one_was_cleaned_up(put_log: PutLog) -> None:
    store = put_log(*[EMPTY] * 20)
    store.put("_delta_log/00000000000000000015.checkpoint.parquet", b"")
    store.delete([commit_key(version) for version in range(12)])
    assert newest_version(store, 3) == 19


def test_a_gap_far_down_the_tail_is_found(put_log: PutLog) -> None:
    store = put_log(*[EMPTY] * 20)
    store.delete([commit_key(15)])
    with pytest.raises(LogCorrupt, match=r"0015\.json is missing"):
        commits_after(store, 0)


# --- segments


def test_no_log_is_no_table(store: LocalStore) -> None:
    with pytest.raises(TableNotFound):
        list_log(store)
    store.put("_delta_log/notes.txt", b"")
    with pytest.raises(TableNotFound):
        list_log(store)


def test_a_version_that_does_not_exist(put_log: PutLog) -> None:
    store = put_log(EMPTY, EMPTY)
    assert list_log(store, 1).commits == range(2)
    assert list_log(store, 0).commits == range(1)
    with pytest.raises(VersionNotFound, match="newest one is 1"):
        list_log(store, 2)


def test_versions_older_than_the_log_do_not_exist(store: LocalStore) -> None:
    for version in (5, 6):
        store.put(commit_key(version), EMPTY)
    store.put("_delta_log/00000000000000000005.checkpoint.parquet", b"x")
    assert list_log(store).commits == range(6, 7)
    with pytest.raises(VersionNotFound, match="begins after version 4"):
        list_log(store, 4)


@pytest.mark.parametrize("missing", [0, 2])
def test_a_gap_is_refused_by_the_missing_file(put_log: PutLog, missing: int) -> None:
    store = put_log(*[EMPTY] * 4)
    store.delete([commit_key(missing)])
    with pytest.raises(LogCorrupt, match=rf"000{missing}\.json is missing"):
        list_log(store)


def test_a_segment_cannot_be_made_with_a_gap() -> None:
    checkpoint = CheckpointFiles(3, ("x",), 0)
    assert LogSegment(5, checkpoint, [2, 3, 4, 5, 6]).commits == range(4, 6)
    assert LogSegment(3, checkpoint, []).commits == range(4, 4)
    for versions in ([4], [5], [0, 1, 2, 3, 5]):
        with pytest.raises(LogCorrupt):
            LogSegment(5, checkpoint, versions)


def put_checkpoint(store: LocalStore, *names: str) -> None:
    for name in names:
        store.put(f"_delta_log/{name}", b"x")


def test_of_several_checkpoints_the_newest_complete_one_counts(put_log: PutLog) -> None:
    store = put_log(*[EMPTY] * 9)
    put_checkpoint(
        store,
        f"{2:020d}.checkpoint.parquet",
        f"{4:020d}.checkpoint.0000000001.0000000002.parquet",
        f"{4:020d}.checkpoint.0000000002.0000000002.parquet",
        f"{6:020d}.checkpoint.0000000001.0000000003.parquet",
        f"{6:020d}.checkpoint.0000000003.0000000003.parquet",
        f"{7:020d}.checkpoint.parquet.tmp",
        f"{8:020d}.checkpoint.json",
    )
    newest = list_log(store).checkpoint
    assert newest is not None
    assert newest.version == 4
    assert [key[-18:] for key in newest.keys] == ["01.0000000002.parquet"[-18:], "02.0000000002.parquet"[-18:]]
    assert list_log(store, 3).checkpoint.version == 2
    put_checkpoint(store, f"{5:020d}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json")
    assert list_log(store).checkpoint.keys[0].endswith("c43a11.json")
    assert list_log(store).commits == range(6, 9)


# --- _last_checkpoint


def test_the_protocols_checksum_example() -> None:
    text = """{"k0":"'v 0'", "checksum": "adsaskfljadfkjadfkj", "k1":{"k2": 2, "k3": ["v3", [1, 2],
      {"k4": "v4", "k5": ["v5", "v6", "v7"]}]}}"""
    assert canonical_form(json.loads(text)) == (
        '"k0"="%27v%200%27","k1"+"k2"=2,"k1"+"k3"+0="v3","k1"+"k3"+1+0=1,"k1"+"k3"+1+1=2,"k1"+"k3"+2+"k4"="v4",'
        '"k1"+"k3"+2+"k5"+0="v5","k1"+"k3"+2+"k5"+1="v6","k1"+"k3"+2+"k5"+2="v7"'
    )
    assert json_checksum(json.loads(text)) == "6a92d155a59bf2eecbd4b4ec7fd1f875"
    assert canonical_form({"a": 10, "b": {"y": None, "x": "https://delta.io"}}) == (
        '"a"=10,"b"+"x"="https%3A%2F%2Fdelta.io","b"+"y"=null'
    )


@pytest.mark.parametrize(
    "lie",
    [
        b"",
        b"{",
        b"\xff",
        b"[]",
        b"null",
        b'{"version":"4"}',
        b'{"version":-1}',
        b'{"version":true}',
        b'{"version":1e300}',
        b'{"version":9}',
        b'{"version":99999}',
        b'{"version":2}',
        b'{"version":6}',
        b'{"version":4,"version":9}',
        b'{"version":9,"checksum":"0"}',
        b"[" * 100000,
    ],
)
def test_a_lying_last_checkpoint_changes_nothing(put_log: PutLog, lie: bytes) -> None:
    store = put_log(*[EMPTY] * 8)
    put_checkpoint(store, f"{4:020d}.checkpoint.parquet")
    honest = {version: list_log(store, version) for version in (None, 3, 4, 7)}
    store.put("_delta_log/_last_checkpoint", lie)
    assert {version: list_log(store, version) for version in honest} == honest


def test_an_honest_one_spares_the_listing_of_what_is_older(put_log: PutLog) -> None:
    store = put_log(*[EMPTY] * 8)
    put_checkpoint(store, f"{4:020d}.checkpoint.parquet")
    store.put("_delta_log/_last_checkpoint", b'{"version":4,"size":1}')
    store.delete([commit_key(2)])
    assert list_log(store).commits == range(5, 8)
    with pytest.raises(LogCorrupt, match=r"0002\.json is missing"):
        list_log(store, 3)


def test_a_last_checkpoint_is_believed_only_with_the_right_checksum(store: LocalStore) -> None:
    members = {"version": 4, "size": 1}
    for checksum, believed in [(None, 4), (json_checksum(members), 4), ("0" * 32, None), (7, None)]:
        store.put("_delta_log/_last_checkpoint", json.dumps({**members, "checksum": checksum}).encode())
        assert last_checkpoint_version(store) == believed


class Flickering(LocalStore):
    """Misses one commit in its first listing, as a folder scan that races with writers may."""

    def list(self, prefix="", *, start_after=""):
        listed = list(super().list(prefix, start_after=start_after))
        if not getattr(self, "seen", False):
            self.seen = True
            listed = [info for info in listed if not info.key.endswith("2.json")]
        return iter(listed)


def test_a_listing_that_missed_a_landing_commit_is_repeated(tmp_path) -> None:
    store = Flickering(tmp_path)
    for version in range(4):
        store.put(commit_key(version), EMPTY)
    assert list_log(store).commits == range(4)


# --- hostile names and times


def test_a_checkpoint_that_claims_ten_billion_parts_costs_nothing(put_log: PutLog) -> None:
    store = put_log(EMPTY)
    store.put("_delta_log/00000000000000000000.checkpoint.0000000001.9999999999.parquet", b"x")
    assert list_log(store) == LogSegment(0, None, [0])


@pytest.mark.parametrize("stamp", [10**17, -(10**15)])
def test_a_time_that_no_calendar_holds_names_the_commit(stamp: int) -> None:
    data = json.dumps({"commitInfo": {"inCommitTimestamp": stamp}}).encode()
    with pytest.raises(LogCorrupt, match=r"0{19}3\.json, line 1, commitInfo: inCommitTimestamp"):
        parse_commit(3, data, 99)


def test_every_commit_is_read_whatever_checkpoints_there_are(put_log: PutLog) -> None:
    store = put_log(EMPTY, EMPTY, EMPTY)
    store.put("_delta_log/00000000000000000001.checkpoint.parquet", b"x")
    assert [commit.version for commit in read_log(store)] == [0, 1, 2]
    store.delete([commit_key(0)])
    with pytest.raises(UnsupportedFeature, match="read_delta"):
        read_log(store)
