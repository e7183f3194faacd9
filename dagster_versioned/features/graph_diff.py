"""What changed between two graphs of features, and why. Source: seed 004 ("Tracking Definitions Changes")."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dagster_versioned.features.definitions import Feature, Field
from dagster_versioned.features.graph import FeatureGraph

Change = Literal["added", "removed", "changed"]


@dataclass(frozen=True, slots=True)
class FieldChange:
    """A field that came, went, or means something else.

    ``before`` and ``after`` are its versions. Why it changed: its own ``code`` version (before, after), the
    ``columns`` that a sample's version is made of, fields that it is computed from since (``deps_added``) or no more
    (``deps_removed``), and changes in those that it is computed from as before (``upstream``).
    """

    key: str
    change: Change
    before: str | None
    after: str | None
    code: tuple[str, str] | None = None
    columns: tuple[tuple[str, ...], tuple[str, ...]] | None = None
    deps_added: tuple[str, ...] = ()
    deps_removed: tuple[str, ...] = ()
    upstream: tuple[str, ...] = ()

    @property
    def has_reason(self) -> bool:
        """Whether there is a reason why a field, which was there before, changed."""
        return bool(self.code or self.columns or self.deps_added or self.deps_removed or self.upstream)


@dataclass(frozen=True, slots=True)
class DefinitionChange:
    """What decides which samples a feature has, such as its ids or a dependency's filter; absent is ``None``."""

    name: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class FeatureChange:
    """A feature that came, went, or has another definition; ``before`` and ``after`` are its versions."""

    key: str
    change: Change
    before: str | None
    after: str | None
    fields: tuple[FieldChange, ...]
    definition: tuple[DefinitionChange, ...] = ()


@dataclass(frozen=True, slots=True)
class GraphDiff:
    """What changed between two graphs: features in the order of the later one, then those that are gone.

    ``before`` and ``after`` are project versions, ``unchanged`` counts the features in which nothing changed.
    """

    before: str
    after: str
    features: tuple[FeatureChange, ...]
    unchanged: int

    def __bool__(self) -> bool:
        """Whether anything changed."""
        return bool(self.features)


def graph_diff(before: FeatureGraph, after: FeatureGraph) -> GraphDiff:
    """Compare two graphs, feature by feature and field by field."""
    changed: set[str] = set()
    """The fields, by the text of their references, in which something changed that reaches those below."""
    features = [change for feature in after if (change := _feature_change(before, after, feature, changed)) is not None]
    gone = [_gone(before, feature) for feature in before if feature.key not in after]
    unchanged = sum(1 for _ in after) - len(features)
    return GraphDiff(before.project_version, after.project_version, (*features, *gone), unchanged)


def _feature_change(
    before: FeatureGraph, after: FeatureGraph, feature: Feature, changed: set[str]
) -> FeatureChange | None:
    versions = after.versions(feature.key)
    if feature.key not in before:
        fields = tuple(FieldChange(key, "added", None, version) for key, version in sorted(versions.fields.items()))
        return FeatureChange(feature.key, "added", None, versions.feature, fields)
    old = before[feature.key]
    fields = tuple(_field_changes(before, after, old, feature, changed))
    definition = tuple(_definition_changes(old, feature))
    if not fields and not definition:
        return None
    known = before.versions(feature.key).feature
    return FeatureChange(feature.key, "changed", known, versions.feature, fields, definition)


def _gone(before: FeatureGraph, feature: Feature) -> FeatureChange:
    versions = before.versions(feature.key)
    fields = tuple(FieldChange(key, "removed", version, None) for key, version in sorted(versions.fields.items()))
    return FeatureChange(feature.key, "removed", versions.feature, None, fields)


def _field_changes(
    before: FeatureGraph, after: FeatureGraph, old: Feature, new: Feature, changed: set[str]
) -> Iterator[FieldChange]:
    was, now = ({field.key: field for field in feature.fields} for feature in (old, new))
    was_versions, now_versions = before.versions(old.key).fields, after.versions(new.key).fields
    for key in sorted({*was, *now}):
        if key not in was:
            yield FieldChange(key, "added", None, now_versions[key])
        elif key not in now:
            yield FieldChange(key, "removed", was_versions[key], None)
        else:
            change = _field_change(before, after, new.key, was[key], now[key], changed)
            if change.has_reason:
                changed.add(f"{new.key}.{key}")
                yield change


def _field_change(
    before: FeatureGraph, after: FeatureGraph, feature: str, was: Field, now: Field, changed: set[str]
) -> FieldChange:
    was_from, now_from = ({ref.text for ref in graph.parents(feature, now.key)} for graph in (before, after))
    return FieldChange(
        now.key,
        "changed",
        before.versions(feature).fields[now.key],
        after.versions(feature).fields[now.key],
        (was.code_version, now.code_version) if was.code_version != now.code_version else None,
        (was.columns, now.columns) if set(was.columns) != set(now.columns) else None,
        tuple(sorted(now_from - was_from)),
        tuple(sorted(was_from - now_from)),
        tuple(sorted(was_from & now_from & changed)),
    )


def _definition_changes(old: Feature, new: Feature) -> Iterator[DefinitionChange]:
    was, now = _definition(old), _definition(new)
    for name in sorted({*was, *now}):
        if was.get(name) != now.get(name):
            yield DefinitionChange(name, was.get(name), now.get(name))


def _definition(feature: Feature) -> Mapping[str, Any]:
    """All of a definition but its fields, flat."""
    found: dict[str, Any] = {"id_columns": list(feature.id_columns)}
    if feature.project is not None:
        found["project"] = feature.project
    for dep in feature.deps:
        members = dep.to_json()
        found[f"deps.{members.pop('feature')}"] = True
        found |= {f"deps.{dep.feature}.{name}": value for name, value in members.items()}
    return found
