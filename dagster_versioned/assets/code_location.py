"""The features of a module, such as the one that Dagster loads."""

import sys
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import dagster as dg
from dagster.components.definitions import LazyDefinitions

from dagster_versioned.assets.feature_definition import FEATURE_KEY
from dagster_versioned.assets.graph.inputs import plain
from dagster_versioned.errors import InvalidInput, VersionedError
from dagster_versioned.features.definitions import Feature
from dagster_versioned.features.graph import SHORTEST, FeatureGraph


def features_of_module(name: str) -> FeatureGraph:
    """Import a module, also from the working directory, and gather its features and what these depend on.

    They are `Feature` and `FeatureGraph` objects, assets that are features, and those of its ``Definitions``; also in
    lists, tuples and dicts. Raises `InvalidInput` where the module cannot be imported, has no feature, or has two
    definitions of one.
    """
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = import_module(name)
        graphs = [value for value in vars(module).values() if isinstance(value, FeatureGraph)]
        features = _gathered(value for key, value in vars(module).items() if not key.startswith("__"))
    except VersionedError:
        raise
    except Exception as error:
        raise InvalidInput(
            f"The module {name!r} could not be loaded ({type(error).__name__}: {error}). Nothing was written. Check the"
            " name, and that it can be imported from here."
        ) from error
    if not features:
        raise InvalidInput(
            f"The module {name!r} has no features. Nothing was written. Name the module with your Definitions, or one"
            " with Feature objects."
        )
    return FeatureGraph(features, max((graph.hash_length for graph in graphs), default=SHORTEST))


def _gathered(values: Iterable[object], seen: set[int] | None = None) -> list[Feature]:
    """The features in these values, and those above them; none of the ``seen`` ones, by their `id`, again."""
    found: list[Feature] = []
    seen = set() if seen is None else seen
    for value in values:
        match value:
            case Feature():
                if id(value) not in seen:
                    seen.add(id(value))
                    found += [*_gathered((dep.source for dep in value.deps), seen), value]
            case FeatureGraph():
                found += value
            case dg.Definitions():  # which is a tuple, too
                found += _of_metadata(spec.metadata for spec in value.resolve_all_asset_specs())
            case LazyDefinitions():
                found += _gathered([cast("Any", value)()], seen)
            case list() | tuple() | set() | frozenset():
                found += _gathered(cast("Iterable[object]", value), seen)
            case dict():
                found += _gathered(cast("dict[object, object]", value).values(), seen)
            case dg.AssetsDefinition():
                found += _of_metadata(value.metadata_by_key.values())
            case _:
                pass
    return found


def _of_metadata(metadata: Iterable[Mapping[str, Any]]) -> list[Feature]:
    return [Feature.from_json(each) for members in metadata for each in plain(members, FEATURE_KEY) or ()]
