"""Changes of what a table says about itself, and what is refused."""

import json
import shutil
from types import SimpleNamespace

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_versioned.delta import Table
from dagster_versioned.delta.actions import Add, Metadata, Protocol
from dagster_versioned.delta.commit.row_tracking import ROW_COMMIT_VERSION_COLUMN, ROW_ID_COLUMN
from dagster_versioned.delta.commit.transaction import Transaction
from dagster_versioned.delta.commit.write_rules import references
from dagster_versioned.delta.features import reader_features, writer_features
from dagster_versioned.delta.log.commits import read_commits
from dagster_versioned.delta.schema.column_mapping import physical_path
from dagster_versioned.delta.schema.types import ArrayType, StructField, StructType, schema_from_arrow
from dagster_versioned.delta_tables.read import read_delta
from dagster_versioned.delta_tables.write import create_delta, delete_from, write_delta
from dagster_versioned.errors import CommitConflict, IntegrityError, InvalidInput
from dagster_versioned.projects.project import Project
from dagster_versioned.storage.local import LocalStore

ROWS = pa.table(
    {
        "a": pa.array([1, 2], pa.int32()),
        "b": ["x", None],
        "s": pa.array([{"c": 1, "d": "y"}, {"c": 2, "d": None}], pa.struct([("c", pa.int16()), ("d", pa.string())])),
        "l": pa.array([[1], [2, None]], pa.list_(pa.int32())),
        "p": ["q", "r"],
    }
)
NAME = {"delta.columnMapping.mode": "name"}


@pytest.fixture
def uri(tmp_path):
    return str(tmp_path / "t")


@pytest.fixture
def table(uri):
    """A table of another writer, with one file in each of two partitions."""
    deltalake.write_deltalake(uri, ROWS, partition_by=["p"])
    return Table(uri)


def last(table):
    return table.history(1)[0]


# --- properties


def test_a_property_is_set_and_unset(table):
    assert table.set_properties({"delta.logRetentionDuration": "interval 9 days", "owner": "ada"}) == 1
    assert last(table).operation == "SET TBLPROPERTIES"
    assert table.metadata.configuration == {"delta.logRetentionDuration": "interval 9 days", "owner": "ada"}
    table.unset_properties("owner")
    assert dict(table.metadata.configuration) == {"delta.logRetentionDuration": "interval 9 days"}
    with pytest.raises(InvalidInput, match=r"\['owner'\]"):
        table.unset_properties("owner")
    assert table.unset_properties("owner", if_exists=True) == 3


@pytest.mark.parametrize("wrong", [["owner"], 1, None])
def test_what_is_no_name_or_value_of_a_property_is_refused(table, wrong):
    with pytest.raises(InvalidInput, match="is no name of a property, which is text"):
        table.unset_properties(wrong)
    with pytest.raises(InvalidInput, match="are no properties"):
        table.set_properties(wrong)
    with pytest.raises(InvalidInput, match="is no name of a property"):
        table.set_properties({1: "ada"})
    assert table.version == 0


@pytest.mark.parametrize(
    ("key", "feature"),
    [
        ("delta.enableDeletionVectors", "deletionVectors"),
        ("delta.enableChangeDataFeed", "changeDataFeed"),
        ("delta.enableInCommitTimestamps", "inCommitTimestamp"),
        ("delta.enableTypeWidening", "typeWidening"),
        ("delta.appendOnly", "appendOnly"),
    ],
)
def test_a_property_brings_its_feature(table, key, feature):
    table.set_properties({key: "true"})
    assert feature in writer_features(table.protocol)
    assert read_delta(table.store.uri).num_rows == 2


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        ({"delta.constraints.c": "a > 0"}, "add_constraint"),
        ({"delta.columnMapping.maxColumnId": "9"}, "kept by the table itself"),
        ({"delta.columnMapping.mode": "id"}, "its files have no ids"),
        ({"n": 7}, "properties are text"),
        ({"delta.appendOnly": "yes"}, "'true' or 'false'"),
        ({"delta.logRetentionDuration": "interval 1 month"}, "a duration"),
        ({"delta.checkpointInterval": "0"}, "a number above 0"),
        ({"delta.checkpointPolicy": "v3"}, "'classic' or 'v2'"),
        ({"delta.columnMapping.mode": "names"}, "'none', 'name' or 'id'"),
        ({"delta.dataSkippingNumIndexedCols": "-2"}, "-1 for all"),
        ({"delta.dataSkippingStatsColumns": "a,,b"}, "cannot be read"),
        ({"delta.dataSkippingStatsColumns": "a,zz"}, "no column 'zz'"),
        ({"delta.isolationLevel": "SnapshotIsolation"}, "'Serializable'"),
    ],
)
def test_a_property_that_makes_no_sense_is_refused(table, properties, reason):
    with pytest.raises(InvalidInput, match=reason):
        table.set_properties(properties)
    assert table.version == 0


