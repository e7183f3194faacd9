"""A log of millions of file actions, replayed by Spark and by Arrow in one process: the same answer, in how long?

Run with ``python benchmarks/log_plan.py [--quick] [--files N]``. The checkpoint is of the V2 spec with sidecars. On one
machine Arrow is the faster one, as long as the memory is enough for it; Spark's share of this is what it costs to let
go of that limit, since its tasks hold half a million files at a time. Both sum up what they found, so neither stops
early. Each runs in a process of its own. Peak memory is of that and of all that it started; Spark's Java is given
4 GiB, and takes what it is given.
"""

import argparse
import json
import multiprocessing
import os
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyarrow as pa
from frame_of_seven import spark_session
from log import SCHEMA, add_line, files_table, info_line, put, remove_line

from dagster_versioned.delta.actions import Metadata, Protocol
from dagster_versioned.delta.files.file_actions import ADD, REMOVE
from dagster_versioned.delta.log.checkpoint_read import SIDECARS
from dagster_versioned.delta.log.snapshot import load_snapshot
from dagster_versioned.delta_tables.spark.log_plan import plan_log
from dagster_versioned.storage import LocalStore

COMMITS = 50


def sidecar(folder: Path, number: int, files: int) -> dict[str, Any]:
    """A sidecar of its own files, written straight from columns; the line that names it."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    compute: Any = pc
    table = files_table(files)
    paths = compute.replace_substring(table["path"], "part-", f"part-{number:03d}-")
    table = table.set_column(0, "path", paths)
    adds = pa.StructArray.from_arrays(
        [table[name].combine_chunks() for name in ADD.names],
        fields=list(ADD),  # pyright: ignore[reportArgumentType]
    )
    name = f"{number:08d}.parquet"
    removes = pa.nulls(files, pa.struct(list(REMOVE)))
    target = folder / SIDECARS / name
    pq.write_table(pa.table({"add": adds, "remove": removes}), target, row_group_size=1 << 17)
    return {"sidecar": {"path": name, "sizeInBytes": target.stat().st_size, "modificationTime": 1}}


def build(folder: Path, sidecars: int, files: int) -> int:
    """A log of ``sidecars * files`` files in a checkpoint, and commits after it; how many file actions it has."""
    (folder / SIDECARS).mkdir(parents=True)
    head = [
        {"checkpointMetadata": {"version": 0}},
        {"protocol": Protocol(3, 7, ("v2Checkpoint",), ("v2Checkpoint",)).to_json()},
        {"metaData": Metadata("bench", SCHEMA, ("day",)).to_json()},
    ]
    lines = [*head, *(sidecar(folder, number, files) for number in range(sidecars))]
    name = f"{0:020d}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json"
    (folder / "_delta_log" / name).write_text("\n".join(map(json.dumps, lines)))
    put(folder, 0, [info_line(0)])
    for version in range(1, COMMITS + 1):
        adds = [add_line(files + version * 10 + member) for member in range(10)]
        # Files of the first sidecar, by the names that they have there.
        removes = [remove_line(version * 7 + member).replace(b"part-", b"part-000-") for member in range(5)]
        put(folder, version, [info_line(version), *adds, *removes])
    return sidecars * files + 15 * COMMITS


def by_arrow(store: LocalStore) -> tuple[int, int, int]:
    snapshot = load_snapshot(store)
    return snapshot.num_files, snapshot.size_bytes, snapshot.tombstones.num_rows


def by_spark(session: Any, store: LocalStore) -> tuple[int, int, int]:
    plan = plan_log(session, store)
    # The wide columns are asked for, so that they are not left out of the plan.
    wide = "hash(path, modificationTime, stats) + cardinality(partitionValues) AS wide"
    found = plan.files.selectExpr("size", wide).selectExpr("count(wide)", "sum(size)").first()
    return found[0], found[1], plan.tombstones.count()


@contextmanager
def watched(seconds: float = 0.5) -> Iterator[Counter[str]]:
    """The most MiB that this process and its descendants held at once, by program, filled in at the end."""
    peak, stop = Counter[str](), threading.Event()

    def watch() -> None:
        while not stop.wait(seconds):
            now = resident()
            if now.total() > peak.total():
                peak.clear()
                peak.update(now)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield peak
    finally:
        stop.set()
        watcher.join()


def resident() -> Counter[str]:
    """MiB in memory of this process and its descendants, by program."""
    parents, held = dict[int, int](), dict[int, tuple[str, int]]()
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            members = dict(line.split(":", 1) for line in status.read_text().splitlines())
        except OSError:  # it ended meanwhile
            continue
        pid = int(members["Pid"])
        parents[pid] = int(members["PPid"])
        held[pid] = (members["Name"].strip(), int(members.get("VmRSS", "0 kB").split()[0]) // 1024)
    found = Counter[str]()
    for pid, (name, size) in held.items():
        ancestor = pid
        while ancestor > 1 and ancestor != os.getpid():
            ancestor = parents.get(ancestor, 0)
        if ancestor == os.getpid():
            found["this process" if pid == ancestor else name] += size
    return found


def contest(pipe: Connection, who: str, folder: str) -> None:
    """One contestant in a process of its own: what it found, the seconds it took, and what it held at its peak."""
    store = LocalStore(folder)
    with spark_session() if who == "spark" else nullcontext() as session:
        begin = time.perf_counter()
        with watched() as peak:
            answer = by_arrow(store) if session is None else by_spark(session, store)
        pipe.send((answer, time.perf_counter() - begin, peak))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="200,000 file actions: ends in about a minute")
    parser.add_argument("--files", type=int, default=10_000_000, metavar="N", help="in the checkpoint, about")
    given = parser.parse_args()
    sidecars, files = (2, 100_000) if given.quick else (max(1, round(given.files / 500_000)), min(500_000, given.files))
    answers: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        print(f"{build(Path(folder), sidecars, files):,} file actions", flush=True)
        context = multiprocessing.get_context("spawn")
        for who in ("arrow", "spark"):
            receiving, sending = context.Pipe(duplex=False)
            process = context.Process(target=contest, args=(sending, who, folder))
            process.start()
            sending.close()  # so that the end of the process ends the wait, too
            answers[who], took, peak = receiving.recv()
            process.join()
            parts = ", ".join(f"{part} {size:,}" for part, size in peak.most_common())
            print(f"{who:<8} {took:8.2f} s   peak {peak.total():6,} MiB ({parts})", flush=True)
    if len(set(answers.values())) != 1:
        raise SystemExit(f"The answers differ: {answers}")
    print(f"Both found {answers['arrow'][0]:,} files of {answers['arrow'][1]:,} bytes.")


if __name__ == "__main__":
    main()
