"""Which types may become which without a file being rewritten. Protocol: *Type Widening*."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from dagster_versioned.delta.schema.types import ArrayType, DataType, MapType, StructType, decimal_of
from dagster_versioned.errors import UnsupportedFeature

CHANGES = "delta.typeChanges"
ENABLED = "delta.enableTypeWidening"

_WIDER: dict[str, frozenset[str]] = {
    "byte": frozenset({"short", "integer", "long", "double"}),
    "short": frozenset({"integer", "long", "double"}),
    "integer": frozenset({"long", "double"}),
    "float": frozenset({"double"}),
    "date": frozenset({"timestamp_ntz"}),
}
_WHOLE = frozenset({"byte", "short", "integer", "long"})
_DIGITS = {"byte": 10, "short": 10, "integer": 10, "long": 20}
"""Digits before the point that a decimal needs for every value of an integer type, as the protocol counts them."""

MAX_DIGITS = 38
"""Of a decimal. Protocol: *Primitive Types*."""

_IN_ICEBERG = {("integer", "long"), ("float", "double")}


def is_wider(old: DataType, new: DataType) -> bool:
    """Whether every value of ``old`` is one of ``new``, and the protocol has readers see it so."""
    if not isinstance(old, str) or not isinstance(new, str):
        return False
    if new in _WIDER.get(old, ()):
        return True
    decimal = decimal_of(new)
    if decimal is None:
        return False
    precision, scale = decimal
    if old in _DIGITS:
        return precision - scale >= _DIGITS[old]
    before = decimal_of(old)
    return (
        before is not None and scale >= before[1] and precision - scale >= before[0] - before[1] and decimal != before
    )


def is_wider_within(old: DataType, new: DataType) -> bool:
    """Whether a value at any depth of ``old``, whose fields have the names of ``new``, `is_wider` in ``new``."""
    match old, new:
        case StructType(), StructType():
            before = {field.name: field.type for field in old.fields}
            return any(field.name in before and is_wider_within(before[field.name], field.type) for field in new.fields)
        case ArrayType(), ArrayType():
            return is_wider_within(old.element_type, new.element_type)
        case MapType(), MapType():
            return is_wider_within(old.key_type, new.key_type) or is_wider_within(old.value_type, new.value_type)
        case _:
            return is_wider(old, new)


def common_type(one: DataType, other: DataType) -> DataType | None:
    """The narrowest type that both are, or may become by `is_wider`, at any depth; ``None`` where there is none.

    It does not depend on the order of the two, nor, for more than two, on the order in which they are taken.
    """
    match one, other:
        case StructType(), StructType():
            return _common_struct(one, other) if one.names == other.names else None
        case ArrayType(), ArrayType():
            element = common_type(one.element_type, other.element_type)
            return None if element is None else replace(one, element_type=element)
        case MapType(), MapType():
            key, value = common_type(one.key_type, other.key_type), common_type(one.value_type, other.value_type)
            return None if key is None or value is None else replace(one, key_type=key, value_type=value)
        case str(), str():
            return _common_primitive(one, other)
        case _:
            return None


def _common_struct(one: StructType, other: StructType) -> StructType | None:
    types = [common_type(mine.type, theirs.type) for mine, theirs in zip(one.fields, other.fields, strict=True)]
    fields = [replace(field, type=found) for field, found in zip(one.fields, types, strict=True) if found]
    return StructType(fields) if len(fields) == len(types) else None


def _common_primitive(one: str, other: str) -> str | None:
    candidates = (one, other, "double", *_decimals(one, other))
    return next((type_ for type_ in candidates if _becomes(one, type_) and _becomes(other, type_)), None)


def _becomes(old: DataType, new: DataType) -> bool:
    return old == new or is_wider(old, new)


def _decimals(one: str, other: str) -> Iterator[str]:
    """The decimal that holds both, if each is a decimal or an integer."""
    shapes = [decimal_of(side) or (_DIGITS.get(side, 0), 0) for side in (one, other)]
    scale = max(scale for _, scale in shapes)
    precision = scale + max(precision - scale for precision, scale in shapes)
    if precision <= MAX_DIGITS:
        yield f"decimal({precision},{scale})"


def retyped_partition_columns(old: StructType, new: StructType, columns: Sequence[str]) -> list[str]:
    """Those of a table's partition columns whose values, as they are written in the log, other readers cannot read in
    the new type: all that change it, but for whole numbers of which a wider type holds more."""
    types = {field.name: field.type for field in old.fields}
    return [
        name
        for name in columns
        if name in types
        and name in new.names
        and (types[name] != (now := new.field(name).type))
        and not ({types[name], now} <= _WHOLE and is_wider(types[name], now))
    ]


def is_wider_for_iceberg(old: DataType, new: DataType) -> bool:
    """Whether Iceberg can follow a change that `is_wider` allows."""
    if not isinstance(old, str) or not isinstance(new, str):
        return False
    narrow = {"byte", "short", "integer"}
    if {old, new} <= narrow or (old, new) in _IN_ICEBERG or (old in narrow and new == "long"):
        return True
    before, after = decimal_of(old), decimal_of(new)
    return before is not None and after is not None and before[1] == after[1]


def with_change(metadata: dict[str, Any], old: str, new: str, inside: tuple[str, ...]) -> dict[str, Any]:
    """A field's metadata with one more change of type on record; ``inside`` leads into its lists and maps."""
    change = {"fromType": old, "toType": new, **({"fieldPath": ".".join(inside)} if inside else {})}
    return {**metadata, CHANGES: [*metadata.get(CHANGES, []), change]}


def require_known_changes(data_type: DataType, column: str = "") -> None:
    """Check that every change of type on record is one that readers make. Protocol: *Type Widening*, reader
    requirements. Raises `UnsupportedFeature`, naming column and types."""
    match data_type:
        case StructType(fields=fields):
            for field in fields:
                name = f"{column}.{field.name}".lstrip(".")
                for old, new in _recorded(field.metadata):
                    if old != new and not is_wider(old, new):
                        raise UnsupportedFeature(
                            f"typeWidening: the type of column {name!r} was changed from {old!r:.100} to {new!r:.100},"
                            " which is not known here. Nothing was read; use a newer program."
                        )
                require_known_changes(field.type, name)
        case ArrayType(element_type=element):
            require_known_changes(element, column)
        case MapType(key_type=key, value_type=value):
            require_known_changes(key, column)
            require_known_changes(value, column)
        case _:
            pass


def _recorded(metadata: Mapping[str, Any]) -> Iterator[tuple[Any, Any]]:
    recorded: Any = metadata.get(CHANGES) or []
    for change in cast("list[Any]", recorded if isinstance(recorded, list) else [recorded]):
        members = cast("dict[str, Any]", change) if isinstance(change, dict) else {}
        yield members.get("fromType"), members.get("toType", change)
