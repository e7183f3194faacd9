"""When a downstream runs and when it does not, with Dagster's daemon, run keys and storage, and with real runs."""

import multiprocessing
import re
import signal
from datetime import timedelta

import dagster as dg
import pyarrow as pa
import pytest
from dagster._core.definitions.instigation_logger import get_instigation_log_records
from dagster._core.remote_representation.external_data import RepositorySnap
from dagster._core.scheduler.instigation import TickStatus

from dagster_versioned import ProjectResource, VersionedParquetIOManager, build_version_sensor
from dagster_versioned.errors import StorageError
from dagster_versioned.projects.project import Project
from dagster_versioned.sensors import tick
from dagster_versioned.storage import LocalStore
from dagster_versioned.storage.wrappers import Fault, FaultStore


class Pipeline:
    """``flights`` -> ``delays``; what they return, and whether they fail, is set from outside."""

    def __init__(self):
        self.value = 0
        self.fails = False
        self.ran = 0
        self.meanwhile = None  # called while the downstream runs

        @dg.asset
        def flights() -> pa.Table:
            return frame(self.value)

        @dg.asset
        def delays(flights: pa.Table) -> pa.Table:
            self.ran += 1
            if self.meanwhile:
                self.meanwhile()
            if self.fails:
                raise dg.Failure("as the test asked")
            return flights

        self.assets = (flights, delays)


def frame(value):
    return pa.table({"n": [value]})


def sensor(name="keep_current", target="delays", **options):
    return build_version_sensor(name, dg.AssetSelection.assets(target), **options)


@pytest.fixture
def pipeline(daemon):
    made = Pipeline()
    daemon.deploy(*made.assets, sensors=[sensor()])
    return made


@pytest.fixture
def built(daemon, pipeline):
    """The pipeline, everything current."""
    daemon.write("flights", frame(0))
    assert daemon.settle() == [("delays", None)]
    assert daemon.is_built("delays", ("flights", None))
    return pipeline


def fail_all(daemon, runs):
    for run in runs:
        daemon.go(run)
    assert {daemon.instance.get_run_by_id(run.run_id).status for run in runs} == {dg.DagsterRunStatus.FAILURE}


# 1. What a version means


def test_a_target_without_a_version_waits_for_its_upstream_and_is_then_requested_once(daemon, pipeline):
    assert daemon.tick() == []
    assert "waiting for an upstream that has no version: delays (flights)" in daemon.last_tick().skip_reason
    daemon.write("flights", frame(0))
    assert daemon.settle() == [("delays", None)]
    assert pipeline.ran == 1


@pytest.mark.slow
def test_an_unchanged_upstream_materialized_ten_times_requests_nothing(daemon, built):
    for _ in range(10):
        assert daemon.materialize("flights").success
        assert daemon.tick() == []
    assert daemon.last_tick().status == TickStatus.SKIPPED
    assert "All are built from current versions" in daemon.last_tick().skip_reason


@pytest.mark.slow
def test_a_metadata_only_change_is_requested_by_what_a_version_means_and_not_by_its_data(daemon):
    pipeline = Pipeline()
    daemon.deploy(*pipeline.assets, sensors=[sensor(on="data_sha")])
    daemon.write("flights", frame(0))
    daemon.settle()
    daemon.write("flights", frame(0), message="checked by hand")
    assert daemon.settle() == []
    daemon.deploy(*pipeline.assets, sensors=[sensor("other", on="metadata_sha")])
    assert daemon.settle() == [("delays", None)]
    daemon.write("flights", frame(1))
    assert daemon.settle() == [("delays", None)]


def test_the_tags_of_a_run_say_which_upstream_went_from_where_to_where(daemon, built):
    before = daemon.head("flights").metadata_sha
    daemon.write("flights", frame(1))
    (run,) = daemon.tick()
    after = daemon.head("flights").metadata_sha
    why = f"flights {before[:8]} -> {after[:8]}: flights has other rows: 1"
    assert run.tags["dagster_versioned/why"] == why
    assert run.tags["dagster_versioned/target"] == "delays"
    assert run.tags["dagster/sensor_name"] == "keep_current"
    said = [one["msg"] for one in get_instigation_log_records(daemon.instance, daemon.last_tick().log_key)]
    assert said[1].endswith(f"Requested delays, because of {why}.")


