"""Writing the data files and change data files of any Delta table: folders, physical names, field ids, statistics."""

import itertools
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dagster_versioned.delta.actions import Add, Cdc, PartitionValues
from dagster_versioned.delta.commit.transaction import now_ms
from dagster_versioned.delta.files.partition_values import folder
from dagster_versioned.delta.files.statistics import from_parquet_metadata, to_json
from dagster_versioned.delta.paths import compute, encode_path
from dagster_versioned.delta.schema.column_mapping import ID, physical_name
from dagster_versioned.delta.schema.types import ArrayType, DataType, MapType, StructField, StructType, type_to_arrow
from dagster_versioned.delta.schema.variants import with_required_parts
from dagster_versioned.delta_tables.dml import Target
from dagster_versioned.engines.parquet_footer import without_bounds
from dagster_versioned.engines.parquet_part import nan_columns
from dagster_versioned.engines.partition_values import FOLDER_BYTES, by_values
from dagster_versioned.errors import UnsupportedType

CHANGE_TYPE = "_change_type"
"""The column of change data files that says what happened to the row. Protocol: *Add CDC File*."""

FILE_BYTES = 384 * 1024 * 1024
"""Rows in memory that become one file, which is then about a third as large."""

_PARALLEL_BYTES = 48 * 1024 * 1024
"""Rows in memory from which on it is worth to write two files at once."""

_ROW_GROUP_ROWS = 1_048_576

_MANY_ROWS = 100_000
_SAMPLE = 4096
_DISTINCT = 0.97
"""Of this many values, spread over many rows, more than this part are distinct where there are some 70,000 values or
more: about what a dictionary page of one megabyte holds."""

_NESTED_IDS = ("delta.columnMapping.nested.ids", "parquet.field.nested.ids")
_PARQUET_ID = b"PARQUET:field_id"
_EVERY_LEAF = 2**31
_VARIANT = StructType([StructField("metadata", "binary", False), StructField("value", "binary", False)])


