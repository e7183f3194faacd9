"""Two processes that work on one table, stepped by hand: one stops before a call of its store, the other runs."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import pyarrow as pa
import pytest

from dagster_versioned.errors import (
    CommitConflict,
    ExpiredVersion,
    InvalidInput,
    ObjectNotFound,
    StoreUnavailable,
    VersionedError,
    VersionNotFound,
)
from dagster_versioned.storage import LocalStore, ObjectStore
from dagster_versioned.storage.wrappers import Call, StoreWrapper
from dagster_versioned.tables.maintenance import collect, lease
from dagster_versioned.tables.table import VersionedTable
from support.crashes import SMALL_PARTS, WRITING, project_in, table_in
from support.frames import numbered
from support.readers import assert_same
from support.tmpfs import scratch

POOL: dict[str, pa.Table] = {
    "a": numbered(3),
    "b": numbered(5),
    "long": numbered(90),
    "longer": numbered(130),  # its first parts are those of "long"
    "c": numbered(7),
}

REFUSALS = (ExpiredVersion, VersionNotFound, InvalidInput, CommitConflict, ObjectNotFound)
"""What an operation may answer because of what others did meanwhile; nothing of it is done then."""


class WouldWait(VersionedError):
    """The process waits for a collection of one that cannot go on, because this test holds it; as good as dead."""


class Died(StoreUnavailable):
    """The process is dead: none of its calls reaches the store any more."""


class Injected(StoreUnavailable):
    """One call failed, or its answer was lost."""


class Stepped(StoreWrapper):
    """Runs ``before(call)`` before every call; may lose the answer of one, and, once dead, fails every call."""

    def __init__(self, store: ObjectStore, before: Callable[[Call], None] = lambda call: None) -> None:
        super().__init__(store)
        self.shared = {"before": before, "number": 0, "lose": 0, "dead": False, "dies_after": False}

    def _around(self, verb, key, size, action):
        shared = self.shared
        shared["number"] += 1
        number = shared["number"]
        if not shared["dead"]:
            shared["before"](Call(number, verb, key, size))
        if shared["dead"]:
            raise Died(f"{verb} {key}: the process is dead.")
        result = action()
        if shared["dies_after"]:
            self.die()
            raise Died(f"{verb} {key}: the process died before it saw the answer.")
        if number == shared["lose"]:
            raise Injected(f"{verb} {key}: injected loss of the answer to call {number}.")
        return result

    def die(self, *, after: bool = False) -> None:
        """From within ``before``: fail from now on, the call at hand untried; or do that one still (``after``)."""
        self.shared["dies_after" if after else "dead"] = True


def dying(store: ObjectStore, number: int) -> Stepped:
    """The store of a process that dies before the ``number``-th of its calls that write (from 1).

    No other death leaves anything else: one before a call that reads, and one right after a call that writes, leave
    what the next call that writes would find.
    """
    writes = itertools.count(1)

    def before(call: Call) -> None:
        if call.verb in WRITING and next(writes) == number:
            stepped.die()

    stepped = Stepped(store, before)
    return stepped


@contextmanager
def impatient() -> Iterator[None]:
    """Whoever would wait for a collection of somebody who cannot go on gives up."""

    def wait_until_free(collection_id: str, owned_by: str, is_open: Callable[[], bool]) -> bool:
        if not is_open():
            return False
        if lease._is_dead(collection_id, owned_by):  # pyright: ignore[reportPrivateUsage]
            return True
        raise WouldWait(collection_id)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collect, "wait_until_free", wait_until_free)
        yield


Step = Callable[[VersionedTable], object]


def writes(name: str, partition: str | None = None) -> Step:
    return lambda table: table.write(POOL[name], partition=partition, options=SMALL_PARTS)


def reverts_to(sha: str, partition: str | None = None) -> Step:
    return lambda table: table.revert(sha, partition=partition)


def expires(keep_last: int = 1) -> Step:
    return lambda table: table.expire(keep_last=keep_last, dry_run=False)


def vacuums(table: VersionedTable) -> object:
    return table.vacuum(min_age=timedelta(0), dry_run=False)


def purges(sha: str) -> Step:
    return lambda table: table.purge([sha], why="erasure", dry_run=False)


def pins(sha: str) -> Step:
    return lambda table: table.project.pin(f"pin {sha[:8]}", str(table.name), sha)


def identities(partitions: tuple[str | None, ...]) -> dict[tuple[str, str | None], str]:
    """The SHA of every frame of the pool, in every partition: an identity is the same in any store."""
    with scratch() as folder:
        for at, partition in enumerate(partitions):
            table = table_in(LocalStore(folder / str(at)))
            for name in POOL:
                writes(name, partition)(table)
        return {
            (name, partition): version.metadata_sha
            for at, partition in enumerate(partitions)
            for name, version in zip(POOL, reversed(table_in(LocalStore(folder / str(at))).history()), strict=True)
        }


def assert_nothing_lost(store: ObjectStore, rows: dict[str, pa.Table], acknowledged: set[tuple[int, str]]) -> None:
    """Every version that anybody was told of is there; each that is not gone reads its rows; pins kept theirs."""
    table = table_in(store)
    history = table.history()
    assert acknowledged <= {(version.log_version, version.metadata_sha) for version in history}
    for version in history:
        if version.gone is None:
            files = table.files(f"@{version.log_version}", partition=version.partition)
            assert_same(table.read_files(files), rows[version.metadata_sha])
    for head in table.state.history.heads.values():
        assert head.gone is None
    for pin in project_in(store).pins().values():
        assert any(version.gone is None for version in history if version.metadata_sha == pin.version)


def assert_head_hides_nothing(store: ObjectStore) -> None:
    table = table_in(store)
    own = [version.log_version for version in table.history() if not version.is_foreign]
    document = table.head()
    shown = document.head.log_version if document.head else -1
    assert shown <= own[0]
    assert shown == own[0] or (document.pending and document.pending.log_version >= own[0])