def test_a_reason_is_followed_to_where_it_began(daemon):
    code = {"1": lambda rows: rows, "2": lambda rows: rows.slice(0, 1)}

    def deploy(version):
        @dg.asset(code_version=version)
        def delays(flights: pa.Table) -> pa.Table:
            return code[version](flights)

        @dg.asset
        def late(delays: pa.Table) -> pa.Table:
            return delays

        both = build_version_sensor("both", dg.AssetSelection.assets("delays", "late"), on_code_version=True)
        daemon.deploy(dg.AssetSpec("flights"), delays, late, sensors=[both])

    deploy("1")
    daemon.write("flights", pa.table({"v": [1, 2]}))
    daemon.settle()
    deploy("2")
    assert daemon.settle() == [("delays", None), ("late", None)]
    newest = daemon.instance.get_runs(limit=1)[0]
    why = newest.tags["dagster_versioned/why"]
    assert re.match("delays .{8} -> .{8}: delays went from code version 1 to 2", why), why


def test_a_reason_is_followed_into_so_many_tables_alone(daemon, built, monkeypatch):
    daemon.write("flights", frame(1))
    monkeypatch.setattr(tick, "_TABLES", 0)
    (run,) = daemon.tick()
    assert run.tags["dagster_versioned/why"].endswith(", which was not followed further")


def test_a_reason_that_cannot_be_followed_keeps_nothing_from_running(daemon, built, monkeypatch, caplog):
    def fail(*_):
        raise StorageError("The store does not answer.")

    before = daemon.head("flights").metadata_sha
    daemon.write("flights", frame(1))
    monkeypatch.setattr(tick, "causes_between", fail)
    (run,) = daemon.tick()
    assert run.tags["dagster_versioned/why"] == f"flights {before[:8]} -> {daemon.head('flights').metadata_sha[:8]}"
    assert "where its change began could not be read" in caplog.text


@pytest.mark.slow
def test_another_code_version_counts_on_request(daemon):
    def deploy(version):
        @dg.asset(code_version=version)
        def delays(flights: pa.Table) -> pa.Table:
            return flights

        selection = dg.AssetSelection.assets("delays")
        both = [build_version_sensor("plain", selection), build_version_sensor("code", selection, on_code_version=True)]
        daemon.deploy(dg.AssetSpec("flights"), delays, sensors=both)

    deploy("1")
    daemon.write("flights", frame(0))
    assert daemon.settle() == [("delays", None)]
    deploy("2")
    (run,) = daemon.tick()
    assert run.tags["dagster/sensor_name"] == "code"
    assert run.tags["dagster_versioned/why"] == "code version 1 -> 2"
    daemon.go()
    assert daemon.settle() == []


def test_the_target_is_shown_as_it_was_given_and_by_its_keys_where_others_only_run_together_with_it():
    manager = VersionedParquetIOManager(project=ProjectResource(name="P", location="unopened"))

    @dg.multi_asset(outs={"one": dg.AssetOut(), "two": dg.AssetOut()})
    def both(up):
        raise NotImplementedError

    def shown(target):
        sensor = build_version_sensor("s", target)
        definitions = dg.Definitions([both, dg.AssetSpec("up")], sensors=[sensor], resources={"io_manager": manager})
        (snap,) = RepositorySnap.from_def(definitions.get_repository_def()).sensors
        return str(snap.asset_selection)

    assert shown(dg.AssetSelection.all() - dg.AssetSelection.groups("up")) == 'not group:"up"'
    assert shown("one") == 'key:"one" or key:"two"'


# 2. Nothing lost, nothing twice


def test_a_to_b_to_a_between_two_ticks_needs_no_run_and_over_ticks_needs_each(daemon, built):
    daemon.write("flights", frame(1))
    daemon.write("flights", frame(0))
    assert daemon.settle() == []
    daemon.write("flights", frame(1))
    assert daemon.settle() == [("delays", None)]
    daemon.write("flights", frame(0))
    assert daemon.settle() == [("delays", None)]
    assert daemon.is_built("delays", ("flights", None))


