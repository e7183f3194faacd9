"""The definitions of code locations, loaded as Dagster loads them, and the features of a module."""

import sys
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, cast

import dagster as dg
from dagster.components import load_defs
from dagster.components.definitions import LazyDefinitions

from dagster_versioned.assets.feature_definition import definitions_in, version_length
from dagster_versioned.dagster_internals import load_python_file
from dagster_versioned.errors import InvalidInput, VersionedError
from dagster_versioned.features.definitions import Feature
from dagster_versioned.features.graph import FeatureGraph


@dataclass(frozen=True)
class CodeLocation:
    """A module by its name, or a Python file: what Dagster loads definitions from.

    Modules are first looked for in ``folder``. What counts is the value of ``attribute`` if one is given, with
    ``autoload`` what is below the module, else the one value in it that holds definitions.
    """

    target: str | Path
    folder: Path = field(default_factory=Path.cwd)
    attribute: str | None = None
    autoload: bool = False

    def __str__(self) -> str:
        return f"{'file' if isinstance(self.target, Path) else 'module'} {str(self.target)!r}"


def features_of_module(name: str) -> FeatureGraph:
    """Import a module, also from the working directory, and gather its features and what these depend on.

    They are `Feature` and `FeatureGraph` objects, assets that are features, and those of its ``Definitions``; also in
    lists, tuples and dicts. Raises `InvalidInput` where the module cannot be imported, has no feature, has two
    definitions of one, or static versions of several lengths.
    """
    with _loading(CodeLocation(name)) as module:
        lengths: set[int] = set()
        features = _gathered((value for key, value in vars(module).items() if not key.startswith("__")), set(), lengths)
    if not features:
        raise InvalidInput(
            f"The module {name!r} has no features. Nothing was written. Name the module with your Definitions, or one"
            " with Feature objects."
        )
    if len(lengths) > 1:
        raise InvalidInput(
            f"The features of module {name!r} have static versions of {sorted(lengths)} digits. Nothing was written. "
            "Give all features of a project one version_length."
        )
    return FeatureGraph(features, *lengths)


def repositories_of(locations: Iterable[CodeLocation]) -> list[dg.RepositoryDefinition]:
    """Load code locations, all in this process, and resolve their ``Definitions``, as Dagster does in one for each.

    Raises `InvalidInput` where one cannot be loaded or resolved, or has not exactly one ``Definitions``, or where two
    have different modules of one name.
    """
    before, found = frozenset(sys.modules), list[dg.RepositoryDefinition]()
    for location in dict.fromkeys(locations):
        _require_own_modules(location, sys.modules.keys() - before)
        found += _repositories(location)
    return found


def _require_own_modules(location: CodeLocation, loaded: Iterable[str]) -> None:
    """Nothing that it could import may be hidden by a module of that name which another one has imported.

    Dagster loads each in a process of its own, where neither knows the other's modules.
    """
    for name in sorted(loaded):
        path = location.folder.joinpath(*name.split("."))
        for own in (path.with_name(f"{path.name}.py"), path / "__init__.py"):
            of_other = getattr(sys.modules.get(name), "__file__", None)
            if own != location.target and own.is_file() and not (of_other and own.samefile(of_other)):
                raise InvalidInput(
                    f"Two code locations have a module {name!r}, and one process can load one: {of_other} is loaded,"
                    f" and {own} would not be. Nothing was looked at. Name them one by one, each with -m in its folder."
                )


def _repositories(location: CodeLocation) -> list[dg.RepositoryDefinition]:
    with _loading(location) as module:
        values = _values(location, module)
        # The first kind that a module has is what Dagster takes, and of repositories all.
        kinds = cast("list[type[Any]]", [LazyDefinitions, dg.Definitions, dg.RepositoryDefinition])
        of_kinds = ([value for value in values if isinstance(value, kind)] for kind in kinds)
        found = next(filter(None, of_kinds), list[Any]())
        if not found or (len(found) > 1 and not isinstance(found[0], dg.RepositoryDefinition)):
            raise InvalidInput(
                f"The {location} has {len(found) or 'no'} Definitions. Nothing was written. Name the module that"
                " Dagster loads, which has one."
            )
        made: list[Any] = [value() if isinstance(value, kinds[0]) else value for value in found]
        return [value.get_repository_def() if isinstance(value, dg.Definitions) else value for value in made]


def _values(location: CodeLocation, module: ModuleType) -> list[Any]:
    if location.autoload:
        return [load_defs(module)]
    if location.attribute:
        value = getattr(module, location.attribute)
        return [value() if isinstance(value, FunctionType) else value]
    return list({id(value): value for value in vars(module).values()}.values())


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
def _loading(location: CodeLocation) -> Generator[ModuleType]:
    folder = str(location.folder)
    if sys.path[:1] != [folder]:
        sys.path.insert(0, folder)
    try:
        yield (
            load_python_file(location.target, folder)
            if isinstance(location.target, Path)
            else import_module(location.target)
        )
    except VersionedError:
        raise
    except Exception as error:
        raise InvalidInput(
            f"The {location} could not be loaded ({type(error).__name__}: {error}). Nothing was written. Check the"
            " name, and that it can be imported from here."
        ) from error


def _gathered(values: Iterable[object], seen: set[int], lengths: set[int]) -> list[Feature]:
    """The features in these values, and those above them; none of the ``seen`` ones, by their `id`, again.

    The ``lengths`` of their static versions, where they have one, are added to those.
    """
    found: list[Feature] = []
    for value in values:
        match value:
            case Feature():
                if id(value) not in seen:
                    seen.add(id(value))
                    found += [*_gathered((dep.source for dep in value.deps), seen, lengths), value]
            case FeatureGraph():
                lengths.add(value.hash_length)
                found += value
            case dg.Definitions():  # which is a tuple, too
                found += _of_metadata((spec.metadata for spec in value.resolve_all_asset_specs()), lengths)
            case LazyDefinitions():
                found += _gathered([cast("Any", value)()], seen, lengths)
            case list() | tuple() | set() | frozenset():
                found += _gathered(cast("Iterable[object]", value), seen, lengths)
            case dict():
                found += _gathered(cast("dict[object, object]", value).values(), seen, lengths)
            case dg.AssetsDefinition():
                found += _of_metadata(value.metadata_by_key.values(), lengths)
            case _:
                pass
    return found


def _of_metadata(metadata: Iterable[Mapping[str, Any]], lengths: set[int]) -> list[Feature]:
    found: list[Feature] = []
    for members in metadata:
        if definitions := definitions_in(members):
            lengths.add(version_length(members))
            found += definitions
    return found
