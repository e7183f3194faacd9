"""Which versions computations made, and which of them may be made current instead of being computed again.

The log alone is believed: a version is found by the fact that it records, among the heads, the recent commits, and
where a derived document says. What is out of use is a metadata domain, so that every snapshot knows it.
"""

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, Self, cast

import orjson

from dagster_versioned.delta.actions import DomainMetadata
from dagster_versioned.delta.log.snapshot import Snapshot
from dagster_versioned.errors import IntegrityError, InvalidInput, LogCorrupt, ObjectNotFound, VersionedError
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.tables.document import encode
from dagster_versioned.tables.history import RECENT_COMMITS, Version
from dagster_versioned.tables.state import TableState

logger = logging.getLogger("dagster_versioned")

FOLDER = ".metadata/computations/"
"""Where the documents of computations are, below the table's folder; `TableFork` knows it, too."""

CONTRADICTED_DOMAIN = "dagster_versioned.contradicted/"
"""Begins the metadata domain of a computation that gave unequal rows; its key follows."""

FORGOTTEN_DOMAIN = "dagster_versioned.forgotten"
"""The metadata domain with what is computed again although it is there."""

_AT_ONCE = 16
_KEY = re.compile(r"[0-9a-f]{64}", re.ASCII)


def find(store: ObjectStore, state: TableState | None, keys: Mapping[str | None, str]) -> dict[str | None, Version]:
    """The newest known version that each of these computations (by partition) made; may it be reused or not.

    Of one that is neither the head nor recent, the store is asked at most twice, however long the history is: for a
    document, and for the commit that it names. Raises `StorageError`.
    """
    if state is None:
        return {}
    recent = state.history.recent_of(list(keys), RECENT_COMMITS)
    found = {cell: made[0] for cell, key in keys.items() if (made := made_under(recent[cell], key))}
    others = {cell: key for cell, key in keys.items() if cell not in found}
    with ThreadPoolExecutor(min(_AT_ONCE, len(others)) or 1, thread_name_prefix="computations") as pool:
        named = list(pool.map(_named, repeat(store), others.values()))
    for (cell, key), place in zip(others.items(), named, strict=True):
        if place is not None and (version := _committed(state, cell, *place)) and version.computation == key:
            found[cell] = version
    return found


def made_under(versions: Iterable[Version], key: str) -> list[Version]:
    """Those that a computation made."""
    return [version for version in versions if version.computation == key]


def usable(state: TableState, version: Version) -> bool:
    """Whether a version may stand for its computation: its key is neither contradicted nor forgotten, and its bytes are
    not known to be collected."""
    key = version.computation
    if key is None or version.gone is not None or f"{CONTRADICTED_DOMAIN}{key}" in state.snapshot.domains:
        return False
    return not ForgottenVersions.of(state.snapshot).covers(version)


def contradicts(state: TableState | None, others: Iterable[Version], key: str) -> bool:
    """Whether versions of other rows, made by the same computation before, contradict it and the log does not say so
    yet."""
    if state is None or f"{CONTRADICTED_DOMAIN}{key}" in state.snapshot.domains:
        return False
    forgotten = ForgottenVersions.of(state.snapshot)
    return any(not forgotten.covers(key) for key in others)


def contradiction(key: str) -> DomainMetadata:
    """The action that takes a key out of use for ever."""
    return DomainMetadata(f"{CONTRADICTED_DOMAIN}{key}", "{}", False)


def contradicted(snapshot: Snapshot) -> list[str]:
    """The keys whose computations gave unequal rows, sorted."""
    names = (name for name in snapshot.domains if name.startswith(CONTRADICTED_DOMAIN))
    return sorted(name.removeprefix(CONTRADICTED_DOMAIN) for name in names)


