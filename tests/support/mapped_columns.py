"""A table whose files call its columns otherwise, at every depth."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dagster_versioned.delta.schema.column_mapping import ID, PHYSICAL_NAME
from dagster_versioned.delta.schema.types import ArrayType, MapType, StructField, StructType
from support.delta_logs import put_raw_log


def member(name: str, number: int, data_type="long", physical: str | None = None) -> StructField:
    return StructField(name, data_type, True, {ID: number, PHYSICAL_NAME: physical or f"p{number}"})


# Names cross over: what the table calls `a` is `b` in the files, and the other way round.
INNER = StructType([member("x", 10, physical="y"), member("y", 11, "string", "x"), member("new", 12)])
SCHEMA = StructType(
    [
        member("a", 1, physical="b"),
        member("b", 2, physical="a"),
        member("s", 3, INNER),
        member("l", 4, ArrayType(INNER)),
        member("m", 5, MapType("string", ArrayType(INNER))),
        member("later", 6, "string"),
        member("part", 7, "integer", "part-7"),
    ]
)


def stored(name: str, number: int, data_type: pa.DataType) -> pa.Field:
    return pa.field(name, data_type, metadata={"PARQUET:field_id": str(number)})


OLD_INNER = pa.struct([stored("x", 11, pa.string()), stored("dropped", 99, pa.int64()), stored("y", 10, pa.int64())])
FILE = pa.schema(
    [
        stored("dropped", 98, pa.string()),
        stored("a", 2, pa.int64()),
        stored("b", 1, pa.int64()),
        stored("p3", 3, OLD_INNER),
        stored("p4", 4, pa.list_(pa.field("element", OLD_INNER))),
        stored("p5", 5, pa.map_(pa.string(), pa.list_(pa.field("element", OLD_INNER)))),
    ]
)
HELD = {"x": "eleven", "dropped": 0, "y": 10}
SHOWN = {"x": 10, "y": "eleven", "new": None}
ROWS = [
    {"dropped": "d", "a": 2, "b": 1, "p3": HELD, "p4": [HELD, None], "p5": [("k", [HELD]), ("n", None)]},
    {"dropped": None, "a": None, "b": None, "p3": None, "p4": None, "p5": None},
    {"dropped": "d", "a": 4, "b": 3, "p3": dict.fromkeys(HELD), "p4": [], "p5": []},
]
EXPECTED = [
    {"a": 1, "b": 2, "s": SHOWN, "l": [SHOWN, None], "m": [("k", [SHOWN]), ("n", None)]},
    {"a": None, "b": None, "s": None, "l": None, "m": None},
    {"a": 3, "b": 4, "s": dict.fromkeys(SHOWN), "l": [], "m": []},
]


READER_3 = {"minReaderVersion": 3, "minWriterVersion": 7}


def create(root: Path, mode: str, table: pa.Table, schema: StructType = SCHEMA, legacy: bool = False, **add) -> str:
    pq.write_table(table, root / "f.parquet", row_group_size=2)
    feature = {"readerFeatures": ["columnMapping"], "writerFeatures": ["columnMapping"]}
    partitioned = "part" in schema.names
    put_raw_log(
        root,
        schema,
        {"path": "f.parquet", "partitionValues": {"part-7": "5"} if partitioned else {}, **add},
        protocol={"minReaderVersion": 2, "minWriterVersion": 5} if legacy else {**READER_3, **feature},
        partition_by=["part"] if partitioned else [],
        **{"delta.columnMapping.mode": mode},
    )
    return str(root)
