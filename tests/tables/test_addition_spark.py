"""Spark frames appended to tables and merged into them: the same versions as from Arrow."""

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

from dagster_versioned.delta_tables.change_feed import read_changes as arrow_changes
from dagster_versioned.delta_tables.spark import read_changes as spark_changes
from dagster_versioned.engines.arrow.engine import ArrowEngine
from dagster_versioned.errors import InvalidInput
from dagster_versioned.projects.project import Project
from dagster_versioned.tables.options import TableOptions
from dagster_versioned.tables.table import VersionedTable
from support.spark import spark
from support.stores import contents

__all__ = ["spark"]
pytestmark = pytest.mark.spark

MERGE = TableOptions(mode="merge", merge_key=("id", "day"))
APPEND = TableOptions(mode="append")
SMALL = {"target_part_bytes": 1, "row_group_bytes": 1}


def rows(first: int, count: int, note: str = "x") -> pa.Table:
    ids = list(range(first, first + count))
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "day": ["mon" if i % 2 else "tue" for i in ids],
            "a.note": [note if i % 3 else None for i in ids],
            "tags": pa.array([[("n", i), ("z", 1)] for i in ids], pa.map_(pa.string(), pa.int64())),
        }
    )


def rows_of(table: pa.Table) -> list[Any]:
    return table.sort_by("id").to_pylist()


def same_rows(table: VersionedTable, expected: pa.Table, spark: Any) -> None:
    read = table.read()
    assert read.sort_by("id").to_pylist() == expected.sort_by("id").to_pylist()
    measured = ArrowEngine().measure(read, table.files().scan.schema)
    facts = table.version().facts
    assert (facts.digest, tuple(facts.null_counts)) == (measured.digest.text, measured.null_counts)
    table.verify().require_ok()


def test_merges_are_those_of_arrow(spark: Any, project: Project) -> None:
    from_spark, from_arrow = project.table("spark"), project.table("arrow")
    for given in (rows(0, 20), rows(15, 10, "y"), rows(0, 3), rows(24, 2, "y")):
        results = [
            from_spark.write(spark.createDataFrame(given), options=MERGE),
            from_arrow.write(given, options=MERGE),
        ]
        assert len({(result.change, result.version.facts.added) for result in results}) == 1
        assert results[0].version.identity.nrow == results[1].version.identity.nrow
        assert from_spark.version().facts.digest == from_arrow.version().facts.digest
    same_rows(from_spark, from_arrow.read(), spark)


@pytest.mark.slow
def test_only_files_in_which_a_row_changes_are_written_again(spark: Any, project: Project) -> None:
    table = project.table("rows")
    table.write(rows(0, 30), options=MERGE.model_copy(update=SMALL))
    before = {add.key for add in table.files().adds}
    assert len(before) > 5
    changed = pa.concat_tables([rows(0, 10), rows(10, 1, "changed")])
    result = table.write(spark.createDataFrame(changed), options=MERGE)
    added = result.version.facts.added
    assert added is not None
    assert (added.inserted, added.updated) == (0, 1)
    assert len(before - {add.key for add in table.files().adds}) == 1
    same_rows(table, pa.concat_tables([rows(0, 10), rows(10, 1, "changed"), rows(11, 19)]), spark)
    assert table.write(spark.createDataFrame(changed), options=MERGE).change == "none"


