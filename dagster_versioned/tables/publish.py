"""Documents that are derived from the log: heads, the datom documents, the manifest, checkpoints, the version index.

Each is a function of the log alone, so any of them can be deleted and comes back byte for byte. None is on the
commit path: a crash before they are written loses nothing, and whoever publishes next brings them up to date. So a put
of one need not wait for the disk (ten of a commit's sixteen fsyncs): what a power failure does, `repair` mends.
The exceptions: heads of partitions (see `head`), and checkpoints and their index, which other programs and this one
load a table from.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

import orjson

from dagster_versioned.delta.checkpoint import checkpoint_key, write_checkpoint
from dagster_versioned.delta.snapshot import load_snapshot
from dagster_versioned.errors import ObjectNotFound, PreconditionFailed
from dagster_versioned.identity.names import TableName
from dagster_versioned.storage.object_store import ObjectInfo, ObjectStore
from dagster_versioned.tables.document import encode, update_document
from dagster_versioned.tables.head import (
    Head,
    head_key,
    partition_head,
    partition_head_key,
    publish_head,
    read_head,
    table_head,
)
from dagster_versioned.tables.history import History, Version
from dagster_versioned.tables.state import StateCache, TableState
from dagster_versioned.tables.version_index import FOLDER, index_bytes, index_key

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

    def publish(self, cache: StateCache, state: TableState) -> None:
        """Bring every derived document up to the state, or to a later one where somebody already published that.

        Documents other than heads are put without a condition, so an older publisher may overwrite a newer one's;
        therefore each looks at the head once more afterwards and, if it was overtaken, publishes what is current.
        """
        while True:
            if self._publish_heads(state) > state.log_version:
                return
            self._publish_datom(state.history)
            if state.log_version and state.log_version % CHECKPOINT_INTERVAL == 0:
                self._publish_checkpoint(state)
            if read_head(self._data, head_key(self._table)).log_version <= state.log_version:
                return
            state = cache.require()

    def rebuild(self, state: TableState) -> None:
        """Write every derived document again from the log, whatever is there now."""
        self._publish_heads(state, since=-1)
        self._store.delete([key for info in self._store.list(".metadata/") if _DATOM.fullmatch(key := info.key)])
        self._listed = None
        self._publish_datom(state.history)
        for log_version in checkpoint_versions(state):
            try:
                self._store.head(checkpoint_key(log_version))
            except ObjectNotFound:
                write_checkpoint(self._store, load_snapshot(self._store, log_version))
        for key, data in self._index(state).items():
            self._store.put(key, data)

    def documents(self, state: TableState) -> dict[str, bytes]:
        """The datom documents and the version index that the log implies, by key below the table's folder."""
        versions = readable_by_datom(state.history)
        documents = self._index(state)
        if versions:
            documents |= {f".metadata/{v.metadata_sha}.json": metadata_document(v) for v in versions}
            documents[HISTORY_KEY] = encode([_history_entry(version) for version in versions])
            documents[METADATA_KEY] = metadata_document(versions[0])
        return documents

    def heads(self, state: TableState) -> dict[str, Head | None]:
        """The heads that the log implies, by key below the project's data folder."""
        partitions = {p: v for p, v in state.history.heads.items() if p is not None}
        return {head_key(self._table): table_head(self._table, state)} | {
            partition_head_key(self._table, p): partition_head(self._table, v, state) for p, v in partitions.items()
        }

    def _index(self, state: TableState) -> dict[str, bytes]:
        last = max(checkpoint_versions(state), default=None)
        return {} if last is None else {index_key(last): index_bytes(state.history.until(last))}

    def _publish_heads(self, state: TableState, since: int | None = None) -> int:
        """Publish the table's head, and before it those of partitions that changed after ``since``.

        ``since`` is by default what the stored head has seen. Returns the log version of the head that was there.
        """
        key = head_key(self._table)
        history = state.history
        if history.is_partitioned:
            touched = _touched(history)
            since = read_head(self._data, key).log_version if since is None else since
            for partition in sorted(p for p, at in touched.items() if p is not None and at > since):
                head = partition_head(self._table, history.heads[partition], state)
                publish_head(self._data, partition_head_key(self._table, partition), head, touched[partition])
        head = table_head(self._table, state)
        return publish_head(self._data, key, head, state.log_version, durability="later").log_version

    def _publish_datom(self, history: History) -> None:
        """Publish what datom readers need; the history after the documents of the versions that it names."""
        if not self._prepend_versions(history):
            self._put_versions(history)

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
            entries = encode(_history_entry(version)) + b"," + entries
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
        listed = [_history_entry(version) for version in versions]
        for version, entry in zip(versions, listed, strict=True):
            if published.get(entry["version"]) != entry["log_version"]:
                self._put_derived(f".metadata/{version.metadata_sha}.json", metadata_document(version))
        if versions:
            text = encode(listed)
            info = self._put_derived(HISTORY_KEY, text)
            self._put_derived(METADATA_KEY, metadata_document(versions[0]))
            self._listed = _Listed(history, info.etag, text[1:-1], len(listed))
        else:
            self._listed = None
            self._store.delete([METADATA_KEY, HISTORY_KEY])
        gone = published.keys() - {entry["version"] for entry in listed}
        if gone:
            self._store.delete([f".metadata/{sha}.json" for sha in sorted(gone)])
        self._publish_manifest(_manifest_entry(versions[0], len(versions)) if versions else None)

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
        write_checkpoint(self._store, state.snapshot)
        key = index_key(state.log_version)
        self._store.put(key, index_bytes(state.history))
        self._store.delete([info.key for info in self._store.list(FOLDER) if info.key < key])


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


def _is_one_part(version: Version) -> bool:
    return (
        version.raw is not None
        and version.gone is None
        and version.partition is None
        and version.raw["facts"].get("part_count") == 1
    )


def _history_entry(version: Version) -> dict[str, Any]:
    assert version.raw is not None
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
    with suppress(ObjectNotFound, ValueError, AttributeError):
        name = orjson.loads(data.get(MANIFEST_KEY)).get("project_name")
        return name if isinstance(name, str) else None
    return None


def _parse_manifest(data: bytes | None, project: str) -> dict[str, Any]:
    artifacts: Any = None
    with suppress(ValueError, AttributeError):  # an unreadable manifest is derived: it is begun anew
        artifacts = orjson.loads(data).get("artifacts") if data else None
    return {
        "schema_version": DATOM_SCHEMA_VERSION,
        "project_name": project,
        "artifacts": cast("dict[str, Any]", artifacts) if isinstance(artifacts, dict) else {},
    }


def _touched(history: History) -> dict[str | None, int]:
    """For every partition the log version of the last commit that changed its head, or its hold."""
    touched = {version.partition: version.log_version for version in history.heads.values()}
    for record in history.records:
        if record.info is not None and "held" in record.info:
            partition = record.info["held"].get("partition")
            if partition in touched:
                touched[partition] = max(touched[partition], record.log_version)
    return touched
