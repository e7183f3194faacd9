"""What may be said of a history of events, and that asset metadata carries it."""

from datetime import timedelta
from typing import Any

import pytest
from pydantic import ValidationError

from dagster_versioned.tables.event_history import AppendMerge, EventHistory, LedgerMerge, SnapshotMerge
from dagster_versioned.tables.options import METADATA_KEY, TableOptions


@pytest.mark.parametrize(
    "history",
    [
        EventHistory(),
        EventHistory(merge=LedgerMerge(primary_key=("id",)), event_time="at", watermark="manual"),
        EventHistory(merge=SnapshotMerge(primary_key=("id", "part"), compare_columns=("value",)), offset="position"),
        EventHistory(merge=AppendMerge(), watermark=timedelta(days=1)),
    ],
)
def test_asset_metadata_carries_a_history(history: EventHistory):
    options = TableOptions(history=history)
    assert TableOptions.from_metadata(options.as_metadata()) == options


def test_asset_metadata_names_the_strategy():
    metadata = TableOptions(history=EventHistory(merge=SnapshotMerge(primary_key=("id",)))).as_metadata()
    assert metadata[METADATA_KEY] == {"history": {"merge": {"strategy": "snapshot", "primary_key": ["id"]}}}


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: SnapshotMerge(primary_key=()), "primary_key must name columns"),
        (lambda: LedgerMerge(primary_key=("id", "ID")), "primary_key must name columns, each once"),
        (lambda: SnapshotMerge(primary_key=("id",), compare_columns=("id",)), "a column of the primary key"),
        (lambda: EventHistory(merge=LedgerMerge(primary_key=("op",))), "'op' is a column that events are given"),
        (lambda: EventHistory(merge=SnapshotMerge(primary_key=("event_time",))), "it is no key of a Snapshot"),
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
