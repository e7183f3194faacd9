"""Which samples are new, stale and orphaned: what Metaxy 0.1.11 said of the seed's example, on both engines."""

import pyarrow as pa
import pytest
from features.test_graph import example

from dagster_versioned.engines.samples import (
    DATA_VERSION,
    DATA_VERSION_BY_FIELD,
    PROVENANCE,
    PROVENANCE_BY_FIELD,
    SampleHash,
)
from support.sample_frames import resolve_frames

METAXY = SampleHash("xxh32", 8)


class Tables:
    """The tables of a graph's features, in memory, updated as an asset would be."""

    def __init__(self, spark=None):
        self._spark = spark
        self._held = {}

    def step(self, graph, videos, override=None):
        """Resolve and write every feature; what was new, stale and orphaned, and each sample's provenance."""
        found = {}
        for feature in graph:
            changes = self._resolve(graph, feature, videos)
            rows = changes.new.to_pylist() + changes.stale.to_pylist()
            for row in rows:
                if override and feature.key in override:
                    row[DATA_VERSION_BY_FIELD] = override[feature.key]
            gone = [row["video_id"] for row in changes.orphaned.to_pylist()]
            ids = tuple(sorted(row["video_id"] for row in frame.to_pylist()) for frame in (changes.new, changes.stale))
            counts = changes.counts
            assert (counts.new, counts.stale, counts.orphaned) == (*map(len, ids), len(gone))
            found[feature.key] = (*ids, sorted(gone))
            table = self._held.setdefault(feature.key, {})
            table.update({row["video_id"]: row for row in rows})
            for key in gone:
                del table[key]
        return found

    def provenance(self, key):
        return {key: (row[PROVENANCE_BY_FIELD], row[PROVENANCE]) for key, row in self._held[key].items()}

    def _resolve(self, graph, feature, videos):
        current = self._frame(feature.key) if feature.key in self._held else None
        if feature.deps:
            frames = {dep.feature: self._frame(dep.feature) for dep in feature.deps}
            return resolve_frames(graph, feature.key, self._spark, frames, current=current, how=METAXY)
        rows = [{"video_id": key, PROVENANCE_BY_FIELD: {"audio": a, "frames": f}} for key, a, f in videos]
        samples = pa.Table.from_pylist(rows)
        return resolve_frames(graph, feature.key, self._spark, samples=samples, current=current, how=METAXY)

    def _frame(self, key):
        members = sorted(next(iter(self._held[key].values()))[PROVENANCE_BY_FIELD])
        struct = pa.struct([(member, pa.string()) for member in members])
        schema = pa.schema(
            [
                ("video_id", pa.string()),
                (PROVENANCE_BY_FIELD, struct),
                (PROVENANCE, pa.string()),
                (DATA_VERSION_BY_FIELD, struct),
                (DATA_VERSION, pa.string()),
            ]
        )
        return pa.Table.from_pylist(list(self._held[key].values()), schema)


@pytest.fixture(params=["arrow", pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.slow])])
def tables(request):
    return Tables(request.getfixturevalue("spark") if request.param == "spark" else None)


V, C, F, S = "example/video", "example/crop", "example/face_detection", "example/stt"
BASE = [("v1", "a1", "f1"), ("v2", "a2", "f2"), ("v3", "a3", "f3")]
LATER = [("v1", "a1x", "f1"), *BASE[1:], ("v4", "a4", "f4")]
NOTHING = {key: ([], [], []) for key in (V, C, F, S)}


def all_of(new=(), stale=(), orphaned=()):
    return {key: (list(new), list(stale), list(orphaned)) for key in (V, C, F, S)}


def test_the_recorded_run_is_reproduced(tables):
    graph = example()
    assert tables.step(graph, BASE) == all_of(new=["v1", "v2", "v3"])
    assert tables.provenance(V)["v1"] == ({"audio": "a1", "frames": "f1"}, "10888532")
    assert tables.provenance(C)["v2"] == ({"audio": "42748295", "frames": "34582270"}, "16591144")
    assert tables.provenance(F)["v3"] == ({"faces": "11576768"}, "21699135")
    assert tables.provenance(S)["v1"] == ({"transcription": "20589728"}, "94013599")
    assert tables.step(graph, BASE) == NOTHING
    audio = tables.step(graph, [("v1", "a1x", "f1"), *BASE[1:]])
    assert audio == all_of(stale=["v1"]) | {F: ([], [], [])}
    assert tables.provenance(C)["v1"] == ({"audio": "24352493", "frames": "19636128"}, "25778938")
    assert tables.step(graph, LATER) == all_of(new=["v4"])
    assert tables.step(graph, [LATER[0], *LATER[2:]]) == all_of(orphaned=["v2"])
    assert tables.step(graph, LATER) == all_of(new=["v2"])
    # Metaxy calls all samples of Video, Crop and SpeechToText new once Video.audio has another code version, because it
    # looks for those of a feature version. No sample's provenance is another, so nothing is to be computed.
    assert tables.step(example("2"), LATER) == NOTHING
    # What says the same as before stops the wave.
    same = {C: {"audio": "AAAA", "frames": "FFFF"}}
    first = tables.step(example("2"), [("v1", "a1x", "f1x"), *LATER[1:]], same)
    assert first == {V: ([], ["v1"], []), C: ([], ["v1"], []), F: ([], ["v1"], []), S: ([], [], [])}
    second = tables.step(example("2"), [("v1", "a1x", "f1y"), *LATER[1:]], same)
    assert second == {V: ([], ["v1"], []), C: ([], ["v1"], []), F: ([], [], []), S: ([], [], [])}
