"""The row diff of two Arrow tables: narrow indexes of keys and hashes are joined, and rows taken by their numbers."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dagster_versioned.delta.schema.types import StructType, schema_to_arrow
from dagster_versioned.engines.conform import conform_all, stored_schema
from dagster_versioned.engines.frames import family_of, in_memory, stream, to_frame
from dagster_versioned.engines.join_key import join_key
from dagster_versioned.engines.row_diff import EXAMPLES, RowDiff, compared_columns, refuse_bad_keys
from dagster_versioned.engines.row_order import TAKE_ROWS
from dagster_versioned.identity.digest import fresh_key, row_lanes


def diff_frames(before: Any, after: Any, key: Sequence[str]) -> RowDiff[Any]:
    """See `dagster_versioned.engines.dispatch.diff_rows`."""
    families = {family_of(cast("type[Any]", type(frame))) for frame in (before, after)}
    diff = _diff_tables(_table(before), _table(after), key)
    if len(families) == 1 and families <= {"pandas.DataFrame", "polars.DataFrame", "polars.LazyFrame"}:
        return _as_frames(diff, cast("type[Any]", type(before)))
    return diff


def _table(frame: Any) -> pa.Table:
    table = in_memory(frame)
    if table is None:
        schema, batches = stream(frame)
        table = pa.Table.from_batches(batches, schema)
    return table


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
        index_rows(side, _stored(table, common), common, key, compared, secret)
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


def count_rows(before: pa.Table, after: pa.Table, key: Sequence[str]) -> dict[str, int]:
    """Rows ``added``, ``removed``, ``changed`` and ``unchanged``, of two indexes (`index_rows`)."""
    return _counts(*_joined(before, after, len(key)))


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


def index_rows(
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
    columns: dict[str, Any] = {f"k{i}": join_key(column) for i, column in enumerate(cast("Any", keys).columns)}
    names = list(columns)
    columns[f"{side}_row"] = pa.array(np.arange(keys.num_rows))
    for i in range(2):
        columns[f"{side}_lane{i}"] = pa.chunked_array([of_batch[i] for of_batch in lanes], pa.uint64())
    index = pa.table(columns)
    _check_keys(side, keys, index, names, f"{side}_row")
    return index


def _check_keys(side: str, keys: pa.Table, index: pa.Table, names: list[str], row: str) -> None:
    groups = index.group_by(names).aggregate([(row, "count"), (row, "min")])
    is_null = _call("is_null", groups[names[0]])
    for name in names[1:]:
        is_null = _call("or", is_null, _call("is_null", groups[name]))
    is_repeated = _call("and_not", _call("greater", groups[f"{row}_count"], 1), is_null)
    nulls = int(_call("sum", groups.filter(is_null)[f"{row}_count"]).as_py() or 0)
    repeated = int(_call("sum", is_repeated).as_py() or 0)

    def examples() -> Sequence[dict[str, Any]]:
        first = groups.filter(_call("or", is_null, is_repeated))[f"{row}_min"].sort()
        return keys.take(first.slice(0, EXAMPLES)).to_pylist()

    refuse_bad_keys(side, keys.column_names, nulls, repeated, examples)


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


def _call(function: str, *arguments: Any) -> Any:
    return pc.call_function(function, [*arguments])
