"""Which versions exist, in which order: the log read as a list of versions."""

import hashlib
import re
import sys
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Collection as Many
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, lru_cache
from itertools import pairwise, takewhile
from typing import Any, Protocol, Self, cast
from weakref import WeakValueDictionary

import orjson

from dagster_versioned.delta.actions import TIMES, Members
from dagster_versioned.delta.log.commits import Commit, commit_key
from dagster_versioned.delta.log.redaction import OWN, OWN_DOMAIN, outline_sha256, repeats_members
from dagster_versioned.errors import AmbiguousVersion, IntegrityError, InvalidName, LogCorrupt, VersionNotFound
from dagster_versioned.identity.names import partition_path
from dagster_versioned.identity.reference import AsOf, HeadReference, LogVersion, PinName, Reference, ShaPrefix, TagName
from dagster_versioned.identity.version import Facts, Identity, VersionEntry, has_sha, partitions_sha
from dagster_versioned.process_state import PROCESS
from dagster_versioned.storage.keys import is_key

MEMBER = OWN
"""The member of ``commitInfo`` that holds the versions of a commit, the link to the commit before, and collections."""

OUTLINE = "prev_outline"
"""The member of a commit that has the SHA-256 of the outline of the one before: see `delta.log.redaction`."""

REDACTION = "redaction"
"""The member of a commit that says which entries are redacted from then on: ``entries`` has, by log version, the
SHA-256 of their bytes; ``done`` is said by a commit that comes once they are."""

_NOT_DATA = frozenset({"_delta_log", ".metadata", "_staging", "blocks", "refs", "checkpoints"})
_SHA = re.compile(r"[0-9a-f]{64}", re.ASCII)


VERSION_DOMAIN = OWN_DOMAIN
"""The metadata domain that keeps the head in checkpoints; that of a partition with ``/{key}``."""

RECENT_COMMITS = 100
"""Commits before the end of the log that are remembered with every state, and noted in every checkpoint."""

_RECENT_BYTES = 256 * 1024
"""What the recent commits may take as JSON; where they would take more, fewer are noted."""

_DIGITS = 20
"""Of a log version, in the name of its commit."""

_LARGEST_KEPT = 1024
"""Bytes of a compressed version that are kept in memory; a larger one is read from its commit again."""

_PARSED_AT_ONCE = 32


class _Schema:
    """A schema as it is recorded, shared by all versions that have it."""

    __slots__ = ("__weakref__", "value")

    def __init__(self, value: Any) -> None:
        self.value = value


class SharedSchemas(WeakValueDictionary[bytes, _Schema]):
    """The schemas of the versions that somebody holds, by their SHA-256."""


def _shared(schema: Any) -> _Schema:
    key = hashlib.sha256(orjson.dumps(schema)).digest()
    known = (schemas := PROCESS.of(SharedSchemas)).get(key)
    if known is None:
        known = schemas[key] = _Schema(schema)
    return known


class StoredVersion:
    """One version as its commit records it, in little memory: of many versions, most are never looked at.

    With 2,000 columns, the parsed form takes 1.9 MB.
    """

    __slots__ = ("_again", "_log_version", "_rest", "_schema", "change", "data_sha", "metadata_sha", "partition")

    def __init__(self, raw: Mapping[str, Any], log_version: int, again: "CommitSource | None") -> None:
        identity = raw["identity"]
        self.change = sys.intern(raw["change"])
        self.metadata_sha: str = raw["metadata_sha"]
        self.data_sha: str = identity["data_sha"]
        partition: str | None = identity.get("partition")
        self.partition = partition if partition is None else sys.intern(partition)
        self._schema = _shared(identity["schema"])
        rest = {**raw, "identity": {name: value for name, value in identity.items() if name != "schema"}}
        packed = zlib.compress(orjson.dumps(rest), 1)
        self._rest = packed if again is None or len(packed) <= _LARGEST_KEPT else None
        self._log_version = log_version
        self._again = again

    def raw(self) -> Mapping[str, Any]:
        """The member of the commit's ``versions``, as it was recorded."""
        if self._rest is None:
            assert self._again is not None
            return self._again.raw(self._log_version, self.partition)
        rest = orjson.loads(zlib.decompress(self._rest))
        return {**rest, "identity": {**rest["identity"], "schema": self._schema.value}}


