"""Random graphs of features and what happens to their samples, as JSON for Metaxy and for this package.

A scenario has ``graphs`` (lists of features) and ``steps``. A step names one of the graphs, the features that are
brought up to date, the samples of the roots, the data versions that features are given by their user, and whether
samples that come from nothing any more are left where they are. Samples have the id ``id``, and in *fine* features
``n`` too. What Metaxy 0.1.11 cannot do is left out: joining three upstreams, two of which bring a deletion mark, and
ordering groups by all ids where not all are selected.
"""

import random
from collections.abc import Mapping
from typing import Any

from dagster_versioned.engines.samples import SampleHash
from dagster_versioned.errors import InvalidInput
from dagster_versioned.features.definitions import Feature, FeatureDep, Field, FieldDep, FieldsMapping, Lineage
from dagster_versioned.features.graph import FeatureGraph
from dagster_versioned.features.resolve import sample_plan

FIELDS = ("a", "b", "c", "x/a", "x/b")


def scenario(seed: int) -> dict[str, Any]:
    """The scenario of a number."""
    chance = random.Random(seed)
    while True:
        try:
            graph = FeatureGraph(_features(chance))
            for feature in graph:
                sample_plan(graph, feature.key, SampleHash())
        except InvalidInput:
            continue  # such as a field that depends on nothing
        break
    graphs, steps = [list(graph)], []
    roots = {feature.key: _Root(chance, feature) for feature in graph if not feature.deps}
    everything = [feature.key for feature in graph]
    for number in range(chance.randint(5, 7)):
        happens = chance.choice(["nothing", "edit", "edit", "append", "remove", "restore", "bump", "own", "partly"])
        if number:
            for root in roots.values():
                root.change("edit" if happens in ("own", "partly") else happens)
        if number and happens == "bump":
            graphs.append(_bumped(chance, graphs[-1], str(number)))
        steps.append(
            {
                "graph": len(graphs) - 1,
                "run": [key for key in everything if not number or happens != "partly" or chance.random() < 0.6],
                "roots": {key: root.rows() for key, root in roots.items()},
                "own": _own_versions(chance, graphs[-1]) if happens == "own" else {},
                "keep_orphans": happens == "remove" and chance.random() < 0.3,
            }
        )
    return {"seed": seed, "graphs": [[each.to_json() for each in features] for features in graphs], "steps": steps}


class _Root:
    """The samples of a root, as they change."""

    def __init__(self, chance: random.Random, feature: Feature) -> None:
        self._chance = chance
        self._feature = feature
        self._removed: list[dict[str, Any]] = []
        self._rows = [self._row(f"s{number}", n) for number in range(4) for n in self._numbers()]

    def rows(self) -> list[dict[str, Any]]:
        return [{**row, "versions": dict(row["versions"])} for row in self._rows]

    def change(self, happens: str) -> None:
        chance = self._chance
        match happens:
            case "edit":
                for row in chance.sample(self._rows, k=min(len(self._rows), chance.randint(0, 2))):
                    row["versions"][chance.choice(sorted(row["versions"]))] = self._version()
                    row["v"] = chance.randint(0, 99)
            case "append":
                self._rows += [self._row(f"s{chance.randint(4, 9)}{len(self._rows)}", n) for n in self._numbers()]
            case "remove" if self._rows:
                gone = chance.sample(self._rows, k=min(len(self._rows) - 1, chance.randint(1, 2)))
                self._removed += gone
                self._rows = [row for row in self._rows if row not in gone]
            case "restore":
                self._rows += self._removed
                self._removed = []
            case _:
                pass

    def _numbers(self) -> list[int]:
        return sorted(self._chance.sample(range(4), k=2)) if "n" in self._feature.id_columns else [0]

    def _row(self, name: str, number: int) -> dict[str, Any]:
        ids = {"id": name, "n": number}
        versions = {field.member: self._version() for field in self._feature.fields}
        return {
            **{column: ids[column] for column in self._feature.id_columns},
            "v": self._chance.randint(0, 99),
            "versions": versions,
        }

    def _version(self) -> str:
        return f"{self._chance.getrandbits(24):06x}"


