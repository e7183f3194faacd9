"""Reverting: an older version's parts and identity, committed again as the newest version."""

from collections.abc import Sequence
from typing import Any, Literal

from dagster_versioned.delta.actions import Add, DomainMetadata
from dagster_versioned.delta.log.snapshot import Snapshot, load_snapshot
from dagster_versioned.delta.schema.types import StructType
from dagster_versioned.delta.schema.widening import retyped_partition_columns
from dagster_versioned.errors import ExpiredVersion, InvalidInput, VersionNotFound
from dagster_versioned.identity.version import Facts, VersionEntry, created_at_text
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.tables.computations import usable
from dagster_versioned.tables.configuration import constraints_of
from dagster_versioned.tables.document import encode
from dagster_versioned.tables.documents.head import held_domain
from dagster_versioned.tables.history import Version
from dagster_versioned.tables.partitioning import Partitioning
from dagster_versioned.tables.parts import missing_parts, objects_of, parts_by_partition, parts_of, recorded_rows
from dagster_versioned.tables.sample_schema import union_of_versions
from dagster_versioned.tables.state import TableState
from dagster_versioned.tables.table_record import TableRecord
from dagster_versioned.tables.write.column_rules import with_column_rules
from dagster_versioned.tables.write.commit import WRITER, CommitDraft
from dagster_versioned.tables.write.constraints import require_rows
from dagster_versioned.tables.write.drop import refuse_dropped
from dagster_versioned.tables.write.table_actions import (
    replaced_parts,
    retyped_refusal,
    table_actions,
    version_domain,
    whole_sha,
)


class Reversion:
    """The draft of a revert; ``change`` is the kind of change against the state that was looked at last."""

    def __init__(self, store: ObjectStore, target: Version, by: str | None, hold_because: str | None) -> None:
        self._store = store
        self._target = target
        self._by = by
        self._hold_because = hold_because
        self.change: Literal["full", "metadata_only"] = "full"

    def draft(self, state: TableState | None, timestamp: int) -> CommitDraft | None:
        """The next log entry, or ``None`` where the target is the head and nothing is to be held.

        Raises `ExpiredVersion` where its bytes are not kept any more.
        """
        assert state is not None  # the target was found in it
        record = refuse_dropped(self._target.identity.asset_key[-1], state)
        target, partition = self._target, self._target.partition
        self._require_kept(state)
        if self._hold_because is None and self._is_current(state):
            return None
        before = load_snapshot(self._store, target.log_version)
        _check_partitions(target, TableRecord.of(before).partitioning, record.partitioning, state)
        wanted = parts_of(before, partition)
        self._require_parts(wanted)
        current = parts_of(state.snapshot, partition)
        if partition is not None:  # what another program added belongs to no version of any partition
            current = (*current, *parts_by_partition(state.snapshot).get(None, ()))
        adds, removes = replaced_parts(current, wanted, timestamp)
        self.change = "full" if adds or removes else "metadata_only"
        entry = VersionEntry.of(target.identity, self._facts(state, timestamp), self.change)
        rows = recorded_rows(target.entry)
        require_rows(self._store, rows.schema, adds, constraints_of(state.snapshot.metadata.configuration))
        alone = state.history.heads.keys() <= {partition}
        schema = rows.schema if alone else union_of_versions(state.snapshot.schema, rows.schema)
        schema = with_column_rules(state.snapshot, schema, [(rows.schema, rows.null_counts, rows.nrow)])
        columns = _partition_columns(state, before, schema, alone=alone)
        hold, held = self._hold(partition)
        return CommitDraft(
            operation="REVERT",
            actions=[
                *table_actions(state, schema, timestamp, partition_columns=columns),
                *adds,
                *removes,
                version_domain(entry, state),
                *hold,
            ],
            info={"versions": [entry.to_json()], **whole_sha(state.history, [entry.to_json()]), **held},
            parameters={"version": str(target.log_version)},
            needs=frozenset(objects_of(self._store, wanted)),
        )

    def _require_kept(self, state: TableState) -> None:
        target = self._target.log_version, self._target.partition
        versions = state.history.versions
        known = next(version for version in versions if (version.log_version, version.partition) == target)
        if known.gone is not None:
            raise ExpiredVersion(
                f"The data of version {known.short} is not kept, so it cannot be current again. Nothing was changed. "
                "Revert to one that is kept, or write its rows again."
            )

    def _require_parts(self, wanted: Sequence[Add]) -> None:
        if lost := missing_parts(self._store, wanted):
            raise VersionNotFound(
                f"Part {lost[0].key} of version {self._target.short} is missing from {self._store.uri}. Nothing was "
                "changed. Run verify; write the data again to heal it."
            )

    def _is_current(self, state: TableState) -> bool:
        """Whether the target is the head, and nobody else wrote since."""
        head = state.history.heads.get(self._target.partition)
        if head is None or head.metadata_sha != self._target.metadata_sha:
            return False
        return state.history.foreign_since(head.log_version) is None

    def _facts(self, state: TableState, timestamp: int) -> Facts:
        head, before = state.history.heads.get(self._target.partition), self._target.facts
        return Facts(
            created_at=created_at_text(timestamp),
            writer=WRITER,
            size_bytes=before.size_bytes,
            part_count=before.part_count,
            digest=before.digest,
            parquet_sha=before.parquet_sha,
            previous=head.metadata_sha if head else None,
            author=self._by,
            null_counts=before.null_counts,
            computation=before.computation if usable(state, self._target) else None,
        )

    def _hold(self, partition: str | None) -> tuple[list[DomainMetadata], dict[str, Any]]:
        """The action that holds the head, if it is to be held, and what the commit says of that."""
        if self._hold_because is None:
            return [], {}
        why = encode({"by": self._by, "why": self._hold_because}).decode()
        of = {} if partition is None else {"partition": partition}
        return [DomainMetadata(held_domain(partition), why, False)], {"held": of}


def _check_partitions(target: Version, then: Partitioning | None, now: Partitioning | None, state: TableState) -> None:
    """Raise `InvalidInput` where the version is of partitions that the table does not have any more."""
    is_partitioned = now is not None or state.history.is_partitioned
    is_another = then is not None and now is not None and not then.means_the_same(now)
    if is_another or (is_partitioned != (target.partition is not None) and (state.history.heads or now)):
        raise InvalidInput(
            f"Version {target.short} is of {then or target.partition or 'a whole table'}, and the table's partitions "
            f"are {now or ('others' if is_partitioned else 'none')} by now: their rows would be in it twice. Nothing "
            "was changed. Read the version and write its rows, or repartition the table first."
        )


def _partition_columns(state: TableState, before: Snapshot, schema: StructType, *, alone: bool) -> tuple[str, ...]:
    """Those of the version that is to be current again. Raises `InvalidInput` where rows of other partitions stay."""
    if before.partition_columns != state.snapshot.partition_columns and not alone:
        raise InvalidInput(
            f"The version is partitioned by {list(before.partition_columns)}, the table's other partitions by "
            f"{list(state.snapshot.partition_columns)}. Nothing was changed. Write the partition again instead."
        )
    retyped = retyped_partition_columns(state.snapshot.schema, schema, before.partition_columns)
    if retyped and not alone:
        raise retyped_refusal(retyped, schema)
    return before.partition_columns
