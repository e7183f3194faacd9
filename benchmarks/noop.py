"""What does it cost to write equal data again? Seconds beside the first write, and what reaches the store.

Run with ``python benchmarks/noop.py [--quick]``. Each round makes a table of its own, writes a frame (the first
write) and writes it again (the second). ``noop_bytes`` counts what the second write put into the store; Spark's staged
files, which are deleted again, are not puts: in a local store they are written beside the parts, for S3 to local disk.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from frame_of_seven import spark_session, write_rows
from rounds import numbered, print_ratios, ratio

from dagster_versioned.projects.project import Project
from dagster_versioned.storage import LocalStore
from dagster_versioned.storage.wrappers import CountingStore


def rounds_of(frame: Any, rounds: int, root: str, *, quick: bool) -> tuple[float, float, int]:
    """Median seconds of first and second writes, and the most bytes that a second write put."""
    first: list[float] = []
    second: list[float] = []
    put = 0
    for number in numbered(rounds, quick=quick):
        store = CountingStore(LocalStore(root))
        table = Project("BENCH", store).table(f"round{number}")
        seconds = []
        for _ in range(2):
            store.reset()
            start = time.perf_counter()
            outcome = table.write(frame)
            seconds.append(time.perf_counter() - start)
        assert outcome.change == "none"
        put = max(put, store.bytes_written)
        if number:
            first.append(seconds[0])
            second.append(seconds[1])
    print(f"  second write: {len(store.calls)} store calls, {put} bytes put, {store.bytes_read} bytes read")
    return statistics.median(first), statistics.median(second), put


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rows, up to 3 rounds: ends in less than 50 seconds")
    quick = parser.parse_args().quick
    rows, rounds = (500_000, 3) if quick else (3_000_000, 7)
    with tempfile.TemporaryDirectory(dir=".") as root, spark_session() as session:
        write_rows(session, rows, Path(root, "rows"))
        frame = session.read.parquet(f"{root}/rows")
        print(f"Spark, {rows:,} rows, up to {rounds} rounds")
        first, second, spark_bytes = rounds_of(frame, rounds, f"{root}/spark", quick=quick)
        print(f"  first {first:.3f} s, second {second:.3f} s")
        arrow = frame.toArrow()
        print(f"Arrow, {rows:,} rows, up to {rounds} rounds")
        arrow_first, arrow_second, arrow_bytes = rounds_of(arrow, rounds, f"{root}/arrow", quick=quick)
        print(f"  first {arrow_first:.3f} s, second {arrow_second:.3f} s")
    print_ratios(
        ratio("arrow_second_vs_first", arrow_second, arrow_first),
        f"RATIO noop_bytes {spark_bytes + arrow_bytes}",
        ratio("second_vs_first", second, first),
    )


if __name__ == "__main__":
    main()
