"""What Arrow's threads read belongs to Arrow, so that none of them needs an interpreter that is ending."""

import sys

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from dagster_versioned.delta.files.arrow_memory import arrow_reader, in_arrow


@given(st.binary(max_size=300))
def test_bytes_are_the_same_and_are_not_held(data: bytes) -> None:
    data = data[:]
    before = sys.getrefcount(data)
    copied, reader = in_arrow(data), arrow_reader(data)
    assert copied.to_pybytes() == reader.read() == data
    assert sys.getrefcount(data) == before


def test_a_buffer_of_arrows_is_read_as_it_is() -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"n": [1, 2]}), sink)
    buffer = sink.getvalue()
    assert pq.read_table(arrow_reader(buffer)).to_pydict() == {"n": [1, 2]}
    assert arrow_reader(buffer).read_buffer().address == buffer.address
