"""Transactions: actions that become one commit, or nothing."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from dagster_versioned.delta.actions import (
    Action,
    Add,
    Cdc,
    CommitInfo,
    DomainMetadata,
    Metadata,
    Protocol,
    Remove,
    check_commit,
    encode_action,
)
from dagster_versioned.delta.conflicts import WHOLE_TABLE, Conflict, Intent, Reads, check
from dagster_versioned.delta.features import refuse, require_write, writer_features
from dagster_versioned.delta.log import Commit, commit_key, commit_of, commits_after, read_commits
from dagster_versioned.delta.paths import confined_key
from dagster_versioned.delta.schema import parse_schema
from dagster_versioned.delta.snapshot import Snapshot
from dagster_versioned.errors import AlreadyExists, InvalidInput, LogCorrupt
from dagster_versioned.storage.object_store import ObjectStore

ENGINE_INFO = "dagster-versioned"


@dataclass(frozen=True, slots=True)
class Committed:
    """The commit is in the log, as ``version``."""

    version: int
    commit: Commit


@dataclass(frozen=True, slots=True)
class Conflicted:
    """Nothing was committed: a commit that came first changed what this one depends on."""

    version: int
    conflict: Conflict
    winners: tuple[Commit, ...]

    @property
    def reason(self) -> str:
        return f"version {self.conflict.version}: {self.conflict.reason}"


@dataclass(frozen=True, slots=True)
class Retryable:
    """Nothing was committed, but what came first does not matter: attempt ``version`` next.

    What depends on the version or on the commit before it (links, log versions) is built anew with
    ``dataclasses.replace(transaction, read=transaction.read.advance(winners), …)``.
    """

    version: int
    winners: tuple[Commit, ...]


Outcome = Committed | Conflicted | Retryable


def now_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def serialize_commit(actions: Iterable[Action], commit_info: Mapping[str, Any]) -> bytes:
    """The bytes of a commit: ``commitInfo`` first, one action a line, members in the order of the protocol's tables.

    Raises `InvalidInput` for a value without a JSON form.
    """
    lines = [encode_action(CommitInfo(commit_info)), *(encode_action(action) for action in actions)]
    return b"\n".join(lines) + b"\n"


@dataclass(frozen=True, slots=True)
class Transaction:
    """What is to be committed on top of ``read``; ``None`` creates the table.

    ``reads`` says what the actions were computed from (see `conflicts.Reads`), ``commit_info`` is put beside the
    standard members of the commit's ``commitInfo``. ``transaction_id`` makes the bytes of two transactions differ, so
    that a store can tell a commit of this one whose answer was lost from somebody else's.

    Checked at construction: the actions form a valid commit, the protocol that results is implemented for writing,
    added files stay below the table's folder and carry a value for each partition column, an append-only table loses
    no row. Raises `InvalidInput`, `UnsupportedFeature`, `LogCorrupt` (paths).
    """

    read: Snapshot | None
    actions: Sequence[Action]
    operation: str
    reads: Reads = WHOLE_TABLE
    operation_parameters: Mapping[str, str] = field(default_factory=dict[str, str])
    commit_info: Mapping[str, Any] = field(default_factory=dict[str, Any])
    shared_domains: tuple[str, ...] = ()
    transaction_id: str = field(default_factory=lambda: uuid4().hex)

    def __post_init__(self) -> None:
        try:
            check_commit(self.actions, "the new commit")
        except LogCorrupt as error:
            raise InvalidInput(f"{error} Nothing was written.") from error
        protocol, metadata = self._protocol(), self._metadata()
        require_write(protocol, metadata, parse_schema(metadata.schema_string))
        if self.read is not None and self.read.has_deletion_vectors:
            refuse({"deletionVectors"}, "written")
        self._check_files(metadata)
        self._check_domains(protocol)
        if CommitInfo in {type(action) for action in self.actions}:
            raise InvalidInput("commitInfo is given by `commit_info`, not among the actions. Nothing was written.")

    def attempt(self, store: ObjectStore, version: int | None = None) -> Outcome:
        """Try once to commit as ``version``, which is by default the one after ``read``.

        A later ``version`` takes the commits in between as winners to be checked first. Raises `InvalidInput` for a
        version that is not after ``read``, and `StorageError` where the store fails; whether the commit landed then is
        known only to who lists the log (the store has already compared bytes where it could).
        """
        base = -1 if self.read is None else self.read.version
        target = base + 1 if version is None else version
        if target <= base:
            raise InvalidInput(f"Version {target} cannot be committed on top of version {base}. Nothing was written.")
        between = read_commits(store, base + 1, target - 1) if target > base + 1 else []
        if conflict := check(self._intent(), between):
            return Conflicted(target, conflict, tuple(between))
        stamp = self._stamp(between)
        info = self._commit_info(stamp)
        data = serialize_commit(self.actions, info)
        try:
            store.put_if_absent(commit_key(target), data)
        except AlreadyExists:
            winners = (*between, *commits_after(store, target - 1))
            if conflict := check(self._intent(), winners):
                return Conflicted(target, conflict, winners)
            return Retryable(base + 1 + len(winners), winners)
        return Committed(target, commit_of(target, data, [CommitInfo(info), *self.actions], stamp))

    def _intent(self) -> Intent:
        return Intent(self.read, self.actions, self.reads, self.shared_domains)

    def _stamp(self, between: Sequence[Commit]) -> int:
        """The time of the commit: now, but always after the previous one. Milliseconds since the epoch."""
        if between:
            return max(now_ms(), between[-1].timestamp_ms + 1)
        return now_ms() if self.read is None else max(now_ms(), self.read.timestamp_ms + 1)

    def _commit_info(self, stamp: int) -> dict[str, Any]:
        metadata = self._metadata()
        stamped = metadata.is_set("delta.enableInCommitTimestamps")
        return {
            **({"inCommitTimestamp": stamp} if stamped else {}),
            "timestamp": stamp,
            "operation": self.operation,
            "operationParameters": dict(self.operation_parameters),
            "engineInfo": ENGINE_INFO,
            "txnId": self.transaction_id,
            **self.commit_info,
        }

    def _protocol(self) -> Protocol:
        given = next((action for action in self.actions if isinstance(action, Protocol)), None)
        if given is None and self.read is None:
            raise InvalidInput("A table is created with a protocol action, and there is none. Nothing was written.")
        return given or self.read.protocol  # pyright: ignore[reportOptionalMemberAccess]

    def _metadata(self) -> Metadata:
        given = next((action for action in self.actions if isinstance(action, Metadata)), None)
        if given is None and self.read is None:
            raise InvalidInput("A table is created with a metaData action, and there is none. Nothing was written.")
        return given or self.read.metadata  # pyright: ignore[reportOptionalMemberAccess]

    def _check_files(self, metadata: Metadata) -> None:
        columns = set(metadata.partition_columns)
        for action in self.actions:
            if isinstance(action, Add) and action.deletion_vector:
                refuse({"deletionVectors"}, "written")
            if isinstance(action, Add | Cdc):
                confined_key(action.path)
                if set(action.partition_values) != columns:
                    raise InvalidInput(
                        f"The file {action.path!r} has values for the partition columns"
                        f" {sorted(action.partition_values)}, but the table is partitioned by {sorted(columns)}."
                        " Nothing was written."
                    )
            elif isinstance(action, Remove) and action.data_change and metadata.is_set("delta.appendOnly"):
                raise InvalidInput(
                    f"The table is append-only (delta.appendOnly), so {action.path!r} cannot be removed."
                    " Nothing was written."
                )

    def _check_domains(self, protocol: Protocol) -> None:
        domains = [action.domain for action in self.actions if isinstance(action, DomainMetadata)]
        if domains and "domainMetadata" not in writer_features(protocol):
            raise InvalidInput(
                f"The metadata domain {domains[0]!r} needs the feature domainMetadata, which the table's protocol does"
                " not list. Nothing was written."
            )
        for domain in domains:
            if domain.startswith("delta."):
                raise InvalidInput(f"The metadata domain {domain!r} belongs to the protocol. Nothing was written.")
