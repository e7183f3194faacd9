"""The log as files: commits one by one, and the segment of files that one snapshot is replayed from."""

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from itertools import count, filterfalse, takewhile
from typing import Any, Literal, TypeVar, cast
from urllib.parse import quote

from dagster_versioned.delta.actions import (
    Action,
    Add,
    Cdc,
    CommitInfo,
    DomainMetadata,
    Metadata,
    Protocol,
    Remove,
    Txn,
    check_commit,
    first_of,
    of_kind,
    parse_line,
    without_rewritten,
)
from dagster_versioned.errors import LogCorrupt, ObjectNotFound, TableNotFound, UnsupportedFeature, VersionNotFound
from dagster_versioned.storage.object_store import ObjectInfo, ObjectStore

_Given = TypeVar("_Given")
_Made = TypeVar("_Made")

LOG_FOLDER = "_delta_log/"
LAST_CHECKPOINT_KEY = LOG_FOLDER + "_last_checkpoint"

READERS = 16
"""Commits fetched at once from a store that answers over a network."""

_LONGEST_LINE = 1 << 28
"""Bytes of one action, far beyond the widest schema: what is longer is no commit, but could exhaust the memory."""

_TAIL = 8
"""Commits followed one by one before a listing is cheaper."""

_COMMIT = re.compile(r"_delta_log/(\d{20})\.json", re.ASCII)
_CHECKPOINT = re.compile(
    r"_delta_log/(\d{20})\.checkpoint"
    r"(?:\.(?P<part>\d{10})\.(?P<parts>\d{10})|\.(?P<unique>[^./]+))?\.(?P<format>parquet|json)",
    re.ASCII,
)

_COMPACTION = re.compile(r"_delta_log/(\d{20})\.(\d{20})\.compacted\.json", re.ASCII)
_CHECKSUM = re.compile(r"_delta_log/(\d{20})\.crc", re.ASCII)

_Kind = Literal["commit", "checkpoint", "compaction", "checksum"]
_KINDS: dict[_Kind, re.Pattern[str]] = {
    "commit": _COMMIT,
    "checkpoint": _CHECKPOINT,
    "compaction": _COMPACTION,
    "checksum": _CHECKSUM,
}


def commit_key(version: int) -> str:
    """Where commit ``version`` is stored."""
    return f"{LOG_FOLDER}{version:020d}.json"


def is_commit(key: str) -> bool:
    """Whether a commit is stored by this key."""
    return _COMMIT.fullmatch(key) is not None


def checksum_key(version: int) -> str:
    """Where the checksum of ``version`` is stored, if it has one."""
    return f"{LOG_FOLDER}{version:020d}.crc"


def compaction_key(versions: range) -> str:
    """Where the log compaction file of these versions is stored, if there is one."""
    return f"{LOG_FOLDER}{versions[0]:020d}.{versions[-1]:020d}.compacted.json"


