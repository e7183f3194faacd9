"""Why a version must be kept: a pin, a tag, an environment that began with it, or a kept version built from it."""

import re
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, cast

import orjson

from dagster_versioned.delta.log.commits import commit_key, commit_sha256, commits_after
from dagster_versioned.errors import (
    EnvironmentNotFound,
    IntegrityError,
    InvalidInput,
    InvalidName,
    ObjectNotFound,
    VersionNotFound,
)
from dagster_versioned.identity.names import TableName, table_name
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.tables.context import ProjectContext
from dagster_versioned.tables.documents.parked_draft import KEPT, ParkedDraft, draft_keys, forget_bounds
from dagster_versioned.tables.documents.tag import TaggedTable, read_tag, tag_key, tag_names
from dagster_versioned.tables.environment.fork import ForkedTable
from dagster_versioned.tables.environment.registry import FILES, key_of, names_of, read_forks
from dagster_versioned.tables.erased_parts import ErasureName
from dagster_versioned.tables.history import History, Version
from dagster_versioned.tables.parts import named_sha, part_key
from dagster_versioned.tables.pins import read_pins
from dagster_versioned.tables.state import StateCache, TableState
from dagster_versioned.tables.table_record import TableRecord

_TABLES_AT_ONCE = 16
_SHA = re.compile(rb"[0-9a-f]{64}")

_Tables = Mapping[TableName, ForkedTable] | Mapping[TableName, TaggedTable] | bytes


@dataclass(frozen=True)
class Protection:
    """Why a version must not be expired; all but a parent are not purged either. ``text`` continues "it is …"."""

    kind: Literal["pin", "tag", "environment", "parent"]
    text: str


@dataclass(frozen=True)
class _OtherTable:
    """Another table as of one commit: the SHAs that its kept versions name as parents, with a text that names one."""

    store: ObjectStore
    log_version: int
    commit_sha: str
    parents: Mapping[str, str]

    def is_current(self) -> bool:
        """Whether the log still ends with that commit."""
        try:
            newest = self.store.get(commit_key(self.log_version))
        except ObjectNotFound:
            return False
        return commit_sha256(self.log_version, newest) == self.commit_sha and not commits_after(
            self.store, self.log_version
        )


def kept_as(version: Version) -> str:
    """What a version is protected by: its ``metadata_sha``, or ``@N`` for a commit of another program."""
    return version.metadata_sha or version.short


