"""The commands that change rows of any Delta table, for every engine: one commit each, or nothing.

A command reads the newest snapshot, has a `RowEngine` write files, and commits them. Commits that came in between and
left valid what it read are passed over; others raise `CommitConflict`. What a failed command wrote is removed, unless
it is not known whether its commit landed: then the files are left for vacuum.
"""

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal
from uuid import uuid4

from dagster_versioned.delta.actions import Action, Add, Metadata, Protocol, Remove
from dagster_versioned.delta.alter import CHANGE_FEED, CHANGE_FEED_COLUMNS
from dagster_versioned.delta.checkpoint import write_checkpoint
from dagster_versioned.delta.clustering import clustering_domain
from dagster_versioned.delta.column_mapping import physical_name
from dagster_versioned.delta.conflicts import NOTHING, WHOLE_TABLE, Reads, isolation
from dagster_versioned.delta.conflicts import Intent as CommitIntent
from dagster_versioned.delta.deletion_vectors import vector_key
from dagster_versioned.delta.features import require_write
from dagster_versioned.delta.files import FILES, TOMBSTONES, adds_table, no_rows, to_adds
from dagster_versioned.delta.identity_columns import with_high_water_marks
from dagster_versioned.delta.mapped_columns import with_mapped_columns
from dagster_versioned.delta.predicate import Predicate, parse_predicate
from dagster_versioned.delta.properties import require_values
from dagster_versioned.delta.protocol_upgrade import protocol_with
from dagster_versioned.delta.row_tracking import ENABLED as ROW_TRACKING
from dagster_versioned.delta.row_tracking import PRESERVED_TAG, new_columns
from dagster_versioned.delta.schema import StructType
from dagster_versioned.delta.schema_merge import merged_schema, replaced_schema
from dagster_versioned.delta.skipping import candidates, certain
from dagster_versioned.delta.snapshot import Snapshot, load_snapshot
from dagster_versioned.delta.transaction import Transaction, commit, now_ms
from dagster_versioned.delta.widening import ENABLED as WIDENING
from dagster_versioned.delta.write_rules import WriteRules
from dagster_versioned.engines.dml import (
    Assignments,
    Change,
    Clause,
    Delete,
    FileChanges,
    Merge,
    RowEngine,
    Target,
    Update,
    WhenMatched,
    WhenNotMatched,
    WhenNotMatchedBySource,
)
from dagster_versioned.errors import InvalidInput, StorageError, TableNotFound, VersionedError
from dagster_versioned.storage.object_store import ObjectStore

Mode = Literal["append", "overwrite", "error", "ignore"]
SchemaMode = Literal["merge", "overwrite"]

FIRST_PROTOCOL = Protocol(1, 2)
"""What a new table asks for that uses no feature; as the reference has it."""

OPTIMIZED_BYTES = 128 * 1024 * 1024
"""The size that compaction makes files of; the property ``delta.targetFileSize`` says another."""

CHECKPOINT_INTERVAL = 10
"""Versions from one checkpoint to the next; the property ``delta.checkpointInterval`` says another number."""

CLUSTERING_PROVIDER = "dagster-versioned"

_NOT_STORED = ("delta.feature.", "delta.minReaderVersion", "delta.minWriterVersion")
_OURS = "dagster_versioned"


@dataclass(frozen=True, slots=True)
class Applied:
    """What a command did: the version it committed, or found where there was nothing to do; counts of rows and files,
    named as in the reference's ``operationMetrics``."""

    version: int
    metrics: Mapping[str, int] = field(default_factory=dict[str, int])


# --- creating and appending ------------------------------------------------------------------------------------------


def create(
    store: ObjectStore,
    schema: StructType,
    *,
    partition_by: Sequence[str] = (),
    cluster_by: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
    name: str | None = None,
    description: str | None = None,
) -> Applied:
    """Create a table without rows. Raises `InvalidInput` where there is one already."""
    if _snapshot(store) is not None:
        raise _exists(store)
    planned, also = _planned(schema, partition_by, cluster_by, properties or {}, name, description)
    _refuse_reserved(planned.metadata, schema)
    actions = [planned.protocol, planned.metadata, *also]
    parameters = {"partitionBy": _json(list(partition_by)), "properties": _json(dict(properties or {}))}
    made = Transaction(None, actions, "CREATE TABLE", NOTHING, parameters)
    return Applied(commit(store, None, lambda _: made)[0].version)


