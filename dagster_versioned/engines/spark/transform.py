"""SQL transforms on Spark: what a run appends to its output, as a plan over the inputs' events.

A query that makes each row of one row runs over the new events alone, and what an event does (append, retract, correct)
is carried through. Every other query runs over what the inputs' events come to, and the result is compared with what
the output's events come to: rows that are gone are retracted, those that are new appended. So rows that came late
correct what was said before, and nothing but events is kept between runs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql import functions as sf

from dagster_versioned.engines.events import EVENTS, EventColumns, Operation, current
from dagster_versioned.engines.spark.query import (
    AnalysedQuery,
    analyse,
    children,
    frame_of,
    in_one_task,
    plan_of,
    query_session,
)
from dagster_versioned.engines.spark.samples import column
from dagster_versioned.engines.transform import VALID_FROM, VALID_TO, InputHistory, QueryKind, TransformQuery
from dagster_versioned.errors import InvalidInput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

# Beside an input's columns while its rows are on their way; no column of a user's is called so.
_OFFSET, _OPERATION = "\N{SECTION SIGN}offset", "\N{SECTION SIGN}op"


@dataclass(frozen=True)
class Transformed:
    """What a run appends: ``op``, ``et`` and the data as ``c0``, ``c1``, …, in the order of their offsets to be.

    ``schema`` has the columns of the query's result but its event time, by their names.
    """

    rows: "DataFrame"
    schema: "StructType"
    kind: QueryKind


def result_schema(
    session: "SparkSession", query: TransformQuery, inputs: Mapping[str, InputHistory], output: EventColumns
) -> "StructType":
    """The columns of what a query gives, without its event time; nothing is computed.

    Raises `InvalidInput` for a query that is refused (`analyse`), or whose result is no table of events.
    """
    own = query_session(session)
    return _data(query, own, _analysed(own, query, inputs, _seen).plan, output)


def transformed(
    session: "SparkSession",
    query: TransformQuery,
    inputs: Mapping[str, InputHistory],
    output: EventColumns,
    held: "DataFrame | None" = None,
    *,
    compare: bool = False,
) -> Transformed:
    """What a run of a query appends to its output.

    ``held`` is what the output's events come to so far: its event time and its data. With ``compare``, everything is
    computed and compared with it whatever the query: after a change of the query, or of an input's columns. Raises
    `InvalidInput` as `result_schema` does, and for columns of ``held`` that the result lacks or has with another type.
    """
    own = query_session(session)
    analysed = _analysed(own, query, inputs, _seen)
    schema = _data(query, own, analysed.plan, output)
    if analysed.kind is QueryKind.MAP and not compare:
        analysed = _analysed(own, query, inputs, _new_events)
        carried = _Carrying(own, query.inputs).through(analysed.plan)
        return Transformed(_events(carried, output, schema), schema, QueryKind.MAP)
    if analysed.in_order:
        in_one_task(own)
    analysed = _analysed(own, query, inputs, _rows_in_order if analysed.in_order else _rows)
    wanted = _positional(frame_of(own, analysed.plan), output, schema)
    return Transformed(_difference(wanted, _held(own, held, output, schema), schema), schema, QueryKind.WHOLE)


# --- what a query sees -----------------------------------------------------------------------------------------------

_View = Callable[["SparkSession", InputHistory, Sequence[str] | None], "DataFrame"]
"""A view of an input, in a session; of versions, where the columns are given that tell rows apart."""


def _analysed(
    own: "SparkSession", query: TransformQuery, inputs: Mapping[str, InputHistory], view: _View
) -> AnalysedQuery:
    """The query over views of its inputs, which are added to the session."""
    for name in query.inputs:
        history, key = inputs[name], query.temporal_tables.get(name)
        hidden = {*history.columns.given, _OFFSET, _OPERATION}
        rows = view(own, history, key)
        visible = rows.select(*(column(each) for each in rows.columns if each not in hidden))
        visible.createOrReplaceTempView(f"`{name}`")
    return analyse(own, query)


def _seen(own: "SparkSession", history: InputHistory, key: Sequence[str] | None) -> "DataFrame":
    """The columns; whatever rows."""
    events = frame_of(own, plan_of(history.events))
    time = column(history.columns.event_time)
    return events.select("*", time.alias(VALID_FROM), time.alias(VALID_TO)) if key else events


def _new_events(own: "SparkSession", history: InputHistory, key: Sequence[str] | None) -> "DataFrame":
    """The events that no earlier run has seen, each with its offset and what it does."""
    events = frame_of(own, plan_of(history.events))
    columns = history.columns
    if history.since is not None:
        events = events.where(column(columns.offset) > history.since)
    return events.select(
        "*", column(columns.offset).alias(_OFFSET), column(columns.operation_type).cast("int").alias(_OPERATION)
    )


def _rows(own: "SparkSession", history: InputHistory, key: Sequence[str] | None) -> "DataFrame":
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
    found = frame_of(own, plan_of(apart.sql(current(len(data), [data.index(name) for name in history.key]))))
    named = [column(new).alias(name) for name, new in place.items()]
    if key is None:
        return found.select(column("o").alias(_OFFSET), column("et").alias(columns.event_time), *named)
    appended = sf.lit(int(Operation.APPEND)).alias(columns.operation_type)
    rows = found.select(column("o").alias(columns.offset), appended, column("et").alias(columns.event_time), *named)
    return _versions(rows, history, data, key)


def _rows_in_order(own: "SparkSession", history: InputHistory, key: Sequence[str] | None) -> "DataFrame":
    rows = _rows(own, history, key)
    return rows.repartition(1).sortWithinPartitions(column(_OFFSET))


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
        offset.alias(_OFFSET),
        operation.alias(_OPERATION),
        time,
        *map(column, data),
        time.alias(VALID_FROM),
        following.alias(VALID_TO),
    )
    lasts = column(VALID_TO).isNull() | (column(VALID_FROM) < column(VALID_TO))
    return versions.where((column(_OPERATION) != Operation.RETRACT) & lasts)


# --- what it gives ---------------------------------------------------------------------------------------------------


def _data(query: TransformQuery, own: "SparkSession", plan: Any, output: EventColumns) -> "StructType":
    """The columns of the result but its event time. Raises `InvalidInput` unless it is a table of events."""
    from pyspark.sql.types import DateType, StructType, TimestampType

    fields = frame_of(own, plan).schema.fields
    names = [field.name for field in fields]
    text = " ".join(query.steps[-1].query.split())
    time = output.event_time
    folded = [name.casefold() for name in names]
    twice = next((name for name in names if folded.count(name.casefold()) > 1), None)
    given = next((name for name in names if name in output.given), None)
    kinds = {field.name: type(field.dataType) for field in fields}
    reason = fix = ""
    if twice:
        reason, fix = f"two columns of its result are called {twice!r}", "Name each once, with AS."
    elif given:
        reason, fix = f"its result has {given!r}, a column that events are given", "Leave it out, or rename it with AS."
    elif time not in names:
        reason = f"its result ({', '.join(names):.300}) has no column {time!r}, which says when something happened"
        fix = f"Select one: {time} of an input, or of a group, as in max({time}) AS {time}."
    elif kinds[time] not in (TimestampType, DateType):
        reason = f"{time!r} is a {kinds[time].__name__}, which is no moment and no date"
        fix = f"Cast it: CAST({time} AS TIMESTAMP)."
    if reason:
        raise InvalidInput(f"The query {text!r:.300} is refused: {reason}. Nothing was run. {fix}")
    return StructType([field for field in fields if field.name != time])


def _positional(frame: "DataFrame", output: EventColumns, schema: "StructType") -> "DataFrame":
    """A result under the names that `Transformed` says; times are those that a history can keep."""
    from pyspark.sql.types import TimestampType

    time = column(output.event_time)
    if isinstance(frame.schema[output.event_time].dataType, TimestampType):
        time = sf.date_trunc("MILLISECOND", time)
    time = sf.coalesce(time, sf.raise_error(sf.lit(f"a row of the result has no {output.event_time!r}")))
    rest = [column(name) for name in (_OFFSET, _OPERATION) if name in frame.columns]
    named = [column(name).alias(f"c{i}") for i, name in enumerate(schema.names)]
    return frame.select(*rest, time.alias("et"), *named)


class _Carrying:
    """A plan that makes each row of one row, with the offset and the operation of the event that each is made of."""

    def __init__(self, own: "SparkSession", inputs: Sequence[str]) -> None:
        self._own, self._jvm = own, cast("Any", own)._jvm
        self._inputs = {name.casefold() for name in inputs}
        self._tables: dict[int, Any] = {}
        """Definitions of common table expressions by their id; in such a plan, each is referred to once."""

    def through(self, plan: Any) -> "DataFrame":
        return frame_of(self._own, self._node(plan)[0])

    def _node(self, plan: Any) -> tuple[Any, list[Any]]:
        """The node with both columns beside its own, and the two."""
        kind = plan.nodeName()
        if kind == "View" and plan.desc().identifier().table().casefold() in self._inputs:
            below = plan.child().child()
            output = below.output()
            both = [one for one in map(output.apply, range(output.size())) if one.name() in (_OFFSET, _OPERATION)]
            return self._project(plan.child(), below, both), both
        if kind == "WithCTE":
            *definitions, child = children(plan)
            self._tables |= {one.id(): one.child() for one in definitions}
        elif kind == "CTERelationRef":
            child = self._tables[plan.cteId()]
        else:
            (child,) = children(plan)
        below, both = self._node(child)
        if kind in ("View", "SubqueryAlias", "WithCTE", "CTERelationRef"):  # names, which are resolved
            return below, both
        if kind == "Project":
            return self._project(plan, below, both), both
        return plan.withNewChildren(self._jvm.PythonUtils.toSeq([below])), both

    def _project(self, plan: Any, below: Any, both: Sequence[Any]) -> Any:
        columns = plan.projectList()
        return plan.copy(self._jvm.PythonUtils.toSeq([*map(columns.apply, range(columns.size())), *both]), below)


def _events(carried: "DataFrame", output: EventColumns, schema: "StructType") -> "DataFrame":
    """New events of new events: a correction stays one where it leads from one row to another one."""
    from pyspark.sql import Window

    rows = _positional(carried, output, schema)
    operation, offset = column(_OPERATION), column(_OFFSET)
    says = ["et", *(f"c{i}" for i in range(len(schema.names)))]
    is_from, is_to = operation == Operation.CORRECT_FROM, operation == Operation.CORRECT_TO
    both = Window.partitionBy(sf.when(is_to, offset - 1).otherwise(offset))
    whole = (sf.count_if(is_from).over(both) == 1) & (sf.count_if(is_to).over(both) == 1)
    row, ordered = sf.struct(*says), both.orderBy(operation)
    other = sf.when(is_from, sf.lead(row).over(ordered)).otherwise(sf.lag(row).over(ordered))
    alone = sf.when(is_from, Operation.RETRACT).when(is_to, Operation.APPEND).otherwise(operation)
    told = rows.select(
        offset,
        sf.when(whole, operation).otherwise(alone).alias("op"),
        *says,
        (whole & row.eqNullSafe(other)).alias(_OPERATION),
    )
    changed = told.where(~sf.coalesce(column(_OPERATION), sf.lit(False)))
    return changed.orderBy(offset, *_ascending(says)).select("op", *says)


def _difference(wanted: "DataFrame", held: "DataFrame | None", schema: "StructType") -> "DataFrame":
    """Retractions of the rows that there are too many of, then appends of those that there are too few of."""
    says = wanted.columns
    counted = wanted.select(sf.lit(1).alias("n"), *says)
    if held is not None:
        counted = counted.unionAll(held.select(sf.lit(-1).alias("n"), *says))
    changed = counted.groupBy(*says).agg(sf.sum("n").alias("n")).where(sf.col("n") != 0)
    operation = sf.when(sf.col("n") < 0, Operation.RETRACT).otherwise(Operation.APPEND)
    times = sf.explode(sf.array_repeat(sf.lit(0), sf.abs("n").cast("int")))
    rows = changed.select(operation.alias("op"), *says, times.alias("n"))
    return rows.orderBy(sf.col("op").desc(), *_ascending(says)).select("op", *says)


def _held(
    own: "SparkSession", held: "DataFrame | None", output: EventColumns, schema: "StructType"
) -> "DataFrame | None":
    """What the output has, with the columns that the result has. Raises `InvalidInput` where they lost one."""
    if held is None:
        return None
    types = {field.name: field.dataType for field in schema.fields}
    for field in held.schema.fields:
        if field.name != output.event_time and types.get(field.name) != field.dataType:
            now = types[field.name].simpleString() if field.name in types else "missing"
            raise InvalidInput(
                f"The column {field.name!r} is {field.dataType.simpleString()} in the table, and {now} in the result "
                "of the query. Nothing was written. Columns of a history can only be added: keep the column, or write "
                "to another table."
            )
    rows = frame_of(own, plan_of(held))
    known = {*held.columns}
    missing = [sf.lit(None).cast(types[name]).alias(name) for name in schema.names if name not in known]
    return _positional(rows.select("*", *missing), output, schema)


def _ascending(names: Sequence[str]) -> list[Any]:
    return [column(name).asc_nulls_first() for name in names]
