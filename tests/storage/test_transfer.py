"""Copies between any two stores: whole, parallel, never more of an object in memory than a piece, changes noticed."""

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dagster_versioned.errors import AccessDenied, ObjectNotFound, PreconditionFailed, StoreUnavailable
from dagster_versioned.storage import LocalStore, ObjectStore, S3Credentials, S3Options, S3Store, transfer
from dagster_versioned.storage.object_store import ObjectInfo
from dagster_versioned.storage.transfer import CopyProgress, Transfer
from dagster_versioned.storage.wrappers import Call, CountingStore, Fault, FaultStore
from support.interleaving import Stepped
from support.s3_server import S3Server
from support.stores import contents

MEGABYTE = 1024**2
SMALL_PARTS = S3Options(part_bytes=5 * MEGABYTE, whole_copy_bytes=6 * MEGABYTE)
FAST = [("local", "local"), ("local", "s3"), ("s3", "s3"), ("s3", "local")]
SLOW = [("local", "moto"), ("moto", "moto"), ("moto", "local"), ("moto", "s3")]
PAIRS = [
    *(pytest.param(pair, id="-".join(pair), marks=pytest.mark.s3) for pair in FAST),
    *(pytest.param(pair, id="-".join(pair), marks=[pytest.mark.s3, pytest.mark.slow]) for pair in SLOW),
]

Ends = tuple[ObjectStore, ObjectStore]


@pytest.fixture
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], ObjectStore]:
    """Makes an empty store of a kind; S3 stores have a bucket each."""

    def make(kind: str) -> ObjectStore:
        if kind == "local":
            return LocalStore(tmp_path / uuid4().hex)
        server: S3Server = request.getfixturevalue({"moto": "moto_server", "s3": "s3_server"}[kind])
        return server.store(server.new_bucket(), "some/pre-fix", SMALL_PARTS)

    return make


@pytest.fixture(params=PAIRS)
def ends(request: pytest.FixtureRequest, made: Callable[[str], ObjectStore]) -> Ends:
    source, target = request.param
    return made(source), made(target)


@pytest.mark.every(2)
def test_every_object_arrives_with_its_bytes(ends: Ends) -> None:
    source, target = ends
    for key, data in {"a/empty": b"", "a/ü x": b"\0" * 9, "b": bytes(range(256)) * 4000}.items():
        source.put(key, data)
    seen: list[CopyProgress] = []
    copied = Transfer(source, target).copy_all(list(source.list()), progress=seen.append)
    assert contents(target) == contents(source)
    assert (copied.objects, copied.bytes, copied.overtaken) == (3, 9 + 256 * 4000, ())
    assert [progress.objects for progress in seen] == [1, 2, 3]
    assert seen[-1] == CopyProgress(3, 3, copied.bytes, copied.bytes)


@pytest.mark.every(2)
def test_a_large_object_passes_in_pieces(ends: Ends) -> None:
    source, target = ends
    source.put("large", bytes(range(256)) * 4096 * 13)
    found = source.head("large")
    made = Transfer(source, target).copy(found, "renamed")
    assert (made.key, made.size) == ("renamed", 13 * MEGABYTE)
    assert contents(target)["renamed"] == contents(source)["large"]


@pytest.mark.every(2)
def test_what_is_there_is_replaced(ends: Ends) -> None:
    source, target = ends
    source.put("a", b"new")
    target.put("a", b"old and longer")
    Transfer(source, target).copy(source.head("a"))
    assert target.get("a") == b"new"


def test_an_object_that_changed_since_it_was_listed_is_reported(ends: Ends) -> None:
    source, target = ends
    source.put("steady", b"1")
    source.put("changing", b"before")
    listed = list(source.list())
    source.put("changing", b"after!")
    with pytest.raises(PreconditionFailed):
        Transfer(source, target).copy(next(found for found in listed if found.key == "changing"))
    copied = Transfer(source, target).copy_all(listed)
    assert (copied.objects, copied.overtaken) == (1, ("changing",))
    assert target.get("steady") == b"1"


def test_a_large_object_that_changed_since_it_was_listed_is_reported(ends: Ends) -> None:
    source, target = ends
    before = source.put("large", b"1" * 9 * MEGABYTE)
    source.put("large", b"2" * 9 * MEGABYTE)
    with pytest.raises(PreconditionFailed):
        Transfer(source, target).copy(before)


