"""Snapshots: the state of a table at one version, replayed from its log."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from dagster_versioned.delta.actions import Add, DomainMetadata, Metadata, Protocol, Remove, Txn
from dagster_versioned.delta.checkpoint import read_checkpoint
from dagster_versioned.delta.column_mapping import ColumnMapping, require_mapped
from dagster_versioned.delta.features import column_mapping, require_read
from dagster_versioned.delta.files import (
    FILES,
    TOMBSTONES,
    adds_table,
    appended,
    identity_text,
    no_rows,
    removes_table,
    to_adds,
    without,
)
from dagster_versioned.delta.log import (
    CheckpointFiles,
    Commit,
    LogSegment,
    commit_key,
    list_log,
    read_commit,
    read_commits,
)
from dagster_versioned.delta.paths import compute, confine
from dagster_versioned.delta.properties import interval_ms
from dagster_versioned.delta.schema import StructType, parse_schema
from dagster_versioned.errors import LogCorrupt, ObjectNotFound, UnsupportedFeature
from dagster_versioned.storage.object_store import ObjectStore


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a table at ``version``. Protocol: *Action Reconciliation*.

    Checked at construction, so that whoever holds one may read its files: every feature in use is implemented (else
    `UnsupportedFeature`), every live path stays below the table's folder (else `LogCorrupt`).

    ``files`` has the schema `files.FILES`, its rows are in no particular order and unique by (key, deletion vector);
    ``tombstones`` has the schema `files.TOMBSTONES` and shares none of them. ``domains`` maps the name of a domain to
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

    def adds(self) -> list[Add]:
        """The live files as actions; for callers that know there are few."""
        return to_adds(self.files)

    def advance(self, commits: Sequence[Commit]) -> "Snapshot":
        """The snapshot after ``commits``, which follow this version without a gap.

        Cost: the commits' own actions, and one pass over the identities of the live files where any is removed or
        replaced. Raises as the construction does.
        """
        return _advanced(_State.of(self), commits, self) if commits else self


def load_snapshot(store: ObjectStore, version: int | None = None) -> Snapshot:
    """Replay the snapshot at ``version``, or the newest one.

    A checkpoint that cannot be read is passed over for an older one, or for the log from its start, as far as that
    is there. Raises `TableNotFound`, `VersionNotFound`, `LogCorrupt`, `UnsupportedFeature`.
    """
    segment, base = _base(store, list_log(store, version))
    try:
        commits = read_commits(store, segment.commits.start, segment.commits.stop - 1)
        return _advanced(base, commits, None)
    except (LogCorrupt, UnsupportedFeature, ObjectNotFound) as error:
        error.add_note(f"While replaying version {segment.version} of {store.uri}.")
        raise


def replayed(commits: Sequence[Commit]) -> Snapshot:
    """The snapshot after ``commits``, which are all from version 0 on, without a store. Raises as `load_snapshot`."""
    return _advanced(_State(), commits, None)


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
            return segment, _state_at(store, segment.checkpoint, alone=not segment.commits)
        except (LogCorrupt, ObjectNotFound) as unreadable:
            try:
                segment = list_log(store, segment.version, before=segment.checkpoint.version)
            except LogCorrupt:
                raise unreadable from None
    return segment, _State()


def _state_at(store: ObjectStore, checkpoint: CheckpointFiles, *, alone: bool) -> _State:
    """The state a checkpoint holds; ``alone`` asks for the time and hash of its commit, which no later one replaces."""
    content = read_checkpoint(store, checkpoint)
    timestamp_ms, sha256 = checkpoint.file_time_ms, None
    if alone:
        try:
            commit = read_commit(store, checkpoint.version)
            timestamp_ms, sha256 = commit.timestamp_ms, commit.sha256
        except ObjectNotFound:
            pass  # Cleaned up; the checkpoint stands for it.
    for kind in (Protocol, Metadata):
        if sum(isinstance(action, kind) for action in content.actions) != 1:
            raise LogCorrupt(f"{checkpoint.keys[0]}: the checkpoint does not hold exactly one {kind.NAME}.")
    return _State(
        checkpoint.version,
        next(action for action in content.actions if isinstance(action, Protocol)),
        next(action for action in content.actions if isinstance(action, Metadata)),
        {action.app_id: action for action in content.actions if isinstance(action, Txn)},
        {
            action.domain: action.configuration
            for action in content.actions
            if isinstance(action, DomainMetadata) and not action.removed
        },
        content.files,
        content.tombstones,
        timestamp_ms,
        sha256,
    )


def _advanced(base: _State, commits: Sequence[Commit], checked: Snapshot | None) -> Snapshot:
    """Apply ``commits`` to ``base`` and check the result; ``checked`` is the snapshot ``base`` was, if any."""
    for expected, commit in enumerate(commits, base.version + 1):
        if commit.version != expected:
            raise LogCorrupt(f"Version {commit.version} was given where version {expected} comes next.")
    _require_timestamps(base, commits)
    actions = [action for commit in commits for action in commit.actions]
    protocol = next((action for action in reversed(actions) if isinstance(action, Protocol)), base.protocol)
    metadata = next((action for action in reversed(actions) if isinstance(action, Metadata)), base.metadata)
    txns = {**base.txns, **{action.app_id: action for action in actions if isinstance(action, Txn)}}
    changed = {action.domain: action for action in actions if isinstance(action, DomainMetadata)}
    domains = {name: value for name, value in base.domains.items() if name not in changed}
    domains |= {name: action.configuration for name, action in changed.items() if not action.removed}
    latest = {identity_text(action.identity): action for action in actions if isinstance(action, Add | Remove)}
    last = commits[-1] if commits else base
    if protocol is None or metadata is None:
        missing = "protocol" if protocol is None else "metaData"
        raise LogCorrupt(f"The log up to version {last.version} holds no {missing} action. Nothing was read.")
    require_read(protocol, metadata)
    schema = checked.schema if checked and metadata is checked.metadata else _schema_of(metadata)
    require_mapped(schema, column_mapping(protocol, metadata))
    adds = adds_table([action for action in latest.values() if isinstance(action, Add)])
    removes = removes_table([action for action in latest.values() if isinstance(action, Remove)])
    files = appended(without(base.files, latest), adds)
    confine((adds if checked else files)["path"])
    return Snapshot(
        last.version,
        protocol,
        metadata,
        schema,
        _unexpired_txns(txns, metadata, last.timestamp_ms),
        domains,
        files,
        appended(without(base.tombstones, latest), removes),
        last.timestamp_ms,
        last.sha256 if isinstance(last, Commit) else last.commit_sha256,
    )


def _require_timestamps(base: _State, commits: Sequence[Commit]) -> None:
    """Every commit must carry its time where the table asks for it, so one that was emptied or cut cannot pass for a
    commit that changed nothing. Protocol: *In-Commit Timestamps*."""
    metadata = base.metadata
    for commit in commits:
        metadata = commit.metadata or metadata
        if metadata is None or not metadata.is_set("delta.enableInCommitTimestamps"):
            continue
        if commit.commit_info is None or "inCommitTimestamp" not in commit.commit_info:
            raise LogCorrupt(
                f"{commit_key(commit.version)}: it holds no commitInfo with an inCommitTimestamp, which the table's"
                " property delta.enableInCommitTimestamps requires of every commit. Nothing was read."
            )


def _schema_of(metadata: Metadata) -> StructType:
    schema = parse_schema(metadata.schema_string)
    if not schema.fields:
        raise LogCorrupt("The table has no columns at this version, so it cannot be read.")
    if unknown := [name for name in metadata.partition_columns if name not in schema.names]:
        raise LogCorrupt(f"The table is partitioned by {unknown}, which its schema does not hold. Nothing was read.")
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
