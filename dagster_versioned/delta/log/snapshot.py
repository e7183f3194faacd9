"""Snapshots: the state of a table at one version, replayed from its log."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TypeVar

import pyarrow as pa

from dagster_versioned.delta.actions import (
    Action,
    Add,
    DomainMetadata,
    Metadata,
    Protocol,
    Txn,
    first_of,
    of_kind,
)
from dagster_versioned.delta.features import column_mapping, reader_features, require_read
from dagster_versioned.delta.files.external_files import NOWHERE, ExternalFiles, reach_of
from dagster_versioned.delta.files.file_actions import (
    FILES,
    TOMBSTONES,
    appended,
    no_rows,
    to_adds,
    without,
    without_keys,
)
from dagster_versioned.delta.log.checkpoint_read import Checkpoint, read_checkpoint, read_head
from dagster_versioned.delta.log.checksum import Checksum, put_checksum, require_checksum
from dagster_versioned.delta.log.commits import (
    CheckpointFiles,
    Commit,
    LogSegment,
    commit_key,
    list_log,
    read_commit,
    read_commits,
)
from dagster_versioned.delta.log.replay import Changes, Header, read_changes
from dagster_versioned.delta.paths import compute
from dagster_versioned.delta.properties import interval_ms
from dagster_versioned.delta.schema.column_mapping import ColumnMapping, require_mapped
from dagster_versioned.delta.schema.types import StructType, parse_schema
from dagster_versioned.delta.schema.widening import require_known_changes
from dagster_versioned.errors import LogCorrupt, ObjectNotFound, VersionedError
from dagster_versioned.storage.object_store import ObjectStore

OWN_DOMAINS = "dagster_versioned."
"""How the metadata domains of versioned tables begin."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a table at ``version``. Protocol: *Action Reconciliation*.

    Checked at construction, so that whoever holds one may read its files: every feature in use is implemented (else
    `UnsupportedFeature`), every live path stays below the table's folder (else `LogCorrupt`), or below another root of
    ``reach`` (else `UnsupportedFeature`).

    ``files`` has the schema `files.FILES`, its rows are in no particular order and unique by (key, deletion vector);
    ``tombstones`` has the schema `files.TOMBSTONES` and shares none of them; those that a commit ended
    (`CommitInfo.forgotten`) are not there. ``domains`` maps the name of a domain to
    its configuration. ``timestamp_ms`` is the in-commit timestamp, else the file's time. ``commit_sha256`` is of the
    bytes of commit ``version``, ``None`` where only a checkpoint is left of it.
    """

    version: int
    protocol: Protocol
    metadata: Metadata
    schema: StructType
    txns: Mapping[str, Txn]
    domains: Mapping[str, str]
    files: pa.Table = field(repr=False)
    tombstones: pa.Table = field(repr=False)
    timestamp_ms: int
    commit_sha256: str | None
    reach: ExternalFiles = NOWHERE

    @property
    def is_versioned(self) -> bool:
        """Whether it is a versioned table, of which all of the log is history."""
        return any(domain.startswith(OWN_DOMAINS) for domain in self.domains)

    @property
    def num_files(self) -> int:
        return self.files.num_rows

    @property
    def size_bytes(self) -> int:
        """The sum of the live files' sizes."""
        return compute.sum(self.files["size"]).as_py() or 0

    @property
    def partition_columns(self) -> tuple[str, ...]:
        return self.metadata.partition_columns

    @property
    def column_mapping(self) -> ColumnMapping:
        """How the columns of the files are found."""
        return column_mapping(self.protocol, self.metadata)

    @property
    def has_deletion_vectors(self) -> bool:
        """Whether rows of live files are deleted."""
        vectors = self.files["deletionVector"]
        return vectors.null_count != len(vectors)

    @property
    def checksum(self) -> Checksum:
        """The figures that the checksum file of this version holds."""
        stamped = self.metadata.is_set("delta.enableInCommitTimestamps") and self.commit_sha256 is not None
        return Checksum.of(self.files, self.protocol, self.metadata, self.timestamp_ms if stamped else None)

    def adds(self) -> list[Add]:
        """The live files as actions; for callers that know there are few."""
        return to_adds(self.files)

    def advance(self, commits: Sequence[Commit]) -> "Snapshot":
        """The snapshot after ``commits``, which follow this version without a gap.

        Cost: the commits' own actions, and one pass over the identities of the live files where any is removed or
        replaced. Raises as the construction does.
        """
        return _advanced(_State.of(self), Changes.of(commits), self, self.reach) if commits else self