def write(
    engine: RowEngine,
    store: ObjectStore,
    rows: Any,
    *,
    mode: Mode = "append",
    partition_by: Sequence[str] | None = None,
    cluster_by: Sequence[str] = (),
    where: str | None = None,
    dynamic: bool = False,
    schema_mode: SchemaMode | None = None,
    properties: Mapping[str, str] | None = None,
) -> Applied:
    """Write a frame's rows, creating the table where there is none.

    ``overwrite`` replaces every row, or with ``where`` those that the predicate is true for, or with ``dynamic`` those
    of the partitions that the new rows are in. ``schema_mode`` allows new columns and wider types (``merge``), or
    gives the table the rows' columns (``overwrite``, only where every row is replaced). ``partition_by``,
    ``cluster_by`` and ``properties`` are of a table that is created. Raises `InvalidInput`, `UnsupportedFeature`,
    `CommitConflict`.
    """
    if mode != "overwrite" and (where is not None or dynamic):
        raise InvalidInput("where and dynamic choose what is overwritten; pass mode='overwrite'. Nothing was written.")
    if where is not None and dynamic:
        raise InvalidInput("where and dynamic choose differently what is overwritten. Nothing was written. Pass one.")
    read = _snapshot(store)
    if read is None:
        return _write_new(engine, store, rows, partition_by or (), cluster_by, properties or {}, mode)
    if mode == "ignore":
        return Applied(read.version)
    if mode == "error":
        raise _exists(store)
    if schema_mode == "overwrite" and (mode == "append" or where is not None or dynamic):
        raise InvalidInput("schema_mode='overwrite' needs every row to be overwritten. Nothing was written.")
    _check_existing(read, None if schema_mode == "overwrite" else partition_by, properties)
    command = _Command(engine, store, _evolved(read, engine.schema_of(rows), schema_mode, partition_by))
    if mode == "append":
        return command.append(rows)
    command.refuse_append_only()
    if dynamic and read.partition_columns:
        return command.overwrite_partitions(rows)
    return command.overwrite(rows) if where is None else command.overwrite_where(rows, where)


def _check_existing(read: Snapshot, partition_by: Sequence[str] | None, properties: Mapping[str, str] | None) -> None:
    if properties:
        raise InvalidInput("The table exists already: properties are set on it by itself. Nothing was written.")
    if partition_by is not None and tuple(partition_by) != read.partition_columns:
        raise InvalidInput(
            f"The table is partitioned by {list(read.partition_columns)}, not by {list(partition_by)}. Nothing was"
            " written."
        )


def _write_new(
    engine: RowEngine,
    store: ObjectStore,
    rows: Any,
    partition_by: Sequence[str],
    cluster_by: Sequence[str],
    properties: Mapping[str, str],
    mode: Mode,
) -> Applied:
    planned, also = _planned(engine.schema_of(rows), partition_by, cluster_by, properties)
    command = _Command(engine, store, _Plan(None, planned, tuple(also)))
    return command.append(rows, {"error": "ErrorIfExists", "ignore": "Ignore"}.get(mode, mode.capitalize()))


