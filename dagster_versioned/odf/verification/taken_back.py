"""Whether what a history takes back is in it: a retraction or correct-from has the data of a row that is there.

Rows are compared by two hashes of their data, sorted, without their key; only those are held in memory that have the
data of one that is taken back. Whoever wrote the history does not know the secret key of the hashes, which is another
one each time. Event times are not compared: a retraction may say when it happened.
Source: seed 002 ("Representation of Retractions and Corrections").
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dagster_versioned.errors import UnsupportedType
from dagster_versioned.identity.digest import fresh_key, row_lanes
from dagster_versioned.odf.event_sql import Operation
from dagster_versioned.tables.event_history import EventColumns

Batches = Callable[[], Iterator[pa.RecordBatch]]
"""Reads the records of a slice."""

_TAKES_BACK: Final = (Operation.RETRACT, Operation.CORRECT_FROM)


def taken_back_in_vain(
    slices: Sequence[tuple[Batches, bool]], schema: pa.Schema, columns: EventColumns
) -> dict[int, int]:
    """The first record of each slice that takes back a row which is not there then: its offset, by the slice's place.

    ``slices`` are all of a history, the oldest first, each with whether it takes anything back; ``schema`` are its
    columns as they are now. One that takes back in vain changes nothing for those after it.
    """
    rows = _Rows(schema, columns)
    taken = [
        first[np.isin(operations, _TAKES_BACK)]
        for read, takes_back in slices
        if takes_back
        for operations, _, first, _ in map(rows.of, read())
    ]
    if not taken:
        return {}
    wanted = np.unique(np.concatenate(taken))
    found: list[tuple[npt.NDArray[Any], ...]] = []
    for place, (read, _) in enumerate(slices):
        for operations, offsets, first, second in map(rows.of, read()):
            chosen = np.isin(first, wanted)
            change = np.where(np.isin(operations[chosen], _TAKES_BACK), -1, 1)
            found.append((first[chosen], second[chosen], offsets[chosen], change, np.full(len(change), place)))
    firsts, seconds, offsets, changes, places = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
    order = np.lexsort((offsets, seconds, firsts))
    vain = order[_below(firsts[order], seconds[order], changes[order])]
    result: dict[int, int] = {}
    for at in sorted(vain.tolist(), key=lambda at: int(offsets[at])):
        result.setdefault(int(places[at]), int(offsets[at]))
    return result


def _below(firsts: npt.NDArray[Any], seconds: npt.NDArray[Any], changes: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Where a sum, which begins at each pair of hashes, falls below zero, deeper than it did before."""
    begins = np.concatenate([[True], (firsts[1:] != firsts[:-1]) | (seconds[1:] != seconds[:-1])])
    group = np.cumsum(begins) - 1
    sums = np.cumsum(changes)
    sums = sums - (sums - changes)[begins][group]
    # Each group lies below all of those before it, so that one running minimum serves all.
    floor = -group * (2 * len(sums) + 1)
    lowest = np.minimum.accumulate(np.minimum(sums, 0) + floor)
    before = np.where(begins, floor, np.concatenate([[0], lowest[:-1]]))
    return lowest < before


class _Rows:
    """The operation, the offset and the two hashes of the data of each record, in columns that the history has now."""

    def __init__(self, schema: pa.Schema, columns: EventColumns) -> None:
        fields: list[Any] = [schema.field(name) for name in schema.names if name not in columns.names]
        self._data: list[Any] = [field for field in fields if _has_hash(field)]
        self._columns = columns
        self._key = fresh_key()

    def of(self, batch: pa.RecordBatch) -> tuple[npt.NDArray[Any], ...]:
        nothing: Any = pa.nulls
        held: list[Any] = [
            cast("Any", batch.column(field.name)).cast(field.type)
            if field.name in batch.schema.names
            else nothing(batch.num_rows, field.type)  # a column that came later
            for field in self._data
        ]
        first, second = row_lanes(pa.RecordBatch.from_arrays(held, schema=pa.schema(self._data)), self._key)
        numbers: list[Any] = [
            batch.column(name).cast(pa.int64()).to_numpy(zero_copy_only=False)
            for name in (self._columns.operation_type, self._columns.offset)
        ]
        return numbers[0], numbers[1], first, second


def _has_hash(field: Any) -> bool:
    """Whether a column can be compared; what no table of ours holds cannot, and is passed over."""
    try:
        row_lanes(pa.RecordBatch.from_arrays(cast("list[Any]", [pa.nulls(0, field.type)]), names=[field.name]))
    except UnsupportedType:
        return False
    return True
