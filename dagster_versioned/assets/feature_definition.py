"""Which feature an asset is: its definition, and those above it, in the asset's metadata."""

from collections.abc import Mapping
from typing import Any

import dagster as dg

from dagster_versioned.assets.graph.inputs import plain
from dagster_versioned.features.definitions import Feature
from dagster_versioned.features.graph import SHORTEST, FeatureGraph

FEATURE_KEY = "dagster_versioned/feature"
"""Asset metadata that holds the definitions of a feature and of all that it depends on, the feature's own last."""

LENGTH_KEY = "dagster_versioned/feature_version_length"
"""Asset metadata that holds the length of a feature's static versions, where it is another than by default."""


def feature_of(asset: dg.AssetsDefinition) -> Feature | None:
    """The feature that an asset is; ``None`` for an ordinary asset."""
    definitions = _definitions(asset)
    return definitions[-1] if definitions else None


def graph_of(asset: dg.AssetsDefinition) -> FeatureGraph | None:
    """The feature that an asset is, with all that it depends on; ``None`` for an ordinary asset."""
    definitions = _definitions(asset)
    length = max(map(version_length, asset.metadata_by_key.values()), default=SHORTEST)
    return FeatureGraph(definitions, length) if definitions else None


def definitions_in(metadata: Mapping[str, Any]) -> list[Feature]:
    """The definitions that an asset's metadata hold; none of an ordinary asset."""
    return [Feature.from_json(each) for each in plain(metadata, FEATURE_KEY) or ()]


def version_length(metadata: Mapping[str, Any]) -> int:
    """How many digits the static versions of a feature have, by the metadata of its asset."""
    return plain(metadata, LENGTH_KEY) or SHORTEST


def feature_metadata(graph: FeatureGraph, key: str) -> dict[str, Any]:
    """The metadata that make an asset the feature ``key`` of a graph of this and of what it depends on."""
    others = [feature for feature in graph if feature.key != key]
    length = {LENGTH_KEY: graph.hash_length} if graph.hash_length != SHORTEST else {}
    return {FEATURE_KEY: dg.JsonMetadataValue([feature.to_json() for feature in (*others, graph[key])]), **length}


def _definitions(asset: dg.AssetsDefinition) -> list[Feature]:
    return [each for metadata in asset.metadata_by_key.values() for each in definitions_in(metadata)]
