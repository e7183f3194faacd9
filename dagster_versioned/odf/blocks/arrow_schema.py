"""An Arrow schema as the FlatBuffers table that `SetDataSchema` holds.

pyarrow writes and reads schemas inside IPC messages only. A message is a table that points to its schema, and the root
of a buffer is an offset: so a message becomes a schema by another root, and a schema a message by 32 bytes before it.
Source: https://arrow.apache.org/docs/format/Columnar.html#encapsulated-message-format.
"""

import struct
from typing import Any, Final, cast

import pyarrow as pa

from dagster_versioned.errors import ChainCorrupt

_IPC_PREFIX: Final = 8  # the continuation marker and the message's length
_HEADER_SLOT: Final = 4 + 2 * 2  # of the table Message: version, header_type, header, …

# A buffer with a Message and nothing else: root, list of fields, then the table with its slots.
_MESSAGE: Final = struct.Struct("<I5H2xiIHB5x")
_SCHEMA_HEADER: Final = 1
_VERSION_5: Final = 4


def fields_of(schema: "pa.Schema") -> "list[pa.Field[Any]]":
    """The fields of a schema, in order."""
    return [cast("pa.Field[Any]", schema.field(index)) for index in range(len(schema))]


def encode_schema(schema: "pa.Schema") -> bytes:
    """The schema as the root table of a buffer."""
    message = schema.serialize().to_pybytes()[_IPC_PREFIX:]
    (table,) = struct.unpack_from("<I", message, 0)
    (to_fields,) = struct.unpack_from("<i", message, table)
    (slot,) = struct.unpack_from("<H", message, table - to_fields + _HEADER_SLOT)
    (to_schema,) = struct.unpack_from("<I", message, table + slot)
    return struct.pack("<I", table + slot + to_schema) + message[4:]


def decode_schema(data: bytes) -> "pa.Schema":
    """The schema of a buffer, of any writer. Raises `ChainCorrupt`."""
    try:
        (root,) = struct.unpack_from("<I", data, 0)
        fields, table, header = 4, 16, 20
        slots = (10, 12, 8, 10, 4)  # bytes of this list and of the table; where version, header_type and header are
        to_schema = _MESSAGE.size + root - header
        message = _MESSAGE.pack(table, *slots, table - fields, to_schema, _VERSION_5, _SCHEMA_HEADER) + data
        framed = struct.pack("<iI", -1, len(message)) + message
        return pa.ipc.read_schema(pa.py_buffer(framed))
    except (struct.error, pa.ArrowException, OSError, ValueError) as error:
        raise ChainCorrupt(f"The schema of {len(data)} bytes cannot be read as an Arrow schema: {error}") from None
