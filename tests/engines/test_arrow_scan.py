"""Reading exact files: in order, as the asked schema, and not one row of a part that is not what was committed."""

from dataclasses import replace

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_versioned.delta.schema.types import StructField, StructType
from dagster_versioned.engines.arrow.engine import ArrowEngine
from dagster_versioned.engines.conform import stored_schema
from dagster_versioned.engines.parts import WriteOptions
from dagster_versioned.engines.scan import Scan, ScanFile
from dagster_versioned.engines.staging import Staging
from dagster_versioned.errors import IntegrityError, InvalidInput, UnsupportedFrame, UnsupportedType
from dagster_versioned.storage import LocalStore
from support.remote_store import RemoteStore

ENGINE = ArrowEngine()
TABLE = pa.table({"id": list(range(3000)), "s": [f"row {i}" for i in range(3000)], "a.b": [i % 3 for i in range(3000)]})


@pytest.fixture(params=[LocalStore, RemoteStore])
def scan(request, tmp_path) -> Scan:
    """Three parts and more of `TABLE`."""
    store = request.param(tmp_path)
    staging = Staging(store, "w1")
    written = ENGINE.write(TABLE, staging, WriteOptions(row_group_bytes=20_000, target_part_bytes=1))
    staging.promote_all((part, f"{part.sha256}.parquet") for part in written.parts)
    assert len(written.parts) > 3
    files = tuple(ScanFile(f"{p.sha256}.parquet", p.size, p.sha256, p.num_records) for p in written.parts)
    return Scan(store, written.contents.schema, files)


@pytest.fixture
def foreign(tmp_path):
    """Makes a scan of files that another program wrote."""

    def make(tables, schema=None, **file) -> Scan:
        store = LocalStore(tmp_path)
        files = []
        for i, table in enumerate(tables):
            pq.write_table(table, tmp_path / f"{i}.parquet")
            files.append(ScanFile(f"{i}.parquet", (tmp_path / f"{i}.parquet").stat().st_size, **file))
        return Scan(store, stored_schema(schema or tables[0].schema), tuple(files))

    return make


def flip_a_bit(scan: Scan, index: int, at: int) -> None:
    key = scan.files[index].key
    data = bytearray(scan.store.get(key))
    data[at] ^= 1
    scan.store.put(key, bytes(data))


def test_all_rows_come_in_order(scan):
    assert ENGINE.read(scan).equals(TABLE)
    assert ENGINE.read(scan, pa.RecordBatchReader).read_all().equals(TABLE)


def test_no_files_are_no_rows(scan):
    empty = replace(scan, files=())
    assert ENGINE.read(empty).equals(TABLE.schema.empty_table())
    assert ENGINE.read(empty, pa.RecordBatchReader).read_all().equals(TABLE.schema.empty_table())
    assert ENGINE.read(empty, pd.DataFrame).shape == (0, 3)


@pytest.mark.parametrize("columns", [("s",), ("a.b", "id"), ("a.b",), ("id", "s", "a.b")])
def test_columns_come_as_asked(scan, columns):
    assert ENGINE.read(replace(scan, columns=columns)).equals(TABLE.select(columns))
    reader = ENGINE.read(replace(scan, columns=columns), pa.RecordBatchReader)
    assert reader.read_all().equals(TABLE.select(columns))


@pytest.mark.parametrize("columns", [("x",), ("id", "id"), ()])
def test_columns_that_make_no_sense_are_refused(scan, columns):
    with pytest.raises(InvalidInput, match="column"):
        replace(scan, columns=columns)


@pytest.mark.parametrize("at", [0, 5, 500, -200, -1])
@pytest.mark.parametrize("columns", [None, ("id",)])
def test_one_altered_bit_anywhere_is_found_before_any_row_is_returned(scan, at, columns):
    flip_a_bit(scan, 1, at)
    with pytest.raises(IntegrityError, match=scan.files[1].key):
        ENGINE.read(replace(scan, columns=columns))


def test_a_stream_checks_each_part_before_its_first_row(scan):
    flip_a_bit(scan, 1, 200)
    rows = []
    with pytest.raises(IntegrityError, match=scan.files[1].key):
        rows += [batch.num_rows for batch in ENGINE.read(scan, pa.RecordBatchReader)]


def test_a_stream_hands_out_the_good_parts_before_a_bad_one(scan):
    flip_a_bit(scan, 1, 200)
    reader = ENGINE.read(scan, pa.RecordBatchReader)
    assert reader.read_next_batch().num_rows == scan.files[0].num_records


def test_a_truncated_and_an_empty_part_are_found(scan):
    key = scan.files[0].key
    data = scan.store.get(key)
    for shorter in (data[:-1], data[:100], b""):
        scan.store.put(key, shorter)
        for frame_type in (pa.Table, pa.RecordBatchReader):
            with pytest.raises(IntegrityError, match=key):
                list(ENGINE.read(scan, frame_type))


