"""Have Metaxy lock features of another project and compute from them, and write down what it has: `lock.json`.

    python record_lock.py

Run it in a venv with `requirements.txt`. One store has the features of the project ``videos``, computed and pushed.
Another process, which knows none of their code, locks them for the project ``search``, and resolves what its own
features lack: ``lock`` has the lock as Metaxy wrote it, ``features`` the versions of all, ``steps`` the samples of both
projects, before and after a change.
"""

import json
import logging
import subprocess
import sys
import tempfile
import tomllib
import warnings
from pathlib import Path

import metaxy as mx
import narwhals as nw
import polars as pl
from metaxy.config import MetaxyConfig
from metaxy.ext.polars.handlers.delta import DeltaMetadataStore
from metaxy.metadata_store.system.storage import SystemTableStorage
from metaxy.utils.lock_file import generate_lock_file, load_lock_file

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)

VERSIONS = ["metaxy_provenance_by_field", "metaxy_provenance", "metaxy_data_version_by_field", "metaxy_data_version"]


def samples(changed: bool) -> pl.DataFrame:
    """Three videos; the sound of the second is another after the change."""
    versions = [{"audio": f"a{n}{'x' * (changed and n == 1)}", "frames": f"f{n}"} for n in range(3)]
    return pl.DataFrame({"video_id": ["v0", "v1", "v2"], "metaxy_provenance_by_field": versions})


def videos() -> mx.FeatureGraph:
    found = mx.FeatureGraph()
    with found.use():
        field = mx.FieldSpec

        class Video(
            mx.BaseFeature,
            spec=mx.FeatureSpec(
                key="raw/video",
                id_columns=["video_id"],
                fields=[field(key="audio", code_version="1"), field(key="frames", code_version="2")],
            ),
        ):
            __metaxy_project__ = "videos"
            video_id: str

        class Crop(
            mx.BaseFeature,
            spec=mx.FeatureSpec(
                key="crop",
                id_columns=["video_id"],
                deps=[Video],
                fields=[field(key="audio", code_version="3"), field(key="frames")],
            ),
        ):
            __metaxy_project__ = "videos"
            video_id: str

    return found


def search() -> mx.FeatureGraph:
    found = mx.FeatureGraph()
    with found.use():
        field, dep = mx.FieldSpec, mx.FieldDep

        class Words(
            mx.BaseFeature,
            spec=mx.FeatureSpec(
                key="words",
                id_columns=["video_id"],
                deps=[mx.FeatureDep(feature="crop")],
                fields=[field(key="text", code_version="1", deps=[dep(feature="crop", fields=["audio"])])],
            ),
        ):
            __metaxy_project__ = "search"
            video_id: str

        class Index(
            mx.BaseFeature,
            spec=mx.FeatureSpec(
                key="index",
                id_columns=["video_id"],
                deps=[mx.FeatureDep(feature="words"), mx.FeatureDep(feature="raw/video")],
                fields=[field(key="both"), field(key="audio", code_version="9")],
            ),
        ):
            __metaxy_project__ = "search"
            video_id: str

    return found


def resolved(store: DeltaMetadataStore, key: str, given: pl.DataFrame | None = None) -> dict[str, list[dict]]:
    """What is new and stale of a feature, written, and its rows."""
    found = store.resolve_update(key, samples=given)
    kinds = {"new": found.new, "stale": found.stale}
    rows = {kind: nw.from_native(frame).to_polars() for kind, frame in kinds.items() if frame is not None}
    for frame in rows.values():
        if len(frame):
            store.write(key, frame)
    return {
        kind: sorted(frame.select("video_id", *VERSIONS[:2]).to_dicts(), key=lambda row: row["video_id"])
        for kind, frame in rows.items()
    }


def of_videos(folder: Path, changed: bool) -> dict:
    MetaxyConfig.set(MetaxyConfig(project="videos", auto_create_tables=True))
    store, graph = DeltaMetadataStore(folder / "store"), videos()
    with graph.use(), store.open(mode="w"):
        given = samples(changed)
        steps = {key: resolved(store, key, given if key == "raw/video" else None) for key in ("raw/video", "crop")}
        SystemTableStorage(store).push_graph_snapshot()
    return steps


def of_search(folder: Path) -> dict:
    lock = folder / "metaxy.lock"
    MetaxyConfig.set(MetaxyConfig(project="search", auto_create_tables=True, metaxy_lock_path=str(lock)))
    store, graph = DeltaMetadataStore(folder / "store"), search()
    with graph.use():
        generate_lock_file(store, lock, exclude_project="search")
    graph = search()
    with graph.use(), store.open(mode="w"):
        load_lock_file(MetaxyConfig.get())
        steps = {key: resolved(store, key) for key in ("words", "index")}
        features = {
            key.to_string(): {
                "version": graph.get_feature_version(key),
                "fields": graph.get_feature_version_by_field(key),
            }
            for key in graph.feature_definitions_by_key
        }
    locked = tomllib.loads(lock.read_text())["features"]
    for each in locked.values():
        del each["data"]["feature_schema"]  # of pydantic, and long
    return {"lock": locked, "features": features, "steps": steps}


def main(file: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        steps, last = [], {}
        for changed in (False, True):
            found = {}
            for project in ("videos", "search"):
                ran = subprocess.run(
                    [sys.executable, __file__, name, project, str(int(changed))],
                    check=True,
                    capture_output=True,
                    text=True,
                )
                found[project] = json.loads(ran.stdout.splitlines()[-1])
            last = found["search"]
            steps.append(found["videos"] | last["steps"])
    recorded = {"metaxy": "0.1.11", "lock": last["lock"], "features": last["features"], "steps": steps}
    file.write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    if sys.argv[1:]:
        place, project, changed = Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "1"
        print(json.dumps(of_videos(place, changed) if project == "videos" else of_search(place)))
    else:
        main(Path(__file__).parent / "lock.json")
