"""The comparison of Arrow rows: of both sides a narrow index of keys and hashes is kept, and of columns sums."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dagster_versioned.delta.schema.types import StructType, schema_to_arrow
from dagster_versioned.engines.comparison import (
    EXAMPLES,
    BadKeys,
    ColumnStatistics,
    Comparison,
    Kind,
    RowDiff,
    and_measured,
    compared_columns,
    differing,
    extreme,
    kind_of,
    measured_columns,
    refuse_bad_keys,
)
from dagster_versioned.engines.conform import conform_all, stored_schema
from dagster_versioned.engines.frames import family_of, to_frame, to_table
from dagster_versioned.engines.row_order import TAKE_ROWS
from dagster_versioned.identity.digest import fresh_key, row_lanes


def diff_frames(before: Any, after: Any, key: Sequence[str]) -> RowDiff[Any]:
    """See `dagster_versioned.engines.dispatch.diff_rows`."""
    families = {family_of(cast("type[Any]", type(frame))) for frame in (before, after)}
    diff = _diff_tables(to_table(before), to_table(after), key)
    if len(families) == 1 and families <= {"pandas.DataFrame", "polars.DataFrame", "polars.LazyFrame"}:
        return _as_frames(diff, cast("type[Any]", type(before)))
    return diff


def _as_frames(diff: RowDiff[pa.Table], frame_type: type) -> RowDiff[Any]:
    return RowDiff(
        to_frame(diff.added, frame_type),
        to_frame(diff.removed, frame_type),
        to_frame(diff.changed_before, frame_type),
        to_frame(diff.changed_after, frame_type),
        diff.counts,
    )


def _diff_tables(before: pa.Table, after: pa.Table, key: Sequence[str]) -> RowDiff[pa.Table]:
    schemas = stored_schema(before.schema), stored_schema(after.schema)
    common, compared = compared_columns(*schemas, key)
    before, after = (_takeable(table, schema) for table, schema in zip((before, after), schemas, strict=True))
    secret = fresh_key()
    old, new = (
        _index(side, _stored(table, common), common, key, compared, secret)
        for side, table in (("before", before), ("after", after))
    )
    joined, is_changed = _joined(old, new, len(key))
    removed = joined.filter(_call("is_null", joined["after_row"]))["before_row"].sort()
    added = joined.filter(_call("is_null", joined["before_row"]))["after_row"].sort()
    changed = joined.filter(is_changed).select(["before_row", "after_row"]).sort_by("before_row")
    counts = _counts(joined, is_changed)
    return RowDiff(
        _take(after, added),
        _take(before, removed),
        _take(before, changed["before_row"]),
        _take(after, changed["after_row"]),
        lambda: dict(counts),
    )


def _joined(old: pa.Table, new: pa.Table, keys: int) -> tuple[pa.Table, Any]:
    """The rows of two indexes side by side, and which of them differ: null, as filters drop, without a partner."""
    joined = old.join(new, [f"k{i}" for i in range(keys)], join_type="full outer")
    return joined, _call(
        "or",
        _call("not_equal", joined["before_lane0"], joined["after_lane0"]),
        _call("not_equal", joined["before_lane1"], joined["after_lane1"]),
    )


def _counts(joined: pa.Table, is_changed: Any) -> dict[str, int]:
    counts = {
        "added": joined["before_row"].null_count,
        "removed": joined["after_row"].null_count,
        "changed": int(_call("sum", is_changed).as_py() or 0),
    }
    return {**counts, "unchanged": joined.num_rows - sum(counts.values())}


def _index(
    side: str,
    batches: Iterable[pa.RecordBatch],
    schema: StructType,
    key: Sequence[str],
    compared: Sequence[str],
    secret: bytes,
) -> pa.Table:
    """Keys (``k0``, …), two hashes of the compared values and row numbers of one side, once its keys are checked.

    That is narrow, and all that is kept of the batches, which have the columns of the schema. ``secret`` is the
    `fresh_key` of both sides. Raises `InvalidInput` for keys that are null or not unique.
    """
    by_schema = _only(schema, key).names
    held: list[pa.RecordBatch] = []
    lanes: list[tuple[Any, Any]] = []
    for batch in batches:
        held.append(batch.select(by_schema))
        none = np.zeros(batch.num_rows, np.uint64)
        lanes.append(row_lanes(batch.select(list(compared)), secret) if compared else (none, none))
    keys = pa.Table.from_batches(held, schema_to_arrow(_only(schema, key))).select(list(key))
    index = join_keys(keys, key)
    refuse_bad_keys("key", key, repr(side), bad_keys(keys, index))
    index = index.append_column(f"{side}_row", cast("Any", pa.array(np.arange(keys.num_rows))))
    for i in range(2):
        hashes: Any = pa.chunked_array([of_batch[i] for of_batch in lanes], pa.uint64())
        index = index.append_column(f"{side}_lane{i}", hashes)
    return index


def _join_key(column: Any) -> Any:
    """A key column as it is to be matched: Acero takes floats by their bits, so of zero and of NaN one each is kept."""
    if not pa.types.is_floating(column.type):
        return column
    nan, zero = pa.scalar(float("nan"), column.type), pa.scalar(0.0, column.type)
    return _call("if_else", _call("is_nan", column), nan, _call("add", column, zero))


def join_keys(table: pa.Table, key: Sequence[str]) -> pa.Table:
    """The key columns as they are to be matched, called ``k0``, …"""
    columns: dict[str, Any] = {f"k{i}": _join_key(table.column(name)) for i, name in enumerate(key)}
    return pa.table(columns)


def bad_keys(keys: pa.Table, as_matched: pa.Table) -> BadKeys:
    """What is wrong with keys (`join_keys`), of which some are shown as they are given."""
    names = as_matched.column_names
    numbered = as_matched.append_column("row", cast("Any", pa.array(np.arange(keys.num_rows))))
    groups = numbered.group_by(names).aggregate([("row", "count"), ("row", "min")])
    is_null = _call("is_null", groups[names[0]])
    for name in names[1:]:
        is_null = _call("or", is_null, _call("is_null", groups[name]))
    is_repeated = _call("and_not", _call("greater", groups["row_count"], 1), is_null)
    nulls = int(_call("sum", groups.filter(is_null)["row_count"]).as_py() or 0)
    repeated = int(_call("sum", is_repeated).as_py() or 0)

    def examples() -> Sequence[dict[str, Any]]:
        first = groups.filter(_call("or", is_null, is_repeated))["row_min"].sort()
        return keys.take(first.slice(0, EXAMPLES)).to_pylist()

    return nulls, repeated, examples


def _only(schema: StructType, names: Sequence[str]) -> StructType:
    return StructType([column for column in schema.fields if column.name in names])


def _stored(table: pa.Table, schema: StructType) -> Iterator[pa.RecordBatch]:
    """These columns in canonical types: so a string is a string, however it is held."""
    names = [column.name for column in schema.fields]
    return conform_all(table.select(names).to_batches(), schema)


def _takeable(table: pa.Table, schema: StructType) -> pa.Table:
    """The table itself, or in canonical types where Arrow 26 cannot gather its own: views and runs."""
    try:
        table.slice(0, 0).take(pa.array([], pa.int64()))
    except pa.ArrowNotImplementedError:
        return pa.Table.from_batches(_stored(table, schema), schema_to_arrow(schema))
    return table


def _take(table: pa.Table, rows: Any) -> pa.Table:
    """In pieces, so that no gathered string column exceeds the 2 GiB of 32-bit offsets."""
    pieces = [table.take(rows.slice(start, TAKE_ROWS)) for start in range(0, len(rows), TAKE_ROWS)]
    return pa.concat_tables(pieces) if pieces else table.slice(0, 0)


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
            _index(side, _tallied(frame, and_measured(common, measured), tallies), common, key, compared, secret)
            for side, frame, measured, tallies in sides
        )
        rows = _counts(*_joined(old, new, len(key)))
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
