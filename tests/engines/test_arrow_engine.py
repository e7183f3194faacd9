"""The Arrow engine: every frame of its family comes back equal, and bad ones are refused before anything is stored."""

import datetime as dt
import io
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import polars.testing
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_versioned.delta.schema.types import schema_to_arrow
from dagster_versioned.engines.arrow.engine import ArrowEngine
from dagster_versioned.engines.conform import stored_schema
from dagster_versioned.engines.frames import in_memory
from dagster_versioned.engines.parts import StagedParts, WriteOptions, WriteTuning
from dagster_versioned.engines.scan import Scan, ScanFile
from dagster_versioned.engines.staging import Staging
from dagster_versioned.errors import EmptyTable, InvalidInput, UnsupportedFrame, UnsupportedType
from dagster_versioned.storage import LocalStore
from support.arrow_rows import splits, tables

ENGINE = ArrowEngine()
OPTIONS = WriteOptions()
UTC_NOON = dt.datetime(2013, 1, 1, 12, tzinfo=dt.UTC)


def store_at(folder: Path, frame: Any, options: WriteOptions = OPTIONS) -> tuple[StagedParts, Scan]:
    """Write and promote a frame; what was written, and the scan that reads it back."""
    store = LocalStore(folder)
    staging = Staging(store, "w1")
    written = ENGINE.write(frame, staging, options)
    staging.promote_all((part, f"{part.sha256}.parquet") for part in written.parts)
    staging.discard()
    files = tuple(ScanFile(f"{p.sha256}.parquet", p.size, p.sha256, p.num_records) for p in written.parts)
    return written, Scan(store, written.contents.schema, files)


def shas(written: StagedParts) -> list[str]:
    return [part.sha256 for part in written.parts]


# --- round trips -----------------------------------------------------------------------------------------------------


@given(tables(min_rows=1), st.booleans())
def test_arrow_tables_come_back_equal(tmp_path_factory, table, small):
    options = WriteOptions(row_group_bytes=200, target_part_bytes=1500) if small else OPTIONS
    written, scan = store_at(tmp_path_factory.mktemp("t"), table, options)
    canonical = schema_to_arrow(stored_schema(table.schema))
    assert ENGINE.read(scan).equals(table.cast(canonical), check_metadata=True)
    assert written.contents.nrow == table.num_rows == sum(part.num_records for part in written.parts)
    assert written.contents.null_counts == tuple(column.null_count for column in table.columns)
    assert ENGINE.contents(table, options) == written.contents


@given(st.data())
@settings(max_examples=20)
def test_a_reader_is_stored_as_the_table_it_streams(tmp_path_factory, data):
    table = data.draw(tables(min_rows=1))
    reader = pa.RecordBatchReader.from_batches(table.schema, iter(data.draw(splits(table))))
    assert ENGINE.contents(reader, OPTIONS) is None
    written, scan = store_at(tmp_path_factory.mktemp("t"), reader)
    whole, _ = store_at(tmp_path_factory.mktemp("t"), table)
    assert written == whole
    assert ENGINE.read(scan, pa.RecordBatchReader).read_all().equals(ENGINE.read(scan))


PANDAS = {
    "numbers": pd.DataFrame({"i": [1, 2], "f": [0.5, -1.0], "b": [True, False], "i8": pd.array([1, 2], "int8")}),
    "text": pd.DataFrame({"s": ["a", "ä"], "o": pd.array(["x", None], "str")}),
    "integers with nulls": pd.DataFrame({"i": pd.array([2**62 + 1, None], "Int64"), "j": pd.array([1, None], "Int8")}),
    "booleans with nulls": pd.DataFrame({"a": [1, 2], "b": pd.array([True, None], "boolean"), "c": [3, 4]}),
    "floats with nulls": pd.DataFrame({"f": [1.5, float("nan")]}),
    "times": pd.DataFrame(
        {
            "t": pd.to_datetime(["2013-01-01 12:00:00.000001", None]).astype("datetime64[us]"),
            "z": pd.to_datetime([UTC_NOON, None]).astype("datetime64[us, UTC]"),
        }
    ),
    "dates, decimals, bytes": pd.DataFrame(
        {
            "d": [dt.date(2013, 1, 1), None],
            "n": [Decimal("12345678901234567890123456789012345.678"), None],
            "y": [b"\x00", None],
        }
    ),
    "named index": pd.DataFrame({"x": [1, 2]}, index=pd.Index(["a", "b"], name="key")).reset_index(),
}