class CommitSource(Protocol):
    """Who reads a commit once more, for what is not kept of it in memory."""

    def raw(self, log_version: int, partition: str | None) -> Mapping[str, Any]:
        """What the commit records of its version of a partition."""
        ...

    def record(self, log_version: int) -> "CommitRecord":
        """The record of one commit."""
        ...

    def records(self, log_version: int) -> "Sequence[CommitRecord]":
        """The records of all commits up to one, from 0 on."""
        ...


@lru_cache(maxsize=_PARSED_AT_ONCE)
def _raw(stored: StoredVersion) -> Mapping[str, Any]:
    return stored.raw()


@lru_cache(maxsize=_PARSED_AT_ONCE)
def _entry(stored: StoredVersion) -> VersionEntry:
    return VersionEntry.from_json(_raw(stored))


class Version:
    """One version of a table (or of one of its partitions), as one commit recorded it.

    ``metadata_sha`` is ``None`` for a *foreign* commit, one that another Delta writer made and nobody adopted yet.
    ``gone`` says why the bytes are not kept any more (``"expire"`` or ``"purge"``), or is ``None``. Where ``change`` is
    ``"dropped"`` it is none, but says that the table, or the partition, has no version from then on. Two are equal that
    are of the same commit and partition.
    """

    __slots__ = (
        "_again",
        "_computation",
        "_digest",
        "_record",
        "_stored",
        "data_sha",
        "gone",
        "is_drop",
        "log_version",
        "metadata_sha",
        "partition",
    )

    def __init__(
        self,
        log_version: int,
        partition: str | None,
        metadata_sha: str | None,
        data_sha: str | None,
        gone: str | None = None,
        *,
        record: "CommitRecord | None" = None,
        stored: StoredVersion | None = None,
        again: CommitSource | None = None,
        is_drop: bool = False,
        digest: str | None = None,
        computation: str | None = None,
    ) -> None:
        self._digest = digest
        self._computation = computation
        self.log_version = log_version
        self.is_drop = is_drop
        self.partition = partition
        self.metadata_sha = metadata_sha
        self.data_sha = data_sha
        self.gone = gone
        self._record = record
        self._stored = stored
        self._again = again

    @property
    def raw(self) -> Mapping[str, Any] | None:
        """What the commit records, ``None`` of a foreign commit; not to be changed."""
        stored = self._found()[1]
        return None if stored is None else _raw(stored)

    @property
    def entry(self) -> VersionEntry:
        """Identity and facts; `IntegrityError` if the recorded ``metadata_sha`` does not follow from the identity."""
        stored = self._found()[1]
        if stored is None:
            raise VersionNotFound(
                f"Log version {self.log_version} was committed by another program ({self.operation}) and has no "
                "identity. Nothing was changed. Give it one with adopt()."
            )
        return _entry(stored)

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
    def digest(self) -> str | None:
        """The digest of its rows; ``None`` of what is no version."""
        if self._digest is None and self.metadata_sha is not None:
            self._digest = str((self.raw or {})["facts"]["digest"])  # every write asks for those of the last ones
        return self._digest

    @property
    def computation(self) -> str | None:
        """The key of the computation that made it, as the log claims; ``None`` where that is not remembered.

        Of a head that a checkpoint knows, its domain says it: no commit is read for it.
        """
        if self._record is None:
            return self._computation
        recorded = (self.raw or {}).get("facts", {}).get("computation")
        key = cast("Mapping[str, Any]", recorded).get("key") if isinstance(recorded, Mapping) else None
        return key if isinstance(key, str) else None

    @property
    def timestamp(self) -> datetime:
        """When it was committed, UTC."""
        return _time(self._found()[0].timestamp_ms)

    @property
    def operation(self) -> str:
        """The operation that its commit names."""
        return self._found()[0].operation

    @property
    def change(self) -> str:
        """What changed against the version before: ``full``, ``metadata_only``, ``foreign`` or ``dropped``."""
        if self.is_drop:
            return "dropped"
        stored = self._found()[1]
        return "foreign" if stored is None else stored.change

    @property
    def is_foreign(self) -> bool:
        """Whether another Delta writer made the commit."""
        return self.metadata_sha is None and not self.is_drop

    @property
    def short(self) -> str:
        """The first 8 characters of ``metadata_sha``, or ``@log_version`` of a foreign commit."""
        return self.metadata_sha[:8] if self.metadata_sha else f"@{self.log_version}"

    @property
    def record(self) -> "CommitRecord":
        """Its commit."""
        return self._found()[0]

    def without_bytes(self, gone: str) -> "Version":
        """The same version, whose bytes were collected."""
        collected = copy(self)
        collected.gone = gone
        return collected

    def _found(self) -> "tuple[CommitRecord, StoredVersion | None]":
        if self._record is None:  # a head that a checkpoint knows by its SHA alone
            assert self._again is not None
            record = self._again.record(self.log_version)
            self._stored = next((entry for entry in record.stored or () if entry.partition == self.partition), None)
            if self._stored is None or self._stored.metadata_sha != self.metadata_sha:
                raise LogCorrupt(
                    f"{commit_key(self.log_version)}: it does not hold the version {self.short}, which the log has as "
                    "a head. Nothing was read. Restore the file from a copy, and run verify."
                )
            self._record = record
        return self._record, self._stored

    def _key(self) -> tuple[int, str | None, str | None]:
        return self.log_version, self.partition, self.metadata_sha

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Version) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        partition = "" if self.partition is None else f", partition={self.partition!r}"
        gone = "" if self.gone is None else f", gone={self.gone!r}"
        return f"Version({self.short!r}, log_version={self.log_version}{partition}{gone})"


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