def test_an_object_that_vanished_is_reported(ends: Ends) -> None:
    source, target = ends
    for key in ("a", "b"):
        source.put(key, b"1")
    listed = list(source.list())
    source.delete(["a"])
    with pytest.raises(ObjectNotFound):
        Transfer(source, target).copy(listed[0])
    assert Transfer(source, target).copy_all(listed).overtaken == ("a",)
    assert [found.key for found in target.list()] == ["b"]


class Elsewhere(CountingStore):
    """A store whose files are not files of this machine, and that no server copies from."""

    def local_path(self, key: str) -> None:
        return None


def during_first(verb: str, store: LocalStore, act: Callable[[], object]) -> FaultStore:
    """The store, whose first call of ``verb`` comes after ``act``."""
    waiting = [act]

    def decide(call: Call) -> Fault | None:
        if call.verb == verb and waiting:
            waiting.pop()()
        return None

    return FaultStore(store, decide)


@pytest.mark.parametrize("size", [9, 9 * MEGABYTE])
@pytest.mark.parametrize("verb", ["put_file", "put", "put_chunks", "head", "get_range"])
@pytest.mark.parametrize("act", ["replace", "delete"])
def test_a_change_at_any_moment_of_a_copy_is_noticed_or_comes_before_it(
    tmp_path: Path, size: int, verb: str, act: str
) -> None:
    source = LocalStore(tmp_path / "source")
    found = source.put("x", b"1" * size)
    acts = {"replace": lambda: source.put("x", b"2" * size), "delete": lambda: source.delete(["x"])}
    near = LocalStore(tmp_path / "target")
    on_target = verb.startswith("put")
    target = during_first(verb, near, acts[act]) if on_target else near
    watched = source if on_target else during_first(verb, source, acts[act])
    for origin in (watched, Elsewhere(watched)):
        try:
            Transfer(origin, target).copy(found)
        except (PreconditionFailed, ObjectNotFound):
            continue
        assert near.get("x") == b"1" * size


def test_a_failed_large_copy_leaves_the_target_as_it_was(made: Callable[[str], ObjectStore], tmp_path: Path) -> None:
    target = made("moto")
    target.put("x", b"as it was")
    source = LocalStore(tmp_path / "source")
    found = source.put("x", b"1" * 20 * MEGABYTE)
    failing = FaultStore(Elsewhere(source), lambda call: Fault.BEFORE if call.number == 2 else None)
    with pytest.raises(StoreUnavailable, match="injected"):
        Transfer(failing, target).copy(found)
    assert target.get("x") == b"as it was"
    assert isinstance(target, S3Store)
    assert "Uploads" not in target._client.list_multipart_uploads(Bucket=target.uri.split("/")[2])


def test_the_first_failure_ends_it_and_is_told(tmp_path: Path) -> None:
    source = LocalStore(tmp_path / "source")
    for number in range(200):
        source.put(f"{number:03}", b"1")
    target = LocalStore(tmp_path / "target")
    failing = FaultStore(target, lambda call: Fault.BEFORE if call.key == "020" else None)
    with pytest.raises(StoreUnavailable, match="020"):
        Transfer(source, failing, threads=2).copy_all(list(source.list()))
    assert 0 < len(list(target.list())) < 100