@pytest.mark.parametrize("name", PANDAS)
def test_pandas_frames_come_back_equal(tmp_path, name):
    _, scan = store_at(tmp_path, PANDAS[name])
    pd.testing.assert_frame_equal(ENGINE.read(scan, pd.DataFrame), PANDAS[name])


def test_nested_pandas_values_come_back_equal(tmp_path):
    frame = pd.DataFrame({"l": [[1, 2], None], "s": [{"a": 1, "b": "x"}, None]})
    _, scan = store_at(tmp_path, frame)
    assert ENGINE.read(scan).to_pylist() == [{"l": [1, 2], "s": {"a": 1, "b": "x"}}, {"l": None, "s": None}]
    read = ENGINE.read(scan, pd.DataFrame)
    assert list(read["l"][0]) == [1, 2]
    assert read["s"][0] == {"a": 1, "b": "x"}


def test_pandas_categories_are_stored_as_their_values(tmp_path):
    _, scan = store_at(tmp_path, pd.DataFrame({"c": pd.Categorical(["b", None, "a", "b"])}))
    assert ENGINE.read(scan)["c"].to_pylist() == ["b", None, "a", "b"]


def test_a_named_pandas_index_becomes_columns_and_a_row_number_is_dropped(tmp_path):
    frame = pd.DataFrame({"x": [3, 1, 2], "k": ["a", "b", "b"], "n": [0, 1, 2]})
    _, scan = store_at(tmp_path / "a", frame.groupby(["k", "n"]).sum())
    assert ENGINE.read(scan).column_names == ["k", "n", "x"]
    _, scan = store_at(tmp_path / "b", frame[frame.x > 1])
    assert ENGINE.read(scan).to_pylist() == [{"x": 3, "k": "a", "n": 0}, {"x": 2, "k": "b", "n": 2}]


def test_pandas_reads_a_table_whose_columns_all_have_integer_nulls(tmp_path):
    table = pa.table({"a": pa.array([1, None]), "b": pa.array([None, True])})
    _, scan = store_at(tmp_path, table)
    frame = ENGINE.read(scan, pd.DataFrame)
    assert list(frame.columns) == ["a", "b"]
    assert frame["a"].dtype == "Int64"
    assert frame["b"].dtype == "boolean"


POLARS = pl.DataFrame(
    {
        "i": [1, None],
        "u": pl.Series([2**31, None], dtype=pl.Int64),
        "s": ["a", None],
        "y": [b"\x00", None],
        "d": [dt.date(2013, 1, 1), None],
        "t": [dt.datetime(2013, 1, 1, 12), None],
        "z": pl.Series([UTC_NOON, None], dtype=pl.Datetime("us", "UTC")),
        "n": pl.Series([Decimal("1.50"), None], dtype=pl.Decimal(38, 2)),
        "l": [[1, None], None],
        "r": [{"a": 1, "b": ["x"]}, {"a": None, "b": None}],
    }
)


@pytest.mark.parametrize("lazy", [False, True])
def test_polars_frames_come_back_equal(tmp_path, lazy):
    _, scan = store_at(tmp_path, POLARS.lazy() if lazy else POLARS)
    read = ENGINE.read(scan, pl.LazyFrame if lazy else pl.DataFrame)
    assert isinstance(read, pl.LazyFrame) is lazy
    polars.testing.assert_frame_equal(read, POLARS.lazy() if lazy else POLARS)


@given(table=tables(min_rows=1))
@settings(max_examples=15)
def test_polars_eager_and_lazy_say_the_same(tmp_path_factory, table):
    if any("map" in str(field.type) for field in table.schema):
        return  # Polars has no maps
    frame = pl.from_arrow(table)
    eager, _ = store_at(tmp_path_factory.mktemp("t"), frame)
    lazy, _ = store_at(tmp_path_factory.mktemp("t"), frame.lazy())
    assert eager == lazy
    assert ENGINE.contents(frame.lazy(), OPTIONS) is None


