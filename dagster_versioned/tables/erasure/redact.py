"""Taking what a table's log tells of erased parts out of it: their smallest and largest values are those of rows.

A commit of its own says first which entries become which bytes. An entry keeps its name, the SHA-256 that it had, so
that what names it (its successor, tags, forks, attestations, mirrors) stays true; `verify` compares its bytes with what
that commit says.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

from dagster_versioned.delta.actions import unlike
from dagster_versioned.delta.commit.protocol_upgrade import ASKED, protocol_with
from dagster_versioned.delta.features import ERASURES
from dagster_versioned.delta.log.commits import (
    LAST_CHECKPOINT_KEY,
    LOG_FOLDER,
    commit_key,
    file_time_ms,
    in_parallel,
    is_commit,
    parse_commit,
    read_commits,
)
from dagster_versioned.delta.log.redaction import Choice, claim, outline, redacted_lines, repeats_members
from dagster_versioned.delta.paths import decode_path
from dagster_versioned.errors import CommitConflict, IntegrityError, PreconditionFailed
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.tables.context import LEFT_KEY
from dagster_versioned.tables.erased_parts import REDACT, ErasedParts, VersionKey
from dagster_versioned.tables.history import MEMBER, REDACTION
from dagster_versioned.tables.operations import TableOperations
from dagster_versioned.tables.state import TableState
from dagster_versioned.tables.write.commit import CommitDraft


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
    operations: TableOperations, redaction: Callable[[TableState], Redaction], *, forked_at: int = -1
) -> None:
    """Take what tells of erased rows out of every entry of a log, and delete what is derived from it, to make it anew.

    Of an environment's log the entries up to ``forked_at`` are production's: it says how they are redacted by now.
    Raises `CommitConflict` where somebody else changes an entry; a later run goes on where this one ended.
    """
    entries: Sequence[RedactedEntry] = ()

    def draft(state: TableState | None, _: int) -> CommitDraft | None:
        nonlocal entries
        assert state is not None  # it was searched
        own = range(forked_at + 1, state.log_version + 1)
        entries = redacted_entries(operations.store, own, redaction(state))
        told = {f"{entry.log_version}": hashlib.sha256(entry.data).hexdigest() for entry in entries}
        told.update(_redacted_since(operations.store, state, forked_at))
        return _draft(state, told, done=False) if told else None

    operations.change(draft)
    if not entries and not _is_open(operations.existing_state()):
        return
    put_entries(operations.store, entries)
    operations.change(lambda state, _: _draft(state, {}, done=True) if state and _is_open(state) else None)
    # Again, for who looked whether anybody redacts before that was said, and put a checkpoint of what the log was; who
    # puts one later, sees it.
    delete_derived(operations.store)
    operations.publisher.rebuild(operations.cache)


def _redacted_since(store: ObjectStore, state: TableState, forked_at: int) -> Iterator[tuple[str, str]]:
    """Redacted entries that are production's, as they are now, of which the log does not say that."""
    told = dict[str, str]()
    for record in state.history.records if forked_at >= 0 else ():
        said: Mapping[str, Mapping[str, str]] = record.member(REDACTION) or {}
        told.update(said.get("entries", {}))
    for commit in read_commits(store, 0, forked_at) if forked_at >= 0 else ():
        sha = hashlib.sha256(commit.data).hexdigest()
        if commit.is_redacted and told.get(f"{commit.version}") != sha:
            yield f"{commit.version}", sha


def redacted_entries(store: ObjectStore, own: Sequence[int], redaction: Redaction) -> Sequence[RedactedEntry]:
    """Those of some entries that tell what they are to tell no more, as they are to be."""

    def entry(log_version: int) -> RedactedEntry | None:
        data, info = store.get_with_info(commit_key(log_version))
        made = redacted(data, redaction, log_version, file_time_ms(info))
        return None if made == data else RedactedEntry(log_version, made, info.etag)

    local = store.local_path(commit_key(0)) is not None
    found = in_parallel(entry, own, unless=local)
    return [each for each in found if each is not None]


def put_entries(store: ObjectStore, entries: Sequence[RedactedEntry]) -> None:
    """Put redacted entries in the place of what they were, and delete all else of the log, whoever put it there."""
    in_parallel(partial(_put, store), entries)
    delete_derived(store)


def delete_derived(store: ObjectStore) -> None:
    """Delete what is beside the commits of a log, whoever put it there."""
    store.delete([LAST_CHECKPOINT_KEY])  # first, for it names what goes
    store.delete([info.key for info in store.list(LOG_FOLDER) if not is_commit(info.key) and info.key != LEFT_KEY])


def _draft(state: TableState, entries: Mapping[str, str], *, done: bool) -> CommitDraft:
    read = state.snapshot
    protocol = protocol_with(read.protocol, {f"{ASKED}{ERASURES}": "supported"}, read.schema)
    said = {REDACTION: {"done": done, "entries": entries}}
    return CommitDraft(REDACT, unlike(protocol, read.protocol), said, announces=False)


def _is_open(state: TableState) -> bool:
    """Whether the last redaction died."""
    said = (record.member(REDACTION) for record in reversed(state.history.records))
    return next((not each["done"] for each in said if each is not None), False)


def redacted(data: bytes, redaction: Redaction, log_version: int, timestamp_ms: int) -> bytes:
    """An entry without what it is to tell no more, which says what it was; as it is where it tells nothing."""
    commit = parse_commit(log_version, data, timestamp_ms)
    digests = {*_digests(commit.commit_info or {}, redaction.versions, log_version)}
    told = redacted_lines(data, Choice(lambda path: decode_path(path) in redaction.keys, digests.__contains__))
    if told == data:
        return data
    made = claim(told, commit.sha256, commit.timestamp_ms)
    if outline(made) != outline(data) or repeats_members(made):
        raise IntegrityError(
            f"What {commit_key(log_version)} tells of erased rows cannot be taken out of it without a loss of what else"
            " it says: no writer is known that writes so. The rows are erased from every file, and the log was not"
            " changed. Report this, with the entry."
        )
    return made


def _digests(info: Mapping[str, Any], versions: Set[VersionKey], log_version: int) -> Iterator[str]:
    """The digests that an entry has of some versions."""
    own: Mapping[str, Any] = info.get(MEMBER) or {}
    for version in own.get("versions", ()):
        if (log_version, version["identity"].get("partition")) in versions:
            facts = version["facts"]
            yield from (each["digest"] for each in (facts, facts.get("added")) if each is not None)


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
