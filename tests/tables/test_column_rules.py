"""Generated columns, defaults and invariants that another program gave a versioned table: every verb obeys them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import deltalake
import orjson
import pyarrow as pa
import pytest

from dagster_versioned.branches.environments import create_environment
from dagster_versioned.branches.promote import promote
from dagster_versioned.delta.schema.types import StructField, StructType
from dagster_versioned.delta_tables.write import create_delta, write_delta
from dagster_versioned.errors import InvalidInput, UnsupportedFeature
from dagster_versioned.identity.version import Run
from dagster_versioned.projects.project import Project
from dagster_versioned.publication.park import park
from dagster_versioned.tables.options import TableOptions
from dagster_versioned.tables.table import VersionedTable
from support.one_table import altered
from support.readers import assert_same, by_datafusion, by_deltalake
from support.spark import spark

__all__ = ["spark"]

APPEND = TableOptions(mode="append")
MERGE = TableOptions(mode="merge", merge_key=("n",))
GENERATED = {"delta.generationExpression": "n * 2"}
INVARIANT = {"delta.invariants": orjson.dumps({"expression": {"expression": "twice < 100"}}).decode()}
DEFAULT = {"CURRENT_DEFAULT": "7"}
FEATURES = {"delta.generationExpression": "generatedColumns", "delta.invariants": "invariants"}


def rows(*numbers: int | None, twice: int | None = None) -> pa.Table:
    doubled = [None if n is None else 2 * n if twice is None else twice for n in numbers]
    return pa.table({"n": pa.array(numbers, pa.int64()), "twice": pa.array(doubled, pa.int64())})


def ruled(table: VersionedTable, metadata: Mapping[str, str], *, within: bool = False) -> VersionedTable:
    """The table, of whose last column, or of what is within it, another program noted something."""
    schema = table.state.snapshot.schema.to_json()
    last = schema["fields"][-1]
    (last["type"]["fields"][0] if within else last)["metadata"] |= metadata
    return altered(table, *(FEATURES.get(key, "allowColumnDefaults") for key in metadata), schema=schema)


def require(table: VersionedTable, metadata: Mapping[str, str], expected: pa.Table) -> None:
    """The rule is still there, for every reader, and these are the rows."""
    table = table.project.table(str(table.name))
    place = table.project.data.local_path(str(table.name))
    assert place is not None
    noted = {member.name: member.metadata for member in deltalake.DeltaTable(place).schema().fields}["twice"]
    assert metadata.items() <= noted.items()
    for found in (table.read(), by_deltalake(place), by_datafusion(place)):
        assert_same(found, expected)
    assert not table.verify().findings


@pytest.fixture
def generated(table: VersionedTable) -> VersionedTable:
    table.write(rows(1, 2))
    return ruled(table, GENERATED)


WRONG = rows(3, 4, twice=0)
REFUSED = r"'twice is generated' \(`twice` <=> \(n \* 2\)\) is false or null for 2 rows"


class TestGenerated:
    @pytest.mark.parametrize("options", [TableOptions(), APPEND, MERGE], ids=["replace", "append", "merge"])
    def test_writes(self, generated: VersionedTable, options: TableOptions) -> None:
        with pytest.raises(InvalidInput, match=REFUSED):
            generated.write(WRONG, options=options)
        require(generated, GENERATED, rows(1, 2))
        generated.write(rows(2, 3, None), options=options.model_copy(update={"mode": "replace", "merge_key": ()}))
        require(generated, GENERATED, rows(2, 3, None))

    def test_what_is_merged_and_appended(self, generated: VersionedTable) -> None:
        generated.write(rows(3), options=APPEND)
        generated.write(rows(3, 4), options=MERGE)
        require(generated, GENERATED, rows(1, 2, 3, 4))
        generated.vacuum(dry_run=False)
        require(generated, GENERATED, rows(1, 2, 3, 4))

    def test_a_revert_to_rows_of_before_the_rule(self, table: VersionedTable) -> None:
        table.write(WRONG)
        table.write(rows(1))
        fresh = ruled(table, GENERATED)
        with pytest.raises(InvalidInput, match=REFUSED):
            fresh.revert("@0")
        fresh.write(rows(5))
        fresh.revert("@1")
        require(fresh, GENERATED, rows(1))

    @pytest.mark.parametrize("options", [TableOptions(), APPEND], ids=["replace", "append"])
    def test_parked(self, generated: VersionedTable, options: TableOptions) -> None:
        project = generated.project
        with pytest.raises(InvalidInput, match=REFUSED):
            park(generated, {None: WRONG}, run=Run("r0", "x", 0), options=options)
        park(generated, {None: rows(3)}, run=Run("r1", "x", 0), options=options)
        project.publish("r1", by="me")
        require(generated, GENERATED, rows(3) if options.mode == "replace" else rows(1, 2, 3))

    def test_promoted(self, generated: VersionedTable) -> None:
        project = generated.project
        derived = TableOptions(table_type="derived")
        generated.write(rows(1), code_version="1", options=derived)
        create_environment(project, "pr-1")
        there = project.in_environment("pr-1").table("flights")
        with pytest.raises(InvalidInput, match=REFUSED):
            there.write(WRONG, code_version="2", options=derived)
        there.write(rows(8), code_version="2", options=derived)
        assert [one.table for one in promote(project, "pr-1", dry_run=False).promoted] == ["flights"]
        require(generated, GENERATED, rows(8))

    def test_a_partition_that_lacks_it(self, table: VersionedTable) -> None:
        table.write(rows(1), partition="a")
        fresh = ruled(table, GENERATED)
        with pytest.raises(InvalidInput, match="'twice is generated'"):
            fresh.write(pa.table({"n": [1]}), partition="b")
        fresh.write(rows(2), partition="b")
        require(fresh, GENERATED, rows(1, 2))

    def test_a_column_that_goes_takes_the_rule_along(self, generated: VersionedTable) -> None:
        generated.write(pa.table({"n": [1]}))
        generated.write(rows(1, twice=5))
        assert generated.read()["twice"].to_pylist() == [5]

    def test_a_wider_column_keeps_it(self, table: VersionedTable) -> None:
        table.write(pa.table({"n": pa.array([1], pa.int64()), "twice": pa.array([2], pa.int32())}))
        fresh = ruled(table, GENERATED)
        fresh.write(rows(2))
        require(fresh, GENERATED, rows(2))

    def test_a_column_of_another_type_is_another_one(self, generated: VersionedTable) -> None:
        generated.write(pa.table({"n": [1], "twice": ["two"]}))
        assert generated.read()["twice"].to_pylist() == ["two"]

    def test_what_is_no_expression_here_is_refused(self, table: VersionedTable) -> None:
        table.write(rows(1))
        fresh = ruled(table, {"delta.generationExpression": "reflect('java.lang.Runtime', 'getRuntime')"})
        with pytest.raises(InvalidInput, match="reflect"):
            fresh.write(rows(2))
        assert fresh.read()["n"].to_pylist() == [1]

    def test_within_a_column_is_refused(self, table: VersionedTable) -> None:
        table.write(pa.table({"s": [{"x": 1}]}))
        fresh = ruled(table, {"delta.generationExpression": "1"}, within=True)
        with pytest.raises(UnsupportedFeature, match=r"'s\.x' has a rule of the feature generatedColumns inside"):
            fresh.write(pa.table({"s": [{"x": 2}]}))

    @pytest.mark.spark
    def test_spark(self, spark: Any, generated: VersionedTable) -> None:
        with pytest.raises(InvalidInput, match=REFUSED):
            generated.write(spark.createDataFrame(WRONG.to_pandas()))
        generated.write(spark.createDataFrame(rows(3).to_pandas()))
        require(generated, GENERATED, rows(3))


def test_an_invariant(table: VersionedTable) -> None:
    table.write(rows(1))
    fresh = ruled(table, INVARIANT)
    with pytest.raises(InvalidInput, match=r"'invariant of twice' \(twice < 100\) is false or null for 1 rows"):
        fresh.write(rows(2, 60), options=APPEND)
    fresh.write(rows(2), options=APPEND)
    require(fresh, INVARIANT, rows(1, 2))


def test_an_invariant_within_a_column(table: VersionedTable) -> None:
    table.write(pa.table({"s": [{"x": 1}]}))
    rule = {"delta.invariants": orjson.dumps({"expression": {"expression": "s.x < 100"}}).decode()}
    fresh = ruled(table, rule, within=True)
    fresh.write(pa.table({"s": [{"x": 2}]}))
    with pytest.raises(InvalidInput, match=r"'invariant of s\.x'"):
        fresh.write(pa.table({"s": [{"x": 100}]}))
    assert fresh.read()["s"].to_pylist() == [{"x": 2}]


class TestDefaults:
    def test_a_null_is_a_value(self, table: VersionedTable) -> None:
        table.write(rows(1))
        fresh = ruled(table, DEFAULT)
        given = pa.table({"n": [2], "twice": pa.array([None], pa.int64())})
        fresh.write(given, options=APPEND)
        require(fresh, DEFAULT, pa.concat_tables([rows(1), given]))

    def test_a_partition_without_the_column_is_refused(self, table: VersionedTable) -> None:
        table.write(pa.table({"n": [0]}), partition="b")
        table.write(rows(1), partition="a")
        fresh = ruled(table, DEFAULT)
        with pytest.raises(InvalidInput, match=r"'twice' of the table has the default 7.* lack the column"):
            fresh.write(pa.table({"n": [5]}), partition="b")
        fresh.write(rows(3), partition="b")
        require(fresh, DEFAULT, rows(1, 3))
        fresh.revert("@0", partition="b")  # rows of before the column are null in it, as Delta has them
        require(fresh, DEFAULT, pa.table({"n": [0, 1], "twice": pa.array([None, 2], pa.int64())}))

    def test_a_frame_that_replaces_the_table_says_which_columns_there_are(self, table: VersionedTable) -> None:
        table.write(rows(1))
        ruled(table, DEFAULT).write(pa.table({"n": [5]}))
        assert table.project.table("flights").read().column_names == ["n"]


def test_a_table_of_another_program_is_taken_over_with_its_rules(project: Project) -> None:
    place: Path | None = project.data.local_path("theirs")
    stamped = {"delta.enableInCommitTimestamps": "true"}
    schema = StructType([StructField("n", "long"), StructField("twice", "long", True, GENERATED)])
    create_delta(str(place), schema, properties=stamped)
    write_delta(str(place), pa.table({"n": [1, 2]}))
    theirs = project.table("theirs")
    theirs.adopt()
    with pytest.raises(InvalidInput, match="'twice is generated'"):
        theirs.write(WRONG, options=APPEND)
    theirs.write(rows(3), options=APPEND)
    require(theirs, GENERATED, rows(1, 2, 3))
