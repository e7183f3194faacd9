"""Identity columns: numbers that the writer gives to rows. Protocol: *Identity Columns*."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from dagster_versioned.delta.actions import Metadata
from dagster_versioned.delta.schema.types import StructField, StructType, parse_schema
from dagster_versioned.errors import InvalidInput, LogCorrupt

START = "delta.identity.start"
STEP = "delta.identity.step"
HIGH_WATER_MARK = "delta.identity.highWaterMark"
ALLOW_EXPLICIT = "delta.identity.allowExplicitInsert"

_LONG = range(-(2**63), 2**63)


@dataclass(frozen=True, slots=True)
class IdentityColumn:
    """How one column's values are made: ``start + k * step``, each beyond ``high_water``, which is ``None`` at first.

    ``allow_explicit``: whether rows may bring a value of their own.
    """

    start: int
    step: int
    high_water: int | None = None
    allow_explicit: bool = False

    def values(self, count: int) -> range:
        """The next values, for ``count`` rows; the last is the new high water mark.

        Raises `InvalidInput` where they leave 64 bits.
        """
        if self.high_water is None:
            first = self.start
        else:
            # A mark that is no value of the column may come from a changed start or from explicit values.
            passed = (self.high_water - self.start) // self.step + 1
            first = self.start + max(passed, 0) * self.step
        values = range(first, first + count * self.step, self.step)
        if count and values[-1] not in _LONG:
            raise InvalidInput(
                f"The identity column has no {count} values left after {self.high_water}: its numbers have 64 bits."
                " Nothing was written."
            )
        return values


def identity_columns(schema: StructType) -> dict[str, IdentityColumn]:
    """The identity columns by name. Raises `LogCorrupt` for members that make no sense."""
    return {field.name: _identity(field) for field in schema.fields if is_identity(field)}


def is_identity(field: StructField) -> bool:
    return any(key in field.metadata for key in (START, STEP, HIGH_WATER_MARK))


def with_high_water_marks(metadata: Metadata, marks: Mapping[str, int]) -> Metadata:
    """The metadata action that records how far identity columns have come; a mark never goes back.

    Raises `InvalidInput` for a column that is no identity column.
    """
    schema = parse_schema(metadata.schema_string)
    columns = identity_columns(schema)
    if unknown := sorted(marks.keys() - columns.keys()):
        raise InvalidInput(f"The table has no identity columns {unknown}. Nothing was written.")
    fields = [
        _marked(field, columns[field.name], marks[field.name]) if field.name in marks else field
        for field in schema.fields
    ]
    return replace(metadata, schema_string=StructType(fields).json())


def _marked(field: StructField, column: IdentityColumn, mark: int) -> StructField:
    furthest = max if column.step > 0 else min
    reached = mark if column.high_water is None else furthest(mark, column.high_water)
    return replace(field, metadata={**field.metadata, HIGH_WATER_MARK: reached})


def _identity(field: StructField) -> IdentityColumn:
    start, step = field.metadata.get(START), field.metadata.get(STEP)
    mark, explicit = field.metadata.get(HIGH_WATER_MARK), field.metadata.get(ALLOW_EXPLICIT, False)
    numbers = [start, step] if mark is None else [start, step, mark]
    if not all(type(number) is int and number in _LONG for number in numbers) or not step or type(explicit) is not bool:
        raise LogCorrupt(
            f"The identity column {field.name!r} makes no sense: start {start!r}, step {step!r}, high water mark"
            f" {mark!r}, explicit values {explicit!r}."
        )
    return IdentityColumn(numbers[0], numbers[1], mark, explicit)  # pyright: ignore[reportArgumentType]