# --- one commit ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit, parsed and checked: no two of its actions reconcile with each other.

    ``sha256`` names it: that of its bytes, or of those that it says it had before it was redacted (``is_redacted``).
    ``size`` is of its bytes; ``timestamp_ms`` is the in-commit timestamp, else the file's time.
    """

    version: int
    sha256: str
    size: int
    actions: tuple[Action, ...]
    commit_info: Mapping[str, Any] | None = field(hash=False)
    timestamp_ms: int
    data: bytes = field(default=b"", repr=False, compare=False)
    is_redacted: bool = False

    @property
    def forgotten(self) -> frozenset[str]:
        """See `CommitInfo.forgotten`."""
        return frozenset() if self.commit_info is None else CommitInfo(self.commit_info).forgotten

    @property
    def adds(self) -> tuple[Add, ...]:
        return tuple(of_kind(self.actions, Add))

    @property
    def removes(self) -> tuple[Remove, ...]:
        return tuple(of_kind(self.actions, Remove))

    @property
    def cdcs(self) -> tuple[Cdc, ...]:
        return tuple(of_kind(self.actions, Cdc))

    @property
    def txns(self) -> tuple[Txn, ...]:
        return tuple(of_kind(self.actions, Txn))

    @property
    def domains(self) -> tuple[DomainMetadata, ...]:
        return tuple(of_kind(self.actions, DomainMetadata))

    @property
    def metadata(self) -> Metadata | None:
        return first_of(self.actions, Metadata)

    @property
    def protocol(self) -> Protocol | None:
        return first_of(self.actions, Protocol)


def parse_commit(version: int, data: bytes, file_time_ms: int) -> Commit:
    """Parse and check the bytes of commit ``version``, without removes that `without_rewritten` leaves out.

    Raises `LogCorrupt` naming file, line and reason.
    """
    key = commit_key(version)
    actions: list[Action] = []
    require_lines(data, key)
    for number, line in enumerate(data.split(b"\n"), 1):
        if line and not line.isspace():
            action = parse_line(line, f"{key}, line {number}")
            if action is not None:
                actions.append(action)
    kept = without_rewritten(actions)
    check_commit(kept, key)
    return commit_of(version, data, kept, file_time_ms)


def require_lines(data: bytes, key: str) -> None:
    """Refuse a line that is too long, before there is a second copy of it. Raises `LogCorrupt`."""
    if len(data) <= _LONGEST_LINE:
        return
    start, number = 0, 1
    while start < len(data):
        end = data.find(b"\n", start)
        end = len(data) if end < 0 else end
        if end - start > _LONGEST_LINE:
            raise LogCorrupt(
                f"{key}, line {number}: it is {end - start} bytes long, and no action takes more than {_LONGEST_LINE}."
                " Nothing was read; restore the file from a copy."
            )
        start, number = end + 1, number + 1


def commit_of(version: int, data: bytes, actions: Sequence[Action], file_time_ms: int) -> Commit:
    """The `Commit` whose bytes are ``data`` and whose actions are already known and checked."""
    info = first_of(actions, CommitInfo)
    sha, before = hashlib.sha256(data).hexdigest(), info.redacted if info else None
    return Commit(
        version,
        sha if before is None else before,
        len(data),
        tuple(actions),
        info.value if info else None,
        info.timestamp(file_time_ms) if info else file_time_ms,
        data,
        before is not None,
    )


def commit_sha256(version: int, data: bytes) -> str:
    """The SHA-256 that names a commit: see `Commit`. Raises `LogCorrupt`."""
    if CommitInfo.REDACTED.encode() in data:
        return parse_commit(version, data, 0).sha256
    return hashlib.sha256(data).hexdigest()


def read_commit(store: ObjectStore, version: int) -> Commit:
    """Read one commit. Raises `ObjectNotFound` if there is none and `LogCorrupt` if it is malformed."""
    data, info = store.get_with_info(commit_key(version))
    return parse_commit(version, data, file_time_ms(info))


def read_commits(store: ObjectStore, first: int, last: int) -> list[Commit]:
    """Read commits ``first`` to ``last``, both included, in order; in parallel where the store is not local.

    Raises `ObjectNotFound` if one is missing and `LogCorrupt` if one is malformed.
    """
    local = store.local_path(commit_key(first)) is not None
    return in_parallel(partial(read_commit, store), range(first, last + 1), unless=local)


def in_parallel(function: Callable[[_Given], _Made], given: Sequence[_Given], *, unless: bool = False) -> list[_Made]:
    """What a function that reads makes of each, in order. For one, a thread takes longer than to read a small file."""
    if unless or len(given) < 2:
        return list(map(function, given))
    with ThreadPoolExecutor(min(READERS, len(given))) as pool:
        return list(pool.map(function, given))


def stream_commits(store: ObjectStore, first: int, last: int) -> Iterator[Commit]:
    """The commits of `read_commits`, of which only a few are held in memory at once."""
    for start in range(first, last + 1, READERS):
        yield from read_commits(store, start, min(last, start + READERS - 1))


def commits_after(store: ObjectStore, version: int) -> list[Commit]:
    """Every commit after ``version``: the tail, followed one by one, by listing once it proves long.

    Costs one failed read where nothing happened. Raises `LogCorrupt` for a gap or a malformed commit.
    """
    commits: list[Commit] = []
    while len(commits) < _TAIL:
        try:
            commits.append(read_commit(store, version + 1 + len(commits)))
        except ObjectNotFound:
            return commits
    reached = version + len(commits)
    listed = _contiguous(lambda: _versions_after(store, reached), reached + 1)
    return commits + (read_commits(store, reached + 1, listed[-1]) if listed else [])


def _versions_after(store: ObjectStore, version: int) -> list[int]:
    keys = (info.key for info in store.list(LOG_FOLDER, start_after=commit_key(version)))
    return [int(match[1]) for key in keys if (match := _COMMIT.fullmatch(key))]


def newest_version(store: ObjectStore, known: int) -> int:
    """The newest version of a log that had the version ``known``, without a listing where little was committed since.

    Raises as `list_log`.
    """
    if _is_there(store, known):  # else it was cleaned up, and others behind it may have been
        for version in range(known, known + _TAIL):
            if not _is_there(store, version + 1):
                return version
    return list_log(store).version


def _is_there(store: ObjectStore, version: int) -> bool:
    try:
        store.head(commit_key(version))
    except ObjectNotFound:
        return False
    return True


def commits_from(store: ObjectStore, version: int) -> list[tuple[int, ObjectInfo]]:
    """The commits from ``version`` on that are in the log, up to the first gap: one listing, none is read."""
    found: list[tuple[int, ObjectInfo]] = []
    start = commit_key(version - 1) if version else ""
    for info in store.list(LOG_FOLDER, start_after=start):
        if match := _COMMIT.fullmatch(info.key):
            if int(match[1]) != version + len(found):
                break
            found.append((int(match[1]), info))
    return found


def file_time_ms(info: ObjectInfo) -> int:
    """When the object was written, in milliseconds since the epoch."""
    return int(info.modified.timestamp() * 1000)


# --- the segment -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CheckpointFiles:
    """One complete checkpoint: its version, its keys in order of parts, and when it was written (milliseconds)."""

    version: int
    keys: tuple[str, ...]
    file_time_ms: int


@dataclass(frozen=True, slots=True)
class LogSegment:
    """The files that one snapshot is replayed from.

    Checked here, once, so that nobody checks again:

    - ``commits`` are the contiguous versions from just after the checkpoint (from 0 without one) to ``version``;
    - ``checkpoint`` is complete and not newer than ``version``;
    - ``compactions`` are ranges of ``commits`` without the last, in order and apart, that a log compaction file covers;
    - ``checksums`` are those of its versions, the checkpoint's and its own, that have a checksum file.

    ``etags`` are those of the commits and of the checkpoint's files as they were listed: what two segments with the
    same ones are replayed to is the same.

    Raises `LogCorrupt` naming the version that is missing.
    """

    version: int
    checkpoint: CheckpointFiles | None
    commits: range
    compactions: tuple[range, ...] = ()
    checksums: frozenset[int] = frozenset()
    etags: tuple[str, ...] = field(default=(), compare=False)

    def __init__(
        self,
        version: int,
        checkpoint: CheckpointFiles | None,
        versions: Sequence[int],
        compactions: Iterable[range] = (),
        checksums: Iterable[int] = (),
        etags: Mapping[str, str] | None = None,
    ) -> None:
        first = checkpoint.version + 1 if checkpoint else 0
        found = {number for number in versions if first <= number <= version}
        if first + len(found) != version + 1:
            raise _gap(next(filterfalse(found.__contains__, count(first))))
        object.__setattr__(self, "version", version)
        object.__setattr__(self, "checkpoint", checkpoint)
        object.__setattr__(self, "commits", range(first, version + 1))
        object.__setattr__(self, "compactions", tuple(_apart(compactions, self.commits[:-1])))
        ends = {version, *([checkpoint.version] if checkpoint else [])}
        object.__setattr__(self, "checksums", frozenset(checksums) & ends)
        if etags is not None:
            keys = [*(checkpoint.keys if checkpoint else ()), *map(commit_key, self.commits)]
            object.__setattr__(self, "etags", tuple(etags[key] for key in keys))


def _apart(compactions: Iterable[range], commits: range) -> Iterator[range]:
    """Those that lie within ``commits``, from the first on the longest that begins after the one before."""
    after = commits.start
    for compacted in sorted(compactions, key=lambda compaction: (compaction.start, -compaction.stop)):
        if compacted.start >= after and compacted.start + 1 < compacted.stop <= commits.stop:
            yield compacted
            after = compacted.stop


def list_log(
    store: ObjectStore, version: int | None = None, *, before: int | None = None, near: int | None = None
) -> LogSegment:
    """The segment of ``version``, or of the newest one; with no checkpoint but those older than ``before``, if given.

    ``near``, a version from which on the log has a checkpoint, and ``_last_checkpoint`` only say where to begin
    listing; whatever is wrong with them, the whole log is listed instead. Raises `TableNotFound` where there is no
    log, `VersionNotFound` for a version it does not hold and `LogCorrupt` for a gap.
    """
    if near is not None and (found := _segment_from(store, near, version)) is not None:
        return found
    hint = last_checkpoint_version(store) if before is None else None
    if hint is not None and (found := _segment_from(store, hint, version)) is not None:
        return found
    try:
        return _LogListing.read(store, None, version).segment(store, version, before)
    except LogCorrupt:
        # A listing is no snapshot: a commit that landed meanwhile may show without the one before it. Look again.
        return _LogListing.read(store, None, version).segment(store, version, before)


def _segment_from(store: ObjectStore, hint: int, version: int | None) -> LogSegment | None:
    """The segment as a listing from a version on shows it; ``None`` where that is not enough to tell."""
    if version is not None and hint > version:
        return None
    listed = _LogListing.read(store, hint, version)
    if listed.newest is None or not (hint == 0 or any(files.version >= hint for files in listed.checkpoints)):
        return None
    try:
        return listed.segment(store, version)
    except (LogCorrupt, VersionNotFound):
        return None  # The hint may be what is wrong; the whole log decides.


def read_log(store: ObjectStore) -> list[Commit]:
    """Every commit from version 0 on, without a look at anything that is derived from them.

    Raises `TableNotFound`, `LogCorrupt`, and `UnsupportedFeature` where the log does not begin at version 0.
    """
    listed = _LogListing.read(store, None, None)
    if listed.newest is not None and listed.versions[:1] != [0]:
        raise begins_late(store)
    segment = list_log(store, before=0)
    return read_commits(store, 0, segment.version)


def begins_late(store: ObjectStore) -> UnsupportedFeature:
    """What to raise where the whole log is needed, but its oldest commits are not there any more."""
    return UnsupportedFeature(
        f"The log of {store.uri} does not begin at version 0: its oldest commits were cleaned up, as other Delta"
        " writers do, and the history of versions cannot be known without them. Nothing was changed."
        " Read its rows with read_delta(), or restore the commits from a copy."
    )


@dataclass(frozen=True, slots=True)
class LogFile:
    """One file of a log, by its name; ``version`` is the first of a compaction's, ``modified`` is aware UTC."""

    key: str
    version: int
    kind: _Kind
    modified: datetime


