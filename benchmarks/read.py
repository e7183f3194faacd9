"""Reading a version's parts, which are checked first, against Spark's and Arrow's plain readers on the same files."""

import argparse
import tempfile
from pathlib import Path

import pyarrow.dataset as ds
from frame_of_seven import spark_session, write_rows
from rounds import alternate, print_ratios, ratio

from dagster_versioned import Project, TableOptions
from dagster_versioned.engines.arrow.engine import ArrowEngine
from dagster_versioned.engines.scan import Scan
from dagster_versioned.engines.spark import SparkEngine
from dagster_versioned.storage import LocalStore


def written_scan(frame, folder: Path) -> Scan:
    """The frame as a version of a table, with all that its log knows of the rows."""
    table = Project("BENCH", LocalStore(folder)).table("rows")
    table.write(frame, options=TableOptions(target_part_bytes=32 * 2**20))
    return table.files().scan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="half the rows, up to 3 rounds: under 50 s")
    quick = parser.parse_args().quick
    rounds, rows = (3, 1_500_000) if quick else (7, 3_000_000)
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name, spark_session() as session:
        write_rows(session, rows, Path(name, "source"))
        scan = written_scan(session.read.parquet(str(Path(name, "source"))), Path(name, "table"))
        paths = [str(scan.store.local_path(file.key)) for file in scan.files]

        def consume(frame) -> None:
            """Every value of every column, without a sink's own cost."""
            frame.write.format("noop").mode("overwrite").save()

        seconds = alternate(
            {
                "spark: ours": lambda: consume(SparkEngine(session).read(scan)),
                "spark: spark.read.parquet": lambda: consume(session.read.parquet(*paths)),
                "arrow: ours": lambda: ArrowEngine().read(scan),
                "arrow: pyarrow.dataset": lambda: ds.dataset(paths).to_table(),
            },
            rounds,
            quick=quick,
        )
    print_ratios(
        ratio("spark_read_vs_parquet", seconds["spark: ours"], seconds["spark: spark.read.parquet"]),
        ratio("arrow_read_vs_dataset", seconds["arrow: ours"], seconds["arrow: pyarrow.dataset"]),
    )


if __name__ == "__main__":
    main()