def load_snapshot(store: ObjectStore, version: int | None = None) -> Snapshot:
    """Replay the snapshot at ``version``, or the newest one.

    A checkpoint that cannot be read is passed over for an older one, or for the log from its start, as far as that
    is there. Raises `TableNotFound`, `VersionNotFound`, `LogCorrupt`, `UnsupportedFeature`.
    """
    segment, base = _base(store, list_log(store, version))
    try:
        changes = read_changes(store, segment.commits, segment.compactions)
        if segment.compactions and _is_stamped(base, changes):
            changes = read_changes(store, segment.commits)  # which alone show that none of them was emptied
        return _checked(store, segment, _advanced(base, changes, None, reach_of(store)))
    except VersionedError as error:
        error.add_note(f"While replaying version {segment.version} of {store.uri}.")
        raise


def load_head(store: ObjectStore, version: int | None = None) -> Snapshot:
    """`load_snapshot` without the files, whose tables are empty: of a checkpoint only the rest is read.

    Raises as that, except for what is wrong with a file.
    """
    segment = list_log(store, version)
    try:
        heads = [read_head(store, key)[0] for key in segment.checkpoint.keys] if segment.checkpoint else []
        changes = read_changes(store, segment.commits)
        return snapshot_head(store, segment, tuple(chain.from_iterable(heads)), changes.headers)
    except (LogCorrupt, ObjectNotFound):
        whole = load_snapshot(store, version)  # which passes over a checkpoint for an older one, or says what is wrong
        return replace(whole, files=no_rows(FILES), tombstones=no_rows(TOMBSTONES))


@dataclass(frozen=True, slots=True)
class LoadedLog:
    """A snapshot, and what it was replayed from: the ``commits`` after a checkpoint (from 0 where there is none), and
    what the checkpoint's writer noted in it."""

    snapshot: Snapshot
    commits: tuple[Commit, ...]
    notes: Mapping[str, bytes]


def load_log(store: ObjectStore, segment: LogSegment) -> LoadedLog:
    """The snapshot of a segment with the commits at the end of its log, each of which is read once.

    Raises as `load_snapshot`.
    """
    segment, base = _base(store, segment)
    try:
        commits = read_commits(store, segment.commits.start, segment.commits.stop - 1)
        snapshot = _checked(store, segment, _advanced(base, Changes.of(commits), None, reach_of(store)))
        return LoadedLog(snapshot, tuple(commits), base.notes)
    except VersionedError as error:
        error.add_note(f"While replaying version {segment.version} of {store.uri}.")
        raise


def load_later(store: ObjectStore, segment: LogSegment, snapshot: Snapshot) -> LoadedLog:
    """`load_log` of a segment that begins as the one that an older snapshot was loaded of: reads the commits since."""
    commits = read_commits(store, snapshot.version + 1, segment.version)
    return LoadedLog(_checked(store, segment, snapshot.advance(commits)), tuple(commits), {})


def _checked(store: ObjectStore, segment: LogSegment, snapshot: Snapshot) -> Snapshot:
    if segment.version in segment.checksums:
        require_checksum(store, snapshot.version, snapshot.checksum)
    return snapshot


def write_checksum(store: ObjectStore, snapshot: Snapshot) -> None:
    """Write the checksum file of a snapshot, which readers of that version check it by. See `checksum`."""
    put_checksum(store, snapshot.version, snapshot.checksum)


def snapshot_head(
    store: ObjectStore, segment: LogSegment, actions: Sequence[Action], headers: Sequence[Header]
) -> Snapshot:
    """The snapshot of a segment but for its files, which are left to whoever asks: its tables are empty.

    ``actions`` are those of the checkpoint that are not about files, ``headers`` those of the commits. Raises as
    `load_snapshot`, for what there is to be checked.
    """
    none, no_tombstones = no_rows(FILES), no_rows(TOMBSTONES)
    base = _State()
    if segment.checkpoint is not None:
        content = Checkpoint(tuple(actions), none, no_tombstones)
        base = _state_of(store, segment.checkpoint, content, alone=not segment.commits)
    changes = Changes(tuple(headers), none, no_tombstones, pa.array([], pa.string()))
    return _advanced(base, changes, None, reach_of(store))


