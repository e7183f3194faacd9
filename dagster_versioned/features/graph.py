"""Features that depend on each other, and the versions that follow from their definitions alone.

Source: seed 004 ("Definitions"). The byte strings that are hashed are Metaxy's (docs: "Hashing of features").
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from types import MappingProxyType

from dagster_versioned.errors import InvalidInput
from dagster_versioned.features.definitions import EVERY_UPSTREAM, Feature, FeatureDep, Field

SHORTEST, LONGEST = 8, 64
"""How many hexadecimal digits of a SHA-256 a static version may have."""


@dataclass(frozen=True, slots=True, order=True)
class FieldRef:
    """A field of a feature, written ``feature.field``."""

    text: str
    feature: str
    field: str

    @classmethod
    def of(cls, feature: str, field: str) -> "FieldRef":
        """The reference to a field; references sort by their text."""
        return cls(f"{feature}.{field}", feature, field)


@dataclass(frozen=True, slots=True)
class FeatureVersions:
    """What follows from a feature's definition and those above it.

    ``fields`` are the field versions by key; ``feature`` is derived from them, and ``code`` from the code versions of
    the feature's own fields alone.
    """

    feature: str
    code: str
    fields: Mapping[str, str]


class FeatureGraph:
    """Features by key, each with what it depends on.

    Guarantees: every dependency is a feature of the graph, there is no cycle, the fields that a field depends on exist,
    and every field of a feature with an upstream depends on a field of it. Raises `InvalidInput`.
    """

    def __init__(self, features: Iterable[Feature], hash_length: int = SHORTEST) -> None:
        if not SHORTEST <= hash_length <= LONGEST:
            raise InvalidInput(
                f"The versions of features would be cut to {hash_length} digits. Nothing was read or written; choose"
                f" {SHORTEST} to {LONGEST}."
            )
        self.hash_length = hash_length
        known: dict[str, Feature] = {}
        for feature in features:
            if known.setdefault(feature.key, feature) != feature:
                raise InvalidInput(
                    f"There are two definitions of feature {feature.key!r}. Nothing was read or written; keep one, or"
                    " give the other a key of its own."
                )
        self._features = known
        self._order = self._sorted()
        self._parents = {
            FieldRef.of(feature.key, field.key): self._parents_of(feature, field)
            for feature in known.values()
            for field in feature.fields
        }
        self._field_versions = self._all_field_versions()

    def __iter__(self) -> Iterator[Feature]:
        """The features, each after those that it depends on."""
        return (self._features[key] for key in self._order)

    def __contains__(self, key: object) -> bool:
        return key in self._features

    def __getitem__(self, key: str) -> Feature:
        try:
            return self._features[key]
        except KeyError:
            raise InvalidInput(
                f"There is no feature {key!r} in the graph, which has {sorted(self._features)}. Nothing was read or"
                " written; check the name."
            ) from None

    def parents(self, feature: str, field: str) -> tuple[FieldRef, ...]:
        """The upstream fields that a field is computed from, sorted."""
        return self._parents[FieldRef.of(self[feature].key, field)]

    def downstream(self, key: str) -> tuple[str, ...]:
        """The features that depend on one, directly or not, in order."""
        reached = {self[key].key}
        for feature in self:
            if any(dep.feature in reached for dep in feature.deps):
                reached.add(feature.key)
        return tuple(each for each in self._order if each in reached and each != key)

    def versions(self, key: str) -> FeatureVersions:
        """The static versions of a feature and of its fields."""
        feature = self[key]
        fields = {field.key: self._field_versions[FieldRef.of(key, field.key)] for field in feature.fields}
        codes = {field.key: field.code_version for field in feature.fields}
        return FeatureVersions(
            self._hash(field + version for field, version in sorted(fields.items())),
            self._hash(field + code for field, code in sorted(codes.items())),
            MappingProxyType(fields),
        )

    @cached_property
    def project_version(self) -> str:
        """The version of the graph: of the keys and feature versions of all features, sorted by key.

        Those of other projects are left out: they change it where they change a feature that is computed from them.
        """
        own = (key for key in sorted(self._features) if self._features[key].project is None)
        return self._hash(key + self.versions(key).feature for key in own)

    def _all_field_versions(self) -> dict[FieldRef, str]:
        found: dict[FieldRef, str] = {}
        for feature in self:
            for field in feature.fields:
                ref = FieldRef.of(feature.key, field.key)
                found[ref] = self._hash((ref.text, field.code_version, *(found[each] for each in self._parents[ref])))
        return found

    def _hash(self, pieces: Iterable[str]) -> str:
        return hashlib.sha256("".join(pieces).encode()).hexdigest()[: self.hash_length]

    def _sorted(self) -> tuple[str, ...]:
        for feature in self._features.values():
            for dep in feature.deps:
                if dep.feature not in self._features:
                    raise InvalidInput(
                        f"Feature {feature.key!r} depends on {dep.feature!r}, which is not in the graph of"
                        f" {sorted(self._features)}. Nothing was read or written; add it."
                    )
        above = {key: sorted(dep.feature for dep in self._features[key].deps) for key in sorted(self._features)}
        try:
            return tuple(TopologicalSorter(above).static_order())
        except CycleError as error:
            raise InvalidInput(
                f"Features depend on themselves: {' -> '.join(error.args[1])}. Nothing was read or written; break the"
                " cycle."
            ) from None

    def _parents_of(self, feature: Feature, field: Field) -> tuple[FieldRef, ...]:
        found: set[FieldRef] = set()
        for dep in feature.deps:
            upstream = [each.key for each in self[dep.feature].fields]
            found.update(FieldRef.of(dep.feature, key) for key in _fields_of(feature, field, dep, upstream))
        if feature.deps and not found:
            raise InvalidInput(
                f"Field {field.key!r} of feature {feature.key!r} depends on no field of its upstreams"
                f" {[dep.feature for dep in feature.deps]}. Nothing was read or written; give it deps, or another"
                " fields_mapping."
            )
        return tuple(sorted(found))


def _fields_of(feature: Feature, field: Field, dep: FeatureDep, upstream: list[str]) -> Iterable[str]:
    if not field.deps:
        stated = dep.fields_mapping.mapping.get(field.key, frozenset())
        _require_fields(feature, field, dep, stated, upstream)
        return dep.fields_mapping.parents(field.key, upstream)
    found: set[str] = set()
    for own in field.deps:
        if own.feature not in (dep.feature, EVERY_UPSTREAM):
            continue
        wanted = upstream if own.fields is None else own.fields
        _require_fields(feature, field, dep, wanted, upstream)
        found.update(wanted)
    return found


def _require_fields(
    feature: Feature, field: Field, dep: FeatureDep, wanted: Iterable[str], upstream: list[str]
) -> None:
    if missing := sorted(set(wanted) - set(upstream)):
        raise InvalidInput(
            f"Field {field.key!r} of feature {feature.key!r} depends on the fields {missing} of {dep.feature!r},"
            f" which has {sorted(upstream)}. Nothing was read or written; check the names."
        )
