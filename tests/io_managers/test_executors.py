"""The same under Dagster's executors: steps in one process, and each step in a process of its own."""

import dagster as dg
import pyarrow as pa
import pytest

from dagster_versioned import Project, ProjectResource, VersionedParquetIOManager

LOCATION = "EXECUTORS_TEST_LOCATION"
DAYS = dg.StaticPartitionsDefinition(["a", "b"])


@dg.asset
def up():
    return pa.table({"n": [1, 2]})


@dg.asset(deps=[up], retry_policy=dg.RetryPolicy(max_retries=1))
def beside(context):
    if context.retry_number == 0:
        raise RuntimeError("once")
    return pa.table({"n": [0]})


@dg.op(out=dg.Out(io_manager_key="scratch"))
def read(up):
    return up


@dg.op
def write(rows):
    return rows


@dg.graph_asset
def graph(up):
    return write(read(up))


@dg.asset(partitions_def=DAYS, backfill_policy=dg.BackfillPolicy.single_run())
def daily(context, up) -> dict[str, pa.Table]:
    return dict.fromkeys(context.partition_keys, up)


@dg.asset
def total(daily):
    return daily


def everything():
    """The job, as each process of the multiprocess executor makes it for itself."""
    project = ProjectResource(name=dg.EnvVar("EXECUTORS_TEST_NAME"), location=dg.EnvVar(LOCATION))
    return dg.Definitions(
        assets=[up, beside, graph, daily, total],
        resources={"io_manager": VersionedParquetIOManager(project=project), "scratch": dg.fs_io_manager},
        jobs=[dg.define_asset_job("everything", "*")],
    ).resolve_job_def("everything")


def outcome(project):
    """Every head with its parents, by table and partition."""
    return {
        (str(name), partition): (
            version.metadata_sha,
            {(parent.table, parent.partition) for parent in version.identity.parents},
            version.facts.run.attempt,
        )
        for name in project.tables()
        for partition, version in project.table(str(name)).state.history.heads.items()
    }


@pytest.mark.parametrize("executor", [pytest.param("multiprocess", marks=pytest.mark.slow), "in_process"])
def test_versions_and_lineage_are_the_same_under_each_executor(executor, tmp_path, monkeypatch):
    monkeypatch.setenv(LOCATION, str(tmp_path / "data"))
    monkeypatch.setenv("EXECUTORS_TEST_NAME", "HOUSE")
    with dg.instance_for_test(temp_dir=str(tmp_path)) as instance:
        tags = {"dagster/asset_partition_range_start": "a", "dagster/asset_partition_range_end": "b"}
        config = {"execution": {"config": {executor: {"max_concurrent": 2} if executor == "multiprocess" else {}}}}
        with dg.execute_job(dg.reconstructable(everything), instance, run_config=config, tags=tags) as result:
            assert result.success
    project = Project.open("HOUSE", str(tmp_path / "data"))
    found = outcome(project)
    head = {key: sha for key, (sha, _, _) in found.items()}
    assert {key: (parents, attempt) for key, (_, parents, attempt) in found.items()} == {
        ("up", None): (set(), 0),
        ("beside", None): ({("up", None)}, 1),
        ("graph", None): ({("up", None)}, 0),
        ("daily", "a"): ({("up", None)}, 0),
        ("daily", "b"): ({("up", None)}, 0),
        ("total", None): ({("daily", None)}, 0),
    }
    (parent,) = project.table("graph").version().identity.parents
    assert parent.version == head["up", None]
