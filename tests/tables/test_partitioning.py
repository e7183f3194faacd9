"""A table remembers what its partitions are, and takes no key that means something else."""

import json
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_versioned.engines.row_partitions import KeyColumn, RowPartitions
from dagster_versioned.errors import InvalidInput
from dagster_versioned.projects.project import Project
from dagster_versioned.tables.partitioning import Partitioning
from dagster_versioned.tables.table import VersionedTable
from dagster_versioned.tables.table_record import TABLE_DOMAIN, TableRecord
from support.dagster_versions import counts_minutes_of_zones
from support.stores import contents

DAYS = Partitioning.time_windows("daily")
MONTHS = Partitioning.time_windows("monthly")
NAMES = Partitioning.names()


def _recorded(table: VersionedTable) -> Partitioning | None:
    return TableRecord.of(table.state.snapshot).partitioning


def test_what_partitions_are_is_in_the_log_and_outlives_the_process(project: Project, rows: pa.Table) -> None:
    project.table("flights").write(rows, partition="2026-10-01", partitioning=DAYS)
    again = Project("NYC", project.store).table("flights")
    assert _recorded(again) == DAYS
    assert json.loads(again.state.snapshot.domains[TABLE_DOMAIN]) == {
        "partitions": {"kind": "time_window", "cron": "0 0 * * *", "format": "%Y-%m-%d", "timezone": "UTC"}
    }


def test_a_table_without_partitions_records_nothing(table: VersionedTable, rows: pa.Table) -> None:
    table.write(rows)
    assert TABLE_DOMAIN not in table.state.snapshot.domains


@pytest.mark.parametrize(
    "other",
    [
        MONTHS,
        NAMES,
        Partitioning.time_windows("daily", timezone="Europe/Berlin"),
        Partitioning.time_windows("daily", key_format="%d.%m.%Y"),
        Partitioning.time_windows("0 6 * * *"),
        Partitioning.multi({"day": DAYS, "where": NAMES}),
    ],
)
def test_a_write_by_other_partitions_is_refused_with_the_ways_out(
    table: VersionedTable, rows: pa.Table, other: Partitioning
) -> None:
    table.write(rows, partition="2026-10-01", partitioning=DAYS)
    before = contents(table.project.store)
    with pytest.raises(InvalidInput, match=r"would overlap others.*Nothing was written.*repartition flights.*drop"):
        table.write(rows, partition="2026-11-01", partitioning=other)
    assert contents(table.project.store) == before


def test_a_key_that_is_no_window_is_refused_where_nobody_says_what_partitions_are(
    table: VersionedTable, rows: pa.Table
) -> None:
    table.write(rows, partition="2026-10-01", partitioning=MONTHS)
    with pytest.raises(InvalidInput, match="'2026-10-02' is none of them"):
        table.write(rows, partition="2026-10-02")
    assert table.write(rows, partition="2026-11-01").change == "full"


def test_a_table_of_before_gets_the_record_with_its_next_write(table: VersionedTable, rows: pa.Table) -> None:
    for key in ("2026-10-01", "2026-10-02"):
        table.write(rows, partition=key)
    assert _recorded(table) is None
    with pytest.raises(InvalidInput, match="and it has '2026-10-02'"):
        table.write(rows, partition="2026-10-01", partitioning=MONTHS)
    table.write(rows, partition="2026-10-03", partitioning=DAYS)
    assert _recorded(table) == DAYS


def test_names_may_be_listed_or_come_and_go(table: VersionedTable, rows: pa.Table) -> None:
    table.write(rows, partition="a", partitioning=NAMES)
    table.write(rows, partition="b", partitioning=Partitioning.names("dynamic"))
    assert _recorded(table) == Partitioning.names("dynamic")


def test_partitions_and_a_whole_table_do_not_mix(project: Project, rows: pa.Table) -> None:
    whole, parted = project.table("whole"), project.table("parted")
    whole.write(rows)
    parted.write(rows, partition="a", partitioning=NAMES)
    with pytest.raises(InvalidInput, match="repartition whole"):
        whole.write(rows, partition="a", partitioning=NAMES)
    with pytest.raises(InvalidInput, match="repartition parted"):
        parted.write(rows)


