"""Processes that die in the middle of an operation on a table, and the operations that they die in."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dagster_versioned.features.sample_update import SampleUpdate
from dagster_versioned.projects.project import Project
from dagster_versioned.storage import ObjectStore
from dagster_versioned.storage.wrappers import AtCall, Call, Fault, FaultStore
from dagster_versioned.tables.history import Collection
from dagster_versioned.tables.maintenance import lease
from dagster_versioned.tables.options import TableOptions
from dagster_versioned.tables.partitioning import Partitioning
from dagster_versioned.tables.table import VersionedTable
from dagster_versioned.tables.write.commit import CommitDraft
from support.executioner import NEVER, Ended, Executioner, forking
from support.frames import numbered

SMALL_PARTS = TableOptions(row_group_bytes=1_500, target_part_bytes=1)
"""A part for every 1,500 bytes of rows in memory."""

BY_VECTORS = TableOptions(
    mode="merge",
    merge_key=("n",),
    properties={"delta.enableDeletionVectors": "true", "delta.enableChangeDataFeed": "true"},
)

BY_CHANGED_ROWS = TableOptions(refresh="changed_rows", properties={"delta.enableChangeDataFeed": "true"})

WRITING = frozenset({"put", "put_file", "put_chunks", "put_if_absent", "put_if_match", "copy", "delete", "abort"})

Action = Callable[[VersionedTable], object]


def project_in(store: ObjectStore) -> Project:
    """The project that every operation below works in."""
    return Project("NYC", store, author="Ada <ada@example.org>")


def table_in(store: ObjectStore) -> VersionedTable:
    """Its one table, with nothing remembered."""
    return project_in(store).table("flights")


# --- dying -----------------------------------------------------------------------------------------------------------


class Undertaker(Executioner):
    """Runs actions in children that are killed at a call of the store."""

    def run(self, action: Action, store: ObjectStore, die_at: int = NEVER) -> Ended:
        """Run ``action`` on the table in ``store`` in a child that dies by SIGKILL before call ``die_at`` (from 1)."""
        return self.execute(partial(_act, action, store), die_at)


def undertaker() -> AbstractContextManager[Undertaker]:
    """The process that forks, for as long as a test module needs it."""
    return forking(Undertaker)


def _act(action: Action, store: ObjectStore, about_to: Callable[[Call], None]) -> None:
    action(table_in(FaultStore(store, about_to)))


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


def merge(table: VersionedTable) -> None:
    some = numbered(90).take([3, 4, 40])
    changed = some.set_column(1, "text", pa.array(["changed"] * 3))
    options = SMALL_PARTS.model_copy(update={"mode": "merge", "merge_key": ("n",)})
    table.write(pa.concat_tables([changed, numbered(5, 5000)]), options=options)


def update_samples(table: VersionedTable) -> None:
    some = numbered(90).take([3, 4, 40])
    changed = some.set_column(1, "text", pa.array(["changed"] * 3))
    frame, gone = pa.concat_tables([changed, numbered(5, 5000)]), numbered(90).take([50, 70]).select(["n"])
    base = table.version().metadata_sha
    table.write(SampleUpdate(frame, gone, ("n",), ("n",), base, {"feature": {"left": 0}}), options=SMALL_PARTS)


def marked_parts(table: VersionedTable) -> None:
    """Two parts, of which one has lost rows, by a vector in a file."""
    table.write(numbered(3_000), options=BY_VECTORS)
    change_scattered(table, 0)


def merge_by_vectors(table: VersionedTable) -> None:
    change_scattered(table, 1)


def change_scattered(table: VersionedTable, first: int) -> None:
    """So many rows that do not lie together that their vector is too large for the log."""
    some = numbered(3_000).take(list(range(first, 3_000, 5)))
    changed = some.set_column(1, "text", pa.array([f"changed {first}"] * some.num_rows))
    table.write(pa.concat_tables([changed, numbered(5, 5000 + first)]), options=BY_VECTORS)


def refreshed_once(table: VersionedTable) -> None:
    """A large part with a vector in a file, and a small one."""
    table.write(numbered(20_000), options=BY_CHANGED_ROWS)
    refresh(table)


def refresh(table: VersionedTable) -> None:
    """So many rows of the first part are others that lie apart that their vector is too large for the log."""
    rows = table.read().sort_by("n")
    places = list(range(table.state.log_version, 20_000, 30))
    kept = rows.filter(pc.invert(pc.is_in(rows["n"], rows["n"].take(places))))
    changed = rows.take(places).set_column(1, "text", pa.array(["changed"] * len(places)))
    table.write(pa.concat_tables([kept, changed]), options=BY_CHANGED_ROWS)


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


def drop_partition(table: VersionedTable) -> None:
    table.drop_partitions(["a"], dry_run=False, why="wrong feed")


def drop(table: VersionedTable) -> None:
    table.drop(dry_run=False, why="unused")


def dropped(table: VersionedTable) -> None:
    partitions(table)
    drop(table)


def restore(table: VersionedTable) -> None:
    table.restore()


def repartition(table: VersionedTable) -> None:
    table.repartition(Partitioning.names(), "n", dry_run=False)


def make_whole(table: VersionedTable) -> None:
    table.repartition(None, dry_run=False)


OPERATIONS = {
    "create": Operation(nothing, write_first),
    "full": Operation(write_first, write_second),
    "metadata_only": Operation(write_first, say_more),
    "none": Operation(write_first, write_first),
    "parts": Operation(many_parts, more_parts),
    "one part to many": Operation(write_first, many_parts),
    "merge": Operation(many_parts, merge),
    "update": Operation(many_parts, update_samples),
    "merge by vectors": Operation(marked_parts, merge_by_vectors),
    "refresh": Operation(refreshed_once, refresh),
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
    "drop partition": Operation(partitions, drop_partition),
    "drop": Operation(partitions, drop),
    "begin anew": Operation(dropped, write_second),
    "restore": Operation(dropped, restore),
    "repartition": Operation(partitions, repartition),
    "make whole": Operation(partitions, make_whole),
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
    draft = CommitDraft(kind.upper(), [], {"collect": collection.to_json()}, announces=False)
    table.commit_as_migration(lambda state, timestamp: draft)
    return collection