class Protectors:
    """What lies outside of a table and keeps its versions: pins, tags, environments, and kept versions of other tables.

    Every method looks anew. Each other table is opened once, and again only where it was committed to since.
    """

    def __init__(
        self, project: ProjectContext, table: TableName, former: "Callable[[], Iterable[tuple[str, str]]]" = tuple
    ) -> None:
        self.project = project
        self.table = table
        self._former = former
        self._others: dict[TableName, _OtherTable] = {}
        self.unreadable: set[str] = set()
        """The documents of environments, tags and drafts that could not be read; they keep what can be read of them."""

    def kept(self, history: History) -> dict[str, Protection]:
        """The versions that are pinned, or were current at a tag or when an environment began, by `kept_as`."""
        names = {str(self.table), *(name for _, name in self._former())}
        pins = read_pins(self.project).values()
        pinned = {pin.version: Protection("pin", f"pinned as {pin.name!r}") for pin in pins if pin.table in names}
        return dict(self._at_moments(history, names)) | pinned

    def _at_moments(self, history: History, names: Set[str]) -> Iterator[tuple[str, Protection]]:
        for reason, tables in (*self._environments(), *self._tags()):
            if isinstance(tables, bytes):
                found = _named_in(tables, history, names)
            else:
                moments = [tables[table_name(name)].log_version for name in names & tables.keys()]
                found = (version for at in moments for version in _current_at(history, at))
            for version in found:
                yield kept_as(version), reason

    def _environments(self) -> Iterator[tuple[Protection, _Tables]]:
        """What each fork has; of a document that cannot be read the bytes."""
        store = self.project.store
        for name in names_of(store) if self.project.environment is None else ():
            reason = Protection("environment", f"what the environment {name!r} began with")
            try:
                yield from [(reason, fork.tables) for fork in read_forks(store, name)]
            except EnvironmentNotFound:
                continue  # it was dropped since
            except (IntegrityError, InvalidName):
                yield from self._broken(reason, store, key_of(name))

    def _tags(self) -> Iterator[tuple[Protection, _Tables]]:
        """What each tag has; of a document that cannot be read the bytes."""
        data = self.project.data
        for name in tag_names(data):
            reason = Protection("tag", f"what the tag {name!r} names")
            try:
                yield reason, read_tag(data, name).tables
            except VersionNotFound:
                continue  # it was dropped since
            except IntegrityError:
                yield from self._broken(reason, data, tag_key(name))

    def _broken(self, reason: Protection, store: ObjectStore, key: str) -> Iterator[tuple[Protection, bytes]]:
        with suppress(ObjectNotFound):
            broken = store.get(key)
            self.unreadable.add(key)
            yield reason, broken

    def is_followed_late(self, state: TableState) -> bool:
        """Whether an environment that began with the table reads what was erased: its log does not name the newest
        erasure that production's does, for that died between the two. One that cannot be read may."""
        if (named := ErasureName.by(state.snapshot)) is None or self.project.environment is not None:
            return False
        try:
            for there in self.project.in_environments():
                if there.environment is not None and there.environment.forked_at(self.table) >= 0:
                    fork = StateCache(there.data.subfolder(str(self.table)), loaded=there.loaded).refresh()
                    if fork is None or ErasureName.by(fork.snapshot) != named:
                        return True
        except (IntegrityError, InvalidName, InvalidInput):
            return True
        return False

    def parked(self, store: ObjectStore) -> frozenset[str]:
        """The keys of parts that drafts need which may still be published; ``store`` is the table's own.

        Of a draft that cannot be read and is young enough, they are the parts whose SHA-256 stands in its bytes.
        """
        found: set[str] = set()
        named: set[str] = set()
        for info in draft_keys(self.project.data, str(self.table)):
            try:
                raw = self.project.data.get(info.key)
            except ObjectNotFound:
                continue  # it was collected since
            try:
                draft = ParkedDraft.from_bytes(raw, info.key)
            except IntegrityError:
                self.unreadable.add(info.key)
                named |= _shas_in(raw) if datetime.now(UTC) - info.modified <= KEPT else set()
                continue
            if draft.is_living and not draft.is_old:
                found.update(part_key(part) for version in draft.versions for part in version.parts or ())
        if named:
            found.update(info.key for info in store.list() if named_sha(info.key) in named)
        return frozenset(found)

    def forget(self, erased: Set[str]) -> None:
        """Take what drafts say of the values in purged parts out of their documents."""
        forget_bounds(self.project.data, str(self.table), erased)

    def copies(self, keys: Set[str]) -> Iterator[str]:
        """The files of environments, dropped ones too, with the bytes of these of the table's: what was copied there,
        or written there again."""
        shas = {named_sha(key) for key in keys} - {None}
        for info in self.project.store.list(FILES) if keys else ():
            *_, key = info.key.split("/", 6)  # environments/files/{name}/{generation}/data/{table}/…
            if key in keys or named_sha(key) in shas:
                yield info.key

    def all(self, history: History) -> dict[str, Protection]:
        """Those that are `kept`, and those that are parents of kept versions of other tables."""
        folders = map(_name, self.project.data.folders())
        self._others = dict(self._look([name for name in folders if name is not None and name != self.table]))
        named = {
            sha: Protection("parent", f"a parent of {name} {child}")
            for name, other in self._others.items()
            for sha, child in other.parents.items()
        }
        return named_versions(history, named) | self.kept(history)

    def _look(self, names: Sequence[TableName]) -> Iterator[tuple[TableName, _OtherTable]]:
        if not names or self.project.data.local_path(names[0]) is not None:
            found = [self._other(name) for name in names]
        else:
            with ThreadPoolExecutor(min(_TABLES_AT_ONCE, len(names)), thread_name_prefix="parents") as pool:
                found = list(pool.map(self._other, names))
        return ((name, other) for name, other in zip(names, found, strict=True) if other is not None)

    def _other(self, name: TableName) -> _OtherTable | None:
        known = self._others.get(name)
        if known is not None and known.is_current():
            return known
        store, loaded = self.project.data.subfolder(str(name)), self.project.loaded
        state = StateCache(store, loaded=loaded).refresh()
        if state is None:
            return None  # a folder that is no table
        left_for = TableRecord.of(state.snapshot).left_for(name)
        if left_for is not None and StateCache(self.project.data.subfolder(left_for), loaded=loaded).refresh():
            return None  # a name that a table had: it is looked at under the one that it has
        history = state.history
        parents = {sha: child.short for child in history.versions if child.gone is None for sha in _parents(child)}
        return _OtherTable(store, history.log_version, history.record(history.log_version).sha256, parents)


def named_versions(history: History, reasons: Mapping[str, Protection]) -> dict[str, Protection]:
    """The versions, by ``metadata_sha``, that are meant by SHAs of versions and of the whole table, with the reason."""
    names = _Names(history)
    named = _NamedParents(names)
    for sha, reason in reasons.items():
        named.add(sha, reason)
    found = ((version.metadata_sha, named.reason(version, end)) for version, end in names.lives)
    return {sha: reason for sha, reason in found if sha is not None and reason is not None}


