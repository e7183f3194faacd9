"""Runs over many partitions: store calls, counted, that do not grow with their number; parts alone do."""

import dagster as dg
import pyarrow as pa
import pytest

from dagster_versioned import Project, ProjectResource, VersionedParquetIOManager
from dagster_versioned.storage import LocalStore
from dagster_versioned.storage.wrappers import CountingStore
from support.house import House, materializations

SINGLE_RUN = dg.BackfillPolicy.single_run()

_projects = {}


class Counted(ProjectResource):
    """A project whose store the test made."""

    def project(self):
        return _projects[self.location]


class Days:
    """Partitioned assets, and an IO manager that counts what it asks of the store."""

    def __init__(self, root, count):
        self.keys = [f"k{number:04}" for number in range(count)]
        partitions = dg.StaticPartitionsDefinition(self.keys)
        self.store = CountingStore(LocalStore(root))
        self.project = _projects[str(root)] = Project("HOUSE", self.store)
        self.root = str(root)

        @dg.asset(partitions_def=partitions, backfill_policy=SINGLE_RUN)
        def daily(context) -> dict[str, pa.Table]:
            return {key: pa.table({"n": [number]}) for number, key in enumerate(context.partition_keys)}

        @dg.asset(partitions_def=partitions, backfill_policy=SINGLE_RUN)
        def copy(daily: dict[str, pa.Table]) -> dict[str, pa.Table]:
            return daily

        @dg.asset(partitions_def=partitions, backfill_policy=SINGLE_RUN, deps=["daily"])
        def unread(context) -> dict[str, pa.Table]:
            return {key: pa.table({"n": [number]}) for number, key in enumerate(context.partition_keys)}

        @dg.asset
        def pinned(daily: dict[str, pa.Table]) -> pa.Table:
            return pa.concat_tables(daily.values())

        self.assets = [daily, copy, unread, pinned]

    def run(self, asset, *, last=-1, preview_rows=0, tags=None):
        """The calls that a run makes besides those of parts, and the metadata of what it materializes."""
        io_manager = VersionedParquetIOManager(
            project=Counted(name="HOUSE", location=self.root), preview_rows=preview_rows
        )
        ranged = {
            "dagster/asset_partition_range_start": self.keys[0],
            "dagster/asset_partition_range_end": self.keys[last],
        }
        self.store.reset()
        with dg.DagsterInstance.ephemeral() as instance:
            house = House(self.project, self.root, instance)
            tags = ranged if asset != "pinned" else tags
            result = house.run(*self.assets, io_manager=io_manager, selection=asset, tags=tags)
        rest = [call for call in self.store.calls if not call.key.endswith(".parquet") and "_staging" not in call.key]
        return len(rest), {key: one.metadata for key, one in materializations(result).items()}


@pytest.fixture(scope="module")
def few_and_many(tmp_path_factory):
    return [Days(tmp_path_factory.mktemp("days"), count) for count in (20, 40)]


@pytest.mark.parametrize(
    ("asset", "options"),
    [
        ("daily", {}),
        ("daily", {"last": -2}),
        ("copy", {}),
        ("unread", {}),
        ("copy", {"last": -2}),
        ("pinned", {"tags": {"dagster_versioned/pin/daily": "@0"}}),
    ],
)
def test_a_run_over_more_partitions_asks_the_store_for_no_more_than_their_parts(few_and_many, asset, options):
    if asset == "pinned":
        for days in few_and_many:
            days.project.table("daily").write(pa.table({"n": [-1]}), partition=days.keys[0])
    (few, _), (many, shown) = (days.run(asset, **options) for days in few_and_many)
    assert many == few
    expected = 1 if asset == "pinned" else 40 + options.get("last", -1) + 1
    assert len([key for key in shown if key[0] == asset]) == expected


def test_rows_of_the_first_ten_partitions_are_shown(few_and_many):
    _, shown = few_and_many[1].run("daily", preview_rows=2)
    previewed = [key for (_, key), metadata in shown.items() if "dagster_versioned/preview" in metadata]
    assert sorted(previewed) == few_and_many[1].keys[:10]


def test_every_partition_shows_its_difference_to_the_version_before(few_and_many):
    days = few_and_many[0]
    days.project.table("daily").write_partitions({key: pa.table({"n": [7, 7]}) for key in days.keys})
    before = days.project.table("daily").partitions()
    _, shown = days.run("daily")
    now = days.project.table("daily").partitions()
    for (_, key), metadata in shown.items():
        assert f"diff 'daily' {before[key].short} {now[key].short}" in metadata["dagster_versioned/diff"].value