@pytest.mark.parametrize(
    ("series", "values"),
    [
        (pl.Series(["b", None, "a"], dtype=pl.Categorical), ["b", None, "a"]),
        (pl.Series(["b", None, "a"], dtype=pl.Enum(["a", "b"])), ["b", None, "a"]),
        (pl.Series([255, None], dtype=pl.UInt8), [255, None]),
        (pl.Series([[1, 2], None], dtype=pl.Array(pl.Int8, 2)), [[1, 2], None]),
        (pl.Series([dt.datetime(2013, 1, 1)], dtype=pl.Datetime("ms")), [dt.datetime(2013, 1, 1)]),
    ],
)
def test_other_polars_types_keep_their_values(tmp_path, series, values):
    _, scan = store_at(tmp_path, pl.DataFrame({"c": series}))
    assert ENGINE.read(scan)["c"].to_pylist() == values


def test_one_record_batch_is_stored_like_the_table_of_it(tmp_path):
    batch = pa.record_batch({"a": [1, 2]})
    assert store_at(tmp_path / "a", batch)[0] == store_at(tmp_path / "b", pa.Table.from_batches([batch]))[0]


# --- identity of bytes -----------------------------------------------------------------------------------------------


def test_the_same_rows_from_every_library_are_the_same_bytes(tmp_path):
    table = pa.table({"i": [1, 2, 3], "s": ["a", None, "c"], "t": pa.array([1, 2, None], pa.timestamp("us", "UTC"))})
    frames = [table, table.to_pandas(), pl.from_arrow(table), pl.from_arrow(table).lazy(), table.to_reader()]
    written = [store_at(tmp_path / str(i), frame)[0] for i, frame in enumerate(frames)]
    assert all(other == written[0] for other in written)


@given(st.data())
@settings(max_examples=20)
def test_bytes_of_a_one_part_table_do_not_depend_on_an_ignored_row_order(tmp_path_factory, data):
    table = data.draw(tables(min_rows=2, max_rows=10))
    if "0.0" in str(table.to_pylist()):
        return  # 0.0 and -0.0 are equal to the digest, and not in bytes
    shuffled = table.take(data.draw(st.permutations(range(table.num_rows))))
    options = WriteOptions(row_order="ignored")
    first, second = (store_at(tmp_path_factory.mktemp("t"), frame, options)[0] for frame in (table, shuffled))
    assert first == second
    assert first.contents.digest.kind == "bag-xxh64x2"


def test_row_order_is_significant_unless_said_otherwise(tmp_path):
    first, second = pa.table({"a": [1, 2]}), pa.table({"a": [2, 1]})
    a, b = ENGINE.contents(first, OPTIONS), ENGINE.contents(second, OPTIONS)
    assert a is not None
    assert b is not None
    assert a.digest.kind == "seq-sha256"
    assert a.digest != b.digest
    ignored = WriteOptions(row_order="ignored")
    assert ENGINE.contents(first, ignored) == ENGINE.contents(second, ignored)
    _, scan = store_at(tmp_path, second)
    assert ENGINE.read(scan)["a"].to_pylist() == [2, 1]


@pytest.mark.parametrize("stream", [False, True])
def test_rows_and_columns_are_sorted_on_request(tmp_path, stream):
    table = pa.table({"b": [2, 1, 3], "a": ["y", "x", "z"]})
    options = WriteOptions(sort_rows=("a",), sort_columns=True)
    written, scan = store_at(tmp_path, table.to_reader(1) if stream else table, options)
    assert ENGINE.read(scan).to_pydict() == {"a": ["x", "y", "z"], "b": [1, 2, 3]}
    assert written.contents.digest.kind == "seq-sha256"
    assert ENGINE.contents(table.take([2, 0, 1]), options) == written.contents


