"""A run that failed after a commit and is executed again: what is appended is appended once."""

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from dagster._core.execution.plan.resume_retry import ReexecutionStrategy
from dagster._core.storage.tags import RETRY_NUMBER_TAG

from dagster_versioned import EventHistory, Project, ProjectResource, TableOptions, VersionedParquetIOManager
from dagster_versioned.assets.feature import versioned_feature
from dagster_versioned.tables.event_history import AppendMerge

FOLDER = "REEXECUTION_TEST_FOLDER"
LOCATION = "REEXECUTION_TEST_LOCATION"
APPEND = TableOptions(mode="append").as_metadata()
MERGE = TableOptions(mode="merge", merge_key=("id",)).as_metadata()
EVENTS = TableOptions(history=EventHistory(merge=AppendMerge())).as_metadata()
PARTITION_TAGS = ("dagster/partition", "dagster/asset_partition_range")
DAYS = dg.StaticPartitionsDefinition(["a", "b"])


def folder():
    return Path(os.environ[FOLDER])


def once(name):
    """Whether this is asked for the first time, in whichever process, while the test wants it."""
    try:
        (folder() / name).unlink()
    except FileNotFoundError:
        return False
    return True


class DiesAfterTheCommit(VersionedParquetIOManager):
    """A worker that dies when the version is committed, and the step is no success yet."""

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        super().handle_output(context, obj)
        if once(f"die_in_{context.asset_key.path[-1]}"):
            raise RuntimeError("the worker dies")


def rows():
    return pa.table({"id": [7, 8, 9] if (folder() / "others").exists() else [1, 2, 3]})


@dg.asset(metadata=APPEND)
def orders() -> pa.Table:
    return rows()


@dg.asset(metadata=APPEND, retry_policy=dg.RetryPolicy(max_retries=1))
def retried() -> pa.Table:
    return rows()


@dg.asset(metadata=MERGE)
def merged() -> pa.Table:
    return rows()


@dg.asset(metadata=EVENTS)
def log() -> pa.Table:
    return rows()


@versioned_feature(id_columns=["id"], fields=["n"])
def samples():
    return rows().append_column("n", pa.array([1, 2, 3]))


@dg.multi_asset(outs={"left": dg.AssetOut(metadata=APPEND), "right": dg.AssetOut(metadata=APPEND)})
def both():
    return rows(), rows()


@dg.op(out=dg.Out(io_manager_key="scratch"))
def fetch():
    return rows()


@dg.op
def keep(found):
    return found


@dg.graph_asset(metadata=APPEND)
def graph():
    return keep(fetch())


@dg.asset(metadata=APPEND, partitions_def=DAYS)
def daily(context: dg.AssetExecutionContext) -> pa.Table:
    return rows()


@dg.asset(metadata=APPEND, partitions_def=DAYS, backfill_policy=dg.BackfillPolicy.single_run())
def ranged(context: dg.AssetExecutionContext) -> dict[str, pa.Table]:
    return {key: rows() for key in context.partition_keys}


@dg.asset(deps=[orders], metadata=APPEND)
def fragile() -> pa.Table:
    if once("fail"):
        raise RuntimeError("once")
    return rows()


ASSETS = [orders, retried, merged, log, samples, both, graph, daily, ranged, fragile]
JOBS = {
    "orders": "orders",
    "retried": "retried",
    "merged": "merged",
    "log": "log",
    "samples": "samples",
    "both": ["left", "right"],
    "graph": "graph",
    "daily": "daily",
    "ranged": "ranged",
    "chain": ["orders", "fragile"],
}


def definitions():
    project = ProjectResource(name="HOUSE", location=dg.EnvVar(LOCATION))  # Dagster remembers jobs, so it is read late
    return dg.Definitions(
        assets=ASSETS,
        resources={"io_manager": DiesAfterTheCommit(project=project), "scratch": dg.FilesystemIOManager()},
        jobs=[dg.define_asset_job(name, selection) for name, selection in JOBS.items()],
    )


def job_of(name):
    return definitions().resolve_job_def(name)


