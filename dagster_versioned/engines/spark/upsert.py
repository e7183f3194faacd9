"""Spark rows into a table, by key: one join of keys says which files change, one pass writes them anew."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as sf

from dagster_versioned.delta.log.change_feed import CHANGE_TYPE
from dagster_versioned.delta.schema.types import StructField, StructType
from dagster_versioned.engines.parts import RowsSummary, StagedParts
from dagster_versioned.engines.scan import ROW_ID, Scan
from dagster_versioned.engines.spark.assignment import quoted
from dagster_versioned.engines.spark.by_value import self_contained
from dagster_versioned.engines.spark.comparison import bad_keys, differ, examples
from dagster_versioned.engines.spark.executors import run_by_executors
from dagster_versioned.engines.spark.releases import positional, to_arrow
from dagster_versioned.engines.spark.session import kept
from dagster_versioned.engines.spark.worker import REPORT_SCHEMA, TaskReport, tallied, together
from dagster_versioned.engines.upsert import (
    Positions,
    RowMatch,
    Upsert,
    deleted_from,
    marked,
    may_stay,
    nothing,
    refuse_bad_rows,
    refuse_repeated_in_table,
    require_key,
)
from dagster_versioned.identity.digest import BagDigest

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_FILE, _MATCHED, _DIFFERS = "_file", "_matched", "_differs"


def merge_frames(
    frame: "DataFrame",
    base: Scan,
    matching: RowMatch,
    read: "Callable[[Scan], DataFrame]",
    write: "Callable[[DataFrame], StagedParts]",
    *,
    vectors: bool,
    writes_feed: bool,
) -> Upsert:
    """`Engine.merge`; the frame is persisted, and has the columns of the scan's schema by name."""
    require_key(base.schema, matching.key, matching.named)
    merging = _MergeSides(frame, base, matching, read)
    new = merging.new
    refuse_bad_rows(matching, bad_keys(new, merging.keys, matching.key))
    none = nothing(base.schema)
    if not base.files:
        written = write(new.toDF(*base.schema.names))
        return Upsert(frozenset(), none, written, written.contents.nrow, 0)
    unchanged = Upsert(frozenset(), none, StagedParts(none, ()), 0, 0)
    given = new.count() if matching.given is None else matching.given.nrow
    if not given and (matching.gone is None or matching.gone.isEmpty()) and not matching.rewrite:
        return unchanged
    with kept(merging.joined()) as joined:
        matches = _matches(joined, merging.keys, matching)
        deleted = _deleted(joined, base, matches.going) if vectors and not matching.rewrite else {}
        replaced = list(range(len(base.files))) if matching.rewrite else sorted(matches.going.keys() - deleted.keys())
        inserted = given - matches.matched
        if not replaced and not deleted and not inserted:
            return unchanged
        old = merging.stored(replaced) if replaced else None
        before = none if matching.rewrite else _before(merging, matches, deleted, old, base.schema)
        written = write(_written(merging, matches, replaced, old).toDF(*base.schema.names))
    return Upsert(
        frozenset(base.files[i].key for i in replaced),
        before,
        written,
        inserted,
        matches.updated,
        matches.removed,
        deleted={base.files[i].key: positions for i, positions in deleted.items()},
        changes=(lambda: write(_feed(merging, matches, base.schema.names))) if writes_feed else None,
    )


def _before(
    merging: "_MergeSides",
    matches: "_Matches",
    deleted: Mapping[int, Positions],
    old: "DataFrame | None",
    schema: StructType,
) -> RowsSummary:
    """What ``old``, the rows of files that are replaced, say with the rows that files lose which stay."""
    gone = [] if old is None else [old]
    if deleted:
        going = matches.joined.where(sf.col(_DIFFERS))
        gone.insert(0, merging.those(merging.stored(deleted), going, "left_semi"))
    return measure(_together(gone).toDF(*schema.names), schema) if gone else nothing(schema)


def _together(frames: "Iterable[DataFrame]") -> "DataFrame":
    return reduce(lambda left, right: left.unionAll(right), frames)


@dataclass(frozen=True)
class _Matches:
    """The rows of `_MergeSides.joined`, counted: those with a key of the frame, those of them that say something else,
    and those that go without one; by file, how many go."""

    joined: "DataFrame"
    matched: int
    updated: int
    removed: int
    going: Mapping[int, int]


