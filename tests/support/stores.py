"""What tests ask of a store as a whole."""

import hashlib

from dagster_versioned.storage import ObjectStore
from dagster_versioned.tables.document import is_dropped


def contents(store: ObjectStore, *, without: tuple[str, ...] = ()) -> dict[str, str]:
    """Every object by key, with the SHA-256 of its bytes."""
    return {
        info.key: hashlib.sha256(store.get(info.key)).hexdigest()
        for info in store.list()
        if not any(part in info.key for part in without)
    }


def left_of_environments(store: ObjectStore) -> list[str]:
    """The keys of all that environments have, but for what says that one was dropped."""
    return [info.key for info in store.list("environments/") if not is_dropped(info)]
