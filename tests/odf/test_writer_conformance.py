"""What a write makes of rows, beside what the reference implementation's writer makes of the same.

The cases are those of https://github.com/kamu-data/kamu-cli at f95532386, in src/infra/core/tests/tests/ingest,
test_writer.rs
(20 functions). Those about how Parquet is encoded and how a writer is opened are its own affair.
"""

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from dagster_versioned.errors import UnsupportedType
from dagster_versioned.odf.blocks.data_schema import DataTypeOption
from dagster_versioned.odf.blocks.events import SetDataSchema
from dagster_versioned.odf.event_table import EventTable
from dagster_versioned.projects.project import Project
from dagster_versioned.tables.event_history import AppendMerge, EventHistory, LedgerMerge, SnapshotMerge

NOON = datetime(2000, 1, 1, 12, tzinfo=UTC)
CITIES = {"city": ["A", "B", "C"], "population": [1000, 2000, 3000]}
MORE = {"city": ["A", "B", "C", "D"], "population": [1000, 2000, 3000, 4000], "url": [None, "b", None, "d"]}

MERGES: dict[str, Any] = {
    "append": AppendMerge(),
    "ledger": LedgerMerge(primary_key=("city",)),
    "snapshot": SnapshotMerge(primary_key=("city",)),
}


@pytest.fixture
def written(tmp_path):
    def table(merge: Any, *frames: dict[str, Any]) -> EventTable:
        made = EventTable(Project.open("P", str(tmp_path)).table("cities"), EventHistory(merge=merge))
        for frame in frames:
            made.write(pa.table(frame), event_time=NOON)
        return made

    return table


def events(table: EventTable, *names: str) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in table.events().select(["op", *names]).to_pylist()]


def test_a_batch_keeps_the_order_of_its_frame(written):
    """`ledger_orders_by_event_time`: there A, C, B. See docs/reference/odf.md, where this differs."""
    years = [datetime(year, 1, 1, tzinfo=UTC).date() for year in (2021, 2023, 2022)]
    table = written(LedgerMerge(primary_key=("event_time", "city")), {"event_time": years, **CITIES})
    assert events(table, "city") == [(0, "A"), (0, "B"), (0, "C")]
    assert str(table.chain.watermark) == "2023-01-01T00:00:00Z"  # as there


def test_a_snapshot_is_in_the_order_of_keys_and_operations(written):
    """`snapshot_orders_by_pk_and_operation_type`: the same."""
    before = {"city": ["D", "C", "B", "A"], "population": [4000, 3000, 2000, 1000]}
    after = {"city": ["D", "C", "B"], "population": [5000, 3000, 4000]}
    table = written(MERGES["snapshot"], before, after)
    assert events(table, "city", "population") == [
        *((0, *row) for row in zip("ABCD", (1000, 2000, 3000, 4000), strict=True)),
        (1, "A", 1000),
        (2, "B", 2000),
        (3, "B", 4000),
        (2, "D", 4000),
        (3, "D", 5000),
    ]


@pytest.mark.parametrize(
    ("merge", "expected"),
    [
        ("append", [(0, "A", None), (0, "B", "b"), (0, "C", None), (0, "D", "d")]),
        ("ledger", [(0, "D", "d")]),
        ("snapshot", [(2, "B", None), (3, "B", "b"), (0, "D", "d")]),
    ],
)
def test_a_column_that_is_new_is_null_before(written, merge: str, expected: list[Any]):
    """`schema_evolution_add_optional_field_merge_append`, `…_ledger`, `…_snapshot`: the same."""
    table = written(MERGES[merge], CITIES, MORE)
    assert events(table, "city", "url")[3:] == expected


def test_a_column_of_another_type_is_refused(written):
    """`rejects_incompatible_schema`: the same, and nothing is coerced."""
    table = written(MERGES["append"], CITIES)
    with pytest.raises(UnsupportedType, match="'population'"):
        table.write(pa.table({"city": ["D"], "population": ["many"]}))


def test_times_are_in_utc_and_milliseconds(written):
    """`normalizes_timestamps_to_utc_millis`: the same."""
    oslo = pa.array([datetime(2000, 1, 1, tzinfo=UTC)], pa.timestamp("us", "Europe/Oslo"))
    table = written(MERGES["append"], {"event_time": oslo, "city": ["A"]})
    schema = table.chain.arrow_schema()
    assert schema is not None
    assert schema.field("system_time").type == schema.field("event_time").type == pa.timestamp("ms", "UTC")
    assert not any(schema.field(name).nullable for name in ("offset", "op", "system_time", "event_time"))


def test_data_may_be_null_whatever_a_frame_says(written):
    """`nullability_required_to_optional_incompatible`: there the second frame is refused."""
    required = pa.schema([pa.field("city", pa.string(), nullable=False)])
    table = written(MERGES["append"])
    table.write(pa.table({"city": ["A"]}, schema=required))
    table.write(pa.table({"city": pa.array([None], pa.string())}))
    (stated,) = (block.event for _, block in table.blocks() if isinstance(block.event, SetDataSchema))
    assert stated.schema is not None
    assert isinstance(stated.schema.fields[-1].type, DataTypeOption)
    assert events(table, "city") == [(0, "A"), (0, None)]


def test_columns_are_stated_by_the_first_write_and_nothing_by_one_that_brings_nothing(written):
    """`happy_path`: the same, and where that has an error, this has no block."""
    table = written(MERGES["snapshot"], {"city": pa.array([], pa.string())})
    assert [type(block.event).__name__ for _, block in table.blocks()][::-1][:3] == [
        "Seed",
        "AddPushSource",
        "SetDataSchema",
    ]
    table.write(pa.table({"city": ["A"]}), event_time=NOON)
    head = table.chain.head
    assert table.write(pa.table({"city": ["A"]}), event_time=NOON).change == "none"
    assert table.chain.head == head
