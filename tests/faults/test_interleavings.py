"""Must show 4: one operation stops before a call of its store, another runs from start to end, and the first goes on.

Every pair of operations, stopped at every call; by default before some of those that change something. Where the second
one needs what the first is deleting, it would wait: here it gives up, as if it was killed while it waited.
"""

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from dagster_versioned.storage import LocalStore
from dagster_versioned.storage.wrappers import Call
from dagster_versioned.tables.table import VersionedTable
from support.crashes import WRITING, announce_collection, table_in
from support.interleaving import (
    POOL,
    REFUSALS,
    Step,
    Stepped,
    WouldWait,
    assert_head_hides_nothing,
    assert_nothing_lost,
    expires,
    identities,
    impatient,
    pins,
    purges,
    reverts_to,
    vacuums,
    writes,
)
from support.tmpfs import scratch

pytestmark = pytest.mark.faults

SHA = {name: sha for (name, _), sha in identities((None,)).items()}
ROWS = {sha: POOL[name] for name, sha in SHA.items()}

STEPS: dict[str, Step] = {
    "write new": writes("c"),
    "write again": writes("long"),
    "write shared": writes("longer"),
    "revert": reverts_to(SHA["a"]),
    "expire": expires(),
    "vacuum": vacuums,
    "purge": purges(SHA["long"]),
    "pin": pins(SHA["long"]),
}
PAIRS = list(itertools.product(STEPS, STEPS))
FOUND_BUGS = {
    ("purge", "pin"),  # pinned between the plan of a purge and its intent
    ("expire", "pin"),
    ("expire", "write again"),  # what an expiry has begun to delete is needed again
    ("write again", "write new"),  # overtaken while it cleared the documents for datom readers
    ("write shared", "write new"),
}
STRIDE = 10


def prepare(table: VersionedTable) -> None:
    """Versions that an expiry takes, one of many parts, and what a writer left that died."""
    for name in ("a", "long", "b"):
        writes(name)(table)
    died = Stepped(table.project.store)
    died.shared["before"] = lambda call: died.die() if call.verb == "put_if_absent" else None
    with pytest.raises(Exception, match="dead"):
        writes("longer")(table_in(died))


@pytest.fixture(scope="module")
def base() -> Iterator[Path]:
    with scratch() as folder:
        prepare(table_in(LocalStore(folder / "base")))
        yield folder / "base"


def attempt(step: Step, table: VersionedTable, acknowledged: set[tuple[int, str]]) -> None:
    try:
        result = step(table)
    except (WouldWait, *REFUSALS):
        return
    if hasattr(result, "change"):
        acknowledged.add((result.version.log_version, result.version.metadata_sha))


@pytest.mark.every(2)
@pytest.mark.parametrize(("first", "second"), PAIRS, ids=[f"{a}, {b}" for a, b in PAIRS])
def test_stopped_before_some_changes(first: str, second: str, base: Path) -> None:
    """Before each where that once found a bug; else before every tenth, beginning at another for each pair."""
    for number in some_changes(first, second, base):
        interleave(first, second, number, base)


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), PAIRS, ids=[f"{a}, {b}" for a, b in PAIRS])
def test_stopped_before_every_other_change(first: str, second: str, base: Path) -> None:
    done = some_changes(first, second, base)
    for number in changes_of(first, base):
        if number not in done:
            interleave(first, second, number, base)


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), PAIRS, ids=[f"{a}, {b}" for a, b in PAIRS])
def test_stopped_before_every_look(first: str, second: str, base: Path) -> None:
    for call in calls_of(first, base):
        if call.verb not in WRITING:
            interleave(first, second, call.number, base)


def some_changes(first: str, second: str, base: Path) -> list[int]:
    changes = changes_of(first, base)
    return changes if (first, second) in FOUND_BUGS else changes[PAIRS.index((first, second)) % STRIDE :: STRIDE]


def changes_of(step: str, base: Path) -> list[int]:
    return [call.number for call in calls_of(step, base) if call.verb in WRITING]


def calls_of(step: str, base: Path) -> list[Call]:
    calls: list[Call] = []
    with scratch() as folder:
        attempt(STEPS[step], table_in(Stepped(LocalStore(shutil.copytree(base, folder / "x")), calls.append)), set())
    return calls


def interleave(first: str, second: str, number: int, base: Path) -> None:
    with scratch() as folder, impatient():
        store = LocalStore(shutil.copytree(base, folder / "x"))
        acknowledged: set[tuple[int, str]] = set()
        stopped: list[Call] = []

        def other_runs(call: Call) -> None:
            if call.number == number:
                stopped.append(call)
                attempt(STEPS[second], table_in(store), acknowledged)

        attempt(STEPS[first], table_in(Stepped(store, other_runs)), acknowledged)
        try:
            assert_nothing_lost(store, ROWS, acknowledged)
            assert_head_hides_nothing(store)
            vacuums(table_in(store))
            assert_nothing_lost(store, ROWS, acknowledged)
            table_in(store).write(POOL["c"].slice(1))
            table_in(store).verify().require_ok()
        except BaseException as error:
            error.add_note(f"{first} stopped before {stopped}")
            raise


def test_an_expiry_that_began_to_delete_is_never_called_off() -> None:
    """Its process died half way; then a table that was still being built names the version as its parent."""
    with scratch() as root:
        store = LocalStore(root)
        source = table_in(store)
        writes("long")(source)
        upstream = source.upstream()
        writes("c")(source)
        paths = source.expire(keep_last=1).keys
        assert len(paths) > 1
        announce_collection(source, paths, versions=((0, None),))
        source.store.delete(paths[:1])
        source.project.table("child").write(POOL["a"], parents=upstream)
        writes("long")(table_in(store))
        fresh = table_in(store)
        assert [version.gone for version in fresh.history() if version.log_version == 0] == ["expire"]
        fresh.verify().require_ok()
        assert_nothing_lost(store, ROWS, set())


def test_an_expiry_that_deleted_nothing_is_called_off_for_a_new_child() -> None:
    with scratch() as root:
        store = LocalStore(root)
        source = table_in(store)
        writes("long")(source)
        upstream = source.upstream()
        writes("c")(source)
        announce_collection(source, source.expire(keep_last=1).keys, versions=((0, None),))
        source.project.table("child").write(POOL["a"], parents=upstream)
        writes("long")(table_in(store))
        assert [version.gone for version in table_in(store).history()] == [None] * 3
        table_in(store).verify().require_ok()
