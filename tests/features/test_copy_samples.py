"""Samples copied to another project: with their versions, and nothing of them is computed there."""

import pyarrow as pa
import pytest

from dagster_versioned import Project, copy_samples
from dagster_versioned.errors import InvalidInput
from dagster_versioned.tables.feature_record import FeatureRecord
from support.feature_tables import BASE, graph_of, update_videos, update_words, words


def run(project, *rows, graph=None, **options):
    graph = graph or graph_of(words())
    update_videos(project, graph, *(rows or BASE), **options)
    return update_words(project, graph, **options)[0]


@pytest.fixture
def source(tmp_path):
    project = Project.open("SOURCE", str(tmp_path / "source"))
    run(project)
    return project


@pytest.fixture
def target(tmp_path):
    return Project.open("TARGET", str(tmp_path / "target"))


def rows(project, key="words"):
    return sorted(project.table(key).read().to_pylist(), key=lambda row: row["id"])


def test_all_features_are_copied_with_their_versions(source, target):
    done = copy_samples(source, target, dry_run=False)
    assert [(each.key, each.rows, each.of) for each in done] == [("video", 3, 3), ("words", 3, 3)]
    assert (rows(target), rows(target, "video")) == (rows(source), rows(source, "video"))
    head, other = target.table("words").version(), source.table("words").version()
    assert head.identity.code_version == other.identity.code_version
    assert head.identity.message == f"copied from SOURCE, version {other.short}"
    digests = [FeatureRecord.of(each.identity.custom).digests for each in (head, other)]
    assert digests[0] == digests[1]
    assert run(target) == (0, 0, 0, 3)
    assert run(target, (1, "A", "x"), *BASE[1:]) == (0, 1, 0, 2)


def test_some_samples_take_the_places_of_others(source, target):
    run(target, (1, "old", "x"), (9, "nine", "q"))
    (done,) = copy_samples(source, target, ["words"], "id < 3", dry_run=False)
    assert (done.rows, done.of) == (2, 3)
    assert {row["id"]: row["text"] for row in rows(target)} == {1: "A", 2: "B", 9: "NINE"}
    record = FeatureRecord.of(done.version.identity.custom)
    assert (record.left, record.upstreams) == (1, {})
    assert run(target, *BASE, (9, "nine", "q")) == (1, 0, 0, 3)
    fresh = Project.open("FRESH", str(target.store.uri) + "-fresh")
    run(fresh, *BASE, (9, "nine", "q"))
    found = [FeatureRecord.of(each.table("words").version().identity.custom).digests for each in (target, fresh)]
    assert found[0] == found[1]


def test_partitions_are_copied(source, target, tmp_path):
    partitioned = Project.open("PARTS", str(tmp_path / "parts"))
    for key in "ab":
        run(partitioned, partition=key)
    done = copy_samples(partitioned, target, ["words"], dry_run=False)
    assert sorted((each.partition, each.rows) for each in done) == [("a", 3), ("b", 3)]
    assert sorted(target.table("words").state.history.heads) == ["a", "b"]


def test_a_dry_run_writes_nothing(source, target):
    assert [(each.key, each.rows, each.version) for each in copy_samples(source, target)] == [
        ("video", 3, None),
        ("words", 3, None),
    ]
    assert not list(target.tables())
    (done,) = copy_samples(source, target, ["words"], "id > 99", dry_run=False)
    assert (done.rows, done.version, list(target.tables())) == (0, None, [])


def test_what_cannot_be_copied_is_refused_before_anything_is_written(source, target, tmp_path):
    run(target, graph=graph_of(words("2")))
    head = target.table("video").version()
    with pytest.raises(InvalidInput, match=r"'words' has other fields in .*Deploy the same definitions"):
        copy_samples(source, target, dry_run=False)
    assert target.table("video").version() == head
    with pytest.raises(InvalidInput, match="no samples of feature 'other'"):
        copy_samples(source, target, ["other"])
    with pytest.raises(InvalidInput, match="is the project to copy from and to"):
        copy_samples(source, source)
    with pytest.raises(InvalidInput, match="no column 'x'"):
        copy_samples(source, target, ["video"], "x = 1")
    plain = Project.open("PLAIN", str(tmp_path / "plain"))
    plain.table("words").write(pa.table({"id": [1]}))
    with pytest.raises(InvalidInput, match="a table of 'words' that is no feature's"):
        copy_samples(source, plain)
