"""A project in a temporary folder, and runs against it."""

from dataclasses import dataclass

import dagster as dg
import pytest

from dagster_versioned import Project, ProjectResource, VersionedParquetIOManager


@dataclass
class House:
    """A project, the IO manager that writes to it, and an instance that remembers its runs."""

    project: Project
    location: str
    instance: dg.DagsterInstance

    def io_manager(self, **options):
        engine = options.pop("default_engine", "arrow")
        resource = ProjectResource(name=self.project.name, location=self.location, default_engine=engine)
        return VersionedParquetIOManager(project=resource, **options)

    def run(self, *assets, io_manager=None, resources=None, **kwargs):
        """Materialize in this process; the result, whose `changes` and `metadata` below read."""
        return dg.materialize(
            list(assets),
            instance=self.instance,
            resources={"io_manager": io_manager or self.io_manager(), **(resources or {})},
            **kwargs,
        )

    def head(self, name, partition=None):
        return self.project.table(name).version(partition=partition)

    def parents(self, name, partition=None):
        """(table, partition, version) of each parent of a head."""
        return [(p.table, p.partition, p.version) for p in self.head(name, partition).identity.parents]


def materializations(result):
    """Every materialization of a run, by (asset, partition)."""
    found = [event.event_specific_data.materialization for event in result.get_asset_materialization_events()]
    return {(one.asset_key.to_user_string(), one.partition): one for one in found}


def changes(result):
    """What every materialization of a run came to."""
    return {
        asset if partition is None else f"{asset}[{partition}]": one.metadata["dagster_versioned/change"].value
        for (asset, partition), one in materializations(result).items()
    }


@pytest.fixture
def house(tmp_path):
    with dg.DagsterInstance.ephemeral() as instance:
        location = str(tmp_path / "data")
        yield House(Project.open("HOUSE", location), location, instance)
