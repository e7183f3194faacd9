"""Merging Arrow rows into a Delta table: which rows meet, which clause counts, and what becomes of the files.

Of the files only the columns that the conditions need are read to find the pairs, by a hash join; of the files that a
clause touches, all columns then.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dagster_versioned.delta.actions import Add
from dagster_versioned.delta.files.predicate import And, Comparison, Constant, In, Predicate
from dagster_versioned.delta.paths import compute
from dagster_versioned.delta.schema.types import StructType, schema_to_arrow
from dagster_versioned.delta_tables.arrow.assignments import ResolvedAssignments
from dagster_versioned.delta_tables.arrow.rules import frame_schema, sided
from dagster_versioned.delta_tables.arrow.write import FileChange, FileRows, Write
from dagster_versioned.delta_tables.dml import (
    SOURCE,
    TARGET,
    Merge,
    MergeClause,
    MergeClauses,
    Positions,
    files_holding,
    refuse_twice_met,
)
from dagster_versioned.engines.conform import conform_all, stored_schema
from dagster_versioned.engines.expression import stored
from dagster_versioned.engines.frames import in_memory, stream
from dagster_versioned.engines.sql import Names, ResolvedExpression, is_true, pairs, table_of

JOIN_ROWS = 16_000_000
"""Rows of the table that are joined at once."""

_LISTED = 1000
_ROW = "#row"


def merge(write: Write, files: Sequence[Add], change: Merge) -> int:
    """Merge; see `dml.Merge` and `dml.RowEngine.change`; how many rows the source has. Raises `InvalidInput`."""
    source = source_table(change.source)
    plan = _Plan(write, stored_schema(source.schema), change)
    touched: list[FileChange] = []
    met = np.zeros(source.num_rows, np.bool_)
    for group in _groups(plan.candidates(files, source)):
        touched += plan.touched(group, source, met)
    write.settle(touched, plan.inserts(source, met))
    return source.num_rows


def source_table(rows: Any) -> pa.Table:
    """A frame in memory, in the canonical types."""
    schema = frame_schema(rows)
    table = in_memory(rows)
    batches = stream(rows)[1] if table is None else iter(table.to_batches())
    return pa.Table.from_batches(conform_all(batches, schema), schema_to_arrow(schema))


def _groups(files: Sequence[Add]) -> "list[list[Add]]":
    """The files in groups that are joined at once; sizes stand for rows, which statistics may not tell."""
    from dagster_versioned.delta.files.statistics import num_records

    groups: list[list[Add]] = [[]]
    rows = 0
    for add in files:
        count = num_records(add.stats) or 1_000_000
        if rows and rows + count > JOIN_ROWS:
            groups.append([])
            rows = 0
        groups[-1].append(add)
        rows += count
    return [group for group in groups if group]


@dataclass(frozen=True, slots=True)
class _Clause:
    """One clause: its condition, and what it assigns (``None``: it deletes)."""

    condition: ResolvedExpression | None
    assignments: ResolvedAssignments | None


class _Plan:
    """A merge, resolved against the columns of both sides."""

    def __init__(self, write: Write, source: StructType, change: Merge) -> None:
        schema = write.target.snapshot.schema
        clauses = MergeClauses.of(write.target, source, change)
        both = Names({TARGET: schema, SOURCE: source})
        self._write = write
        self._delete_alone = clauses.delete_alone
        self._on = both.condition(change.on)
        self._equal = both.equalities(change.on, TARGET, SOURCE)
        self._matched = [self._clause(then, both) for then in clauses.matched]
        self._not_matched = [self._clause(then, Names({SOURCE: source})) for then in clauses.not_matched]
        self._not_by_source = [self._clause(then, Names({TARGET: schema})) for then in clauses.by_source]

    def _clause(self, then: MergeClause, names: Names) -> _Clause:
        rules = self._write.rules
        return _Clause(
            None if then.condition is None else names.resolve(then.condition),
            None if then.assigned is None else ResolvedAssignments.of(rules, then.assigned, names),
        )

    # --- files

    def candidates(self, files: Sequence[Add], source: pa.Table) -> list[Add]:
        """The files that may hold a row that meets one of the source, or all where rows that meet none count, too."""
        if self._not_by_source or not files:
            return list(files)
        predicates = [
            predicate for target, theirs in self._equal if (predicate := _within(target, source[theirs])) is not None
        ]
        if not predicates:
            return list(files)
        return files_holding(self._write.target, files, And(tuple(predicates)))

    # --- pairs

    def touched(self, files: Sequence[Add], source: pa.Table, met: NDArray[np.bool_]) -> list[FileChange]:
        """What the clauses for rows of the table do to these files; marks the source's rows that met one."""
        columns = set(self._on.of(TARGET))
        for clause in (*self._matched, *self._not_by_source):
            columns |= clause.condition.of(TARGET) if clause.condition else set()
        looked = list(self._write.each(lambda add: self._write.look(add, columns), files))
        starts = np.cumsum([0, *(len(file.live) for file in looked)])
        rows = pa.concat_tables([file.rows for file in looked])
        live = np.concatenate([file.live for file in looked])
        theirs, ours = self._pairs(rows, live, source)
        met[theirs] = True
        clause, ours, theirs = self._matches(rows, ours, theirs, source)
        if self._not_by_source:
            lonely = live.copy()
            lonely[ours] = False  # of all pairs: whether a clause counts for them or not
            alone = np.flatnonzero(lonely)
            chosen = _chosen(self._not_by_source, {TARGET: rows.take(cast("Any", pa.array(alone)))}, len(alone))
            clause = np.concatenate([clause, np.where(chosen < 0, -1, chosen + len(self._matched))])
            ours = np.concatenate([ours, alone])
            theirs = np.concatenate([theirs, np.full(len(alone), -1)])
        keep = clause >= 0
        clause, ours, theirs = clause[keep], ours[keep], theirs[keep]
        order = np.argsort(ours, kind="stable")
        clause, ours, theirs = clause[order], ours[order], theirs[order]
        bounds = np.searchsorted(ours, starts)
        return [
            self._file(file, clause[start:stop], ours[start:stop] - starts[i], theirs[start:stop], source)
            for i, (file, start, stop) in enumerate(zip(looked, bounds[:-1], bounds[1:], strict=True))
            if start < stop
        ]

    def _pairs(self, rows: pa.Table, live: NDArray[np.bool_], source: pa.Table) -> tuple[Positions, Positions]:
        """Which row of the source meets which of the table."""
        target = sided(rows, self._on.of(TARGET), TARGET)
        target = target.append_column(f"{TARGET}{_ROW}", cast("Any", pa.array(np.arange(rows.num_rows))))
        if not live.all():
            target = target.filter(cast("Any", pa.array(live)))
        given = sided(source, self._on.of(SOURCE), SOURCE)
        given = given.append_column(f"{SOURCE}{_ROW}", cast("Any", pa.array(np.arange(source.num_rows))))
        found = pairs(target, given, self._on, {"theirs": f"{SOURCE}{_ROW}", "ours": f"{TARGET}{_ROW}"})
        return found["theirs"].to_numpy(), found["ours"].to_numpy()

    def _matches(
        self, rows: pa.Table, ours: Positions, theirs: Positions, source: pa.Table
    ) -> tuple[Positions, Positions, Positions]:
        """The clause of each pair (-1: none), and the pairs, in which each row of the table is once."""
        if not self._matched:
            return np.full(len(ours), -1), ours, theirs
        clause = self._chosen_of_pairs(rows, ours, theirs, source)
        only_matched = not self._not_matched and not self._not_by_source
        counted = ours[clause >= 0] if only_matched else ours
        if self._delete_alone:
            ours, first = np.unique(ours, return_index=True)
            return clause[first], ours, theirs[first]
        refuse_twice_met(np.unique(counted, return_counts=True)[1], self._on.text)
        return clause, ours, theirs

    def _chosen_of_pairs(self, rows: pa.Table, ours: Positions, theirs: Positions, source: pa.Table) -> Positions:
        conditions = [clause.condition for clause in self._matched if clause.condition is not None]
        if not conditions or self._matched[0].condition is None:
            return np.zeros(len(ours), np.int64)
        columns = {
            side: sorted({column for each in conditions for column in each.of(side)}) for side in (TARGET, SOURCE)
        }
        sides = {
            TARGET: rows.select(columns[TARGET]).take(cast("Any", pa.array(ours))),
            SOURCE: source.select(columns[SOURCE]).take(cast("Any", pa.array(theirs))),
        }
        return _chosen(self._matched, sides, len(ours))

    def _file(
        self, file: FileRows, clause: Positions, ours: Positions, theirs: Positions, source: pa.Table
    ) -> FileChange:
        clauses = [*self._matched, *self._not_by_source]
        deletes = np.isin(clause, [i for i, then in enumerate(clauses) if then.assignments is None])
        update, by, rows = ours[~deletes], clause[~deletes], theirs[~deletes]

        def renew(old: pa.Table) -> pa.Table:
            pieces: list[pa.Table] = []
            places: list[Positions] = []
            for number in np.unique(by):
                place = np.flatnonzero(by == number)
                assignments = clauses[int(number)].assignments
                assert assignments is not None
                sides = {TARGET: old if len(place) == len(by) else old.take(cast("Any", pa.array(place)))}
                if number < len(self._matched):
                    needed = sorted(assignments.columns_of(SOURCE))
                    sides[SOURCE] = source.select(needed).take(cast("Any", pa.array(rows[place])))
                pieces.append(assignments.merged(sides))
                places.append(place)
            if len(pieces) == 1:
                return pieces[0]
            # In the order of the old rows, beside which change data and row ids are put.
            back = np.argsort(np.concatenate(places), kind="stable")
            return pa.concat_tables(pieces).take(cast("Any", pa.array(back)))

        return FileChange(file.add, np.flatnonzero(file.live), len(file.live), ours[deletes], update, renew)

    def inserts(self, source: pa.Table, met: NDArray[np.bool_]) -> pa.Table | None:
        """The new rows, of the source's rows that met none."""
        if not self._not_matched or met.all():
            return None
        rows = source.filter(cast("Any", pa.array(~met)))
        chosen = _chosen(self._not_matched, {SOURCE: rows}, rows.num_rows)
        pieces: list[pa.Table] = []
        for number in np.unique(chosen[chosen >= 0]):
            assignments = self._not_matched[int(number)].assignments
            assert assignments is not None
            piece = rows if (chosen == number).all() else rows.filter(cast("Any", pa.array(chosen == number)))
            pieces.append(assignments.inserted({SOURCE: piece}, piece.num_rows))
        return pa.concat_tables(pieces) if pieces else None


