"""What must hold of a table however an operation on it ended, and the places where operations are made to end badly."""

import hashlib
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Protocol

import orjson
import pyarrow as pa
import pytest

from dagster_versioned.errors import ExpiredVersion, TableNotFound, VersionedError
from dagster_versioned.storage import LocalStore, ObjectStore
from dagster_versioned.storage.wrappers import Fault
from dagster_versioned.tables.documents.head import HELD_DOMAIN, head_key, table_head
from dagster_versioned.tables.table import VersionedTable
from dagster_versioned.tables.table_record import TableRecord
from support.crashes import WRITING, Operation, Undertaker, failing, table_in
from support.frames import numbered
from support.readers import assert_same, by_datafusion, by_deltalake
from support.stores import contents

PROMPTLY = 75.0
"""Seconds, of which a write needs less than one; a collection of a process that may live is waited for 150 s."""

COLLECTING = frozenset({"expire", "vacuum", "purge"})
"""Operations that stand although a call of theirs failed: what it would have done is done later."""

_LONG = 50  # calls that only read
_LOOKED_AT = 10  # of the newest versions
_COPIES_AT_ONCE = 8

Known = tuple[tuple[int, str | None, str | None, str | None], ...]


# --- places ----------------------------------------------------------------------------------------------------------


class Place(Protocol):
    """Where a case keeps its stores, each under a name of its own."""

    def store(self, name: str) -> ObjectStore: ...

    def copy(self, name: str, to: str) -> ObjectStore: ...

    def remove(self, name: str) -> None: ...

    def as_folder(self, name: str) -> Path:
        """Where programs that know local files only find what the store holds now."""
        ...


@dataclass(frozen=True)
class LocalPlace:
    """Folders in a folder."""

    root: Path

    def store(self, name: str) -> LocalStore:
        (self.root / name).mkdir(exist_ok=True)
        return LocalStore(self.root / name)

    def copy(self, name: str, to: str) -> LocalStore:
        return LocalStore(shutil.copytree(self.root / name, self.root / to))

    def remove(self, name: str) -> None:
        shutil.rmtree(self.root / name)

    def as_folder(self, name: str) -> Path:
        return self.root / name


class BucketPlace:
    """Prefixes in a bucket; ``root`` is for copies of them."""

    def __init__(self, bucket: ObjectStore, root: Path) -> None:
        self._root = root
        self._bucket = bucket

    def store(self, name: str) -> ObjectStore:
        return self._bucket.subfolder(name)

    def copy(self, name: str, to: str) -> ObjectStore:
        keys = [info.key for info in self.store(name).list()]
        with ThreadPoolExecutor(_COPIES_AT_ONCE) as pool:
            list(pool.map(lambda key: self._bucket.copy(f"{name}/{key}", f"{to}/{key}"), keys))
        return self.store(to)

    def remove(self, name: str) -> None:
        self._bucket.delete([f"{name}/{info.key}" for info in self.store(name).list()])

    def as_folder(self, name: str) -> Path:
        store, folder = self.store(name), self._root / name
        for info in store.list():
            path = folder / info.key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(store.get(info.key))
        return folder


# --- cases -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Side:
    """A table as it is on one side of an operation: its versions, and the rows of its log versions."""

    versions: Known
    rows: dict[int, pa.Table]


@dataclass(frozen=True)
class Case:
    """An operation, the place whose store "base" holds what is there before it, and both sides of it.

    ``numbers`` are the calls of the store, from 1, at which it may end; where a long log is read first, those before
    the first call that writes are left out. ``changes`` are those that write, and the last.
    """

    name: str
    operation: Operation
    place: Place
    before: Side
    after: Side
    numbers: Sequence[int]
    changes: Sequence[int]
    sound: set[str] = field(default_factory=set)
    """Names of all objects and their bytes, as digests of stores for which everything holds."""


def prepared(name: str, operation: Operation, killer: Undertaker, place: Place) -> Case:
    """Run the operation once undisturbed."""
    operation.prepare(table_in(place.store("base")))
    ended = killer.run(operation.act, place.copy("base", "clean"))
    assert not ended.error, ended.error
    before, after = side(place, "base"), side(place, "clean")
    first_write = next((call.number for call in ended.calls if call.verb in WRITING), 1)
    first = first_write if first_write > _LONG else 1
    last = len(ended.calls)
    changes = [call.number for call in ended.calls if call.verb in WRITING or call.number == last]
    return Case(name, operation, place, before, after, range(first, last + 1), changes)


def side(place: Place, name: str) -> Side:
    """What `deltalake`, who knows nothing of us, reads in a table; only which versions are gone is our own word."""
    table = table_in(place.store(name))
    if not table.exists():
        return Side((), {})
    folder = place.as_folder(name) / "datom" / "flights"
    kept = [version.log_version for version in table.history()[:_LOOKED_AT] if version.gone is None]
    # The one of its two ways to read that knows deletion vectors.
    read = by_datafusion if table.state.snapshot.has_deletion_vectors else by_deltalake
    return Side(known(table), {version: read(folder, version) for version in kept})


def known(table: VersionedTable) -> Known:
    if not table.exists():
        return ()
    return tuple((v.log_version, v.partition, v.metadata_sha, v.gone) for v in table.history())


def killed_at(case: Case, killer: Undertaker, numbers: Iterable[int]) -> None:
    """The operation dies by SIGKILL before each of these calls.

    What dies before a call that reads leaves what the next call that writes would find.
    """
    for number in numbers:
        store = case.place.copy("base", f"{number}")
        ended = killer.run(case.operation.act, store, number)
        assert ended.was_killed, ended.error
        with_number(case, number, check)


