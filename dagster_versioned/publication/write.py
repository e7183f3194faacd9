"""Publishing a draft: its parts, which are there already, on their way to be versions by the ordinary write loop."""

import time
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from dagster_versioned.delta.actions import Add
from dagster_versioned.engines.arrow.engine import ArrowEngine
from dagster_versioned.engines.part_order import next_ordinal
from dagster_versioned.engines.parts import Part, RowsSummary, StagedParts
from dagster_versioned.engines.scan import Scan, ScanFile
from dagster_versioned.engines.staging import Staging
from dagster_versioned.engines.upsert import RowMatch, Upsert, nothing
from dagster_versioned.errors import ObjectNotFound, VersionedError
from dagster_versioned.identity.names import TableName
from dagster_versioned.identity.version import data_sha
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.tables.configuration import constraints_of
from dagster_versioned.tables.documents.parked_draft import ParkedDraft, ParkedVersion
from dagster_versioned.tables.history import History, Version
from dagster_versioned.tables.parts import known_line, part_key
from dagster_versioned.tables.state import TableState
from dagster_versioned.tables.table_record import TableRecord
from dagster_versioned.tables.write.addition import Addition
from dagster_versioned.tables.write.commit import CommitDraft
from dagster_versioned.tables.write.constraints import require_frame
from dagster_versioned.tables.write.pending import HeadParts, PendingWrite, VersionDescription
from dagster_versioned.tables.write.write import TableWrite, WriteResult


class Superseded(VersionedError):
    """A draft will never be current: what it was to replace, or what it needs, is not what it saw any more."""


class ParkedReplacement(PendingWrite):
    """Rows that replace the head, in parts that have their final names."""

    def __init__(self, version: ParkedVersion, store: ObjectStore, table: TableName, *, single_part: bool) -> None:
        written = None if version.parts is None else StagedParts(version.contents, version.parts)
        super().__init__(
            version.partition,
            VersionDescription.of(version.entry.identity),
            version.contents,
            version.row_order,
            written,
            self._lost,
            single_part=single_part,
        )
        self._store = store
        self._table = table
        self._data_sha = version.entry.identity.data_sha

    def promote(self, staging: Staging, keys: Sequence[str], history: History) -> None:
        """Nothing of parts, to which the step gave their names. Raises `Superseded` where one is not there any more."""
        require_parts(self._store, self._table, self.parts())
        super().promote(staging, [key for key in keys if key in self.change_files], history)

    def has_rows_of(self, adds: Sequence[Add], staging: Staging) -> bool:
        """As of any write; a draft that keeps the parts of an earlier version is of these, and of no others."""
        if self._written is not None:
            return super().has_rows_of(adds, staging)
        return data_sha([known_line(add) for add in adds], self.row_order) == self._data_sha

    def _lost(self) -> StagedParts:
        raise _collected(self._table, "an earlier version with the same rows")


class ParkedAddition(Addition):
    """Rows that are added to the head, in parts that have their final names.

    Appended parts whose numbers and columns go on from those of the head are taken as they are; the rows of others are
    read, part by part, and written again. Rows that are merged are read into memory.
    """

    def __init__(
        self, version: ParkedVersion, store: ObjectStore, staging: Staging, parked: ParkedDraft, parts: Sequence[Part]
    ) -> None:
        self._store = store
        self._table = parked.table
        self._parked = StagedParts(version.contents, tuple(parts))
        self._fits = False
        super().__init__(
            version.partition,
            VersionDescription.of(version.entry.identity),
            None,
            ArrowEngine(),
            staging,
            parked.options,
            given=version.contents,
        )

    def promote(self, staging: Staging, keys: Sequence[str], history: History) -> None:
        """As of any write; parts that are taken as they are have their names. Raises `Superseded` without them."""
        if self._fits:
            require_parts(self._store, self._table, self.parts())
            keys = [key for key in keys if key in self.change_files]
        super().promote(staging, keys, history)

    def _rows(self) -> Any:
        frame_type = pa.Table if self._mode == "merge" else pa.RecordBatchReader
        return rows_of(self._store, self._parked.parts, self._parked.contents, frame_type)

    def _upsert(self, scan: Scan, base: HeadParts, matching: RowMatch | None) -> Upsert:
        given, first = self._parked, next_ordinal(base.parts)
        self._fits = matching is None and given.contents.schema == scan.schema
        there = {add.key for add in base.parts}
        self._fits = self._fits and all(part.ordinal >= first and part_key(part) not in there for part in given.parts)
        if self._fits:
            return Upsert(frozenset(), nothing(scan.schema), given, given.contents.nrow, 0)
        return super()._upsert(scan, base, matching)


