"""File actions as Arrow tables: what a snapshot holds, a checkpoint stores and reconciliation compares.

A table has the members of the action as columns, named as in the log, and last ``key``: the canonical path, which for
a file below the table's folder is its object key in the store.
"""

import itertools
from collections.abc import Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any, cast

import numpy as np
import pyarrow as pa

from dagster_versioned.delta.actions import Add, DeletionVector, Members, Remove, member_name
from dagster_versioned.delta.paths import Column, compute, keys_of

TEXT_MAP = pa.map_(pa.string(), pa.string())

DELETION_VECTOR = pa.struct(
    [
        pa.field("storageType", pa.string()),
        pa.field("pathOrInlineDv", pa.string()),
        pa.field("offset", pa.int32()),
        pa.field("sizeInBytes", pa.int32()),
        pa.field("cardinality", pa.int64()),
    ]
)

ADD = pa.schema(
    [
        ("path", pa.string()),
        ("partitionValues", TEXT_MAP),
        ("size", pa.int64()),
        ("modificationTime", pa.int64()),
        ("dataChange", pa.bool_()),
        ("stats", pa.string()),
        ("tags", TEXT_MAP),
        ("deletionVector", DELETION_VECTOR),
        ("baseRowId", pa.int64()),
        ("defaultRowCommitVersion", pa.int64()),
        ("clusteringProvider", pa.string()),
    ]
)
"""An ``add`` in a checkpoint."""

REMOVE = pa.schema(
    [
        ("path", pa.string()),
        ("deletionTimestamp", pa.int64()),
        ("dataChange", pa.bool_()),
        ("extendedFileMetadata", pa.bool_()),
        ("partitionValues", TEXT_MAP),
        ("size", pa.int64()),
        ("deletionVector", DELETION_VECTOR),
        ("baseRowId", pa.int64()),
        ("defaultRowCommitVersion", pa.int64()),
    ]
)
"""A ``remove`` in a checkpoint: a tombstone, which needs neither statistics nor tags."""

REQUIRED = {
    Add.NAME: ("path", "partitionValues", "size", "modificationTime", "dataChange"),
    Remove.NAME: ("path", "dataChange"),
}
"""Members without which there is no action, by its name."""

KEY = pa.field("key", pa.string())
FILES = ADD.append(KEY)
TOMBSTONES = REMOVE.append(KEY)

_ATTRIBUTES = {member_name(own.name): own.name for kind in (Add, Remove) for own in fields(kind)} | {"key": "key"}
"""What the columns of `FILES` and `TOMBSTONES` are called in an action."""

_MANY_CHUNKS = 32


def no_rows(schema: pa.Schema) -> pa.Table:
    """An empty table. Not by `pyarrow.Schema.empty_table`, which imports pandas where it is installed."""
    return pa.Table.from_batches([], schema)


def with_keys(table: pa.Table) -> pa.Table:
    """The table with its ``key`` column, computed from ``path``. Raises `LogCorrupt` for a path that is no URI."""
    return table.append_column(KEY, keys_of(table["path"]))


def adds_table(adds: Sequence[Add]) -> pa.Table:
    """Add actions as a table with the schema `FILES`."""
    return _table(adds, FILES)


def removes_table(removes: Sequence[Remove]) -> pa.Table:
    """Remove actions as a table with the schema `TOMBSTONES`."""
    return _table(removes, TOMBSTONES)


def _table(actions: Sequence[Add | Remove], schema: pa.Schema) -> pa.Table:
    if not actions:
        return no_rows(schema)
    arrays: list[Any] = []
    for name, kind in zip(schema.names, cast("list[Any]", schema.types), strict=True):
        values: list[Any] = list(map(attrgetter(_ATTRIBUTES[name]), actions))
        if kind == TEXT_MAP:
            values = [None if value is None else list(value.items()) for value in values]
        elif kind == DELETION_VECTOR:
            values = [vector and vector.to_json() for vector in values]
        arrays.append(pa.array(values, kind))
    return pa.Table.from_arrays(arrays, schema=schema)


def to_adds(table: pa.Table) -> list[Add]:
    """The rows of a `FILES` table as actions; for callers that know it is small."""
    columns = _attributes(table, ADD)
    columns["partitionValues"] = [values or {} for values in columns["partitionValues"]]
    return list(map(Add, *columns.values()))


def to_removes(table: pa.Table) -> list[Remove]:
    """The rows of a `TOMBSTONES` table as actions."""
    columns = _attributes(table, REMOVE)
    names = [_ATTRIBUTES[name] for name in columns]
    return [Remove(**dict(zip(names, row, strict=True))) for row in zip(*columns.values(), strict=True)]


def _attributes(table: pa.Table, schema: pa.Schema) -> dict[str, list[Any]]:
    columns = {name: _values(table[name]) for name in schema.names}
    return {**columns, "deletionVector": list(map(to_vector, columns["deletionVector"], columns["path"]))}