def test_a_feature_is_listed_without_a_property(table):
    table.upgrade_protocol("deletionVectors", "vacuumProtocolCheck")
    assert {"deletionVectors", "vacuumProtocolCheck"} <= reader_features(table.protocol)
    assert dict(table.metadata.configuration) == {}
    with pytest.raises(InvalidInput, match="already"):
        table.upgrade_protocol("deletionVectors")


@pytest.mark.parametrize("properties", [{}, NAME], ids=["plain", "mapped"])
@pytest.mark.parametrize("key", [ROW_ID_COLUMN, ROW_COMMIT_VERSION_COLUMN])
def test_no_column_gets_the_name_of_one_that_keeps_ids(uri, key, properties):
    write_delta(uri, pa.table({"a": [1]}), properties={"delta.enableRowTracking": "true", **properties})
    table = Table(uri)
    name = table.metadata.configuration[key]
    rows = pa.table({"a": [2], name.upper(): [3]})
    attempts = [
        lambda: table.add_columns({name: pa.int64()}),
        lambda: write_delta(uri, rows, schema_mode="merge"),
        lambda: write_delta(uri, rows, "overwrite", schema_mode="overwrite"),
    ]
    if properties:
        attempts.append(lambda: table.rename_column("a", name))
    before = sorted(info.key for info in LocalStore(uri).list())
    for attempt in attempts:
        with pytest.raises(InvalidInput, match=r"(?i)_row-.*Nothing was written"):
            attempt()
    assert sorted(info.key for info in LocalStore(uri).list()) == before
    assert read_delta(uri, row_ids=True).num_rows == 1
    table.set_properties({"delta.enableRowTracking": "false"})
    with pytest.raises(InvalidInput, match=r"_row-.*Nothing was written"):
        table.add_columns({name: pa.int64()})


def test_row_tracking_gives_ids_to_the_files_that_are_there(table):
    table.set_properties({"delta.enableRowTracking": "true"})
    ids = table.files().to_pylist()
    assert sorted(row["baseRowId"] for row in ids) == [0, 1]
    assert {row["defaultRowCommitVersion"] for row in ids} == {1}
    assert json.loads(table.snapshot().domains["delta.rowTracking"]) == {"rowIdHighWaterMark": 1}
    assert "delta.rowTracking.materializedRowIdColumnName" in table.metadata.configuration


def test_column_mapping_is_turned_on_and_never_off(table, uri):
    before = read_delta(uri)
    table.set_properties(NAME)
    assert table.snapshot().column_mapping == "name"
    assert table.metadata.configuration["delta.columnMapping.maxColumnId"] == "7"
    assert read_delta(uri).equals(before)
    with pytest.raises(InvalidInput, match="maps its columns by name"):
        table.set_properties({"delta.columnMapping.mode": "none"})
    with pytest.raises(InvalidInput, match="maps its columns by name"):
        table.unset_properties("delta.columnMapping.mode")


# --- columns


def test_columns_are_added_at_every_depth(table, uri):
    table.add_columns({"n": pa.date32(), "s.e": pa.list_(pa.int64()), "m": "decimal(5,2)"})
    read = read_delta(uri)
    assert read.column_names == ["a", "b", "s", "l", "p", "n", "m"]
    assert read["n"].null_count == read["m"].null_count == 2
    assert read["s"].to_pylist()[0].keys() == {"c", "d", "e"}
    assert last(table).operation == "ADD COLUMNS"
    assert table.schema.field("m") == StructField("m", "decimal(5,2)")
    assert table.schema.field("s").type.field("e").type == ArrayType("long")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("A", "a column 'A' already"),
        ("s.C", "'s.C' already"),
        ("x.y", "no column 'x'"),
        ("a.y", "'a' is no struct"),
        ("`x y`", "map their columns"),
        ("", "does not name one column"),
    ],
)
def test_a_column_that_cannot_be_added_is_refused(table, name, reason):
    with pytest.raises(InvalidInput, match=reason):
        table.add_columns({name: "long"})
    assert table.version == 0


