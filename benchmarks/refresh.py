"""What does a nightly rebuild cost that changes few rows, beside a whole write and beside deltalake's overwrite?

Run with ``python benchmarks/refresh.py [--quick]``, in a local folder. Seconds and CPU of one night; bytes that few
changed rows add; and how large a table is after many nights, and how long it takes to read, beside one that was stored
whole.
"""

import argparse
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from rounds import alternate, print_ratios, ratio

from dagster_versioned.projects.project import Project
from dagster_versioned.tables.options import TableOptions

REFRESH = TableOptions(refresh="changed_rows")
WHOLE = TableOptions(row_order="ignored")
SEED = np.random.default_rng(7)


def rows(count: int) -> pa.Table:
    """Seven columns: numbers, texts, times."""
    return pa.table(
        {
            "id": np.arange(count),
            "amount": SEED.random(count),
            "price": SEED.random(count) * 100,
            "kind": SEED.integers(0, 100, count),
            "name": pa.array([f"name {number}" for number in SEED.integers(0, 5000, count)]),
            "at": pa.array(SEED.integers(0, 2**50, count)).cast(pa.timestamp("us", "UTC")),
            "flag": SEED.random(count) < 0.5,
        }
    )


def changed(table: pa.Table, places: np.ndarray) -> pa.Table:
    amounts = table["amount"].to_numpy().copy()
    amounts[places] = SEED.random(len(places))
    return table.set_column(1, "amount", pa.array(amounts))


def size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def one_night(folder: Path, count: int, rounds: int, *, quick: bool) -> tuple[str, ...]:
    """A thousandth of the rows changes each night, anywhere; each contestant writes onto a table of its own."""
    frames = [rows(count)]
    for _ in range(rounds + 1):
        frames.append(changed(frames[-1], SEED.integers(0, count, count // 1000)))
    order = pa.array(SEED.permutation(count))

    def contestant(name: str, write: Callable[[Path, pa.Table], object], given: list[pa.Table]) -> Callable[[], object]:
        left = iter(given)
        write(folder / name, next(left))
        return lambda: write(folder / name, next(left))

    def ours(options: TableOptions) -> Callable[[Path, pa.Table], object]:
        return lambda path, frame: Project.open("BENCH", str(path)).table("t").write(frame, options=options)

    seconds = alternate(
        {
            "changed rows": contestant("a", ours(REFRESH), frames),
            "changed rows, another order": contestant(
                "b", ours(REFRESH), [frames[0], *(frame.take(order) for frame in frames[1:])]
            ),
            "whole": contestant("c", ours(WHOLE), frames),
            "deltalake, overwrite": contestant(
                "d", lambda path, frame: write_deltalake(path, frame, mode="overwrite"), frames
            ),
        },
        rounds,
        quick=quick,
    )
    return (
        ratio("refresh_vs_whole", seconds["changed rows"], seconds["whole"]),
        ratio("refresh_other_order_vs_whole", seconds["changed rows, another order"], seconds["whole"]),
        ratio("refresh_vs_deltalake", seconds["changed rows"], seconds["deltalake, overwrite"]),
    )


def few_rows(folder: Path, count: int, places: int) -> None:
    table = Project.open("BENCH", str(folder)).table("t")
    before = rows(count)
    table.write(before, options=REFRESH)
    had = size(folder)
    table.write(changed(before, SEED.integers(0, count, places)), options=REFRESH)
    print(
        f"{places} of {count:,} rows: {(size(folder) - had) / 1024:.1f} KiB more, with the log; whole {had / 1024:.0f}"
    )


def nights(folder: Path, count: int, share: float, times: int, *, recent: bool, rounds: int) -> tuple[str, ...]:
    title = f"{times} nights, {share:.1%} {'of recent rows' if recent else 'anywhere'}, {count:,} rows"
    table = Project.open("BENCH", str(folder / "nights")).table("t")
    now = rows(count)
    table.write(now, options=REFRESH)
    base, different = size(folder / "nights"), 0
    for _ in range(times):
        few = int(count * share)
        back = (SEED.pareto(1.5, few) * count * 0.002).astype(int).clip(0, count - 1)
        places = np.unique(count - 1 - back if recent else SEED.integers(0, count, few))
        now = changed(now, places)
        table.write(now, options=REFRESH)
        different += len(places)
    stored = size(folder / "nights")
    print(
        f"{title}: {stored / base:.2f} of one version; new bytes {(stored - base) / (base / count * different):.2f}"
        f" of those of the changed rows; {len(table.files().adds)} files"
    )
    fresh = Project.open("BENCH", str(folder / "fresh")).table("t")
    fresh.write(now, options=REFRESH)

    def by_query(path: Path) -> Callable[[], object]:
        return lambda: pa.table(
            QueryBuilder().register("t", DeltaTable(str(path))).execute("select * from t").read_all()
        )

    paths = {name: folder / name / "datom" / "t" for name in ("nights", "fresh")}
    seconds = alternate(
        {
            **{f"ours, {name}": opened.read for name, opened in (("nights", table), ("fresh", fresh))},
            **{f"polars, {name}": lambda path=path: pl.read_delta(str(path)) for name, path in paths.items()},
            **{f"deltalake, {name}": by_query(path) for name, path in paths.items()},
        },
        rounds,
    )
    kind = "recent" if recent else "anywhere"
    return tuple(
        ratio(f"read_after_nights_{kind}_{reader}", seconds[f"{reader}, nights"], seconds[f"{reader}, fresh"])
        for reader in ("ours", "polars", "deltalake")
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a twentieth of the rows and nights: under 50 s")
    quick = parser.parse_args().quick
    count, many, times, rounds = (500_000, 100_000, 10, 3) if quick else (10_000_000, 2_000_000, 100, 5)
    ratios: list[str] = []
    folder = Path(tempfile.mkdtemp(dir="."))
    try:
        few_rows(folder / "a", 2_000_000 if not quick else 200_000, 1)
        few_rows(folder / "b", 20_000, 10)
        ratios += one_night(folder / "c", count, rounds, quick=quick)
        shutil.rmtree(folder / "c")
        ratios += nights(folder / "d", many, 0.005, times, recent=False, rounds=rounds)
        shutil.rmtree(folder / "d")
        ratios += nights(folder / "e", count, 0.001, times if quick else 40, recent=True, rounds=rounds)
    finally:
        shutil.rmtree(folder)
    print_ratios(*ratios)


if __name__ == "__main__":
    main()
