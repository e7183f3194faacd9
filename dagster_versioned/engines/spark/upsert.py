"""Spark rows into a table, by key: one join of keys says which files change, one pass writes them anew."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as sf

from dagster_versioned.delta.schema import StructType, schema_to_arrow
from dagster_versioned.engines.increment import (
    EXAMPLES,
    Increment,
    as_examples,
    marked,
    nothing,
    refuse_bad_rows,
    refuse_repeated_in_table,
    require_key,
)
from dagster_versioned.engines.parts import Contents, Written
from dagster_versioned.engines.scan import Scan
from dagster_versioned.engines.spark.by_value import pickled_by_value
from dagster_versioned.engines.spark.row_diff import bad_keys, differ
from dagster_versioned.engines.spark.worker import REPORT_SCHEMA, TaskReport, tallied
from dagster_versioned.identity.digest import BagDigest

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_FILE, _DIFFERS = "_file", "_differs"


def merge_frames(
    frame: "DataFrame",
    base: Scan,
    key: Sequence[str],
    read: "Callable[[Scan], DataFrame]",
    write: "Callable[[DataFrame], Written]",
) -> Increment:
    """`Engine.merge`; the frame is persisted, and has the columns of the scan's schema by name."""
    require_key(base.schema, key)
    # Positional names: a user's may hold dots and backticks, and both sides have the same.
    names = {name: f"_c{i}" for i, name in enumerate(base.schema.names)}
    keys = [names[name] for name in key]
    new = frame.select(*(sf.col(f"`{name.replace('`', '``')}`") for name in names)).toDF(*names.values())
    refuse_bad_rows(key, *bad_keys(new, keys, key))
    joined = _joined(new, base, keys, read).persist()
    try:
        by_file = joined.groupBy(_FILE).agg(
            sf.count(sf.lit(1)).alias("matched"), sf.count_if(sf.col(_DIFFERS)).alias("changed")
        )
        found = by_file.collect()
        matched = sum(row["matched"] for row in found)
        _check_table(joined, keys, key, matched)
        replaced: list[int] = [row[_FILE] for row in found if row["changed"]]
        inserted = new.count() - matched
        if not replaced and not inserted:
            return Increment(frozenset(), nothing(base.schema), Written(nothing(base.schema), ()), 0, 0)
        # What equals a row of a file that stays is in it already.
        there = joined.where(~sf.col(_FILE).isin(replaced)) if replaced else joined
        rows = new.join(there.select(*keys), keys, "left_anti").select(*names.values())
        before = nothing(base.schema)
        if replaced:
            old = read(replace(base, files=tuple(base.files[i] for i in sorted(replaced)))).toDF(*names.values())
            before = measure(old.toDF(*names), base.schema)
            rows = old.join(new.select(*keys), keys, "left_anti").select(*names.values()).unionByName(rows)
        written = write(rows.toDF(*names))
    finally:
        joined.unpersist()
    return Increment(
        frozenset(base.files[i].key for i in replaced),
        before,
        written,
        inserted,
        sum(row["changed"] for row in found),
    )


def _joined(new: "DataFrame", base: Scan, keys: list[str], read: "Callable[[Scan], DataFrame]") -> "DataFrame":
    """The frame's keys that the table has, with the number of the file and whether the rows differ."""
    scan, _ = marked(base)
    old = read(scan)
    old = old.toDF(*(f"_o{i}" for i in range(len(old.columns) - 1)), _FILE)
    on = reduce(lambda left, right: left & right, (sf.col(name) == sf.col(f"_o{name[2:]}") for name in keys))
    pairs = [(f"_o{i}", f"_c{i}") for i in range(len(base.schema.fields))]
    return old.join(new, on).select(*keys, _FILE, differ(old, new, pairs).alias(_DIFFERS))


def _check_table(joined: "DataFrame", keys: list[str], key: Sequence[str], matched: int) -> None:
    several = joined.groupBy(*keys).count().where("count > 1").select(*keys)
    if matched:
        repeated = several.count()
        refuse_repeated_in_table(key, repeated, lambda: _examples(several, key))


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