def test_columns_are_renamed_at_every_depth_and_their_rows_stay(table, uri):
    table.set_properties(NAME | {"delta.dataSkippingStatsColumns": "b,s.c,s"})
    table.rename_column("a", "first column")
    table.rename_column("s.c", "cc")
    table.rename_column("P", "part")
    read = read_delta(uri)
    assert read.column_names == ["first column", "b", "s", "l", "part"]
    assert sorted(read["first column"].to_pylist()) == [1, 2]
    assert sorted(row["cc"] for row in read["s"].to_pylist()) == [1, 2]
    assert table.metadata.partition_columns == ("part",)
    assert table.metadata.configuration["delta.dataSkippingStatsColumns"] == "`b`,`s`.`cc`,`s`"
    assert last(table).parameters == {"oldColumnPath": "p", "newColumnPath": "part"}
    with pytest.raises(InvalidInput, match="already"):
        table.rename_column("b", "PART")


def test_case_alone_can_be_changed(table):
    table.set_properties(NAME)
    table.rename_column("a", "A")
    assert table.schema.names[0] == "A"


def test_statistics_of_a_dropped_column_are_asked_for_no_more(table):
    table.set_properties(NAME | {"delta.dataSkippingStatsColumns": "b,s.c"})
    table.drop_column("b")
    assert table.metadata.configuration["delta.dataSkippingStatsColumns"] == "`s`.`c`"
    table.drop_column("s")
    assert "delta.dataSkippingStatsColumns" not in table.metadata.configuration


def test_a_dropped_column_is_gone_and_comes_back_empty(table, uri):
    table.set_properties(NAME)
    table.drop_column("a")
    table.drop_column("s.d")
    assert read_delta(uri).column_names == ["b", "s", "l", "p"]
    table.add_columns({"a": "integer", "s.d": "string"})
    read = read_delta(uri)
    assert read["a"].null_count == 2
    assert [row["d"] for row in read["s"].to_pylist()] == [None, None]


def test_columns_are_renamed_and_dropped_only_where_they_are_mapped(table):
    for change in (lambda: table.rename_column("a", "b2"), lambda: table.drop_column("a")):
        with pytest.raises(InvalidInput, match=r"delta\.columnMapping\.mode"):
            change()


@pytest.mark.parametrize(
    ("name", "reason"), [("p", "partitioned by"), ("l.element", "part of one"), ("z", "no column")]
)
def test_a_column_that_cannot_be_dropped_is_refused(table, name, reason):
    table.set_properties(NAME)
    with pytest.raises(InvalidInput, match=reason):
        table.drop_column(name)


def test_the_last_column_stays(tmp_path):
    deltalake.write_deltalake(str(tmp_path), pa.table({"a": [1], "p": [1]}), partition_by=["p"])
    table = Table(str(tmp_path))
    table.set_properties(NAME)
    with pytest.raises(InvalidInput, match="last column"):
        table.drop_column("a")


def test_what_constraints_speak_of_is_not_changed_below_them(table, uri):
    deltalake.DeltaTable(uri).alter.add_constraint({"c": "a > 0 AND s.c > 0"})
    table.set_properties(NAME | {"delta.enableTypeWidening": "true"})
    for change in (
        lambda: table.rename_column("A", "z"),
        lambda: table.drop_column("s"),
        lambda: table.drop_column("s.c"),
        lambda: table.change_type("a", "long"),
    ):
        with pytest.raises(InvalidInput, match="the constraint 'c' depends on it"):
            change()
    table.rename_column("b", "free")
    table.drop_constraint("C")
    assert last(table).parameters["expr"]
    table.rename_column("a", "z")
    with pytest.raises(InvalidInput, match="no constraint 'c'"):
        table.drop_constraint("c")
    table.drop_constraint("c", if_exists=True)


@pytest.mark.parametrize(
    ("sql", "touched"),
    [
        ("a > 0", {"a"}),
        ("A > 0 AND `b` IS NULL", {"a", "b"}),
        ("s.c > 0", {"s", "s.c"}),
        ("upper(s.d.e) = 'a'", {"s", "s.d"}),
        ("s IS NOT NULL", {"s", "s.c", "s.d"}),
        ("((", {"a", "b", "s", "s.c", "s.d"}),
        ("1 = 1", set()),
    ],
)
def test_which_columns_an_expression_speaks_of(sql, touched):
    rules = SimpleNamespace(checks={"c": sql}, generated={})
    columns = ["a", "b", "s", "s.c", "s.d"]
    assert {name for name in columns if references(rules, tuple(name.split(".")))} == touched