def _planned(
    schema: StructType,
    partition_by: Sequence[str],
    cluster_by: Sequence[str],
    properties: Mapping[str, str],
    name: str | None = None,
    description: str | None = None,
) -> tuple[Snapshot, list[Action]]:
    """A table that is to be created, as a snapshot before its first version, and its clustering."""
    require_values(properties)
    partitions = tuple(_named(schema, column) for column in partition_by)
    clustering = [(_named(schema, column),) for column in cluster_by]
    if partitions and clustering:
        raise InvalidInput("A table is either partitioned or clustered. Nothing was written.")
    if len(partitions) == len(schema.fields):
        raise InvalidInput("Every column is a partition column, so files would hold none. Nothing was written.")
    configuration = {key: value for key, value in properties.items() if not key.startswith(_NOT_STORED)}
    if configuration.get(ROW_TRACKING, "").lower() == "true":
        configuration = {**new_columns(), **configuration}
    schema, configuration = with_mapped_columns(schema, configuration)
    asked = dict(properties)
    if clustering:
        asked |= {"delta.feature.clustering": "supported", "delta.feature.domainMetadata": "supported"}
    protocol = protocol_with(FIRST_PROTOCOL, {**configuration, **asked}, schema)
    metadata = Metadata(
        str(uuid4()), schema.json(), partitions, configuration, name, description, created_time=now_ms()
    )
    snapshot = Snapshot(
        -1, protocol, metadata, schema, {}, {}, no_rows(FILES), no_rows(TOMBSTONES), metadata.created_time or 0, None
    )
    if not clustering:
        return snapshot, []
    domain = clustering_domain(clustering, schema, snapshot.column_mapping)
    return replace(snapshot, domains={domain.domain: domain.configuration}), [domain]


def _evolved(
    read: Snapshot, rows: StructType, schema_mode: SchemaMode | None, partition_by: Sequence[str] | None
) -> "_Plan":
    if schema_mode is None:
        return _Plan(read, read)
    if schema_mode == "merge":
        schema = merged_schema(read.schema, rows, widen=read.metadata.is_set(WIDENING))
    else:
        schema = replaced_schema(read.schema, rows)
    partitions = read.partition_columns
    if schema_mode == "overwrite":
        partitions = tuple(_named(schema, column) for column in (partitions if partition_by is None else partition_by))
    if schema == read.schema and partitions == read.partition_columns:
        return _Plan(read, read)
    schema, configuration = with_mapped_columns(schema, read.metadata.configuration)
    metadata = replace(
        read.metadata, schema_string=schema.json(), configuration=configuration, partition_columns=partitions
    )
    protocol = protocol_with(read.protocol, configuration, schema)
    return _Plan(read, replace(read, metadata=metadata, schema=schema, protocol=protocol))


def _named(schema: StructType, column: str) -> str:
    for name in schema.names:
        if name.casefold() == column.casefold():
            return name
    raise InvalidInput(f"There is no column {column!r} among {', '.join(schema.names):.500}. Nothing was written.")


# --- changing rows ---------------------------------------------------------------------------------------------------


def delete(engine: RowEngine, store: ObjectStore, where: str | None = None) -> Applied:
    """Delete the rows that ``where`` is true for, or all. Raises as `write`, and `TableNotFound`."""
    read = _existing(store)
    command = _Command(engine, store, _Plan(read, read))
    command.refuse_append_only()
    predicate = "[]" if where is None else _json([where])
    return command.change(Delete(where), "DELETE", {"predicate": predicate}, where)


def update(engine: RowEngine, store: ObjectStore, assignments: Assignments, where: str | None = None) -> Applied:
    """Give new values to the rows that ``where`` is true for, or all. Raises as `delete`."""
    if not assignments:
        raise InvalidInput("An update that assigns nothing changes nothing. Nothing was written.")
    read = _existing(store)
    command = _Command(engine, store, _Plan(read, read))
    command.refuse_append_only()
    parameters = {} if where is None else {"predicate": _json([where])}
    return command.change(Update(assignments, where), "UPDATE", parameters, where)