def _values(column: Column) -> list[Any]:
    """A column of a `FILES` table as Python values, maps as dicts; quicker than `to_pylist`, which makes scalars."""
    if column.null_count == len(column):
        return [None] * len(column)
    if pa.types.is_map(column.type):
        return [value for chunk in column.chunks for value in _dicts(cast("pa.MapArray[Any, Any]", chunk))]
    if pa.types.is_string(column.type) or not (column.null_count or pa.types.is_nested(column.type)):
        return column.to_numpy().tolist()
    return column.to_pylist()


def _dicts(maps: "pa.MapArray[Any, Any]") -> list[dict[str, str | None] | None]:
    parts: list[Any] = [maps.offsets, maps.keys, maps.items]
    offsets, keys, values = (part.to_numpy(zero_copy_only=False).tolist() for part in parts)
    spans = zip(itertools.pairwise(offsets), maps.is_valid().to_pylist(), strict=True)
    return [
        dict(zip(keys[start:end], values[start:end], strict=True)) if there else None for (start, end), there in spans
    ]


def to_vector(row: dict[str, Any] | None, path: str) -> DeletionVector | None:
    """A row of a ``deletionVector`` column as the descriptor it is, of the file ``path``."""
    return None if row is None else DeletionVector.parse(Members(row, f"The deletion vector of {path!r}"))


def identities(table: pa.Table) -> Column:
    """One string per logical file: its key, and the unique id of its deletion vector where the table has any."""
    keys, vectors = table["key"], table["deletionVector"]
    if vectors.null_count == len(vectors):
        return keys
    parts = [compute.struct_field(vectors, name) for name in ("storageType", "pathOrInlineDv", "offset")]
    offset = compute.binary_join_element_wise(pa.scalar(""), compute.cast(parts[2], pa.string()), "@")
    unique = compute.binary_join_element_wise(parts[0], parts[1], compute.fill_null(offset, ""), "")
    return compute.fill_null(compute.binary_join_element_wise(keys, unique, "\0"), keys)


def identity_text(identity: tuple[str, str | None]) -> str:
    """The string that `identities` gives to the file of this identity."""
    key, vector = identity
    return key if vector is None else f"{key}\0{vector}"


def without(table: pa.Table, gone: "pa.Array[Any]") -> pa.Table:
    """The rows whose identity is not among ``gone``: an anti-join; the table itself where none is.

    Few holes are cut out without a copy of what is between them.
    """
    if not len(gone) or not table.num_rows:
        return table
    hit = compute.is_in(identities(table), gone)
    holes = int(compute.sum(hit).as_py() or 0)
    if not holes:
        return table
    if holes > _many_chunks(table.num_rows):
        return table.filter(compute.invert(hit))
    (rows,) = np.nonzero(hit.to_numpy())
    starts, ends = [0, *(rows + 1).tolist()], [*rows.tolist(), table.num_rows]
    kept = [table.slice(start, end - start) for start, end in zip(starts, ends, strict=True) if end > start]
    return pa.concat_tables(kept) if kept else table.slice(0, 0)


def without_keys(table: pa.Table, keys: "pa.Array[Any]") -> pa.Table:
    """The rows whose key is not among ``keys``, whatever their deletion vectors; the table itself where none is."""
    if not len(keys) or not table.num_rows:
        return table
    return table.filter(compute.invert(compute.is_in(table["key"], keys)))


def appended(table: pa.Table, more: pa.Table) -> pa.Table:
    """Both tables' rows; chunks are merged once there are many, so that a long chain of appends stays quick."""
    if not more.num_rows:
        return table
    if not table.num_rows:
        return more
    joined = pa.concat_tables([table, more])
    many = joined["key"].num_chunks > _MANY_CHUNKS + _many_chunks(joined.num_rows)
    return joined.combine_chunks() if many else joined


def _many_chunks(rows: int) -> int:
    """How many chunks a column may have besides before they cost more than a copy."""
    return rows // 1024


def in_order(table: pa.Table) -> pa.Table:
    """The rows sorted by identity, so that what is written from them depends on the set alone.

    What stands in order already, such as the rest of a checkpoint, is not copied.
    """
    if not table.num_rows:
        return table
    order: Any = compute.sort_indices(identities(table))
    places = order.to_numpy()
    starts = np.concatenate([[0], np.flatnonzero(places[1:] != places[:-1] + 1) + 1])
    if len(starts) > _MANY_CHUNKS + _many_chunks(table.num_rows):
        return table.combine_chunks().take(order)
    lengths = np.diff(starts, append=len(places)).tolist()
    firsts = places[starts].tolist()
    return pa.concat_tables([table.slice(first, length) for first, length in zip(firsts, lengths, strict=True)])
