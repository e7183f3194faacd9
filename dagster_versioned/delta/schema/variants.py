"""Variants: semi-structured values, two byte strings each. Protocol: *Variant Type*, *Variant Data in Parquet*.

Whoever reads them through Arrow gets a struct of ``metadata`` and ``value``, in the encoding of the Parquet project.
"""

from typing import Any

import pyarrow as pa

from dagster_versioned.delta.schema.types import ArrayType, DataType, MapType, StructType
from dagster_versioned.errors import UnsupportedFeature


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
