"""Columns that files call otherwise than the table: found by physical name or by field id, at every depth."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_versioned.delta.column_mapping import ID, PHYSICAL_NAME
from dagster_versioned.delta.partition_values import typed_columns
from dagster_versioned.delta.schema import ArrayType, MapType, StructField, StructType
from dagster_versioned.delta.snapshot import load_snapshot
from dagster_versioned.engines.arrow_scan import stream_table
from dagster_versioned.engines.delta_table import delta_scan, read_delta
from dagster_versioned.errors import IntegrityError, LogCorrupt, UnsupportedType
from dagster_versioned.storage import LocalStore


def member(name: str, number: int, data_type="long", physical: str | None = None) -> StructField:
    return StructField(name, data_type, True, {ID: number, PHYSICAL_NAME: physical or f"p{number}"})


# Names cross over: what the table calls `a` is `b` in the files, and the other way round.
INNER = StructType([member("x", 10, physical="y"), member("y", 11, "string", "x"), member("new", 12)])
SCHEMA = StructType(
    [
        member("a", 1, physical="b"),
        member("b", 2, physical="a"),
        member("s", 3, INNER),
        member("l", 4, ArrayType(INNER)),
        member("m", 5, MapType("string", ArrayType(INNER))),
        member("later", 6, "string"),
        member("part", 7, "integer", "part-7"),
    ]
)


def stored(name: str, number: int, data_type: pa.DataType) -> pa.Field:
    return pa.field(name, data_type, metadata={"PARQUET:field_id": str(number)})


OLD_INNER = pa.struct([stored("x", 11, pa.string()), stored("dropped", 99, pa.int64()), stored("y", 10, pa.int64())])
FILE = pa.schema(
    [
        stored("dropped", 98, pa.string()),
        stored("a", 2, pa.int64()),
        stored("b", 1, pa.int64()),
        stored("p3", 3, OLD_INNER),
        stored("p4", 4, pa.list_(pa.field("element", OLD_INNER))),
        stored("p5", 5, pa.map_(pa.string(), pa.list_(pa.field("element", OLD_INNER)))),
    ]
)
HELD = {"x": "eleven", "dropped": 0, "y": 10}
SHOWN = {"x": 10, "y": "eleven", "new": None}
ROWS = [
    {"dropped": "d", "a": 2, "b": 1, "p3": HELD, "p4": [HELD, None], "p5": [("k", [HELD]), ("n", None)]},
    {"dropped": None, "a": None, "b": None, "p3": None, "p4": None, "p5": None},
    {"dropped": "d", "a": 4, "b": 3, "p3": dict.fromkeys(HELD), "p4": [], "p5": []},
]
EXPECTED = [
    {"a": 1, "b": 2, "s": SHOWN, "l": [SHOWN, None], "m": [("k", [SHOWN]), ("n", None)]},
    {"a": None, "b": None, "s": None, "l": None, "m": None},
    {"a": 3, "b": 4, "s": dict.fromkeys(SHOWN), "l": [], "m": []},
]


def create(root: Path, mode: str, table: pa.Table, schema: StructType = SCHEMA, legacy: bool = False, **add) -> str:
    pq.write_table(table, root / "f.parquet", row_group_size=2)
    feature = {"readerFeatures": ["columnMapping"], "writerFeatures": ["columnMapping"]}
    protocol = {"minReaderVersion": 2, "minWriterVersion": 5}
    metadata = {
        "id": "1",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema.json(),
        "partitionColumns": ["part"] if "part" in schema.names else [],
        "configuration": {"delta.columnMapping.mode": mode},
    }
    file = {
        "path": "f.parquet",
        "partitionValues": {"part-7": "5"} if "part" in schema.names else {},
        "size": (root / "f.parquet").stat().st_size,
        "modificationTime": 0,
        "dataChange": True,
    }
    actions = [
        {"protocol": protocol if legacy else {"minReaderVersion": 3, "minWriterVersion": 7, **feature}},
        {"metaData": metadata},
        {"add": file | add},
    ]
    (root / "_delta_log").mkdir()
    (root / "_delta_log" / f"{0:020d}.json").write_text("\n".join(map(json.dumps, actions)))
    return str(root)


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
    with pytest.raises(IntegrityError, match="told apart"):
        read_delta(uri)


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
