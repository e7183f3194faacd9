"""Random rows at the edges of every type, in Delta tables that are laid out and written in many ways."""

import datetime as dt
import math
import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.compute as pc

from dagster_versioned import Project, TableOptions
from dagster_versioned.delta import Table
from dagster_versioned.delta_tables.write import delete_from, write_delta
from support.edge_conditions import Column, Condition, Order, a_condition, of_spark
from support.frames import NESTED
from support.spark import spark_frame

ID = "n"
"""The column that tells rows apart."""

_NEGATIVE_NAN = struct.unpack("<d", bytes.fromhex("010000000000f8ff"))[0]
_LARGEST, _LARGEST_SINGLE = 1.7976931348623157e308, 3.4028234663852886e38
_HALF_OF_ONE = 1.401298464324817e-45

DAYS = [
    *(dt.date(1, 1, 1), dt.date(1, 1, 2), dt.date(1000, 2, 28), dt.date(1582, 10, 4), dt.date(1582, 10, 10)),
    *(dt.date(1582, 10, 15), dt.date(1900, 1, 1), dt.date(1969, 12, 31), dt.date(1970, 1, 1), dt.date(2024, 2, 29)),
    *(dt.date(9999, 12, 30), dt.date(9999, 12, 31)),
]
MOMENTS = [
    *(dt.datetime(1, 1, 1), dt.datetime(1, 1, 1, 0, 0, 0, 1), dt.datetime(1582, 10, 4, 23, 59, 59, 999_999)),
    *(dt.datetime(1582, 10, 10, 12), dt.datetime(1582, 10, 15), dt.datetime(1677, 9, 21, 0, 12, 43, 145_224)),
    *(dt.datetime(1850, 1, 1, 0, 7, 33), dt.datetime(1899, 12, 31, 23, 59, 59, 1), dt.datetime(1900, 1, 1)),
    *(dt.datetime(1969, 12, 31, 23, 59, 59, 999_999), dt.datetime(1970, 1, 1), dt.datetime(1970, 1, 1, 0, 0, 0, 1)),
    *(dt.datetime(2024, 6, 1, 12, 30, 15, 123_456), dt.datetime(2024, 6, 1, 12, 30, 15, 123_000)),
    *(dt.datetime(2024, 10, 27, 1, 30), dt.datetime(2262, 4, 11, 23, 47, 16, 854_776)),
    *(dt.datetime(9999, 12, 31, 23, 59, 59, 999_000), dt.datetime(9999, 12, 31, 23, 59, 59, 999_999)),
]
TEXTS = [
    *("", " ", "a", "A", "a ", "b", "ab", "z" * 31, "z" * 32, "z" * 33, "z" * 32 + "a", "z" * 70),
    *("e\u0301", "\u00e9", "\u00df", "SS", "\u0130", "\ud7ff", "\ue000", "\ufeff", "\ufffd", "\uffff"),
    *("\U00010000", "\U0001f600" * 33, "\U0010ffff", "\U0010ffff" * 40, "u" * 31 + "\U0010ffff", "u" * 31 + "\uffffx"),
    *("u" * 31 + "\U0010ffff" * 3, "u" * 32 + "\x00", "\x00", "a\x00b", "a\nb", "\x7f", "\\ud800", "%", "_", "a%b"),
    *(
        "'",
        '"',
        "\\",
        "`",
        "NaN",
        "null",
        "inf",
        "2024-1-1",
        "1",
        "0",
        "-0",
        "\u200b",
        "\u202e",
        "__HIVE_DEFAULT_PARTITION__",
    ),
]
BYTES = [b"", b"\x00", b"\x00\x00", b"a", b"\x7f", b"\x80", b"\xff", b"\xff" * 70, b"\xf0\x9f\x98", b"a\x00b"]

