"""Spark rows into a table, by key: one join of keys says which files change, one pass writes them anew."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as sf

from dagster_versioned.delta.changes import CHANGE_TYPE, ChangeType
from dagster_versioned.delta.schema import StructField, StructType, schema_to_arrow
from dagster_versioned.engines.increment import (
    EXAMPLES,
    Increment,
    Matching,
    Positions,
    as_examples,
    deleted_from,
    marked,
    may_stay,
    nothing,
    refuse_bad_rows,
    refuse_repeated_in_table,
    require_key,
)
from dagster_versioned.engines.parts import Contents, Written
from dagster_versioned.engines.scan import ROW_ID, Scan
from dagster_versioned.engines.spark.by_value import pickled_by_value
from dagster_versioned.engines.spark.row_diff import bad_keys, differ
from dagster_versioned.engines.spark.worker import REPORT_SCHEMA, TaskReport, tallied
from dagster_versioned.errors import InvalidInput
from dagster_versioned.identity.digest import BagDigest

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_FILE, _DIFFERS = "_file", "_differs"


def merge_frames(
    frame: "DataFrame",
    base: Scan,
    matching: Matching,
    read: "Callable[[Scan], DataFrame]",
    write: "Callable[[DataFrame], Written]",
    *,
    vectors: bool,
    tells: bool,
) -> Increment:
    """`Engine.merge`; the frame is persisted, and has the columns of the scan's schema by name."""
    key = matching.key
    if matching.on:
        raise InvalidInput("Rows of units cannot be replaced by Spark frames yet. Nothing was written.")
    require_key(base.schema, key, matching.named)
    # Positional names: a user's may hold dots and backticks, and both sides have the same.
    names = {name: f"_c{i}" for i, name in enumerate(base.schema.names)}
    keys = [names[name] for name in key]
    new = frame.select(*(sf.col(f"`{name.replace('`', '``')}`") for name in names)).toDF(*names.values())
    refuse_bad_rows(matching, *bad_keys(new, keys, key))
    joined = _joined(new, base, keys, read).persist()
    try:
        by_file = joined.groupBy(_FILE).agg(
            sf.count(sf.lit(1)).alias("matched"), sf.count_if(sf.col(_DIFFERS)).alias("changed")
        )
        found = by_file.collect()
        matched = sum(row["matched"] for row in found)
        _check_table(joined, keys, matching, matched)
        changed: dict[int, int] = {row[_FILE]: row["changed"] for row in found if row["changed"]}
        deleted = _deleted(joined, base, changed) if vectors else {}
        replaced = sorted(changed.keys() - deleted.keys())
        inserted = new.count() - matched
        if not changed and not inserted:
            return Increment(frozenset(), nothing(base.schema), Written(nothing(base.schema), ()), 0, 0)

        def stored(numbers: Iterable[int]) -> "DataFrame":
            files = tuple(base.files[i] for i in sorted(numbers))
            return read(replace(base, files=files)).toDF(*names.values())

        # What equals a row of a file that stays is in it already.
        there = joined.where(~sf.col(_DIFFERS))
        there = there.where(~sf.col(_FILE).isin(replaced)) if replaced else there
        rows = new.join(there.select(*keys), keys, "left_anti").select(*names.values())
        gone: list[DataFrame] = []
        if deleted:
            differ_now = joined.where(sf.col(_DIFFERS)).select(*keys)
            gone.append(stored(deleted).join(differ_now, keys, "left_semi").select(*names.values()))
        if replaced:
            old = stored(replaced)
            gone.append(old)
            rows = old.join(new.select(*keys), keys, "left_anti").select(*names.values()).unionByName(rows)
        before = nothing(base.schema)
        if gone:
            before = measure(reduce(lambda one, other: one.unionAll(other), gone).toDF(*names), base.schema)
        written = write(rows.toDF(*names))
    finally:
        joined.unpersist()

    def changes() -> Written:
        differing = joined.where(sf.col(_DIFFERS)).select(*keys)
        told = [
            _told(new.join(differing, keys, "left_semi"), names, "update_postimage"),
            _told(new.join(joined.select(*keys), keys, "left_anti"), names, "insert"),
        ]
        if changed:
            told.append(_told(stored(changed).join(differing, keys, "left_semi"), names, "update_preimage"))
        return write(reduce(lambda one, other: one.unionAll(other), told))

    return Increment(
        frozenset(base.files[i].key for i in replaced),
        before,
        written,
        inserted,
        sum(changed.values()),
        deleted={base.files[i].key: positions for i, positions in deleted.items()},
        changes=changes if tells else None,
    )