def log_files(store: ObjectStore) -> Iterator[LogFile]:
    """The commits, checkpoints (part by part, complete or not), compactions and checksums there are, by key."""
    for kind, match, info in _recognized(store.list(LOG_FOLDER)):
        yield LogFile(info.key, int(match[1]), kind, info.modified)


def _recognized(objects: Iterable[ObjectInfo]) -> Iterator[tuple[_Kind, re.Match[str], ObjectInfo]]:
    for info in objects:
        for kind, pattern in _KINDS.items():
            if match := pattern.fullmatch(info.key):
                yield kind, match, info
                break


def checkpoints_of(store: ObjectStore) -> list[CheckpointFiles]:
    """Every whole checkpoint that there is, also several of one version, by version."""
    listed = _recognized(store.list(LOG_FOLDER))
    return sorted(
        _every([(match, info) for kind, match, info in listed if kind == "checkpoint"]),
        key=lambda files: files.version,
    )


def compactions_of(store: ObjectStore) -> list[range]:
    """The versions of every log compaction file that there is."""
    return [_compacted(match) for kind, match, _ in _recognized(store.list(LOG_FOLDER)) if kind == "compaction"]


def _compacted(match: re.Match[str]) -> range:
    return range(int(match[1]), int(match[2]) + 1)