class Runs:
    """Runs of the jobs against one instance, and the executions of them again."""

    def __init__(self, instance):
        self.instance = instance
        self.config = {"execution": {"config": {"in_process": {}}}}

    def run(self, name, **tags):
        job = dg.build_reconstructable_job(__name__, "job_of", reconstructable_args=(name,))
        with dg.execute_job(job, self.instance, run_config=self.config, tags=tags) as result:
            return result.run_id, result.success

    def again(self, name, run_id, *, strategy=ReexecutionStrategy.FROM_FAILURE, retry=None):
        """Execute a run again as Dagster does, from its failure or with all steps; ``retry``: as its daemon does."""
        parent = self.instance.get_run_by_id(run_id)
        options = (
            dg.ReexecutionOptions.from_failure(run_id, self.instance)
            if strategy is ReexecutionStrategy.FROM_FAILURE
            else dg.ReexecutionOptions(run_id)
        )
        job = dg.build_reconstructable_job(__name__, "job_of", reconstructable_args=(name,))
        tags = {key: value for key, value in parent.tags.items() if key.startswith(PARTITION_TAGS)}
        if retry is not None:
            tags[RETRY_NUMBER_TAG] = str(retry)
        with dg.execute_job(
            job, self.instance, run_config=self.config, reexecution_options=options, tags=tags
        ) as result:
            events = result.get_asset_materialization_events()
            made = [event.event_specific_data.materialization for event in events]
            return result.run_id, result.success, {one.asset_key.path[-1]: one.metadata for one in made}

    def messages(self, run_id):
        return [entry.user_message for entry in self.instance.all_logs(run_id)]


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER, str(tmp_path))
    monkeypatch.setenv(LOCATION, str(tmp_path / "data"))
    home = tmp_path / "dagster"
    home.mkdir()
    with dg.instance_for_test(temp_dir=str(home)) as instance:
        yield Runs(instance)


def want(*names):
    for name in names:
        (folder() / name).touch()


def ids(table, **of):
    return sorted(Project.open("HOUSE", str(folder() / "data")).table(table).read(**of)["id"].to_pylist())


def versions(table):
    return Project.open("HOUSE", str(folder() / "data")).table(table).history()


TABLES = {"orders": "orders", "merged": "merged", "log": "log", "samples": "samples", "both": "left", "graph": "graph"}


@pytest.mark.every(3)
@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("strategy", [ReexecutionStrategy.FROM_FAILURE, ReexecutionStrategy.ALL_STEPS])
def test_a_run_that_failed_after_its_commit_commits_nothing_when_it_is_executed_again(runs, name, strategy):
    table = TABLES[name]
    want(f"die_in_{table}")
    first, success = runs.run(name)
    assert not success
    again, success, metadata = runs.again(name, first, strategy=strategy)
    assert success
    assert ids(table) == [1, 2, 3]
    assert len(versions(table)) == 1
    assert metadata[table]["dagster_versioned/committed_by"].value == first
    assert "dagster_versioned/left_out" not in metadata[table]
    assert runs.instance.get_run_by_id(again).parent_run_id == first


def test_a_step_that_is_retried_within_its_run_appends_once(runs):
    want("die_in_retried")
    assert runs.run("retried")[1]
    assert ids("retried") == [1, 2, 3]


def test_every_later_attempt_finds_the_commit_whichever_attempt_made_it(runs):
    """The first run fails before its step commits anything, the second and the third after that."""
    want("fail")
    first, success = runs.run("chain")
    assert not success
    last, commits = first, []
    for dies in (True, True, False):
        if dies:
            want("die_in_fragile")
        last, success, _ = runs.again("chain", last)
        assert success is not dies
        commits.append(versions("fragile")[0].facts.run)
    assert ids("orders") == ids("fragile") == [1, 2, 3]
    assert (commits[0].first_run_id, set(commits)) == (first, {commits[0]})


def test_the_attempts_of_two_people_who_execute_one_failed_run_again_append_once(runs):
    (folder() / "data").touch()  # where the project is to be: nothing can be written
    first, success = runs.run("orders")
    assert not success
    (folder() / "data").unlink()
    for _ in range(2):
        assert runs.again("orders", first)[1]
    assert ids("orders") == [1, 2, 3]


@pytest.mark.slow
def test_executing_a_step_again_that_succeeded_is_a_computation_of_its_own(runs):
    first, _ = runs.run("orders")
    second, _, _ = runs.again("orders", first, strategy=ReexecutionStrategy.ALL_STEPS)
    assert ids("orders") == [1, 1, 2, 2, 3, 3]
    want("die_in_orders")
    third, success, _ = runs.again("orders", second, strategy=ReexecutionStrategy.ALL_STEPS)
    assert (success, len(ids("orders"))) == (False, 9)
    _, success, metadata = runs.again("orders", third)
    assert (success, len(ids("orders"))) == (True, 9)
    assert metadata["orders"]["dagster_versioned/committed_by"].value == third