def with_own_parents(
    history: History, candidates: Iterable[Version], protected: Mapping[str, Protection]
) -> dict[str, Protection]:
    """The protected versions, with those that a staying version of this table names as parents, and theirs in turn."""
    reasons = {**protected}
    going = {(version.log_version, version.partition) for version in candidates}
    names = _Names(history)
    named = _NamedParents(names)
    size = -1
    # A parent is older than its child, so one pass from the newest finds all; only a log that was forged takes more.
    while size < named.size:
        size = named.size
        for version, end in names.lives:
            if version.gone is not None:
                continue
            reason = named.reason(version, end)
            if reason is not None and version.metadata_sha is not None:
                named.add(version.metadata_sha, reason)  # by SHA: wherever else it is in the history
            if (version.log_version, version.partition) in going and kept_as(version) not in reasons:
                if reason is None:
                    continue
                reasons[kept_as(version)] = reason
            reason = Protection("parent", f"a parent of {version.short} (@{version.log_version})")
            for parent in _parents(version):
                named.add(parent, reason)
    return reasons


def known_shas(history: History) -> frozenset[str]:
    """What a parent may name: the SHAs of the versions of a history, and of the whole partitioned table."""
    names = _Names(history)
    return frozenset(names.wholes) | {sha for sha in names.shas if sha is not None}


class _Names:
    """What a SHA that is named as a parent means in a history: one version, or a whole partitioned table.

    ``lives`` are the own versions, newest first, each with the log version at which another took its place,
    or none did.
    """

    def __init__(self, history: History) -> None:
        self.shas = {version.metadata_sha for version in history.versions}
        self.wholes = {
            sha: record.log_version
            for record in history.records
            if (sha := record.member("partitions_sha")) is not None
        }
        self.lives: list[tuple[Version, int | None]] = []
        ends: dict[str | None, int] = {}
        for version in reversed(history.versions):
            if not version.is_foreign:
                if not version.is_drop:
                    self.lives.append((version, ends.get(version.partition)))
                ends[version.partition] = version.log_version


class _NamedParents:
    """The versions that are named as parents so far, each with the reason that names it first."""

    def __init__(self, names: _Names) -> None:
        self._names = names
        self._versions: dict[str, Protection] = {}
        self._wholes: dict[int, Protection] = {}
        self._at: list[int] = []

    @property
    def size(self) -> int:
        """How many are named."""
        return len(self._versions) + len(self._wholes)

    def add(self, sha: str, reason: Protection) -> None:
        """Name the version, or the whole table, of a SHA; one that the history does not know is passed over."""
        if sha in self._names.shas:
            self._versions.setdefault(sha, reason)
        elif (at := self._names.wholes.get(sha)) is not None and at not in self._wholes:
            self._wholes[at] = reason
            insort(self._at, at)

    def reason(self, version: Version, end: int | None) -> Protection | None:
        """Why a version that was in the table until ``end`` is named, or ``None``."""
        if (reason := self._versions.get(version.metadata_sha or "")) is not None:
            return reason
        position = bisect_left(self._at, version.log_version)
        if position < len(self._at) and (end is None or self._at[position] < end):
            return self._wholes[self._at[position]]
        return None


def _parents(version: Version) -> Iterator[str]:
    # By SHA alone: whoever opens the project under another name must not lose parents by that.
    if version.raw is not None:
        yield from (parent["version"] for parent in version.raw["identity"].get("parents", ()))


def _current_at(history: History, log_version: int) -> Iterator[Version]:
    """The versions that were current at a moment, and those of other programs whose files were in the table then."""
    before = history.until(log_version)
    oldest = min((version.log_version for version in before.heads.values()), default=-1)
    yield from before.heads.values()
    for version in before.versions:  # adopted or not
        if version.is_foreign and version.log_version > oldest:
            yield version


def _named_in(broken: bytes, history: History, names: Set[str]) -> Iterator[Version]:
    """The versions of a table that a document which cannot be read may name.

    They are those at each commit whose SHA-256 stands in its bytes, and at each log version that it has under a name of
    the table; all, where it has the name and neither of them.
    """
    shas = _shas_in(broken)
    moments = {record.log_version for record in history.records if record.sha256 in shas}
    named = list(_members_of(broken, names))
    ends = (cast("dict[str, object]", member).get("log_version") for member in named if isinstance(member, dict))
    moments |= {at for at in ends if type(at) is int and at >= 0}
    if named and not moments:
        yield from history.versions
    for at in moments:
        yield from _current_at(history, at)


def _members_of(broken: bytes, names: Set[str]) -> Iterator[Any]:
    """What stands under these names, anywhere in what may be JSON."""
    members: list[Any] = []
    with suppress(orjson.JSONDecodeError):
        members.append(orjson.loads(broken))
    while members:
        member = members.pop()
        if isinstance(member, dict):
            held = cast("dict[str, Any]", member)
            yield from (held[name] for name in names & held.keys())
            members.extend(held.values())
        elif isinstance(member, list):
            members.extend(cast("list[Any]", member))


def _shas_in(broken: bytes) -> set[str]:
    return {sha.decode() for sha in _SHA.findall(broken)}


def _name(folder: str) -> TableName | None:
    try:
        return table_name(folder)
    except InvalidName:
        return None
