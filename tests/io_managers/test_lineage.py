"""Parents are exactly what a step was handed; a retry starts with an empty note and finds its own commit."""

import json
import time
from functools import partial

import dagster as dg
import pyarrow as pa
import pytest

from dagster_versioned import versioned_asset
from support.house import changes, materializations


@dg.asset
def up():
    return pa.table({"n": [1]})


@dg.asset
def other():
    return pa.table({"n": [10]})


def commit(house, name, *values):
    """What another program commits to a table of the project meanwhile."""
    return house.project.table(name).write(pa.table({"n": list(values)})).version


def test_parents_are_the_versions_that_were_loaded(house):
    @dg.asset
    def down(up, other):
        return up

    house.run(up, other, down)
    expected = [(name, None, house.head(name).metadata_sha) for name in ("other", "up")]
    assert sorted(house.parents("down")) == expected
    assert house.head("down").identity.table_type == "derived"
    assert {source.table for source in house.head("down").identity.source_lineage} == {"up", "other"}


def test_a_version_that_lands_after_the_read_is_no_parent(house):
    @dg.asset
    def down(up):
        commit(house, "up", 2)
        return up

    house.run(up, down)
    loaded = house.project.table("up").version("@0")
    assert house.head("up") != loaded
    assert house.parents("down") == [("up", None, loaded.metadata_sha)]


def test_a_pinned_input_is_the_parent_and_not_the_head(house):
    @dg.asset
    def down(up):
        return up

    old, _ = commit(house, "up", 1), commit(house, "up", 2)
    house.run(up, down, selection="down", tags={"dagster_versioned/pin/up": old.metadata_sha})
    assert house.parents("down") == [("up", None, old.metadata_sha)]


def test_a_dependency_that_was_not_loaded_counts_as_it_was_when_the_step_started(house):
    """What lands later may not be in the data; recorded as a parent, nobody would ever notice that it is missing."""

    @dg.asset(deps=[up])
    def down():
        commit(house, "up", 2)
        return pa.table({"n": [0]})

    house.run(up, down)
    at_start = house.project.table("up").version("@0")
    assert house.head("up") != at_start
    assert house.parents("down") == [("up", None, at_start.metadata_sha)]


def test_a_dependency_that_was_not_loaded_counts_from_the_start_of_the_retry(house):
    @dg.asset(deps=[up], retry_policy=dg.RetryPolicy(max_retries=1))
    def down(context):
        if context.retry_number == 0:
            commit(house, "up", 2)
            raise RuntimeError("once")
        return pa.table({"n": [0]})

    house.run(up, down)
    assert house.parents("down") == [("up", None, house.head("up").metadata_sha)]


def test_a_dependency_without_a_table_is_no_parent(house):
    @dg.asset
    def elsewhere() -> None: ...

    @dg.asset(deps=[elsewhere])
    def down():
        return pa.table({"n": [0]})

    house.run(elsewhere, down)
    assert house.parents("down") == []


def test_a_dependency_that_was_not_loaded_counts_by_partition(house):
    days = dg.StaticPartitionsDefinition(["a", "b"])

    @dg.asset(partitions_def=days)
    def daily(context):
        return pa.table({"s": [context.partition_key]})

    @dg.asset(partitions_def=days, deps=[daily])
    def copy():
        return pa.table({"n": [0]})

    @dg.asset(deps=[daily])
    def total():
        return pa.table({"n": [0]})

    for key in "ab":
        house.run(daily, copy, partition_key=key)
    house.run(daily, total, selection="total")
    assert house.parents("copy", "a") == [("daily", "a", house.head("daily", "a").metadata_sha)]
    assert house.parents("total") == [("daily", None, house.project.table("daily").state.history.whole.metadata_sha)]


