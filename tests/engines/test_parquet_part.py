"""Parts: bytes are a function of rows, schema, partition, ordinal and options; everything said of a part is true."""

import errno
import hashlib
import io
from dataclasses import replace
from pathlib import Path

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow.dataset import dataset

from dagster_versioned.engines import parquet_part
from dagster_versioned.engines.conform import stored_schema
from dagster_versioned.engines.parquet_footer import without_bounds
from dagster_versioned.engines.parquet_part import PartWriter
from dagster_versioned.engines.parts import MEBIBYTE, Part, WriteOptions, WriteTuning
from dagster_versioned.engines.row_size import row_sizes, total_size
from dagster_versioned.errors import AccessDenied, StoreUnavailable
from support.arrow_rows import splits, tables

SMALL = WriteOptions(row_group_bytes=200, target_part_bytes=1500)
FILES = WriteOptions(tuning=WriteTuning(in_memory_bytes=0))


def write(table: pa.Table, directory: Path, options: WriteOptions = SMALL, *, batches=None, ordinal: int = 0):
    writer = PartWriter(stored_schema(table.schema), directory, replace(options, first_ordinal=ordinal))
    for batch in table.to_batches() if batches is None else batches:
        writer.write(batch)
    return writer.close()


def data_of(part: Part) -> bytes:
    return part.source if isinstance(part.source, bytes) else Path(part.source).read_bytes()


def rows_of(parts: list[Part], schema: pa.Schema) -> pa.Table:
    return pa.concat_tables([schema.empty_table(), *(pq.read_table(io.BytesIO(data_of(part))) for part in parts)])


@pytest.fixture
def numbers() -> pa.Table:
    rng = np.random.default_rng(7)
    return pa.table({"id": np.arange(5000), "x": rng.normal(size=5000), "s": [f"row {i % 97}" for i in range(5000)]})


@given(st.data())
@pytest.mark.slow
def test_bytes_do_not_depend_on_batch_boundaries(tmp_path_factory, data):
    table = data.draw(tables())
    directory = tmp_path_factory.getbasetemp() / "unused"
    whole = write(table, directory)
    pieces = write(table, directory, batches=data.draw(splits(table)))
    assert [part.sha256 for part in pieces] == [part.sha256 for part in whole]
    assert rows_of(whole, table.schema).equals(table)


def test_pages_do_not_depend_on_batch_boundaries(tmp_path):
    """Small tables have one page a column; these have many, dictionary pages and the fallback from them included."""
    rng = np.random.default_rng(3)
    table = pa.table(
        {
            "x": rng.normal(size=400_000),
            "few": [f"value {i}" for i in rng.integers(0, 50, 400_000)],
            "list": pa.ListArray.from_arrays(np.arange(0, 800_001, 2, dtype=np.int32), rng.integers(0, 9, 800_000)),
        }
    )
    (whole,) = write(table, tmp_path, WriteOptions())
    (pieces,) = write(table, tmp_path, WriteOptions(), batches=table.to_batches(max_chunksize=1777))
    assert pieces.sha256 == whole.sha256


@given(tables())
def test_the_size_of_a_batch_is_that_of_its_rows(table):
    """Row groups end by the one or the other, as the end is near or not."""
    for batch in table.to_batches():
        assert total_size(batch) == row_sizes(batch).sum()


@given(st.data())
@settings(max_examples=20)
def test_row_groups_end_at_the_same_rows_whatever_lies_under_nulls(tmp_path_factory, data):
    """Equal values may differ in memory: bytes under a null, a bitmap without nulls, an offset into a buffer."""
    table = data.draw(tables(min_rows=1))
    doubled = pa.concat_tables([table, table]).combine_chunks()
    sliced = doubled.slice(table.num_rows)
    directory = tmp_path_factory.getbasetemp() / "unused"
    assert [p.sha256 for p in write(sliced, directory)] == [p.sha256 for p in write(table, directory)]


def test_hidden_bytes_under_nulls_do_not_reach_the_part(tmp_path):
    mask = pa.array([False, True, False])
    hidden = pa.StructArray.from_arrays(
        [pa.array(["a", "hidden" * 1000, "b"]), pa.array([[1], [2] * 5000, [3]])], names=["s", "l"], mask=mask
    )
    shown = pa.array([{"s": "a", "l": [1]}, None, {"s": "b", "l": [3]}], hidden.type)
    assert hidden.equals(shown)
    options = WriteOptions(row_group_bytes=30)
    first, second = (write(pa.table({"c": column}), tmp_path, options) for column in (hidden, shown))
    assert [part.sha256 for part in first] == [part.sha256 for part in second]


