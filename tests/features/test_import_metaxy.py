"""Samples of a Metaxy store in tables of a project: with their versions, and nothing of them is computed again."""

import re
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from features.test_metaxy_store import EXPECTED, METAXY, ORDER, RECORDED, rewrite

from dagster_versioned import Project
from dagster_versioned.engines.samples import DATA_VERSION_BY_FIELD, PROVENANCE_BY_FIELD
from dagster_versioned.errors import InvalidInput
from dagster_versioned.features.definitions import Feature
from dagster_versioned.features.feature_table import FeatureTable
from dagster_versioned.features.graph import FeatureGraph
from dagster_versioned.features.import_metaxy import TakenOver, import_metaxy
from dagster_versioned.features.metaxy_store import MetaxyStore
from dagster_versioned.features.pending_work import pending_work
from dagster_versioned.features.upstream_files import UpstreamFiles

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "import-from-metaxy.md"


@pytest.fixture
def project(tmp_path):
    return Project.open("VIDEOS", str(tmp_path / "project"))


@pytest.fixture
def copy(tmp_path):
    return Path(shutil.copytree(RECORDED, tmp_path / "store"))


def rows(project, key):
    return project.table(key.split("/")).read(as_type=pa.Table).to_pylist()


def resolve(project, graph, key):
    table = project.table(key.split("/"))
    above = [project.table(dep.feature.split("/")) for dep in graph[key].deps]
    files = {dep.feature: UpstreamFiles(each, each.files()) for dep, each in zip(graph[key].deps, above, strict=True)}
    return FeatureTable(graph, key, table, METAXY).resolve(files).increment


def test_everything_that_is_current_is_taken_over(project):
    store = MetaxyStore(str(RECORDED))
    graph = store.graph()
    taken = {each.key: each for each in import_metaxy(store, project)}
    assert sorted(taken) == sorted(ORDER)
    for key, each in taken.items():
        assert (each.samples, each.left) == (2, 0)
        assert each.version.metadata_sha == project.table(key.split("/")).version().metadata_sha
        ids = graph[key].id_columns
        found = sorted(rows(project, key), key=lambda row: [row[name] for name in ids])
        assert found == EXPECTED[key]["after"]["rows"]


def test_nothing_is_to_be_computed_afterwards(project):
    store = MetaxyStore(str(RECORDED))
    graph = store.graph()
    import_metaxy(store, project)
    for feature in graph:
        if feature.deps:
            assert not resolve(project, graph, feature.key)
    assert {each.todo for each in pending_work(project, graph)} == {0}


def test_what_was_stale_is_left_to_be_computed(project, copy):
    """A sample that Metaxy had not computed again since its upstream changed is not taken for current."""

    def changed(table):
        values = table[DATA_VERSION_BY_FIELD].to_pylist()
        new = [
            {**each, "frames": "CHANGED"} if row == "v2" else each
            for each, row in zip(values, table["video_id"].to_pylist(), strict=True)
        ]
        return table.set_column(
            table.column_names.index(DATA_VERSION_BY_FIELD),
            DATA_VERSION_BY_FIELD,
            pa.array(new, table[DATA_VERSION_BY_FIELD].type),
        )

    rewrite(copy, "example/crop.delta", changed)
    store = MetaxyStore(str(copy))
    graph = store.graph()
    taken = {each.key: each for each in import_metaxy(store, project)}
    assert (taken["example/face-detection"].samples, taken["example/face-detection"].left) == (1, 1)
    assert [row["video_id"] for row in rows(project, "example/face-detection")] == ["v3"]
    increment = resolve(project, graph, "example/face-detection")
    assert (increment.counts.new, increment.counts.unchanged) == (1, 1)
    assert increment.new["video_id"].to_pylist() == ["v2"]


def test_features_without_samples(project):
    store = MetaxyStore(str(RECORDED))
    graph = FeatureGraph(
        [*store.graph(), Feature("never", ["video_id"], ["x"]), Feature("lower", ["video_id"], ["x"], ["never"])]
    )
    taken = {each.key: each for each in import_metaxy(store, project, graph)}
    assert taken["never"] == TakenOver("never")
    assert taken["lower"] == TakenOver("lower")
    assert not project.table("never").exists()


def test_other_tables_are_not_touched(project):
    project.table(["example", "crop"]).write(pa.table({"video_id": ["v1"]}))
    with pytest.raises(InvalidInput, match=r"a table of 'example/crop' already.* Nothing was taken over"):
        import_metaxy(MetaxyStore(str(RECORDED)), project)
    assert [str(name) for name in project.tables()] == ["example__crop"]


def test_it_can_be_run_again(project):
    store = MetaxyStore(str(RECORDED))
    graph = store.graph()
    import_metaxy(
        store, project, FeatureGraph([graph["example/video"], graph["example/crop"]])
    )  # the others did not come
    before = project.table(["example", "crop"]).version().metadata_sha
    taken = {each.key: each for each in import_metaxy(store, project)}
    assert (taken["example/crop"].samples, taken["example/crop"].version.metadata_sha) == (0, before)
    assert taken["example/face-detection"].samples == 2
    assert {each.samples for each in import_metaxy(store, project)} == {0}


def test_the_provenance_of_roots_goes_on(project):
    """A root that brings what Metaxy was given has nothing new; what changes since is stale by field."""
    store = MetaxyStore(str(RECORDED))
    graph = store.graph()
    import_metaxy(store, project)
    samples = pa.Table.from_pylist(
        [
            {name: row[name] for name in ("video_id", "size", PROVENANCE_BY_FIELD)}
            for row in EXPECTED["example/video"]["after"]["rows"]
        ]
    )
    table = project.table(["example", "video"])
    assert not FeatureTable(graph, "example/video", table, METAXY).resolve_samples(samples).increment


def test_the_page_works_as_it_is_written(tmp_path, copy, monkeypatch, capsys):
    """Its Python, in order; then what it defines runs, and computes nothing."""
    monkeypatch.chdir(tmp_path)
    copy.rename("metaxy_store")
    names = {"__name__": "my_project"}
    for block in re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S):
        exec(block, names)
    assert "example/crop taken over: 2 left: 0\n" in capsys.readouterr().out
    assert names["store"].hash(names["graph"]) == names["METAXY"]
    project = Project.open("VIDEOS", "warehouse")
    tables = [project.table(["example", name]) for name in ("video", "crop")]
    before = [table.version().metadata_sha for table in tables]
    done = names["defs"].resolve_implicit_global_asset_job_def().execute_in_process()
    assert done.success
    assert [table.version().metadata_sha for table in tables] == before
    assert len(names["taken"]) == 5
