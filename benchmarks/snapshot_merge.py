"""A dump into a history of events, against a plain Spark full outer join that writes the same rows as Parquet.

One of a hundred rows differs from dump to dump: most are changed, some gone, some new. The join compares a dump with
the one before, as someone would who keeps dumps; the merge compares it with what the events so far come to, finds keys
that are null or repeated, orders, numbers and hashes the events, and commits them with their blocks. The join's tasks
write a file each, so that it has all cores to the end; the events are one file.
"""

import argparse
import shutil
import tempfile
from itertools import count
from pathlib import Path

from frame_of_seven import spark_session, write_rows
from rounds import alternate, print_ratios, ratio

from dagster_versioned import EventHistory, EventTable, Project, SnapshotMerge


def write_dumps(session, rows: int, folder: Path) -> list[Path]:
    """Two dumps that follow each other in turn."""
    from pyspark.sql import functions as sf

    dumps = [folder / "first", folder / "second"]
    write_rows(session, rows, folder / "all")
    frame = session.read.parquet(str(folder / "all"))
    kind = sf.pmod(sf.xxhash64(sf.lit(7), "id"), sf.lit(2000))  # of 2000 rows, 16 change, 2 go and 2 come
    frame.where(kind >= 2).write.parquet(str(dumps[0]))
    changed = frame.withColumn("amount", sf.when(kind < 18, sf.col("amount") + 1).otherwise(sf.col("amount")))
    changed.where((kind < 2) | (kind >= 4)).write.parquet(str(dumps[1]))
    return dumps


def plain_join(session, before: Path, after: Path, target: Path) -> None:
    """The rows that differ, as they were and as they are."""
    from pyspark.sql import functions as sf

    shutil.rmtree(target, ignore_errors=True)
    old, new = (session.read.parquet(str(dump)) for dump in (before, after))
    names = [name for name in old.columns if name != "id"]
    joined = old.alias("o").join(new.alias("n"), sf.col("o.id") == sf.col("n.id"), "full_outer")
    same = [sf.col(f"o.{name}").eqNullSafe(sf.col(f"n.{name}")) for name in names]
    equal = same[0]
    for one in same[1:]:
        equal = equal & one
    sides = {side: sf.struct(*(sf.col(f"{side}.{name}") for name in old.columns)) for side in ("o", "n")}
    was = sf.when(sf.col("n.id").isNull(), 1).otherwise(2)
    becomes = sf.when(sf.col("o.id").isNull(), 0).otherwise(3)
    events = sf.filter(
        sf.array(
            sf.struct(was.alias("op"), sides["o"].alias("row")), sf.struct(becomes.alias("op"), sides["n"].alias("row"))
        ),
        lambda event: event["row"]["id"].isNotNull(),
    )
    differing = joined.where(sf.col("o.id").isNull() | sf.col("n.id").isNull() | ~equal)
    rows = differing.select(sf.explode(events).alias("event")).select("event.op", "event.row.*")
    rows.write.parquet(str(target))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    rows = arguments.rows or (500_000 if arguments.quick else 5_000_000)
    with tempfile.TemporaryDirectory() as name, spark_session() as session:
        folder = Path(name)
        dumps = write_dumps(session, rows, folder)
        project = Project.open("BENCHMARK", str(folder / "project"))
        history = EventTable(project.table("dumps"), EventHistory(merge=SnapshotMerge(primary_key=("id",))))
        history.write(session.read.parquet(str(dumps[0])))
        turns = count(1), count(1)

        def ours() -> None:
            result = history.write(session.read.parquet(str(dumps[next(turns[0]) % 2])))
            assert result.change == "full"

        def peer() -> None:
            turn = next(turns[1])
            plain_join(session, dumps[(turn - 1) % 2], dumps[turn % 2], folder / "plain")

        seconds = alternate(
            {"snapshot merge: ours": ours, "spark: full outer join": peer}, arguments.rounds, quick=arguments.quick
        )
        written = session.read.parquet(str(folder / "plain")).count()
        added = history.table.version().facts.added
        assert added is not None
        assert written == added.inserted + 2 * added.updated + added.removed
        print(f"{rows} rows, {written} events a dump")
    print_ratios(
        ratio("snapshot_merge_vs_join", seconds["snapshot merge: ours"], seconds["spark: full outer join"]),
    )


if __name__ == "__main__":
    main()