class DeltaFiles:
    """Writes the files of one write, which `Target.write_id` names. Thread-safe.

    Rows come as tables with the columns of the table's schema, by their names there, in the canonical types
    (`schema_to_arrow` of all nullable), texts also as dictionaries; rows that keep their ids have the columns of
    `WriteRules.row_tracking` as well.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._id = uuid4().hex[:8]  # a command may call its engine twice
        self._partitioned = [target.snapshot.schema.field(name) for name in target.snapshot.partition_columns]

    def split(self, rows: pa.Table, *, parallel: bool = True) -> "Iterator[tuple[PartitionValues, pa.Table]]":
        """The rows by partition, in pieces of which each is to be one file."""
        for values, group in self._by_partition(rows):
            size = group.nbytes
            pieces = max(1, -(-size // FILE_BYTES), 2 if parallel and size > 2 * _PARALLEL_BYTES else 1)
            length = -(-group.num_rows // pieces)
            for start in range(0, group.num_rows, length or 1):
                yield values, group.slice(start, length)

    def data(self, values: PartitionValues, rows: pa.Table, *, data_change: bool = True) -> Add:
        """Write one data file with the rows of one partition, and report it."""
        rules = self._target.rules
        extra = [StructField(name, "long") for name in self._target.tracked if name in rows.column_names]
        fields = (*_stored_fields(rules.physical_schema), *extra)
        table = self._physical(rows, fields, [field.name for field in extra])
        nans = nan_columns(table)
        data, metadata = _encoded(table, nans)
        key = self._key(values, "part")
        self._target.store.put(key, data)
        found = from_parquet_metadata(metadata, _of_leaves(fields), nans, _EVERY_LEAF)
        wanted = frozenset(rules.statistics)
        if "nullCount" in found:
            found["nullCount"] = _of_variants(found["nullCount"], StructType(fields))
        statistics = {
            name: value if name == "numRecords" else _only(value, wanted, ()) for name, value in found.items()
        }
        return Add(encode_path(key), dict(values), len(data), now_ms(), data_change, to_json(statistics))

    def changes(self, values: PartitionValues, rows: pa.Table) -> Cdc:
        """Write one change data file with the rows of one partition, which have a column `CHANGE_TYPE`."""
        kind = StructField(CHANGE_TYPE, "string")
        fields = (*_stored_fields(self._target.rules.physical_schema), kind)
        table = self._physical(rows, fields, [CHANGE_TYPE])
        data, _ = _encoded(table, nan_columns(table))
        key = f"_change_data/{self._key(values, 'cdc')}"
        self._target.store.put(key, data)
        return Cdc(encode_path(key), dict(values), len(data))

    def _key(self, values: PartitionValues, prefix: str) -> str:
        with self._lock:
            number = next(self._numbers)
        name = f"{prefix}-{number:05d}-{self._target.write_id}-{self._id}.c000.snappy.parquet"
        if not values or self._target.rules.mapping != "none":  # physical names tell a person nothing
            return name
        place = folder(values, list(values))
        unfit = any(len(part.encode()) > FOLDER_BYTES for part in place.split("/"))  # no file system takes it
        return name if unfit else f"{place}/{name}"

    def _by_partition(self, rows: pa.Table) -> "Iterator[tuple[PartitionValues, pa.Table]]":
        mapping = self._target.rules.mapping
        for values, group in by_values(rows, self._partitioned):
            yield {physical_name(field, mapping): values[field.name] for field in self._partitioned}, group

    def _physical(self, rows: pa.Table, fields: Sequence[StructField], extra: Sequence[str]) -> pa.Table:
        """The columns that a file has, by the names and with the field ids that it has them by."""
        mapping = self._target.rules.mapping
        logical = {physical_name(field, mapping): field.name for field in self._target.snapshot.schema.fields}
        logical |= {name: name for name in extra}
        columns: list[Any] = []
        named: list[pa.Field[Any]] = []
        for field in fields:
            column: Any = rows[logical[field.name]]
            wanted = _arrow_field(field)
            if pa.types.is_dictionary(column.type):
                wanted = wanted.with_type(column.type)
            columns.append(_stored(column, field, wanted.type))
            named.append(wanted)
        return pa.Table.from_arrays(columns, schema=pa.schema(named))


def _stored(column: Any, field: StructField, wanted: pa.DataType) -> Any:
    """A column of the table as one of a file, of the type ``wanted``."""
    if StructType([field]).holds("variant"):
        chunks = [with_required_parts(chunk, field.type) for chunk in column.chunks]
        column = cast("Any", pa).chunked_array(chunks, None if chunks else wanted)
    if column.type != wanted or pa.types.is_nested(column.type):
        column = cast("Any", pa).chunked_array([chunk.view(wanted) for chunk in column.chunks], wanted)
    return column


def _stored_fields(schema: StructType) -> tuple[StructField, ...]:
    """The columns of a data file; one that is null throughout has no Parquet type and is left out."""
    return tuple(field for field in schema.fields if field.type != "void")


def _of_leaves(fields: Iterable[StructField]) -> StructType:
    """The columns with what Parquet stores of them: a variant is two binaries."""

    def stored(data_type: DataType) -> DataType:
        match data_type:
            case StructType(fields=members):
                return _of_leaves(members)
            case ArrayType(element_type=element):
                return replace(data_type, element_type=stored(element))
            case MapType(key_type=key, value_type=value):
                return replace(data_type, key_type=stored(key), value_type=stored(value))
            case "variant":
                return _VARIANT
            case _:
                return data_type

    return StructType([replace(field, type=stored(field.type)) for field in fields])


def _of_variants(counts: Mapping[str, Any], schema: StructType) -> dict[str, Any]:
    """Null counts in which a variant has one of its own: metadata is null where the variant is."""
    kept = dict(counts)
    for field in schema.fields:
        held = counts.get(field.name)
        if isinstance(held, Mapping) and field.type == "variant":
            kept[field.name] = cast("Mapping[str, Any]", held).get("metadata")
        elif isinstance(held, Mapping) and isinstance(field.type, StructType):
            kept[field.name] = _of_variants(cast("Mapping[str, Any]", held), field.type)
    return kept


def _encoded(table: pa.Table, unbounded: Collection[str]) -> tuple[bytes, pq.FileMetaData]:
    """A Parquet file with no bounds of the leaves ``unbounded``, and what is known of all of them."""
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        table.schema,
        version="2.6",
        compression="snappy",
        use_dictionary=cast("Any", _dictionary_paths(table)),
        write_statistics=True,
        use_compliant_nested_type=True,
        store_schema=False,
    ) as writer:
        writer.write_table(table, row_group_size=_ROW_GROUP_ROWS)
    data = sink.getvalue()
    end = 8 + int.from_bytes(data[-8:-4].to_pybytes(), "little")
    if unbounded:
        return data[:-end].to_pybytes() + without_bounds(data[-end:].to_pybytes(), unbounded), writer.writer.metadata
    return data.to_pybytes(), writer.writer.metadata


def _dictionary_paths(table: pa.Table) -> list[str]:
    """The Parquet columns for which a dictionary is worth to be tried: those whose values repeat.

    A dictionary that grows beyond its limit is given up, after it took as long as all the rest of the encoding.
    """
    places: Any = pa.array(np.linspace(0, table.num_rows - 1, _SAMPLE).astype(np.int64))
    paths: list[str] = []
    for name, column in zip(table.column_names, cast("list[Any]", table.columns), strict=True):
        plain = not pa.types.is_nested(column.type) and not pa.types.is_dictionary(column.type)
        if plain and table.num_rows >= _MANY_ROWS:
            if compute.count_distinct(column.take(places)).as_py() <= _DISTINCT * _SAMPLE:
                paths.append(name)
        else:
            paths += _leaf_paths(name, column.type)
    return paths


def _leaf_paths(path: str, data_type: Any) -> list[str]:
    if pa.types.is_struct(data_type):
        members: list[Any] = list(data_type)
        return [leaf for member in members for leaf in _leaf_paths(f"{path}.{member.name}", member.type)]
    if pa.types.is_list(data_type):
        return _leaf_paths(f"{path}.list.element", data_type.value_type)
    if pa.types.is_map(data_type):
        inner = ((".key_value.key", data_type.key_type), (".key_value.value", data_type.item_type))
        return [leaf for name, kind in inner for leaf in _leaf_paths(path + name, kind)]
    return [path]


def _only(members: Mapping[str, Any], wanted: frozenset[tuple[str, ...]], path: tuple[str, ...]) -> dict[str, Any]:
    """The members of nested statistics whose paths are wanted, and the structs around these, be they empty."""
    kept: dict[str, Any] = {}
    for name, value in members.items():
        here = (*path, name)
        if isinstance(value, Mapping):
            inner = _only(cast("Mapping[str, Any]", value), wanted, here)
            # What is wanted itself and has members is a variant, and no struct of columns.
            if inner or any(path[: len(here)] == here != path for path in wanted):
                kept[name] = inner
        elif here in wanted:
            kept[name] = value
    return kept


# --- field ids -------------------------------------------------------------------------------------------------------


def _arrow_field(field: StructField) -> "pa.Field[Any]":
    nested: dict[str, int] = {}
    for key in _NESTED_IDS:
        nested |= field.metadata.get(key) or {}
    return _with_id(field.name, _arrow_type(field.type, field.name, nested), field.metadata.get(ID))


def _arrow_type(data_type: DataType, path: str, nested: Mapping[str, int]) -> Any:
    """The nullable Arrow type with Parquet's field ids; ``nested`` are those of elements, keys and values by path."""
    match data_type:
        case StructType(fields=fields):
            return pa.struct([_arrow_field(field) for field in fields])
        case ArrayType(element_type=element):
            inner = f"{path}.element"
            return pa.list_(_with_id("element", _arrow_type(element, inner, nested), nested.get(inner)))
        case MapType(key_type=key, value_type=value):
            entries: Any = pa.map_  # which takes fields, though the stubs ask for types
            names = f"{path}.key", f"{path}.value"
            return entries(
                _with_id("key", _arrow_type(key, names[0], nested), nested.get(names[0]), nullable=False),
                _with_id("value", _arrow_type(value, names[1], nested), nested.get(names[1])),
            )
        case "variant":
            return pa.struct([pa.field("metadata", pa.binary(), False), pa.field("value", pa.binary(), False)])
        case "void":
            raise UnsupportedType(f"The column {path!r} is inside of another one and of no type, which no file holds.")
        case _:
            return type_to_arrow(data_type)


def _with_id(name: str, data_type: Any, number: int | None, *, nullable: bool = True) -> "pa.Field[Any]":
    return pa.field(name, data_type, nullable, None if number is None else {_PARQUET_ID: str(number).encode()})
