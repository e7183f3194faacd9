"""Versioned tables whose rows lie together by columns: through every verb, for readers of Delta as for ours."""

from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dagster_versioned.branches.environments import create_environment
from dagster_versioned.branches.promote import promote
from dagster_versioned.branches.rebase import rebase_environment
from dagster_versioned.delta.commit.cluster_by import cluster_by
from dagster_versioned.delta.commit.transaction import commit
from dagster_versioned.delta.files.statistics import known, null_count
from dagster_versioned.delta.schema.clustering import CLUSTERED_BY, DOMAIN
from dagster_versioned.errors import InvalidInput
from dagster_versioned.identity.version import Run
from dagster_versioned.projects.project import Project
from dagster_versioned.publication.park import park
from dagster_versioned.storage import LocalStore
from dagster_versioned.tables.options import TableOptions
from dagster_versioned.tables.partitioning import Partitioning
from dagster_versioned.tables.table import VersionedTable
from dagster_versioned.tables.write.clustering import clustering_of
from support.one_table import folder
from support.readers import assert_same, by_datafusion, by_deltalake
from support.spark import spark

__all__ = ["spark"]

LAST = "c39"
"""A column behind those that statistics cover by themselves."""

BY_LAST = TableOptions(cluster_by=(LAST,))
SMALL = {"row_group_bytes": 4_000, "target_part_bytes": 1}


def wide(*values: int) -> pa.Table:
    return pa.table({f"c{i}": [value * (i + 1) for value in values] for i in range(40)})


def shuffled(count: int) -> pa.Table:
    return pa.table({"n": [i * 7919 % count for i in range(count)], "s": [str(i % 5) for i in range(count)]})


def bounds(table: VersionedTable, column: str) -> list[tuple[Any, Any]]:
    found = [known(add.stats) for add in table.state.snapshot.adds()]
    return sorted((one["minValues"][column], one["maxValues"][column]) for one in found)


def require_clustered(table: VersionedTable, expected: pa.Table, column: str = LAST) -> None:
    """Every file has statistics of the column, and every reader the rows."""
    table = table.project.table(str(table.name))
    snapshot = table.state.snapshot
    assert clustering_of(snapshot) == ((column,),)
    assert {"clustering", "domainMetadata"} <= set(snapshot.protocol.writer_features or ())
    assert all(null_count(known(add.stats), (column,)) is not None for add in snapshot.adds())
    assert not table.verify().findings
    readers = [by_datafusion] if any(add.deletion_vector for add in snapshot.adds()) else [by_deltalake, by_datafusion]
    for found in (table.read(), *(read(folder(table)) for read in readers)):
        assert_same(found, expected)


def test_files_hold_ranges_of_the_column(table: VersionedTable) -> None:
    rows = shuffled(3_000)
    table.write(rows, options=TableOptions(cluster_by=("n",), **SMALL))
    ranges = bounds(table, "n")
    assert len(ranges) > 3
    assert all(before[1] <= after[0] for before, after in pairwise(ranges))
    require_clustered(table, rows, "n")
    few = by_datafusion(folder(table), where="where n between 10 and 12")
    assert sorted(few["n"].to_pylist()) == [10, 11, 12]
    assert {add.clustering_provider for add in table.state.snapshot.adds()} == {"dagster-versioned"}
    assert {(add.tags or {})[CLUSTERED_BY] for add in table.state.snapshot.adds()} == {'[["n"]]'}


def test_the_same_rows_in_another_order_are_the_same_version(table: VersionedTable, project: Project) -> None:
    rows = shuffled(100)
    options = TableOptions(cluster_by=("s", "n"))
    version = table.write(rows, options=options).version
    assert table.write(rows.take(list(reversed(range(100)))), options=options).change == "none"
    other = project.table("others").write(rows.slice(50), options=options)
    assert other.version.facts.digest != version.facts.digest
    assert table.read()["s"].to_pylist() == sorted(rows["s"].to_pylist())


