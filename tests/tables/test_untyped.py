"""Columns without a type, all null or of a pandas frame without rows, have that of the table, once there is one."""

from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from dagster_versioned.errors import EmptyTable, UnsupportedType
from dagster_versioned.projects.project import Project
from dagster_versioned.tables.options import TableOptions
from dagster_versioned.tables.table import VersionedTable

SCHEMA = pa.schema(
    {
        "n": pa.int64(),
        "s": pa.string(),
        "l": pa.list_(pa.string()),
        "r": pa.struct([("a", pa.int64()), ("b", pa.string())]),
        "m": pa.map_(pa.string(), pa.float64()),
        "t": pa.timestamp("us"),
    }
)
FIRST = pa.table(
    {"n": [1], "s": ["x"], "l": [["y"]], "r": [{"a": 1, "b": "z"}], "m": [[("k", 1.0)]], "t": [0]}, schema=SCHEMA
)
NULLS = {name: [None] for name in SCHEMA.names[1:]}
EMPTY = TableOptions(allow_empty=True)
FRAMES = {
    "pyarrow": lambda: pa.table({"n": [2], **NULLS}),
    "reader": lambda: pa.table({"n": [2], **NULLS}).to_reader(),
    "pandas": lambda: pd.DataFrame({"n": [2], **NULLS}),
    "polars": lambda: pl.DataFrame({"n": [2], **NULLS}),
    "lazy polars": lambda: pl.LazyFrame({"n": [2], **NULLS}),
}


@pytest.fixture
def known(table: VersionedTable) -> VersionedTable:
    table.write(FIRST)
    return table


@pytest.mark.parametrize("kind", FRAMES)
@pytest.mark.parametrize("mode", ["replace", "append", "merge"])
def test_a_column_of_nulls_has_the_type_that_the_table_knows(known: VersionedTable, kind: str, mode: str) -> None:
    options = TableOptions(mode=mode, merge_key=("n",) if mode == "merge" else ())  # pyright: ignore[reportArgumentType]
    known.write(FRAMES[kind](), options=options)
    read = known.read()
    assert read.schema.equals(SCHEMA)
    assert read.slice(read.num_rows - 1).to_pylist() == [{"n": 2, **dict.fromkeys(SCHEMA.names[1:])}]
    known.verify().require_ok()


def test_so_has_what_is_null_inside_of_a_column(known: VersionedTable) -> None:
    row: dict[str, list[Any]] = {"n": [2], "s": ["x"], "l": [[]], "r": [{"a": 3, "b": None}], "m": [None], "t": [None]}
    known.write(pd.DataFrame(row))
    assert known.read().schema.equals(SCHEMA)
    assert known.read().to_pylist()[0]["r"] == {"a": 3, "b": None}


@pytest.mark.parametrize("kind", FRAMES)
def test_of_a_table_that_knows_no_type_it_is_refused_by_name(table: VersionedTable, kind: str) -> None:
    with pytest.raises(UnsupportedType, match=r"Column 's' has the type null.*cast it"):
        table.write(FRAMES[kind]())
    assert not table.exists()


def test_a_column_that_the_table_does_not_have_is_refused_too(known: VersionedTable) -> None:
    with pytest.raises(UnsupportedType, match="Column 'new' has the type null"):
        known.write(pd.DataFrame({"n": [2], "new": [None]}))
    assert len(known.history()) == 1


@pytest.mark.parametrize(
    "frame",
    [pd.DataFrame(columns=SCHEMA.names), pd.DataFrame({name: [] for name in SCHEMA.names}), pd.DataFrame()],
    ids=["of objects", "as pandas guesses", "without columns"],
)
def test_a_pandas_frame_without_rows_has_the_types_of_the_table(known: VersionedTable, frame: pd.DataFrame) -> None:
    known.write(frame, options=EMPTY)
    assert known.read().schema.equals(SCHEMA)
    assert known.read().num_rows == 0


def test_types_that_a_frame_without_rows_says_itself_are_its_own(known: VersionedTable) -> None:
    known.write(pa.table({"n": pa.array([], pa.string()), "s": pa.nulls(0)}), options=EMPTY)
    assert known.read().schema == pa.schema({"n": pa.string(), "s": pa.string()})


@pytest.mark.parametrize("frame", [pd.DataFrame(columns=["n"]), pd.DataFrame()])
def test_without_a_table_a_pandas_frame_without_rows_is_refused(table: VersionedTable, frame: pd.DataFrame) -> None:
    with pytest.raises((UnsupportedType, EmptyTable)):
        table.write(frame, options=EMPTY)
    assert not table.exists()


def test_no_rows_are_refused_with_where_to_say_that_they_are_meant(known: VersionedTable) -> None:
    with pytest.raises(EmptyTable, match=r"options=TableOptions\(allow_empty=True\).*\.as_metadata\(\)"):
        known.write(pd.DataFrame(columns=SCHEMA.names))
    assert known.read().num_rows == 1


def test_a_partition_of_nulls_has_the_type_that_others_have(project: Project) -> None:
    table = project.table("daily")
    table.write(pa.table({"s": ["x"]}), partition="a")
    table.write(pd.DataFrame({"s": [None, None]}), partition="b")
    assert table.read().schema == pa.schema({"s": pa.string()})
    assert table.read(partition="b")["s"].null_count == 2