def test_keys_of_maps_may_be_structs_of_lists(tmp_path):
    keys = pa.struct([("l", pa.list_(pa.int64()))])
    rows = pa.table({"c": pa.array([[({"l": [1]}, "a")], None, [({"l": None}, None)]], pa.map_(keys, pa.string()))})
    assert rows_of(write(rows, tmp_path), rows.schema).to_pylist() == rows.to_pylist()


def test_a_range_hidden_under_a_null_list_does_not_reach_the_part(tmp_path):
    values = pa.array([1, *[2] * 5000, 3])
    offsets, mask = pa.array([0, 1, 5001, 5002], pa.int32()), pa.array([False, True, False])
    hidden = pa.ListArray.from_arrays(offsets, values, mask=mask)
    shown = pa.array([[1], None, [3]], hidden.type)
    assert hidden.equals(shown)
    options = WriteOptions(row_group_bytes=30)
    first, second = (write(pa.table({"c": column}), tmp_path, options) for column in (hidden, shown))
    assert [part.sha256 for part in first] == [part.sha256 for part in second]


def test_equal_rows_under_another_ordinal_or_partition_are_other_bytes(numbers, tmp_path):
    options = WriteOptions()
    parts = [
        write(numbers, tmp_path, options)[0],
        write(numbers, tmp_path, options, ordinal=1)[0],
        write(numbers, tmp_path, replace(options, partition="2013-01-01"))[0],
        write(numbers, tmp_path, replace(options, partition="2013-01-02"))[0],
        write(numbers, tmp_path, replace(options, partition=""))[0],
    ]
    assert len({part.sha256 for part in parts}) == len(parts)
    assert pq.read_metadata(io.BytesIO(data_of(parts[2]))).metadata == {
        b"dagster_versioned.partition": b"2013-01-01",
        b"dagster_versioned.ordinal": b"0",
    }


def test_two_equal_halves_of_one_version_are_two_parts(tmp_path):
    half = pa.table({"a": pa.array([1] * 1000)})
    options = WriteOptions(row_group_bytes=8000, target_part_bytes=1)
    first, second = write(pa.concat_tables([half, half]), tmp_path, options)
    assert (first.num_records, second.num_records) == (1000, 1000)
    assert first.sha256 != second.sha256
    assert (first.ordinal, second.ordinal) == (0, 1)


def test_hash_and_size_are_those_of_the_bytes_in_memory_and_in_files(numbers, tmp_path):
    tuning = WriteTuning(in_memory_bytes=20_000)
    options = WriteOptions(row_group_bytes=20_000, target_part_bytes=15_000, tuning=tuning)
    parts = write(numbers, tmp_path / "new", options)
    assert {type(part.source) for part in parts} == {bytes, type(tmp_path)}
    for part in parts:
        assert hashlib.sha256(data_of(part)).hexdigest() == part.sha256
        assert len(data_of(part)) == part.size
    files = sorted((tmp_path / "new").iterdir())
    assert [file.name for file in files] == sorted(
        f"{p.sha256}.parquet" for p in parts if not isinstance(p.source, bytes)
    )
    assert rows_of(parts, numbers.schema).equals(numbers)


def test_bytes_are_the_same_in_memory_and_in_files(numbers, tmp_path):
    in_memory = write(numbers, tmp_path, WriteOptions())
    in_file = write(numbers, tmp_path, WriteOptions(tuning=WriteTuning(in_memory_bytes=1000)))
    assert isinstance(in_memory[0].source, bytes)
    assert data_of(in_memory[0]) == data_of(in_file[0])


def test_small_parts_do_not_pile_up_in_memory(numbers, tmp_path):
    tuning = WriteTuning(in_memory_bytes=30_000)
    parts = write(numbers, tmp_path, WriteOptions(row_group_bytes=8_000, target_part_bytes=1, tuning=tuning))
    assert sum(part.size for part in parts if isinstance(part.source, bytes)) <= 30_000
    assert any(isinstance(part.source, Path) for part in parts)


def test_a_small_write_makes_no_directory(numbers, tmp_path):
    write(numbers, tmp_path / "staging", WriteOptions())
    assert not (tmp_path / "staging").exists()