@pytest.mark.spark
def test_spark_deals_ranges_to_files(spark: Any, table: VersionedTable) -> None:
    rows = shuffled(1_000)
    options = TableOptions(cluster_by=("n",), **SMALL)
    frame = spark.createDataFrame(rows.to_pandas()).repartition(3)
    table.write(frame, options=options)
    ranges = bounds(table, "n")
    assert len(ranges) > 3
    assert all(before[1] <= after[0] for before, after in pairwise(ranges))
    require_clustered(table, rows, "n")
    assert table.write(rows, options=options).change == "none"


@pytest.mark.spark
def test_spark_sorts_what_fits_a_part(spark: Any, table: VersionedTable) -> None:
    frame = spark.createDataFrame(shuffled(30).to_pandas()).repartition(3)
    table.write(frame, options=TableOptions(cluster_by=("n",), single_part=True))
    assert table.version().facts.part_count == 1
    assert table.read()["n"].to_pylist() == list(range(30))
    with pytest.raises(InvalidInput, match="cluster_by names 'x', which is no column"):
        table.write(frame.limit(5), options=TableOptions(cluster_by=("x",)))


class TestEveryVerb:
    def test_append_merge_revert_and_vacuum(self, table: VersionedTable) -> None:
        table.write(wide(3, 1), options=BY_LAST)
        require_clustered(table, wide(1, 3))
        append = TableOptions(mode="append", cluster_by=(LAST,))
        table.write(wide(7, 5), options=append)
        require_clustered(table, wide(1, 3, 5, 7))
        merge = TableOptions(mode="merge", merge_key=("c0",))
        table.write(wide(7, 9), options=merge)
        require_clustered(table, wide(1, 3, 5, 7, 9))
        table.write(wide(2))
        require_clustered(table, wide(2))
        table.revert("@1")
        require_clustered(table, wide(1, 3, 5, 7))
        table.vacuum(dry_run=False)
        table.expire(keep_last=1, dry_run=False)
        require_clustered(table, wide(1, 3, 5, 7))
        table.drop(dry_run=False)
        table.restore()
        require_clustered(table, wide(1, 3, 5, 7))

    def test_merges_by_deletion_vectors(self, table: VersionedTable) -> None:
        vectors = {"delta.enableDeletionVectors": "true"}
        options = TableOptions(mode="merge", merge_key=("c0",), cluster_by=(LAST,), properties=vectors)
        table.write(wide(*range(20)), options=options)
        changed = wide(3).set_column(1, "c1", [[0]])
        table.write(changed, options=options)
        assert any(add.deletion_vector for add in table.state.snapshot.adds())
        require_clustered(table, pa.concat_tables([wide(*range(3), *range(4, 20)), changed]))

    def test_partitions_of_dagster(self, table: VersionedTable) -> None:
        table.write(wide(1), partition="a", options=BY_LAST)
        table.write(wide(2), partition="b")
        require_clustered(table, wide(1, 2))
        table.revert("@0", partition="a")
        require_clustered(table, wide(1, 2))

    @pytest.mark.parametrize("mode", ["replace", "append"])
    def test_parked(self, table: VersionedTable, mode: Any) -> None:
        options = TableOptions(mode=mode, cluster_by=(LAST,))
        park(table, {None: wide(3, 1)}, run=Run("r1", "x", 0), options=options)
        table.project.publish("r1", by="me")
        require_clustered(table, wide(1, 3))
        assert all(add.clustering_provider for add in table.project.table("flights").state.snapshot.adds())

    def test_promoted(self, table: VersionedTable, project: Project) -> None:
        derived = TableOptions(table_type="derived")
        table.write(wide(1), options=BY_LAST)
        create_environment(project, "pr-1")
        there = project.in_environment("pr-1")
        there.table("flights").write(wide(2), code_version="2", options=derived)
        by_last = TableOptions(table_type="derived", cluster_by=(LAST,))
        there.table("new").write(wide(5), code_version="2", options=by_last)
        require_clustered(there.table("new"), wide(5))
        report = promote(project, "pr-1", dry_run=False)
        assert {one.table for one in report.promoted} == {"flights", "new"}
        require_clustered(project.table("flights"), wide(2))
        require_clustered(project.table("new"), wide(5))

    def test_repartitioned(self, table: VersionedTable) -> None:
        table.write(wide(1, 2), options=BY_LAST)
        table.repartition(Partitioning.names(), lambda rows: rows["c0"].cast(pa.string()), dry_run=False)
        assert set(table.partitions()) == {"1", "2"}
        require_clustered(table, wide(1, 2))
        table.drop_partitions(["1"], dry_run=False)
        require_clustered(table, wide(2))

    def test_renamed(self, table: VersionedTable) -> None:
        table.write(wide(1, 2), options=BY_LAST)
        table.rename(["journeys"], dry_run=False)
        require_clustered(table.project.table("journeys"), wide(1, 2))

    def test_rebased(self, table: VersionedTable, project: Project) -> None:
        derived = TableOptions(table_type="derived")
        table.write(wide(1), code_version="1", options=BY_LAST.model_copy(update={"table_type": "derived"}))
        create_environment(project, "pr-1")
        project.in_environment("pr-1").table("flights").write(wide(2), code_version="2", options=derived)
        project.table("others").write(wide(3))
        rebase_environment(project, "pr-1", dry_run=False)
        there = project.in_environment("pr-1").table("flights")
        assert clustering_of(there.state.snapshot) == ((LAST,),)
        assert_same(there.read(), wide(2))
        assert not there.verify().findings

    def test_what_an_environment_clusters_otherwise_is_left(self, table: VersionedTable, project: Project) -> None:
        table.write(wide(1), options=BY_LAST)
        create_environment(project, "pr-1")
        options = TableOptions(table_type="derived", cluster_by=("c0",))
        project.in_environment("pr-1").table("flights").write(wide(2), code_version="2", options=options)
        (left,) = promote(project, "pr-1", dry_run=False).left
        assert "clustered by were changed" in left.why
        require_clustered(table, wide(1))


