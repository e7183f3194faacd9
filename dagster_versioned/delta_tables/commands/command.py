"""One command on its way from the engine to the log."""

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Self
from uuid import uuid4

import pyarrow as pa

from dagster_versioned.delta.actions import Action, Add, Remove, Txn
from dagster_versioned.delta.commit.checkpoint import write_checkpoint
from dagster_versioned.delta.commit.conflicts import NOTHING, WHOLE_TABLE, Reads, isolation
from dagster_versioned.delta.commit.conflicts import Intent as CommitIntent
from dagster_versioned.delta.commit.row_tracking import PRESERVED_TAG
from dagster_versioned.delta.commit.transaction import Transaction, commit, now_ms
from dagster_versioned.delta.commit.write_rules import WriteRules
from dagster_versioned.delta.files.deletion_vectors import vector_key
from dagster_versioned.delta.files.file_actions import adds_table, to_adds
from dagster_versioned.delta.files.predicate import Predicate, parse_predicate
from dagster_versioned.delta.files.skipping import candidates
from dagster_versioned.delta.log.cleanup import cleanup_log
from dagster_versioned.delta.log.snapshot import Snapshot
from dagster_versioned.delta.schema.column_mapping import physical_name
from dagster_versioned.delta.schema.identity_columns import with_high_water_marks
from dagster_versioned.delta_tables.commands.plan import Plan, newest, require_writable
from dagster_versioned.delta_tables.dml import Change, Delete, FileChanges, Merge, RowEngine, Target
from dagster_versioned.errors import CommitConflict, InvalidInput, StorageError, VersionedError
from dagster_versioned.storage.object_store import ObjectStore

CHECKPOINT_INTERVAL = 10
"""Versions from one checkpoint to the next; the property ``delta.checkpointInterval`` says another number."""


@dataclass(frozen=True, slots=True)
class Applied:
    """What a command did: the version it committed, or found where there was nothing to do; counts of rows and files,
    named as in the reference's ``operationMetrics``.

    ``skipped``: nothing was done, because the table has this write of its application already.
    """

    version: int
    metrics: Mapping[str, int] = field(default_factory=dict[str, int])
    skipped: bool = False


