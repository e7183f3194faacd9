"""Partitioned assets over a store that counts, for runs over few and over many partitions."""

import dagster as dg
import pyarrow as pa

from dagster_versioned import Project, ProjectResource, VersionedParquetIOManager, build_version_checks
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
        self.checks = build_version_checks(["copy"])

    def _selection(self, asset):
        if asset == "checks of copy":
            return dg.AssetSelection.checks(*self.checks)
        return dg.AssetSelection.assets(asset).without_checks()

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
            tags = tags if asset in ("pinned", "checks of copy") else ranged
            assets = [*self.assets, *self.checks]
            result = house.run(*assets, io_manager=io_manager, selection=self._selection(asset), tags=tags)
        rest = [call for call in self.store.calls if not call.key.endswith(".parquet") and "_staging" not in call.key]
        return len(rest), {key: one.metadata for key, one in materializations(result).items()}