def test_a_step_that_succeeded_in_a_run_that_failed_later_is_executed_again_as_its_own(runs):
    want("fail")
    first, success = runs.run("chain")
    assert not success
    runs.again("chain", first)
    assert ids("orders") == [1, 2, 3]
    runs.again("chain", first, strategy=ReexecutionStrategy.ALL_STEPS)
    assert ids("orders") == [1, 1, 2, 2, 3, 3]


def test_a_run_retry_with_all_steps_appends_nothing_twice(runs):
    want("fail")
    first, success = runs.run("chain")
    assert not success
    want("fail")
    second, success, metadata = runs.again("chain", first, strategy=ReexecutionStrategy.ALL_STEPS, retry=1)
    assert not success
    assert metadata["orders"]["dagster_versioned/committed_by"].value == first
    third, success, metadata = runs.again("chain", second, strategy=ReexecutionStrategy.ALL_STEPS, retry=2)
    assert success
    assert metadata["orders"]["dagster_versioned/committed_by"].value == first
    assert ids("orders") == ids("fragile") == [1, 2, 3]
    assert runs.again("chain", third, strategy=ReexecutionStrategy.ALL_STEPS)[1], "asked for by a user"
    assert ids("orders") == ids("fragile") == [1, 1, 2, 2, 3, 3]


def test_another_run_appends(runs):
    want("die_in_orders")
    runs.run("orders")
    assert runs.run("orders")[1]
    assert ids("orders") == [1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize(("name", "kept"), [("orders", [1, 2, 3]), ("log", [1, 2, 3]), ("merged", [1, 2, 3, 7, 8, 9])])
def test_what_an_attempt_computes_otherwise_is_not_appended_beside_what_was(runs, name, kept):
    want(f"die_in_{name}")
    first, _ = runs.run(name)
    want("others")
    again, success, metadata = runs.again(name, first)
    assert (success, ids(name)) == (True, kept)
    left = name != "merged"
    assert ("dagster_versioned/left_out" in metadata[name]) is left
    told = [text for text in runs.messages(again) if "of other rows than this attempt has" in text]
    assert [first in text and "start a new run" in text for text in told] == [True] * left


def test_one_partition_executed_again_leaves_the_others(runs):
    runs.run("daily", **{"dagster/partition": "a"})
    want("die_in_daily")
    first, success = runs.run("daily", **{"dagster/partition": "b"})
    assert not success
    runs.run("daily", **{"dagster/partition": "a"})
    assert runs.again("daily", first)[1]
    assert (ids("daily", partition="a"), ids("daily", partition="b")) == ([1, 1, 2, 2, 3, 3], [1, 2, 3])


def test_a_run_over_several_partitions_executed_again_appends_to_none(runs):
    want("die_in_ranged")
    tags = {"dagster/asset_partition_range_start": "a", "dagster/asset_partition_range_end": "b"}
    first, success = runs.run("ranged", **tags)
    assert not success
    assert runs.again("ranged", first)[1]
    assert [ids("ranged", partition=key) for key in "ab"] == [[1, 2, 3]] * 2


def test_an_output_that_was_committed_is_found_though_another_of_its_step_was_not(runs):
    want("die_in_left")  # so that the right one is not handled at all
    first, _ = runs.run("both")
    assert runs.again("both", first)[1]
    assert (ids("left"), ids("right")) == ([1, 2, 3], [1, 2, 3])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["orders", "log", "graph"])
def test_the_same_with_each_step_in_a_process_of_its_own(runs, name):
    runs.config = {"execution": {"config": {"multiprocess": {"max_concurrent": 1}}}}
    want(f"die_in_{name}")
    first, success = runs.run(name)
    assert not success
    assert runs.again(name, first)[1]
    assert ids(name) == [1, 2, 3]


def test_an_attempt_that_a_table_has_forgotten_is_not_repeated_blindly(runs, monkeypatch):
    want("die_in_orders")
    first, _ = runs.run("orders")
    monkeypatch.setattr("dagster_versioned.io_managers.attempt.TRANSACTIONS_KEPT", timedelta(0))
    again, success, _ = runs.again("orders", first)
    assert not success
    entries = runs.instance.all_logs(again, of_type=dg.DagsterEventType.STEP_FAILURE)
    failed = [entry.dagster_event.step_failure_data.error for entry in entries]
    assert "cannot be known whether these rows are in the table" in str(failed[0].cause)
    assert ids("orders") == [1, 2, 3]
