"""Datasets that are derived from others: what runs append and record, and that they can be repeated."""

from dataclasses import replace
from datetime import timedelta

import pyarrow as pa
import pytest

from dagster_versioned.errors import IntegrityError, InvalidInput
from dagster_versioned.odf.blocks.events import ExecuteTransform, OffsetInterval, Seed, SetDataSchema, SetTransform
from dagster_versioned.odf.event_table import EventTable
from dagster_versioned.odf.queries.engine_versions import deprecate_engines, known_to_agree
from dagster_versioned.odf.queries.provenance import explain
from dagster_versioned.odf.queries.transform import Derivation, InputAt, derive, replay
from dagster_versioned.odf.transform_query import QueryKind, QueryStep, TransformQuery
from dagster_versioned.tables.event_history import SnapshotMerge
from support.derived import SCHEMA, House
from support.transforms import START, at

pytestmark = pytest.mark.spark

LATE = "SELECT event_time, id, delay FROM flights WHERE delay > 6"
COUNTS = "SELECT max(event_time) AS event_time, carrier, count(*) AS n FROM flights GROUP BY carrier"


@pytest.fixture
def house(project):
    return House(project)


@pytest.mark.slow
def test_a_run_is_recorded_with_its_query_its_engine_and_its_intervals(spark, house):
    house.write((at(1), 1, "UA", 5), (at(2), 2, "AA", 9))
    made = house.derive(LATE)
    assert made.kind is QueryKind.MAP
    assert house.events("late", "id", "delay") == [(0, 2, 9)]
    events = [block.event for _, block in house.chain()]
    assert [type(event) for event in events] == [Seed, SetTransform, SetDataSchema, ExecuteTransform]
    sql = events[1].transform
    assert (sql.engine, sql.version, sql.query) == ("spark", spark.version, LATE)
    (entry,) = events[1].inputs
    flights = EventTable(house.project.table("flights")).chain
    assert (entry.alias, entry.dataset_ref) == ("flights", str(flights.seed.dataset_id))
    (taken,) = events[3].query_inputs
    assert (taken.prev_block_hash, taken.new_block_hash) == (None, flights.head)
    assert (taken.prev_offset, taken.new_offset) == (None, 1)
    assert events[3].new_watermark == flights.watermark

    assert house.derive(LATE).kind is None  # nothing is new, and nothing is written
    assert len(house.chain()) == 4
    house.write((at(0), 3, "UA", 7))
    house.derive(LATE)
    last = house.chain()[-1][1].event
    assert last.prev_offset == 0
    assert (last.query_inputs[0].prev_offset, last.query_inputs[0].new_offset) == (1, 2)
    assert last.query_inputs[0].prev_block_hash == flights.head
    assert house.events("late", "id") == [(0, 2), (0, 3)]
    assert house.replays(spark) == [True, True]


@pytest.mark.slow
def test_events_that_give_no_rows_are_taken_all_the_same(spark, house):
    house.write((at(1), 1, "UA", 1))
    house.derive(LATE)
    event = house.chain()[-1][1].event
    assert (event.new_data, event.query_inputs[0].new_offset) == (None, 0)
    assert house.derive(LATE).kind is None


@pytest.mark.slow
def test_late_rows_correct_what_was_derived_through_two_datasets(spark, house):
    house.write((at(1), 1, "UA", 7), (at(2), 2, "AA", 9), merge=SnapshotMerge(primary_key=("id",)))
    counts = "SELECT max(event_time) AS event_time, delay, count(*) AS n FROM late GROUP BY delay"
    house.derive(LATE)
    house.derive(counts, "counts", ("late",))
    house.write((at(1), 1, "UA", 7), (at(3), 2, "AA", 7), merge=SnapshotMerge(primary_key=("id",)))
    house.derive(LATE)
    house.derive(counts, "counts", ("late",))
    assert house.events("late", "id", "delay") == [(0, 1, 7), (0, 2, 9), (2, 2, 9), (3, 2, 7)]
    now = EventTable(house.project.table("counts")).current()
    assert [(row["delay"], row["n"]) for row in now.to_pylist()] == [(7, 2)]
    assert house.replays(spark) == [True, True]
    assert house.replays(spark, "counts") == [True, True]

    dataset, head = house.dataset("counts"), EventTable(house.project.table("counts")).chain.head
    offset = now.num_rows and house.events("counts", "offset")[-1][1]
    found = explain(dataset, head, offset, house.by_id, spark)
    assert (found.values["delay"], found.values["n"]) == (7, 2)
    assert [at for _, at in found.rows] == [0, 3]
    _, second = found.inputs
    assert (second.values["id"], second.transform.query) == (2, LATE)
    (root,) = second.inputs
    assert (root.values["carrier"], root.values["delay"], root.rows, root.inputs) == ("AA", 7, (), ())
    gone = explain(dataset, head, offset - 2, house.by_id, spark)
    assert gone.taken_back is not None
    assert [one.values["delay"] for one in gone.taken_back.inputs] == [gone.values["delay"]]


