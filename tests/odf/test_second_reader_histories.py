"""Histories of any rows, by every merge strategy: the second reader accepts them and reads what the package reports."""

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from dagster_versioned.odf.event_table import EventTable
from dagster_versioned.projects.project import Project
from dagster_versioned.tables.event_history import (
    AppendMerge,
    ChangelogMerge,
    EventHistory,
    LedgerMerge,
    SnapshotMerge,
    UpsertMerge,
)
from support.second_reader_agreement import agrees

_NAN = float("nan")
COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "number": (pa.float64(), [None, 0.0, -0.0, _NAN, 1.5, float("inf")]),
    "text": (pa.string(), [None, "", "a", "A", "a "]),
    "price": (pa.decimal128(10, 2), [None, Decimal("0.00"), Decimal("-1.10")]),
    "tags": (pa.list_(pa.string()), [None, [], ["x"], [None]]),
    "place": (
        pa.struct([("a", pa.float64()), ("b", pa.string())]),
        [None, {"a": None, "b": None}, {"a": -0.0, "b": "x"}, {"a": 0.0, "b": "x"}, {"a": _NAN, "b": ""}],
    ),
    "raw": (pa.binary(), [None, b"", b"\0"]),
    "day": (pa.date32(), [None, date(1960, 1, 1), date(2020, 1, 1)]),
    "event_time": (
        pa.timestamp("us", "UTC"),
        [None, datetime(2000, 1, 1, tzinfo=UTC), datetime(2010, 1, 1, tzinfo=UTC)],
    ),
}
KEY = ("id",)
MERGES = st.sampled_from(
    [
        AppendMerge(),
        LedgerMerge(primary_key=KEY),
        SnapshotMerge(primary_key=KEY),
        SnapshotMerge(primary_key=KEY, compare_columns=("text",)),
        UpsertMerge(primary_key=KEY),
        ChangelogMerge(primary_key=KEY),
    ]
)
OTHERS = st.sets(st.sampled_from([name for name in COLUMNS if name != "text"]), max_size=4)


def frame(rows: list[dict[str, Any]], names: list[str]) -> pa.Table:
    kinds = {"id": pa.int64(), "op": pa.int32()} | {name: kind for name, (kind, _) in COLUMNS.items()}
    return pa.table({name: pa.array([row.get(name) for row in rows], kinds[name]) for name in names})


def changed(drawn: list[dict[str, Any]], now: dict[int, dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows as a change feed has them: each is appended, taken back or put in the place of the one with its key."""
    events: list[dict[str, Any]] = []
    for row in drawn:
        old = now.pop(row["id"], None)
        # What is taken back has the time that it had, which a row without a time does not repeat.
        back = {} if old is None else old | {"event_time": None}
        if old is not None and row["op"] == 1:
            events.append(back | {"op": 1})
            continue
        events += [row | {"op": 0}] if old is None else [back | {"op": 2}, row | {"op": 3}]
        now[row["id"]] = row
    return events


def write(events: EventTable, dumps: list[list[dict[str, Any]]], names: list[str]) -> None:
    """Dump after dump; the second one has a column more than the first, if there are several."""
    now: dict[int, dict[str, Any]] = {}
    assert events.history is not None
    operation = ["op"] if events.history.takes_operations else []
    for number, dump in enumerate(dumps):
        columns = ["id", *operation, *(names if number else names[: max(1, len(names) - 1)])]
        rows = [{name: row[name] for name in {*columns, "op"}} for row in dump]
        if isinstance(events.history.merge, SnapshotMerge):
            rows = list({row["id"]: row for row in rows}.values())
        elif isinstance(events.history.merge, ChangelogMerge):
            rows = changed(rows, now)
        events.write(frame(rows, columns), event_time=datetime(2013 + number, 1, 1, tzinfo=UTC))


# A history takes long to shrink.
@settings(max_examples=4, phases=[Phase.generate], report_multiple_bugs=False)
@given(st.data())
def test_any_history_is_accepted(data: st.DataObject) -> None:
    _accepted(data)


@pytest.mark.slow
@settings(max_examples=150, phases=[Phase.generate], report_multiple_bugs=False)
@given(st.data())
def test_many_histories_are_accepted(data: st.DataObject) -> None:
    _accepted(data)


def _accepted(data: st.DataObject) -> None:
    names = ["text", *sorted(data.draw(OTHERS))]
    values = {name: st.sampled_from(COLUMNS[name][1]) for name in names}
    row = st.fixed_dictionaries({"id": st.integers(1, 3), "op": st.sampled_from([0, 1, 3]), **values})
    dumps = data.draw(st.lists(st.lists(row, min_size=1, max_size=5), min_size=1, max_size=3))
    with TemporaryDirectory() as folder:
        events = EventTable(Project.open("P", folder).table("rows"), EventHistory(merge=data.draw(MERGES)))
        write(events, dumps, names)
        agrees(Path(folder) / "datom/rows", events)