def _features(chance: random.Random) -> list[Feature]:
    found: list[Feature] = []
    columns: dict[str, list[str]] = {}
    for number in range(chance.randint(1, 2)):
        key = f"root/{number}"
        ids = chance.choice([["id"], ["id", "n"]])
        found.append(Feature(key, ids, [Field(field, "1") for field in _keys(chance)]))
        columns[key] = ["v"]
    for number in range(chance.randint(2, 4)):
        feature, own = _derived(chance, f"f/{number}", found, columns)
        found.append(feature)
        columns[feature.key] = own
    return found


def _upstream(chance: random.Random, above: list[Feature]) -> tuple[bool, list[Feature]]:
    """Whether the feature is fine, and what it is computed from: of fine ones, or expanded from a single coarse one."""
    fine = [feature for feature in above if "n" in feature.id_columns]
    coarse = [feature for feature in above if "n" not in feature.id_columns]
    if chance.random() < 0.6:
        return False, chance.sample(above, k=min(len(above), chance.randint(1, 2)))
    if coarse and (not fine or chance.random() < 0.4):
        return True, chance.sample(coarse, k=1)
    return True, chance.sample(fine, k=min(len(fine), chance.randint(1, 2)))


def _derived(
    chance: random.Random, key: str, above: list[Feature], columns: Mapping[str, list[str]]
) -> tuple[Feature, list[str]]:
    fine, upstream = _upstream(chance, above)
    deps, own = [], []
    for place, each in enumerate(upstream):
        lineage = Lineage.identity()
        if fine and "n" not in each.id_columns:
            lineage = Lineage.expansion(["id"])
        elif not fine and "n" in each.id_columns:
            lineage = Lineage.aggregation(chance.choice([["id"], None]))
        rename = {name: f"{name}{place}" for name in columns[each.key] if place or chance.random() < 0.3}
        if lineage.kind == "aggregation" and place:
            rename["n"] = "n1"  # both would bring it
        there = [rename.get(name, name) for name in columns[each.key]]
        selects = lineage.kind != "aggregation" and chance.random() < 0.3
        kept = [name for name in there if chance.random() < 0.5] if selects else there
        filters = bool(there) and chance.random() < 0.3
        condition = (
            f"{chance.choice(there)} {chance.choice(['>', '<=', '!='])} {chance.randint(10, 80)}" if filters else None
        )
        deps.append(
            FeatureDep(
                each.key,
                rename,
                kept if selects else None,
                condition,
                chance.random() < 0.25,
                lineage,
                _mapping(chance, each),
            )
        )
        own += kept
    fields = [Field(name, chance.choice(["1", "1.5 ä"]), _field_deps(chance, upstream)) for name in _keys(chance)]
    return Feature(key, ["id", "n"] if fine else ["id"], fields, deps), own


def _keys(chance: random.Random) -> list[str]:
    return chance.sample(FIELDS, k=chance.randint(1, 3))


def _mapping(chance: random.Random, upstream: Feature) -> FieldsMapping:
    keys = [field.key for field in upstream.fields]
    match chance.randint(0, 7):
        case 0:
            return FieldsMapping.suffix()
        case 1:
            return FieldsMapping.all()
        case 2:
            return FieldsMapping.none()
        case 3:
            return FieldsMapping.specific({name: chance.sample(keys, k=1) for name in FIELDS})
        case 4:
            return FieldsMapping.default(exclude=chance.sample(keys, k=1))
        case _:
            return FieldsMapping.default()


def _field_deps(chance: random.Random, upstream: list[Feature]) -> list[FieldDep] | None:
    if chance.random() < 0.6:
        return None
    chosen = chance.sample(upstream, k=chance.randint(1, len(upstream)))
    return [
        FieldDep(
            each,
            None if chance.random() < 0.3 else chance.sample([field.key for field in each.fields], k=1),
        )
        for each in chosen
    ]


def _bumped(chance: random.Random, features: list[Feature], version: str) -> list[Feature]:
    feature = chance.choice(features)
    field = chance.choice(feature.fields)
    fields = [Field(each.key, version, each.deps) if each == field else each for each in feature.fields]
    other = Feature(feature.key, feature.id_columns, fields, feature.deps)
    return [other if each.key == feature.key else each for each in features]


def _own_versions(chance: random.Random, features: list[Feature]) -> dict[str, dict[str, str]]:
    feature = chance.choice([feature for feature in features if feature.deps])
    return {feature.key: {field.member: f"own{chance.randint(0, 1)}" for field in feature.fields}}
