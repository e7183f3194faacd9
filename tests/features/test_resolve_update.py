"""`resolve_update`: what is new, stale and orphaned of a feature, and its rows written, without Dagster."""

import re
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest

from dagster_versioned import FeatureDep, FeatureGraph, Project, SampleHash, TableOptions, resolve_update
from dagster_versioned.engines.samples import DATA_VERSION_BY_FIELD, PROVENANCE_BY_FIELD
from dagster_versioned.errors import CommitConflict, EmptyTable, InvalidInput
from dagster_versioned.features.definitions import Feature, Field
from dagster_versioned.features.pending_work import pending_work
from dagster_versioned.tables.feature_record import FeatureRecord
from support.feature_tables import BASE, VIDEO, counted, graph_of, loud, update_videos, update_words, videos, words

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "features-without-dagster.md"


@pytest.fixture
def project(tmp_path):
    return Project.open("HOUSE", str(tmp_path / "house"))


def rows(project, key):
    return {row["id"]: row["text"] for row in project.table(key).read().to_pylist()}


def test_what_is_new_stale_and_orphaned_is_resolved_and_written(project):
    graph = graph_of(words())
    update_videos(project, graph, *BASE)
    assert update_words(project, graph)[0] == (3, 0, 0, 0)
    found, result = update_words(project, graph)
    assert (found, result.change) == ((0, 0, 0, 3), "none")
    update_videos(project, graph, (1, "A", "x"), (2, "b", "Y"), (4, "d", "w"))
    with resolve_update(project, graph, "words") as update:
        increment = update.increment
        assert [frame["id"].to_pylist() for frame in (increment.new, increment.stale, increment.orphaned)] == [
            [4],
            [1],
            [3],
        ]
        assert increment.reasons == {"text": 1}
        update.write(loud(increment.changed), message="two of them")
    assert rows(project, "words") == {1: "A", 2: "B", 4: "D"}
    assert project.table("words").version().identity.message == "two of them"


def test_a_version_names_what_it_was_resolved_from(project):
    """Not what its upstreams are when it is written; so the next one finds in which files they differ."""
    graph = graph_of(words())
    before = update_videos(project, graph, *BASE).version
    with resolve_update(project, graph, words()) as update:
        update_videos(project, graph, (1, "A", "x"), *BASE[1:])
        update.write(loud(update.increment.changed))
    head = project.table("words").version()
    assert [parent.version for parent in head.identity.parents] == [before.metadata_sha]
    assert head.identity.code_version == graph.versions("words").feature
    assert update_words(project, graph)[0] == (0, 1, 0, 2)
    assert {each.todo for each in pending_work(project, graph)} == {0}


def test_what_somebody_else_wrote_meanwhile_stays(project):
    graph = graph_of(words())
    update_videos(project, graph, *BASE)
    with resolve_update(project, graph, "words") as update:
        update_words(project, graph)
        with pytest.raises(CommitConflict, match="Run again"):
            update.write(loud(update.increment.changed.slice(0, 3)).set_column(1, "text", pa.array(["?"] * 3)))
    assert rows(project, "words")[1] == "A"


def test_a_long_increment_is_written_in_chunks(project):
    graph = graph_of(words())
    update_videos(project, graph, *BASE)
    with resolve_update(project, graph, "words") as update:
        left = []
        for part in update.increment.chunks(2):
            result = update.write(loud(part.changed), part)
            left.append(FeatureRecord.of(result.version.identity.custom).left)
    assert (left, len(project.table("words").history())) == ([1, 0], 2)
    assert rows(project, "words") == {1: "A", 2: "B", 3: "C"}


def test_a_table_keeps_the_hash_that_it_has(project):
    graph, how = graph_of(words()), SampleHash("wyhash", 20)
    update_videos(project, graph, *BASE)
    update_words(project, graph, hash=how)
    update_videos(project, graph, (1, "A", "x"), *BASE[1:])
    assert update_words(project, graph)[0] == (0, 1, 0, 2)
    assert FeatureRecord.of(project.table("words").version().identity.custom).hash == ("wyhash", 20)
    with pytest.raises(InvalidInput, match="Compute all of them again"):
        resolve_update(project, graph, "words", hash=SampleHash())
    assert update_words(project, graph, hash=SampleHash(), full=True)[0] == (0, 3, 0, 0)


