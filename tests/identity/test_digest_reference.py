"""Digests of rows against a value-by-value implementation of their specification, and whatever must not matter."""

import itertools
import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_versioned.bounds import release_of
from dagster_versioned.identity.digest import BagDigest, SequenceDigest, row_lanes, row_shas, type_text
from support import reference_digest
from support.arrow_types import newer
from support.digest_columns import arrow_type, batch_of, dirty, nullable, tables, values

Table = tuple[list[tuple[str, Any]], list[tuple[Any, ...]]]


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


def shas(*batches: pa.RecordBatch) -> str:
    return " ".join(sha for batch in batches for sha in row_shas(batch).to_pylist())


each = pytest.mark.parametrize("digest", [bag, sequence, shas])
both = pytest.mark.parametrize("digest", [bag, sequence])
Digest = Callable[..., str]


@given(tables())
def test_the_bag_digest_is_the_specified_one(table: Table) -> None:
    assert bag(batch_of(*table)) == reference_digest.bag(*table)


@given(tables())
def test_the_sequence_digest_is_the_specified_one(table: Table) -> None:
    assert sequence(batch_of(*table)) == reference_digest.sequence(*table)


@given(tables())
def test_row_lanes_are_what_the_bag_digest_sums(table: Table) -> None:
    columns, rows = table
    for seed, lane in enumerate(row_lanes(batch_of(columns, rows))):
        assert lane.tolist() == [reference_digest.record([k for _, k in columns], list(row), seed) for row in rows]


@given(tables())
def test_the_shas_of_rows_are_the_specified_ones(table: Table) -> None:
    assert shas(batch_of(*table)).split() == reference_digest.shas(*table)


@each
@given(table=tables(), data=st.data())
def test_batching_and_slicing_do_not_matter(digest: Digest, table: Table, data: st.DataObject) -> None:
    columns, rows = table
    before, after = (
        data.draw(st.lists(st.tuples(*(nullable(kind) for _, kind in columns)), max_size=10)) for _ in range(2)
    )
    whole = batch_of(columns, before + rows + after)
    first = data.draw(st.integers(0, len(rows)))
    second = data.draw(st.integers(first, len(rows)))
    edges = [0, first, second, len(rows)]
    pieces = [whole.slice(len(before) + a, b - a) for a, b in itertools.pairwise(edges)]
    assert digest(*pieces) == digest(batch_of(columns, rows))


@pytest.mark.every(2)
@each
@given(table=tables(), data=st.data())
def test_what_is_under_a_null_does_not_matter(digest: Digest, table: Table, data: st.DataObject) -> None:
    columns, rows = table

    def garbage(kind: Any) -> Any:
        return data.draw(values(kind))

    arrays = [dirty(kind, [row[index] for row in rows], garbage) for index, (_, kind) in enumerate(columns)]
    soiled = pa.RecordBatch.from_arrays(arrays, names=[name for name, _ in columns])
    assert digest(soiled) == digest(batch_of(columns, rows))
    if len(rows) > 1:
        assert digest(soiled.slice(1), soiled.slice(0, 0)) == digest(batch_of(columns, rows[1:]))


@given(tables(), st.randoms(use_true_random=False))
def test_the_bag_digest_ignores_row_order_and_merges(table: Table, chance: random.Random) -> None:
    columns, rows = table
    shuffled = chance.sample(rows, len(rows))
    assert bag(batch_of(columns, shuffled)) == bag(batch_of(columns, rows))
    parts = [BagDigest(batch_of(columns, rows).schema) for _ in range(2)]
    middle = len(rows) // 2
    for part, half in zip(parts, (shuffled[:middle], shuffled[middle:]), strict=True):
        part.update(batch_of(columns, half))
    parts[1].merge(*parts[0].lanes)
    assert parts[1].finish().text == bag(batch_of(columns, rows))


@given(tables())
def test_the_sequence_digest_tells_orders_apart(table: Table) -> None:
    columns, rows = table
    turned = rows[::-1]
    same = reference_digest.sequence(columns, turned) == reference_digest.sequence(columns, rows)
    assert (sequence(batch_of(columns, turned)) == sequence(batch_of(columns, rows))) == same


FILTERS_NARROW_DECIMALS = release_of(pa.__version__) >= (20,)
"""As the digest does; what is written to tables is decimal128 by then."""

VARIANTS = {
    "long": [pa.uint32()],
    "integer": [pa.uint16()],
    "short": [pa.uint8()],
    "float": [pa.float16()],
    "date": [pa.date64()],
    "time": [pa.time64("ns"), pa.time32("ms"), pa.time32("s")],
    "timestamp": [pa.timestamp("s", "UTC"), pa.timestamp("ms", "Europe/Berlin"), pa.timestamp("ns", "UTC")],
    "timestamp_ntz": [pa.timestamp("s"), pa.timestamp("ms"), pa.timestamp("ns")],
    "string": [pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())],
    "binary": [pa.large_binary(), pa.binary_view(), pa.binary(3)],
    "decimal(5,2)": [
        *(newer(("decimal32", 5, 2), ("decimal64", 5, 2)) if FILTERS_NARROW_DECIMALS else ()),
        pa.decimal256(5, 2),
    ],
    "decimal(38,10)": [pa.decimal256(38, 10)],
}
NARROW: dict[Any, st.SearchStrategy[Any]] = {
    pa.uint32(): st.integers(0, 2**32 - 1),
    pa.uint16(): st.integers(0, 2**16 - 1),
    pa.uint8(): st.integers(0, 2**8 - 1),
    pa.float16(): st.floats(width=16),
    pa.binary(3): st.binary(min_size=3, max_size=3),
}


@pytest.mark.every(3)
@both
@pytest.mark.parametrize(("kind", "variant"), [(kind, one) for kind, many in VARIANTS.items() for one in many])
@given(data=st.data())
def test_arrow_types_of_the_same_values_have_one_digest(
    digest: Digest, kind: str, variant: pa.DataType, data: st.DataObject
) -> None:
    one = NARROW.get(variant, values(kind))
    unit = getattr(variant, "unit", "us")
    if pa.types.is_temporal(variant) and unit in ("s", "ms"):
        keep = 1_000_000 if unit == "s" else 1000
        one = one.map(
            lambda moment: moment if kind == "date" else moment.replace(microsecond=moment.microsecond // keep * keep)
        )
    if unit == "ns" and kind.startswith("timestamp"):
        one = one.filter(lambda moment: 1700 < moment.year < 2200)
    drawn = data.draw(st.lists(st.none() | one, max_size=12))
    nested = data.draw(st.sampled_from(["no", "list", "struct"]))
    clean, other = pa.array(drawn, arrow_type(kind)), pa.array(drawn, arrow_type(kind)).cast(variant)
    if nested == "list":
        offsets = pa.array([0, 0, len(drawn) // 2, len(drawn)], pa.int32())
        clean, other = (pa.ListArray.from_arrays(offsets, array) for array in (clean, other))
    if nested == "struct":
        clean, other = (pa.StructArray.from_arrays([array], ["f"]) for array in (clean, other))
    first, second = (pa.RecordBatch.from_arrays([array], names=["c"]) for array in (clean, other))
    assert type_text(clean.type) == type_text(other.type)
    assert digest(first) == digest(second)
    assert shas(first) == shas(second)
    assert digest(first.slice(1)) == digest(second.slice(1))
