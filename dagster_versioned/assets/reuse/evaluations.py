"""What checks found of one version: by it, a version is kept, or computed again."""

from collections.abc import Iterable, Mapping
from typing import Any

import dagster as dg

from dagster_versioned.assets.graph.materialization_keys import METADATA_SHA_KEY, materializations, stated
from dagster_versioned.assets.looks import Looks
from dagster_versioned.dagster_internals import AssetCheckExecutionRecord, partition_of

_EXECUTIONS = 500
"""Executions of a check among which the one of a version is looked for, newest first."""
_MADE = 200
"""Materializations of a table or partition among which those of a version are."""


def evaluations(
    instance: dg.DagsterInstance,
    checks: Iterable[dg.AssetCheckKey],
    asset_key: dg.AssetKey,
    partition: str | None,
    metadata_sha: str,
) -> Mapping[dg.AssetCheckKey, dg.AssetCheckEvaluation]:
    """The last evaluation of each check that is about a version; those without one are left out.

    One is about it whose run materialized it, or that names a materialization of it as what it looked at; but none
    whose step is known to have read other versions only.
    """
    checks = list(checks)
    if not checks:
        return {}
    records = materializations(instance, asset_key, partition, _MADE)
    made = [record for record in records if stated(record, METADATA_SHA_KEY) == metadata_sha]
    runs, ids = {record.run_id for record in made if record.run_id}, {record.storage_id for record in made}
    looks = Looks(instance)

    def is_about(execution: AssetCheckExecutionRecord, evaluation: dg.AssetCheckEvaluation) -> bool:
        target = evaluation.target_materialization_data
        is_of_it = execution.run_id in runs or (target is not None and target.storage_id in ids)
        step_key = execution.event.step_key if execution.event is not None else None
        return (
            is_of_it
            and partition_of(evaluation) in (None, partition)
            and looks.may_be_of(metadata_sha, execution.run_id, asset_key, step_key)
        )

    found: dict[dg.AssetCheckKey, dg.AssetCheckEvaluation] = {}
    for check in checks if made else ():
        for execution in instance.event_log_storage.get_asset_check_execution_history(check, limit=_EXECUTIONS):
            evaluation = execution.evaluation
            if isinstance(evaluation, dg.AssetCheckEvaluation) and is_about(execution, evaluation):
                found[check] = evaluation
                break
    return found


def has_failed(evaluation: dg.AssetCheckEvaluation) -> bool:
    """Whether an evaluation of a blocking check stops what is downstream."""
    return not evaluation.passed and evaluation.severity is dg.AssetCheckSeverity.ERROR


def replayed(by_partition: Mapping[str | None, dg.AssetCheckEvaluation]) -> dg.AssetCheckResult:
    """What a check has found before, once more and marked as that: of all partitions of the step, each its own.

    A step has one result of a check. Of several partitions it is what was found of the worst, and its metadata say for
    each what was.
    """
    found = sorted(by_partition.items(), key=lambda item: (item[1].passed, not has_failed(item[1])))
    worst = found[0][1]
    metadata: dict[str, Any] = {**worst.metadata, "dagster_versioned/replayed": True}
    if len(found) > 1:
        metadata["dagster_versioned/partitions"] = {
            str(key): evaluation.passed for key, evaluation in by_partition.items()
        }
    return dg.AssetCheckResult(
        passed=worst.passed,
        asset_key=worst.asset_key,
        check_name=worst.check_name,
        severity=worst.severity,
        description=worst.description,
        metadata=metadata,
    )