def test_a_server_copies_by_itself(made: Callable[[str], ObjectStore], monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = made("moto"), made("moto")
    source.put("x", b"1" * 9)
    source.put("large", b"2" * 7 * MEGABYTE)
    listed = list(source.list())
    for verb in ("get", "get_with_info", "get_range", "put", "put_chunks"):
        monkeypatch.setattr(S3Store, verb, None)
    assert Transfer(source, target).copy_all(listed).objects == 2
    monkeypatch.undo()
    assert contents(target) == contents(source)


def test_a_target_whose_keys_may_not_read_the_source_is_given_the_bytes(
    moto_server: S3Server, made: Callable[[str], ObjectStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = made("moto"), made("moto")
    source.put("x", b"1")
    source.put("y", b"2")
    asked: list[str] = []

    def refused(self, other, source_key, target_key, *, found: ObjectInfo):
        asked.append(source_key)
        raise AccessDenied("copy: 403")

    monkeypatch.setattr(S3Store, "copy_from", refused)
    Transfer(source, target, threads=1).copy_all(list(source.list()))
    assert contents(target) == contents(source)
    assert len(asked) == 1  # the answer is remembered


@pytest.mark.s3
@pytest.mark.slow
def test_wrong_keys_at_the_target_are_an_error(s3_server: S3Server, made: Callable[[str], ObjectStore]) -> None:
    source = made("s3")
    found = source.put("x", b"1")
    location = s3_server.location(s3_server.new_bucket())
    with pytest.raises(AccessDenied):
        Transfer(source, S3Store(location, credentials=lambda: S3Credentials("nobody", "nothing"))).copy(found)


@pytest.mark.parametrize("pair", [("local", "moto"), ("moto", "moto"), ("moto", "local")], ids="-".join)
@pytest.mark.slow
def test_memory_holds_pieces_not_objects(
    pair: tuple[str, str], made: Callable[[str], ObjectStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = map(made, pair)
    for number in range(2):
        source.put(str(number), b"1" * 17 * MEGABYTE)
    monkeypatch.setattr(transfer, "_on_one_server", lambda source, target: None)
    listed = list(source.list())
    tracemalloc.start()
    try:
        Transfer(Elsewhere(source), StrictTarget(target), threads=1).copy_all(listed)
    finally:
        tracemalloc.stop()
    assert StrictTarget.largest <= transfer.PIECE_BYTES
    assert contents(target) == contents(source)


class StrictTarget(CountingStore):
    """Notes the largest piece of bytes that it was ever given."""

    largest = 0

    def put(self, key, data, **options):
        StrictTarget.largest = max(StrictTarget.largest, len(data))
        return super().put(key, data, **options)

    def put_chunks(self, key, chunks):
        def noted():
            for chunk in chunks:
                StrictTarget.largest = max(StrictTarget.largest, len(chunk))
                yield chunk

        return super().put_chunks(key, noted())


class TestReplacing:
    def test_a_target_that_is_as_it_was_seen_is_replaced(self, ends: Ends) -> None:
        source, target = ends
        source.put("new", b"1")
        source.put("old", b"2")
        etag = target.put("old", b"before").etag
        copied = Transfer(source, target).copy_all(list(source.list()), replacing={"new": None, "old": etag})
        assert copied.overtaken == ()
        assert contents(target) == contents(source)

    def test_a_target_that_somebody_changed_is_left(self, ends: Ends) -> None:
        source, target = ends
        source.put("a", b"1")
        source.put("b", b"2")
        etag = target.put("a", b"as it was seen").etag
        target.put("a", b"since")
        target.put("b", b"since")
        copied = Transfer(source, target).copy_all(list(source.list()), replacing={"a": etag, "b": None})
        assert copied.overtaken == ("a", "b")
        assert target.get("a") == target.get("b") == b"since"

    def test_a_source_that_changed_replaces_nothing(self, ends: Ends) -> None:
        source, target = ends
        source.put("a", b"before")
        listed = list(source.list())
        source.put("a", b"later.")
        assert Transfer(source, target).copy_all(listed, replacing={"a": None}).overtaken == ("a",)
        assert contents(target) == {}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15)
@given(st.lists(st.integers(0, 40), max_size=30), st.integers(1, 6))
def test_all_of_any_sizes_arrive_by_pieces_of_any_length(tmp_path: Path, sizes: list[int], piece: int) -> None:
    root = tmp_path / uuid4().hex
    source, target = LocalStore(root / "source"), LocalStore(root / "target")
    for number, size in enumerate(sizes):
        source.put(str(number), bytes(range(size)), durability="later")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transfer, "PIECE_BYTES", piece)
        copied = Transfer(Elsewhere(source), target, threads=3).copy_all(list(source.list()))
    assert (copied.objects, copied.bytes) == (len(sizes), sum(sizes))
    assert contents(target) == contents(source)


def test_an_interrupted_copy_is_begun_no_further(tmp_path: Path) -> None:
    source, target = LocalStore(tmp_path / "source"), Stepped(LocalStore(tmp_path / "target"))
    for number in range(50):
        source.put(f"{number:02}", b"1")

    def interrupt(progress: CopyProgress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Transfer(source, target, threads=2).copy_all(list(source.list()), progress=interrupt)
    assert len(list(target.list())) < 20
