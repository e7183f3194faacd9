"""Arrow tables for tests: random ones of any stored type, and ways to cut one table into different batches."""

import datetime as dt
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

SCALARS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.bool_(), st.booleans()),
    (pa.int8(), st.integers(-128, 127)),
    (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.float32(), st.floats(width=32, allow_nan=False)),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.string(), st.text(max_size=20)),
    (pa.binary(), st.binary(max_size=20)),
    (pa.date32(), st.dates()),
    (pa.timestamp("us"), st.datetimes()),
    (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(dt.UTC))),
    (pa.decimal128(38, 6), st.decimals(-(10**30), 10**30, places=6)),
    (pa.decimal128(5, 2), st.decimals(-999, 999, places=2).map(Decimal)),
]


def _list(inner: tuple[pa.DataType, Any]) -> tuple[pa.DataType, Any]:
    return pa.list_(pa.field("element", inner[0])), st.lists(st.none() | inner[1], max_size=3)


def _struct(inner: list[tuple[pa.DataType, Any]]) -> tuple[pa.DataType, Any]:
    names = [f"f{i}" for i in range(len(inner))]
    return (
        pa.struct([pa.field(name, data_type) for name, (data_type, _) in zip(names, inner, strict=True)]),
        st.fixed_dictionaries({name: st.none() | values for name, (_, values) in zip(names, inner, strict=True)}),
    )


def _map(inner: tuple[pa.DataType, Any]) -> tuple[pa.DataType, Any]:
    items = st.dictionaries(st.text(max_size=3), st.none() | inner[1], max_size=3).map(lambda d: list(d.items()))
    return pa.map_(pa.string(), inner[0]), items


TYPES = st.recursive(
    st.sampled_from(SCALARS),
    lambda inner: st.one_of(inner.map(_list), st.lists(inner, min_size=1, max_size=2).map(_struct), inner.map(_map)),
    max_leaves=4,
)


@st.composite
def tables(draw: st.DrawFn, *, min_rows: int = 0, max_rows: int = 30) -> pa.Table:
    """A canonical table of one to four columns of any stored type, nested ones and nulls included."""
    columns = draw(st.lists(TYPES, min_size=1, max_size=4))
    nrow = draw(st.integers(min_rows, max_rows))
    return pa.table(
        {
            f"c{i}": pa.array(draw(st.lists(st.none() | values, min_size=nrow, max_size=nrow)), data_type)
            for i, (data_type, values) in enumerate(columns)
        }
    )


@st.composite
def splits(draw: st.DrawFn, table: pa.Table) -> list[pa.RecordBatch]:
    """The table's rows in order, cut into batches at random places, empty batches included."""
    cuts = sorted(draw(st.lists(st.integers(0, table.num_rows), max_size=6)))
    edges = [0, *cuts, table.num_rows]
    whole = table.combine_chunks()
    pieces = [whole.slice(start, stop - start) for start, stop in pairwise(edges)]
    return [batch for piece in pieces for batch in piece.to_batches()]