@dataclass(frozen=True, slots=True, init=False)
class CommitRecord:
    """One commit, as much of it as the history keeps in memory and in the version index.

    Promises that whatever the history and the derived documents take from ``info`` is there and of its type, whether
    it comes from a commit or from an index. Raises `LogCorrupt` naming the commit's file and the member. That an
    identity has its SHA is not checked here, but when the version is used.

    ``stored`` are its versions, ``None`` where the commit does not speak of any; ``weight`` is the size of ``info``;
    ``redacted_outline`` is of a redacted commit, unless it comes from an index, which is believed.
    """

    log_version: int
    timestamp_ms: int
    sha256: str
    operation: str
    changes_files: bool
    stored: tuple[StoredVersion, ...] | None
    weight: int
    redacted_outline: str | None
    _others: bytes | None
    _names: frozenset[str]

    def __init__(
        self,
        log_version: int,
        timestamp_ms: int,
        sha256: str,
        operation: str,
        info: Mapping[str, Any] | None,
        changes_files: bool,
        again: CommitSource | None = None,
        redacted_outline: str | None = None,
    ) -> None:
        where = Members({"timestamp": timestamp_ms}, commit_key(log_version))
        if timestamp_ms not in TIMES:
            raise where.wrong("timestamp", f"is {timestamp_ms}, which is no time between the years 1 and 9999")
        stored, others, weight = None, None, 0
        if info is not None:
            _check_member(Members(info, f"{commit_key(log_version)}, {MEMBER}"))
            if "versions" in info:
                stored = tuple(StoredVersion(raw, log_version, again) for raw in info["versions"])
            others = _packed({name: value for name, value in info.items() if name != "versions"})
            weight = len(orjson.dumps(info))
        for name, value in {
            "log_version": log_version,
            "timestamp_ms": timestamp_ms,
            "sha256": sha256,
            "operation": sys.intern(operation),
            "changes_files": changes_files,
            "stored": stored,
            "weight": weight,
            "redacted_outline": redacted_outline,
            "_others": others,
            "_names": _no_names if info is None else _same(frozenset(info)),
        }.items():
            object.__setattr__(self, name, value)

    @classmethod
    def of(cls, commit: Commit, again: CommitSource | None = None) -> Self:
        """The record of a parsed commit."""
        if commit.is_redacted and repeats_members(commit.data):
            raise LogCorrupt(
                f"{commit_key(commit.version)} says that it was redacted, and has a member twice. Nothing was read."
                " Restore the file from a copy."
            )
        info = commit.commit_info or {}
        own = info.get(MEMBER)
        return cls(
            log_version=commit.version,
            timestamp_ms=commit.timestamp_ms,
            sha256=commit.sha256,
            operation=str(info.get("operation", "UNKNOWN")),
            info=cast("Mapping[str, Any]", own) if isinstance(own, Mapping) else None,
            changes_files=bool(commit.adds or commit.removes),
            again=again,
            redacted_outline=outline_sha256(commit.data) if commit.is_redacted else None,
        )

    @property
    def info(self) -> Mapping[str, Any] | None:
        """The member of ``commitInfo`` that is ours, as it was recorded; ``None`` of a foreign commit."""
        if self._others is None:
            return None
        versions = {} if self.stored is None else {"versions": [stored.raw() for stored in self.stored]}
        return {**self._rest(), **versions}

    def member(self, name: str) -> Any:
        """One member of ``info`` besides ``versions``; ``None`` without it."""
        return self._rest().get(name) if name in self._names else None

    @property
    def is_foreign(self) -> bool:
        """Whether it changes files, or may, and names no version."""
        return self._others is None or (self.changes_files and not self._names & {"versions", "dropped"})

    def _rest(self) -> dict[str, Any]:
        assert self._others is not None
        return orjson.loads(self._others if self._others.startswith(b"{") else zlib.decompress(self._others))


