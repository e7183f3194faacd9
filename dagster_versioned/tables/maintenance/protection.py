"""Why a version must be kept: a pin, a tag, an environment that began with it, or a kept version built from it."""

import hashlib
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dagster_versioned.delta.log.commits import commit_key, commits_after
from dagster_versioned.errors import InvalidName, ObjectNotFound, TableNotFound
from dagster_versioned.identity.names import TableName, table_name
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.tables.documents.parked_draft import living_of
from dagster_versioned.tables.documents.tag import TaggedTable
from dagster_versioned.tables.environment.fork import ForkedTable
from dagster_versioned.tables.environment.registry import FILES, forks_of
from dagster_versioned.tables.history import History, Version
from dagster_versioned.tables.parts import named_sha, part_key

if TYPE_CHECKING:
    from dagster_versioned.tables.project import Project

_TABLES_AT_ONCE = 16


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
        return hashlib.sha256(newest).hexdigest() == self.commit_sha and not commits_after(self.store, self.log_version)


def kept_as(version: Version) -> str:
    """What a version is protected by: its ``metadata_sha``, or ``@N`` for a commit of another program."""
    return version.metadata_sha or version.short


class Protectors:
    """What lies outside of a table and keeps its versions: pins, tags, environments, and kept versions of other tables.

    Every method looks anew. Each other table is opened once, and again only where it was committed to since.
    """

    def __init__(
        self,
        project: "Project",
        table: TableName,
        former: "Callable[[], Iterable[tuple[str, str]]]" = tuple,
    ) -> None:
        self._project = project
        self._former = former
        self._table = table
        self._others: dict[TableName, _OtherTable] = {}

    def kept(self, history: History) -> dict[str, Protection]:
        """The versions that are pinned, or were current at a tag or when an environment began, by `kept_as`."""
        names = {str(self._table), *(name for _, name in self._former())}
        pins = self._project.pins().values()
        pinned = {pin.version: Protection("pin", f"pinned as {pin.name!r}") for pin in pins if pin.table in names}
        return dict(self._at_moments(history, names)) | pinned

    def _at_moments(self, history: History, names: Set[str]) -> Iterator[tuple[str, Protection]]:
        forks = forks_of(self._project.store) if self._project.environment is None else []
        moments: list[tuple[Protection, Mapping[TableName, ForkedTable | TaggedTable]]] = [
            *(
                (Protection("environment", f"what the environment {fork.environment!r} began with"), fork.tables)
                for fork in forks
            ),
            *(
                (Protection("tag", f"what the tag {tag.name!r} names"), tag.tables)
                for tag in self._project.tags().values()
            ),
        ]
        for reason, tables in moments:
            for name in names & tables.keys():
                before = history.until(tables[table_name(name)].log_version)
                oldest = min((version.log_version for version in before.heads.values()), default=-1)
                for version in before.heads.values():
                    yield kept_as(version), reason
                for version in before.versions:  # of other programs, whose files were in the table, adopted or not
                    if version.is_foreign and version.log_version > oldest:
                        yield kept_as(version), reason

    def parked(self) -> frozenset[str]:
        """The keys of parts that drafts need which may still be published. Raises `IntegrityError`."""
        drafts = living_of(self._project.data, str(self._table))
        parts = (part for draft in drafts for version in draft.versions for part in version.parts or ())
        return frozenset(map(part_key, parts))

    def copies(self, keys: Set[str]) -> Iterator[str]:
        """The files of environments, dropped ones too, with the bytes of these of the table's: what was copied there,
        or written there again."""
        shas = {named_sha(key) for key in keys} - {None}
        for info in self._project.store.list(FILES) if keys else ():
            *_, key = info.key.split("/", 6)  # environments/files/{name}/{generation}/data/{table}/…
            if key in keys or named_sha(key) in shas:
                yield info.key

    def all(self, history: History) -> dict[str, Protection]:
        """Those that are `kept`, and those that are parents of kept versions of other tables."""
        folders = map(_name, self._project.data.folders())
        self._others = dict(self._look([name for name in folders if name is not None and name != self._table]))
        named = {
            sha: Protection("parent", f"a parent of {name} {child}")
            for name, other in self._others.items()
            for sha, child in other.parents.items()
        }
        return named_versions(history, named) | self.kept(history)

    def _look(self, names: Sequence[TableName]) -> Iterator[tuple[TableName, _OtherTable]]:
        if not names or self._project.data.local_path(names[0]) is not None:
            found = [self._other(name) for name in names]
        else:
            with ThreadPoolExecutor(min(_TABLES_AT_ONCE, len(names)), thread_name_prefix="parents") as pool:
                found = list(pool.map(self._other, names))
        return ((name, other) for name, other in zip(names, found, strict=True) if other is not None)

    def _other(self, name: TableName) -> _OtherTable | None:
        known = self._others.get(name)
        if known is not None and known.is_current():
            return known
        table = self._project.table(str(name))
        try:
            history = table.state.history
        except TableNotFound:
            return None  # a folder that is no table
        if table.name != name:
            return None  # a name that a table had: it is looked at under the one that it has
        parents = {sha: child.short for child in history.versions if child.gone is None for sha in _parents(child)}
        return _OtherTable(table.store, history.log_version, history.record(history.log_version).sha256, parents)


def named_versions(history: History, reasons: Mapping[str, Protection]) -> dict[str, Protection]:
    """The versions, by ``metadata_sha``, that are meant by SHAs of versions and of the whole table, with the reason."""
    names = _Names(history)
    named = _Named(names)
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
    named = _Named(names)
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


class _Named:
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


def _name(folder: str) -> TableName | None:
    try:
        return table_name(folder)
    except InvalidName:
        return None
