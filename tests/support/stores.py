"""What tests ask of a store as a whole."""

import hashlib

from dagster_versioned.storage import ObjectStore
from dagster_versioned.tables.document import is_dropped
from dagster_versioned.tables.table import VersionedTable


def contents(store: ObjectStore, *, without: tuple[str, ...] = ()) -> dict[str, str]:
    """Every object by key, with the SHA-256 of its bytes."""
    return {
        info.key: hashlib.sha256(store.get(info.key)).hexdigest()
        for info in store.list()
        if not any(part in info.key for part in without)
    }


def held_by(table: VersionedTable) -> dict[str, str] | None:
    """What a table has in its folder, but for what is staged; ``None`` before it is there."""
    return contents(table.store, without=("_staging/",)) if table.exists() else None


def left_of_environments(store: ObjectStore) -> list[str]:
    """The keys of all that environments have, but for what says that one was dropped."""
    return [info.key for info in store.list("environments/") if not is_dropped(info)]
