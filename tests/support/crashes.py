"""Processes that die in the middle of an operation, and the operations that they die in.

One process, which never starts a thread, forks a child for every death: it has everything imported, so a death costs
milliseconds.
"""

import multiprocessing
import os
import pickle
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from dagster_versioned.storage import ObjectStore
from dagster_versioned.storage.wrappers import AtCall, Call, Fault, FaultStore
from dagster_versioned.tables import lease
from dagster_versioned.tables.commit import Draft
from dagster_versioned.tables.history import Collection
from dagster_versioned.tables.options import TableOptions
from dagster_versioned.tables.project import Project
from dagster_versioned.tables.table import VersionedTable
from support.frames import numbered

SMALL_PARTS = TableOptions(row_group_bytes=1_500, target_part_bytes=1)
"""A part for every 1,500 bytes of rows in memory."""

NEVER = 10**9
WRITING = frozenset({"put", "put_file", "put_if_absent", "put_if_match", "copy", "delete"})

Action = Callable[[VersionedTable], object]


def project_in(store: ObjectStore) -> Project:
    """The project that every operation below works in."""
    return Project("NYC", store, author="Ada <ada@example.org>")


def table_in(store: ObjectStore) -> VersionedTable:
    """Its one table, with nothing remembered."""
    return project_in(store).table("flights")


# --- dying -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ended:
    """How a child ended: by which signal (0: none), after how many calls of the store, with which error."""

    by_signal: int
    calls: tuple[Call, ...]
    error: str

    @property
    def was_killed(self) -> bool:
        return self.by_signal == signal.SIGKILL


class Undertaker:
    """Runs actions in children that are killed at a call of the store."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def run(self, action: Action, store: ObjectStore, die_at: int = NEVER) -> Ended:
        """Run ``action`` on the table in ``store`` in a child that dies by SIGKILL before call ``die_at`` (from 1)."""
        self._connection.send((action, store, die_at))
        return self._connection.recv()


@contextmanager
def undertaker() -> Iterator[Undertaker]:
    """The process that forks, for as long as a test module needs it."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_fork_for, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    try:
        yield Undertaker(ours)
    finally:
        ours.close()
        process.join()


def _fork_for(connection: Connection) -> None:
    while True:
        try:
            action, store, die_at = connection.recv()
        except EOFError:
            return
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            _live(writing, action, store, die_at)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            said = pipe.read()
        status = os.waitpid(child, 0)[1]
        calls, error = pickle.loads(said) if said else ((), "")
        connection.send(Ended(os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0, calls, error))


def _live(writing: int, action: Action, store: ObjectStore, die_at: int) -> None:
    calls: list[Call] = []

    def decide(call: Call) -> Fault | None:
        calls.append(call)
        return Fault.KILL if call.number == die_at else None

    error = ""
    try:
        action(table_in(FaultStore(store, decide)))
    except BaseException:  # noqa: BLE001 - the child ends here, whatever it was
        error = traceback.format_exc()
    with os.fdopen(writing, "wb") as pipe:
        pipe.write(pickle.dumps((tuple(calls), error)))
    os._exit(0)


def failing(store: ObjectStore, number: int, fault: Fault) -> VersionedTable:
    """The table in ``store``, one of whose coming calls fails."""
    return table_in(FaultStore(store, AtCall(number, fault)))


# --- operations ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Operation:
    """One operation, and what is there before it; module-level functions, so that a child can be sent them."""

    prepare: Action
    act: Action


def nothing(table: VersionedTable) -> None: ...


def two_versions(table: VersionedTable) -> None:
    table.write(numbered(20))
    table.write(numbered(30))


def write_first(table: VersionedTable) -> None:
    table.write(numbered(20))


def write_second(table: VersionedTable) -> None:
    table.write(numbered(30))


def say_more(table: VersionedTable) -> None:
    table.write(numbered(20), code_version="2", message="said again")


def many_parts(table: VersionedTable) -> None:
    table.write(numbered(90), options=SMALL_PARTS)


def more_parts(table: VersionedTable) -> None:
    table.write(numbered(130), options=SMALL_PARTS)  # the first parts stay


def partitions(table: VersionedTable) -> None:
    table.write_partitions({"a": numbered(3), "b": numbered(3)})
    table.write(numbered(4), partition="b")


def more_partitions(table: VersionedTable) -> None:
    table.write_partitions({"b": numbered(5), "c": numbered(3)})


