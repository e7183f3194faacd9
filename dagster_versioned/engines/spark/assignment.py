"""Values of a Spark frame as a column of a table takes them: cast without loss, structs by the names of fields."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dagster_versioned.engines.spark.releases import try_cast
from dagster_versioned.errors import InvalidInput

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql import types as spark_types

WITHOUT_LOSS = "without loss"


def quoted(name: str) -> "Column":
    """The column of exactly this name, whatever characters are in it."""
    from pyspark.sql import functions as sf

    return sf.col(spelled(name))


def spelled(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


@dataclass(frozen=True)
class Assignment:
    """How values become a column's: as Spark's store assignment casts them, or (``exact``) only where nothing is lost.

    A value that does not fit ends the write, whatever the session's ANSI mode.
    """

    exact: bool = False

    def of(self, column: "Column", held: "spark_types.DataType", wanted: "spark_types.DataType", name: str) -> "Column":
        """The value as a column takes it, structs by the names of their fields. Raises `InvalidInput` for types of
        different kinds."""
        from pyspark.sql import functions as sf
        from pyspark.sql import types as spark_types

        if _shape(held) == _shape(wanted):
            return column
        if isinstance(held, spark_types.NullType):
            return column.cast(wanted)
        match held, wanted:
            case spark_types.StructType(), spark_types.StructType():
                return self._struct(column, held, wanted, name)
            case spark_types.ArrayType(), spark_types.ArrayType():
                return sf.transform(
                    column, lambda x: self.of(x, held.elementType, wanted.elementType, f"{name}.element")
                )
            case spark_types.MapType(), spark_types.MapType():
                entries = sf.transform(
                    sf.map_entries(column),
                    lambda x: sf.struct(
                        self.of(x.getField("key"), held.keyType, wanted.keyType, f"{name}.key").alias("key"),
                        self.of(x.getField("value"), held.valueType, wanted.valueType, f"{name}.value").alias("value"),
                    ),
                )
                return sf.map_from_entries(entries)
            case _ if _is_nested(held) or _is_nested(wanted):
                raise InvalidInput(
                    f"Column {name!r} is {wanted.simpleString()}, which a value of type {held.simpleString()} cannot be"
                    " cast to. Nothing was written."
                )
            case _:
                return self._cast(column, held, wanted, name)

    def _cast(
        self, column: "Column", held: "spark_types.DataType", wanted: "spark_types.DataType", name: str
    ) -> "Column":
        from pyspark.sql import functions as sf
        from pyspark.sql import types as spark_types

        cast = try_cast(column, wanted)
        fails = cast.isNull()
        inexact = spark_types.StringType | spark_types.FloatType | spark_types.DoubleType
        if self.exact and not isinstance(held, spark_types.StringType) and not isinstance(wanted, inexact):
            fails = fails | ~try_cast(cast, held).eqNullSafe(column)
        message = sf.concat(
            sf.lit(f"Column {name!r} is {wanted.simpleString()}, which cannot hold the value "),
            column.cast("string"),
            sf.lit(f" {WITHOUT_LOSS}. Nothing was written."),
        )
        return sf.when(column.isNotNull() & fails, sf.raise_error(message)).otherwise(cast)

    def _struct(
        self, column: "Column", held: "spark_types.StructType", wanted: "spark_types.StructType", name: str
    ) -> "Column":
        from pyspark.sql import functions as sf

        known = {member.name.casefold(): member for member in held.fields}
        unknown = known.keys() - {member.name.casefold() for member in wanted.fields}
        if unknown:
            raise InvalidInput(
                f"Column {name!r} has no field {sorted(unknown)[0]!r} (it has: {', '.join(wanted.names)}). Nothing was"
                " written. Drop the field, or pass schema_mode='merge' to add it to the table."
            )
        members: list[Column] = []
        for member in wanted.fields:
            theirs = known.get(member.name.casefold())
            if theirs is None:
                value = sf.lit(None).cast(member.dataType)
            else:
                field_name = f"{name}.{member.name}"
                value = self.of(column.getField(theirs.name), theirs.dataType, member.dataType, field_name)
            members.append(value.alias(member.name))
        return sf.when(column.isNotNull(), sf.struct(*members))


def _is_nested(data_type: "spark_types.DataType") -> bool:
    from pyspark.sql import types as spark_types

    return isinstance(data_type, spark_types.StructType | spark_types.ArrayType | spark_types.MapType)


def _shape(data_type: "spark_types.DataType") -> object:
    """What two types must share for a column to hold both: nullability does not count, nor the length of text."""
    from pyspark.sql import types as spark_types

    match data_type:
        case spark_types.StructType():
            return "struct", tuple((member.name, _shape(member.dataType)) for member in data_type.fields)
        case spark_types.ArrayType():
            return "array", _shape(data_type.elementType)
        case spark_types.MapType():
            return "map", _shape(data_type.keyType), _shape(data_type.valueType)
        case spark_types.CharType() | spark_types.VarcharType():
            return "string"
        case _:
            return data_type.simpleString()
