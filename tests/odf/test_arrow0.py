"""The logical hash: the reference's digests, and what must not show in one."""

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_versioned.bounds import release_of
from dagster_versioned.errors import UnsupportedType
from dagster_versioned.odf.identity.arrow0 import ArrayDigest, Arrow0
from support.arrow_types import newer
from support.odf_vectors import ABSENT, ARROW0, records_of, values_of

with_vectors = pytest.mark.skipif(not ARROW0, reason=ABSENT)


def array_digest(*arrays: pa.Array) -> str:
    digest = ArrayDigest(arrays[0].type)
    for array in arrays:
        digest.update(array)
    return digest.digest().hex()


def records(*batches: pa.Table) -> str:
    digest = Arrow0(batches[0].schema)
    for batch in batches:
        digest.update(batch)
    return str(digest.digest())


@with_vectors
def test_columns_have_the_digests_of_the_reference() -> None:
    vectors = [vector for vector in ARROW0["vectors"] if vector["kind"] == "array"]
    assert len(vectors) >= 30
    for vector in vectors:
        array = values_of(vector)
        assert array_digest(array) == vector["digest"], vector["name"]
        if len(array):
            assert array_digest(*(array.slice(at, 1) for at in range(len(array)))) == vector["digest"], vector["name"]


@with_vectors
def test_records_have_the_digests_of_the_reference() -> None:
    vectors = [vector for vector in ARROW0["vectors"] if vector["kind"] == "record"]
    assert len(vectors) == 5
    for vector in vectors:
        assert records(records_of(vector)) == vector["multihash"], vector["name"]


def struct_of(value: int | None) -> pa.Table:
    return pa.table({"s": pa.array([{"a": value}, None], pa.struct([("a", pa.int64())]))})


COLLIDING: dict[str, tuple[list[Any], list[Any], pa.DataType]] = {
    "int8 [0] vs [null]": ([0], [None], pa.int8()),
    "int64 [0] vs [null]*8": ([0], [None] * 8, pa.int64()),
    "int64 [0]+[null]*8 vs [null]*8+[0] (same row count)": ([0] + [None] * 8, [None] * 8 + [0], pa.int64()),
    "utf8 [''] vs [null]*8": ([""], [None] * 8, pa.string()),
    "float -0.0 vs 0.0": ([-0.0], [0.0], pa.float64()),
}


@with_vectors
def test_arrow0_is_no_equality_key() -> None:
    """Other data may have the same digest: known, and the reference's."""
    known = {entry["name"]: entry for entry in ARROW0["collisions"]}
    for name, (left, right, type_) in COLLIDING.items():
        digest, other = (records(pa.table({"x": pa.array(values, type_)})) for values in (left, right))
        assert digest == f"f9680c00120{known[name]['digest']}", name
        assert (digest == other) is known[name]["equal"], name


@with_vectors
def test_a_null_in_a_struct_is_a_null() -> None:
    """The reference takes it for a zero if another struct of its batch is null; here, batches do not show."""
    layout = "struct [{a:null},null] vs [{a:0},null], child null under null parent (arrow-rs/parquet layout)"
    (known,) = [entry["digest"] for entry in ARROW0["collisions"] if entry["name"] == layout]
    zero, null = struct_of(0), struct_of(None)
    assert records(zero) == f"f9680c00120{known}"
    assert records(null) != records(zero)
    assert records(null.slice(0, 1), null.slice(1)) == records(null)


