"""Variants: semi-structured values, two byte strings each. Protocol: *Variant Type*, *Variant Data in Parquet*.

Whoever reads or writes them through Arrow has a struct of ``metadata`` and ``value``, in the encoding of the Parquet
project. They are written whole, also where a table allows them to be shredded.
"""

from typing import Any, cast

import pyarrow as pa

from dagster_versioned.delta.paths import compute
from dagster_versioned.delta.schema.types import ArrayType, DataType, MapType, StructField, StructType
from dagster_versioned.errors import InvalidInput, UnsupportedFeature

_VERSION = 1
"""Of the encoding: the lowest four bits of the metadata."""


_VARIANT_FIELDS = [pa.field(name, pa.binary(), False) for name in ("metadata", "value")]


def require_whole(stored: pa.DataType, wanted: DataType, column: str) -> None:
    """Check that no variant of a column, at any depth, is shredded: part of its values would be in columns of their
    own, and the rest alone is another value.

    ``stored`` has the names that ``wanted`` has. Raises `UnsupportedFeature` by the feature's name.
    """
    held: Any = stored
    match wanted:
        case "variant" if pa.types.is_struct(stored):
            if names := {field.name for field in held} - {"metadata", "value"}:
                raise UnsupportedFeature(
                    f"variantShredding: the variants of column {column!r} are stored in parts ({', '.join(names)}), "
                    "which the Arrow engine cannot put together. No row was returned; read the table with Spark, or "
                    "leave the column out."
                )
        case StructType(fields=fields) if pa.types.is_struct(stored):
            for field in fields:
                if (index := held.get_field_index(field.name)) >= 0:
                    require_whole(held.field(index).type, field.type, f"{column}.{field.name}")
        case ArrayType(element_type=element) if hasattr(held, "value_type"):
            require_whole(held.value_type, element, column)
        case MapType(key_type=key, value_type=value) if pa.types.is_map(stored):
            require_whole(held.key_type, key, column)
            require_whole(held.item_type, value, column)
        case _:
            pass


def require_variants(column: Any, wanted: DataType, name: str) -> None:
    """Check that values which are to be variants, at any depth of a column in the canonical types, can be some.

    Raises `InvalidInput` for one without metadata or value, or with metadata of another encoding.
    """
    if isinstance(column, pa.ChunkedArray):
        for chunk in cast("list[Any]", column.chunks):
            require_variants(chunk, wanted, name)
        return
    match wanted:
        case "variant":
            _require_encoded(column, name)
        case StructType(fields=fields):
            for field in fields:
                if StructType([field]).holds("variant"):
                    require_variants(compute.struct_field(column, field.name), field.type, f"{name}.{field.name}")
        case ArrayType(element_type=element):
            require_variants(column.flatten(), element, f"{name}.element")
        case MapType(value_type=value):
            entries = column.filter(compute.is_valid(column))
            require_variants(entries.items, value, f"{name}.value")
        case _:
            pass


def _require_encoded(variants: Any, name: str) -> None:
    present = variants.filter(compute.is_valid(variants))
    metadata, value = (compute.struct_field(present, part) for part in ("metadata", "value"))
    heads = compute.binary_slice(metadata, 0, 1)
    known = compute.is_in(heads, value_set=pa.array([bytes([_VERSION | high << 4]) for high in range(16)]))
    whole = compute.and_(compute.and_kleene(known, compute.is_valid(value)), compute.is_valid(metadata))
    if wrong := len(present) - (compute.sum(whole).as_py() or 0):
        raise InvalidInput(
            f"{wrong} of {len(variants)} values of {name!r} are no variants: each is a metadata and a value in"
            " the encoding of the Parquet project, version 1. Nothing was written. Make them with parse_json in"
            " Spark, or take them from another table."
        )


def with_required_parts(column: Any, wanted: DataType) -> Any:
    """An array in which no part of a variant is null, as files have them: behind a variant that is null, Spark has
    nulls, too.
    """
    if not isinstance(wanted, str) and not StructType([StructField("x", wanted)]).holds("variant"):
        return column
    match wanted:
        case "variant":
            parts = [compute.fill_null(column.field(i), b"") for i in range(2)]
            return pa.StructArray.from_arrays(parts, fields=_VARIANT_FIELDS, mask=compute.is_null(column))
        case StructType(fields=members):
            parts = [with_required_parts(column.field(i), member.type) for i, member in enumerate(members)]
            fields = [pa.field(member.name, part.type) for member, part in zip(members, parts, strict=True)]
            return pa.StructArray.from_arrays(parts, fields=fields, mask=compute.is_null(column))
        case ArrayType(element_type=element):
            return pa.ListArray.from_arrays(_offsets(column), with_required_parts(column.flatten(), element))
        case MapType(value_type=value):
            entries = column.filter(compute.is_valid(column))
            items = with_required_parts(entries.items, value)
            return cast("Any", pa.MapArray).from_arrays(_offsets(column), entries.keys, items)
        case _:
            return column


def _offsets(column: Any) -> Any:
    """Where each list or map begins in the values of all; null for one that is null."""
    lists = column if pa.types.is_list(column.type) else column.cast(pa.list_(column.type.field(0).type))
    lengths = compute.fill_null(compute.list_value_length(lists), 0)
    ends = compute.cumulative_sum(compute.cast(lengths, pa.int32()))
    starts = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    absent = pa.concat_arrays([compute.is_null(column), pa.array([False])])
    return compute.if_else(absent, pa.scalar(None, pa.int32()), starts)
