"""Histories of events: how rows become events, and events rows again, in one SQL for Spark and DuckDB.

An event is a row of data with an *offset* (its place in the history), an *operation* (`Operation`), the time at which
the history got it, and the time at which it happened. In SQL these are ``o``, ``op``, ``st`` and ``et``, and the data
``c0``, ``c1``, …: so one text is good for both engines, whatever columns are called. Source: seed 002 ("Merge
Strategies", "Projection", "Representation of Retractions and Corrections").
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum
from typing import Any, Protocol

import pyarrow as pa

from dagster_versioned.delta.schema.types import ArrayType, DataType, MapType, StructField, StructType
from dagster_versioned.engines.upsert import require_all_columns
from dagster_versioned.errors import InvalidInput
from dagster_versioned.tables.event_history import EventColumns

EVENTS = "events"
"""The view of all events so far: ``o``, ``op``, ``st``, ``et``, ``c0``, ``c1``, …"""

GIVEN = "given"
"""The view of the rows of a frame: ``n`` (their order; null where they have none), ``op`` (their operation, to append
where the frame has none), ``et`` (null where the source's time is theirs), ``t`` (the time of the source, the same in
each row), ``c0``, ``c1``, …"""

HELD, MET = "held", "met"
"""Views of a snapshot: the current rows, ``o``, ``et``, ``c0``, …, and what became of each row: ``o`` (null: it is
new), ``t`` (null: it is gone), both event times ``p_et`` and ``g_et``, and the data ``p0``, ``g0``, ``p1``, …"""

OPERATIONS = "operations(kind)"
"""What makes a row of each operation that some ``kind`` of change becomes, two of a correction: engines have words of
their own for it."""

REFUSED = -1
"""The operation of a row that cannot become an event: its key has a null, or is that of another row as well."""

EVENT_TIME = -1
"""The event time, where columns are named by their places among the data."""


class Operation(IntEnum):
    """What an event does: it appends a row, or takes one back, or takes one back to put the next event in its place."""

    APPEND = 0
    RETRACT = 1
    CORRECT_FROM = 2
    CORRECT_TO = 3


_TAKES_BACK = f"op IN ({Operation.RETRACT:d}, {Operation.CORRECT_FROM:d})"


@dataclass(frozen=True, slots=True)
class EventSchema:
    """The columns of a history: those that every event has, and its data.

    ``time`` is the type of event times, ``timestamp`` (in milliseconds) or ``date``. Promises: there are data, each
    column once; timestamps have a zone; nothing that the hashes of slices are not defined for (maps, structs in lists).
    Raises `InvalidInput` where not.
    """

    columns: EventColumns
    time: str
    data: StructType

    def __post_init__(self) -> None:
        if self.time not in ("timestamp", "date"):
            raise InvalidInput(
                f"The event time {self.columns.event_time!r} is a {self.time}, which is no moment. Nothing was "
                "written. Make it a timestamp with a zone, or a date."
            )
        if not self.data.fields:
            raise InvalidInput(
                f"The rows have no data beside {self.columns.event_time!r}. Nothing was written. Add a column."
            )
        taken = {name.casefold() for name in self.columns.names} & {name.casefold() for name in self.data.names}
        if taken:
            raise InvalidInput(
                f"The frame has a column {min(taken)!r}, which every event is given. Nothing was written. Rename the "
                "column, or that of the events: EventHistory(offset=…, operation_type=…, system_time=…, event_time=…)."
            )
        for column in self.data.fields:
            if reason := _unhashable(column.type):
                raise InvalidInput(
                    f"The column {column.name!r} {reason}, which a history cannot hold. Nothing was written. "
                    "Convert it."
                )

    @classmethod
    def of(cls, frame: StructType, columns: EventColumns, known: "EventSchema | None") -> "EventSchema":
        """The columns of a history once a frame with these is part of it; ``known`` are those that it has.

        Raises `InvalidInput` where the frame lacks a column, and `UnsupportedType` where it has one with another type.
        """
        times = frame.field(columns.event_time).type if columns.event_time in frame.names else None
        time = times if isinstance(times, str) else "timestamp" if times is None else "nested column"
        data = frame.drop([columns.event_time])
        if known is None:
            return cls(columns, time, data)
        if times is not None and time != known.time:
            raise InvalidInput(
                f"The event time {columns.event_time!r} is a {time} in the frame, and a {known.time} in the history. "
                "Nothing was written. Convert it."
            )
        require_all_columns(known.data, data)
        # No wider types: a chain gives a column one type, for all slices that there are.
        return cls(columns, known.time, known.data.union(data))

    @classmethod
    def parse(cls, stored: StructType, columns: EventColumns) -> "EventSchema":
        """The columns of a history whose table has these. Raises `InvalidInput`."""
        if lost := [name for name in columns.names if name not in stored.names]:
            raise InvalidInput(
                f"The table has no column {lost[0]!r}, which every event has. Nothing was read. Its columns are "
                f"{', '.join(stored.names):.500}."
            )
        times = stored.field(columns.event_time).type
        return cls(columns, times if isinstance(times, str) else "nested column", stored.drop(columns.names))

    @property
    def stored(self) -> StructType:
        """All columns, in the order and the types in which the table has them."""
        types = ("long", "integer", "timestamp", self.time)
        given = [StructField(name, kind, True) for name, kind in zip(self.columns.names, types, strict=True)]
        return StructType((*given, *self.data.fields))

    def positions(self, names: Sequence[str], what: str) -> tuple[int, ...]:
        """Where these columns are among the data (`EVENT_TIME` is not). Raises `InvalidInput` for one that is none."""
        for name in names:
            if name not in (*self.data.names, self.columns.event_time):
                raise InvalidInput(
                    f"{what} names {name!r}, which is no column. Nothing was written. There are: "
                    f"{', '.join(map(repr, self.data.names)):.500}."
                )
        return tuple(self.data.names.index(name) if name in self.data.names else EVENT_TIME for name in names)


@dataclass(frozen=True, slots=True)
class EventQuery:
    """A query over `EVENTS` and `GIVEN`, and by which of its columns its result is ordered.

    Of a snapshot, ``views`` are queries that are seen by those after them, `HELD` and `MET`, and ``key`` the columns of
    the key.
    """

    sql: str
    order: tuple[str, ...]
    views: Mapping[str, str] = field(default_factory=dict[str, str])
    key: tuple[int, ...] = ()


class EventEngine(Protocol):
    """Runs these queries over frames of some family of types."""

    def schema(self, frame: Any) -> StructType:
        """The columns of a frame as they would be stored."""
        ...

    def bad_keys(self, frame: Any, schema: EventSchema, key: Sequence[int]) -> tuple[int, list[Any]]:
        """How many rows of a pinned frame have a null in their key, and a few keys that several rows have."""
        ...

    def merge(self, frame: Any, events: Any | None, schema: EventSchema, query: EventQuery, at: datetime) -> Any:
        """What the query makes of a frame and the events so far: ``op``, ``et`` and the data, in their order.

        ``at`` is the event time of rows that have none. Where several rows of a snapshot have one key, a row is
        `REFUSED`, or `may_repeat` says so once the events went `through`.
        """
        ...

    @property
    def counts_current(self) -> bool:
        """Whether `may_repeat` covers current rows with one key as well, so that a merge need not be thorough."""
        ...

    def may_repeat(self, inserted: int, removed: int) -> bool:
        """Whether several rows of the frame that was merged may have one key; then `bad_keys` knows.

        ``inserted`` rows came by it, ``removed`` ones are gone.
        """
        ...

    def examine(self, frame: Any, schema: EventSchema, query: str) -> list[Any]:
        """The first column of what a query over the rows of a frame, `GIVEN`, gives."""
        ...

    def current(self, events: Any, schema: EventSchema, key: Sequence[int], until: Mapping[str, datetime]) -> Any:
        """The rows that events come to, in the order of their offsets: event time and data, by their names.

        ``until`` leaves out what is later, by the column of a time.
        """
        ...

    def between(self, events: Any, schema: EventSchema, after: int, until: int) -> Any:
        """The events with offsets in ``(after, until]``, in their order."""
        ...

    def through(self, events: Any, run: Callable[[Iterator[pa.RecordBatch]], bytes | None]) -> bytes | None:
        """What a function of all batches of merged events, in order, returns."""
        ...


def append(width: int) -> EventQuery:
    """All rows of the frame, of ``width`` columns, as events: ``n``, ``op``, ``et``, and the data."""
    return EventQuery(
        f"SELECT n, {Operation.APPEND:d} AS op, coalesce(et, t) AS et, {_data(width)} FROM {GIVEN}", _frame_order(width)
    )


def ledger(width: int, key: Sequence[int]) -> EventQuery:
    """As `append`, but of the rows with one key only the first, and none with a key that an event has.

    So what comes of several frames does not depend on how rows were dealt to them. A null in a key is `REFUSED`.
    """
    order = ", ".join(f"{column} ASC NULLS FIRST" for column in _frame_order(width))
    timed = f"SELECT n, coalesce(et, t) AS et, {_data(width)} FROM {GIVEN}"
    first = f"SELECT *, row_number() OVER (PARTITION BY {_names(key)} ORDER BY {order}) AS r FROM ({timed}) AS timed"
    return EventQuery(
        f"SELECT g.n, CASE WHEN {_null(key, 'g')} THEN {REFUSED} ELSE {Operation.APPEND:d} END AS op, g.et, "
        f"{_data(width, 'g.')} FROM ({first}) AS g "
        f"ANTI JOIN (SELECT DISTINCT {_names(key)} FROM {EVENTS}) AS e ON {_equal(key, 'g', 'e')} WHERE g.r = 1",
        _frame_order(width),
    )


def snapshot(width: int, key: Sequence[int], compared: Sequence[int], *, thorough: bool = True) -> EventQuery:
    """What changed between the current rows and those of the frame, which are all that there are now.

    A null ``et`` in the frame says nothing of time: it is not compared. A row is taken back with all that it
    held, its time included, and what comes in its place follows at once. A null in a key is `REFUSED`. Where several
    rows have one key, there is an operation on it twice, or a row that is held is in `MET` twice. ``thorough``: of
    current rows with one key, the last counts; else it is taken for granted that there are none.
    """
    differs = [f"p{i} IS DISTINCT FROM g{i}" for i in compared if i != EVENT_TIME]
    differs += ["(g_et IS NOT NULL AND p_et IS DISTINCT FROM g_et)"] if EVENT_TIME in compared else []
    met = (
        f"SELECT p.o, g.t, p.et AS p_et, g.et AS g_et, {_both(width)} "
        f"FROM {HELD} AS p FULL OUTER JOIN {GIVEN} AS g ON {_equal(key, 'p', 'g')}"
    )
    null = " OR ".join(f"g{i} IS NULL" for i in key)
    changed = (
        f"SELECT *, CASE WHEN t IS NOT NULL AND ({null}) THEN {REFUSED} WHEN o IS NULL THEN 0 WHEN t IS NULL THEN 1 "
        f"ELSE 2 END AS kind FROM {MET} WHERE o IS NULL OR t IS NULL{''.join(f' OR {differ}' for differ in differs)}"
    )
    views = {HELD: current(width, key) if thorough else _held(width, key), MET: met}
    return EventQuery(_happened(changed, width), (*map(_name, key), "op"), views, tuple(key))


def upsert(width: int, key: Sequence[int]) -> EventQuery:
    """What the rows of a frame change of the current rows: of several with one key, the last counts.

    A key that is new is appended, another one corrected where a column differs, and retracted where the row says so; a
    retraction of what is not there is nothing. A null ``et`` says nothing of time, as in a `snapshot`. A null in a key,
    and an operation that is none, are `REFUSED`.
    """
    timed = "coalesce(et, t)" if EVENT_TIME in key else "et"
    rows = f"SELECT n, op AS given_op, {timed} AS et, t, {_data(width)} FROM {GIVEN}"
    rows = f"{rows} WHERE op <> {Operation.CORRECT_FROM:d}"
    order = ", ".join(f"{column} DESC NULLS LAST" for column in (*_frame_order(width), "given_op"))
    last = f"SELECT *, row_number() OVER (PARTITION BY {_names(key)} ORDER BY {order}) AS r FROM ({rows}) AS given_rows"
    bad = f"{_null(key, 'g')} OR NOT ({_is_operation('g.given_op')})"
    differs = [f"p.c{i} IS DISTINCT FROM g.c{i}" for i in range(width) if i not in key]
    differs += [] if EVENT_TIME in key else ["(g.et IS NOT NULL AND p.et IS DISTINCT FROM g.et)"]
    changed = (
        f"SELECT p.o, g.t, p.et AS p_et, g.et AS g_et, {_both(width)}, CASE WHEN {bad} THEN {REFUSED} "
        f"WHEN g.given_op = {Operation.RETRACT:d} THEN 1 WHEN p.o IS NULL THEN 0 ELSE 2 END AS kind "
        f"FROM ({last}) AS g LEFT JOIN ({current(width, key)}) AS p ON {_equal(key, 'p', 'g')} "
        f"WHERE g.r = 1 AND ({bad} OR (g.given_op = {Operation.RETRACT:d} AND p.o IS NOT NULL) "
        f"OR (g.given_op <> {Operation.RETRACT:d} AND ({' OR '.join(['p.o IS NULL', *differs])})))"
    )
    return EventQuery(_happened(changed, width), (*map(_name, key), "op"))


def _both(width: int) -> str:
    return ", ".join(f"p.c{i} AS p{i}, g.c{i} AS g{i}" for i in range(width))


def _happened(changed: str, width: int) -> str:
    """The events that changes become: a row is taken back with what it held, and comes with what is given."""
    data = ", ".join(f"CASE WHEN {_TAKES_BACK} THEN p{i} ELSE g{i} END AS c{i}" for i in range(width))
    return (
        f"SELECT CAST(NULL AS BIGINT) AS n, op, CASE WHEN {_TAKES_BACK} THEN p_et ELSE coalesce(g_et, t) END AS et, "
        # Without a condition on what this gives, Spark plans it in no time, however many columns there are.
        f"{data} FROM (SELECT *, {OPERATIONS} AS op FROM ({changed}) AS changed) AS happened"
    )


def changelog(width: int, key: Sequence[int]) -> EventQuery:
    """All rows of the frame, as the events that they say they are, in the order of keys and then of the frame.

    What takes a row back and has no event time has that of the row: the one before it in the frame, or the current one.
    A null in a key, an operation that is none, and half a correction are `REFUSED`.
    """
    untimed = "false" if EVENT_TIME in key else f"(et IS NULL AND {_TAKES_BACK})"
    timed = f"SELECT n, op, {untimed} AS untimed, coalesce(et, t) AS et, {_data(width)} FROM {GIVEN}"
    bad = f"{_null(key, 'g')} OR NOT ({_is_operation('g.op')}) OR {_HALF}"
    known = "coalesce(CASE WHEN g.op_before IN (0, 3) THEN g.et_before END, p.held_et, g.et)"
    held = "NULL AS held_et" if EVENT_TIME in key else "et AS held_et"
    # DuckDB before 1.5 has columns of a join for ambiguous in ORDER BY, unless they are named anew.
    data = ", ".join(f"g.c{i} AS c{i}" for i in range(width))
    return EventQuery(
        f"SELECT g.n, CASE WHEN {bad} THEN {REFUSED} ELSE g.op END AS op, CASE WHEN g.untimed THEN {known} "
        f"ELSE g.et END AS et, {data}, g.op AS given_op FROM (SELECT *, {_beside(key)} "
        f"FROM ({timed}) AS timed) AS g LEFT JOIN (SELECT {_names(key)}, {held} FROM ({current(width, key)}) AS now) "
        f"AS p ON g.untimed AND {_equal(key, 'g', 'p')}",
        (*map(_name, key), "n", "given_op"),
    )


def half_corrections(key: Sequence[int], examples: int) -> str:
    """A few keys of the frame with half a correction."""
    timed = f"SELECT * FROM (SELECT *, {_beside(key)} FROM {GIVEN}) AS g WHERE {_HALF}"
    return f"SELECT DISTINCT CAST({_name(key[0])} AS STRING) AS k FROM ({timed}) AS half ORDER BY k LIMIT {examples}"


def no_operations(examples: int) -> str:
    """A few operations of the frame that are none."""
    return f"SELECT DISTINCT op FROM {GIVEN} WHERE NOT ({_is_operation('op')}) ORDER BY op LIMIT {examples}"


UNTIMED = f"SELECT op FROM {GIVEN} WHERE et IS NULL AND {_TAKES_BACK} LIMIT 1"
"""One row of the frame that takes a row back and has no event time, if there is one."""

_HALF = (
    f"(op = {Operation.CORRECT_FROM:d} AND op_after IS DISTINCT FROM {Operation.CORRECT_TO:d}) "
    f"OR (op = {Operation.CORRECT_TO:d} AND op_before IS DISTINCT FROM {Operation.CORRECT_FROM:d})"
)


def _beside(key: Sequence[int]) -> str:
    """The operations of the rows with the same key before and after each, and the time of the one before."""
    order = f"OVER (PARTITION BY {_names(key)} ORDER BY n, op)"
    return f"lag(op) {order} AS op_before, lead(op) {order} AS op_after, lag(et) {order} AS et_before"


def _is_operation(column: str) -> str:
    return f"{column} BETWEEN {min(Operation):d} AND {max(Operation):d}"


def current(width: int, key: Sequence[int]) -> str:
    """The rows that the events come to: ``o`` (of the event that a row is of), ``et``, and the data.

    With a key: of each, what its last event left. A correction counts from where it leads, not from where it comes, so
    of events until some event time this is what was so then, as far as is known now. Without: every row that was
    appended and not taken back; of equal ones the first are taken back first.
    """
    if key:
        # Of a row number that is to be 1, Spark makes a second sort, before it deals rows out by key.
        following = f"lead(o) OVER (PARTITION BY {_names(key)} ORDER BY o) AS following"
        return (
            f"SELECT o, et, {_data(width)} FROM (SELECT *, {following} FROM {EVENTS} "
            f"WHERE op <> {Operation.CORRECT_FROM:d}) AS followed "
            f"WHERE following IS NULL AND op <> {Operation.RETRACT:d}"
        )
    sign = f"CASE WHEN {_TAKES_BACK} THEN 1 ELSE 0 END"
    equal = f"et, {_data(width)}"
    return (
        f"SELECT o, {equal} FROM (SELECT *, row_number() OVER (PARTITION BY {sign}, {equal} ORDER BY o) AS r, "
        f"sum({sign}) OVER (PARTITION BY {equal}) AS gone FROM {EVENTS}) AS counted "
        f"WHERE NOT {_TAKES_BACK} AND r > gone"
    )


def _held(width: int, key: Sequence[int]) -> str:
    """As `current` of all events, where a key has one row at most: those that nothing took back since.

    Few ever are, so that they are found by a join with those few, and no row is looked at beside its neighbour.
    """
    closed = f"SELECT {_names(key)}, max(o) AS last FROM {EVENTS} WHERE {_TAKES_BACK} GROUP BY {_names(key)}"
    return (
        f"SELECT e.o, e.et, {_data(width, 'e.')} FROM {EVENTS} AS e LEFT JOIN ({closed}) AS closed "
        f"ON {_equal(key, 'e', 'closed')} WHERE NOT e.{_TAKES_BACK} AND (closed.last IS NULL OR e.o > closed.last)"
    )


def repeated_keys(key: Sequence[int], examples: int) -> str:
    """A few keys that several rows of the frame have."""
    names = _names(key)
    return f"SELECT {names} FROM {GIVEN} GROUP BY {names} HAVING count(*) > 1 ORDER BY {names} LIMIT {examples}"


def null_keys(key: Sequence[int]) -> str:
    """How many rows of the frame have a null in their key."""
    return f"SELECT count(*) AS n FROM {GIVEN} AS g WHERE {_null(key, 'g')}"


def _frame_order(width: int) -> tuple[str, ...]:
    # Rows of a frame without an order get the order of what they say.
    return "n", "et", *(f"c{i}" for i in range(width))


def _null(key: Sequence[int], of: str) -> str:
    # A time that is null is the source's.
    return " OR ".join(f"{of}.c{i} IS NULL" for i in key if i != EVENT_TIME) or "false"


def _name(column: int) -> str:
    return "et" if column == EVENT_TIME else f"c{column}"


def _names(columns: Sequence[int]) -> str:
    return ", ".join(map(_name, columns))


def _data(width: int, of: str = "") -> str:
    return ", ".join(f"{of}c{i}" for i in range(width))


def _equal(key: Sequence[int], one: str, other: str) -> str:
    return " AND ".join(f"{one}.{_name(i)} = {other}.{_name(i)}" for i in key)


def _unhashable(data_type: DataType, *, inside_list: bool = False) -> str | None:
    match data_type:
        case MapType():
            return "is, or holds, a map"
        case StructType(fields=fields):
            if inside_list:
                return "holds a struct inside a list"
            return next((reason for field in fields if (reason := _unhashable(field.type))), None)
        case ArrayType(element_type=element):
            return _unhashable(element, inside_list=True)
        case "timestamp_ntz":
            return "is, or holds, a timestamp without a time zone"
        case "variant" | "void":
            return f"is, or holds, a {data_type}"
        case _:
            return None
