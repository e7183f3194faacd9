"""The columns of a dataset by their logical types, as Open Data Fabric writes them since 0.37.

A type says what values mean, not how they lie in files or in memory; a value that may be null is an `DataTypeOption`.
As in `odf.blocks.events`, the order of classes in the union and of fields in a class is the encoding. Source: RFC-016,
https://github.com/open-data-fabric/open-data-fabric/blob/master/rfcs/016-odf-schema.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Self

import orjson

from dagster_versioned.errors import InvalidInput
from dagster_versioned.odf.blocks.marks import Int32, ShortEnum, Uint32, Uint64, Variants


@dataclass(frozen=True, slots=True)
class ExtraAttributes:
    """What extensions say, as the text of a JSON object: a block's own text, because its bytes are its hash.

    A name is a domain and a path, such as ``opendatafabric.org/description``. The constructor raises `InvalidInput`
    for a text that is no JSON object.
    """

    entries: str

    def __post_init__(self) -> None:
        try:
            found: object = orjson.loads(self.entries)
        except orjson.JSONDecodeError as error:
            raise InvalidInput(f"Attributes are no JSON ({error}): {self.entries!r:.100}.") from None
        if not isinstance(found, dict):
            raise InvalidInput(f"Attributes are a JSON object, not {self.entries!r:.100}.")

    @classmethod
    def of(cls, members: Mapping[str, Any]) -> Self:
        """The attributes with these names, in the order of names. Raises `InvalidInput` for a name without a domain."""
        if bad := next((name for name in members if not all(name.partition("/"))), None):
            raise InvalidInput(f"The attribute {bad!r:.100} is not named as domain/name, such as example.com/unit.")
        try:
            return cls(orjson.dumps(members, option=orjson.OPT_SORT_KEYS).decode())
        except (TypeError, ValueError) as error:
            raise InvalidInput(f"Attributes cannot be stored as JSON: {error}.") from None

    @property
    def members(self) -> Mapping[str, Any]:
        """The attributes by their names."""
        return orjson.loads(self.entries)


class TimeUnit(ShortEnum):
    """To what times are precise."""

    SECOND = "Second"
    MILLISECOND = "Millisecond"
    MICROSECOND = "Microsecond"
    NANOSECOND = "Nanosecond"


@dataclass(frozen=True, slots=True)
class DataTypeBinary:
    """Bytes; with a ``fixed_length``, as many in each value."""

    fixed_length: Uint64 | None = None


@dataclass(frozen=True, slots=True)
class DataTypeBool:
    """True or false."""


@dataclass(frozen=True, slots=True)
class DataTypeDate:
    """A day of the calendar."""


@dataclass(frozen=True, slots=True)
class DataTypeDecimal:
    """A number with ``precision`` digits, ``scale`` of them after the point."""

    precision: Uint32
    scale: Int32


@dataclass(frozen=True, slots=True)
class DataTypeDuration:
    """A length of time; without a ``unit``, in milliseconds."""

    unit: TimeUnit | None = None


@dataclass(frozen=True, slots=True)
class DataTypeFloat16:
    """A floating-point number of 2 bytes."""


@dataclass(frozen=True, slots=True)
class DataTypeFloat32:
    """A floating-point number of 4 bytes."""


@dataclass(frozen=True, slots=True)
class DataTypeFloat64:
    """A floating-point number of 8 bytes."""


@dataclass(frozen=True, slots=True)
class DataTypeInt8:
    """A whole number of 1 byte."""


@dataclass(frozen=True, slots=True)
class DataTypeInt16:
    """A whole number of 2 bytes."""


@dataclass(frozen=True, slots=True)
class DataTypeInt32:
    """A whole number of 4 bytes."""


@dataclass(frozen=True, slots=True)
class DataTypeInt64:
    """A whole number of 8 bytes."""


@dataclass(frozen=True, slots=True)
class DataTypeUInt8:
    """A whole number of 1 byte, from 0."""


@dataclass(frozen=True, slots=True)
class DataTypeUInt16:
    """A whole number of 2 bytes, from 0."""


@dataclass(frozen=True, slots=True)
class DataTypeUInt32:
    """A whole number of 4 bytes, from 0."""


@dataclass(frozen=True, slots=True)
class DataTypeUInt64:
    """A whole number of 8 bytes, from 0."""


@dataclass(frozen=True, slots=True)
class DataTypeList:
    """Values of one type; with a ``fixed_length``, as many in each list."""

    item_type: "DataType"
    fixed_length: Uint64 | None = None


@dataclass(frozen=True, slots=True)
class DataTypeMap:
    """Values by keys."""

    key_type: "DataType"
    value_type: "DataType"
    keys_sorted: bool | None = None


@dataclass(frozen=True, slots=True)
class DataTypeNull:
    """Nothing but null."""


@dataclass(frozen=True, slots=True)
class DataTypeOption:
    """A value of a type, or null. The constructor raises `InvalidInput` for an option of an option."""

    inner: "DataType"

    def __post_init__(self) -> None:
        if isinstance(self.inner, DataTypeOption):
            raise InvalidInput("An Option of an Option means no more than one.")


@dataclass(frozen=True, slots=True)
class DataTypeStruct:
    """Named values."""

    fields: "tuple[DataField, ...]"


@dataclass(frozen=True, slots=True)
class DataTypeTime:
    """A time of day; without a ``unit``, to the millisecond."""

    unit: TimeUnit | None = None


@dataclass(frozen=True, slots=True)
class DataTypeTimestamp:
    """A moment; without a ``unit``, to the millisecond, and without a ``timezone``, in UTC."""

    unit: TimeUnit | None = None
    timezone: str | None = None


@dataclass(frozen=True, slots=True)
class DataTypeString:
    """A text."""


DataType = Annotated[
    DataTypeBinary
    | DataTypeBool
    | DataTypeDate
    | DataTypeDecimal
    | DataTypeDuration
    | DataTypeFloat16
    | DataTypeFloat32
    | DataTypeFloat64
    | DataTypeInt8
    | DataTypeInt16
    | DataTypeInt32
    | DataTypeInt64
    | DataTypeUInt8
    | DataTypeUInt16
    | DataTypeUInt32
    | DataTypeUInt64
    | DataTypeList
    | DataTypeMap
    | DataTypeNull
    | DataTypeOption
    | DataTypeStruct
    | DataTypeTime
    | DataTypeTimestamp
    | DataTypeString,
    Variants,
]


@dataclass(frozen=True, slots=True)
class DataField:
    """A column, or a member of a struct."""

    name: str
    type: DataType
    extra: ExtraAttributes | None = None


@dataclass(frozen=True, slots=True)
class DataSchema:
    """All columns of a dataset, those that every event has among them."""

    fields: tuple[DataField, ...]
    extra: ExtraAttributes | None = None


def logical(data_type: DataType) -> DataType:
    """The type with what is left unsaid, and without what extensions say: equal for types of the same values."""
    match data_type:
        case DataTypeTime(unit=None) | DataTypeDuration(unit=None):
            return replace(data_type, unit=TimeUnit.MILLISECOND)
        case DataTypeTimestamp(unit=unit, timezone=zone):
            return DataTypeTimestamp(unit or TimeUnit.MILLISECOND, zone or "UTC")
        case DataTypeOption(inner=inner):
            return DataTypeOption(logical(inner))
        case DataTypeList(item_type=item, fixed_length=length):
            return DataTypeList(logical(item), length)
        case DataTypeMap(key_type=key, value_type=value):
            return DataTypeMap(logical(key), logical(value))
        case DataTypeStruct(fields=members):
            return DataTypeStruct(tuple(DataField(member.name, logical(member.type)) for member in members))
        case _:
            return data_type


def required(data_type: DataType) -> DataType:
    """The type where nothing may be null, at any depth."""
    match data_type:
        case DataTypeOption(inner=inner):
            return required(inner)
        case DataTypeList(item_type=item):
            return replace(data_type, item_type=required(item))
        case DataTypeMap(key_type=key, value_type=value):
            return replace(data_type, key_type=required(key), value_type=required(value))
        case DataTypeStruct(fields=members):
            return DataTypeStruct(tuple(replace(member, type=required(member.type)) for member in members))
        case _:
            return data_type
