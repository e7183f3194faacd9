"""What datom readers read: a document for each version, the history of versions, the current one, and the manifest.

A version's own document is put with its commit. Those that are whole (one entry for each version, or for each table)
are put now and then, in the background of a commit, so that no commit costs more for a longer history: `due` says when
(FORMAT.md, "What datom readers see").
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice, takewhile
from typing import Any

import orjson

from dagster_versioned.identity.names import TableName
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.tables.document import encode, read_if_any, update_document
from dagster_versioned.tables.documents.manifest import (
    DATOM_SCHEMA_VERSION,
    MANIFEST_KEY,
    encode_manifest,
    parse_manifest,
)
from dagster_versioned.tables.history import History, Version

DATOM_INTERVAL = 10
"""Commits from one put of a whole document to the next; of a long history, a tenth of its commits or fewer."""

METADATA_KEY = ".metadata/metadata.json"
HISTORY_KEY = ".metadata/version_history.json"

_DATOM = re.compile(r"\.metadata/([0-9a-f]{64}|metadata|version_history)\.json")

_GIT_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")

_HISTORY, _MANIFEST, _METADATA = 2, 3, 4
"""Which commit of an interval puts which whole document: each another one, so that none pays for all."""

Check = Callable[[bytes | None], bool]
"""Whether the bytes that are stored, ``None`` where there are none, are what the log allows."""


def due(log_version: int, place: int) -> int:
    """The last commit up to a log version that puts the document of a place in the interval; 0 puts all."""
    step = max(DATOM_INTERVAL, 10 ** (len(str(log_version)) - 2))
    at = log_version - (log_version - place) % step
    return at if at > 0 else 0


@dataclass(frozen=True)
class _StoredHistory:
    """The history of versions as it is stored: its newest version's log version, and how many there are."""

    log_version: int
    current: Mapping[str, Any]
    count: int


