"""A store that goes on elsewhere: what it shows is the base at the fork, and what was written since; the base stays."""

import pickle
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_versioned.errors import AccessDenied, AlreadyExists, ObjectNotFound, PreconditionFailed
from dagster_versioned.storage import LocalStore
from dagster_versioned.storage.overlay import Fork, OverlayStore, Owner
from support.s3_server import S3Server
from support.stores import contents

LOG = "t/log/"


@dataclass(frozen=True)
class NumbersUpTo:
    """``t/log/N`` up to a number are the base's, ``t/parts/…`` either's, ``heads/…`` documents, the rest is own."""

    last: int
    heads: dict[str, bytes] = field(default_factory=dict)

    @property
    def at(self) -> datetime:
        return datetime(2026, 11, 24, tzinfo=UTC)

    def owner(self, key: str) -> Owner:
        if key.startswith("t/parts/"):
            return "either"
        return "base" if key.startswith(LOG) and int(key.removeprefix(LOG)) <= self.last else "own"

    def document(self, key: str) -> bytes | None:
        return self.heads.get(key)

    def documents(self, prefix: str) -> Iterator[str]:
        return iter(sorted(key for key in self.heads if key.startswith(prefix)))

    def listed(self, prefix: str) -> Iterator[tuple[str, str]]:
        if LOG.startswith(prefix) or prefix.startswith(LOG):
            yield max(LOG, prefix, key=len), f"{LOG}{self.last:03}"

    def folders(self, prefix: str) -> Iterator[str]:
        return iter(["t"] if not prefix else [])

    def within(self, folder: str) -> Fork:
        return self


@pytest.fixture
def base(tmp_path: Path) -> LocalStore:
    store = LocalStore(tmp_path / "base")
    for number in range(6):
        store.put(f"{LOG}{number:03}", b"base %d" % number)
    store.put("t/parts/old", b"old part")
    store.put("heads/t", b"the base's head of now")
    store.put("t/other", b"not seen")
    return store


@pytest.fixture
def overlay(base: LocalStore, tmp_path: Path) -> OverlayStore:
    return OverlayStore(LocalStore(tmp_path / "own"), base, NumbersUpTo(3, {"heads/t": b"head at 3"}))


def keys(store, *args, **given) -> list[str]:
    return [info.key for info in store.list(*args, **given)]


def test_it_shows_the_base_at_the_fork(overlay):
    assert keys(overlay) == ["heads/t", *(f"{LOG}{n:03}" for n in range(4))]
    assert overlay.get(f"{LOG}003") == b"base 3"
    assert overlay.get("t/parts/old") == b"old part"
    assert overlay.get("heads/t") == b"head at 3"
    for unseen in (f"{LOG}004", "t/other", "heads/u", "t/parts/none"):
        for read in (overlay.get, overlay.head, overlay.get_with_info, lambda key: overlay.get_range(key, 0, 1)):
            with pytest.raises(ObjectNotFound):
                read(unseen)


def test_it_goes_on_in_a_root_of_its_own(overlay, base):
    before = contents(base)
    overlay.put_if_absent(f"{LOG}004", b"own 4")
    overlay.put("t/parts/new", b"new part")
    overlay.put("t/other", b"own")
    assert overlay.get(f"{LOG}004") == b"own 4"
    assert keys(overlay, LOG) == [f"{LOG}{n:03}" for n in range(5)]
    assert keys(overlay, LOG, start_after=f"{LOG}002") == [f"{LOG}003", f"{LOG}004"]
    assert keys(overlay, f"{LOG}00", start_after=f"{LOG}003") == [f"{LOG}004"]
    assert list(overlay.folders()) == ["t"]
    assert contents(base) == before


def test_what_was_there_at_the_fork_cannot_be_replaced(overlay, base):
    before = contents(base)
    with pytest.raises(AlreadyExists):
        overlay.put_if_absent(f"{LOG}002", b"forged")
    for write in (overlay.put, lambda key, data: overlay.put_if_match(key, data, None)):
        with pytest.raises(AccessDenied, match="only read here"):
            write(f"{LOG}002", b"forged")
    with pytest.raises(AccessDenied):
        overlay.copy("t/parts/old", f"{LOG}002")
    overlay.delete([f"{LOG}002", "t/parts/old", "heads/t"])
    assert overlay.get(f"{LOG}002") == b"base 2"
    assert overlay.get("t/parts/old") == b"old part"
    assert contents(base) == before


def test_an_own_entry_up_to_the_fork_is_not_seen(overlay, tmp_path):
    """What a tool puts into the folder, or a writer that was late before the environment was made anew."""
    LocalStore(tmp_path / "own").put(f"{LOG}001", b"forged")
    assert overlay.get(f"{LOG}001") == b"base 1"
    assert [info.size for info in overlay.list(LOG)] == [6, 6, 6, 6]


