"""The digest in C: the same values as numpy's, wherever it is loaded, and numpy where it is not."""

import pickle
import shutil
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_versioned.identity import compiled
from dagster_versioned.identity.digest import BagDigest, row_lanes
from support.digest_columns import batch_of, nullable, tables

needs_library = pytest.mark.skipif(
    compiled.LIBRARY.functions is None and shutil.which("cc") is None, reason="installed without a C compiler"
)


KEY = bytes(range(32))


def both(batch: pa.RecordBatch) -> list[list[tuple[tuple[int, int, int], list[int], list[int]]]]:
    """The sums and the lanes of each row, without and with a key, by C and by numpy."""
    found = []
    for library in (compiled.LIBRARY, compiled.Library(b"")):
        with mock.patch.object(compiled, "LIBRARY", library):
            of_keys = []
            for key in (None, KEY):
                digest = BagDigest(batch.schema, key)
                digest.update(batch)
                first, second = row_lanes(batch, key)
                of_keys.append((digest.lanes, first.tolist(), second.tolist()))
            found.append(of_keys)
    return found


@needs_library
def test_it_is_there_where_there_is_a_compiler() -> None:
    assert compiled.LIBRARY.functions is not None


@needs_library
@given(table=tables(), data=st.data())
def test_rows_and_slices_of_them_have_the_same_hashes(table, data) -> None:
    columns, rows = table
    around = st.lists(st.tuples(*(nullable(kind) for _, kind in columns)), max_size=5)
    batch = batch_of(columns, data.draw(around) + rows + data.draw(around))
    start = data.draw(st.integers(0, batch.num_rows))
    by_c, by_numpy = both(batch.slice(start, data.draw(st.integers(0, batch.num_rows - start))))
    assert by_c == by_numpy


@needs_library
@pytest.mark.parametrize("rows", [0, 1, 511, 512, 513, 1500])
def test_blocks_and_long_values_have_the_same_hashes(rows) -> None:
    lists = [None if i % 7 == 0 else [None if (i + j) % 3 == 0 else j for j in range(i % 200)] for i in range(rows)]
    texts = [None if i % 5 == 0 else "ä" * (i % 90) for i in range(rows)]
    maps = [None if i % 11 == 0 else [(str(j), texts[i]) for j in range(i % 4)] for i in range(rows)]
    columns = {
        "lists": pa.array(lists, pa.list_(pa.int32())),
        "texts": pa.array(texts, pa.string()),
        "maps": pa.array(maps, pa.map_(pa.string(), pa.string())),
        "structs": pa.array([None if i % 13 == 0 else {"a": lists[i]} for i in range(rows)]).cast(
            pa.struct([("a", pa.list_(pa.int64()))])
        ),
        **{f"n{i}": pa.array(range(rows), pa.int64()) for i in range(70)},  # more than one word of validity
    }
    by_c, by_numpy = both(pa.record_batch(columns))
    assert by_c == by_numpy


@needs_library
@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()], ids=str)
def test_texts_of_every_size_in_any_order(kind) -> None:
    """Texts of one size below 32 are hashed together."""
    sizes = [(i * 7) % 41 for i in range(2000)]
    texts = [None if i % 17 == 0 else "".join(chr(33 + (i * j) % 90) for j in range(n)) for i, n in enumerate(sizes)]
    for array in (pa.array(texts, kind), pa.array(["", *texts, "x"], kind).slice(1, len(texts)), pa.array([""], kind)):
        by_c, by_numpy = both(pa.record_batch({"t": array}))
        assert by_c == by_numpy


@needs_library
def test_lists_of_more_items_than_are_hashed_at_a_time() -> None:
    length = 70_000
    items = pa.array(range(3 * length), pa.int64())
    lists = pa.ListArray.from_arrays(pa.array([0, length, length, 3 * length - 5, 3 * length], pa.int32()), items)
    by_c, by_numpy = both(pa.record_batch({"l": lists}))
    assert by_c == by_numpy


@needs_library
def test_what_it_has_no_case_for_is_left_to_numpy() -> None:
    batch = pa.record_batch({"d": pa.array(["a", None, "b"]).dictionary_encode()})
    assert compiled.bag_lanes(batch) is None
    assert compiled.row_lanes(batch) is None
    by_c, by_numpy = both(batch)
    assert by_c == by_numpy


@needs_library
def test_a_copy_that_travelled_as_bytes_works_and_leaves_no_file(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    travelled = pickle.loads(pickle.dumps(compiled.LIBRARY))
    assert travelled.functions is not None
    assert not list(tmp_path.iterdir())
    again = pickle.loads(pickle.dumps(travelled))
    assert again.functions is travelled.functions  # a worker of Spark runs many tasks
    batch = pa.record_batch({"n": [1, 2, 3]})
    expected = compiled.bag_lanes(batch)
    with mock.patch.object(compiled, "LIBRARY", travelled):
        assert compiled.bag_lanes(batch) == expected


def test_bytes_that_are_no_library_of_this_machine_are_done_without() -> None:
    assert compiled.Library(b"\x7fELF of another machine").functions is None


@needs_library
def test_nothing_is_kept_of_a_batch() -> None:
    before = pa.total_allocated_bytes()
    for _ in range(20):
        batch = pa.record_batch({"n": pa.array([[1, None]] * 10_000)})
        compiled.bag_lanes(batch)
        compiled.row_lanes(batch)
    del batch
    assert pa.total_allocated_bytes() <= before