def failed_at(case: Case, fault: Fault, numbers: Iterable[int]) -> None:
    """Each of these calls fails, or its answer is lost, and the operation goes on as it sees fit.

    To lose the answer of a call that reads is to fail it.
    """
    for number in numbers:
        store = case.place.copy("base", f"{number}")
        try:
            case.operation.act(failing(store, number, fault))
            failed = ""
        except VersionedError as error:
            failed = str(error)
        assert "injected" in failed or not failed
        found = known(table_in(store))
        if not failed:
            assert found == case.after.versions, f"call {number} failed, and nobody was told"
        elif fault is Fault.BEFORE and case.name not in COLLECTING:
            assert found == case.before.versions, f"call {number} failed, but the operation stands"
        with_number(case, number, check)


ENDINGS: Mapping[str, Callable[[Case, Undertaker], None]] = {
    "killed": lambda case, killer: killed_at(case, killer, case.changes),
    "failed": lambda case, _: failed_at(case, Fault.BEFORE, case.numbers),
    "answer lost": lambda case, _: failed_at(case, Fault.LOST_ANSWER, case.changes),
}
"""How an operation ends at each of its calls."""


def with_number(case: Case, number: int, what) -> None:
    try:
        what(case, f"{number}")
    except BaseException as error:
        error.add_note(f"{case.name} ended at call {number}")
        raise
    case.place.remove(f"{number}")


# --- what holds ------------------------------------------------------------------------------------------------------


def check(case: Case, name: str) -> None:
    """Everything that must hold of a store however an operation ended; looked at once for each that is left.

    Most calls that fail are reads of an operation that then leaves what was there.
    """
    store = case.place.store(name)
    left = digest_of(contents(store))
    if left in case.sound:
        return
    again = case.place.copy(name, f"{name}-again")
    sees_one_side(case, table_in(store))
    head_hides_nothing(store)
    next_write_succeeds(case, store)
    next_write_succeeds(case, again)
    nothing_needed_is_collected(store)
    derived_documents_come_back(again)
    case.place.remove(f"{name}-again")
    case.sound.add(left)


def digest_of(found: dict[str, str]) -> str:
    return hashlib.sha256(orjson.dumps(found, option=orjson.OPT_SORT_KEYS)).hexdigest()


def sees_one_side(case: Case, table: VersionedTable) -> None:
    found = known(table)
    assert found in (case.before.versions, case.after.versions)
    expected = case.after if found == case.after.versions else case.before
    for version in table.history()[:_LOOKED_AT] if found else []:
        if version.gone is None:
            assert_same(table.read(f"@{version.log_version}"), expected.rows[version.log_version])
        else:
            with pytest.raises(ExpiredVersion):
                table.read(f"@{version.log_version}")
    if expected.rows:
        newest = max(expected.rows)
        if TableRecord.of(table.state.snapshot).dropped:
            with pytest.raises(TableNotFound):
                table.read()
        else:
            assert_same(table.read(), expected.rows[newest])


def head_hides_nothing(store: ObjectStore) -> None:
    """A reader of heads sees the last version or a mark; one tick later it sees the version."""
    table = table_in(store)
    own = [v for v in table.history() if not v.is_foreign] if table.exists() else []
    document = table.head()
    newest = own[0].log_version if own else -1
    shown = document.head.log_version if document.head else -1
    if own and own[0].is_drop:  # which is shown by what is not
        shown = min(document.log_version, newest)
    assert shown <= newest
    assert shown == newest or (document.pending and document.pending.log_version >= newest)
    table.resolve()
    if own:
        head = table_head(table.name, table.state)
        assert stored_head(table.project.data, head_key(table.name)) == (head.to_json() if head else None)


def stored_head(store: ObjectStore, key: str):
    return orjson.loads(store.get(key))["head"]


def next_write_succeeds(case: Case, store: ObjectStore) -> None:
    """Somebody else writes at once, with nothing mended by hand, and then everything is as it must be."""
    table = table_in(store)
    partition = "b" if table.exists() and table.state.history.is_partitioned else None
    rows = numbered(13, 1_000)
    if HELD_DOMAIN in (table.state.snapshot.domains if table.exists() else {}):
        table.release()
    began = time.monotonic()
    written = table.write(rows, partition=partition)
    assert time.monotonic() - began < PROMPTLY
    assert written.change == "full"
    assert not table.head().pending
    assert_same(table_in(store).read(partition=partition), rows)
    table_in(store).verify().require_ok()


def nothing_needed_is_collected(store: ObjectStore) -> None:
    table = table_in(store)
    table.vacuum(min_age=timedelta(0), dry_run=False)
    assert table.state.history.open_collections == ()
    table_in(store).verify().require_ok()
    assert table.vacuum(min_age=timedelta(0)).keys == ()


def derived_documents_come_back(store: ObjectStore) -> None:
    table_in(store).repair()  # those that are put now and then are as new as they can be
    before = derived(store)
    store.delete(before)
    table_in(store).repair()
    assert derived(store) == before
    table_in(store).verify().require_ok()


def derived(store: ObjectStore) -> dict[str, str]:
    return {
        key: sha
        for key, sha in contents(store).items()
        if (".metadata/" in key and not key.endswith("pins.json")) or "checkpoint" in key
    }