def merge(
    engine: RowEngine,
    store: ObjectStore,
    source: Any,
    on: str,
    clauses: Sequence[Clause],
    schema_mode: Literal["merge"] | None = None,
) -> Applied:
    """Merge a frame's rows into the table; see `Merge`. Raises as `delete`.

    ``schema_mode`` ``merge`` adds the source's columns to the table where a clause takes ``"all"``.
    """
    change = Merge(source, on, tuple(clauses))
    _check_clauses(change)
    read = _existing(store)
    takes_all = any(clause.then == "all" for clause in clauses)
    plan = _Plan(read, read)
    if schema_mode == "merge" and takes_all:
        plan = _evolved(read, engine.schema_of(source), "merge", None)
    command = _Command(engine, store, plan)
    if len(change.of_kind(WhenNotMatched)) < len(clauses):
        command.refuse_append_only()
    by_source = change.of_kind(WhenNotMatchedBySource)
    parameters = {
        "predicate": _json([on]),
        "matchedPredicates": _json([_described(clause) for clause in change.of_kind(WhenMatched)]),
        "notMatchedPredicates": _json([_described(clause) for clause in change.of_kind(WhenNotMatched)]),
        "notMatchedBySourcePredicates": _json([_described(clause) for clause in by_source]),
    }
    return command.change(change, "MERGE", parameters, None if by_source else on)


def _check_clauses(change: Merge) -> None:
    if not change.clauses:
        raise InvalidInput("A merge without clauses changes nothing. Nothing was written.")
    for kind in (WhenMatched, WhenNotMatched, WhenNotMatchedBySource):
        clauses = change.of_kind(kind)
        if any(clause.condition is None for clause in clauses[:-1]):
            raise InvalidInput(
                f"A {kind.__name__} without condition leaves nothing to the clauses after it. Nothing was written. Put"
                " it last."
            )


def _described(clause: Clause) -> dict[str, str]:
    insert = isinstance(clause, WhenNotMatched)
    action = "delete" if clause.then == "delete" else "insert" if insert else "update"
    return {"actionType": action, **({} if clause.condition is None else {"predicate": clause.condition})}


def add_constraint(engine: RowEngine, store: ObjectStore, name: str, check: str) -> Applied:
    """Add a CHECK constraint, which every row of the table must satisfy already. Raises `InvalidInput`."""
    read = _existing(store)
    key = f"delta.constraints.{name.lower()}"
    if key in read.metadata.configuration:
        raise InvalidInput(f"The table has a constraint {name!r} already. Nothing was written. Drop it first.")
    command = _Command(engine, store, _Plan(read, read))
    if count := engine.violations(command.target, check):
        raise InvalidInput(f"{count} rows of the table do not satisfy {check}. Nothing was written.")
    configuration = {**read.metadata.configuration, key: check}
    metadata = replace(read.metadata, configuration=configuration)
    protocol = protocol_with(read.protocol, configuration, read.schema)
    command.plan = _Plan(read, replace(read, metadata=metadata, protocol=protocol))
    return command.commit(FileChanges(), "ADD CONSTRAINT", {"name": name, "expr": check}, WHOLE_TABLE)


# --- compaction ------------------------------------------------------------------------------------------------------


def optimize(engine: RowEngine, store: ObjectStore, where: str | None = None, order_by: Sequence[str] = ()) -> Applied:
    """Join small files, and apply deletion vectors; no row changes. Raises as `delete`.

    ``where`` speaks of partition columns only. Files are sorted by ``order_by``, or by the columns that the table is
    clustered by: then every file is written that no earlier call has sorted.
    """
    read = _existing(store)
    command = _Command(engine, store, _Plan(read, read))
    files = read.files if where is None else _of_partitions(read, where)
    target_bytes = _target_bytes(read.metadata)
    clustered = () if order_by else tuple(".".join(path) for path in command.target.rules.clustering)
    groups = _groups(to_adds(files), target_bytes, everything=bool(order_by), clustered=bool(clustered))
    if not groups:
        return Applied(read.version)
    keys = {add.key for group in groups for add in group}
    parameters = {
        "predicate": _json([] if where is None else [where]),
        "zOrderBy": _json(list(order_by)),
        "auto": "false",
    }
    if clustered:
        parameters["clusterBy"] = _json(list(clustered))

    def rewritten() -> FileChanges:
        changes = engine.rewrite(command.target, groups, tuple(order_by) or clustered)
        if not clustered:
            return changes
        return replace(
            changes, adds=tuple(replace(add, clustering_provider=CLUSTERING_PROVIDER) for add in changes.adds)
        )

    return command.run(rewritten, "OPTIMIZE", parameters, Reads(lambda add: add.key in keys))


