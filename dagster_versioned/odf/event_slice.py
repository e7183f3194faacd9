"""Events at the end of a history: a slice, the blocks that tell of it, and the one commit that makes both true.

What is computed from a chain's head goes onto that head, or nowhere. Source: seed 002 ("Data Slice", "Metadata Chain").
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict

import orjson

from dagster_versioned.delta.actions import Add
from dagster_versioned.delta.schema.types import StructType
from dagster_versioned.engines.arrow.engine import ArrowEngine
from dagster_versioned.engines.engine import Engine
from dagster_versioned.engines.part_order import ordinal_of
from dagster_versioned.engines.parts import Part, RowsSummary, StagedParts
from dagster_versioned.engines.staging import Staging
from dagster_versioned.engines.upsert import Upsert, nothing
from dagster_versioned.errors import CommitConflict
from dagster_versioned.identity.version import AddedRows, Run
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.tables.chain_head import BLOCKS, ChainHead, chain_head
from dagster_versioned.tables.configuration import APPEND_ONLY
from dagster_versioned.tables.history import History, Version
from dagster_versioned.tables.lineage import parents_by_partition
from dagster_versioned.tables.options import TableOptions
from dagster_versioned.tables.preconditions import require
from dagster_versioned.tables.read import scan_of
from dagster_versioned.tables.state import TableState
from dagster_versioned.tables.table import VersionedTable
from dagster_versioned.tables.upstream import Upstream
from dagster_versioned.tables.write.addition import contents_of
from dagster_versioned.tables.write.commit import CommitDraft, PlanCommit
from dagster_versioned.tables.write.pending import (
    HeadParts,
    PendingWrite,
    Repetition,
    VersionDescription,
    are_given_rows,
)
from dagster_versioned.tables.write.stage import describe, staging_folder
from dagster_versioned.tables.write.write import TableWrite, WriteResult


@dataclass(frozen=True)
class SliceFile:
    """A file of events, staged: what it says, and what its events do to rows."""

    part: Part
    contents: RowsSummary
    inserted: int
    updated: int
    removed: int


@dataclass(frozen=True)
class ChainEntry:
    """Blocks that follow each other, by their hashes, and where the chain ends with them."""

    blocks: Mapping[str, bytes]
    end: ChainHead


@dataclass(frozen=True)
class GivenRows:
    """A pinned frame, its digest, and those of its columns that are data of events, as these have them."""

    frame: Any
    engine: Engine
    digest: str
    data: StructType


@dataclass(frozen=True)
class EventSlice:
    """Events that were computed from the chain's head ``base`` (``None``: there is no chain).

    ``file`` is the slice, ``None`` where nothing happened; ``contents`` what it says, or (without rows) which columns
    there are. ``entry`` are the blocks, ``None`` where there is nothing to tell. ``given`` are the rows that the events
    were made of, one of each, where they would become events a second time if a step were tried again.
    """

    base: str | None
    file: SliceFile | None
    contents: RowsSummary
    entry: ChainEntry | None
    given: GivenRows | None = None


def stated_bounds(add: Add, column: str) -> tuple[Any, Any]:
    """The least and the greatest value of a column in a file, as the log's statistics say; else ``None``."""
    stats = orjson.loads(add.stats or "{}")
    return stats.get("minValues", {}).get(column), stats.get("maxValues", {}).get(column)


class PendingSlice(PendingWrite):
    """A slice on its way to the end of a history."""

    appends_events = True

    def __init__(self, events: EventSlice, description: VersionDescription, staging: Staging) -> None:
        super().__init__(None, description, events.contents, "ignored", None, _never)
        self.events = events
        self._staging = staging
        self._digest = events.given.digest if events.given is not None else events.contents.digest.text
        self._onto: HeadParts | None = None
        self._kept: tuple[Add, ...] = ()

    stands_alone = True

    def repeats(self, own: Version) -> Repetition | None:
        """Whether an earlier attempt of the step committed these very rows, or others that stay alone.

        What is appended to a history stays, so what was committed first is what the step appended.
        """
        given, known = self.events.given, own.facts.added
        if given is None:
            return None
        is_same = known is not None and known.digest == self._digest
        is_same = is_same and are_given_rows(own, given.frame, given.engine, given.data, self._staging.store)
        return Repetition.SAME_ROWS if is_same else Repetition.OTHER_ROWS

    def onto(self, base: HeadParts) -> tuple[Add, ...]:
        """All parts of the head, which stay. Raises `CommitConflict` after a foreign commit."""
        if base != self._onto:
            _require_own(base)
            given, file = self.events.contents, self.events.file
            ordinal = 1 + max(map(ordinal_of, base.parts), default=-1)
            parts = () if file is None else (replace(file.part, ordinal=ordinal),)
            self._written = StagedParts(given, parts)
            before = contents_of(base.head, scan_of(self._staging.store, given.schema, base.parts), ArrowEngine())
            upsert = Upsert(frozenset(), nothing(given.schema), self._written, given.nrow, 0)
            self.contents = upsert.contents(before)
            counts = (file.inserted, file.updated, file.removed) if file is not None else (0, 0, 0)
            self.added = AddedRows("events", self._digest, *counts)
            self._kept, self._onto = base.parts, base
        return self._kept


