"""The records of a slice, against what the chain says of them. Source: seed 002 ("Verifiability", "Offset",
"System Time", "Representation of Retractions and Corrections")."""

from collections.abc import Callable, Iterable
from typing import Any, cast

import numpy as np
import pyarrow as pa

from dagster_versioned.errors import IntegrityError
from dagster_versioned.odf.blocks.arrow_schema import fields_of
from dagster_versioned.odf.blocks.events import DataSlice
from dagster_versioned.odf.event_sql import Operation
from dagster_versioned.odf.identity.arrow0 import Arrow0
from dagster_versioned.odf.identity.multihash import Multihash
from dagster_versioned.tables.event_history import EventColumns

_MOMENT = pa.timestamp("us", tz="UTC")

Values = Any
"""An array of Arrow, or of its types; the stubs have no name for those of a type that is a value."""


def _is_moment(kind: Any) -> bool:
    return isinstance(kind, pa.TimestampType) and kind.tz is not None


def _is_moment_or_day(kind: Any) -> bool:
    return _is_moment(kind) or pa.types.is_date(kind)


_SYSTEM_COLUMNS: tuple[tuple[Callable[[Any], bool], str], ...] = (
    (pa.types.is_integer, "whole numbers"),
    (pa.types.is_integer, "whole numbers"),
    (_is_moment, "timestamps with a time zone"),
    (_is_moment_or_day, "timestamps with a time zone, or dates,"),
)
"""What the columns of `EventColumns` hold, in their order."""


def with_nulls(schema: pa.Schema) -> pa.Schema:
    """The columns, of which each may be null, as may what is nested in them.

    A cast to what is required fails at nulls inside of null structs, and passes over those in lists.
    """
    return pa.schema(list(map(_with_nulls, fields_of(schema))))


def _with_nulls(field: "pa.Field[Any]") -> "pa.Field[Any]":
    arrow: Any = pa  # whose stubs know no field as the type of what is nested
    kind: Any = field.type
    if pa.types.is_struct(kind):
        kind = arrow.struct(list(map(_with_nulls, kind)))
    elif pa.types.is_fixed_size_list(kind):
        kind = arrow.list_(_with_nulls(kind.value_field), kind.list_size)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        kind = (arrow.list_ if pa.types.is_list(kind) else arrow.large_list)(_with_nulls(kind.value_field))
    return arrow.field(field.name, kind, True, field.metadata)


def missing_value(columns: Iterable[Values], stated: Iterable["pa.Field[Any]"]) -> str | None:
    """The path of a column, or of what is nested in it, that has a null and is stated as required."""
    for values, field in zip(columns, stated, strict=True):
        if not field.nullable and values.null_count:
            return field.name
        kind: Any = field.type
        if pa.types.is_struct(kind):
            inside = missing_value(values.drop_null().flatten(), kind)
        elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
            inside = missing_value([values.drop_null().flatten()], [kind.value_field])
        else:
            inside = None
        if inside is not None:
            return f"{field.name}.{inside}"
    return None


