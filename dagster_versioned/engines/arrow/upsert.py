"""Arrow rows into a table, by key: only the keys of the table are read, and the files whose rows change."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dagster_versioned.delta.log.change_feed import CHANGE_TYPE, ChangeType
from dagster_versioned.engines.arrow.comparison import bad_keys, join_keys
from dagster_versioned.engines.arrow.scan import read_table
from dagster_versioned.engines.comparison import EXAMPLES
from dagster_versioned.engines.parts import RowsSummary, StagedParts
from dagster_versioned.engines.row_order import lanes_of
from dagster_versioned.engines.scan import Scan
from dagster_versioned.engines.upsert import (
    Positions,
    RowMatch,
    Upsert,
    deleted_from,
    marked,
    refuse_bad_rows,
    refuse_repeated_in_table,
    require_key,
    summed,
)
from dagster_versioned.identity.digest import fresh_key

Rows = NDArray[np.int64]


_ALONE = -1
"""In the place of the frame's row, for a row of the table that goes although none has its key."""


@dataclass(frozen=True)
class _Matches:
    """The table's rows that go unless they stay the same, sorted: the file, the position there, and the frame's row."""

    file: Rows
    position: Rows
    row: Rows

    def of(self, file: int) -> "tuple[Rows, Rows]":
        start, stop = np.searchsorted(self.file, (file, file + 1))
        return self.position[start:stop], self.row[start:stop]


def merge_tables(
    frame: pa.Table,
    base: Scan,
    matching: RowMatch,
    write: Callable[[pa.Table], StagedParts],
    measure: Callable[[pa.Table], RowsSummary],
    *,
    vectors: bool,
    writes_feed: bool,
) -> Upsert:
    """`Engine.merge` of a table in the canonical types of the scan's schema."""
    require_key(base.schema, matching.key, matching.named)
    keys = join_keys(frame, matching.key)
    refuse_bad_rows(matching, bad_keys(frame.select(list(matching.key)), keys))
    matches = _matches(frame, keys, base, matching)
    remaining: list[pa.Table] = []
    before: list[RowsSummary] = []
    replaced: set[str] = set()
    deleted: dict[str, Positions] = {}
    updated: list[Rows] = []
    removed = 0
    feed: list[pa.Table] = []
    touched: list[int] = np.flatnonzero(np.bincount(matches.file)).tolist()
    for file in range(len(base.files)) if matching.rewrite else touched:
        old = read_table(replace(base, files=(base.files[file],)))
        positions, rows = matches.of(file)
        alone = rows == _ALONE
        changes_to = ~alone
        changes_to[~alone] = _differ(_taken(old, positions[~alone]), _taken(frame, rows[~alone]))
        if not (matching.rewrite or alone.any() or changes_to.any()):
            continue
        updated.append(rows[changes_to])
        removed += int(alone.sum())
        gone = positions[alone | changes_to]
        if writes_feed:
            feed += [feed_rows(_taken(old, positions[changes_to]), "update_preimage")]
            feed += [feed_rows(_taken(old, positions[alone]), "delete")]
        key_of = base.files[file].key
        lost = deleted_from(base, base.files[file], gone, old.num_rows) if vectors and not matching.rewrite else None
        if lost is not None:
            deleted[key_of] = lost
            before.append(measure(_taken(old, gone)))
            continue
        stay = np.ones(old.num_rows, np.bool_)
        stay[gone] = False
        remaining.append(old.filter(mask_of(stay)))
        before.append(measure(old))
        replaced.add(key_of)
    changed = np.concatenate(updated) if updated else np.empty(0, np.int64)
    comes = np.ones(frame.num_rows, np.bool_)
    comes[matches.row[matches.row != _ALONE]] = False
    new = np.flatnonzero(comes)
    comes[changed] = True

    def changes() -> StagedParts:
        come = [feed_rows(_taken(frame, changed), "update_postimage"), feed_rows(_taken(frame, new), "insert")]
        return write(pa.concat_tables([*feed, *come]))

    return Upsert(
        frozenset(replaced),
        summed(base.schema, ((contents, 1) for contents in before)),
        # As it is, if it can be: then it is known already what it says.
        write(frame if comes.all() and not remaining else pa.concat_tables([*remaining, frame.filter(mask_of(comes))])),
        inserted=len(new),
        updated=len(changed),
        removed=removed,
        deleted=deleted,
        changes=changes if writes_feed else None,
    )


def feed_rows(rows: pa.Table, kind: ChangeType) -> pa.Table:
    """The rows with the column that says what became of them."""
    return rows.append_column(CHANGE_TYPE, cast("Any", pa.repeat(kind, rows.num_rows)))


def _matches(frame: pa.Table, keys: pa.Table, base: Scan, matching: RowMatch) -> _Matches:
    gone: pa.Table | None = matching.gone
    if not frame.num_rows and (gone is None or not gone.num_rows):
        return _Matches(*[np.empty(0, np.int64)] * 3)
    scan, file = marked(base, tuple(dict.fromkeys((*matching.key, *matching.on))))
    stored = read_table(scan)
    files: Rows = stored.column(file).to_numpy().astype(np.int64)
    # Files come one after the other, so that a row's position in its own is counted from where that begins.
    positions = np.arange(len(files)) - np.searchsorted(files, files)
    numbers: Any = pa.array(np.arange(len(files)))
    old = join_keys(stored, matching.key).append_column("old", numbers)
    new = keys.append_column("row", cast("Any", pa.array(np.arange(keys.num_rows))))
    joined = old.join(new, keys.column_names, join_type="inner").select(["old", "row"]).sort_by("old")
    found: Rows = joined["old"].to_numpy()
    rows: Rows = joined["row"].to_numpy()
    _check_table(frame, rows, matching)
    if matching.on:
        units = pa.concat_tables(join_keys(side, matching.on) for side in (frame, gone) if side is not None)
        of_units = join_keys(stored, matching.on).append_column("old", numbers)
        going = of_units.join(units, units.column_names, join_type="left semi")["old"].to_numpy()
        alone = np.zeros(len(files), np.bool_)
        alone[going] = True
        alone[found] = False
        alone = np.flatnonzero(alone)
        order = np.argsort(found := np.concatenate([found, alone]))
        found, rows = found[order], np.concatenate([rows, np.full(len(alone), _ALONE)])[order]
    return _Matches(files[found], positions[found], rows)


def _check_table(frame: pa.Table, matched: Rows, matching: RowMatch) -> None:
    repeated = np.flatnonzero(np.bincount(matched) > 1)
    refuse_repeated_in_table(
        matching,
        len(repeated),
        lambda: _taken(frame.select(list(matching.key)), repeated[:EXAMPLES]).to_pylist(),
    )


def _differ(old: pa.Table, new: pa.Table) -> NDArray[np.bool_]:
    """Which rows of two tables of equal length and schema say something else, whoever made them."""
    key = fresh_key()
    lanes = zip(lanes_of(old, key), lanes_of(new, key), strict=True)
    first, second = (of_old.to_numpy() != of_new.to_numpy() for of_old, of_new in lanes)
    return first | second


def mask_of(rows: NDArray[np.bool_]) -> Any:
    """As what a table is filtered by."""
    return pa.array(rows)


def _taken(table: pa.Table, rows: Rows) -> pa.Table:
    return table.take(cast("Any", pa.array(rows)))
