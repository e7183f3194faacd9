"""Deleting from, updating and merging into any Delta table from Arrow, with and without deletion vectors."""

from dataclasses import replace

import pyarrow as pa
import pytest

from dagster_versioned.delta import Table
from dagster_versioned.delta.commit.transaction import Transaction
from dagster_versioned.delta.log.snapshot import load_snapshot
from dagster_versioned.delta_tables.dml import WhenMatched, WhenNotMatched, WhenNotMatchedBySource
from dagster_versioned.delta_tables.read import read_delta
from dagster_versioned.delta_tables.write import (
    create_delta,
    delete_from,
    merge_delta,
    optimize_delta,
    update_delta,
    write_delta,
)
from dagster_versioned.errors import InvalidInput, TableNotFound
from dagster_versioned.storage import LocalStore
from support.delta_writes import FEATURES, changes_of, files_of, last_commit, row_ids, rows_of, schema

every_feature = pytest.mark.parametrize("properties", FEATURES.values(), ids=FEATURES.keys())
CHANGE_FEED = {"delta.enableChangeDataFeed": "true"}
TRACKING = {"delta.enableRowTracking": "true"}
VECTORS = {"delta.enableDeletionVectors": "true"}

ROWS = pa.table({"id": [1, 2, 3, 4], "p": ["a", "a", "b", None], "v": [10, None, 30, 40]})


def written(table, properties=None, partition_by=(), rows=ROWS):
    write_delta(str(table), rows, properties=properties or {}, partition_by=partition_by)
    return str(table)


def adds_of(table):
    return load_snapshot(LocalStore(table)).adds()


# --- delete ----------------------------------------------------------------------------------------------------------


@every_feature
@pytest.mark.parametrize("partition_by", [(), ("p",)], ids=["flat", "partitioned"])
def test_rows_are_deleted_where_the_condition_is_true_and_not_where_it_is_null(table, properties, partition_by):
    uri = written(table, properties, partition_by)
    assert delete_from(uri, "v > 15").metrics["numDeletedRows"] == 2
    assert {row["id"] for row in rows_of(table)} == {1, 2}
    assert delete_from(uri, "P = 'a' and ID = 1").metrics["numDeletedRows"] == 1
    assert rows_of(table) == [{"id": 2, "p": "a", "v": None}]
    assert delete_from(uri).metrics["numDeletedRows"] == 1
    assert rows_of(table) == []
    assert adds_of(table) == []


def test_deletion_vectors_leave_data_files_as_they_are(table):
    uri = written(table, VECTORS)
    (name,) = files_of(table)
    delete_from(uri, "id = 2")
    (add,) = adds_of(table)
    assert add.key == name
    assert add.deletion_vector.cardinality == 1
    assert '"tightBounds":false' in add.stats
    delete_from(uri, "id = 1")
    (add,) = adds_of(table)
    assert add.deletion_vector.cardinality == 2
    assert {row["id"] for row in rows_of(table)} == {3, 4}
    delete_from(uri, "id > 2")
    assert adds_of(table) == []


def test_whole_partitions_are_deleted_without_a_look_at_their_files(table):
    uri = written(table, partition_by=("p",))
    for name in files_of(table):
        (table / name).write_bytes(b"no Parquet")
    assert delete_from(uri, "p in ('a', 'b')").metrics["numDeletedRows"] == 3
    assert len(adds_of(table)) == 1


def test_a_condition_that_no_row_meets_commits_nothing(table):
    uri = written(table)
    assert delete_from(uri, "id = 99").version == 0
    assert update_delta(uri, {"v": "1"}, "id > 99").version == 0


@pytest.mark.parametrize("text", ["id", "id - 1", "'true'", "p"])
def test_what_is_neither_true_nor_false_is_no_condition(table, text):
    uri = written(table)
    source = pa.table({"id": [1], "v": [11]})
    for change in (
        lambda: delete_from(uri, text),
        lambda: update_delta(uri, {"v": "1"}, text),
        lambda: write_delta(uri, ROWS, "overwrite", where=text),
        lambda: merge_delta(uri, source, text.replace("id", "target.id"), [WhenMatched("delete")]),
        lambda: merge_delta(uri, source, "target.id = source.id", [WhenMatched("delete", "target.id - 1")]),
        lambda: read_delta(uri, filter=text),
    ):
        with pytest.raises(InvalidInput, match="is no condition: its value is"):
            change()
    assert rows_of(table) == ROWS.to_pylist()


