"""What nobody gave a value blocks nothing that only depends on it, for as long as that is so, whoever is asked."""

import dagster as dg
import pyarrow as pa
import pytest

from dagster_versioned import (
    Project,
    ProjectResource,
    VersionedParquetIOManager,
    build_version_sensor,
    version_changed,
)
from dagster_versioned.sensors.forecast import forecast

AB = dg.StaticPartitionsDefinition(["a", "b"])


def frame(value):
    return pa.table({"n": [value]})


class Asked:
    """Definitions of assets below ``flights``, and everybody who says what of them is to run."""

    def __init__(self, folder, instance):
        self.instance = instance
        self.resource = ProjectResource(name="HOUSE", location=str(folder))
        self.project = Project.open("HOUSE", str(folder))
        self.write("flights", 1)

    def write(self, name, value):
        self.project.table(name).write(frame(value))

    def define(self, *assets):
        self.sensor = build_version_sensor("keep", dg.AssetSelection.all())
        manager = VersionedParquetIOManager(project=self.resource)
        self.definitions = dg.Definitions(list(assets), sensors=[self.sensor], resources={"io_manager": manager})
        self.cursor = None

    def run(self, name, partition=None, also=(), tags=None):
        job = self.definitions.resolve_implicit_global_asset_job_def()
        keys = [dg.AssetKey(one) for one in (name, *also)]
        result = job.execute_in_process(
            asset_selection=keys, partition_key=partition, instance=self.instance, tags=tags
        )
        assert result.success

    def all(self):
        """What is to run, which all say alike; the tags of the last request are kept."""
        context = dg.build_sensor_context(self.instance, definitions=self.definitions)
        data = self.sensor.evaluate_tick(context)
        self.said = data.skip_message
        found = {(key.to_user_string(), one.partition_key) for one in data.run_requests for key in one.asset_selection}
        self.tags = data.run_requests[-1].tags if data.run_requests else {}
        theirs = dg.evaluate_automation_conditions(self.definitions, self.instance)
        keys = self.definitions.resolve_all_asset_keys()
        assert {(key.to_user_string(), one) for key in keys for one in theirs.get_requested_partitions(key)} == found
        ahead = forecast([self.definitions.get_repository_def()], instance=self.instance)
        assert {
            (one.asset, one.partition) for one in ahead.cells if one.what in ("runs", "new") and one.sensors
        } == found
        return found


@pytest.fixture
def asked(tmp_path):
    with dg.DagsterInstance.ephemeral() as instance:
        yield Asked(tmp_path, instance)


def test_partitions_some_of_which_have_no_value(asked):
    @dg.asset(partitions_def=AB)
    def files(context):
        made = dg.MaterializeResult(metadata={"files": 3})
        return made if context.partition_key == "a" else dg.MaterializeResult(value=frame(1))

    @dg.asset(deps=[files], partitions_def=AB, automation_condition=version_changed())
    def parsed(flights: pa.Table) -> pa.Table:
        return flights

    @dg.asset(deps=[files], automation_condition=version_changed())
    def whole(flights: pa.Table) -> pa.Table:
        return flights

    asked.define(dg.AssetSpec("flights"), files, parsed, whole)
    assert asked.all() == set()
    asked.run("files", "a")
    assert asked.all() == {("parsed", "a")}
    asked.run("files", "b")
    assert asked.all() == {("parsed", "a"), ("parsed", "b"), ("whole", None)}
    asked.instance.wipe_assets([dg.AssetKey("files")])
    assert asked.all() == {("parsed", "b")}


def test_a_value_that_is_forgotten_is_waited_for_again(asked):
    @dg.asset
    def download() -> dg.MaterializeResult:
        return dg.MaterializeResult(metadata={"files": 3})

    @dg.asset(deps=[download], automation_condition=version_changed())
    def parsed(flights: pa.Table) -> pa.Table:
        return flights

    asked.define(dg.AssetSpec("flights"), download, parsed)
    asked.run("download")
    assert asked.all() == {("parsed", None)}
    asked.instance.wipe_assets([dg.AssetKey("download")])
    assert asked.all() == set()
    asked.run("download")
    assert asked.all() == {("parsed", None)}


def test_an_optional_output_that_was_not_emitted(asked):
    emits = []

    @dg.multi_asset(
        outs={
            "always": dg.AssetOut(automation_condition=version_changed()),
            "sometimes": dg.AssetOut(is_required=False, automation_condition=version_changed()),
        }
    )
    def both(flights: pa.Table):
        yield dg.Output(flights, "always")
        if emits:
            yield dg.Output(flights, "sometimes")

    @dg.asset(deps=["sometimes"], automation_condition=version_changed())
    def below(always: pa.Table) -> pa.Table:
        return always

    @dg.asset(automation_condition=version_changed())
    def reader(sometimes: pa.Table) -> pa.Table:
        return sometimes

    asked.define(dg.AssetSpec("flights"), both, below, reader)
    assert asked.all() == {("always", None), ("sometimes", None)}
    asked.run("always", also=("sometimes",), tags=asked.tags)
    assert asked.all() == {("below", None)}
    asked.run("below", tags=asked.tags)
    assert asked.all() == set()
    assert asked.said.endswith(" 1 waiting for an upstream that has no version: reader (sometimes).")
    emits.append(True)
    asked.write("flights", 2)
    asked.run("always", also=("sometimes",))
    assert asked.all() == {("below", None), ("reader", None)}
