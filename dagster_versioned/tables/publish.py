"""Documents that are derived from the log: heads, the datom documents, the manifest, checkpoints, the version index.

Each is a function of the log alone, so any of them can be deleted and comes back byte for byte. None is on the
commit path: a crash before they are written loses nothing, and whoever publishes next brings them up to date. So a put
of one need not wait for the disk (ten of a commit's sixteen fsyncs): what a power failure does, `repair` mends.
The exceptions: checkpoints and their index, which other programs and this one load a table from.
"""

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

import orjson

from dagster_versioned.delta.checkpoint import checkpoint_bytes, checkpoint_key, write_checkpoint
from dagster_versioned.delta.log import LAST_CHECKPOINT_KEY, Commit, last_checkpoint_version
from dagster_versioned.delta.snapshot import load_snapshot, replayed
from dagster_versioned.errors import ObjectNotFound, PreconditionFailed, UnsupportedFeature
from dagster_versioned.identity.names import TableName
from dagster_versioned.storage.object_store import ObjectInfo, ObjectStore
from dagster_versioned.tables.chain_head import REF_KEY, chain_head
from dagster_versioned.tables.document import encode, update_document
from dagster_versioned.tables.head import (
    HeadDocument,
    former_partition_heads,
    head_key,
    publish_head,
    read_head,
    table_head,
)
from dagster_versioned.tables.history import History, Version
from dagster_versioned.tables.state import StateCache, TableState
from dagster_versioned.tables.version_index import FOLDER, index_bytes, index_key

logger = logging.getLogger("dagster_versioned")

CHECKPOINT_INTERVAL = 100
MANIFEST_KEY = ".metadata/manifest.json"
METADATA_KEY = ".metadata/metadata.json"
HISTORY_KEY = ".metadata/version_history.json"
DATOM_SCHEMA_VERSION = 2

_DATOM = re.compile(r"\.metadata/([0-9a-f]{64}|metadata|version_history)\.json")


@dataclass(frozen=True)
class _Listed:
    """The version history for datom readers as one process put it last: its ``count`` entries, without the brackets."""

    history: History
    etag: str
    entries: bytes
    count: int