def test_types_are_widened_at_every_depth(table, uri):
    table.set_properties({"delta.enableTypeWidening": "true"})
    table.change_type("a", "long")
    table.change_type("s.c", pa.int32())
    table.change_type("l.element", "double")
    table.change_type("s.c", "long")
    read = read_delta(uri)
    assert read.schema.field("a").type == pa.int64()
    assert sorted(read["a"].to_pylist()) == [1, 2]
    assert sorted(row["c"] for row in read["s"].to_pylist()) == [1, 2]
    assert [1.0] in read["l"].to_pylist()
    inner = table.schema.field("s").type.field("c")
    assert [change["toType"] for change in inner.metadata["delta.typeChanges"]] == ["integer", "long"]
    assert table.schema.field("l").metadata["delta.typeChanges"][0]["fieldPath"] == "element"
    assert read_delta(uri, 0).schema.field("a").type == pa.int32()


def test_types_only_grow_and_only_where_the_table_allows_it(table):
    with pytest.raises(InvalidInput, match=r"delta\.enableTypeWidening"):
        table.change_type("a", "long")
    table.set_properties({"delta.enableTypeWidening": "true"})
    for name, kind in (("a", "short"), ("a", "string"), ("s", StructType([]))):
        with pytest.raises(InvalidInput, match="not all of its values"):
            table.change_type(name, kind)


def test_not_null_is_set_where_statistics_prove_it(table):
    table.set_not_null("a")
    table.set_not_null("s.c")
    table.set_not_null("p")
    assert not table.schema.field("a").nullable
    assert not table.schema.field("s").type.field("c").nullable
    table.drop_not_null("a")
    assert table.schema.field("a").nullable
    for name, reason in (("b", "may be null in 1 of 2 files"), ("l.element", "part of one|inside of a list")):
        with pytest.raises(InvalidInput, match=reason):
            table.set_not_null(name)


def test_a_default_is_for_rows_to_come(table, uri):
    table.set_default("b", "upper('none')")
    assert "allowColumnDefaults" in writer_features(table.protocol)
    write_delta(uri, ROWS.drop_columns("b"))
    assert sorted(read_delta(uri)["b"].to_pylist(), key=str) == ["NONE", "NONE", None, "x"]
    table.drop_default("b")
    write_delta(uri, ROWS.drop_columns("b"))
    assert read_delta(uri)["b"].null_count == 3


def test_a_default_that_makes_no_sense_is_refused(table, uri, tmp_path):
    for name, sql, reason in (
        ("s.c", "1", "only columns"),
        ("b", "((", "no SQL"),
        ("b", "", "no SQL"),
        ("b", "1; 2", "no SQL"),
        ("b", 1, "no text"),
        ("z", "1", "no column"),
        ("a", "nope(1)", "the function nope is not admitted"),
        ("a", "a + 1", "needs the column 'a' of a row"),
        ("a", "'abc'", "it is no "),
    ):
        with pytest.raises(InvalidInput, match=reason):
            table.set_default(name, sql)
    made = StructType([StructField("a", "long"), StructField("g", "long", True, {"delta.generationExpression": "a"})])
    create_delta(str(tmp_path / "g"), made)
    with pytest.raises(InvalidInput, match="made by the table"):
        Table(str(tmp_path / "g")).set_default("g", "1")


# --- Iceberg


V1 = {**NAME, "delta.enableIcebergCompatV1": "true"}


def test_files_without_partition_columns_are_not_promised_to_iceberg_v1(table, tmp_path):
    with pytest.raises(InvalidInput, match=r"\['p'\] in every data file, and the 2 files"):
        table.set_properties(V1)
    assert table.version == 0
    flat = pa.table({"a": [1]})
    write_delta(str(tmp_path / "flat"), flat)
    Table(str(tmp_path / "flat")).set_properties(V1)
    create_delta(str(tmp_path / "empty"), flat.append_column("p", [[1]]).schema, partition_by=["p"])
    empty = Table(str(tmp_path / "empty"))
    empty.set_properties(V1)
    write_delta(str(tmp_path / "empty"), pa.table({"a": [1], "p": [2]}))
    (path,) = tmp_path.glob("empty/*.parquet")
    assert pq.read_schema(path).names == ["a", "p"]
    empty.set_properties({"owner": "ada", "delta.enableIcebergCompatV1": "true"})


