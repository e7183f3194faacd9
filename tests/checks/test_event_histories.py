"""Histories of events whose asset has partitions, though the table has none: what checks and sensors make of them."""

import dagster as dg
import pyarrow as pa

from dagster_versioned import (
    EventHistory,
    ProjectResource,
    SnapshotMerge,
    TableOptions,
    VersionedParquetIOManager,
    build_version_checks,
    build_version_sensor,
)
from dagster_versioned.checks.build import DEFAULT_CHECKS

YEARS = dg.TimeWindowPartitionsDefinition(start="2013", fmt="%Y", cron_schedule="0 0 1 1 *", end_offset=0)
DUMPS = {"2013": [100, 50], "2014": [120, 50], "2015": [120, 50], "2016": [120, 60]}


@dg.asset(
    partitions_def=YEARS,
    metadata=TableOptions(history=EventHistory(merge=SnapshotMerge(primary_key=["id"]))).as_metadata(),
)
def planes(context) -> pa.Table:
    return pa.table({"id": [1, 2], "seats": DUMPS[context.partition_key]})


@dg.asset
def seats(planes: pa.Table) -> pa.Table:
    return planes.select(["seats"])


def judged(result):
    return {one.check_name: (one.passed, one.description) for one in result.get_asset_check_evaluations()}


def test_checks_pass_on_what_was_just_written(house):
    checks = build_version_checks([planes, seats], DEFAULT_CHECKS)
    for year in ("2013", "2014"):
        selection = dg.AssetSelection.assets(planes)
        found = judged(house.run(planes, seats, *checks, partition_key=year, selection=selection))
        assert len(found) == len(DEFAULT_CHECKS)
        assert all(passed for passed, _ in found.values()), found
    found = judged(house.run(planes, seats, *checks, selection=dg.AssetSelection.assets(seats)))
    assert len(found) == len(DEFAULT_CHECKS)
    assert all(passed for passed, _ in found.values()), found


def test_a_sensor_asks_for_what_reads_a_history_when_it_has_new_events_and_only_then(house):
    sensor = build_version_sensor("watch", dg.AssetSelection.assets(seats))
    resource = ProjectResource(name=house.project.name, location=house.location)
    definitions = dg.Definitions(
        assets=[planes, seats],
        sensors=[sensor],
        resources={"io_manager": VersionedParquetIOManager(project=resource)},
    )
    cursor = None
    asked = []
    for year in DUMPS:
        house.run(planes, partition_key=year)
        context = dg.build_sensor_context(house.instance, cursor=cursor, definitions=definitions)
        ticked = sensor.evaluate_tick(context)
        cursor = ticked.cursor
        asked.append([key.to_user_string() for one in ticked.run_requests for key in one.asset_selection])
        if ticked.run_requests:
            house.run(planes, seats, selection=["seats"])
    assert asked == [["seats"], ["seats"], [], ["seats"]]