class TestOtherColumns:
    def test_rows_that_stay_get_statistics(self, table: VersionedTable) -> None:
        table.write(wide(1), partition="a", options=TableOptions(cluster_by=("c0",)))
        table.write(wide(1), partition="a", options=BY_LAST)  # nothing but the columns changes
        require_clustered(table, wide(1))
        assert table.state.log_version == 1
        assert len(table.history()) == 1
        table.write(wide(2), partition="a", options=TableOptions(mode="append"))  # it is nobody else's commit
        require_clustered(table, wide(1, 2))
        table.write(wide(1), partition="b", options=BY_LAST)
        table.write(wide(1), partition="b", options=BY_LAST)
        assert table.state.log_version == 3

    def test_none_are_taken_away(self, table: VersionedTable) -> None:
        table.write(wide(1), options=BY_LAST)
        table.write(wide(2), options=TableOptions(cluster_by=()))
        assert clustering_of(table.state.snapshot) == ()
        assert_same(by_deltalake(folder(table)), wide(2))

    def test_no_feature_without_columns(self, table: VersionedTable) -> None:
        table.write(wide(1), options=TableOptions(cluster_by=()))
        assert DOMAIN not in table.state.snapshot.domains
        assert "clustering" not in (table.state.snapshot.protocol.writer_features or ())

    def test_a_column_that_goes_or_has_no_bounds_is_left_out(self, table: VersionedTable) -> None:
        table.write(pa.table({"a": [1], "b": [2], "c": [3]}), options=TableOptions(cluster_by=("a", "b", "c")))
        table.write(pa.table({"a": [1], "b": [b"x"]}))
        assert clustering_of(table.state.snapshot) == (("a",),)
        assert_same(by_deltalake(folder(table)), pa.table({"a": [1], "b": [b"x"]}))
        table.revert("@0")
        assert clustering_of(table.state.snapshot) == (("a",),)

    def test_a_new_column(self, table: VersionedTable) -> None:
        append = TableOptions(mode="append", cluster_by=("n",))
        table.write(pa.table({"m": [1]}), options=TableOptions(mode="append"))
        table.write(pa.table({"m": [2], "n": [3]}), options=append)
        require_clustered(table, pa.table({"m": [1, 2], "n": [None, 3]}), "n")

    def test_another_programs_columns_are_kept(self, table: VersionedTable) -> None:
        table.write(wide(1), partition="a")
        commit(table.store, table.state.snapshot, lambda read: cluster_by(read, table.store, [LAST]))
        fresh = table.project.table("flights")
        fresh.write(wide(2), partition="b")
        require_clustered(fresh, wide(1, 2))


