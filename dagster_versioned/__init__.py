"""Dagster assets as immutable, content-addressed, provable versions of Delta tables.

The names below are the public surface. They are imported on first use, so that ``import dagster_versioned`` pulls in
neither Dagster, Spark, nor a data frame library.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from dagster_versioned.__about__ import __version__ as __version__

if TYPE_CHECKING:  # for type checkers and editors; tests/test_public_surface.py holds this against _HOME
    from dagster_versioned.assets.asset_code import with_code_versions as with_code_versions
    from dagster_versioned.assets.erase_job import build_erase_job as build_erase_job
    from dagster_versioned.assets.feature import versioned_feature as versioned_feature
    from dagster_versioned.assets.feature_definition import feature_of as feature_of
    from dagster_versioned.assets.multi_feature import versioned_multi_feature as versioned_multi_feature
    from dagster_versioned.assets.polling_source import polling_source as polling_source
    from dagster_versioned.assets.reuse.versioned_asset import versioned_asset as versioned_asset
    from dagster_versioned.assets.reuse.versioned_asset import versioned_multi_asset as versioned_multi_asset
    from dagster_versioned.assets.sql_asset import sql_asset as sql_asset
    from dagster_versioned.checks.build import build_version_checks as build_version_checks
    from dagster_versioned.checks.chain import ChainValidity as ChainValidity
    from dagster_versioned.checks.code import CodeVersionIsCurrent as CodeVersionIsCurrent
    from dagster_versioned.checks.integrity import HeadIntegrity as HeadIntegrity
    from dagster_versioned.checks.one_definition import OneDefinition as OneDefinition
    from dagster_versioned.checks.parents import FreshParents as FreshParents
    from dagster_versioned.checks.reuse import ReuseIsHonest as ReuseIsHonest
    from dagster_versioned.checks.row_count import RowCountDrift as RowCountDrift
    from dagster_versioned.checks.schema_policy import SchemaPolicy as SchemaPolicy
    from dagster_versioned.components.project import VersionedProjectComponent as VersionedProjectComponent
    from dagster_versioned.delta_tables.read import read_delta as read_delta
    from dagster_versioned.engines.samples import SampleHash as SampleHash
    from dagster_versioned.errors import VersionedError as VersionedError
    from dagster_versioned.features.copy_samples import copy_samples as copy_samples
    from dagster_versioned.features.definitions import Feature as Feature
    from dagster_versioned.features.definitions import FeatureDep as FeatureDep
    from dagster_versioned.features.definitions import Field as Field
    from dagster_versioned.features.definitions import FieldDep as FieldDep
    from dagster_versioned.features.definitions import FieldsMapping as FieldsMapping
    from dagster_versioned.features.definitions import Lineage as Lineage
    from dagster_versioned.features.delete_samples import delete_samples as delete_samples
    from dagster_versioned.features.graph import FeatureGraph as FeatureGraph
    from dagster_versioned.features.import_metaxy import import_metaxy as import_metaxy
    from dagster_versioned.features.increment import Increment as Increment
    from dagster_versioned.features.lock import FeatureLock as FeatureLock
    from dagster_versioned.features.metaxy_store import MetaxyStore as MetaxyStore
    from dagster_versioned.features.rebase import rebase as rebase
    from dagster_versioned.features.snapshots import GraphHistory as GraphHistory
    from dagster_versioned.features.update import resolve_update as resolve_update
    from dagster_versioned.governance.connect import Governance as Governance
    from dagster_versioned.governance.dispatch import read as read
    from dagster_versioned.governance.dispatch import read_cached as read_cached
    from dagster_versioned.io_managers.open_lineage import OpenLineageResource as OpenLineageResource
    from dagster_versioned.io_managers.parquet import VersionedParquetIOManager as VersionedParquetIOManager
    from dagster_versioned.io_managers.publication import publish_checked as publish_checked
    from dagster_versioned.io_managers.publication_sensor import build_publication_sensor as build_publication_sensor
    from dagster_versioned.odf.event_table import EventTable as EventTable
    from dagster_versioned.projects.project import Project as Project
    from dagster_versioned.resources.credentials import S3CredentialsResource as S3CredentialsResource
    from dagster_versioned.resources.governance import GovernanceResource as GovernanceResource
    from dagster_versioned.resources.project import ProjectResource as ProjectResource
    from dagster_versioned.sensors.condition import version_changed as version_changed
    from dagster_versioned.sensors.git_mirror import build_git_mirror_sensor as build_git_mirror_sensor
    from dagster_versioned.sensors.source import build_source_sensor as build_source_sensor
    from dagster_versioned.sensors.source import versioned_source as versioned_source
    from dagster_versioned.sensors.version_sensor import build_version_sensor as build_version_sensor
    from dagster_versioned.tables.event_history import AppendMerge as AppendMerge
    from dagster_versioned.tables.event_history import ChangelogMerge as ChangelogMerge
    from dagster_versioned.tables.event_history import EventHistory as EventHistory
    from dagster_versioned.tables.event_history import LedgerMerge as LedgerMerge
    from dagster_versioned.tables.event_history import SnapshotMerge as SnapshotMerge
    from dagster_versioned.tables.event_history import UpsertMerge as UpsertMerge
    from dagster_versioned.tables.external import ExternalTable as ExternalTable
    from dagster_versioned.tables.options import TableOptions as TableOptions
    from dagster_versioned.tables.partitioning import Partitioning as Partitioning
    from dagster_versioned.tables.table import VersionedTable as VersionedTable

_HOME = {
    "AppendMerge": "dagster_versioned.tables.event_history",
    "ChangelogMerge": "dagster_versioned.tables.event_history",
    "EventHistory": "dagster_versioned.tables.event_history",
    "EventTable": "dagster_versioned.odf.event_table",
    "ExternalTable": "dagster_versioned.tables.external",
    "LedgerMerge": "dagster_versioned.tables.event_history",
    "SnapshotMerge": "dagster_versioned.tables.event_history",
    "UpsertMerge": "dagster_versioned.tables.event_history",
    "Feature": "dagster_versioned.features.definitions",
    "FeatureDep": "dagster_versioned.features.definitions",
    "FeatureGraph": "dagster_versioned.features.graph",
    "FeatureLock": "dagster_versioned.features.lock",
    "Field": "dagster_versioned.features.definitions",
    "FieldDep": "dagster_versioned.features.definitions",
    "FieldsMapping": "dagster_versioned.features.definitions",
    "GraphHistory": "dagster_versioned.features.snapshots",
    "Increment": "dagster_versioned.features.increment",
    "Lineage": "dagster_versioned.features.definitions",
    "MetaxyStore": "dagster_versioned.features.metaxy_store",
    "SampleHash": "dagster_versioned.engines.samples",
    "resolve_update": "dagster_versioned.features.update",
    "copy_samples": "dagster_versioned.features.copy_samples",
    "delete_samples": "dagster_versioned.features.delete_samples",
    "rebase": "dagster_versioned.features.rebase",
    "feature_of": "dagster_versioned.assets.feature_definition",
    "versioned_multi_feature": "dagster_versioned.assets.multi_feature",
    "import_metaxy": "dagster_versioned.features.import_metaxy",
    "versioned_asset": "dagster_versioned.assets.reuse.versioned_asset",
    "versioned_feature": "dagster_versioned.assets.feature",
    "versioned_multi_asset": "dagster_versioned.assets.reuse.versioned_asset",
    "CodeVersionIsCurrent": "dagster_versioned.checks.code",
    "with_code_versions": "dagster_versioned.assets.asset_code",
    "ChainValidity": "dagster_versioned.checks.chain",
    "FreshParents": "dagster_versioned.checks.parents",
    "Governance": "dagster_versioned.governance.connect",
    "GovernanceResource": "dagster_versioned.resources.governance",
    "HeadIntegrity": "dagster_versioned.checks.integrity",
    "OpenLineageResource": "dagster_versioned.io_managers.open_lineage",
    "OneDefinition": "dagster_versioned.checks.one_definition",
    "Partitioning": "dagster_versioned.tables.partitioning",
    "Project": "dagster_versioned.projects.project",
    "ProjectResource": "dagster_versioned.resources.project",
    "ReuseIsHonest": "dagster_versioned.checks.reuse",
    "RowCountDrift": "dagster_versioned.checks.row_count",
    "S3CredentialsResource": "dagster_versioned.resources.credentials",
    "SchemaPolicy": "dagster_versioned.checks.schema_policy",
    "TableOptions": "dagster_versioned.tables.options",
    "VersionedError": "dagster_versioned.errors",
    "VersionedParquetIOManager": "dagster_versioned.io_managers.parquet",
    "VersionedProjectComponent": "dagster_versioned.components.project",
    "VersionedTable": "dagster_versioned.tables.table",
    "polling_source": "dagster_versioned.assets.polling_source",
    "build_erase_job": "dagster_versioned.assets.erase_job",
    "build_git_mirror_sensor": "dagster_versioned.sensors.git_mirror",
    "build_version_checks": "dagster_versioned.checks.build",
    "build_publication_sensor": "dagster_versioned.io_managers.publication_sensor",
    "publish_checked": "dagster_versioned.io_managers.publication",
    "build_source_sensor": "dagster_versioned.sensors.source",
    "build_version_sensor": "dagster_versioned.sensors.version_sensor",
    "version_changed": "dagster_versioned.sensors.condition",
    "versioned_source": "dagster_versioned.sensors.source",
    "read": "dagster_versioned.governance.dispatch",
    "read_cached": "dagster_versioned.governance.dispatch",
    "read_delta": "dagster_versioned.delta_tables.read",
    "sql_asset": "dagster_versioned.assets.sql_asset",
}

if not TYPE_CHECKING:
    __all__ = list(_HOME)


def __getattr__(name: str) -> object:
    try:
        home = _HOME[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
