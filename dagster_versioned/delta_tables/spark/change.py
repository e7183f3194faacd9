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
from dagster_versioned.delta.files import statistics
from dagster_versioned.delta.files.deletion_vectors import deleted_rows, with_vector, write_vectors
from dagster_versioned.delta.files.file_actions import adds_table
from dagster_versioned.delta.files.predicate import And, Comparison, Predicate, parse_predicate
from dagster_versioned.delta.files.skipping import candidates, certain
from dagster_versioned.delta.paths import decode_path
from dagster_versioned.delta.schema.types import StructType
from dagster_versioned.delta_tables.dml import (
    SOURCE,
    TARGET,
    Change,
    Clause,
    Delete,
    FileChanges,
    Merge,
    Target,
    Update,
    WhenMatched,
    WhenNotMatched,
    WhenNotMatchedBySource,
)
from dagster_versioned.delta_tables.spark import task as delta_task
from dagster_versioned.delta_tables.spark.row_locations import FILE, PREFIX, ROW, ROW_ID
from dagster_versioned.delta_tables.spark.rules import (
    ABSENT,
    Completed,
    Values,
    column_of,
    completed,
    default_of,
)
from dagster_versioned.delta_tables.spark.task import COPY, DELETE, INSERT, STAY, UPDATE, Positions
from dagster_versioned.delta_tables.spark.write import (
    Outcome,
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
        case Delete(where=where):
            return _delete(engine, target, files, where)
        case Update():
            return _update(engine, target, files, change)
        case Merge():
            return _merge(engine, target, files, change)


# --- delete ----------------------------------------------------------------------------------------------------------


def _delete(engine: SparkWrites, target: Target, files: Sequence[Add], where: str | None) -> FileChanges:
    from pyspark.sql import functions as sf

    whole, partial = _by_partitions(target, files, where)
    outcome = Outcome()
    if partial and where is not None:
        rows = engine.located(target, partial).alias(TARGET).where(sf.expr(where))
        columns = [sf.lit(DELETE).cast("tinyint").alias(delta_task.OPERATION), *_place()]
        if target.rules.change_feed:
            columns += _old(target)
        outcome = engine.run(target, Completed(rows.select(*columns), ()), change_feed=target.rules.change_feed)
    if target.rules.change_feed and whole and outcome.gone:
        # A version with change data files says all it changed in them.
        rows = engine.located(target, whole)
        columns = [sf.lit(DELETE).cast("tinyint").alias(delta_task.OPERATION), *_place(), *_old(target)]
        outcome.cdcs += engine.run(target, Completed(rows.select(*columns), ()), change_feed=True).cdcs
    settled = _settled(engine, target, partial, outcome)
    counts = [_row_count(target, add) for add in whole]
    now = now_ms()
    return replace(
        settled.changes,
        removes=(*settled.changes.removes, *(add.removed(now) for add in whole)),
        metrics={"numDeletedRows": settled.gone + sum(counts), "numCopiedRows": settled.copied},
    )


def _by_partitions(target: Target, files: Sequence[Add], where: str | None) -> tuple[list[Add], list[Add]]:
    """The files of which every row matches by their partition, and the others."""
    if where is None:
        return list(files), []
    snapshot = target.snapshot
    predicate = parse_predicate(where, snapshot.schema)
    table = certain(adds_table(files), predicate, snapshot.schema, target.rules.mapping, snapshot.partition_columns)
    keys = frozenset(table["key"].to_pylist())
    return [add for add in files if add.key in keys], [add for add in files if add.key not in keys]


# --- update ----------------------------------------------------------------------------------------------------------


def _update(engine: SparkWrites, target: Target, files: Sequence[Add], change: Update) -> FileChanges:
    from pyspark.sql import functions as sf

    rows = engine.located(target, files, ids=True).alias(TARGET)
    if change.where is not None:
        rows = rows.where(sf.expr(change.where))
    assignments = _Assignments.of_update(target, change.set)
    types = _types(rows, assignments.texts)
    values = {name: assignments.value(name, quoted(name), types) for name in target.snapshot.schema.names}
    given = {name: name in assignments.columns or name not in target.rules.generated for name in values}
    controls = {
        delta_task.OPERATION: sf.lit(UPDATE).cast("tinyint"),
        delta_task.FILE: sf.col(FILE),
        delta_task.ROW: sf.col(ROW),
        **_kept_ids(target, sf.col(ROW_ID)),
    }
    if target.rules.change_feed:
        controls |= {delta_task.old(i): quoted(name) for i, name in enumerate(target.snapshot.schema.names)}
    made = completed(rows, target, Values(values, given), controls)
    outcome = engine.run(target, made, change_feed=target.rules.change_feed)
    settled = _settled(engine, target, files, outcome)
    metrics = {"numUpdatedRows": outcome.rows.get(UPDATE, 0), "numCopiedRows": settled.copied}
    return replace(settled.changes, metrics=metrics)


@dataclass(frozen=True)
class _Assignments:
    """SQL by the paths of what it gives a value to; those of one column are all of it, or of its fields."""

    target: Target
    by_path: Mapping[tuple[str, ...], str]

    @classmethod
    def of_update(cls, target: Target, given: Mapping[str, str]) -> "_Assignments":
        """Raises `InvalidInput` as `of`, and for identity columns."""
        assignments = cls.of(target, given)
        for name in assignments.columns & target.rules.identity.keys():
            raise InvalidInput(f"The identity column {name!r} cannot be updated. Nothing was written.")
        return assignments

    @classmethod
    def of(cls, target: Target, given: Mapping[str, str]) -> "_Assignments":
        """Raises `InvalidInput` for columns that there are not, or that are assigned twice."""
        found: dict[tuple[str, ...], str] = {}
        for name, sql in given.items():
            path = column_of(target.snapshot.schema, name)
            if any(path[: len(other)] == other or other[: len(path)] == path for other in found):
                raise InvalidInput(f"{'.'.join(path)!r} is assigned twice. Nothing was written.")
            found[path] = sql
        return cls(target, found)

    @property
    def columns(self) -> frozenset[str]:
        return frozenset(path[0] for path in self.by_path)

    @property
    def texts(self) -> list[str]:
        return [sql for sql in self.by_path.values() if not _is_default(sql)]

    def value(self, name: str, before: "Column", types: Mapping[str, Any]) -> "Column":
        """What a column gets; ``before`` is what it has, null for a new row."""
        inner = {path[1:]: sql for path, sql in self.by_path.items() if path[0] == name}
        if not inner:
            return before
        wanted = spark_schema(self.target.snapshot.schema)[name].dataType
        return self._within(inner, before, wanted, name, types)

    def _within(
        self, given: Mapping[tuple[str, ...], str], before: "Column", wanted: Any, path: str, types: Mapping[str, Any]
    ) -> "Column":
        from pyspark.sql import functions as sf

        if () in given:
            sql = given[()]
            if _is_default(sql):
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


def _is_default(sql: str) -> bool:
    return sql.strip().upper() == ABSENT


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
        outcome = engine.run(target, plan.rows(candidates_), change_feed=target.rules.change_feed and plan.touches)
        _refuse_twice(outcome, change, plan)
    deleted = sum(len(np.unique(positions)) for positions in outcome.gone.values()) - outcome.rows.get(UPDATE, 0)
    settled = _settled(engine, target, candidates_, outcome)
    metrics = {
        "numSourceRows": source_rows,
        "numTargetRowsInserted": outcome.rows.get(INSERT, 0),
        "numTargetRowsUpdated": outcome.rows.get(UPDATE, 0),
        "numTargetRowsDeleted": deleted,
        "numTargetRowsCopied": settled.copied,
    }
    return replace(settled.changes, metrics=metrics)


def _refuse_twice(outcome: Outcome, change: Merge, plan: "_MergePlan") -> None:
    """Raise `InvalidInput` where a row of the table met several rows of the source and it matters."""
    if plan.deletes_alone or not plan.matched:
        return
    rows = most = 0
    for number in outcome.gone.keys() | outcome.stay.keys():
        nothing = np.zeros(0, np.int64)
        met = np.concatenate([outcome.gone.get(number, nothing), outcome.stay.get(number, nothing)])
        counts = np.unique(met, return_counts=True)[1]
        rows += int((counts > 1).sum())
        most = max(most, int(counts.max(initial=0)))
    if rows:
        raise InvalidInput(
            f"{rows} rows of the table meet more than one row of the source (at most {most}), so what they are to"
            f" become is not clear: {change.on}. Nothing was written. Make the source's rows unique by what they are"
            " matched with."
        )


class _MergePlan:
    """A merge as one frame: the rows that a clause counts for, with what becomes of them."""

    def __init__(self, engine: SparkWrites, target: Target, change: Merge, source: "DataFrame") -> None:
        self._engine = engine
        self._target = target
        self._change = change
        self._source = source
        self._source_schema: StructType = stored_schema(source.schema, variants=True)
        self.matched = [one for one in change.clauses if isinstance(one, WhenMatched)]
        self.not_matched = [one for one in change.clauses if isinstance(one, WhenNotMatched)]
        self.by_source = [one for one in change.clauses if isinstance(one, WhenNotMatchedBySource)]

    @property
    def touches(self) -> bool:
        """Whether rows of the table may change."""
        return bool(self.matched or self.by_source)

    @property
    def deletes_alone(self) -> bool:
        """Whether all that rows that match can do is to be deleted, for which it does not matter how many they meet."""
        return len(self.matched) == 1 and self.matched[0].then == "delete" and self.matched[0].condition is None

    def candidates(self, files: Sequence[Add]) -> tuple[int, list[Add]]:
        """How many rows the source has, and the files that may hold a row that meets one of them, by the source's
        smallest and largest values."""
        from pyspark.sql import functions as sf

        equal = [] if self.by_source or not files else self._equalities()
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
        snapshot = self._target.snapshot
        table = candidates(
            adds_table(files),
            And(tuple(predicates)),
            snapshot.schema,
            self._target.rules.mapping,
            snapshot.partition_columns,
        )
        keys = frozenset(table["key"].to_pylist())
        return count, [add for add in files if add.key in keys]

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

    def rows(self, files: Sequence[Add]) -> Completed:
        from pyspark.sql import functions as sf

        joined = self._joined(files)
        clauses: list[Clause] = [*self.matched, *self.not_matched, *self.by_source]
        ours, theirs = sf.col(_OURS).isNotNull(), sf.col(_THEIRS).isNotNull()
        number: Any = sf.when(sf.lit(False), sf.lit(-1))
        for i, clause in enumerate(clauses):
            where = (
                ours & theirs
                if isinstance(clause, WhenMatched)
                else ~ours & theirs
                if isinstance(clause, WhenNotMatched)
                else ours & ~theirs
            )
            if clause.condition is not None:
                where = where & sf.expr(self._text(clause, clause.condition))
            number = number.when(where, sf.lit(i))
        if self.matched and (self.not_matched or self.by_source):
            # As in the reference: a row that meets several counts, even where no clause counts for it.
            number = number.when(ours & theirs, sf.lit(len(clauses)))
        joined = joined.withColumn(_CLAUSE, number).where(sf.col(_CLAUSE).isNotNull())
        if self.deletes_alone:
            joined = self._once(joined, clauses.index(self.matched[0]))
        return self._completed(joined, clauses)

    def _joined(self, files: Sequence[Add]) -> "DataFrame":
        from pyspark.sql import functions as sf

        ours = self._engine.located(self._target, files, ids=True).withColumn(_OURS, sf.lit(True)).alias(TARGET)
        theirs = self._source.withColumn(_THEIRS, sf.lit(True)).alias(SOURCE)
        on = sf.expr(self._change.on)
        if not self.touches:
            missing = theirs.join(ours, on, "left_anti")
            return missing.withColumn(_OURS, sf.lit(None).cast("boolean")).alias(SOURCE)
        if self.not_matched:
            return ours.join(theirs, on, "full_outer" if self.by_source else "right_outer")
        return ours.join(theirs, on, "left_outer" if self.by_source else "inner")

    def _once(self, joined: "DataFrame", clause: int) -> "DataFrame":
        """Rows that are deleted once each, whatever they meet."""
        from pyspark.sql import functions as sf

        deleted = joined.where(sf.col(_CLAUSE) == clause).dropDuplicates([FILE, ROW])
        return deleted.unionAll(joined.where(sf.col(_CLAUSE) != clause)) if len(self._change.clauses) > 1 else deleted

    def _completed(self, joined: "DataFrame", clauses: Sequence[Clause]) -> Completed:
        from pyspark.sql import functions as sf

        schema = self._target.snapshot.schema
        operations = [_operation(clause) for clause in clauses]
        assignments = {
            i: self._assignments(clause) for i, clause in enumerate(clauses) if operations[i] in (INSERT, UPDATE)
        }
        types = _types(joined, [text for one in assignments.values() for text in one.texts])
        number = sf.col(_CLAUSE)
        values: dict[str, Column] = {}
        given: dict[str, Column | bool] = {}
        wanted = spark_schema(schema)
        for name in schema.names:
            nothing = sf.lit(None).cast(wanted[name].dataType)
            value: Any = sf.when(sf.lit(False), nothing)
            brings: set[int] = set()
            for i, one in assignments.items():
                held = nothing if operations[i] == INSERT else _of(TARGET, name)
                if operations[i] == INSERT and name not in one.columns:
                    made = self._target.rules.generated.keys() | self._target.rules.identity.keys()
                    if name not in made:
                        value = value.when(number == i, default_of(self._target, name))
                        brings.add(i)
                    continue
                value = value.when(number == i, one.value(name, held, types))
                if name in one.columns or name not in self._target.rules.generated:
                    brings.add(i)
            values[name] = value
            given[name] = True if len(brings) == len(assignments) else number.isin(*brings) if brings else False
        operation: Any = sf.when(number == len(clauses), sf.lit(STAY))
        for i, one in enumerate(operations):
            operation = operation.when(number == i, sf.lit(one))
        controls: dict[str, Column] = {delta_task.OPERATION: operation.cast("tinyint")}
        if self.touches:
            controls |= {delta_task.FILE: sf.col(FILE), delta_task.ROW: sf.col(ROW)}
            controls |= _kept_ids(self._target, sf.col(ROW_ID) if self._target.rules.row_tracking else None)
            if self._target.rules.change_feed:
                controls |= {delta_task.old(i): _of(TARGET, name) for i, name in enumerate(schema.names)}
        return completed(joined, self._target, Values(values, given), controls)

    def _assignments(self, clause: Clause) -> _Assignments:
        if clause.then == "all":
            known = {name.casefold(): name for name in self._source_schema.names}
            every = {
                spelled(name) if "." in name else name: f"{SOURCE}.{spelled(known[name.casefold()])}"
                for name in self._target.snapshot.schema.names
                if name.casefold() in known
            }
            found = _Assignments.of(self._target, every)
        else:
            if not isinstance(clause.then, Mapping):
                raise InvalidInput(f"A clause cannot do {clause.then!r}. Nothing was written.")
            texts = {name: sql if _is_default(sql) else self._text(clause, sql) for name, sql in clause.then.items()}
            if not isinstance(clause, WhenNotMatched):
                return _Assignments.of_update(self._target, texts)
            found = _Assignments.of(self._target, texts)
        identity = self._target.rules.identity
        refused = [name for name in found.columns if name in identity and not identity[name].allow_explicit]
        if refused and isinstance(clause, WhenNotMatched):
            raise InvalidInput(
                f"The identity column {refused[0]!r} is always generated, so rows cannot bring values for it. Nothing"
                " was written. Leave the column out."
            )
        if not isinstance(clause, WhenNotMatched):
            return _Assignments(
                self._target, {path: sql for path, sql in found.by_path.items() if path[0] not in identity}
            )
        return found

    def _text(self, clause: Clause, sql: str) -> str:
        """The expression with the side before names that both have, where only one side can be meant."""
        if isinstance(clause, WhenMatched) or not self.touches:
            return sql
        side = SOURCE if isinstance(clause, WhenNotMatched) else TARGET
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


def _operation(clause: Clause) -> int:
    if isinstance(clause, WhenNotMatched):
        return INSERT
    return DELETE if clause.then == "delete" else UPDATE


def _of(side: str, name: str) -> "Column":
    from pyspark.sql import functions as sf

    return sf.col(f"{side}.{spelled(name)}")


# --- what all changes share ------------------------------------------------------------------------------------------


def _place() -> "list[Column]":
    from pyspark.sql import functions as sf

    return [sf.col(FILE).alias(delta_task.FILE), sf.col(ROW).alias(delta_task.ROW)]


def _old(target: Target) -> "list[Column]":
    return [quoted(name).alias(delta_task.old(i)) for i, name in enumerate(target.snapshot.schema.names)]


def _kept_ids(target: Target, row_id: "Column | None") -> "dict[str, Column]":
    """Updated rows keep their ids; their commit version is that of this commit."""
    from pyspark.sql import functions as sf

    if target.rules.row_tracking is None or row_id is None:
        return {}
    return {delta_task.ROW_ID: row_id, delta_task.ROW_VERSION: sf.lit(None).cast("long")}


@dataclass(frozen=True)
class _Settled:
    """The files after a change, and how many rows went or were copied."""

    changes: FileChanges
    gone: int
    copied: int


def _settled(engine: SparkWrites, target: Target, files: Sequence[Add], outcome: Outcome) -> _Settled:
    """Take the rows that are gone out of their files: by deletion vectors, or by copying what stays."""
    now = now_ms()
    removes: list[Remove] = []
    adds = list(outcome.adds)
    vectors: dict[str, tuple[Add, Positions, int]] = {}
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
            vectors[add.key] = add, np.union1d(before, gone), rows
        else:
            partly.append((add, gone))
            remaining += rows - len(before) - len(gone)
            removes.append(add.removed(now))
    copied = 0
    if partly:
        stays = engine.located(target, [add for add, _ in partly], ids=True).select(*copied_columns(target))
        left_out = {number: gone for number, (_, gone) in enumerate(partly)}
        moved = engine.run(target, Completed(stays, ()), gone=left_out)
        adds += moved.adds
        copied = moved.rows.get(COPY, 0)
        require_all(copied, remaining, target)
    stored = write_vectors(target.store, {key: gone for key, (_, gone, _) in vectors.items()})
    for key, (add, _, rows) in vectors.items():
        removes.append(add.removed(now))
        adds.append(with_vector(add, stored[key], rows))
    cdcs = outcome.cdcs
    if cdcs and not (partly or vectors or outcome.rows.get(UPDATE)):
        # Whole files say it themselves.
        target.store.delete([_cdc_key(cdc) for cdc in cdcs])
        cdcs = []
    return _Settled(FileChanges(tuple(adds), tuple(removes), tuple(cdcs), {}, outcome.marks), total, copied)


def _cdc_key(cdc: Cdc) -> str:
    return decode_path(cdc.path)


def _row_count(target: Target, add: Add) -> int:
    """The rows of a file that are not deleted, by its statistics where these count rows."""
    recorded = statistics.num_records(add.stats)
    return (row_counts(target, [add])[0] if recorded is None else recorded) - cardinality(add)


def _deleted(target: Target, add: Add, rows: int) -> Positions:
    if add.deletion_vector is None:
        return np.zeros(0, np.int64)
    return deleted_rows(target.store, add.deletion_vector, rows, add.key)