@pytest.mark.parametrize("text", ["{", "[]", "null", '{"partitions": 3, "since": "x", "dropped": 1}'])
def test_a_record_in_no_known_form_says_nothing(table: VersionedTable, rows: pa.Table, text: str) -> None:
    from dagster_versioned.delta.actions import DomainMetadata

    table.write(rows)
    table.record_domain(DomainMetadata(TABLE_DOMAIN, text, False))
    assert TableRecord.of(table.state.snapshot) == TableRecord()
    assert table.write(rows.slice(1)).change == "full"


@given(
    st.sampled_from(["hourly", "daily", "weekly", "monthly", "30 5 * * *", "15 * * * *", "0 7 * * 3", "0 0 28 * *"]),
    st.datetimes(datetime(1971, 1, 1), datetime(2037, 1, 1)),
    st.sampled_from(["UTC", "Europe/Berlin", "America/New_York"]),
)
def test_the_key_of_a_moment_is_the_one_that_dagster_gives(schedule: str, wall: datetime, timezone: str) -> None:
    from zoneinfo import ZoneInfo

    import dagster as dg

    ours = Partitioning.time_windows(schedule, timezone=timezone)
    zone = ZoneInfo(timezone)
    moment = wall.replace(microsecond=0, tzinfo=UTC).astimezone(zone)
    theirs = dg.TimeWindowPartitionsDefinition(
        start=datetime(1970, 1, 1), cron_schedule=str(ours.cron), fmt=str(ours.format), timezone=timezone
    )
    key = ours.keys_of(pa.chunked_array([pa.array([moment], pa.timestamp("us", "UTC"))]), "t")[0].as_py()
    window = theirs.time_window_for_partition_key(key)
    assert not ours.unknown_keys([key])
    assert window.start.astimezone(UTC) <= moment.astimezone(UTC) < window.end.astimezone(UTC)


ZONES = {  # an instant around which the clock is set back, and one around which it is set forward
    "Europe/Berlin": (datetime(2024, 10, 27, 1), datetime(2024, 3, 31, 1)),
    "America/New_York": (datetime(2024, 11, 3, 6), datetime(2024, 3, 10, 7)),
    "America/St_Johns": (datetime(2024, 11, 3, 4, 30), datetime(2024, 3, 10, 5, 30)),
    "Australia/Sydney": (datetime(2024, 4, 6, 16), datetime(2024, 10, 5, 16)),
    "Pacific/Auckland": (datetime(2024, 4, 6, 14), datetime(2024, 9, 28, 14)),
}


@pytest.mark.parametrize(
    ("zone", "cron"),
    [
        pytest.param(zone, cron, marks=counts_minutes_of_zones if zone == "America/St_Johns" else ())
        for zone in ZONES
        for cron in ("0 * * * *", "30 * * * *")
    ],
)
def test_an_hour_that_comes_twice_is_two_partitions_as_it_is_to_dagster(zone: str, cron: str) -> None:
    import dagster as dg

    for turn in ZONES[zone]:
        moments = [turn.replace(tzinfo=UTC) + timedelta(minutes=10 * step) for step in range(-18, 18)]
        theirs = dg.TimeWindowPartitionsDefinition(
            start=turn - timedelta(days=2), cron_schedule=cron, fmt="%Y-%m-%d-%H:%M", timezone=zone
        )
        ours = Partitioning.time_windows(cron, timezone=zone)
        keys = ours.keys_of(pa.chunked_array([pa.array(moments, pa.timestamp("us", "UTC"))]), "t").to_pylist()
        for moment, key in zip(moments, keys, strict=True):
            window = theirs.time_window_for_partition_key(key)
            start, end = window.start.astimezone(UTC), window.end.astimezone(UTC)
            assert start <= moment < end
            assert end - start == timedelta(hours=1)
        assert set(keys) <= set(theirs.get_partition_keys(current_time=turn.replace(tzinfo=UTC) + timedelta(days=2)))
        assert not ours.unknown_keys(keys)
        by_city = Partitioning.multi({"city": Partitioning.names(), "hour": ours})
        assert not by_city.unknown_keys([f"Bonn|{key}" for key in keys])


