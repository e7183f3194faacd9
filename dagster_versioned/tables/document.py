"""Small JSON documents derived from the log, some of them changed by several writers at once."""

from collections.abc import Callable
from typing import Any

import orjson

from dagster_versioned.errors import CommitConflict, ObjectNotFound, PreconditionFailed
from dagster_versioned.storage.object_store import Durability, ObjectStore
from dagster_versioned.tables.contention import MAX_ATTEMPTS, pause


def encode(document: Any) -> bytes:
    """JSON with sorted keys, so that equal documents are equal bytes. Nothing hashes these: identities are RFC 8785."""
    return orjson.dumps(document, option=orjson.OPT_SORT_KEYS)


def update_document(
    store: ObjectStore, key: str, change: Callable[[bytes | None], bytes | None], *, durability: Durability = "now"
) -> bool:
    """Replace a document by ``change(its bytes, or None where there is none)``; ``None`` from ``change`` leaves it.

    ``change`` may run several times, each time on newer bytes, so it must have no effect of its own. Returns whether
    anything was written. Raises `CommitConflict` after a thousand lost races.
    """
    for attempt in range(MAX_ATTEMPTS):
        try:
            data, info = store.get_with_info(key)
            etag = info.etag
        except ObjectNotFound:
            data, etag = None, None
        new = change(data)
        if new is None or new == data:
            return False
        try:
            store.put_if_match(key, new, etag, durability=durability)
        except PreconditionFailed:
            pause(attempt)
            continue
        return True
    raise CommitConflict(
        f"{MAX_ATTEMPTS} changes of {key!r} in {store.uri} lost the race against other writers. It was left as it was "
        "by them. Reduce the number of concurrent writers, or try again."
    )
