"""Columns that files call otherwise than the table: found by physical name or by field id, at every depth."""

import pyarrow as pa
import pytest

from dagster_versioned.delta.files.partition_values import typed_columns
from dagster_versioned.delta.log.snapshot import load_snapshot
from dagster_versioned.delta.schema.column_mapping import ID, PHYSICAL_NAME
from dagster_versioned.delta.schema.types import ArrayType, StructField, StructType
from dagster_versioned.delta_tables.read import delta_scan, read_delta
from dagster_versioned.engines.arrow.scan import stream_table
from dagster_versioned.errors import IntegrityError, LogCorrupt, UnsupportedType
from dagster_versioned.storage import LocalStore
from support.mapped_columns import EXPECTED, FILE, ROWS, SCHEMA, create, member, stored


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("mode", ["name", "id"])
def test_columns_are_found_at_every_depth(tmp_path, mode, legacy):
    uri = create(tmp_path, mode, pa.Table.from_pylist(ROWS, FILE), legacy=legacy)
    expected = [row | {"later": None, "part": 5} for row in EXPECTED]
    result = read_delta(uri)
    assert result.to_pylist() == expected
    assert result.column_names == list(SCHEMA.names)
    for columns in (["b"], ["m", "a"], ["part"], ["later", "s"]):
        assert read_delta(uri, columns=columns).to_pylist() == [{c: row[c] for c in columns} for row in expected]
    store = LocalStore(tmp_path)
    assert stream_table(delta_scan(store, load_snapshot(store))).read_all().to_pylist() == expected


def test_ids_count_and_names_do_not(tmp_path):
    strange = pa.schema(
        [stored(f"n{i}", int((f.metadata or {})[b"PARQUET:field_id"]), f.type) for i, f in enumerate(FILE)]
    )
    table = pa.Table.from_arrays(pa.Table.from_pylist(ROWS, FILE).columns, schema=strange)
    assert read_delta(create(tmp_path, "id", table)).select(["a", "b"]).to_pylist() == [
        {"a": row["a"], "b": row["b"]} for row in EXPECTED
    ]


def test_names_count_and_ids_do_not(tmp_path):
    plain = pa.Table.from_pylist(ROWS, FILE).select(["a", "b"]).cast(pa.schema([("a", pa.int64()), ("b", pa.int64())]))
    assert read_delta(create(tmp_path, "name", plain), columns=["a", "b"]).to_pylist()[0] == {"a": 1, "b": 2}


def test_a_file_without_ids_is_refused_by_id(tmp_path):
    uri = create(tmp_path, "id", pa.table({"a": [1]}))
    with pytest.raises(IntegrityError, match=r"f\.parquet.*No column has a field id"):
        read_delta(uri)


def test_two_columns_of_one_id_are_refused(tmp_path):
    twice = pa.schema([stored("x", 1, pa.int64()), stored("y", 1, pa.int64())])
    uri = create(tmp_path, "id", pa.Table.from_pylist([{"x": 1, "y": 2}], twice))
    with pytest.raises(IntegrityError, match="have one name"):
        read_delta(uri)


def test_a_struct_without_ids_is_refused_by_id(tmp_path):
    """As a column is: the part is not what was committed, whoever asks for it."""
    kind = pa.struct([pa.field("x", pa.int64())])
    file = pa.schema([field if field.name != "p3" else stored("p3", 3, kind) for field in FILE])
    rows = [{**row, "p3": {"x": 1}} for row in ROWS]
    with pytest.raises(IntegrityError, match=r"f\.parquet.*No column has a field id"):
        read_delta(create(tmp_path, "id", pa.Table.from_pylist(rows, file)))


def test_another_kind_of_column_under_the_name_is_refused(tmp_path):
    uri = create(tmp_path, "name", pa.table({"p3": [[1]]}))
    with pytest.raises(UnsupportedType, match=r"'s'.*f\.parquet"):
        read_delta(uri)


def test_partition_values_have_physical_names(tmp_path):
    uri = create(tmp_path, "name", pa.table({"b": [1]}), partitionValues={"part": "5"})
    with pytest.raises(LogCorrupt, match=r"f\.parquet.*part-7"):
        read_delta(uri)
    (tmp_path / "other").mkdir()
    create(tmp_path / "other", "name", pa.table({"b": [1]}))
    snapshot = load_snapshot(LocalStore(tmp_path / "other"))
    typed = typed_columns(snapshot.files, snapshot.schema, ["part"], snapshot.column_mapping)
    assert typed.to_pylist() == [{"part": 5}]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ([StructField("a", "long")], "physicalName"),
        ([StructField("a", "long", True, {PHYSICAL_NAME: 5, ID: 1})], "physicalName"),
        ([StructField("a", "long", True, {PHYSICAL_NAME: "a"})], ID),
        ([StructField("a", "long", True, {PHYSICAL_NAME: "a", ID: 2**31})], ID),
        ([member("a", 1), member("b", 1, physical="q")], "same physical name or id"),
        ([member("a", 1), member("b", 2, physical="p1")], "same physical name or id"),
        ([member("s", 1, ArrayType(StructType([StructField("a", "long")])))], "physicalName"),
    ],
)
def test_a_schema_that_maps_nothing_is_refused(tmp_path, fields, reason):
    uri = create(tmp_path, "id", pa.table({"a": [1]}), StructType(fields))
    with pytest.raises(LogCorrupt, match=reason):
        read_delta(uri)


@pytest.mark.parametrize(
    ("narrow", "wide", "value", "read"),
    [
        (pa.int8(), "long", 5, 5),
        (pa.int32(), "long", -5, -5),
        (pa.int16(), "integer", 5, 5),
        (pa.int32(), "double", 5, 5.0),
        (pa.float32(), "double", 0.5, 0.5),
        (pa.int32(), "decimal(12,2)", 5, "5.00"),
        (pa.int64(), "decimal(22,2)", 5, "5.00"),
        (pa.decimal128(5, 2), "decimal(9,4)", "1.25", "1.2500"),
        (pa.date32(), "timestamp_ntz", "2024-02-29", "2024-02-29 00:00:00"),
    ],
)
@pytest.mark.parametrize("mode", ["none", "name"])
def test_types_that_were_widened_later(tmp_path, narrow, wide, value, read, mode):
    values = pa.array([value, None]).cast(narrow)
    schema = StructType([member("v", 1, wide), member("l", 2, ArrayType(StructType([member("w", 3, wide)])))])
    lists = pa.array([[{"p3": v}] for v in values], pa.list_(pa.field("element", pa.struct([("p3", narrow)]))))
    table = pa.table({"p1": values, "p2": lists})
    if mode == "none":
        schema = StructType(
            [StructField("p1", wide), StructField("p2", ArrayType(StructType([StructField("p3", wide)])))]
        )
    result = read_delta(create(tmp_path, mode, table, schema)).rename_columns(["v", "l"])
    assert str(result["v"][0].as_py()) == str(read)
    assert result["v"][1].as_py() is None
    assert list(result["l"][0].as_py()[0].values()) == [result["v"][0].as_py()]
