"""What does an environment cost: reads and commits through it beside production's own, and a promotion beside a copy?

Run with ``python benchmarks/environment.py [--quick] [--spark]``. Reads are of 3,000,000 rows that production wrote,
commits of one row each. A promotion by rows reads, digests and encodes every row that it copies, one by bytes hashes
them; the copy is `LocalStore.put_file`, as durable, and nothing else. A plan is of 10,000 cells: two tables
of 5,000 partitions, half of the second not there yet; the first plan imports what Dagster keeps runs with and is not
counted. The rounds alternate; the figures are medians.
"""

import argparse
import gc
import os
import shutil
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
from frame_of_seven import spark_session, write_rows
from rounds import alternate, cpu_seconds, print_ratios, ratio

from dagster_versioned import ProjectResource, VersionedParquetIOManager
from dagster_versioned.branches.environments import create_environment, drop_environment
from dagster_versioned.branches.promote import promote
from dagster_versioned.branches.promotion_write import Verify
from dagster_versioned.projects.project import Project
from dagster_versioned.sensors.forecast import forecast
from dagster_versioned.storage import LocalStore

COMMITS = 50


def commits(project: Project) -> None:
    table = project.table("small")
    for number in range(COMMITS):
        table.write(pa.table({"n": [time.perf_counter_ns() + number]}))


class Promotions:
    """Each promotes into a project of its own, which has nothing yet."""

    def __init__(self, folder: Path, rows: pa.Table) -> None:
        self._folder, self._rows, self._number = folder, rows, 0
        self._next = self._branched()

    def promote(self, verify: Verify) -> None:
        report = promote(self._next, "pr-1", dry_run=False, verify=verify)
        assert len(report.promoted) == 1

    def renew(self) -> None:
        """Make the next one."""
        self._next = self._branched()
        os.sync()  # what was written before is not flushed at the cost of what comes

    def copy(self) -> None:
        """What a promotion brings, and nothing else."""
        here = self._folder / f"{self._number}"
        shutil.rmtree(self._folder / "copy", ignore_errors=True)
        store = LocalStore(self._folder / "copy")
        for part in here.glob("environments/files/*/*/data/big/*.parquet"):
            store.put_file(part.name, part)

    def _branched(self) -> Project:
        shutil.rmtree(self._folder / f"{self._number}", ignore_errors=True)
        self._number += 1
        project = Project.open("BENCH", str(self._folder / f"{self._number}"))
        create_environment(project, "pr-1")
        project.in_environment("pr-1").table("big").write(self._rows, code_version="1")
        return project


KEYS = dg.StaticPartitionsDefinition([f"{number:05}" for number in range(5_000)])


@dg.asset(partitions_def=KEYS)
def raw() -> pa.Table:
    """Five thousand partitions."""
    return pa.table({"n": [1]})


@dg.asset(partitions_def=KEYS, code_version="1")
def built(raw: pa.Table) -> pa.Table:
    """Built from the partition of the same key, half of them so far."""
    return raw


def write_cells(location: str) -> None:
    """What `plan` is to look at."""
    project, keys = Project.open("PLAN", location), KEYS.get_partition_keys()
    project.table("raw").write_partitions(dict.fromkeys(keys, pa.table({"n": [1]})))
    done = keys[::2]
    above = {one.parent.partition: [one] for one in project.table("raw").upstream(partitions=done)}
    project.table("built").write_partitions(dict.fromkeys(done, pa.table({"n": [1]})), parents=above, code_version="1")


def planned(location: str) -> float:
    """Seconds of a plan, once the definitions are loaded; by definitions that nothing is remembered of."""
    manager = VersionedParquetIOManager(project=ProjectResource(name="PLAN", location=location))
    repository = dg.Definitions([raw, built], resources={"io_manager": manager}).get_repository_def()
    gc.unfreeze()
    gc.collect()  # what the last one has left
    gc.freeze()  # as the verb does
    start = time.perf_counter()
    found = forecast([repository])
    assert len(found.cells) >= len(KEYS.get_partition_keys()) / 2
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a third of the rows, 3 rounds")
    parser.add_argument("--spark", action="store_true", help="reads by Spark as well")
    given = parser.parse_args()
    rounds, count = (3, 1_000_000) if given.quick else (7, 3_000_000)
    with tempfile.TemporaryDirectory(dir=".") as name, spark_session() as session:
        folder = Path(name).resolve()
        write_rows(session, count, folder / "source")
        rows = pq.read_table(folder / "source")
        project = Project.open("BENCH", str(folder / "lake"))
        project.table("big").write(rows)
        commits(project)
        create_environment(project, "pr-1")
        branch = project.in_environment("pr-1")
        reads = {
            "read, production": lambda: project.table("big").read(),
            "read, environment": lambda: branch.table("big").read(),
        }
        written = {
            f"{COMMITS} commits, production": lambda: commits(project),
            f"{COMMITS} commits, environment": lambda: commits(branch),
        }
        # Each pair by itself: who reads first after fifty commits, or after Spark, finds caches that these have filled.
        seconds = alternate(reads, rounds) | alternate(written, rounds)
        if given.spark:
            from pyspark.sql import DataFrame

            def consume(one: Project) -> None:
                one.table("big").read(as_type=DataFrame).write.format("noop").mode("overwrite").save()

            by_spark = {"Spark, production": lambda: consume(project), "Spark, environment": lambda: consume(branch)}
            seconds |= alternate(by_spark, rounds)
        drop_environment(project, "pr-1")
        promotions = Promotions(folder / "promotions", rows)
        runs = {
            "promote, rows": partial(promotions.promote, "rows"),
            "promote, bytes": partial(promotions.promote, "bytes"),
            "copy": promotions.copy,
        }
        moved: dict[str, list[float]] = {what: [] for what in runs}
        busy: dict[str, list[float]] = {what: [] for what in runs}
        for number in range(rounds + 1):
            for what, run in runs.items():
                promotions.renew()
                before, start = cpu_seconds(), time.perf_counter()
                run()
                taken = time.perf_counter() - start
                if number:
                    moved[what].append(taken)
                    busy[what].append(cpu_seconds() - before)
        write_cells(str(folder / "plan"))
        plans = [planned(str(folder / "plan")) for _ in range(rounds + 1)][1:]
    medians = {what: statistics.median(taken) for what, taken in moved.items()}
    for what, taken in moved.items():
        shown = " ".join(f"{one:.3f}" for one in taken)
        print(f"{what:<28} {medians[what]:7.3f} s, CPU {statistics.median(busy[what]):7.3f} s   of {shown}")
    print(
        f"plan of 10,000 cells         {statistics.median(plans):7.3f} s   of {' '.join(f'{one:.2f}' for one in plans)}"
    )
    ratios = [
        ratio("environment_read_vs_production", seconds["read, environment"], seconds["read, production"]),
        ratio(
            "environment_commit_vs_production",
            seconds[f"{COMMITS} commits, environment"],
            seconds[f"{COMMITS} commits, production"],
        ),
        ratio("promote_rows_vs_copy", medians["promote, rows"], medians["copy"]),
        ratio("promote_bytes_vs_copy", medians["promote, bytes"], medians["copy"]),
    ]
    if given.spark:
        ratios.append(ratio("environment_spark_read", seconds["Spark, environment"], seconds["Spark, production"]))
    print_ratios(*ratios)


if __name__ == "__main__":
    main()
