"""Every call that a store has, for tests of what all of them do alike."""

import traceback
from collections.abc import Callable
from pathlib import Path

from dagster_versioned.storage import ObjectStore

Attempts = list[Callable[[], object]]


def of_key(store: ObjectStore, key: str, file: Path, other: str) -> Attempts:
    """What is done with one object; ``other`` is a key that nothing is wrong with."""
    return [
        lambda: store.get(key),
        lambda: store.get_with_info(key),
        lambda: store.get_range(key, 0, 1),
        lambda: store.head(key),
        lambda: store.put(key, b"data"),
        lambda: store.put_file(key, file),
        lambda: store.put_if_absent(key, b"data"),
        lambda: store.put_if_match(key, b"data", '"etag"'),
        lambda: store.copy(key, other),
        lambda: store.delete([key]),
    ]


def addresses_of(store: ObjectStore, key: str, other: str) -> Attempts:
    """What else takes a key."""
    return [
        lambda: store.put_if_match(key, b"data", None),
        lambda: store.copy(other, key),
        lambda: store.url(key),
        lambda: store.local_path(key),
    ]


def of_bucket(store: ObjectStore, file: Path) -> Attempts:
    """What is asked of a server."""
    return [*of_key(store, "key", file, "target"), lambda: list(store.list()), lambda: list(store.folders())]


def written(error: BaseException) -> str:
    """All that a log would show of an error."""
    return "".join(traceback.format_exception(error))
