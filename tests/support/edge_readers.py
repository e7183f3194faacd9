"""Every program that reads tables at edges, behind one signature: the ids of the rows of which conditions are true."""

import datetime as dt
import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from functools import cache, reduce
from pathlib import Path
from typing import Any
from urllib.parse import quote

import deltalake
import duckdb
import polars as pl
import pyarrow as pa

from dagster_versioned.delta_tables.read import read_delta
from dagster_versioned.engines.sql import arrow_rows
from support.edge_conditions import (
    Column,
    Compare,
    Condition,
    IsIn,
    Joined,
    Not,
    NullSafe,
    Order,
    columns_of,
    literals_of,
    of_ieee,
    to_arrow,
    to_polars,
    to_sql,
)
from support.edge_tables import ID, EdgeTable, Layout

TESTS = str(Path(__file__).parents[1])
Ids = list[int]
Answers = list[Ids | str]
"""For each condition the ids, or what the program said."""
Reader = Callable[[EdgeTable, Path, Sequence[Condition]], Answers]


def takes(reader: str, layout: Layout) -> bool:
    """Whether a reader reads tables of the layout at all."""
    if reader in ("spark files", "duckdb files"):
        return not (layout.vectors or layout.mapped or layout.partitioned_by)
    if reader == "deltalake":
        return not (layout.vectors or layout.mapped)
    return reader != "polars" or not layout.mapped


ORDERS: dict[str, Order] = {"deltalake": of_ieee}


def excused(reader: str, table: EdgeTable, condition: Condition) -> bool:
    """What a reader of others gets wrong, on the tables of any writer or of its own (docs/reference/delta.md)."""
    layout, columns = table.layout, columns_of(condition)
    partition = next((column for column in table.columns if column.path == (layout.partitioned_by,)), None)

    def hold(among: Iterable[Column], test: Callable[[Any], bool]) -> bool:
        values = (column.value(row) for column in among for row in table.records)
        return any(test(value) for value in values if value is not None)

    floats = [column for column in columns if pa.types.is_floating(column.type)]
    literals = [value for value in literals_of(condition) if isinstance(value, float)]
    match reader:
        case "deltalake":
            # It takes a bound that is missing for one that nothing satisfies, and writes -9.-99 for a decimal.
            missing = hold([column for column in floats if not column.path[1:]], lambda value: not math.isfinite(value))
            missing |= any(map(math.isnan, literals))  # which Arrow compares with bounds as if it were ordered
            decimal = partition is not None and pa.types.is_decimal(partition.type)
            known = missing or (decimal and hold([partition], lambda value: value < 0))
        case "datafusion":
            lists = [part for part in _parts(condition) if isinstance(part, IsIn)]
            null = any(None in part.values for part in lists)
            null |= len(lists) > len({part.column.path for part in lists})  # of which no value is in both
            known = hold(floats, by_bits) or any(map(by_bits, literals)) or _is_turned(condition) or null
        case "polars":  # looks for the vectors of a file by its path as the log has it, encoded
            known = layout.vectors and partition is not None and hold([partition], lambda value: not _is_plain(value))
            if partition is not None and partition in columns:
                known |= hold([partition], lambda value: value == NULL_FOLDER)  # which is null to it
        case "duckdb delta":  # has null for it; and an internal error for IS NOT DISTINCT FROM below OR
            either = [part for part in _parts(condition) if isinstance(part, Joined) and part.operator == "OR"]
            null_safe = any(isinstance(part, NullSafe) for joined in either for part in _parts(joined))
            known = null_safe or (layout.mapped and partition in columns)
        case "spark files" if layout.writer == "deltalake":
            known = hold(floats, by_bits)
        case "spark files":  # which looks for the bits of a zero in dictionaries, for <=> alone
            known = any(isinstance(part, NullSafe) for part in _parts(condition)) and hold(floats, by_bits)
        case _:
            known = False
    # Spark hands these to its reader of Parquet as days of another calendar.
    known |= reader in OF_SPARK and any(lost in literals_of(condition) for lost in DAYS_OF_NO_HYBRID)
    if known or layout.writer != "deltalake" or reader in OURS:
        return known
    # `deltalake` writes bounds of decimals as doubles, and such as leave NaN out.
    decimals = [column for column in columns if pa.types.is_decimal(column.type)]
    return hold(decimals, lambda value: Decimal(float(value)) != value) or hold(floats, math.isnan)


def _is_plain(value: object) -> bool:
    """Whether a partition's value is in the path of a file as it is."""
    return quote(str(value)) == str(value)


def by_bits(value: float) -> bool:
    """Whether the order of a float's bits is another than Spark's."""
    return math.isnan(value) or not value


def _parts(condition: Condition) -> Iterator[Condition]:
    yield condition
    for part in (condition.of,) if isinstance(condition, Not) else getattr(condition, "parts", ()):
        yield from _parts(part)


def _is_turned(condition: Condition) -> bool:
    """Whether a column is compared with one value more than once, and somewhere is on the right."""
    parts = [part for part in _parts(condition) if isinstance(part, Compare)]
    compared = [(part.column.path, repr(part.other), part.flipped) for part in parts]
    return any(flipped and sum(one[:2] == (path, value) for one in compared) > 1 for path, value, flipped in compared)


NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
"""The folder of the rows whose partition value is null."""

