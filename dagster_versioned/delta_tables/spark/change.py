"""Deleting, updating and merging rows of any Delta table with Spark.

One pass finds the rows and writes what they become; it reports which rows of which files are gone. They go by deletion
vectors where the table has them. Where it has not, a second pass copies what stays of the files: no condition is
evaluated twice, so nothing depends on its giving the same answer again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from dagster_versioned.delta.actions import Add, Cdc, Remove
from dagster_versioned.delta.commit.transaction import now_ms
from dagster_versioned.delta.commit.write_rules import Path
from dagster_versioned.delta.files import statistics
from dagster_versioned.delta.files.deletion_vectors import deleted_rows
from dagster_versioned.delta.files.predicate import And, Comparison, Predicate
from dagster_versioned.delta.paths import decode_path
from dagster_versioned.delta.schema.types import StructType
from dagster_versioned.delta_tables.dml import (
    SOURCE,
    TARGET,
    Change,
    Delete,
    FileChanges,
    Merge,
    MergeClause,
    MergeClauses,
    Positions,
    Target,
    ThinnedFile,
    Update,
    WhenMatched,
    WhenNotMatched,
    WhenNotMatchedBySource,
    assigned_paths,
    files_by_partitions,
    files_holding,
    is_default,
    refuse_twice_met,
    row_metrics,
    thinned_files,
)
from dagster_versioned.delta_tables.spark import task as delta_task
from dagster_versioned.delta_tables.spark.row_locations import FILE, PREFIX, ROW, ROW_ID
from dagster_versioned.delta_tables.spark.rules import CompletedRows, Values, completed, default_of
from dagster_versioned.delta_tables.spark.task import COPY, DELETE, INSERT, STAY, UPDATE, Report
from dagster_versioned.delta_tables.spark.write import (
    SparkWrites,
    cardinality,
    copied_columns,
    require_all,
    row_counts,
)
from dagster_versioned.engines.spark.assignment import Assignment, quoted, spelled
from dagster_versioned.engines.spark.session import kept
from dagster_versioned.engines.spark.types import spark_schema, stored_schema
from dagster_versioned.errors import InvalidInput

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_OURS, _THEIRS, _CLAUSE = f"{PREFIX}target", f"{PREFIX}source", f"{PREFIX}clause"


def changed(engine: SparkWrites, target: Target, files: Sequence[Add], change: Change) -> FileChanges:
    """See `dml.RowEngine.change`."""
    match change:
        case Delete():
            return _delete(engine, target, files, change)
        case Update():
            return _update(engine, target, files, change)
        case Merge():
            return _merge(engine, target, files, change)


# --- delete ----------------------------------------------------------------------------------------------------------


def _delete(engine: SparkWrites, target: Target, files: Sequence[Add], change: Delete) -> FileChanges:
    whole, partial = files_by_partitions(target, files, change.where)
    outcome = _gone(engine, target, partial, change.where) if partial else Report()
    if target.rules.change_feed and whole and outcome.gone:
        # A version with change data files says all it changed in them.
        outcome.cdcs += _gone(engine, target, whole, None).cdcs
    settled = _settled(engine, target, partial, outcome)
    counts = [_row_count(target, add) for add in whole]
    now = now_ms()
    return replace(
        settled.changes,
        removes=(*settled.changes.removes, *(add.removed(now) for add in whole)),
        metrics=row_metrics(change, deleted=settled.gone + sum(counts), copied=settled.copied),
    )


def _gone(engine: SparkWrites, target: Target, files: Sequence[Add], where: str | None) -> Report:
    """Report the rows of files that go, and write what the change feed says of them."""
    from pyspark.sql import functions as sf

    rows = _located(engine, target, files, where)
    columns = [column.alias(name) for name, column in _controls(target, sf.lit(DELETE)).items()]
    return engine.run(target, CompletedRows(rows.select(*columns), ()), change_feed=target.rules.change_feed)


# --- update ----------------------------------------------------------------------------------------------------------


def _update(engine: SparkWrites, target: Target, files: Sequence[Add], change: Update) -> FileChanges:
    from pyspark.sql import functions as sf

    rows = _located(engine, target, files, change.where, ids=True)
    assignments = _Expressions(target, assigned_paths(target, change.set))
    types = _types(rows, assignments.texts)
    values = {name: assignments.value(name, quoted(name), types) for name in target.snapshot.schema.names}
    given = {name: name in assignments.columns or name not in target.rules.generated for name in values}
    controls = {**_controls(target, sf.lit(UPDATE)), **_kept_ids(target)}
    made = completed(rows, target, Values(values, given), controls)
    outcome = engine.run(target, made, change_feed=target.rules.change_feed)
    settled = _settled(engine, target, files, outcome)
    metrics = row_metrics(change, updated=outcome.rows.get(UPDATE, 0), copied=settled.copied)
    return replace(settled.changes, metrics=metrics)


@dataclass(frozen=True)
class _Expressions:
    """SQL by the paths of what it gives a value to (`dml.assigned_paths`), in rows that are ``new`` or were there."""

    target: Target
    by_path: Mapping[Path, str]
    new: bool = False

    @property
    def columns(self) -> frozenset[str]:
        return frozenset(path[0] for path in self.by_path)

    @property
    def texts(self) -> list[str]:
        return [sql for sql in self.by_path.values() if not is_default(sql)]

    def value(self, name: str, before: "Column", types: Mapping[str, Any]) -> "Column":
        """What a column gets; ``before`` is what it has, null for a new row."""
        inner = {path[1:]: sql for path, sql in self.by_path.items() if path[0] == name}
        if not inner:
            return before
        wanted = spark_schema(self.target.snapshot.schema)[name].dataType
        return self._within(inner, before, wanted, name, types)

    def _within(
        self, given: Mapping[Path, str], before: "Column", wanted: Any, path: str, types: Mapping[str, Any]
    ) -> "Column":
        from pyspark.sql import functions as sf

        if () in given:
            sql = given[()]
            if is_default(sql):
                is_column = path in self.target.snapshot.schema.names
                return default_of(self.target, path) if is_column else sf.lit(None).cast(wanted)
            return Assignment().of(sf.expr(sql), types[sql], wanted, path)
        members: list[Column] = []
        for member in wanted.fields:
            inner = {rest[1:]: sql for rest, sql in given.items() if rest[0] == member.name}
            held = before.getField(member.name)
            if inner:
                held = self._within(inner, held, member.dataType, f"{path}.{member.name}", types)
            members.append(held.alias(member.name))
        return sf.struct(*members)


def _types(rows: "DataFrame", texts: Sequence[str]) -> dict[str, Any]:
    """The type of each expression over the rows, as Spark's analysis finds it. Raises what that raises."""
    from pyspark.sql import functions as sf

    distinct = list(dict.fromkeys(texts))
    if not distinct:
        return {}
    schema = rows.select(*(sf.expr(sql).alias(f"_{i}") for i, sql in enumerate(distinct))).schema
    return {sql: member.dataType for sql, member in zip(distinct, schema.fields, strict=True)}


