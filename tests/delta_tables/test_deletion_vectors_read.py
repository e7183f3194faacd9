"""Rows that a deletion vector takes from a file are gone, and no others, however the file is read."""

import struct
import zlib
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

from dagster_versioned.delta.actions import DeletionVector
from dagster_versioned.delta.files.deletion_vectors import PORTABLE, inlined
from dagster_versioned.engines.arrow.scan import read_table, stream_table
from dagster_versioned.engines.part_cache import PartCache
from dagster_versioned.errors import IntegrityError
from dagster_versioned.storage import LocalStore
from support.deleted_rows import deleting, make_scan, numbered
from support.remote_store import RemoteStore


@settings(max_examples=40)
@given(st.data(), st.integers(1, 30), st.sampled_from([1, 3, 7, 1000]))
def test_what_is_left_is_in_order_across_files_and_row_groups(data, count, row_group):
    gone = [data.draw(st.sets(st.integers(0, count - 1))) for _ in range(3)]
    tables = [numbered(i * 10, count) for i in range(3)]
    with TemporaryDirectory() as folder:
        vectors = [deleting(gone[0]), None, deleting(gone[2])]
        gone[1] = set()
        scan = make_scan(LocalStore(Path(folder)), tables, vectors, row_group_size=row_group)
        left = [[row for row in range(count) if row not in gone[i]] for i in range(3)]
        model = pa.concat_tables(
            [
                table.take(pa.array(rows, pa.int64())).append_column("p", pa.array([i] * len(rows), pa.int32()))
                for i, (table, rows) in enumerate(zip(tables, left, strict=True))
            ]
        )
        for columns in (None, ("s",), ("p", "a"), ("p",)):
            asked = replace(scan, columns=columns)
            expected = (model.select(columns) if columns else model).to_pylist()
            assert read_table(asked).to_pylist() == expected
            assert stream_table(asked).read_all().to_pylist() == expected


def test_a_stream_keeps_count_of_the_rows_beyond_its_first_batch(tmp_path):
    gone = {0, 65_535, 65_536, 131_071, 199_999}
    scan = make_scan(LocalStore(tmp_path), [pa.table({"a": range(200_000)})], [deleting(gone)])
    expected = [row for row in range(200_000) if row not in gone]
    assert stream_table(scan).read_all()["a"].to_pylist() == expected
    assert read_table(scan)["a"].to_pylist() == expected


@pytest.mark.parametrize("read", [read_table, lambda scan: stream_table(scan).read_all()])
def test_a_vector_for_another_file_is_named_before_any_row(tmp_path, read):
    scan = make_scan(LocalStore(tmp_path), [numbered(0, 5), numbered(0, 4)], [deleting({4}), deleting({4})])
    with pytest.raises(IntegrityError, match=r"'1\.parquet' deletes row 4, but the file has 4 rows"):
        read(scan)


def test_the_cache_of_a_remote_table_brings_the_vectors_along(tmp_path):
    store = RemoteStore(tmp_path / "remote")
    vector = deleting({1})
    scan = make_scan(store, [numbered(0, 3)], [vector])
    payload = struct.pack("<I", PORTABLE) + BitMap64({1}).serialize()
    store.put(
        "deletion_vector_00000000-0000-0000-0000-000000000000.bin",
        b"\1" + struct.pack(">i", len(payload)) + payload + struct.pack(">I", zlib.crc32(payload)),
    )
    stored = DeletionVector("u", "0" * 20, len(payload), 1, 1)
    assert inlined(store, stored, "x") == vector
    scan = replace(scan, files=(replace(scan.files[0], deletion_vector=stored),))
    assert read_table(scan)["a"].to_pylist() == [0, 2]
    local = PartCache(tmp_path / "cache", 1000).localized(scan)
    assert read_table(local)["a"].to_pylist() == [0, 2]
