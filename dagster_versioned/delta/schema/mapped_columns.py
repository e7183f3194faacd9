"""New columns of a table that maps its columns: their ids and physical names. Protocol: *Column Mapping*."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

from dagster_versioned.delta.actions import is_on
from dagster_versioned.delta.schema.column_mapping import ID, PHYSICAL_NAME
from dagster_versioned.delta.schema.types import ArrayType, DataType, MapType, StructField, StructType, parts_of
from dagster_versioned.errors import LogCorrupt

MODE = "delta.columnMapping.mode"
MAX_ID = "delta.columnMapping.maxColumnId"
NESTED_IDS = "delta.columnMapping.nested.ids"


def with_mapped_columns(
    schema: StructType, configuration: Mapping[str, str], *, keep_names: bool = False
) -> tuple[StructType, dict[str, str]]:
    """The schema with an id and a physical name for every field, at any depth, that lacks one.

    Also the properties, with the highest id ever given (``delta.columnMapping.maxColumnId``), so that the id of a
    dropped column never comes back. A physical name is random unless ``keep_names`` asks for the field's own: where
    data files without mapping exist. Elements, keys and values get ids where the table is for Iceberg, version 2.
    Nothing happens where ``configuration`` does not map columns. Raises `LogCorrupt` for a highest id that is none.
    """
    if (configuration.get(MODE) or "none").lower() == "none":
        return schema, dict(configuration)
    known = [number for part in parts_of(schema) for number in _ids(part.metadata)]
    given = _IdCounter(
        max([_highest(configuration), *known]), keep_names, is_on(configuration, "delta.enableIcebergCompatV2")
    )
    mapped = given.struct(schema)
    return mapped, {**configuration, MAX_ID: str(given.last)}


def columns_back(before: StructType, configuration: Mapping[str, str], after: StructType) -> list[str]:
    """The names of columns of ``after``, at any depth, that ``before`` had not, and that had been dropped before it.

    ``configuration`` is that of ``before``; where it maps no columns, none can have been dropped.
    """
    if (configuration.get(MODE) or "none").lower() == "none":
        return []
    ids = [(part.path[-1], number) for part in parts_of(after) if type(number := part.metadata.get(ID)) is int]
    known = {number for part in parts_of(before) if type(number := part.metadata.get(ID)) is int}
    given = range(_highest(configuration) + 1)
    return [name for name, number in ids if number in given and number not in known]


def _highest(configuration: Mapping[str, str]) -> int:
    text = configuration.get(MAX_ID, "0")
    if not re.fullmatch("[0-9]{1,10}", text):
        raise LogCorrupt(f"The property {MAX_ID} is {text!r:.50}, which is no id. Nothing was done.")
    return int(text)


@dataclass
class _IdCounter:
    """Counts the ids that are given on the way through a schema."""

    last: int
    keep_names: bool
    nested: bool

    def _next(self) -> int:
        self.last += 1
        return self.last

    def struct(self, struct: StructType) -> StructType:
        return StructType([self._field(field) for field in struct.fields])

    def _field(self, field: StructField) -> StructField:
        metadata = dict(field.metadata)
        if ID not in metadata:
            metadata[ID] = self._next()
        if PHYSICAL_NAME not in metadata:
            metadata[PHYSICAL_NAME] = field.name if self.keep_names else f"col-{uuid4()}"
        if self.nested and isinstance(field.type, ArrayType | MapType):
            nested = dict(metadata.get(NESTED_IDS) or {})
            for path in _inner_paths(field.type, metadata[PHYSICAL_NAME]):
                if path not in nested:
                    nested[path] = self._next()
            metadata[NESTED_IDS] = nested
        return replace(field, type=self._type(field.type), metadata=metadata)

    def _type(self, data_type: DataType) -> DataType:
        match data_type:
            case StructType():
                return self.struct(data_type)
            case ArrayType(element_type=element):
                return replace(data_type, element_type=self._type(element))
            case MapType(key_type=key, value_type=value):
                return replace(data_type, key_type=self._type(key), value_type=self._type(value))
            case _:
                return data_type


def _inner_paths(data_type: DataType, path: str) -> Iterator[str]:
    """The paths of elements, keys and values below a field, as far as no other field is between."""
    match data_type:
        case ArrayType(element_type=element):
            yield f"{path}.element"
            yield from _inner_paths(element, f"{path}.element")
        case MapType(key_type=key, value_type=value):
            yield f"{path}.key"
            yield from _inner_paths(key, f"{path}.key")
            yield f"{path}.value"
            yield from _inner_paths(value, f"{path}.value")
        case _:
            pass


def _ids(metadata: Mapping[str, Any]) -> Iterator[int]:
    if isinstance(number := metadata.get(ID), int):
        yield number
    yield from (metadata.get(NESTED_IDS) or {}).values()