class Publisher:
    """Writes the derived documents of one table.

    ``data`` is the project's data folder (heads, manifest), ``store`` the table's own folder inside it.
    """

    def __init__(self, project: str, table: TableName, data: ObjectStore, store: ObjectStore) -> None:
        self._project = project
        self._table = table
        self._data = data
        self._store = store
        self._listed: _Listed | None = None
        self._ref: str | None = None  # where this process said that the chain ends
        self._is_cleared = False  # this process saw, or made, that there is no datom document
        self._checkpointed = 0  # this process saw, or wrote, the checkpoint and the index of this log version

    def publish(self, cache: StateCache, state: TableState) -> None:
        """Bring every derived document up to the state, or to a later one where somebody already published that.

        Documents other than heads are put without a condition, so an older publisher may overwrite a newer one's;
        therefore each looks at the head once more afterwards and, if it was overtaken, publishes what is current.
        """
        while True:
            if self._publish_head(state) > state.log_version:
                return
            self._publish_datom(state.history)
            self._publish_ref(state)
            self._publish_checkpoint(state)
            if read_head(self._data, head_key(self._table)).log_version <= state.log_version:
                return
            state = cache.require()

    def rebuild(self, cache: StateCache) -> None:
        """Write every derived document again from the commits alone, whatever is there now."""
        stored = read_head(self._data, head_key(self._table))  # before the log: see `publish_head`
        state, commits = cache.replay()
        self._publish_head(state, ahead=stored)
        self._data.delete([info.key for info in self._data.list(former_partition_heads(self._table))])
        self._clear_datom()
        self._publish_datom(state.history)
        self._ref = None
        self._publish_ref(state)
        for key, data in self.checkpoints(state, commits):
            if self._stored(key) != data:
                self._store.put(key, data)
        self._store.delete(self.extra_indexes(state))
        if (newest := cache.require()).log_version > state.log_version:
            self.publish(cache, newest)

    def checkpoints(self, state: TableState, commits: Sequence[Commit]) -> Iterator[tuple[str, bytes]]:
        """The checkpoints, what names the last of them, and the version index, by key below the table's folder.

        None at a version where the table asked for checkpoints of a form that is not written.
        """
        snapshot, last = replayed(commits[:1]), None
        for at in checkpoint_versions(state):
            snapshot = snapshot.advance(commits[snapshot.version + 1 : at + 1])
            with suppress(UnsupportedFeature):
                data, last = checkpoint_bytes(snapshot)
                yield checkpoint_key(at), data
        named = last_checkpoint_version(self._store)
        is_foreign = named is not None and named > snapshot.version and self._exists(checkpoint_key(named))
        if last is not None and not is_foreign:
            yield LAST_CHECKPOINT_KEY, last
        due = max(checkpoint_versions(state), default=None)
        if due is not None:
            yield index_key(due), index_bytes(state.history.until(due))

    def extra_indexes(self, state: TableState) -> list[str]:
        """Version indexes that were stored, but that no publisher would have left: a reader would take the newest."""
        due = index_key(max(checkpoint_versions(state), default=0))
        return [info.key for info in self._store.list(FOLDER) if info.key > due]

    def documents(self, state: TableState) -> dict[str, bytes]:
        """The datom documents, and the chain's reference, that the log implies, by key below the table's folder."""
        versions = readable_by_datom(state.history)
        documents: dict[str, bytes] = {}
        if versions:
            documents |= {f".metadata/{v.metadata_sha}.json": metadata_document(v) for v in versions}
            documents[HISTORY_KEY] = encode([history_entry(version) for version in versions])
            documents[METADATA_KEY] = metadata_document(versions[0])
        if (end := chain_head(state.snapshot)) is not None:
            documents[REF_KEY] = end.head.encode()
        return documents

    def _publish_head(self, state: TableState, ahead: HeadDocument | None = None) -> int:
        """Publish the table's head; ``ahead`` was read before the log. Returns the log version that was there."""
        key, head = head_key(self._table), table_head(self._table, state)
        return publish_head(self._data, key, head, state.log_version, ahead=ahead, durability="later").log_version

    def _publish_datom(self, history: History) -> None:
        """Publish what datom readers need; the history after the documents of the versions that it names."""
        if not self._prepend_versions(history):
            self._put_versions(history)

    def _publish_ref(self, state: TableState) -> None:
        """Publish where the chain ends, for those who read it without the log."""
        end = chain_head(state.snapshot)
        if end is not None and end.head != self._ref:
            self._put_derived(REF_KEY, end.head.encode())
            self._ref = end.head

    def _prepend_versions(self, history: History) -> bool:
        """Publish new versions; ``False``, and nothing lost, where the stored history is not what this process put.

        A history is stored whole: with 2,000 versions, reading and encoding it took three times as long as all the
        rest of a commit.
        """
        last = self._listed
        if last is None or not history.extends(last.history):
            return False
        added = history.versions[len(last.history.versions) :]
        if not added:
            return False
        entries, newest = last.entries, b""
        for version in added:
            sha = str(version.metadata_sha)
            if not _is_one_part(version) or sha.encode() in entries:  # identities are named once, by their newest
                return False
            newest = metadata_document(version)
            self._put_derived(f".metadata/{sha}.json", newest)
            entries = encode(history_entry(version)) + b"," + entries
        try:
            info = self._store.put_if_match(HISTORY_KEY, b"[%b]" % entries, last.etag, durability="later")
        except PreconditionFailed:
            return False
        self._put_derived(METADATA_KEY, newest)
        self._listed = _Listed(history, info.etag, entries, last.count + len(added))
        self._publish_manifest(_manifest_entry(added[-1], self._listed.count))
        return True

    def _put_versions(self, history: History) -> None:
        versions = readable_by_datom(history)
        published = self._published()
        listed = [history_entry(version) for version in versions]
        for version, entry in zip(versions, listed, strict=True):
            if published.get(entry["version"]) != entry["log_version"]:
                self._put_derived(f".metadata/{version.metadata_sha}.json", metadata_document(version))
        if versions:
            # Before the history, which names them: after a crash in between, nobody would know what to delete.
            if gone := published.keys() - {entry["version"] for entry in listed}:
                self._store.delete([f".metadata/{sha}.json" for sha in sorted(gone)])
            text = encode(listed)
            info = self._put_derived(HISTORY_KEY, text)
            self._put_derived(METADATA_KEY, metadata_document(versions[0]))
            self._listed = _Listed(history, info.etag, text[1:-1], len(listed))
        elif published or not self._is_cleared:
            self._clear_datom()
        self._is_cleared = not versions
        self._publish_manifest(_manifest_entry(versions[0], len(versions)) if versions else None)

    def _clear_datom(self) -> None:
        """Delete every datom document.

        The history goes first, so that no reader follows it to one that is not there, and after a crash nobody takes
        it for complete. It goes last as well: where another process put a new one meanwhile, it names documents that
        were deleted here; without one, whoever publishes next puts all of them.
        """
        self._listed = None
        self._store.delete([HISTORY_KEY])
        if found := [info.key for info in self._store.list(".metadata/") if _DATOM.fullmatch(info.key)]:
            self._store.delete(found)
            self._store.delete([HISTORY_KEY])

    def _published(self) -> dict[str, int]:
        """The versions, with their log versions, that the stored history names."""
        try:
            history = orjson.loads(self._store.get(HISTORY_KEY))
            found = {str(entry["version"]): int(entry["log_version"]) for entry in history}
        except (ObjectNotFound, ValueError, KeyError, TypeError):
            return {}  # whatever is there is derived, and is about to be written again
        return {sha: at for sha, at in found.items() if _DATOM.fullmatch(f".metadata/{sha}.json")}

    def _publish_manifest(self, entry: Mapping[str, Any] | None) -> None:
        def enter(data: bytes | None) -> bytes | None:
            manifest = _parse_manifest(data, self._project)
            artifacts = manifest["artifacts"]
            if data is not None and entry == artifacts.get(self._table):
                return None
            manifest["artifacts"] = {k: v for k, v in artifacts.items() if k != self._table} | (
                {str(self._table): entry} if entry else {}
            )
            return encode(manifest)

        update_document(self._data, MANIFEST_KEY, enter, durability="later")

    def _put_derived(self, key: str, data: bytes) -> ObjectInfo:
        return self._store.put(key, data, durability="later")

    def _publish_checkpoint(self, state: TableState) -> None:
        """Write the checkpoint and the index that are due, unless they are there.

        Any commit sees to it, not only the one that is a multiple of the interval: that one's process may have died, or
        have been overtaken.
        """
        due = max(checkpoint_versions(state), default=0)
        if due <= self._checkpointed:
            return
        key = index_key(due)
        if due == state.log_version or not self._exists(key):
            snapshot = state.snapshot if due == state.log_version else load_snapshot(self._store, due)
            with suppress(UnsupportedFeature):  # a form of checkpoint that is not written; the log is complete
                write_checkpoint(self._store, snapshot)
            self._store.put(key, index_bytes(state.history.until(due)))
            self._store.delete([info.key for info in self._store.list(FOLDER) if info.key < key])
        self._checkpointed = due

    def _stored(self, key: str) -> bytes | None:
        try:
            return self._store.get(key)
        except ObjectNotFound:
            return None

    def _exists(self, key: str) -> bool:
        try:
            self._store.head(key)
        except ObjectNotFound:
            return False
        return True


