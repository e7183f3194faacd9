"""Statistics in the log: true of the data, and no reader that skips files by them misses a row.

Every row is a part of its own here, so every filter has files to skip. The oracle for a filter is the same program
over a table of the same rows without statistics.
"""

import datetime as dt
import json
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import polars as pl
import pyarrow as pa
import pytest

from dagster_versioned import Project
from dagster_versioned.tables.options import TableOptions
from dagster_versioned.tables.table import VersionedTable
from support.frames import ALL_TYPES, FLAT
from support.readers import READS_WITH_POLARS, by_datafusion, rows
from support.table_histories import TableHistory

pytestmark = pytest.mark.conformance

A_PART_A_ROW = TableOptions(row_group_bytes=1, target_part_bytes=1)
UNBOUNDED = {"binary"}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> tuple[VersionedTable, Path, Path]:
    """Ours, its folder, and the folder of the same rows by another writer without statistics."""
    root = tmp_path_factory.mktemp("skipping")
    table = Project.open("P", str(root)).table("t")
    frame = pa.table(FLAT)
    table.write(frame, options=A_PART_A_ROW)
    assert table.version().facts.part_count == frame.num_rows
    # None in Parquet's footer either: DataFusion finds no NaN in a file whose bounds leave NaN out.
    none = deltalake.WriterProperties(default_column_properties=deltalake.ColumnProperties(statistics_enabled="NONE"))
    unindexed = {"delta.dataSkippingNumIndexedCols": "0"}
    deltalake.write_deltalake(root / "plain", frame, configuration=unindexed, writer_properties=none)
    return table, root / "datom" / "t", root / "plain"


def parts(history: TableHistory) -> Iterator[tuple[dict[str, Any], pa.Table]]:
    """Each part's statistics as the log has them, and its rows as pyarrow reads them."""
    import pyarrow.parquet as pq

    for version in history.expected:
        for add in history.table.files(version).adds:
            assert add.stats is not None
            yield json.loads(add.stats, parse_float=Decimal), pq.read_table(history.folder / add.path)


@pytest.mark.parametrize(
    "name",
    [
        "arrow_all_types",
        "arrow_many_parts",
        "arrow_odd_names",
        pytest.param("spark_all_types", marks=pytest.mark.spark),
        pytest.param("spark_many_parts", marks=pytest.mark.spark),
    ],
)
def test_statistics_are_true_of_the_data(written: Callable[[str], TableHistory], name: str) -> None:
    for stats, table in parts(written(name)):
        assert stats["numRecords"] == table.num_rows
        for column in table.column_names:
            assert_true_of(stats, (column,), table[column].to_pylist(), table.schema.field(column).type)


def assert_true_of(stats: dict[str, Any], path: tuple[str, ...], values: list[Any], data_type: pa.DataType) -> None:
    if pa.types.is_struct(data_type):
        for member in data_type:
            inner = [None if value is None else value[member.name] for value in values]
            assert_true_of(stats, (*path, member.name), inner, member.type)
        return
    low, high, nulls = (at(stats[member], path) for member in ("minValues", "maxValues", "nullCount"))
    if nulls is None:  # an array or map, or beyond the first 32 leaves
        assert (low, high) == (None, None)
        return
    assert nulls == sum(value is None for value in values)
    known = [value for value in values if value is not None and value == value]
    for value in known:
        assert low is None or not parsed(low, value, up=False) > value, (path, low, value)
        assert high is None or not parsed(high, value, up=True) < value, (path, high, value)
    if any(value is not None and value != value for value in values):
        assert high is None  # NaN is above every bound
    elif known and not pa.types.is_binary(data_type) and not pa.types.is_floating(data_type):
        assert low is not None, path
        # Rounded up, these have no bound to write down: 9999-12-31T23:59:59.999999, and strings of U+10FFFF.
        assert high is not None or str(max(known)).startswith(("9999-12-31 23:59:59.999", "\U0010ffff")), path


def at(tree: dict[str, Any], path: tuple[str, ...]) -> Any:
    for name in path:
        tree = tree.get(name, {})
    return None if tree == {} else tree