class TestRefusals:
    @pytest.mark.parametrize(
        ("column", "why"),
        [("x", "'x', which is no column"), ("b", "'b', whose type binary has no"), ("s", "'s', whose type .* has no")],
    )
    def test_columns(self, table: VersionedTable, column: str, why: str) -> None:
        rows = pa.table({"n": [1], "b": [b"x"], "s": [{"n": 1}]})
        for mode in ("replace", "append"):
            with pytest.raises(InvalidInput, match=rf"cluster_by names {why}.*"):
                table.write(rows, options=TableOptions(mode=mode, cluster_by=(column,)))
        assert table.project.table("flights").operations.refresh() is None

    def test_rows_that_are_there_have_to_have_the_column(self, table: VersionedTable, rows: pa.Table) -> None:
        table.write(rows, options=TableOptions(row_order="ignored"))
        with pytest.raises(InvalidInput, match="cluster_by names 'x', which is no column"):
            table.write(rows, options=TableOptions(cluster_by=("x",)))
        assert table.state.log_version == 0

    def test_partition_columns(self, table: VersionedTable, rows: pa.Table) -> None:
        table.write(rows, options=TableOptions(partition_columns=("delay",)))
        table.write(rows.slice(1))
        table.write(rows, options=TableOptions(cluster_by=("delay",)))
        for change in (
            lambda: table.write(rows.slice(1), options=TableOptions(partition_columns=("delay",))),
            lambda: table.revert("@0"),
        ):
            with pytest.raises(InvalidInput, match=r"the feature clustering.*no table is both\. Nothing was"):
                change()
        require_clustered(table, rows, "delay")

    @pytest.mark.parametrize(
        "options",
        [
            {"cluster_by": ("a", "a")},
            {"cluster_by": ("a",), "partition_columns": ("b",)},
            {"cluster_by": ("a",), "row_order": "significant"},
            {"cluster_by": ("a",), "sort_rows": ("a",)},
            {"cluster_by": ("a",), "mode": "append", "single_part": True},
            {"cluster_by": ("a",), "history": {"merge": {"strategy": "append"}}},
        ],
    )
    def test_options(self, options: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match="cluster_by"):
            TableOptions(**options)


def test_nulls_and_nan_come_last(table: VersionedTable) -> None:
    rows = pa.table({"x": [float("nan"), 2.0, None, -0.0, 1.0]})
    table.write(rows, options=TableOptions(cluster_by=("x",), single_part=True))
    assert [repr(x) for x in table.read()["x"].to_pylist()] == ["-0.0", "1.0", "2.0", "nan", "None"]
    require_clustered(table, rows, "x")
    assert pc.sum(pc.is_null(table.read()["x"])).as_py() == 1


def test_options_travel(project: Project) -> None:
    options = TableOptions(cluster_by=("a",))
    assert TableOptions.from_metadata(options.as_metadata()) == options
    assert isinstance(project.data, LocalStore)