class SliceRecords:
    """Checks the records of a slice, batch after batch in their order.

    Each call raises `IntegrityError` at what is not as ``data``, the columns and the specification have it; the message
    begins with what the slice has. The constructor raises `UnsupportedType` for columns whose records have no hash.
    """

    def __init__(self, data: DataSlice, schema: pa.Schema, columns: EventColumns) -> None:
        self._data = data
        self._stated = schema
        self._schema = with_nulls(schema)
        self._columns = columns
        self._digest = Arrow0(self._schema)
        self._next = data.offset_interval.start
        self._is_half = False
        self._first_time: int | None = None
        self._last_time = 0
        self._null_structs = False
        self.takes_back = False
        """Whether a record so far takes another one back."""

    def update(self, batch: pa.RecordBatch) -> None:
        """Check more records."""
        self._check_columns()
        try:
            rows = batch if batch.schema.equals(self._schema) else batch.cast(self._schema)
            offsets = _column(rows, self._columns.offset).cast(pa.int64())
            operations = _column(rows, self._columns.operation_type).cast(pa.int64())
            times = _column(rows, self._columns.system_time).cast(_MOMENT, safe=False).cast(pa.int64())
        except (pa.ArrowException, ValueError) as error:
            raise IntegrityError(f"it has other values than its columns allow ({error!s:.200}).") from None
        if missing := missing_value(cast("list[Values]", rows.columns), fields_of(self._stated)):
            raise IntegrityError(f"its column {missing!r:.200} has a null, and the chain states it as required.")
        if rows.num_rows:
            self._check_operations(operations, self._next)
            self._check_times(times, self._next)
            self._check_offsets(offsets)
        self._null_structs = self._null_structs or any(map(_has_null_struct, cast("list[Values]", rows.columns)))
        self._digest.update(rows)

    def finish(self) -> Multihash | None:
        """The hash of the records, or ``None`` where it proves nothing.

        Where structs are null, the reference implementation's hash depends on its batches: another one may be right.
        """
        if self._next != self._data.offset_interval.end + 1:
            raise self._other_offsets()
        if self._is_half:
            raise _half(self._next - 1)
        found = self._digest.digest()
        if found == self._data.logical_hash:
            return found
        if self._null_structs:
            return None
        raise IntegrityError(f"its records have the logical hash {found}, not {self._data.logical_hash}.")

    @property
    def times(self) -> tuple[int, int] | None:
        """The first and the last system time so far."""
        return None if self._first_time is None else (self._first_time, self._last_time)

    def _check_columns(self) -> None:
        for name, (is_right, wanted) in zip(self._columns.names, _SYSTEM_COLUMNS, strict=True):
            index = self._schema.get_field_index(name)
            if index < 0:
                raise IntegrityError(f"it has no column {name!r}.")
            kind = cast("Any", self._schema.field(index)).type
            if not is_right(kind):
                raise IntegrityError(f"its column {name!r} is of the type {kind}, and every event has {wanted} there.")

    def _check_offsets(self, offsets: Values) -> None:
        expected = np.arange(self._next, self._next + len(offsets))
        if not np.array_equal(offsets.to_numpy(zero_copy_only=False), expected):
            raise self._other_offsets()
        self._next += len(offsets)

    def _check_operations(self, operations: Values, first: int) -> None:
        kinds = operations.fill_null(-1).to_numpy(zero_copy_only=False)
        none = (kinds < 0) | (kinds >= len(Operation))
        if none.any():
            at = int(none.argmax())
            raise IntegrityError(f"it has an operation that is none at offset {first + at}: {operations[at].as_py()}.")
        opened, closes = kinds == Operation.CORRECT_FROM, kinds == Operation.CORRECT_TO
        wrong = closes != np.concatenate([[self._is_half], opened[:-1]])
        if wrong.any():
            at = int(wrong.argmax())
            if closes[at]:
                raise IntegrityError(f"the correct-to at offset {first + at} does not follow a correct-from.")
            raise _half(first + at - 1)
        self._is_half = bool(opened[-1])
        self.takes_back = self.takes_back or bool((opened | (kinds == Operation.RETRACT)).any())

    def _check_times(self, times: Values, first: int) -> None:
        if times.null_count:
            at = int(times.is_null().to_numpy(zero_copy_only=False).argmax())
            raise IntegrityError(f"the record at offset {first + at} has no system time.")
        values = times.to_numpy(zero_copy_only=False)
        before = values[0] if self._first_time is None else self._last_time
        falls = values < np.concatenate([[before], values[:-1]])
        if falls.any():
            at = first + int(falls.argmax())
            raise IntegrityError(f"the record at offset {at} has an earlier system time than the one before it.")
        self._first_time = int(values[0]) if self._first_time is None else self._first_time
        self._last_time = int(values[-1])

    def _other_offsets(self) -> IntegrityError:
        stated = self._data.offset_interval
        return IntegrityError(f"it has other offsets than its block says, which is {stated.start} to {stated.end}.")


class SystemTimes:
    """The system times of slice after slice, as microseconds: none is before those of the slices before it."""

    def __init__(self, latest: int | None = None) -> None:
        self._latest = latest

    def follow(self, times: tuple[int, int] | None) -> None:
        """Go on with the first and the last time of a slice. Raises `IntegrityError`."""
        if times is None:
            return
        before, self._latest = self._latest, max(times[1], self._latest or times[1])
        if before is not None and times[0] < before:
            raise IntegrityError("its first record has an earlier system time than those of the slice before it.")


def _column(rows: pa.RecordBatch, name: str) -> Values:
    return cast("Values", rows.column(name))


def _half(offset: int) -> IntegrityError:
    return IntegrityError(f"the correct-from at offset {offset} is not followed by its correct-to in the slice.")


def _has_null_struct(values: Values) -> bool:
    return pa.types.is_struct(values.type) and (values.null_count > 0 or any(map(_has_null_struct, values.flatten())))
