"""That a run writes where its project's environment says, and nowhere else."""

from typing import TYPE_CHECKING

import dagster as dg

from dagster_versioned.assets.graph.materialization_keys import stated
from dagster_versioned.errors import InvalidInput
from dagster_versioned.identity.names import PRODUCTION
from dagster_versioned.process_state import PROCESS
from dagster_versioned.tables.context import ProjectContext

if TYPE_CHECKING:
    from dagster_versioned.dagster_internals import StepExecutionContext

ENVIRONMENT_KEY = "dagster_versioned/environment"
"""Tag of a run, and metadata of a materialization, with the environment that it wrote to; production has neither."""

_MOST_RUNS = 1000


class RunEnvironments(dict[str, str]):
    """What the runs of this process write to: a step does not see the tags that its run got since it began."""


def settle_environment(step: "StepExecutionContext", project: ProjectContext, asset_key: dg.AssetKey) -> None:
    """Mark a run with the environment that its first step writes to, and refuse another one from then on.

    Raises `InvalidInput` where the run is of another environment (one executed again elsewhere, say), and where the
    last materialization that this Dagster instance knows of the asset is: Dagster cannot tell the two apart.
    """
    name = PRODUCTION if project.environment is None else project.environment.name
    run, runs = step.dagster_run, PROCESS.of(RunEnvironments)
    known = run.tags.get(ENVIRONMENT_KEY) or runs.get(run.run_id)
    if known is None and project.environment is not None:
        current = step.instance.get_run_by_id(run.run_id)  # another step may have marked it since this one began
        known = None if current is None else current.tags.get(ENVIRONMENT_KEY)
    if known not in (None, name):
        raise InvalidInput(
            f"The run {run.run_id} is of {_text(known)}, and {asset_key.to_user_string()} would be written to "
            f"{_text(name)}. Nothing was written. State one environment for all IO managers of a run, and start a new "
            "run instead of executing one of another environment again."
        )
    if len(runs) >= _MOST_RUNS:
        runs.clear()
    runs[run.run_id] = name
    if project.environment is not None:
        _require_own_instance(step.instance, asset_key, name)
        if known is None:
            step.instance.add_run_tags(run.run_id, {ENVIRONMENT_KEY: name})


def _require_own_instance(instance: dg.DagsterInstance, asset_key: dg.AssetKey, name: str) -> None:
    """Raise `InvalidInput` where the instance knows the asset in another environment."""
    event = instance.get_latest_materialization_event(asset_key)
    other = name if event is None else stated(event, ENVIRONMENT_KEY) or PRODUCTION
    if other != name:
        raise InvalidInput(
            f"This Dagster instance has materializations of {asset_key.to_user_string()} in {_text(other)}, and "
            f"this step is of {_text(name)}. Nothing was written. Dagster knows materializations by asset key alone: "
            "give each environment an instance of its own, by DAGSTER_HOME or as a branch deployment."
        )


def _text(name: str | None) -> str:
    return PRODUCTION if name in (None, PRODUCTION) else f"the environment {name}"