def test_files_of_unknown_length_are_not_promised_to_iceberg_v1(tmp_path):
    table = table_of_others(tmp_path, pa.table({"a": [1]}), stats=None)
    with pytest.raises(InvalidInput, match=r"the number of rows of every file.* of 1 files, such as 'f\.parquet'"):
        table.set_properties(V1)


# --- clustering


def table_of_others(folder, rows, stats, **write):
    """A table with one file, of which the log says this."""
    pq.write_table(rows, folder / "f.parquet", **write)
    size = (folder / "f.parquet").stat().st_size
    schema = schema_from_arrow(rows.schema)
    actions = [Protocol(1, 2), Metadata("i", schema.json(), (), {}), Add("f.parquet", {}, size, 1, True, stats)]
    Transaction(None, actions, "WRITE").attempt(LocalStore(folder))
    return Table(str(folder))


def statistics(table):
    return [json.loads(text) for text in table.files().sort_by("path")["stats"].to_pylist()]


@pytest.mark.parametrize("properties", [{}, NAME], ids=["plain", "mapped"])
def test_files_get_the_statistics_of_clustering_columns_that_they_lack(uri, properties):
    wide = pa.table({f"c{i}": [i, None, i + 2] for i in range(40)} | {"s": [{"x": "a"}, {"x": "b"}, None]})
    write_delta(uri, wide, properties={**properties, "delta.enableDeletionVectors": "true"})
    write_delta(uri, pa.table({"c39": pa.array([], pa.int64())}), schema_mode="merge")
    table = Table(uri)
    table.add_columns({"late": pa.string()})
    delete_from(uri, "c0 = 2")
    before = table.files()
    version = table.cluster_by("c39", "s.x", "late")
    (log,) = [one for one in statistics(table) if one["numRecords"]]
    mapping = table.snapshot().column_mapping
    (late,), (c39,), (s, x) = (physical_path(table.schema, path, mapping) for path in (["late"], ["c39"], ["s", "x"]))
    assert (log["minValues"][c39], log["maxValues"][c39], log["nullCount"][c39]) == (39, 41, 1)
    assert (log["minValues"][s][x], log["maxValues"][s][x], log["nullCount"][s][x]) == ("a", "b", 1)
    assert late not in log["minValues"]
    assert (log["nullCount"][late], log["tightBounds"], len(log["nullCount"])) == (3, False, 35)
    assert read_delta(uri, columns=["c0", "late"], filter="c39 = 39").to_pylist() == [{"c0": 0, "late": None}]
    assert table.snapshot().num_files == before.num_rows
    commit = read_commits(table.store, version, version)[0]
    assert {add.data_change for add in commit.adds} == {False}
    table.cluster_by("late", "c39")
    assert table.files().select(["path", "stats"]).equals(table.files(version).select(["path", "stats"]))


def test_a_file_without_any_statistics_gets_those_of_its_clustering_columns(tmp_path):
    table = table_of_others(tmp_path, pa.table({"a": [1.5, None], "b": ["x", None]}), None)
    table.cluster_by("a", "b")  # whether there is a NaN is not known
    bounds, nulls = {"b": "x"}, {"a": 1, "b": 1}
    assert statistics(table) == [{"numRecords": 2, "minValues": bounds, "maxValues": bounds, "nullCount": nulls}]


@pytest.mark.parametrize("missing", [True, False])
def test_a_table_is_not_clustered_by_what_its_files_say_nothing_of(tmp_path, missing):
    table = table_of_others(tmp_path, pa.table({"a": [1]}), None, write_statistics=False)
    if missing:
        (tmp_path / "f.parquet").unlink()
    expected = (IntegrityError, "footer of 'f.parquet'") if missing else (InvalidInput, "'f.parquet' has statistics")
    with pytest.raises(expected[0], match=expected[1]):
        table.cluster_by("a")
    assert table.version == 0