@pytest.mark.slow
@pytest.mark.parametrize("partition_columns", [(), ("day",)])
def test_merges_by_deletion_vectors_are_those_of_arrow(
    spark: Any, project: Project, partition_columns: tuple[str, ...]
) -> None:
    options = MERGE.model_copy(
        update={
            "properties": {"delta.enableDeletionVectors": "true", "delta.enableChangeDataFeed": "true"},
            "partition_columns": partition_columns,
        }
    )
    tables = project.table("spark"), project.table("arrow")
    for given in (rows(0, 40), rows(35, 10, "y"), rows(0, 3), rows(30, 9, "z"), rows(2, 30, "y")):
        results = [
            tables[0].write(spark.createDataFrame(given), options=options, asset_key=("rows",)),
            tables[1].write(given, options=options, asset_key=("rows",)),
        ]
        assert len({(result.change, result.version.facts.added) for result in results}) == 1
        assert len({result.version.data_sha for result in results}) == 1
    marked = [[add.deletion_vector for add in table.files(3).adds if add.deletion_vector] for table in tables]
    assert marked[0] == marked[1] != []
    assert rows_of(tables[0].read(as_type=DataFrame).toArrow()) == rows_of(tables[1].read())
    same_rows(tables[0], tables[1].read(), spark)
    told = [sorted(key for key in contents(table.store) if key.startswith("_change_data/")) for table in tables]
    assert told[0] == told[1] != []
    folders = [str(table.project.data.local_path(str(table.name))) for table in tables]
    by_spark, by_arrow = spark_changes(spark, folders[0], 1, 3).toArrow(), arrow_changes(folders[1], 1, 3)
    left_out = ["_commit_timestamp", "tags"]
    feeds = [sorted(map(str, feed.drop_columns(left_out).to_pylist())) for feed in (by_spark, by_arrow)]
    assert feeds[0] == feeds[1]
    assert {"insert", "update_preimage", "update_postimage"} == set(by_spark["_change_type"].to_pylist())


@pytest.mark.slow
def test_a_table_with_a_column_named_like_row_ids_is_merged_all_the_same(spark: Any, project: Project) -> None:
    table = project.table("rows")
    names = ["id", "day", "_row_id", "tags"]
    options = MERGE.model_copy(update={"properties": {"delta.enableDeletionVectors": "true"}})
    table.write(rows(0, 20).rename_columns(names), options=options)
    table.write(spark.createDataFrame(rows(4, 3, "y").rename_columns(names)), options=options)
    expected = pa.concat_tables([rows(0, 4), rows(4, 3, "y"), rows(7, 13)])
    same_rows(table, expected.rename_columns(names), spark)


def test_appended_rows_are_beside_the_others(spark: Any, project: Project) -> None:
    table = project.table("rows")
    table.write(rows(0, 5), options=APPEND)
    before = {add.key for add in table.files().adds}
    table.write(spark.createDataFrame(rows(5, 5)).repartition(3), options=APPEND)
    assert before < {add.key for add in table.files().adds}
    same_rows(table, rows(0, 10), spark)


def test_a_frame_that_is_never_the_same_is_taken_once(spark: Any, project: Project) -> None:
    table = project.table("rows")
    table.write(rows(0, 5).select(["id"]), options=APPEND)
    random = spark.range(100, 110).selectExpr("cast(rand() * 1e15 as bigint) as id").distinct()
    result = table.write(random, options=TableOptions(mode="merge", merge_key=("id",)))
    measured = ArrowEngine().measure(table.read(), table.files().scan.schema)
    assert result.version.facts.digest == measured.digest.text
    assert result.version.identity.nrow == table.read().num_rows


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (pa.concat_tables([rows(0, 2), rows(1, 2)]), "0 rows have a null in it, and 1 keys"),
        (rows(0, 3).set_column(0, "id", pa.array([None, 1, 2], pa.int64())), "1 rows have a null in it, and 0 keys"),
    ],
)
def test_keys_that_identify_no_row_are_refused(spark: Any, project: Project, bad: pa.Table, message: str) -> None:
    table = project.table("rows")
    table.write(rows(0, 3), options=MERGE)
    with pytest.raises(InvalidInput, match=message):
        table.write(spark.createDataFrame(bad), options=MERGE)
    assert table.version().log_version == 0


def test_a_key_that_several_rows_of_the_table_have_is_refused(spark: Any, project: Project) -> None:
    table = project.table("rows")
    table.write(pa.concat_tables([rows(0, 3), rows(1, 1)]))
    with pytest.raises(InvalidInput, match="1 keys of the frame have more than one row there"):
        table.write(spark.createDataFrame(rows(0, 3)), options=MERGE)
