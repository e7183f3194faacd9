"""What the IO manager relies on in Dagster beyond its public API: a release that changes one of these breaks here."""

import inspect

import dagster as dg
import pytest
from dagster._core.execution.plan.outputs import StepOutputHandle

from dagster_versioned.dagster_internals import set_data_version


class Probe(dg.IOManager):
    """Notes the step contexts that it sees, and sets a data version."""

    def __init__(self):
        self.seen = []

    def handle_output(self, context, obj):
        self.seen.append(("out", context.step_context))
        set_data_version(context.asset_key, f"version of {obj}")

    def load_input(self, context):
        self.seen.append(("in", context.step_context))
        return 1


def data_versions(result):
    found = [event.event_specific_data.materialization for event in result.get_asset_materialization_events()]
    return {one.asset_key.to_user_string(): one.tags["dagster/data_version"] for one in found}


def test_an_io_manager_can_set_the_data_version():
    @dg.asset
    def one():
        return "data"

    result = dg.materialize([one], resources={"io_manager": Probe()})
    assert data_versions(result) == {"one": "version of data"}


def test_a_data_version_from_the_asset_itself_wins():
    @dg.asset
    def one():
        return dg.Output("data", data_version=dg.DataVersion("mine"))

    assert data_versions(dg.materialize([one], resources={"io_manager": Probe()})) == {"one": "mine"}


def test_there_is_no_running_step_in_a_unit_test():
    with pytest.raises(dg.DagsterInvariantViolationError):
        dg.AssetExecutionContext.get()
    with dg.build_output_context(asset_key="one") as output, pytest.raises(dg.DagsterInvariantViolationError):
        _ = output.step_context
    with dg.build_input_context(asset_key="one") as given, pytest.raises(dg.DagsterInvariantViolationError):
        _ = given.step_context


def test_one_attempt_has_one_step_context_and_a_retry_has_another():
    tries = []

    @dg.asset
    def one():
        return "data"

    @dg.asset(retry_policy=dg.RetryPolicy(max_retries=1))
    def two(one):
        tries.append(one)
        if len(tries) == 1:
            raise RuntimeError("once")
        return "more"

    probe = Probe()
    dg.materialize([one, two], resources={"io_manager": probe})
    first_out, first_in, second_in, second_out = [context for _, context in probe.seen]
    assert second_in is second_out
    assert len({id(first_out), id(first_in), id(second_in)}) == 3
    assert (first_in.previous_attempt_count, second_in.previous_attempt_count) == (0, 1)


def test_the_event_log_knows_when_a_running_attempt_started():
    starts = []

    class Clock(Probe):
        def handle_output(self, context, obj):
            step = context.step_context
            (stats,) = step.instance.get_run_step_stats(step.run_id, [step.step.key])
            starts.append((stats.start_time, stats.partial_attempt_start, obj))

    @dg.asset(retry_policy=dg.RetryPolicy(max_retries=1))
    def one(context):
        if context.retry_number == 0:
            raise RuntimeError("once")
        return "data"

    dg.materialize([one], resources={"io_manager": Clock()})
    ((first, second, _),) = starts
    assert first < second


def test_an_output_is_handled_before_the_function_that_yields_it_goes_on():
    probe, order = Probe(), []

    @dg.asset(output_required=False)
    def one():
        yield dg.Output("data")
        order.append(len(probe.seen))

    dg.materialize([one], resources={"io_manager": probe})
    assert order == [1]


def test_a_step_knows_the_io_manager_of_its_output():
    probe, found = Probe(), []

    @dg.asset(io_manager_key="other")
    def one(context: dg.AssetExecutionContext):
        step = context.get_step_execution_context()
        (output,) = step.step.step_outputs
        found.append(step.get_io_manager(StepOutputHandle(step.step.key, output.name)))

    dg.materialize([one], resources={"other": probe})
    assert found == [probe]


def test_an_explicit_signature_says_what_an_asset_asks_for():
    given = {}

    def compute(context, **values):
        given.update(values)

    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ("context", "up")]
    compute.__signature__ = inspect.Signature(parameters)

    @dg.asset
    def up():
        return "data"

    dg.materialize([up, dg.asset(name="down")(compute)], resources={"io_manager": Probe()})
    assert given == {"up": 1}
