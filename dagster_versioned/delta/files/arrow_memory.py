"""Bytes in memory of Arrow's own, for what several of its threads read."""

import pyarrow as pa


def in_arrow(data: bytes) -> pa.Buffer:
    """The bytes, copied.

    A thread of Arrow lets go of its source only after what it read was handed over. Where the source is an object of
    Python, it takes the interpreter to let go of it, and a process whose interpreter is ending by then aborts.
    """
    buffer = pa.allocate_buffer(len(data))
    memoryview(buffer).cast("B")[:] = data
    return buffer


def arrow_reader(data: bytes | pa.Buffer) -> pa.BufferReader:
    """The bytes as a file: a buffer of Arrow's as it is, an object of Python copied as `in_arrow` does."""
    return pa.BufferReader(in_arrow(data) if isinstance(data, bytes) else data)
