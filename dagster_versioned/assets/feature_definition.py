"""Which feature an asset is: its definition, and those above it, in the asset's metadata."""

from collections.abc import Iterable, Mapping, Set
from typing import Any

import dagster as dg

from dagster_versioned.assets.graph.inputs import plain
from dagster_versioned.errors import InvalidInput
from dagster_versioned.features.definitions import Feature, FeatureDep
from dagster_versioned.features.graph import SHORTEST, FeatureGraph

FEATURE_KEY = "dagster_versioned/feature"
"""Asset metadata that holds the definitions of a feature and of all that it depends on, the feature's own last."""

LENGTH_KEY = "dagster_versioned/feature_version_length"
"""Asset metadata that holds the length of a feature's static versions, where it is another than by default."""


def feature_of(asset: dg.AssetsDefinition) -> Feature | None:
    """The feature that an asset is; ``None`` for an ordinary asset.

    Raises `InvalidInput` for one that computes several.
    """
    if len(asset.keys) > 1 and any(FEATURE_KEY in each for each in asset.metadata_by_key.values()):
        raise InvalidInput(
            f"The asset {asset.op.name!r} is no single feature. Nothing was read or written. Name one of its features "
            "by the Feature."
        )
    definitions = _definitions(asset)
    return definitions[-1] if definitions else None


def graph_of(asset: dg.AssetsDefinition) -> FeatureGraph | None:
    """The feature that an asset is, with all that it depends on; ``None`` for an ordinary asset."""
    definitions = _definitions(asset)
    length = max(map(version_length, asset.metadata_by_key.values()), default=SHORTEST)
    return FeatureGraph(definitions, length) if definitions else None


def graph_over(feature: Feature, version_length: int | None) -> FeatureGraph:
    """A feature and all that it depends on, which are in its dependencies.

    ``version_length`` is how many digits static versions have, by default as many as those of assets above. Raises
    `InvalidInput` where these are of several lengths, or one above is an asset that is no feature.
    """
    above, lengths = _above(feature.deps)
    return FeatureGraph([*above, feature], _length(feature, version_length, lengths))


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


def _above(deps: Iterable[FeatureDep], seen: set[int] | None = None) -> tuple[list[Feature], set[int]]:
    """The features that are depended on, and all above them; none of the ``seen`` ones, by their `id`, again.

    And how long the static versions are of those that are assets.
    """
    found: list[Feature] = []
    lengths: set[int] = set()
    seen = set() if seen is None else seen
    for dep in deps:
        source = dep.source
        if isinstance(source, Feature):
            if id(source) not in seen:
                seen.add(id(source))
                above, of_these = _above(source.deps, seen)
                found += [*above, source]
                lengths |= of_these
        elif isinstance(source, dg.AssetsDefinition):
            graph = graph_of(source)
            if graph is None:
                raise InvalidInput(
                    f"The asset {dep.feature!r} is no feature. Nothing was defined; say which columns identify its "
                    f"rows: Feature({dep.feature!r}, id_columns=[...], fields=[Field(..., columns=[...])])."
                )
            found += graph
            lengths.add(graph.hash_length)
    return found, lengths


def _length(feature: Feature, stated: int | None, above: Set[int]) -> int:
    """How many digits the static versions have; all in a graph as many."""
    found = {*above} if stated is None else {*above, stated}
    if len(found) > 1:
        raise InvalidInput(
            f"The static versions of feature {feature.key!r} and of what it depends on would have {sorted(found)} "
            "digits. Nothing was defined. Give all features of a project one version_length."
        )
    return found.pop() if found else SHORTEST
