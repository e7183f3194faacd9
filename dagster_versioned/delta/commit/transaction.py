"""Transactions: actions that become one commit, or nothing."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast
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
    first_of,
    of_kind,
)
from dagster_versioned.delta.commit.conflicts import (
    WHOLE_TABLE,
    Conflict,
    Intent,
    Reads,
    check,
    isolation,
    only_identity_went_on,
)
from dagster_versioned.delta.commit.iceberg import require_convertible
from dagster_versioned.delta.commit.protocol_upgrade import protocol_with, require_one_layout
from dagster_versioned.delta.commit.row_tracking import (
    ENABLED,
    PRESERVED_TAG,
    SUSPENDED,
    refuse_id_columns,
    require_ids,
    require_trackable,
    with_row_ids,
)
from dagster_versioned.delta.features import column_mapping, reader_features, require_write, writer_features
from dagster_versioned.delta.files.statistics import num_records
from dagster_versioned.delta.log.commits import Commit, commit_key, commit_of, commits_after, read_commits
from dagster_versioned.delta.log.snapshot import Snapshot, replayed
from dagster_versioned.delta.paths import confined_key
from dagster_versioned.delta.schema.column_mapping import (
    ColumnMapping,
    physical_name,
    physical_schema,
    require_mapped,
)
from dagster_versioned.delta.schema.types import StructField, StructType, parse_schema
from dagster_versioned.errors import AlreadyExists, CommitConflict, InvalidInput, LogCorrupt
from dagster_versioned.storage.backoff import RACE, RACES
from dagster_versioned.storage.object_store import ObjectStore

ENGINE_INFO = "dagster-versioned"

_STAMPED = "delta.enableInCommitTimestamps"

_IDENTITY_TAG = "delta.identity.schemaUpdate"
"""With it, the reference lets other commits pass a change of metadata that counts identity columns on."""

_SYSTEM_DOMAINS = {"delta.clustering": "clustering"}
"""The protocol's own domains that a transaction may write, and their features."""


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
    added files stay below the table's folder and carry a value for each partition column (by its physical name), files
    with deletion vectors tell their number of rows, an append-only table loses no row. Raises `InvalidInput`,
    `UnsupportedFeature`, `LogCorrupt` (paths). What the table asks of each row (`write_rules.WriteRules`) is for who
    wrote the files.

    Where the table tracks rows, row ids and commit versions are given to the files that lack them, at each attempt, and
    their high water mark is written with them.
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
        protocol, metadata = self.protocol, self.metadata
        require_write(protocol, metadata)
        known = self.read if self.read is not None and metadata is self.read.metadata else None
        schema = known.schema if known else parse_schema(metadata.schema_string)
        mapping = column_mapping(protocol, metadata)
        require_mapped(schema, mapping)
        columns = {physical_name(_column(schema, name), mapping) for name in metadata.partition_columns}
        self._check_files(columns, writer_features(protocol))
        self._check_domains(protocol)
        self._check_configuration(schema)
        if self._tracks_rows and (self.read is None or not self.read.metadata.is_set(ENABLED)):
            require_trackable(metadata, physical_schema(schema, mapping).names)
            require_ids(self.read, self.actions)
        if of_kind(self.actions, CommitInfo):
            raise InvalidInput("commitInfo is given by `commit_info`, not among the actions. Nothing was written.")

    @property
    def protocol(self) -> Protocol:
        """The table's protocol once this is committed."""
        given = first_of(self.actions, Protocol)
        if given is None and self.read is None:
            raise InvalidInput("A table is created with a protocol action, and there is none. Nothing was written.")
        return given or self.read.protocol  # pyright: ignore[reportOptionalMemberAccess]

    @property
    def metadata(self) -> Metadata:
        """The table's metadata once this is committed."""
        given = first_of(self.actions, Metadata)
        if given is None and self.read is None:
            raise InvalidInput("A table is created with a metaData action, and there is none. Nothing was written.")
        return given or self.read.metadata  # pyright: ignore[reportOptionalMemberAccess]

    def attempt(self, store: ObjectStore, version: int | None = None) -> Outcome:
        """Try once to commit as ``version``, which is by default the one after ``read``.

        A later ``version`` takes the commits in between as winners to be checked first, and goes on top of them.
        Raises `InvalidInput` for a version that is not after ``read``, and `StorageError` where the store fails;
        whether the commit landed then is known only to who lists the log (the store has already compared bytes where it
        could).
        """
        base = -1 if self.read is None else self.read.version
        target = base + 1 if version is None else version
        if target <= base:
            raise InvalidInput(f"Version {target} cannot be committed on top of version {base}. Nothing was written.")
        if target > base + 1:
            between = tuple(read_commits(store, base + 1, target - 1))
            if (conflict := check(self._intent(), between)) or self.read is None:
                return Conflicted(target, cast("Conflict", conflict), between)
            return replace(self, read=self.read.advance(between)).attempt(store)
        stamp = now_ms() if self.read is None else max(now_ms(), self.read.timestamp_ms + 1)
        info = self._commit_info(stamp)
        actions = self._actions(target, info.get("inCommitTimestamp", stamp))
        data = serialize_commit(actions, info)
        try:
            store.put_if_absent(commit_key(target), data)
        except AlreadyExists:
            winners = tuple(commits_after(store, base))
            if conflict := check(self._intent(), winners):
                return Conflicted(target, conflict, winners)
            return Retryable(base + 1 + len(winners), winners)
        return Committed(target, commit_of(target, data, [CommitInfo(info), *actions], stamp))

    def _actions(self, version: int, stamp: int) -> Sequence[Action]:
        """The actions as they are written in this version, at this time: with what only now is known."""
        actions = [
            _dated(action, version, stamp) if isinstance(action, Metadata) and self._begins_stamping else action
            for action in self.actions
        ]
        if "rowTracking" in writer_features(self.protocol) and not self.metadata.is_set(SUSPENDED):
            return with_row_ids(actions, self.read, version)
        return actions

    @property
    def _begins_stamping(self) -> bool:
        """Whether the table has commits without in-commit timestamps, and gets its first one with them."""
        stamps = self.metadata.is_set(_STAMPED)
        return stamps and self.read is not None and not self.read.metadata.is_set(_STAMPED)

    def _intent(self) -> Intent:
        return Intent(self.read, self.actions, self.reads, self.shared_domains)

    def _commit_info(self, stamp: int) -> dict[str, Any]:
        intent = self._intent()
        return {
            **({"inCommitTimestamp": stamp} if self.metadata.is_set(_STAMPED) else {}),
            "timestamp": stamp,
            "operation": self.operation,
            "operationParameters": dict(self.operation_parameters),
            **({} if self.read is None else {"readVersion": self.read.version}),
            "isolationLevel": isolation(intent),
            "isBlindAppend": intent.is_blind_append,
            "engineInfo": ENGINE_INFO,
            "txnId": self.transaction_id,
            **self.commit_info,
            **({"tags": tags} if (tags := {**self._tags(), **self.commit_info.get("tags", {})}) else {}),
        }

    def _tags(self) -> dict[str, str]:
        """What other programs ask of a commit: see *Row Tracking*, and the reference's rules for conflicts."""
        goes_on = self.read is not None and only_identity_went_on(self.read.metadata, self.metadata)
        return {
            **({PRESERVED_TAG: self._moves_no_row()} if self._tracks_rows else {}),
            **({_IDENTITY_TAG: "true"} if goes_on else {}),
        }

    @property
    def _tracks_rows(self) -> bool:
        return self.metadata.is_set(ENABLED) and "rowTracking" in writer_features(self.protocol)

    def _moves_no_row(self) -> str:
        """Whether surely no row was updated or copied; who preserved ids says so in ``commit_info``."""
        adds = {action.key for action in of_kind(self.actions, Add)}
        removes = {action.key for action in of_kind(self.actions, Remove)}
        return "true" if adds <= removes or not removes else "false"

    def _check_files(self, columns: set[str], features: frozenset[str]) -> None:
        append_only = self.metadata.is_set("delta.appendOnly")
        for action in self.actions:
            if isinstance(action, Add) and action.deletion_vector:
                _require_vectors(action, features)
            if isinstance(action, Add | Cdc):
                confined_key(action.path)
                if set(action.partition_values) != columns:
                    raise InvalidInput(
                        f"The file {action.path!r} has values for the partition columns"
                        f" {sorted(action.partition_values)}, but the table is partitioned by {sorted(columns)}."
                        " Nothing was written."
                    )
            elif isinstance(action, Remove) and action.data_change and append_only:
                raise InvalidInput(
                    f"The table is append-only (delta.appendOnly), so {action.path!r} cannot be removed."
                    " Nothing was written."
                )

    def _check_configuration(self, schema: StructType) -> None:
        """Check a change of protocol and metadata: what the table promises, its protocol makes others keep."""
        protocol, metadata, read = self.protocol, self.metadata, self.read
        require_convertible(read.metadata if read else None, protocol, metadata, schema, self.actions)
        if read is not None and protocol is read.protocol and metadata is read.metadata:
            return
        if read is None or not (read.partition_columns and "clustering" in writer_features(read.protocol)):
            require_one_layout(protocol, metadata)
        before = _names(read.schema, read.column_mapping) if read else set[str]()
        refuse_id_columns(metadata, before, _names(schema, column_mapping(protocol, metadata)))
        _require_features(read, protocol, metadata, schema)

    def _check_domains(self, protocol: Protocol) -> None:
        domains = [action.domain for action in of_kind(self.actions, DomainMetadata)]
        features = writer_features(protocol)
        if domains and "domainMetadata" not in features:
            raise InvalidInput(
                f"The metadata domain {domains[0]!r} needs the feature domainMetadata, which the table's protocol does"
                " not list. Nothing was written."
            )
        for domain in domains:
            if domain.startswith("delta.") and _SYSTEM_DOMAINS.get(domain) not in features:
                raise InvalidInput(f"The metadata domain {domain!r} belongs to the protocol. Nothing was written.")