def test_frames_are_what_is_asked_for(project):
    graph = graph_of(words())
    with resolve_update(project, graph, VIDEO, samples=videos(*BASE).to_pandas()) as update:
        assert isinstance(update.increment.new, pd.DataFrame)
        update.write()
    with resolve_update(project, graph, "words", as_type=pd.DataFrame) as update:
        assert isinstance(update.increment.changed, pd.DataFrame)
        update.write(update.increment.changed[["id"]].assign(text="t"))
    assert rows(project, "words") == {1: "t", 2: "t", 3: "t"}


def test_partitions_are_compared_with_those_of_the_same_key(project):
    graph = graph_of(words())
    for number, key in enumerate("ab"):
        update_videos(project, graph, *[(10 * number + n, sound, image) for n, sound, image in BASE], partition=key)
        assert update_words(project, graph, partition=key)[0] == (3, 0, 0, 0)
    update_videos(project, graph, (1, "A", "x"), *BASE[1:], partition="a")
    assert [update_words(project, graph, partition=key)[0] for key in "ab"] == [(0, 1, 0, 2), (0, 0, 0, 3)]
    assert [parent.partition for parent in project.table("words").version(partition="a").identity.parents] == ["a"]


def test_without_samples_an_empty_version_has_to_be_allowed(project):
    graph = graph_of(words())
    empty = videos(*BASE).slice(0, 0)
    with resolve_update(project, graph, VIDEO, samples=empty) as update, pytest.raises(EmptyTable, match="no samples"):
        update.write()
    with resolve_update(project, graph, VIDEO, samples=empty) as update:
        assert update.write(options=TableOptions(allow_empty=True)).version.identity.nrow == 0


def test_what_cannot_be_resolved_is_refused(project):
    graph = graph_of(words())
    with pytest.raises(InvalidInput, match=r"'video' has no upstream.*give all its samples"):
        resolve_update(project, graph, "video")
    with pytest.raises(InvalidInput, match=r"computed from \['video'\], which are not there"):
        resolve_update(project, graph, "words")
    with pytest.raises(InvalidInput, match=r"computed from \['video'\], but samples were given"):
        resolve_update(project, graph, "words", samples=videos(*BASE))
    with pytest.raises(InvalidInput, match="no feature 'other'"):
        resolve_update(project, graph, "other")
    update_videos(project, graph, *BASE)
    with resolve_update(project, graph, "words") as update:
        with pytest.raises(InvalidInput, match="3 samples were asked for"):
            update.write()
        with pytest.raises(InvalidInput, match="no row for 1 samples"):
            update.write(loud(update.increment.changed.slice(0, 2)))
    assert not project.table("words").exists()


def test_samples_bring_their_versions(project):
    """As Metaxy's do; data versions that are the same keep downstream from being computed."""
    video = Feature("video", ["id"], ["sound"])
    graph = FeatureGraph([video, Feature("words", ["id"], [Field("text")], [FeatureDep("video")])])

    def written(provenance, data):
        samples = pa.table({"id": [1], "sound": ["a"]})
        for name, value in ((PROVENANCE_BY_FIELD, provenance), (DATA_VERSION_BY_FIELD, data)):
            samples = samples.append_column(name, pa.array([{"sound": value}]))
        with resolve_update(project, graph, "video", samples=samples) as update:
            update.write()
            return counted(update.increment)

    assert (written("p", "d"), update_words(project, graph)[0]) == ((1, 0, 0, 0), (1, 0, 0, 0))
    assert (written("q", "d"), update_words(project, graph)[0]) == ((0, 1, 0, 0), (0, 0, 0, 1))
    assert (written("q", "e"), update_words(project, graph)[0]) == ((0, 0, 0, 1), (0, 0, 0, 1))
    assert (written("r", "e"), update_words(project, graph)[0]) == ((0, 1, 0, 0), (0, 1, 0, 0))


def test_the_page_works_as_it_is_written(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "page"}
    for block in re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.M | re.S):
        exec(block, names)
    expected = "".join(re.findall(r"^```text\n(.*?)^```", PAGE.read_text("utf-8"), re.M | re.S))
    assert capsys.readouterr().out == expected
