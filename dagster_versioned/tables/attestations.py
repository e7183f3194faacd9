"""Attestations of commits: signed statements, kept with the table by the commit that they are of.

A document's name is its own SHA-256, so none takes the place of another, and all of them can be copied with the log.
Nothing here is believed by being here: `proof.signatures` says what one proves.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping

from dagster_versioned.storage.object_store import Durability, ObjectStore

FOLDER = ".metadata/attestations/"
"""Where the documents are, below the table's folder, by the SHA-256 of the commit; `TableFork` knows it, too."""

_KEY = re.compile(rf"{re.escape(FOLDER)}([0-9a-f]{{64}})/([0-9a-f]{{64}})\.json", re.ASCII)


def put_attestation(store: ObjectStore, commit_sha: str, data: bytes, durability: Durability = "now") -> str:
    """Keep an attestation of a commit with its table; returns its key. Raises `StorageError`."""
    key = f"{FOLDER}{commit_sha}/{hashlib.sha256(data).hexdigest()}.json"
    store.put(key, data, durability=durability)
    return key


def list_attestations(store: ObjectStore, commit_sha: str | None = None) -> Mapping[str, list[str]]:
    """The keys of the attestations of one commit, or of all, by the commit's SHA-256."""
    found: dict[str, list[str]] = {}
    for info in store.list(FOLDER if commit_sha is None else f"{FOLDER}{commit_sha}/"):
        if (named := _KEY.fullmatch(info.key)) is not None:
            found.setdefault(named[1], []).append(info.key)
    return found


def carry_attestations(here: ObjectStore, there: ObjectStore, commits: Iterable[str], to: str) -> None:
    """Keep with a commit of one table what there is of those of another, whose versions it took over."""
    for commit in dict.fromkeys(commits):
        for keys in list_attestations(here, commit).values():
            for key in keys:
                put_attestation(there, to, here.get(key))


def signed_documents(store: ObjectStore) -> list[str]:
    """The SHA-256 of all attestations of a table."""
    return [key.rpartition("/")[2].removesuffix(".json") for keys in list_attestations(store).values() for key in keys]
