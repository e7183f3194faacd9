"""Which feature an asset is: its definition, and those above it, in the asset's metadata."""

from typing import Any

import dagster as dg

from dagster_versioned.assets.graph.inputs import plain
from dagster_versioned.features.definitions import Feature
from dagster_versioned.features.graph import FeatureGraph

FEATURE_KEY = "dagster_versioned/feature"
"""Asset metadata that holds the definitions of a feature and of all that it depends on, the feature's own last."""


def feature_of(asset: dg.AssetsDefinition) -> Feature | None:
    """The feature that an asset is; ``None`` for an ordinary asset."""
    definitions = _definitions(asset)
    return definitions[-1] if definitions else None


def graph_of(asset: dg.AssetsDefinition) -> FeatureGraph | None:
    """The feature that an asset is, with all that it depends on; ``None`` for an ordinary asset."""
    definitions = _definitions(asset)
    return FeatureGraph(definitions) if definitions else None


def feature_metadata(graph: FeatureGraph, key: str) -> dict[str, Any]:
    """The metadata that make an asset the feature ``key`` of a graph of this and of what it depends on."""
    others = [feature for feature in graph if feature.key != key]
    return {FEATURE_KEY: dg.JsonMetadataValue([feature.to_json() for feature in (*others, graph[key])])}


def _definitions(asset: dg.AssetsDefinition) -> list[Feature]:
    found: list[Feature] = []
    for metadata in asset.metadata_by_key.values():
        raw: Any = plain(metadata, FEATURE_KEY)
        found += [Feature.from_json(each) for each in raw or ()]
    return found