@pytest.mark.parametrize("zone", ZONES)
def test_parts_of_such_an_hour_are_keys_too_and_no_others_with_an_offset(zone: str) -> None:
    import dagster as dg

    back, _ = ZONES[zone]
    theirs = dg.TimeWindowPartitionsDefinition(
        start=back - timedelta(days=1), cron_schedule="*/15 * * * *", fmt="%Y-%m-%d-%H:%M", timezone=zone
    )
    keys = theirs.get_partition_keys(current_time=back.replace(tzinfo=UTC) + timedelta(days=1))
    seconds = [key for key in keys if len(key) > len("2024-10-27-02:00")]
    quarters = Partitioning.time_windows("*/15 * * * *", key_format="%Y-%m-%d-%H:%M", timezone=zone)
    assert len(seconds) == 4
    assert not quarters.unknown_keys(keys)
    strange = [f"{seconds[0]}0", f"{seconds[0][:-5]}+0000", seconds[0].replace("2024", "2023"), f"{keys[0]}+0100"]
    assert quarters.unknown_keys(strange) == strange
    daily = Partitioning.time_windows("daily", key_format="%Y-%m-%d-%H:%M", timezone=zone)
    assert daily.unknown_keys(seconds[:1]) == seconds[:1]


HOURS = "%Y-%m-%d-%H:%M"
US = pa.timestamp("us")
CHANGEOVERS = {  # the days on which clocks are set back and forward, also at midnight and by half an hour
    "America/New_York": (datetime(2025, 11, 2), datetime(2025, 3, 9)),
    "Europe/Berlin": (datetime(2025, 10, 26), datetime(2025, 3, 30)),
    "Australia/Sydney": (datetime(2025, 4, 6), datetime(2025, 10, 5)),
    "America/Santiago": (datetime(2025, 4, 5), datetime(2025, 9, 7)),
    "America/Havana": (datetime(2025, 11, 2), datetime(2025, 3, 9)),
    "Australia/Lord_Howe": (datetime(2025, 4, 6), datetime(2025, 10, 5)),
}
KEYS = [
    ("0 * * * *", "%Y-%m-%d-%H:%M"),
    ("30 * * * *", "%Y-%m-%d-%H:%M"),
    ("0 * * * *", "%Y-%m-%dT%H:%M:%S%z"),
    ("*/15 * * * *", "%Y-%m-%d-%H:%M"),
    ("0 */6 * * *", "%Y-%m-%d-%H:%M"),
    ("0 0 * * *", "%Y-%m-%d"),
    ("30 0 * * *", "%Y-%m-%d-%H:%M"),
    ("30 1 * * *", "%Y-%m-%d-%H:%M"),
    ("30 2 * * *", "%Y-%m-%d-%H:%M"),
    ("15 2 * * *", "%Y-%m-%d"),
    ("30 23 * * *", "%Y-%m-%d"),
    ("30 2 * * 0", "%Y-%m-%d-%H:%M"),
]


@pytest.mark.every(3)
@pytest.mark.parametrize(("cron", "form"), KEYS)
@pytest.mark.parametrize("zone", CHANGEOVERS)
def test_over_both_changeovers_keys_and_their_rows_are_those_of_dagster(zone: str, cron: str, form: str) -> None:
    import dagster as dg

    ours = Partitioning.time_windows(cron, key_format=form, timezone=zone)
    for day in CHANGEOVERS[zone]:
        around = timedelta(days=8 if cron.endswith("0") else 2)
        theirs = dg.TimeWindowPartitionsDefinition(
            start=day - around, end=day + around, cron_schedule=cron, fmt=form, timezone=zone
        )
        keys = theirs.get_partition_keys()
        assert not ours.unknown_keys(keys)
        moments: list[datetime] = []
        wanted: list[str] = []
        for key in keys:
            window = theirs.time_window_for_partition_key(key)
            start, end = window.start.astimezone(UTC), window.end.astimezone(UTC)
            inside = [
                start,
                end - timedelta(microseconds=1),
                *(start + (end - start) * part / 9 for part in range(1, 9)),
            ]
            if end - start > timedelta(hours=1):
                inside += [start + timedelta(minutes=29), end - timedelta(minutes=31), end - timedelta(minutes=61)]
            moments += inside
            wanted += [key] * len(inside)
        times = pa.chunked_array([pa.array(moments, pa.timestamp("us", "UTC"))])
        if cron.startswith(("*/15", "0 */6")) or (zone == "Australia/Lord_Howe" and cron.endswith("* * * *")):
            with pytest.raises(InvalidInput, match="by the clock"):  # as Dagster's own hours there drift
                ours.keys_of(times, "t")
        else:
            assert ours.keys_of(times, "t").to_pylist() == wanted