class DatomDocuments:
    """The datom documents of one table. ``data`` is the project's data folder, ``store`` the table's own."""

    def __init__(self, project: str, table: TableName, data: ObjectStore, store: ObjectStore) -> None:
        self._project = project
        self._table = table
        self._data = data
        self._store = store
        self._listed: _StoredHistory | None = None  # as this process put it last

    def publish(self, history: History, since: int, after: int, *, with_newest: bool) -> bool:
        """Put the whole documents that the commits after ``since`` call for, and the own documents of the versions
        after ``after``; without ``with_newest``, that of the last commit's only where the history is to name it.
        Returns whether any document was put that a slower publisher might take back."""
        at = history.log_version
        if since < 0 or _takes_away(history, since):
            self.put_all(history)
            return True
        wanted = {place for place in (_HISTORY, _MANIFEST, _METADATA) if due(at, place) > since}
        self._put_versions(_newer(history, after), at if with_newest or _HISTORY in wanted else at - 1)
        if _HISTORY in wanted:
            self._put_history(history)
        if _METADATA in wanted:
            self._put_current(history)
        if _MANIFEST in wanted:
            is_readable = _readable_head(history) is not None
            self._put_manifest(self._listed or _listing(self._stored_entries()) if is_readable else None)
        return bool(wanted)

    def rebuild(self, history: History) -> None:
        """Put every document anew, whatever is there, but for what git knows of versions (`note_git_commits`)."""
        noted = _git_commits(self._stored_entries())
        self.clear()
        self.put_all(history)
        self.note_git_commits(noted)

    def note_git_commits(self, commits: Mapping[str, str]) -> None:
        """Let the stored history name the git commit that recorded a version first, by ``metadata_sha``."""

        def note(data: bytes | None) -> bytes | None:
            entries = _parse_history(data)
            return encode([_noted(entry, commits) for entry in entries]) if entries else None

        if commits:
            update_document(self._store, HISTORY_KEY, note, durability="later")

    def put_all(self, history: History) -> None:
        """Put every document, of all versions."""
        versions = readable_by_datom(history)
        listed = [history_entry(version) for version in versions]
        named = self._stored_entries()
        noted = _git_commits(named)
        stored = {e["version"]: e["log_version"] for e in named if _DATOM.fullmatch(f".metadata/{e['version']}.json")}
        often = Counter(version.metadata_sha for version in history.versions)
        for version in versions:
            # Of an identity that occurred more than once, the document may be another occurrence's.
            if stored.get(version.metadata_sha) != version.log_version or often[version.metadata_sha] > 1:
                self._put(f".metadata/{version.metadata_sha}.json", metadata_document(version))
        if versions:
            # Before the history, which names them: after a crash in between, nobody would know what to delete.
            if gone := stored.keys() - {version.metadata_sha for version in versions}:
                self._store.delete([f".metadata/{sha}.json" for sha in sorted(gone)])
            self._put(HISTORY_KEY, encode([_noted(entry, noted) for entry in listed]))
            self._put(METADATA_KEY, metadata_document(versions[0]))
        else:
            self.clear()
        self._listed = _listing(listed)
        self._put_manifest(self._listed)

    def clear(self) -> None:
        """Delete every datom document of the table.

        The history goes first, so that no reader follows it to one that is not there, and after a crash nobody takes
        it for complete. It goes last as well: where another process put a new one meanwhile, it names documents that
        were deleted here; without one, whoever puts all next puts all of them.
        """
        self._listed = None
        if found := [info.key for info in self._store.list(".metadata/") if _DATOM.fullmatch(info.key)]:
            self._store.delete([HISTORY_KEY])
            self._store.delete(found)
            self._store.delete([HISTORY_KEY])

    def withdraw(self) -> None:
        """Delete every document, and the table's entry in the manifest."""
        self.clear()
        self._put_manifest(None)

    def checks(self, history: History) -> dict[str, Check]:
        """What must hold of each document that the log implies, by key: it says what the log does, at its end or at a
        commit that came after the last one by which it was due."""
        versions = readable_by_datom(history)
        if not versions:
            return {}
        at = history.log_version
        listed_from = due(at, _HISTORY)
        checks: dict[str, Check] = {}
        were_cleared = _may_lack(history, listed_from)
        for version in versions:
            check = is_one_of(metadata_document(version))
            if were_cleared or version.log_version > listed_from:
                same = (v for v in history.versions if v.metadata_sha == version.metadata_sha and _is_one_part(v))
                check = is_one_of(None, *map(metadata_document, same))
            checks[f".metadata/{version.metadata_sha}.json"] = check
        checks[HISTORY_KEY] = lambda data: _is_listing(data, history, listed_from)
        checks[METADATA_KEY] = lambda data: _is_current(data, history, due(at, _METADATA))
        return checks

    def _put_versions(self, newest_first: Iterable[Version], until: int) -> None:
        """Put the documents of versions up to a log version; of several of one identity that of the newest."""
        newest: dict[str | None, Version] = {}
        for version in newest_first:
            if version.log_version <= until and _is_one_part(version):
                newest.setdefault(version.metadata_sha, version)
        for sha, version in newest.items():
            self._put(f".metadata/{sha}.json", metadata_document(version))

    def _put_history(self, history: History) -> None:
        """Put the history of versions: what is stored with what is new, or else all of it anew."""
        if _readable_head(history) is None:
            self.clear()
            return
        stored = self._stored_entries()
        if not stored or not history.knows(stored[0]["version"], stored[0]["log_version"]):
            self.put_all(history)  # what is there is of another log, or of one long ago
            return
        reached = stored[0]["log_version"]
        new = list(_newer(history, reached))
        entries = [history_entry(version) for version in new if _is_one_part(version)]
        noted = _git_commits(stored)
        listed = _each_once([*(_noted(entry, noted) for entry in entries), *stored])
        if new:
            self._put(HISTORY_KEY, encode(listed))
        self._listed = _listing(listed)

    def _put_current(self, history: History) -> None:
        if (head := _readable_head(history)) is not None:
            self._put(METADATA_KEY, metadata_document(head))
        else:
            self._store.delete([METADATA_KEY])

    def _put_manifest(self, listed: _StoredHistory | None) -> None:
        entry = None if listed is None else _manifest_entry(listed)

        def enter(data: bytes | None) -> bytes | None:
            name, artifacts = parse_manifest(data, self._project)
            others = {k: v for k, v in artifacts.items() if k != self._table}
            return encode_manifest(name, others | ({str(self._table): entry} if entry else {}))

        update_document(self._data, MANIFEST_KEY, enter, durability="later")

    def _stored_entries(self) -> list[dict[str, Any]]:
        return _parse_history(read_if_any(self._store, HISTORY_KEY))

    def _put(self, key: str, data: bytes) -> None:
        self._store.put(key, data, durability="later")


def _parse_history(data: bytes | None) -> list[dict[str, Any]]:
    """The entries of a stored history; none where it is not one: it is derived, and put again."""
    with suppress(ValueError, KeyError, TypeError, AttributeError):
        entries: list[dict[str, Any]] = orjson.loads(data or b"[]")
        if all(type(e["log_version"]) is int and isinstance(e["version"], str) for e in entries):
            return entries
    return []


def readable_by_datom(history: History) -> list[Version]:
    """The versions that a datom reader can open, newest first, each identity once (its newest occurrence).

    Empty unless the head itself is one: a reader of the documents would take an older version for the current one.
    """
    if _readable_head(history) is None:
        return []
    newest = {v.metadata_sha: v for v in history.versions if _is_one_part(v)}
    return sorted(newest.values(), key=lambda version: -version.log_version)


def hidden_by(history: History) -> Version | None:
    """The version that the last commit made, if with it the table leaves what datom readers see."""
    if history.is_partitioned:
        return None
    newest, before = islice(chain(history.backwards(), (None, None)), 2)
    if newest is None or before is None or newest.log_version < history.log_version:
        return None
    is_ours = newest.metadata_sha is not None  # not another program's, nor a drop
    return newest if is_ours and _is_one_part(before) and not _is_one_part(newest) else None


