"""Strategies for values of the chain, made from their types: what a field may hold is what its annotation says."""

from dataclasses import fields
from datetime import UTC, datetime
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from hypothesis import strategies as st

from dagster_versioned.odf.blocks.block import Block
from dagster_versioned.odf.blocks.data_schema import (
    DataField,
    DataSchema,
    DataType,
    DataTypeList,
    DataTypeMap,
    DataTypeOption,
    DataTypeStruct,
    ExtraAttributes,
)
from dagster_versioned.odf.blocks.events import SetDataSchema, Timestamp
from dagster_versioned.odf.blocks.marks import Width
from dagster_versioned.odf.identity.dataset_id import DatasetId
from dagster_versioned.odf.identity.multihash import HashAlgorithm, Multihash

DIGESTS = st.binary(min_size=32, max_size=32)
TEXTS = st.text(max_size=12)
INTEGERS = {
    Width.UINT64: st.integers(0, 2**64 - 1) | st.just(0),
    Width.UINT32: st.integers(0, 2**32 - 1) | st.just(0),
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


_JSON = st.none() | st.booleans() | TEXTS | st.integers(-(2**53), 2**53) | st.lists(TEXTS, max_size=2)
EXTRA = st.dictionaries(st.from_regex(r"[a-z]+\.org/[a-zA-Z0-9_-]+", fullmatch=True), _JSON, max_size=2).map(
    ExtraAttributes.of
)


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a type of `dagster_versioned.odf.blocks.events`."""
    origin = get_origin(hint)
    if hint == DataType:
        return st.deferred(lambda: DATA_TYPES)
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
        ExtraAttributes: EXTRA,
        SetDataSchema: st.deferred(lambda: SCHEMAS),
    }
    if hint in known:
        return known[hint]
    if issubclass(hint, Enum):
        return st.sampled_from(hint)
    hints = get_type_hints(hint, include_extras=True)
    return st.builds(hint, **{field.name: values(hints[field.name]) for field in fields(hint)})


_NESTED = {DataTypeList, DataTypeMap, DataTypeOption, DataTypeStruct}
_FLAT = st.one_of(*(values(kind) for kind in get_args(get_args(DataType)[0]) if kind not in _NESTED))


def _nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    option = st.builds(DataTypeOption, _FLAT)
    either = inner | option
    members = st.lists(st.builds(DataField, TEXTS, either, st.none() | EXTRA), max_size=2).map(tuple)
    lengths = st.none() | INTEGERS[Width.UINT64]
    return (
        option
        | st.builds(DataTypeList, either, lengths)
        | st.builds(DataTypeMap, inner, either, st.none() | st.booleans())
        | st.builds(DataTypeStruct, members)
    )


DATA_TYPES = st.recursive(_FLAT, _nested, max_leaves=4)
SCHEMAS = st.builds(SetDataSchema, st.binary(max_size=40)) | st.builds(
    lambda schema: SetDataSchema(schema=schema), values(DataSchema)
)
BLOCKS = values(Block)