def test_two_changes_between_ticks_need_one_run(daemon, built):
    daemon.write("flights", frame(1))
    daemon.write("flights", frame(2))
    assert daemon.settle() == [("delays", None)]
    assert daemon.is_built("delays", ("flights", None))


def test_a_change_while_the_downstream_runs_is_requested_after_it(daemon, built):
    daemon.write("flights", frame(1))
    daemon.tick()
    built.meanwhile = lambda: daemon.write("flights", frame(2))
    assert daemon.tick() == []  # one is in flight
    assert "being built by a run in progress" in daemon.last_tick().skip_reason
    daemon.go()
    built.meanwhile = None
    assert not daemon.is_built("delays", ("flights", None))
    assert daemon.settle() == [("delays", None)]
    assert daemon.is_built("delays", ("flights", None))


@pytest.mark.slow
def test_a_downstream_that_ends_and_an_upstream_that_changes_between_two_ticks(daemon):
    """The case that Dagster's `data_version_changed` loses: both are asked after the very same events."""
    pipeline = Pipeline()
    changed = dg.AutomationCondition.any_deps_match(dg.AutomationCondition.data_version_changed())

    @dg.asset(automation_condition=changed.since_last_handled())
    def delays(flights: pa.Table) -> pa.Table:
        return flights

    daemon.deploy(pipeline.assets[0], delays, sensors=[sensor()])
    cursor = None

    def theirs():
        nonlocal cursor
        found = dg.evaluate_automation_conditions(daemon.definitions, daemon.instance, cursor=cursor)
        cursor = found.cursor
        return found.total_requested

    def change():
        pipeline.value += 1
        assert daemon.materialize("flights").success

    change()
    daemon.settle()
    theirs()
    change()
    (run,) = daemon.tick()
    assert theirs() == 1  # both see the first change, and one run serves them
    daemon.go(run)
    change()  # the run has ended, nobody has looked since, and the upstream has changed again
    assert not daemon.is_built("delays", ("flights", None))
    assert [theirs(), theirs(), theirs()] == [0, 0, 0]  # lost, for ever
    assert daemon.settle() == [("delays", None)]
    assert daemon.is_built("delays", ("flights", None))


@pytest.mark.slow
def test_a_failed_downstream_is_not_requested_again_before_something_changes(daemon, built):
    built.fails = True
    daemon.write("flights", frame(1))
    fail_all(daemon, daemon.tick())
    for _ in range(3):
        assert daemon.tick() == []
    assert "a run for just this state has ended" in daemon.last_tick().skip_reason
    daemon.lose_cursor()
    assert daemon.tick() == []
    daemon.write("flights", frame(2))
    fail_all(daemon, daemon.tick())
    daemon.write("flights", frame(0))  # what the downstream was built from: it is current
    assert daemon.tick() == []
    daemon.write("flights", frame(2))  # the same identities as in the failed run, and a new state
    built.fails = False
    assert daemon.settle() == [("delays", None)]
    assert daemon.is_built("delays", ("flights", None))


def test_a_failed_run_that_dagster_is_going_to_retry_is_a_run_in_progress(daemon):
    pipeline = Pipeline()
    daemon.deploy(*pipeline.assets, sensors=[sensor(run_tags={"dagster/max_retries": "1"})])
    daemon.write("flights", frame(0))
    pipeline.fails = True
    fail_all(daemon, daemon.tick())
    assert daemon.runs[0].tags["dagster/max_retries"] == "1"
    assert daemon.instance.get_run_by_id(daemon.runs[0].run_id).is_complete_and_waiting_to_retry
    assert daemon.tick() == []
    pipeline.fails = False
    daemon.retry()
    assert daemon.tick() == []
    daemon.go()
    assert daemon.is_built("delays", ("flights", None))
    assert daemon.settle() == []