def _packed(members: Mapping[str, Any]) -> bytes:
    encoded = orjson.dumps(members)
    # orjson's own bytes have room for a kilobyte or more.
    return memoryview(encoded).tobytes() if len(encoded) < _LARGEST_KEPT else zlib.compress(encoded, 1)


_no_names: frozenset[str] = frozenset()


@cache
def _same(names: frozenset[str]) -> frozenset[str]:
    """One object for names that are equal: there are few, of many commits."""
    return names


def _check_redacted(records: Sequence[CommitRecord]) -> None:
    """Raise `LogCorrupt` where a redacted commit lost something else than what a redaction takes away.

    The commit after it says so, if that is of a release that records outlines; nobody knows else (see `verify`).
    """
    for before, record in pairwise(records):
        if before.redacted_outline is not None and record.member(OUTLINE) not in (None, before.redacted_outline):
            raise LogCorrupt(
                f"{commit_key(before.log_version)} says that it was redacted, but it differs from what it was in more"
                " than what an erasure takes out of a log, as the next commit shows. Nothing was read. Restore the file"
                " from a copy."
            )


def redaction_in(commit: Commit) -> Mapping[str, Any] | None:
    """What a commit says of redacted entries: see `REDACTION`."""
    own = (commit.commit_info or {}).get(MEMBER)
    return cast("Mapping[str, Any]", own).get(REDACTION) if isinstance(own, Mapping) else None


def _check_member(own: Members) -> None:
    if REDACTION in own.value:
        redaction = own.members(REDACTION)
        redaction.flag("done")
        entries = redaction.members("entries")
        for name in entries.value:
            if not (name.isascii() and name.isdecimal() and len(name) <= _DIGITS):
                raise entries.wrong(name, "is no log version")
            _check_sha(entries, name)
    own.optional_text("prev")
    own.optional_text(OUTLINE)
    own.optional_text("partitions_sha")
    for version in _objects(own, "versions"):
        version.text("change")
        _check_sha(version, "metadata_sha")
        version.members("facts").text("created_at")
        identity = version.members("identity")
        _check_sha(identity, "data_sha")
        identity.texts("asset_key")
        _check_partition(identity)
        identity.members("schema").require_text_of_each("fields", "name")
        if "parents" in identity.value:
            identity.require_text_of_each("parents", "version")
    if "collect" in own.value:
        collect = own.members("collect")
        collect.text("id")
        collect.text("kind")
        collect.flag("done")
        collect.optional_flag("cancelled")
        collect.optional_texts("paths")
        for version in _objects(collect, "versions"):
            version.count("log_version")
            _check_partition(version)
    if "held" in own.value:
        _check_partition(own.members("held"))
    for dropped in _objects(own, "dropped"):
        _check_partition(dropped)


def _objects(members: Members, name: str) -> Sequence[Members]:
    return members.objects(name) if name in members.value else ()


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


