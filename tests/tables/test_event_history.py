"""What may be said of a history of events, and that asset metadata carries it."""

from datetime import timedelta
from typing import Any

import pytest
from pydantic import ValidationError

from dagster_versioned.tables.event_history import Append, EventHistory, Ledger, Snapshot
from dagster_versioned.tables.options import METADATA_KEY, TableOptions


@pytest.mark.parametrize(
    "history",
    [
        EventHistory(),
        EventHistory(merge=Ledger(primary_key=("id",)), event_time="at", watermark="manual"),
        EventHistory(merge=Snapshot(primary_key=("id", "part"), compare_columns=("value",)), offset="position"),
        EventHistory(merge=Append(), watermark=timedelta(days=1)),
    ],
)
def test_asset_metadata_carries_a_history(history: EventHistory):
    options = TableOptions(history=history)
    assert TableOptions.from_metadata(options.as_metadata()) == options


def test_asset_metadata_names_the_strategy():
    metadata = TableOptions(history=EventHistory(merge=Snapshot(primary_key=("id",)))).as_metadata()
    assert metadata[METADATA_KEY] == {"history": {"merge": {"strategy": "snapshot", "primary_key": ["id"]}}}


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: Snapshot(primary_key=()), "primary_key must name columns"),
        (lambda: Ledger(primary_key=("id", "ID")), "primary_key must name columns, each once"),
        (lambda: Snapshot(primary_key=("id",), compare_columns=("id",)), "a column of the primary key"),
        (lambda: EventHistory(merge=Ledger(primary_key=("op",))), "'op' is a column that events are given"),
        (lambda: EventHistory(merge=Snapshot(primary_key=("event_time",))), "it is no key of a Snapshot"),
        (lambda: EventHistory(offset="op"), "each once"),
        (lambda: EventHistory(watermark=timedelta(days=-1)), "is negative"),
        (lambda: TableOptions(history=EventHistory(), mode="append"), "leave out mode='append'"),
        (lambda: TableOptions(history=EventHistory(), sort_rows=("id",)), "leave out sort_rows"),
        (lambda: TableOptions(history=EventHistory(), partition_columns=("id",)), "leave out partition_columns"),
    ],
)
def test_what_contradicts_itself_is_refused(made: Any, said: str):
    with pytest.raises(ValidationError, match=said):
        made()