def test_a_writer_killed_between_its_commit_and_its_head_is_not_missed(daemon, built, monkeypatch):
    def kill_after_the_commit(call):
        is_committed = len(list(daemon.project.data.list("flights/_delta_log/"))) > 1
        return Fault.BEFORE if is_committed and call.key.endswith("heads/flights.json") else None

    faulty = Project("HOUSE", FaultStore(LocalStore(daemon.location), kill_after_the_commit))
    faulty.table("flights").write(frame(1))
    head = daemon.project.table("flights").head()
    assert head.pending is not None
    assert head.log_version == 0  # the commit is there, the head is not
    assert daemon.tick() == []  # a minute is given to the writer
    assert "A commit is under way on flights" in daemon.last_tick().skip_reason
    monkeypatch.setattr("dagster_versioned.sensors.heads.RESOLVE_AFTER", timedelta(0))
    assert daemon.settle() == [("delays", None)]
    assert daemon.is_built("delays", ("flights", None))
    assert daemon.project.table("flights").head().pending is None


@pytest.mark.slow
def test_a_head_that_cannot_be_read_is_looked_up_in_the_log(daemon, built):
    daemon.write("flights", frame(1))
    daemon.project.data.put(".metadata/heads/flights.json", b"")
    assert daemon.settle() == [("delays", None)]
    assert daemon.is_built("delays", ("flights", None))


def test_a_table_that_cannot_be_read_stops_no_other(daemon):
    @dg.asset
    def sound(good: pa.Table) -> pa.Table:
        return good

    @dg.asset
    def unsound(good: pa.Table, bad: pa.Table) -> pa.Table:
        return good

    source = [dg.AssetSpec("good"), dg.AssetSpec("bad")]
    selection = dg.AssetSelection.assets(sound, unsound)
    daemon.deploy(*source, sound, unsound, sensors=[build_version_sensor("both", selection)])
    daemon.write("good", frame(0))
    daemon.write("bad", frame(0))
    daemon.settle()
    daemon.write("good", frame(1))
    daemon.project.data.put("bad/_delta_log/00000000000000000000.json", b"torn")
    daemon.project.data.put(".metadata/heads/bad.json", b"")
    assert daemon.settle() == [("sound", None)]
    assert "not judged, because heads cannot be read: unsound" in daemon.last_tick().skip_reason


@pytest.mark.slow
def test_a_reverted_and_held_target_is_left_alone_until_it_is_released(daemon, built):
    old = daemon.head("delays").metadata_sha
    daemon.write("flights", frame(1))
    daemon.settle()
    table = daemon.project.table("delays")
    table.revert(old, hold=True, by="ann", why="the new rows are wrong")
    assert daemon.settle() == []
    assert "held: delays (held by ann: the new rows are wrong)" in daemon.last_tick().skip_reason
    daemon.write("flights", frame(2))
    assert daemon.settle() == []
    assert daemon.head("delays").metadata_sha == old
    table.release()
    assert daemon.settle() == [("delays", None)]
    assert daemon.is_built("delays", ("flights", None))


def test_a_lost_cursor_changes_nothing(daemon, built):
    daemon.lose_cursor()
    assert daemon.settle() == []
    daemon.write("flights", frame(1))
    daemon.lose_cursor()
    runs = daemon.tick()
    assert [daemon.asked(run) for run in runs] == [[("delays", None)]]
    daemon.lose_cursor()
    assert daemon.tick() == []
    daemon.go()
    daemon.lose_cursor()
    assert daemon.settle() == []


@pytest.mark.parametrize(
    "moment",
    [
        "RUN_CREATED",
        *(pytest.param(m, marks=pytest.mark.slow) for m in ("TICK_CREATED", "RUN_IDS_RESERVED", "RUN_LAUNCHED")),
    ],
)
def test_a_daemon_that_is_killed_in_the_middle_of_a_tick_requests_once(daemon, built, moment):
    daemon.write("flights", frame(1))
    process = multiprocessing.get_context("fork").Process(
        target=daemon.tick, kwargs={"debug_crash_flags": {"keep_current": {moment: signal.SIGKILL}}}
    )
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL
    daemon.lose_cursor()
    for run in daemon.instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTING])):
        daemon.launcher.waiting.append(run)  # the launcher had it, in the process that died
    daemon.tick()
    daemon.go()
    assert daemon.settle() == []
    assert daemon.is_built("delays", ("flights", None))
    requested = daemon.instance.get_runs(dg.RunsFilter(tags={"dagster/sensor_name": "keep_current"}))
    assert len(requested) == 2


