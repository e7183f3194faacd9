"""Rows to partitions by the values of a column: one frame becomes a frame for each partition key.

Here those of Arrow's family; `engines.spark.row_partitions` has Spark's.
"""

import math
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dagster_versioned.engines.frames import to_table
from dagster_versioned.engines.row_order import TAKE_ROWS
from dagster_versioned.errors import EmptyTable, InvalidInput

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SHOWN = 5


@dataclass(frozen=True)
class KeyColumn:
    """A column that distinguishes partitions: ``keys[i]`` is its value in the rows of partition ``i``.

    Compared as text. Where the partitions are times, ``windows[i]`` are its first moment and the first that is not its
    any more, both with a zone: dates and timestamps are compared with them. Those without a zone are read off the wall
    clock of the windows' zone.
    """

    name: str
    keys: tuple[str, ...]
    windows: tuple[tuple[datetime, datetime], ...] | None = None

    @property
    def positions(self) -> dict[str, int]:
        """The distinct keys, each with its place among them."""
        return {key: i for i, key in enumerate(dict.fromkeys(self.keys))}

    def bounds(self, *, wall: bool) -> "tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]":
        """Starts and ends of the windows in microseconds since the epoch, on the wall clock if ``wall``.

        Raises `InvalidInput` where a moment would be in two of them: the wall clock goes back once a year, which
        windows of less than an hour show.
        """
        windows = self.windows or ()
        starts, ends = (np.array([_micros(window[i], wall) for window in windows], np.int64) for i in (0, 1))
        one_each = np.array(list({key: i for i, key in enumerate(self.keys)}.values()), np.int64)
        order = one_each[np.lexsort((ends[one_each], starts[one_each]))]
        if (np.maximum.accumulate(ends[order])[:-1] > starts[order][1:]).any():
            raise InvalidInput(
                f"The partitions overlap on the wall clock, so the column {self.name!r} cannot say to which of them a "
                "row belongs. Nothing was written. Make it a timestamp with a zone."
            )
        return starts, ends

    def grain(self, *, wall: bool) -> int:
        """The longest span in microseconds that no bound of a window cuts."""
        return math.gcd(*(int(bound) for bounds in self.bounds(wall=wall) for bound in bounds)) or 1


@dataclass(frozen=True)
class RowPartitions:
    """How rows are assigned: the partition keys, and the columns that each has one value of for each of them."""

    keys: tuple[str, ...]
    columns: tuple[KeyColumn, ...]

    def of_rows(
        self, values: "Sequence[pa.Array[Any] | pa.ChunkedArray[Any]]", walls: Sequence[bool]
    ) -> "np.ndarray[Any, Any]":
        """For each row the index of its partition, or -1; ``values`` are text, or microseconds as ``walls`` says."""
        codes = [_codes(*each) for each in zip(self.columns, values, walls, strict=True)]
        known = [column.positions for column in self.columns]
        # One cell for each combination of the columns' values, and a margin for what is none of them.
        cells = np.full([len(positions) + 1 for positions in known], -1, np.int64)
        for i in range(len(self.keys)):
            cells[tuple(at[column.keys[i]] for at, column in zip(known, self.columns, strict=True))] = i
        return cells[tuple(codes)]

    def check(self, counts: "np.ndarray[Any, Any]", unknown_keys: Mapping[str, int], *, allow_empty: bool) -> None:
        """Raise unless every row has a partition, and every partition rows, which ``allow_empty`` does without.

        ``counts`` are rows by partition, ``unknown_keys`` rows without one by what their columns say.
        """
        columns = ", ".join(repr(column.name) for column in self.columns)
        if unknown_keys:
            shown = ", ".join(f"{value} ({count} rows)" for value, count in list(unknown_keys.items())[:_SHOWN])
            raise InvalidInput(
                f"{sum(unknown_keys.values())} rows belong to none of the {len(self.keys)} partitions that the run "
                f"covers: {columns} is {shown}. Nothing was written. Leave them out, or run their partitions too."
            )
        empty = [self.keys[i] for i in np.flatnonzero(counts == 0)]
        if empty and not allow_empty:
            more = f" and {len(empty) - _SHOWN} more" if len(empty) > _SHOWN else ""
            raise EmptyTable(
                f"No row belongs to the partitions {', '.join(map(repr, empty[:_SHOWN]))}{more}, by {columns}. Nothing "
                "was written. If they are empty, say so: TableOptions(allow_empty=True)."
            )


def missing_column(name: str, columns: Sequence[str]) -> InvalidInput:
    """The error for a partition column that the frame has not, or has twice."""
    return InvalidInput(
        f"The frame has {columns.count(name)} columns {name!r}, which is to say to which partition a row belongs. "
        f"Nothing was written. It has: {', '.join(map(repr, columns))}."
    )


