"""Going back: the newest version of a table made equal to an older one, as a commit of its own."""

import json
from collections.abc import Iterable
from dataclasses import replace

import pyarrow as pa

from dagster_versioned.delta.actions import Action, Add, DomainMetadata, Metadata, unlike
from dagster_versioned.delta.commit.row_tracking import ENABLED as ROW_TRACKING
from dagster_versioned.delta.commit.row_tracking import ROW_COMMIT_VERSION_COLUMN, ROW_ID_COLUMN
from dagster_versioned.delta.commit.transaction import Transaction, now_ms
from dagster_versioned.delta.features import merge_protocol, writer_features
from dagster_versioned.delta.files.deletion_vectors import vector_key
from dagster_versioned.delta.files.file_actions import identities, to_adds
from dagster_versioned.delta.log.commits import in_parallel
from dagster_versioned.delta.log.snapshot import Snapshot
from dagster_versioned.delta.paths import compute
from dagster_versioned.delta.schema.clustering import DOMAIN as CLUSTERING
from dagster_versioned.delta.schema.identity_columns import identity_columns, is_identity, with_high_water_marks
from dagster_versioned.delta.schema.mapped_columns import MAX_ID
from dagster_versioned.errors import IntegrityError, InvalidInput, ObjectNotFound
from dagster_versioned.storage.object_store import ObjectStore

_STAYS = (
    "delta.enableInCommitTimestamps",
    "delta.inCommitTimestampEnablementVersion",
    "delta.inCommitTimestampEnablementTimestamp",
    ROW_TRACKING,
    ROW_ID_COLUMN,
    ROW_COMMIT_VERSION_COLUMN,
)
"""Properties about the history rather than the rows; they do not go back, so that times and row ids never do."""


def restore(store: ObjectStore, read: Snapshot, target: Snapshot, *, parameters: dict[str, str | None]) -> Transaction:
    """The transaction that gives the table the rows, the schema and the properties that it had in ``target``.

    The protocol keeps what it has, and no mark goes back: neither that of column ids, identity columns or row ids, nor
    transaction identifiers. Raises `IntegrityError` where a file that comes back is not there any more,
    `InvalidInput` for an append-only table that would lose files, and what `Transaction` does.
    """
    back = _only_in(target.files, read.files)
    gone = _only_in(read.files, target.files)
    if gone and read.metadata.is_set("delta.appendOnly"):
        raise InvalidInput(
            f"The table is append-only (delta.appendOnly), and {len(gone)} files would go. Nothing was written."
        )
    _require_present(store, back)
    now = now_ms()
    adds = [replace(add, data_change=True) for add in back]
    removes = [add.removed(now) for add in gone]
    protocol = merge_protocol(read.protocol, target.protocol)
    metadata = _restored(read, target)
    actions: list[Action] = [
        *unlike(protocol, read.protocol),
        *unlike(metadata, read.metadata),
        *_domains(read, target),
        *removes,
        *adds,
    ]
    metrics = {
        "tableSizeAfterRestore": target.size_bytes,
        "numOfFilesAfterRestore": target.num_files,
        "numRemovedFiles": len(removes),
        "numRestoredFiles": len(adds),
        "removedFilesSize": sum(add.size for add in gone),
        "restoredFilesSize": sum(add.size for add in adds),
    }
    given = {name: json.dumps(None) if value is None else value for name, value in parameters.items()}
    info = {"operationMetrics": {name: str(value) for name, value in metrics.items()}}
    return Transaction(read, actions, "RESTORE", operation_parameters=given, commit_info=info)


def _only_in(files: pa.Table, others: pa.Table) -> list[Add]:
    known = compute.is_in(identities(files), value_set=identities(others).combine_chunks())
    return to_adds(files.filter(compute.invert(known)))


def _require_present(store: ObjectStore, adds: Iterable[Add]) -> None:
    keys = {add.key for add in adds}
    for add in adds:
        if (vector := add.deletion_vector) is not None and vector.storage_type != "i":
            keys.add(vector_key(store, vector, add.path))

    def missing(key: str) -> bool:
        try:
            store.head(key)
        except ObjectNotFound:
            return True
        return False

    ordered = sorted(keys)
    lost = [key for key, absent in zip(ordered, in_parallel(missing, ordered), strict=True) if absent]
    if lost:
        raise IntegrityError(
            f"{len(lost)} of {len(ordered)} files that would come back are not there any more, such as {lost[0]!r}:"
            " they were vacuumed. Nothing was written. Choose a newer version, or bring the files back from a copy."
        )


def _restored(read: Snapshot, target: Snapshot) -> Metadata:
    configuration = {key: value for key, value in target.metadata.configuration.items() if key not in _STAYS}
    configuration |= {key: value for key, value in read.metadata.configuration.items() if key in _STAYS}
    if MAX_ID in read.metadata.configuration:
        marks = [read.metadata.configuration[MAX_ID], configuration.get(MAX_ID, "0")]
        configuration[MAX_ID] = max(marks, key=int)
    metadata = replace(target.metadata, configuration=configuration, id=read.metadata.id)
    if not any(map(is_identity, target.schema.fields)):
        return metadata
    now, back = identity_columns(read.schema), identity_columns(target.schema)
    reached = {
        name: column.high_water for name, column in now.items() if name in back and column.high_water is not None
    }
    return with_high_water_marks(metadata, reached)


def _domains(read: Snapshot, target: Snapshot) -> list[Action]:
    """The clustering goes back with the schema; other domains are somebody's own, or marks."""
    before, after = read.domains.get(CLUSTERING), target.domains.get(CLUSTERING)
    if before == after or "domainMetadata" not in writer_features(read.protocol):
        return []
    return [DomainMetadata(CLUSTERING, after or before or "", removed=after is None)]