@pytest.mark.parametrize(("schedule", "unknown"), [("hourly", "2025-03-30-02:00"), ("30 2 * * *", "2025-03-30-02:30")])
def test_what_begins_while_the_clock_is_set_forward_is_no_second_key_of_the_rows_after_that(
    schedule: str, unknown: str
) -> None:
    ours = Partitioning.time_windows(schedule, key_format="%Y-%m-%d-%H:%M", timezone="Europe/Berlin")
    assert ours.unknown_keys([unknown, "2025-03-30-03:00"]) == [unknown]


@pytest.mark.parametrize("cron", ["0 * * * *", "0 0 * * *", "30 2 * * *", "30 23 * * *"])
@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/Santiago"])
def test_times_without_a_zone_get_the_partition_in_which_a_run_over_all_of_them_puts_them(zone: str, cron: str) -> None:
    import dagster as dg

    days = CHANGEOVERS[zone] if cron != "0 * * * *" else CHANGEOVERS[zone][1:]  # of two hours it does not say which
    for day in days:
        theirs = dg.TimeWindowPartitionsDefinition(
            start=day - timedelta(days=4), end=day + timedelta(days=4), cron_schedule=cron, fmt=HOURS, timezone=zone
        )
        keys = theirs.get_partition_keys()
        windows = [theirs.time_window_for_partition_key(key) for key in keys]
        column = KeyColumn("t", tuple(keys), tuple((window.start, window.end) for window in windows))
        times = pa.chunked_array([pa.array([day + timedelta(minutes=5 * step) for step in range(-300, 300)], US)])
        places = RowPartitions(tuple(keys), (column,)).of_rows([times.cast(pa.int64())], [True])
        ours = Partitioning.time_windows(cron, key_format=HOURS, timezone=zone)
        assert ours.keys_of(times, "t").to_pylist() == [keys[place] for place in places]


def test_the_second_of_two_hours_is_known_by_a_key_that_says_less_than_when_it_begins() -> None:
    halves = Partitioning.time_windows("30 * * * *", key_format="%Y-%m-%d-%H", timezone="Europe/Berlin")
    assert not halves.unknown_keys(["2025-10-26-02", "2025-10-26-02+0100"])


@pytest.mark.parametrize("text", ["", "every day", "* * *"])
def test_what_is_no_schedule_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="no schedule"):
        Partitioning.time_windows(text)


@pytest.mark.parametrize("alias", ["@yearly", "@annually", "@YEARLY"])
def test_schedules_by_their_other_names_are_the_same_windows(alias: str) -> None:
    years = Partitioning.time_windows("0 0 1 1 *", key_format="%Y")
    assert Partitioning.time_windows(alias, key_format="%Y") == years
    assert years.unknown_keys(["2023", "23"]) == ["23"]


def test_windows_that_begin_irregularly_need_a_format_and_give_no_key() -> None:
    with pytest.raises(InvalidInput, match="key_format"):
        Partitioning.time_windows("0 0 1 */3 *")
    quarters = Partitioning.time_windows("0 0 1 */3 *", key_format="%Y-%m-%d")
    with pytest.raises(InvalidInput, match="neither hourly"):
        quarters.keys_of(pa.chunked_array([pa.array([datetime(2026, 1, 1)])]), "day")
    assert quarters.unknown_keys(["2026-01-01", "x"]) == ["x"]
