"""Which versions exist, in which order: the log read as a list of versions."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Collection as Many
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Self, cast

from dagster_versioned.delta.actions import TIMES, Members
from dagster_versioned.delta.log import Commit, commit_key
from dagster_versioned.errors import AmbiguousVersion, IntegrityError, InvalidName, LogCorrupt, VersionNotFound
from dagster_versioned.identity.names import partition_path
from dagster_versioned.identity.reference import AsOf, Head, LogVersion, PinName, Reference, ShaPrefix
from dagster_versioned.identity.version import Facts, Identity, VersionEntry, has_sha, partitions_sha
from dagster_versioned.storage.keys import is_key

MEMBER = "dagsterVersioned"
"""The member of ``commitInfo`` that holds the versions of a commit, the link to the commit before, and collections."""

_NOT_DATA = frozenset({"_delta_log", ".metadata", "_staging", "blocks", "refs", "checkpoints"})
_SHA = re.compile(r"[0-9a-f]{64}", re.ASCII)


@dataclass(frozen=True)
class Version:
    """One version of a table (or of one of its partitions), as one commit recorded it.

    ``metadata_sha`` is ``None`` for a *foreign* commit, one that another Delta writer made and nobody adopted yet.
    ``gone`` says why the bytes are not kept any more (``"expire"`` or ``"purge"``), or is ``None``. Where ``change`` is
    ``"dropped"`` it is none, but says that the table, or the partition, has no version from then on.
    """

    log_version: int
    timestamp: datetime
    operation: str
    partition: str | None
    metadata_sha: str | None
    data_sha: str | None
    change: str
    gone: str | None = None
    raw: Mapping[str, Any] | None = field(default=None, repr=False, compare=False)

    @cached_property
    def entry(self) -> VersionEntry:
        """Identity and facts; `IntegrityError` if the recorded ``metadata_sha`` does not follow from the identity."""
        if self.raw is None:
            raise VersionNotFound(
                f"Log version {self.log_version} was committed by another program ({self.operation}) and has no "
                "identity. Nothing was changed. Give it one with adopt()."
            )
        return VersionEntry.from_json(self.raw)

    @property
    def identity(self) -> Identity:
        """What the version is (hashed into ``metadata_sha``)."""
        return self.entry.identity

    @property
    def recorded(self) -> Mapping[str, Any]:
        """The identity as it is stored; for who looks at thousands. Raises as `entry` does."""
        raw = self.raw
        if raw is not None and has_sha(raw["identity"], raw["metadata_sha"]):
            return raw["identity"]
        return self.entry.to_json()["identity"]

    @property
    def facts(self) -> Facts:
        """How the version came to be (not hashed)."""
        return self.entry.facts

    @property
    def is_foreign(self) -> bool:
        """Whether another Delta writer made the commit."""
        return self.metadata_sha is None and not self.is_drop

    @property
    def is_drop(self) -> bool:
        """Whether the table, or the partition, was dropped by the commit."""
        return self.change == "dropped"

    @property
    def short(self) -> str:
        """The first 8 characters of ``metadata_sha``, or ``@log_version`` of a foreign commit."""
        return self.metadata_sha[:8] if self.metadata_sha else f"@{self.log_version}"


@dataclass(frozen=True)
class Collection:
    """One collection of parts as the log records it: an intent, and later its completion (FORMAT.md, Collecting).

    ``paths`` are the storage keys to delete, ``versions`` the (log version, partition) pairs that lose their claim.
    ``cancelled`` says that it ended without deleting anything, so the versions keep their claim.
    """

    id: str
    kind: str
    log_version: int
    done: bool
    paths: frozenset[str]
    versions: tuple[tuple[int, str | None], ...]
    owner: str
    by: str | None
    why: str | None
    cancelled: bool = False

    @classmethod
    def from_json(cls, raw: Mapping[str, Any], log_version: int) -> Self:
        """Parse the ``collect`` member of a commit.

        Raises `LogCorrupt`, also where ``paths`` names anything that holds no data: whoever finishes the collection
        deletes what it names.
        """
        try:
            collection = cls(
                id=str(raw["id"]),
                kind=str(raw["kind"]),
                log_version=log_version,
                done=raw["done"] is True,
                paths=frozenset(cast("Sequence[str]", raw.get("paths", ()))),
                versions=tuple((int(v["log_version"]), v.get("partition")) for v in raw.get("versions", ())),
                owner=str(raw.get("owner", "")),
                by=raw.get("by"),
                why=raw.get("why"),
                cancelled=raw.get("cancelled", False) is True,
            )
            refused = sorted(path for path in collection.paths if not is_data_key(path))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise _not_a_collection(log_version, f"it cannot be parsed ({error!r:.100})") from error
        if refused:
            raise _not_a_collection(log_version, f"{refused[0]!r:.100} is not where parts are")
        return collection

    def to_json(self) -> dict[str, Any]:
        """The ``collect`` member of a commit."""
        versions = [{"log_version": v, **({"partition": p} if p is not None else {})} for v, p in self.versions]
        optional = {
            "paths": sorted(self.paths),
            "versions": versions,
            "by": self.by,
            "why": self.why,
            "cancelled": self.cancelled,
        }
        present = {name: value for name, value in optional.items() if value}
        return {"id": self.id, "kind": self.kind, "done": self.done, "owner": self.owner, **present}


@dataclass(frozen=True)
class CommitRecord:
    """One commit, as much of it as the history keeps in memory and in the version index.

    Promises that whatever the history and the derived documents take from ``info`` is there and of its type, whether
    it comes from a commit or from an index. Raises `LogCorrupt` naming the commit's file and the member. That an
    identity has its SHA is not checked here, but when the version is used.
    """

    log_version: int
    timestamp_ms: int
    sha256: str
    operation: str
    info: Mapping[str, Any] | None
    changes_files: bool

    def __post_init__(self) -> None:
        where = Members({"timestamp": self.timestamp_ms}, commit_key(self.log_version))
        if self.timestamp_ms not in TIMES:
            raise where.wrong("timestamp", f"is {self.timestamp_ms}, which is no time between the years 1 and 9999")
        if self.info is not None:
            _check_member(Members(self.info, f"{commit_key(self.log_version)}, {MEMBER}"))

    @classmethod
    def of(cls, commit: Commit) -> Self:
        """The record of a parsed commit."""
        info = commit.commit_info or {}
        own = info.get(MEMBER)
        return cls(
            log_version=commit.version,
            timestamp_ms=commit.timestamp_ms,
            sha256=commit.sha256,
            operation=str(info.get("operation", "UNKNOWN")),
            info=cast("Mapping[str, Any]", own) if isinstance(own, Mapping) else None,
            changes_files=bool(commit.adds or commit.removes),
        )


def _check_member(own: Members) -> None:
    own.optional_text("prev")
    own.optional_text("partitions_sha")
    for version in own.objects("versions") if "versions" in own.value else ():
        version.text("change")
        _check_sha(version, "metadata_sha")
        version.members("facts").text("created_at")
        identity = version.members("identity")
        _check_sha(identity, "data_sha")
        identity.texts("asset_key")
        _check_partition(identity)
        for column in identity.members("schema").objects("fields"):
            column.text("name")
        for parent in identity.objects("parents") if "parents" in identity.value else ():
            parent.text("version")
    if "collect" in own.value:
        collect = own.members("collect")
        collect.text("id")
        collect.text("kind")
        collect.flag("done")
        collect.optional_flag("cancelled")
        collect.optional_texts("paths")
        for version in collect.objects("versions") if "versions" in collect.value else ():
            version.count("log_version")
            _check_partition(version)
    if "held" in own.value:
        _check_partition(own.members("held"))
    for dropped in own.objects("dropped") if "dropped" in own.value else ():
        _check_partition(dropped)


def _check_sha(members: Members, name: str) -> None:
    if _SHA.fullmatch(members.text(name)) is None:
        raise members.wrong(name, f"is {members.value[name]!r:.100} where a SHA-256 is required")


def _check_partition(members: Members) -> None:
    partition = members.optional_text("partition")
    try:
        if partition is not None:
            partition_path(partition)
    except InvalidName as error:
        raise members.wrong("partition", f"is no partition key: {error}") from error


@dataclass(frozen=True)
class WholeTable:
    """What stands for all partitions together: their ``partitions_sha``, and the same taken over their ``data_sha``."""

    metadata_sha: str
    data_sha: str


class History:
    """Every version of one table, oldest first; immutable, so that a reader keeps the one it was given.

    The records are contiguous from log version 0.
    """

    def __init__(self, records: Sequence[CommitRecord], before: "History | None" = None) -> None:
        self.records = tuple(records)
        added = self.records[len(before.records) :] if before else self.records
        if any(record.log_version != len(self.records) - len(added) + n for n, record in enumerate(added)):
            raise IntegrityError(
                "The history of a table must be contiguous from log version 0; rebuild it from the log."
            )
        new = tuple(
            Collection.from_json(record.info["collect"], record.log_version)
            for record in added
            if record.info is not None and "collect" in record.info
        )
        self.collections: tuple[Collection, ...] = (before.collections if before else ()) + new
        cancelled = {collection.id for collection in self.collections if collection.cancelled}
        gone = {pair: c.kind for c in self.collections if c.id not in cancelled for pair in c.versions}
        # A collection takes the bytes of older versions away, so only then are those looked at again.
        kept = before.versions if before and not new else ()
        self.versions = kept + tuple(v for record in (added if kept else self.records) for v in _versions(record, gone))

        if kept and before:  # once a history is long, only what is new may cost a commit anything
            self.heads = _heads(self.versions[len(kept) :], before.heads)

    def extends(self, earlier: "History") -> bool:
        """Whether the versions of an earlier history are still the first ones of this one, with nothing collected."""
        count = len(earlier.versions)
        return count <= len(self.versions) and (not count or self.versions[count - 1] is earlier.versions[-1])

    @property
    def log_version(self) -> int:
        """The last log version that this history covers."""
        return len(self.records) - 1

    @property
    def asset_key(self) -> tuple[str, ...] | None:
        """The asset that the table belongs to, as its versions record it; ``None`` before the first."""
        raw = next((version.raw for version in self.heads.values()), None)
        return tuple(raw["identity"]["asset_key"]) if raw is not None else None

    @property
    def is_partitioned(self) -> bool:
        """Whether the table's versions are versions of partitions."""
        return any(partition is not None for partition in self.heads)

    def advance(self, commits: Iterable[Commit]) -> "History":
        """The history with later commits appended."""
        added = [CommitRecord.of(commit) for commit in commits]
        return History((*self.records, *added), before=self) if added else self

    def until(self, log_version: int) -> "History":
        """The history as it was at an earlier log version, but knowing what was collected since."""
        if log_version >= self.log_version:
            return self
        older = History(self.records[: log_version + 1])
        older.versions = tuple(version for version in self.versions if version.log_version <= log_version)
        return older

    @cached_property
    def heads(self) -> dict[str | None, Version]:
        """The newest own version of each partition; key ``None`` for a table without partitions."""
        return _heads(self.versions)

    @property
    def unadopted(self) -> Version | None:
        """The last foreign commit with file actions that no own version came after, or ``None``."""
        newest_own = next((v.log_version for v in reversed(self.versions) if not v.is_foreign), -1)
        return self.foreign_since(newest_own)

    @property
    def current(self) -> tuple[Version, ...]:
        """The versions that the table consists of now; none where a foreign commit came after them."""
        return () if self.unadopted is not None else tuple(self.heads.values())

    @cached_property
    def whole(self) -> "WholeTable":
        """A partitioned table as a whole."""
        heads = [(p, v) for p, v in self.heads.items() if p is not None]
        return WholeTable(
            partitions_sha({p: v.metadata_sha for p, v in heads if v.metadata_sha is not None}),
            partitions_sha({p: v.data_sha for p, v in heads if v.data_sha is not None}),
        )

    def foreign_since(self, log_version: int) -> Version | None:
        """The last foreign commit with file actions after a log version, or ``None``."""
        for version in reversed(self.versions):
            if version.log_version <= log_version:
                return None
            if version.is_foreign and self.records[version.log_version].changes_files:
                return version
        return None

    def made_by(self, log_version: int) -> dict[str | None, Version]:
        """The versions that one commit made, by partition."""
        begin = bisect_left(self.versions, log_version, key=lambda version: version.log_version)
        end = bisect_right(self.versions, log_version, lo=begin, key=lambda version: version.log_version)
        return {version.partition: version for version in self.versions[begin:end]}

    def recent(self, partition: str | None, count: int) -> Iterator[Version]:
        """Up to ``count`` versions of a partition whose bytes are kept, newest first."""
        for version in reversed(self.versions):
            if count <= 0:
                return
            if version.partition == partition and version.raw is not None:
                count -= 1
                if version.gone is None:
                    yield version

    def recent_of(self, partitions: Iterable[str | None], count: int) -> dict[str | None, list[Version]]:
        """`recent` of several partitions, in one pass."""
        found: dict[str | None, list[Version]] = {partition: [] for partition in partitions}
        left = dict.fromkeys(found, count)
        for version in reversed(self.versions):
            if left.get(version.partition, 0) > 0 and version.raw is not None:
                left[version.partition] -= 1
                if version.gone is None:
                    found[version.partition].append(version)
        return found

    def before(self, versions: Many[Version]) -> dict[str | None, Version]:
        """The newest older version of the partition of each of these, where there is one; in one pass."""
        limits = {version.partition: version.log_version for version in versions}
        found: dict[str | None, Version] = {}
        for version in reversed(self.versions):
            if version.log_version < limits.get(version.partition, 0) and version.raw is not None:
                found.setdefault(version.partition, version)
                if len(found) == len(limits):
                    break
        return found

    def collected_since(self, log_version: int) -> frozenset[str]:
        """Every path that a collection named after a log version."""
        return frozenset(path for c in self.collections if c.log_version > log_version for path in c.paths)

    @cached_property
    def open_collections(self) -> tuple[Collection, ...]:
        """Collections that announced their paths and are not done."""
        done = {collection.id for collection in self.collections if collection.done}
        return tuple(c for c in self.collections if not c.done and c.id not in done)

    def find(self, reference: Reference) -> "Selection":
        """Which state of which partitions a reference means; the newest occurrence of an identity wins.

        Raises `VersionNotFound`, `AmbiguousVersion`. Pins are resolved by the project before this is asked.
        """
        if not self.versions:
            raise VersionNotFound("The table has no version yet. Nothing was read. Materialize its asset first.")
        match reference:
            case Head():
                return Selection(self.log_version, None)
            case LogVersion(number):
                if not 0 <= number <= self.log_version:
                    raise VersionNotFound(
                        f"No log version @{number}: the log holds @0 to @{self.log_version}. Nothing was read."
                    )
                return Selection(number, None)
            case AsOf(moment):
                limit = moment.timestamp() * 1000
                until = [record.log_version for record in self.records if record.timestamp_ms <= limit]
                if not until:
                    first = _time(self.records[0].timestamp_ms).isoformat()
                    raise VersionNotFound(
                        f"No version at {moment.isoformat()}: the table was created at {first}. Nothing was read."
                    )
                return Selection(until[-1], None)
            case ShaPrefix(prefix):
                return self._find_sha(prefix)
            case PinName(name):
                raise VersionNotFound(f"Pin {name!r} must be resolved by the project.")

    def _find_sha(self, prefix: str) -> "Selection":
        matches: dict[str, Selection] = {}
        for version in self.versions:
            if version.metadata_sha is not None and version.metadata_sha.startswith(prefix):
                matches[version.metadata_sha] = Selection(version.log_version, version)
        for record in self.records if self.is_partitioned else ():
            whole = record.info.get("partitions_sha") if record.info else None
            if isinstance(whole, str) and whole.startswith(prefix):
                matches[whole] = Selection(record.log_version, None)
        if not matches:
            raise VersionNotFound(
                f"No version starts with {prefix!r} among the {len(self.versions)} up to @{self.log_version}. "
                "Nothing was read; `history` lists them."
            )
        if len(matches) > 1:
            listed = ", ".join(sorted(sha[: max(12, len(prefix) + 4)] for sha in matches))
            raise AmbiguousVersion(f"{len(matches)} versions start with {prefix!r}: {listed}. Give more characters.")
        return next(iter(matches.values()))


