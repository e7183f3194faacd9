"""Appending to and overwriting any Delta table from Arrow."""

import datetime as dt
import json
import os
from decimal import Decimal

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_versioned.delta import Table
from dagster_versioned.delta.log.snapshot import load_snapshot
from dagster_versioned.delta_tables.read import read_delta
from dagster_versioned.delta_tables.write import create_delta, delete_from, write_delta
from dagster_versioned.errors import InvalidInput, UnsupportedFrame, UnsupportedType
from dagster_versioned.storage import LocalStore
from dagster_versioned.storage.wrappers import Fault, FaultStore
from support.delta_writes import FEATURES, files_of, last_commit, rows_of, schema

THREE = pa.table({"id": [1, 2, 3], "p": ["a", "b", None], "v": [1.5, None, 3.5]})


@pytest.mark.parametrize("properties", FEATURES.values(), ids=FEATURES.keys())
@pytest.mark.parametrize("partition_by", [(), ("p",)], ids=["flat", "partitioned"])
def test_rows_are_appended_and_overwritten(table, properties, partition_by):
    write_delta(str(table), THREE, partition_by=partition_by, properties=properties)
    write_delta(str(table), pa.table({"id": [4], "p": ["a"], "v": [4.5]}))
    assert [row["id"] for row in rows_of(table)] == [1, 2, 3, 4]
    done = write_delta(str(table), pa.table({"id": [9], "p": ["z"], "v": [None]}, THREE.schema), "overwrite")
    assert rows_of(table) == [{"id": 9, "p": "z", "v": None}]
    assert done.version == 2
    assert done.metrics["numOutputRows"] == 1


def test_every_type_comes_back_as_it_was(table):
    zone = dt.UTC
    rows = pa.table(
        {
            "long": pa.array([1, None], pa.int64()),
            "int": pa.array([-(2**31), 2**31 - 1], pa.int32()),
            "short": pa.array([1, 2], pa.int16()),
            "byte": pa.array([1, 2], pa.int8()),
            "float": pa.array([float("nan"), -0.0], pa.float32()),
            "double": pa.array([float("inf"), 1.5]),
            "bool": [True, None],
            "text": ["é\n", ""],
            "bytes": [b"\0", b""],
            "decimal": pa.array([Decimal("1.10"), None], pa.decimal128(38, 2)),
            "day": [dt.date(1, 1, 1), dt.date(9999, 12, 31)],
            "time": pa.array([dt.datetime(1960, 1, 1, tzinfo=zone), None], pa.timestamp("us", "UTC")),
            "wall": pa.array([dt.datetime(2020, 1, 1, 0, 0, 0, 1), None], pa.timestamp("us")),
            "list": [[1, None], None],
            "map": pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int64())),
            "struct": [{"x": 1, "y": [{"z": "q"}]}, None],
        }
    )
    for name, properties in FEATURES.items():
        place = table / name
        write_delta(str(place), rows, properties=properties)
        assert repr(read_delta(str(place)).to_pylist()) == repr(rows.to_pylist())


@pytest.mark.parametrize("frame", [pd.DataFrame({"id": [1, 2]}), pl.DataFrame({"id": [1, 2]}).lazy()], ids=["pd", "pl"])
def test_frames_of_the_family_are_taken(table, frame):
    write_delta(str(table), frame)
    write_delta(str(table), pa.table({"id": [3]}).to_reader())
    assert [row["id"] for row in rows_of(table)] == [1, 2, 3]


def test_columns_are_found_whatever_their_case_and_order_and_those_left_out_are_null(table):
    write_delta(str(table), THREE)
    write_delta(str(table), pa.table({"V": [7.0], "ID": [4]}))
    assert rows_of(table)[-1] == {"id": 4, "p": None, "v": 7.0}


def test_values_are_cast_as_far_as_nothing_is_lost(table):
    write_delta(str(table), pa.table({"n": pa.array([1], pa.int16()), "d": pa.array([Decimal("1.5")])}))
    write_delta(str(table), pa.table({"n": [2], "d": [3]}))
    assert rows_of(table)[-1] == {"n": 2, "d": Decimal("3.0")}
    before = files_of(table)
    for bad in (pa.table({"n": [2**20]}), pa.table({"d": [Decimal("1.55")]})):
        with pytest.raises(UnsupportedType, match="without loss"):
            write_delta(str(table), bad)
    assert files_of(table) == before


def test_a_column_that_the_table_lacks_is_refused_by_name(table):
    write_delta(str(table), THREE)
    with pytest.raises(InvalidInput, match=r"no column 'w'.*schema_mode='merge'"):
        write_delta(str(table), pa.table({"id": [1], "w": [1]}))
    with pytest.raises(UnsupportedFrame):
        write_delta(str(table), [1, 2])  # no frame at all
    assert load_snapshot(LocalStore(table)).version == 0


