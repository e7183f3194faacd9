"""What Dagster's UI and conditions know of a promotion: a materialization without a run for each version, once."""

import dagster as dg

from dagster_versioned.assets.graph.materialization_keys import METADATA_SHA_KEY, materializations, stated
from dagster_versioned.branches.promote import PromotionReport
from dagster_versioned.dagster_internals import (
    CODE_VERSION_TAG,
    DATA_VERSION_TAG,
    INPUT_DATA_VERSION_PREFIX,
    INPUT_EVENT_PREFIX,
)
from dagster_versioned.io_managers.materialization import table_metadata, version_metadata
from dagster_versioned.projects.project import Project
from dagster_versioned.tables.history import Version
from dagster_versioned.tables.write.write import WriteResult

PROMOTED_KEY = "dagster_versioned/promoted_from"
"""Metadata of a materialization: the environment whose version it is."""


def report_promotion(instance: dg.DagsterInstance, project: Project, report: PromotionReport) -> int:
    """Tell production's Dagster instance of the versions that a promotion made current; returns of how many.

    Those that the instance knows are left out, as are those that production has replaced since, so that it may be run
    again. The UI shows them as materialized by no run, with the data versions that they were built from.
    """
    reported = 0
    for cell in report.promoted:
        table = project.table(str(cell.table))
        history = table.state.history
        version = history.heads.get(cell.partition)
        if version is None or version.metadata_sha != cell.after:
            continue
        key = dg.AssetKey(list(version.identity.asset_key))
        if _known(instance, key, version):
            continue
        written = WriteResult("full", version, False, 0, 0.0)
        instance.report_runless_asset_event(
            dg.AssetMaterialization(
                asset_key=key,
                partition=cell.partition,
                description=f"Promoted from the environment {report.environment}; computed there.",
                metadata={
                    **table_metadata(table, version),
                    **version_metadata(table, history, written, 0),
                    PROMOTED_KEY: report.environment,
                },
                tags=tags_of(version),
            )
        )
        reported += 1
    return reported


def _known(instance: dg.DagsterInstance, key: dg.AssetKey, version: Version) -> bool:
    found = materializations(instance, key, version.partition)
    return bool(found) and stated(found[0], METADATA_SHA_KEY) == version.metadata_sha


def tags_of(version: Version) -> dict[str, str]:
    """By which Dagster takes the asset for built from what it was built from, and not for out of sync."""
    identity = version.identity
    tags = {DATA_VERSION_TAG: str(version.metadata_sha)}
    if identity.code_version is not None:
        tags[CODE_VERSION_TAG] = identity.code_version
    for parent in identity.parents:
        name = "/".join(parent.table.split("__"))  # as an asset key is written
        tags[f"{INPUT_DATA_VERSION_PREFIX}/{name}"] = parent.version
        tags[f"{INPUT_EVENT_PREFIX}/{name}"] = "NULL"
    return tags