def _require_vectors(add: Add, features: frozenset[str]) -> None:
    if "deletionVectors" not in features:
        raise InvalidInput(
            f"The file {add.path!r} has a deletion vector, which needs the feature deletionVectors; the"
            " table's protocol does not list it. Nothing was written."
        )
    if num_records(add.stats) is None:
        raise InvalidInput(
            f"The file {add.path!r} has a deletion vector, so its statistics must say how many rows it"
            " has. Nothing was written."
        )


def _require_features(read: Snapshot | None, protocol: Protocol, metadata: Metadata, schema: StructType) -> None:
    """Raise `InvalidInput` for a protocol that lacks what schema and properties need, or what the table has."""
    has = reader_features(protocol) | writer_features(protocol)
    needed = protocol_with(protocol, metadata.configuration, schema)
    if missing := (reader_features(needed) | writer_features(needed)) - has:
        raise InvalidInput(
            f"The table's schema and properties need {', '.join(sorted(missing))}, which its protocol lacks."
            " Nothing was written. `protocol_upgrade.protocol_with` says which protocol has it."
        )
    had = reader_features(read.protocol) | writer_features(read.protocol) if read else frozenset[str]()
    if lost := had - has - _without_traces(read):
        raise InvalidInput(
            f"The new protocol lacks {', '.join(sorted(lost))}, which the table has. Nothing was written."
        )


