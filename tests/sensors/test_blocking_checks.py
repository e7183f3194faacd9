"""A version is handed on once the blocking checks of its asset have passed for it, and what that costs."""

from contextlib import contextmanager

import dagster as dg
import pyarrow as pa
import pytest
from dagster._core.definitions.asset_checks.asset_check_evaluation import AssetCheckEvaluationTargetMaterializationData
from sqlalchemy import event
from sqlalchemy.engine import Engine

from dagster_versioned import SchemaPolicy, build_version_checks, build_version_sensor, version_changed
from dagster_versioned.sensors import blocking_checks
from support.dagster_versions import has_partitioned_checks

ABC = dg.StaticPartitionsDefinition(["a", "b", "c"])


def frame(value):
    return pa.table({"n": [value]})


def is_good(rows):
    return all(value >= 0 for value in rows["n"].to_pylist())


class Up:
    """``up``, with a blocking check that its rows are not negative, and ``down`` below it."""

    def __init__(self, partitions=None, check_partitions=None, severity=dg.AssetCheckSeverity.ERROR, **options):
        self.value = 0
        self.values = {}
        self.raises = False
        self.is_lenient = False
        policy = {"backfill_policy": dg.BackfillPolicy.single_run()} if partitions is not None else {}

        @dg.asset(partitions_def=partitions, **policy)
        def up(context: dg.AssetExecutionContext):
            if partitions is None:
                return frame(self.value)
            return {key: frame(self.values.get(key, 0)) for key in context.partition_keys}

        checked = {"partitions_def": check_partitions} if check_partitions is not None else {}

        @dg.asset_check(asset=up, blocking=True, **checked)
        def positive(context: dg.AssetCheckExecutionContext):
            if self.raises:
                raise ValueError("as the test asked")
            table = self.project.table("up")
            keys = sorted(table.partitions()) if partitions is not None else [None]
            of_run = context.op_execution_context  # which has the partitions before Dagster 1.12, too
            if of_run.has_partition_key or of_run.has_partition_key_range:
                keys = of_run.partition_keys
            passed = self.is_lenient or all(is_good(table.read(as_type=pa.Table, partition=key)) for key in keys)
            return dg.AssetCheckResult(passed=passed, severity=severity, description="a number is negative")

        @dg.asset(partitions_def=partitions)
        def down(up: pa.Table) -> pa.Table:
            return up

        self.up, self.check, self.down = up, positive, down
        self.sensor = build_version_sensor("keep", dg.AssetSelection.assets(down), max_runs_per_tick=100, **options)

    def deploy(self, daemon):
        self.project = daemon.project
        daemon.deploy(self.up, self.down, checks=[self.check], sensors=[self.sensor])
        return self

    def make(self, daemon, value):
        self.value = value
        daemon.materialize("up")


@pytest.fixture
def line(daemon):
    return Up().deploy(daemon)


def skipped(daemon):
    return daemon.last_tick().skip_reason


# Which versions wait


def test_a_version_whose_check_failed_is_not_handed_on_and_the_next_good_one_is_once(daemon, line):
    line.make(daemon, 1)
    assert daemon.settle() == [("down", None)]
    line.make(daemon, -1)
    bad = daemon.head("up").metadata_sha
    for _ in range(3):
        assert daemon.tick() == []
    assert (
        f"1 waiting for a blocking check of what it would read: down (check positive of up {bad[:8]} failed: a number "
        "is negative)" in skipped(daemon)
    )
    line.deploy(daemon)  # a new process finds the same
    assert daemon.tick() == []
    line.make(daemon, 2)
    assert daemon.settle() == [("down", None)]
    assert daemon.is_built("down", ("up", None))
    assert daemon.settle() == []


def test_a_check_that_raised_has_not_judged(daemon, line):
    line.raises = True
    line.make(daemon, 1)
    sha = daemon.head("up").metadata_sha
    assert daemon.tick() == []
    assert f"down (check positive has not judged up {sha[:8]})" in skipped(daemon)
    line.raises = False
    daemon.check(line.check)
    assert daemon.settle() == [("down", None)]


