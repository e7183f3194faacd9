"""Which rows two frames have in common, which only one has, and which have the same key but other values."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from dagster_versioned.delta.schema.types import StructField, StructType
from dagster_versioned.delta.schema.widening import common_type
from dagster_versioned.errors import InvalidInput

FrameT = TypeVar("FrameT")

EXAMPLES = 5
"""How many keys an error shows."""


@dataclass(frozen=True, eq=False)
class RowDiff(Generic[FrameT]):
    """Rows by what became of them, each with all columns of the side it is from.

    From Arrow, pandas and Polars the rows keep their order, and row i of ``changed_before`` has the key of row i of
    ``changed_after``; the order is that of ``before``. From Spark the frames are lazy and have no order.
    """

    added: FrameT
    removed: FrameT
    changed_before: FrameT
    changed_after: FrameT
    _count: Callable[[], dict[str, int]] = field(repr=False)

    def counts(self) -> dict[str, int]:
        """Rows ``added``, ``removed``, ``changed`` and ``unchanged``; on Spark every call is a job."""
        return self._count()


def compared_columns(before: StructType, after: StructType, key: Sequence[str]) -> tuple[StructType, list[str]]:
    """The columns that both schemas have and can be compared, in the order of ``before``, each in the type that holds
    the values of both; and the names of those other than the key.

    Raises `InvalidInput` for a key that cannot match rows of these schemas.
    """
    types = [{column.name: column.type for column in schema.fields} for schema in (before, after)]
    if isinstance(key, str) or not key:
        raise InvalidInput(f"The key must be a list of column names, and is {key!r}. Nothing was compared.")
    for name in key:
        missing = [side for side, columns in zip(("before", "after"), types, strict=True) if name not in columns]
        if missing:
            raise InvalidInput(
                f"The key names {name!r}, which is no column of {' and '.join(missing)}. Nothing was compared. "
                f"Columns of both are: {', '.join(repr(column) for column in types[0] if column in types[1])}."
            )
        old, new = types[0][name], types[1][name]
        if common_type(old, new) is None:
            raise InvalidInput(
                f"The key column {name!r} has the type {old} before and {new} after. Nothing was compared. Cast it to "
                "the same type on both sides."
            )
        if not isinstance(old, str):
            raise InvalidInput(
                f"The key column {name!r} is nested ({old}). Nothing was compared. Choose columns of plain types."
            )
    both = {name: common_type(types[0][name], types[1][name]) for name in types[0] if name in types[1]}
    schema = StructType([StructField(name, found) for name, found in both.items() if found is not None])
    return schema, [name for name in schema.names if name not in key]


def refuse_bad_keys(
    side: str, key: Sequence[str], nulls: int, repeated: int, examples: Callable[[], Sequence[dict[str, Any]]]
) -> None:
    """Raise `InvalidInput` if ``nulls`` rows have no key or ``repeated`` keys have several rows."""
    if nulls or repeated:
        raise InvalidInput(
            f"The key {list(key)} does not identify the rows of {side!r}: {nulls} rows have a null in it, and "
            f"{repeated} keys have more than one row, for example {', '.join(map(str, examples()))}. Nothing was "
            "compared. Add columns to the key, or drop these rows."
        )