def test_a_manual_run_of_the_target_in_flight_is_waited_for(daemon, built):
    daemon.write("flights", frame(1))
    run = daemon.begin_by_hand("delays")
    assert daemon.tick() == []
    assert f"run {run.run_id[:8]}" in daemon.last_tick().skip_reason
    daemon.go(run)
    assert daemon.settle() == []
    assert daemon.is_built("delays", ("flights", None))


def test_a_manual_run_of_a_whole_job_in_flight_is_waited_for(daemon):
    pipeline = Pipeline()
    everything = dg.define_asset_job("everything", dg.AssetSelection.all())
    daemon.deploy(*pipeline.assets, sensors=[sensor()], jobs=[everything])
    daemon.write("flights", frame(0))
    run = daemon.begin_by_hand(job="everything")
    assert run.asset_selection is None
    assert daemon.tick() == []
    daemon.go(run)
    assert daemon.settle() == []


@pytest.mark.slow
def test_two_sensors_over_one_target_request_it_once(daemon):
    pipeline = Pipeline()
    daemon.deploy(*pipeline.assets, sensors=[sensor("one"), sensor("two")])
    daemon.write("flights", frame(0))
    assert daemon.settle() == [("delays", None)]
    pipeline.fails = True
    daemon.write("flights", frame(1))
    fail_all(daemon, daemon.tick())
    assert daemon.settle() == []
    pipeline.fails = False
    daemon.write("flights", frame(2))
    assert daemon.settle() == [("delays", None)]
    assert daemon.is_built("delays", ("flights", None))


# Inputs that are pinned


@pytest.mark.parametrize("kind", ["pin", pytest.param("tag", marks=pytest.mark.slow)])
def test_a_pinned_input_is_current_and_follows_its_pin_or_tag(daemon, kind):
    daemon.write("flights", frame(0))
    daemon.approve(kind)
    daemon.write("flights", frame(1))
    daemon.deploy(dg.AssetSpec("flights"), daemon.pinned(f"{kind}:approved"), sensors=[sensor()])
    assert daemon.settle() == [("delays", None)]
    daemon.write("flights", frame(2))
    assert daemon.settle() == []
    daemon.disapprove(kind)
    assert daemon.settle() == []
    daemon.approve(kind)
    assert daemon.settle() == [("delays", None)]
    assert daemon.is_built("delays", ("flights", None))
    assert daemon.settle() == []


@pytest.mark.slow
def test_an_input_of_partitions_that_a_tag_pins_is_current(daemon):
    for key in "ab":
        daemon.write("flights", frame(0), partition=key)
    daemon.approve("tag")
    source = dg.AssetSpec("flights", partitions_def=dg.StaticPartitionsDefinition(["a", "b"]))
    delays = daemon.pinned("tag:approved", mapping=dg.AllPartitionMapping())
    daemon.deploy(source, delays, sensors=[sensor()])
    assert daemon.settle() == [("delays", None)]
    daemon.write("flights", frame(1), partition="b")
    assert daemon.settle() == []
    daemon.disapprove("tag")
    daemon.approve("tag")
    assert daemon.settle() == [("delays", None)]
    assert daemon.settle() == []


@pytest.mark.slow
def test_a_damaged_tag_and_one_that_is_not_there_stop_no_other_asset(daemon):
    daemon.write("flights", frame(0))

    daemon.project.tag("damaged")
    daemon.project.tag("good")
    daemon.write("flights", frame(1))
    references = {"one": "tag:damaged", "two": "tag:good", "three": "tag:none"}
    assets = [daemon.pinned(reference, name) for name, reference in references.items()]
    daemon.project.data.put(".metadata/tags/damaged.json", b"{}")
    sensors = [sensor(name, name) for name in references]
    daemon.deploy(dg.AssetSpec("flights"), *assets, sensors=sensors)
    daemon.settle()
    assert daemon.project.table("two").read() == frame(0)
    assert not daemon.project.table("one").exists()
    assert not daemon.project.table("three").exists()


# 8. What would keep a target from ever running again