def test_a_table_is_clustered_and_not_any_more(tmp_path):
    deltalake.write_deltalake(str(tmp_path), ROWS)
    table = Table(str(tmp_path))
    table.cluster_by("b", "s.c")
    assert json.loads(table.snapshot().domains["delta.clustering"]) == {"clusteringColumns": [["b"], ["s", "c"]]}
    assert "clustering" in writer_features(table.protocol)
    table.set_properties(NAME)
    with pytest.raises(InvalidInput, match="clustered by 's'"):
        table.drop_column("s")
    table.cluster_by()
    assert json.loads(table.snapshot().domains["delta.clustering"]) == {"clusteringColumns": []}
    assert last(table).parameters == {"oldClusteringColumns": "b,s.c", "newClusteringColumns": ""}
    with pytest.raises(InvalidInput, match="no single value"):
        table.cluster_by("l")


def test_a_partitioned_table_is_not_clustered(table):
    with pytest.raises(InvalidInput, match="partitioned"):
        table.cluster_by("a")


# --- others meanwhile


def test_a_change_goes_on_top_of_rows_that_came_meanwhile(table, uri):
    table.snapshot()
    deltalake.write_deltalake(uri, ROWS, mode="append")
    assert table.add_columns({"n": "long"}) == 2
    assert read_delta(uri).num_rows == 4


def test_two_changes_of_the_schema_conflict(table, uri):
    class Late(Table):
        def _current(self):
            held = super()._current()
            if held.version == 0:
                Table(uri).add_columns({"n": "long"})
            return held

    with pytest.raises(CommitConflict, match="version 1"):
        Late(uri).add_columns({"m": "long"})


def test_rows_that_come_meanwhile_are_looked_at_for_nulls(table, uri):
    class Late(Table):
        raced = False

        def _current(self):
            held = super()._current()
            if not self.raced:
                self.raced = True
                more = ROWS.set_column(0, "a", pa.array([None, None], pa.int32()))
                deltalake.write_deltalake(uri, more, mode="append")
            return held

    with pytest.raises((CommitConflict, InvalidInput)):
        Late(uri).set_not_null("a")
    assert Table(uri).schema.field("a").nullable


# --- going back


def test_a_restore_brings_rows_schema_and_properties_back(table, uri):
    before = read_delta(uri)
    table.set_properties(NAME | {"owner": "ada"})
    table.drop_column("b")
    assert table.restore(0) == 3
    assert read_delta(uri).equals(before)
    assert "owner" not in table.metadata.configuration
    assert table.metadata.configuration["delta.columnMapping.maxColumnId"] == "7"
    entry = last(table)
    assert (entry.operation, entry.parameters) == ("RESTORE", {"version": "0", "timestamp": "null"})
    assert table.restore(2) == 4
    assert read_delta(uri).column_names == ["a", "s", "l", "p"]


def test_a_restore_swaps_files(table, uri):
    before = read_delta(uri)
    deltalake.write_deltalake(uri, ROWS.slice(0, 1), mode="overwrite")
    deltalake.write_deltalake(uri, ROWS, mode="append")
    table.restore(0)
    assert read_delta(uri).sort_by("a").equals(before.sort_by("a"))
    metrics = last(table).metrics
    assert (metrics["numRestoredFiles"], metrics["numRemovedFiles"]) == ("2", "3")
    assert table.restore(timestamp=table.history()[1].timestamp) == 4
    assert read_delta(uri).num_rows == 3


def test_a_restore_of_vacuumed_files_is_refused(table, uri):
    deltalake.write_deltalake(uri, ROWS.slice(0, 1), mode="overwrite")
    shutil.rmtree(f"{uri}/p=r")
    with pytest.raises(IntegrityError, match="1 of 2 files that would come back"):
        table.restore(0)
    assert table.version == 1


def test_a_restore_needs_a_target(table):
    with pytest.raises(InvalidInput, match="a version or a time"):
        table.restore()


# --- tables of our own


def test_a_versioned_table_is_looked_at_but_not_changed(tmp_path):
    project = Project.open("P", str(tmp_path), author="Ada <ada@example.org>")
    project.table("t").write(ROWS)
    table = Table(project.table("t").store)
    assert table.schema.names == ("a", "b", "s", "l", "p")
    with pytest.raises(InvalidInput, match="versioned table"):
        table.set_properties({"a": "b"})
    assert table.version == 0