def no_key(name: str, data_type: object) -> InvalidInput:
    """The error for a partition column whose type cannot be compared with partition keys."""
    return InvalidInput(
        f"The column {name!r} has the type {data_type}, which cannot say to which partition a row belongs. Nothing was "
        "written. It has to be text, a whole number, a boolean, a date, or, for partitions by time, a timestamp."
    )


def unknown_keys(texts: Sequence[Sequence[object]], counts: Sequence[int]) -> dict[str, int]:
    """What columns say (``texts``, a list for each column), with the number of rows, for `RowPartitions.check`."""
    found: dict[str, int] = {}
    for values, count in zip(zip(*texts, strict=True), counts, strict=True):
        text = "|".join("null" if value is None else repr(str(value)) for value in values)
        found[text] = found.get(text, 0) + count
    return found


def _codes(column: KeyColumn, values: "pa.Array[Any] | pa.ChunkedArray[Any]", wall: bool) -> "np.ndarray[Any, Any]":
    """For each row the index among the column's distinct keys, or -1."""
    positions = column.positions
    if not pa.types.is_integer(values.type):
        known: pa.Array[Any] = pa.array(list(positions), pa.string())
        return _filled(pc.index_in(values, value_set=known), -1).astype(np.int64)
    starts, ends = column.bounds(wall=wall)
    of_window = np.array([positions[key] for key in column.keys], np.int64)
    order = np.argsort(starts, kind="stable")
    moments = _filled(values, int(np.iinfo(np.int64).min))
    position = np.searchsorted(starts[order], moments, side="right") - 1
    window = order[np.maximum(position, 0)]
    return np.where((position >= 0) & (moments < ends[window]), of_window[window], -1)


def _filled(values: Any, instead_of_null: int) -> "np.ndarray[Any, Any]":
    return values.fill_null(instead_of_null).to_numpy()


def _micros(moment: datetime, wall: bool) -> int:
    return (moment.replace(tzinfo=UTC) - _EPOCH if wall else moment - _EPOCH) // timedelta(microseconds=1)


@contextmanager
def split(frame: Any, partitions: RowPartitions, *, allow_empty: bool) -> Generator[dict[str, Any]]:
    """See `dagster_versioned.engines.dispatch.split_rows`."""
    yield _split_table(to_table(frame), partitions, allow_empty)


def _split_table(table: pa.Table, partitions: RowPartitions, allow_empty: bool) -> dict[str, pa.Table]:
    values, walls = zip(*(_normal(table, column) for column in partitions.columns), strict=True)
    codes = partitions.of_rows(values, walls)
    alien = np.flatnonzero(codes < 0)
    shown = [table.column(column.name).take(alien[:1000]).to_pylist() for column in partitions.columns]
    found = unknown_keys(shown, [1] * min(len(alien), 1000))
    if len(alien) > 1000:
        found["other values"] = len(alien) - 1000
    counts = np.bincount(codes[codes >= 0], minlength=len(partitions.keys))
    partitions.check(counts, found, allow_empty=allow_empty)
    order = np.argsort(codes, kind="stable")
    ends = np.cumsum(counts)
    return {
        key: _taken(table, order[end - count : end])
        for key, count, end in zip(partitions.keys, counts, ends, strict=True)
    }


def _taken(table: pa.Table, indices: "np.ndarray[Any, Any]") -> pa.Table:
    if len(indices) == 0 or indices[-1] - indices[0] == len(indices) - 1:  # in one piece already: nothing is copied
        return table.slice(int(indices[0]) if len(indices) else 0, len(indices))
    pieces = (indices[start : start + TAKE_ROWS] for start in range(0, len(indices), TAKE_ROWS))
    return pa.concat_tables([table.take(piece) for piece in pieces])


def _normal(table: pa.Table, column: KeyColumn) -> "tuple[pa.ChunkedArray[Any], bool]":
    """The column as text, or in microseconds and whether these are the wall clock's."""
    if table.column_names.count(column.name) != 1:
        raise missing_column(column.name, table.column_names)
    values = table.column(column.name)
    kind: Any = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
    if column.windows is not None and (pa.types.is_date(kind) or pa.types.is_timestamp(kind)):
        wall = getattr(kind, "tz", None) is None
        moments = values.cast(kind).cast(pa.timestamp("us", tz=getattr(kind, "tz", None)), safe=False)
        return cast("pa.ChunkedArray[Any]", moments.cast(pa.int64())), wall
    if not _is_comparable(kind):
        raise no_key(column.name, kind)
    if pa.types.is_date(kind):
        values = values.cast(kind).cast(pa.date32())
    return cast("pa.ChunkedArray[Any]", values.cast(pa.string())), False


def _is_comparable(kind: Any) -> bool:
    """Whether values of a type are compared with partition keys as text."""
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    return is_text or pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_date(kind)