def _matches(joined: "DataFrame", keys: list[str], matching: RowMatch) -> _Matches:
    """Raises `InvalidInput` where several rows of the table have a key of the frame."""
    by_file = joined.groupBy(_FILE).agg(
        sf.count_if(sf.col(_MATCHED)).alias("matched"),
        sf.count_if(sf.col(_MATCHED) & sf.col(_DIFFERS)).alias("changed"),
        sf.count_if(~sf.col(_MATCHED)).alias("alone"),
    )
    found = by_file.collect()
    matched, updated, removed = (sum(row[name] for row in found) for name in ("matched", "changed", "alone"))
    if matched:
        several = joined.where(_MATCHED).groupBy(*keys).count().where("count > 1").select(*keys)
        refuse_repeated_in_table(matching, several.count(), lambda: examples(several, keys, matching.key))
    going = {row[_FILE]: row["changed"] + row["alone"] for row in found if row["changed"] or row["alone"]}
    return _Matches(joined, matched, updated, removed, going)


def _written(
    merging: "_MergeSides", matches: _Matches, replaced: Sequence[int], old: "DataFrame | None"
) -> "DataFrame":
    """The rows of new files: what stays of ``old``, the rows of files that are replaced, and what the frame brings."""
    new, keys, joined = merging.new, merging.keys, matches.joined
    rows = new
    if matches.matched > matches.updated:  # What equals a row of a file that stays is in it already.
        there = joined.where(~sf.col(_DIFFERS))
        there = there.where(~sf.col(_FILE).isin(replaced)) if replaced else there
        rows = new.join(there.select(*keys), keys, "left_anti").select(*new.columns)
    return rows if old is None else merging.those(old, joined, "left_anti").unionByName(rows)


def _feed(merging: "_MergeSides", matches: _Matches, names: Sequence[str]) -> "DataFrame":
    """What was inserted, updated and removed, with a column that says which."""
    new, keys, joined = merging.new, merging.keys, matches.joined
    differing = joined.where(sf.col(_MATCHED) & sf.col(_DIFFERS))
    feed = {
        "update_postimage": new.join(differing.select(*keys), keys, "left_semi"),
        "insert": new.join(joined.where(sf.col(_MATCHED)).select(*keys), keys, "left_anti"),
    }
    if matches.going:
        old = merging.stored(matches.going)
        feed["update_preimage"] = merging.those(old, differing, "left_semi")
        feed["delete"] = merging.those(old, joined.where(~sf.col(_MATCHED)), "left_semi")
    return _together(
        rows.select(*new.columns).toDF(*names).withColumn(CHANGE_TYPE, sf.lit(kind)) for kind, rows in feed.items()
    )


