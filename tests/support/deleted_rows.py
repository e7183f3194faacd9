"""Scans of files with deletion vectors."""

import struct

import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

from dagster_versioned.delta.actions import DeletionVector
from dagster_versioned.delta.files.deletion_vectors import PORTABLE, z85_encode
from dagster_versioned.engines.conform import stored_schema
from dagster_versioned.engines.scan import Scan, ScanFile


def deleting(rows) -> DeletionVector:
    payload = struct.pack("<I", PORTABLE) + BitMap64(rows).serialize()
    return DeletionVector("i", z85_encode(payload), len(payload), len(rows))


def make_scan(store, tables, vectors, **options) -> Scan:
    files = []
    for i, (table, vector) in enumerate(zip(tables, vectors, strict=True)):
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, **options)
        data = sink.getvalue().to_pybytes()
        store.put(f"{i}.parquet", data)
        files.append(ScanFile(f"{i}.parquet", len(data), deletion_vector=vector, partition_values={"p": str(i)}))
    schema = stored_schema(tables[0].schema.append(pa.field("p", pa.int32())))
    return Scan(store, schema, tuple(files))


def numbered(start: int, count: int) -> pa.Table:
    numbers = range(start, start + count)
    schema = pa.schema([("a", pa.int64()), ("s", pa.struct([("x", pa.list_(pa.int64()))]))])
    return pa.table({"a": list(numbers), "s": [{"x": [n % 3]} if n % 5 else None for n in numbers]}, schema)
