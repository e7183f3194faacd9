"""The rows that are there get other partitions in one commit; nobody sees some of them twice, or none."""

from datetime import UTC, date, datetime, timedelta

import pyarrow as pa
import pytest

from dagster_versioned.errors import CommitConflict, HeldHead, InvalidInput, TableNotFound
from dagster_versioned.projects.project import Project
from dagster_versioned.projects.staleness import TableHeads
from dagster_versioned.tables.options import TableOptions
from dagster_versioned.tables.partitioning import Partitioning
from dagster_versioned.tables.table import VersionedTable
from support.crashes import append_as_another_program
from support.stores import contents

DAYS = Partitioning.time_windows("daily")
MONTHS = Partitioning.time_windows("monthly")
WHERE = Partitioning.names()


def _day(day: date) -> pa.Table:
    return pa.table({"day": [day, day], "where": ["n", "s"], "v": [day.day, -day.day]})


@pytest.fixture
def daily(table: VersionedTable) -> VersionedTable:
    for day in (date(2026, 9, 30), date(2026, 10, 1), date(2026, 10, 2)):
        table.write(_day(day), partition=str(day), partitioning=DAYS, code_version="1")
    return table


def _rows(table: VersionedTable) -> list[tuple[object, ...]]:
    return sorted(tuple(row.values()) for row in table.read().to_pylist())


def test_days_become_months_in_one_commit(daily: VersionedTable) -> None:
    rows = _rows(daily)
    report = daily.repartition(MONTHS, "day", dry_run=False)
    assert report.rows == {"2026-09-01": 2, "2026-10-01": 4}
    assert daily.state.log_version == 3
    assert daily.partitions().keys() == {"2026-09-01", "2026-10-01"}
    assert _rows(daily) == rows
    assert daily.read("@2").num_rows == 6
    assert daily.read("@1", partition="2026-10-01").num_rows == 2
    assert {v.identity.code_version for v in daily.partitions().values()} == {"1"}
    assert set(TableHeads.at(daily).partitions) == {"2026-09-01", "2026-10-01"}
    assert daily.verify().ok
    daily.repair()
    assert daily.verify().ok


def test_then_the_new_definition_is_written_and_the_old_one_refused(daily: VersionedTable) -> None:
    daily.repartition(MONTHS, "day", dry_run=False)
    with pytest.raises(InvalidInput, match="would overlap"):
        daily.write(_day(date(2026, 10, 3)), partition="2026-10-03", partitioning=DAYS)
    daily.write(_day(date(2026, 11, 1)), partition="2026-11-01", partitioning=MONTHS)
    with pytest.raises(InvalidInput, match="would be in it twice"):
        daily.revert("@1", partition="2026-10-01")
    assert len(daily.partitions()) == 3


def test_there_and_back_the_old_parts_are_used_again(daily: VersionedTable) -> None:
    before = {key: version.data_sha for key, version in daily.partitions().items()}
    daily.repartition(MONTHS, "day", dry_run=False)
    daily.repartition(DAYS, "day", dry_run=False)
    assert {key: version.data_sha for key, version in daily.partitions().items()} == before
    assert daily.verify().ok


def test_partitions_become_a_whole_table_and_that_becomes_partitions_of_two_dimensions(daily: VersionedTable) -> None:
    rows = _rows(daily)
    assert daily.repartition(None, dry_run=False).rows == {None: 6}
    assert (daily.partitions(), _rows(daily)) == ({}, rows)
    daily.write(daily.read(), code_version="2")
    both = Partitioning.multi({"time": MONTHS, "place": WHERE})
    daily.repartition(both, {"time": "day", "place": "where"}, dry_run=False)
    assert daily.partitions().keys() == {"n|2026-09-01", "s|2026-09-01", "n|2026-10-01", "s|2026-10-01"}
    assert _rows(daily) == rows
    assert daily.verify().ok


def test_a_function_gives_keys_that_no_column_has(daily: VersionedTable) -> None:
    daily.repartition(WHERE, lambda rows: [f"{'+' if v > 0 else '-'}" for v in rows["v"].to_pylist()], dry_run=False)
    assert daily.read(partition="+").num_rows == 3


def test_a_definition_whose_keys_are_the_same_changes_the_record_alone(daily: VersionedTable) -> None:
    before = daily.partitions()
    daily.repartition(WHERE, lambda rows: [str(day) for day in rows["day"].to_pylist()], dry_run=False)
    assert daily.partitions() == before
    daily.write(_day(date(2026, 1, 1)), partition="anything", partitioning=WHERE)


def test_lineage_constraints_and_columns_go_with_the_rows(project: Project) -> None:
    source, table = project.table("source"), project.table("sales")
    options = TableOptions(constraints={"small": "v < 100"}, partition_columns=("where",))
    for day in (date(2026, 10, 1), date(2026, 10, 2)):
        source.write(_day(day), partition=str(day), partitioning=DAYS)
        table.write(
            _day(day),
            partition=str(day),
            partitioning=DAYS,
            options=options,
            parents=source.upstream(partition=str(day)),
        )
    table.repartition(MONTHS, "day", dry_run=False)
    head = table.version(partition="2026-10-01")
    assert sorted(str(parent.partition) for parent in head.identity.parents) == ["2026-10-01", "2026-10-02"]
    assert table.state.snapshot.partition_columns == ("where",)
    with pytest.raises(InvalidInput, match="small"):
        table.write(
            pa.table({"day": [date(2026, 11, 1)], "where": ["n"], "v": [100]}),
            partition="2026-11-01",
            options=TableOptions(partition_columns=("where",)),
        )
    assert table.verify().ok


