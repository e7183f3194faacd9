"""Say what Metaxy does with scenarios: one a line on stdin, one list of steps a line on stdout.

Run it in a venv with `requirements.txt`. Of each step and feature: the feature's version, and by unit the provenance of
what is new, stale and orphaned.
"""

import json
import logging
import sys
import tempfile
import warnings

import metaxy as mx
import narwhals as nw
import polars as pl
from metaxy.config import MetaxyConfig
from metaxy.ext.polars.handlers.delta import DeltaMetadataStore
from metaxy.models.fields_mapping import FieldsMapping
from metaxy.models.types import FeatureKey, FieldKey

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)
MetaxyConfig.set(MetaxyConfig(project="demo", auto_create_tables=True))


def graph_of(features):
    graph = mx.FeatureGraph()
    with graph.use():
        for members in features:
            spec = mx.FeatureSpec(
                key=members["key"],
                id_columns=members["id_columns"],
                deps=[dep_of(dep) for dep in members.get("deps", [])],
                fields=[field_of(field) for field in members["fields"]],
            )
            types = dict.fromkeys(members["id_columns"], str) | {"n": int}
            annotations = {name: types[name] for name in members["id_columns"]}
            name = "".join(part for part in members["key"].title() if part.isalnum())
            type(mx.BaseFeature)(
                name, (mx.BaseFeature,), {"__module__": __name__, "__annotations__": annotations}, spec=spec
            )
    return graph


def field_of(members):
    deps = [
        mx.FieldDep(feature=dep["feature"], **({"fields": dep["fields"]} if "fields" in dep else {}))
        for dep in members.get("deps", [])
    ]
    return mx.FieldSpec(key=members["key"], code_version=members["code_version"], deps=deps)


def dep_of(members):
    lineage = members.get("lineage", {"kind": "identity"})
    kinds = mx.LineageRelationship
    return mx.FeatureDep(
        feature=members["feature"],
        rename=members.get("rename"),
        select=tuple(members["select"]) if "select" in members else None,
        filters=[members["filter"]] if "filter" in members else None,
        optional=members.get("optional", False),
        lineage={
            "identity": kinds.identity,
            "aggregation": lambda: kinds.aggregation(on=lineage.get("on")),
            "expansion": lambda: kinds.expansion(on=lineage.get("on")),
        }[lineage["kind"]](),
        fields_mapping=mapping_of(members.get("fields_mapping", {})),
    )


def mapping_of(members):
    match members.get("kind", "default"):
        case "all":
            return FieldsMapping.all()
        case "none":
            return FieldsMapping.none()
        case "specific":
            mapping = members["mapping"].items()
            return FieldsMapping.specific({FieldKey(own): {FieldKey(key) for key in keys} for own, keys in mapping})
        case _:
            return FieldsMapping.default(
                match_suffix=members.get("match_suffix", False),
                exclude_fields=[FieldKey(key) for key in members.get("excluded", [])],
            )


def polars(frame):
    return nw.from_native(frame).to_polars()


def has(members, kind):
    return any(dep.get("lineage", {}).get("kind") == kind for dep in members.get("deps", []))


def step_of(store, features, step):
    graph, found = graph_of(features), {}
    by_key = {members["key"]: members for members in features}
    with graph.use(), store.open(mode="w"):
        for key in step["run"]:
            members = by_key[key]
            expands = has(members, "expansion")
            units = ["id"] if expands else members["id_columns"]
            samples = None
            if key in step["roots"]:
                rows = step["roots"][key]
                samples = pl.DataFrame(
                    [
                        {
                            "metaxy_provenance_by_field" if name == "versions" else name: value
                            for name, value in row.items()
                        }
                        for row in rows
                    ]
                )
            increment = store.resolve_update(key, samples=samples)
            new, stale, orphaned = map(polars, (increment.new, increment.stale, increment.orphaned))
            found[key] = {
                "version": graph.get_feature_version(FeatureKey(key)),
                "new": told(new, units),
                "stale": told(stale, units),
                "orphaned": sorted(told(orphaned, units)),
            }
            parts = [part for part in (new, stale) if len(part)]
            if parts:
                rows = pl.concat(parts, how="diagonal")
                if expands:
                    rows = rows.join(pl.DataFrame({"n": [0, 1]}), how="cross")
                if has(members, "aggregation"):
                    rows = rows.sort([name for name in ("id", "n") if name in rows.columns])
                    rows = rows.unique(units, keep="first", maintain_order=True).drop("n", "n1", strict=False)
                if own := step["own"].get(key):
                    rows = rows.with_columns(pl.Series("metaxy_data_version_by_field", [own] * len(rows)))
                    rows = rows.drop("metaxy_data_version", strict=False)
                store.write(key, rows)
            if len(orphaned) and not step["keep_orphans"]:
                store.delete(key, nw.col("id").is_in(orphaned["id"].to_list()) if units == ["id"] else both(orphaned))
    return found


def both(orphaned):
    conditions = [(nw.col("id") == row["id"]) & (nw.col("n") == row["n"]) for row in orphaned.iter_rows(named=True)]
    found = conditions[0]
    for condition in conditions[1:]:
        found = found | condition
    return found


def told(frame, units):
    return {
        "/".join(str(row[name]) for name in units): row.get("metaxy_provenance") for row in frame.iter_rows(named=True)
    }


for line in sys.stdin:
    scenario = json.loads(line)
    with tempfile.TemporaryDirectory() as folder:
        store = DeltaMetadataStore(folder)
        try:
            answer = [step_of(store, scenario["graphs"][step["graph"]], step) for step in scenario["steps"]]
        except Exception as error:  # noqa: BLE001 - what Metaxy cannot do is an answer, too
            answer = f"{type(error).__name__}: {error}"
    print(json.dumps(answer), flush=True)