class _MergeSides:
    """The rows of both sides, under positional names: a user's may hold dots and backticks, and both have the same.

    ``new`` is the frame, ``keys`` are its columns that identify rows, ``on`` those of units, ``ids`` both. Whether a
    row of the table goes depends on these alone.
    """

    def __init__(self, frame: "DataFrame", base: Scan, matching: RowMatch, read: "Callable[[Scan], DataFrame]") -> None:
        self._base, self._read, self._gone = base, read, matching.gone
        names = {name: f"_c{i}" for i, name in enumerate(base.schema.names)}
        self._id_names = tuple(dict.fromkeys((*matching.key, *matching.on)))
        self.keys, self.on, self.ids = (
            [names[name] for name in chosen] for chosen in (matching.key, matching.on, self._id_names)
        )
        self.new = frame.select(*(_as_stored(frame, field) for field in base.schema.fields)).toDF(*names.values())
        self._units: DataFrame | None = None
        if matching.on:
            gone = matching.gone.select(*map(quoted, matching.on)).toDF(*self.on)
            self._units = self.new.select(*self.on).unionAll(gone).distinct()

    def stored(self, numbers: Iterable[int]) -> "DataFrame":
        """The rows of some files."""
        files = tuple(self._base.files[i] for i in sorted(numbers))
        return self._read(replace(self._base, files=files)).toDF(*self.new.columns)

    def those(self, stored: "DataFrame", joined: "DataFrame", how: str) -> "DataFrame":
        """The rows of the table that are, or are not, among some of the joined ones."""
        others = joined.select(*(sf.col(name).alias(f"_of{name}") for name in self.ids))
        return stored.join(others, _all(sf.col(name).eqNullSafe(sf.col(f"_of{name}")) for name in self.ids), how)

    def joined(self) -> "DataFrame":
        """The table's rows that match, by their ids, with the number of the file, whether a row of the frame has the
        key, and whether that says something else.

        And with the position in the file, unless the table has a column that is called like it. Of files without such
        rows, only the ids are read.
        """
        scan, _ = marked(self._base)
        touched = self._touched()
        scan = replace(scan, files=tuple(scan.files[i] for i in touched))
        place = [_FILE]
        if ROW_ID not in scan.schema.names:
            # A row's id is its position, in files that begin with 0 and hold no ids.
            files = tuple(replace(file, base_row_id=0) for file in scan.files)
            schema = StructType((*scan.schema.fields, StructField(ROW_ID, "long")))
            scan = replace(scan, files=files, schema=schema, tracked={ROW_ID: ROW_ID})
            place.append(ROW_ID)
        pairs = [(f"_o{name}", name) for name in self.new.columns]
        old = self._read(scan).toDF(*(stored for stored, _ in pairs), *place)
        rows = old.join(
            self.new.withColumn(_MATCHED, sf.lit(True)),
            _all(sf.col(f"_o{name}") == sf.col(name) for name in self.keys),
            "inner" if self._units is None else "left",
        )
        matched = sf.col(_MATCHED).isNotNull()
        if self._units is not None:
            units = self._units.toDF(*(f"_u{name}" for name in self.on))
            rows = rows.join(units, _all(sf.col(f"_o{name}") == sf.col(f"_u{name}") for name in self.on), "left")
            rows = rows.where(matched | sf.col(f"_u{self.on[0]}").isNotNull())
        return rows.select(
            *(sf.col(f"_o{name}").alias(name) for name in self.ids),
            *place,
            matched.alias(_MATCHED),
            (~matched | differ(old, self.new, pairs)).alias(_DIFFERS),
        )

    def _touched(self) -> list[int]:
        """The numbers of the files with rows that match."""
        scan, _ = marked(self._base, self._id_names)
        stored = self._read(scan).toDF(*self.ids, _FILE)
        found = [stored.join(self.new.select(*self.keys), self.keys, "left_semi")]
        if self._units is not None:
            found.append(stored.join(self._units, self.on, "left_semi"))
        files = _together(rows.select(_FILE) for rows in found)
        return sorted(row[0] for row in files.distinct().collect())


def _all(conditions: "Iterable[Column]") -> "Column":
    return reduce(lambda left, right: left & right, conditions)


def _as_stored(frame: "DataFrame", field: StructField) -> "Column":
    """A column of the frame; the members of a struct, which go by place in Spark, in the order of the table."""
    value = quoted(field.name)
    held: Any = frame.schema[field.name].dataType
    if not isinstance(field.type, StructType) or held.fieldNames() == list(field.type.names):
        return value
    members = [value.getField(name).alias(name) for name in field.type.names]
    return sf.when(value.isNotNull(), sf.struct(*members)).alias(field.name)


def _deleted(joined: "DataFrame", base: Scan, changed: Mapping[int, int]) -> dict[int, Positions]:
    """For the changed files that stay, which rows they have lost then, by their number."""
    staying = [i for i, count in changed.items() if may_stay(base.files[i], count)]
    if not staying or ROW_ID not in joined.columns:
        return {}
    found = to_arrow(joined.where(sf.col(_DIFFERS) & sf.col(_FILE).isin(staying)).select(_FILE, ROW_ID))
    files, rows = (found.column(i).to_numpy() for i in range(2))
    lost = {i: deleted_from(base, base.files[i], rows[files == i].astype(np.int64)) for i in staying}
    return {i: positions for i, positions in lost.items() if positions is not None}


def measure(frame: "DataFrame", schema: StructType) -> RowsSummary:
    """What the rows say without an order, computed by the session's executors."""
    bag, null_counts = tallied_together(frame, schema)
    digest = bag.finish()
    return RowsSummary(schema, digest.nrow, null_counts, digest)


def tallied_together(
    frame: "DataFrame", schema: StructType, key: bytes | None = None
) -> tuple[BagDigest, tuple[int, ...]]:
    """The digest of the rows, under a key or not, and the nulls of each column, by the session's executors."""

    # A plain function, because Spark asks for its argument count and wants no other callable.
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return tallied(batches, schema, key)

    with run_by_executors(frame.sparkSession):
        by_place = positional(frame.select(*map(quoted, schema.names)))
        found = by_place.mapInArrow(self_contained(run), REPORT_SCHEMA).collect()
    return together((TaskReport.from_bytes(bytes(row[0])) for row in found), schema, key)