def revert(table: VersionedTable) -> None:
    table.revert(0)


def revert_and_hold(table: VersionedTable) -> None:
    table.revert(0, hold=True, by="Ada", why="wrong rows")


def held(table: VersionedTable) -> None:
    two_versions(table)
    revert_and_hold(table)


def release(table: VersionedTable) -> None:
    table.release()


def four_versions(table: VersionedTable) -> None:
    for nrow in (10, 90, 30, 40):
        table.write(numbered(nrow, nrow * 100), options=SMALL_PARTS)
    table.project.pin("filed", "flights", table.version(2).metadata_sha)


def expire(table: VersionedTable) -> None:
    table.expire(keep_last=1, dry_run=False, why="retention")


def orphans(table: VersionedTable) -> None:
    two_versions(table)
    for number in range(3):
        table.store.put(f"{number:064x}.parquet", b"left by a writer that died")
    table.store.put("_staging/dead/part", b"left too")


def vacuum(table: VersionedTable) -> None:
    table.vacuum(min_age=timedelta(0), dry_run=False)


def purge(table: VersionedTable) -> None:
    table.purge([1], dry_run=False, why="erasure request 12")


def foreign(table: VersionedTable) -> None:
    table.write(numbered(20))
    append_as_another_program(table, numbered(5, 100))


def adopt(table: VersionedTable) -> None:
    table.adopt()


def abandoned_expiry(table: VersionedTable) -> None:
    """An expiry whose process died right after it had announced what it would delete."""
    two_versions(table)
    announce_collection(table, table.expire(keep_last=1).keys, versions=((0, None),))


def a_hundred(table: VersionedTable) -> None:
    for number in range(100):
        table.write(numbered(1 + number % 3, number))


OPERATIONS = {
    "create": Operation(nothing, write_first),
    "full": Operation(write_first, write_second),
    "metadata_only": Operation(write_first, say_more),
    "none": Operation(write_first, write_first),
    "parts": Operation(many_parts, more_parts),
    "one part to many": Operation(write_first, many_parts),
    "partitions": Operation(partitions, more_partitions),
    "reuse": Operation(two_versions, write_first),
    "revert": Operation(two_versions, revert),
    "hold": Operation(two_versions, revert_and_hold),
    "release": Operation(held, release),
    "expire": Operation(four_versions, expire),
    "vacuum": Operation(orphans, vacuum),
    "purge": Operation(four_versions, purge),
    "adopt": Operation(foreign, adopt),
    "take over": Operation(abandoned_expiry, write_first),
    "checkpoint": Operation(a_hundred, write_second),
}


def append_as_another_program(table: VersionedTable, frame: pa.Table) -> None:
    """What a Delta writer that knows our writer features, but not us, would commit."""
    state = table.state
    sink = pa.BufferOutputStream()
    pq.write_table(frame, sink)
    data = sink.getvalue().to_pybytes()
    name = f"part-00000-{state.log_version + 1}.snappy.parquet"
    table.store.put(name, data)
    now = state.snapshot.timestamp_ms + 1
    add = {"path": name, "partitionValues": {}, "size": len(data), "modificationTime": now, "dataChange": True}
    info = {"inCommitTimestamp": now, "timestamp": now, "operation": "APPEND"}
    lines = b"\n".join(orjson.dumps(line) for line in ({"commitInfo": info}, {"add": add}))
    table.store.put_if_absent(f"_delta_log/{state.log_version + 1:020d}.json", lines + b"\n")


def announce_collection(
    table: VersionedTable,
    paths: tuple[str, ...],
    *,
    kind: str = "expire",
    versions: tuple[tuple[int, str | None], ...] = (),
    owner: str | None = None,
    name: str = "11111111-1111-1111-1111-111111111111",
) -> Collection:
    """Commit an intent and stop there; by default in the name of a process of this machine that is gone."""
    machine, _, _ = lease.owner().rpartition(" ")[0].rpartition(" ")
    collection = Collection(
        id=name,
        kind=kind,
        log_version=table.state.log_version + 1,
        done=False,
        paths=frozenset(paths),
        versions=versions,
        owner=f"{machine} {os.getpid()} 1" if owner is None else owner,
        by=None,
        why=None,
    )
    draft = Draft(kind.upper(), [], {"collect": collection.to_json()}, announces=False)
    table._commit(lambda state, timestamp: draft)  # pyright: ignore[reportPrivateUsage]
    return collection
