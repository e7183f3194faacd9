"""What does a step cost that is reused? Milliseconds and store calls beside Dagster's own step.

Run with ``python benchmarks/reuse.py [--quick]``. The peer is the same graph of ``dg.asset``, whose functions return at
once, under Dagster's in-memory IO manager; on an instance in memory, as tests have, and on one with a home, whose event
log is on disk, as `dagster dev`, its daemon and its CLI have. ``lookup`` is one look for a key that is neither the head
nor recent, in a table with few keys and in one with many: the cost does not depend on their number.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import dagster as dg
import pyarrow as pa
from rounds import alternate, print_ratios, ratio

from dagster_versioned import ProjectResource, VersionedParquetIOManager, versioned_asset
from dagster_versioned.process_state import PROCESS
from dagster_versioned.projects.project import Project
from dagster_versioned.storage import LocalStore
from dagster_versioned.storage.wrappers import StoreWrapper, Verb
from dagster_versioned.tables import state
from dagster_versioned.tables.computations import document_key
from dagster_versioned.tables.write.pending import OpenComputation

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


T = TypeVar("T")

asked: list[str] = []


class AskedStore(StoreWrapper):
    """Counts every call, those included that find nothing."""

    def _around(self, verb: Verb, key: str, size: int, action: Callable[[], T]) -> T:
        asked.append(f"{verb} {key}")
        return action()


class CountedProject(ProjectResource):
    """A project whose calls of the store are counted."""

    def _opened(self) -> Project:
        assert self.location is not None
        return Project(self.name, AskedStore(LocalStore(self.location)))


@dataclass(frozen=True)
class Steps:
    """A run of ``count`` assets that are all reused: its seconds, Dagster's own, and its calls of the store."""

    count: int
    reused: float
    anew: float | None
    own: float
    calls: int
    calls_anew: int

    def text(self) -> str:
        anew = ""
        if self.anew is not None:
            anew = f", {self._ms(self.anew)} and {self.calls_anew / self.count:.1f} in a new process"
        return (
            f"{self.count} assets: {self._ms(self.reused)} and {self.calls / self.count:.1f} store calls a reused step"
            f"{anew}; Dagster's own {self._ms(self.own)}"
        )

    def _ms(self, seconds: float) -> str:
        return f"{1000 * seconds / self.count:.1f} ms"


def forget_tables() -> None:
    """Let this process know no more of tables than a new one."""
    PROCESS.forget(state.SharedStates)


def steps(instance: dg.DagsterInstance, count: int, rounds: int, root: str, *, quick: bool, anew: bool) -> Steps:
    """Medians on an instance, also (``anew``) of a process that has not opened the tables before."""
    manager = VersionedParquetIOManager(project=ProjectResource(name="BENCH", location=root))
    counting = VersionedParquetIOManager(project=CountedProject(name="BENCH", location=root))
    ours, theirs = graph(versioned_asset, count), graph(dg.asset, count)

    def run(assets: list[dg.AssetsDefinition], io: dg.IOManager | dg.ConfigurableIOManager) -> int:
        asked.clear()
        assert dg.materialize(assets, instance=instance, resources={"io_manager": io}).success
        return len(asked)

    def run_anew() -> None:
        forget_tables()
        run(ours, manager)

    run(ours, manager)
    run(ours, counting)
    calls = run(ours, counting)
    forget_tables()
    calls_anew = run(ours, counting)
    contestants = {
        "all reused": lambda: run(ours, manager),
        **({"all reused, in a new process": run_anew} if anew else {}),
        "Dagster's own, in memory": lambda: run(theirs, dg.InMemoryIOManager()),
    }
    medians = alternate(contestants, rounds, quick=quick)
    reused, *between, own = medians.values()
    return Steps(count, reused, between[0] if between else None, own, calls, calls_anew)


def lookup(keys: int, root: str) -> tuple[float, int]:
    """Seconds and store calls of a look for an old key, in a table that has documents of so many keys."""
    store = AskedStore(LocalStore(root))
    table = Project("BENCH", store).table("many")
    wanted = "f" * 64
    table.write_partitions(
        {None: ROWS}, code_version="1", computations={None: OpenComputation(wanted, time.monotonic())}
    )
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
        asked.clear()
        start = time.perf_counter()
        (found,) = fresh.computed({None: wanted}).values()
        taken.append(time.perf_counter() - start)
        calls = len(asked)
        assert found.log_version == 0
    return sorted(taken)[2], calls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer assets and keys: ends in less than 50 seconds")
    quick = parser.parse_args().quick
    count, at_home, rounds, keys = (50, 10, 3, 1_000) if quick else (200, 50, 7, 100_000)
    with tempfile.TemporaryDirectory(dir=".") as root, Path(os.devnull).open("w") as sys.stderr:  # where runs log to
        in_memory = steps(dg.DagsterInstance.ephemeral(), count, rounds, f"{root}/steps", quick=quick, anew=True)
        print(in_memory.text())
        with dg.instance_for_test(temp_dir=root) as instance:
            home = steps(instance, at_home, rounds, f"{root}/home", quick=quick, anew=False)
        print(f"on an instance with a home: {home.text()}")
        few, few_calls = lookup(10, f"{root}/few")
        many, many_calls = lookup(keys, f"{root}/many")
        print(f"a look among 10 keys {1000 * few:.2f} ms, {few_calls} store calls")
        print(f"a look among {keys:,} keys {1000 * many:.2f} ms, {many_calls} store calls")
        assert many_calls == few_calls
    print_ratios(
        ratio("reused_step_vs_dagster", in_memory.reused, in_memory.own),
        ratio("reused_step_vs_dagster_at_home", home.reused, home.own),
        ratio("lookup_many_keys_vs_few", many, few),
    )


if __name__ == "__main__":
    main()