class DraftWrite:
    """The plan that publishes what a step parked, against the head as it is now."""

    def __init__(self, parked: ParkedDraft, staging: Staging, writes: Sequence[PendingWrite]) -> None:
        options = parked.options
        self.began = time.monotonic()
        self._parked = parked
        self._write = TableWrite(
            staging, writes, options, options.constraints or {}, parked.run, parked.author, parked.partitioning
        )

    def draft(self, state: TableState | None, timestamp: int) -> CommitDraft | None:
        """As of any write; constraints that the table got since are tried on the rows. Raises `Superseded`."""
        if state is not None:
            if self._parked.options.constraints is None:
                self._try(constraints_of(state.snapshot.metadata.configuration))
            self._require_table(state)
        drafted = self._write.draft(state, timestamp)
        if self._parked.options.mode == "replace":
            self._require_head(state)
        return drafted

    def results(self, state: TableState | None) -> list[WriteResult]:
        """What became of each version, with the state after the commit."""
        return self._write.results(state, self.began)

    def _require_table(self, state: TableState) -> None:
        """Raise `Superseded` where the table became another one since the rows were parked."""
        parked, since = self._parked.log_version, TableRecord.of(state.snapshot).since
        if parked is not None and max(parked, 0) < since:
            raise Superseded(
                f"{self._parked.table} became another table (log version {since}: "
                f"{state.history.record(since).operation}) after the draft was made. The table is as it was; the draft "
                "will not be published. Run its step again."
            )

    def _require_head(self, state: TableState | None) -> None:
        """Raise `Superseded` unless each head is the one that the draft saw, or the draft itself."""
        for plan, version in zip(self._write.planned, self._parked.versions, strict=True):
            if plan.entry is None:
                continue
            now, foreign = _head_now(state, version.partition)
            if now != version.saw or foreign is not None:
                of = "" if version.partition is None else f" of partition {version.partition!r}"
                raise Superseded(
                    f"The head{of} of {self._parked.table} is {_short(now)}, and was {_short(version.saw)} when the "
                    "draft was made. The table is as it was; the draft will not be published."
                )
            if plan.entry.metadata_sha != version.entry.metadata_sha:
                raise Superseded(
                    f"The rows of {self._parked.table} would be version {plan.entry.metadata_sha[:8]}, and were "
                    f"{version.entry.metadata_sha[:8]} for those who checked them: earlier versions with the same rows "
                    "have gone since. The table is as it was; the draft will not be published."
                )

    def _try(self, constraints: dict[str, str]) -> None:
        if constraints.items() <= self._write.satisfied.items():
            return
        for version in self._parked.versions:
            if version.parts is not None:
                frame = rows_of(self._write.staging.store, version.parts, version.contents, pa.Table)
                require_frame(ArrowEngine(), frame, constraints)
        self._write.satisfied = constraints


def parked_write(store: ObjectStore, staging: Staging, parked: ParkedDraft) -> DraftWrite:
    """The write that publishes a draft. Raises `Superseded` where rows that are to be added were collected."""
    writes: list[PendingWrite] = []
    for version in parked.versions:
        if parked.options.mode == "replace":
            single = parked.options.single_part
            writes.append(ParkedReplacement(version, store, parked.table, single_part=single))
            continue
        assert version.parts is not None  # rows that are added are always written
        require_parts(store, parked.table, version.parts)
        writes.append(ParkedAddition(version, store, staging, parked, version.parts))
    return DraftWrite(parked, staging, writes)


def rows_of(store: ObjectStore, parts: Sequence[Part], contents: RowsSummary, frame_type: type) -> Any:
    """The rows of parts that have their final names; each file's SHA-256 is checked. Raises `IntegrityError`."""
    files = tuple(
        ScanFile(part_key(part), part.size, part.sha256, part.num_records, part.partition_values) for part in parts
    )
    return ArrowEngine().read(Scan(store, contents.schema, files), frame_type)


def require_parts(store: ObjectStore, table: TableName, parts: Sequence[Part]) -> None:
    """Raise `Superseded` where a part of a draft is not there with its size."""
    for part in parts:
        try:
            if store.head(part_key(part)).size == part.size:
                continue
        except ObjectNotFound:
            pass
        raise _collected(table, part_key(part))


def _head_now(state: TableState | None, partition: str | None) -> tuple[str | None, Version | None]:
    """The SHA of the head of a partition, as far as its bytes are kept, and what another program committed since."""
    head = None if state is None else state.history.heads.get(partition)
    if state is None or head is None:
        return None, None
    return None if head.gone is not None else head.metadata_sha, state.history.foreign_since(head.log_version)


def _collected(table: TableName, what: str) -> Superseded:
    return Superseded(
        f"{what} of {table}, which the draft needs, was collected. The table is as it was; the draft will not be "
        "published. Run its step again."
    )


def _short(sha: str | None) -> str:
    return "none" if sha is None else sha[:8]
