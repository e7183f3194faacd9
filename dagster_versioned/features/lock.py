"""Features of other projects, pinned in a file: their definitions, read from what was pushed there.

The code of the other project is not imported. What its definitions are now is asked when the file is made; whether its
tables are computed by those in the file, whenever they are read (`UpstreamFiles.require_definition`).
Source: seed 004 ("Graph Level"); Metaxy's ``lock``.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

import orjson

from dagster_versioned.errors import IntegrityError, InvalidInput, VersionNotFound
from dagster_versioned.features.definitions import Asset, Feature, key_text
from dagster_versioned.features.graph import FeatureGraph
from dagster_versioned.features.snapshots import (
    GraphHistory,
    Members,
    Push,
    Sha,
    parse_document,
    parse_snapshot,
    snapshot_bytes,
)
from dagster_versioned.identity.canonical import canonical_json
from dagster_versioned.projects.project import Project

FILE_NAME = "features.lock"

_FIX = "Nothing was read. Restore the file, or delete it and lock again: `dagster-versioned graph lock FEATURE…`."


class LockedProject(Members):
    """What was locked of a project: the ``features`` that were named, and the push that had their definitions."""

    features: list[str]
    push: int
    snapshot: Sha


class _LockDocument(Members):
    schema_version: Literal[1]
    projects: dict[str, LockedProject]
    versions: dict[str, str]
    definitions: dict[str, Any]
    sha256: Sha


@dataclass(frozen=True)
class FeatureLock:
    """Features of other projects, with all that these depend on, as they were when they were locked.

    ``lock["crop"]`` is the `Feature`, to be named in ``deps``; its ``project`` is where its table is.
    """

    graph: FeatureGraph
    projects: Mapping[str, LockedProject]

    @classmethod
    def empty(cls) -> Self:
        """No features."""
        return cls(FeatureGraph([]), {})

    @classmethod
    def read(cls, path: str | Path = FILE_NAME) -> Self:
        """The lock in a file.

        Raises `InvalidInput` where the file cannot be read, `IntegrityError` where it is not what was written, and
        `UnsupportedFeature` for one of a newer format.
        """
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise InvalidInput(
                f"{path} cannot be read ({error.strerror}), so its features are unknown. {_FIX}"
            ) from None
        found = parse_document(_LockDocument, data, str(path), _FIX)
        definitions = found.definitions
        graph = parse_snapshot(orjson.dumps(definitions), f"'definitions' of {path}", _FIX)
        lock = cls(_linked(graph), found.projects)
        is_placed = all(each.project for each in graph) and all(
            key in graph for locked in found.projects.values() for key in locked.features
        )
        if not is_placed or orjson.loads(lock.to_bytes()) != orjson.loads(data):
            raise IntegrityError(
                f"{path} is not what was written: its definitions, their versions and its SHA-256 do not belong "
                f"together. {_FIX}"
            )
        return lock

    def __getitem__(self, key: str | Asset) -> Feature:
        text = key_text(key)
        if text not in self.graph:
            raise InvalidInput(
                f"The lock has no feature {text!r}, but {sorted(each.key for each in self.graph)}. Nothing was read. "
                f"Lock it: `dagster-versioned graph lock {text}`, with the other project's --location or --governance."
            )
        return self.graph[text]

    def __iter__(self) -> Iterator[Feature]:
        return iter(self.graph)

    def locked(self, project: Project, features: Iterable[str | Asset | Feature] = ()) -> Self:
        """This lock with the features of a project as they were last pushed there; other projects' stay.

        ``features`` take the place of those that were named before; without any, these are renewed. What a project's
        features are is its own push's to say: another one that depends on them may have been pushed with earlier ones.
        Raises `InvalidInput` where none was named, two projects have one of the same key, or depend on different
        definitions of a third one's that is not locked itself, and `VersionNotFound` where nothing was pushed, or one
        is not in the push.
        """
        known = self.projects.get(project.name)
        keys = sorted({key_text(each) for each in features}) or (known.features if known else [])
        if not keys:
            raise InvalidInput(f"No feature of {project.name} is locked, and none is named. Nothing was locked.")
        push, pushed = _last_pushed(project, keys)
        stay = {name: other for name, other in self.projects.items() if name != project.name}
        if (stay or known is None) and self.projects and pushed.hash_length != self.graph.hash_length:
            raise InvalidInput(
                f"The static versions of {project.name} have {pushed.hash_length} digits, those that are locked "
                f"{self.graph.hash_length}. Nothing was locked. Give all projects one version_length."
            )
        theirs = [replace(each, project=each.project or project.name) for each in _above(pushed, keys)]
        graph = FeatureGraph(self._together(stay, theirs, project.name), pushed.hash_length)
        mine = LockedProject(features=list(keys), push=push.number, snapshot=push.snapshot)
        projects = {**stay, project.name: mine}
        named = _above(graph, [key for locked in projects.values() for key in locked.features])
        return type(self)(_linked(FeatureGraph(named, graph.hash_length)), projects)

    def _together(self, stay: Mapping[str, LockedProject], theirs: Iterable[Feature], project: str) -> list[Feature]:
        """The features of the projects that stay, and those that one depends on; of two definitions the owner's."""
        above = {name: _above(self.graph, other.features) for name, other in stay.items()}
        owned = {each.key for name, features in above.items() for each in features if each.project == name}
        found = {each.key: each for features in above.values() for each in features}
        for each in theirs:
            other = found.get(each.key, each)
            if other.project != each.project:
                return [*found.values(), each]  # two features of one key, which no graph has
            if other != each and each.project != project and each.key not in owned:
                raise InvalidInput(
                    f"{project} and another locked project depend on different definitions of {each.key!r} of "
                    f"{each.project}. Nothing was locked. Lock its own, which count for all: `dagster-versioned graph "
                    f"lock {each.key}`, with --project {each.project} or its --location."
                )
            if each.project == project or each.key not in owned:
                found[each.key] = each
        return list(found.values())

    def to_bytes(self) -> bytes:
        """The file: JSON for people and for reviews, with a SHA-256 of all that is in it."""
        members = {
            "schema_version": 1,
            "projects": {name: locked.model_dump() for name, locked in self.projects.items()},
            "versions": {each.key: self.graph.versions(each.key).feature for each in self.graph},
            "definitions": orjson.loads(snapshot_bytes(self.graph)),
        }
        members["sha256"] = hashlib.sha256(canonical_json(members)).hexdigest()
        return orjson.dumps(members, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE)

    def write(self, path: str | Path = FILE_NAME) -> None:
        """Write the file, whole or not at all. Raises `InvalidInput`."""
        whole = Path(path).with_name(f".{Path(path).name}.{os.getpid()}.partial")
        try:
            whole.write_bytes(self.to_bytes())
            whole.replace(path)
        except OSError as error:
            raise InvalidInput(
                f"{path} could not be written: {error.strerror}. It is as it was; choose another."
            ) from None
        finally:
            with suppress(OSError):
                whole.unlink(missing_ok=True)