def test_a_check_that_is_executed_again_alone_has_the_last_word(daemon, line):
    line.make(daemon, -1)
    assert daemon.tick() == []
    line.is_lenient = True
    daemon.check(line.check)
    assert daemon.settle() == [("down", None)]
    line.make(daemon, 3)
    line.is_lenient = False
    daemon.write("up", frame(-3))
    daemon.check(line.check)
    assert daemon.tick() == []
    assert "check positive of up" in skipped(daemon)


@pytest.mark.slow
def test_a_version_that_is_materialized_again_unchanged_is_judged_by_the_new_run(daemon, line):
    line.make(daemon, -1)
    assert daemon.tick() == []
    line.is_lenient = True
    line.make(daemon, -1)
    assert len(daemon.project.table("up").history()) == 1
    assert daemon.settle() == [("down", None)]


@pytest.mark.slow
def test_a_version_that_is_materialized_again_without_its_check_keeps_its_verdict(daemon, line):
    line.make(daemon, 1)
    daemon.write("up", frame(-1))
    assert daemon.tick() == []
    line.value = 1  # the same as the first, which was judged
    job = daemon.definitions.resolve_implicit_global_asset_job_def()
    job.get_subset(asset_selection={dg.AssetKey("up")}, asset_check_selection=set()).execute_in_process(
        instance=daemon.instance
    )
    assert daemon.settle() == [("down", None)]


@pytest.mark.slow
def test_a_version_that_no_run_made_waits_until_the_check_is_executed(daemon, line):
    line.make(daemon, 1)
    daemon.settle()
    daemon.write("up", frame(2))
    assert daemon.tick() == []
    assert "check positive has not judged up" in skipped(daemon)
    daemon.check(line.check)
    assert daemon.settle() == [("down", None)]
    daemon.write("up", frame(-2))
    daemon.check(line.check)
    assert daemon.tick() == []
    assert "check positive of up" in skipped(daemon)


@pytest.mark.slow
def test_a_table_without_partitions_is_judged_by_a_run_of_a_partition_as_well(daemon):
    @dg.asset(partitions_def=ABC)
    def beside() -> pa.Table:
        return frame(1)

    @dg.asset_check(asset="up", blocking=True)
    def read():
        return dg.AssetCheckResult(passed=daemon.project.table("up").read().num_rows > 0)

    line = Up()
    daemon.deploy(line.up, line.down, beside, checks=[read], sensors=[line.sensor])
    daemon.write("up", frame(1))
    assert daemon.tick() == []
    job = daemon.definitions.resolve_implicit_global_asset_job_def()
    subset = job.get_subset(asset_selection={dg.AssetKey("beside")}, asset_check_selection=read.check_keys)
    assert subset.execute_in_process(instance=daemon.instance, partition_key="a").success
    assert daemon.settle() == [("down", None)]


@pytest.mark.slow
def test_a_revert_to_a_version_that_was_judged_needs_no_new_judgement(daemon, line):
    for value in (1, 2, -3):
        line.make(daemon, value)
        daemon.settle()
    assert daemon.is_built("down", ("up", None)) is False
    daemon.project.table("up").revert("@0")
    assert daemon.settle() == [("down", None)]
    daemon.project.table("up").revert("@2")  # the bad one
    assert daemon.tick() == []


@pytest.mark.slow
def test_a_check_of_what_was_reverted_to_says_nothing_of_what_dagster_takes_for_its_target(daemon, line):
    line.make(daemon, 1)
    daemon.settle()
    line.make(daemon, -1)
    daemon.project.table("up").revert("@0")
    daemon.check(line.check)  # passes for the first version; Dagster's last materialization is of the second
    assert daemon.settle() == []
    daemon.project.table("up").revert("@1")
    assert daemon.tick() == []
    assert "check positive of up" in skipped(daemon)


