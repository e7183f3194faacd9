"""What lies beside the commits for readers to begin at, compared with the commits: whoever wrote it.

Checkpoints (with their sidecars), log compaction files and checksums can all be made from the commits. One that says
something else misleads every reader, or keeps it out.
"""

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from dagster_versioned.delta.actions import Add, DomainMetadata, Metadata, Protocol, Txn, of_kind
from dagster_versioned.delta.files.file_actions import to_adds
from dagster_versioned.delta.log.checkpoint_read import Checkpoint, read_checkpoint
from dagster_versioned.delta.log.checksum import Checksum
from dagster_versioned.delta.log.commits import (
    CheckpointFiles,
    Commit,
    checkpoints_of,
    checksum_key,
    compaction_key,
    compactions_of,
    log_files,
    parse_commit,
)
from dagster_versioned.delta.log.replay import Changes
from dagster_versioned.delta.log.snapshot import Snapshot, replayed
from dagster_versioned.errors import VersionedError
from dagster_versioned.storage.object_store import ObjectStore


@dataclass(frozen=True, slots=True)
class MisleadingFiles:
    """Files (of a checkpoint in parts, several) that say together what the commits do not: what, in words."""

    keys: tuple[str, ...]
    problem: str


def misleading_files(
    store: ObjectStore, commits: Sequence[Commit], after: int = -1, but: Container[str] = ()
) -> Iterator[MisleadingFiles]:
    """The files beside ``commits``, which are all from version 0 on, that are not what these say; each is read.

    Only those of versions ``after`` one, and none whose key is in ``but``.
    """
    snapshot: Snapshot | None = None
    for version, keys, look in sorted(_looks(store), key=lambda look: look[:2]):
        if version <= after or keys[0] in but:
            continue
        problem = "the log ends before this version"
        if version < len(commits):
            snapshot = _until(commits, version, snapshot)
            problem = look(snapshot)
        if problem is not None:
            yield MisleadingFiles(keys, problem)
    for versions in compactions_of(store):
        if versions.stop - 1 > after and (problem := _compaction(store, versions, commits)) is not None:
            yield MisleadingFiles((compaction_key(versions),), problem)


def _looks(store: ObjectStore) -> Iterator[tuple[int, tuple[str, ...], Callable[[Snapshot], str | None]]]:
    """Of each checksum and checkpoint the version, the keys, and what compares it with the snapshot of the version."""
    for file in log_files(store):
        if file.kind == "checksum":
            yield file.version, (file.key,), partial(_checksum, store, file.version)
    for checkpoint in checkpoints_of(store):
        yield checkpoint.version, checkpoint.keys, partial(_checkpoint, store, checkpoint)


def _until(commits: Sequence[Commit], version: int, before: Snapshot | None) -> Snapshot:
    if before is None:
        return replayed(commits[: version + 1])
    return before.advance(commits[before.version + 1 : version + 1])


def _checksum(store: ObjectStore, version: int, found: Snapshot) -> str | None:
    key = checksum_key(version)
    try:
        return Checksum.parse(store.get(key), key).difference(found.checksum)
    except VersionedError as error:
        return str(error)


def _checkpoint(store: ObjectStore, files: CheckpointFiles, found: Snapshot) -> str | None:
    try:
        held = read_checkpoint(store, files)
    except VersionedError as error:
        return str(error)
    protocols, metadata = of_kind(held.actions, Protocol), of_kind(held.actions, Metadata)
    if len(protocols) != 1 or len(metadata) != 1:
        return "it does not hold exactly one protocol and one metaData"
    expected = Checksum.of(found.files, found.protocol, found.metadata)
    if (difference := Checksum.of(held.files, protocols[0], metadata[0]).difference(expected)) is not None:
        return difference
    return _other_state(held, found)


def _other_state(held: Checkpoint, found: Snapshot) -> str | None:
    txns = {action.app_id: action.version for action in of_kind(held.actions, Txn)}
    domains = {action.domain: action.configuration for action in of_kind(held.actions, DomainMetadata)}
    if _facts(to_adds(held.files)) != _facts(found.adds()):
        return "its files are not those of the log"
    if any(txns.get(app) != txn.version for app, txn in found.txns.items()):
        return "its transaction identifiers are not those of the log"
    return "its domains are not those of the log" if domains != dict(found.domains) else None


def _compaction(store: ObjectStore, versions: range, commits: Sequence[Commit]) -> str | None:
    key = compaction_key(versions)
    if versions.stop > len(commits):
        return "the log ends before this version"
    try:
        held = Changes.of([parse_commit(versions[-1], store.get(key), 0)])
    except VersionedError as error:
        return str(error)
    found = Changes.of(commits[versions.start : versions.stop])
    same = (
        _facts(to_adds(held.adds)) == _facts(to_adds(found.adds))
        and set(held.touched.to_pylist()) == set(found.touched.to_pylist())
        and (held.newest_protocol, held.newest_metadata) == (found.newest_protocol, found.newest_metadata)
        and (held.txns(), held.domains()) == (found.txns(), found.domains())
    )
    return None if same else "it is not what its commits come to"


def _facts(adds: Iterable[Add]) -> dict[object, object]:
    """What decides on rows, of each file."""
    return {add.identity: (add.size, dict(add.partition_values), add.deletion_vector) for add in adds}