def replayed(commits: Sequence[Commit]) -> Snapshot:
    """The snapshot after ``commits``, which are all from version 0 on, without a store. Raises as `load_snapshot`."""
    return _advanced(_State(), Changes.of(commits), None, NOWHERE)


# --- replay ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _State:
    """A snapshot in the making: not checked, and possibly without protocol or metadata."""

    version: int = -1
    protocol: Protocol | None = None
    metadata: Metadata | None = None
    txns: Mapping[str, Txn] = field(default_factory=dict[str, Txn])
    domains: Mapping[str, str] = field(default_factory=dict[str, str])
    files: pa.Table = field(default_factory=lambda: no_rows(FILES))
    tombstones: pa.Table = field(default_factory=lambda: no_rows(TOMBSTONES))
    timestamp_ms: int = 0
    commit_sha256: str | None = None
    plain_paths: bool = False
    """Whether every live path is known to stay below the table's folder."""
    notes: Mapping[str, bytes] = field(default_factory=dict[str, bytes])

    @classmethod
    def of(cls, snapshot: Snapshot) -> "_State":
        return cls(
            snapshot.version,
            snapshot.protocol,
            snapshot.metadata,
            snapshot.txns,
            snapshot.domains,
            snapshot.files,
            snapshot.tombstones,
            snapshot.timestamp_ms,
            snapshot.commit_sha256,
        )


def _base(store: ObjectStore, segment: LogSegment) -> "tuple[LogSegment, _State]":
    """The segment to replay and the state before its commits, from the newest checkpoint that can be read."""
    while segment.checkpoint is not None:
        try:
            state = _state_at(store, segment.checkpoint, alone=not segment.commits)
            if segment.commits and state.version in segment.checksums:
                require_checksum(store, state.version, Checksum.of(state.files, state.protocol, state.metadata))
            return segment, state
        except (LogCorrupt, ObjectNotFound) as unreadable:
            try:
                segment = list_log(store, segment.version, before=segment.checkpoint.version)
            except LogCorrupt:
                raise unreadable from None
    return segment, _State()


def _state_at(store: ObjectStore, checkpoint: CheckpointFiles, *, alone: bool) -> _State:
    """The state a checkpoint holds; ``alone`` asks for the time and hash of its commit, which no later one replaces."""
    return _state_of(store, checkpoint, read_checkpoint(store, checkpoint), alone=alone)


def _state_of(store: ObjectStore, checkpoint: CheckpointFiles, content: Checkpoint, *, alone: bool) -> _State:
    timestamp_ms, sha256 = checkpoint.file_time_ms, None
    if alone:
        try:
            commit = read_commit(store, checkpoint.version)
            timestamp_ms, sha256 = commit.timestamp_ms, commit.sha256
        except ObjectNotFound:
            pass  # Cleaned up; the checkpoint stands for it.
    protocols, metadata = of_kind(content.actions, Protocol), of_kind(content.actions, Metadata)
    for kind, found in ((Protocol, protocols), (Metadata, metadata)):
        if len(found) != 1:
            raise LogCorrupt(f"{checkpoint.keys[0]}: the checkpoint does not hold exactly one {kind.NAME}.")
    domains = [action for action in of_kind(content.actions, DomainMetadata) if not action.removed]
    return _State(
        checkpoint.version,
        protocols[0],
        metadata[0],
        {action.app_id: action for action in of_kind(content.actions, Txn)},
        {action.domain: action.configuration for action in domains},
        content.files,
        content.tombstones,
        timestamp_ms,
        sha256,
        content.plain_paths,
        content.notes,
    )


_Held = TypeVar("_Held", Protocol, Metadata)


def _require_held(action: str, newest: _Held | None, version: int) -> _Held:
    if newest is None:
        raise LogCorrupt(f"The log up to version {version} holds no {action} action. Nothing was read.")
    return newest


