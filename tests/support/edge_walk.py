"""Random tables at the edges of types, asked random conditions by every reader: memory is the answer.

``python tests/support/edge_walk.py --cases 100000`` (a case is one table, one condition, one reader) prints what
differs, a line each, and now and then how far it is.
"""

import argparse
import json
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import deltalake

from support.edge_conditions import Condition, of_spark, to_sql
from support.edge_readers import (
    ORDERS,
    Reader,
    SparkReader,
    by_arrow,
    by_connect,
    by_datafusion,
    by_deltalake,
    by_duckdb_alone,
    by_duckdb_delta,
    by_polars,
    excused,
    files_where,
    filtered,
    takes,
    where,
)
from support.edge_tables import EdgeTable, Maker, write
from support.readers import PRUNES_WITH_POLARS
from support.spark import running_spark

IN_PROCESS: dict[str, Reader] = {
    "arrow": by_arrow,
    "duckdb files": by_duckdb_alone,
    **({"polars": by_polars} if PRUNES_WITH_POLARS else {}),
    "deltalake": by_deltalake,
    "datafusion": by_datafusion,
}


def in_spark(session: Any) -> dict[str, Reader]:
    return {
        "spark": SparkReader(session, filtered),
        "spark where": SparkReader(session, where),
        "spark files": SparkReader(session, files_where),
    }


@dataclass(frozen=True)
class Difference:
    """What a reader finds where memory finds something else."""

    seed: int
    reader: str
    condition: str
    found: object
    truth: list[int]
    layout: str


@dataclass
class Walk:
    """Tables from seeds, asked by readers, and how often."""

    readers: Mapping[str, Reader]
    writers: Sequence[str]
    spark: Any = None
    conditions: int = 60
    asked: Counter[str] = field(default_factory=Counter)
    differing: Counter[str] = field(default_factory=Counter)
    excused: Counter[str] = field(default_factory=Counter)
    unwritten: int = 0

    def of(self, seed: int) -> Iterator[Difference]:
        """What differs in the table of a seed, but for what `excused` knows."""
        maker = Maker(seed, self.writers)
        table = maker.table()
        conditions = maker.conditions(table, self.conditions)
        with tempfile.TemporaryDirectory() as place:
            try:
                folder = write(table, Path(place), self.spark)
            except deltalake.exceptions.DeltaError:  # it has no folder for the value of a partition that is too long
                assert table.layout.writer == "deltalake"
                self.unwritten += 1
                return
            yield from self.differences(table, folder, conditions)

    def differences(self, table: EdgeTable, folder: Path, conditions: Sequence[Condition]) -> Iterator[Difference]:
        for name, read in self.readers.items():
            if not takes(name, table.layout):
                continue
            for condition, found in zip(conditions, read(table, folder, conditions), strict=True):
                self.asked[name] += 1
                truth = table.truth(condition, ORDERS.get(name, of_spark))
                if found == truth:
                    continue
                if excused(name, table, condition):
                    self.excused[name] += 1
                    continue
                self.differing[name] += 1
                sql = to_sql(condition, "spark")
                yield Difference(table.seed, name, sql, found, truth, str(table.layout))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="the first of the tables")
    parser.add_argument("--duckdb", type=Path, help="a Python that has DuckDB and its delta extension")
    parser.add_argument("--spark", action="store_true", help="Spark, classic and Connect, as writer and reader too")
    given = parser.parse_args()
    writers = ["versioned", "delta_tables", "deltalake"]
    readers = dict(IN_PROCESS)
    if given.duckdb:
        readers["duckdb delta"] = by_duckdb_delta(given.duckdb)
    if not given.spark:
        _walk(Walk(readers, writers), given.seed, given.cases)
        return
    with running_spark("local[1]") as spark:
        readers |= in_spark(spark) | {"connect": by_connect()}
        _walk(Walk(readers, [*writers, "spark"], spark), given.seed, given.cases)


def _walk(walk: Walk, seed: int, cases: int) -> None:
    while walk.asked.total() < cases:
        for difference in walk.of(seed):
            print(json.dumps(vars(difference)), flush=True)
        seed += 1
        if not seed % 10:
            counts = {
                "asked": walk.asked,
                "differing": walk.differing,
                "excused": walk.excused,
                "unwritten": walk.unwritten,
            }
            print(json.dumps({"next": seed, "cases": walk.asked.total()} | counts), flush=True)


if __name__ == "__main__":
    main()