@dataclass(frozen=True)
class ForgottenVersions:
    """What is computed again: each limit is the log version up to which versions are not reused.

    ``everything`` is the limit of all, -1 without one.
    """

    everything: int = -1
    keys: Mapping[str, int] = field(default_factory=dict[str, int])
    code_versions: Mapping[str, int] = field(default_factory=dict[str, int])

    @classmethod
    def of(cls, snapshot: Snapshot) -> Self:
        """As the log says. Raises `LogCorrupt`."""
        text = snapshot.domains.get(FORGOTTEN_DOMAIN)
        if text is None:
            return cls()
        try:
            raw = orjson.loads(text)
            return cls(int(raw.get("everything", -1)), _limits(raw, "keys"), _limits(raw, "code_versions"))
        except (ValueError, TypeError, AttributeError) as error:
            raise LogCorrupt(
                f"The metadata domain {FORGOTTEN_DOMAIN} of the table holds {text!r:.100}, which is none of ours. "
                "Nothing was read or written. Restore the log from a copy."
            ) from error

    def covers(self, version: Version) -> bool:
        """Whether a version is forgotten."""
        limit = max(self.everything, self.keys.get(version.computation or "", -1))
        if limit < version.log_version and self.code_versions:
            code_version = (version.raw or {}).get("identity", {}).get("code_version")
            limit = max(limit, self.code_versions.get(code_version, -1))
        return version.log_version <= limit

    def with_limit(self, log_version: int, key: str | None, code_version: str | None) -> "ForgottenVersions":
        """With one more: of a key, of a code version, or of all."""
        if key is not None:
            return ForgottenVersions(self.everything, {**self.keys, key: log_version}, self.code_versions)
        if code_version is not None:
            return ForgottenVersions(self.everything, self.keys, {**self.code_versions, code_version: log_version})
        return ForgottenVersions(everything=log_version)  # which covers all others

    def action(self) -> DomainMetadata:
        """The action that says so."""
        value = {"everything": self.everything, "keys": self.keys, "code_versions": self.code_versions}
        return DomainMetadata(FORGOTTEN_DOMAIN, encode(value).decode(), False)


def affected(state: TableState, key: str | None, code_version: str | None) -> list[Version]:
    """The versions that forgetting a key, a code version or everything takes out of use. Raises `InvalidInput`."""
    if key is not None and not _KEY.fullmatch(key):
        raise InvalidInput(
            f"A key is 64 lowercase hex characters, not {key!r:.100}. Nothing was forgotten. `show --json` shows it "
            "as facts.computation.key of a version."
        )
    known = (version for version in state.history.versions if usable(state, version))
    return [
        version
        for version in known
        if key in (None, version.computation)
        and (code_version is None or (version.raw or {})["identity"].get("code_version") == code_version)
    ]


def remember(store: ObjectStore, versions: Iterable[Version]) -> None:
    """Write the documents by which these versions are found later; without one, a version is computed again at worst.

    Only after their commit: a document never names a version that is not there.
    """
    for version in versions:
        try:
            store.put(document_key(str(version.computation)), _document(version), durability="later")
        except VersionedError:
            logger.warning(
                "%s: version %s is committed, but the document by which its computation is found could not be "
                "written: it may be computed once more. repair() writes it.",
                store.uri,
                version.short,
                exc_info=True,
            )
            return


def document_key(key: str) -> str:
    """Where the document of a computation is, below the table's folder."""
    return f"{FOLDER}{key}.json"


def _document(version: Version) -> bytes:
    partition = {} if version.partition is None else {"partition": version.partition}
    return encode({"log_version": version.log_version, "metadata_sha": version.metadata_sha, **partition})


def _committed(state: TableState, partition: str | None, log_version: int, sha: str) -> Version | None:
    """What a document names, if this log has it: the base of an environment goes on, and logs are made anew."""
    if not 0 <= log_version <= state.log_version:
        return None
    try:
        version = state.history.committed(log_version, partition)
    except (ObjectNotFound, LogCorrupt):  # other writers clean old commits up
        return None
    return version if version is not None and version.metadata_sha == sha else None


def _named(store: ObjectStore, key: str) -> tuple[int, str] | None:
    """What the document of a computation names; ``None`` where there is none, or what is there is none."""
    try:
        raw = orjson.loads(store.get(document_key(key)))
        log_version, sha = raw["log_version"], raw["metadata_sha"]
    except (ObjectNotFound, IntegrityError, ValueError, LookupError, TypeError):
        return None
    return (log_version, sha) if type(log_version) is int and isinstance(sha, str) else None


def _limits(raw: Any, name: str) -> dict[str, int]:
    members = cast("Mapping[str, Any]", raw.get(name, {}))
    return {str(key): int(limit) for key, limit in members.items()}


def made_by_computations(versions: Sequence[Version]) -> list[Version]:
    """Those of which it is remembered, the newest of each computation."""
    return list({version.computation: version for version in versions if version.computation is not None}.values())
