"""Columns at any depth: how a person names one, and a schema in which one was changed.

A path leads through structs by the names of their fields, into a list by ``element``, into a map by ``key`` and
``value``, as in Spark's ``ALTER TABLE``.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import cast

from dagster_versioned.delta.commit.write_rules import parse_columns
from dagster_versioned.delta.schema.types import ArrayType, DataType, MapType, StructField, StructType
from dagster_versioned.errors import InvalidInput, LogCorrupt

Path = tuple[str, ...]


def column_path(name: str | Sequence[str]) -> Path:
    """The path that a dotted name such as ``address.city`` stands for; backticks quote: ```a.b`.c``.

    A sequence of names is taken as it is. Raises `InvalidInput`.
    """
    if not isinstance(name, str):
        return tuple(name)
    try:
        paths = parse_columns(name)
    except LogCorrupt:
        paths = []
    if len(paths) != 1:
        raise InvalidInput(
            f"{name!r:.100} does not name one column. Nothing was written. Give a name, with dots between the levels;"
            " put a part that has a dot, a comma or a backtick in it between backticks."
        )
    return paths[0]


def found_path(schema: StructType, name: str | Sequence[str]) -> Path:
    """The path of an existing column, spelled as in the schema; case does not count. Raises `InvalidInput`."""
    path = column_path(name)
    spelled: list[str] = []
    here: DataType = schema
    for part in path:
        step = _step(here, part)
        if step is None:
            raise InvalidInput(f"The table has no column {'.'.join(path)!r}{_among(here)}. Nothing was written.")
        spelled.append(step[0])
        here = step[1]
    if not spelled:
        raise InvalidInput("The name of a column is empty. Nothing was written.")
    return tuple(spelled)


def _step(here: DataType, part: str) -> tuple[str, DataType] | None:
    match here:
        case StructType(fields=fields):
            return next(((f.name, f.type) for f in fields if f.name.casefold() == part.casefold()), None)
        case ArrayType(element_type=element) if part.casefold() == "element":
            return "element", element
        case MapType(key_type=key) if part.casefold() == "key":
            return "key", key
        case MapType(value_type=value) if part.casefold() == "value":
            return "value", value
        case _:
            return None


def _among(here: DataType) -> str:
    return f"; there are {', '.join(map(repr, here.names))}" if isinstance(here, StructType) else ""


def type_at(schema: DataType, path: Path) -> DataType:
    """The type of what a found path leads to."""
    for part in path:
        step = _step(schema, part)
        if step is None:
            raise KeyError(part)
        schema = step[1]
    return schema


def field_above(schema: StructType, path: Path) -> tuple[Path, Path]:
    """The path cut after the last field on it; what follows leads into that field's lists and maps."""
    length = max(end for end in range(1, len(path) + 1) if isinstance(type_at(schema, path[: end - 1]), StructType))
    return path[:length], path[length:]


def field_at(schema: StructType, path: Path) -> StructField:
    """The field that a found path leads to. Raises `InvalidInput` for a path that ends inside of a list or map."""
    parent = type_at(schema, path[:-1])
    if not isinstance(parent, StructType):
        raise InvalidInput(f"{'.'.join(path)!r} is no column but part of one. Nothing was written.")
    return parent.field(path[-1])


def with_type(schema: StructType, path: Path, change: Callable[[DataType], DataType]) -> StructType:
    """The schema in which ``change`` was applied to the type at a found path."""
    return cast("StructType", _changed(schema, path, change))


def with_fields(schema: StructType, path: Path, change: Callable[[StructField], Iterable[StructField]]) -> StructType:
    """The schema in which the field at a found path stands as the fields that ``change`` makes of it."""

    def members(parent: DataType) -> DataType:
        fields = cast("StructType", parent).fields
        return StructType([new for field in fields for new in (change(field) if field.name == path[-1] else [field])])

    return with_type(schema, path[:-1], members)


def _changed(here: DataType, path: Path, change: Callable[[DataType], DataType]) -> DataType:
    if not path:
        return change(here)
    head, rest = path[0], path[1:]
    match here:
        case StructType(fields=fields):
            return StructType(
                [replace(f, type=_changed(f.type, rest, change)) if f.name == head else f for f in fields]
            )
        case ArrayType(element_type=element):
            return replace(here, element_type=_changed(element, rest, change))
        case MapType(key_type=key) if head == "key":
            return replace(here, key_type=_changed(key, rest, change))
        case MapType(value_type=value):
            return replace(here, value_type=_changed(value, rest, change))
        case _:
            raise KeyError(head)
