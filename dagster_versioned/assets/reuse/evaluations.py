"""What checks found of one version: by it, a version is kept, or computed again."""

from collections.abc import Iterable, Mapping
from typing import Any

import dagster as dg

from dagster_versioned.assets.graph.materialization_keys import METADATA_SHA_KEY
from dagster_versioned.dagster_internals import partition_of

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

    One is about it whose run materialized it, or that names a materialization of it as what it looked at.
    """
    checks = list(checks)
    if not checks:
        return {}
    partitions = None if partition is None else [partition]
    records = instance.fetch_materializations(dg.AssetRecordsFilter(asset_key, asset_partitions=partitions), _MADE)
    made = [record for record in records.records if _sha(record) == metadata_sha]
    runs, ids = {record.run_id for record in made if record.run_id}, {record.storage_id for record in made}
    found: dict[dg.AssetCheckKey, dg.AssetCheckEvaluation] = {}
    for check in checks if made else ():
        for execution in instance.event_log_storage.get_asset_check_execution_history(check, limit=_EXECUTIONS):
            evaluation = execution.evaluation
            if not isinstance(evaluation, dg.AssetCheckEvaluation):
                continue
            target = evaluation.target_materialization_data
            is_about = execution.run_id in runs or (target is not None and target.storage_id in ids)
            if is_about and partition_of(evaluation) in (None, partition):
                found[check] = evaluation
                break
    return found


def has_failed(evaluation: dg.AssetCheckEvaluation) -> bool:
    """Whether an evaluation of a blocking check stops what is downstream."""
    return not evaluation.passed and evaluation.severity is dg.AssetCheckSeverity.ERROR


def replayed(evaluation: dg.AssetCheckEvaluation) -> dg.AssetCheckResult:
    """The same finding once more, marked as the one that was found before."""
    return dg.AssetCheckResult(
        passed=evaluation.passed,
        asset_key=evaluation.asset_key,
        check_name=evaluation.check_name,
        severity=evaluation.severity,
        description=evaluation.description,
        metadata={**evaluation.metadata, "dagster_versioned/replayed": True},
    )


def _sha(record: dg.EventLogRecord) -> Any:
    materialization = record.asset_materialization
    value = None if materialization is None else materialization.metadata.get(METADATA_SHA_KEY)
    return getattr(value, "value", None)