def _advanced(base: _State, changes: Changes, checked: Snapshot | None, reach: ExternalFiles) -> Snapshot:
    """Apply ``changes`` to ``base`` and check the result; ``checked`` is the snapshot ``base`` was, if any."""
    _require_next(base, changes)
    _require_timestamps(base, changes)
    last = changes.last or base
    protocol = _require_held("protocol", changes.newest_protocol or base.protocol, last.version)
    metadata = _require_held("metaData", changes.newest_metadata or base.metadata, last.version)
    require_read(protocol, metadata)
    schema = checked.schema if checked and metadata is checked.metadata else _schema_of(metadata)
    require_mapped(schema, column_mapping(protocol, metadata))
    if not reader_features(protocol).isdisjoint({"typeWidening", "typeWidening-preview"}):
        require_known_changes(schema)
    files = appended(without(base.files, changes.touched), changes.adds)
    reach.confine((changes.adds if checked or base.plain_paths else files)["path"])
    return Snapshot(
        last.version,
        protocol,
        metadata,
        schema,
        _unexpired_txns({**base.txns, **changes.txns()}, metadata, last.timestamp_ms),
        _domains(base, changes),
        files,
        appended(without_keys(without(base.tombstones, changes.touched), changes.forgotten), changes.removes),
        last.timestamp_ms,
        last.sha256 if isinstance(last, Header) else last.commit_sha256,
        reach,
    )


def _require_next(base: _State, changes: Changes) -> None:
    """Raise `LogCorrupt` unless the changes are of the versions that come next."""
    expected = base.version + 1
    for header in changes.headers:
        if header.first != expected:
            raise LogCorrupt(f"Version {header.first} was given where version {expected} comes next.")
        expected = header.version + 1


def _domains(base: _State, changes: Changes) -> dict[str, str]:
    changed = changes.domains()
    kept = {name: value for name, value in base.domains.items() if name not in changed}
    return kept | {name: action.configuration for name, action in changed.items() if not action.removed}


def _is_stamped(base: _State, changes: Changes) -> bool:
    """Whether in-commit timestamps were ever asked for."""
    found = [base.metadata, *of_kind(changes.actions(), Metadata)]
    return any(metadata.is_set("delta.enableInCommitTimestamps") for metadata in found if metadata)


def _require_timestamps(base: _State, changes: Changes) -> None:
    """Every commit must carry its time where the table asks for it, so one that was emptied or cut cannot pass for a
    commit that changed nothing. Protocol: *In-Commit Timestamps*."""
    metadata = base.metadata
    for header in changes.headers:
        metadata = first_of(header.actions, Metadata) or metadata
        if metadata is not None and metadata.is_set("delta.enableInCommitTimestamps") and not header.stamped:
            raise LogCorrupt(
                f"{commit_key(header.version)}: it holds no commitInfo with an inCommitTimestamp that is an integer,"
                " which the table's property delta.enableInCommitTimestamps requires of every commit. Nothing was read."
            )


def _schema_of(metadata: Metadata) -> StructType:
    schema = parse_schema(metadata.schema_string)
    if not schema.fields:
        raise LogCorrupt("The table has no columns at this version, so it cannot be read.")
    if unknown := [name for name in metadata.partition_columns if name not in schema.names]:
        raise LogCorrupt(f"The table is partitioned by {unknown}, which its schema does not hold. Nothing was read.")
    if len(set(metadata.partition_columns)) < len(metadata.partition_columns):
        raise LogCorrupt(f"The table is partitioned by one column twice: {metadata.partition_columns}.")
    for name in metadata.partition_columns:
        if not isinstance(schema.field(name).type, str):
            raise LogCorrupt(f"The table is partitioned by {name!r}, which is no primitive type. Nothing was read.")
    return schema


def _unexpired_txns(txns: dict[str, Txn], metadata: Metadata, now_ms: int) -> dict[str, Txn]:
    retention = interval_ms(metadata, "delta.setTransactionRetentionDuration")
    if retention is None:
        return txns
    return {
        app_id: txn
        for app_id, txn in txns.items()
        if txn.last_updated is None or txn.last_updated >= now_ms - retention
    }
