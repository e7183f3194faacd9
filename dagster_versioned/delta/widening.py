"""Which types may become which without a file being rewritten. Protocol: *Type Widening*."""

from typing import Any

from dagster_versioned.delta.schema import DataType, decimal_of

CHANGES = "delta.typeChanges"
ENABLED = "delta.enableTypeWidening"

_WIDER: dict[str, frozenset[str]] = {
    "byte": frozenset({"short", "integer", "long", "double"}),
    "short": frozenset({"integer", "long", "double"}),
    "integer": frozenset({"long", "double"}),
    "float": frozenset({"double"}),
    "date": frozenset({"timestamp_ntz"}),
}
_DIGITS = {"byte": 10, "short": 10, "integer": 10, "long": 20}
"""Digits before the point that a decimal needs for every value of an integer type, as the protocol counts them."""

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