@pytest.mark.slow
def test_a_forged_slice_is_found_by_doing_the_run_again(spark, house):
    house.write((at(1), 1, "UA", 7))
    house.derive(LATE)
    _, block = house.chain()[-1]
    other = EventTable(house.project.table("flights")).chain
    assert other.last_offset == 0
    forged = replace(block.event.new_data, logical_hash=replace(block.event.new_data.logical_hash, digest=b"\1" * 32))
    told = replace(block, event=replace(block.event, new_data=forged))
    assert replay(house.dataset(), told, house.by_id, spark) != told.event
    assert replay(house.dataset(), told, house.by_id, spark) == block.event


@pytest.mark.slow
def test_a_changed_query_is_recorded_and_corrects_what_the_old_one_gave(spark, house):
    house.write((at(1), 1, "UA", 7), (at(2), 2, "AA", 9))
    house.derive(LATE)
    changed = "SELECT event_time, id, delay, carrier FROM flights WHERE delay > 8"
    assert house.derive(changed).kind is QueryKind.WHOLE
    assert house.events("late", "id", "carrier") == [
        (0, 1, None),
        (0, 2, None),
        (1, 1, None),
        (1, 2, None),
        (0, 2, "AA"),
    ]
    kinds = [type(block.event) for _, block in house.chain()[4:]]
    assert kinds == [SetTransform, SetDataSchema, ExecuteTransform]
    house.write((at(3), 3, "UA", 9))
    assert house.derive(changed).kind is QueryKind.MAP
    assert house.replays(spark) == [True, True, True]
    with pytest.raises(InvalidInput, match="'carrier'"):
        house.derive(LATE)


@pytest.mark.slow
def test_a_column_that_an_input_gains_is_seen_and_all_is_compared(spark, house):
    house.write((at(1), 1, "UA", 7))
    every = "SELECT * FROM flights"
    house.derive(every)
    house.write((at(2), 2, "AA", 9, "JFK"), schema=SCHEMA.append(pa.field("origin", pa.string())))
    assert house.derive(every).kind is QueryKind.WHOLE
    assert house.events("late", "id", "origin") == [(0, 1, None), (0, 2, "JFK")]
    assert house.replays(spark) == [True, True]


@pytest.mark.slow
def test_an_input_whose_history_was_put_in_the_place_of_another_is_refused(spark, house, tmp_path):
    house.write((at(1), 1, "UA", 7))
    before = InputAt.of_table(house.project.table("flights"))
    house.write((at(2), 2, "AA", 9))
    house.derive(LATE)
    with pytest.raises(InvalidInput, match="an earlier version of it was asked for"):
        Derivation(TransformQuery(("flights",), (QueryStep(LATE),)), {"flights": before}).write(
            house.project.table("late")
        )


def test_a_root_is_no_place_for_a_transform_and_rows_are_no_input(spark, house):
    house.write((at(1), 1, "UA", 7))
    house.write((at(1), 1, "UA", 7), name="planes")
    with pytest.raises(InvalidInput, match="planes is a root dataset"):
        house.derive(LATE, "planes")
    house.project.table("rows").write(pa.table({"id": [1]}))
    with pytest.raises(InvalidInput, match="rows is no history of events"):
        house.derive("SELECT * FROM rows", inputs=("rows",))


@pytest.mark.slow
def test_the_watermark_is_that_of_the_input_that_is_the_furthest_behind(spark, house):
    house.write((at(60), 1, "UA", 7))
    house.write((at(5), 1, "UA", 7), name="planes")
    text = "SELECT f.event_time, f.id FROM flights f JOIN planes p ON f.id = p.id"
    house.derive(text, inputs=("flights", "planes"))
    assert EventTable(house.project.table("late")).chain.watermark.to_datetime() == START + timedelta(minutes=5)
    assert [(one.prev_offset, one.new_offset) for one in house.chain()[-1][1].event.query_inputs] == [(None, 0)] * 2


class OtherSpark:
    """The session, as if it were of another version."""

    def __init__(self, session, version):
        self._session, self.version = session, version

    def __getattr__(self, name):
        return getattr(self._session, name)


@pytest.mark.slow
def test_another_version_of_the_engine_is_recorded_and_can_be_known_to_agree(spark, house):
    house.write((at(1), 1, "UA", 7))
    query, table = TransformQuery(("flights",), (QueryStep(LATE),)), house.project.table("late")
    flights = InputAt.of_table(house.project.table("flights"))
    derive(EventTable(table), query, {"flights": flights}, OtherSpark(spark, "4.0.0"))
    house.write((at(2), 2, "AA", 9))
    house.derive(LATE)
    versions = [block.event.transform.version for _, block in house.chain() if isinstance(block.event, SetTransform)]
    assert versions == ["4.0.0", spark.version]
    assert house.events("late", "id") == [(0, 1), (0, 2)]

    assert known_to_agree(table) == {}
    assert deprecate_engines(table, house.by_id, spark) == {"4.0.0": (spark.version,)}
    assert known_to_agree(table) == {"4.0.0": (spark.version,)}
    log_version = table.state.log_version
    deprecate_engines(table, house.by_id, spark)
    assert table.state.log_version == log_version

    first = next(block for _, block in house.chain() if isinstance(block.event, ExecuteTransform))
    forged = replace(first.event.new_data, offset_interval=OffsetInterval(0, 1))
    with pytest.raises(IntegrityError, match=rf"ran on Spark 4.0.0, and gives something else on Spark {spark.version}"):
        replay(house.dataset(), replace(first, event=replace(first.event, new_data=forged)), house.by_id, spark)
