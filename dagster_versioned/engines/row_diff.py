"""Which rows two frames have in common, which only one has, and which have the same key but other values."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dagster_versioned.delta.schema.types import StructField, StructType, schema_to_arrow
from dagster_versioned.delta.schema.widening import common_type
from dagster_versioned.engines.arrow.engine import ArrowEngine
from dagster_versioned.engines.conform import conform_all, stored_schema
from dagster_versioned.engines.dispatch import engine_for
from dagster_versioned.engines.frames import family_of, in_memory, stream, to_frame
from dagster_versioned.engines.join_key import join_key
from dagster_versioned.engines.row_order import TAKE_ROWS
from dagster_versioned.errors import InvalidInput, UnsupportedFrame
from dagster_versioned.identity.digest import row_lanes

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


def diff_rows(before: Any, after: Any, key: Sequence[str]) -> RowDiff[Any]:
    """Match the rows of two frames by the ``key`` columns, and compare the other columns that both have.

    Null equals null, NaN equals NaN, 0.0 equals -0.0 and the order of a map's entries is nothing, in keys as in values.
    A column that one side has with a wider type is compared in that. One that one side only has, or has with a type
    that is not to be compared with the other, is a difference of schemas and not compared here.
    The result is of pandas or Polars frames where both sides are of that type, else of `pyarrow.Table`; two Spark
    frames give lazy Spark frames, after a job each that checks the keys. Raises `InvalidInput` where the key does not
    identify the rows of each side (missing, of two types, nested, null or not unique), `UnsupportedFrame` and
    `UnsupportedType` for what could not be stored.
    """
    if not isinstance(key, str):
        key = tuple(dict.fromkeys(key))
    on_arrow = [isinstance(engine_for(frame), ArrowEngine) for frame in (before, after)]
    if all(on_arrow):
        families = {family_of(cast("type[Any]", type(frame))) for frame in (before, after)}
        diff = _diff_tables(_table(before), _table(after), key)
        if len(families) == 1 and families <= {"pandas.DataFrame", "polars.DataFrame", "polars.LazyFrame"}:
            return _as_frames(diff, cast("type[Any]", type(before)))
        return diff
    if any(on_arrow):
        raise UnsupportedFrame(
            f"A {type(before).__name__} and a {type(after).__name__} cannot be compared row by row: one of them is "
            "Spark's. Nothing was compared. Read both as the same type."
        )
    from dagster_versioned.engines.spark.row_diff import diff_frames

    return diff_frames(before, after, key)


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
    # What is joined is narrow: keys, two hashes of the compared values, and where the row is.
    old, new = (_index(side, table, common, key, compared) for side, table in (("before", before), ("after", after)))
    joined = old.join(new, [f"k{i}" for i in range(len(key))], join_type="full outer")
    # Null, which filters drop, for a row without a partner.
    differs = _call(
        "or",
        _call("not_equal", joined["before_lane0"], joined["after_lane0"]),
        _call("not_equal", joined["before_lane1"], joined["after_lane1"]),
    )
    removed = joined.filter(_call("is_null", joined["after_row"]))["before_row"].sort()
    added = joined.filter(_call("is_null", joined["before_row"]))["after_row"].sort()
    changed = joined.filter(differs).select(["before_row", "after_row"]).sort_by("before_row")
    counts = {"added": len(added), "removed": len(removed), "changed": len(changed)}
    counts["unchanged"] = joined.num_rows - sum(counts.values())
    return RowDiff(
        _take(after, added),
        _take(before, removed),
        _take(before, changed["before_row"]),
        _take(after, changed["after_row"]),
        lambda: dict(counts),
    )


def _index(side: str, table: pa.Table, schema: StructType, key: Sequence[str], compared: list[str]) -> pa.Table:
    """Keys (``k0``, …), hashes of the compared values and row numbers of one side, once its keys are checked."""
    key_schema = _only(schema, key)
    keys = pa.Table.from_batches(_stored(table, key_schema), schema_to_arrow(key_schema)).select(list(key))
    lanes = [row_lanes(batch) for batch in _stored(table, _only(schema, compared))] if compared else []
    columns: dict[str, Any] = {f"k{i}": join_key(column) for i, column in enumerate(cast("Any", keys).columns)}
    names = list(columns)
    columns[f"{side}_row"] = pa.array(np.arange(table.num_rows))
    for i in range(2):
        lane = [of_batch[i] for of_batch in lanes] if compared else [np.zeros(table.num_rows, np.uint64)]
        columns[f"{side}_lane{i}"] = pa.chunked_array(lane, pa.uint64())
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
