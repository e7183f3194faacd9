"""Assets that are histories of events: what a run appends, and what the assets downstream see."""

from datetime import UTC, datetime

import dagster as dg
import pyarrow as pa
import pytest

from dagster_versioned import EventHistory, EventTable, LedgerMerge, SnapshotMerge, TableOptions
from dagster_versioned.errors import InvalidInput
from support.house import changes, materializations

YEARS = dg.TimeWindowPartitionsDefinition(start="2013", fmt="%Y", cron_schedule="0 0 1 1 *", end_offset=0)
PLANES = TableOptions(history=EventHistory(merge=SnapshotMerge(primary_key=["id"]))).as_metadata()
DUMPS = {"2013": [(1, 100), (2, 50)], "2014": [(1, 120), (2, 50)], "2015": [(1, 120), (3, 10)]}


def frame(rows):
    return pa.table({"id": [row[0] for row in rows], "seats": [row[1] for row in rows]})


@dg.asset(partitions_def=YEARS, metadata=PLANES, code_version="1")
def planes(context) -> pa.Table:
    return frame(DUMPS[context.partition_key])


def reading(metadata=None, annotation=pa.Table, **options):
    @dg.asset(name="seen", ins={"planes": dg.AssetIn(metadata=metadata)}, **options)
    def seen(planes) -> pa.Table:
        return planes if isinstance(planes, pa.Table) else pa.table(planes)

    seen.op.compute_fn.decorated_fn.__annotations__["planes"] = annotation
    return seen


def seats(table):
    return dict(zip(table["id"].to_pylist(), table["seats"].to_pylist(), strict=True))


def three_years(house):
    return [changes(house.run(planes, partition_key=year)) for year in DUMPS]


def test_each_partition_is_a_dump_of_its_beginning(house):
    assert three_years(house) == [{"planes[2013]": "full"}, {"planes[2014]": "full"}, {"planes[2015]": "full"}]
    history = EventTable(house.project.table("planes"))
    assert history.events()["op"].to_pylist() == [0, 0, 2, 3, 1, 0]
    assert [time.year for time in history.events()["event_time"].to_pylist()] == [2013, 2013, 2013, 2014, 2013, 2015]
    assert seats(history.current()) == {1: 120, 3: 10}
    again = house.run(planes, partition_key="2015")
    assert changes(again) == {"planes[2015]": "none"}
    assert materializations(again)["planes", "2015"].metadata["dagster_versioned/rows_inserted"].value == 0


def test_a_dump_that_is_past_is_refused(house):
    three_years(house)
    with pytest.raises(InvalidInput, match="Write dumps in the order of their times"):
        house.run(planes, partition_key="2014")


def test_an_input_sees_the_rows_that_the_events_come_to(house):
    three_years(house)
    house.run(planes, reading(), selection=["seen"])
    assert seats(house.project.table("seen").read()) == {1: 120, 3: 10}
    assert house.parents("seen") == [("planes", None, house.head("planes").metadata_sha)]


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"dagster_versioned/as_of": "2013-06-01"}, {1: 100}),
        ({"dagster_versioned/as_of": datetime(2014, 6, 1, tzinfo=UTC).isoformat()}, {1: 120}),
        ({"dagster_versioned/version": "@0"}, {1: 100, 2: 50}),
        ({"dagster_versioned/columns": ["id", "seats"]}, {1: 120, 3: 10}),
    ],
)
def test_an_input_sees_the_rows_of_a_time(house, metadata, expected):
    three_years(house)
    house.run(planes, reading(metadata), selection=["seen"])
    assert seats(house.project.table("seen").read()) == expected


def test_an_input_sees_what_was_known_at_a_time(house):
    three_years(house)
    moment = house.project.table("planes").history()[1].timestamp
    house.run(planes, reading({"dagster_versioned/as_at": moment.isoformat()}), selection=["seen"])
    assert seats(house.project.table("seen").read()) == {1: 120, 2: 50}


