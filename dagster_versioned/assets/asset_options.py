"""The parameters of `dagster.asset` and `dagster.multi_asset` that the assets of this package have too.

They are those that every supported Dagster has. Only what is given is passed on, so what they mean is Dagster's word.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, TypedDict

import dagster as dg

from dagster_versioned.dagster_internals import CoercibleToAssetKey

Dep = CoercibleToAssetKey | dg.AssetSpec | dg.AssetsDefinition | dg.SourceAsset | dg.AssetDep


class StepOptions(TypedDict, total=False):
    """Of whatever is one step of a run."""

    group_name: str | None
    description: str | None
    retry_policy: dg.RetryPolicy | None
    op_tags: Mapping[str, Any] | None
    pool: str | None


class PartitionedOptions(StepOptions, total=False):
    """Of a step whose assets may be partitioned, and whose function may ask for resources."""

    partitions_def: dg.PartitionsDefinition[Any] | None
    backfill_policy: dg.BackfillPolicy | None
    required_resource_keys: Set[str] | None


class AssetOptions(StepOptions, total=False):
    """Of a step of one asset."""

    key_prefix: Sequence[str] | str | None
    owners: Sequence[str] | None
    tags: Mapping[str, str] | None
    kinds: Set[str] | None
    metadata: Mapping[str, Any] | None
    io_manager_key: str | None
    automation_condition: dg.AutomationCondition[Any] | None


class PartitionedAssetOptions(PartitionedOptions, AssetOptions, total=False):
    """Of a step of one asset that may be partitioned."""


class _FunctionOptions(PartitionedOptions, total=False):
    name: str | None
    ins: Mapping[str, dg.AssetIn] | None
    deps: Iterable[Dep] | None
    config_schema: Any
    resource_defs: Mapping[str, object] | None
    hooks: Set[dg.HookDefinition] | None
    code_version: str | None
    check_specs: Sequence[dg.AssetCheckSpec] | None


class VersionedAssetOptions(_FunctionOptions, AssetOptions, total=False):
    """All of `dagster.asset`."""

    key: CoercibleToAssetKey | None
    io_manager_def: object | None
    dagster_type: dg.DagsterType | None
    output_required: bool
    freshness_policy: Any


class VersionedMultiAssetOptions(_FunctionOptions, total=False):
    """All of `dagster.multi_asset` but its outputs."""

    internal_asset_deps: Mapping[str, set[dg.AssetKey]] | None
    can_subset: bool


def refuse_unknown(function: str, options: Mapping[str, object], known: type) -> None:
    """Raise `TypeError`, as Python does, for an option that is no key of the typed dictionary ``known``."""
    if unknown := sorted(options.keys() - known.__annotations__.keys()):
        raise TypeError(f"{function}() got an unexpected keyword argument {unknown[0]!r}")