def test_each_output_of_a_multi_asset_has_its_own_parents(house):
    """Dagster loads all inputs of a multi-asset once; which output needs which is said by its dependencies."""

    @dg.multi_asset(
        outs={"left": dg.AssetOut(), "right": dg.AssetOut(), "both": dg.AssetOut()},
        internal_asset_deps={
            "left": {dg.AssetKey("up")},
            "right": {dg.AssetKey("other")},
            "both": {dg.AssetKey("left"), dg.AssetKey("right")},
        },
    )
    def three(up, other):
        return up, other, up

    house.run(up, other, three)
    house.run(up, other, three)
    assert house.parents("left") == [("up", None, house.head("up").metadata_sha)]
    assert house.parents("right") == [("other", None, house.head("other").metadata_sha)]
    made = [(name, None, house.head(name).metadata_sha) for name in ("left", "right")]
    assert sorted(house.parents("both")) == made
    assert len(house.project.table("both").history()) == 1


@pytest.mark.parametrize("again", [False, True])
def test_a_graph_backed_asset_carries_its_parents_from_the_step_that_reads_to_the_step_that_writes(house, again):
    @dg.op(out=dg.Out(io_manager_key="scratch"))
    def read(up):
        if not again:
            commit(house, "up", 2)
        return up

    @dg.op(retry_policy=dg.RetryPolicy(max_retries=1))
    def write(context, rows):
        if again and context.retry_number == 0:
            raise RuntimeError("once")
        return rows

    @dg.graph_asset
    def down(up):
        return write(read(up))

    house.run(up, down, resources={"scratch": dg.mem_io_manager})
    assert house.parents("down") == [("up", None, house.project.table("up").version("@0").metadata_sha)]


def test_a_graph_backed_asset_names_what_it_read_and_not_what_there_was_when_its_first_step_started(house):
    @dg.op(out=dg.Out(io_manager_key="scratch"))
    def prepare():
        return commit(house, "up", 2).log_version

    @dg.op(out=dg.Out(io_manager_key="scratch"))
    def read(up, after):
        return up

    @dg.op
    def write(rows):
        commit(house, "up", 3)
        return rows

    @dg.graph_asset
    def down(up):
        return write(read(up, prepare()))

    house.run(up, down, resources={"scratch": dg.mem_io_manager})
    assert house.parents("down") == [("up", None, house.project.table("up").version("@1").metadata_sha)]


def test_what_a_failed_attempt_read_does_not_leak_into_the_retry(house):
    versions = []

    @dg.asset(retry_policy=dg.RetryPolicy(max_retries=1))
    def down(context, up):
        if context.retry_number == 0:
            versions.append(commit(house, "up", 2))
            raise RuntimeError("once")
        return up

    house.run(up, down)
    assert house.parents("down") == [("up", None, versions[0].metadata_sha)]
    assert house.head("down").facts.run.attempt == 1


def test_a_retry_finds_what_the_failed_attempt_committed(house):
    """The first output commits, the second fails; then somebody else commits, and the step is tried again."""
    tries = []

    @dg.multi_asset(outs={"first": dg.AssetOut(), "second": dg.AssetOut()}, retry_policy=dg.RetryPolicy(max_retries=1))
    def two():
        yield dg.Output(pa.table({"n": [1]}), "first")
        tries.append(1)
        if len(tries) == 1:
            house.project.table("first").write(pa.table({"n": [2]}))
            raise RuntimeError("once")
        yield dg.Output(pa.table({"n": [1]}), "second")

    result = house.run(two)
    history = house.project.table("first").history()
    assert len(history) == 2  # the attempt's own and the stranger's: the retry added nothing
    assert history[1].facts.run.attempt == 0
    assert changes(result) == {"first": "full", "second": "full"}
    last = materializations(result)["first", None]
    assert last.metadata["dagster_versioned/metadata_sha"].value == history[1].metadata_sha


def test_parents_come_from_the_project_that_the_input_was_loaded_from(house, tmp_path):
    from dagster_versioned import ProjectResource, VersionedParquetIOManager

    elsewhere = VersionedParquetIOManager(project=ProjectResource(name="ELSEWHERE", location=str(tmp_path / "other")))

    @dg.asset(io_manager_key="elsewhere")
    def far():
        return pa.table({"n": [1]})

    @dg.asset
    def down(far):
        return far

    house.run(far, down, resources={"elsewhere": elsewhere})
    (parent,) = house.head("down").identity.parents
    assert (parent.source, parent.table) == ("ELSEWHERE", "far")