# --- merge -----------------------------------------------------------------------------------------------------------


def _merge(engine: SparkWrites, target: Target, files: Sequence[Add], change: Merge) -> FileChanges:
    # What is counted is what is merged, even where it would not be the same if it were computed again.
    with kept(change.source) as source:
        plan = _MergePlan(engine, target, change, source)
        source_rows, candidates_ = plan.candidates(files)
        outcome = engine.run(
            target, plan.rows(candidates_), change_feed=target.rules.change_feed and plan.clauses.touch
        )
        if plan.clauses.matched and not plan.clauses.delete_alone:
            refuse_twice_met(_times_met(outcome), change.on)
    deleted = sum(len(np.unique(positions)) for positions in outcome.gone.values()) - outcome.rows.get(UPDATE, 0)
    settled = _settled(engine, target, candidates_, outcome)
    metrics = row_metrics(
        change,
        updated=outcome.rows.get(UPDATE, 0),
        deleted=deleted,
        copied=settled.copied,
        inserted=outcome.rows.get(INSERT, 0),
        source=source_rows,
    )
    return replace(settled.changes, metrics=metrics)


def _times_met(outcome: Report) -> Positions:
    """For each row of the table that met rows of the source, how many it met."""
    counts = [np.zeros(0, np.int64)]
    for number in outcome.gone.keys() | outcome.stay.keys():
        met = np.concatenate([places[number] for places in (outcome.gone, outcome.stay) if number in places])
        counts.append(np.unique(met, return_counts=True)[1])
    return np.concatenate(counts)


