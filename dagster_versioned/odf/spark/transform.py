"""SQL transforms on Spark: what a run appends to its output, as a plan over the inputs' events.

A query that makes each row of one row runs over the new events alone, and what an event does (append, retract, correct)
is carried through. Every other query runs over what the inputs' events come to (where it groups, over the groups that
new events are of), and the result is compared with what the output's events come to: rows that are gone are retracted,
those that are new appended. So rows that came late correct what was recorded before, and nothing but events is kept.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, Self, cast

from pyspark.sql import functions as sf

from dagster_versioned.engines.spark.assignment import quoted as column
from dagster_versioned.engines.spark.catalyst import PlanBuilder, attribute_id, children, frame_of, items, plan_of
from dagster_versioned.errors import InvalidInput
from dagster_versioned.odf.event_sql import EVENT_TIME, EVENTS, Operation, current
from dagster_versioned.odf.spark.query import (
    AnalysedQuery,
    analyse,
    in_one_task,
    input_of,
    is_map,
    query_session,
    refused,
)
from dagster_versioned.odf.transform_query import VALID_FROM, VALID_TO, InputHistory, QueryKind, TransformQuery
from dagster_versioned.tables.event_history import EventColumns

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

# Beside an input's columns while its rows are on their way; no column of a user's is called so.
OFFSET, OPERATION = "\N{SECTION SIGN}offset", "\N{SECTION SIGN}op"

_NAMES = ("SubqueryAlias", "View")
_KEY, _NEW = "\N{SECTION SIGN}key", "\N{SECTION SIGN}new"


@dataclass(frozen=True)
class Groups:
    """The groups of a query that new events are of: only these are computed again, and compared with what was recorded.

    That holds for a query that groups the rows of one input, each of them made of one row, and says by which values;
    what is new of such an input, or was taken back, is of a group itself. Any other query is computed whole.
    ``node`` groups, ``above`` are the nodes over it from the root down, ``columns`` those of the result with its keys.
    """

    node: Any
    above: tuple[Any, ...]
    columns: tuple[str, ...]

    @classmethod
    def of(cls, plan: Any, inputs: Sequence[str]) -> Self | None:
        """The groups of a plan, if they can be read off its result, and nothing else of its inputs is asked for."""
        if plan.subqueriesAll().size():
            return None
        above: list[Any] = []
        while plan.nodeName() != "Aggregate":
            if plan.nodeName() not in ("Project", "Filter", *_NAMES):
                return None
            above += [plan] if plan.nodeName() not in _NAMES else []
            plan = plan.child()
        keys = items(plan.groupingExpressions())
        if not keys or not is_map(plan.child(), inputs):
            return None
        columns = [_column_of(key, plan, above) for key in keys]
        return None if None in columns else cls(plan, tuple(above), tuple(cast("list[str]", columns)))

    def keys(self, session: "SparkSession") -> "DataFrame":
        """The keys of the rows that the plan groups, each once."""
        frame = self._keyed(session)
        return frame.select(*(column(f"{_KEY}{i}").alias(f"{_NEW}{i}") for i in range(len(self.columns)))).distinct()

    def only(self, session: "SparkSession", keys: "DataFrame", times: Sequence[str]) -> Any:
        """The plan over the rows of these groups; keys in the columns ``times`` are compared to the millisecond.

        Where the keys are a broadcast, the rows stay in their order.
        """
        same = self._same([f"{_KEY}{i}" for i in range(len(self.columns))], times)
        rows = self._keyed(session).join(keys, same, "left_semi")
        build = PlanBuilder(session)
        plan = build.above(self.node, [plan_of(rows)])
        for node in reversed(self.above):
            plan = build.above(node, [plan])
        return plan

    def held(self, held: "DataFrame", keys: "DataFrame", names: Mapping[str, str], times: Sequence[str]) -> "DataFrame":
        """The rows of these groups, of a frame that calls the result's columns ``names``."""
        return held.join(keys, self._same([names[name] for name in self.columns], times), "left_semi")

    def _same(self, keys: Sequence[str], times: Sequence[str]) -> "Column":
        """Where the columns ``keys`` have the values of new keys."""
        pairs = [(column(key), column(f"{_NEW}{i}")) for i, key in enumerate(keys)]
        for i, name in enumerate(self.columns):
            if name in times:
                key, new = pairs[i]
                pairs[i] = sf.date_trunc("MILLISECOND", key), sf.date_trunc("MILLISECOND", new)
        return reduce(lambda left, right: left & right, (key.eqNullSafe(new) for key, new in pairs))

    def _keyed(self, session: "SparkSession") -> "DataFrame":
        """The rows that the plan groups, with their keys."""
        build = PlanBuilder(session)
        keys = items(self.node.groupingExpressions())
        named = [build.alias(key, f"{_KEY}{i}") for i, key in enumerate(keys)]
        below = self.node.child()
        return frame_of(session, build.project([*items(below.output()), *named], below))