_SIZE = re.compile(r"(\d{1,12})\s*([kmgt]?)i?b?", re.ASCII)


def _target_bytes(metadata: Metadata) -> int:
    match = _SIZE.fullmatch(metadata.configuration.get("delta.targetFileSize", "").strip().lower())
    return int(match[1]) * 1024 ** " kmgt".index(match[2] or " ") or 1 if match else OPTIMIZED_BYTES


def _of_partitions(read: Snapshot, where: str) -> Any:
    predicate = parse_predicate(where, read.schema)
    files = candidates(read.files, predicate, read.schema, read.column_mapping, read.partition_columns)
    sure = certain(files, predicate, read.schema, read.column_mapping, read.partition_columns)
    if sure.num_rows != files.num_rows:
        raise InvalidInput(
            f"{where!r} does not choose whole partitions (the table is partitioned by {list(read.partition_columns)})."
            " Nothing was written."
        )
    return files


def _groups(adds: Sequence[Add], target_bytes: int, *, everything: bool, clustered: bool) -> list[list[Add]]:
    """Files of one partition that together are to become one file, or several sorted ones."""
    partitions: dict[tuple[tuple[str, str | None], ...], list[Add]] = {}
    for add in adds:
        partitions.setdefault(tuple(sorted(add.partition_values.items())), []).append(add)
    groups: list[list[Add]] = []
    for members in partitions.values():
        if everything or clustered:
            pending = [add for add in members if everything or add.clustering_provider != CLUSTERING_PROVIDER]
            groups += _bins(pending, 8 * target_bytes)
            continue
        small = [add for add in members if add.size < target_bytes or add.deletion_vector is not None]
        groups += [
            group for group in _bins(small, target_bytes) if len(group) > 1 or group[0].deletion_vector is not None
        ]
    return groups


def _bins(adds: Sequence[Add], capacity: int) -> list[list[Add]]:
    """First come, first packed, by size: neighbours in size are likely to be of one age."""
    groups: list[list[Add]] = []
    room = 0
    for add in sorted(adds, key=lambda add: (add.size, add.key)):
        if not groups or add.size > room:
            groups.append([])
            room = capacity
        groups[-1].append(add)
        room -= add.size
    return groups


# --- one command -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Plan:
    """What a command read (``None``: there is no table), and the table as its commit will leave it, but for files."""

    read: Snapshot | None
    left: Snapshot
    also: tuple[Action, ...] = ()