def test_only_files_that_may_hold_a_match_are_looked_at(table):
    uri = written(table)
    write_delta(uri, pa.table({"id": [100]}))
    first = next(add for add in adds_of(table) if '"maxValues":{"id":4' in add.stats)
    (table / first.key).write_bytes(b"no Parquet")
    assert delete_from(uri, "id >= 50").metrics["numDeletedRows"] == 1


# --- update ----------------------------------------------------------------------------------------------------------


@every_feature
@pytest.mark.parametrize("partition_by", [(), ("p",)], ids=["flat", "partitioned"])
def test_rows_are_updated_from_their_old_values(table, properties, partition_by):
    uri = written(table, properties, partition_by)
    done = update_delta(uri, {"V": "coalesce(v, 0) + id", "p": "concat(p, 'x')"}, "id <= 2 or p is null")
    assert done.metrics["numUpdatedRows"] == 3
    assert sorted(rows_of(table), key=lambda row: row["id"]) == [
        {"id": 1, "p": "ax", "v": 11},
        {"id": 2, "p": "ax", "v": 2},
        {"id": 3, "p": "b", "v": 30},
        {"id": 4, "p": None, "v": 44},
    ]
    update_delta(uri, {"v": "null"})
    assert {row["v"] for row in rows_of(table)} == {None}


@every_feature
def test_fields_of_structs_are_updated_by_themselves(table, properties):
    rows = pa.table({"id": [1, 2], "s": [{"a": 1, "t": {"b": "x"}}, {"a": 2, "t": {"b": "y"}}]})
    uri = written(table, properties, rows=rows)
    update_delta(uri, {"s.T.b": "upper(s.t.b)", "s.a": "s.a * 10"}, "s.t.b = 'y'")
    assert rows_of(table)[1] == {"id": 2, "s": {"a": 20, "t": {"b": "Y"}}}


def test_backticks_quote_what_is_assigned(table):
    rows = pa.table({"a`b": [1], "c.d": [2], "e": [{"f`g": 3}]})
    uri = written(table, rows=rows)
    update_delta(uri, {"`a``b`": "`c.d` + 1", "`c.d`": "`a``b`", "e.`f``g`": "4"})
    assert rows_of(table) == [{"a`b": 3, "c.d": 1, "e": {"f`g": 4}}]


def test_what_cannot_be_assigned_is_refused(table):
    uri = written(table)
    before = files_of(table)
    for assignments, reason in [
        ({"w": "1"}, "no column 'w'"),
        ({"v": "w"}, "no column 'w'"),
        ({"v": "'x'"}, "cannot be evaluated"),
        ({"v": "1", "V": "2"}, "assigned twice"),
        ({"v": "(select 1)"}, "holds a subquery"),
        ({}, "assigns nothing"),
    ]:
        with pytest.raises(InvalidInput, match=reason):
            update_delta(uri, assignments)
    assert files_of(table) == before
    with pytest.raises(TableNotFound):
        update_delta(f"{uri}-not", {"v": "1"})


# --- merge -----------------------------------------------------------------------------------------------------------

SOURCE = pa.table(
    {"ID": [1, 3, 7, 8], "v": [100, 300, 700, 800], "p": ["z", "b", "a", "q"], "op": ["u", "d", "i", "x"]}
)


