"""What frames become in a history of events, rule by rule, and that events come to the frames again."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_versioned.errors import InvalidInput, UnsupportedType
from dagster_versioned.odf import event_sql as events
from dagster_versioned.odf.arrow.events import ArrowEvents
from dagster_versioned.odf.event_sql import EventSchema
from dagster_versioned.tables.event_history import EventColumns
from support.odf_streams import CHANGELOGS, MORE_CHANGELOGS, MORE_UPSERTS, UPSERTS, Change

ENGINE = ArrowEvents()
FIRST = datetime(2020, 1, 1, tzinfo=UTC)
TIMES = pa.timestamp("us", tz="UTC")

Row = tuple[Any, ...]


def year(number: int) -> datetime:
    return FIRST.replace(year=number)


def frame(*rows: Row, names: Sequence[str] = ("id", "value", "note"), times: Sequence[Any] | None = None) -> pa.Table:
    kinds = {"id": pa.int64(), "value": pa.float64(), "note": pa.string(), "extra": pa.string()}
    columns = {name: pa.array([row[i] for row in rows], kinds[name]) for i, name in enumerate(names)}
    return pa.table(columns if times is None else {"event_time": pa.array(times, TIMES), **columns})


@dataclass
class History:
    """Events in memory, each merge as late as it is numbered."""

    strategy: str
    compared: Sequence[int] | None = None
    rows: pa.Table | None = None
    schema: EventSchema | None = None
    merges: int = 0
    key: Sequence[int] = field(default=(0,))

    def add(self, rows: pa.Table, at: datetime = FIRST) -> list[Row]:
        """The events that a frame becomes: operation, year of event time, data."""
        self.schema = EventSchema.of(ENGINE.schema(rows).drop(["op"]), EventColumns(), self.schema)
        width = len(self.schema.data.fields)
        others = [events.EVENT_TIME, *(i for i in range(width) if i not in self.key)]
        compared = others if self.compared is None else self.compared
        query = {
            "append": lambda: events.append(width),
            "ledger": lambda: events.ledger(width, self.key),
            "snapshot": lambda: events.snapshot(width, self.key, compared),
            "upsert": lambda: events.upsert(width, self.key),
            "changelog": lambda: events.changelog(width, self.key),
        }[self.strategy]()
        made = ENGINE.merge(rows, self.rows, self.schema, query, at)
        start, count = 0 if self.rows is None else self.rows.num_rows, made.num_rows
        self.merges += 1
        given = [pa.array(range(start, start + count), pa.int64()), made["op"]]
        times = [pa.repeat(pa.scalar(self.known_at(self.merges), TIMES), count), made["et"]]
        data = [made[f"c{i}"] for i in range(width)]
        new = pa.table([*given, *times, *data], names=list(self.schema.stored.names))
        self.rows = new if self.rows is None else pa.concat_tables([self.rows, new], promote_options="default")
        return [
            (op, et.year, *rest)
            for op, et, *rest in zip(*(made[n].to_pylist() for n in made.column_names), strict=True)
        ]

    @staticmethod
    def known_at(merge: int) -> datetime:
        return FIRST + timedelta(days=merge)

    def current(self, *, keyed: bool = True, **until: datetime) -> list[Row]:
        assert self.schema is not None
        found = ENGINE.current(self.rows, self.schema, self.key if keyed else (), until)
        return sorted(zip(*(found[name].to_pylist() for name in self.schema.data.names), strict=True), key=repr)


A, R, C_FROM, C_TO = 0, 1, 2, 3

RULES: dict[str, tuple[str, dict[str, Any], list[tuple[pa.Table, list[Row]]]]] = {
    "append takes every row as it is, equal ones too, in their order": (
        "append",
        {},
        [
            (
                frame((2, 1.0, "b"), (1, 1.0, "a"), (2, 1.0, "b")),
                [(A, 2020, 2, 1.0, "b"), (A, 2020, 1, 1.0, "a"), (A, 2020, 2, 1.0, "b")],
            ),
            (frame((2, 1.0, "b")), [(A, 2020, 2, 1.0, "b")]),
        ],
    ),
    "append takes a null event time for the source's, and keeps others": (
        "append",
        {},
        [
            (
                frame((1, 1.0, "a"), (2, 1.0, "b"), times=[None, year(1999)]),
                [(A, 2020, 1, 1.0, "a"), (A, 1999, 2, 1.0, "b")],
            )
        ],
    ),
    "ledger drops keys that were seen, whatever else they say": (
        "ledger",
        {},
        [
            (frame((2, 1.0, "b"), (1, 1.0, "a")), [(A, 2020, 2, 1.0, "b"), (A, 2020, 1, 1.0, "a")]),
            (frame((1, 9.0, "changed"), (3, 1.0, "c"), (2, 1.0, "b")), [(A, 2020, 3, 1.0, "c")]),
            (frame((1, 9.0, "changed")), []),
        ],
    ),
    "ledger takes the first of several rows with one key": (
        "ledger",
        {},
        [
            (
                frame((1, 5.0, "first"), (2, 1.0, "b"), (1, 4.0, "second")),
                [(A, 2020, 1, 5.0, "first"), (A, 2020, 2, 1.0, "b")],
            )
        ],
    ),
    "snapshot: a key that appears is appended, in the order of keys": (
        "snapshot",
        {},
        [
            (frame((2, 1.0, "b"), (1, 1.0, None)), [(A, 2020, 1, 1.0, None), (A, 2020, 2, 1.0, "b")]),
            (frame((1, 1.0, None), (0, 0.0, "z"), (2, 1.0, "b")), [(A, 2020, 0, 0.0, "z")]),
        ],
    ),
    "snapshot: a key that disappears is retracted, with all its data": (
        "snapshot",
        {},
        [
            (frame((1, 1.0, "a"), (2, 2.0, None)), [(A, 2020, 1, 1.0, "a"), (A, 2020, 2, 2.0, None)]),
            (frame((1, 1.0, "a")), [(R, 2020, 2, 2.0, None)]),
            (frame((1, 1.0, "a"), (2, 3.0, None)), [(A, 2020, 2, 3.0, None)]),
        ],
    ),
    "snapshot: a row that changed is corrected, from what it was to what it is, one after the other": (
        "snapshot",
        {},
        [
            (frame((1, 1.0, "a"), (2, 2.0, None)), [(A, 2020, 1, 1.0, "a"), (A, 2020, 2, 2.0, None)]),
            (
                frame((1, None, "a"), (2, 2.0, "b")),
                [
                    (C_FROM, 2020, 1, 1.0, "a"),
                    (C_TO, 2020, 1, None, "a"),
                    (C_FROM, 2020, 2, 2.0, None),
                    (C_TO, 2020, 2, 2.0, "b"),
                ],
            ),
        ],
    ),
    "snapshot: NaN is NaN, and null is null": (
        "snapshot",
        {},
        [
            (frame((1, float("nan"), None)), [(A, 2020, 1, pytest.approx(float("nan"), nan_ok=True), None)]),
            (frame((1, float("nan"), None)), []),
        ],
    ),
    "snapshot: columns that are not compared make no change, and come with one": (
        "snapshot",
        {"compared": [1]},
        [
            (frame((1, 1.0, "a")), [(A, 2020, 1, 1.0, "a")]),
            (frame((1, 1.0, "other")), []),
            (frame((1, 2.0, "other")), [(C_FROM, 2020, 1, 1.0, "a"), (C_TO, 2020, 1, 2.0, "other")]),
        ],
    ),
    "snapshot: a null event time says nothing of time, another one is compared": (
        "snapshot",
        {},
        [
            (frame((1, 1.0, "a"), times=[year(2001)]), [(A, 2001, 1, 1.0, "a")]),
            (frame((1, 1.0, "a"), times=[None]), []),
            (frame((1, 1.0, "a"), times=[year(2001)]), []),
            (frame((1, 1.0, "a"), times=[year(2002)]), [(C_FROM, 2001, 1, 1.0, "a"), (C_TO, 2002, 1, 1.0, "a")]),
            (frame((1, 5.0, "a"), times=[None]), [(C_FROM, 2002, 1, 1.0, "a"), (C_TO, 2020, 1, 5.0, "a")]),
            (frame(times=[]), [(R, 2020, 1, 5.0, "a")]),
        ],
    ),
    "snapshot: a new column is null in what was there": (
        "snapshot",
        {},
        [
            (frame((1, 1.0, "a"), (2, 1.0, "b")), [(A, 2020, 1, 1.0, "a"), (A, 2020, 2, 1.0, "b")]),
            (
                frame((1, 1.0, "a", "new"), (2, 1.0, "b", None), names=("id", "value", "note", "extra")),
                [(C_FROM, 2020, 1, 1.0, "a", None), (C_TO, 2020, 1, 1.0, "a", "new")],
            ),
        ],
    ),
}


def changes(rows: list[Change]) -> pa.Table:
    """A frame of changes, at the beginning of their years."""
    return pa.table(
        {
            "op": pa.array([row[0] for row in rows], pa.int32()),
            "event_time": pa.array([year(row[1]) for row in rows], TIMES),
            "city": pa.array([row[2] for row in rows], pa.string()),
            "population": pa.array([row[3] for row in rows], pa.int64()),
        }
    )


STREAMS = {
    f"{strategy}: {name}": (strategy, case)
    for strategy, cases in (("upsert", UPSERTS | MORE_UPSERTS), ("changelog", CHANGELOGS | MORE_CHANGELOGS))
    for name, case in cases.items()
}


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_of_changes(name: str) -> None:
    strategy, (before, given, expected) = STREAMS[name]
    history = History("changelog", key=(events.EVENT_TIME, 0))
    if before:
        history.add(changes(before))
    history.strategy = strategy
    assert history.add(changes(given)) == expected


@pytest.mark.parametrize("rule", RULES)
def test_merge(rule: str):
    strategy, options, merges = RULES[rule]
    history = History(strategy, **options)
    for rows, expected in merges:
        assert history.add(rows) == expected


def test_a_key_of_several_columns():
    history = History("snapshot", key=(0, 2))
    history.add(frame((1, 1.0, "a"), (1, 2.0, "b")))
    assert history.add(frame((1, 1.0, "a"), (1, 3.0, "b"))) == [(C_FROM, 2020, 1, 2.0, "b"), (C_TO, 2020, 1, 3.0, "b")]
    assert history.current() == [(1, 1.0, "a"), (1, 3.0, "b")]


def test_the_event_time_in_the_key_of_a_ledger():
    history = History("ledger", key=(events.EVENT_TIME, 0))
    history.add(frame((1, 1.0, "a"), (2, 1.0, "b"), times=[year(2001), None]))
    again = frame((1, 2.0, "a"), (1, 1.0, "a"), (2, 1.0, "b"), times=[year(2001), year(2002), None])
    assert history.add(again) == [(A, 2002, 1, 1.0, "a")]
    assert len(history.current()) == 3


def test_event_times_that_are_dates():
    rows = pa.table({"event_time": pa.array([date(2001, 5, 1), None], pa.date32()), "id": [1, 2]})
    history = History("snapshot")
    assert history.add(rows) == [(A, 2001, 1), (A, 2020, 2)]
    assert history.current(event_time=year(2010)) == [(1,)]


@pytest.mark.parametrize("repeated", [(5, 5), (1, 1), (1, 5), (5, 6)], ids=str)
def test_a_key_of_several_rows_is_noticed_whatever_they_say(repeated: tuple[float, float]):
    schema, rows = schema_of(frame()), frame((1, 1.0, "a"), (2, 2.0, "b"))
    for known, key in ((None, 1), (rows, 1), (rows, 3)):
        engine, history = ArrowEvents(), History("snapshot")
        if known is not None:
            history.add(known)
        for values, expected in (((9,), False), (repeated, True)):
            dump = frame((2, 2.0, "b"), *((key, float(value), "a") for value in values))
            engine.merge(dump, history.rows, schema, events.snapshot(3, (0,), (1, 2)), FIRST)
            assert engine.may_repeat(0, 0) is expected


# --- projections -----------------------------------------------------------------------------------------------------


def test_as_of_an_event_time_is_what_is_known_now_of_then():
    history = History("snapshot")
    history.add(frame((1, 100.0, "plane"), (2, 1.0, "wrong")), year(2013))
    history.add(frame((1, 120.0, "plane"), (2, 1.0, "wrong")), year(2014))
    history.add(frame((1, 120.0, "plane"), (2, 2.0, "wrong"), times=[None, year(2013)]), year(2015))
    assert history.current(event_time=year(2012)) == []
    assert history.current(event_time=year(2013)) == [(1, 100.0, "plane"), (2, 2.0, "wrong")]
    assert history.current(event_time=year(2014)) == [(1, 120.0, "plane"), (2, 2.0, "wrong")]
    assert history.current(event_time=year(2013), system_time=history.known_at(2)) == [
        (1, 100.0, "plane"),
        (2, 1.0, "wrong"),
    ]


def test_what_was_retracted_is_not_known_any_more():
    history = History("snapshot")
    history.add(frame((1, 100.0, "plane")), year(2013))
    history.add(frame((1, 120.0, "plane")), year(2014))
    history.add(frame(), year(2015))
    assert history.current(event_time=year(2013)) == [(1, 100.0, "plane")]
    assert history.current(event_time=year(2014)) == []
    assert history.current(system_time=history.known_at(2)) == [(1, 120.0, "plane")]
    assert history.current() == []


def test_without_a_key_a_row_is_there_as_often_as_it_was_appended_and_not_taken_back():
    schema = EventSchema.of(ENGINE.schema(frame((1, 1.0, "a"))), EventColumns(), None)
    operations = [A, A, A, R, C_FROM, C_TO]
    values = [1, 1, 2, 1, 2, 3]
    rows = pa.table(
        {
            "offset": pa.array(range(6), pa.int64()),
            "op": pa.array(operations, pa.int32()),
            "system_time": pa.repeat(pa.scalar(FIRST, TIMES), 6),
            "event_time": pa.repeat(pa.scalar(FIRST, TIMES), 6),
            "id": pa.array(values, pa.int64()),
            "value": pa.nulls(6, pa.float64()),
            "note": pa.nulls(6, pa.string()),
        }
    )
    assert ENGINE.current(rows, schema, (), {})["id"].to_pylist() == [1, 3]


# --- properties ------------------------------------------------------------------------------------------------------

VALUES = st.sampled_from([None, 0.0, 1.5, float("nan")])
NOTES = st.sampled_from([None, "", "a", "ä"])
DATA = st.tuples(VALUES, NOTES)
DUMPS = st.lists(st.dictionaries(st.integers(0, 5), DATA, max_size=5), min_size=1, max_size=6)
YEARS = st.sampled_from([None, 2001, 2002, 2003])


def of(dump: dict[int, tuple[Any, ...]]) -> list[Row]:
    return sorted(((key, *data) for key, data in dump.items()), key=repr)


@settings(max_examples=20)
@given(DUMPS, st.randoms(use_true_random=False))
def test_dumps_are_what_their_events_come_to_at_any_system_time(dumps: list[dict[int, Any]], random: Any):
    history = History("snapshot")
    for dump in dumps:
        rows = of(dump)
        random.shuffle(rows)
        history.add(frame(*rows))
    assert history.add(frame(*of(dumps[-1]))) == []
    for number, dump in enumerate(dumps):
        at = history.known_at(number + 1) + timedelta(hours=1)
        assert repr(history.current(system_time=at)) == repr(of(dump))
        # Retractions and corrections carry what they take back, so counting rows comes to the same.
        assert repr(history.current(system_time=at, keyed=False)) == repr(of(dump))


@settings(max_examples=20)
@given(
    st.lists(st.dictionaries(st.integers(0, 3), st.tuples(VALUES, NOTES, YEARS), max_size=4), min_size=1, max_size=5)
)
def test_corrections_follow_what_they_correct(dumps: list[dict[int, Any]]):
    history = History("snapshot")
    for dump in dumps:
        times = [None if when is None else year(when) for *_, when in dump.values()]
        history.add(frame(*((key, *data[:2]) for key, data in dump.items()), times=times))
    assert history.rows is not None
    open_rows: dict[int, Any] = {}
    found = history.rows.to_pylist()
    for i, event in enumerate(found):
        said = repr({name: event[name] for name in ("event_time", "id", "value", "note")})
        match event["op"]:
            case 0:
                assert event["id"] not in open_rows
                open_rows[event["id"]] = said
            case 1:
                assert open_rows.pop(event["id"]) == said
            case 2:
                assert open_rows.pop(event["id"]) == said
                assert (found[i + 1]["op"], found[i + 1]["id"]) == (3, event["id"])
            case _:
                assert (found[i - 1]["op"], found[i - 1]["id"]) == (2, event["id"])
                open_rows[event["id"]] = said
    assert repr(history.current()) == repr(history.current(event_time=year(2100)))
    assert repr(history.current()) == repr(history.current(keyed=False))
    assert repr(history.current()) == repr(of({key: data[:2] for key, data in dumps[-1].items()}))


@settings(max_examples=20)
@given(
    st.lists(st.tuples(st.integers(0, 5), VALUES, NOTES), max_size=12), st.sampled_from(["append", "ledger"]), st.data()
)
def test_batches_do_not_matter(rows: list[Row], strategy: str, data: st.DataObject):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=4)))
    whole, split = History(strategy), History(strategy)
    whole.add(frame(*rows))
    for start, stop in zip([0, *cuts], [*cuts, len(rows)], strict=True):
        split.add(frame(*rows[start:stop]))
    keyed = strategy == "ledger"
    assert repr(whole.current(keyed=keyed)) == repr(split.current(keyed=keyed))
    assert whole.rows is not None
    assert split.rows is not None
    told = ["offset", "op", "event_time", "id", "value", "note"]
    assert repr(whole.rows.select(told).to_pylist()) == repr(split.rows.select(told).to_pylist())


# --- what is refused -------------------------------------------------------------------------------------------------


def schema_of(rows: pa.Table, known: EventSchema | None = None) -> EventSchema:
    return EventSchema.of(ENGINE.schema(rows), EventColumns(), known)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"a": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64()))}, "'a' is, or holds, a map"),
        ({"a": pa.array([[{"b": 1}]])}, "'a' holds a struct inside a list"),
        ({"a": pa.array([FIRST.replace(tzinfo=None)])}, "'a' is, or holds, a timestamp without a time zone"),
        ({"a": [1], "Offset": [1]}, "a column 'offset', which every event is given"),
        ({"event_time": [1], "a": [1]}, "'event_time' is a long, which is no moment"),
        ({"event_time": pa.array([FIRST])}, "no data beside 'event_time'"),
    ],
)
def test_columns_that_a_history_cannot_hold(columns: dict[str, Any], said: str):
    with pytest.raises(InvalidInput, match=said):
        schema_of(pa.table(columns))


def test_a_history_keeps_its_columns():
    known = schema_of(frame((1, 1.0, "a")))
    with pytest.raises(InvalidInput, match="no column 'note'"):
        schema_of(frame((1, 1.0), names=("id", "value")), known)
    with pytest.raises(UnsupportedType, match="Column 'id'"):
        schema_of(pa.table({"id": ["1"], "value": [1.0], "note": ["a"]}), known)
    with pytest.raises(InvalidInput, match="is a date in the frame, and a timestamp in the history"):
        schema_of(frame((1, 1.0, "a")).append_column("event_time", pa.array([date(2020, 1, 1)])), known)


def test_keys_that_do_not_tell_rows_apart():
    rows = frame((1, 1.0, "a"), (1, 2.0, "b"), (None, 1.0, "c"), (2, 1.0, "d"))
    assert ENGINE.bad_keys(rows, schema_of(rows), (0,)) == (1, [(1,)])
    history = History("snapshot")
    history.add(frame((1, 1.0, "a"), (2, 1.0, "d")))
    assert [op for op, _, key, *_ in history.add(rows) if key is None] == [events.REFUSED]
    told = History("ledger").add(rows)
    assert [(op, key) for op, _, key, *_ in told] == [(A, 1), (events.REFUSED, None), (A, 2)]