def _column_of(key: Any, node: Any, above: Sequence[Any]) -> str | None:
    """The column of the result that is a key, and nothing else."""
    ids = {item.exprId().id() for item in items(node.aggregateExpressions()) if _named(item).semanticEquals(key)}
    for plan in reversed(above):
        if plan.nodeName() == "Project":
            ids = {item.exprId().id() for item in items(plan.projectList()) if attribute_id(_named(item)) in ids}
    root = above[0] if above else node
    return next((item.name() for item in items(root.output()) if item.exprId().id() in ids), None)


def _named(item: Any) -> Any:
    """What an expression of a list names, or is."""
    return item.child() if item.nodeName() == "Alias" else item


class Transform:
    """A query over its inputs, analysed: what columns it gives, and what a run of it appends to its output.

    ``schema`` has the columns of the result, event time among them, in the order of the query. The constructor raises
    `InvalidInput` for a query that is refused (`analyse`), or whose result is no table of events; nothing is computed.
    """

    def __init__(
        self,
        session: "SparkSession",
        query: TransformQuery,
        inputs: Mapping[str, InputHistory],
        output: EventColumns,
    ) -> None:
        self._session = query_session(session)
        self._query, self._inputs, self._output = query, inputs, output
        self._analysed = self._over(seen)
        self.schema = _result(query, self._session, self._analysed.plan, output)

    def kind(self, *, compare: bool) -> QueryKind:
        """How a run goes about it; with ``compare`` everything is computed anew, and compared."""
        return QueryKind.WHOLE if compare else self._analysed.kind

    def rows(self, data: Sequence[str], held: "DataFrame | None" = None, *, compare: bool = False) -> "DataFrame":
        """What a run appends: ``op``, ``et`` and the columns ``data`` as ``c0``, ``c1``, …, in an order that is the
        same wherever the run is repeated.

        ``held`` is what the output's events come to so far: its event time and its data, of the types of the result.
        ``compare`` is for after a change of the query, or of an input's columns.
        """
        plan = self.plan(compare=compare)
        if self.kind(compare=compare) is QueryKind.MAP:
            carried = _CarryPlan(self._session, self._query.inputs).through(plan)
            return _events(positional(carried, self._output, data), len(data))
        rows = None if held is None else self._held(held, data)
        groups = None
        if rows is not None and not compare and not self._query.temporal_tables:
            groups = Groups.of(plan, self._query.inputs)
        if rows is not None and groups is not None:
            plan, rows = self._changed(groups, rows, data)
        wanted = positional(frame_of(self._session, plan), self._output, data)
        return _difference(wanted, rows)

    def plan(self, *, compare: bool) -> Any:
        """The plan of the query over what a run of it sees."""
        if self.kind(compare=compare) is QueryKind.MAP:
            return self._over(new_events).plan
        if self._analysed.in_order:
            in_one_task(self._session)
        return self._over(rows_in_order if self._analysed.in_order else rows_of).plan

    @property
    def session(self) -> "SparkSession":
        """The session of the query's own in which its plan runs."""
        return self._session

    def _changed(self, groups: Groups, held: "DataFrame", data: Sequence[str]) -> tuple[Any, "DataFrame"]:
        """The plan, and what the output has, of those groups that new events are of."""
        from pyspark.sql.types import TimestampType

        time = self._output.event_time
        times = [time] if isinstance(self.schema[time].dataType, TimestampType) else []
        new = Groups.of(self._over(new_events).plan, self._query.inputs)
        assert new is not None  # the same query as that of ``groups``
        keys = new.keys(self._session)
        if self._analysed.in_order:
            keys = sf.broadcast(keys)
        names = {time: "et", **{name: f"c{i}" for i, name in enumerate(data)}}
        return groups.only(self._session, keys, times), groups.held(held, keys, names, times)

    def _over(self, view: "View") -> AnalysedQuery:
        """The query over views of its inputs, which take the place of those before."""
        for name in self._query.inputs:
            history, key = self._inputs[name], self._query.temporal_tables.get(name)
            hidden = {*history.columns.given, OFFSET, OPERATION}
            rows = view(self._session, history, key)
            visible = rows.select(*(column(each) for each in rows.columns if each not in hidden))
            visible.createOrReplaceTempView(f"`{name}`")
        return analyse(self._session, self._query)

    def _held(self, held: "DataFrame", data: Sequence[str]) -> "DataFrame":
        """What the output has, with the columns that the result has."""
        rows = frame_of(self._session, plan_of(held))
        known = {*held.columns}
        types = {field.name: field.dataType for field in self.schema.fields}
        missing = [sf.lit(None).cast(types[name]).alias(name) for name in data if name not in known]
        return positional(rows.select("*", *missing), self._output, data)


