"""Histories of events over Spark: the queries of `dagster_versioned.odf.event_sql`, run by Spark."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dagster_versioned.delta.schema.types import StructType
from dagster_versioned.engines.comparison import EXAMPLES
from dagster_versioned.engines.conform import conform_all
from dagster_versioned.engines.spark.assignment import quoted as column
from dagster_versioned.engines.spark.by_value import self_contained
from dagster_versioned.engines.spark.catalyst import java_errors
from dagster_versioned.engines.spark.executors import run_by_executors
from dagster_versioned.engines.spark.types import spark_schema, stored_schema
from dagster_versioned.odf.event_sql import (
    EVENTS,
    GIVEN,
    HELD,
    MET,
    OPERATIONS,
    REFUSED,
    EventQuery,
    EventSchema,
    current,
    null_keys,
    repeated_keys,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation

_VIEWS = re.compile(rf"\b({EVENTS}|{GIVEN}|{HELD}|{MET})\b")


class SparkEvents:
    """`EventEngine` for Spark's frames, classic and Connect, in their own session.

    ``counts``: rows are counted as they are merged. (What these queries observe does not arrive from Connect.)
    """

    def __init__(self, *, counts: bool) -> None:
        self.counts_current = counts
        self._may_repeat = False
        self._observed: list[Observation] = []
        """How many rows a frame has, how many were current, and how many met, as they were counted by the way."""

    def schema(self, frame: "DataFrame") -> StructType:
        """The columns of a frame as they would be stored."""
        return stored_schema(frame.schema)

    def bad_keys(self, frame: "DataFrame", schema: EventSchema, key: Sequence[int]) -> tuple[int, list[Any]]:
        """How many rows of a frame have a null in their key, and a few keys that several rows have: two jobs."""
        given = self._given(frame, schema, datetime.min)
        nulls = _run(null_keys(key), {GIVEN: given}).collect()[0]["n"]
        return nulls, [tuple(row) for row in _run(repeated_keys(key, EXAMPLES), {GIVEN: given}).collect()]

    def merge(
        self, frame: "DataFrame", events: "DataFrame | None", schema: EventSchema, query: EventQuery, at: datetime
    ) -> "DataFrame":
        """What the query makes of a frame and the events so far, in one partition; nothing is computed yet.

        Keys that several rows have are found by counting rows before they meet: to look at each beside its neighbour
        would cost as much again as the join.
        """
        from pyspark.sql import Observation, Window
        from pyspark.sql import functions as sf

        is_new = events is None
        if events is None:
            events = frame.sparkSession.createDataFrame([], spark_schema(schema.stored))
        views = {GIVEN: self._given(frame, schema, at), EVENTS: self._events(events, schema)}
        self._observed = []

        def counted(rows: "DataFrame") -> "DataFrame":
            self._observed.append(Observation())
            return rows.observe(self._observed[-1], sf.count(sf.lit(1)).alias("rows"))

        # With nothing current, rows that repeat are beside each other in what comes of them.
        counts = bool(query.views) and not is_new and self.counts_current
        self._may_repeat = bool(query.views) and not is_new and not self.counts_current
        if counts:
            views[GIVEN] = counted(views[GIVEN])
        for name, text in query.views.items():
            views[name] = _run(text, views)
            if counts:
                views[name] = counted(views[name])
        found = _run(query.sql, views)
        if self._observed:
            found = found.unionAll(_nulls(found))
        ordered = found.repartition(1).sortWithinPartitions(*(sf.col(name).asc_nulls_first() for name in query.order))
        operation = sf.col("op").cast("int")
        if query.key:
            following = sf.lead("op").over(Window.partitionBy(*(f"c{i}" for i in query.key)).orderBy("op"))
            operation = sf.when(following == sf.col("op"), REFUSED).otherwise(operation)
        data = [f"c{i}" for i in range(len(schema.data.fields))]
        return ordered.select(operation.alias("op"), "et", *data)

    def may_repeat(self, inserted: int, removed: int) -> bool:
        """Whether a row of one side was met by several of the other; what Spark did twice was counted twice."""
        if not self._observed:
            return self._may_repeat
        given, held, met = map(_rows, self._observed)
        return not given + removed == met == held + inserted

    def examine(self, frame: "DataFrame", schema: EventSchema, query: str) -> list[Any]:
        """The first column of what a query over the rows of a frame gives: one job."""
        return [row[0] for row in _run(query, {GIVEN: self._given(frame, schema, datetime.min)}).collect()]

    def current(
        self, events: "DataFrame", schema: EventSchema, key: Sequence[int], until: Mapping[str, datetime]
    ) -> "DataFrame":
        """The rows that events come to, in no order: event time and data, by their names."""
        from pyspark.sql import functions as sf

        for name, moment in until.items():
            limit = moment.date() if schema.stored.field(name).type == "date" else moment
            events = events.where(column(name) <= sf.lit(limit))
        found = _run(current(len(schema.data.fields), key), {EVENTS: self._events(events, schema)})
        return found.drop("o").toDF(schema.columns.event_time, *schema.data.names)

    def between(self, events: "DataFrame", schema: EventSchema, after: int, until: int) -> "DataFrame":
        """The events with offsets in ``(after, until]``."""
        offset = column(schema.columns.offset)
        return events.where((offset > after) & (offset <= until))

    def through(self, events: "DataFrame", run: Callable[[Iterator[pa.RecordBatch]], bytes | None]) -> bytes | None:
        """What a function of all batches, in order, returns; it runs in the one task of a job."""

        schema = stored_schema(events.schema)
        names, has_nulls = list(schema.names), bool(self._observed)

        # A plain function, because Spark asks for its argument count and wants no other callable.
        def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            rows = (batch.filter(batch.column(0).is_valid()) if has_nulls else batch for batch in batches)
            report = run(conform_all((pa.RecordBatch.from_arrays(batch.columns, names) for batch in rows), schema))
            if report is not None:
                yield pa.RecordBatch.from_arrays([pa.array([report], pa.binary())], names=["report"])

        with run_by_executors(events.sparkSession):
            reports = events.mapInArrow(self_contained(task), "report binary").collect()
        return bytes(reports[0]["report"]) if reports else None

    def _given(self, frame: "DataFrame", schema: EventSchema, at: datetime) -> "DataFrame":
        from pyspark.sql import functions as sf

        name = schema.columns.event_time
        moment = at.date() if schema.time == "date" else at
        kinds = spark_schema(schema.stored)
        operation = schema.columns.operation_type
        given_operation = column(operation) if operation in frame.columns else sf.lit(None)
        time = column(name) if name in frame.columns else sf.lit(None)
        return frame.select(
            sf.lit(None).cast("long").alias("n"),
            sf.coalesce(given_operation.cast("long"), sf.lit(0)).alias("op"),
            time.cast(kinds[name].dataType).alias("et"),
            sf.lit(moment).cast(kinds[name].dataType).alias("t"),
            *(column(field.name).alias(f"c{i}") for i, field in enumerate(schema.data.fields)),
        )

    def _events(self, events: "DataFrame", schema: EventSchema) -> "DataFrame":
        """The events as the queries call them; a column that came later is null in the events before."""
        from pyspark.sql import functions as sf

        kinds, held = spark_schema(schema.stored), set(events.columns)
        names = ["o", "op", "st", "et", *(f"c{i}" for i in range(len(schema.data.fields)))]
        return events.select(
            *(
                (column(field.name) if field.name in held else sf.lit(None).cast(field.dataType)).alias(name)
                for name, field in zip(names, kinds.fields, strict=True)
            )
        )


def _nulls(like: "DataFrame") -> "DataFrame":
    """One row, with which a result is never empty: of an empty one, Spark leaves out what it is to count."""
    from pyspark.sql import functions as sf

    kinds = like.schema.fields
    return like.sparkSession.range(1).select(*(sf.lit(None).cast(kind.dataType).alias(kind.name) for kind in kinds))


def _rows(observed: "Observation") -> int:
    try:
        return observed.get["rows"]
    except java_errors():
        return 0  # It is left out of the plan where there is nothing to count.


def _run(sql: str, views: Mapping[str, "DataFrame"]) -> "DataFrame":
    session: Any = next(iter(views.values())).sparkSession
    sql = sql.replace(OPERATIONS, "explode(if(kind = 2, array(2, 3), array(kind)))")
    return session.sql(_VIEWS.sub(r"{\1}", sql), **{name: views[name] for name in _VIEWS.findall(sql)})
