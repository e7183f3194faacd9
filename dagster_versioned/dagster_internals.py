"""All that this package takes of Dagster beside its public interface.

What each is relied on for is written down in ``tests/test_upstream_characterization.py``, which names it where a new
release has it no more.
"""

from collections.abc import Mapping
from typing import Any

import dagster as dg

from dagster_versioned.bounds import require_release

require_release("dagster", dg.__version__)

from dagster._core.asset_graph_view.asset_graph_view import AssetGraphView
from dagster._core.code_pointer import load_python_file
from dagster._core.definitions.asset_checks.asset_check_evaluation import AssetCheckEvaluationTargetMaterializationData
from dagster._core.definitions.asset_key import CoercibleToAssetKey
from dagster._core.definitions.asset_selection import CoercibleToAssetSelection, RequiredNeighborsAssetSelection
from dagster._core.definitions.assets.graph.asset_graph import AssetGraph, AssetNode
from dagster._core.definitions.assets.graph.base_asset_graph import BaseAssetGraph
from dagster._core.definitions.data_version import CODE_VERSION_TAG, DATA_VERSION_TAG
from dagster._core.definitions.data_version import INPUT_DATA_VERSION_TAG_PREFIX as INPUT_DATA_VERSION_PREFIX
from dagster._core.definitions.data_version import INPUT_EVENT_POINTER_TAG_PREFIX as INPUT_EVENT_PREFIX
from dagster._core.definitions.events import AssetKeyPartitionKey
from dagster._core.definitions.input import InputDefinition
from dagster._core.definitions.partitions.context import partition_loading_context  # public from 1.12 on
from dagster._core.definitions.partitions.mapping.partition_mapping import UpstreamPartitionsResult
from dagster._core.definitions.sensor_definition import SensorType
from dagster._core.events import EngineEventData
from dagster._core.execution.context.system import StepExecutionContext
from dagster._core.execution.plan.outputs import StepOutputHandle
from dagster._core.execution.stats import StepEventStatus
from dagster._core.storage.asset_check_execution_record import (
    AssetCheckExecutionRecord,
    AssetCheckExecutionRecordStatus,
)
from dagster._core.storage.dagster_run import FINISHED_STATUSES, NOT_FINISHED_STATUSES
from dagster._core.storage.tags import (
    ASSET_PARTITION_RANGE_END_TAG,
    ASSET_PARTITION_RANGE_START_TAG,
    BACKFILL_ID_TAG,
    PARTITION_NAME_TAG,
    RETRY_NUMBER_TAG,
    WILL_RETRY_TAG,
)
from dagster._core.workspace.load import (
    GrpcServerCodeLocationOrigin,  # pyright: ignore[reportPrivateImportUsage] - its own module was moved in 1.12
    location_origins_from_yaml_paths,
)

__all__ = [
    "ASSET_PARTITION_RANGE_END_TAG",
    "ASSET_PARTITION_RANGE_START_TAG",
    "BACKFILL_ID_TAG",
    "CODE_VERSION_TAG",
    "DATA_VERSION_TAG",
    "FINISHED_STATUSES",
    "INPUT_DATA_VERSION_PREFIX",
    "INPUT_EVENT_PREFIX",
    "NOT_FINISHED_STATUSES",
    "PARTITION_NAME_TAG",
    "RETRY_NUMBER_TAG",
    "WILL_RETRY_TAG",
    "AssetCheckEvaluationTargetMaterializationData",
    "AssetCheckExecutionRecord",
    "AssetCheckExecutionRecordStatus",
    "AssetGraph",
    "AssetGraphView",
    "AssetKeyPartitionKey",
    "AssetNode",
    "BaseAssetGraph",
    "CoercibleToAssetKey",
    "CoercibleToAssetSelection",
    "EngineEventData",
    "GrpcServerCodeLocationOrigin",
    "InputDefinition",
    "RequiredNeighborsAssetSelection",
    "StepEventStatus",
    "StepExecutionContext",
    "StepOutputHandle",
    "UpstreamPartitionsResult",
    "evaluation_of",
    "is_in_user_code",
    "load_python_file",
    "location_origins_from_yaml_paths",
    "partition_loading_context",
    "partition_of",
    "set_data_version",
    "steps_of",
    "typed_assets_of",
]


def steps_of(instance: dg.DagsterInstance, run: dg.DagsterRun) -> frozenset[str]:
    """The keys of the steps that a run executes; of a run executed again from its failure, those alone that failed."""
    if run.step_keys_to_execute is not None:
        return frozenset(run.step_keys_to_execute)
    if run.execution_plan_snapshot_id is None:
        return frozenset()
    return frozenset(instance.get_execution_plan_snapshot(run.execution_plan_snapshot_id).step_keys_to_execute)


def typed_assets_of(instance: dg.DagsterInstance | None, run: dg.DagsterRun) -> list[dg.AssetKey]:
    """The assets that a run computes and that are annotated with the type of a value."""
    if instance is None or run.execution_plan_snapshot_id is None:
        return []
    plan = instance.get_execution_plan_snapshot(run.execution_plan_snapshot_id)
    outputs = [output for step in plan.steps if step.key in plan.step_keys_to_execute for output in step.outputs]
    return [
        output.properties.asset_key
        for output in outputs
        if output.properties is not None
        and output.properties.asset_key is not None
        and output.dagster_type_key not in ("Any", "Nothing")
    ]


def partition_of(evaluation: dg.AssetCheckEvaluation) -> str | None:
    """The partition that a check judged; ``None`` for all of the asset, which is all that checks know before 1.12."""
    return getattr(evaluation, "partition", None)


def evaluation_of(
    evaluation: dg.AssetCheckEvaluation,
    target: AssetCheckEvaluationTargetMaterializationData,
    metadata: Mapping[str, dg.MetadataValue[Any]],
) -> dg.AssetCheckEvaluation:
    """What a check has found, as an evaluation of another materialization, with more metadata."""
    partition = partition_of(evaluation)
    return dg.AssetCheckEvaluation(
        asset_key=evaluation.asset_key,
        check_name=evaluation.check_name,
        passed=evaluation.passed,
        metadata={**evaluation.metadata, **metadata},
        target_materialization_data=target,
        severity=evaluation.severity,
        description=evaluation.description,
        blocking=evaluation.blocking,
        **({} if partition is None else {"partition": partition}),
    )


def is_in_user_code(sensor: dg.AutomationConditionSensorDefinition) -> bool:
    """Whether a sensor evaluates conditions in user code, as those need that Dagster's daemon does not know."""
    return sensor.sensor_type is SensorType.AUTOMATION


def set_data_version(asset_key: dg.AssetKey, sha: str) -> None:
    """Make ``sha`` the data version of the materialization that the running step is about to log.

    The method is not public. A version that the asset returns itself (``Output(data_version=…)``) wins. Only inside a
    step.
    """
    dg.AssetExecutionContext.get().set_data_version(asset_key, dg.DataVersion(sha))
