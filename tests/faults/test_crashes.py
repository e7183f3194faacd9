"""Must show 4: a process killed at every storage call of every operation leaves the old version or the new one."""

import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import orjson
import pyarrow as pa
import pytest

from dagster_versioned.errors import ExpiredVersion, VersionedError
from dagster_versioned.storage import LocalStore, ObjectStore
from dagster_versioned.storage.wrappers import Fault
from dagster_versioned.tables.head import HELD_DOMAIN
from dagster_versioned.tables.table import VersionedTable
from support.crashes import OPERATIONS, WRITING, Operation, Undertaker, failing, table_in, undertaker
from support.frames import numbered
from support.readers import assert_same, by_deltalake
from support.stores import contents
from support.tmpfs import scratch

pytestmark = pytest.mark.faults

PROMPTLY = 10.0
"""Seconds; a collection of a process that may live is waited for 150 s."""

_LONG = 50  # calls that only read
_LOOKED_AT = 10  # of the newest versions

Known = tuple[tuple[int, str | None, str | None, str | None], ...]


@pytest.fixture(scope="module")
def killer() -> Iterator[Undertaker]:
    with undertaker() as one:
        yield one


@pytest.fixture
def folder() -> Iterator[Path]:
    with scratch() as one:
        yield one


@dataclass(frozen=True)
class Side:
    """A table as it is on one side of an operation: its versions, and the rows of its log versions."""

    versions: Known
    rows: dict[int, pa.Table]


def side(root: Path) -> Side:
    """What `deltalake`, who knows nothing of us, reads in a table; only which versions are gone is our own word."""
    table = table_in(LocalStore(root))
    if not table.exists():
        return Side((), {})
    folder = root / "datom" / "flights"
    kept = [version.log_version for version in table.history()[:_LOOKED_AT] if version.gone is None]
    return Side(known(table), {version: by_deltalake(folder, version) for version in kept})


def known(table: VersionedTable) -> Known:
    if not table.exists():
        return ()
    return tuple((v.log_version, v.partition, v.metadata_sha, v.gone) for v in table.history())


@dataclass(frozen=True)
class Case:
    """An operation, what its store holds before it, and both sides of it.

    ``calls`` is how many it makes of the store. A death before ``first_call`` is one before anything was written; all
    but the last of those are left out where a long log is read first.
    """

    name: str
    base: Path
    before: Side
    after: Side
    first_call: int
    calls: int


@pytest.fixture(scope="module", params=list(OPERATIONS))
def case(request: pytest.FixtureRequest, killer: Undertaker) -> Iterator[Case]:
    operation = OPERATIONS[request.param]
    with scratch() as folder:
        yield prepared(request.param, operation, killer, folder)


def prepared(name: str, operation: Operation, killer: Undertaker, folder: Path) -> Case:
    operation.prepare(table_in(LocalStore(folder / "base")))
    (folder / "base").mkdir(exist_ok=True)
    clean = shutil.copytree(folder / "base", folder / "clean")
    ended = killer.run(operation.act, LocalStore(clean))
    assert not ended.error
    before, after = side(folder / "base"), side(clean)
    first_write = next((call.number for call in ended.calls if call.verb in WRITING), 1)
    first = first_write if first_write > _LONG else 1
    return Case(name, folder / "base", before, after, first, len(ended.calls))


def test_killed_at_every_call(case: Case, killer: Undertaker, folder: Path) -> None:
    for number in range(case.first_call, case.calls + 1):
        root = shutil.copytree(case.base, folder / f"{number}")
        ended = killer.run(OPERATIONS[case.name].act, LocalStore(root), number)
        assert ended.was_killed, ended.error
        check(case, root)
        shutil.rmtree(root)


@pytest.mark.parametrize("fault", [Fault.BEFORE, Fault.LOST_ANSWER])
def test_failed_at_every_call(case: Case, fault: Fault, folder: Path) -> None:
    for number in range(case.first_call, case.calls + 1):
        root = shutil.copytree(case.base, folder / f"{number}")
        try:
            OPERATIONS[case.name].act(failing(LocalStore(root), number, fault))
            failed = ""
        except VersionedError as error:
            failed = str(error)
        assert "injected" in failed or not failed
        found = known(table_in(LocalStore(root)))
        if not failed:
            assert found == case.after.versions
        elif fault is Fault.BEFORE and case.name not in ("expire", "vacuum", "purge"):
            assert found == case.before.versions, f"call {number} failed, but the operation stands"
        check(case, root)
        shutil.rmtree(root)


def check(case: Case, root: Path) -> None:
    """Everything that must hold however an operation ended."""
    again = LocalStore(shutil.copytree(root, root.with_name(f"{root.name}-again")))
    sees_one_side(case, table_in(LocalStore(root)))
    head_hides_nothing(LocalStore(root))
    next_write_succeeds(case, LocalStore(root))
    next_write_succeeds(case, again)
    nothing_needed_is_collected(LocalStore(root))
    derived_documents_come_back(again)
    shutil.rmtree(again.uri)


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
        assert_same(table.read(), expected.rows[newest])


def head_hides_nothing(store: ObjectStore) -> None:
    """A reader of heads sees the last version or a mark; one tick later it sees the version."""
    table = table_in(store)
    own = [v for v in table.history() if not v.is_foreign] if table.exists() else []
    document = table.head()
    newest = own[0].log_version if own else -1
    shown = document.head.log_version if document.head else -1
    assert shown <= newest
    assert shown == newest or (document.pending and document.pending.log_version >= newest)
    table.resolve()
    if own:
        state = table.state
        for key, head in table.publisher.heads(state).items():
            assert stored_head(table.project.data, key) == (head.to_json() if head else None)


def stored_head(store: ObjectStore, key: str):
    return orjson.loads(store.get(key))["head"]


def next_write_succeeds(case: Case, store: ObjectStore) -> None:
    """Somebody else writes at once, with nothing mended by hand, and then everything is as it must be."""
    table = table_in(store)
    partition = "b" if any(partition for _, partition, _, _ in case.after.versions) else None
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
    before = derived(store)
    store.delete(before)
    table_in(store).repair()
    assert derived(store) == before


def derived(store: ObjectStore) -> dict[str, str]:
    return {
        key: sha
        for key, sha in contents(store).items()
        if (".metadata/" in key and not key.endswith("pins.json")) or "checkpoint" in key
    }
