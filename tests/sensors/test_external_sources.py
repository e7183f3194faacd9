"""Delta tables of no project as sources: what they make stale, what is recorded of them, what is reported."""

import shutil
from typing import Any

import dagster as dg
import deltalake
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

from dagster_versioned import (
    ExternalTable,
    ProjectResource,
    S3CredentialsResource,
    VersionedParquetIOManager,
    build_source_sensor,
    build_version_sensor,
    version_changed,
    versioned_source,
)
from dagster_versioned.delta.table import Table
from dagster_versioned.errors import InvalidInput
from dagster_versioned.sensors.external import ExternalHeads
from dagster_versioned.storage.wrappers import CountingStore
from support.spark import spark

__all__ = ["spark"]


@pytest.fixture
def lake(tmp_path):
    """The folder of a table that deltalake writes; nothing is in it yet."""
    return str(tmp_path / "lake" / "rates")


def put(lake, *values, mode="append"):
    deltalake.write_deltalake(lake, pa.table({"n": pa.array(values, pa.int64())}), mode=mode)


def loading(as_type: Any = pa.Table, **ins):
    @dg.asset(ins={name: dg.AssetIn(metadata=metadata) for name, metadata in ins.items()})
    def down(rates: as_type) -> pa.Table:
        if as_type is DataFrame:
            return rates.toArrow()
        return pa.table({"n": pa.array(list(rates["n"]) if as_type is not pa.Table else rates["n"])})

    return down


def listing(read):
    """An asset that reads a source by itself, and only says that it depends on it."""

    @dg.asset(deps=["rates"])
    def down() -> pa.Table:
        return read()

    return down


def keep(target, **options):
    return build_version_sensor("keep", dg.AssetSelection.assets(target), **options)


def parent(daemon, name="down"):
    (one,) = daemon.head(name).identity.parents
    return one


def values(daemon):
    return sorted(daemon.project.table("down").read()["n"].to_pylist())


def recorded(daemon, lake):
    """Whether the head records the newest version."""
    return parent(daemon) == ExternalTable(lake, "rates").upstream()[0].parent


@pytest.mark.every(3)
@pytest.mark.parametrize("as_type", [pa.Table, pd.DataFrame, pl.DataFrame], ids=["arrow", "pandas", "polars"])
def test_it_is_waited_for_then_every_commit_makes_stale_what_loads_it(daemon, lake, as_type):
    target = loading(as_type)
    daemon.deploy(versioned_source("rates", uri=lake), target, sensors=[keep(target)])
    assert daemon.tick() == []
    assert "has no version: down (rates)" in daemon.last_tick().skip_reason
    for known in ([1], [1, 2], [1, 2, 3]):
        put(lake, known[-1])
        assert daemon.settle() == [("down", None)]
        assert values(daemon) == known
        assert recorded(daemon, lake)
        daemon.restart()
        assert daemon.settle() == []


@pytest.mark.spark
def test_spark_loads_it_too(daemon, lake, spark):
    target = loading(DataFrame)
    daemon.deploy(versioned_source("rates", uri=lake), target, sensors=[keep(target)])
    put(lake, 1, 2)
    assert daemon.settle() == [("down", None)]
    assert values(daemon) == [1, 2]
    assert recorded(daemon, lake)


def test_one_that_is_not_loaded_counts_as_it_was_when_the_step_began(daemon, lake):
    def read():
        found = ExternalTable(lake).read()
        put(lake, 99)  # while the step runs
        return found

    target = listing(read)
    daemon.deploy(versioned_source("rates", uri=lake), target, sensors=[keep(target)])
    put(lake, 1)
    runs = daemon.tick()
    daemon.go()
    assert len(runs) == 1
    assert parent(daemon).log_version == 0
    assert len(daemon.tick()) == 1  # for what came while the step ran


def test_a_compaction_makes_nothing_stale_where_data_counts_alone(daemon, lake):
    target = loading()
    daemon.deploy(versioned_source("rates", uri=lake), target, sensors=[keep(target, on="data_sha")])
    put(lake, 1)
    put(lake, 2)
    assert daemon.settle() == [("down", None)]
    deltalake.DeltaTable(lake).optimize.compact()
    Table(lake).set_properties({"my.note": "x"})
    assert daemon.settle() == []
    daemon.restart()
    assert daemon.settle() == []
    put(lake, 3)
    assert daemon.settle() == [("down", None)]


@pytest.mark.slow
def test_a_compaction_is_another_version_where_versions_count(daemon, lake):
    target = loading()
    daemon.deploy(versioned_source("rates", uri=lake), target, sensors=[keep(target)])
    put(lake, 1)
    put(lake, 2)
    assert daemon.settle() == [("down", None)]
    deltalake.DeltaTable(lake).optimize.compact()
    assert daemon.settle() == [("down", None)]
    assert recorded(daemon, lake)
    assert daemon.settle() == []