def test_a_head_of_the_fork_is_swapped_once(overlay):
    data, info = overlay.get_with_info("heads/t")
    assert data == b"head at 3"
    with pytest.raises(PreconditionFailed):
        overlay.put_if_match("heads/t", b"lost", None)
    with pytest.raises(PreconditionFailed):
        overlay.put_if_match("heads/t", b"lost", "fork-other")
    new = overlay.put_if_match("heads/t", b"head at 4", info.etag)
    with pytest.raises(PreconditionFailed):
        overlay.put_if_match("heads/t", b"lost", info.etag)
    overlay.put_if_match("heads/t", b"head at 5", new.etag)
    assert overlay.get("heads/t") == b"head at 5"
    assert keys(overlay, "heads/") == ["heads/t"]


def test_what_either_may_hold_is_swapped_as_it_was_seen(overlay, base):
    before = contents(base)
    data, info = overlay.get_with_info("t/parts/old")
    assert data == b"old part"
    for etag in (info.etag + "x", '"none"'):
        with pytest.raises(PreconditionFailed):
            overlay.put_if_match("t/parts/old", b"lost", etag)
    new = overlay.put_if_match("t/parts/old", b"own part", info.etag)
    with pytest.raises(PreconditionFailed):
        overlay.put_if_match("t/parts/old", b"lost", info.etag)
    overlay.put_if_match("t/parts/old", b"own part 2", new.etag)
    assert (overlay.get("t/parts/old"), contents(base)) == (b"own part 2", before)


def test_a_copy_of_a_file_of_the_base_is_own(overlay, tmp_path):
    overlay.copy("t/parts/old", "t/parts/twin")
    overlay.take("t/parts/old")
    own = LocalStore(tmp_path / "own")
    assert own.get("t/parts/twin") == own.get("t/parts/old") == b"old part"
    assert overlay.is_own("t/parts/old")


def test_files_are_where_they_are(overlay, base, tmp_path):
    assert overlay.local_path("t/parts/old") == base.local_path("t/parts/old")
    assert overlay.local_path("t/parts/new") == LocalStore(tmp_path / "own").local_path("t/parts/new")
    assert overlay.local_path(f"{LOG}003") == base.local_path(f"{LOG}003")
    assert overlay.url("t/parts/old") == base.url("t/parts/old")
    assert overlay.uri == str(tmp_path / "own")


def test_sides_of_two_kinds_give_no_local_path(base, s3_server: S3Server):
    own = s3_server.store(s3_server.new_bucket())
    mixed = OverlayStore(own, base, NumbersUpTo(3))
    assert mixed.local_path("t/parts/old") is None
    mixed.put("t/parts/new", b"new")
    assert mixed.get("t/parts/old") == b"old part"
    assert mixed.url("t/parts/new") == own.url("t/parts/new")
    assert keys(mixed, "t/parts/") == ["t/parts/new"]


def test_a_folder_deeper_and_a_copy_by_pickling_see_the_same(overlay):
    for store in (overlay.subfolder("t"), pickle.loads(pickle.dumps(overlay)).subfolder("t")):
        assert store.get("log/003") == b"base 3"
        assert keys(store, "log/") == [f"log/{n:03}" for n in range(4)]
        assert store.get("parts/old") == b"old part"
        with pytest.raises(ObjectNotFound):
            store.get("log/004")


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["base", "own"]),
        st.sampled_from(["put", "delete"]),
        st.sampled_from([*(f"{LOG}{n:03}" for n in range(8)), "t/parts/a", "t/parts/b", "t/x", "z", "heads/t"]),
    ),
    max_size=25,
)


@given(STEPS, st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_it_is_the_base_at_the_fork_and_what_was_written_since(tmp_path_factory, steps, last):
    """Against a dictionary: after the fork the base goes on, content-addressed files are never deleted from it."""
    folder = tmp_path_factory.mktemp("overlay")
    base, own = LocalStore(folder / "base"), LocalStore(folder / "own")
    for number in range(6):
        base.put(f"{LOG}{number:03}", b"base")
    model = {f"{LOG}{n:03}": b"base" for n in range(last + 1)} | {"heads/t": b"fork"}
    overlay = OverlayStore(own, base, NumbersUpTo(last, {"heads/t": b"fork"}))
    parts: set[str] = set()
    written: set[str] = set()
    for side, verb, key in steps:
        is_forked = key.startswith(LOG) and int(key.removeprefix(LOG)) <= last
        if side == "base":
            if verb == "put" and not is_forked:
                base.put(key, b"part" if key.startswith("t/parts/") else b"later")
                parts |= {key} if key.startswith("t/parts/") else set()
        elif verb == "put" and not is_forked:
            overlay.put(key, b"part" if key.startswith("t/parts/") else b"own")
            written.add(key)
            model[key] = b"part" if key.startswith("t/parts/") else b"own"
        elif verb == "delete":
            overlay.delete([key])
            written.discard(key)
            if not is_forked:
                model.pop(key, None)
                if key == "heads/t":
                    model[key] = b"fork"
    assert {info.key: overlay.get(info.key) for info in overlay.list()} == model
    assert {info.key: info.size for info in overlay.list()} == {key: len(data) for key, data in model.items()}
    assert [info.key for info in overlay.list()] == sorted(model)
    for key in parts - written:
        assert overlay.get(key) == b"part"
