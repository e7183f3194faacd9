"""Small JSON documents derived from the log, some of them changed by several writers at once."""

from collections.abc import Callable
from typing import Any

import orjson

from dagster_versioned.delta.actions import Members
from dagster_versioned.errors import AlreadyExists, CommitConflict, ObjectNotFound, PreconditionFailed
from dagster_versioned.storage.backoff import RACE, RACES
from dagster_versioned.storage.object_store import Durability, ObjectInfo, ObjectStore

DROPPED = b'{"dropped":true}'
"""What stands in the place of a document that was dropped: a store can swap one it has seen, but not delete it."""

Change = Callable[[bytes | None], bytes | None]
"""The bytes that take the place of those that are stored, if any; ``None`` leaves them."""


def encode(document: Any) -> bytes:
    """JSON with sorted keys, so that equal documents are equal bytes. Nothing hashes these: identities are RFC 8785."""
    return orjson.dumps(document, option=orjson.OPT_SORT_KEYS)


def parse_object(data: bytes | str, where: str, name: str) -> Members:
    """The JSON object in these bytes, which errors call ``name``. Raises `ValueError`, `LogCorrupt`."""
    return Members({name: orjson.loads(data)}, where).members(name)


def optional_members(members: Members, name: str) -> Members | None:
    """The object under a name; ``None`` without one. Raises `LogCorrupt`."""
    return None if members.value.get(name) is None else members.members(name)


def read_if_any(store: ObjectStore, key: str) -> bytes | None:
    """The bytes under a key, ``None`` where there are none."""
    try:
        return store.get(key)
    except ObjectNotFound:
        return None


def is_dropped(info: ObjectInfo) -> bool:
    """Whether an object of a listing is a document that was dropped; no other one is as short."""
    return info.size == len(DROPPED) and info.key.endswith(".json")


def read_document(store: ObjectStore, key: str) -> tuple[bytes, ObjectInfo]:
    """A document that may be dropped, and the ETag of its bytes. Raises `ObjectNotFound` where it was."""
    data, info = store.get_with_info(key)
    if data == DROPPED:
        raise ObjectNotFound(f"{key!r} in {store.uri} was dropped.")
    return data, info


def put_document(store: ObjectStore, key: str, data: bytes) -> ObjectInfo:
    """Put a document if there is none, or one that was dropped. Raises `AlreadyExists`."""
    try:
        return store.put_if_absent(key, data)
    except AlreadyExists:
        there, info = store.get_with_info(key)
        if there != DROPPED:
            raise
    try:
        return store.put_if_match(key, data, info.etag)
    except PreconditionFailed as error:
        raise AlreadyExists(str(error)) from error


def drop_document(store: ObjectStore, key: str, etag: str) -> None:
    """Drop a document as it was seen, and none that was put since. Raises `PreconditionFailed`."""
    store.put_if_match(key, DROPPED, etag)


class SwappedDocument:
    """A document that several writers change, and what this process saw of it last: where nobody else changed it
    since, a change is one call."""

    def __init__(self, store: ObjectStore, key: str) -> None:
        self.store = store
        self.key = key
        self._seen: tuple[bytes | None, str | None] | None = None

    @property
    def is_seen(self) -> bool:
        """Whether this process knows what is, or was, stored."""
        return self._seen is not None

    @property
    def seen(self) -> bytes | None:
        """The bytes as this process read or wrote them last; reads them where it did neither."""
        return (self._seen or self._read())[0]

    def read(self) -> bytes | None:
        """The bytes that are stored, ``None`` where there are none."""
        return self._read()[0]

    def update(self, change: Change, *, durability: Durability = "now") -> bool:
        """`update_document`, beginning with what this process saw last."""
        for attempt in range(RACES):
            seen = self._seen  # by another thread, perhaps
            is_fresh = seen is None
            data, etag = self._read() if seen is None else seen
            new = change(data)
            if new is None or new == data:
                if is_fresh:
                    return False
                self._seen = None  # what another has stored meanwhile may ask for a change
                continue
            self._seen = None
            try:
                info = self.store.put_if_match(self.key, new, etag, durability=durability)
            except PreconditionFailed:
                RACE.pause(attempt)
                continue
            self._seen = new, info.etag
            return True
        raise CommitConflict(
            f"{RACES} changes of {self.key!r} in {self.store.uri} lost the race against other writers. It was left as "
            "it was by them. Reduce the number of concurrent writers, or try again."
        )

    def _read(self) -> tuple[bytes | None, str | None]:
        try:
            data, info = self.store.get_with_info(self.key)
            self._seen = seen = data, info.etag
        except ObjectNotFound:
            self._seen = seen = None, None
        return seen


def update_document(store: ObjectStore, key: str, change: Change, *, durability: Durability = "now") -> bool:
    """Replace a document by ``change(its bytes, or None where there is none)``; ``None`` from ``change`` leaves it.

    ``change`` may run several times, each time on newer bytes, so it must have no effect of its own. Returns whether
    anything was written. Raises `CommitConflict` after a thousand lost races.
    """
    return SwappedDocument(store, key).update(change, durability=durability)