class _Complete:
    """Every commit and every version from log version 0 on, oldest first."""

    def __init__(self, records: Sequence[CommitRecord], before: "_Complete | None" = None) -> None:
        self.records = tuple(records)
        added = self.records[len(before.records) :] if before else self.records
        if any(record.log_version != len(self.records) - len(added) + n for n, record in enumerate(added)):
            raise IntegrityError(
                "The history of a table must be contiguous from log version 0; rebuild it from the log."
            )
        _check_redacted(self.records[max(len(self.records) - len(added) - 1, 0) :])
        new = _collections(added)
        self.collections: tuple[Collection, ...] = (before.collections if before else ()) + new
        gone = _gone(self.collections)
        # A collection takes the bytes of older versions away, so only then are those looked at again.
        kept = before.versions if before and not new else ()
        self.versions = kept + tuple(v for record in (added if kept else self.records) for v in _versions(record, gone))


class History:
    """The versions of one table up to a log version; immutable, so that a reader keeps the one it was given.

    What a write and a read of the head need is always there: the heads, the last foreign commit, the collections that
    are open, and the commits just before the end (``recent``). All versions, ``versions`` and ``records``, are loaded
    when they are asked for.
    """

    def __init__(self, records: Sequence[CommitRecord] = (), again: CommitSource | None = None) -> None:
        """The history of all commits from 0 on."""
        self._again = again
        self._extra: tuple[CommitRecord, ...] = ()
        self._collections: tuple[Collection, ...] = ()
        self.log_version = -1
        self.recent: tuple[CommitRecord, ...] = ()
        self.heads: dict[str | None, Version] = {}
        self.last_foreign: Version | None = None
        self.last_drop = -1
        """The log version of the last commit that dropped anything, -1 without one."""
        self._recent_versions: tuple[Version, ...] = ()
        self._complete: _Complete | None = _Complete(records)
        self._append(self._complete.records)

    @classmethod
    def at_checkpoint(
        cls, noted: Sequence[CommitRecord], heads: Iterable[Version], log_version: int, again: CommitSource
    ) -> Self:
        """The history at a checkpoint: what is noted there (`noted`), and the heads that it knows."""
        recent = [record for n, record in enumerate(noted) if record.log_version == log_version + 1 + n - len(noted)]
        history = cls((), again)
        history._complete = None
        history._extra = tuple(noted[: len(noted) - len(recent)])
        history._collections = _collections(history._extra)
        extra = [version for record in history._extra for version in _versions(record, {})]
        history.last_foreign, history.last_drop = _last_foreign(extra), _last_drop(extra)
        history.log_version = log_version - len(recent)
        history._append(recent)
        own = {version: version for version in history._recent_versions}  # which know their commit
        history.heads = _sorted({version.partition: own.get(version, version) for version in heads})
        return history

    def advance(self, commits: Iterable[Commit]) -> "History":
        """The history with later commits appended."""
        added = [CommitRecord.of(commit, self._again) for commit in commits]
        if not added:
            return self
        later = History.__new__(History)
        later.__dict__.update(self.__dict__)
        if self._complete is not None:
            later._complete = _Complete((*self._complete.records, *added), self._complete)
        later._append(added)
        return later

    def read_from(self, again: CommitSource) -> "History":
        """The same history, of which what is not kept in memory, later commits too, is read from elsewhere."""
        moved = History.__new__(History)
        moved.__dict__.update(self.__dict__)
        moved._again = again
        return moved

    def _append(self, added: Sequence[CommitRecord]) -> None:
        _check_redacted((*self.recent[-1:], *added))
        self.recent = (*self.recent, *added)
        new = _collections(added)
        self._collections += new
        gone = _gone(self._collections)
        versions = tuple(version for record in added for version in _versions(record, gone))
        if new:
            self._recent_versions = tuple(v for record in self.recent for v in _versions(record, gone))
            self.heads = {partition: _as_collected(head, gone) for partition, head in self.heads.items()}
            self.last_foreign = self.last_foreign and _as_collected(self.last_foreign, gone)
        else:
            self._recent_versions += versions
        heads = _heads(versions, self.heads)
        self.heads = heads if heads.keys() <= self.heads.keys() else _sorted(heads)
        self.last_foreign = _last_foreign(versions) or self.last_foreign
        self.last_drop = max(self.last_drop, _last_drop(versions))
        self.log_version += len(added)
        self._trim()

    def _trim(self) -> None:
        """Forget what is not recent any more, now and then, and where it can be read again."""
        if len(self.recent) <= 2 * RECENT_COMMITS or self._again is None:
            return
        kept = self.recent[-RECENT_COMMITS:]
        first = kept[0].log_version
        self._extra = self._needed(first)
        self._complete = None
        self.recent = kept
        self._recent_versions = tuple(v for v in self._recent_versions if v.log_version >= first)
        still = {record.log_version for record in (*self._extra, *kept)}
        self._collections = tuple(collection for collection in self._collections if collection.log_version in still)

    def _needed(self, before: int) -> tuple[CommitRecord, ...]:
        """The commits before a log version that a state depends on: the last foreign one, the last drop, and open
        collections."""
        wanted = {self.last_drop, *(collection.log_version for collection in self.open_collections)}
        if self.last_foreign is not None:
            wanted.add(self.last_foreign.log_version)
        known = {record.log_version: record for record in (*self._extra, *self.recent)}
        return tuple(known[at] for at in sorted(wanted) if 0 <= at < before)

    def noted(self) -> tuple[CommitRecord, ...]:
        """What a checkpoint at this log version notes, so that whoever opens the table need not read further back."""
        window: list[CommitRecord] = []
        weight = 0
        for record in reversed(self.recent[-RECENT_COMMITS:]):
            weight += record.weight
            if weight > _RECENT_BYTES:
                break
            window.append(record)
        first = window[-1].log_version if window else self.log_version + 1
        return (*self._needed(first), *reversed(window))

    @property
    def _all(self) -> _Complete:
        if self._complete is None:
            assert self._again is not None
            first = self.log_version + 1 - len(self.recent)
            older = self._again.records(first - 1) if first else ()
            self._complete = _Complete((*older, *self.recent))
        return self._complete

    @property
    def records(self) -> tuple[CommitRecord, ...]:
        """Every commit, from log version 0 on."""
        return self._all.records

    @property
    def versions(self) -> tuple[Version, ...]:
        """Every version, oldest first."""
        return self._all.versions

    @property
    def collections(self) -> tuple[Collection, ...]:
        """Every collection that the log records, oldest first."""
        return self._all.collections

    def record(self, log_version: int) -> CommitRecord:
        """One commit."""
        first = self.log_version + 1 - len(self.recent)
        if log_version >= first or self._complete is not None:
            return self.recent[log_version - first] if log_version >= first else self.records[log_version]
        assert self._again is not None
        return self._again.record(log_version)

    def between(self, first: int, last: int) -> Sequence[CommitRecord]:
        """The commits from one log version to another, both included."""
        start = self.log_version + 1 - len(self.recent)
        return self.recent[first - start : last + 1 - start] if first >= start else self.records[first : last + 1]

    def knows(self, metadata_sha: str, log_version: int) -> bool:
        """Whether a version is among the recent ones."""
        return any(v.log_version == log_version and v.metadata_sha == metadata_sha for v in self._recent_versions)

    def backwards(self) -> Iterator[Version]:
        """Every version, newest first; older ones are loaded when it gets to them."""
        yield from reversed(self._recent_versions)
        first = self.log_version + 1 - len(self.recent)
        if first:
            yield from (version for version in reversed(self.versions) if version.log_version < first)

    @property
    def asset_key(self) -> tuple[str, ...] | None:
        """The asset that the table belongs to, as its versions record it; ``None`` before the first."""
        newest = max(self.heads.values(), key=lambda version: version.log_version, default=None)
        return None if newest is None or newest.raw is None else tuple(newest.raw["identity"]["asset_key"])

    @property
    def is_partitioned(self) -> bool:
        """Whether the table's versions are versions of partitions."""
        return any(partition is not None for partition in self.heads)

    def until(self, log_version: int) -> "History":
        """The history as it was at an earlier log version, but knowing what was collected since."""
        if log_version >= self.log_version:
            return self
        older = History(self.records[: log_version + 1])
        gone = _gone(self.collections)
        assert older._complete is not None
        older._complete.versions = tuple(v for v in self.versions if v.log_version <= log_version)
        older._recent_versions = tuple(v for record in older.recent for v in _versions(record, gone))
        older.heads = _sorted(_heads(older._complete.versions))
        older.last_foreign = _last_foreign(older._complete.versions)
        older.last_drop = _last_drop(older._complete.versions)
        return older

    @property
    def unadopted(self) -> Version | None:
        """The last foreign commit with file actions that no own version came after, or ``None``."""
        newest_own = max((version.log_version for version in self.heads.values()), default=-1)
        newest_own = max(newest_own, self.last_drop)
        return self.foreign_since(newest_own)

    @property
    def current(self) -> tuple[Version, ...]:
        """The versions that the table consists of now; none where a foreign commit came after them."""
        return () if self.unadopted is not None else tuple(self.heads.values())

    @property
    def whole(self) -> "WholeTable":
        """A partitioned table as a whole."""
        data = {p: v.data_sha for p, v in self.heads.items() if p is not None and v.data_sha is not None}
        return WholeTable(partitions_sha(self.partition_shas), partitions_sha(data))

    @property
    def partition_shas(self) -> dict[str, str]:
        """The ``metadata_sha`` of each partition's head."""
        return {p: v.metadata_sha for p, v in self.heads.items() if p is not None and v.metadata_sha is not None}

    def made_by(self, log_version: int) -> dict[str | None, Version]:
        """The versions that one commit made, by partition."""
        first = self.log_version + 1 - len(self.recent)
        known = self._recent_versions if log_version >= first else self.versions
        begin = bisect_left(known, log_version, key=lambda version: version.log_version)
        end = bisect_right(known, log_version, lo=begin, key=lambda version: version.log_version)
        return {version.partition: version for version in known[begin:end]}

    def committed(self, log_version: int, partition: str | None) -> Version | None:
        """The version of a partition that one commit made; reads that commit alone, of those that are not recent.

        Whether its bytes were collected is known by collections that are recent or open. Raises `LogCorrupt`,
        `ObjectNotFound`.
        """
        made = _versions(self.record(log_version), _gone(self._collections))
        return next(
            (version for version in made if version.partition == partition and version.metadata_sha is not None), None
        )

    def foreign_since(self, log_version: int) -> Version | None:
        """The last foreign commit with file actions after a log version, or ``None``."""
        last = self.last_foreign
        return last if last is not None and last.log_version > log_version else None

    def recent_of(self, partitions: Sequence[str | None], count: int) -> dict[str | None, list[Version]]:
        """Up to ``count`` versions of each partition whose bytes are kept, newest first: the head, and recent ones."""
        heads = [self.heads.get(partition) for partition in partitions]
        found = {partition: [] if head is None else [head] for partition, head in zip(partitions, heads, strict=True)}
        first = self.log_version + 1 - RECENT_COMMITS
        for version in takewhile(lambda version: version.log_version >= first, reversed(self._recent_versions)):
            known = found.get(version.partition, ())
            if version.partition in found and len(known) < count and version.metadata_sha and version not in known[:1]:
                found[version.partition].append(version)
        return {partition: [version for version in known if version.gone is None] for partition, known in found.items()}

    def before(self, versions: Many[Version]) -> dict[str | None, Version]:
        """The newest older version of the partition of each of these, where there is one; in one pass."""
        limits = {v.partition: v.log_version for v in versions if v.raw is not None and "previous" in v.raw["facts"]}
        found: dict[str | None, Version] = {}
        for version in self.backwards() if limits else ():
            if version.log_version < limits.get(version.partition, 0) and version.metadata_sha is not None:
                found.setdefault(version.partition, version)
                if len(found) == len(limits):
                    break
        return found

    def collected_since(self, log_version: int) -> frozenset[str]:
        """Every path that a collection named after a log version."""
        known = self._collections if log_version >= self.log_version - len(self.recent) else self.collections
        return frozenset(path for c in known if c.log_version > log_version for path in c.paths)

    @property
    def open_collections(self) -> tuple[Collection, ...]:
        """Collections that announced their paths and are not done."""
        done = {collection.id for collection in self._collections if collection.done}
        return tuple(c for c in self._collections if not c.done and c.id not in done)

    def find(self, reference: Reference) -> "Selection":
        """Which state of which partitions a reference means; the newest occurrence of an identity wins.

        Raises `VersionNotFound`, `AmbiguousVersion`. Pins and tags are resolved by the project before this is asked.
        """
        if not self.heads and not self.versions:
            raise VersionNotFound("The table has no version yet. Nothing was read. Materialize its asset first.")
        match reference:
            case HeadReference():
                return Selection(self.log_version, None)
            case LogVersion(number):
                if not 0 <= number <= self.log_version:
                    raise VersionNotFound(
                        f"No log version @{number}: the log holds @0 to @{self.log_version}. Nothing was read."
                    )
                return Selection(number, None)
            case AsOf(moment):
                return Selection(self._find_time(moment), None)
            case ShaPrefix(prefix):
                return self._find_sha(prefix)
            case PinName(name) | TagName(name):
                raise VersionNotFound(f"Pin or tag {name!r} must be resolved by the project.")

    def _find_time(self, moment: datetime) -> int:
        """The last log version up to a moment. Raises `VersionNotFound`."""
        limit = moment.timestamp() * 1000
        recent = (record.log_version for record in reversed(self.recent) if record.timestamp_ms <= limit)
        if (newest := next(recent, None)) is not None:
            return newest
        until = [record.log_version for record in self.records if record.timestamp_ms <= limit]
        if until:
            return until[-1]
        first = _time(self.records[0].timestamp_ms).isoformat()
        raise VersionNotFound(
            f"No version at {moment.isoformat()}: the table was created at {first}. Nothing was read."
        )

    def _named(self) -> Iterator[tuple[str | None, "Selection"]]:
        """What has a SHA, oldest first: the versions, and the states of a partitioned table as a whole."""
        yield from ((version.metadata_sha, Selection(version.log_version, version)) for version in self.versions)
        for record in self.records if self.is_partitioned else ():
            yield record.member("partitions_sha"), Selection(record.log_version, None)

    def _find_sha(self, prefix: str) -> "Selection":
        head = next((version for version in self.heads.values() if version.metadata_sha == prefix), None)
        if head is not None:  # the SHA is whole, and no version of its partition is newer
            return Selection(head.log_version, head)
        matches = {sha: selection for sha, selection in self._named() if sha is not None and sha.startswith(prefix)}
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


