"""What does a materialization of ten rows cost, beside Dagster's own IO manager and one that calls deltalake?

Run with ``python benchmarks/small_asset.py [--quick]``. Each round materializes one asset in this process, whose rows
are others each time, by each IO manager in turn; the figures are medians over what the asset costs by Dagster's
`FilesystemIOManager`. With ``--s3`` ours writes to the S3 server of the tests as well, and its calls are counted.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import dagster as dg
import deltalake
import pyarrow as pa
from rounds import print_ratios, ratio

from dagster_versioned import Project, ProjectResource, VersionedParquetIOManager
from dagster_versioned.storage import LocalStore
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.storage.wrappers import CountingStore

NAMES = ("filesystem", "deltalake", "dagster-versioned", "dagster-versioned, unchanged")


class DeltaIOManager(dg.ConfigurableIOManager):
    """What an IO manager on deltalake has to do at the least."""

    folder: str

    def handle_output(self, context: dg.OutputContext, obj: pa.Table) -> None:
        deltalake.write_deltalake(f"{self.folder}/{context.asset_key.path[-1]}", obj, mode="overwrite")

    def load_input(self, context: dg.InputContext) -> pa.Table:
        return deltalake.DeltaTable(f"{self.folder}/{context.asset_key.path[-1]}").to_pyarrow_table()


def asset(first: int) -> dg.AssetsDefinition:
    """Ten rows that begin with a number."""

    @dg.asset
    def numbers() -> pa.Table:
        return pa.table({"n": list(range(first, first + 10)), "name": [f"row {i}" for i in range(10)]})

    return numbers


def materialized(first: int, manager: dg.ConfigurableIOManager, instance: dg.DagsterInstance) -> float:
    """Milliseconds of one run."""
    assets = [asset(first)]
    start = time.perf_counter()
    assert dg.materialize(assets, instance=instance, resources={"io_manager": manager}).success
    return (time.perf_counter() - start) * 1000


def print_calls(where: str, plain: ObjectStore) -> None:
    """What a small write asks of a store, in a process that has the table open."""
    store = CountingStore(plain)
    table = Project("BENCH", store).table("counted")
    for first in range(3):
        table.write(asset_rows(first))
    store.reset()
    start = time.perf_counter()
    table.write(asset_rows(3))
    taken = (time.perf_counter() - start) * 1000
    print(f"{where}: {len(store.calls)} calls, {store.bytes_written} bytes put, {taken:.1f} ms")


def asset_rows(first: int) -> pa.Table:
    return pa.table({"n": list(range(first, first + 10))})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="30 rounds: ends in less than 50 seconds")
    parser.add_argument("--s3", action="store_true", help="count the calls on an S3 server, too")
    given = parser.parse_args()
    taken: dict[str, list[float]] = {name: [] for name in NAMES}
    with tempfile.TemporaryDirectory(dir=".") as folder, dg.DagsterInstance.ephemeral() as instance:
        ours = VersionedParquetIOManager(project=ProjectResource(name="BENCH", location=f"{folder}/ours"))
        managers = {
            "filesystem": dg.FilesystemIOManager(base_dir=f"{folder}/pickled"),
            "deltalake": DeltaIOManager(folder=f"{folder}/delta"),
            "dagster-versioned": ours,
        }
        for number in range(5 + (30 if given.quick else 150)):
            for name, manager in managers.items():
                milliseconds = materialized(number, manager, instance)
                if number >= 5:  # what is loaded and compiled first is not measured
                    taken[name].append(milliseconds)
            if number >= 5:
                taken[NAMES[-1]].append(materialized(number, ours, instance))
        print_calls("local", LocalStore(f"{folder}/counted"))
        if given.s3:
            from support.s3_server import running_s3_server

            with running_s3_server() as server:
                print_calls("s3", server.store(server.new_bucket()))
    medians = {name: statistics.median(values) for name, values in taken.items()}
    for name, median in medians.items():
        print(f"{name:<30} {median:6.1f} ms, {median - medians['filesystem']:+6.1f} over the filesystem's")
    over = {name: median - medians["filesystem"] for name, median in medians.items()}
    print_ratios(
        f"RATIO small_asset_ms_over_filesystem {over['dagster-versioned']:.1f}",
        ratio("small_asset_vs_deltalake", medians["dagster-versioned"], medians["deltalake"]),
    )


if __name__ == "__main__":
    main()
