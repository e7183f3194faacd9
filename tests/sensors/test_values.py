"""What is built from a value that no table holds, such as a pickled model beside a table, waits for the run that makes
it: no head says which value a version was built from, so a version that is built too early would never be found out."""

import dagster as dg
import pyarrow as pa
import pytest

from dagster_versioned import build_version_sensor
from dagster_versioned.sensors.forecast import forecast

PARTS = dg.StaticPartitionsDefinition(["a", "b"])


def number(frame):
    return frame["n"][0].as_py()


def train_of(how, partitions=None):
    """A step that makes a table and a model."""
    options = {"partitions_def": partitions} if partitions else {}
    outs = {"table": dg.AssetOut(is_required=how != "subset"), "model": dg.AssetOut(io_manager_key="pickled")}
    if how == "graph":

        @dg.op(out={"table": dg.Out(), "model": dg.Out(io_manager_key="pickled")})
        def fit(src: pa.Table):
            return src, number(src)

        @dg.graph_multi_asset(outs={"table": dg.AssetOut(), "model": dg.AssetOut()}, **options)
        def train(src):
            table, model = fit(src)
            return {"table": table, "model": model}

    elif how == "subset":
        outs["model"] = dg.AssetOut(io_manager_key="pickled", is_required=False)

        @dg.multi_asset(outs=outs, can_subset=True, **options)
        def train(context, src: pa.Table):
            if "table" in context.op_execution_context.selected_output_names:
                yield dg.Output(src, "table")
            if "model" in context.op_execution_context.selected_output_names:
                yield dg.Output(number(src), "model")

    else:

        @dg.multi_asset(outs=outs, **options)
        def train(src: pa.Table):
            return src, number(src)

    return train


def scored_of(partitions=None):
    options = {"partitions_def": partitions} if partitions else {}

    @dg.asset(**options)
    def scored(model, src: pa.Table) -> pa.Table:
        return pa.table({"n": src["n"], "w": [model]})

    return scored


@pytest.fixture
def pickled(tmp_path):
    return {"pickled": dg.FilesystemIOManager(base_dir=str(tmp_path / "pickled"))}


def scores(daemon, partition=None):
    frame = daemon.project.table("scored").read(partition=partition).to_pydict()
    return frame["n"][0], frame["w"][0]


def write(daemon, value, partition=None):
    daemon.write("src", pa.table({"n": [value]}), partition)


def sensor(*target):
    return build_version_sensor("keep", dg.AssetSelection.assets(*target))


def test_a_value_beside_a_table_is_made_before_what_is_built_from_it(daemon, pickled):
    target = sensor("table", "model", "scored")
    daemon.deploy(dg.AssetSpec("src"), train_of("multi"), scored_of(), sensors=[target], resources=pickled)
    for value in (1, 7):
        write(daemon, value)
        assert daemon.settle() == [("model", None), ("table", None), ("scored", None)]
        assert scores(daemon) == (value, value)


@pytest.mark.parametrize("how", ["multi", "graph", "subset"])
@pytest.mark.parametrize("partitions", [None, PARTS])
def test_whatever_the_step_is_and_partition_by_partition(daemon, pickled, how, partitions):
    source = dg.AssetSpec("src", partitions_def=partitions)
    assets = (source, train_of(how, partitions), scored_of(partitions))
    daemon.deploy(*assets, sensors=[sensor("table", "model", "scored")], resources=pickled)
    key = "a" if partitions else None
    write(daemon, 1, key)
    (run,) = daemon.tick()
    assert daemon.asked(run) == [("model", key), ("table", key)]
    assert daemon.tick() == []
    cell = "scored[a] (model, table[a])" if partitions else "scored (model, table)"
    assert f"waiting for an upstream that is about to change: {cell}" in daemon.last_tick().skip_reason
    parents = daemon.project.table("src").upstream(partition=key)
    daemon.pretend(run, lambda: daemon.write("table", pa.table({"n": [1]}), key, parents=parents))
    (run,) = daemon.tick()
    assert daemon.asked(run) == [("scored", key)]


def test_a_run_that_failed_to_make_it_is_named_and_waited_for(daemon, pickled):
    target = sensor("table", "model", "scored")
    daemon.deploy(dg.AssetSpec("src"), train_of("multi"), scored_of(), sensors=[target], resources=pickled)
    write(daemon, 7)
    (run,) = daemon.tick()
    daemon.pretend(run, fails=True)
    assert daemon.tick() == []
    said = daemon.last_tick().skip_reason
    assert (
        "1 waiting for a value that is not current, and that no table's version names: scored (model, table: run"
        in said
    )
    assert f"run {run.run_id[:8]}, failure: re-execute it" in said
    daemon.go(daemon.begin_by_hand("table", and_with=["model"]))
    assert daemon.settle() == [("scored", None)]
    assert scores(daemon) == (7, 7)


def test_a_maker_that_is_no_target_is_waited_for_and_not_requested(daemon, pickled):
    daemon.deploy(dg.AssetSpec("src"), train_of("multi"), scored_of(), sensors=[sensor("scored")], resources=pickled)
    write(daemon, 1)
    assert daemon.tick() == []
    assert "Checked 1 targets" in daemon.last_tick().skip_reason
    assert "waiting for an upstream that is about to change: scored (model, table)" in daemon.last_tick().skip_reason
    repository = daemon.definitions.get_repository_def()
    told = {one.asset: (one.what, one.sensors) for one in forecast([repository], instance=daemon.instance).cells}
    assert told == {"table": ("new", ()), "scored": ("waits", ("keep",))}
    daemon.go(daemon.begin_by_hand("table", and_with=["model"]))
    assert daemon.settle() == [("scored", None)]
    assert scores(daemon) == (1, 1)


def test_a_run_by_hand_that_makes_a_value_alone_is_waited_for(daemon, pickled):
    @dg.asset(io_manager_key="pickled")
    def model():
        return 7

    daemon.deploy(dg.AssetSpec("src"), model, scored_of(), sensors=[sensor("scored")], resources=pickled)
    write(daemon, 1)
    run = daemon.begin_by_hand("model")
    assert daemon.tick() == []
    assert "scored (model)" in daemon.last_tick().skip_reason
    daemon.go(run)
    assert daemon.settle() == [("scored", None)]
    assert scores(daemon) == (1, 7)