def test_a_checkpoint_is_written_and_read(table, uri):
    table.set_properties({"owner": "ada"})
    assert table.checkpoint() == 1
    assert deltalake.DeltaTable(uri).to_pyarrow_table().num_rows == 2
    assert (table.store.local_path("_delta_log") / "00000000000000000001.checkpoint.parquet").exists()


def test_a_snapshot_follows_others_and_looks_back(table, uri):
    assert table.snapshot().version == 0
    deltalake.write_deltalake(uri, ROWS, mode="append")
    assert (table.version, table.files().num_rows, table.files(0).num_rows) == (1, 4, 2)
    first = table.history()[-1].timestamp
    assert table.snapshot(timestamp=first).version == 0
    assert table.snapshot(timestamp=first.isoformat()).version == 0
    for bad in ({"version": 0, "timestamp": first}, {"timestamp": "yesterday"}):
        with pytest.raises(InvalidInput, match="Nothing was read"):
            table.snapshot(**bad)


def test_a_table_is_not_created_with_a_property_that_means_nothing(tmp_path):
    with pytest.raises(InvalidInput, match="'true' or 'false'"):
        write_delta(str(tmp_path / "new"), ROWS, properties={"delta.enableDeletionVectors": "1"})
    assert not (tmp_path / "new").exists()


OWN = {
    "delta.columnMapping.mode": "delta.columnMapping.maxColumnId",
    "delta.enableInCommitTimestamps": "delta.inCommitTimestampEnablementVersion",
    "delta.enableRowTracking": "delta.rowTracking.materializedRowIdColumnName",
}


@pytest.mark.parametrize(("feature", "own"), OWN.items())
def test_a_table_is_not_created_with_what_it_keeps_itself(table, tmp_path, feature, own):
    new = tmp_path / "new"
    properties = {feature: "name" if "mode" in feature else "true", own: "7"}
    for change in (
        lambda: write_delta(str(new), ROWS, properties=properties),
        lambda: create_delta(str(new), StructType([StructField("v", "string")]), properties=properties),
        lambda: table.set_properties(properties),
    ):
        with pytest.raises(InvalidInput, match=f"'{own}' is kept by the table itself"):
            change()
    assert not new.exists()
    assert table.version == 0


def test_a_table_has_the_name_that_it_is_given(tmp_path):
    columns = StructType([StructField("v", "string"), StructField("p", "string")])
    uri = str(tmp_path / "new")
    create_delta(uri, columns, partition_by=["p"], name="rows", description="of a test")
    assert (Table(uri).metadata.name, Table(uri).metadata.description) == ("rows", "of a test")
    write_delta(f"{uri}2", pa.table({"v": ["a"], "p": ["b"]}), partition_by=["p"])
    assert Table(f"{uri}2").metadata.name is None


def test_a_restore_takes_no_mark_back(tmp_path):
    uri = str(tmp_path)
    steps = {"delta.identity.start": 1, "delta.identity.step": 1, "delta.identity.allowExplicitInsert": False}
    create_delta(uri, StructType([StructField("id", "long", True, steps), StructField("v", "string")]))
    write_delta(uri, pa.table({"v": ["a"]}))
    write_delta(uri, pa.table({"v": ["b"]}))
    table = Table(uri)
    table.cluster_by("v")
    table.set_properties({"delta.enableInCommitTimestamps": "true", "owner": "ada"})
    table.restore(1)
    assert "delta.clustering" not in table.snapshot().domains
    assert table.metadata.configuration["delta.enableInCommitTimestamps"] == "true"
    assert "owner" not in table.metadata.configuration
    write_delta(uri, pa.table({"v": ["c"]}))
    assert sorted(row["id"] for row in read_delta(uri).to_pylist()) == [1, 3]


def test_a_restore_gives_deletion_vectors_back(table, uri):
    table.set_properties({"delta.enableDeletionVectors": "true"})
    write_delta(uri, pa.concat_tables([ROWS, ROWS.slice(0, 1)]), "overwrite")
    delete_from(uri, "a = 2")
    delete_from(uri, "a = 1")
    table.restore(3)
    assert read_delta(uri)["a"].to_pylist() == [1, 1]
    table.restore(2)
    assert sorted(read_delta(uri)["a"].to_pylist()) == [1, 1, 2]


def test_a_table_that_only_grows_is_not_restored(table, uri):
    write_delta(uri, ROWS)
    table.set_properties({"delta.appendOnly": "true"})
    with pytest.raises(InvalidInput, match="append-only"):
        table.restore(0)