class TestWhatACheckHasRead:
    """Somebody writes between a step and its check, or while the check runs."""

    @pytest.fixture
    def meanwhile(self, daemon):
        """What happens after ``up`` was made, and in its check after that has read it."""
        happens = {"made": list, "read": list}

        @dg.asset
        def up():
            yield dg.Output(frame(self.value))
            happens.pop("made", list)()

        @dg.asset_check(asset=up, blocking=True)
        def positive(up: pa.Table):
            happens.pop("read", list)()
            return dg.AssetCheckResult(passed=is_good(up))

        @dg.asset
        def down(up: pa.Table) -> pa.Table:
            return up

        sensor = build_version_sensor("keep", dg.AssetSelection.assets(down))
        daemon.deploy(up, down, checks=[positive], sensors=[sensor])
        self.check = positive
        return happens

    def test_is_all_that_it_judges_in_the_run_that_made_a_version(self, daemon, meanwhile):
        self.value = -1
        meanwhile["made"] = lambda: daemon.write("up", frame(5))
        daemon.materialize("up")
        daemon.project.table("up").revert("@0")
        assert daemon.tick() == []
        assert "check positive has not judged up" in skipped(daemon)
        daemon.check(self.check)
        assert daemon.tick() == []
        assert "check positive of up" in skipped(daemon)

    def test_is_all_that_it_judges_whatever_dagster_takes_for_its_target(self, daemon, meanwhile):
        def make():
            job = daemon.definitions.resolve_implicit_global_asset_job_def()
            subset = job.get_subset(asset_selection={dg.AssetKey("up")}, asset_check_selection=set())
            assert subset.execute_in_process(instance=daemon.instance).success

        self.value = 1
        make()
        self.value = -1
        meanwhile["read"] = make
        assert daemon.check(self.check).success
        assert daemon.head("up").log_version == 1
        assert daemon.tick() == []
        assert "check positive has not judged up" in skipped(daemon)


def test_a_version_waits_for_every_check_of_any_kind(daemon):
    values = iter([1, 1, -1, 2])

    @dg.multi_asset(
        outs={"up": dg.AssetOut()},
        check_specs=[dg.AssetCheckSpec("inside", asset="up", blocking=True), dg.AssetCheckSpec("loose", asset="up")],
    )
    def made():
        value = next(values)
        yield dg.Output(frame(value) if value != 2 else pa.table({"m": [2]}), "up")
        yield dg.AssetCheckResult(passed=value > 0, check_name="inside")
        yield dg.AssetCheckResult(passed=False, check_name="loose")

    @dg.asset
    def down(up: pa.Table) -> pa.Table:
        return up

    ours = build_version_checks([made], [SchemaPolicy("frozen", blocking=True)])
    sensor = build_version_sensor("keep", dg.AssetSelection.assets(down))
    daemon.deploy(made, down, checks=ours, sensors=[sensor])
    daemon.materialize("up")
    assert daemon.settle() == [("down", None)]
    daemon.materialize("up")
    assert daemon.settle() == []
    daemon.materialize("up")
    assert daemon.tick() == []
    assert "check inside of up" in skipped(daemon)
    daemon.materialize("up")
    assert daemon.tick() == []
    assert "check schema of up" in skipped(daemon)


def test_a_failure_that_only_warns_stops_nothing(daemon):
    line = Up(severity=dg.AssetCheckSeverity.WARN).deploy(daemon)
    line.make(daemon, -1)
    assert daemon.settle() == [("down", None)]


def test_checks_are_not_waited_for_where_that_is_switched_off(daemon):
    line = Up(wait_for_checks=False).deploy(daemon)
    line.make(daemon, -1)
    assert daemon.settle() == [("down", None)]


@pytest.mark.slow
def test_what_an_asset_was_already_built_from_is_asked_after_as_well_when_it_runs_again(daemon, line):
    @dg.asset
    def both(up: pa.Table, other: pa.Table) -> pa.Table:
        return up

    sensor = build_version_sensor("keep", dg.AssetSelection.assets(both))
    daemon.deploy(line.up, dg.AssetSpec("other"), both, checks=[line.check], sensors=[sensor])
    daemon.write("other", frame(1))
    line.make(daemon, 1)
    assert daemon.settle() == [("both", None)]
    line.raises = False
    daemon.write("other", frame(2))
    assert daemon.settle() == [("both", None)]


