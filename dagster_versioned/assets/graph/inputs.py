"""What the metadata of an asset's inputs asks for; the IO manager does it, sensors and checks take it into account."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import dagster as dg

from dagster_versioned.dagster_internals import AssetNode, InputDefinition

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
    """The metadata of each input, by what it loads; dependencies that are not loaded are left out.

    Where several ops of a graph load it, what all of them say.
    """
    found: dict[dg.AssetKey, Mapping[str, Any]] = {}
    for key, inputs in inputs_by_upstream(node).items():
        first, *others = [cast("Mapping[str, Any]", input_.metadata or {}) for input_ in inputs]
        found[key] = {name: value for name, value in first.items() if all(other.get(name) == value for other in others)}
    return found


def inputs_by_upstream(node: AssetNode) -> Mapping[dg.AssetKey, Sequence[InputDefinition]]:
    """The inputs of ops, by what they load: one, or those of all ops of a graph that load it."""
    if not node.is_executable:
        return {}
    assets = node.assets_def
    found = {key: list(_op_inputs(assets.node_def, name)) for name, key in assets.keys_by_input_name.items()}
    loaded = {key: [input_ for input_ in inputs if not input_.dagster_type.is_nothing] for key, inputs in found.items()}
    return {key: inputs for key, inputs in loaded.items() if inputs}


def _op_inputs(definition: Any, name: str) -> Iterator[InputDefinition]:
    """The inputs of ops that an input of an op or a graph is."""
    if not isinstance(definition, dg.GraphDefinition):
        yield from (def_ for def_ in definition.input_defs if def_.name == name)
        return
    for mapping in definition.input_mappings:
        if mapping.graph_input_name == name:
            node = definition.node_named(mapping.mapped_node_name)
            yield from _op_inputs(node.definition, mapping.mapped_node_input_name)