def test_modes_for_a_table_that_is_there(table):
    write_delta(str(table), THREE, "error")
    with pytest.raises(InvalidInput, match="There is a table in"):
        write_delta(str(table), THREE, "error")
    assert write_delta(str(table), THREE, "ignore").version == 0
    with pytest.raises(InvalidInput, match="partitioned by"):
        write_delta(str(table), THREE, partition_by=["p"])
    with pytest.raises(InvalidInput, match="mode='overwrite'"):
        write_delta(str(table), THREE, where="id = 1")
    with pytest.raises(InvalidInput, match="exists already"):
        write_delta(str(table), THREE, properties={"delta.appendOnly": "true"})


def test_a_versioned_table_is_left_to_its_asset(table):
    schema_of = schema(("id", "long"))
    create_delta(str(table), schema_of, properties={"delta.feature.domainMetadata": "supported"})
    from dagster_versioned.delta.actions import DomainMetadata
    from dagster_versioned.delta.commit.transaction import Transaction, commit

    store = LocalStore(table)
    read = load_snapshot(store)
    commit(store, read, lambda now: Transaction(now, [DomainMetadata("dagster_versioned.version", "{}")], "VERSION"))
    for attempt in (lambda: write_delta(str(table), pa.table({"id": [1]})), lambda: delete_from(str(table))):
        with pytest.raises(InvalidInput, match="materializing its asset"):
            attempt()


# --- partitions ------------------------------------------------------------------------------------------------------


def test_partition_values_of_every_type(table):
    rows = pa.table(
        {
            "x": [1, 2],
            "text": ["a/b=c%", None],
            "n": [5, None],
            "day": [dt.date(2020, 1, 1), None],
            "time": pa.array([dt.datetime(2020, 1, 1, 1, 2, 3, 4, tzinfo=dt.UTC), None]),
            "d": [Decimal("1.50"), None],
            "flag": [True, False],
            "long": ["x" * 300, None],
        }
    )
    write_delta(str(table), rows, partition_by=["text", "n", "day", "time", "d", "flag"])
    write_delta(str(table), rows, partition_by=["text", "n", "day", "time", "d", "flag"])
    assert read_delta(str(table)).num_rows == 4
    assert sorted(map(repr, read_delta(str(table)).to_pylist()[::2])) == sorted(map(repr, rows.to_pylist()))
    write_delta(str(table / "long"), rows.select(["x", "long"]), partition_by=["long"])
    assert {row["long"] for row in rows_of(table / "long")} == {"x" * 300, None}


def test_one_file_a_partition_whatever_the_order_of_the_rows(table):
    rows = pa.table({"p": [i % 3 for i in range(99)], "q": [i % 2 for i in range(99)], "x": list(range(99))})
    write_delta(str(table), rows, partition_by=["p", "q"])
    assert len(files_of(table)) == 6
    assert sorted(row["x"] for row in rows_of(table)) == list(range(99))


def test_overwriting_where_a_partition_predicate_holds_replaces_whole_files(table):
    write_delta(str(table), THREE, partition_by=["p"])
    kept = {add.key for add in load_snapshot(LocalStore(table)).adds() if add.partition_values["p"] != "a"}
    done = write_delta(str(table), pa.table({"id": [7], "p": ["a"], "v": [0.0]}), "overwrite", where="p = 'a'")
    assert [row["id"] for row in rows_of(table)] == [2, 3, 7]
    assert kept < {add.key for add in load_snapshot(LocalStore(table)).adds()}
    assert last_commit(table).commit_info["operationParameters"]["predicate"] == "p = 'a'"
    assert done.metrics["numRemovedFiles"] == 1


@pytest.mark.parametrize("properties", FEATURES.values(), ids=FEATURES.keys())
def test_overwriting_where_a_predicate_on_data_holds_keeps_the_other_rows(table, properties):
    write_delta(str(table), THREE, properties=properties)
    write_delta(str(table), pa.table({"id": [5, 6]}), "overwrite", where="id >= 2 and (v > 1 or v is null)")
    assert {row["id"] for row in rows_of(table)} == {1, 5, 6}


def test_a_row_outside_of_what_is_overwritten_is_refused_and_nothing_is_left(table):
    write_delta(str(table), THREE, partition_by=["p"])
    before = files_of(table)
    with pytest.raises(InvalidInput, match="1 of 2 rows are not in what is replaced: p = 'a'"):
        write_delta(str(table), pa.table({"id": [7, 8], "p": ["a", "b"]}), "overwrite", where="p = 'a'")
    assert files_of(table) == before
    assert load_snapshot(LocalStore(table)).version == 0


