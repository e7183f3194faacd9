"""`build_version_checks`: checks on versions as Dagster's asset checks, ready to add to the definitions."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

import dagster as dg

from dagster_versioned.assets.graph.partitions import keys_in_range
from dagster_versioned.assets.looks import note_look
from dagster_versioned.assets.parked import Publish, table_for
from dagster_versioned.checks.chain import ChainValidity
from dagster_versioned.checks.check import CheckedHeads, VersionCheck
from dagster_versioned.checks.integrity import HeadIntegrity
from dagster_versioned.checks.parents import FreshParents
from dagster_versioned.checks.row_count import RowCountDrift
from dagster_versioned.checks.schema_policy import SchemaPolicy
from dagster_versioned.errors import GovernanceError, InvalidInput, StorageError, VersionedError
from dagster_versioned.resources.project import project_of

DEFAULT_CHECKS: tuple[VersionCheck, ...] = (
    HeadIntegrity(),
    ChainValidity(),
    SchemaPolicy(),
    FreshParents(),
    RowCountDrift(),
)
"""What is checked by default; nothing of it blocks."""

Assets = Iterable[dg.AssetsDefinition | dg.AssetSpec | dg.SourceAsset | dg.AssetKey | str | Sequence[str]]


def build_version_checks(
    assets: Assets,
    checks: Sequence[VersionCheck] = DEFAULT_CHECKS,
    *,
    resource_key: str = "io_manager",
) -> list[dg.AssetChecksDefinition]:
    """The checks of each of the assets, one op for all those of an asset.

    In a run of partitions they look at the run's partitions, else at every partition that there is; in the run that
    materializes the asset they follow it. ``resource_key`` names the `VersionedParquetIOManager`, or a
    `ProjectResource`, whose project holds the tables.

    Raises `InvalidInput` for two checks of one name on one asset.
    """
    names = [check.check_name for check in checks]
    if twice := {name for name in names if names.count(name) > 1}:
        raise InvalidInput(f"Two checks are called {min(twice)!r}. Give one of them another name: name='…'.")
    return [_checks_of(key, checks, resource_key) for key in dict.fromkeys(_keys(assets))]


def _keys(assets: Assets) -> Iterator[dg.AssetKey]:
    for asset in assets:
        if isinstance(asset, dg.AssetsDefinition):
            yield from sorted(asset.keys)
        elif isinstance(asset, dg.AssetSpec | dg.SourceAsset):
            yield asset.key
        else:
            yield dg.AssetKey.from_coercible(asset)


def _checks_of(key: dg.AssetKey, checks: Sequence[VersionCheck], resource_key: str) -> dg.AssetChecksDefinition:
    @dg.multi_asset_check(
        # Named by what it does, so that an asset may have several of these with different checks.
        name=key.to_python_identifier("_".join(check.check_name for check in checks)),
        specs=[
            dg.AssetCheckSpec(check.check_name, asset=key, description=check.description, blocking=check.blocking)
            for check in checks
        ],
        can_subset=True,
        required_resource_keys={resource_key},
    )
    def evaluate(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        resource = getattr(context.resources, resource_key)
        inner = context.op_execution_context.get_step_execution_context()
        publish: Publish = getattr(resource, "publish", "at_once")
        table = table_for(inner, project_of(resource, resource_key, "checked").table(key.path), publish)
        partitions = _partitions_of(context, key)
        checked = CheckedHeads(table, key, partitions, context, getattr(resource, "pins", {}))
        with suppress(VersionedError):  # which the checks find
            note_look(inner, key, table, checked.heads)
        selected = {key.name for key in context.selected_asset_check_keys}
        unreachable: list[VersionedError] = []
        for check in checks:
            if check.check_name in selected:
                try:
                    verdict = check.evaluate(checked)
                except (StorageError, GovernanceError) as error:
                    unreachable.append(error)
                    continue
                yield dg.AssetCheckResult(
                    passed=verdict.passed,
                    asset_key=key,
                    check_name=check.check_name,
                    severity=check.severity,
                    description=verdict.text,
                    metadata=verdict.metadata,
                )
        if unreachable:  # after the verdicts of the others, which stand
            raise unreachable[0]

    return evaluate


def _partitions_of(context: dg.AssetCheckExecutionContext, key: dg.AssetKey) -> frozenset[str] | None:
    """The partitions of the run; ``None`` where it is of none. A run of checks alone has no partitions definition."""
    step = context.op_execution_context  # which has the partitions of the run before Dagster 1.12 as well
    if step.has_partition_key:
        return frozenset({step.partition_key})
    graph = context.job_def.asset_layer.asset_graph.source_asset_graph
    definition = graph.get(key).partitions_def if graph.has(key) else None
    if not step.has_partition_key_range or definition is None:
        return None
    return keys_in_range(definition, step.partition_key_range, step.instance)