@dataclass(frozen=True)
class Selection:
    """What a reference resolved to: a log version, and one version in it or (``None``) the whole table as it was."""

    log_version: int
    version: Version | None


def is_data_key(key: str) -> bool:
    """Whether an object below a table's folder may be a part, of whichever program; logs and documents may not."""
    # Some file systems take names that differ in case for one.
    return is_key(key) and key.partition("/")[0].casefold() not in _NOT_DATA


def _not_a_collection(log_version: int, reason: str) -> LogCorrupt:
    return LogCorrupt(
        f"{commit_key(log_version)}, line 1: the collection in collect of commitInfo is refused: {reason}. Nothing was "
        "read, and nothing was deleted. Restore the file from a copy."
    )


def _time(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def _heads(
    versions: Iterable[Version], before: Mapping[str | None, Version] | None = None
) -> dict[str | None, Version]:
    heads = dict(before or {})
    for version in versions:
        if version.is_drop:
            heads.pop(version.partition, None)
        elif not version.is_foreign:
            heads[version.partition] = version
    return heads


def _versions(record: CommitRecord, gone: Mapping[tuple[int, str | None], str]) -> Iterator[Version]:
    timestamp = _time(record.timestamp_ms)
    if record.info is None or (record.changes_files and not record.info.keys() & {"versions", "dropped"}):
        collected = gone.get((record.log_version, None))
        yield Version(record.log_version, timestamp, record.operation, None, None, None, "foreign", collected)
        return
    for dropped in record.info.get("dropped", ()):
        partition = dropped.get("partition")
        yield Version(record.log_version, timestamp, record.operation, partition, None, None, "dropped")
    for raw in record.info.get("versions", ()):
        identity = raw["identity"]
        partition = identity.get("partition")
        yield Version(
            log_version=record.log_version,
            timestamp=timestamp,
            operation=record.operation,
            partition=partition,
            metadata_sha=raw["metadata_sha"],
            data_sha=identity["data_sha"],
            change=raw["change"],
            gone=gone.get((record.log_version, partition)),
            raw=raw,
        )
