"""Upstreams that another code location writes to another project, which governance knows: one run for each change."""

import dagster as dg
import pyarrow as pa
import pytest

from dagster_versioned import (
    GovernanceResource,
    ProjectResource,
    VersionedParquetIOManager,
    build_source_sensor,
    build_version_sensor,
    versioned_source,
)
from dagster_versioned.governance.mirror import GovernanceStore
from dagster_versioned.governance.registry import Registry
from dagster_versioned.identity.names import TableName
from dagster_versioned.sensors.heads import ProjectHeads
from dagster_versioned.storage import LocalStore, Location
from support.git_identity import git_identity
from support.governed import NAME, Governed, Opener

__all__ = ["git_identity"]

pytestmark = pytest.mark.usefixtures("git_identity")


class Treasury:
    """The code location that writes the upstream, as a developer of the governed project, with a clone."""

    def __init__(self, folder):
        registry = Registry.init(str(folder / "registry.git"), folder / "clone")
        mirror = GovernanceStore(LocalStore(folder / "governance"))
        self.folder = folder
        self.governed = Governed.begin(registry, mirror, Location.parse(str(folder / "old")), Opener())
        self.storage = str(folder / "governance")
        self.value = 0

        @dg.asset
        def rates() -> pa.Table:
            return pa.table({"n": [self.value]})

        self.assets = [rates]

    def definitions(self):
        governance = GovernanceResource(storage=self.storage, clone=str(self.folder / "clone"))
        manager = VersionedParquetIOManager(project=ProjectResource(name=NAME, governance=governance))
        return dg.Definitions(self.assets, resources={"io_manager": manager}, executor=dg.in_process_executor)

    def reader(self):
        """What the other code location knows of the project: its name, and where governance is."""
        governance = GovernanceResource(storage=self.storage, role="reader")
        return VersionedParquetIOManager(project=ProjectResource(name=NAME, governance=governance))

    def head(self):
        return self.governed.by_reader().table("rates").version().metadata_sha


@pytest.fixture
def treasury(daemon, tmp_path):
    made = Treasury(tmp_path)
    daemon.beside = {"treasury": made.definitions()}
    return made


def publish(daemon, treasury, value):
    """A run of the other code location, which makes a version where the value is another one."""
    treasury.value = value
    run = daemon.begin_by_hand("rates", at="treasury")
    daemon.go(run)
    assert daemon.instance.get_run_by_id(run.run_id).status == dg.DagsterRunStatus.SUCCESS


def parent(daemon, name="report"):
    ((source, table, version),) = {(p.source, p.table, p.version) for p in daemon.head(name).identity.parents}
    return source, table, version


@pytest.mark.parametrize("is_loaded", [pytest.param(True, marks=pytest.mark.slow), False])
def test_an_upstream_of_another_project_and_code_location_triggers_once_for_each_change(daemon, treasury, is_loaded):
    """Also where it is listed as a dependency only, while it is being written, and after its project has moved."""
    source = versioned_source("rates", io_manager_key="treasury")

    @dg.asset(deps=None if is_loaded else [source], ins={"rates": dg.AssetIn()} if is_loaded else None)
    def report(**inputs) -> pa.Table:
        return pa.table({"n": [1]})

    sensors = [build_version_sensor("keep", dg.AssetSelection.assets(report)), build_source_sensor("watch")]
    daemon.deploy(source, report, sensors=sensors, resources={"treasury": treasury.reader()})
    assert daemon.tick() == []
    assert "has no version: report (rates)" in daemon.last_tick("keep").skip_reason

    publish(daemon, treasury, 1)
    assert daemon.settle() == [("report", None)]
    assert parent(daemon) == (NAME, "rates", treasury.head())
    publish(daemon, treasury, 1)
    assert daemon.settle() == []

    treasury.value = 2
    running = daemon.begin_by_hand("rates", at="treasury")  # about to change: it is waited for
    treasury.governed.at(Location.parse(str(treasury.folder / "old"))).table("rates").write(pa.table({"n": [-1]}))
    assert daemon.tick() == []
    assert "waiting for an upstream that is about to change: report (rates)" in daemon.last_tick("keep").skip_reason
    daemon.go(running)
    assert daemon.settle() == [("report", None)]
    assert parent(daemon) == (NAME, "rates", treasury.head())

    treasury.governed.move(Location.parse(str(treasury.folder / "new")))
    daemon.beside = {"treasury": treasury.definitions()}
    assert daemon.settle() == []  # a move changes nothing that anybody was built from
    daemon.restart()
    publish(daemon, treasury, 3)
    assert daemon.settle() == [("report", None)]
    assert parent(daemon) == (NAME, "rates", treasury.head())
    observed = daemon.instance.fetch_observations(dg.AssetKey("rates"), limit=10).records
    assert observed[0].asset_observation.data_version == treasury.head()


def test_where_governance_does_not_answer_a_project_is_read_where_it_was_last(treasury, tmp_path):
    heads = ProjectHeads(treasury.governed.by_reader())
    rates = TableName("rates")

    def seen():
        heads.look(heads.listing(), [rates])
        return heads.heads(rates).whole.metadata_sha

    treasury.governed.by_developer().table("rates").write(pa.table({"n": [1]}))
    first = seen()
    treasury.governed.move(Location.parse(str(tmp_path / "new")))
    second = treasury.governed.by_developer().table("rates").write(pa.table({"n": [2]})).version.metadata_sha
    assert first != second == seen()
    away = (tmp_path / "governance").rename(tmp_path / "away")
    assert seen() == second
    away.rename(tmp_path / "governance")
    assert seen() == second
