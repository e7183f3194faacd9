"""The wrappers count, fail and wait as they say."""

import multiprocessing
import pickle
import signal
import time
from pathlib import Path

import pytest

from dagster_versioned.errors import ObjectNotFound, StoreUnavailable
from dagster_versioned.storage import LocalStore
from dagster_versioned.storage.wrappers import AtCall, Call, CountingStore, Fault, FaultStore, LatencyStore


@pytest.fixture
def local(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "root")


def test_counting_notes_calls_and_bytes_of_every_depth(local: LocalStore, tmp_path: Path):
    store = CountingStore(local)
    file = tmp_path / "file"
    file.write_bytes(b"12345")
    inner = store.subfolder("a").subfolder("b")
    etag = inner.put("x", b"123").etag
    inner.put_if_match("x", b"1234", etag)
    store.put_if_absent("y", b"12")
    store.put_file("z", file)
    store.copy("z", "zz")
    assert store.get("a/b/x") == inner.get_with_info("x")[0] == b"1234"
    inner.get_range("x", 1, 2)
    inner.head("x")
    list(store.list())
    list(store.folders())
    store.delete(["y", "z"])
    with pytest.raises(ObjectNotFound):
        store.get("y")
    assert [(call.verb, call.key) for call in store.calls] == [
        ("put", "a/b/x"), ("put_if_match", "a/b/x"), ("put_if_absent", "y"), ("put_file", "z"), ("copy", "zz"),
        ("get", "a/b/x"), ("get", "a/b/x"), ("get_range", "a/b/x"), ("head", "a/b/x"), ("list", ""), ("folders", ""),
        ("delete", "y"),
    ]  # fmt: skip
    assert [call.number for call in store.calls] == list(range(1, 13))
    assert (store.bytes_written, store.bytes_read) == (3 + 4 + 2 + 5, 4 + 4 + 2)
    assert (store.count(), store.count("get"), store.count("put", "put_file")) == (12, 2, 2)
    store.reset()
    assert inner.count() == 0


def test_a_fault_before_leaves_nothing_and_a_lost_answer_leaves_the_object(local: LocalStore):
    asked: list[Call] = []

    def decide(call: Call) -> Fault | None:
        asked.append(call)
        return {2: Fault.BEFORE, 3: Fault.LOST_ANSWER}.get(call.number)

    store = FaultStore(local, decide)
    inner = store.subfolder("a")
    store.put("1", b"data")
    with pytest.raises(StoreUnavailable, match="call 2, not tried"):
        inner.put_if_absent("2", b"data")
    with pytest.raises(StoreUnavailable, match="answer to call 3"):
        inner.put_if_absent("3", b"data")
    assert [info.key for info in store.list()] == ["1", "a/3"]
    assert [(call.verb, call.key) for call in asked] == [
        ("put", "1"), ("put_if_absent", "a/2"), ("put_if_absent", "a/3"), ("list", "")
    ]  # fmt: skip


def _put_three(store: FaultStore) -> None:
    for number in (1, 2, 3):
        store.put(str(number), b"data")


def test_a_kill_ends_the_process_before_the_call(local: LocalStore):
    store = FaultStore(local, AtCall(3, Fault.KILL))
    process = multiprocessing.get_context("fork").Process(target=_put_three, args=(store,))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert [info.key for info in local.list()] == ["1", "2"]


def test_a_pickled_fault_store_goes_on_counting_where_it_was(local: LocalStore):
    store = FaultStore(local, AtCall(2, Fault.BEFORE))
    store.put("1", b"data")
    copy = pickle.loads(pickle.dumps(store))
    with pytest.raises(StoreUnavailable, match="call 2"):
        copy.put("2", b"data")


def test_latency_waits_before_each_call(local: LocalStore):
    store = LatencyStore(local, 0.05).subfolder("a")
    begun = time.perf_counter()
    store.put("x", b"data")
    assert store.get("x") == b"data"
    assert time.perf_counter() - begun >= 0.1
