"""What grows with history? Ten times the versions, partitions, columns or tables beside one time, as ratios.

Run with ``python benchmarks/growth.py [--quick] [--s3]``, and with ``--versions``, ``--partitions``, ``--columns`` and
``--tables`` for other sizes than 10,000, 10,000, 2,000 and 1,000; ``--only`` runs some of the four. Stores are written
by the API, one row a version, and the histories are copied to the S3 server instead of being written there a second
time. Each figure is the median of the rounds. A ratio of 1 means that a cost does not grow, one of 10 that it grows in
proportion; behind each stands which of the two is meant to be. Calls and bytes are those of the store, seconds are
ours, and memory is the peak of a process of its own that opens the table. ``*_vs_deltalake`` compare seconds.
"""

import argparse
import io
import logging
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import dagster as dg
import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
from rounds import print_ratios, ratio

from dagster_versioned import Project, ProjectResource, VersionedParquetIOManager
from dagster_versioned.storage import LocalStore
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.storage.wrappers import Call, CountingStore

NAME = "BENCH"
FLAT, LINEAR = "flat", "in proportion"
COPIERS = 16

_numbers = count(1_000_000)
_projects: dict[str, Project] = {}


@dataclass(frozen=True)
class Cost:
    """What one action took."""

    seconds: float
    calls: int
    read: int
    written: int


@dataclass
class Figures:
    """Figures by name, each at one and at ten times the size, and what is meant to become of them."""

    title: str
    rows: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    meant: dict[str, str] = field(default_factory=dict[str, str])
    peers: list[str] = field(default_factory=list[str])

    def add(self, name: str, value: float, meant: str = FLAT) -> None:
        self.rows.setdefault(name, []).append(value)
        self.meant[name] = meant

    def add_costs(self, name: str, costs: Sequence[Cost], kinds: str, meant: str = FLAT) -> None:
        """The medians of some kinds of costs."""
        for kind in kinds.split():
            self.add(f"{name}_{kind}", statistics.median(getattr(cost, kind) for cost in costs), meant)

    def table(self) -> str:
        lines = [f"{self.title:<44} {'1x':>14} {'10x':>14} {'ratio':>8}"]
        for name, (small, large) in self.rows.items():
            lines.append(f"{name:<44} {small:>14,.3f} {large:>14,.3f} {_times(small, large):>8.2f}  {self.meant[name]}")
        return "\n".join(lines)

    def ratios(self) -> list[str]:
        return [f"RATIO growth_{self.title}_{n} {_times(small, large):.3f}" for n, (small, large) in self.rows.items()]


def _times(small: float, large: float) -> float:
    return large / small if small else (1.0 if large == small else float("inf"))


def cost_of(
    store: CountingStore, action: Callable[[], object], is_counted: Callable[[Call], bool] | None = None
) -> Cost:
    store.reset()
    began = time.perf_counter()
    action()
    seconds = time.perf_counter() - began
    calls = [call for call in store.calls if is_counted is None or is_counted(call)]
    return Cost(seconds, len(calls), sum(call.read for call in calls), sum(call.written for call in calls))


def opened(root: ObjectStore, table: str) -> tuple[CountingStore, Any]:
    """A table as a new process finds it."""
    store = CountingStore(root)
    return store, Project(NAME, store).table(table)


def row() -> pa.Table:
    """One row that was never written before."""
    return pa.table({"n": [next(_numbers)]})


# One table with a long history


def written_history(root: ObjectStore, versions: int) -> None:
    """A table of so many versions, and one that was built from each of them."""
    project = Project(NAME, root)
    up, down = project.table("up"), project.table("down")
    for number in range(versions):
        up.write(pa.table({"n": [number]}))
        down.write(pa.table({"n": [number]}), parents=up.upstream())
        if number % 1000 == 999:
            print(f"  {number + 1:,} of {versions:,} versions are written", flush=True)


def history_costs(root: ObjectStore, rounds: int, figures: Figures) -> None:
    opens, cold, warm, unchanged, claims = ([] for _ in range(5))
    for _ in range(rounds):
        store, table = opened(root, "up")
        opens.append(cost_of(store, table.files))
    for _ in range(rounds):
        store, table = opened(root, "up")
        cold.append(cost_of(store, lambda table=table: table.write(row())))
    store, table = opened(root, "up")
    table.write(row())
    for _ in range(rounds):
        frame = row()
        warm.append(cost_of(store, lambda frame=frame: table.write(frame)))
        unchanged.append(cost_of(store, lambda frame=frame: table.write(frame)))
    for _ in range(min(rounds, 3)):
        store, table = opened(root, "up")
        table.history()
        claims.append(cost_of(store, lambda table=table: table.expire(keep_last=1, dry_run=True)))
    figures.add_costs("cold_open", opens, "calls read seconds")
    figures.add_costs("cold_write", cold, "calls written seconds")
    figures.add_costs("warm_write", warm, "calls written seconds")
    figures.add_costs("unchanged_warm_write", unchanged, "calls written seconds")
    figures.add_costs("claims_of_expire", claims, "seconds", LINEAR)


