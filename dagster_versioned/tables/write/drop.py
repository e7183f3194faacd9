"""Dropping partitions, or a table, and taking a drop back: one commit each, and no byte is deleted.

A dropped partition has no version from then on. A dropped table has none in any partition, and its log says who dropped
it; the next write begins another table in the same log. Readers keep what they hold, and old versions can be read by
name until they are expired.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import orjson

from dagster_versioned.delta.log.snapshot import load_snapshot
from dagster_versioned.errors import ExpiredVersion, HeldHead, InvalidInput, TableNotFound, VersionNotFound
from dagster_versioned.identity.version import VersionEntry, created_at_text, partitions_sha
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.tables.documents.head import held_domain
from dagster_versioned.tables.history import Version
from dagster_versioned.tables.partitioning import shown
from dagster_versioned.tables.parts import missing_parts, objects_of, parts_by_partition, parts_of
from dagster_versioned.tables.state import TableState
from dagster_versioned.tables.table_record import DropRecord, TableRecord
from dagster_versioned.tables.write.commit import WRITER, CommitDraft
from dagster_versioned.tables.write.table_actions import dropped_domains, dropped_info, version_domain


@dataclass(frozen=True)
class DropReport:
    """What was dropped, or (dry run) would be: the versions that are current no more, and the size of their bytes."""

    dry_run: bool
    versions: tuple[Version, ...]
    size_bytes: int

    @property
    def partitions(self) -> tuple[str, ...]:
        """The partitions among them; none of a table without partitions."""
        return tuple(sorted(version.partition for version in self.versions if version.partition is not None))


class Drop:
    """The draft of a drop of some partitions, or (``None``) of the whole table; ``dropped`` are the heads it takes."""

    def __init__(self, table: str, partitions: Sequence[str] | None, by: str | None, why: str | None) -> None:
        self._table = table
        self._partitions = None if partitions is None else list(dict.fromkeys(partitions))
        self._by = by
        self._why = why
        self.dropped: tuple[Version, ...] = ()

    def draft(self, state: TableState | None, timestamp: int) -> CommitDraft | None:
        """The next log entry. Raises `VersionNotFound`, `TableNotFound`, `HeldHead` and `InvalidInput`."""
        assert state is not None  # the caller asked for the table's state first
        record = refuse_dropped(self._table, state)
        self.dropped = self._heads(state)
        refuse_held(state, self.dropped)
        if self._partitions is None:
            adds = parts_of(state.snapshot)
            dropped = DropRecord(created_at_text(timestamp), self._by, self._why)
            after = replace(record, partitioning=None, since=state.log_version + 1, dropped=dropped)
        else:
            adds = tuple(chain.from_iterable(parts_by_partition(state.snapshot, self._partitions).values()))
            after = record
        return CommitDraft(
            operation="DROP" if self._partitions is None else "DROP PARTITION",
            actions=[*(add.removed(timestamp) for add in adds), *dropped_domains(self.dropped), *after.actions(record)],
            info={**dropped_info(state, self.dropped), **self._reason()},
        )

    def _heads(self, state: TableState) -> tuple[Version, ...]:
        heads = state.history.heads
        if state.is_history:
            raise InvalidInput(
                f"{self._table} is a history of events, of which nothing is ever changed or taken away, so nothing of "
                "it can be dropped. Nothing was changed. What is wrong is put right by later events."
            )
        if state.history.unadopted is not None:
            raise InvalidInput(
                f"Another program committed to {self._table} last, and what has no identity could not be restored. "
                "Nothing was changed. Adopt it first, with adopt()."
            )
        if self._partitions is None:
            return tuple(heads.values())
        if not self._partitions:
            raise InvalidInput("No partition is named. Nothing was changed.")
        if missing := [key for key in self._partitions if key not in heads]:
            raise VersionNotFound(
                f"{self._table} has no partition {shown(missing)}. Nothing was changed; `dagster-versioned show "
                f"{self._table}` lists those that there are."
            )
        return tuple(heads[key] for key in self._partitions)

    def _reason(self) -> dict[str, Any]:
        reason = {"by": self._by, "why": self._why}
        return {"reason": {name: text for name, text in reason.items() if text}} if any(reason.values()) else {}


class Restoration:
    """The draft that takes the drop of a table back: its versions of then are current again, by their identities."""

    def __init__(self, table: str, store: ObjectStore, by: str | None) -> None:
        self._table = table
        self._store = store
        self._by = by

    def draft(self, state: TableState | None, timestamp: int) -> CommitDraft | None:
        """The next log entry, ``None`` where the table is not dropped. Raises as `VersionedTable.restore` does."""
        assert state is not None  # the caller asked for the table's state first
        record = TableRecord.of(state.snapshot)
        if record.dropped is None:
            return None
        if state.history.unadopted is not None:
            raise InvalidInput(
                f"{self._table} {record.dropped}, and another program committed to it since, whose rows would be mixed "
                "with those of then. Nothing was changed. Read what was dropped by version, or adopt() that commit and "
                f"go back with revert(); `dagster-versioned history {self._table}` lists both."
            )
        heads, before = self._heads(state, record), load_snapshot(self._store, record.since - 1)
        adds = parts_of(before)
        if lost := missing_parts(self._store, adds):
            raise VersionNotFound(
                f"Part {lost[0].key} of {self._table} is missing from {self._store.uri}. Nothing was changed. Run "
                "verify."
            )
        entries = [self._restored(version, created_at_text(timestamp)) for version in heads]
        shas = {str(e.identity.partition): e.metadata_sha for e in entries if e.identity.partition is not None}
        was = TableRecord.of(before).partitioning
        after = replace(record, partitioning=was, since=state.log_version + 1, dropped=None)
        return CommitDraft(
            operation="RESTORE",
            actions=[
                *(replace(add, data_change=True) for add in adds),
                *(version_domain(entry, state) for entry in entries),
                *after.actions(record),
            ],
            info={
                "versions": [entry.to_json() for entry in entries],
                **({"partitions_sha": partitions_sha(shas)} if shas else {}),
            },
            needs=frozenset(objects_of(self._store, adds)),
        )

    def _heads(self, state: TableState, record: TableRecord) -> list[Version]:
        """The versions that were current when the table was dropped."""
        current = {(version.log_version, version.partition): version for version in state.history.versions}
        heads = [current[v.log_version, v.partition] for v in state.history.until(record.since - 1).heads.values()]
        if gone := [version.short for version in heads if version.gone is not None]:
            raise ExpiredVersion(
                f"{self._table} {record.dropped}, and the data of {shown(gone)} was not kept since, so it cannot be "
                "restored. Nothing was changed. Versions that are kept can be read by name; `history` lists them."
            )
        return heads

    def _restored(self, version: Version, created_at: str) -> VersionEntry:
        author = self._by
        facts = replace(
            version.facts, created_at=created_at, writer=WRITER, author=author, previous=None, run=None, added=None
        )
        return VersionEntry.of(version.identity, facts, "full")


def refuse_dropped(table: str, state: TableState) -> TableRecord:
    """The table's record. Raises `TableNotFound` where it says that the table was dropped."""
    record = TableRecord.of(state.snapshot)
    if record.dropped is not None:
        raise TableNotFound(
            f"{table} {record.dropped}. Nothing was changed. Take that back with `dagster-versioned restore {table}`, "
            f"or read an older version by name: `dagster-versioned history {table}` lists them."
        )
    return record


def refuse_held(state: TableState, versions: Sequence[Version]) -> None:
    """Raise `HeldHead` where one of these heads is held."""
    for version in versions:
        if (held := state.snapshot.domains.get(held_domain(version.partition))) is not None:
            of = "" if version.partition is None else f" of partition {version.partition!r}"
            raise HeldHead(f"The head{of} is held: {_why(held)}. Nothing was changed. release() it first.")


def _why(held: str) -> str:
    try:
        return str(orjson.loads(held)["why"])
    except (ValueError, KeyError, TypeError):
        return held
