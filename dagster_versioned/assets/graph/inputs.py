"""What the metadata of an asset's inputs asks for; the IO manager does it, sensors and checks take it into account."""

from collections.abc import Mapping
from typing import Any

import dagster as dg

from dagster_versioned.dagster_internals import AssetNode

VERSION_KEY = "dagster_versioned/version"
"""`AssetIn` metadata that pins the input to a version, spelled as in `VersionedTable.read`."""
COLUMNS_KEY = "dagster_versioned/columns"
"""`AssetIn` metadata that limits the input to some columns."""
URI_KEY = "dagster_versioned/uri"
"""Metadata of an external asset that is a Delta table of no project: where it is."""
PROJECT_KEY = "dagster_versioned/project"
"""`AssetIn` metadata that names the project that the input is to be of, where it is another one than the asset's."""
IF_SELECTED_KEY = "dagster_versioned/if_selected"
"""`AssetIn` metadata of files that nobody looks into where no selected asset of the step depends on them."""
ALLOW_MISSING_KEY = "allow_missing_partitions"
"""`AssetIn` metadata that leaves out partitions that were never materialized; the key is Dagster's own."""


def plain(metadata: Mapping[str, Any] | None, key: str) -> Any:
    """A metadata value as the user wrote it; Dagster wraps some of them."""
    value = (metadata or {}).get(key)
    return getattr(value, "value", value)


def metadata_by_upstream(node: AssetNode) -> Mapping[dg.AssetKey, Mapping[str, Any]]:
    """The metadata of each input, by what it loads; dependencies that are not loaded are left out."""
    if not node.is_executable:
        return {}
    assets = node.assets_def
    inputs = {one.name: one for one in assets.node_def.input_defs}
    loaded = {key: inputs[name] for name, key in assets.keys_by_input_name.items() if name in inputs}
    return {key: one.metadata or {} for key, one in loaded.items() if not one.dagster_type.is_nothing}
