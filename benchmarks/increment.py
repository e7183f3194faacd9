"""What is stale of a feature, by ours on Arrow and on Spark, and by Metaxy's stores of DuckDB and of Delta.

A feature of 4 fields is computed from another one of 4 fields: once nothing has changed since, once every tenth sample
has, in two of its fields. Everybody finds the samples in tables on disk, hashes by MD5, and hands out the changed ones
with what their upstream says of them. ``--metaxy`` names the Python of an environment that has it
(`peers/metaxy_store.py`); each of its stores has a process of its own for each step, so that none keeps memory from the
others. Of ours on Spark, it is said how much was read to find the samples, of how much there is: ``--payload`` makes
samples larger, and leaves the versions as they are. With ``--folder``, what was written is kept, and a run that was
interrupted goes on with it.
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from frame_of_seven import spark_session
from rounds import descendants, numbered, peak_memory, ratio

from dagster_versioned import Project, TableOptions
from dagster_versioned.engines.samples import PROVENANCE_BY_FIELD, SampleHash
from dagster_versioned.features.definitions import Feature
from dagster_versioned.features.feature_table import FeatureTable
from dagster_versioned.features.graph import FeatureGraph
from dagster_versioned.features.upstream_files import UpstreamFiles

FIELDS = ("audio", "frames", "text", "thumbnail")
CHANGED_FIELDS = FIELDS[:2]
GRAPH = FeatureGraph([Feature("video", ["video_id"], FIELDS), Feature("crop", ["video_id"], FIELDS, ["video"])])
STATES = {"nothing changed": 0, "10 % changed": 10}


def write_samples(rows: int, folder: Path, digits: int, payload: int) -> None:
    """The samples as Parquet: all of them, and every tenth one as it is later."""
    pieces = (f"sha256('{i}' || range)" for i in range(-(-payload // 64)))
    data = f"left({' || '.join(pieces)}, {payload}) AS payload, " if payload else ""
    for name, salt, step in (("before", "", 1), ("after", "x", 10)):
        versions = ", ".join(
            f"left(md5('{field}{salt if field in CHANGED_FIELDS else ''}' || (range * {step})), {digits}) AS {field}"
            for field in FIELDS
        )
        duckdb.sql(
            f"COPY (SELECT range * {step} AS video_id, 'videos/' || (range * {step}) || '.mp4' AS path,"
            f" (range * {step}) % 600 * 0.5 AS duration, {data}{versions} FROM range({rows} // {step}))"
            f" TO '{folder / name}.parquet' (FORMAT parquet, COMPRESSION zstd)"
        )


class Ours:
    """A project of versioned tables, and an engine to compare them with."""

    options = TableOptions()

    def __init__(self, folder: Path, samples: Path, how: SampleHash, as_type: type, session=None) -> None:
        self._project = Project.open("BENCHMARK", str(folder))
        self._samples, self._type, self._session = samples, as_type, session
        self._video = FeatureTable(GRAPH, "video", self._project.table("video"), how)
        self._crop = FeatureTable(GRAPH, "crop", self._project.table("crop"), how)

    def write(self) -> None:
        """The upstream, and the feature computed from it."""
        with self._video.resolve_samples(self._frame("before")) as found:
            self._video.table.write(found.finish(), options=self.options)
        with self._resolve() as found:
            rows = _ids(found.increment.changed)
            # As a run of Dagster records what a step has read.
            self._crop.table.write(found.finish(rows), options=self.options, parents=self._video.table.upstream())

    def change(self) -> None:
        """Every tenth sample of the upstream is another."""
        with self._video.resolve_samples(self._frame("before", "after")) as found:
            self._video.table.write(found.finish(), options=self.options)

    def ready(self) -> AbstractContextManager[None]:
        return nullcontext()

    def resolve(self) -> dict[str, int]:
        """The increment, with all rows of what is new or stale."""
        with self._resolve() as found:
            increment = found.increment
            kinds = {kind: _materialized(getattr(increment, kind)) for kind in ("new", "stale", "orphaned")}
            assert kinds == {kind: getattr(increment.counts, kind) for kind in kinds}, (kinds, increment.counts)
            return kinds

    def read_to_resolve(self) -> str:
        """How many bytes Spark reads to find the increment, of how many there are."""
        before = self._bytes_read()
        # Vectored reads are in no count of Spark's.
        self._session.conf.set("parquet.hadoop.vectored.io.enabled", "false")
        with self._resolve():
            read = self._bytes_read() - before
        self._session.conf.unset("parquet.hadoop.vectored.io.enabled")
        files = [file for name in ("video", "crop") for file in self._project.table(name).files().scan.files]
        return f"{read:,} of {sum(file.size for file in files):,} bytes"

    def _bytes_read(self) -> int:
        executors = self._session.sparkContext._jsc.sc().statusStore().executorList(True)
        return sum(executors.apply(i).totalInputBytes() for i in range(executors.size()))

    def _resolve(self):
        table = self._video.table
        return self._crop.resolve({"video": UpstreamFiles(table, table.files())}, as_type=self._type)

    def _frame(self, *names: str):
        paths = [str(self._samples / f"{name}.parquet") for name in names]
        if self._session is not None:
            from pyspark.sql import functions as sf

            frames = [self._session.read.parquet(path) for path in paths]
            frame = frames[0]
            if len(frames) > 1:
                frame = frame.join(frames[1].select("video_id"), "video_id", "left_anti").unionByName(frames[1])
            return frame.select(*_data(frame.columns), sf.struct(*FIELDS).alias(PROVENANCE_BY_FIELD))
        tables = [pq.read_table(path) for path in paths]
        table = tables[0]
        if len(tables) > 1:
            keep = pa.array([i % 10 != 0 for i in range(table.num_rows)])
            table = pa.concat_tables([table.filter(keep), tables[1]])
        by_field = pa.StructArray.from_arrays([table[field].combine_chunks() for field in FIELDS], FIELDS)
        return table.select(_data(table.column_names)).append_column(PROVENANCE_BY_FIELD, by_field)


def _data(names: Sequence[str]) -> list[str]:
    return [name for name in names if name not in FIELDS]


def _ids(frame):
    return frame.select(["video_id"]) if isinstance(frame, pa.Table) else frame.select("video_id")


def _materialized(frame) -> int:
    """How many rows there are, once all of their columns were computed."""
    if isinstance(frame, pa.Table):
        return frame.num_rows
    from pyspark.sql import Observation
    from pyspark.sql import functions as sf

    counted = Observation()
    frame.observe(counted, sf.count(sf.lit(1)).alias("rows")).write.format("noop").mode("overwrite").save()
    return counted.get["rows"]


class Metaxy:
    """A store of Metaxy's."""

    def __init__(self, python: str, kind: str, folder: Path, samples: Path) -> None:
        self._command = [python, str(Path(__file__).parent / "peers" / "metaxy_store.py")]
        self._place, self._samples = {"kind": kind, "folder": str(folder)}, samples
        folder.mkdir(parents=True, exist_ok=True)

    def write(self) -> None:
        with self.ready():
            self._ask("write", source=f"{self._samples / 'before'}.parquet", where="true")
            self._ask("follow")

    def change(self) -> None:
        with self.ready():
            self._ask("write", source=f"{self._samples / 'after'}.parquet", where="true")

    def resolve(self) -> dict[str, int]:
        found = self._ask("resolve")
        return {kind: found[kind] for kind in ("new", "stale", "orphaned")}

    @contextmanager
    def ready(self) -> Iterator[None]:
        """Within it there is a process that has imported all that it needs."""
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            self._answer()
            yield
        finally:
            self._process.communicate()

    def _ask(self, operation: str, **given: str) -> dict[str, int]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"operation": operation, **self._place, **given}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, int]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(
                f"Metaxy on {self._place['kind']} ended ({self._process.wait()}; -9 is what a machine does that has no "
                "memory left)."
            )
        return json.loads(line)