def test_a_run_that_is_still_to_judge_is_waited_for(daemon, line):
    run = daemon.begin_by_hand("up")
    daemon.write("up", frame(1))
    assert daemon.tick() == []
    assert "waiting for an upstream that is about to change: down (up)" in skipped(daemon)
    line.value = 1
    daemon.go(run)
    assert daemon.settle() == [("down", None)]


@pytest.mark.slow
def test_what_lies_below_a_target_that_waits_for_a_check_does_not_wait(daemon, line):
    @dg.asset
    def low(down: pa.Table, side: pa.Table) -> pa.Table:
        return down

    sensor = build_version_sensor("keep", dg.AssetSelection.assets(line.down, low))
    daemon.deploy(line.up, line.down, dg.AssetSpec("side"), low, checks=[line.check], sensors=[sensor])
    daemon.write("side", frame(1))
    line.make(daemon, 1)
    daemon.settle()
    line.make(daemon, -1)
    daemon.write("side", frame(2))
    assert daemon.settle() == [("low", None)]


@pytest.mark.slow
def test_the_run_of_a_target_that_is_executed_again_reads_what_was_judged(daemon, line):
    line.make(daemon, 1)
    (run,) = daemon.tick()
    line.make(daemon, -1)  # while it waits: it reads this one
    daemon.go(run)
    assert daemon.is_built("down", ("up", None))
    line.make(daemon, 2)
    assert daemon.settle() == [("down", None)]


def test_the_condition_waits_for_checks_as_well(daemon):
    line = Up()

    def ask(**options):
        target = line.down.map_asset_specs(
            lambda spec: spec.replace_attributes(automation_condition=version_changed(**options))
        )
        definitions = dg.Definitions(
            [line.up, target], asset_checks=[line.check], resources=daemon.definitions.resources
        )
        return dg.evaluate_automation_conditions(definitions, daemon.instance).total_requested

    line.deploy(daemon)
    line.make(daemon, -1)
    assert ask() == 0
    assert ask(wait_for_checks=False) == 1
    line.make(daemon, 1)
    assert ask() == 1


# Partitions


@pytest.mark.every(2)
@pytest.mark.parametrize("check_partitions", [None, pytest.param(ABC, marks=has_partitioned_checks)])
def test_each_partition_is_judged_by_itself(daemon, check_partitions):
    line = Up(ABC, check_partitions).deploy(daemon)
    line.values = {"b": -1}
    for key in "abc":
        daemon.materialize("up", key)
    assert sorted(daemon.settle()) == [("down", "a"), ("down", "c")]
    assert "down[b] (check positive of up[b]" in skipped(daemon)
    line.values = {"a": -1, "b": 5}
    daemon.materialize("up", "a")
    daemon.materialize("up", "b")
    assert daemon.settle() == [("down", "b")]
    assert "down[a] (check positive of up[a]" in skipped(daemon)


@pytest.mark.slow
def test_a_ranged_run_is_judged_as_one(daemon):
    line = Up(ABC).deploy(daemon)
    tags = {"dagster/asset_partition_range_start": "a", "dagster/asset_partition_range_end": "b"}
    line.values = {"b": -1}
    daemon.materialize("up", tags=tags)
    daemon.materialize("up", "c")
    assert daemon.settle() == [("down", "c")]
    line.values = {}
    daemon.materialize("up", tags=tags)
    assert sorted(daemon.settle()) == [("down", "a"), ("down", "b")]


def test_a_check_of_the_whole_table_judges_every_partition_that_was_there(daemon):
    line = Up(ABC).deploy(daemon)
    for key in "ab":
        daemon.write("up", frame(1), key)
    assert daemon.tick() == []
    assert "2 waiting for a blocking check" in skipped(daemon)
    daemon.check(line.check)
    daemon.write("up", frame(1), "c")
    assert sorted(daemon.settle()) == [("down", "a"), ("down", "b")]


