"""A frame on its way to be a version: what is known of it before anything is compared with the table."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Self

from dagster_versioned.delta.actions import Add
from dagster_versioned.delta.log.commits import read_commit
from dagster_versioned.delta.schema.types import StructType, schema_to_arrow
from dagster_versioned.engines.arrow.engine import ArrowEngine
from dagster_versioned.engines.engine import Engine
from dagster_versioned.engines.parts import Part, RowOrder, RowsSummary, StagedParts
from dagster_versioned.engines.scan import Scan
from dagster_versioned.engines.staging import Staging
from dagster_versioned.errors import IntegrityError, LogCorrupt, ObjectNotFound
from dagster_versioned.identity.digest import BagDigest, fresh_key
from dagster_versioned.identity.names import partition_path
from dagster_versioned.identity.version import (
    AddedRows,
    Computation,
    Identity,
    Parent,
    RefreshedRows,
    Run,
    SourceVersion,
    TableType,
)
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.tables.history import History, Version
from dagster_versioned.tables.options import TableOptions
from dagster_versioned.tables.parts import data_line, part_key, partition_of
from dagster_versioned.tables.read import scan_of
from dagster_versioned.tables.state import TableState
from dagster_versioned.tables.upstream import Upstream


@dataclass(frozen=True)
class VersionDescription:
    """What describes a version besides its data; all of it is part of the identity, but ``built_from``: its upstreams,
    as they were read."""

    asset_key: tuple[str, ...]
    table_type: TableType
    parents: tuple[Parent, ...] = ()
    source_lineage: tuple[SourceVersion, ...] = ()
    code_version: str | None = None
    message: str | None = None
    custom: Mapping[str, Any] = field(default_factory=dict[str, Any])
    built_from: tuple[Upstream, ...] = ()

    @classmethod
    def of(cls, identity: Identity) -> Self:
        """The description of a version that is there already."""
        return cls(
            asset_key=tuple(identity.asset_key),
            table_type=identity.table_type,
            parents=tuple(identity.parents),
            source_lineage=tuple(identity.source_lineage),
            code_version=identity.code_version,
            message=identity.message,
            custom=identity.custom,
        )

    def identity(self, partition: str | None, contents: RowsSummary, data_sha: str) -> Identity:
        """The identity of the version with these data."""
        return Identity(
            asset_key=self.asset_key,
            table_type=self.table_type,
            data_sha=data_sha,
            nrow=contents.nrow,
            schema=contents.schema.to_json(),
            partition=partition,
            parents=self.parents,
            source_lineage=self.source_lineage,
            code_version=self.code_version,
            message=self.message,
            custom=self.custom,
        )


class Repetition(Enum):
    """What an earlier attempt of the step committed, compared with what this one would."""

    SAME_ROWS = "same rows"
    OTHER_ROWS = "other rows"


@dataclass(frozen=True)
class OpenComputation:
    """The computation that a frame comes from: its key, when it began by the monotonic clock, and of how many frames.

    ``made_before`` is the version that it made before, as far as that was known when it began.
    """

    key: str
    since: float
    made_before: Version | None = None
    share: int = 1

    def computation(self) -> Computation:
        """As its version records it if it is committed now."""
        return Computation(self.key, max(time.monotonic() - self.since, 0) / self.share)


@dataclass(frozen=True)
class HeadParts:
    """What a pending meets: the head, its parts, the last foreign commit since then, if any, the properties that the
    table is to have, and what the log says of a hold on the head."""

    head: Version | None
    parts: tuple[Add, ...]
    foreign: Version | None
    properties: Mapping[str, str]
    held: str | None = None

    def is_version(self, metadata_sha: str, adds: Sequence[Add]) -> bool:
        """Whether the head is this version, with these very files: that is what readers of the log get."""
        head = self.head
        return (
            head is not None
            and head.metadata_sha == metadata_sha
            and head.gone is None
            and self.foreign is None
            and {add.identity for add in self.parts} == {add.identity for add in adds}
        )


def app_id(run: Run, partition: str | None) -> str:
    """The application that a step's commits to a table, or to one of its partitions, are transactions of."""
    path = partition_path(partition) if partition is not None else ""
    return f"dagster/{run.first_run_id or run.run_id}/{run.step_key}/{path}"


