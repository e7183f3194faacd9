"""A table as it would be if drafts of it were published now: what the run that parked them reads."""

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from dagster_versioned.errors import AlreadyExists, InvalidInput, ObjectNotFound
from dagster_versioned.publication.write import Superseded, parked_write
from dagster_versioned.storage.object_store import ObjectInfo, ObjectStore
from dagster_versioned.storage.wrappers import StoreWrapper
from dagster_versioned.tables.documents.parked_draft import ParkedDraft
from dagster_versioned.tables.history import Collection
from dagster_versioned.tables.operations import TableOperations
from dagster_versioned.tables.state import StateCache, TableState
from dagster_versioned.tables.table import VersionedTable
from dagster_versioned.tables.write.commit import CollectionInProgress, PlanCommit, commit
from dagster_versioned.tables.write.stage import staging_folder
from dagster_versioned.tables.write.write import WriteResult

T = TypeVar("T")


_ENTRY = re.compile(r"_delta_log/(\d{20})\.", re.ASCII)


class LogInMemory(StoreWrapper):
    """A table's folder, whose log goes on in memory beyond ``last``: nothing that is committed here is ever stored."""

    def __init__(self, store: ObjectStore, last: int) -> None:
        super().__init__(store)
        self._last = last
        self._entries: dict[str, tuple[bytes, ObjectInfo]] = {}

    def get(self, key: str) -> bytes:
        return self.get_with_info(key)[0]

    def get_with_info(self, key: str) -> tuple[bytes, ObjectInfo]:
        if not self._is_beyond(key):
            return super().get_with_info(key)
        if key not in self._entries:
            raise ObjectNotFound(f"{key!r} in {self.uri}: the log ends before it, as it was looked at.")
        return self._entries[key]

    def head(self, key: str) -> ObjectInfo:
        return self.get_with_info(key)[1] if self._is_beyond(key) else super().head(key)

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        own = [info for key, (_, info) in self._entries.items() if key.startswith(prefix) and key > start_after]
        base = (info for info in super().list(prefix, start_after=start_after) if not self._is_beyond(info.key))
        return iter(sorted([*base, *own], key=lambda info: info.key))

    def put_if_absent(self, key: str, data: bytes) -> ObjectInfo:
        if not self._is_beyond(key):
            return super().put_if_absent(key, data)
        if key in self._entries:
            raise AlreadyExists(f"{key!r} in {self.uri} is there already.")
        info = ObjectInfo(key, len(data), hashlib.sha256(data).hexdigest(), datetime.now(UTC))
        self._entries[key] = data, info
        return info

    def _is_beyond(self, key: str) -> bool:
        named = _ENTRY.match(key)
        return named is not None and int(named[1]) > self._last


class ViewOperations(TableOperations):
    """The log of a table with what drafts add to it; nothing is committed by it."""

    def __init__(self, of: TableOperations, cache: StateCache, parked: Mapping[int, ParkedDraft]) -> None:
        self.parked = parked
        self.name, self.asked_for = of.name, of.asked_for
        self.project, self.store, self.table_head = of.project, of.store, of.table_head
        self.whereabouts, self.publisher = of.whereabouts, of.publisher
        self.cache = cache

    def refresh(self) -> TableState | None:
        """The state that was made."""
        return self.cache.known

    def existing_state(self) -> TableState:
        """The state that was made. Raises `TableNotFound`."""
        return self.cache.existing_state()

    def change(self, plan: PlanCommit, *, just_opened: bool = False) -> TableState | None:
        """Refused: a view is of drafts that somebody else publishes."""
        raise InvalidInput(f"{self.name} is seen with parked drafts, and is only read. Nothing was changed.")


@dataclass(frozen=True)
class View:
    """A table with drafts in it: what each came to, and what superseded those that are not in it, by their ids."""

    table: VersionedTable
    results: Mapping[str, Sequence[WriteResult]]
    superseded: Mapping[str, Superseded]


def view(table: VersionedTable, drafts: Sequence[ParkedDraft]) -> View:
    """The table as it would be if these drafts were published now, in this order; nothing is stored.

    What a draft adds is committed to a log in memory, by the very loop that publishes it. One that is superseded is
    passed over. Raises `IntegrityError` and `CommitConflict`.
    """
    return beside_collections(table, lambda: _view(table, drafts))


def _view(table: VersionedTable, drafts: Sequence[ParkedDraft]) -> View:
    operations = table.operations
    log, cache = in_memory(operations)
    results: dict[str, Sequence[WriteResult]] = {}
    superseded: dict[str, Superseded] = {}
    parked: dict[int, ParkedDraft] = {}
    for draft in drafts:
        with staging_folder(operations.store) as staging:
            try:
                write = parked_write(operations.store, staging, draft)
                before, state = cache.known, commit_in_memory(log, cache, write.draft)
                results[draft.id] = write.results(state)
                if state is not None and state is not before:
                    parked[state.log_version] = draft
            except Superseded as why:
                superseded[draft.id] = why
    return View(seen_by(table, cache, parked), results, superseded)


def seen_by(table: VersionedTable, cache: StateCache, parked: Mapping[int, ParkedDraft]) -> VersionedTable:
    """The table with the log that a cache follows, and the drafts that made some of its log versions."""
    seen = VersionedTable(table.project, table.name, table.asset_key)
    seen.operations = ViewOperations(table.operations, cache, parked)
    return seen


def in_memory(operations: TableOperations) -> tuple[LogInMemory, StateCache]:
    """A log that goes on in memory from where the table's is now, and its state."""
    state = operations.refresh()
    log = LogInMemory(operations.store, -1 if state is None else state.log_version)
    cache = StateCache(log)
    if state is not None:
        cache.go_on_from(state)
    return log, cache


def commit_in_memory(log: LogInMemory, cache: StateCache, plan: PlanCommit) -> TableState | None:
    """The state once the plan was committed there. Raises what the plan raises."""
    after = commit(log, cache, plan, lambda _: None, _in_the_way)
    return after or cache.known


def beside_collections(table: VersionedTable, do: Callable[[], T]) -> T:
    """Do what looks at a log in memory, again from the start once a collection that is in its way has ended."""
    while True:
        try:
            return do()
        except CollectionInProgress as found:
            table.operations.collector().settle(found.collection)


def _in_the_way(collection: Collection) -> object:
    raise CollectionInProgress(collection)
