"""Samples of a feature are erased from every version of it, and its record stays that of the rows that it has."""

import pytest

from dagster_versioned import Project, TableOptions
from dagster_versioned.errors import InvalidInput
from dagster_versioned.projects.erase import Condition
from dagster_versioned.tables.feature_record import FeatureRecord
from support.feature_tables import BASE, graph_of, update_videos, update_words, words

GRAPH = graph_of(words())
VECTORS = TableOptions(properties={"delta.enableDeletionVectors": "true"})


def run(project, *rows, options=None):
    update_videos(project, GRAPH, *rows)
    return update_words(project, GRAPH, written=options)[0]


def ids(table, version=None):
    return sorted(table.read(version)["id"].to_pylist())


def record(table):
    return FeatureRecord.of(table.version().identity.custom)


def erase(project, *tables, sql="id = 2", **how):
    return project.erase(sql, tables or ("words",), why="request 17", dry_run=False, **how)


@pytest.fixture(params=[None, VECTORS], ids=["files", "deletion vectors"])
def project(tmp_path, request):
    """A feature of which three versions have the sample 2, once with another text."""
    project = Project.open("HOUSE", str(tmp_path / "house"))
    run(project, *BASE, options=request.param)
    run(project, BASE[0], (2, "B2", "y"), BASE[2], options=request.param)
    run(project, BASE[0], (2, "B2", "y"), BASE[2], (4, "d", "w"), options=request.param)
    return project


def test_a_sample_leaves_every_version_and_their_names_stay(project):
    table = project.table("words")
    before = [version.metadata_sha for version in table.history()]
    report = erase(project)
    assert report.tables[0].versions == len(before)
    assert [ids(table, sha) for sha in before] == [[1, 3, 4], [1, 3], [1, 3]]
    assert ids(table) == [1, 3, 4]
    assert table.verify().ok, table.verify().findings


def test_the_record_is_that_of_the_rows_that_are_left(project):
    erase(project, "video", "words")
    assert all(project.table(name).verify().ok for name in ("video", "words"))
    other = Project.open("OTHER", f"{project.store.uri}-other")
    run(other, BASE[0], BASE[2], (4, "d", "w"))
    for name in ("video", "words"):
        assert record(project.table(name)).digests == record(other.table(name)).digests
    # Of the upstream nothing is left to compute either.
    assert run(project, BASE[0], BASE[2], (4, "d", "w")) == (0, 0, 0, 3)
    assert ids(project.table("words")) == [1, 3, 4]


def test_what_an_upstream_still_has_is_computed_again(project):
    erase(project)
    assert record(project.table("words")).left == 1
    assert run(project, BASE[0], (2, "B2", "y"), BASE[2], (4, "d", "w")) == (1, 0, 0, 3)
    assert ids(project.table("words")) == [1, 2, 3, 4]


def test_features_downstream_are_found(project):
    report = erase(project, "video", downstream=True)
    assert {table.name: table.rows > 0 for table in report.tables} == {"video": True, "words": True}
    assert ids(project.table("video")) == ids(project.table("words")) == [1, 3, 4]


def test_an_update_goes_on_from_what_was_erased(project):
    erase(project, "video", "words")
    assert run(project, (1, "A1", "x"), BASE[2], (4, "d", "w"), (5, "e", "v")) == (1, 1, 0, 2)
    assert ids(project.table("words")) == [1, 3, 4, 5]
    assert project.table("words").verify().ok


def test_columns_that_say_which_sample_a_row_is_are_not_set_to_null(project):
    for column in ("id", "metaxy_data_version_by_field"):
        with pytest.raises(InvalidInput, match="which sample"):
            erase(project, sql=Condition("id = 2", set_null=[column]))
    before = record(project.table("words"))
    erase(project, sql=Condition("id = 2", set_null=["text"]))
    assert record(project.table("words")) == before
    assert project.table("words").read()["text"].null_count == 1


def test_what_only_looks_like_a_feature_is_erased_as_any_table(project):
    custom = {"feature": project.table("words").version().identity.custom["feature"]}
    other = project.table("other")
    other.write(project.table("words").read().select(["id", "text"]), options=TableOptions(custom=custom))
    erase(project, "other")
    assert ids(other) == [1, 3, 4]
    assert other.version().identity.custom == custom