def test_a_missing_part_is_named(scan):
    scan.store.delete([scan.files[2].key])
    with pytest.raises(IntegrityError, match=rf"{scan.files[2].key} is missing"):
        ENGINE.read(scan)


def test_another_part_in_its_place_is_found(scan):
    scan.store.put(scan.files[0].key, scan.store.get(scan.files[1].key))
    with pytest.raises(IntegrityError, match="altered"):
        ENGINE.read(scan)


def test_a_foreign_file_that_is_no_parquet_is_named(foreign):
    scan = foreign([pa.table({"a": [1]})])
    scan.store.put("0.parquet", b"PAR1 no PAR1")
    for frame_type in (pa.Table, pa.RecordBatchReader):
        with pytest.raises(IntegrityError, match=r"0\.parquet.*cannot be read as Parquet"):
            list(ENGINE.read(scan, frame_type))


def test_columns_that_a_file_lacks_are_null(foreign):
    tables = [pa.table({"a": [1]}), pa.table({"b": ["x"], "a": [2]}), pa.table({"b": ["y"]})]
    scan = foreign(tables, pa.schema([("a", pa.int64()), ("b", pa.string())]))
    expected = [{"a": 1, "b": None}, {"a": 2, "b": "x"}, {"a": None, "b": "y"}]
    assert ENGINE.read(scan).to_pylist() == expected
    assert ENGINE.read(scan, pa.RecordBatchReader).read_all().to_pylist() == expected
    assert ENGINE.read(replace(scan, columns=("b",)))["b"].to_pylist() == [None, "x", "y"]


def test_files_of_other_writers_come_as_the_schema_says(foreign):
    table = pa.table(
        {
            "s": pa.array(["a"], pa.large_string()),
            "t": pa.array([1], pa.timestamp("ms", "America/New_York")),
            "r": pa.array([{"x": 1}], pa.struct([("x", pa.int8())])),
        }
    )
    schema = pa.schema(
        [
            ("r", pa.struct([("x", pa.int64()), ("y", pa.string())])),
            ("t", pa.timestamp("us", "UTC")),
            ("s", pa.string()),
        ]
    )
    result = ENGINE.read(foreign([table], schema))
    assert result.schema == schema
    assert result["r"].to_pylist() == [{"x": 1, "y": None}]
    assert result["t"].cast(pa.int64()).to_pylist() == [1000]


@pytest.mark.skipif(int(pa.__version__.partition(".")[0]) < 23, reason="this pyarrow writes them as other times")
def test_int96_times_beyond_nanoseconds_are_read(tmp_path):
    table = pa.table({"t": pa.array([-60_000_000_000_000_000], pa.timestamp("us"))})  # in the year 68
    pq.write_table(table, tmp_path / "0.parquet", use_deprecated_int96_timestamps=True)
    schema = StructType([StructField("t", "timestamp")])
    scan = Scan(LocalStore(tmp_path), schema, (ScanFile("0.parquet", 1),))
    assert ENGINE.read(scan)["t"].cast(pa.int64()).to_pylist() == [-60_000_000_000_000_000]


def test_a_column_of_another_type_is_refused_by_name(foreign):
    scan = foreign([pa.table({"a": ["text"]})], pa.schema([("a", pa.int64())]))
    with pytest.raises(UnsupportedType, match="'a'"):
        ENGINE.read(scan)


def test_partition_values_become_columns(foreign):
    schema = pa.schema([("p", pa.int32()), ("a", pa.int64()), ("q", pa.string())])
    tables = [pa.table({"a": [1, 2]}), pa.table({"a": [3]})]
    scan = foreign(tables, schema, partition_values={"p": "7", "q": None})
    expected = pa.table({"p": [7] * 3, "a": [1, 2, 3], "q": [None] * 3}, schema=schema)
    assert ENGINE.read(scan).equals(expected)
    assert ENGINE.read(replace(scan, columns=("q", "p"))).equals(expected.select(["q", "p"]))
    assert ENGINE.read(scan, pa.RecordBatchReader).read_all().equals(expected)


def test_a_partition_column_in_the_file_does_not_win(foreign):
    scan = foreign([pa.table({"p": [1], "a": [1]})], partition_values={"p": "2"})
    assert ENGINE.read(scan)["p"].to_pylist() == [2]


@pytest.mark.parametrize("frame_type", [dict, pa.RecordBatch, pd.Series])
def test_other_types_cannot_be_read(scan, frame_type):
    with pytest.raises(UnsupportedFrame, match=r"polars\.LazyFrame"):
        ENGINE.read(scan, frame_type)