OF_SPARK = ("spark", "spark where", "spark files", "connect")
DAYS_OF_NO_HYBRID = [dt.date(1582, 10, day) for day in range(5, 15)]
OURS = ("arrow", "spark", "spark where", "connect")


def _each(ask: Callable[[Condition], pa.Table], conditions: Sequence[Condition]) -> Answers:
    answers: Answers = []
    for condition in conditions:
        try:
            answers.append(sorted(ask(condition)[ID].to_pylist()))
        except Exception as error:  # noqa: BLE001 - of every program; a panic of Polars is none
            answers.append(f"{type(error).__name__}: {error}"[:300])
    return answers


def by_arrow(table: EdgeTable, folder: Path, conditions: Sequence[Condition]) -> Answers:
    return _each(lambda one: read_delta(str(folder), columns=[ID], filter=to_sql(one, "spark")), conditions)


def by_deltalake(table: EdgeTable, folder: Path, conditions: Sequence[Condition]) -> Answers:
    data = cache(lambda: deltalake.DeltaTable(str(folder)).to_pyarrow_dataset())
    return _each(lambda one: data().to_table(columns=[ID], filter=to_arrow(one)), conditions)


def by_datafusion(table: EdgeTable, folder: Path, conditions: Sequence[Condition]) -> Answers:
    query = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(str(folder)))
    sql = f"SELECT {ID} FROM t WHERE "
    return _each(lambda one: pa.table(query.execute(sql + to_sql(one, "datafusion")).read_all()), conditions)


def by_polars(table: EdgeTable, folder: Path, conditions: Sequence[Condition]) -> Answers:
    def ask(condition: Condition) -> pa.Table:
        return pl.scan_delta(str(folder)).filter(to_polars(condition)).select(ID).collect().to_arrow()

    return _each(ask, conditions)


def by_duckdb_alone(table: EdgeTable, folder: Path, conditions: Sequence[Condition]) -> Answers:
    """DuckDB over the files that the log names; of tables of which these are all."""
    files = [str(folder / path) for path in deltalake.DeltaTable(str(folder)).get_add_actions()["path"].to_pylist()]
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    source = f"SELECT {ID} FROM read_parquet({files}) WHERE "
    return _each(lambda one: arrow_rows(connection.execute(source + to_sql(one, "duckdb"))), conditions)


class SparkReader:
    """Spark, classic or Connect: all conditions in one job, each a read of its own."""

    def __init__(self, session: Any, reading: Callable[[Any, Path], Callable[[str], Any]]) -> None:
        self.session = session
        self.reading = reading

    def __call__(self, table: EdgeTable, folder: Path, conditions: Sequence[Condition]) -> Answers:
        return asked_of_spark(self.reading(self.session, folder), [to_sql(one, "spark") for one in conditions])


def asked_of_spark(read: Callable[[str], Any], conditions: Sequence[str]) -> Answers:
    from pyspark.sql import functions as sf

    try:
        frames = [read(sql).select(sf.lit(i).alias("i"), sf.col(ID)) for i, sql in enumerate(conditions)]
        found = reduce(lambda one, other: one.union(other), frames).toArrow().to_pylist()
    except Exception as error:  # noqa: BLE001 - whatever Spark says is its answer
        if len(conditions) == 1:
            return [f"{type(error).__name__}: {error}"[:300]]
        half = len(conditions) // 2
        return asked_of_spark(read, conditions[:half]) + asked_of_spark(read, conditions[half:])
    answers: list[Ids] = [[] for _ in conditions]
    for row in found:
        answers[row["i"]].append(row[ID])
    return [sorted(ids) for ids in answers]


def filtered(session: Any, folder: Path) -> Callable[[str], Any]:
    """By our own filters, which pass over files."""
    from dagster_versioned.delta_tables.spark import read_delta

    return lambda sql: read_delta(session, str(folder), filter=sql)


def where(session: Any, folder: Path) -> Callable[[str], Any]:
    """By Spark's own, of the frame that we return."""
    from dagster_versioned.delta_tables.spark import read_delta

    return read_delta(session, str(folder)).where


def files_where(session: Any, folder: Path) -> Callable[[str], Any]:
    """Spark's own reader over the files that the log names."""
    files = [str(folder / path) for path in deltalake.DeltaTable(str(folder)).get_add_actions()["path"].to_pylist()]
    return session.read.parquet(*files).where


class Elsewhere:
    """A reader in a process of its own: a line with a folder and conditions there, a line with answers back."""

    def __init__(self, command: Sequence[str | Path], dialect: Any) -> None:
        self.dialect = dialect
        self.process = subprocess.Popen(
            [str(part) for part in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
        )

    def __call__(self, table: EdgeTable, folder: Path, conditions: Sequence[Condition]) -> Answers:
        asked = {"folder": str(folder), "conditions": [to_sql(one, self.dialect) for one in conditions]}
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, "the reader ended"
        return json.loads(line)

    def close(self) -> None:
        self.process.communicate()


def by_connect() -> Elsewhere:
    program = "from support.spark_connect_reader import main; main()"
    return Elsewhere([sys.executable, "-c", f"import sys; sys.path.insert(0, {TESTS!r}); {program}"], "spark")


def by_duckdb_delta(python: Path) -> Elsewhere:
    """DuckDB's delta extension; ``python`` has it."""
    program = Path(TESTS) / "conformance" / "duckdb_kernel" / "filter_tables.py"
    return Elsewhere([python, program], "duckdb")