class PendingWrite:
    """One frame on its way to be a version of a table, or of one of its partitions.

    ``contents`` are known; the parts may not be written yet, and are written at most once, when they are needed. The
    frame replaces the head; an `Addition` does not. ``engine`` computes where ``frame`` is, which can be used again
    unless the parts are written.
    """

    added: AddedRows | None = None
    refreshed: RefreshedRows | None = None

    stands_alone = False
    """Whether no earlier version with the same rows takes its place."""

    appends_events = False
    """Whether the frame is a slice of events, and therefore its table a history of them."""

    promoted_from: str | None = None
    """The environment that made the version, where one did."""

    made_by: Run | None = None
    """The run that made the version, where that is not the run that commits it."""

    computing: OpenComputation | None = None
    """The computation that the frame comes from, where it is to be remembered."""

    computation: Computation | None = None
    """That of a version that is there already."""

    changes_rows = False
    """Whether the parts that come and go do not tell what became of the rows: some are in both, or were updated."""

    def __init__(
        self,
        partition: str | None,
        description: VersionDescription,
        contents: RowsSummary,
        row_order: RowOrder,
        written: StagedParts | None,
        write: Callable[[], StagedParts],
        single_part: bool = False,
        engine: Engine | None = None,
        frame: Any = None,
    ) -> None:
        self.partition = partition
        self.description = description
        self.contents = contents
        self.row_order: RowOrder = row_order
        self.single_part = single_part
        self.bytes_uploaded = 0
        self.vector_files: Mapping[str, bytes] = {}
        self.change_files: Mapping[str, Part] = {}
        self._written = written
        self._write = write
        self._engine: Engine = engine or ArrowEngine()
        self._frame = frame
        self._has_rows_of: dict[tuple[str | None, ...], bool] = {}
        self._promoted: dict[str, int] = {}

    def repeats(self, own: Version) -> Repetition | None:
        """Whether what an earlier attempt of the step committed stands for this, whatever the head is now."""
        return None

    def recheck(self, state: TableState | None) -> None:
        """Raise where what this was made of is not there any more in a newer state."""

    def has_rows_of(self, adds: Sequence[Add], staging: Staging) -> bool:
        """Whether the rows are those of parts of a version with the same digest and schema.

        Who supplies rows can make others with an open digest, so what equal bytes do not prove is compared.
        """
        if self.contents.digest.kind != BagDigest.kind:
            return True
        lines = tuple(map(data_line, adds))
        if lines not in self._has_rows_of:
            self._has_rows_of[lines] = self._compare(adds, staging)
        return self._has_rows_of[lines]

    def _compare(self, adds: Sequence[Add], staging: Staging) -> bool:
        key = fresh_key()
        own, others = self._without_equal_files(adds, staging)
        if own == [] and not others:
            return True
        try:
            scan = scan_of(staging.store, self.contents.schema, others)
            theirs = self._engine.sums_of_scan(scan, key, self._frame)
        except IntegrityError:  # parts that are lost or altered, in whose place new ones are written
            return False
        return self._sums(own, staging, key) == theirs

    def _without_equal_files(self, adds: Sequence[Add], staging: Staging) -> tuple[list[Scan] | None, Sequence[Add]]:
        """What is to be read of the frame, where that is written, and of parts, without the files that both have."""
        if self._written is None:
            return None, adds
        parts = {part_key(part): part for part in self._written.parts}
        same = {add.key for add in adds if add.key in parts and add.deletion_vector is None}
        own = staging.scans((part for name, part in parts.items() if name not in same), self.contents.schema)
        return own, [add for add in adds if add.key not in same]

    def _sums(self, written: Sequence[Scan] | None, staging: Staging, key: bytes) -> tuple[int, int, int]:
        schema = self.contents.schema
        if written is None:
            return self._engine.sums(self._frame, schema, key)
        bag = BagDigest(schema_to_arrow(schema), key)
        for scan in written:
            engine = self._engine if scan.store is staging.store else ArrowEngine()
            bag.merge(*engine.sums_of_scan(scan, key, self._frame))
        return bag.lanes

    def onto(self, base: HeadParts) -> tuple[Add, ...] | None:
        """The parts of the head that the version keeps; ``None`` where it does not depend on the head."""
        return None

    def parts(self) -> tuple[Part, ...]:
        """The parts of the frame, written now if they were not yet."""
        if self._written is None:
            self._written = self._write()
        return self._written.parts

    def marked(self, add: Add) -> Add:
        """The action that adds a part of it, with what it says of the part's rows."""
        return add

    def write_changes(self) -> Mapping[str, Part]:
        """Files, by key, that tell which rows were updated; none where parts that come and go say all there is."""
        return {}

    def promote(self, staging: Staging, keys: Sequence[str], history: History) -> None:
        """Give parts, vectors and changes their final names, unless that was done and no collection has named them
        since."""
        wanted = [
            key for key in keys if key not in self._promoted or key in history.collected_since(self._promoted[key])
        ]
        by_key = dict(self.change_files)
        if any(key not in by_key and key not in self.vector_files for key in wanted):
            by_key |= {part_key(part): part for part in self.parts()}
        staging.promote_all((by_key[key], key) for key in wanted if key in by_key)
        for key in wanted:
            if key in self.vector_files:
                staging.store.put(key, self.vector_files[key])
            if key not in self._promoted:
                self.bytes_uploaded += by_key[key].size if key in by_key else len(self.vector_files[key])
            self._promoted[key] = history.log_version


@dataclass(frozen=True)
class PendingFiles:
    """Files of a pending write that a commit needs under their final names."""

    pending: PendingWrite
    staging: Staging
    keys: tuple[str, ...]

    def put(self, history: History) -> None:
        """See `PendingWrite.promote`."""
        self.pending.promote(self.staging, self.keys, history)


def are_given_rows(own: Version, frame: Any, engine: Engine, schema: StructType, store: ObjectStore) -> bool:
    """Whether the rows that the commit of a version added are, in these columns, those of a frame with their digest.

    Where the commit or its parts are gone, nobody can tell them apart by more than the digest.
    """
    key = fresh_key()
    try:
        adds = [add for add in read_commit(store, own.log_version).adds if partition_of(add) == own.partition]
        added = engine.sums_of_scan(scan_of(store, schema, adds), key, frame)
    except (IntegrityError, LogCorrupt, ObjectNotFound):
        return True
    return added == engine.sums(frame, schema, key)


class OwnWrite(ABC):
    """What is written in place of a frame and has a way of its own onto the head: some kinds of tables have one.

    ``beside_frames`` says whether one commit may hold it beside frames.
    """

    beside_frames = False

    @abstractmethod
    def stage(
        self,
        partition: str | None,
        description: VersionDescription,
        staging: Staging,
        options: TableOptions,
        constraints: Mapping[str, str],
        pinned: ExitStack,
    ) -> PendingWrite:
        """The pending write, which can be used until ``pinned`` is closed. Raises `InvalidInput`."""
