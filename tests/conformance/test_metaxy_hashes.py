"""Each algorithm and length by which Metaxy 0.1.11 hashes: the same versions, and stores that go on without computing.

`metaxy/hashes.json` was recorded by `metaxy/record_hashes.py`.
"""

import json
from datetime import datetime
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from dagster_versioned import MetaxyStore, Project, VersionedParquetIOManager, import_metaxy, versioned_feature
from dagster_versioned.engines.samples import LONGEST, SYSTEM_COLUMNS, SampleHash
from dagster_versioned.features.arrow import samples as arrow_samples
from dagster_versioned.features.definitions import FeatureDep, Field, Lineage
from dagster_versioned.features.graph import FeatureGraph
from dagster_versioned.features.pending_work import pending_work
from dagster_versioned.resources.project import ProjectResource
from support.spark import spark as spark

RECORDED = json.loads((Path(__file__).parent / "metaxy" / "hashes.json").read_text(encoding="utf-8"))
OURS = {"xxhash32": "xxh32", "xxhash64": "xxh64"}
STORES = {f"{each['algorithm']}-{each['length']}": each for each in RECORDED["stores"]}


def ours(algorithm):
    return OURS.get(algorithm, algorithm)


def expected_hash(recorded):
    algorithm = ours(recorded["algorithm"])
    return SampleHash(algorithm, min(recorded["length"], LONGEST[algorithm]))


def made(recorded, folder):
    """The recorded rows as the tables of a store."""
    for name, rows in recorded["tables"].items():
        columns = {column: [row[column] for row in rows] for column in rows[0]}
        for column, values in columns.items():
            if column.endswith("_at"):
                times = [None if value is None else datetime.fromisoformat(value) for value in values]
                columns[column] = pa.array(times, pa.timestamp("us", "UTC"))
            elif all(value is None for value in values):
                columns[column] = pa.array(values, pa.string())
        write_deltalake(str(folder / name), pa.table(columns))
    return MetaxyStore(str(folder))


def plain(rows, ids):
    return sorted(json.dumps([*(row[name] for name in ids), *(row[name] for name in SYSTEM_COLUMNS)]) for row in rows)


@pytest.mark.parametrize("algorithm", sorted(RECORDED["hashes"]))
def test_texts_have_metaxys_versions(algorithm):
    how = SampleHash(ours(algorithm), LONGEST[ours(algorithm)])
    assert arrow_samples.hashed(how, pa.array(RECORDED["texts"])).to_pylist() == RECORDED["hashes"][algorithm]


def test_there_are_all_of_metaxys_algorithms():
    assert sorted(map(ours, RECORDED["hashes"])) == sorted(LONGEST)


@pytest.mark.slow
@pytest.mark.spark
def test_texts_have_metaxys_versions_in_spark(spark):
    from pyspark.sql import functions as sf

    from dagster_versioned.engines.spark.samples import hashed

    algorithms = sorted(RECORDED["hashes"])
    texts = spark.createDataFrame([(n, text) for n, text in enumerate(RECORDED["texts"])], "n int, text string")
    columns = [hashed(SampleHash(ours(each), LONGEST[ours(each)]), sf.col("text")).alias(each) for each in algorithms]
    rows = texts.select("n", *columns).orderBy("n").collect()
    assert {each: [row[each] for row in rows] for each in algorithms} == RECORDED["hashes"]


@pytest.mark.parametrize("name", STORES)
def test_a_store_goes_on_without_computing(name, tmp_path):
    recorded = STORES[name]
    store = made(recorded, tmp_path / "store")
    graph = store.graph()
    assert (store.hash(graph), graph.hash_length) == (expected_hash(recorded), recorded["length"])
    project = Project.open("VIDEOS", str(tmp_path / "project"))
    taken = {each.key: each for each in import_metaxy(store, project)}
    assert {key: (each.samples, each.left) for key, each in taken.items()} == {
        "video": (6, 0),
        "crop": (6, 0),
        "summary": (3, 0),
    }
    for key, each in taken.items():
        rows, ids = recorded["tables"][f"{key}.delta"], graph[key].id_columns
        assert plain(project.table(key).read(as_type=pa.Table).to_pylist(), ids) == plain(rows, ids)
        assert each.version.identity.code_version == rows[0]["metaxy_feature_version"]
    assert {each.todo for each in pending_work(project, graph)} == {0}


@pytest.mark.parametrize("name", ["wyhash-20", "xxhash64-8"])
def test_assets_go_on_with_a_store(name, tmp_path):
    """Their versions are the store's, in Dagster as well; the length is stated at the roots alone."""
    recorded = STORES[name]
    store = made(recorded, tmp_path / "store")
    project = ProjectResource(name="VIDEOS", location=str(tmp_path / "project"))
    import_metaxy(store, project.project())
    how, called = store.hash(store.graph()), []

    @versioned_feature(
        id_columns=["video_id", "part"],
        fields=[Field("audio", "1"), Field("frames", "2")],
        hash=how,
        version_length=recorded["length"],
    )
    def video():
        given = ("video_id", "part", "metaxy_provenance_by_field")
        return pa.Table.from_pylist([{name: row[name] for name in given} for row in recorded["tables"]["video.delta"]])

    @versioned_feature(id_columns=["video_id", "part"], fields=["audio", "all"], deps=[video], hash=how)
    def crop(increment):
        called.append("crop")
        return increment.changed

    @versioned_feature(
        id_columns=["video_id"],
        fields=[Field("audio", "7")],
        deps=[FeatureDep(crop, lineage=Lineage.aggregation(on=["video_id"]))],
        hash=how,
    )
    def summary(increment):
        called.append("summary")
        return increment.changed.select(["video_id"])

    assets = [video, crop, summary]
    for asset in assets:
        rows = recorded["tables"][f"{asset.key.path[-1]}.delta"]
        assert asset.code_versions_by_key[asset.key] == rows[0]["metaxy_feature_version"]
    heads = {each: project.project().table(each).version().metadata_sha for each in ("video", "crop", "summary")}
    result = dg.materialize(assets, resources={"io_manager": VersionedParquetIOManager(project=project)})
    assert result.success
    assert called == []
    assert {each: project.project().table(each).version().metadata_sha for each in heads} == heads


@pytest.mark.parametrize(("static", "length"), [(8, 20), (19, 19), (20, 20), (64, 20)])
def test_numbers_that_are_short_are_not_taken_for_cut_ones(tmp_path, static, length):
    """Of samples of which no number has 20 digits, the static versions say where Metaxy would have cut."""
    recorded = STORES["wyhash-20"]
    rows = [row for row in recorded["tables"]["crop.delta"] if len(row["metaxy_provenance"]) < 20]
    assert {len(row["metaxy_provenance"]) for row in rows} == {19}
    graph = FeatureGraph(made(recorded, tmp_path / "whole").graph(), static)
    version = graph.versions("crop").feature
    short = {"tables": {"crop.delta": [{**row, "metaxy_feature_version": version} for row in rows]}}
    assert made(short, tmp_path / "short").hash(graph) == SampleHash("wyhash", length)
