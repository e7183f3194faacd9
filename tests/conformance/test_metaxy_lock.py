"""Features of another project: the lock, versions and increments are those of Metaxy 0.1.11's `lock`.

`metaxy/lock.json` was recorded by `metaxy/record_lock.py`.
"""

import json
from pathlib import Path

import pyarrow as pa

from dagster_versioned import FeatureGraph, FeatureLock, GraphHistory, Project, SampleHash, resolve_update
from dagster_versioned.features.definitions import Feature, Field, FieldDep

RECORDED = json.loads((Path(__file__).parent / "metaxy" / "lock.json").read_text(encoding="utf-8"))
METAXY = SampleHash("xxh32", 8)

VIDEO = Feature("raw/video", ["video_id"], [Field("audio", "1"), Field("frames", "2")])
CROP = Feature("crop", ["video_id"], [Field("audio", "3"), Field("frames")], [VIDEO])
VIDEOS = FeatureGraph([VIDEO, CROP])


def search(lock):
    words = Feature("words", ["video_id"], [Field("text", "1", [FieldDep("crop", ["audio"])])], [lock["crop"]])
    index = Feature("index", ["video_id"], [Field("both"), Field("audio", "9")], [words, lock["raw/video"]])
    return FeatureGraph([*lock, words, index])


def samples(changed):
    versions = [{"audio": f"a{n}{'x' * (changed and n == 1)}", "frames": f"f{n}"} for n in range(3)]
    return pa.table({"video_id": ["v0", "v1", "v2"], "metaxy_provenance_by_field": pa.array(versions)})


def resolved(project, graph, key, expected, **options):
    """What is new and stale is what Metaxy has; then it is written."""
    with resolve_update(project, graph, key, hash=METAXY, **options) as update:
        update.write(update.increment.changed.select(["video_id"]) if "samples" not in options else None)
    rows = {row["video_id"]: row for row in project.table(key.split("/")).read().to_pylist()}
    computed = {one for kind in ("new", "stale") for one in frame_ids(getattr(update.increment, kind))}
    assert computed == {row["video_id"] for kind in expected for row in expected[kind]}, key
    for row in (*expected.get("new", ()), *expected.get("stale", ())):
        assert {name: rows[row["video_id"]][name] for name in row} == row, key


def frame_ids(frame):
    return frame["video_id"].to_pylist()


def test_a_graph_over_two_projects_has_the_versions_and_increments_that_metaxy_has_with_its_lock(tmp_path):
    videos, ours = (Project.open(name, str(tmp_path / name)) for name in ("VIDEOS", "SEARCH"))
    GraphHistory(videos).push(VIDEOS)
    FeatureLock.empty().locked(videos, ["crop"]).write(tmp_path / "features.lock")
    lock = FeatureLock.read(tmp_path / "features.lock")
    assert [each.key for each in lock] == ["raw/video", "crop"]
    theirs = {
        key: (each["info"]["version"], each["info"]["version_by_field"]) for key, each in RECORDED["lock"].items()
    }
    assert {each.key: (v.feature, v.fields) for each in lock if (v := lock.graph.versions(each.key))} == theirs
    graph = search(lock)
    versions = {key: (each["version"], each["fields"]) for key, each in RECORDED["features"].items()}
    assert {each.key: (v.feature, v.fields) for each in graph if (v := graph.versions(each.key))} == versions
    for changed, step in enumerate(RECORDED["steps"]):
        resolved(videos, VIDEOS, "raw/video", step["raw/video"], samples=samples(changed))
        resolved(videos, VIDEOS, "crop", step["crop"])
        for key in ("words", "index"):
            resolved(ours, graph, key, step[key], upstreams=[videos])