@every_feature
@pytest.mark.parametrize("partition_by", [(), ("p",)], ids=["flat", "partitioned"])
def test_rows_are_merged_by_the_first_clause_that_counts(table, properties, partition_by):
    uri = written(table, properties, partition_by)
    done = merge_delta(
        uri,
        SOURCE,
        "target.id = source.id",
        [
            WhenMatched("delete", "op = 'd'"),
            WhenMatched("all", "op = 'u'"),
            WhenNotMatched({"id": "source.id", "v": "source.v + 1"}, "op = 'i'"),
            WhenNotMatched("all", "op = 'nothing'"),
            WhenNotMatchedBySource({"v": "v * 2"}, "target.id = 4"),
            WhenNotMatchedBySource("delete", "v is null"),
        ],
    )
    assert sorted(rows_of(table), key=lambda row: row["id"]) == [
        {"id": 1, "p": "z", "v": 100},
        {"id": 4, "p": None, "v": 80},
        {"id": 7, "p": None, "v": 701},
    ]
    rows = {name: count for name, count in done.metrics.items() if name.startswith("numTargetRows")}
    del rows["numTargetRowsCopied"]
    assert rows == {"numTargetRowsInserted": 1, "numTargetRowsUpdated": 2, "numTargetRowsDeleted": 2}
    assert done.metrics["numSourceRows"] == 4
    info = last_commit(table).commit_info
    assert info["operation"] == "MERGE"
    assert info["operationParameters"]["matchedPredicates"] == (
        '[{"actionType":"delete","predicate":"op = \'d\'"},{"actionType":"update","predicate":"op = \'u\'"}]'
    )


@every_feature
def test_upserts_by_several_keys_where_null_meets_nothing(table, properties):
    rows = pa.table({"a": [1, 1, None], "b": ["x", "y", "z"], "v": [1, 2, 3]})
    uri = written(table, properties, rows=rows)
    source = pa.table({"a": [1, None], "b": ["y", "z"], "v": [20, 30]})
    merge_delta(uri, source, "source.a = target.a and source.b = target.b", [WhenMatched("all"), WhenNotMatched("all")])
    assert sorted(row["v"] for row in rows_of(table)) == [1, 3, 20, 30]
    merge_delta(uri, source, "source.a <=> target.a and source.b = target.b and target.v > 5", [WhenMatched("delete")])
    assert sorted(row["v"] for row in rows_of(table)) == [1, 3]


def test_conditions_that_are_no_equality(table):
    uri = written(table)
    source = pa.table({"low": [3], "high": [9]})
    merge_delta(uri, source, "id between low and high", [WhenMatched({"v": "low"}), WhenNotMatchedBySource("delete")])
    assert [(row["id"], row["v"]) for row in rows_of(table)] == [(3, 3), (4, 3)]


def test_a_row_that_two_rows_of_the_source_meet_is_refused_with_counts(table):
    uri = written(table)
    before = files_of(table)
    twice = pa.table({"id": [1, 1, 2], "v": [1, 2, 3], "use": [True, False, True]})
    on = "source.id = target.id"
    for clauses in (
        [WhenMatched("all")],
        [WhenMatched("all", "use"), WhenNotMatched("all")],
        [WhenMatched("delete", "use or source.v > 1")],
    ):
        with pytest.raises(
            InvalidInput, match=r"1 rows of the table meet more than one row of the source \(at most 2\)"
        ):
            merge_delta(uri, twice, on, clauses)
    assert files_of(table) == before
    # As in the reference: fine where one clause alone deletes, where only inserts are asked for, where one counts.
    merge_delta(uri, twice, on, [WhenNotMatched("all")])
    merge_delta(uri, twice, on, [WhenMatched({"v": "source.v"}, "use")])
    assert merge_delta(uri, twice, on, [WhenMatched("delete")]).metrics["numTargetRowsDeleted"] == 2


def test_only_files_that_may_meet_the_source_are_looked_at(table):
    uri = written(table)
    write_delta(uri, pa.table({"id": [100, 101]}))
    first = next(add for add in adds_of(table) if '"maxValues":{"id":4' in add.stats)
    (table / first.key).write_bytes(b"no Parquet")
    source = pa.table({"id": [100], "v": [1]})
    done = merge_delta(uri, source, "source.id = target.id", [WhenMatched("all")])
    assert done.metrics["numTargetRowsUpdated"] == 1
    assert done.metrics["numTargetRowsCopied"] == 1


