"""How fast are the digests of rows, beside SHA-256 over the Parquet bytes of the same rows?

Run with ``python benchmarks/digest.py [--quick]``. The rounds alternate; the figures are medians. MB/s counts the
bytes of the rows in memory for the digests, and those of the file for SHA-256.
"""

import argparse
import hashlib
import io
import resource
import statistics
import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dagster_versioned.identity.digest import BagDigest, SequenceDigest

BATCH_ROWS = 65_536


def rows(count: int) -> pa.Table:
    """Seven mixed columns: long, integer, double, timestamp, boolean, and two short strings."""
    chance = np.random.default_rng(2013)
    carriers = pa.array(["AA", "B6", "DL", "EV", "UA", "US", "WN"])
    letters = pa.array(["N" + "ABCDEFGHIJKLMNOPQRS"[: 4 + index % 12] + str(index) for index in range(4000)])
    return pa.table(
        {
            "id": np.arange(count, dtype=np.int64),
            "minutes": chance.integers(-60, 1200, count).astype(np.int32),
            "distance": chance.random(count) * 5000,
            "at": pa.array(chance.integers(1_356_998_400, 1_388_534_400, count) * 1_000_000, pa.timestamp("us", "UTC")),
            "late": chance.random(count) < 0.3,
            "carrier": carriers.take(pa.array(chance.integers(0, len(carriers), count))),
            "tail": letters.take(pa.array(chance.integers(0, len(letters), count))),
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rows and 3 rounds: ends in less than 50 seconds")
    quick = parser.parse_args().quick
    count, rounds = (1_000_000, 3) if quick else (3_000_000, 7)
    table = rows(count)
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    parquet = sink.getvalue()
    batches = table.to_batches(max_chunksize=BATCH_ROWS)

    def digest(kind: type[BagDigest] | type[SequenceDigest]) -> None:
        running = kind(table.schema)
        for batch in batches:
            running.update(batch)
        running.finish()

    work: dict[str, tuple[Callable[[], object], int]] = {
        "bag-xxh64x2": (lambda: digest(BagDigest), table.nbytes),
        "seq-sha256": (lambda: digest(SequenceDigest), table.nbytes),
        "sha256 of the Parquet file": (lambda: hashlib.sha256(parquet).digest(), len(parquet)),
    }
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(rounds):
        for name, (run, _) in work.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)

    print(f"{count:,} rows x {table.num_columns} columns, {rounds} rounds, medians")
    median = {name: statistics.median(measured) for name, measured in seconds.items()}
    for name, (_, size) in work.items():
        rate = count / median[name] / 1e6
        print(f"  {name:28} {median[name]:7.3f} s {size / median[name] / 1e6:8.0f} MB/s {rate:8.2f} M rows/s")
    print(f"  peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")
    peer = median["sha256 of the Parquet file"]
    print(f"RATIO seq_digest_vs_sha256_of_parquet {median['seq-sha256'] / peer:.3f}")
    print(f"RATIO rows_digest_vs_sha256_of_parquet {median['bag-xxh64x2'] / peer:.3f}")


if __name__ == "__main__":
    main()
