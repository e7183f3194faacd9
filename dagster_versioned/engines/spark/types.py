"""Spark SQL schemas to the schema that is stored, and back.

By way of Arrow types, of which each stored type has its own. The frame's schema is asked, not the Arrow batches that
reach a Python worker: these have lost comments and nullability, and got some of it wrong.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from dagster_versioned.delta.schema.column_mapping import ColumnMapping, physical_name
from dagster_versioned.delta.schema.types import ArrayType, DataType, MapType, StructField, StructType
from dagster_versioned.engines import conform
from dagster_versioned.engines.spark.releases import require
from dagster_versioned.errors import UnsupportedType

if TYPE_CHECKING:
    from pyspark.sql import types as spark_types

_ATOMS: dict[str, pa.DataType] = {
    "BooleanType": pa.bool_(),
    "ByteType": pa.int8(),
    "ShortType": pa.int16(),
    "IntegerType": pa.int32(),
    "LongType": pa.int64(),
    "FloatType": pa.float32(),
    "DoubleType": pa.float64(),
    "BinaryType": pa.binary(),
    "DateType": pa.date32(),
    "TimestampType": pa.timestamp("us", tz="UTC"),
    "TimestampNTZType": pa.timestamp("us"),
    "CharType": pa.string(),
    "VarcharType": pa.string(),
    "NullType": pa.null(),
}

_VARIANT = pa.struct([("metadata", pa.binary()), ("value", pa.binary())])

_FIXES = {
    "DayTimeIntervalType": "Cast it to a number of seconds and put the unit into the column's name.",
    "YearMonthIntervalType": "Cast it to a number of months and put the unit into the column's name.",
    "CalendarIntervalType": "Split it into numbers of months, days and seconds.",
    "TimeType": "Cast it to a number of microseconds, or to a string.",
    "VariantType": "Convert it with to_json, or extract what is needed with variant_get.",
    "GeometryType": "Convert it with ST_AsBinary.",
    "GeographyType": "Convert it with ST_AsBinary.",
}


def stored_schema(
    schema: "spark_types.StructType",
    *,
    sort_columns: bool = False,
    columns: Sequence[str] = (),
    variants: bool = False,
) -> StructType:
    """The schema under which a frame of this Spark schema is stored; see `conform.stored_schema`.

    ``char(n)`` and ``varchar(n)`` are stored as strings, variants only where ``variants`` are allowed. Raises
    `UnsupportedType` by column and type, `UnsupportedFrame` for column names that are equal but for case, `EmptyTable`
    for no columns; all before any row is computed.
    """
    atoms = {**_ATOMS, "VariantType": _VARIANT} if variants else _ATOMS
    arrow = pa.schema([pa.field(field.name, _from_spark(field.dataType, field.name, atoms)) for field in schema.fields])
    stored = conform.stored_schema(arrow, sort_columns=sort_columns, columns=columns)
    return cast("StructType", _with_variants(stored, schema)) if variants else stored


def _with_variants(stored: DataType, given: Any) -> DataType:
    """The type with variants where Spark's own has some."""
    match stored:
        case _ if type(given).__name__ == "VariantType":
            return "variant"
        case StructType(fields=fields):
            return StructType(
                [replace(field, type=_with_variants(field.type, given[field.name].dataType)) for field in fields]
            )
        case ArrayType(element_type=element):
            return replace(stored, element_type=_with_variants(element, given.elementType))
        case MapType(value_type=value):
            return replace(stored, value_type=_with_variants(value, given.valueType))
        case _:
            return stored


def spark_schema(schema: StructType) -> "spark_types.StructType":
    """The Spark schema to read stored columns with: Delta's schema JSON is Spark's own.

    Raises `UnsupportedFeature` for variants where Spark has none.
    """
    return _parsed(schema.all_nullable())


def file_schema(schema: StructType, mapping: ColumnMapping) -> "spark_types.StructType":
    """The Spark schema to read columns from files with: those of ``schema``, at every depth by their names there.

    Raises `UnsupportedFeature` for variants where Spark has none.
    """

    def mapped(data_type: DataType) -> DataType:
        match data_type:
            case StructType(fields=fields):
                return StructType([StructField(physical_name(f, mapping), mapped(f.type)) for f in fields])
            case ArrayType(element_type=element):
                return ArrayType(mapped(element))
            case MapType(key_type=key, value_type=value):
                return MapType(mapped(key), mapped(value))
            case _:
                return data_type

    return _parsed(cast("StructType", mapped(schema)))


def _parsed(schema: StructType) -> "spark_types.StructType":
    from pyspark.sql import types as spark_types

    if schema.holds("variant"):
        require((4, 0), "A column of variants", "Read the table's other columns, or read it with Arrow.")
    return spark_types.StructType.fromJson(schema.to_json())


def _from_spark(data_type: Any, path: str, atoms: Mapping[str, pa.DataType]) -> pa.DataType:
    kind = type(data_type).__name__
    match kind:
        case "StructType":
            members = [(f.name, _from_spark(f.dataType, f"{path}.{f.name}", atoms)) for f in data_type.fields]
            return pa.struct(members)
        case "ArrayType":
            return pa.list_(pa.field("element", _from_spark(data_type.elementType, f"{path}.element", atoms)))
        case "MapType":
            return pa.map_(
                _from_spark(data_type.keyType, f"{path}.key", atoms),
                _from_spark(data_type.valueType, f"{path}.value", atoms),
            )
        case "DecimalType":
            return pa.decimal128(data_type.precision, data_type.scale)
        case "StringType":
            if data_type.simpleString() != "string":
                raise _refusal(path, data_type, "Its collation would be lost: cast it to plain 'string' first.")
            return pa.string()
        case _ if kind in atoms:
            return atoms[kind]
        case _:
            raise _refusal(path, data_type, _FIXES.get(kind, "Select the values it is made of, or drop it."))


def _refusal(path: str, data_type: Any, fix: str) -> UnsupportedType:
    return UnsupportedType(
        f"Column {path!r} has the type {data_type.simpleString()}, which cannot be stored without loss. {fix} "
        "Nothing was written."
    )