def metadata_document(version: Version) -> bytes:
    """A version's datom document: identity and facts side by side (FORMAT.md, datom readers)."""
    raw = version.raw
    assert raw is not None  # foreign versions are never published
    identity, facts = raw["identity"], raw["facts"]
    fields: list[dict[str, Any]] = identity["schema"]["fields"]
    document = {
        **identity,
        **facts,
        "schema_version": DATOM_SCHEMA_VERSION,
        "kind": "table",
        "colnames": [field["name"] for field in fields],
        "ncol": len(fields),
        "metadata_sha": version.metadata_sha,
        "log_version": version.log_version,
    }
    return encode(document)


def history_entry(version: Version) -> dict[str, Any]:
    """A version's entry in a version history (FORMAT.md, datom readers)."""
    raw = version.raw
    assert raw is not None  # foreign versions are never published
    identity, facts = raw["identity"], raw["facts"]
    return {
        "version": version.metadata_sha,
        "data_sha": version.data_sha,
        "parquet_sha": facts.get("parquet_sha"),
        "timestamp": facts["created_at"],
        "author": facts.get("author"),
        "commit_message": identity.get("message"),
        "log_version": version.log_version,
    }


def _readable_head(history: History) -> Version | None:
    head = history.heads.get(None)
    return head if head is not None and not history.is_partitioned and _is_one_part(head) else None


def _takes_away(history: History, since: int) -> bool:
    """Whether versions were collected or dropped after a log version: their documents go at once."""
    records = history.between(since + 1, history.log_version)
    return any(record.member(name) is not None for record in records for name in ("collect", "dropped"))


def was_made_again(history: History, since: int, until: int) -> bool:
    """Whether a version that was made after ``since``, up to ``until``, was made once more after that: both have one
    document."""
    own = [version for version in _newer(history, since) if _is_one_part(version)]
    later = {version.metadata_sha for version in own if version.log_version > until}
    return any(version.metadata_sha in later for version in own if version.log_version <= until)


def _newer(history: History, log_version: int) -> Iterator[Version]:
    return takewhile(lambda backward: backward.log_version > log_version, history.backwards())


def _is_one_part(version: Version) -> bool:
    if version.gone is not None or version.partition is not None or version.is_foreign:
        return False
    raw = version.raw
    # Without the SHA of its file, it lacks the partition columns.
    return raw is not None and raw["facts"].get("part_count") == 1 and raw["facts"].get("parquet_sha") is not None


def _each_once(entries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The entries, newest first, of each identity the newest."""
    newest: dict[str, dict[str, Any]] = {}
    for entry in entries:
        newest.setdefault(entry["version"], entry)
    return list(newest.values())


def _git_commits(entries: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    found = ((entry["version"], entry.get("commit_sha")) for entry in entries)
    return {version: sha for version, sha in found if isinstance(sha, str) and _GIT_COMMIT.fullmatch(sha)}


def _noted(entry: Mapping[str, Any], commits: Mapping[str, str]) -> dict[str, Any]:
    sha = commits.get(entry["version"])
    return dict(entry) if sha is None else {**entry, "commit_sha": sha}


def _listing(entries: Sequence[Mapping[str, Any]]) -> _StoredHistory | None:
    return _StoredHistory(entries[0]["log_version"], entries[0], len(entries)) if entries else None


def _manifest_entry(listed: _StoredHistory) -> dict[str, Any]:
    return {
        "kind": "table",
        "current_version": listed.current["version"],
        "current_data_sha": listed.current["data_sha"],
        "last_updated": listed.current["timestamp"],
        "version_count": listed.count,
    }


def is_one_of(*allowed: bytes | None) -> Check:
    return lambda data: data in allowed


def _is_listing(data: bytes | None, history: History, log_version: int) -> bool:
    if data is None:
        return _may_lack(history, log_version)
    try:
        entries = orjson.loads(data)
        stated = entries[0]["log_version"]
        shown = readable_by_datom(history.until(int(stated)))
        noted = _git_commits(entries)  # what git says is not the log's to know
    except (ValueError, LookupError, TypeError, AttributeError):
        return False
    newest = _newest_readable(history, log_version)
    return stated >= newest and data == encode([_noted(history_entry(version), noted) for version in shown])


def _is_current(data: bytes | None, history: History, log_version: int) -> bool:
    if data is None:
        return _may_lack(history, log_version)
    try:
        stated = orjson.loads(data)["log_version"]
    except (ValueError, LookupError, TypeError):
        return False
    shown = [v for v in history.versions if v.log_version == stated and _is_one_part(v)]
    newest = _newest_readable(history, log_version)
    return bool(shown) and stated >= newest and data == metadata_document(shown[0])


def _newest_readable(history: History, log_version: int) -> int:
    at = (v.log_version for v in history.versions if v.log_version <= log_version and _is_one_part(v))
    return max(at, default=0)


def _may_lack(history: History, log_version: int) -> bool:
    """Whether some state since a log version could not be read by datom at all, so that there were no documents."""
    since = [v for v in history.versions if v.log_version > log_version]
    return not readable_by_datom(history.until(log_version)) or not all(map(_is_one_part, since))