def once(folder: Path, who: str, what: str, do: Callable[[], None]) -> None:
    """Do something and say how long it took, unless an earlier run in the folder has done it."""
    done = folder / f"{who} {what}.done"
    if not done.exists():
        start = time.perf_counter()
        do()
        print(f"{who:<22} {what} in {time.perf_counter() - start:.1f} s", flush=True)
        done.touch()


def compare(contestants: dict, rounds: int, folder: Path, *, quick: bool) -> dict[str, dict[str, float]]:
    """Median seconds of each by state."""
    for name, one in contestants.items():
        once(folder, name, "wrote both features", one.write)
    medians: dict[str, dict[str, float]] = {}
    for state, percent in STATES.items():
        if not percent and any(folder.glob("* changed *.done")):
            continue
        if percent:
            for name, one in contestants.items():
                once(folder, name, f"changed {percent} %", one.change)
        print(f"{state}:", flush=True)
        medians[state] = resolved(contestants, rounds, quick=quick)
    return medians


def resolved(contestants: dict, rounds: int, *, quick: bool) -> dict[str, float]:
    """Median seconds of each; all must find the same samples."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    found: dict[str, dict[str, int]] = {}
    for number in numbered(rounds, quick=quick):
        for name, one in contestants.items():
            with one.ready():
                start = time.perf_counter()
                found[name] = one.resolve()
                if number or not rounds:
                    seconds[name].append(time.perf_counter() - start)
    assert len({tuple(each.items()) for each in found.values()}) == 1, found
    print(f"  {next(iter(found.values()))}")
    medians = {name: statistics.median(taken) for name, taken in seconds.items()}
    for name, taken in seconds.items():
        print(f"  {name:<20} {medians[name]:7.3f} s   of {' '.join(f'{s:.3f}' for s in taken)}", flush=True)
    return medians


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="100,000 samples on Arrow alone: ends in under 50 s")
    parser.add_argument("--samples", type=int, default=1_000_000, metavar="N")
    parser.add_argument("--rounds", type=int, default=5, help="beside the first; 0 counts that, cold as it is")
    parser.add_argument("--engines", default="arrow,spark", help="ours, with commas between")
    parser.add_argument("--metaxy", help="the Python of an environment that has Metaxy; without it, ours alone")
    parser.add_argument("--digits", type=int, default=32, help="of each version, of 32")
    parser.add_argument("--payload", type=int, default=0, metavar="BYTES", help="of data that each sample has beside")
    parser.add_argument("--deletion-vectors", action="store_true", help="in ours")
    parser.add_argument("--folder", type=Path, help="where what is written stays, for a run that goes on with it")
    given = parser.parse_args()
    if given.metaxy and given.digits != 32:
        parser.error("Metaxy's versions have 32 digits here.")
    if given.deletion_vectors:
        Ours.options = TableOptions(properties={"delta.enableDeletionVectors": "true"})
    how = SampleHash("md5", given.digits)
    samples, engines = (100_000, ["arrow"]) if given.quick else (given.samples, given.engines.split(","))
    with tempfile.TemporaryDirectory() if given.folder is None else nullcontext(given.folder) as name:
        folder = Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        once(folder, "DuckDB", "wrote samples", lambda: write_samples(samples, folder, given.digits, given.payload))
        contestants: dict = {}
        if "arrow" in engines:
            contestants["ours, Arrow"] = Ours(folder / "arrow", folder, how, pa.Table)
        if given.metaxy:
            for kind in ("duckdb", "delta"):
                contestants[f"Metaxy, {kind}"] = Metaxy(given.metaxy, kind, folder / f"metaxy-{kind}", folder)
        report(contestants, engines, folder, how, given.rounds, samples, quick=given.quick)


def report(
    contestants: dict, engines: list[str], folder: Path, how: SampleHash, rounds: int, samples: int, *, quick: bool
) -> None:
    with peak_memory(lambda: descendants(os.getpid())) as peak:
        if "spark" in engines:
            from pyspark.sql import DataFrame

            with spark_session() as session:
                ours = Ours(folder / "spark", folder, how, DataFrame, session)
                medians = compare({"ours, Spark": ours, **contestants}, rounds, folder, quick=quick)
                print(f"to find the samples, Spark read {ours.read_to_resolve()}")
        else:
            medians = compare(contestants, rounds, folder, quick=quick)
        print(f"peak memory of all processes together: {peak()}")
    for state, seconds in medians.items():
        mine = {name: value for name, value in seconds.items() if name.startswith("ours")}
        peers = {name: value for name, value in seconds.items() if name not in mine}
        for one, value in mine.items():
            for peer, other in peers.items():
                what = f"increment_{one.split(', ')[1]}_{samples}_{state.split(' ')[0]}_vs_{peer.replace(', ', '_')}"
                print(ratio(what.lower(), value, other))


if __name__ == "__main__":
    main()