class WriteDescription(TypedDict, total=False):
    """What a write says beside its rows, as of `VersionedTable.write`."""

    asset_key: Sequence[str] | None
    parents: Iterable[Upstream]
    code_version: str | None
    message: str | None
    options: TableOptions | None
    run: Run | None


def append_events(
    table: VersionedTable,
    make: Callable[[Staging], EventSlice],
    *,
    asset_key: Sequence[str] | None = None,
    parents: Iterable[Upstream] = (),
    code_version: str | None = None,
    message: str | None = None,
    options: TableOptions | None = None,
    run: Run | None = None,
) -> WriteResult:
    """Append a slice of events and its blocks to a history, in one commit; `EventTable` makes them.

    It takes a `WriteDescription` apart, so that a member that there is not is refused as Python does. What ``make``
    stages is discarded where nothing is committed. Raises what `VersionedTable.write` does, and `CommitConflict` where
    the chain has another head by then.
    """
    began = time.monotonic()
    project, store = table.project, table.store
    require("write events", project)
    given = options or TableOptions()
    options = given.model_copy(update={"properties": {**given.properties, APPEND_ONLY: "true"}})
    own_parents = parents_by_partition(parents, [None], project, table.name)[None]
    described_key = asset_key if asset_key is not None else table.asset_key
    description = describe(described_key, own_parents, code_version, message, options)
    table.operations.check_name_is_free()
    with staging_folder(store) as staging:
        pending = PendingSlice(make(staging), description, staging)
        writing = TableWrite(staging, [pending], options, {}, run, project.author)
        state = table.operations.change(_plan(writing, pending, store))
    return writing.results(state, began)[0]


@dataclass(frozen=True)
class _Blocks:
    """Blocks of a chain, which are put before the commit that makes them true."""

    store: ObjectStore
    blocks: Mapping[str, bytes]

    def put(self, history: History) -> None:
        """Put them; each has its hash in its name."""
        for name, data in self.blocks.items():
            self.store.put(f"{BLOCKS}{name}", data)


def _plan(writing: TableWrite, pending: PendingSlice, store: ObjectStore) -> PlanCommit:
    """The draft that commits a slice together with its blocks, which are put before.

    Raises `CommitConflict` where the chain's head is another than the slice was computed from.
    """
    events = pending.events

    def plan(state: TableState | None, timestamp: int) -> CommitDraft | None:
        known = chain_head(state.snapshot) if state is not None else None
        found = known.head if known is not None else None
        if found != events.base:
            raise CommitConflict(
                f"The events were computed from {_named(events.base)}, but the chain of {store.uri} ends with "
                f"{_named(found)} by now. Nothing was written. Try again: they are computed anew then."
            )
        drafted = writing.draft(state, timestamp)
        entry = events.entry
        if entry is None or writing.planned[0].repetition is not None:
            return drafted
        block = {"block": entry.end.head}
        blocks = _Blocks(store, entry.blocks)
        if drafted is None:
            return CommitDraft("ADD BLOCK", [entry.end.action()], block, staged=[blocks])
        return replace(
            drafted,
            operation=drafted.operation if drafted.commits else "ADD BLOCK",
            actions=[*drafted.actions, entry.end.action()],
            info={**drafted.info, **block},
            parameters={"mode": "Append"} if drafted.commits else {},
            announces=True,
            staged=[*drafted.staged, blocks],
            commits=True,
        )

    return plan


def _require_own(base: HeadParts) -> None:
    if base.foreign is not None:
        raise CommitConflict(
            f"Another program added files to the history with log version {base.foreign.log_version}, of which its "
            "chain says nothing. Nothing was written. Copy the dataset as its chain has it (`odf push`), and go on "
            "with the copy."
        )


def _named(block: str | None) -> str:
    return "no block" if block is None else f"block {block[:20]}…"


def _never() -> StagedParts:
    raise AssertionError("The events were not put onto a head yet.")