def test_parts_are_numbered_and_rotated_by_size_unless_one_is_asked_for(numbers, tmp_path):
    options = WriteOptions(row_group_bytes=10_000, target_part_bytes=10_000)
    parts = write(numbers, tmp_path, options, ordinal=4)
    assert [part.ordinal for part in parts] == list(range(4, 4 + len(parts)))
    assert len(parts) > 2
    assert all(part.size >= 10_000 for part in parts[:-1])
    assert len(write(numbers, tmp_path, replace(options, single_part=True))) == 1


def test_long_strings_end_a_row_group_early_so_that_memory_is_bounded(tmp_path):
    table = pa.table({"s": ["x" * 10_000] * 1000})
    (part,) = write(table, tmp_path, WriteOptions(row_group_bytes=MEBIBYTE))
    metadata = pq.read_metadata(io.BytesIO(data_of(part)))
    assert metadata.num_row_groups == 10
    assert {metadata.row_group(i).num_rows for i in range(9)} == {105}  # 105 x (10,000 + 4) is the first beyond 1 MiB


def test_row_groups_hold_at_most_their_cap_of_rows(tmp_path):
    options = WriteOptions(tuning=WriteTuning(row_group_rows=100))
    (part,) = write(pa.table({"a": pa.array([True] * 250)}), tmp_path, options)
    metadata = pq.read_metadata(io.BytesIO(data_of(part)))
    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [100, 100, 50]


def test_no_rows_are_no_parts(tmp_path):
    table = pa.table({"a": pa.array([], pa.int64())})
    assert write(table, tmp_path) == []
    assert write(table, tmp_path, batches=[pa.RecordBatch.from_pylist([], schema=table.schema)]) == []


def test_footer_holds_no_arrow_schema_and_the_pages_are_indexed(numbers, tmp_path):
    (part,) = write(numbers, tmp_path, WriteOptions())
    metadata = pq.read_metadata(io.BytesIO(data_of(part)))
    assert metadata.metadata == {b"dagster_versioned.ordinal": b"0"}
    column = metadata.row_group(0).column(0)
    assert (column.compression, column.has_column_index, column.has_offset_index) == ("ZSTD", True, True)


def test_buffered_rows_can_be_taken_until_something_left_memory(numbers, tmp_path):
    writer = PartWriter(stored_schema(numbers.schema), tmp_path, WriteOptions())
    empty = writer.take_buffered()
    assert empty is not None
    assert empty.num_rows == 0
    for batch in numbers.to_batches(max_chunksize=999):
        writer.write(batch)
    taken = writer.take_buffered()
    assert taken is not None
    assert taken.equals(numbers)
    assert [p.sha256 for p in writer.close()] == [p.sha256 for p in write(numbers, tmp_path, WriteOptions())]

    flushed = PartWriter(stored_schema(numbers.schema), tmp_path, SMALL)
    flushed.write(numbers.to_batches()[0])
    assert flushed.take_buffered() is None


def test_abort_leaves_no_file(numbers, tmp_path):
    options = WriteOptions(row_group_bytes=8_000, target_part_bytes=50_000, tuning=FILES.tuning)
    writer = PartWriter(stored_schema(numbers.schema), tmp_path, options)
    writer.write(numbers.to_batches()[0])
    assert [path.suffix for path in tmp_path.iterdir()].count(".tmp") == 1
    assert any(path.suffix == ".parquet" for path in tmp_path.iterdir())
    writer.abort()
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_reported_as_such(numbers, tmp_path, monkeypatch):
    def full(file, view):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(parquet_part, "_write_all", full)
    with pytest.raises(StoreUnavailable, match="No space left on device"):
        write(numbers, tmp_path, FILES)


def test_a_folder_that_may_not_be_written_is_reported_as_such(numbers, tmp_path, monkeypatch):
    def refused(*args, **kwargs):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "open", refused)
    with pytest.raises(AccessDenied, match="Permission denied"):
        write(numbers, tmp_path, FILES)


def test_statistics_describe_each_part(tmp_path):
    table = pa.table({"a": pa.array([3, 1, None]), "f": pa.array([1.0, float("nan"), 2.0]), "g": [0.5, 1.5, 2.5]})
    (part,) = write(table, tmp_path, WriteOptions())
    assert part.num_records == part.statistics["numRecords"] == 3
    assert part.statistics["nullCount"] == {"a": 1, "f": 0, "g": 0}
    assert (part.statistics["minValues"]["a"], part.statistics["maxValues"]["a"]) == (1, 3)
    assert part.statistics["maxValues"]["g"] == 2.5
    assert "f" not in part.statistics["maxValues"] | part.statistics["minValues"]  # which no reader could rely on


