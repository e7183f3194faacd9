"""Documents that several writers change at once."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from dagster_versioned.errors import CommitConflict
from dagster_versioned.storage import LocalStore, backoff
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.tables.document import update_document


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return LocalStore(tmp_path)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    made: list[float] = []
    # The module's clock alone: another thread of this process that sleeps is none of a race.
    monkeypatch.setattr(backoff, "time", SimpleNamespace(sleep=made.append))
    return made


def test_a_lost_race_is_tried_again_on_the_newer_bytes_after_a_pause(store: ObjectStore, pauses: list[float]) -> None:
    rivals = [b"one", b"two", b"three"]

    def change(data: bytes | None) -> bytes:
        if rivals:
            store.put("key", rivals.pop(0))
        return (data or b"") + b"!"

    assert update_document(store, "key", change)
    assert store.get("key") == b"three!"
    assert len(pauses) == 3


def test_who_loses_every_race_gives_up_and_says_so(store: ObjectStore, pauses: list[float]) -> None:
    tries: list[bytes | None] = []

    def change(data: bytes | None) -> bytes:
        tries.append(data)
        store.put("key", b"rival %d" % len(tries))
        return b"mine"

    with pytest.raises(CommitConflict, match=r"'key'.*left as it was"):
        update_document(store, "key", change)
    assert store.get("key") == b"rival %d" % len(tries)
    assert len(tries) == backoff.RACES


def test_pauses_grow_differ_and_stay_short(pauses: list[float]) -> None:
    for attempt in range(backoff.RACES):
        backoff.RACE.pause(attempt)
    assert max(pauses[:2]) <= 0.004
    assert 0.1 < max(pauses) <= 0.25
    assert len(set(pauses)) > len(pauses) // 2
