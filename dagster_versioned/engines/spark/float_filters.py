"""Columns of floats as Spark has to read them from Parquet: filters of theirs are not for its reader to judge.

Spark hands filters to parquet-java, which passes over row groups and pages by bounds, dictionaries and Bloom filters.
Bounds that others write leave NaN out, Spark's largest number, and dictionaries and Bloom filters are compared by bits,
by which -0.0 is not 0.0: rows would be missing. Filters of a computed column stay with Spark, and those of all other
columns go on to the reader.
"""

from typing import TYPE_CHECKING

from dagster_versioned.delta.schema.types import DataType, StructType

if TYPE_CHECKING:
    from pyspark.sql import Column


def holds_floats(data_type: DataType) -> bool:
    """Whether the type is one of floats, or a struct of such; no filter of what is in lists and maps is handed on."""
    if isinstance(data_type, StructType):
        return any(holds_floats(field.type) for field in data_type.fields)
    return data_type in ("float", "double")


def kept_by_spark(column: "Column", data_type: DataType) -> "Column":
    """The same values, computed so that Spark's optimizer does not find out: of floats, and of structs with such.

    Of a struct, only the members are read that are asked for, as ever.
    """
    from pyspark.sql import functions as sf

    if not holds_floats(data_type):
        return column
    return sf.when(column.isNotNull(), column) if isinstance(data_type, StructType) else sf.nanvl(column, column)