class _Command:
    """A command on its way from the engine to the log."""

    def __init__(self, engine: RowEngine, store: ObjectStore, plan: _Plan) -> None:
        self.engine = engine
        self.store = store
        self.plan = plan
        _refuse_reserved(plan.left.metadata, plan.left.schema)
        require_write(plan.left.protocol, plan.left.metadata)  # before a file is written, not with the commit
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
        left, read = self.plan.left, self.plan.read
        metadata = with_high_water_marks(left.metadata, changes.identity) if changes.identity else left.metadata
        actions: list[Action] = [] if read is not None and read.protocol == left.protocol else [left.protocol]
        if read is None or metadata != read.metadata:
            actions.append(metadata)
        actions += [*self.plan.also, *changes.adds, *changes.removes, *changes.cdcs]
        if not actions and read is not None:
            return Applied(read.version, changes.metrics)
        metrics = self._metrics(changes, operation)

        def build(snapshot: Snapshot | None) -> Transaction:
            intent = CommitIntent(snapshot, actions, reads)
            info: dict[str, Any] = {
                **({} if snapshot is None else {"readVersion": snapshot.version}),
                "isolationLevel": isolation(intent),
                "isBlindAppend": intent.is_blind_append or (snapshot is None and not changes.removes),
                "operationMetrics": {name: str(value) for name, value in metrics.items()},
            }
            if self.target.rules.row_tracking is not None:
                info["tags"] = {PRESERVED_TAG: "true"}
            return Transaction(snapshot, actions, operation, reads, parameters, info)

        try:
            after, _ = commit(self.store, read, build)
        except StorageError:
            raise  # It may have landed, so the files may be the table's.
        except VersionedError:
            self._discard(changes)
            raise
        _checkpoint(self.store, after)
        return Applied(after.version, metrics)

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
        return {"mode": mode, "partitionBy": _json(list(self.plan.left.partition_columns))}

    def _metrics(self, changes: FileChanges, operation: str) -> dict[str, int]:
        adds, removes = changes.adds, changes.removes
        both = {add.key for add in adds} & {remove.key for remove in removes}
        new = [add for add in adds if add.key not in both]
        gone = [remove for remove in removes if remove.key not in both]
        added, removed = sum(add.size for add in new), sum(remove.size or 0 for remove in gone)
        counts = dict(changes.metrics)
        elapsed = int((time.monotonic() - self._begun) * 1000)
        match operation:
            case "WRITE":
                counts |= {"numFiles": len(new), "numOutputBytes": added}
                if gone:
                    counts |= {"numRemovedFiles": len(gone), "numRemovedBytes": removed}
            case "MERGE":
                counts |= {
                    "numTargetFilesAdded": len(new),
                    "numTargetFilesRemoved": len(gone),
                    "numTargetBytesAdded": added,
                    "numTargetBytesRemoved": removed,
                    "numTargetChangeFilesAdded": len(changes.cdcs),
                    "numTargetDeletionVectorsUpdated": len(both),
                    "executionTimeMs": elapsed,
                }
                counts["numOutputRows"] = sum(
                    counts.get(name, 0)
                    for name in ("numTargetRowsInserted", "numTargetRowsUpdated", "numTargetRowsCopied")
                )
            case "DELETE" | "UPDATE":
                counts |= {
                    "numAddedFiles": len(new),
                    "numRemovedFiles": len(gone),
                    "numAddedBytes": added,
                    "numRemovedBytes": removed,
                    "numAddedChangeFiles": len(changes.cdcs),
                    "numDeletionVectorsUpdated": len(both),
                    "executionTimeMs": elapsed,
                }
            case "OPTIMIZE":
                counts |= {
                    "numAddedFiles": len(new),
                    "numRemovedFiles": len(gone),
                    "numAddedBytes": added,
                    "numRemovedBytes": removed,
                }
            case _:
                pass
        return counts

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
    """Write a checkpoint every so many versions, as the reference does."""
    interval = snapshot.metadata.configuration.get("delta.checkpointInterval", "")
    every = int(interval) if re.fullmatch("[0-9]{1,9}", interval) and int(interval) else CHECKPOINT_INTERVAL
    if snapshot.version and snapshot.version % every == 0:
        # The commit stands without it: a checkpoint but makes reading quicker.
        with suppress(StorageError):
            write_checkpoint(store, snapshot)


def _refuse_reserved(metadata: Metadata, schema: StructType) -> None:
    taken = [name for name in schema.names if name.casefold() in CHANGE_FEED_COLUMNS]
    if taken and metadata.is_set(CHANGE_FEED):
        raise InvalidInput(
            f"The column {taken[0]!r} has the name of one that the change data feed adds. Nothing was written. Rename"
            " it, or leave delta.enableChangeDataFeed off."
        )


def _may_hold(files: Any, predicate: Predicate, snapshot: Snapshot) -> Any:
    return candidates(files, predicate, snapshot.schema, snapshot.column_mapping, snapshot.partition_columns)


def _removed(adds: Sequence[Add]) -> tuple[Remove, ...]:
    now = now_ms()
    return tuple(add.removed(now) for add in adds)


def _snapshot(store: ObjectStore) -> Snapshot | None:
    try:
        return _existing(store)
    except TableNotFound:
        return None


def _existing(store: ObjectStore) -> Snapshot:
    snapshot = load_snapshot(store)
    if any(domain.startswith(_OURS) for domain in snapshot.domains):
        raise InvalidInput(
            f"{store.uri} is a versioned table, whose rows are written by materializing its asset. Nothing was written."
        )
    return snapshot


def _exists(store: ObjectStore) -> InvalidInput:
    return InvalidInput(f"There is a table in {store.uri} already. Nothing was written. Append to it, or overwrite it.")


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
