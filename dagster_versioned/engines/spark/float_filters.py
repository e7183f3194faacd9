"""Columns of floats as Spark has to read them from Parquet: most filters of theirs are not for its reader to judge.

Spark hands filters to parquet-java, which passes over row groups and pages by bounds, dictionaries and Bloom filters.
Bounds that others write leave NaN out, Spark's largest number, and dictionaries and Bloom filters are compared by bits,
by which -0.0 is not 0.0: rows would be missing. Filters of a computed column stay with Spark, and those of all other
columns go on to the reader. Where no NaN can be, bounds are right, and parts of ours have no Bloom filters: then it is
enough that the reader looks into no dictionary where zeros may be.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING

from dagster_versioned.delta.schema.types import DataType, StructType
from dagster_versioned.engines.scan import Scan

if TYPE_CHECKING:
    from pyspark.sql import Column

Path = tuple[str, ...]


def holds_floats(data_type: DataType, but: Collection[Path] = (), path: Path = ()) -> bool:
    """Whether a column is of floats, or a struct with such, ``but`` for some; filters of lists and maps are not handed
    on."""
    if isinstance(data_type, StructType):
        return any(holds_floats(field.type, but, (*path, field.name)) for field in data_type.fields)
    return data_type in ("float", "double") and path not in but


def kept_by_spark(column: "Column", name: str, scan: Scan) -> "Column":
    """The same values, where they may be NaN computed so that Spark's optimizer does not find out.

    Of a struct, only the members are read that are asked for, as ever.
    """
    from pyspark.sql import functions as sf

    data_type = scan.schema.field(name).type
    if not holds_floats(data_type, scan.without_nan, (name,)):
        return column
    return sf.when(column.isNotNull(), column) if isinstance(data_type, StructType) else sf.nanvl(column, column)


def reader_options(scan: Scan) -> dict[str, str]:
    """What Spark's reader of Parquet is to do otherwise."""
    selected = scan.selected.names
    zeros = any(may for path, may in scan.without_nan.items() if path[0] in selected)
    return {"parquet.filter.dictionary.enabled": "false"} if zeros else {}
