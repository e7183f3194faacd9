"""Assets that are computed from features of another project, which another code location writes."""

import dagster as dg
import pyarrow as pa
import pytest

from dagster_versioned import (
    FeatureGraph,
    FeatureLock,
    GovernanceResource,
    GraphHistory,
    Project,
    ProjectResource,
    VersionedParquetIOManager,
    resolve_update,
    versioned_feature,
    versioned_source,
)
from dagster_versioned.assets.feature_definition import feature_of, graph_of
from dagster_versioned.errors import GovernanceError, InvalidInput
from dagster_versioned.features.definitions import FeatureDep, Field, FieldDep
from dagster_versioned.governance.mirror import GovernanceStore
from dagster_versioned.governance.registry import Registry
from dagster_versioned.storage import LocalStore
from support.feature_tables import BASE, VIDEO, loud, videos, words
from support.git_identity import git_identity
from support.house import changes

__all__ = ["git_identity"]


class Videos:
    """The other project: videos and the words in them, its definitions pushed."""

    def __init__(self, folder):
        self.location = str(folder / "videos")
        self.project = Project.open("VIDEOS", self.location)
        self.deploy("1")
        self.compute(*BASE)

    def deploy(self, code):
        self.graph = FeatureGraph([VIDEO, words(code)])
        GraphHistory(self.project).push(self.graph)

    def compute(self, *rows):
        with resolve_update(self.project, self.graph, "video", samples=videos(*rows)) as update:
            update.write()
        with resolve_update(self.project, self.graph, "words") as update:
            update.write(loud(update.increment.changed) if update.increment.todo else None)

    def lock(self):
        return FeatureLock.empty().locked(self.project, ["words"])

    def io_manager(self):
        return VersionedParquetIOManager(project=ProjectResource(name="VIDEOS", location=self.location))


@pytest.fixture
def other(tmp_path):
    return Videos(tmp_path)


def long(lock, called, **options):
    @versioned_feature(id_columns=["id"], fields=[Field("length", "1")], deps=[lock["words"]], **options)
    def long(increment):
        rows = increment.changed
        called.append(rows["id"].to_pylist())
        return pa.table({"id": rows["id"], "length": [len(text) for text in rows["text"].to_pylist()]})

    return long


def run(house, other, called, *assets, lock=None, **options):
    source = versioned_source("words", io_manager_key="videos")
    feature = long(lock or other.lock(), called)
    return house.run(source, feature, *assets, resources={"videos": other.io_manager()}, **options)


def test_what_is_stale_by_the_other_project_is_computed_and_nothing_is_written_there(house, other):
    called = []
    assert changes(run(house, other, called)) == {"long": "full"}
    assert changes(run(house, other, called)) == {"long": "none"}
    other.compute((1, "other", "x"), (2, "b", "Y"), (4, "d", "w"))
    head = other.project.table("words").version()
    run(house, other, called)
    assert called == [[1, 2, 3], [1, 4]]
    (parent,) = house.head("long").identity.parents
    assert (parent.source, parent.table, parent.version) == ("VIDEOS", "words", head.metadata_sha)
    assert other.project.table("words").version() == head
    assert [str(name) for name in house.project.tables()] == ["long"]


def test_the_asset_knows_the_whole_graph_and_where_it_is(other):
    feature = long(other.lock(), [])
    assert {each.key: each.project for each in graph_of(feature)} == {
        "video": "VIDEOS",
        "words": "VIDEOS",
        "long": None,
    }
    assert feature_of(feature).deps == (FeatureDep("words"),)
    whole = FeatureGraph([*other.lock(), feature_of(feature)])
    assert feature.code_versions_by_key[feature.key] == whole.versions("long").feature


def test_a_feature_below_one_of_the_same_code_location_and_one_of_another_project(house, other):
    called, lock = [], other.lock()
    feature = long(lock, called)

    @versioned_feature(
        id_columns=["id"],
        fields=[Field("both", deps=[FieldDep(feature), FieldDep("words")])],
        deps=[feature, FeatureDep(lock["words"], rename={"text": "word"})],
        ins={"given": dg.AssetIn("words", metadata={"mine": 1})},
    )
    def both(increment):
        return increment.changed.select(["id", "length", "word"])

    source = versioned_source("words", io_manager_key="videos")
    house.run(source, feature, both, resources={"videos": other.io_manager()})
    rows = house.project.table("both").read().select(["id", "length", "word"]).to_pylist()
    assert rows[0] == {"id": 1, "length": 1, "word": "A"}
    assert {(p.source, p.table) for p in house.head("both").identity.parents} == {
        ("VIDEOS", "words"),
        ("HOUSE", "long"),
    }


def test_a_table_that_is_computed_by_other_definitions_fails_the_step_until_it_is_locked_again(house, other):
    called, lock = [], other.lock()
    run(house, other, called, lock=lock)
    head = house.head("long")
    other.deploy("2")
    other.compute(*BASE)
    with pytest.raises(
        InvalidInput, match=r"'words' of project VIDEOS .* other definitions than the locked .*graph lock"
    ):
        run(house, other, called, lock=lock)
    assert house.head("long") == head
    run(house, other, called)
    assert called == [[1, 2, 3], [1, 2, 3]]


def test_a_source_on_the_wrong_project_is_refused_by_name(house, other):
    house.project.table("words").write(pa.table({"id": [1], "text": ["x"]}))
    for ins in ({}, {"given": dg.AssetIn("words", metadata={"mine": 1})}):
        feature = long(other.lock(), [], ins=ins)
        with pytest.raises(InvalidInput, match=r"feature of project VIDEOS.*on HOUSE.*versioned_source\('words'"):
            house.run(versioned_source("words"), feature)


@pytest.mark.usefixtures("git_identity")
def test_a_project_that_governance_does_not_know_is_named(house, other, tmp_path):
    registry = Registry.init(str(tmp_path / "registry.git"), tmp_path / "clone")
    GovernanceStore(LocalStore(tmp_path / "governance")).publish(registry)
    governance = GovernanceResource(storage=str(tmp_path / "governance"), role="reader")
    manager = VersionedParquetIOManager(project=ProjectResource(name="VIDEOS", governance=governance))
    source = versioned_source("words", io_manager_key="videos")
    with pytest.raises(GovernanceError, match="VIDEOS"):
        house.run(source, long(other.lock(), []), resources={"videos": manager})
    assert not house.project.table("long").exists()