@pytest.mark.parametrize("executed", ["far", None])
def test_a_dependency_of_another_project_that_was_not_loaded_is_looked_for_there(house, tmp_path, executed):
    """Whether the run executes it too, or only knows by which IO manager it is stored; and never a namesake of here."""
    from dagster_versioned import Project, ProjectResource, VersionedParquetIOManager

    elsewhere = VersionedParquetIOManager(project=ProjectResource(name="ELSEWHERE", location=str(tmp_path / "other")))
    table = Project.open("ELSEWHERE", str(tmp_path / "other")).table("far")

    @dg.asset(io_manager_key="elsewhere")
    def far():
        return pa.table({"n": [1]})

    @dg.asset(deps=[far])
    def down():
        table.write(pa.table({"n": [2]}))
        return pa.table({"n": [0]})

    commit(house, "far", 0)
    if executed is None:
        table.write(pa.table({"n": [1]}), asset_key=["far"])
    selection = ["down", executed] if executed else ["down"]
    house.run(far, down, resources={"elsewhere": elsewhere}, selection=selection)
    (parent,) = house.head("down").identity.parents
    assert (parent.source, parent.version) == ("ELSEWHERE", table.version("@0").metadata_sha)
    assert table.version() != table.version("@0")


def test_a_parent_whose_bytes_are_gone_is_recorded_all_the_same(house):
    @dg.asset(deps=[up])
    def down():
        commit(house, "up", 2)
        house.project.table("up").expire(keep_last=1, dry_run=False)
        return pa.table({"n": [0]})

    house.run(up, down)
    at_start = house.project.table("up").version("@0")
    assert at_start.gone == "expire"
    assert house.parents("down") == [("up", None, at_start.metadata_sha)]
    assert house.head("down").identity.table_type == "derived"


def test_a_dependency_that_nobody_adopted_is_not_left_out_in_silence(house):
    commit(house, "up", 1)
    _foreign_commit(house.project.table("up"))

    @dg.asset(deps=["up"])
    def down():
        return pa.table({"n": [0]})

    result = house.run(down, raise_on_error=False)
    assert "adopt()" in str(result.failure_data_for_node("down"))
    assert not house.project.table("down").exists()


@pytest.mark.parametrize("is_partitioned", [True, False])
@pytest.mark.parametrize("is_reused", [True, False])
def test_partitions_that_nobody_adopted_are_not_missing_ones(house, is_partitioned, is_reused):
    letters = dg.StaticPartitionsDefinition(["a", "b"])
    for key in "ab":
        house.project.table("up").write(pa.table({"n": [1]}), partition=key)
    _foreign_commit(house.project.table("up"))
    source = dg.AssetSpec("up", partitions_def=letters)
    asset = partial(versioned_asset, code_version="1") if is_reused else dg.asset

    @asset(
        ins={"up": dg.AssetIn(metadata={"allow_missing_partitions": True})},
        partitions_def=letters if is_partitioned else None,
    )
    def down(up: pa.Table) -> pa.Table:
        return pa.table({"n": [up.num_rows]})

    result = house.run(
        source, down, partition_key="b" if is_partitioned else None, selection=[down], raise_on_error=False
    )
    assert "adopt()" in str(result.failure_data_for_node("down"))
    assert not house.project.table("down").exists()


def test_a_table_that_was_created_after_the_step_began_is_no_parent(house):
    @dg.asset(deps=["up"])
    def down():
        commit(house, "up", 1)
        return pa.table({"n": [0]})

    house.run(down)
    assert house.parents("down") == []


def _foreign_commit(table):
    """Removes a part, as another program would."""
    part = min(info.key for info in table.store.list() if info.key.endswith(".parquet") and "/" not in info.key)
    now = time.time_ns() // 1_000_000
    lines = [
        {"commitInfo": {"inCommitTimestamp": now, "timestamp": now, "operation": "DELETE"}},
        {"remove": {"path": part, "deletionTimestamp": now, "dataChange": True}},
    ]
    table.store.put_if_absent(
        f"_delta_log/{table.state.log_version + 1:020d}.json", "\n".join(map(json.dumps, lines)).encode() + b"\n"
    )