class _MergePlan:
    """A merge as one frame: the rows that a clause counts for, with what becomes of them."""

    def __init__(self, engine: SparkWrites, target: Target, change: Merge, source: "DataFrame") -> None:
        self._engine = engine
        self._target = target
        self._change = change
        self._source = source
        self._source_schema: StructType = stored_schema(source.schema, variants=True)
        self.clauses = MergeClauses.of(target, self._source_schema, change)

    def candidates(self, files: Sequence[Add]) -> tuple[int, list[Add]]:
        """How many rows the source has, and the files that may hold a row that meets one of them, by the source's
        smallest and largest values."""
        from pyspark.sql import functions as sf

        equal = [] if self.clauses.by_source or not files else self._equalities()
        bounds = [f(quoted(theirs)) for _, theirs in equal for f in (sf.min, sf.max)]
        counted: Any = self._source.agg(sf.count(sf.lit(1)), *bounds).collect()[0]
        count, row = int(counted[0]), tuple(counted[1:])
        if not equal:
            return count, list(files)
        predicates: list[Predicate] = []
        for place, (ours, _) in enumerate(equal):
            low, high = row[2 * place], row[2 * place + 1]
            if low is None:  # the source has nothing there that equals anything
                return count, []
            predicates += [Comparison((ours,), ">=", low, low), Comparison((ours,), "<=", high, high)]
        return count, files_holding(self._target, files, And(tuple(predicates)))

    def _equalities(self) -> list[tuple[str, str]]:
        """Columns of both sides that are equal in every pair, of types whose order everyone agrees on."""
        from dagster_versioned.engines.sql import Names

        schema = self._target.snapshot.schema
        try:
            pairs = Names({TARGET: schema, SOURCE: self._source_schema}).equalities(self._change.on, TARGET, SOURCE)
        except InvalidInput:  # what only Spark can evaluate
            return []
        plain = ("byte", "short", "integer", "long", "string", "date")
        return [
            (ours, theirs)
            for ours, theirs in pairs
            if schema.field(ours).type in plain
            and (schema.field(ours).type in plain[:4]) == (self._source_schema.field(theirs).type in plain[:4])
            and self._source_schema.field(theirs).type in plain
        ]

    def rows(self, files: Sequence[Add]) -> CompletedRows:
        from pyspark.sql import functions as sf

        joined = self._joined(files)
        clauses = self.clauses
        ours, theirs = sf.col(_OURS).isNotNull(), sf.col(_THEIRS).isNotNull()
        met = {WhenMatched: ours & theirs, WhenNotMatched: ~ours & theirs, WhenNotMatchedBySource: ours & ~theirs}
        thens = [*clauses.matched, *clauses.not_matched, *clauses.by_source]
        number: Any = sf.when(sf.lit(False), sf.lit(-1))
        for i, then in enumerate(thens):
            where = met[then.kind]
            if then.condition is not None:
                where = where & sf.expr(self._text(then, then.condition))
            number = number.when(where, sf.lit(i))
        if clauses.matched and (clauses.not_matched or clauses.by_source):
            # As in the reference: a row that meets several counts, even where no clause counts for it.
            number = number.when(ours & theirs, sf.lit(len(thens)))
        joined = joined.withColumn(_CLAUSE, number).where(sf.col(_CLAUSE).isNotNull())
        if clauses.delete_alone:  # each row once, whatever it meets
            deleted = joined.where(sf.col(_CLAUSE) == 0).dropDuplicates([FILE, ROW])
            joined = deleted.unionAll(joined.where(sf.col(_CLAUSE) != 0)) if len(thens) > 1 else deleted
        return self._completed(joined, thens)

    def _joined(self, files: Sequence[Add]) -> "DataFrame":
        from pyspark.sql import functions as sf

        ours = self._engine.located(self._target, files, ids=True).withColumn(_OURS, sf.lit(True)).alias(TARGET)
        theirs = self._source.withColumn(_THEIRS, sf.lit(True)).alias(SOURCE)
        on = sf.expr(self._change.on)
        if not self.clauses.touch:
            missing = theirs.join(ours, on, "left_anti")
            return missing.withColumn(_OURS, sf.lit(None).cast("boolean")).alias(SOURCE)
        if self.clauses.not_matched:
            return ours.join(theirs, on, "full_outer" if self.clauses.by_source else "right_outer")
        return ours.join(theirs, on, "left_outer" if self.clauses.by_source else "inner")

    def _completed(self, joined: "DataFrame", thens: Sequence[MergeClause]) -> CompletedRows:
        from pyspark.sql import functions as sf

        assigned = {
            i: _Expressions(
                self._target,
                {path: self._text(then, sql) for path, sql in then.assigned.items()},
                new=then.kind is WhenNotMatched,
            )
            for i, then in enumerate(thens)
            if then.assigned is not None
        }
        values = self._values(assigned, _types(joined, [text for each in assigned.values() for text in each.texts]))
        number = sf.col(_CLAUSE)
        operation: Any = sf.when(number == len(thens), sf.lit(STAY))
        for i, then in enumerate(thens):
            operation = operation.when(number == i, sf.lit(_operation(then)))
        controls = {delta_task.OPERATION: operation.cast("tinyint")}
        if self.clauses.touch:
            controls = {**_controls(self._target, operation), **_kept_ids(self._target)}
        return completed(joined, self._target, values, controls)

    def _values(self, assigned: "Mapping[int, _Expressions]", types: Mapping[str, Any]) -> Values:
        """What the clauses, by their numbers, give the columns of the table."""
        from pyspark.sql import functions as sf

        number = sf.col(_CLAUSE)
        values: dict[str, Column] = {}
        given: dict[str, Column | bool] = {}
        schema = self._target.snapshot.schema
        wanted = spark_schema(schema)
        for name in schema.names:
            nothing = sf.lit(None).cast(wanted[name].dataType)
            value: Any = sf.when(sf.lit(False), nothing)
            brings: set[int] = set()
            for i, each in assigned.items():
                made = self._value(each, name, nothing, types)
                if made is not None:
                    value = value.when(number == i, made)
                    brings.add(i)
            values[name] = value
            given[name] = True if len(brings) == len(assigned) else number.isin(*brings) if brings else False
        return Values(values, given)

    def _value(self, each: _Expressions, name: str, nothing: "Column", types: Mapping[str, Any]) -> "Column | None":
        """What rows get for a column; ``None`` where it is for the table to make."""
        rules = self._target.rules
        if name in each.columns:
            return each.value(name, nothing if each.new else _of(TARGET, name), types)
        if name in rules.generated or (each.new and name in rules.identity):
            return None
        return default_of(self._target, name) if each.new else _of(TARGET, name)

    def _text(self, then: MergeClause, sql: str) -> str:
        """The expression with the side before names that both have, where only one side can be meant."""
        if then.kind is WhenMatched or not self.clauses.touch or is_default(sql):
            return sql
        side = SOURCE if then.kind is WhenNotMatched else TARGET
        both = {name.casefold() for name in self._source_schema.names}
        both &= {name.casefold() for name in self._target.snapshot.schema.names}
        return _qualified(sql, side, both)


