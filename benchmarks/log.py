"""Opening, following and checkpointing long logs, beside `deltalake`: seconds and peak memory, each in its own process.

What the cores worked is printed beside: on a machine that does other things, too, it says more than the seconds.

Run with ``python benchmarks/log.py [--quick]``. The logs are synthetic: files in day partitions, with statistics of
three columns. Both read the very same files, and both deliver a list of the files as an Arrow table.
"""

import argparse
import gc
import json
import multiprocessing
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from rounds import numbered, ratio

SCHEMA = json.dumps(
    {
        "type": "struct",
        "fields": [
            {"name": name, "type": kind, "nullable": True, "metadata": {}}
            for name, kind in [("id", "long"), ("name", "string"), ("price", "double"), ("day", "string")]
        ],
    }
)
BASE = 100
"""The version of the checkpoint; the commits before it were cleaned up."""
COMMITS = 50
"""Commits after the checkpoint; each adds 10 files and removes 5 of the checkpoint's."""

compute: Any = pc


def paths_of(first: int, count: int) -> list[str]:
    return [
        f"day=2026-{number % 12 + 1:02d}-{number % 28 + 1:02d}/part-{number:08x}-3bd7-4c1e-9d3c-{number * 7919:012x}"
        "-c000.snappy.parquet"
        for number in range(first, first + count)
    ]


def stats_of(number: int) -> str:
    low = number * 1000
    return (
        f'{{"numRecords":1000,"minValues":{{"id":{low},"name":"customer {low}","price":0.5}},'
        f'"maxValues":{{"id":{low + 999},"name":"customer {low + 999}","price":{low + 0.25}}},'
        '"nullCount":{"id":0,"name":3,"price":0}}'
    )


def add_line(number: int) -> bytes:
    from dagster_versioned.delta.actions import Add, encode_action

    (path,) = paths_of(number, 1)
    values = {"day": path[4:14]}
    return encode_action(Add(path, values, 1_000_000 + number, 1_770_000_000_000 + number, True, stats_of(number)))


def remove_line(number: int) -> bytes:
    from dagster_versioned.delta.actions import Remove, encode_action

    (path,) = paths_of(number, 1)
    return encode_action(Remove(path, True, 1_770_000_000_000, True, {"day": path[4:14]}, 1_000_000 + number))


def info_line(version: int) -> bytes:
    info = {"timestamp": 1_770_000_000_000 + version, "operation": "WRITE", "operationParameters": {"mode": "Append"}}
    return json.dumps({"commitInfo": info}).encode()


def head_lines() -> list[bytes]:
    from dagster_versioned.delta.actions import Metadata, Protocol, encode_action

    return [encode_action(Protocol(1, 2)), encode_action(Metadata("bench", SCHEMA, ("day",)))]


def files_table(count: int) -> pa.Table:
    """The adds of a checkpoint, without a Python object per member."""
    from dagster_versioned.delta.files.file_actions import FILES

    numbers = np.arange(count)
    paths = pa.array(paths_of(0, count))
    days: Any = compute.utf8_slice_codeunits(paths, 4, 14)
    offsets = pa.array(np.arange(count + 1, dtype=np.int32))
    values: Any = pa.MapArray.from_arrays(offsets, pa.array(["day"] * count), days)
    columns: dict[str, Any] = {
        "path": paths,
        "partitionValues": values,
        "size": pa.array(1_000_000 + numbers),
        "modificationTime": pa.array(1_770_000_000_000 + numbers),
        "dataChange": pa.array(np.ones(count, bool)),
        "stats": pa.array([stats_of(number) for number in range(count)]),
        "key": paths,
    }
    return pa.table(
        {name: columns.get(name, pa.nulls(count, kind)) for name, kind in zip(FILES.names, FILES.types, strict=True)}
    )


def put(folder: Path, version: int, lines: list[bytes]) -> None:
    (folder / "_delta_log" / f"{version:020d}.json").write_bytes(b"\n".join(lines) + b"\n")


