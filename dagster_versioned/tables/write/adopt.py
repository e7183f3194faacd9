"""Adopting: what a foreign commit left behind gets an identity, so that it is a version like any other."""

import hashlib
from dataclasses import replace

from dagster_versioned.delta.actions import Add
from dagster_versioned.delta.files.deletion_vectors import vector_sha
from dagster_versioned.delta.paths import confined_key
from dagster_versioned.delta.schema.types import StructType, schema_to_arrow
from dagster_versioned.engines.arrow.scan import stream_table
from dagster_versioned.engines.part_order import ORDINAL_TAG, SHA_TAG, VECTOR_TAG, next_ordinal
from dagster_versioned.engines.parts import RowsSummary
from dagster_versioned.engines.scan import Scan, ScanFile
from dagster_versioned.errors import IntegrityError, InvalidInput, ObjectNotFound
from dagster_versioned.identity.digest import BagDigest
from dagster_versioned.identity.version import Facts, VersionEntry, created_at_text, data_sha
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.tables.parts import known_line, parts_of, stored_bytes
from dagster_versioned.tables.state import TableState
from dagster_versioned.tables.table_record import TableRecord
from dagster_versioned.tables.write.commit import WRITER, CommitDraft, refuse_foreign_rules
from dagster_versioned.tables.write.pending import VersionDescription
from dagster_versioned.tables.write.table_actions import table_actions, version_domain


class Adoption:
    """The draft of an adoption: reads every part of the head once, and names what it found.

    The rows of the parts have no order that anybody promised, so it is ignored.
    """

    def __init__(self, store: ObjectStore, asset_key: tuple[str, ...], by: str | None, message: str | None) -> None:
        self._store = store
        self._asset_key = asset_key
        self._by = by
        self._message = message

    def draft(self, state: TableState | None, timestamp: int) -> CommitDraft | None:
        """The next log entry, or ``None`` where no foreign commit with files came after the head.

        Raises `InvalidInput` for a table with partitions, whose foreign files belong to none of them, and
        `UnsupportedFeature` where it has what no table with versions has.
        """
        assert state is not None  # the caller asked for the table's state first
        refuse_foreign_rules(state.snapshot.protocol, state.snapshot.metadata)  # before its rows are read
        history = state.history
        head = history.heads.get(None)
        if history.is_partitioned:
            raise InvalidInput(
                "A table with partitions cannot be adopted: nobody can tell which partition a foreign file belongs to. "
                "No version was made. Revert a partition to its version of before, which takes such files away."
            )
        if head is not None and history.foreign_since(head.log_version) is None:
            return None
        adds, contents = self._read_all(state, timestamp)
        shas = [known_line(add) for add in adds]
        asset_key = head.identity.asset_key if head else self._asset_key
        described = VersionDescription(tuple(asset_key), "imported", message=self._message)
        facts = Facts(
            created_at=created_at_text(timestamp),
            writer=WRITER,
            size_bytes=sum(map(stored_bytes, adds)),
            part_count=len(adds),
            digest=contents.digest.text,
            parquet_sha=shas[0] if len(shas) == 1 and adds[0].deletion_vector is None else None,
            previous=head.metadata_sha if head else None,
            author=self._by,
            null_counts=contents.null_counts,
        )
        entry = VersionEntry.of(described.identity(None, contents, data_sha(shas, "ignored")), facts, "full")
        record = TableRecord.of(state.snapshot)
        return CommitDraft(
            operation="ADOPT",
            actions=[
                *table_actions(state, state.snapshot.schema, timestamp, takes_over=True),
                *record.with_partitioning(None).actions(record),
                *adds,
                version_domain(entry, state),
            ],
            info={"versions": [entry.to_json()]},
        )

    def _read_all(self, state: TableState, timestamp: int) -> tuple[list[Add], RowsSummary]:
        """The table's parts, with tags that say which files they are, and what their rows say."""
        schema = state.snapshot.schema.all_nullable()
        digest, nulls = BagDigest(schema_to_arrow(schema)), [0] * len(schema.fields)
        parts = parts_of(state.snapshot)
        # A part of ours has its number in its bytes as well, so that equal rows, added again, are another file.
        first = next_ordinal(add for add in parts if ORDINAL_TAG in (add.tags or {}))
        tagged = [
            self._tagged(add, ordinal, self._read(add, schema, digest, nulls))
            for ordinal, add in enumerate(parts, first)
        ]
        adds = [replace(add, data_change=False, modification_time=timestamp) for add in tagged]
        rows = digest.finish()
        return adds, RowsSummary(schema, rows.nrow, tuple(nulls), rows)

    def _read(self, add: Add, schema: StructType, digest: BagDigest, nulls: list[int]) -> str:
        """Add a part's rows to the digest; returns the SHA-256 of its bytes."""
        key = confined_key(add.path)
        try:
            sha = hashlib.sha256(self._store.get(key)).hexdigest()
        except ObjectNotFound as error:
            raise IntegrityError(f"The file {add.path} that the log lists is missing. Nothing was changed.") from error
        file = ScanFile(key, add.size, sha, partition_values=add.partition_values, deletion_vector=add.deletion_vector)
        for batch in stream_table(Scan(self._store, schema, (file,))):
            digest.update(batch)
            for position in range(batch.num_columns):
                nulls[position] += batch.column(position).null_count
        return sha

    def _tagged(self, add: Add, ordinal: int, sha256: str) -> Add:
        tags = {ORDINAL_TAG: str(ordinal), **(add.tags or {}), SHA_TAG: sha256}
        if add.deletion_vector is not None:
            tags[VECTOR_TAG] = vector_sha(self._store, add.deletion_vector, add.key)
        return replace(add, tags=tags)