def test_dynamic_overwrite_replaces_the_partitions_of_the_new_rows(table):
    write_delta(str(table), THREE, partition_by=["p"])
    write_delta(str(table), pa.table({"id": [7, 8], "p": ["a", None]}), "overwrite", dynamic=True)
    assert sorted(row["id"] for row in rows_of(table)) == [2, 7, 8]
    write_delta(str(table), THREE.slice(0, 0), "overwrite", dynamic=True)
    assert sorted(row["id"] for row in rows_of(table)) == [2, 7, 8]


# --- schema evolution ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("properties", FEATURES.values(), ids=FEATURES.keys())
def test_new_columns_are_added_at_any_depth(table, properties):
    write_delta(str(table), pa.table({"id": [1], "s": [{"a": 1}]}), properties=properties)
    more = pa.table({"s": [{"A": 2, "b": "x"}], "id": [2], "n": [[{"k": 1}]]})
    write_delta(str(table), more, schema_mode="merge")
    assert rows_of(table) == [
        {"id": 1, "s": {"a": 1, "b": None}, "n": None},
        {"id": 2, "s": {"a": 2, "b": "x"}, "n": [{"k": 1}]},
    ]


def test_types_are_widened_where_the_table_allows_it(table):
    narrow = pa.table({"n": pa.array([1], pa.int32())})
    wide = pa.table({"n": [2**40]})
    write_delta(str(table / "no"), narrow)
    with pytest.raises(UnsupportedType):
        write_delta(str(table / "no"), wide, schema_mode="merge")
    write_delta(str(table / "yes"), narrow, properties={"delta.enableTypeWidening": "true"})
    write_delta(str(table / "yes"), wide, schema_mode="merge")
    assert sorted(read_delta(str(table / "yes"))["n"].to_pylist()) == [1, 2**40]
    (field,) = load_snapshot(LocalStore(table / "yes")).schema.fields
    assert field.metadata["delta.typeChanges"] == [{"fromType": "integer", "toType": "long"}]


def test_overwriting_the_schema_changes_columns_and_partitions(table):
    write_delta(str(table), THREE, partition_by=["p"])
    write_delta(str(table), pa.table({"x": [1], "id": ["a"]}), "overwrite", schema_mode="overwrite", partition_by=["x"])
    assert rows_of(table) == [{"x": 1, "id": "a"}]
    assert load_snapshot(LocalStore(table)).partition_columns == ("x",)
    with pytest.raises(InvalidInput, match="every row"):
        write_delta(str(table), THREE, schema_mode="overwrite")


# --- files -----------------------------------------------------------------------------------------------------------


def test_columns_of_mapped_tables_have_physical_names_and_ids_in_files(table):
    write_delta(str(table), pa.table({"a": [1], "s": [{"b": 2}]}), properties={"delta.columnMapping.mode": "id"})
    (name,) = files_of(table)
    stored = pq.read_schema(table / name)
    fields = load_snapshot(LocalStore(table)).schema.fields
    assert stored.names == [field.metadata["delta.columnMapping.physicalName"] for field in fields]
    assert [field.metadata[b"PARQUET:field_id"] for field in stored] == [b"1", b"2"]
    inner = stored.field(1).type.field(0)
    assert inner.metadata[b"PARQUET:field_id"] == b"3"


def test_statistics_are_of_the_columns_that_the_table_says(table):
    rows = pa.table({"a": [1, 2], "b": ["x", None], "s": [{"c": 1, "d": 2}] * 2})
    write_delta(str(table), rows, properties={"delta.dataSkippingStatsColumns": "b, s.d"})
    (add,) = load_snapshot(LocalStore(table)).adds()
    assert add.stats == (
        '{"numRecords":2,"minValues":{"b":"x","s":{"d":2}},"maxValues":{"b":"x","s":{"d":2}},'
        '"nullCount":{"b":1,"s":{"d":0}}}'
    )


def test_a_commit_says_what_was_done(table):
    write_delta(str(table), THREE, partition_by=["p"])
    info = last_commit(table).commit_info
    assert info["operation"] == "WRITE"
    assert info["operationParameters"] == {"mode": "Append", "partitionBy": '["p"]'}
    assert info["isBlindAppend"] is True
    assert info["operationMetrics"]["numFiles"] == "3"
    write_delta(str(table), THREE, "overwrite")
    info = last_commit(table).commit_info
    assert info["isBlindAppend"] is False
    assert info["readVersion"] == 0
    assert info["operationParameters"]["mode"] == "Overwrite"