def test_a_dry_run_counts_rows_and_changes_nothing(daily: VersionedTable) -> None:
    before = contents(daily.project.store)
    assert daily.repartition(MONTHS, "day").rows == {"2026-09-01": 2, "2026-10-01": 4}
    assert contents(daily.project.store) == before


@pytest.mark.parametrize(
    ("partitioning", "column", "fault"),
    [
        (MONTHS, None, "not named"),
        (MONTHS, "month", "no column 'month'"),
        (MONTHS, "where", "which is none of the monthly windows"),
        (WHERE, lambda rows: ["x"], "gave 1 keys for 2 rows"),
        (WHERE, lambda rows: [None] * len(rows), "have null"),
        (Partitioning.multi({"a": DAYS, "b": WHERE}), "day", "a column for each"),
        (Partitioning.multi({"a": DAYS, "b": WHERE}), {"a": "day"}, "for the dimensions"),
        (Partitioning.time_windows("0 0 1 */3 *", key_format="%Y-%m-%d"), "day", "neither hourly"),
    ],
)
def test_rows_that_do_not_tell_are_refused_and_nothing_changes(
    daily: VersionedTable, partitioning: Partitioning, column: object, fault: str
) -> None:
    before = contents(daily.project.store)
    with pytest.raises(InvalidInput, match=fault):
        daily.repartition(partitioning, column, dry_run=False)  # pyright: ignore[reportArgumentType]
    assert contents(daily.project.store) == before


def test_a_held_head_a_whole_table_and_a_dropped_one_are_refused(
    project: Project, daily: VersionedTable, rows: pa.Table
) -> None:
    daily.revert("@1", partition="2026-10-01", hold=True, why="audit")
    with pytest.raises(HeldHead, match="audit"):
        daily.repartition(None, dry_run=False)
    whole = project.table("whole")
    whole.write(rows)
    with pytest.raises(InvalidInput, match="no partitions"):
        whole.repartition(None, dry_run=False)
    whole.drop(dry_run=False)
    with pytest.raises(TableNotFound, match="was dropped"):
        whole.repartition(WHERE, "carrier", dry_run=False)


def test_rows_that_others_wrote_meanwhile_are_not_lost(
    project: Project, daily: VersionedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = project.table("flights")
    change, days = daily.operations.change, iter([date(2026, 10, 3), date(2026, 10, 4)])

    def overtaken(draft, **given):
        if (day := next(days, None)) is not None:
            other.write(_day(day), partition=str(day), partitioning=DAYS)
        return change(draft, **given)

    monkeypatch.setattr(daily.operations, "change", overtaken)
    assert daily.repartition(MONTHS, "day", dry_run=False).rows == {"2026-09-01": 2, "2026-10-01": 8}
    assert len(_rows(daily)) == 10


@pytest.mark.parametrize("partitioning", [MONTHS, None])
def test_rows_that_another_program_added_meanwhile_are_not_taken_out(
    daily: VersionedTable, partitioning: Partitioning | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    change = daily.operations.change

    def overtaken(draft, **given):
        append_as_another_program(daily, _day(date(2026, 10, 3)))
        return change(draft, **given)

    monkeypatch.setattr(daily.operations, "change", overtaken)
    with pytest.raises(InvalidInput, match="Another program committed"):
        daily.repartition(partitioning, "day", dry_run=False)
    assert daily.state.log_version == 3
    assert daily.state.snapshot.num_files == 4


def test_a_write_that_began_before_is_refused_and_writes_nothing(
    project: Project, daily: VersionedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = project.table("flights")
    change = daily.operations.change

    def overtaken(draft, **given):
        other.repartition(MONTHS, "day", dry_run=False)
        return change(draft, **given)

    monkeypatch.setattr(daily.operations, "change", overtaken)
    with pytest.raises(CommitConflict, match="log version 3: REPARTITION"):
        daily.write(_day(date(2026, 10, 1)), partition="2026-10-01")
    assert other.read(partition="2026-10-01").num_rows == 4


def test_times_are_read_in_the_zone_of_the_windows(table: VersionedTable) -> None:
    moments = [datetime(2026, 10, 31, hour, 30, tzinfo=UTC) for hour in (22, 23)]
    table.write(pa.table({"at": pa.array(moments, pa.timestamp("us", "UTC"))}))
    table.repartition(Partitioning.time_windows("monthly", timezone="Europe/Berlin"), "at", dry_run=False)
    assert {k: v.identity.nrow for k, v in table.partitions().items()} == {"2026-10-01": 1, "2026-11-01": 1}


def test_an_hour_that_comes_twice_is_two_partitions(table: VersionedTable) -> None:
    moments = [datetime(2024, 10, 26, 22, 30, tzinfo=UTC) + timedelta(hours=hour) for hour in range(6)]
    table.write(pa.table({"at": pa.array(moments, pa.timestamp("us", "UTC")), "n": range(6)}))
    hours = Partitioning.time_windows("hourly", timezone="Europe/Berlin")
    table.repartition(hours, "at", dry_run=False)
    second = "2024-10-27-02:00+0100"
    assert {key: table.read(partition=key)["n"].to_pylist() for key in table.partitions()} == {
        f"2024-10-27-{key}": [n] for n, key in enumerate(["00:00", "01:00", "02:00", "02:00+0100", "03:00", "04:00"])
    }
    result = table.write(pa.table({"at": moments[3:4], "n": [33]}), partition=second)
    assert result.version.partition == second
    table.revert("@1", partition=second)
    assert table.read(partition=second)["n"].to_pylist() == [3]
