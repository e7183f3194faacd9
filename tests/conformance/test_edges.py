"""Rows at the edges of their types are found by every reader under every condition: memory is the answer.

What other programs get wrong in anybody's tables is in `edge_readers.excused`, and in docs/reference/delta.md.
"""

import datetime as dt
import math
from collections.abc import Iterator
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from support.edge_conditions import Column, Compare, Condition, IsIn, IsNull, Not, NullSafe
from support.edge_readers import by_connect
from support.edge_tables import ID, EdgeTable, Layout, columns_of, write
from support.edge_walk import IN_PROCESS, Walk, in_spark

pytestmark = pytest.mark.conformance

OURS = ["versioned", "delta_tables"]
OF_ONE = pa.struct([("x", pa.float32()), ("inner", pa.struct([("y", pa.string())]))])

EDGES: dict[str, tuple[pa.DataType, list[list[Any]]]] = {
    "NaN": (pa.float64(), [[1.5, math.nan, None], [math.nan], [-math.inf, 3.0]]),
    "NaN in a struct": (OF_ONE, [[{"x": math.nan, "inner": None}, {"x": 1.5, "inner": {"y": "a"}}], [None]]),
    "zeros": (pa.float64(), [[-0.0], [0.0], [-0.0, 0.0, 5e-324]]),
    "single zeros": (pa.float32(), [[-0.0, -0.0], [1.0, -1.0]]),
    "infinity": (pa.float32(), [[math.inf, 1.5], [-math.inf], [3.4028234663852886e38]]),
    "structs of null": (OF_ONE, [[None, None], [{"x": None, "inner": {"y": None}}], [{"x": 2.0, "inner": None}]]),
    "the last moment": (pa.timestamp("us"), [[dt.datetime.max, dt.datetime(2024, 1, 1)], [dt.datetime(1, 1, 1)]]),
    "the last moment in UTC": (
        pa.timestamp("us", "UTC"),
        [[dt.datetime.max.replace(tzinfo=dt.UTC)], [dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, dt.UTC), None]],
    ),
    "wide decimals": (pa.decimal128(38, 0), [[Decimal(10**38 - 1), Decimal(2**53 + 1)], [Decimal(1 - 10**38)]]),
    "small decimals": (pa.decimal128(18, 4), [[Decimal("0.0001")] * 2, [Decimal("-99999999999999.9999"), None]]),
    "texts": (pa.string(), [["u" * 31 + "\U0010ffff" * 3, "u" * 32 + "\x00"], ["\ue000", "\U00010000"], ["", "\x00"]]),
    "whole numbers": (pa.int64(), [[2**63 - 1, 2**53 + 1], [-(2**63)], [2**53, None]]),
}
"""For each a type, and values in files: what was found once is among them."""


def of_edge(name: str, writer: str) -> EdgeTable:
    kind, files = EDGES[name]
    ids = [number * 10 + at for number, values in enumerate(files) for at in range(len(values))]
    rows = pa.table({ID: pa.array(ids, pa.int64()), "v": pa.array([one for values in files for one in values], kind)})
    return EdgeTable(0, rows, Layout(writer, len(files), group_rows=2), columns_of(rows.schema))


def conditions(table: EdgeTable) -> Iterator[Condition]:
    for column in table.columns:
        yield IsNull(column)
        yield IsNull(column, negated=True)
        if not pa.types.is_nested(column.type):
            yield from _of_values(column, list(dict.fromkeys(map(column.value, table.records))))


def _of_values(column: Column, values: list[Any]) -> Iterator[Condition]:
    """Each value by equality and, in turns, by one way more."""
    there = [value for value in values if value is not None]
    for at, value in enumerate(there):
        yield Compare(column, "=", value)
        ways = (Compare(column, "<", value), Compare(column, ">=", value), Not(Compare(column, "<=", value)))
        yield (*ways, NullSafe(column, value))[at % 4]
    if there:
        yield IsIn(column, tuple(there))


@pytest.mark.every(2)
@pytest.mark.parametrize("writer", OURS)
@pytest.mark.parametrize("name", EDGES)
def test_every_reader_finds_what_is_at_an_edge(tmp_path: Path, name: str, writer: str) -> None:
    table = of_edge(name, writer)
    walk = Walk(IN_PROCESS, [writer])
    assert list(walk.differences(table, write(table, tmp_path), list(conditions(table)))) == []
    assert walk.asked.keys() == IN_PROCESS.keys()


@pytest.mark.spark
@pytest.mark.every(2)
@pytest.mark.parametrize("name", ["NaN in a struct", "the last moment in UTC", "zeros", "NaN"])
def test_spark_finds_what_is_at_an_edge(tmp_path: Path, name: str, spark: Any) -> None:
    for writer in [*OURS, "deltalake"]:
        table, place = of_edge(name, writer), tmp_path / writer
        place.mkdir()
        walk = Walk({name: read for name, read in in_spark(spark).items() if name != "spark files"}, [writer], spark)
        assert list(walk.differences(table, write(table, place, spark), list(conditions(table)))) == []


@pytest.mark.parametrize("seed", [0, 1, 600_009])
def test_readers_in_this_process_find_random_rows(seed: int) -> None:
    walk = Walk(IN_PROCESS, [*OURS, "deltalake"], conditions=12)
    assert list(walk.of(seed)) == []


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(3600)
def test_every_reader_finds_random_rows(spark: Any) -> None:
    """`support/edge_walk.py` asks as many as one likes, and tells what it finds as it goes."""
    with closing(by_connect()) as connect:  # whose port the next one needs
        walk = Walk(IN_PROCESS | in_spark(spark) | {"connect": connect}, [*OURS, "deltalake", "spark"], spark, 20)
        assert [difference for seed in range(100, 115) for difference in walk.of(seed)] == []
    assert walk.asked.keys() == walk.readers.keys()
