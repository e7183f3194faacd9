"""The heads of a project's tables as they are now: one listing a look, and one read for each that changed.

What is remembered between looks is a cache: a new `ProjectHeads` sees the same.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from dagster_versioned.delta.log.commits import Commit, read_commits
from dagster_versioned.errors import AccessDenied, IntegrityError, ObjectNotFound, VersionedError, VersionNotFound
from dagster_versioned.identity.names import TableName
from dagster_versioned.identity.version import partitions_sha
from dagster_versioned.projects.project import Project
from dagster_versioned.projects.staleness import CellHead, TableHeads, built_from
from dagster_versioned.tables.documents.head import (
    EMPTY,
    HEADS_FOLDER,
    UNREADABLE,
    HeadDocument,
    code_member,
    held_in,
    partition_head,
    table_head,
)
from dagster_versioned.tables.documents.tag import TAGS_FOLDER
from dagster_versioned.tables.feature_record import FeatureRecord
from dagster_versioned.tables.history import CommitRecord
from dagster_versioned.tables.partitioning import Partitioning
from dagster_versioned.tables.pins import PINS_KEY, Pin
from dagster_versioned.tables.relocation.migration_mark import read_mark
from dagster_versioned.tables.table import VersionedTable
from dagster_versioned.tables.table_record import TABLE_DOMAIN, TableRecord

logger = logging.getLogger("dagster_versioned")

RESOLVE_AFTER = timedelta(minutes=1)
"""A commit takes a moment after its head was marked; a mark that is older is looked up in the log."""

COMMITS = 12
"""Commits since the last look up to which these are read; beyond, the table is opened from its checkpoint."""

_READERS = 16

T = TypeVar("T")


@dataclass
class _TableMemory:
    """What is remembered of one table: its document as of an ETag, and its partitions as of a log version."""

    etag: str = ""
    document: HeadDocument = EMPTY
    heads: TableHeads = field(default_factory=TableHeads)
    seen: int = -1

    @property
    def is_settled(self) -> bool:
        """Whether the heads stay what they are for as long as the document does."""
        return self.document.pending is None and self.heads.unreadable is None


@dataclass(frozen=True)
class HeadChanges:
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
    """The heads of some tables of one project. Not thread-safe.

    A head that its writer left behind its log is written anew, unless ``brings_up`` is false; then the log is read, and
    tables whose logs were read are kept, for whoever looks once and asks more of them.
    """

    def __init__(self, project: Project, brings_up: bool = True) -> None:
        self._brings_up = brings_up
        self._opened = project
        self._project = project
        self._known: dict[TableName, _TableMemory] = {}
        self._resolving: dict[TableName, VersionedTable] = {}
        self._kept: dict[TableName, VersionedTable] = {}
        self._pins: tuple[str, Mapping[str, Pin]] = ("", {})
        self._tagged: dict[tuple[str, TableName], tuple[str, str]] = {}
        self._reads = 0

    @property
    def project(self) -> Project:
        """The project, where its bytes are now."""
        return self._project

    def heads(self, table: TableName) -> TableHeads:
        """What the last look saw of a table; nothing, where there is no head."""
        known = self._known.get(table)
        return known.heads if known else TableHeads()

    def table(self, name: TableName) -> VersionedTable:
        """A table of the project: with the log that its heads were read from, where that was kept."""
        if self._brings_up:  # again and again, for as long as its process lives: a log is large
            return self._project.table(str(name))
        if name not in self._kept:
            self._kept[name] = self._project.table(str(name))
        return self._kept[name]

    def listing(self) -> dict[str, str]:
        """The ETag of every head that is stored, by table, in one paged listing."""
        self._follow()
        names = ((info.key.removeprefix(HEADS_FOLDER), info.etag) for info in self._project.data.list(HEADS_FOLDER))
        return {name.removesuffix(".json"): etag for name, etag in names if name.endswith(".json")}

    def look(self, listing: Mapping[str, str], tables: Collection[TableName]) -> HeadChanges:
        """See what changed among these tables. A table that cannot be read is reported, and stops no other."""
        self._reads = 0
        present = {table: listing[table] for table in tables if table in listing}
        changed: dict[TableName, Collection[str] | None] = dict.fromkeys(t for t in self._known if t not in present)
        for table in changed:
            del self._known[table]
        stale = [table for table, etag in present.items() if self._known.setdefault(table, _TableMemory()).etag != etag]
        read = dict(zip(stale, self._map(self._read, stale), strict=True))
        for table in present:
            known = self._known[table]
            if table not in read and known.is_settled:
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
        is_known = all(known.etag and known.is_settled for known in self._known.values())
        return HeadChanges(changed, etags, self._reads, pending, is_known)

    def pinned(self, wanted: Collection[tuple[str, TableName]]) -> Mapping[tuple[str, TableName], str]:
        """The SHAs that pins and tags (``pin:name``, ``tag:name``) name, each in a table; of those that name one.

        Raises `IntegrityError` where the pins cannot be read.
        """
        kinds = {reference.partition(":")[0] for reference, _ in wanted}
        pins = self._read_pins() if "pin" in kinds else dict[str, Pin]()
        tags = {info.key: info.etag for info in self._project.data.list(TAGS_FOLDER)} if "tag" in kinds else {}
        known, self._tagged = self._tagged, {}
        found: dict[tuple[str, TableName], str] = {}
        for reference, table in wanted:
            kind, _, name = reference.partition(":")
            if kind == "pin":
                pin = pins.get(name)
                found[reference, table] = pin.version if pin is not None and pin.table == table else ""
            else:
                etag = tags.get(f"{TAGS_FOLDER}{name}.json", "")
                before = known.get((name, table), ("", ""))
                sha = found[reference, table] = before[1] if etag == before[0] else self._at_tag(name, table)
                self._tagged[name, table] = etag, sha
        return {key: sha for key, sha in found.items() if sha}

    def _at_tag(self, name: str, table: TableName) -> str:
        """The SHA of a table at a tag, from its log; ``""`` where there is none, which the run that reads it says."""
        try:
            return self._project.table(str(table)).upstream(f"tag:{name}")[0].parent.version
        except (VersionNotFound, IntegrityError):
            return ""

    def _read_pins(self) -> Mapping[str, Pin]:
        try:
            etag = self._project.data.head(PINS_KEY).etag
        except ObjectNotFound:
            return {}
        if etag != self._pins[0]:
            self._pins = (etag, self._project.pins())
        return self._pins[1]

    def _follow(self) -> None:
        """Go where the project's bytes are, if governance says that they were moved."""
        store = self._opened.placement_authority.relocated() if self._opened.placement_authority is not None else None
        uri = store.uri if store is not None else self._opened.store.uri
        if uri != self._project.store.uri:
            mark = read_mark(self._opened.data) if store is None else None
            if mark is not None and mark.state == "leaving":
                return  # governance did not answer: whoever came back would have lifted the fence
            self._project = self._opened.at(store) if store is not None else self._opened
            self._known, self._resolving, self._kept, self._pins, self._tagged = {}, {}, {}, ("", {}), {}

    def _map(self, read: Callable[[Any], T], keys: Sequence[Any]) -> list[T]:
        """Read many objects; at once where the store is not local. In the order of the keys."""
        self._reads += len(keys)
        if len(keys) < 2 or self._project.data.local_path(HEADS_FOLDER + "x") is not None:
            return [read(key) for key in keys]
        with ThreadPoolExecutor(min(_READERS, len(keys))) as pool:
            return list(pool.map(read, keys))

    def _read(self, table: TableName) -> tuple[HeadDocument, str]:
        """The document and the ETag that it was read under; one that cannot be read counts as marked."""
        key = f"{HEADS_FOLDER}{table}.json"
        try:
            data, info = self._project.data.get_with_info(key)
        except ObjectNotFound:
            return EMPTY, ""
        try:
            return HeadDocument.from_bytes(data, key), info.etag
        except IntegrityError:
            return UNREADABLE, info.etag

    def _update(self, table: TableName, known: _TableMemory) -> Collection[str] | None:
        """Bring the heads of a table up to its document; returns the partitions that changed, ``None`` if any may."""
        try:
            document = self._resolved(table, known.document)
            whole = CellHead.of(document.head) if document.head else None
            former = document.head.former if document.head else ()
            if document.head is None or document.head.partitions is None:
                dropped = document.log_version if document.head is None else -1
                known.heads, known.seen = TableHeads(whole, former=former, dropped=dropped), document.log_version
                return None
            partitions, touched, dropped, partitioning = self._partitions(table, known, document)
            known.heads = TableHeads(whole, partitions, None, former, dropped, partitioning)
            known.seen = document.log_version
            return touched
        except VersionedError as error:
            logger.warning(
                "%s: its heads cannot be read, so nothing that depends on it is requested.", table, exc_info=True
            )
            known.heads, known.seen = TableHeads(unreadable=f"{table} cannot be read: {error}"), -1
            return None

    def _resolved(self, table: TableName, document: HeadDocument) -> HeadDocument:
        """The document, brought up to the log where a commit was announced and its head did not follow."""
        if document.pending is None or timedelta(0) <= document.pending.age(datetime.now(UTC)) < RESOLVE_AFTER:
            return document
        opened = self._resolving.setdefault(table, self._project.table(str(table)))
        self._reads += 1
        if self._brings_up:
            with suppress(AccessDenied):
                document = opened.resolve()
        # Where this process does not or may not write, the head stays behind; what the log says holds all the same.
        if document.pending is not None and opened.exists() and opened.state.log_version > document.log_version:
            return HeadDocument(opened.state.log_version, table_head(table, opened.state))
        return document

    def _partitions(
        self, table: TableName, known: _TableMemory, document: HeadDocument
    ) -> tuple[Mapping[str, CellHead], Collection[str] | None, int, Partitioning | None]:
        """The heads of the partitions, those that changed, the last drop, and what the partitions are.

        By the commits since the last look, if they are few. Where these do not lead to the partitions that the table's
        head is taken over, dropped some, or say what they are, all is read from the whole log, as it is where the table
        was made anew.
        """
        assert document.head is not None
        before = known.heads.partitions
        if known.seen >= 0 and 0 <= document.log_version - known.seen <= COMMITS:
            heads, touched, is_another = self._by_log(table, known, document.log_version)
            is_whole = (
                partitions_sha({key: head.metadata_sha for key, head in heads.items()}) == document.head.metadata_sha
            )
            if is_whole and not is_another:
                return heads, touched, known.heads.dropped, known.heads.partitioning
        heads, dropped, partitioning = self._from_log(table, document)
        changed = {key for key in heads.keys() | before.keys() if heads.get(key) != before.get(key)}
        is_same = known.seen >= 0 and dropped == known.heads.dropped and partitioning == known.heads.partitioning
        return heads, changed if is_same else None, dropped, partitioning

    def _by_log(
        self, table: TableName, known: _TableMemory, log_version: int
    ) -> tuple[Mapping[str, CellHead], Collection[str], bool]:
        store = self._project.data.subfolder(str(table))
        commits = read_commits(store, known.seen + 1, log_version) if known.seen < log_version else []
        self._reads += len(commits)
        heads = dict(known.heads.partitions)
        touched: set[str] = set()
        for commit in commits:
            made = dict(_committed(commit, heads))
            held = {key: hold for key, hold in held_in(commit).items() if key in heads or key in made}
            heads |= made
            heads |= {key: replace(heads[key], held=hold) for key, hold in held.items()}
            touched |= made.keys() | held.keys()
        is_another = known.heads.whole is None or any(
            CommitRecord.of(commit).member("dropped") or any(domain.domain == TABLE_DOMAIN for domain in commit.domains)
            for commit in commits
        )
        return heads, touched, is_another

    def _from_log(
        self, table: TableName, document: HeadDocument
    ) -> tuple[Mapping[str, CellHead], int, Partitioning | None]:
        """The heads, the last drop and what partitions are, from the whole log, by its checkpoint, at a document."""
        self._reads += 1
        state = self.table(table).state
        history = state.history.until(document.log_version)
        heads = {
            k: CellHead.of(partition_head(table, head, state)) for k, head in history.heads.items() if k is not None
        }
        return heads, history.last_drop, TableRecord.of(state.snapshot).partitioning


def _committed(commit: Commit, heads: Mapping[str, CellHead]) -> Iterator[tuple[str, CellHead]]:
    for raw in (CommitRecord.of(commit).info or {}).get("versions", ()):
        identity = raw["identity"]
        partition = identity.get("partition")
        if partition is not None:
            yield (
                partition,
                CellHead(
                    raw["metadata_sha"],
                    identity["data_sha"],
                    commit.version,
                    raw["facts"]["created_at"],
                    identity.get("code_version"),
                    built_from(identity.get("parents", ())),
                    heads[partition].held if partition in heads else None,
                    FeatureRecord.of(identity.get("custom", {})),
                    code_member(raw["facts"]),
                ),
            )