def test_another_table_in_its_place_makes_stale_though_its_log_is_shorter(daemon, lake):
    target = loading()
    daemon.deploy(versioned_source("rates", uri=lake), target, sensors=[keep(target)])
    for value in (1, 2, 3):
        put(lake, value)
    assert daemon.settle() == [("down", None)]
    before = parent(daemon)
    shutil.rmtree(lake)
    assert daemon.settle() == []
    put(lake, 7)
    assert daemon.settle() == [("down", None)]
    assert values(daemon) == [7]
    assert (parent(daemon).log_version, before.log_version) == (0, 2)
    assert parent(daemon).table_id != before.table_id


@pytest.mark.slow
def test_a_table_that_cannot_be_read_is_named_and_stops_no_other(daemon, lake, tmp_path):
    other = str(tmp_path / "lake" / "fine")

    @dg.asset
    def beside(fine: pa.Table) -> pa.Table:
        return fine

    target = loading()
    sources = [versioned_source("rates", uri=lake), versioned_source("fine", uri=other)]
    daemon.deploy(*sources, target, beside, sensors=[build_version_sensor("keep", [target, beside])])
    put(lake, 1)
    put(other, 1)
    assert sorted(daemon.settle()) == [("beside", None), ("down", None)]
    log = tmp_path / "lake" / "rates" / "_delta_log" / f"{1:020d}.json"
    log.write_text(
        '{"protocol":{"minReaderVersion":3,"minWriterVersion":7,"readerFeatures":["warp"],"writerFeatures":["warp"]}}'
    )
    put(other, 2)
    assert daemon.settle() == [("beside", None)]
    daemon.tick()
    assert "warp" in daemon.last_tick().skip_reason
    log.unlink()
    assert daemon.settle() == []


def test_a_tick_at_which_nothing_happened_lists_its_log_once_and_reads_nothing(daemon, lake, monkeypatch):
    stores = []
    real = ExternalTable.__init__

    def counting(self, *args, **kwargs):
        real(self, *args, **kwargs)
        self.store = CountingStore(self.store)
        stores.append(self.store)

    monkeypatch.setattr(ExternalTable, "__init__", counting)
    target = loading()
    daemon.deploy(versioned_source("rates", uri=lake), target, sensors=[keep(target), build_source_sensor("report")])
    for value in range(15):
        put(lake, value)
    daemon.settle()
    daemon.tick()
    for store in stores:
        store.reset()
    daemon.tick()
    calls = [[call.verb for call in store.calls] for store in stores if store.calls]
    assert calls == [["list"], ["list"]]  # one of each sensor


def test_every_version_is_reported_once_with_its_sha(daemon, lake):
    daemon.deploy(versioned_source("rates", uri=lake), sensors=[build_source_sensor("report")])
    daemon.tick()
    shas = []
    for value in range(3):
        put(lake, value)
        daemon.tick()
        daemon.tick()
        if value == 1:
            daemon.restart()
        shas.append(ExternalTable(lake).version().commit_sha)
    records = daemon.instance.fetch_observations(dg.AssetKey("rates"), limit=10).records
    observed = [one.asset_observation for one in reversed(records)]
    assert [one.data_version for one in observed] == shas
    assert [one.metadata["dagster_versioned/log_version"].value for one in observed] == [0, 1, 2]


@pytest.mark.slow
def test_version_changed_judges_it_as_the_sensor_does(daemon, lake):
    @dg.asset(automation_condition=version_changed())
    def down(rates: pa.Table) -> pa.Table:
        return rates

    sensor = dg.AutomationConditionSensorDefinition("auto", target="*", use_user_code_server=True)
    daemon.deploy(versioned_source("rates", uri=lake), down, sensors=[sensor])
    put(lake, 1)
    assert daemon.settle() == [("down", None)]
    assert daemon.settle() == []
    put(lake, 2)
    assert daemon.settle() == [("down", None)]
    assert recorded(daemon, lake)


def test_an_input_pinned_to_a_log_version_stays_there(daemon, lake):
    target = loading(rates={"dagster_versioned/version": "@0"})
    daemon.deploy(versioned_source("rates", uri=lake), target, sensors=[keep(target)])
    put(lake, 1)
    put(lake, 2)
    assert daemon.settle() == [("down", None)]
    assert values(daemon) == [1]
    assert parent(daemon).log_version == 0
    put(lake, 3)
    assert daemon.settle() == []


def test_a_run_is_pinned_by_its_tag(daemon, lake):
    daemon.deploy(versioned_source("rates", uri=lake), loading())
    put(lake, 1)
    put(lake, 2)
    assert daemon.materialize("down", tags={"dagster_versioned/pin/rates": "@0"}).success
    assert (values(daemon), parent(daemon).log_version) == ([1], 0)