def _last_pushed(project: Project, keys: Iterable[str]) -> tuple[Push, FeatureGraph]:
    """What was pushed last to a project, where it has the features. Raises `VersionNotFound`."""
    history = GraphHistory(project)
    push = history.find(None)
    pushed = history.graph(push)
    if missing := [key for key in keys if key not in pushed]:
        raise VersionNotFound(
            f"Push @{push.number} to {project.store.uri} has no features {missing}, but "
            f"{sorted(each.key for each in pushed)}. Nothing was locked. Check the names, or push the definitions "
            "there first: `dagster-versioned graph push -m MODULE`."
        )
    return push, pushed


def _above(graph: FeatureGraph, keys: Iterable[str]) -> list[Feature]:
    """Features and all that they depend on, in the order of the graph."""
    wanted = set(keys)
    for feature in reversed(list(graph)):
        if feature.key in wanted:
            wanted |= {dep.feature for dep in feature.deps}
    return [feature for feature in graph if feature.key in wanted]


def _linked(graph: FeatureGraph) -> FeatureGraph:
    """The graph, in which each dependency knows its definition, so that naming one feature names all above it."""
    made: dict[str, Feature] = {}
    for each in graph:
        made[each.key] = replace(each, deps=[replace(dep, feature=made[dep.feature]) for dep in each.deps])
    return FeatureGraph(made.values(), graph.hash_length)
