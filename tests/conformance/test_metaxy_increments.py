"""Random graphs and changes of data: the same increments as Metaxy 0.1.11, as recorded, and in a venv that has it.

Deliberate differences:

- A bump of a code version makes those samples stale whose provenance is another by that. To Metaxy every sample of a
  feature whose version changed is new, and none is orphaned, because it looks for samples of the present version alone
  (seed 004: *only the necessary samples are recomputed*).
- A feature without samples is an upstream like any other. Metaxy does not find one to which nothing was ever written.
- Any number of upstreams is joined, also where all are optional. Metaxy refuses some, because each brings its mark of
  deletions.
- Groups are ordered by all ids of their samples. Metaxy orders by those that the dependency selects.
"""

import json
import os
from itertools import count, islice
from pathlib import Path

import pyarrow as pa
import pytest
from conformance.metaxy.record_increments import answered

from dagster_versioned.engines.samples import (
    DATA_VERSION,
    DATA_VERSION_BY_FIELD,
    PROVENANCE,
    PROVENANCE_BY_FIELD,
    SYSTEM_COLUMNS,
    SampleHash,
)
from dagster_versioned.features.arrow import samples as arrow_samples
from dagster_versioned.features.definitions import Feature
from dagster_versioned.features.graph import FeatureGraph
from support.sample_frames import resolve_frames
from support.spark import spark as spark

HERE = Path(__file__).parent / "metaxy"
RECORDED = HERE / "increments.jsonl"
"""By `record_increments.py`: 50 scenarios, each with what Metaxy says of its steps."""

METAXY = SampleHash("xxh32", 8)
TYPES = {"id": pa.string(), "n": pa.int64()}


def recorded():
    return [json.loads(line) for line in RECORDED.read_text(encoding="utf-8").splitlines()]


class Replay:
    """The tables of a scenario's features, kept as Metaxy keeps them."""

    def __init__(self, spark=None):
        self._spark = spark
        self._tables = {}
        self._versions = {}
        self.bumped = 0

    def step(self, features, step, expected):
        graph = FeatureGraph(map(Feature.from_json, features))
        for key in step["run"]:
            self._feature(graph, key, step, expected[key])

    def _feature(self, graph, key, step, expected):
        version = graph.versions(key).feature
        assert version == expected["version"], key
        feature = graph[key]
        stored = self._tables.get(key)
        units = ["id"] if any(dep.lineage.kind == "expansion" for dep in feature.deps) else feature.id_columns
        found = self._resolve(graph, key, step, stored)
        ours = {kind: told(getattr(found, kind), units) for kind in ("new", "stale", "orphaned")}
        if stored is None or self._versions[key] == version:
            theirs = {**expected, "orphaned": dict.fromkeys(expected["orphaned"])}
            assert ours == {kind: theirs[kind] for kind in ours}, key
            computed = rows_of(found.new) + rows_of(found.stale)
        else:
            self.bumped += 1
            everything = self._resolve(graph, key, step, None).new
            now, before = told(everything, units), told(stored, units)
            assert (expected["new"], expected["stale"], expected["orphaned"]) == (now, {}, []), key
            assert ours == {
                "new": {unit: text for unit, text in now.items() if unit not in before},
                "stale": {unit: text for unit, text in now.items() if before.get(unit, text) != text},
                "orphaned": {unit: None for unit in before if unit not in now},
            }, key
            computed = rows_of(everything)
        self._versions[key] = version
        self._write(feature, units, stored, computed, ours["orphaned"], step)

    def _resolve(self, graph, key, step, stored):
        feature = graph[key]
        if feature.deps:
            frames = {dep.feature: self._tables[dep.feature] for dep in feature.deps}
            return resolve_frames(graph, key, self._spark, frames, current=stored, how=METAXY)
        samples = table(feature, ["v"], [versioned(row) for row in step["roots"][key]], own_only=True)
        return resolve_frames(graph, key, self._spark, samples=samples, current=stored, how=METAXY)

    def _write(self, feature, units, stored, computed, orphaned, step):
        kinds = {dep.lineage.kind for dep in feature.deps}
        if "expansion" in kinds:
            computed = [{**row, "n": n} for row in computed for n in (0, 1)]
        if "aggregation" in kinds:
            firsts = {}
            for row in sorted(computed, key=lambda row: (row["id"], row.get("n", 0))):
                firsts.setdefault(row["id"], row)
            computed = list(firsts.values())
        if own := step["own"].get(feature.key):
            whole = arrow_samples.hashed(METAXY, pa.array(["|".join(own[member] for member in sorted(own))]))
            for row in computed:
                row |= {DATA_VERSION_BY_FIELD: own, DATA_VERSION: whole[0].as_py()}
        gone = {unit_of(row, units) for row in computed} | (set() if step["keep_orphans"] else set(orphaned))
        kept = [row for row in (rows_of(stored) if stored else []) if unit_of(row, units) not in gone]
        names = [name for row in (*computed, *kept) for name in row if name not in ("n1", *SYSTEM_COLUMNS, *TYPES)]
        self._tables[feature.key] = table(feature, list(dict.fromkeys(names)), kept + computed)


