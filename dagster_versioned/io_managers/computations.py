"""What a step computes: the keys of its computations, which of them were made before, and how long they take."""

import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import dagster as dg

from dagster_versioned.assets.asset_code import code_of, key_code_version
from dagster_versioned.assets.graph.partitions import partitions_of_run
from dagster_versioned.assets.parked import Publish
from dagster_versioned.assets.reuse.foreseen import key_of
from dagster_versioned.assets.reuse.lazy_input import LazyInput
from dagster_versioned.errors import InvalidInput, InvalidMetadata
from dagster_versioned.identity.computation import ComputationInput
from dagster_versioned.io_managers.attempt import MESSAGE_TAG, Attempt, noted
from dagster_versioned.io_managers.environment import settle_environment
from dagster_versioned.io_managers.parents import parents_by_input
from dagster_versioned.process_state import PROCESS
from dagster_versioned.resources.project import ProjectResource
from dagster_versioned.tables.history import Version
from dagster_versioned.tables.options import TableOptions
from dagster_versioned.tables.write.kept import KeptVersion
from dagster_versioned.tables.write.pending import OpenComputation

if TYPE_CHECKING:
    from dagster_versioned.dagster_internals import StepExecutionContext
    from dagster_versioned.tables.table import VersionedTable

RECOMPUTE_TAG = "dagster_versioned/recompute"
"""Run tag: ``true``, or the keys of assets with commas between them, of which nothing that was computed is reused."""


def computed_before(
    context: dg.AssetExecutionContext,
    asset_key: dg.AssetKey,
    inputs: Mapping[str, LazyInput],
    project: ProjectResource,
    publish: Publish,
) -> dict[str | None, KeptVersion]:
    """The versions that the run's partitions of an asset would have, of those that were computed before.

    None of an asset that parks, or is built from what is parked: nobody knows yet whether that will be published.
    Raises `InvalidInput` where the config is not JSON, or options say that rows are added to others.
    """
    step = context.get_step_execution_context()
    partitions = sorted(partitions_of_run(context), key=str)
    attempt = PROCESS.of(Attempt, step)
    is_own = any(input_.asset_key == asset_key for input_ in inputs.values())
    if is_own and len(partitions) > 1:
        return {}  # one partition is computed from another that is being computed, whose version nobody knows yet
    attempt.computations.pop(asset_key, None)  # of an earlier look
    table = attempt.tables[asset_key] = project.project().table(asset_key.path)
    settle_environment(step, table.project, asset_key)
    options = TableOptions.from_metadata(context.assets_def.metadata_by_key[asset_key])
    is_parked = any(note.drafts for some in noted(step).values() for note in some)
    if (options.publish or publish) == "after_checks" or is_parked:
        return {}
    code_version = key_code_version(context.assets_def, asset_key)
    if code_version is None:
        if asset_key not in attempt.unfollowed:
            attempt.unfollowed.add(asset_key)
            _warn_of_code(context, asset_key)
        return {}
    keys = _keys(context, asset_key, partitions, inputs, code_version)
    made = table.computed(keys)
    attempt.computations[asset_key] = {
        partition: OpenComputation(key, 0, made.get(partition)) for partition, key in keys.items()
    }
    recomputed = {name.strip() for name in step.dagster_run.tags.get(RECOMPUTE_TAG, "").split(",")}
    kept = {} if recomputed & {"true", asset_key.to_user_string()} else _kept(table, made)
    attempt.since = time.monotonic()
    return kept


def _kept(table: "VersionedTable", made: Mapping[str | None, Version]) -> dict[str | None, KeptVersion]:
    found = {partition: table.kept(version) for partition, version in made.items()}
    return {partition: version for partition, version in found.items() if version is not None}


def opened_before(step: "StepExecutionContext | None", asset_key: dg.AssetKey) -> "VersionedTable | None":
    """The table in which `computed_before` has looked for an asset's versions, if the step has."""
    return None if step is None else PROCESS.of(Attempt, step).tables.get(asset_key)


@contextmanager
def computing(
    step: "StepExecutionContext | None", asset_key: dg.AssetKey
) -> Generator[Mapping[str | None, OpenComputation] | None]:
    """What the frames of an output come from, while they are written; the next output's begins after that."""
    attempt = None if step is None else PROCESS.of(Attempt, step)
    if attempt is None or asset_key not in attempt.computations:
        yield None
        return
    try:
        yield {
            partition: OpenComputation(computation.key, attempt.since, computation.made_before)
            for partition, computation in attempt.computations[asset_key].items()
        }
    finally:
        attempt.since = time.monotonic()


def _warn_of_code(context: dg.AssetExecutionContext, asset_key: dg.AssetKey) -> None:
    code = code_of(context.assets_def)
    why = "its function is not known" if code is None else "; ".join(code.opaque)
    context.log.warning(
        f"Nothing that was computed of {asset_key.to_user_string()} is reused, and what is computed now will not be, "
        f"because nobody can say that its code is what it was: {why}. Name what it reaches unseen (code_also, "
        "code_files), or give the asset a code_version, and change that whenever the code changes."
    )


def _keys(
    context: dg.AssetExecutionContext,
    asset_key: dg.AssetKey,
    partitions: list[str | None],
    inputs: Mapping[str, LazyInput],
    code_version: str,
) -> dict[str | None, str]:
    step = context.get_step_execution_context()
    parents = parents_by_input(step, asset_key, partitions, inputs)
    try:
        return {
            partition: key_of(
                context.assets_def,
                asset_key,
                partition,
                config=context.op_execution_context.op_config,
                message=step.dagster_run.tags.get(MESSAGE_TAG),
                inputs={
                    name: ComputationInput(
                        input_.asset_key.path, parents[partition][name], input_.read_as, input_.asked
                    )
                    for name, input_ in inputs.items()
                },
                code_version=code_version,
            )
            for partition in partitions
        }
    except InvalidMetadata as error:
        raise InvalidInput(
            f"What {asset_key.to_user_string()} is computed from has no key: its config, options and message have to "
            f"be JSON. {error} The function was not called. Give such values as text, or define the asset with "
            "@dg.asset."
        ) from error