ITEMS = st.none() | st.integers(-(2**31), 2**31 - 1)
COLUMNS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "number": (pa.int32(), ITEMS),
    "text": (pa.string(), st.none() | st.text(max_size=5)),
    "blob": (pa.binary(), st.none() | st.binary(max_size=5)),
    "flag": (pa.bool_(), st.none() | st.booleans()),
    "list": (pa.list_(pa.int32()), st.none() | st.lists(ITEMS, max_size=4)),
    "pair": (pa.list_(pa.int32(), 2), st.none() | st.lists(ITEMS, min_size=2, max_size=2)),
    "lists": (
        pa.list_(pa.list_(pa.string())),
        st.none() | st.lists(st.none() | st.lists(st.none() | st.text(max_size=2), max_size=2), max_size=2),
    ),
    "record": (
        pa.struct([("a", pa.int32()), ("b", pa.struct([("c", pa.string())]))]),
        st.none()
        | st.fixed_dictionaries({"a": ITEMS, "b": st.none() | st.fixed_dictionaries({"c": st.text(max_size=2)})}),
    ),
}
SCHEMA = pa.schema([(name, type_) for name, (type_, _) in COLUMNS.items()])
ROWS = st.lists(st.fixed_dictionaries({name: values for name, (_, values) in COLUMNS.items()}), max_size=12)


@given(ROWS, st.lists(st.integers(0, 12), max_size=3))
def test_batches_offsets_and_files_do_not_show(rows: list[dict[str, Any]], cuts: list[int]) -> None:
    table = pa.Table.from_pylist(rows, SCHEMA)
    digest = records(table)
    ends = sorted({0, *(min(cut, len(rows)) for cut in cuts), len(rows)})
    parts = [table.slice(start, end - start) for start, end in pairwise(ends)]
    assert records(table.slice(0, 0), *parts) == digest
    if release_of(pa.__version__) < (24,):  # which reads no null among lists of one size from a file
        table = table.drop_columns("pair")
    stored = pa.BufferOutputStream()
    pq.write_table(table, stored)
    assert records(pq.read_table(pa.BufferReader(stored.getvalue()))) == records(table)


@given(st.lists(st.none() | st.lists(ITEMS, max_size=3), max_size=8), st.integers(0, 4))
def test_variants_of_a_type_do_not_show(rows: list[Any], start: int) -> None:
    expected = array_digest(pa.array(rows, pa.list_(pa.int32())).slice(start))
    for type_ in (pa.large_list(pa.int32()), pa.list_view(pa.int32()), pa.large_list_view(pa.int32())):
        assert array_digest(pa.array(rows, type_).slice(start)) == expected


def test_bytes_under_a_null_do_not_show() -> None:
    numbers = pa.array(np.array([1, 7, 3]), mask=np.array([False, True, False]))
    assert array_digest(numbers) == array_digest(pa.array([1, None, 3]))
    offsets, texts = np.array([0, 1, 3, 4], np.int32), b"axxb"
    text = pa.StringArray.from_buffers(3, pa.py_buffer(offsets), pa.py_buffer(texts), pa.py_buffer(b"\x05"))
    assert array_digest(text) == array_digest(pa.array(["a", None, "b"]))


def test_names_nesting_and_types_show() -> None:
    tables = [
        pa.table({"a": [1]}),
        pa.table({"b": [1]}),
        pa.table({"a": pa.array([1], pa.int32())}),
        pa.table({"a": pa.array([1], pa.uint64())}),
        pa.table({"a": pa.array([1], pa.timestamp("ms"))}),
        pa.table({"a": pa.array([1], pa.timestamp("ms", "UTC"))}),
        pa.table({"a": pa.array([1], pa.timestamp("us", "UTC"))}),
        pa.table({"a": [{"a": 1}]}),
        pa.table({"a": [[1]]}),
    ]
    assert len({records(table) for table in tables}) == len(tables)


@pytest.mark.parametrize(
    "type_",
    [
        pa.dictionary(pa.int32(), pa.string()),
        pa.map_(pa.string(), pa.int32()),
        pa.duration("us"),
        pa.month_day_nano_interval(),
        pa.sparse_union([pa.field("x", pa.int32())]),
        pa.list_(pa.struct([("x", pa.int32())])),
        *newer(("uuid",)),
    ],
    ids=str,
)
def test_what_arrow0_does_not_define_is_refused_by_column(type_: pa.DataType) -> None:
    with pytest.raises(UnsupportedType, match=r"column 'outer\.inner' cannot be hashed: arrow0 does not define"):
        Arrow0(pa.schema([("outer", pa.struct([("inner", type_)]))]))