@pytest.mark.parametrize(
    "asked",
    [
        {"delta.feature.materializePartitionColumns": "supported"},
        {"delta.writePartitionColumnsToParquet": "true"},
        {"delta.writePartitionColumnsToParquet": "false"},
    ],
)
@pytest.mark.parametrize("properties", [{}, {"delta.columnMapping.mode": "name"}], ids=["plain", "mapped"])
def test_partition_columns_are_in_the_files_too_where_the_table_asks_for_it(table, asked, properties):
    rows = pa.table({"p": ["a", "b"], "id": [1, 2]})
    write_delta(str(table), rows, partition_by=["p"], properties={**asked, **properties})
    write_delta(str(table), rows)
    delete_from(str(table), "id = 2")
    stored = {len(pq.read_schema(table / name).names) for name in files_of(table)}
    assert stored == ({1} if "false" in asked.values() else {2})
    assert read_delta(str(table)).select(["p", "id"]).to_pylist() == [{"p": "a", "id": 1}] * 2
    statistics = [json.loads(add.stats or "")["nullCount"] for add in load_snapshot(LocalStore(table)).adds()]
    assert {len(counts) for counts in statistics} == {1}


def aged_log(table, **properties):
    """A table with a checkpoint every two versions, all of whose log so far is of 1970."""
    write_delta(str(table), pa.table({"id": [0]}), properties={"delta.checkpointInterval": "2", **properties})
    for number in range(1, 4):
        write_delta(str(table), pa.table({"id": [number]}))
    for path in (table / "_delta_log").iterdir():
        os.utime(path, (1, 1))
    return sorted(path.name for path in (table / "_delta_log").glob("*.json"))


@pytest.mark.parametrize("kept", ["true", "false"])
def test_what_is_too_old_in_the_log_goes_with_the_next_checkpoint(table, kept):
    before = aged_log(table, **{"delta.enableExpiredLogCleanup": kept})
    write_delta(str(table), pa.table({"id": [4]}))
    after = sorted(path.name for path in (table / "_delta_log").glob("*.json"))
    assert after == [*(before if kept == "false" else before[2:]), "00000000000000000004.json"]
    assert sorted(row["id"] for row in rows_of(table)) == [0, 1, 2, 3, 4]
    assert load_snapshot(LocalStore(table), 2).num_files == 3


def test_a_commit_stands_though_the_log_behind_it_cannot_be_cleaned_up(table):
    aged_log(table)
    store = FaultStore(LocalStore(table), lambda call: Fault.BEFORE if call.verb == "delete" else None)
    assert write_delta(store, pa.table({"id": [4]})).version == 4
    Table(str(table)).checkpoint()
    assert load_snapshot(LocalStore(table)).num_files == 5
    assert not (table / "_delta_log" / "00000000000000000001.json").exists()


def test_checkpoints_are_written_as_often_as_the_table_says(table):
    write_delta(str(table), pa.table({"id": [0]}), properties={"delta.checkpointInterval": "2"})
    for i in range(1, 5):
        write_delta(str(table), pa.table({"id": [i]}))
    written = sorted(path.name for path in (table / "_delta_log").glob("*.checkpoint.parquet"))
    assert [int(name[:20]) for name in written] == [2, 4]
    for version in range(4):
        (table / "_delta_log" / f"{version:020d}.json").unlink()
    assert [row["id"] for row in rows_of(table)] == [0, 1, 2, 3, 4]


def test_names_that_the_change_feed_needs_are_refused(table):
    rows = pa.table({"id": [1], "_Change_Type": ["x"]})
    with pytest.raises(InvalidInput, match="_Change_Type"):
        write_delta(str(table), rows, properties={"delta.enableChangeDataFeed": "true"})
    assert not files_of(table)
    write_delta(str(table), rows)


def test_tables_for_iceberg_keep_partition_columns_and_ids_of_elements_in_files(table):
    properties = {"delta.enableIcebergCompatV2": "true", "delta.columnMapping.mode": "name"}
    rows = pa.table({"id": [1, 2], "p": ["a", "b"], "l": [[1], None]})
    write_delta(str(table), rows, partition_by=["p"], properties=properties)
    assert rows_of(table) == rows.to_pylist()
    stored = pq.read_schema(table / min(files_of(table)))
    assert len(stored.names) == 3
    element = stored.field(1).type.value_field
    assert element.metadata[b"PARQUET:field_id"]


@pytest.mark.parametrize("rows", [3, 120_000])
def test_statistics_are_the_same_for_texts_that_were_only_copied(table, rows):
    words = pa.array(["b", "c", None, "a"]).take(pa.array([i % 4 for i in range(rows)]))
    write_delta(str(table), pa.table({"id": list(range(rows)), "w": words}))
    delete_from(str(table), "id = 1")
    (add,) = load_snapshot(LocalStore(table)).adds()
    kept = pa.table({"id": range(rows), "w": words}).filter(pa.array([i != 1 for i in range(rows)]))
    assert read_delta(str(table)).equals(kept)
    assert f'"maxValues":{{"id":{rows - 1},"w":"{"b" if rows == 3 else "c"}"}}' in add.stats
    assert f'"nullCount":{{"id":0,"w":{kept["w"].null_count}}}' in add.stats