def _chosen(clauses: Sequence[_Clause], sides: Mapping[str, pa.Table], count: int) -> Positions:
    """For each row the first clause whose condition is true, or -1."""
    chosen = np.full(count, -1, np.int64)
    for number, clause in enumerate(clauses):
        if clause.condition is None:
            chosen[chosen < 0] = number
            break
        rows = table_of({stored(side, name): sides[side][name] for side, name in clause.condition.columns}, count)
        chosen[(chosen < 0) & is_true(rows, clause.condition)] = number
    return chosen


def _within(column: str, values: Any) -> Predicate | None:
    """What being equal to one of the values says of a column; ``None`` for values that files are not judged by."""
    distinct = compute.unique(values.filter(compute.is_valid(values)))
    if not len(distinct):
        return Constant(False)
    kind = distinct.type
    if not (
        pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_date32(kind) or pa.types.is_timestamp(kind)
    ):
        return None
    try:
        if len(distinct) <= _LISTED:
            return In((column,), tuple(distinct.to_pylist()))
        extremes = compute.min_max(distinct)
        low, high = (cast("int | str | date | datetime", extremes[name].as_py()) for name in ("min", "max"))
    except (OverflowError, ValueError):  # a date or time in a year that Python has not
        return None
    return And((Comparison((column,), ">=", low, low), Comparison((column,), "<=", high, high)))
