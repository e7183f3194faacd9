"""What does a step cost that is reused? Milliseconds and store calls beside Dagster's own step.

Run with ``python benchmarks/reuse.py [--quick]``. The peer is the same graph of ``dg.asset``, whose functions return at
once, under Dagster's in-memory IO manager. ``lookup`` is one look for a key that is neither the head nor recent, in a
table with few keys and in one with many: the cost does not depend on their number.
"""

import argparse
import logging
import tempfile
import time
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
from rounds import alternate, print_ratios, ratio

from dagster_versioned import ProjectResource, VersionedParquetIOManager, versioned_asset
from dagster_versioned.storage import LocalStore
from dagster_versioned.storage.wrappers import CountingStore
from dagster_versioned.tables.computations import document_key
from dagster_versioned.tables.project import Project
from dagster_versioned.tables.write.pending import Computing

ROWS = pa.table({"value": [1]})


def graph(decorator: Any, count: int) -> list[dg.AssetsDefinition]:
    """Chains of ten assets each."""

    def one(number: int) -> dg.AssetsDefinition:
        if number % 10 == 0:

            @decorator(name=f"a{number}", code_version="1")
            def first() -> pa.Table:
                return ROWS

            return first

        @decorator(name=f"a{number}", code_version="1", ins={"above": dg.AssetIn(f"a{number - 1}")})
        def made(above: pa.Table) -> pa.Table:
            return above

        return made

    return [one(number) for number in range(count)]


class CountedProject(ProjectResource):
    """A project whose calls of the store are counted, of all its copies together."""

    def _opened(self) -> Project:
        assert self.location is not None
        return Project(self.name, calls.setdefault(self.location, CountingStore(LocalStore(self.location))))


calls: dict[str, CountingStore] = {}


def steps(count: int, rounds: int, root: str, *, quick: bool) -> tuple[float, float, float]:
    """Median seconds of a run in which everything is reused, and of Dagster's own; the store calls of such a step."""
    place = f"{root}/steps"
    manager = VersionedParquetIOManager(project=ProjectResource(name="BENCH", location=place))
    counting = VersionedParquetIOManager(project=CountedProject(name="BENCH", location=place))
    instance = dg.DagsterInstance.ephemeral()
    ours, theirs = graph(versioned_asset, count), graph(dg.asset, count)

    def run(assets: list[dg.AssetsDefinition], io: dg.IOManager | dg.ConfigurableIOManager) -> None:
        assert dg.materialize(assets, instance=instance, resources={"io_manager": io}).success

    run(ours, manager)
    run(ours, counting)
    counted = len(calls[place].calls) / count
    contestants = {
        "all reused": lambda: run(ours, manager),
        "Dagster's own, in memory": lambda: run(theirs, dg.InMemoryIOManager()),
    }
    medians = alternate(contestants, rounds, quick=quick)
    return medians["all reused"], medians["Dagster's own, in memory"], counted


def lookup(keys: int, root: str) -> tuple[float, int]:
    """Seconds and store calls of a look for an old key, in a table that has documents of so many keys."""
    store = CountingStore(LocalStore(root))
    table = Project("BENCH", store).table("many")
    wanted = "f" * 64
    table.write_partitions({None: ROWS}, code_version="1", computations={None: Computing(wanted, time.monotonic())})
    for number in range(110):  # so that it is not among the recent commits
        table.write(pa.table({"value": [number]}), code_version="2")
    document = Path(root, "datom", "many", document_key(wanted))
    for number in range(keys):
        document.with_name(f"{number:064x}.json").write_bytes(document.read_bytes())
    taken: list[float] = []
    calls = 0
    for _ in range(5):
        fresh = Project("BENCH", store).table("many")
        _ = fresh.state
        store.reset()
        start = time.perf_counter()
        (found,) = fresh.computed({None: wanted}).values()
        taken.append(time.perf_counter() - start)
        calls = len(store.calls)
        assert found.log_version == 0
    return sorted(taken)[2], calls


def main() -> None:
    logging.disable(logging.ERROR)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer assets and keys: ends in less than 50 seconds")
    quick = parser.parse_args().quick
    count, rounds, keys = (50, 3, 1_000) if quick else (200, 7, 100_000)
    with tempfile.TemporaryDirectory(dir=".") as root:
        reused, own, counted = steps(count, rounds, root, quick=quick)
        print(
            f"{count} assets: {1000 * reused / count:.1f} ms a reused step, Dagster's own {1000 * own / count:.1f} ms; "
            f"{counted:.1f} store calls a step"
        )
        few, few_calls = lookup(10, f"{root}/few")
        many, many_calls = lookup(keys, f"{root}/many")
        print(f"a look among 10 keys {1000 * few:.2f} ms, {few_calls} store calls")
        print(f"a look among {keys:,} keys {1000 * many:.2f} ms, {many_calls} store calls")
        assert many_calls == few_calls
    print_ratios(ratio("reused_step_vs_dagster", reused, own), ratio("lookup_many_keys_vs_few", many, few))


if __name__ == "__main__":
    main()
