"""Samples are deleted by a condition: out of the current version, or out of all of them for good."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_versioned import Project, TableOptions, delete_samples, resolve_update
from dagster_versioned.branches.environments import create_environment, drop_environment
from dagster_versioned.errors import InvalidInput
from dagster_versioned.identity.version import Run
from dagster_versioned.publication.park import park
from dagster_versioned.tables.feature_record import FeatureRecord
from support.crashes import append_as_another_program
from support.feature_tables import BASE, counted, graph_of, update_videos, update_words, words

GRAPH = graph_of(words())


@pytest.fixture
def project(tmp_path):
    project = Project.open("HOUSE", str(tmp_path / "house"))
    run(project)
    return project


def run(project, *rows, key="words", options=None):
    update_videos(project, GRAPH, *(rows or BASE))
    return update_words(project, GRAPH, key, written=options)[0]


def ids(project, key="words", version=None):
    return sorted(project.table(key).read(version)["id"].to_pylist())


def test_a_soft_deletion_is_a_version_without_them(project):
    before = project.table("words").version()
    done = delete_samples(project, "words", "text IN ('A', 'C')", why="not ours", dry_run=False)
    assert (done.rows, done.of, done.versions) == (2, 3, 0)
    assert (ids(project), ids(project, version=before.metadata_sha)) == ([2], [1, 2, 3])
    head = project.table("words").version()
    assert (head.metadata_sha, head.identity.message) == (done.version.metadata_sha, "not ours")
    assert head.identity.parents == before.identity.parents
    assert head.identity.code_version == before.identity.code_version


def test_what_an_upstream_still_has_is_new_again(project):
    delete_samples(project, "words", "id = 2", dry_run=False)
    assert FeatureRecord.of(project.table("words").version().identity.custom).left == 1
    assert run(project) == (1, 0, 0, 2)
    assert ids(project) == [1, 2, 3]


def test_what_comes_from_a_deleted_sample_goes_with_the_next_run(project):
    delete_samples(project, "video", "id = 2", dry_run=False)
    assert FeatureRecord.of(project.table("video").version().identity.custom).left == 0
    with resolve_update(project, GRAPH, "words") as update:
        assert counted(update.increment) == (0, 0, 1, 2)
        update.write()
    assert ids(project) == [1, 3]


def test_the_record_is_the_one_that_the_rows_have(project):
    """So that what is computed from them afterwards is found by it."""
    delete_samples(project, "video", "id = 2", dry_run=False)
    digests = FeatureRecord.of(project.table("video").version().identity.custom).digests
    other = Project.open("OTHER", str(project.store.uri) + "-other")
    run(other, BASE[0], BASE[2])
    assert digests == FeatureRecord.of(other.table("video").version().identity.custom).digests


def test_a_dry_run_says_it_and_writes_nothing(project):
    head = project.table("words").version()
    said = delete_samples(project, "words", "id < 3", hard=True, why="a request")
    assert (said.rows, said.of, said.version) == (2, 3, None)
    assert said.versions == 1
    assert project.table("words").version() == head
    assert delete_samples(project, "words", "id > 99", dry_run=False).rows == 0
    assert project.table("words").version() == head


VECTORS = TableOptions(properties={"delta.enableDeletionVectors": "true"})


@pytest.mark.parametrize("options", [None, VECTORS], ids=["files", "deletion vectors"])
def test_a_hard_deletion_leaves_no_version_that_has_them(project, options):
    run(project, *BASE, (4, "d", "w"), options=options)
    run(project, *BASE, (4, "d", "w"), (5, "e", "v"), options=options)
    if options is not None:
        run(project, BASE[0], (2, "B", "y"), BASE[2], (4, "d", "w"), options=options)
        delete_samples(project, "words", "id = 5", dry_run=False)
    table = project.table("words")
    kept = table.history()
    done = delete_samples(project, "words", "id IN (4, 5)", hard=True, why="a request", dry_run=False)
    assert ids(project) == [1, 2, 3]
    assert done.versions >= 2
    for version in kept:
        assert not {4, 5} & {*ids(project, version=version.metadata_sha)}
    files = stored(project)
    assert files
    assert not {4, 5} & {n for rows in files for n in rows["id"].to_pylist()}
    assert table.verify().ok
    assert run(project, BASE[0], (2, "B", "y") if options else BASE[1], BASE[2]) == (0, 0, 0, 3)


def stored(project):
    """The ids in each file of the words, whichever version it is of."""
    paths = Path(str(project.store.uri).removeprefix("file://")).rglob("*.parquet")
    return [pq.read_table(path, columns=["id"]) for path in paths if "text" in pq.read_schema(path).names]


def test_what_a_deletion_vector_hides_goes_for_good(tmp_path):
    """The file of all rows is in the current version, which marks a row of it as deleted."""
    project = Project.open("HOUSE", str(tmp_path / "vectors"))
    many = [(n, f"s{n}", "x") for n in range(1000)]
    run(project, *many, options=VECTORS)
    delete_samples(project, "words", "id = 5", dry_run=False)
    hidden = project.table("words").files().scan.files
    assert [file.deletion_vector is not None for file in hidden] == [True]
    done = delete_samples(project, "words", "id = 5", hard=True, why="a request", dry_run=False)
    assert (done.rows, done.versions, len(ids(project))) == (0, 2, 999)
    assert 5 not in {n for rows in stored(project) for n in rows["id"].to_pylist()}
    delete_samples(project, "words", "id = 6", hard=True, why="a request", dry_run=False)
    assert {5, 6} & {n for rows in stored(project) for n in rows["id"].to_pylist()} == set()
    assert project.table("words").verify().ok


@pytest.mark.parametrize(("where", "left"), [("text = 'B2'", [1, 3]), ("text = 'B'", [1, 3]), ("text = 'C'", [1, 2])])
def test_a_hard_deletion_takes_a_sample_however_it_reads_in_other_versions(project, where, left):
    run(project, BASE[0], (2, "b2", "y"), BASE[2])
    done = delete_samples(project, "words", where, hard=True, why="a request", dry_run=False)
    assert (done.rows, done.versions, ids(project)) == (1, 2, left)
    (gone,) = {1, 2, 3} - {*left}
    assert not any(gone in rows["id"].to_pylist() for rows in stored(project))


@pytest.mark.parametrize("where", ["text = 'B'", "text = 'NEW'"])
def test_a_hard_deletion_is_refused_while_an_environment_wrote_such_a_sample(project, where):
    """Also where production has the sample under a text of its own, which the environment began without."""
    delete_samples(project, "words", "id = 2", hard=True, why="a first request", dry_run=False)
    create_environment(project, "pr-1")
    run(project.in_environment("pr-1"), BASE[0], (2, "new", "y"), BASE[2])
    run(project)
    head = project.table("words").version()
    for dry_run in (True, False):
        with pytest.raises(InvalidInput, match=r"'pr-1' has written words.*env drop pr-1"):
            delete_samples(project, "words", where, hard=True, why="a request", dry_run=dry_run)
    assert project.table("words").version() == head
    drop_environment(project, "pr-1")
    delete_samples(project, "words", "text = 'B'", hard=True, why="a request", dry_run=False)
    assert ids(project) == [1, 3]


@pytest.mark.parametrize(("where", "everything"), [("text = 'B'", False), (None, True)])
def test_a_hard_deletion_of_a_partitions_samples_takes_their_ids_out_of_all_others(tmp_path, where, everything):
    """The condition itself is one on the named partition alone."""
    project = Project.open("HOUSE", str(tmp_path / "partitioned"))
    texts = {
        "p": [(2, "b", "y"), (5, "e", "z")],
        "q": [(1, "a", "x"), (2, "other", "y"), (7, "b", "z")],
        "r": [(9, "b", "z")],
    }
    for partition, rows in texts.items():
        update_videos(project, GRAPH, *rows, partition=partition)
        update_words(project, GRAPH, partition=partition)
    untouched = project.table("words").version(partition="r")

    def delete(dry_run):
        given = {"hard": True, "why": "a request", "everything": everything, "dry_run": dry_run}
        return delete_samples(project, "words", where, partition="p", **given)

    planned, done = delete(True), delete(False)
    left = {"p": [5] if where else [], "q": [1, 7], "r": [9]}
    table = project.table("words")
    assert {key: table.read(partition=key)["id"].to_pylist() for key in "pqr"} == left
    assert (done.rows, done.of, done.versions) == (planned.rows, planned.of, planned.versions)
    assert (done.rows, done.of, done.versions) == (2 if where else 3, 6, 2)
    assert done.version.metadata_sha == table.version(partition="p").metadata_sha
    assert not any(2 in rows["id"].to_pylist() for rows in stored(project))
    assert table.version(partition="r") == untouched
    assert table.verify().ok


def test_a_hard_deletion_is_refused_while_a_draft_of_the_table_waits(project):
    """Which may hold the samples, in parts that nothing refers to yet."""
    head = project.table("words").version()
    park(project.table("words"), {None: project.table("words").read()}, run=Run("r1", "words", 0))
    for dry_run in (True, False):
        with pytest.raises(InvalidInput, match=r"would leave parked drafts behind: .*parked drop"):
            delete_samples(project, "words", "id = 2", hard=True, why="a request", dry_run=dry_run)
    assert project.table("words").version() == head


def test_versions_that_are_kept_lose_their_samples_too(project):
    """By a pin, and by a tag: they are read as before, without them."""
    first = project.table("words").version()
    run(project, (1, "A", "x"), *BASE[1:])
    project.pin("audit", "words", first.metadata_sha)
    project.tag("release")
    delete_samples(project, "words", "id = 2", hard=True, why="a request", dry_run=False)
    assert ids(project) == ids(project, version="tag:release") == ids(project, version=first.metadata_sha) == [1, 3]


def test_a_hard_deletion_goes_on_after_a_soft_one(project):
    first = project.table("words").version()
    delete_samples(project, "words", "id = 1", dry_run=False)
    done = delete_samples(project, "words", "id = 1", hard=True, why="a request", dry_run=False)
    assert (done.rows, done.versions) == (0, 1)
    assert ids(project, version=first.metadata_sha) == [2, 3]


def test_a_hard_deletion_after_a_revert_takes_the_version_that_is_the_head_twice(project):
    first = project.table("words").version()
    delete_samples(project, "words", "id = 1", dry_run=False)
    project.table("words").revert(first.metadata_sha)
    done = delete_samples(project, "words", "id = 2", hard=True, why="a request", dry_run=False)
    assert (done.rows, ids(project)) == (1, [1, 3])
    assert ids(project, version=first.metadata_sha) == [1, 3]
    assert not any(2 in rows["id"].to_pylist() for rows in stored(project))


class TestAfterACommitOfAnotherProgram:
    """Which has a file of its own with the sample, and keeps the one that was there before."""

    @pytest.fixture
    def written_over(self, project):
        table, first = project.table("words"), project.table("words").version()
        append_as_another_program(table, table.read().slice(0, 2))
        table.revert(first.metadata_sha)
        return table

    def test_its_version_loses_them_as_the_others_do(self, project, written_over):
        foreign = written_over.history()[1]
        assert foreign.is_foreign
        done = delete_samples(project, "words", "id = 2", hard=True, why="a request", dry_run=False)
        assert done.versions == 3
        assert ids(project) == [1, 3]
        assert ids(project, version="@1") == [1, 1, 3]
        assert not any(2 in rows["id"].to_pylist() for rows in stored(project))
        assert written_over.verify().ok

    def test_it_stays_where_it_has_none_of_them(self, project, written_over):
        done = delete_samples(project, "words", "id = 99", hard=True, why="a request", dry_run=False)
        assert done.versions == 0
        assert written_over.read("@1").num_rows == 5

    @pytest.mark.parametrize("hard", [True, False])
    @pytest.mark.parametrize("dry_run", [True, False])
    def test_nothing_is_deleted_where_it_is_the_last(self, project, hard, dry_run):
        table = project.table("words")
        append_as_another_program(table, table.read().slice(0, 2))
        with pytest.raises(InvalidInput, match=r"with log version 1.*Nothing was deleted.*revert"):
            delete_samples(project, "words", "id = 2", hard=hard, why="a request", dry_run=dry_run)
        assert sorted(rows.num_rows for rows in stored(project)) == [2, 3]


@pytest.mark.parametrize("where", [None, "id > 0", "1 = 1"])
def test_everything_is_deleted_only_where_that_is_meant(project, where):
    with pytest.raises(InvalidInput, match=r"all 3 samples of feature 'words'.*everything=True"):
        delete_samples(project, "words", where, dry_run=False)
    assert ids(project) == [1, 2, 3]
    assert delete_samples(project, "words", where, everything=True, dry_run=False).rows == 3
    assert ids(project) == []
    assert run(project) == (3, 0, 0, 0)


def test_all_are_deleted_for_good_only_where_that_is_meant(project):
    """Also where the condition is true of them in an earlier version alone."""
    run(project, (1, "A", "x"), (2, "B", "y"), (3, "new", "z"))
    hard = {"hard": True, "why": "a request", "dry_run": False}
    with pytest.raises(InvalidInput, match="everything=True"):
        delete_samples(project, "words", "text IN ('A', 'B', 'C')", **hard)
    assert ids(project) == [1, 2, 3]
    assert delete_samples(project, "words", "text IN ('A', 'B', 'C')", everything=True, **hard).rows == 3


def test_none_is_deleted_for_good_where_none_is_meant(project):
    head = project.table("words").version()
    done = delete_samples(project, "words", "id = 99", hard=True, why="a request", dry_run=False)
    assert (done.rows, done.of, done.version, done.versions) == (0, 3, head, 0)


def test_what_cannot_be_deleted_is_refused(project):
    project.table("plain").write(pa.table({"id": [1]}))
    for key in ("plain", "nowhere"):
        with pytest.raises(InvalidInput, match=f"'{key}' has no samples in"):
            delete_samples(project, key, "id = 1", dry_run=False)
    with pytest.raises(InvalidInput, match="'words' has no samples of partition 'p'"):
        delete_samples(project, "words", "id = 1", partition="p", dry_run=False)
    with pytest.raises(InvalidInput, match="there is no column 'other'"):
        delete_samples(project, "words", "other = 1", dry_run=False)
    with pytest.raises(InvalidInput, match="'id - 1' is no condition"):
        delete_samples(project, "words", "id - 1", dry_run=False)
    with pytest.raises(InvalidInput, match="needs a reason"):
        delete_samples(project, "words", "id = 1", hard=True, dry_run=False)
    assert ids(project) == [1, 2, 3]