@pytest.mark.slow
def test_what_reads_all_partitions_waits_for_each(daemon):
    line = Up(ABC)
    line.project = daemon.project

    @dg.asset
    def total(up: pa.Table) -> pa.Table:
        return up

    sensor = build_version_sensor("keep", dg.AssetSelection.assets(total))
    daemon.deploy(line.up, total, checks=[line.check], sensors=[sensor])
    line.values = {"c": -1}
    for key in "abc":
        daemon.materialize("up", key)
    assert daemon.tick() == []
    assert "total (check positive of up[c]" in skipped(daemon)
    line.values = {}
    daemon.materialize("up", "c")
    assert daemon.settle() == [("total", None)]


@has_partitioned_checks
@pytest.mark.slow
def test_a_verdict_far_back_in_the_event_log_is_found(daemon, monkeypatch):
    monkeypatch.setattr(blocking_checks, "PAGE", 2)
    line = Up(ABC, ABC).deploy(daemon)
    daemon.materialize("up", "a")
    for value in range(5):
        line.values = {"b": value}
        daemon.materialize("up", "b")
    assert sorted(daemon.settle()) == [("down", "a"), ("down", "b")]


# What it costs


@contextmanager
def statements():
    """The statements that go to Dagster's storage."""
    found = []

    def note(connection, cursor, statement, *_):
        if statement.startswith("SELECT"):
            found.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    yield found
    event.remove(Engine, "before_cursor_execute", note)


class Many:
    """Many tables with a blocking check each, and one target below each."""

    def __init__(self, daemon, count):
        self.daemon, self.names = daemon, [f"up{number}" for number in range(count)]
        made, checks, targets = [], [], []
        for name in self.names:
            spec = dg.AssetSpec(name)

            @dg.asset_check(asset=name, blocking=True, name="positive")
            def check():
                raise NotImplementedError

            @dg.asset(name=f"down_{name}", ins={"up": dg.AssetIn(name)})
            def down(up) -> pa.Table:
                raise NotImplementedError

            made += [spec, down]
            checks.append(check)
            targets.append(down)
        self.sensor = build_version_sensor("keep", dg.AssetSelection.assets(*targets), max_runs_per_tick=count)
        daemon.deploy(*made, checks=checks, sensors=[self.sensor])

    def judge(self, name, passed):
        """What a run that materializes a version and checks it reports, without its seconds."""
        head = self.daemon.head(name)
        made = {
            "dagster_versioned/metadata_sha": head.metadata_sha,
            "dagster_versioned/log_version": head.log_version,
        }
        key, instance = dg.AssetKey(name), self.daemon.instance
        instance.report_runless_asset_event(dg.AssetMaterialization(key, metadata=made))
        made = instance.fetch_materializations(key, limit=1).records[0]
        target = AssetCheckEvaluationTargetMaterializationData(
            storage_id=made.storage_id, run_id=made.run_id, timestamp=made.timestamp
        )
        instance.report_runless_asset_event(
            dg.AssetCheckEvaluation(
                asset_key=key, check_name="positive", passed=passed, target_materialization_data=target
            )
        )

    def tick(self, cursor=None):
        context = dg.build_sensor_context(self.daemon.instance, cursor=cursor, definitions=self.daemon.definitions)
        with statements() as found:
            result = self.sensor.evaluate_tick(context)
        return len(result.run_requests), [one for one in found if "asset" in one]


def check_costs(daemon, count, most):
    many = Many(daemon, count)
    for number, name in enumerate(many.names):
        daemon.write(name, frame(number))
    for name in many.names[1:]:
        many.judge(name, passed=name != "up1")
    requested, asked = many.tick()
    assert requested == count - 2
    assert len(asked) <= most
    requested, again = many.tick()
    assert len(again) <= most / 2  # verdicts are remembered
    many.judge("up1", passed=True)
    assert many.tick()[0] == count - 1
    print(f"{count} checked tables: {len(asked)} queries at first, then {len(again)}")


@pytest.mark.slow
def test_a_tick_asks_after_all_checks_at_once(daemon):
    check_costs(daemon, 40, 8)


@pytest.mark.slow
def test_a_tick_asks_after_the_checks_of_a_thousand_tables_at_once(daemon):
    check_costs(daemon, 1000, 16)