@dataclass(frozen=True, slots=True)
class _LogListing:
    versions: list[int]
    checkpoints: list[CheckpointFiles]
    compactions: list[range]
    checksums: list[int]
    etags: Mapping[str, str]

    @property
    def newest(self) -> int | None:
        found = [*self.versions[-1:], *(files.version for files in self.checkpoints[-1:])]
        return max(found, default=None)

    @classmethod
    def read(cls, store: ObjectStore, first: int | None, last: int | None) -> "_LogListing":
        start_after = "" if first is None else f"{LOG_FOLDER}{first:020d}"
        end = None if last is None else f"{LOG_FOLDER}{last + 1:020d}"
        etags: dict[str, str] = {}
        versions: list[int] = []  # of very many commits: what was matched of them is not kept
        found = defaultdict[str, list[tuple[re.Match[str], ObjectInfo]]](list)
        listed = store.list(LOG_FOLDER, start_after=start_after)
        if end is not None:
            listed = takewhile(lambda info: info.key < end, listed)
        for kind, match, info in _recognized(listed):
            etags[info.key] = info.etag
            if kind == "commit":
                versions.append(int(match[1]))
            else:
                found[kind].append((match, info))
        return cls(
            versions,
            sorted(_complete(found["checkpoint"]), key=lambda files: files.version),
            [_compacted(match) for match, _ in found["compaction"]],
            [int(match[1]) for match, _ in found["checksum"]],
            etags,
        )

    def segment(self, store: ObjectStore, version: int | None, before: int | None = None) -> LogSegment:
        newest = self.newest
        if newest is None:
            if version is not None and _LogListing.read(store, None, None).newest is not None:
                raise VersionNotFound(f"{store.uri} begins after version {version}. Nothing was read.")
            raise TableNotFound(f"There is no Delta table at {store.uri}: it has no {LOG_FOLDER} with a commit in it.")
        wanted = newest if version is None else version
        if wanted > newest:
            raise VersionNotFound(f"Version {version} of {store.uri} does not exist; the newest one is {newest}.")
        newest_checkpoint_at = wanted if before is None else min(wanted, before - 1)
        usable = (files for files in reversed(self.checkpoints) if files.version <= newest_checkpoint_at)
        checkpoint = next(usable, None)
        return LogSegment(wanted, checkpoint, self.versions, self.compactions, self.checksums, self.etags)