def _without_traces(read: Snapshot | None) -> frozenset[str]:
    """The features that the protocol may lose: nothing in the table is left of them."""
    if read is None or read.metadata.is_set(_STAMPED):
        return frozenset()
    unused = {name for domain, name in _SYSTEM_DOMAINS.items() if domain not in read.domains}
    return frozenset({"inCommitTimestamp", *unused, *(() if read.domains else ("domainMetadata",))})


def _dated(metadata: Metadata, version: int, stamp: int) -> Metadata:
    """With the provenance of in-commit timestamps. Protocol: *In-Commit Timestamps*."""
    since = {
        "delta.inCommitTimestampEnablementVersion": str(version),
        "delta.inCommitTimestampEnablementTimestamp": str(stamp),
    }
    return replace(metadata, configuration={**metadata.configuration, **since})


def _names(schema: StructType, mapping: ColumnMapping) -> set[str]:
    """What columns are called in the table and in its files."""
    return {*schema.names, *physical_schema(schema, mapping).names}


def _column(schema: StructType, name: str) -> StructField:
    try:
        return schema.field(name)
    except KeyError:
        raise InvalidInput(
            f"The table is to be partitioned by {name!r}, which its schema does not hold. Nothing was written."
        ) from None


# --- until it is committed -------------------------------------------------------------------------------------------


def commit(
    store: ObjectStore,
    snapshot: Snapshot | None,
    build: Callable[[Snapshot | None], Transaction],
    attempts: int = RACES,
) -> tuple[Snapshot, Committed]:
    """Commit what ``build`` makes of a snapshot; the snapshot after it, and the commit.

    ``build`` gets ``snapshot`` first (``None`` creates the table), and a newer one each time that others were faster
    but left all of that valid which the transaction had read and does: it puts the same files on top of it. Raises
    `CommitConflict`, with the reason, where they did not or where ``attempts`` races were lost; nothing was committed
    then, and the files that were written for it are nobody's. Passes on what `Transaction` raises.
    """
    for attempt in range(attempts):
        transaction = build(snapshot)
        match transaction.attempt(store):
            case Committed(commit=made) as committed:
                return (snapshot.advance([made]) if snapshot else replayed([made])), committed
            case Conflicted() as conflicted:
                raise CommitConflict(
                    f"{transaction.operation} on {store.uri} cannot be committed: {conflicted.reason}. Nothing of it"
                    " was committed. Read the table again, and repeat the operation."
                )
            case Retryable(winners=winners):
                # `None` never gets here: nothing passes the creation of a table.
                snapshot = snapshot.advance(winners) if snapshot else None
                RACE.pause(attempt)
    raise CommitConflict(
        f"{attempts} attempts to commit to {store.uri} lost the race for the next version. Nothing was committed."
        " Reduce the number of concurrent writers, or try again."
    )