@pytest.mark.parametrize("kind", [pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.date32()], ids=str)
@pytest.mark.parametrize("partitioned", [False, True], ids=["flat", "partitioned"])
def test_years_that_python_has_not(table, kind, partitioned):
    years = [10_000, -1, 2000]
    unit = 1 if kind == pa.date32() else 86_400_000_000
    when = pa.array([(year - 1970) * 366 * unit for year in years], kind)
    rows = pa.table({"id": [1, 2, 3], "t": when})
    uri = written(table, partition_by=["t"] if partitioned else [], rows=rows)
    assert read_delta(uri).sort_by("id") == rows
    merge_delta(uri, rows.slice(0, 2), "target.t = source.t", [WhenMatched({"id": "source.id + 10"})])
    update_delta(uri, {"id": "id + 100"}, "id = 3")
    assert read_delta(uri).sort_by("id") == rows.set_column(0, "id", pa.array([11, 12, 103])).sort_by("id")
    assert read_delta(uri, filter="t < '1900-01-01'")["id"].to_pylist() == [12]
    optimize_delta(uri)
    assert read_delta(uri, filter="t > '2100-01-01'")["id"].to_pylist() == [11]


@every_feature
def test_merging_may_add_the_columns_of_the_source(table, properties):
    uri = written(table, properties)
    source = pa.table({"id": [1, 9], "w": ["x", "y"]})
    merge_delta(uri, source, "source.id = target.id", [WhenMatched("all"), WhenNotMatched("all")])
    assert "w" not in rows_of(table)[0]
    delete_from(uri, "id = 9")
    clauses = [WhenMatched("all"), WhenNotMatched("all")]
    merge_delta(uri, source, "source.id = target.id", clauses, schema_mode="merge")
    found = {row["id"]: row for row in rows_of(table)}
    assert found[1] == {"id": 1, "p": "a", "v": 10, "w": "x"}
    assert found[9] == {"id": 9, "p": None, "v": None, "w": "y"}
    assert found[3]["w"] is None


def test_merges_that_make_no_sense_are_refused(table):
    uri = written(table)
    source = pa.table({"id": [1], "v": [1]})
    for on, clauses, reason in [
        ("source.id = target.id", [], "without clauses"),
        ("source.id = target.id", [WhenMatched("all"), WhenMatched("delete")], "Put it last"),
        ("id = 1", [WhenMatched("all")], "a column of target and source"),
        ("source.id = target.id", [WhenNotMatched({"v": "target.v"})], "no column 'target.v'"),
        ("source.id = target.id", [WhenNotMatchedBySource({"v": "source.v"})], "no column 'source.v'"),
        ("source.id = target.id", [WhenNotMatched("delete")], "cannot do 'delete'"),
    ]:
        with pytest.raises(InvalidInput, match=reason):
            merge_delta(uri, source, on, clauses)
    assert load_snapshot(LocalStore(table)).version == 0


# --- change data -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("properties", [CHANGE_FEED, CHANGE_FEED | VECTORS], ids=["rewritten", "vectors"])
def test_changed_rows_are_written_beside_the_data(table, properties):
    uri = written(table, properties)
    delete_from(uri, "id = 1")
    assert changes_of(table) == [{"id": 1, "p": "a", "v": 10, "_change_type": "delete"}]
    update_delta(uri, {"v": "v + 1"}, "id = 3")
    assert changes_of(table) == [
        {"id": 3, "p": "b", "v": 30, "_change_type": "update_preimage"},
        {"id": 3, "p": "b", "v": 31, "_change_type": "update_postimage"},
    ]
    source = pa.table({"id": [2, 3, 5], "v": [0, 1, 5]})
    merge_delta(
        uri,
        source,
        "source.id = target.id",
        [WhenMatched("delete", "source.v = 0"), WhenMatched("all"), WhenNotMatched("all")],
    )
    assert [(row["id"], row["v"], row["_change_type"]) for row in changes_of(table)] == [
        (2, None, "delete"),
        (3, 1, "update_postimage"),
        (3, 31, "update_preimage"),
        (5, 5, "insert"),
    ]


def test_files_that_come_and_go_whole_need_no_change_data(table):
    uri = written(table, CHANGE_FEED, ("p",))
    write_delta(uri, pa.table({"id": [9]}))
    assert last_commit(table).cdcs == ()
    delete_from(uri, "p = 'a'")
    assert last_commit(table).cdcs == ()
    write_delta(uri, pa.table({"id": [9], "p": ["b"]}), "overwrite", where="p = 'b'")
    assert last_commit(table).cdcs == ()
    write_delta(uri, ROWS, "overwrite")
    assert last_commit(table).cdcs == ()