def parsed(bound: Any, like: Any, *, up: bool) -> Any:
    """A bound as a Python value of the column's type; timestamps in the log have milliseconds."""
    if isinstance(like, dt.datetime):
        return dt.datetime.fromisoformat(bound)
    if isinstance(like, dt.date):
        return dt.date.fromisoformat(bound)
    return type(like)(bound)


def literal(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case int():
            return str(value)
        case Decimal():
            return f"arrow_cast('{value:f}', 'Decimal128(38, {-int(value.as_tuple().exponent)})')"
        case float():
            return f"'{value}'::double"
        case str():
            return "'" + value.replace("'", "''") + "'"
        case bytes():
            return f"X'{value.hex()}'"
        case dt.datetime():
            zone = 'Timestamp(Microsecond, Some("UTC"))' if value.tzinfo else "Timestamp(Microsecond, None)"
            return f"arrow_cast('{value.isoformat()}', '{zone}')"
        case dt.date():
            return f"date '{value.isoformat()}'"
        case _:
            raise AssertionError(value)


@pytest.mark.every(2)
@pytest.mark.parametrize("column", FLAT)
def test_datafusion_skips_no_file_it_needs(tables: tuple[VersionedTable, Path, Path], column: str) -> None:
    _, ours, plain = tables
    for predicate in ["is null", "is not null", *comparisons(column)]:
        where = f'where "{column}" {predicate}'
        assert rows(by_datafusion(ours, where=where)) == rows(by_datafusion(plain, where=where)), where


def comparisons(column: str) -> list[str]:
    values = [value for value in FLAT[column].to_pylist() if value is not None]
    return [f"{operator} {literal(value)}" for value in values for operator in ("=", "<", ">=")]


# Older ones fail at infinities and at zero bytes in texts, or pass over files that they need, whoever wrote them.
@pytest.mark.skipif(not READS_WITH_POLARS, reason="a Polars that reads Delta's statistics: from Polars 1.38 on")
@pytest.mark.parametrize("column", FLAT)
def test_polars_skips_no_file_it_needs(tables: tuple[VersionedTable, Path, Path], column: str) -> None:
    table, ours, _ = tables
    memory = pl.from_arrow(table.read()).lazy()
    value, scan = pl.col(column), pl.scan_delta(str(ours))
    data_type = memory.collect_schema()[column]
    literals = [pl.lit(one, data_type) for one in FLAT[column].to_pylist() if one is not None]
    predicates = [value.is_null(), value.is_not_null()]
    predicates += [compare for one in literals for compare in (value == one, value < one, value >= one)]
    for predicate in predicates:
        found, expected = (frame.filter(predicate).collect().to_arrow() for frame in (scan, memory))
        assert rows(found) == rows(expected), predicate


def test_deltalake_shows_true_statistics_flat(tables: tuple[VersionedTable, Path, Path]) -> None:
    listed = pa.table(deltalake.DeltaTable(str(tables[1])).get_add_actions(flatten=True)).to_pylist()
    frame = pa.table(FLAT).to_pylist()
    assert len(listed) == len(frame)
    for column in set(FLAT) - UNBOUNDED:
        assert sum(row[f"null_count.{column}"] for row in listed) == FLAT[column].null_count
    for column in ("byte", "short", "integer", "long", "boolean", "date", "decimal_small", "decimal_large"):
        seen = {(row[f"min.{column}"], row[f"max.{column}"]) for row in listed if f"min.{column}" in row}
        assert {(row[column], row[column]) for row in frame} == seen


def test_nested_statistics_are_listed(written: Callable[[str], TableHistory]) -> None:
    history = written("arrow_all_types")
    (row,) = pa.table(deltalake.DeltaTable(str(history.folder), version=0).get_add_actions(flatten=True)).to_pylist()
    xs = [value["x"] for value in ALL_TYPES["struct"].to_pylist() if value and value["x"] is not None]
    assert (row["min.struct.x"], row["max.struct.x"]) == (min(xs), max(xs))