def test_an_input_sees_the_events_themselves(house):
    three_years(house)
    house.run(planes, reading({"dagster_versioned/projection": "events"}), selection=["seen"])
    assert house.project.table("seen").read()["op"].to_pylist() == [0, 0, 2, 3, 1, 0]


def test_a_partition_downstream_sees_the_rows_of_its_beginning(house):
    three_years(house)
    house.run(planes, reading(partitions_def=YEARS), selection=["seen"], partition_key="2013")
    assert seats(house.project.table("seen").read(partition="2013")) == {1: 100}


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ({"dagster_versioned/as_of": "yesterday"}, "neither a time with a zone nor a date"),
        ({"dagster_versioned/as_at": "2013-01-01T00:00:00"}, "neither a time with a zone nor a date"),
        ({"dagster_versioned/projection": "past"}, "'current' or 'events', not 'past'"),
        ({"dagster_versioned/projection": "events", "dagster_versioned/as_of": "2013-01-01"}, "Leave one out"),
    ],
)
def test_times_that_mean_nothing_are_refused(house, metadata, said):
    house.run(planes, partition_key="2013")
    with pytest.raises(InvalidInput, match=said):
        house.run(planes, reading(metadata), selection=["seen"])


def test_tables_of_rows_have_no_times_to_read(house):
    @dg.asset(name="planes")
    def rows() -> pa.Table:
        return frame(DUMPS["2013"])

    house.run(rows)
    with pytest.raises(InvalidInput, match="is no history of events"):
        house.run(rows, reading({"dagster_versioned/as_of": "2013-01-01"}), selection=["seen"])


def test_an_output_says_when_it_was_true(house):
    @dg.asset(metadata=PLANES)
    def stations() -> dg.Output[pa.Table]:
        return dg.Output(frame(DUMPS["2013"]), metadata={"dagster_versioned/event_time": "2013-07-01"})

    house.run(stations)
    events = EventTable(house.project.table("stations")).events()
    assert set(events["event_time"].to_pylist()) == {datetime(2013, 7, 1, tzinfo=UTC)}


def test_an_output_sets_the_watermark_with_rows_or_without(house):
    manual = TableOptions(history=EventHistory(merge=SnapshotMerge(primary_key=["id"]), watermark="manual"))
    outputs = [
        dg.Output(frame(DUMPS["2013"]), metadata={"dagster_versioned/event_time": "2013-07-01"}),
        dg.Output(
            frame(DUMPS["2014"]),
            metadata={"dagster_versioned/event_time": "2014-07-01", "dagster_versioned/watermark": "2014-07-01"},
        ),
        dg.Output(None, metadata={"dagster_versioned/watermark": "2015-01-01T00:00:00Z"}),
    ]

    @dg.asset(metadata=manual.as_metadata())
    def stations():
        return outputs[0]

    def watermark():
        chain = EventTable(house.project.table("stations")).chain
        return None if chain.watermark is None else str(chain.watermark)[:10]

    reached = []
    while outputs:
        house.run(stations)
        reached.append(watermark())
        outputs.pop(0)
    assert reached == [None, "2014-07-01", "2015-01-01"]
    assert EventTable(house.project.table("stations")).chain.next_offset == 4
    for given, problem in (("someday", "neither a time with a zone nor a date"), ("2014-01-01", "never goes back")):
        outputs[:] = [dg.Output(None, metadata={"dagster_versioned/watermark": given})]
        with pytest.raises(InvalidInput, match=problem):
            house.run(stations)
    outputs[:] = [dg.Output(None)]
    with pytest.raises(InvalidInput, match="returned None"):
        house.run(stations)
    assert watermark() == "2015-01-01"


def test_rows_of_a_ledger_that_were_seen_write_nothing(house):
    @dg.asset(metadata=TableOptions(history=EventHistory(merge=LedgerMerge(primary_key=["id"]))).as_metadata())
    def ledger() -> pa.Table:
        return frame(DUMPS["2013"])

    assert changes(house.run(ledger)) == {"ledger": "full"}
    assert changes(house.run(ledger)) == {"ledger": "none"}
