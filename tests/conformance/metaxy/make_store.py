"""Have Metaxy make a store, and write down what it reads from it: `store/`.

    python make_store.py

Run it in a venv with `requirements.txt`. The seed's graph with all that a definition may have; a change, a soft delete,
a row that came back, a hard delete, a bump of a code version, and data versions of the user's own. Beside the tables,
``expected.json`` holds Metaxy's rows and static versions for the graph before and after the bump.
"""

import json
import logging
import shutil
import warnings
from pathlib import Path

import metaxy as mx
import narwhals as nw
import polars as pl
from metaxy.config import MetaxyConfig
from metaxy.ext.polars.handlers.delta import DeltaMetadataStore
from metaxy.metadata_store.system.storage import SystemTableStorage
from metaxy.models.fields_mapping import FieldsMapping

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)
MetaxyConfig.set(MetaxyConfig(project="demo", auto_create_tables=True))


LEFT_OUT = [
    "metaxy_feature_version",
    "metaxy_project_version",
    "metaxy_created_at",
    "metaxy_updated_at",
    "metaxy_deleted_at",
    "metaxy_materialization_id",
]
"""Columns that say when and by whom a sample was written."""


def graph(audio: str) -> mx.FeatureGraph:
    found = mx.FeatureGraph()
    with found.use():
        field, dep = mx.FieldSpec, mx.FieldDep

        class Video(
            mx.BaseFeature,
            spec=mx.FeatureSpec(
                key="example/video",
                id_columns=["video_id"],
                fields=[field(key="audio", code_version=audio), field(key="frames", code_version="1")],
            ),
        ):
            video_id: str
            size: int

        class Crop(
            mx.BaseFeature,
            spec=mx.FeatureSpec(
                key="example/crop",
                id_columns=["video_id"],
                deps=[mx.FeatureDep(feature=Video, select=("size",))],
                fields=[field(key="audio", code_version="1"), field(key="frames", code_version="1")],
            ),
        ):
            video_id: str

        class Faces(
            mx.BaseFeature,
            spec=mx.FeatureSpec(
                key="example/face-detection",
                id_columns=["video_id"],
                deps=[mx.FeatureDep(feature=Crop, rename={"size": "bytes"}, filters=["bytes > 5", "bytes < 500"])],
                fields=[field(key="faces", code_version="1", deps=[dep(feature=Crop, fields=["frames"])])],
            ),
        ):
            video_id: str

        class Chunk(
            mx.BaseFeature,
            spec=mx.FeatureSpec(
                key="example/chunk",
                id_columns=["video_id", "chunk"],
                deps=[
                    mx.FeatureDep(
                        feature=Video,
                        lineage=mx.LineageRelationship.expansion(on=["video_id"]),
                        fields_mapping=FieldsMapping.all(),
                    )
                ],
                fields=[field(key="audio/french", code_version="3")],
            ),
        ):
            video_id: str
            chunk: int

        class Summary(
            mx.BaseFeature,
            spec=mx.FeatureSpec(
                key="example/summary",
                id_columns=["video_id"],
                deps=[
                    mx.FeatureDep(
                        feature=Chunk,
                        lineage=mx.LineageRelationship.aggregation(on=["video_id"]),
                        fields_mapping=FieldsMapping.default(match_suffix=True),
                    ),
                    mx.FeatureDep(feature=Faces, optional=True, select=()),
                ],
                fields=["french", field(key="all", deps=mx.SpecialFieldDep.ALL)],
            ),
        ):
            video_id: str

    return found


def classes(found: mx.FeatureGraph) -> dict:
    return {key.to_string(): definition for key, definition in found.feature_definitions_by_key.items()}


def frame(frame) -> pl.DataFrame:
    return nw.from_native(frame).to_polars()


ORDER = ["example/video", "example/crop", "example/face-detection", "example/chunk", "example/summary"]


def step(store, found, videos, own_versions=False, hard=False):
    with found.use(), store.open(mode="w"):
        for key in ORDER:
            samples = None
            if key == "example/video":
                rows = [
                    {"video_id": i, "size": size, "metaxy_provenance_by_field": {"audio": a, "frames": f}}
                    for i, size, a, f in videos
                ]
                samples = pl.DataFrame(rows)
            increment = store.resolve_update(key, samples=samples)
            parts = [frame(part) for part in (increment.new, increment.stale)]
            rows = pl.concat([part for part in parts if len(part)] or parts[:1], how="diagonal")
            if key == "example/chunk" and len(rows):
                rows = rows.join(pl.DataFrame({"chunk": [0, 1]}), how="cross")
            if key == "example/summary" and len(rows):
                rows = rows.unique(["video_id"], keep="first")
                rows = rows.drop([name for name in rows.columns if name in ("chunk", "bytes", "size")])
            if len(rows):
                if own_versions and key == "example/crop":
                    same = [{"audio": "AAAA", "frames": "FFFF"}] * len(rows)
                    rows = rows.with_columns(pl.Series("metaxy_data_version_by_field", same))
                    rows = rows.drop("metaxy_data_version")
                store.write(key, rows)
            gone = frame(increment.orphaned)
            if len(gone):
                store.delete(key, nw.col("video_id").is_in(gone["video_id"].to_list()), soft=not hard)


def main(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    store = DeltaMetadataStore(folder)
    first, second = graph("1"), graph("2")
    videos = [("v1", 10, "a1", "f1"), ("v2", 20, "a2", "f2"), ("v3", 30, "a3", "f3")]
    step(store, first, videos)
    with first.use(), store.open(mode="w"):
        SystemTableStorage(store).push_graph_snapshot()
    videos[0] = ("v1", 10, "a1x", "f1")
    step(store, first, [*videos, ("v4", 40, "a4", "f4")])
    step(store, first, [videos[0], videos[2], ("v4", 40, "a4", "f4")])  # v2 goes
    step(store, first, [*videos, ("v4", 40, "a4", "f4")])  # and comes back
    step(store, second, [*videos, ("v4", 40, "a4", "f4")])
    step(store, second, [*videos], own_versions=True)  # v4 goes
    videos[2] = ("v3", 30, "a3", "f3x")
    step(store, second, videos, own_versions=True)
    step(store, second, videos[1:], hard=True)  # v1 goes for good
    with second.use(), store.open(mode="w"):
        SystemTableStorage(store).push_graph_snapshot()
    expected = {"metaxy": "0.1.11", "features": {}}
    for name, found in (("before", first), ("after", second)):
        with found.use(), store.open(mode="r"):
            for key, definition in classes(found).items():
                rows = frame(store.read(key).collect()).sort(definition.spec.id_columns)
                expected["features"].setdefault(key, {})[name] = {
                    "feature_version": found.get_feature_version(definition.key),
                    "fields": found.get_feature_version_by_field(definition.key),
                    "rows": rows.drop(LEFT_OUT).to_dicts(),
                }
    (folder / "expected.json").write_text(json.dumps(expected, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(Path(__file__).parent / "store")
