"""The definitions of a module, such as the one that Dagster loads, and its features."""

import sys
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
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
    with _loading(name) as module:
        graphs = [value for value in vars(module).values() if isinstance(value, FeatureGraph)]
        features = _gathered(value for key, value in vars(module).items() if not key.startswith("__"))
    if not features:
        raise InvalidInput(
            f"The module {name!r} has no features. Nothing was written. Name the module with your Definitions, or one"
            " with Feature objects."
        )
    return FeatureGraph(features, max((graph.hash_length for graph in graphs), default=SHORTEST))


def repository_of_module(name: str) -> dg.RepositoryDefinition:
    """Import a module, also from the working directory, and resolve its ``Definitions``, as a code location does.

    Raises `InvalidInput` where the module cannot be imported or resolved, or has not exactly one ``Definitions``.
    """
    with _loading(name) as module:
        values: list[Any] = [
            value
            for value in vars(module).values()
            if isinstance(value, (dg.Definitions, LazyDefinitions, dg.RepositoryDefinition))
        ]
        found = list({id(value): value for value in values}.values())
        if len(found) != 1:
            raise InvalidInput(
                f"The module {name!r} has {len(found) or 'no'} Definitions. Nothing was written. Name the module that"
                " Dagster loads, which has one."
            )
        match found[0]:
            case LazyDefinitions():
                definitions = cast("Any", found[0])()
            case _:
                definitions = found[0]
        return definitions.get_repository_def() if isinstance(definitions, dg.Definitions) else definitions


def instance_of_home() -> dg.DagsterInstance:
    """The Dagster instance of DAGSTER_HOME. Raises `InvalidInput` where there is none, or it cannot be opened."""
    try:
        return dg.DagsterInstance.get()
    except Exception as error:
        first = str(error).strip().partition("\n")[0]
        raise InvalidInput(
            f"The Dagster instance could not be opened ({type(error).__name__}: {first}). Nothing was read. Set"
            " DAGSTER_HOME to its folder, or do without it."
        ) from error


@contextmanager
def _loading(name: str) -> Generator[ModuleType]:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        yield import_module(name)
    except VersionedError:
        raise
    except Exception as error:
        raise InvalidInput(
            f"The module {name!r} could not be loaded ({type(error).__name__}: {error}). Nothing was written. Check the"
            " name, and that it can be imported from here."
        ) from error


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