def _sorted(heads: Mapping[str | None, Version]) -> dict[str | None, Version]:
    return dict(sorted(heads.items(), key=lambda item: item[0] or ""))


def _last_drop(versions: Iterable[Version]) -> int:
    return max((version.log_version for version in versions if version.is_drop), default=-1)


def _last_foreign(versions: Iterable[Version]) -> Version | None:
    found = [version for version in versions if version.is_foreign and version.record.changes_files]
    return found[-1] if found else None


def _collections(records: Iterable[CommitRecord]) -> tuple[Collection, ...]:
    found = ((record, record.member("collect")) for record in records)
    return tuple(Collection.from_json(raw, record.log_version) for record, raw in found if raw is not None)


def _gone(collections: Iterable[Collection]) -> dict[tuple[int, str | None], str]:
    """Why the bytes of versions, by log version and partition, are not kept any more."""
    collections = tuple(collections)
    cancelled = {collection.id for collection in collections if collection.cancelled}
    return {pair: c.kind for c in collections if c.id not in cancelled for pair in c.versions}


def _as_collected(version: Version, gone: Mapping[tuple[int, str | None], str]) -> Version:
    how = gone.get((version.log_version, version.partition))
    return version if how is None else version.without_bytes(how)


def _versions(record: CommitRecord, gone: Mapping[tuple[int, str | None], str]) -> Iterator[Version]:
    at = record.log_version
    if record.is_foreign:
        yield Version(at, None, None, None, gone.get((at, None)), record=record)
        return
    for dropped in record.member("dropped") or ():
        yield Version(at, dropped.get("partition"), None, None, record=record, is_drop=True)
    for entry in record.stored or ():
        yield Version(
            at,
            entry.partition,
            entry.metadata_sha,
            entry.data_sha,
            gone.get((at, entry.partition)),
            record=record,
            stored=entry,
        )
