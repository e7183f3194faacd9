"""Taking what a table's log tells of erased parts out of it: their smallest and largest values are those of rows.

A commit of its own says first which entries become which bytes. An entry keeps its name, the SHA-256 that it had, so
that what names it (its successor, tags, forks, attestations, mirrors) stays true; `verify` compares its bytes with what
that commit says.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import orjson

from dagster_versioned.delta.actions import Add, CommitInfo, Remove
from dagster_versioned.delta.log.commits import commit_key, commit_sha256, file_time_ms, in_parallel
from dagster_versioned.delta.paths import decode_path
from dagster_versioned.errors import CommitConflict, PreconditionFailed
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.tables.erased_parts import ErasedParts, VersionKey
from dagster_versioned.tables.history import MEMBER, REDACTION
from dagster_versioned.tables.operations import TableOperations
from dagster_versioned.tables.state import TableState
from dagster_versioned.tables.write.commit import CommitDraft

OPERATION = "REDACT"

_HEX = re.compile(r"(?<=:)[0-9a-f]+(?=:)")
"""The value in the text of a digest."""


@dataclass(frozen=True)
class Redaction:
    """What a log tells no more: statistics of files, by key, and the digests of versions' rows."""

    keys: Set[str]
    versions: Set[VersionKey]

    @classmethod
    def of(cls, state: TableState, erased: ErasedParts, needed: Set[str]) -> Self:
        """What was erased; what nobody could look into, too, since it is gone, unless it is ``needed`` again."""
        history = state.history
        done = {each.id for each in history.collections if each.done and not each.cancelled}
        paths = {path for each in history.collections if each.id in done for path in each.paths} - needed
        gone = {(version.log_version, version.partition) for version in history.versions if version.gone is not None}
        return cls(erased.keys | paths, erased.versions | gone)


@dataclass(frozen=True)
class RedactedEntry:
    """An entry of the log as it is to be, in the place of what has the ETag."""

    log_version: int
    data: bytes
    etag: str | None


def redact_log(
    operations: TableOperations, needed: Callable[[], Set[str]], erased: Callable[[TableState], ErasedParts]
) -> None:
    """Take what tells of erased rows out of every entry of a log, and of what is derived from it.

    ``needed`` are the files that versions have now. Raises `CommitConflict` where somebody else changes an entry; a
    later run goes on where this one ended.
    """
    entries: list[RedactedEntry] = []

    def draft(state: TableState | None, _: int) -> CommitDraft | None:
        nonlocal entries
        assert state is not None  # its parts were erased
        entries = _entries(operations.store, state.log_version, Redaction.of(state, erased(state), needed()))
        told = {f"{entry.log_version}": hashlib.sha256(entry.data).hexdigest() for entry in entries}
        return _draft(told, done=False) if entries else None

    operations.change(draft)
    if not entries and not _is_open(operations.existing_state()):
        return
    in_parallel(partial(_put, operations.store), entries)
    operations.publisher.rebuild(operations.cache)
    operations.change(lambda state, _: _draft({}, done=True) if state and _is_open(state) else None)


def _draft(entries: Mapping[str, str], *, done: bool) -> CommitDraft:
    return CommitDraft(OPERATION, [], {REDACTION: {"done": done, "entries": entries}}, announces=False)


def _is_open(state: TableState) -> bool:
    """Whether the last redaction died."""
    said = (record.member(REDACTION) for record in reversed(state.history.records))
    return next((not each["done"] for each in said if each is not None), False)


def redacted(data: bytes, redaction: Redaction, log_version: int, timestamp_ms: int) -> bytes:
    """An entry without what it is to tell no more; as it is where it does not.

    It says what its SHA-256 was, and when it was committed, which would else be the time of its file.
    """
    lines = [_without_statistics(line, redaction.keys) for line in data.split(b"\n")]
    digests = [each for _, info in _commit_infos(lines) for each in _digests(info, redaction.versions, log_version)]
    for digest in digests:
        hidden = _HEX.sub(lambda found: "0" * len(found[0]), digest)
        lines = [line.replace(digest.encode(), hidden.encode()) for line in lines]
    if (told := b"\n".join(lines)) == data:
        return data
    name, stamp = commit_sha256(log_version, data), {"inCommitTimestamp": timestamp_ms}
    for at, info in _commit_infos(lines):
        lines[at] = orjson.dumps({CommitInfo.NAME: {**stamp, **info, CommitInfo.REDACTED: name}})
        return b"\n".join(lines)
    return orjson.dumps({CommitInfo.NAME: {**stamp, CommitInfo.REDACTED: name}}) + b"\n" + told


def _without_statistics(line: bytes, keys: Set[str]) -> bytes:
    if b'"stats"' not in line:
        return line
    parsed: dict[str, Any] = orjson.loads(line)
    for kind in (Add.NAME, Remove.NAME):
        action: Mapping[str, Any] = parsed.get(kind) or {}
        if "stats" in action and decode_path(action["path"]) in keys:
            parsed[kind] = {name: value for name, value in action.items() if name != "stats"}
            return orjson.dumps(parsed)
    return line


def _commit_infos(lines: Iterable[bytes]) -> Iterator[tuple[int, dict[str, Any]]]:
    """The provenance in an entry, and in which line that is."""
    for at, line in enumerate(lines):
        if b'"commitInfo"' in line and isinstance(info := orjson.loads(line).get(CommitInfo.NAME), dict):
            yield at, info


def _digests(info: Mapping[str, Any], versions: Set[VersionKey], log_version: int) -> Iterator[str]:
    """The digests that an entry has of some versions."""
    own: Mapping[str, Any] = info.get(MEMBER) or {}
    for version in own.get("versions", ()):
        if (log_version, version["identity"].get("partition")) in versions:
            facts = version["facts"]
            yield from (each["digest"] for each in (facts, facts.get("added")) if each is not None)


def _entries(store: ObjectStore, last: int, redaction: Redaction) -> list[RedactedEntry]:
    def entry(log_version: int) -> RedactedEntry | None:
        data, info = store.get_with_info(commit_key(log_version))
        made = redacted(data, redaction, log_version, file_time_ms(info))
        return None if made == data else RedactedEntry(log_version, made, info.etag)

    local = store.local_path(commit_key(0)) is not None
    found = in_parallel(entry, range(last + 1), unless=local)
    return [each for each in found if each is not None]


def _put(store: ObjectStore, entry: RedactedEntry) -> None:
    key = commit_key(entry.log_version)
    try:
        store.put_if_match(key, entry.data, entry.etag)
    except PreconditionFailed:
        if store.get(key) != entry.data:
            raise CommitConflict(
                f"{store.uri}/{key} changed while what it tells of erased rows was taken out of it. The rows are erased"
                " from every file. Run it again; if it is the same then, run verify on the table."
            ) from None