def _qualified(sql: str, side: str, names: set[str]) -> str:
    from sqlglot import exp, parse_one
    from sqlglot.errors import SqlglotError

    try:
        tree = parse_one(sql, read="spark")
    except SqlglotError:
        return sql  # Spark may know better
    bare = [column for column in tree.find_all(exp.Column) if not column.table and column.name.casefold() in names]
    for column in bare:
        column.set("table", exp.to_identifier(side))
    return tree.sql("spark") if bare else sql


def _operation(then: MergeClause) -> int:
    if then.kind is WhenNotMatched:
        return INSERT
    return DELETE if then.assigned is None else UPDATE


def _of(side: str, name: str) -> "Column":
    from pyspark.sql import functions as sf

    return sf.col(f"{side}.{spelled(name)}")


# --- what all changes share ------------------------------------------------------------------------------------------


def _located(
    engine: SparkWrites, target: Target, files: Sequence[Add], where: str | None, *, ids: bool = False
) -> "DataFrame":
    from pyspark.sql import functions as sf

    rows = engine.located(target, files, ids=ids).alias(TARGET)
    return rows if where is None else rows.where(sf.expr(where))


def _controls(target: Target, operation: "Column") -> "dict[str, Column]":
    """What a task is told of rows of the table: what becomes of them, where they lay, what the change feed says."""
    from pyspark.sql import functions as sf

    controls = {delta_task.OPERATION: operation.cast("tinyint"), delta_task.FILE: sf.col(FILE)}
    controls[delta_task.ROW] = sf.col(ROW)
    if target.rules.change_feed:
        names = target.snapshot.schema.names
        controls |= {delta_task.old(i): _of(TARGET, name) for i, name in enumerate(names)}
    return controls


