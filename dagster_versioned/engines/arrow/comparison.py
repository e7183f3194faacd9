"""The comparison of two streams of Arrow batches: what is kept of them is a narrow index of keys, and sums."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dagster_versioned.delta.schema.types import StructType
from dagster_versioned.engines.arrow.row_diff import count_rows, index_rows
from dagster_versioned.engines.comparison import (
    ColumnStatistics,
    Comparison,
    Kind,
    and_measured,
    differing,
    extreme,
    kind_of,
    measured_columns,
)
from dagster_versioned.engines.conform import conform_all, stored_schema
from dagster_versioned.engines.row_diff import compared_columns
from dagster_versioned.identity.digest import fresh_key


def compare_frames(before: pa.RecordBatchReader, after: pa.RecordBatchReader, key: Sequence[str]) -> Comparison:
    """See `dagster_versioned.engines.dispatch.compare`."""
    schemas = stored_schema(before.schema), stored_schema(after.schema)
    sides = [
        (side, frame, measured, [_Tally(column.name, kind_of(column.type)) for column in measured.fields])
        for side, frame, measured in zip(("before", "after"), (before, after), measured_columns(*schemas), strict=True)
    ]
    rows = None
    if key:
        common, compared = compared_columns(*schemas, key)
        secret = fresh_key()
        old, new = (
            index_rows(side, _tallied(frame, and_measured(common, measured), tallies), common, key, compared, secret)
            for side, frame, measured, tallies in sides
        )
        rows = count_rows(old, new, key)
    else:
        for _, frame, measured, tallies in sides:
            for _ in _tallied(frame, measured, tallies):
                pass
    old, new = ({tally.name: tally.finish() for tally in tallies} for *_, tallies in sides)
    return Comparison(rows, differing(old, new))


def _tallied(frame: pa.RecordBatchReader, schema: StructType, tallies: Iterable["_Tally"]) -> Iterator[pa.RecordBatch]:
    """The batches in canonical types, each tallied as it passes."""
    batches = (batch.select(schema.names) for batch in frame)
    for batch in conform_all(batches, schema):
        for tally in tallies:
            tally.update(batch.column(tally.name))
        yield batch


class _Tally:
    """The statistics of one column, batch by batch."""

    def __init__(self, name: str, kind: Kind | None) -> None:
        assert kind is not None
        self.name = name
        self._kind: Kind = kind
        self._nulls = self._nans = self._values = 0
        self._sum = 0.0
        self._extremes: list[Any] = []

    def update(self, column: Any) -> None:
        self._nulls += column.null_count
        if pa.types.is_floating(column.type):
            column = column.drop_null()
            is_nan = _call("is_nan", column)
            self._nans += is_nan.true_count
            column = column.filter(_call("invert", is_nan))
        self._values += len(column) - column.null_count
        if self._kind != "moment":
            # As doubles: the sum of integers, and that of decimals, would overflow.
            numbers = column.cast(pa.int8()) if self._kind == "boolean" else column
            self._sum += _call("sum", numbers.cast(pa.float64(), safe=False)).as_py() or 0.0
        if self._kind != "boolean":
            found = _call("min_max", column)
            self._extremes = [_of_both("min", self._extremes, 0, found), _of_both("max", self._extremes, 1, found)]

    def finish(self) -> ColumnStatistics:
        mean = self._sum / self._values if self._values and self._kind != "moment" else None
        least, greatest = map(extreme, self._extremes) if self._extremes else (None, None)
        return ColumnStatistics(self._kind, self._nulls, self._nans, self._values, mean, least, greatest)


def _of_both(name: str, known: Sequence[Any], position: int, found: Any) -> Any:
    if not known:
        return found[name]
    return _call("min_max", pa.array([known[position], found[name]], found[name].type))[name]


def _call(function: str, *arguments: Any) -> Any:
    return pc.call_function(function, [*arguments])