def _complete(found: list[tuple[re.Match[str], ObjectInfo]]) -> Iterator[CheckpointFiles]:
    """Whole checkpoints, of several for one version the classic or uniquely named one before a multi-part one."""
    versions: set[int] = set()
    for files in _every(found):
        if files.version not in versions:
            versions.add(files.version)
            yield files


def _every(found: list[tuple[re.Match[str], ObjectInfo]]) -> Iterator[CheckpointFiles]:
    """All whole checkpoints, those in one file first."""
    parts: dict[tuple[int, int], dict[int, tuple[str, int]]] = {}
    for match, info in found:
        version, file = int(match[1]), (info.key, file_time_ms(info))
        if match["part"] is None:
            if match["unique"] is not None or match["format"] == "parquet":
                yield CheckpointFiles(version, (file[0],), file[1])
        elif match["format"] == "parquet":
            parts.setdefault((version, int(match["parts"])), {})[int(match["part"])] = file
    for (version, total), files in parts.items():
        # By number first: the total is whatever a file's name claims.
        if len(files) == total and sorted(files) == list(range(1, total + 1)):
            yield CheckpointFiles(
                version, tuple(files[part][0] for part in sorted(files)), max(time for _, time in files.values())
            )


def _gap(version: int) -> LogCorrupt:
    return LogCorrupt(
        f"{commit_key(version)} is missing, and no checkpoint covers version {version}: the log has a gap."
        " Nothing was read; restore the file from a copy."
    )


def _contiguous(listing: Callable[[], list[int]], first: int) -> list[int]:
    versions = listing()
    if versions != list(range(first, first + len(versions))):
        versions = listing()
    for expected, version in enumerate(versions, first):
        if version != expected:
            raise _gap(expected)
    return versions


# --- _last_checkpoint ------------------------------------------------------------------------------------------------


def last_checkpoint_version(store: ObjectStore) -> int | None:
    """The version that ``_last_checkpoint`` names, ``None`` where it is absent or cannot be believed."""
    try:
        data = store.get(LAST_CHECKPOINT_KEY)
    except ObjectNotFound:
        return None
    try:
        value = json.loads(data, object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    members = cast("dict[str, object]", value)
    version, checksum = members.get("version"), members.get("checksum")
    if type(version) is not int or not 0 <= version < 10**20:
        return None
    try:
        believed = checksum is None or checksum == json_checksum(members)
    except (ValueError, RecursionError):  # text that is no UTF-8; nesting that only the parser could bear
        return None
    return version if believed else None


def _without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key occurs twice")
    return value


def json_checksum(value: Mapping[str, object]) -> str:
    """MD5 of the canonical form of an object, its top-level ``checksum`` left out. Protocol: *JSON checksum*."""
    return hashlib.md5(canonical_form(value).encode(), usedforsecurity=False).hexdigest()


def canonical_form(value: Mapping[str, object]) -> str:
    """The text that `json_checksum` digests. Protocol: *JSON checksum*."""
    pairs = [
        pair for key, member in value.items() if key != "checksum" for pair in _canonical_pairs((_quoted(key),), member)
    ]
    return ",".join(f"{path}={leaf}" for path, leaf in sorted(pairs, key=lambda pair: pair[0].encode()))


def _canonical_pairs(path: tuple[str, ...], value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, member in cast("Mapping[str, object]", value).items():
            yield from _canonical_pairs((*path, _quoted(key)), member)
    elif isinstance(value, list):
        for position, member in enumerate(cast("list[object]", value)):
            yield from _canonical_pairs((*path, str(position)), member)
    else:
        yield "+".join(path), _quoted(value) if isinstance(value, str) else json.dumps(value)


def _quoted(text: str) -> str:
    return f'"{quote(text, safe="-._~")}"'