def test_replacing_rows_of_a_file_says_what_came_and_went(table):
    uri = written(table, CHANGE_FEED)
    write_delta(uri, pa.table({"id": [2], "v": [5]}), "overwrite", where="id = 2")
    assert {(row["v"], row["_change_type"]) for row in changes_of(table)} == {(5, "insert"), (None, "delete")}


# --- row tracking ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("properties", [TRACKING, TRACKING | VECTORS], ids=["rewritten", "vectors"])
def test_rows_keep_their_ids_and_those_not_updated_their_commit_versions(table, properties):
    uri = written(table, properties)
    assert row_ids(table) == {1: (0, 0), 2: (1, 0), 3: (2, 0), 4: (3, 0)}
    update_delta(uri, {"v": "0"}, "id = 3")
    live = {row["id"] for row in rows_of(table)}
    assert live == {1, 2, 3, 4}
    assert row_ids(table)[3] == (2, 1)
    source = pa.table({"id": [1, 9], "v": [1, 9]})
    merge_delta(uri, source, "source.id = target.id", [WhenMatched("all"), WhenNotMatched("all")])
    delete_from(uri, "id = 2")
    optimize_delta(uri)
    found = row_ids(table)
    assert {key: found[key] for key in (1, 3, 4)} == {1: (0, 2), 3: (2, 1), 4: (3, 0)}
    assert found[9][0] > 3
    assert found[9][1] == 2
    assert last_commit(table).commit_info["tags"] == {"delta.rowTracking.preserved": "true"}


# --- compaction ------------------------------------------------------------------------------------------------------


@every_feature
def test_small_files_become_one_and_no_row_changes(table, properties):
    uri = written(table, properties)
    for i in range(5, 8):
        write_delta(uri, pa.table({"id": [i]}))
    delete_from(uri, "id = 2")
    before = rows_of(table)
    optimize_delta(uri)
    assert rows_of(table) == before
    (add,) = adds_of(table)
    assert add.deletion_vector is None
    commit = last_commit(table)
    assert {action.data_change for action in (*commit.adds, *commit.removes)} == {False}
    assert commit.commit_info["operation"] == "OPTIMIZE"
    assert optimize_delta(uri).version == commit.version


def test_partitions_are_compacted_by_themselves(table):
    uri = written(table, partition_by=("p",))
    for _ in range(2):
        write_delta(uri, pa.table({"id": [5, 6], "p": ["a", "b"]}))
    optimize_delta(uri, "p = 'a'")
    assert sorted(add.partition_values["p"] or "" for add in adds_of(table)) == ["", "a", "b", "b", "b"]
    with pytest.raises(InvalidInput, match="whole partitions"):
        optimize_delta(uri, "id = 5")


def test_the_folder_of_a_partition_column_that_begins_with_an_underscore_is_no_hidden_one(table):
    rows = pa.table({"id": [1, 2], "p": ["a", "b"], "_p": ["x", "y"]})
    write_delta(str(table), rows, partition_by=["p", "_p"])
    assert {add.key.rpartition("/")[0] for add in adds_of(table)} == {"p=a/_p=x", "p=b/_p=y"}
    assert read_delta(str(table), filter="_p = 'y'").to_pylist() == [{"id": 2, "p": "b", "_p": "y"}]


def test_clustered_tables_are_sorted_once(table):
    rows = pa.table({"id": [3, 1, 2], "s": [{"k": 1}, {"k": 2}, {"k": 1}]})
    write_delta(str(table), rows, cluster_by=["id"])
    write_delta(str(table), rows)
    optimize_delta(str(table))
    assert read_delta(str(table))["id"].to_pylist() == [1, 1, 2, 2, 3, 3]
    (add,) = adds_of(table)
    assert add.clustering_provider == "dagster-versioned"
    version = last_commit(table).version
    assert optimize_delta(str(table)).version == version
    optimize_delta(str(table), order_by=["s.k", "id"])
    assert read_delta(str(table))["id"].to_pylist() == [2, 2, 3, 3, 1, 1]


