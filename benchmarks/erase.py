"""What does it cost to erase a person from every version, beside reading and rewriting the same files with pyarrow?

Run with ``python benchmarks/erase.py [--quick]``. Two projects in a local folder: many versions of ten small tables,
half of which have the person; and one table of large parts, all of which do. The peer reads each file that has the
person, filters it and writes it beside, compressed alike: no record, no commit, no comparison, nothing deleted.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from rounds import print_ratios, ratio

from dagster_versioned.projects.project import Project
from dagster_versioned.storage import LocalStore
from dagster_versioned.storage.wrappers import CountingStore
from dagster_versioned.tables.options import TableOptions

PERSON = 17


def rows(count: int, seed: int, *, person: bool) -> pa.Table:
    numbers = np.random.default_rng(seed)
    ids = numbers.integers(1000, 1_000_000, count)
    if person:
        ids[count // 2] = PERSON
    return pa.table(
        {"id": ids, "amount": numbers.random(count), "note": pa.array([f"note {value:x}" for value in ids])}
    )


def many_versions(folder: Path, versions: int, tables: int) -> list[str]:
    project = Project.open("BENCH", str(folder))
    for table in range(tables):
        for version in range(versions):
            project.table(f"t{table}").write(rows(50, version * tables + table, person=version % 2 == 0))
    return [f"t{table}" for table in range(tables)]


def large_parts(folder: Path, parts: int, count: int) -> list[str]:
    table = Project.open("BENCH", str(folder)).table("large")
    for part in range(parts):
        table.write(rows(count, part, person=True), options=TableOptions(mode="append"))
    return ["large"]


def ours(folder: Path, names: list[str]) -> tuple[float, int]:
    store = CountingStore(LocalStore(folder))
    start = time.perf_counter()
    report = Project("BENCH", store).erase(f"id = {PERSON}", names, why="benchmark", dry_run=False)
    assert report.rows > 0
    return time.perf_counter() - start, len(store.calls)


def theirs(folder: Path) -> float:
    start = time.perf_counter()
    for file in sorted((folder / "datom").glob("*/*.parquet")):
        ids = pq.read_table(file, columns=["id"])["id"]
        if pc.any(pc.equal(ids, PERSON)).as_py():
            table = pq.read_table(file)
            kept = table.filter(pc.not_equal(table["id"], PERSON))
            pq.write_table(kept, file.with_suffix(".rewritten"), compression="zstd")
    return time.perf_counter() - start


def measure(title: str, make: Callable[[Path], list[str]], rounds: int) -> float:
    """Print seconds, calls and bytes; returns the ratio of the medians."""
    own: list[float] = []
    peer: list[float] = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(dir=".") as name:
            names = make(Path(name))
            size = sum(file.stat().st_size for file in (Path(name) / "datom").glob("*/*.parquet"))
            peer.append(theirs(Path(name)))
            seconds, calls = ours(Path(name), names)
            own.append(seconds)
    medians = statistics.median(own), statistics.median(peer)
    print(
        f"{title}: {size / 2**20:.0f} MiB, {calls} calls; erase {medians[0]:.2f} s"
        f" ({size / 2**20 / medians[0]:.0f} MiB/s), pyarrow {medians[1]:.2f} s (medians of {rounds})"
    )
    return medians[0] / medians[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer versions and smaller parts, 3 rounds")
    quick = parser.parse_args().quick
    versions, parts, count = (20, 4, 300_000) if quick else (1000, 20, 5_000_000)
    small = measure(
        f"{versions} versions x 10 tables", lambda folder: many_versions(folder, versions, 10), 3 if quick else 1
    )
    large = measure("large parts", lambda folder: large_parts(folder, parts, count), 3 if quick else 1)
    print_ratios(ratio("erase_small_seconds_vs_pyarrow", small, 100), ratio("erase_large_seconds_vs_pyarrow", large, 5))


if __name__ == "__main__":
    main()
