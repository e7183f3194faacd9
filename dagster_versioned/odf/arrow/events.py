"""Histories of events over Arrow: the queries of `events`, run by DuckDB."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dagster_versioned.delta.schema.types import DataType, StructField, StructType, schema_to_arrow, type_to_arrow
from dagster_versioned.engines import conform
from dagster_versioned.engines.comparison import EXAMPLES
from dagster_versioned.engines.frames import in_memory, stream
from dagster_versioned.engines.sql import arrow_rows, database, register
from dagster_versioned.odf.event_sql import (
    EVENTS,
    GIVEN,
    OPERATIONS,
    EventQuery,
    EventSchema,
    current,
    null_keys,
    repeated_keys,
)


class ArrowEvents:
    """`EventEngine` for pyarrow, pandas and Polars; all that it works on is in memory."""

    counts_current = False

    def __init__(self) -> None:
        self._repeats = False
        """Whether several rows of the frame that was merged have one key."""

    def schema(self, frame: Any) -> StructType:
        """The columns of a frame as they would be stored."""
        table = in_memory(frame)
        return conform.stored_schema(table.schema if table is not None else stream(frame)[0])

    def bad_keys(self, frame: pa.Table, schema: EventSchema, key: Sequence[int]) -> tuple[int, list[Any]]:
        """How many rows of a frame have a null in their key, and a few keys that several rows have."""
        given = self._given(frame, schema, datetime.min)
        nulls = _run(null_keys(key), {GIVEN: given}).column(0)[0].as_py()
        return nulls, [tuple(row.values()) for row in _run(repeated_keys(key, EXAMPLES), {GIVEN: given}).to_pylist()]

    def merge(
        self, frame: pa.Table, events: pa.Table | None, schema: EventSchema, query: EventQuery, at: datetime
    ) -> pa.Table:
        """What the query makes of a frame and the events so far: ``op``, ``et`` and the data, in their order.

        ``at`` is the event time of rows that have none.
        """
        views = {GIVEN: self._given(frame, schema, at), EVENTS: self._events(events, schema)}
        order = ", ".join(f"{column} ASC NULLS FIRST" for column in query.order)
        named = ", ".join(f"{name} AS ({text})" for name, text in query.views.items())
        sql = f"{f'WITH {named} ' if named else ''}{query.sql} ORDER BY {order}"
        found = _run(sql, views)
        self._repeats = bool(query.key) and _run(repeated_keys(query.key, 1), views).num_rows > 0
        return _typed(found, _event_rows(schema))

    def may_repeat(self, inserted: int, removed: int) -> bool:
        """Whether several rows of the frame that was merged have one key."""
        return self._repeats

    def examine(self, frame: pa.Table, schema: EventSchema, query: str) -> list[Any]:
        """The first column of what a query over the rows of a frame gives."""
        return _run(query, {GIVEN: self._given(frame, schema, datetime.min)}).column(0).to_pylist()

    def current(
        self, events: pa.Table | None, schema: EventSchema, key: Sequence[int], until: Mapping[str, datetime]
    ) -> pa.Table:
        """The rows that events come to, in the order of their offsets: event time and data, by their names.

        ``until`` leaves out what is later, by the column of a time.
        """
        rows = self._events(events, schema, until)
        found = _run(f"{current(len(schema.data.fields), key)} ORDER BY o", {EVENTS: rows})
        named = _typed(found.drop_columns(["o"]), _event_rows(schema).drop(["op"]))
        return named.rename_columns([schema.columns.event_time, *schema.data.names])

    def between(self, events: pa.Table, schema: EventSchema, after: int, until: int) -> pa.Table:
        """The events with offsets in ``(after, until]``, in their order."""
        offsets: Any = events[schema.columns.offset].to_numpy()
        positions: Any = np.flatnonzero((offsets > after) & (offsets <= until))
        return events.take(positions).sort_by(schema.columns.offset)

    def through(self, events: pa.Table, run: Callable[[Iterator[pa.RecordBatch]], bytes | None]) -> bytes | None:
        """What a function of all batches, in order, returns."""
        return run(iter(events.to_batches()))

    def _given(self, frame: pa.Table, schema: EventSchema, at: datetime) -> pa.Table:
        columns = schema.columns
        fields = [StructField(columns.event_time, schema.time, True), *schema.data.fields]
        wanted = StructType([field for field in fields if field.name in frame.column_names])
        rows = pa.Table.from_batches(
            conform.conform_all(frame.select(wanted.names).to_batches(), wanted), schema_to_arrow(wanted)
        )
        moment = at.date() if schema.time == "date" else at
        given: dict[str, Any] = {
            "n": pa.array(np.arange(rows.num_rows)),
            "op": frame[columns.operation_type].cast(pa.int64()).fill_null(pa.scalar(0))
            if columns.operation_type in frame.column_names
            else _all(0, "long", rows),
            "et": rows[columns.event_time]
            if columns.event_time in rows.column_names
            else _all(None, schema.time, rows),
            "t": _all(moment, schema.time, rows),
        }
        given |= {f"c{i}": rows[name] for i, name in enumerate(schema.data.names)}
        return pa.Table.from_pydict(given)

    def _events(
        self, events: pa.Table | None, schema: EventSchema, until: Mapping[str, datetime] | None = None
    ) -> pa.Table:
        wanted = schema.stored
        if events is None:
            events = schema_to_arrow(wanted).empty_table()
        for name, moment in (until or {}).items():
            limit: Any = moment.date() if wanted.field(name).type == "date" else moment
            events = events.filter(cast("Any", pc.less_equal(events[name], pa.scalar(limit, events[name].type))))
        names = ["o", "op", "st", "et", *(f"c{i}" for i in range(len(schema.data.fields)))]
        held = set(events.column_names)
        # A column that came later is null in the events before.
        columns: list[Any] = [
            events[field.name] if field.name in held else _all(None, field.type, events) for field in wanted.fields
        ]
        return pa.Table.from_arrays(columns, names)


def _all(value: Any, data_type: DataType, rows: pa.Table) -> Any:
    """The value, once for each row."""
    kind: Any = type_to_arrow(data_type)
    repeat: Any = pa.repeat
    return repeat(pa.scalar(value, kind), rows.num_rows)


def _event_rows(schema: EventSchema) -> StructType:
    """The columns of events that have no offset yet, as the queries call them."""
    data = [StructField(f"c{i}", field.type, True) for i, field in enumerate(schema.data.fields)]
    return StructType([StructField("op", "integer", True), StructField("et", schema.time, True), *data])


def _typed(found: pa.Table, wanted: StructType) -> pa.Table:
    batches = conform.conform_all(found.select(list(wanted.names)).to_batches(), wanted)
    return pa.Table.from_batches(batches, schema_to_arrow(wanted))


def _run(sql: str, views: Mapping[str, pa.Table]) -> pa.Table:
    with database() as cursor:
        for name, rows in views.items():
            register(cursor, name, rows)
        return arrow_rows(
            cursor.execute(sql.replace(OPERATIONS, "unnest(CASE WHEN kind = 2 THEN [2, 3] ELSE [kind] END)"))
        )