def test_a_table_is_sorted_again_by_other_clustering_columns(table):
    uri = str(table)
    write_delta(uri, pa.table({"id": [3, 1, 2], "k": [1, 3, 2]}), cluster_by=["id"], properties=VECTORS)
    optimize_delta(uri)
    Table(uri).cluster_by("k")
    optimize_delta(uri)
    assert read_delta(uri)["k"].to_pylist() == [1, 2, 3]
    sorted_at = last_commit(table).version
    assert optimize_delta(uri).version == sorted_at
    delete_from(uri, "k = 2")
    optimize_delta(uri)
    assert [add.deletion_vector for add in adds_of(table)] == [None]


def test_a_table_is_partitioned_or_clustered(tmp_path):
    rows, clustering = pa.table({"id": [1], "p": ["a"]}), {"delta.feature.clustering": "supported"}
    clustered, partitioned = str(tmp_path / "c"), str(tmp_path / "p")
    write_delta(clustered, rows, cluster_by=["id"])
    write_delta(partitioned, rows, partition_by=["p"])
    before, both = files_of(clustered), schema(("id", "long"), ("p", "string"))
    for attempt in (
        lambda: write_delta(clustered, rows, "overwrite", schema_mode="overwrite", partition_by=["p"]),
        lambda: write_delta(str(tmp_path / "n"), rows, partition_by=["p"], properties=clustering),
        lambda: create_delta(str(tmp_path / "n"), both, partition_by=["p"], properties=clustering),
        lambda: Table(partitioned).upgrade_protocol("clustering"),
        lambda: Table(partitioned).set_properties(clustering),
    ):
        with pytest.raises(InvalidInput, match=r"partitioned by \['p'\].*clustering.*Nothing was written"):
            attempt()
    assert (files_of(clustered), Table(clustered).version, Table(partitioned).version) == (before, 0, 0)
    assert not (tmp_path / "n").exists()


def test_a_restore_does_not_partition_a_clustered_table(table):
    uri, rows = str(table), pa.table({"id": [1], "p": ["a"]})
    write_delta(uri, rows, partition_by=["p"])
    write_delta(uri, rows, "overwrite", schema_mode="overwrite", partition_by=[])
    Table(uri).cluster_by("id")
    with pytest.raises(InvalidInput, match="no table is both"):
        Table(uri).restore(0)


@pytest.mark.parametrize("properties", [{}, {"delta.columnMapping.mode": "name"}])
def test_another_schema_keeps_the_clustering_or_is_refused(table, properties):
    uri = str(table)
    write_delta(uri, pa.table({"id": [1], "v": [1]}), cluster_by=["id"], properties=properties)
    for bad in ({"x": [1]}, {"id": [[1]]}, {"id": [b"x"]}):
        with pytest.raises(InvalidInput, match=r"clustered by .*Cluster it by other columns"):
            write_delta(uri, pa.table(bad), "overwrite", schema_mode="overwrite")
    write_delta(uri, pa.table({"ID": ["b", "a"]}), "overwrite", schema_mode="overwrite")
    optimize_delta(uri)
    assert read_delta(uri)["ID"].to_pylist() == ["a", "b"]
    assert '"a"' in adds_of(table)[0].stats


def test_no_table_is_clustered_by_what_has_no_bounds(tmp_path):
    uri, rows = str(tmp_path / "t"), pa.table({"id": [1], "b": [b"x"]})
    with pytest.raises(InvalidInput, match="'b' is no single value with bounds"):
        write_delta(uri, rows, cluster_by=["b"])
    write_delta(uri, rows)
    with pytest.raises(InvalidInput, match="'b' is no single value with bounds"):
        Table(uri).cluster_by("b")
    write_delta(f"{uri}2", rows, partition_by=["b"])


def test_files_that_another_program_clustered_stay_as_they_are(table):
    uri = str(table)
    write_delta(uri, pa.table({"id": [3, 1]}), cluster_by=["id"])
    (theirs,) = adds_of(table)
    read = load_snapshot(LocalStore(table))
    Transaction(read, [replace(theirs, clustering_provider="liquid")], "OPTIMIZE").attempt(LocalStore(table))
    write_delta(uri, pa.table({"id": [5, 4]}))
    optimize_delta(uri)
    assert {add.clustering_provider for add in adds_of(table)} == {"liquid", "dagster-versioned"}
    assert theirs.key in {add.key for add in adds_of(table)}
