"""What the processes of a contended table run; a module of its own, so that spawned processes can import it."""

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

import pyarrow as pa

from dagster_versioned.projects.project import Project
from dagster_versioned.storage import ObjectStore
from dagster_versioned.tables.table import VersionedTable

Result = TypeVar("Result")
Place = TypeVar("Place")


def table_in(store: ObjectStore) -> VersionedTable:
    return Project("NYC", store).table("flights")


def rows_of(writer: int, number: int) -> pa.Table:
    return pa.table({"writer": [writer], "number": [number]})


def replace_whole(store: ObjectStore, writer: int, writes: int) -> list[str | None]:
    """Replace the table ``writes`` times by rows of its own; returns the versions that it made."""
    table = table_in(store)
    return [table.write(rows_of(writer, number)).version.metadata_sha for number in range(writes)]


def replace_partition(store: ObjectStore, writer: int, writes: int) -> list[str | None]:
    """Replace one partition, this writer's own, ``writes`` times."""
    table = table_in(store)
    return [
        table.write(rows_of(writer, number), partition=f"p{writer}").version.metadata_sha for number in range(writes)
    ]


def create_and_report(store: ObjectStore, writer: int, _: int) -> int:
    """Write once; returns the log version."""
    return table_in(store).write(rows_of(writer, 0)).version.log_version


def collect_and_write(store: ObjectStore, writer: int, writes: int) -> list[str | None]:
    """Write rows that others write too, and give up old versions in between."""
    table = table_in(store)
    made: list[str | None] = []
    for number in range(writes):
        made.append(table.write(rows_of(0, (number + writer) % 5)).version.metadata_sha)
        if number % 3 == writer % 3:
            table.expire(keep_last=2, dry_run=False)
    return made


def at_once(work: Callable[[Place, int, int], Result], store: Place, processes: int, writes: int) -> list[Result]:
    """What every one of ``processes`` processes returned, each with its own copy of the store (or of its URI)."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        return [one.result() for one in [pool.submit(work, store, n, writes) for n in range(processes)]]