@dataclass(frozen=True, slots=True)
class Provenance:
    """``txn``: the identifier under which a write is committed at most once; ``user_metadata``: a remark of one's own.

    Protocol: *Transaction Identifiers*, *Commit Provenance Information*.
    """

    txn: Txn | None = None
    user_metadata: str | None = None

    @classmethod
    def of(cls, app_id: str | None, version: int | None, user_metadata: str | None) -> Self:
        """Raises `InvalidInput` where only one of ``app_id`` and ``version`` is given, or something is of no use."""
        # Calls of users are not checked for their types.
        if user_metadata is not None and not isinstance(user_metadata, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidInput(f"user_metadata is {user_metadata!r:.50}; it is text. Nothing was written.")
        if app_id is None and version is None:
            return cls(None, user_metadata)
        if not app_id or version is None:
            raise InvalidInput(
                f"app_id ({app_id!r:.100}) and version ({version!r}) go together: the application, and how far it is"
                " with this write. Nothing was written. Pass both, or none."
            )
        if type(version) is not int or not 0 <= version < 2**63:
            raise InvalidInput(
                f"The version of {app_id!r:.100} is {version!r:.50}, which is no number of 0 or more. Nothing was"
                " written."
            )
        return cls(Txn(app_id, version, now_ms()), user_metadata)

    @property
    def commit_info(self) -> dict[str, Any]:
        """What of it is in the ``commitInfo``, by the reference's name."""
        return {} if self.user_metadata is None else {"userMetadata": self.user_metadata}

    def is_committed(self, read: Snapshot | None) -> bool:
        """Whether the table has this write of the application already, or a later one."""
        known = None if read is None or self.txn is None else read.txns.get(self.txn.app_id)
        return known is not None and self.txn is not None and known.version >= self.txn.version


UNNAMED = Provenance()


class Command:
    """A command on its way from the engine to the log."""

    def __init__(self, engine: RowEngine, store: ObjectStore, plan: Plan, provenance: Provenance = UNNAMED) -> None:
        self.engine = engine
        self.store = store
        self.plan = plan
        self.provenance = provenance
        require_writable(plan.left)
        self.target = Target(store, plan.left, WriteRules.of_snapshot(plan.left), str(uuid4()))
        self._begun = time.monotonic()

    def refuse_append_only(self) -> None:
        if self.target.rules.append_only:
            raise InvalidInput(
                f"The table {self.store.uri} is append-only (delta.appendOnly), so no row of it can go. Nothing was"
                " written."
            )

    def append(self, rows: Any, mode: str = "Append") -> Applied:
        reads = WHOLE_TABLE if self.plan.read is None else NOTHING
        return self.run(lambda: self.engine.write(self.target, rows), "WRITE", self._written(mode), reads)

    def overwrite(self, rows: Any) -> Applied:
        def changes() -> FileChanges:
            assert self.plan.read is not None
            written = self.engine.write(self.target, rows)
            return replace(written, removes=_removed(to_adds(self.plan.read.files)))

        return self.run(changes, "WRITE", self._written("Overwrite"), WHOLE_TABLE)

    def overwrite_where(self, rows: Any, where: str) -> Applied:
        files, reads = self._candidates(where)

        def changes() -> FileChanges:
            gone = self.engine.change(self.target, files, Delete(where))
            written = self.engine.write(self.target, rows, within=where, changes=bool(gone.cdcs))
            return FileChanges(
                (*gone.adds, *written.adds),
                gone.removes,
                (*gone.cdcs, *written.cdcs),
                {**gone.metrics, **written.metrics},
                written.identity,
            )

        parameters = {**self._written("Overwrite"), "predicate": where}
        return self.run(changes, "WRITE", parameters, reads)

    def overwrite_partitions(self, rows: Any) -> Applied:
        read = self.plan.left
        named = [physical_name(read.schema.field(name), read.column_mapping) for name in read.partition_columns]
        written_to: set[tuple[str | None, ...]] = set()

        def place(add: Add) -> tuple[str | None, ...]:
            return tuple(add.partition_values[name] for name in named)

        def changes() -> FileChanges:
            written = self.engine.write(self.target, rows)
            written_to.update(place(add) for add in written.adds)
            return replace(written, removes=_removed([add for add in to_adds(read.files) if place(add) in written_to]))

        parameters = {**self._written("Overwrite"), "isDynamicPartitionOverwrite": "true"}
        return self.run(changes, "WRITE", parameters, Reads(lambda add: place(add) in written_to))

    def change(self, change: Change, operation: str, parameters: Mapping[str, str], where: str | None) -> Applied:
        """Delete, update or merge; ``where`` is what all rows concerned satisfy, for a merge its condition."""
        files, reads = self._candidates(where, "target" if isinstance(change, Merge) else None)
        return self.run(lambda: self.engine.change(self.target, files, change), operation, parameters, reads)

    def run(
        self, work: Callable[[], FileChanges], operation: str, parameters: Mapping[str, str], reads: Reads
    ) -> Applied:
        """Have files written and commit them; on failure, remove them."""
        try:
            changes = work()
        except BaseException:
            self._discard(FileChanges())
            raise
        return self.commit(changes, operation, parameters, reads)

    def commit(self, changes: FileChanges, operation: str, parameters: Mapping[str, str], reads: Reads) -> Applied:
        read = self.plan.read
        actions = self._actions(changes)
        if not actions and read is not None:
            return Applied(read.version, changes.metrics)
        elapsed = int((time.monotonic() - self._begun) * 1000)
        metrics = _operation_metrics(changes, operation, elapsed)

        def build(snapshot: Snapshot | None) -> Transaction:
            intent = CommitIntent(snapshot, actions, reads)
            info: dict[str, Any] = {
                **({} if snapshot is None else {"readVersion": snapshot.version}),
                "isolationLevel": isolation(intent),
                "isBlindAppend": intent.is_blind_append or (snapshot is None and not changes.removes),
                "operationMetrics": {name: str(value) for name, value in metrics.items()},
                **self.provenance.commit_info,
            }
            if self.target.rules.row_tracking is not None:
                info["tags"] = {PRESERVED_TAG: "true"}
            return Transaction(snapshot, actions, operation, reads, parameters, info)

        try:
            after, _ = commit(self.store, read, build)
        except StorageError:
            raise  # It may have landed, so the files may be the table's.
        except VersionedError as error:
            self._discard(changes)
            if isinstance(error, CommitConflict) and self.provenance.is_committed(now := newest(self.store)):
                return Applied(now.version if now else 0, skipped=True)
            raise
        _checkpoint(self.store, after)
        return Applied(after.version, metrics)

    def _actions(self, changes: FileChanges) -> list[Action]:
        left, read = self.plan.left, self.plan.read
        metadata = with_high_water_marks(left.metadata, changes.identity) if changes.identity else left.metadata
        actions: list[Action] = [] if read is not None and read.protocol == left.protocol else [left.protocol]
        if read is None or metadata != read.metadata:
            actions.append(metadata)
        if self.provenance.txn is not None:
            actions.append(self.provenance.txn)
        return [*actions, *self.plan.also, *changes.adds, *changes.removes, *changes.cdcs]

    def _candidates(self, where: str | None, qualifier: str | None = None) -> tuple[tuple[Add, ...], Reads]:
        """The files that may hold rows that a predicate is true for, and what is read by looking for them."""
        snapshot = self.plan.read or self.plan.left
        if where is None:
            return tuple(to_adds(snapshot.files)), WHOLE_TABLE
        predicate = parse_predicate(where, snapshot.schema, qualifier)

        def reads(add: Add) -> bool:
            return _may_hold(adds_table([add]), predicate, snapshot).num_rows > 0

        return tuple(to_adds(_may_hold(snapshot.files, predicate, snapshot))), Reads(reads)

    def _written(self, mode: str) -> dict[str, str]:
        return {"mode": mode, "partitionBy": compact_json(list(self.plan.left.partition_columns))}

    def _discard(self, changes: FileChanges) -> None:
        """Remove what this command wrote; its files have its id in their names, but for deletion vectors."""
        keys = [
            info.key
            for info in self.store.list()
            if self.target.write_id in info.key and not info.key.startswith("_delta_log/")
        ]
        known = {remove.deletion_vector for remove in changes.removes}
        keys += {
            vector_key(self.store, add.deletion_vector, add.key)
            for add in changes.adds
            if add.deletion_vector is not None and add.deletion_vector not in known
        }
        self.store.delete(keys)


def _checkpoint(store: ObjectStore, snapshot: Snapshot) -> None:
    """Write a checkpoint every so many versions, and clean up the log that is older, as the reference does."""
    interval = snapshot.metadata.configuration.get("delta.checkpointInterval", "")
    every = int(interval) if re.fullmatch("[0-9]{1,9}", interval) and int(interval) else CHECKPOINT_INTERVAL
    if snapshot.version and snapshot.version % every == 0:
        # The commit stands without it: a checkpoint but makes reading quicker.
        # Nor does it depend on what is cleaned up behind it.
        with suppress(StorageError):
            write_checkpoint(store, snapshot)
            with suppress(VersionedError):
                cleanup_log(store, snapshot, datetime.now(UTC))


def _may_hold(files: pa.Table, predicate: Predicate, snapshot: Snapshot) -> pa.Table:
    return candidates(files, predicate, snapshot.schema, snapshot.column_mapping, snapshot.partition_columns)


def _removed(adds: Sequence[Add]) -> tuple[Remove, ...]:
    now = now_ms()
    return tuple(add.removed(now) for add in adds)


def compact_json(value: object) -> str:
    """A parameter of an operation, as the reference writes it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


_OF_FILES = {
    "numAddedFiles": "new files",
    "numRemovedFiles": "gone files",
    "numAddedBytes": "new bytes",
    "numRemovedBytes": "gone bytes",
}
_OF_ROWS = {
    **_OF_FILES,
    "numAddedChangeFiles": "change files",
    "numDeletionVectorsUpdated": "vectors",
    "executionTimeMs": "elapsed",
}
_OF_REPLACED = {"numRemovedFiles": "gone files", "numRemovedBytes": "gone bytes"}
_METRICS = {
    "WRITE": {"numFiles": "new files", "numOutputBytes": "new bytes"},
    "MERGE": {
        "numTargetFilesAdded": "new files",
        "numTargetFilesRemoved": "gone files",
        "numTargetBytesAdded": "new bytes",
        "numTargetBytesRemoved": "gone bytes",
        "numTargetChangeFilesAdded": "change files",
        "numTargetDeletionVectorsUpdated": "vectors",
        "executionTimeMs": "elapsed",
    },
    "DELETE": _OF_ROWS,
    "UPDATE": _OF_ROWS,
    "OPTIMIZE": _OF_FILES,
}
"""What the reference's ``operationMetrics`` of an operation have beside rows: figures of `_operation_metrics`."""


def _operation_metrics(changes: FileChanges, operation: str, elapsed: int) -> dict[str, int]:
    """What a command did, named as in the reference's ``operationMetrics``; ``elapsed`` is in milliseconds."""
    new = {add.key: add.size for add in changes.adds}
    gone = {remove.key: remove.size or 0 for remove in changes.removes}
    thinned = new.keys() & gone.keys()
    for key in thinned:
        del new[key], gone[key]
    figures = {
        "new files": len(new),
        "new bytes": sum(new.values()),
        "gone files": len(gone),
        "gone bytes": sum(gone.values()),
        "change files": len(changes.cdcs),
        "vectors": len(thinned),
        "elapsed": elapsed,
    }
    names = {**_METRICS.get(operation, {}), **(_OF_REPLACED if operation == "WRITE" and gone else {})}
    counts = {**changes.metrics, **{name: figures[figure] for name, figure in names.items()}}
    if operation == "MERGE":
        written = ("numTargetRowsInserted", "numTargetRowsUpdated", "numTargetRowsCopied")
        counts["numOutputRows"] = sum(counts.get(name, 0) for name in written)
    return counts