def test_order_of_many_parts_is_kept(tmp_path):
    table = pa.table({"a": list(range(1000)), "s": [str(i % 7) for i in range(1000)]})
    written, scan = store_at(tmp_path, table, WriteOptions(row_group_bytes=500, target_part_bytes=1))
    assert len(written.parts) > 20
    assert [part.ordinal for part in written.parts] == list(range(len(written.parts)))
    assert ENGINE.read(scan).equals(table)


def test_known_contents_are_not_computed_again(tmp_path, monkeypatch):
    table = pa.table({"a": [1, 2, 3]})
    contents = ENGINE.contents(table, OPTIONS)
    expected = ENGINE.write(table, Staging(LocalStore(tmp_path), "w"), OPTIONS)
    monkeypatch.setattr("dagster_versioned.engines.parts.RowsSummarizer.update", pytest.fail)
    assert ENGINE.write(table, Staging(LocalStore(tmp_path), "w"), OPTIONS, contents) == expected


def test_a_reader_is_written_in_one_pass_with_bounded_memory(tmp_path):
    """Batches that were written and digested are let go."""
    peak = 0
    before = pa.total_allocated_bytes()

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal peak
        for i in range(200):
            peak = max(peak, pa.total_allocated_bytes() - before)
            yield pa.record_batch({"a": pa.array(range(i * 1000, (i + 1) * 1000), pa.int64())})

    reader = pa.RecordBatchReader.from_batches(pa.schema([("a", pa.int64())]), batches())
    written, _ = store_at(tmp_path, reader, WriteOptions(row_group_bytes=80_000, target_part_bytes=1))
    assert written.contents.nrow == 200_000
    assert peak < 800_000  # of 1,600,000


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "frame",
    [
        pa.table({"a": pa.array([], pa.int64())}),
        pa.table({"a": pa.array([], pa.int64())}).to_reader(),
        pd.DataFrame({"a": pd.array([], "int64")}),
        pl.DataFrame(schema={"a": pl.Int64}),
        pl.LazyFrame(schema={"a": pl.Int64}),
    ],
    ids=lambda frame: f"{type(frame).__module__}.{type(frame).__name__}",
)
def test_no_rows_are_refused_unless_allowed(tmp_path, frame):
    with pytest.raises(EmptyTable, match="allow_empty=True"):
        store_at(tmp_path, frame)
    assert not tmp_path.exists() or not list(LocalStore(tmp_path).list())
    if isinstance(frame, pa.RecordBatchReader):
        return
    written, scan = store_at(tmp_path, frame, WriteOptions(allow_empty=True))
    assert (written.parts, written.contents.nrow) == ((), 0)
    assert ENGINE.read(scan).schema == pa.schema([("a", pa.int64())])


@pytest.mark.parametrize(
    "frame", [pa.table({}), pd.DataFrame(), pl.DataFrame(), pl.LazyFrame(), pd.DataFrame(index=range(3))], ids=range(5)
)
def test_no_columns_are_refused_even_if_empty_is_allowed(tmp_path, frame):
    with pytest.raises(EmptyTable, match="no columns"):
        store_at(tmp_path, frame, WriteOptions(allow_empty=True))