NAN = float("nan")


def with_nan(place: int | None) -> pa.Table:
    """Floats in columns of every shape, of which those that are called ``n`` hold a NaN in one row."""
    numbers = [float(i) for i in range(10)]
    odd = [NAN if i == place else number for i, number in enumerate(numbers)]
    hidden = pa.ListArray.from_arrays(pa.array([0, 1, 3], pa.int32()), pa.array([1.0, NAN, NAN]))
    shown = pa.concat_arrays([hidden.take(pa.array([0] * 9, pa.int64())), pa.array([None], hidden.type)])
    return pa.table(
        {
            "id": range(10),
            "n": odd,
            "n32": pa.array(odd, pa.float32()),
            "x": numbers,
            "s": [{"n": value, "x": -0.0, "t": "t"} for value in odd],
            "nl": [[value, 1.0] if i % 3 else None for i, value in enumerate(odd)],
            "m": pa.array([[(1.0, value), (2.0, 0.5)] for value in odd], pa.map_(pa.float64(), pa.float64())),
            "l": shown,
        }
    )


HOLD_NAN = {"n", "n32", "s.n", "nl.list.element", "m.key_value.value"}


@pytest.mark.parametrize("options", [WriteOptions(), SMALL], ids=["memory", "row groups"])
@pytest.mark.parametrize("place", [None, 1, 8], ids=["no", "first", "late"])
def test_what_holds_nan_has_no_bounds_and_all_else_has(tmp_path, options, place):
    table = with_nan(place)
    (part,) = write(table, tmp_path, replace(options, single_part=True))
    metadata = pq.read_metadata(io.BytesIO(data_of(part)))
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    assert len(groups) > 1 or options is not SMALL
    for group in groups:
        columns = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
        unbounded = {name for name, column in columns.items() if not column.statistics.has_min_max}
        assert unbounded == (set() if place is None else HOLD_NAN)
        assert {name for name, column in columns.items() if not column.has_column_index} == unbounded
        assert all(column.has_offset_index and column.statistics.has_null_count for column in columns.values())
    assert part.statistics["nullCount"] == {"id": 0, "n": 0, "n32": 0, "x": 0, "s": {"n": 0, "x": 0, "t": 0}}
    bounds = {"id": 0, "x": 0.0, "s": {"x": 0.0, "t": "t"}}
    if place is None:
        bounds |= {"n": 0.0, "n32": 0.0, "s": bounds["s"] | {"n": 0.0}}
    assert part.statistics["minValues"] == bounds
    assert str(rows_of([part], pq.read_schema(io.BytesIO(data_of(part)))).to_pylist()) == str(table.to_pylist())


@pytest.mark.parametrize("options", [WriteOptions(), SMALL], ids=["memory", "row groups"])
def test_other_readers_find_nan_in_a_part(tmp_path, options):
    (part,) = write(with_nan(8), tmp_path, replace(options, single_part=True))
    path = tmp_path / "part.parquet"
    path.write_bytes(data_of(part))
    found = duckdb.sql(f"SELECT id FROM '{path}' WHERE n > 100 AND n32 > 100 AND s.n > 100").fetchall()
    assert found == [(8,)]
    assert pl.scan_parquet(path).filter(pl.col("n") > 100).select("id").collect().rows() == [(8,)]
    unknown = ~(pc.field("n") <= 100)
    assert dataset(path).to_table(filter=unknown)["id"].to_pylist() == [8]


@pytest.mark.spark
def test_spark_without_this_package_finds_nan_in_a_part(spark, tmp_path):
    (part,) = write(with_nan(8), tmp_path, replace(SMALL, single_part=True))
    (tmp_path / "part.parquet").write_bytes(data_of(part))
    frame = spark.read.parquet(str(tmp_path / "part.parquet"))
    assert [row.id for row in frame.where("n > 100 and n32 > 100 and s.n <> 1").collect()] == [8]


@given(tables())
@settings(max_examples=20)
def test_a_footer_without_changes_is_the_same_bytes(table):
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=2, write_page_index=True)
    data = sink.getvalue().to_pybytes()
    assert without_bounds(data, ()) == data
