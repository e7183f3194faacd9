"""How many commits a second, alone and under 16 writers, beside deltalake on the same disk?

Run with ``python benchmarks/commit.py [--quick]``. One commit is one overwrite by a table of one row, everything that
goes with it included: for us the part, the commit, the head and the documents that datom readers and sensors need.
Writers of the contended round are processes that start together; a writer that loses a race tries again until it wins.
"""

import argparse
import multiprocessing
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import deltalake
import pyarrow as pa
from deltalake.exceptions import CommitFailedError
from rounds import print_ratios, ratio

from dagster_versioned.projects.project import Project

WRITERS = 16


def ours(folder: Path, commits: int, first: int) -> None:
    table = Project.open("BENCH", str(folder)).table("numbers")
    for number in range(first, first + commits):
        table.write(pa.table({"n": [number]}))


def theirs(folder: Path, commits: int, first: int) -> None:
    for number in range(first, first + commits):
        while True:
            try:
                deltalake.write_deltalake(str(folder), pa.table({"n": [number]}), mode="overwrite")
            except CommitFailedError:
                continue
            break


Write = Callable[[Path, int, int], None]


def alone(write: Write, commits: int) -> float:
    with tempfile.TemporaryDirectory(dir=".") as folder:
        write(Path(folder), 1, 0)
        start = time.perf_counter()
        write(Path(folder), commits, 1)
        return time.perf_counter() - start


def _writer(write: Write, folder: Path, commits: int, number: int, gate: "multiprocessing.synchronize.Barrier") -> None:
    write(folder / f"warm-{number}", 1, 0)  # imports are not what is measured
    gate.wait()
    write(folder / "table", commits, 1 + number * commits)
    gate.wait()


def contended(write: Write, commits: int) -> float:
    context = multiprocessing.get_context("spawn")
    folder = Path(tempfile.mkdtemp(dir="."))
    try:
        write(folder / "table", 1, 0)
        gate = context.Barrier(WRITERS + 1)
        writers = [context.Process(target=_writer, args=(write, folder, commits, n, gate)) for n in range(WRITERS)]
        for writer in writers:
            writer.start()
        gate.wait()
        start = time.perf_counter()
        gate.wait()
        seconds = time.perf_counter() - start
        for writer in writers:
            writer.join()
        return seconds
    finally:
        shutil.rmtree(folder)


def measure(title: str, run: Callable[[Write, int], float], commits: int, total: int, rounds: int) -> float:
    """Print commits a second and return the ratio of the medians of the seconds."""
    taken: dict[str, list[float]] = {"dagster-versioned": [], "deltalake": []}
    for _ in range(rounds):
        taken["dagster-versioned"].append(run(ours, commits))
        taken["deltalake"].append(run(theirs, commits))
    medians = {name: statistics.median(seconds) for name, seconds in taken.items()}
    for name, seconds in medians.items():
        print(f"{title:<12} {name:<18} {total / seconds:7.1f} commits/s  (median of {rounds}: {seconds:.2f} s)")
    return medians["dagster-versioned"] / medians["deltalake"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer commits, 3 rounds: ends in less than 50 seconds")
    quick = parser.parse_args().quick
    rounds = 3 if quick else 7
    single = 40 if quick else 200
    each = 4 if quick else 10
    one = measure("one writer", alone, single, single, rounds)
    many = measure("16 writers", contended, each, each * WRITERS, 1 if quick else rounds)
    print_ratios(
        ratio("single_writer_seconds_vs_deltalake", one, 1), ratio("sixteen_writers_seconds_vs_deltalake", many, 1)
    )


if __name__ == "__main__":
    main()