@pytest.mark.parametrize(
    ("frame", "error", "message"),
    [
        (pd.DataFrame({"c": [1, "a"]}), UnsupportedType, "column c"),
        (pd.DataFrame({"c": [1j]}), UnsupportedType, "complex"),
        (pd.DataFrame({"c": [None, None]}), UnsupportedType, "'c'.*cast it to the type it should have"),
        (pd.DataFrame({"c": pd.to_timedelta([1], "s")}), UnsupportedType, "'c'"),
        (pd.DataFrame({"c": pd.period_range("2013", periods=1)}), UnsupportedType, "'c'"),
        (pd.DataFrame({"c": [pd.Timestamp(1)]}).astype("datetime64[ns]"), UnsupportedType, "'c'.*without loss"),
        (pd.DataFrame({"c": pd.array([1], "uint64")}), UnsupportedType, "'c'"),
        (pd.DataFrame([[1, 2]], columns=["c", "c"]), UnsupportedFrame, "two columns named 'c'"),
        (pd.DataFrame([[1, 2]], columns=["c", "C"]), UnsupportedFrame, "same name"),
        (pd.DataFrame([[1, 2]]), UnsupportedFrame, "Column name 0 is not text"),
        (pd.DataFrame({"c": [1]}, index=["a"]), UnsupportedFrame, "index of .* without a name"),
        (pd.DataFrame({"c": [1]}, index=pd.Index([1], name="c")), UnsupportedFrame, "cannot become columns"),
        (pl.DataFrame({"c": pl.Series([object()], dtype=pl.Object)}), UnsupportedType, "'c'.*Python objects"),
        *(
            (pl.DataFrame({"c": pl.Series([1], dtype=data_type)}), UnsupportedType, "Int128")
            for data_type in [getattr(pl, "Int128", None)]  # from Polars 1.18 on
            if data_type is not None
        ),
        (pl.DataFrame({"c": pl.Series([1], dtype=pl.UInt64)}), UnsupportedType, "'c'"),
        (pl.DataFrame({"c": [dt.time(1)]}), UnsupportedType, "'c'"),
        (pl.DataFrame({"c": [dt.timedelta(1)]}), UnsupportedType, "'c'"),
        (pl.DataFrame({"c": [None]}), UnsupportedType, "'c'.*cast it"),
        (pl.LazyFrame({"c": [None]}), UnsupportedType, "'c'.*cast it"),
        (pl.LazyFrame({"c": [1], "C": [2]}), UnsupportedFrame, "same name"),
        (pa.table([[1], [2]], names=["c", "c"]), UnsupportedFrame, "same name"),
        (pa.table({"c": [1]}).rename_columns([""]).append_column("", pa.array([[1]])), UnsupportedFrame, "same name"),
    ],
)
def test_bad_frames_are_refused_before_anything_is_written(tmp_path, frame, error, message):
    with pytest.raises(error, match=message) as refused:
        store_at(tmp_path, frame)
    assert "Nothing was written" in str(refused.value)
    assert not list(tmp_path.iterdir())


def test_a_value_that_cannot_be_stored_leaves_no_file_behind(tmp_path):
    good, bad = ([5000] * 100_000, [5001])
    table = pa.table({"t": pa.array(good + bad, pa.timestamp("ns"))})
    with pytest.raises(UnsupportedType, match="'t'"):
        store_at(tmp_path, table, WriteOptions(row_group_bytes=1000, tuning=WriteTuning(in_memory_bytes=0)))
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_an_error_of_the_frame_itself_comes_through_and_leaves_no_file_behind(tmp_path):
    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"a": list(range(1000))})
        raise RuntimeError("the source broke")

    reader = pa.RecordBatchReader.from_batches(pa.schema([("a", pa.int64())]), batches())
    with pytest.raises(RuntimeError, match="the source broke"):
        store_at(tmp_path, reader, WriteOptions(row_group_bytes=100, tuning=WriteTuning(in_memory_bytes=0)))
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_contradicting_options_are_refused():
    with pytest.raises(InvalidInput, match="row_order='ignored'"):
        WriteOptions(sort_rows=("a",), row_order="ignored")
    with pytest.raises(InvalidInput, match="target_part_bytes must be positive"):
        WriteOptions(target_part_bytes=0)


def test_partition_and_compression_reach_the_part(tmp_path):
    written, scan = store_at(tmp_path, pa.table({"a": [1]}), replace(OPTIONS, partition="p", compression="snappy"))
    metadata = pq.read_metadata(io.BytesIO(scan.store.get(scan.files[0].key)))
    assert metadata.metadata[b"dagster_versioned.partition"] == b"p"
    assert metadata.row_group(0).column(0).compression == "SNAPPY"
    assert shas(written) != shas(store_at(tmp_path, pa.table({"a": [1]}), OPTIONS)[0])


def test_sparse_columns_of_pandas_are_written_as_what_they_are_of() -> None:
    sparse = pd.DataFrame(
        {
            "n": pd.arrays.SparseArray([0, 0, 1]),
            "f": pd.arrays.SparseArray([None, 1.5, None]),
            "b": pd.arrays.SparseArray([True, False, True]),
        }
    )
    assert in_memory(sparse) == in_memory(sparse.sparse.to_dense())
