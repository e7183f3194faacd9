"""The heads of a project's tables as they are now: one listing a look, and one read for each that changed.

What is remembered between looks is a cache: a new `ProjectHeads` sees the same.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from dagster_versioned.delta.log import Commit, read_commits
from dagster_versioned.errors import AccessDenied, IntegrityError, ObjectNotFound, VersionedError
from dagster_versioned.identity.names import TableName, partition_key
from dagster_versioned.identity.version import partitions_sha
from dagster_versioned.tables.feature_record import FeatureRecord
from dagster_versioned.tables.head import (
    EMPTY,
    HEADS_FOLDER,
    UNREADABLE,
    HeadDocument,
    partition_head,
    partition_head_key,
    partition_heads_folder,
    table_head,
)
from dagster_versioned.tables.history import CommitRecord
from dagster_versioned.tables.migration_mark import read_mark
from dagster_versioned.tables.project import PINS_KEY, Pin, Project
from dagster_versioned.tables.publish import CHECKPOINT_INTERVAL
from dagster_versioned.tables.staleness import CellHead, TableHeads
from dagster_versioned.tables.table import VersionedTable

logger = logging.getLogger("dagster_versioned")

RESOLVE_AFTER = timedelta(minutes=1)
"""A commit takes a moment after its head was marked; a mark that is older is looked up in the log."""

PAGE = 1000
"""Objects that one call lists, on S3."""

_READERS = 16

T = TypeVar("T")


@dataclass
class _Known:
    """What is remembered of one table: its document as of an ETag, and its partitions as of a log version."""

    etag: str = ""
    document: HeadDocument = EMPTY
    heads: TableHeads = field(default_factory=TableHeads)
    seen: int = -1
    etags: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class Look:
    """What one look at a project found.

    ``changed`` holds, for each table whose head changed since the look before, the partitions that did; ``None`` means
    any of them. ``etags`` are those that the documents were read under, by table; ``reads`` counts documents and
    commits that were read. ``is_known`` says that what was read can only change together with an ETag: every head was
    read, and none is pending, because under a mark a commit may come without any change of the document.
    """

    changed: Mapping[TableName, Collection[str] | None]
    etags: Mapping[str, str]
    reads: int
    pending: tuple[TableName, ...]
    is_known: bool


class ProjectHeads:
    """The heads of some tables of one project. Not thread-safe."""

    def __init__(self, project: Project) -> None:
        self._opened = project
        self._project = project
        self._known: dict[TableName, _Known] = {}
        self._resolving: dict[TableName, VersionedTable] = {}
        self._pins: tuple[str, Mapping[str, Pin]] = ("", {})
        self._reads = 0

    @property
    def project(self) -> Project:
        """The project, where its bytes are now."""
        return self._project

    def heads(self, table: TableName) -> TableHeads:
        """What the last look saw of a table; nothing, where there is no head."""
        known = self._known.get(table)
        return known.heads if known else TableHeads()

    def listing(self) -> dict[str, str]:
        """The ETag of every head that is stored, by table, in one paged listing."""
        self._follow()
        names = ((info.key.removeprefix(HEADS_FOLDER), info.etag) for info in self._project.data.list(HEADS_FOLDER))
        return {name.removesuffix(".json"): etag for name, etag in names if name.endswith(".json")}

    def look(self, listing: Mapping[str, str], tables: Collection[TableName]) -> Look:
        """See what changed among these tables. A table that cannot be read is said to be so, and stops no other."""
        self._reads = 0
        present = {table: listing[table] for table in tables if table in listing}
        gone = [table for table in self._known if table not in present]
        stale = [table for table, etag in present.items() if self._known.setdefault(table, _Known()).etag != etag]
        changed: dict[TableName, Collection[str] | None] = dict.fromkeys(gone)
        for table in gone:
            del self._known[table]
        read = dict(zip(stale, self._map(self._read, stale), strict=True))
        for table, known in [(table, self._known[table]) for table in present]:
            if table not in read and known.document.pending is None and known.heads.unreadable is None:
                continue
            before = known.heads
            known.document, etag = read.get(table, (known.document, known.etag))
            known.etag = ""  # until what the document stands for is read: what breaks off here is begun again
            touched = self._update(table, known)
            known.etag = etag
            if known.heads != before:
                changed[table] = touched
        pending = tuple(table for table in present if self._known[table].document.pending is not None)
        for table in self._resolving.keys() - set(pending):
            del self._resolving[table]
        etags = {str(table): self._known[table].etag for table in present}
        unread = (not known.etag or known.heads.unreadable is not None for known in self._known.values())
        return Look(changed, etags, self._reads, pending, not pending and not any(unread))

    def pins(self) -> Mapping[str, Pin]:
        """The project's pins. Raises `IntegrityError` where they cannot be read."""
        try:
            etag = self._project.data.head(PINS_KEY).etag
        except ObjectNotFound:
            return {}
        if etag != self._pins[0]:
            self._pins = (etag, self._project.pins())
        return self._pins[1]

    def _follow(self) -> None:
        """Go where the project's bytes are, if governance says that they were moved."""
        store = self._opened.custody.relocated() if self._opened.custody is not None else None
        uri = store.uri if store is not None else self._opened.store.uri
        if uri != self._project.store.uri:
            mark = read_mark(self._opened.data) if store is None else None
            if mark is not None and mark.state == "leaving":
                return  # governance did not answer: whoever came back would have lifted the fence
            self._project = self._opened.at(store) if store is not None else self._opened
            self._known, self._resolving, self._pins = {}, {}, ("", {})

    def _map(self, read: Callable[[Any], T], keys: Sequence[Any]) -> list[T]:
        """Read many objects; at once where the store is not local. In the order of the keys."""
        self._reads += len(keys)
        if len(keys) < 2 or self._project.data.local_path(HEADS_FOLDER + "x") is not None:
            return [read(key) for key in keys]
        with ThreadPoolExecutor(min(_READERS, len(keys))) as pool:
            return list(pool.map(read, keys))

    def _read(self, table: TableName) -> tuple[HeadDocument, str]:
        return self._document(f"{HEADS_FOLDER}{table}.json")

    def _document(self, key: str) -> tuple[HeadDocument, str]:
        """The document and the ETag that it was read under; one that cannot be read counts as marked."""
        try:
            data, info = self._project.data.get_with_info(key)
        except ObjectNotFound:
            return EMPTY, ""
        try:
            return HeadDocument.from_bytes(data, key), info.etag
        except IntegrityError:
            return UNREADABLE, info.etag

    def _update(self, table: TableName, known: _Known) -> Collection[str] | None:
        """Bring the heads of a table up to its document; returns the partitions that changed, ``None`` if any may."""
        try:
            document = self._resolved(table, known.document)
            whole = CellHead.of(document.head) if document.head else None
            if document.head is None or document.head.partitions is None:
                known.heads, known.seen, known.etags = TableHeads(whole), document.log_version, {}
                return None
            partitions, touched = self._partitions(table, known, document)
            known.heads, known.seen = TableHeads(whole, partitions), document.log_version
            return touched
        except VersionedError as error:
            logger.warning(
                "%s: its heads cannot be read, so nothing that depends on it is requested.", table, exc_info=True
            )
            known.heads, known.seen, known.etags = TableHeads(unreadable=f"{table} cannot be read: {error}"), -1, {}
            return None

    def _resolved(self, table: TableName, document: HeadDocument) -> HeadDocument:
        """The document, brought up to the log where a commit was announced and its head did not follow."""
        if document.pending is None or timedelta(0) <= document.pending.age(datetime.now(UTC)) < RESOLVE_AFTER:
            return document
        opened = self._resolving.setdefault(table, self._project.table(str(table)))
        self._reads += 1
        with suppress(AccessDenied):
            document = opened.resolve()
        # Where this process may not write, the head stays behind; what the log says holds all the same.
        if document.pending is not None and opened.exists() and opened.state.log_version > document.log_version:
            return HeadDocument(opened.state.log_version, table_head(table, opened.state))
        return document

    def _partitions(
        self, table: TableName, known: _Known, document: HeadDocument
    ) -> tuple[Mapping[str, CellHead], Collection[str] | None]:
        """The heads of the partitions, and those that changed.

        Where they are not those that the table's head is taken over, they are read from the whole log: the table was
        deleted and made anew, a partition was dropped, stored heads were lost or lag behind.
        """
        assert document.head is not None
        heads, touched = self._remembered(table, known, document)
        if partitions_sha({key: head.metadata_sha for key, head in heads.items()}) != document.head.metadata_sha:
            return self._from_log(table, document), None
        return heads, touched

    def _remembered(
        self, table: TableName, known: _Known, document: HeadDocument
    ) -> tuple[Mapping[str, CellHead], Collection[str] | None]:
        """What is remembered, brought up to a document: by the log since the last look, or by the stored heads,
        whichever takes fewer calls."""
        assert document.head is not None
        commits = document.log_version - known.seen
        pages = 1 + (document.head.partitions or 0) // PAGE
        if known.seen >= 0 and commits == 0:
            return known.heads.partitions, ()
        if commits < 0:  # the table was deleted and made anew
            known.heads, known.seen, known.etags = TableHeads(), -1, {}
        if known.seen >= 0 and commits <= pages + 1:
            return self._by_log(table, known, document)
        if known.seen < 0 and (document.head.partitions or 0) > document.log_version % CHECKPOINT_INTERVAL + pages + 5:
            return self._from_log(table, document), None
        listing = {info.key: info.etag for info in self._project.data.list(partition_heads_folder(table))}
        self._reads += pages
        changed = [key for key, etag in listing.items() if known.etags.get(key) != etag]
        if known.seen >= 0 and commits < len(changed):
            return self._by_log(table, known, document)
        read = self._map(self._document, changed)
        if any(one.head is None for one, _ in read):
            return self._from_log(table, document), None
        known.etags = {key: known.etags.get(key, "") for key in listing}
        known.etags.update(zip(changed, (etag for _, etag in read), strict=True))
        heads = {str(one.head.partition): CellHead.of(one.head) for one, _ in read if one.head is not None}
        touched = heads.keys() | (known.heads.partitions.keys() - {_partition_of(key) for key in listing})
        kept = {key: head for key, head in known.heads.partitions.items() if key not in touched}
        return kept | heads, touched if known.seen >= 0 else None

    def _by_log(
        self, table: TableName, known: _Known, document: HeadDocument
    ) -> tuple[Mapping[str, CellHead], Collection[str] | None]:
        commits = read_commits(self._project.data.subfolder(str(table)), known.seen + 1, document.log_version)
        self._reads += len(commits)
        heads = dict(known.heads.partitions)
        touched: set[str] = set()
        for commit in commits:
            for partition, head in _committed(commit, heads):
                heads[partition] = head
                known.etags[partition_head_key(table, partition)] = ""  # what is stored is another one now
                touched.add(partition)
        held = sorted(_held_by(commits))
        for partition, (document, _) in zip(
            held, self._map(self._document, [partition_head_key(table, partition) for partition in held]), strict=True
        ):
            if document.head is None:
                return self._from_log(table, document), None
            heads[partition] = CellHead.of(document.head)
            touched.add(partition)
        return heads, touched

    def _from_log(self, table: TableName, document: HeadDocument) -> Mapping[str, CellHead]:
        """From the whole log, by its checkpoint, as it was at a document; for the first look at many partitions."""
        self._reads += 1
        state = self._project.table(str(table)).state
        heads = state.history.until(document.log_version).heads
        return {key: CellHead.of(partition_head(table, one, state)) for key, one in heads.items() if key is not None}


def _partition_of(key: str) -> str:
    return partition_key(key.rpartition("/")[2].removesuffix(".json"))


def _committed(commit: Commit, heads: Mapping[str, CellHead]) -> Iterator[tuple[str, CellHead]]:
    """The heads of partitions that one commit made."""
    for raw in (CommitRecord.of(commit).info or {}).get("versions", ()):
        identity = raw["identity"]
        partition = identity.get("partition")
        if partition is not None:
            yield (
                partition,
                CellHead.recorded(
                    raw["metadata_sha"],
                    identity["data_sha"],
                    commit.version,
                    raw["facts"]["created_at"],
                    identity.get("code_version"),
                    identity.get("parents", ()),
                    heads[partition].held if partition in heads else None,
                    FeatureRecord.of(identity.get("custom", {})),
                ),
            )


def _held_by(commits: Iterable[Commit]) -> set[str]:
    """The partitions whose hold one of the commits changed."""
    held = [(CommitRecord.of(commit).info or {}).get("held", {}).get("partition") for commit in commits]
    return {partition for partition in held if partition is not None}