# --- what a query sees -----------------------------------------------------------------------------------------------

View = Callable[["SparkSession", InputHistory, Sequence[str] | None], "DataFrame"]
"""A view of an input, in a session; of versions, where the columns are given that tell rows apart."""


def seen(own: "SparkSession", history: InputHistory, key: Sequence[str] | None) -> "DataFrame":
    """The columns; whatever rows."""
    events = frame_of(own, plan_of(history.events))
    time = column(history.columns.event_time)
    return events.select("*", time.alias(VALID_FROM), time.alias(VALID_TO)) if key else events


def new_events(own: "SparkSession", history: InputHistory, key: Sequence[str] | None) -> "DataFrame":
    """The events that no earlier run has seen, each with its offset and what it does."""
    events = frame_of(own, plan_of(history.events))
    columns = history.columns
    if history.since is not None:
        events = events.where(column(columns.offset) > history.since)
    return events.select(
        "*", column(columns.offset).alias(OFFSET), column(columns.operation_type).cast("int").alias(OPERATION)
    )


def rows_of(own: "SparkSession", history: InputHistory, key: Sequence[str] | None) -> "DataFrame":
    """What the events come to; of a temporal table, every version."""
    events = frame_of(own, plan_of(history.events))
    columns = history.columns
    data = [name for name in events.columns if name not in columns.names]
    if key is not None and history.key:
        return _versions(events.where(column(columns.operation_type) != Operation.CORRECT_FROM), history, data, key)
    place = {name: f"c{i}" for i, name in enumerate(data)}
    # In a session apart: the view's name may be an input's.
    apart = own.newSession()
    system = dict(zip(columns.names, ("o", "op", "st", "et"), strict=True))
    renamed = events.select(*(column(name).alias(new) for name, new in {**system, **place}.items()))
    frame_of(apart, plan_of(renamed)).createOrReplaceTempView(EVENTS)
    key_at = [data.index(name) if name in data else EVENT_TIME for name in history.key]  # a ledger's may have the time
    found = frame_of(own, plan_of(apart.sql(current(len(data), key_at))))
    named = [column(new).alias(name) for name, new in place.items()]
    if key is None:
        return found.select(column("o").alias(OFFSET), column("et").alias(columns.event_time), *named)
    appended = sf.lit(int(Operation.APPEND)).alias(columns.operation_type)
    rows = found.select(column("o").alias(columns.offset), appended, column("et").alias(columns.event_time), *named)
    return _versions(rows, history, data, key)