POOLS: dict[pa.DataType, list[Any]] = {
    pa.bool_(): [True, False],
    **{
        kind: [-(2**bits), 1 - 2**bits, -1, 0, 1, 7, 2**bits - 2, 2**bits - 1]
        for kind, bits in ((pa.int8(), 7), (pa.int16(), 15), (pa.int32(), 31))
    },
    pa.int64(): [-(2**63), 1 - 2**63, -(2**53) - 1, -1, 0, 1, 7, 2**53, 2**53 + 1, 2**63 - 2, 2**63 - 1],
    pa.float32(): [
        *(math.nan, math.nan, -0.0, 0.0, math.inf, -math.inf, _HALF_OF_ONE, -_HALF_OF_ONE, 1.5, -3.5, 1.0, 2.0**24),
        *(_LARGEST_SINGLE, -_LARGEST_SINGLE, struct.unpack("<f", struct.pack("<f", 0.1))[0], 1.1754943508222875e-38),
    ],
    pa.float64(): [
        *(math.nan, _NEGATIVE_NAN, -0.0, 0.0, math.inf, -math.inf, 5e-324, -5e-324, 2.2250738585072014e-308, 1.5, -3.5),
        *(0.1, 0.30000000000000004, 1.0, 2.0**53, 1e22, 1e23, _LARGEST, -_LARGEST, 123456789.12345679),
    ],
    pa.decimal128(5, 2): [Decimal(text) for text in ("-999.99", "-0.01", "0.00", "0.01", "1.50", "5.00", "999.99")],
    pa.decimal128(18, 4): [
        Decimal(text) for text in ("-99999999999999.9999", "0.0001", "1.0000", "99999999999999.9999")
    ],
    pa.decimal128(38, 0): [*map(Decimal, (1 - 10**38, 2 - 10**38, -1, 0, 1, 2**53 + 1, 10**38 - 2, 10**38 - 1))],
    pa.decimal128(38, 38): [
        Decimal(text + digits)
        for text, digits in (("-0.", "9" * 38), ("0.", "0" * 37 + "1"), ("0.", "1" * 38), ("0.", "9" * 37 + "8"))
    ]
    + [Decimal("0." + "0" * 38)],
    pa.string(): TEXTS,
    pa.binary(): BYTES,
    pa.date32(): DAYS,
    pa.timestamp("us", "UTC"): [moment.replace(tzinfo=dt.UTC) for moment in MOMENTS],
    pa.timestamp("us"): MOMENTS,
}

STRUCT = pa.struct(
    [
        ("f", pa.float64()),
        ("s", pa.string()),
        ("i", pa.int32()),
        ("deep", pa.struct([("g", pa.float32()), ("day", pa.date32()), ("at", pa.timestamp("us", "UTC"))])),
    ]
)

_PARTITION_TYPES = [pa.string(), pa.int32(), pa.date32(), pa.bool_(), pa.int64(), pa.decimal128(5, 2)]


@dataclass(frozen=True)
class Layout:
    """How a table is written: by whom, in how many files, with what."""

    writer: str
    files: int
    group_rows: int
    partitioned_by: str | None = None
    vectors: bool = False
    mapped: bool = False
    checkpoint: bool = False


@dataclass(frozen=True)
class EdgeTable:
    """Rows in memory, in some table."""

    seed: int
    rows: pa.Table
    layout: Layout
    columns: tuple[Column, ...]

    @cached_property
    def records(self) -> list[dict[str, Any]]:
        return self.rows.to_pylist()

    def truth(self, condition: Condition, order: Order = of_spark) -> list[int]:
        """The ids of the rows of which the condition is true."""
        return sorted(row[ID] for row in self.records if condition.truth(row, order) is True)


def columns_of(schema: pa.Schema) -> tuple[Column, ...]:
    found: list[Column] = []

    def walk(path: tuple[str, ...], kind: pa.DataType) -> None:
        found.append(Column(path, kind))
        if pa.types.is_struct(kind):
            for field in kind:
                walk((*path, field.name), field.type)

    for field in schema:
        if field.name != ID:
            walk((field.name,), field.type)
    return tuple(found)


