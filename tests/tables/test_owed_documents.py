"""What a publisher could not put is owed: the head says so, until somebody has put it."""

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from dagster_versioned.errors import StorageError
from dagster_versioned.storage import LocalStore
from dagster_versioned.storage.wrappers import Call, Fault, FaultStore
from dagster_versioned.tables.documents.head import TableHead
from dagster_versioned.tables.table import VersionedTable
from support.crashes import table_in
from support.hooked_store import HookedStore
from support.interleaving import Stepped
from support.one_table import numbered

VERSIONS = 7
HISTORY = ".metadata/version_history.json"


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    store = LocalStore(tmp_path / "store")
    table = table_in(store)
    for number in range(VERSIONS):
        table.write(numbered(number))
    table.verify().require_ok()
    return store


def fail() -> None:
    raise StorageError("put of a document: injected. Nothing was written.")


@pytest.mark.parametrize("ending", [HISTORY, ".metadata/metadata.json"])
def test_who_writes_after_a_repair_that_failed_puts_what_it_owes(store: LocalStore, ending: str) -> None:
    with pytest.raises(StorageError):
        table_in(HookedStore(store, "put", ending, fail)).repair()
    table_in(store).write(numbered(VERSIONS))
    table_in(store).verify().require_ok()


def test_who_publishes_meanwhile_leaves_the_debt_of_a_repair(store: LocalStore) -> None:
    other = table_in(store)
    other.write(numbered(VERSIONS))  # knows a head that owes nothing
    with pytest.raises(StorageError):
        table_in(HookedStore(store, "put", HISTORY, fail)).repair()
    other.write(numbered(VERSIONS + 1))
    table_in(store).write(numbered(VERSIONS + 2))
    table_in(store).verify().require_ok()


def test_a_slower_publisher_leaves_the_document_of_a_version_that_was_made_again_meanwhile(store: LocalStore) -> None:
    """Versions of one identity have one document, that of the newest of them."""
    again = f".metadata/{table_in(store).version(0).metadata_sha}.json"

    def overtake() -> None:
        other = table_in(store)
        for number in (50, 0, *range(60, 73)):
            other.write(numbered(number))

    table_in(HookedStore(store, "put", again, overtake)).write(numbered(0))
    table_in(store).verify().require_ok()


@pytest.mark.every(2)
@pytest.mark.parametrize(
    "overtake",
    [lambda table: table.write(numbered(VERSIONS)), lambda table: table.expire(keep_last=2, dry_run=False)],
    ids=["write", "expire"],
)
def test_a_repair_that_is_overtaken_at_some_call_leaves_the_newest_documents(
    store: LocalStore, tmp_path: Path, overtake: Callable[[VersionedTable], object]
) -> None:
    for at in itertools.count(1):
        copy = LocalStore(tmp_path / f"copy {at}")
        shutil.copytree(tmp_path / "store", tmp_path / f"copy {at}")
        other, stepped = table_in(copy), Stepped(copy)
        repairing = table_in(stepped)

        def look(call: Call, at: int = at, other: VersionedTable = other) -> None:
            if call.number == at:
                overtake(other)

        stepped.shared["before"] = look
        repairing.repair()
        if at > stepped.shared["number"]:
            break
        table_in(copy).verify().require_ok()


@pytest.mark.every(3)
@pytest.mark.parametrize("number", range(12))
def test_what_a_writer_died_before_it_put_is_put_by_those_after_it(tmp_path: Path, number: int) -> None:
    store = LocalStore(tmp_path)
    for before in range(number):
        table_in(store).write(numbered(before))
    dead = table_in(FaultStore(store, fail_once_committed(number)))
    dead.write(numbered(number))
    for after in range(3):
        table_in(store).write(numbered(number + 1 + after))
        table_in(store).verify().require_ok()


def fail_once_committed(log_version: int) -> Callable[[Call], Fault | None]:
    """Every call after the put of a commit fails, as none comes from a process that died."""
    is_put = False

    def decide(call: Call) -> Fault | None:
        nonlocal is_put
        if is_put:
            return Fault.BEFORE
        is_put = call.verb == "put_if_absent" and call.key.endswith(f"{log_version:020}.json")
        return None

    return decide


def test_a_head_owes_what_nobody_put(tmp_path: Path) -> None:
    head = TableHead(LocalStore(tmp_path), "head.json")
    head.publish(None, 5, put_after=5, owed_since=2)
    head.publish(None, 6, put_after=5)
    head.publish(None, 7, put_after=7, owed_since=6)
    assert head.read().published == 2
    head.publish(None, 8, put_after=2)
    assert head.read().published == 8
