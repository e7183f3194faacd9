"""Writing a frame as parts, with digest and SHA-256, against plain Parquet and deltalake from the same frame."""

import argparse
import os
import shutil
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import write_deltalake
from frame_of_seven import spark_session, write_rows
from rounds import alternate, descendants, peak_memory, print_ratios, ratio

from dagster_versioned.engines.arrow.engine import ArrowEngine
from dagster_versioned.engines.parts import WriteOptions
from dagster_versioned.engines.spark import SparkEngine
from dagster_versioned.engines.staging import Staging
from dagster_versioned.storage import LocalStore


def emptied(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    return folder


def write_parts(engine, frame, folder: Path) -> None:
    """Everything up to the commit: parts under their final names, and what identifies them."""
    staging = Staging(LocalStore(emptied(folder)), "benchmark")
    written = engine.write(frame, staging, WriteOptions())
    staging.promote_all([(part, f"{part.sha256}.parquet") for part in written.parts])
    staging.discard()


def spark_half(source: Path, folder: Path, rounds: int, rows: int, *, quick: bool) -> tuple[str, ...]:
    with spark_session() as session:
        write_rows(session, rows, source)
        write_rows(session, rows // 6, folder / "small")
        frame, small = session.read.parquet(str(source)), session.read.parquet(str(folder / "small"))
        seconds = alternate(
            {
                "spark: ours": lambda: write_parts(SparkEngine(), frame, folder / "ours"),
                "spark: df.write.parquet": lambda: frame.write.parquet(str(emptied(folder / "plain"))),
                "spark: deltalake, toArrow": lambda: write_deltalake(emptied(folder / "delta"), frame.toArrow()),
                "spark, small: ours": lambda: write_parts(SparkEngine(), small, folder / "small_ours"),
                "spark, small: df.write": lambda: small.write.parquet(str(emptied(folder / "small_plain"))),
            },
            rounds,
            quick=quick,
        )
    return (
        # The driver orders and encodes a table that fits one part: its bytes must not depend on Spark's partitioning.
        ratio("spark_write_one_part_vs_parquet", seconds["spark, small: ours"], seconds["spark, small: df.write"]),
        ratio("spark_write_vs_parquet", seconds["spark: ours"], seconds["spark: df.write.parquet"]),
        ratio("spark_write_vs_deltalake", seconds["spark: ours"], seconds["spark: deltalake, toArrow"]),
    )


def arrow_half(table: pa.Table, folder: Path, rounds: int, *, quick: bool) -> tuple[str, ...]:
    seconds = alternate(
        {
            "arrow: ours": lambda: write_parts(ArrowEngine(), table, folder / "ours"),
            "arrow: pq.write_table": lambda: pq.write_table(table, folder / "plain.parquet", compression="zstd"),
        },
        rounds,
        quick=quick,
    )
    return (ratio("arrow_write_vs_parquet", seconds["arrow: ours"], seconds["arrow: pq.write_table"]),)


def large(folder: Path, rounds: int, rows: int) -> str:
    """Rows beyond memory, and the most that all processes of the session take together (resident)."""
    with spark_session() as session:
        write_rows(session, rows, folder / "source")
        frame = session.read.parquet(str(folder / "source"))
        with peak_memory(lambda: descendants(os.getpid())) as peak:
            seconds = alternate(
                {
                    "spark: ours": lambda: write_parts(SparkEngine(), frame, folder / "ours"),
                    "spark: df.write.parquet": lambda: frame.write.parquet(str(emptied(folder / "plain"))),
                },
                rounds,
            )
    print(f"{rows:,} rows, at most {peak()} in all processes together (resident)")
    return ratio("spark_write_vs_parquet", seconds["spark: ours"], seconds["spark: df.write.parquet"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="half the rows, up to 3 rounds: under 50 s")
    parser.add_argument("--rows", type=int, help="Spark alone, without deltalake, which holds all rows in memory")
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    quick: bool = given.quick
    # More than a single part in canonical order holds, which is measured apart.
    rounds, rows = (3, 1_500_000) if quick else (given.rounds, given.rows or 3_000_000)
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
        folder = Path(name)
        if given.rows:
            print_ratios(large(folder, rounds, rows))
            return
        ratios = spark_half(folder / "source", folder, rounds, rows, quick=quick)
        ratios += arrow_half(pq.read_table(folder / "source"), folder, rounds, quick=quick)
    print_ratios(*ratios)


if __name__ == "__main__":
    main()