class Maker:
    """Everything that is random about one table, from a seed."""

    def __init__(self, seed: int, writers: Sequence[str]) -> None:
        self.seed = seed
        self.luck = random.Random(seed)
        self.writer = self.luck.choice(writers)

    def table(self) -> EdgeTable:
        luck = self.luck
        files, group_rows = luck.choice([1, 2, 3, 4]), luck.choice([1, 2, 3, 1000])
        kinds = luck.sample([*POOLS], luck.randint(2, 5))
        fields = {f"c{i}": kind for i, kind in enumerate(kinds)}
        if luck.random() < 0.3:
            fields["twin"] = kinds[0]
        partition = None
        if luck.random() < 0.3:
            # `deltalake` 1.6 spells a negative decimal of a partition -9.-99.
            partition, fields["p"] = "p", luck.choice(_PARTITION_TYPES[: -1 if self.writer == "deltalake" else None])
        if luck.random() < 0.6:
            fields["st"] = STRUCT
        if luck.random() < 0.15:
            name = luck.choice([*NESTED])
            fields["nested"] = NESTED[name].type
        pieces: list[pa.Table] = []
        for file in range(files):
            count = luck.randint(1, 8)
            columns = {ID: pa.array(range(file * 10, file * 10 + count), pa.int64())}
            for name, kind in fields.items():
                values = self._column(name, kind, count)
                columns[name] = pa.array(values, kind)
            pieces.append(pa.table(columns))
        layout = Layout(
            self.writer,
            files,
            group_rows,
            partition,
            vectors=luck.random() < 0.3 and self.writer != "deltalake",
            mapped=luck.random() < 0.2 and self.writer in ("delta_tables", "spark"),
            checkpoint=luck.random() < 0.2,
        )
        rows = pa.concat_tables(pieces)
        return EdgeTable(self.seed, rows, layout, columns_of(rows.schema))

    def _column(self, name: str, kind: pa.DataType, count: int) -> list[Any]:
        """Few distinct values in a file, so that there is something to skip."""
        if name == "nested":
            pool: list[Any] = next(array for array in NESTED.values() if array.type == kind).to_pylist()
        elif pa.types.is_struct(kind):
            fields = [(field.name, self._column(field.name, field.type, count)) for field in kind]
            whole = [{field: values[i] for field, values in fields} for i in range(count)]
            return [None if self.luck.random() < 0.15 else value for value in whole]
        else:
            pool = POOLS[kind]
        chosen = [self.luck.choice(pool) for _ in range(self.luck.choice([1, 1, 2, 3, 5]))]
        if name == "p":  # what no partition may be, and what `deltalake` writes as null
            refused = ("", *(["__HIVE_DEFAULT_PARTITION__"] if self.writer == "deltalake" else []))
            chosen = [value for value in chosen if value not in refused] or [None]
        nulls = self.luck.choice([0.0, 0.0, 0.2, 0.5, 1.0 if self.luck.random() < 0.3 else 0.1])
        return [None if self.luck.random() < nulls else self.luck.choice(chosen) for _ in range(count)]

    def conditions(self, table: EdgeTable, count: int) -> list[Condition]:
        rows = table.records

        def literal(column: Column) -> Any:
            """Mostly what is there."""
            if self.luck.random() < 0.5:
                value = column.value(self.luck.choice(rows))
                if value is not None:
                    return value
            return self.luck.choice(POOLS[column.type])

        return [a_condition(self.luck, table.columns, literal) for _ in range(count)]


# --- writing ---------------------------------------------------------------------------------------------------------


def write(table: EdgeTable, place: Path, spark: Any = None) -> Path:
    """Make the table below an empty folder, in a commit or more for each of its files; its own folder."""
    layout, by = table.layout, [table.layout.partitioned_by] if table.layout.partitioned_by else []
    properties = {"delta.enableDeletionVectors": "true"} if layout.vectors else {}
    if layout.mapped:
        properties["delta.columnMapping.mode"] = "name"
    files = [_file(table.rows, number) for number in range(layout.files)]
    folder = place / "table"
    if layout.writer == "versioned":
        folder = place / "project" / "datom" / "t"
        _write_versions(table, files, by, properties, Project.open("P", str(place / "project")))
    elif layout.writer == "deltalake":
        groups = deltalake.WriterProperties(max_row_group_size=layout.group_rows)
        for rows in files:
            deltalake.write_deltalake(folder, rows, mode="append", partition_by=by or None, writer_properties=groups)
    else:
        for number, rows in enumerate(files):
            first = {"partition_by": by, "properties": properties} if not number else {}
            given = pa.concat_tables([rows, _numbered(rows.slice(0, 1), -1 - number)]) if layout.vectors else rows
            frame = spark_frame(spark, given).coalesce(1) if layout.writer == "spark" else given
            write_delta(str(folder), frame, **first)
        if layout.vectors:
            delete_from(str(folder), f"{ID} < 0")
    if layout.checkpoint:
        Table(str(folder)).checkpoint()
    return folder


def _file(rows: pa.Table, number: int) -> pa.Table:
    return rows.filter(pc.equal(pc.divide(rows[ID], 10), number))


def _numbered(rows: pa.Table, number: int) -> pa.Table:
    return rows.set_column(rows.column_names.index(ID), ID, pa.array([number] * rows.num_rows, pa.int64()))


def _write_versions(
    table: EdgeTable, files: Sequence[pa.Table], by: Sequence[str], properties: dict[str, str], project: Project
) -> None:
    """With vectors, the first row of each file takes the place of another one, which had its id."""
    layout, made = table.layout, project.table("t")
    how: dict[str, Any] = {"mode": "merge", "merge_key": (ID,)} if layout.vectors else {"mode": "append"}
    options = TableOptions(
        **how, partition_columns=tuple(by), row_group_bytes=layout.group_rows * 64, properties=properties
    )
    for rows in files:
        if layout.vectors and rows.num_rows > 1:
            other = _numbered(rows.slice(1, 1), rows[ID][0].as_py())
            made.write(pa.concat_tables([other, rows.slice(1)]), options=options)
            rows = rows.slice(0, 1)
        made.write(rows, options=options)