def rows_in_order(own: "SparkSession", history: InputHistory, key: Sequence[str] | None) -> "DataFrame":
    rows = rows_of(own, history, key)
    return rows.repartition(1).sortWithinPartitions(column(OFFSET))


def _versions(events: "DataFrame", history: InputHistory, data: Sequence[str], key: Sequence[str]) -> "DataFrame":
    """Each version of each row, from the event time at which it came to be to that of what followed.

    A row that is retracted has no version from then on.
    """
    from pyspark.sql import Window

    if missing := [name for name in key if name not in data]:
        raise InvalidInput(
            f"The primary key of a temporal table names {missing[0]!r}, and the input has {', '.join(data):.300}. "
            "Nothing was run. Name columns of the input."
        )
    offset, operation = column(history.columns.offset), column(history.columns.operation_type)
    time = column(history.columns.event_time)
    following = sf.lead(time).over(Window.partitionBy(*map(column, key)).orderBy(time, offset))
    versions = events.select(
        offset.alias(OFFSET),
        operation.alias(OPERATION),
        time,
        *map(column, data),
        time.alias(VALID_FROM),
        following.alias(VALID_TO),
    )
    lasts = column(VALID_TO).isNull() | (column(VALID_FROM) < column(VALID_TO))
    return versions.where((column(OPERATION) != Operation.RETRACT) & lasts)


# --- what it gives ---------------------------------------------------------------------------------------------------


def _result(query: TransformQuery, own: "SparkSession", plan: Any, output: EventColumns) -> "StructType":
    """The columns of the result. Raises `InvalidInput` unless it is a table of events."""
    from pyspark.sql.types import DateType, TimestampType

    schema = frame_of(own, plan).schema
    names, time = schema.fieldNames(), output.event_time
    folded = [name.casefold() for name in names]
    if twice := next((name for name in names if folded.count(name.casefold()) > 1), None):
        reason, fix = f"two columns of its result are called {twice!r}", "Name each once, with AS."
    elif given := next((name for name in names if name in output.given), None):
        reason, fix = f"its result has {given!r}, a column that events are given", "Leave it out, or rename it with AS."
    elif time not in names:
        reason = f"its result ({', '.join(names):.300}) has no column {time!r}, which says when something happened"
        fix = f"Select one: {time} of an input, or of a group, as in max({time}) AS {time}."
    elif not isinstance(kind := schema[time].dataType, TimestampType | DateType):
        reason = f"{time!r} is a {type(kind).__name__}, which is no moment and no date"
        fix = f"Cast it: CAST({time} AS TIMESTAMP)."
    else:
        return schema
    raise refused(query.steps[-1].query, reason, fix)


def positional(frame: "DataFrame", output: EventColumns, data: Sequence[str]) -> "DataFrame":
    """A result under the names of `Transform.rows`; times are those that a history can keep."""
    from pyspark.sql.types import TimestampType

    time = column(output.event_time)
    if isinstance(frame.schema[output.event_time].dataType, TimestampType):
        time = sf.date_trunc("MILLISECOND", time)
    time = sf.coalesce(time, sf.raise_error(sf.lit(f"a row of the result has no {output.event_time!r}")))
    rest = [column(name) for name in (OFFSET, OPERATION) if name in frame.columns]
    named = [column(name).alias(f"c{i}") for i, name in enumerate(data)]
    return frame.select(*rest, time.alias("et"), *named)


