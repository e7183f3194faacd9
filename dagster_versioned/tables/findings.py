"""What blocking checks found of versions, kept with their table: for who asks another event log, or asks late."""

import logging
from collections.abc import Iterable, Mapping
from typing import cast

import orjson

from dagster_versioned.errors import VersionedError
from dagster_versioned.storage.object_store import ObjectInfo, ObjectStore
from dagster_versioned.tables.document import encode, read_if_any, update_document

logger = logging.getLogger("dagster_versioned")

FOLDER = ".metadata/findings/"
"""Where the documents are, below the table's folder, by `metadata_sha`; `TableFork` knows it, too."""


def findings_of(store: ObjectStore, metadata_sha: str) -> dict[str, bool]:
    """By the names of checks whether a version has passed, as far as that was noted; nothing where it cannot be read.

    Raises `StorageError`.
    """
    return _parse(read_if_any(store, _key(metadata_sha)))


def note_findings(store: ObjectStore, metadata_sha: str, found: Mapping[str, bool]) -> None:
    """Note what checks found of a version, each in the place of what it found before.

    A finding that cannot be stored is not known later, so that the version is computed again at worst.
    """

    def change(known: bytes | None) -> bytes | None:
        before = _parse(known)
        return None if before.items() >= found.items() else encode({"checks": {**before, **found}})

    try:
        update_document(store, _key(metadata_sha), change)
    except VersionedError:
        logger.warning("%s: what checks found of %s could not be noted.", store.uri, metadata_sha[:8], exc_info=True)


def carry_findings(here: ObjectStore, there: ObjectStore, shas: Iterable[str]) -> None:
    """Note with one table what was noted of versions with another, but for what was found there itself."""
    for sha in shas:
        if found := findings_of(here, sha):
            note_findings(there, sha, {**found, **findings_of(there, sha)})


def unneeded_findings(store: ObjectStore, kept: Iterable[str | None]) -> list[ObjectInfo]:
    """The documents of versions that are not kept."""
    wanted = {_key(sha) for sha in kept if sha is not None}
    return [info for info in store.list(FOLDER) if info.key not in wanted]


def _key(metadata_sha: str) -> str:
    return f"{FOLDER}{metadata_sha}.json"


def _parse(data: bytes | None) -> dict[str, bool]:
    try:
        checks = cast("Mapping[str, object]", orjson.loads(data or b"{}")["checks"])
        return {name: passed for name, passed in checks.items() if isinstance(passed, bool)}
    except (ValueError, LookupError, TypeError, AttributeError):
        return {}  # which is unknown, and therefore not passed
