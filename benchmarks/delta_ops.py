"""Changing TPC-H's lineitem as a Delta table: merge, delete, overwrite and a filtered read, beside deltalake.

And beside Delta Spark, where ``--delta-spark`` names the Python of an environment that has it. Every contestant changes
a table of its own, which a copy of one folder of hard links puts back before each round; that is not timed.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from rounds import numbered, print_ratios, ratio

from dagster_versioned.delta_tables.dml import WhenMatched, WhenNotMatched
from dagster_versioned.delta_tables.read import read_delta
from dagster_versioned.delta_tables.write import delete_from, merge_delta, write_delta

SOURCE_ROWS = 60_000
WHERE = "l_shipdate >= DATE '1998-08-01' AND l_quantity < 10"


def lineitem(scale: float, folder: Path) -> pa.Table:
    """The table, by the generator that comes as a package (`pip install tpchgen-cli`)."""
    generator = Path(sysconfig.get_path("scripts"), "tpchgen-cli")
    command = [generator, "parquet", "-s", str(scale), "--tables=lineitem", f"--output-dir={folder}"]
    subprocess.run(command, check=True, capture_output=True)
    table = pq.read_table(folder / "lineitem.parquet")
    plain = [pa.field(field.name, _plain(field.type)) for field in table.schema]
    return table.cast(pa.schema(plain))


def _plain(kind: pa.DataType) -> pa.DataType:
    return pa.string() if pa.types.is_string(kind) or pa.types.is_string_view(kind) else kind


def changed_rows(table: pa.Table) -> pa.Table:
    """Rows of the source of a merge: half of them update every hundredth row or so, half are new."""
    rows = table.take(pa.array(range(0, table.num_rows, max(1, 2 * table.num_rows // SOURCE_ROWS))))
    new = rows.set_column(0, "l_orderkey", pc.add(rows["l_orderkey"], pa.scalar(10**9)))
    both = pa.concat_tables([rows, new.cast(rows.schema)])
    return both.set_column(
        both.schema.get_field_index("l_comment"), "l_comment", pa.array(["changed"] * both.num_rows, pa.string())
    )


class Tables:
    """One table, of which every run gets its own copy."""

    def __init__(self, folder: Path, rows: pa.Table, files: int) -> None:
        self._folder = folder
        for name, properties in (("plain", {}), ("vectors", {"delta.enableDeletionVectors": "true"})):
            for start in range(0, rows.num_rows, -(-rows.num_rows // files)):
                piece = rows.slice(start, -(-rows.num_rows // files))
                write_delta(str(folder / name), piece, properties=properties if start == 0 else None)
        self._made = 0

    def fresh(self, kind: str) -> str:
        self._made += 1
        place = self._folder / f"copy-{self._made}"
        shutil.copytree(self._folder / kind, place, copy_function=_link)
        return str(place)

    def drop(self, place: str) -> None:
        shutil.rmtree(place)


def _link(source: str, target: str) -> None:
    Path(target).hardlink_to(source)


class DeltaSpark:
    """The reference in a process of its own, which is given what to do and says how long it took."""

    def __init__(self, python: str, folder: Path) -> None:
        command = [python, Path(__file__).parent / "peers" / "delta_spark.py"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._paths = {"source": str(folder / "source.parquet"), "rows": str(folder / "lineitem.parquet")}
        self._answer()

    def __call__(self, operation: str, uri: str, **given: str) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"operation": operation, "uri": uri, **self._paths, **given}) + "\n")
        self._process.stdin.flush()
        return float(self._answer())

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("Delta Spark ended; run benchmarks/peers/delta_spark.py by itself to see why.")
        return line

    def close(self) -> None:
        self._process.communicate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a fifth of the rows, up to 3 rounds: under 50 s")
    parser.add_argument("--scale", type=float, default=None, help="TPC-H's scale factor, by default 1, or 0.2 if quick")
    parser.add_argument("--only", help="one operation: merge, delete, overwrite, read")
    parser.add_argument("--delta-spark", help="the Python of an environment that has Delta Spark")
    options = parser.parse_args()
    scale = options.scale or (0.2 if options.quick else 1)
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
        folder = Path(name)
        rows = lineitem(scale, folder)
        tables = Tables(folder, rows, files=8)
        print(f"lineitem at scale {scale}: {rows.num_rows} rows, 8 files")
        source = changed_rows(rows)
        on = "target.l_orderkey = source.l_orderkey AND target.l_linenumber = source.l_linenumber"
        few = pc.field("l_orderkey") < 1000
        operations: dict[str, dict[str, tuple[str, Callable[[str], object]]]] = {
            "merge": {
                "merge: ours": (
                    "plain",
                    lambda uri: merge_delta(uri, source, on, [WhenMatched("all"), WhenNotMatched("all")]),
                ),
                "merge: deltalake": ("plain", lambda uri: peer_merge(uri, source, on)),
                "merge: ours, with vectors": (
                    "vectors",
                    lambda uri: merge_delta(uri, source, on, [WhenMatched("all"), WhenNotMatched("all")]),
                ),
            },
            "delete": {
                "delete: ours": ("plain", lambda uri: delete_from(uri, WHERE)),
                "delete: deltalake": ("plain", lambda uri: deltalake.DeltaTable(uri).delete(WHERE)),
                "delete: ours, with vectors": ("vectors", lambda uri: delete_from(uri, WHERE)),
            },
            "overwrite": {
                "overwrite: ours": ("plain", lambda uri: write_delta(uri, rows, "overwrite")),
                "overwrite: deltalake": ("plain", lambda uri: deltalake.write_deltalake(uri, rows, mode="overwrite")),
            },
            "read": {
                "read: ours": ("plain", lambda uri: read_delta(uri, filter="l_orderkey < 1000")),
                "read: deltalake": (
                    "plain",
                    lambda uri: deltalake.DeltaTable(uri).to_pyarrow_dataset().to_table(filter=few),
                ),
            },
        }
        spark = None
        if options.delta_spark:
            pq.write_table(source, folder / "source.parquet")
            spark = DeltaSpark(options.delta_spark, folder)
            given = {"on": on, "where": WHERE, "filter": "l_orderkey < 1000"}
            for name, contestants in operations.items():
                for kind in ("plain", "vectors") if name in ("merge", "delete") else ("plain",):
                    label = f"{name}: Delta Spark" + (", with vectors" if kind == "vectors" else "")
                    contestants[label] = kind, lambda uri, name=name: spark(name, uri, **given)
        seconds: dict[str, float] = {}
        for operation, contestants in operations.items():
            if options.only in (None, operation):
                seconds |= _alternate(tables, contestants, 3 if options.quick else 5, quick=options.quick)
        if spark is not None:
            spark.close()
    print_ratios(*ratios(seconds))


def ratios(seconds: dict[str, float]) -> list[str]:
    """Ours against each peer; with deletion vectors, which deltalake does not write, against its plain ones."""
    lines: list[str] = []
    for name, ours in seconds.items():
        operation, _, who = name.partition(": ")
        if who.startswith("ours"):
            vectors = who.removeprefix("ours")
            spelled = f"delta_{operation}{'_vectors' * bool(vectors)}"
            for peer, called in (("deltalake", "deltalake"), (f"Delta Spark{vectors}", "delta_spark")):
                if (theirs := seconds.get(f"{operation}: {peer}")) is not None:
                    lines.append(ratio(f"{spelled}_vs_{called}", ours, theirs))
    return lines


def peer_merge(uri: str, source: pa.Table, on: str) -> object:
    merger = deltalake.DeltaTable(uri).merge(source, on, source_alias="source", target_alias="target")
    return merger.when_matched_update_all().when_not_matched_insert_all().execute()


def _alternate(
    tables: Tables, contestants: dict[str, tuple[str, Callable[[str], object]]], rounds: int, *, quick: bool
) -> dict[str, float]:
    """Median seconds of each, every run on a table that is as it was at first."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for number in numbered(rounds, quick=quick):
        for name, (kind, run) in contestants.items():
            place = tables.fresh(kind)
            start = time.perf_counter()
            run(place)
            if number:
                seconds[name].append(time.perf_counter() - start)
            tables.drop(place)
    for name, taken in seconds.items():
        print(f"{name:<28} {statistics.median(taken):7.3f} s   of {' '.join(f'{s:.3f}' for s in taken)}")
    return {name: statistics.median(taken) for name, taken in seconds.items()}


if __name__ == "__main__":
    main()