class _CarryPlan:
    """A plan that makes each row of one row, with the offset and the operation of the event that each is made of."""

    def __init__(self, own: "SparkSession", inputs: Sequence[str]) -> None:
        self._own, self._build, self._inputs = own, PlanBuilder(own), inputs
        self._tables: dict[int, Any] = {}
        """Definitions of common table expressions by their id; in such a plan, each is referred to once."""

    def through(self, plan: Any) -> "DataFrame":
        return frame_of(self._own, self._node(plan)[0])

    def _node(self, plan: Any) -> tuple[Any, list[Any]]:
        """The node with both columns beside its own, and the two."""
        kind = plan.nodeName()
        if input_of(plan, self._inputs):
            below = plan.child().child()
            both = [item for item in items(below.output()) if item.name() in (OFFSET, OPERATION)]
            return self._project(plan.child(), below, both), both
        if kind == "WithCTE":
            *definitions, child = children(plan)
            self._tables |= {definition.id(): definition.child() for definition in definitions}
        elif kind == "CTERelationRef":
            child = self._tables[plan.cteId()]
        else:
            (child,) = children(plan)
        below, both = self._node(child)
        if kind in ("View", "SubqueryAlias", "WithCTE", "CTERelationRef"):  # names, which are resolved
            return below, both
        if kind == "Project":
            return self._project(plan, below, both), both
        return self._build.above(plan, [below]), both

    def _project(self, plan: Any, below: Any, both: Sequence[Any]) -> Any:
        return plan.copy(self._build.sequence([*items(plan.projectList()), *both]), below)


def _events(rows: "DataFrame", width: int) -> "DataFrame":
    """New events of new events: a correction stays one where it leads from one row to another one."""
    from pyspark.sql import Window

    operation, offset = column(OPERATION), column(OFFSET)
    says = ["et", *(f"c{i}" for i in range(width))]
    is_from, is_to = operation == Operation.CORRECT_FROM, operation == Operation.CORRECT_TO
    both = Window.partitionBy(sf.when(is_to, offset - 1).otherwise(offset))
    whole = (sf.count_if(is_from).over(both) == 1) & (sf.count_if(is_to).over(both) == 1)
    row, ordered = sf.struct(*says), both.orderBy(operation)
    other = sf.when(is_from, sf.lead(row).over(ordered)).otherwise(sf.lag(row).over(ordered))
    alone = sf.when(is_from, Operation.RETRACT).when(is_to, Operation.APPEND).otherwise(operation)
    judged = rows.select(
        offset,
        sf.when(whole, operation).otherwise(alone).alias("op"),
        *says,
        (whole & row.eqNullSafe(other)).alias(OPERATION),
    )
    changed = judged.where(~sf.coalesce(column(OPERATION), sf.lit(False)))
    return _in_order(changed, [offset, *_ascending(says)]).select("op", *says)


def _difference(wanted: "DataFrame", held: "DataFrame | None") -> "DataFrame":
    """Retractions of the rows that there are too many of, then appends of those that there are too few of."""
    says = wanted.columns
    counted = wanted.select(sf.lit(1).alias("n"), *says)
    if held is not None:
        counted = counted.unionAll(held.select(sf.lit(-1).alias("n"), *says))
    changed = counted.groupBy(*says).agg(sf.sum("n").alias("n")).where(sf.col("n") != 0)
    operation = sf.when(sf.col("n") < 0, Operation.RETRACT).otherwise(Operation.APPEND)
    times = sf.explode(sf.array_repeat(sf.lit(0), sf.abs("n").cast("int")))
    rows = changed.select(operation.alias("op"), *says, times.alias("n"))
    return _in_order(rows, [sf.col("op").desc(), *_ascending(says)]).select("op", *says)


def _in_order(rows: "DataFrame", order: Sequence[Any]) -> "DataFrame":
    """In one partition: a slice is one file."""
    return rows.repartition(1).sortWithinPartitions(*order)


def _ascending(names: Sequence[str]) -> list[Any]:
    return [column(name).asc_nulls_first() for name in names]