def _kept_ids(target: Target) -> "dict[str, Column]":
    """Updated rows keep their ids; their commit version is that of this commit."""
    from pyspark.sql import functions as sf

    if target.rules.row_tracking is None:
        return {}
    return {delta_task.ROW_ID: sf.col(ROW_ID), delta_task.ROW_VERSION: sf.lit(None).cast("long")}


@dataclass(frozen=True)
class _ChangeOutcome:
    """The files after a change, and how many rows went or were copied."""

    changes: FileChanges
    gone: int
    copied: int


def _settled(engine: SparkWrites, target: Target, files: Sequence[Add], outcome: Report) -> _ChangeOutcome:
    """Take the rows that are gone out of their files: by deletion vectors, or by copying what stays."""
    now = now_ms()
    removes: list[Remove] = []
    thinned: list[ThinnedFile] = []
    partly: list[tuple[Add, Positions]] = []
    total = remaining = 0
    numbers = sorted(outcome.gone)
    counts = row_counts(target, [files[number] for number in numbers])
    for number, rows in zip(numbers, counts, strict=True):
        add, positions = files[number], outcome.gone[number]
        before = _deleted(target, add, rows)
        gone = np.unique(positions)
        total += len(gone)
        if len(gone) + len(before) == rows:
            removes.append(add.removed(now))
        elif target.rules.deletion_vectors:
            thinned.append(ThinnedFile(add, np.union1d(before, gone), rows))
        else:
            partly.append((add, gone))
            remaining += rows - len(before) - len(gone)
            removes.append(add.removed(now))
    moved = _copied(engine, target, partly, remaining) if partly else Report()
    left, lost = thinned_files(target.store, thinned, now)
    adds, removes = outcome.adds + moved.adds + left, removes + lost
    told_by_files = not (partly or thinned or outcome.rows.get(UPDATE))
    cdcs = _taken_back(target, outcome.cdcs) if told_by_files else outcome.cdcs
    changes = FileChanges(tuple(adds), tuple(removes), tuple(cdcs), {}, outcome.marks)
    return _ChangeOutcome(changes, total, moved.rows.get(COPY, 0))


def _taken_back(target: Target, cdcs: Sequence[Cdc]) -> list[Cdc]:
    """No change data files, for whole files say it themselves."""
    if cdcs:
        target.store.delete([decode_path(cdc.path) for cdc in cdcs])
    return []


def _copied(engine: SparkWrites, target: Target, files: Sequence[tuple[Add, Positions]], remaining: int) -> Report:
    """Write the ``remaining`` rows of files anew, without those at the positions."""
    stays = engine.located(target, [add for add, _ in files], ids=True).select(*copied_columns(target))
    left_out = {number: gone for number, (_, gone) in enumerate(files)}
    moved = engine.run(target, CompletedRows(stays, ()), gone=left_out)
    require_all(moved.rows.get(COPY, 0), remaining, target)
    return moved


def _row_count(target: Target, add: Add) -> int:
    """The rows of a file that are not deleted, by its statistics where these count rows."""
    recorded = statistics.num_records(add.stats)
    return (row_counts(target, [add])[0] if recorded is None else recorded) - cardinality(add)


def _deleted(target: Target, add: Add, rows: int) -> Positions:
    if add.deletion_vector is None:
        return np.zeros(0, np.int64)
    return deleted_rows(target.store, add.deletion_vector, rows, add.key)