def removed_files(root: ObjectStore, figures: Figures) -> None:
    """What the checkpoint after an expiry holds of removed files; the history is gone after this."""
    table = Project(NAME, root).table("down")
    table.expire(keep_last=1, dry_run=False)
    before = _checkpoints(table.store)
    while _checkpoints(table.store) == before:
        table.write(row())
    data = table.store.get(_checkpoints(table.store)[-1])
    removes = pq.read_table(io.BytesIO(data), columns=["remove"])["remove"]
    figures.add("removed_files_in_checkpoint", len(removes) - removes.null_count)
    figures.add("bytes_of_checkpoint", len(data))


def _checkpoints(store: ObjectStore) -> list[str]:
    return sorted(info.key for info in store.list("_delta_log/") if info.key.endswith(".checkpoint.parquet"))


OPEN = """
import sys
from pathlib import Path
from dagster_versioned.projects.project import Project
table = Project.open("BENCH", sys.argv[1]).table(sys.argv[2])
kept = table.files() if sys.argv[3] == "head" else table.history()
print(next(line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")))
"""
"""Tells the peak in KiB; as the kernel counts it for the program, because ``ru_maxrss`` holds what its parent had."""


def peak_memory(folder: Path, table: str, what: str) -> float:
    """MiB at the peak of a process that opens a table's head, or its history."""
    command = [sys.executable, "-c", OPEN, str(folder), table, what]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout) / 1024


def memory_costs(folder: Path, table: str, rounds: int, figures: Figures) -> None:
    for what in ("head", "history"):
        peak = statistics.median(peak_memory(folder, table, what) for _ in range(rounds))
        figures.add(f"{what}_peak_mib", peak, FLAT if what == "head" else LINEAR)


def per_version(figures: Figures, name: str, small: int, large: int) -> str:
    low, high = figures.rows[name]
    return f"{name}: {(high - low) * 1024 / (large - small):.2f} KiB for each version"


# Many partitions


def frames(partitions: int) -> dict[str | None, pa.Table]:
    return {f"k{number:06}": row() for number in range(partitions)}


def is_no_part(call: Call) -> bool:
    """Whether a call is about something else than a part of a partition, or a staged one."""
    inside = call.key.split("/")
    return not call.key.endswith(".parquet") or "_delta_log" in inside or ".metadata" in inside


