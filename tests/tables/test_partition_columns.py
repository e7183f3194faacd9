"""Versioned tables with Delta partition columns: folders that other programs understand, versions like any other."""

from datetime import date
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from dagster_versioned.engines.arrow.engine import ArrowEngine
from dagster_versioned.errors import InvalidInput
from dagster_versioned.projects.project import Project
from dagster_versioned.tables.options import TableOptions
from dagster_versioned.tables.table import VersionedTable
from support.one_table import folder
from support.spark import spark
from support.stores import contents

__all__ = ["spark"]

BY_PLACE = TableOptions(partition_columns=("place", "day"))
ROWS = pa.table(
    {
        "id": [1, 2, 3, 4, 5],
        "place": ["a b", "ü/%=", None, "a b", "x" * 300],
        "day": [date(2013, 1, 1)] * 4 + [None],
        "value": [1.5, None, 2.5, 3.5, 4.5],
    }
)


def keys(table: VersionedTable) -> set[str]:
    return {add.key for add in table.files().adds}


def in_order(rows: pa.Table) -> list[dict[str, Any]]:
    return rows.sort_by("id").to_pylist()


def test_every_reader_gets_the_rows(table: VersionedTable) -> None:
    table.write(ROWS, options=BY_PLACE)
    assert len(keys(table)) == 4
    assert any(key.startswith("place=a b/day=2013-01-01/") for key in keys(table))
    assert in_order(table.read()) == in_order(ROWS)
    assert in_order(DeltaTable(folder(table)).to_pyarrow_table()) == in_order(ROWS)
    assert table.version().facts.digest == ArrowEngine().measure(ROWS, table.files().scan.schema).digest.text
    table.verify().require_ok()


def test_polars_which_goes_by_the_folders_gets_the_rows(table: VersionedTable) -> None:
    table.write(ROWS.slice(0, 4), options=BY_PLACE)
    assert pl.read_delta(str(folder(table))).sort("id").to_dicts() == in_order(ROWS.slice(0, 4))


def test_equal_rows_in_two_partitions_are_two_files(table: VersionedTable) -> None:
    rows = pa.table({"place": ["a", "b", "A"], "value": [1, 1, 1]})
    table.write(rows, options=TableOptions(partition_columns=("place",)))
    assert len(keys(table)) == 3
    assert DeltaTable(folder(table)).to_pyarrow_table().num_rows == 3


def test_equal_rows_in_another_order_are_the_same_version(table: VersionedTable) -> None:
    table.write(ROWS, options=BY_PLACE)
    before = contents(table.project.store)
    assert table.write(ROWS.take([4, 3, 2, 1, 0]), options=BY_PLACE).change == "none"
    assert contents(table.project.store) == before


def test_two_stores_have_the_same_identity(project: Project, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = Project.open("NYC", str(tmp_path_factory.mktemp("other")))
    shas = {
        one.table("rows").write(rows, options=BY_PLACE).version.metadata_sha
        for one, rows in ((project, ROWS), (other, ROWS.take([4, 3, 2, 1, 0])))
    }
    assert len(shas) == 1


def test_another_layout_is_another_version_of_the_whole_table(table: VersionedTable) -> None:
    table.write(ROWS, options=BY_PLACE)
    assert table.write(ROWS).change == "full"
    assert table.state.snapshot.partition_columns == ()
    assert table.revert(0).change == "full"
    assert table.state.snapshot.partition_columns == ("place", "day")
    assert in_order(DeltaTable(folder(table)).to_pyarrow_table()) == in_order(ROWS)
    assert in_order(table.read(1)) == in_order(ROWS)
    table.verify().require_ok()


def test_rows_are_merged_where_they_are(table: VersionedTable) -> None:
    options = TableOptions(partition_columns=("place",), mode="merge", merge_key=("id",))
    table.write(ROWS, options=options)
    before = keys(table)
    moved = ROWS.slice(0, 1).set_column(1, "place", pa.array(["new place"]))
    added = table.write(moved, options=options).version.facts.added
    assert added is not None
    assert (added.inserted, added.updated) == (0, 1)
    assert len(before - keys(table)) == 1
    assert in_order(table.read()) == in_order(pa.concat_tables([moved, ROWS.slice(1)]))


def test_a_part_of_the_table_cannot_be_laid_out_otherwise(project: Project) -> None:
    table = project.table("daily")
    table.write_partitions({"mon": ROWS, "tue": ROWS}, options=BY_PLACE)
    with pytest.raises(InvalidInput, match="some of its rows stay"):
        table.write(ROWS.slice(1), partition="mon")
    table.write(ROWS.slice(1), partition="mon", options=BY_PLACE)
    assert in_order(table.read(partition="tue")) == in_order(ROWS)
    assert table.write_partitions({"mon": ROWS, "tue": ROWS})[0].change == "full"


@pytest.mark.parametrize(
    ("rows", "columns", "message"),
    [
        (pa.table({"id": [1], "place": [""]}), ("place",), "no serialization"),
        (pa.table({"place": ["a"]}), ("place",), "Every column is a partition column"),
        (pa.table({"id": [1]}), ("place",), "which is no column"),
        (pa.table({"id": [1], "place": [1.5]}), ("place",), "double, by which rows cannot be partitioned"),
        (pa.table({"id": [1], "place": [[1]]}), ("place",), "by which rows cannot be partitioned"),
    ],
)
def test_rows_that_cannot_be_told_apart_are_refused(
    table: VersionedTable, rows: pa.Table, columns: tuple[str, ...], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        table.write(rows, options=TableOptions(partition_columns=columns))
    assert not table.exists()
    assert contents(table.project.store) == {}


@pytest.mark.parametrize("more", [{"sort_rows": ("id",)}, {"row_order": "significant"}, {"single_part": True}])
def test_options_that_contradict_each_other_are_refused(more: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="partition_columns makes"):
        TableOptions(partition_columns=("place",), **more)


@pytest.mark.spark
def test_spark_writes_the_same_parts(spark: Any, project: Project) -> None:
    rows = ROWS.append_column("at", pa.array([1, 2, 3, 4, 5], pa.timestamp("us", "UTC")))
    from_arrow, from_spark = project.table("arrow"), project.table("spark")
    from_arrow.write(rows, options=BY_PLACE)
    from_spark.write(spark.createDataFrame(rows).repartition(3), options=BY_PLACE)
    assert keys(from_spark) == keys(from_arrow)
    assert from_spark.version().data_sha == from_arrow.version().data_sha
    frame = from_spark.read(as_type=type(spark.range(1)))
    assert frame.count() == 5
    assert frame.where("place is null").count() == 1
