"""Constraints and properties of versioned tables: what they refuse, and what other programs see of them."""

from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from dagster_versioned.errors import CommitConflict, InvalidInput
from dagster_versioned.projects.project import Project
from dagster_versioned.tables.options import TableOptions
from dagster_versioned.tables.table import VersionedTable
from support.one_table import folder
from support.spark import spark
from support.stores import contents

__all__ = ["spark"]

POSITIVE = TableOptions(constraints={"positive": "amount > 0"})


def amounts(*values: int | None) -> pa.Table:
    return pa.table({"id": list(range(len(values))), "Amount": pa.array(values, pa.int64())})


def test_other_programs_see_the_constraint(table: VersionedTable) -> None:
    table.write(amounts(1, 2), options=POSITIVE)
    peer = DeltaTable(folder(table))
    assert peer.metadata().configuration["delta.constraints.positive"] == "amount > 0"
    assert "checkConstraints" in (peer.protocol().writer_features or [])
    assert peer.to_pyarrow_table().num_rows == 2


@pytest.mark.parametrize("bad", [amounts(1, -1, -2), amounts(1, None, None)])
@pytest.mark.parametrize("mode", ["replace", "append", "merge"])
def test_rows_that_break_a_constraint_change_nothing(table: VersionedTable, bad: pa.Table, mode: Any) -> None:
    options = TableOptions(constraints={"positive": "amount > 0"}, mode=mode, merge_key=["id"] * (mode == "merge"))
    table.write(amounts(1), options=options)
    before = contents(table.project.store)
    with pytest.raises(InvalidInput, match=r"'positive' \(amount > 0\) is false or null for 2 rows of the frame"):
        table.write(bad, options=options)
    assert contents(table.project.store) == before


def test_a_table_keeps_its_constraint_where_nothing_is_said_of_it(table: VersionedTable) -> None:
    table.write(amounts(1), options=POSITIVE)
    with pytest.raises(InvalidInput, match="'positive'"):
        table.write(amounts(-1))
    table.write(amounts(-1), options=TableOptions(constraints={}))
    assert DeltaTable(folder(table)).metadata().configuration.get("delta.constraints.positive") is None


def test_a_new_constraint_is_asked_of_the_rows_that_stay(table: VersionedTable) -> None:
    table.write(amounts(1, -1))
    append = TableOptions(mode="append", constraints={"positive": "amount > 0"})
    with pytest.raises(InvalidInput, match="1 rows that would be in the table"):
        table.write(amounts(5), options=append)
    table.write(amounts(3))
    table.write(amounts(5), options=append)
    assert table.read().num_rows == 2


def test_a_new_constraint_is_asked_of_the_other_partitions(project: Project) -> None:
    table = project.table("daily")
    table.write_partitions({"mon": amounts(1), "tue": amounts(-1)})
    with pytest.raises(InvalidInput, match="1 rows that would be in the table"):
        table.write(amounts(2), partition="mon", options=POSITIVE)
    table.write(amounts(2), partition="tue", options=POSITIVE)


def test_a_version_that_breaks_a_constraint_cannot_be_current_again(table: VersionedTable) -> None:
    table.write(amounts(-1))
    table.write(amounts(1), options=POSITIVE)
    with pytest.raises(InvalidInput, match="1 rows that would be in the table"):
        table.revert(0)
    table.write(amounts(1), options=TableOptions(constraints={}))
    assert table.revert(0).change == "full"


def test_a_constraint_that_comes_meanwhile_is_not_passed_by(project: Project) -> None:
    first, second = project.table("rows"), project.table("rows")
    first.write(amounts(1))
    write = second.constraints

    def later(options: TableOptions) -> Any:
        known = write(options)
        first.write(amounts(1), options=POSITIVE)
        return known

    # A method that is replaced on purpose.
    second.constraints = later  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(CommitConflict, match="got the constraints"):
        second.write(amounts(-1))
    assert first.read()["Amount"].to_pylist() == [1]


def test_only_the_properties_may_change(table: VersionedTable) -> None:
    table.write(amounts(1))
    result = table.write(amounts(1), options=TableOptions(properties={"team": "finance"}))
    assert result.change == "none"
    assert result.version.log_version == 0
    assert DeltaTable(folder(table)).metadata().configuration["team"] == "finance"
    before = contents(table.project.store)
    assert table.write(amounts(1), options=TableOptions(properties={"team": "finance"})).change == "none"
    assert contents(table.project.store) == before
    table.verify().require_ok()


def test_a_table_that_only_grows_refuses_to_be_replaced(table: VersionedTable) -> None:
    grows = {"properties": {"delta.appendOnly": "true"}}
    table.write(amounts(1), options=TableOptions(mode="append", **grows))
    table.write(amounts(2), options=TableOptions(mode="append", **grows))
    with pytest.raises(InvalidInput, match="append-only"):
        table.write(amounts(3))
    assert table.read().num_rows == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"properties": {"delta.logRetentionDuration": "interval 1 day"}}, "cannot be set on a versioned table"),
        ({"properties": {"delta.constraints.x": "a > 1"}}, "cannot be set on a versioned table"),
        ({"constraints": {"a b": "x > 1"}}, "letters, digits and underscores"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TableOptions(**options)


@pytest.mark.parametrize("sql", ["amount > (select 1)", "amount >", "unknown > 1", "amount > 0; drop table x"])
def test_conditions_that_cannot_be_evaluated_are_refused(table: VersionedTable, sql: str) -> None:
    with pytest.raises(InvalidInput):
        table.write(amounts(1), options=TableOptions(constraints={"odd": sql}))
    assert not table.exists()


@pytest.mark.spark
def test_spark_frames_are_held_to_them_too(spark: Any, table: VersionedTable) -> None:
    table.write(spark.createDataFrame(amounts(1, 2)), options=POSITIVE)
    with pytest.raises(InvalidInput, match="for 2 rows of the frame"):
        table.write(spark.createDataFrame(amounts(1, None, -1)), options=POSITIVE)
    for sql in ("amount > (select 1)", "unknown > 1"):
        with pytest.raises(InvalidInput):
            table.write(spark.createDataFrame(amounts(1)), options=TableOptions(constraints={"odd": sql}))