def test_an_upstream_made_without_a_value_blocks_nothing(daemon):
    @dg.asset
    def download() -> dg.MaterializeResult:
        return dg.MaterializeResult(metadata={"files": 3})

    @dg.asset(deps=[download])
    def delays(flights: pa.Table) -> pa.Table:
        return flights

    daemon.deploy(dg.AssetSpec("flights"), download, delays, sensors=[sensor()])
    daemon.write("flights", frame(0))
    assert daemon.tick() == []
    assert "no version: delays (download)" in daemon.last_tick().skip_reason
    daemon.materialize("download")
    assert daemon.settle() == [("delays", None)]
    daemon.write("flights", frame(1))
    assert daemon.settle() == [("delays", None)]


def end(daemon, run, how):
    """A run ends without a version."""
    match how:
        case "failed":
            daemon.pretend(run, fails=True)
        case "cancelled":
            daemon.instance.report_run_canceled(run)
        case "did not start":
            daemon.instance.report_run_failed(daemon.instance.get_run_by_id(run.run_id), "no machine is free")
    daemon.launcher.waiting.clear()


@pytest.mark.parametrize("how", ["failed", "cancelled", "did not start"])
def test_a_state_whose_runs_failed_or_were_cancelled_is_requested_again_up_to_the_limit(daemon, pipeline, how):
    daemon.deploy(*pipeline.assets, sensors=[sensor(max_reruns=2)])
    daemon.write("flights", frame(0))
    for _ in range(3):
        (run,) = daemon.tick()
        assert daemon.tick() == []
        end(daemon, run, how)
    assert daemon.tick() == []
    assert f"run {run.run_id[:8]}" in daemon.last_tick().skip_reason
    assert "re-execute it, or see max_reruns" in daemon.last_tick().skip_reason
    daemon.write("flights", frame(1))
    (run,) = daemon.tick()
    daemon.go(run)
    assert daemon.tick() == []
    assert daemon.is_built("delays", ("flights", None))


def test_a_failed_run_that_was_deleted_is_requested_again(daemon, pipeline):
    daemon.write("flights", frame(0))
    (run,) = daemon.tick()
    end(daemon, run, "failed")
    assert daemon.tick() == []
    daemon.instance.delete_run(run.run_id)
    daemon.restart()
    (run,) = daemon.tick()
    assert daemon.asked(run) == [("delays", None)]


@pytest.mark.slow
def test_retries_of_dagster_are_waited_for_and_are_no_reruns(daemon, pipeline):
    daemon.deploy(*pipeline.assets, sensors=[sensor(max_reruns=1, run_tags={"dagster/max_retries": "1"})])
    daemon.write("flights", frame(0))
    pipeline.fails = True
    for _ in range(2):
        (run,) = daemon.tick()
        fail_all(daemon, [run])
        assert daemon.tick() == []
        daemon.retry()
        assert daemon.tick() == []
        daemon.go()
    assert daemon.tick() == []
    assert "failure: re-execute it, or see max_reruns" in daemon.last_tick().skip_reason
    assert len(daemon.instance.get_runs()) == 4


def test_the_partitions_of_a_range_and_of_a_backfill_that_failed_are_named_and_requested_again(daemon):
    parts = dg.StaticPartitionsDefinition(["a", "b", "c"])

    @dg.asset(partitions_def=parts, backfill_policy=dg.BackfillPolicy.single_run())
    def delays(flights: pa.Table) -> pa.Table:
        raise NotImplementedError

    daemon.deploy(dg.AssetSpec("flights", partitions_def=parts), delays, sensors=[sensor(max_reruns=1)])
    for key in "abc":
        daemon.write("flights", frame(0), key)
    backfill = daemon.begin_by_hand("delays", "b", tags={"dagster/backfill": "by hand"})
    (first, last) = daemon.tick()
    assert daemon.asked(first) == [("delays", "a")]
    assert daemon.asked(last) == [("delays", "c")]
    for run in (backfill, first, last):
        end(daemon, run, "cancelled")
    (run,) = daemon.tick()
    assert daemon.asked(run) == [("delays", ("a", "c"))]
    end(daemon, run, "failed")
    (run,) = daemon.tick()
    assert daemon.asked(run) == [("delays", "b")]
    end(daemon, run, "failed")
    assert daemon.tick() == []
    said = daemon.last_tick().skip_reason
    assert "3 built from older versions" in said
    assert all(f"delays[{key}] (run " in said for key in "abc")
    assert said.count("failure: re-execute it, or see max_reruns") == 3
