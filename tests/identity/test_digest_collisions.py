"""Attempts to make a digest say "the same" of different data, and "different" of the same."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dagster_versioned.errors import InvalidInput, UnsupportedType
from dagster_versioned.identity import digest as module
from dagster_versioned.identity.digest import BagDigest, RowsDigest, SequenceDigest, row_lanes, type_text
from support.arrow_types import newer

Digest = Callable[..., str]


def bag(*batches: pa.RecordBatch) -> str:
    digest = BagDigest(batches[0].schema)
    for batch in batches:
        digest.update(batch)
    return digest.finish().text


def sequence(*batches: pa.RecordBatch) -> str:
    digest = SequenceDigest(batches[0].schema)
    for batch in batches:
        digest.update(batch)
    return digest.finish().text


both = pytest.mark.parametrize("digest", [bag, sequence])


def column(values: Any, arrow: pa.DataType | None = None) -> pa.RecordBatch:
    array = values if isinstance(values, pa.Array) else pa.array(values, arrow)
    return pa.RecordBatch.from_arrays([array], names=["c"])


INT, TEXT = pa.int64(), pa.string()
LISTS, NESTED = pa.list_(INT), pa.list_(pa.list_(INT))
MAPS = pa.map_(TEXT, INT)
STRUCTS = pa.struct([("x", INT), ("y", INT)])
DEEP = pa.struct([("s", STRUCTS)])

DIFFERENT = {
    "null and zero": (INT, [[None], [0], [], [None, None], [0, 0], [0, None, None]]),
    "null and empty text": (TEXT, [[None], [""], ["\0"], ["\0\0"], []]),
    "text moved between rows": (TEXT, [["ab", "c"], ["a", "bc"], ["abc", ""], ["abc", None]]),
    "null and false": (pa.bool_(), [[None], [False], [True]]),
    "lists": (LISTS, [[None], [[]], [[None]], [[None, None]], [[0]], [[0, None]], [[None, 0]], [[0, 0]]]),
    "list items permuted": (LISTS, [[[1, 2]], [[2, 1]], [[1], [2]], [[1, 2], []], [[1, 2], None]]),
    "lists of lists": (NESTED, [[[[], [1]]], [[[1], []]], [[[1]]], [[[1], None]], [[[None], [1]]], [[None, [1]]]]),
    "structs": (
        STRUCTS,
        [
            [None],
            [{"x": None, "y": None}],
            [{"x": 0, "y": None}],
            [{"x": None, "y": 0}],
            [{"x": 1, "y": 2}],
            [{"x": 2, "y": 1}],
        ],
    ),
    "structs of structs": (DEEP, [[None], [{"s": None}], [{"s": {"x": None, "y": None}}]]),
    "maps": (
        MAPS,
        [
            [None],
            [[]],
            [[("a", None)]],
            [[("a", 0)]],
            [[("a", 1), ("b", 2)]],
            [[("a", 2), ("b", 1)]],
            [[("a", 1), ("a", 1)]],
            [[("a", 1)]],
            [[("a", 1)], [("b", 2)]],
        ],
    ),
    "long lists of nulls": (LISTS, [[[None] * count] for count in (63, 64, 65, 128, 129)] + [[[None] * 64 + [0]]]),
    "floats": (pa.float64(), [[0.0], [float("nan")], [float("inf")], [float("-inf")], [5e-324], [None]]),
    "duplicates": (INT, [[1], [1, 1], [1, 1, 1]]),
}


@both
@pytest.mark.parametrize("case", DIFFERENT)
def test_different_data_has_different_digests(digest: Digest, case: str) -> None:
    arrow, variants = DIFFERENT[case]
    texts = [digest(column(values, arrow)) for values in variants]
    # The number of rows must not be what tells them apart.
    for (one, first), (other, second) in itertools.combinations(enumerate(texts), 2):
        assert first.rsplit(":", 1)[0] != second.rsplit(":", 1)[0], (variants[one], variants[other])


@both
def test_values_that_trade_columns_or_rows_change_the_digest(digest: Digest) -> None:
    def table(*columns: list[int | None]) -> str:
        return digest(pa.RecordBatch.from_arrays([pa.array(one, INT) for one in columns], names=["a", "b"]))

    variants = [
        table([1, 2], [3, 4]),
        table([3, 4], [1, 2]),
        table([1, 4], [3, 2]),
        table([1, 2], [4, 3]),
        table([1, None], [None, 4]),
        table([None, 1], [None, 4]),
        table([1, 4], [None, None]),
    ]
    # The bag is told apart by which values share a row, and only by that.
    if digest is bag:
        assert table([2, 1], [4, 3]) == variants[0]
    assert len(set(variants)) == len(variants)


def test_a_map_means_the_same_in_any_order_to_the_bag_but_not_to_the_sequence() -> None:
    one, other = column([[("a", 1), ("b", None)]], MAPS), column([[("b", None), ("a", 1)]], MAPS)
    assert bag(one) == bag(other)
    assert sequence(one) != sequence(other)


@both
def test_equal_floats_are_one_value(digest: Digest) -> None:
    nans = np.array([0x7FF8000000000000, 0x7FF0000000000001, 0xFFF8000000000123, 0xFFFFFFFFFFFFFFFF], np.uint64)
    assert len({digest(column(pa.array(nans[i : i + 1].view(np.float64), from_pandas=False))) for i in range(4)}) == 1
    assert digest(column([-0.0])) == digest(column([0.0]))
    singles = np.array([0x7FC00000, 0xFF800001], np.uint32).view(np.float32)
    assert digest(column(pa.array(singles[:1]))) == digest(column(pa.array(singles[1:])))


def test_types_of_one_value_are_told_apart_by_the_sequence_and_by_the_schema_beside_the_bag() -> None:
    narrow, wide = column([1], pa.int32()), column([1], pa.int64())
    assert bag(narrow) == bag(wide)
    assert sequence(narrow) != sequence(wide)
    assert type_text(pa.int32()) != type_text(pa.int64())


def test_names_are_told_apart_by_the_sequence() -> None:
    def named(name: str) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([pa.array([1])], names=[name])

    assert sequence(named("a")) != sequence(named("b"))
    assert bag(named("a")) == bag(named("b"))


@both
def test_empty_batches_add_nothing(digest: Digest) -> None:
    rows = column([[1, None], None], LISTS)
    assert digest(rows.slice(0, 0), rows, rows.slice(2)) == digest(rows)
    assert digest(rows.slice(0, 0)).endswith(":0")


@both
def test_runs_dictionaries_and_list_types_are_their_values(digest: Digest) -> None:
    values = ["a", "a", None, "", None, None, "b"]
    plain = column(values, TEXT)
    runs = pc.run_end_encode(pa.array(values, TEXT))
    null_in_dictionary = pa.DictionaryArray.from_arrays(
        pa.array([0, 0, 1, 2, None, 1, 3]), pa.array(["a", None, "", "b"])
    )
    for other in (runs, null_in_dictionary):
        assert digest(column(other)) == digest(plain)
        assert digest(column(other).slice(1)) == digest(plain.slice(1))
    lists = [[1, None], None, [3, 4], [5, 6]]
    for arrow in (pa.list_(INT, 2), pa.large_list(INT), pa.list_view(INT), pa.large_list_view(INT)):
        assert digest(column(lists, arrow)) == digest(column(lists, LISTS))
        assert digest(column(lists, arrow).slice(1)) == digest(column(lists, LISTS).slice(1))
    dictionary = pa.dictionary(pa.int8(), TEXT)
    nested = pa.ListArray.from_arrays([0, 3, 7], pa.array(values, TEXT).cast(dictionary))
    assert digest(column(nested)) == digest(column([values[:3], values[3:]], pa.list_(TEXT)))


@both
def test_list_views_may_overlap_and_be_out_of_order(digest: Digest) -> None:
    views = pa.ListViewArray.from_arrays(
        pa.array([2, 0, 1], pa.int32()), pa.array([2, 3, 0], pa.int32()), pa.array([1, 2, 3, 4])
    )
    assert digest(column(views)) == digest(column([[3, 4], [1, 2, 3], []], LISTS))


@both
def test_blocks_of_wide_rows_change_nothing(digest: Digest, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = column([[index] * (index % 40) for index in range(500)], LISTS)
    whole = digest(rows)
    monkeypatch.setattr(module, "BLOCK_ROWS", 7)
    assert digest(rows) == whole
    monkeypatch.setattr(module, "BLOCK_BYTES", 1000)
    assert digest(rows) == whole


@both
def test_more_than_64_columns(digest: Digest) -> None:
    def wide(hole: int | None) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(
            [pa.array([None if index == hole else 0], INT) for index in range(130)], names=[f"c{i}" for i in range(130)]
        )

    assert len({digest(wide(hole)) for hole in (None, 0, 1, 63, 64, 65, 127, 128, 129)}) == 9


def test_row_lanes_of_many_blocks_and_of_none() -> None:
    batch = column(list(range(40_000)), INT)
    first, second = row_lanes(batch)
    assert first.size == second.size == 40_000
    assert first[20_000:].tolist() == row_lanes(batch.slice(20_000))[0].tolist()
    assert row_lanes(batch.slice(0, 0))[0].size == 0


@pytest.mark.parametrize(
    "arrow",
    [
        pa.null(),
        pa.uint64(),
        pa.duration("us"),
        pa.month_day_nano_interval(),
        pa.decimal256(39, 0),
        pa.struct([]),
        pa.list_(pa.null()),
        pa.map_(TEXT, pa.uint64()),
        pa.struct([("f", pa.list_(pa.duration("s")))]),
        pa.dense_union([pa.field("a", INT)]),
        *newer(("uuid",)),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", [BagDigest, SequenceDigest])
def test_types_without_canonical_bytes_are_refused_by_column(kind: type, arrow: pa.DataType) -> None:
    with pytest.raises(UnsupportedType, match="'price"):
        kind(pa.schema([("ok", INT), ("price", arrow)]))


@pytest.mark.parametrize("kind", [BagDigest, SequenceDigest])
def test_rows_without_columns_and_batches_of_other_columns_are_refused(kind: type) -> None:
    with pytest.raises(UnsupportedType):
        kind(pa.schema([]))
    digest = kind(pa.schema([("c", INT)]))
    for other in (column([1], pa.int32()), column([1]).rename_columns(["d"])):
        with pytest.raises(InvalidInput):
            digest.update(other)
    digest.update(pa.record_batch([pa.array([1])], schema=pa.schema([pa.field("c", INT, False, {"k": "v"})])))
    assert digest.finish().nrow == 1


def test_a_digest_may_be_finished_more_than_once() -> None:
    for kind in (BagDigest, SequenceDigest):
        digest = kind(column([1]).schema)
        digest.update(column([1]))
        assert digest.finish() == digest.finish()
        digest.update(column([2]))
        assert digest.finish().nrow == 2


def test_the_text_of_a_digest_is_parsed_back() -> None:
    for text in (bag(column([1, 2])), sequence(column([1, 2]))):
        assert RowsDigest.parse(text).text == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "bag-xxh64x2",
        "bag-xxh64x2:" + "0" * 32,
        "bag-xxh64x2:" + "0" * 32 + ":-1",
        "bag-xxh64x2:" + "0" * 32 + ":01",
        "bag-xxh64x2:" + "0" * 31 + ":1",
        "bag-xxh64x2:" + "A" * 32 + ":1",
        "bag-xxh64x2:" + "0" * 32 + ":1\n",
        "bag-xxh64x2:" + "0" * 32 + "\n:1",
        "seq-sha256:" + "0" * 32 + ":1",
        "arrow0:" + "0" * 64 + ":1",
    ],
)
def test_what_is_no_digest_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        RowsDigest.parse(text)
