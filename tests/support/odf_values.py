"""Strategies for values of the chain, made from their types: what a field may hold is what its annotation says."""

from dataclasses import fields
from datetime import UTC, datetime
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from hypothesis import strategies as st

from dagster_versioned.odf.blocks.block import Block
from dagster_versioned.odf.blocks.events import Timestamp, Width
from dagster_versioned.odf.identity.dataset_id import DatasetId
from dagster_versioned.odf.identity.multihash import HashAlgorithm, Multihash

DIGESTS = st.binary(min_size=32, max_size=32)
TEXTS = st.text(max_size=12)
INTEGERS = {
    Width.UINT64: st.integers(0, 2**64 - 1) | st.just(0),
    Width.INT32: st.integers(-(2**31), 2**31 - 1) | st.just(0),
}
TIMESTAMPS = st.builds(
    Timestamp,
    st.integers(1, 9999),
    st.integers(1, 365),
    st.integers(0, 86_399),
    st.integers(0, 999_999_999),
)
MOMENTS = st.datetimes(min_value=datetime(1, 1, 1), max_value=datetime(9999, 12, 31), timezones=st.just(UTC))


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a type of `dagster_versioned.odf.blocks.events`."""
    origin = get_origin(hint)
    if origin is Annotated:
        inner, mark = get_args(hint)
        return INTEGERS[mark] if isinstance(mark, Width) else values(inner)
    if origin in (Union, UnionType):
        return st.one_of(*map(values, get_args(hint)))
    if origin is tuple:
        return st.lists(values(get_args(hint)[0]), max_size=3).map(tuple)
    known = {
        NoneType: st.none(),
        str: TEXTS,
        bytes: st.binary(max_size=40),
        bool: st.booleans(),
        Timestamp: TIMESTAMPS,
        Multihash: st.builds(Multihash, st.sampled_from(HashAlgorithm), DIGESTS),
        DatasetId: st.builds(DatasetId, DIGESTS),
    }
    if hint in known:
        return known[hint]
    if issubclass(hint, Enum):
        return st.sampled_from(hint)
    hints = get_type_hints(hint, include_extras=True)
    return st.builds(hint, **{field.name: values(hints[field.name]) for field in fields(hint)})


BLOCKS = values(Block)