def test_its_value_is_loaded_outside_of_runs(daemon, lake):
    put(lake, 1, 2)
    definitions = dg.Definitions([versioned_source("rates", uri=lake)], resources={"io_manager": daemon.io_manager()})
    assert definitions.load_asset_value("rates", python_type=pa.Table)["n"].to_pylist() == [1, 2]


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("lake/rates", "relative path"),
        ("s3://key:hunter2@bucket/rates", "user or a password"),
        ("hdfs://bucket/rates", "unknown scheme"),
    ],
)
def test_places_that_mean_nothing_are_refused_where_the_source_is_defined(uri, message):
    with pytest.raises(InvalidInput, match=message) as caught:
        versioned_source("rates", uri=uri)
    assert "hunter2" not in str(caught.value)


def test_it_has_no_partitions(lake):
    days = dg.DailyPartitionsDefinition("2024-01-01")
    with pytest.raises(InvalidInput, match="partitions_def"):
        versioned_source("rates", uri=lake, partitions_def=days)


@pytest.mark.parametrize("annotation", [dict[str, pa.Table]])
def test_an_input_by_partition_is_refused(daemon, lake, annotation):
    @dg.asset
    def down(rates: annotation) -> pa.Table:
        raise AssertionError

    daemon.deploy(versioned_source("rates", uri=lake), down)
    put(lake, 1)
    result = daemon.materialize("down")
    failures = [event for event in result.all_events if event.is_step_failure]
    assert "neither partitions nor samples" in str(failures[0].step_failure_data.error)


def test_a_run_that_finds_no_table_says_where_it_looked(daemon, lake):
    daemon.deploy(versioned_source("rates", uri=lake), loading())
    result = daemon.materialize("down")
    (failure,) = [event for event in result.all_events if event.is_step_failure]
    assert f"No Delta table at {lake}" in str(failure.step_failure_data.error)
    assert not daemon.project.table("down").exists()


@pytest.mark.s3
@pytest.mark.slow
def test_on_s3_it_is_reached_with_the_keys_of_its_io_manager_and_nothing_holds_them(daemon, s3_server):
    bucket = s3_server.new_bucket()
    options = {
        "AWS_ENDPOINT_URL": s3_server.endpoint_url,
        "AWS_ACCESS_KEY_ID": s3_server.access_key,
        "AWS_SECRET_ACCESS_KEY": s3_server.secret_key,
        "AWS_REGION": s3_server.region,
        "AWS_ALLOW_HTTP": "true",
        "aws_conditional_put": "etag",
    }
    query = f"?region={s3_server.region}&endpoint_url={s3_server.endpoint_url}"
    lake = f"s3://{bucket}/lake/rates{query}"
    keys = S3CredentialsResource(access_key=s3_server.access_key, secret_key=s3_server.secret_key)
    project = ProjectResource(name="LAKE", location=f"s3://{bucket}/project{query}", credentials=keys)
    source = versioned_source("rates", uri=lake, io_manager_key="lake")

    def put(value, mode="append"):
        rows = pa.table({"n": pa.array([value], pa.int64())})
        deltalake.write_deltalake(f"s3://{bucket}/lake/rates", rows, mode=mode, storage_options=options)

    target = loading()
    sensors = [keep(target, on="data_sha"), build_source_sensor("report")]
    daemon.deploy(source, target, sensors=sensors, resources={"lake": VersionedParquetIOManager(project=project)})
    assert daemon.tick() == []
    for known in ([1], [1, 2]):
        put(known[-1])
        assert daemon.settle() == [("down", None)]
        assert values(daemon) == known
    deltalake.DeltaTable(f"s3://{bucket}/lake/rates", storage_options=options).optimize.compact()
    assert daemon.settle() == []
    identity = daemon.head("down").identity.to_json()
    assert [one["log_version"] for one in identity["parents"]] == [1]
    said = [str(identity), *(str(one) for run in daemon.runs for one in daemon.instance.all_logs(run.run_id))]
    assert s3_server.secret_key not in "".join(said)
    # Where it is is no part of what was built from it.
    assert bucket not in said[0]
    table = ExternalTable(lake, credentials=s3_server.credentials)
    assert table.recorded(parent(daemon)).log_version == 1


def test_a_look_that_breaks_off_takes_no_version_for_seen(lake, monkeypatch):
    put(lake, 1)
    table = ExternalTable(lake)
    heads = ExternalHeads(table)
    heads.look(heads.listing(), [table.name])
    put(lake, 2)

    def broken(_):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(ExternalTable, "newest", broken)
        with pytest.raises(MemoryError):
            heads.look(heads.listing(), [table.name])
    heads.look(heads.listing(), [table.name])
    assert heads.heads(table.name).whole.metadata_sha == ExternalTable(lake).newest().commit_sha
