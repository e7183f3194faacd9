"""What does planning a stream of a table cost beside the driver, and does it grow with the table's files?

Run with ``python benchmarks/stream_plan.py [--quick] [--files N …] [--package FOLDER]``. A stream that starts from the
beginning, with 1,000 files a batch, and one that starts at the head and gets a commit of one file for each batch, of
logs with 100,000 and 1,000,000 files. What Spark asks of the process that plans is asked in its order, in a process of
its own for each round: the table's columns, the reader, then for each batch its end and its tasks. ``--package`` names
a checkout of another release to measure instead. Seconds are medians of the rounds; memory is what the process has at
its peak, beyond what it had after it planned a table of 1,000 files, for which all is imported.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from log import BASE, COMMITS, add_line, checkpointed, info_line, peak_mib, put

BATCHES = 5


def plan(folder: Path, start: str) -> dict[str, float]:
    """One stream, in this process."""
    from dagster_versioned.delta_tables.spark.data_source import VersionedSource

    newest = max(int(path.stem) for path in folder.glob("_delta_log/*[0-9].json"))
    options = {"path": str(folder), **({} if start == "beginning" else {"startingVersion": "latest"})}
    before, begin = peak_mib(), time.perf_counter()
    source = VersionedSource(options)
    reader: Any = source.streamReader(source.schema())
    offset = reader.initialOffset()
    started = time.perf_counter() - begin
    seconds: list[float] = []
    for number in range(BATCHES):
        if start == "head":
            version = newest + 1 + number
            put(folder, version, [info_line(version), add_line(10_000_000 + version)])
        begin = time.perf_counter()
        end = reader.latestOffset(offset, reader.getDefaultReadLimit())
        tasks = reader.partitions(offset, end)
        seconds.append(time.perf_counter() - begin)
        assert tasks or number
        offset = end
    first, *later = seconds
    return {"start": started, "first": first, "later": statistics.median(later), "MiB": peak_mib() - before}


def one_round(folder: Path, start: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
        checkpointed(Path(name), 1_000)
        plan(Path(name), start)
    return plan(folder, start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="10,000 and 100,000 files, 2 rounds")
    parser.add_argument("--files", type=int, nargs="+", metavar="N", help="in the checkpoint")
    parser.add_argument("--package", type=Path, help="a checkout of this package, instead of the one that is imported")
    parser.add_argument("--round", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.round:
        print(json.dumps(one_round(Path(given.round[0]), given.round[1])))
        return
    rounds = 2 if given.quick else 5
    sizes = given.files or ([10_000, 100_000] if given.quick else [100_000, 1_000_000])
    path = [str(given.package)] if given.package else []
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*path, os.environ.get("PYTHONPATH", "")])}
    medians: dict[tuple[str, int], dict[str, float]] = {}
    for files in sizes:
        with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
            checkpointed(Path(name), files)
            print(f"{files:,} files in a checkpoint, and {COMMITS} commits after version {BASE}", flush=True)
            for start in ("beginning", "head"):
                command = [sys.executable, __file__, "--round", name, start]
                found = [
                    json.loads(subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout)
                    for _ in range(rounds)
                ]
                median = {what: statistics.median(one[what] for one in found) for what in found[0]}
                medians[start, files] = median
                print(
                    f"from the {start:<10} start {median['start']:7.3f} s   first batch {median['first']:7.3f} s"
                    f"   later batches {median['later']:6.3f} s   peak {median['MiB']:+6.0f} MiB",
                    flush=True,
                )
    small, large = min(sizes), max(sizes)
    for start in ("beginning", "head"):
        for what in ("start", "first", "later", "MiB"):
            times = medians[start, large][what] / max(medians[start, small][what], 1e-9)
            print(f"RATIO stream_plan_growth_{start}_{what} {times:.3f}")


if __name__ == "__main__":
    main()