def partition_costs(root: ObjectStore, partitions: int, rounds: int, figures: Figures) -> None:
    written, wholes, halves, ones = ([] for _ in range(4))
    for number in range(rounds):
        store, table = opened(root, f"daily{number}")
        new = frames(partitions)
        written.append(cost_of(store, lambda table=table, new=new: table.write_partitions(new), is_no_part))
    keys = list(new)
    for _ in range(rounds):
        store, table = opened(root, "daily0")
        _ = table.state
        half = keys[: partitions // 2]
        wholes.append(cost_of(store, table.files))
        halves.append(cost_of(store, lambda table=table, half=half: table.files(partitions=half)))
        ones.append(cost_of(store, lambda table=table, one=keys[0]: table.files(partition=one)))
    figures.add_costs("write_all", written, "seconds", LINEAR)
    figures.add_costs("write_all_but_parts", written, "calls")
    figures.add_costs("plan_whole", wholes, "seconds", LINEAR)
    figures.add_costs("plan_half", halves, "seconds", LINEAR)
    figures.add_costs("plan_one", ones, "seconds", LINEAR)


class Counted(ProjectResource):
    """A project whose store counts."""

    def project(self) -> Project:
        return _projects[self.location]


def run_costs(root: ObjectStore, partitions: int, rounds: int, figures: Figures) -> None:
    """Runs of Dagster over all partitions, with all that is reported, and a run that reads an old version of them."""
    keys = [f"k{number:06}" for number in range(partitions)]
    store = CountingStore(root)
    location = f"/counted/{next(_numbers)}"
    _projects[location] = Project(NAME, store)
    definition = dg.StaticPartitionsDefinition(keys)

    @dg.asset(partitions_def=definition, backfill_policy=dg.BackfillPolicy.single_run())
    def ranged(context) -> dict[str, pa.Table]:
        return {key: row() for key in context.partition_keys}

    @dg.asset
    def pinned(ranged: dict[str, pa.Table]) -> pa.Table:
        return pa.table({"n": [len(ranged)]})

    io_manager = VersionedParquetIOManager(project=Counted(name=NAME, location=location), preview_rows=0)
    tags = {"dagster/asset_partition_range_start": keys[0], "dagster/asset_partition_range_end": keys[-1]}

    def run(asset: str, tags: dict[str, str]) -> None:
        with dg.DagsterInstance.ephemeral() as instance:
            resources = {"io_manager": io_manager}
            dg.materialize([ranged, pinned], selection=asset, instance=instance, resources=resources, tags=tags)

    runs = [cost_of(store, lambda: run("ranged", tags), is_no_part) for _ in range(rounds)]
    _projects[location].table("ranged").write(row(), partition=keys[0])
    reads = [
        cost_of(store, lambda: run("pinned", {"dagster_versioned/pin/ranged": "@0"}), is_no_part) for _ in range(rounds)
    ]
    figures.add_costs("run_over_all", runs, "seconds", LINEAR)
    figures.add_costs("run_over_all_but_parts", runs, "calls")
    figures.add_costs("pinned_dict_input", reads, "seconds", LINEAR)
    figures.add_costs("pinned_dict_input_but_parts", reads, "calls")


# Many tables


def table_costs(root: ObjectStore, tables: int, rounds: int, figures: Figures) -> None:
    project = Project(NAME, root)
    for number in range(tables):
        project.table(f"t{number}").write(row())
    cold, warm, claims = ([] for _ in range(3))
    for _ in range(rounds):
        store, table = opened(root, "t0")
        cold.append(cost_of(store, lambda table=table: table.write(row())))
        warm.append(cost_of(store, lambda table=table: table.write(row())))
    for _ in range(min(rounds, 3)):
        store, table = opened(root, "t0")
        claims.append(cost_of(store, lambda table=table: table.expire(keep_last=1, dry_run=True)))
    figures.add_costs("cold_write", cold, "calls written")
    figures.add_costs("warm_write", warm, "calls written seconds")
    figures.add_costs("claims_of_expire", claims, "calls seconds", LINEAR)


# Places


def copied(source: ObjectStore, target: ObjectStore) -> None:
    """The same bytes at another place; what a store is does not depend on where it is."""
    with ThreadPoolExecutor(COPIERS) as pool:
        for done in [pool.submit(_copy, source, target, info.key) for info in source.list()]:
            done.result()


def _copy(source: ObjectStore, target: ObjectStore, key: str) -> None:
    target.put(key, source.get(key))


@contextmanager
def server_stores() -> Iterator[Callable[[str], ObjectStore]]:
    """Stores of one bucket on a real S3 server, by prefix."""
    sys.path.append(str(Path(__file__).parents[1] / "tests"))
    from support.s3_server import running_s3_server

    with running_s3_server() as server:
        bucket = server.new_bucket()
        yield lambda prefix: server.store(bucket, prefix)


@dataclass(frozen=True)
class Sizes:
    """The large sizes; the small ones are a tenth."""

    versions: int
    wide_versions: int
    partitions: int
    columns: int
    tables: int
    rounds: int
    runs: int
    processes: int


def versions_figures(local: Path, remote: Callable[[str], ObjectStore] | None, sizes: Sizes) -> list[Figures]:
    figures = [Figures("versions")] + ([Figures("s3_versions")] if remote else [])
    for versions in (sizes.versions // 10, sizes.versions):
        folder = local / f"versions-{versions}"
        written_history(LocalStore(folder), versions)
        if remote:
            copied(LocalStore(folder), remote(folder.name))
            history_costs(remote(folder.name), sizes.rounds, figures[1])
        memory_costs(folder, "up", sizes.processes, figures[0])
        history_costs(LocalStore(folder), sizes.rounds, figures[0])
        path = str(folder / "datom" / "up")
        theirs = statistics.median(_seconds(partial(deltalake.DeltaTable, path)) for _ in range(sizes.rounds))
        figures[0].peers = [ratio("growth_cold_open_vs_deltalake", figures[0].rows["cold_open_seconds"][-1], theirs)]
        removed_files(LocalStore(folder), figures[0])
    print(per_version(figures[0], "history_peak_mib", sizes.versions // 10, sizes.versions))
    return figures


def columns_figures(local: Path, sizes: Sizes) -> list[Figures]:
    figures = Figures("columns")
    for versions in (sizes.wide_versions // 10, sizes.wide_versions):
        folder = local / f"wide-{versions}"
        table = Project(NAME, LocalStore(folder)).table("wide")
        for number in range(versions):
            table.write(pa.table({f"column_{column:05}": [number] for column in range(sizes.columns)}))
        memory_costs(folder, "wide", sizes.processes, figures)
    print(f"{sizes.columns:,} columns, {sizes.wide_versions:,} versions")
    print(per_version(figures, "history_peak_mib", sizes.wide_versions // 10, sizes.wide_versions))
    return [figures]


def partitions_figures(local: Path, remote: Callable[[str], ObjectStore] | None, sizes: Sizes) -> list[Figures]:
    figures: list[Figures] = []
    for title, place in (("partitions", lambda name: LocalStore(local / name)), ("s3_partitions", remote)):
        if place is None:
            continue
        found = Figures(title)
        for partitions in (sizes.partitions // 10, sizes.partitions):
            partition_costs(place(f"partitions-{partitions}"), partitions, sizes.rounds, found)
            run_costs(place(f"runs-{partitions}"), partitions, sizes.runs, found)
        figures.append(found)
    path = str(local / f"partitions-{sizes.partitions}" / "datom" / "daily0")
    known = deltalake.DeltaTable(path)
    theirs = statistics.median(_seconds(known.to_pyarrow_dataset) for _ in range(sizes.rounds))
    figures[0].peers = [ratio("growth_plan_vs_deltalake", figures[0].rows["plan_whole_seconds"][-1], theirs)]
    return figures


def tables_figures(local: Path, remote: Callable[[str], ObjectStore] | None, sizes: Sizes) -> list[Figures]:
    figures: list[Figures] = []
    for title, place in (("tables", lambda name: LocalStore(local / name)), ("s3_tables", remote)):
        if place is None:
            continue
        found = Figures(title)
        for tables in (sizes.tables // 10, sizes.tables):
            table_costs(place(f"tables-{tables}"), tables, sizes.rounds, found)
        figures.append(found)
    return figures


def _seconds(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="small sizes and fewer rounds: ends in less than 50 seconds"
    )
    parser.add_argument("--s3", action="store_true", help="on a real S3 server as well")
    parser.add_argument("--versions", type=int, help="of a table (default: 10000)")
    parser.add_argument("--wide-versions", type=int, help="of a table of many columns (default: 200)")
    parser.add_argument("--partitions", type=int, help="of a table (default: 10000)")
    parser.add_argument("--columns", type=int, help="of a table (default: 2000)")
    parser.add_argument("--tables", type=int, help="of a project (default: 1000)")
    parser.add_argument("--rounds", type=int, help="of which the median is taken (default: 5)")
    parser.add_argument("--only", choices=["versions", "columns", "partitions", "tables"], nargs="+")
    given = parser.parse_args()
    defaults = (
        Sizes(60, 20, 200, 200, 20, 3, 1, 1) if given.quick else Sizes(10_000, 200, 10_000, 2_000, 1_000, 5, 3, 5)
    )
    sizes = Sizes(
        *(
            getattr(given, name, None) or getattr(defaults, name)
            for name in ("versions", "wide_versions", "partitions", "columns", "tables", "rounds", "runs", "processes")
        )
    )
    logging.disable(logging.CRITICAL)  # Dagster's, one line a partition
    warnings.simplefilter("ignore")
    only = given.only or ["versions", "columns", "partitions", "tables"]
    figures: list[Figures] = []
    with tempfile.TemporaryDirectory(dir=".") as scratch, server_stores() if given.s3 else _nowhere() as remote:
        local = Path(scratch).resolve()
        if "versions" in only:
            figures += versions_figures(local, remote, sizes)
        if "columns" in only:
            figures += columns_figures(local, sizes)
        if "partitions" in only:
            figures += partitions_figures(local, remote, sizes)
        if "tables" in only:
            figures += tables_figures(local, remote, sizes)
    for found in figures:
        print(found.table())
    print_ratios(*(line for found in figures for line in (*found.ratios(), *found.peers)))


@contextmanager
def _nowhere() -> Iterator[None]:
    yield None


if __name__ == "__main__":
    main()