def versioned(row):
    return {PROVENANCE_BY_FIELD if name == "versions" else name: value for name, value in row.items()}


def table(feature, columns, rows, own_only=False):
    """Rows as a table of a feature; ``own_only``: without versions that are to be computed."""
    struct = pa.struct([(field.member, pa.string()) for field in sorted(feature.fields, key=lambda f: f.member)])
    versions = {
        PROVENANCE_BY_FIELD: struct,
        PROVENANCE: pa.string(),
        DATA_VERSION_BY_FIELD: struct,
        DATA_VERSION: pa.string(),
    }
    types = {
        **{name: TYPES[name] for name in feature.id_columns},
        **dict.fromkeys(columns, pa.int64()),
        **({PROVENANCE_BY_FIELD: struct} if own_only else versions),
    }
    return pa.Table.from_pylist(rows, pa.schema(list(types.items())))


def rows_of(frame):
    return frame.to_pylist()


def unit_of(row, units):
    return "/".join(str(row[name]) for name in units)


def told(frame, units):
    return {unit_of(row, units): row.get(PROVENANCE) for row in rows_of(frame)}


def replay(scenario, answer, spark=None):
    replayed = Replay(spark)
    for number, (step, expected) in enumerate(zip(scenario["steps"], answer, strict=True)):
        try:
            replayed.step(scenario["graphs"][step["graph"]], step, expected)
        except AssertionError as error:
            error.add_note(f"scenario {scenario['seed']}, step {number}")
            raise
    return replayed


@pytest.mark.conformance
@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, 5))])
def test_increments_are_metaxys(part):
    replayed = [replay(each["scenario"], each["metaxy"]) for each in recorded()[part::5]]
    assert len(replayed) == 10
    assert sum(each.bumped for each in replayed) > 0  # what differs on purpose was seen, too


@pytest.mark.conformance
@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(1200)
def test_increments_are_metaxys_on_spark(spark):
    shortest = sorted(recorded(), key=lambda each: len(json.dumps(each)))
    for each in (shortest[0], shortest[5]):
        replay(each["scenario"], each["metaxy"], spark)


@pytest.mark.conformance
@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.skipif("METAXY_PYTHON" not in os.environ, reason="METAXY_PYTHON names no interpreter that has Metaxy")
def test_increments_are_metaxys_of_today():
    """Metaxy says what it said when it was recorded, and of 50 other scenarios the same as this package."""
    for (asked, answer), each in zip(answered(iter(range(3))), recorded(), strict=False):
        assert {"scenario": asked, "metaxy": answer} == each
    for asked, answer in islice(answered(count(1000)), 50):
        replay(asked, answer)
