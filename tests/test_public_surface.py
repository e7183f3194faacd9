"""What users import: exactly this set, so that the surface never grows or shrinks by accident."""

import ast
from pathlib import Path

import pytest
from pydantic import BaseModel

import dagster_versioned


def is_model(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, BaseModel)


SURFACE = {
    "AppendMerge",
    "EventHistory",
    "EventTable",
    "ExternalTable",
    "LedgerMerge",
    "SnapshotMerge",
    "UpsertMerge",
    "ChangelogMerge",
    "Feature",
    "FeatureDep",
    "FeatureGraph",
    "FeatureLock",
    "Field",
    "FieldDep",
    "FieldsMapping",
    "GraphHistory",
    "Increment",
    "Lineage",
    "MetaxyStore",
    "SampleHash",
    "feature_of",
    "copy_samples",
    "delete_samples",
    "rebase",
    "resolve_update",
    "import_metaxy",
    "versioned_asset",
    "versioned_feature",
    "versioned_multi_asset",
    "versioned_multi_feature",
    "ChainValidity",
    "CodeVersionIsCurrent",
    "with_code_versions",
    "FreshParents",
    "Governance",
    "GovernanceResource",
    "HeadIntegrity",
    "Partitioning",
    "Project",
    "OneDefinition",
    "OpenLineageResource",
    "ProjectResource",
    "ReuseIsHonest",
    "RowCountDrift",
    "S3CredentialsResource",
    "SchemaPolicy",
    "TableOptions",
    "VersionedError",
    "VersionedParquetIOManager",
    "VersionedProjectComponent",
    "VersionedTable",
    "polling_source",
    "publish_checked",
    "sql_asset",
    "build_erase_job",
    "build_git_mirror_sensor",
    "build_version_checks",
    "build_publication_sensor",
    "build_source_sensor",
    "build_version_sensor",
    "version_changed",
    "versioned_source",
    "read",
    "read_cached",
    "read_delta",
}


def test_the_public_surface_is_exactly_this_set():
    assert set(dagster_versioned.__all__) == SURFACE


@pytest.mark.parametrize("name", sorted(SURFACE))
def test_every_public_name_resolves_to_an_object_of_that_name(name):
    assert getattr(dagster_versioned, name).__name__ == name


def test_a_name_that_is_not_public_is_an_attribute_error_that_names_it():
    with pytest.raises(AttributeError, match="no attribute 'NoSuchName'"):
        dagster_versioned.NoSuchName  # noqa: B018 - the access is what is tested


def test_dir_lists_the_public_surface_before_anything_was_imported():
    assert set(dir(dagster_versioned)) >= SURFACE


def test_type_checkers_see_the_same_homes_as_the_lazy_import():
    """Both lists stand in one file and must agree, else an editor promises what an import cannot keep."""
    tree = ast.parse(Path(dagster_versioned.__file__).read_text())
    seen = {
        alias.asname: node.module
        for block in tree.body
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == dagster_versioned._HOME


@pytest.mark.parametrize(
    "model",
    [model for name in sorted(SURFACE) if is_model(model := getattr(dagster_versioned, name))],
)
def test_every_field_of_a_model_is_described(model: type[BaseModel]) -> None:
    bare = {name for name, field in model.model_fields.items() if not field.description}
    # Dagster makes the field of a nested resource anew, without what is written of it.
    assert bare <= ({"project"} if model is dagster_versioned.VersionedParquetIOManager else set())