def _told(rows: "DataFrame", names: Mapping[str, str], kind: ChangeType) -> "DataFrame":
    return rows.select(*names.values()).toDF(*names).withColumn(CHANGE_TYPE, sf.lit(kind))


def _deleted(joined: "DataFrame", base: Scan, changed: Mapping[int, int]) -> dict[int, Positions]:
    """For the changed files that stay, which rows they have lost then, by their number."""
    staying = [i for i, count in changed.items() if may_stay(base.files[i], count)]
    if not staying or ROW_ID not in joined.columns:
        return {}
    found = joined.where(sf.col(_DIFFERS) & sf.col(_FILE).isin(staying)).select(_FILE, ROW_ID).toArrow()
    files, rows = (found.column(i).to_numpy() for i in range(2))
    lost = {i: deleted_from(base, base.files[i], rows[files == i].astype(np.int64)) for i in staying}
    return {i: positions for i, positions in lost.items() if positions is not None}


def _joined(new: "DataFrame", base: Scan, keys: list[str], read: "Callable[[Scan], DataFrame]") -> "DataFrame":
    """The frame's keys that the table has, with the number of the file and whether the rows differ.

    And with the position in the file, unless the table has a column that is called like it.
    """
    scan, _ = marked(base)
    place: list[str] = [_FILE]
    if ROW_ID not in scan.schema.names:
        # A row's id is its position, in files that begin with 0 and hold no ids.
        files = tuple(replace(file, base_row_id=0) for file in scan.files)
        schema = StructType((*scan.schema.fields, StructField(ROW_ID, "long")))
        scan = replace(scan, files=files, schema=schema, tracked={ROW_ID: ROW_ID})
        place.append(ROW_ID)
    old = read(scan)
    old = old.toDF(*(f"_o{i}" for i in range(len(base.schema.fields))), *place)
    on = reduce(lambda left, right: left & right, (sf.col(name) == sf.col(f"_o{name[2:]}") for name in keys))
    pairs = [(f"_o{i}", f"_c{i}") for i in range(len(base.schema.fields))]
    return old.join(new, on).select(*keys, *place, differ(old, new, pairs).alias(_DIFFERS))


def _check_table(joined: "DataFrame", keys: list[str], matching: Matching, matched: int) -> None:
    several = joined.groupBy(*keys).count().where("count > 1").select(*keys)
    if matched:
        repeated = several.count()
        refuse_repeated_in_table(matching, repeated, lambda: _examples(several, matching.key))


def _examples(rows: "DataFrame", key: Sequence[str]) -> str:
    found: list[Any] = rows.limit(EXAMPLES).collect()
    return as_examples([dict(zip(key, row, strict=True)) for row in found])


def measure(frame: "DataFrame", schema: StructType) -> Contents:
    """What the rows say without an order, computed by the session's executors."""

    # A plain function, because Spark asks for its argument count and wants no other callable.
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return tallied(batches, schema)

    with pickled_by_value():
        columns: list[Column] = [sf.col(f"`{name.replace('`', '``')}`") for name in schema.names]
        positional = frame.select(*columns).toDF(*(f"_c{i}" for i in range(len(columns))))
        reports = [TaskReport.from_bytes(bytes(row[0])) for row in positional.mapInArrow(run, REPORT_SCHEMA).collect()]
    bag = BagDigest(schema_to_arrow(schema))
    for report in reports:
        bag.merge(*report.lanes)
    null_counts = [sum(counts) for counts in zip(*(report.null_counts for report in reports), strict=True)]
    digest = bag.finish()
    return Contents(schema, digest.nrow, tuple(null_counts or [0] * len(schema.fields)), digest)