def checkpoint_versions(state: TableState) -> range:
    """The log versions that have a checkpoint."""
    return range(CHECKPOINT_INTERVAL, state.log_version + 1, CHECKPOINT_INTERVAL)


def readable_by_datom(history: History) -> list[Version]:
    """The versions that a datom reader can open, newest first, each identity once (its newest occurrence).

    Empty unless the head itself is one: a reader of the documents would take an older version for the current one.
    """
    head = history.heads.get(None)
    if history.is_partitioned or head is None or not _is_one_part(head):
        return []
    newest = {v.metadata_sha: v for v in history.versions if _is_one_part(v)}
    return sorted(newest.values(), key=lambda version: -version.log_version)


def metadata_document(version: Version) -> bytes:
    """A version's datom document: identity and facts side by side (FORMAT.md, datom readers)."""
    assert version.raw is not None  # foreign versions are never published
    identity, facts = version.raw["identity"], version.raw["facts"]
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
    assert version.raw is not None  # foreign versions are never published
    identity, facts = version.raw["identity"], version.raw["facts"]
    return {
        "version": version.metadata_sha,
        "data_sha": version.data_sha,
        "parquet_sha": facts.get("parquet_sha"),
        "timestamp": facts["created_at"],
        "author": facts.get("author"),
        "commit_message": identity.get("message"),
        "log_version": version.log_version,
    }


def _is_one_part(version: Version) -> bool:
    return (
        version.raw is not None
        and version.gone is None
        and version.partition is None
        and version.raw["facts"].get("part_count") == 1
        and version.raw["facts"].get("parquet_sha") is not None  # else it lacks the partition columns
    )


def _manifest_entry(current: Version, count: int) -> dict[str, Any]:
    assert current.raw is not None
    return {
        "kind": "table",
        "current_version": current.metadata_sha,
        "current_data_sha": current.data_sha,
        "last_updated": current.raw["facts"]["created_at"],
        "version_count": count,
    }


def recorded_project(data: ObjectStore) -> str | None:
    """The name of the project that a data folder belongs to, as its manifest records it; ``None`` where it has none."""
    try:
        manifest = data.get(MANIFEST_KEY)
    except ObjectNotFound:
        return None
    with suppress(ValueError, AttributeError):  # an unreadable manifest is derived: it says nothing
        name = orjson.loads(manifest).get("project_name")
        return name if isinstance(name, str) else None
    return None


def _parse_manifest(data: bytes | None, project: str) -> dict[str, Any]:
    """The stored manifest, or an empty one of the project; the name that is recorded stays, whoever publishes."""
    artifacts, recorded = None, None
    with suppress(ValueError, AttributeError):  # an unreadable manifest is derived: it is begun anew
        manifest: dict[str, Any] = orjson.loads(data) if data else {}
        artifacts, recorded = manifest.get("artifacts"), manifest.get("project_name")
    if isinstance(recorded, str) and recorded != project:
        logger.warning(
            "The project %r was written to as %r, which it is not called any more. Open it by its own name.",
            recorded,
            project,
        )
    return {
        "schema_version": DATOM_SCHEMA_VERSION,
        "project_name": recorded if isinstance(recorded, str) else project,
        "artifacts": cast("dict[str, Any]", artifacts) if isinstance(artifacts, dict) else {},
    }