def checkpointed(folder: Path, files: int) -> None:
    """A table of ``files`` files by a checkpoint, and the commits after it."""
    from dagster_versioned.delta.actions import Metadata, Protocol
    from dagster_versioned.delta.commit.checkpoint import write_checkpoint
    from dagster_versioned.delta.files.file_actions import TOMBSTONES, no_rows
    from dagster_versioned.delta.log.snapshot import Snapshot
    from dagster_versioned.delta.schema.types import parse_schema
    from dagster_versioned.storage import LocalStore

    (folder / "_delta_log").mkdir(parents=True)
    put(folder, BASE, [info_line(BASE)])
    metadata = Metadata("bench", SCHEMA, ("day",))
    snapshot = Snapshot(
        BASE,
        Protocol(1, 2),
        metadata,
        parse_schema(SCHEMA),
        {},
        {},
        files_table(files),
        no_rows(TOMBSTONES),
        1_770_000_000_000,
        None,
    )
    write_checkpoint(LocalStore(folder), snapshot)
    for number in range(COMMITS):
        adds = [add_line(files + number * 10 + member) for member in range(10)]
        removes = [remove_line((number * 5 + member) * (files // (COMMITS * 5 + 1))) for member in range(5)]
        put(folder, BASE + 1 + number, [info_line(number), *adds, *removes])


def long_log(folder: Path, commits: int) -> None:
    """A table of many small commits and no checkpoint."""
    (folder / "_delta_log").mkdir(parents=True)
    put(folder, 0, [info_line(0), *head_lines()])
    for version in range(1, commits):
        lines = [info_line(version), add_line(2 * version), add_line(2 * version + 1)]
        put(folder, version, [*lines, remove_line(2 * version - 2)] if version > 1 else lines)


# --- contestants -----------------------------------------------------------------------------------------------------


class Ours:
    """The Arrow table of the files."""

    def __init__(self, folder: Path) -> None:
        from dagster_versioned.delta.log.snapshot import load_snapshot
        from dagster_versioned.storage import LocalStore

        self.store, self.load = LocalStore(folder), load_snapshot
        self.opened: Any = None

    def open(self) -> int:
        self.opened = self.load(self.store)
        return self.opened.files.num_rows

    def refresh(self) -> int:
        from dagster_versioned.delta.log.commits import commits_after

        self.opened = self.opened.advance(commits_after(self.store, self.opened.version))
        return self.opened.files.num_rows

    def checkpoint(self) -> None:
        from dagster_versioned.delta.commit.checkpoint import write_checkpoint

        write_checkpoint(self.store, self.opened)


class Deltalake:
    def __init__(self, folder: Path) -> None:
        from deltalake import DeltaTable

        self.folder, self.table = str(folder), DeltaTable
        self.opened: Any = None

    def open(self) -> int:
        self.opened = self.table(self.folder)
        return pa.table(self.opened.get_add_actions()).num_rows

    def refresh(self) -> int:
        self.opened.update_incremental()
        return pa.table(self.opened.get_add_actions()).num_rows

    def checkpoint(self) -> None:
        self.opened.create_checkpoint()


CONTESTANTS = {"ours": Ours, "deltalake": Deltalake}


def peak_mib() -> float:
    """The most memory this process had. Not by getrusage(), which counts what the parent had at the fork, too."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1024


def serve(pipe: Connection, name: str, folder: Path) -> None:
    """One contestant in its own process: runs what it is told, says how long it took, and its peak memory at last."""
    contestant = CONTESTANTS[name](folder)
    while True:
        verb = pipe.recv()
        if verb is None:
            pipe.send(peak_mib())
            return
        if verb == "open":
            contestant.opened = None
        gc.collect()
        begin, work = time.perf_counter(), time.process_time()
        answer = getattr(contestant, verb)()
        pipe.send((time.perf_counter() - begin, time.process_time() - work, answer))


class Rival:
    """A contestant's process, seen from here."""

    def __init__(self, name: str, folder: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, name, folder), daemon=True)
        self.process.start()

    def run(self, verb: str) -> tuple[float, float, Any]:
        """Seconds, seconds of work of all cores, and the answer."""
        self.pipe.send(verb)
        return self.pipe.recv()

    def close(self) -> float:
        self.pipe.send(None)
        peak = self.pipe.recv()
        self.process.join()
        return peak


def contest(
    label: str,
    folders: dict[str, Path],
    verb: str,
    rounds: int,
    *,
    quick: bool,
    opened: bool = False,
    before: Callable[[Path, int], None] = lambda _, __: None,
    untimed: str | None = None,
) -> str:
    """Rounds of one verb, alternating; prints medians and peaks, returns the line of the ratio."""
    rivals = {name: Rival(name, folder) for name, folder in folders.items()}
    if opened:
        for rival in rivals.values():
            rival.run("open")
    seconds: dict[str, list[float]] = {name: [] for name in rivals}
    work: dict[str, list[float]] = {name: [] for name in rivals}
    for number in numbered(rounds, quick=quick):
        answers = {}
        for name, rival in rivals.items():
            before(folders[name], number)
            if untimed:
                rival.run(untimed)
            taken, worked, answers[name] = rival.run(verb)
            if number:
                seconds[name].append(taken)
                work[name].append(worked)
        if len(set(answers.values())) != 1:
            sys.exit(f"{label}: the answers differ: {answers}")
    medians = {name: statistics.median(taken) for name, taken in seconds.items()}
    for name, rival in rivals.items():
        shown = " ".join(f"{one:.3f}" for one in seconds[name])
        worked, peak = statistics.median(work[name]), rival.close()
        figures = f"{medians[name]:7.3f} s   work {worked:6.3f} s   peak {peak:5.0f} MiB"
        print(f"{f'{label}: {name}':<26} {figures}   of {shown}", flush=True)
    return ratio(label, medians["ours"], medians["deltalake"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="100,000 files and 2,000 commits: ends in under 50 s")
    quick = parser.parse_args().quick
    files, commits, rounds = (100_000, 2_000, 3) if quick else (1_000_000, 10_000, 5)
    ratios: list[str] = []
    versions = dict.fromkeys(CONTESTANTS, BASE + COMMITS)
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
        tables = {contestant: Path(name, contestant) for contestant in CONTESTANTS}
        first, second = tables.values()
        checkpointed(first, files)
        shutil.copytree(first, second)
        print(f"{files:,} files by a checkpoint and {COMMITS} commits; {commits:,} commits", flush=True)
        ratios.append(contest("log_open", tables, "open", rounds, quick=quick))

        def one_more(folder: Path, _: int) -> None:
            versions[folder.name] += 1
            version = versions[folder.name]
            adds = [add_line(2 * files + version * 10 + member) for member in range(10)]
            put(folder, version, [info_line(version), *adds, remove_line(files - version)])

        ratios.append(contest("log_refresh", tables, "refresh", rounds, quick=quick, opened=True, before=one_more))
        ratios.append(
            contest(
                "log_checkpoint",
                tables,
                "checkpoint",
                rounds,
                quick=quick,
                opened=True,
                before=one_more,
                untimed="refresh",
            )
        )
        many = Path(name, "long")
        long_log(many, commits)
        ratios.append(contest("log_commits", dict.fromkeys(CONTESTANTS, many), "open", rounds, quick=quick))
    print("\n".join(ratios))


if __name__ == "__main__":
    main()
