"""Fixtures of the tests of assets that are not computed twice."""

import dagster as dg
import pytest

from dagster_versioned import Project, ProjectResource, VersionedParquetIOManager
from dagster_versioned.storage import LocalStore


class Bench:
    """A project, a Dagster instance, and what was called in runs of assets on them."""

    def __init__(self, root):
        self.root = root
        self.instance = dg.DagsterInstance.ephemeral()
        self.calls = []

    def io(self, **options):
        return VersionedParquetIOManager(project=ProjectResource(name="HANGAR", location=str(self.root), **options))

    @property
    def project(self):
        return Project("HANGAR", LocalStore(self.root))

    def table(self, name):
        return self.project.table(name)

    def folder(self, name):
        return self.root / "datom" / name

    def run(self, assets, *, io=None, resources=None, fails=False, **kwargs):
        """One run of all of the assets; returns what was called in it, in order, and keeps its result."""
        self.calls.clear()
        resources = {"io_manager": io or self.io(), **(resources or {})}
        self.result = dg.materialize(
            assets, instance=self.instance, resources=resources, raise_on_error=not fails, **kwargs
        )
        assert self.result.success is not fails
        return list(self.calls)

    def metadata(self, node, partition=None):
        """What the last run shows of an asset, without prefixes."""
        materialized = self.result.asset_materializations_for_node(node)
        one = next(each for each in materialized if partition in (None, each.partition))
        return {key.split("/")[-1]: value.value for key, value in one.metadata.items()}

    def errors(self):
        """The messages of the failed steps of the last run, with their causes."""
        found = []
        for event in self.result.all_events:
            error = event.event_specific_data.error if event.is_step_failure else None
            while error is not None:
                found.append(error.message)
                error = error.cause
        return "\n".join(found)


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path / "project")
