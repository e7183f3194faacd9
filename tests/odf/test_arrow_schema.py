"""Schemas as blocks hold them."""

from contextlib import suppress

import pyarrow as pa
import pytest
from flatbuffers import encode, packer
from flatbuffers.table import Table
from hypothesis import given
from hypothesis import strategies as st

from dagster_versioned.errors import ChainCorrupt
from dagster_versioned.odf.blocks.arrow_schema import decode_schema, encode_schema

SCHEMA = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("op", pa.int32(), nullable=False, metadata={"a": "b"}),
        pa.field("system_time", pa.timestamp("ms", "UTC"), nullable=False),
        pa.field("event_time", pa.date32()),
        pa.field("nested", pa.struct([pa.field("x", pa.list_(pa.decimal128(10, 2)))])),
    ]
)


def test_a_schema_comes_back_with_all_that_it_says() -> None:
    for schema in (SCHEMA, SCHEMA.with_metadata({"k": "v"}), pa.schema([])):
        assert decode_schema(encode_schema(schema)).equals(schema, check_metadata=True)


def test_the_root_of_the_buffer_is_the_schema() -> None:
    """As any reader of FlatBuffers finds it: slot 1 of the root are the fields, slot 0 of each its name."""
    data = encode_schema(SCHEMA)
    root = Table(data, encode.Get(packer.uoffset, data, 0))
    fields = root.Offset(6)
    names: list[bytes] = []
    for index in range(root.VectorLen(fields)):
        field = Table(data, root.Indirect(root.Vector(fields) + 4 * index))
        names.append(field.String(field.Pos + field.Offset(4)))
    assert names == [name.encode() for name in SCHEMA.names]


@given(st.binary(max_size=64))
def test_bytes_that_are_no_schema_are_refused(data: bytes) -> None:
    with pytest.raises(ChainCorrupt, match="cannot be read as an Arrow schema"):
        decode_schema(data)


@given(st.data())
def test_no_bytes_break_the_reader(data: st.DataObject) -> None:
    schema = bytearray(encode_schema(SCHEMA))
    schema[data.draw(st.integers(0, len(schema) - 1))] = data.draw(st.integers(0, 255))
    with suppress(ChainCorrupt):
        assert isinstance(decode_schema(bytes(schema)), pa.Schema)
