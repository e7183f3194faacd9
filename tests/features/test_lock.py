"""Features of other projects as upstreams: pinned by what was pushed there, refused where their tables are others."""

import json
import shutil
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_versioned import FeatureGraph, FeatureLock, GraphHistory, Project, copy_samples, rebase, resolve_update
from dagster_versioned.errors import IntegrityError, InvalidInput, UnsupportedFeature, VersionedError, VersionNotFound
from dagster_versioned.features.definitions import Feature, FeatureDep, Field, FieldDep, FieldsMapping, Lineage
from dagster_versioned.features.pending_work import pending_work
from dagster_versioned.tables.feature_record import FeatureRecord
from support.feature_tables import BASE, VIDEO, counted, loud, update_videos, update_words, videos
from support.stores import contents


def words(text="1", **options):
    return Feature("words", ["id"], [Field("text", text, [FieldDep("video", ["sound"])], **options)], ["video"])


def theirs(text="1", *more, length=8):
    return FeatureGraph([VIDEO, words(text), *more], length)


def long(lock, code="1"):
    return Feature("long", ["id"], [Field("length", code, [FieldDep("words", ["text"])])], [lock["words"]])


def graph_of(lock, code="1"):
    return FeatureGraph([*lock, long(lock, code)], lock.graph.hash_length)


def read(project, key):
    return project.table(key).read().to_pylist()


def lengths(rows):
    return pa.table({"id": rows["id"], "length": [len(text) for text in rows["text"].to_pylist()]})


class Theirs:
    """The other project: its features computed, and their definitions pushed."""

    def __init__(self, folder, name="VIDEOS"):
        self.project = Project.open(name, str(folder / name))

    def push(self, graph):
        GraphHistory(self.project).push(graph)

    def compute(self, graph, *rows):
        update_videos(self.project, graph, *rows)
        update_words(self.project, graph)

    def lock(self, *features, onto=None):
        return (onto or FeatureLock.empty()).locked(self.project, features)


@pytest.fixture
def other(tmp_path):
    made = Theirs(tmp_path)
    made.push(theirs())
    made.compute(theirs(), *BASE)
    return made


@pytest.fixture
def ours(tmp_path):
    return Project.open("SEARCH", str(tmp_path / "SEARCH"))


def step(project, lock, *upstreams, code="1", **options):
    with resolve_update(project, graph_of(lock, code), "long", upstreams=upstreams, **options) as update:
        found = counted(update.increment)
        return found, update.write(lengths(update.increment.changed) if update.increment.todo else None)


def test_a_lock_has_the_named_features_and_all_that_they_depend_on(other, tmp_path):
    other.push(theirs("1", Feature("faces", ["id"], [Field("faces")], ["video"])))
    lock = other.lock("words")
    assert [(each.key, each.project) for each in lock] == [("video", "VIDEOS"), ("words", "VIDEOS")]
    lock.write(tmp_path / "features.lock")
    found = FeatureLock.read(tmp_path / "features.lock")
    assert list(found) == list(lock)
    assert found.projects == lock.projects
    assert (found.projects["VIDEOS"].features, found.projects["VIDEOS"].push) == (["words"], 1)
    own, locked = theirs(), found.graph
    assert {each.key: locked.versions(each.key) for each in locked} == {
        each.key: own.versions(each.key) for each in own
    }
    with pytest.raises(
        InvalidInput, match=r"The lock has no feature 'faces', but \['video', 'words'\].*graph lock faces"
    ):
        found["faces"]


def test_naming_a_feature_of_a_lock_names_all_above_it(other):
    feature = long(other.lock("words"))
    (dep,) = feature.deps
    above = dep.source.deps[0].source
    assert [(each.key, each.project) for each in (dep.source, above)] == [("words", "VIDEOS"), ("video", "VIDEOS")]


def test_increments_follow_the_other_project_and_name_its_versions_as_parents(other, ours):
    lock = other.lock("words")
    before = contents(other.project.store)
    assert step(ours, lock, other.project)[0] == (3, 0, 0, 0)
    assert contents(other.project.store) == before
    found, result = step(ours, lock, other.project)
    assert (found, result.change) == ((0, 0, 0, 3), "none")
    other.compute(theirs(), (1, "other", "x"), (2, "b", "Y"), (4, "d", "w"))
    assert step(ours, lock, other.project)[0] == (1, 1, 1, 1)
    head = ours.table("long").version()
    (parent,) = head.identity.parents
    assert (parent.source, parent.table) == ("VIDEOS", "words")
    assert parent.version == other.project.table("words").version().metadata_sha
    assert not ours.table("words").exists()


def test_versions_are_those_of_one_project_with_the_same_graph(other, ours):
    lock = other.lock("words")
    step(ours, lock, other.project)
    own = FeatureGraph([VIDEO, words(), replace(long(lock), deps=("words",))])
    with resolve_update(other.project, own, "long") as update:
        update.write(lengths(update.increment.changed))
    one, two = ours.table("long"), other.project.table("long")
    assert one.read() == two.read()
    mine, same = (FeatureRecord.of(each.version().identity.custom) for each in (one, two))
    assert mine == same
    assert graph_of(lock).versions("long") == own.versions("long")


def test_a_table_that_was_computed_by_other_definitions_than_the_locked_is_refused(other, ours):
    lock = other.lock("words")
    step(ours, lock, other.project)
    before = contents(ours.store)
    other.push(theirs("2"))
    assert step(ours, lock, other.project)[0] == (0, 0, 0, 3)  # what was computed is still as it is locked
    other.compute(theirs("2"), *BASE)
    old, new = (theirs(code).versions("words") for code in "12")
    with pytest.raises(InvalidInput) as refused:
        step(ours, lock, other.project)
    for part in ("'words' of project VIDEOS", f"the locked {old.feature}", "graph lock", "Nothing was computed"):
        assert part in str(refused.value)
    assert f"text {new.fields['text']} instead of {old.fields['text']}" in str(refused.value)
    (unknown,) = pending_work(ours, graph_of(lock), [other.project])
    assert (unknown.certainty, unknown.note) == ("unknown", str(refused.value))
    assert contents(ours.store) == before
    again = other.lock(onto=lock)
    assert step(ours, again, other.project)[0] == (0, 3, 0, 0)


def test_a_lock_of_what_is_pushed_and_not_computed_yet_waits(other, ours):
    other.push(theirs("2"))
    lock = other.lock("words")
    with pytest.raises(InvalidInput, match="wait until that project has computed it"):
        step(ours, lock, other.project)
    other.compute(theirs("2"), *BASE)
    assert step(ours, lock, other.project)[0] == (3, 0, 0, 0)


def test_other_ids_and_other_lengths_are_refused_by_name(other, ours):
    lock = other.lock("words")
    ids = replace(lock["words"], id_columns=("n",))
    forged = FeatureGraph([lock["video"], ids, Feature("long", ["n"], [Field("length")], [ids])])
    with pytest.raises(InvalidInput, match=r"has the id columns \['id'\], and the locked definition \['n'\]"):
        resolve_update(ours, forged, "long", upstreams=[other.project])
    longer = FeatureGraph([*lock, long(lock)], 16)
    with pytest.raises(InvalidInput, match="state version_length=8, which is theirs"):
        resolve_update(ours, longer, "long", upstreams=[other.project])


def test_a_table_in_the_place_of_a_feature_is_refused(other, ours):
    lock = other.lock("words")
    other.project.table("words").write(pa.table({"id": [1], "text": ["x"]}))
    with pytest.raises(InvalidInput, match=r"'words' of project VIDEOS in version .* is no feature's"):
        step(ours, lock, other.project)


def test_an_ordinary_table_of_another_project_is_one_by_its_definition(tmp_path, ours):
    other = Theirs(tmp_path)
    other.push(theirs())
    other.project.table("video").write(videos(*BASE))
    lock = other.lock("video")
    graph = FeatureGraph([*lock, words()])
    with pytest.raises(InvalidInput, match="not among the upstream projects"):
        resolve_update(ours, graph, "words")
    own = Feature("words", ["id"], [Field("text", "1", [FieldDep("video", ["sound"])])], [lock["video"]])
    with resolve_update(ours, FeatureGraph([*lock, own]), "words", upstreams=[other.project]) as update:
        assert counted(update.increment) == (3, 0, 0, 0)


def test_a_project_that_is_not_given_is_named(other, ours, tmp_path):
    lock = other.lock("words")
    third = Project.open("OTHER", str(tmp_path / "third"))
    for call in (
        lambda: step(ours, lock, third),
        lambda: pending_work(ours, graph_of(lock), [third]),
    ):
        with pytest.raises(InvalidInput, match=r"'words' is of project VIDEOS.*\['OTHER'\].*upstreams=\[Project.open"):
            call()
    empty = Project.open("VIDEOS", str(tmp_path / "empty"))
    with pytest.raises(InvalidInput, match=r"computed from \['words'\], which are not there"):
        step(ours, lock, empty)


def test_what_is_to_be_computed_is_known_before(other, ours):
    lock = other.lock("words")
    (first,) = pending_work(ours, graph_of(lock), [other.project])
    assert (first.key, first.certainty, first.new) == ("long", "exact", 3)
    step(ours, lock, other.project)
    other.compute(theirs(), (1, "other", "x"), *BASE[1:])
    (second,) = pending_work(ours, graph_of(lock), [other.project])
    assert (second.certainty, second.new, second.stale, second.unchanged) == ("exact", 0, 1, 2)


def test_locked_anew_samples_that_did_not_change_can_be_accepted(other, ours):
    """A field of theirs that ours is not computed from is another: the versions of ours stay what they are."""
    lock = other.lock("words")
    GraphHistory(ours).push(graph_of(lock))
    step(ours, lock, other.project)
    copy_samples(other.project, ours, ["words"], dry_run=False)
    copy = ours.table("words").version()
    more = FeatureGraph([VIDEO, replace(words("2"), fields=(*words("2").fields, Field("tone", "1")))])
    other.push(more)
    with resolve_update(other.project, more, "words") as update:
        stored = {row["id"]: row["metaxy_data_version_by_field"]["text"] for row in read(other.project, "words")}
        rows = loud(update.increment.changed)
        versions = [{"text": stored[one], "tone": "x"} for one in rows["id"].to_pylist()]
        update.write(rows.append_column("metaxy_data_version_by_field", pa.array(versions)))
    again = other.lock(onto=lock)
    graph = graph_of(again, "2")
    with pytest.raises(InvalidInput, match="not among the upstream projects"):
        rebase(ours, graph, unchecked=["long"])
    report = rebase(ours, graph, unchecked=["long"], upstreams=[other.project], dry_run=False)
    assert [(each.key, each.samples, each.left) for each in report.features] == [("long", 3, 0)]
    assert ours.table("words").version() == copy  # which is a table of ours, and none of the graph
    assert step(ours, again, other.project, code="2")[0] == (0, 0, 0, 3)
    only_code = graph_of(lock, "3")
    with pytest.raises(InvalidInput, match="other definitions than the locked"):
        rebase(ours, only_code, unchecked=["long"], upstreams=[other.project])


def test_a_bump_of_ours_is_accepted_against_the_other_projects_tables(other, ours):
    lock = other.lock("words")
    GraphHistory(ours).push(graph_of(lock))
    step(ours, lock, other.project)
    report = rebase(ours, graph_of(lock, "2"), unchecked=["long"], upstreams=[other.project], dry_run=False)
    assert [(each.key, each.samples, each.left) for each in report.features] == [("long", 3, 0)]
    (parent,) = ours.table("long").version().identity.parents
    assert (parent.source, parent.table) == ("VIDEOS", "words")
    assert step(ours, lock, other.project, code="2")[0] == (0, 0, 0, 3)


def test_what_is_pushed_keeps_the_project_and_its_version_is_that_of_its_own_features(other, ours):
    lock = other.lock("words")
    report = GraphHistory(ours).push(graph_of(lock))
    pushed = GraphHistory(ours).graph(report.push)
    assert {each.key: each.project for each in pushed} == {"video": "VIDEOS", "words": "VIDEOS", "long": None}
    more = FeatureGraph([*graph_of(lock), replace(VIDEO, key="audio", project="SOUND")])
    assert more.project_version == pushed.project_version
    other.push(theirs("2"))
    assert graph_of(other.lock("words")).project_version != pushed.project_version


def test_features_that_a_project_reads_itself_keep_their_project(other, tmp_path, ours):
    GraphHistory(ours).push(graph_of(other.lock("words")))
    lock = FeatureLock.empty().locked(ours, ["long"])
    assert {each.key: each.project for each in lock} == {"video": "VIDEOS", "words": "VIDEOS", "long": "SEARCH"}
    third = Project.open("THIRD", str(tmp_path / "third"))
    graph = FeatureGraph([*lock, Feature("top", ["id"], [Field("top")], [lock["long"]])])
    step(ours, other.lock("words"), other.project)
    with resolve_update(third, graph, "top", upstreams=[ours]) as update:
        assert counted(update.increment) == (3, 0, 0, 0)


def test_naming_features_replaces_those_of_the_project_and_leaves_the_others(other, tmp_path):
    sound = Theirs(tmp_path, "SOUND")
    sound.push(FeatureGraph([Feature("noise", ["id"]), Feature("hum", ["id"])]))
    both = sound.lock("noise", "hum", onto=other.lock("words"))
    assert sorted(each.key for each in both) == ["hum", "noise", "video", "words"]
    less = sound.lock("hum", onto=both)
    assert sorted(each.key for each in less) == ["hum", "video", "words"]
    other.push(theirs("2"))
    renewed = other.lock(onto=less)
    assert renewed.projects["SOUND"] == less.projects["SOUND"]
    assert renewed.graph.versions("words") == theirs("2").versions("words")


def search(tmp_path, other, name="SEARCH", key="long"):
    """A project between: it is computed from words of VIDEOS, and what it computes is pushed."""
    between = Theirs(tmp_path, name)
    between.deploy = lambda: between.push(FeatureGraph([*(lock := other.lock("words")), replace(long(lock), key=key)]))
    between.deploy()
    return between


def test_a_projects_own_lock_says_what_its_features_are_whoever_depends_on_them(other, tmp_path):
    """So that a project and one that is computed from it are renewed one after the other, in any order."""
    between, third = search(tmp_path, other), search(tmp_path, other, "THIRD", "far")
    lock = third.lock("far", onto=between.lock("long", onto=other.lock("words")))
    other.push(theirs("2"))
    between.deploy()
    third.deploy()
    old, new = theirs("1"), theirs("2")
    for order in ((other, between, third), (third, other, between), (between, third, other)):
        renewed = lock
        for each in order:
            renewed = each.lock(onto=renewed)
            expected = new if other in order[: order.index(each) + 1] else old
            assert renewed.graph.versions("words") == expected.versions("words")
        assert {each.key: each.project for each in renewed} == {
            "video": "VIDEOS",
            "words": "VIDEOS",
            "long": "SEARCH",
            "far": "THIRD",
        }
        renewed.write(tmp_path / "features.lock")
        assert FeatureLock.read(tmp_path / "features.lock").to_bytes() == renewed.to_bytes()


def test_two_projects_on_different_definitions_of_a_third_need_the_third_locked(other, tmp_path):
    between, third = search(tmp_path, other), search(tmp_path, other, "THIRD", "far")
    lock = third.lock("far", onto=between.lock("long"))
    other.push(theirs("2"))
    between.deploy()
    third.deploy()
    with pytest.raises(InvalidInput, match=r"'words' of VIDEOS.*Nothing was locked.*graph lock words.*VIDEOS"):
        between.lock(onto=lock)
    both = third.lock(onto=between.lock(onto=other.lock("words", onto=lock)))
    assert both.graph.versions("words") == theirs("2").versions("words")


def test_what_cannot_be_locked_is_refused(other, tmp_path):
    with pytest.raises(InvalidInput, match="No feature of VIDEOS is locked, and none is named"):
        other.lock()
    with pytest.raises(VersionNotFound, match=r"has no features \['faces'\].*graph push"):
        other.lock("faces")
    empty = Theirs(tmp_path, "EMPTY")
    with pytest.raises(VersionNotFound, match="No definitions were pushed"):
        empty.lock("words")
    lock = other.lock("words")
    empty.push(FeatureGraph([Feature("words", ["id"])]))
    with pytest.raises(InvalidInput, match="two definitions of feature 'words'"):
        empty.lock("words", onto=lock)
    empty.push(FeatureGraph([Feature("hum", ["id"])], 16))
    with pytest.raises(InvalidInput, match="EMPTY have 16 digits, those that are locked 8"):
        empty.lock("hum", onto=lock)
    other.push(theirs(length=16))
    assert other.lock(onto=lock).graph.hash_length == 16
    with pytest.raises(InvalidInput, match="cannot be read"):
        FeatureLock.read(tmp_path / "no.lock")
    with pytest.raises(InvalidInput, match="could not be written"):
        lock.write(tmp_path / "no" / "features.lock")
    (tmp_path / "folder").mkdir()
    with pytest.raises(InvalidInput, match="could not be written"):
        lock.write(tmp_path / "folder")
    assert not list(tmp_path.glob(".folder*")), "nothing is left of what was not written"


MANY = FeatureGraph(
    [
        Feature("a/root", ["id", "n"], [Field("one", "1", columns=["x"]), "two"]),
        Feature(
            "a/b",
            ["id"],
            [Field("one", "3", [FieldDep.all()]), Field("three")],
            [
                FeatureDep(
                    "a/root",
                    {"x": "y"},
                    ["y"],
                    "y > 1",
                    True,
                    Lineage.aggregation(["id"]),
                    FieldsMapping.suffix(exclude=["two"]),
                )
            ],
        ),
    ],
    12,
)


@pytest.fixture(scope="module")
def locked(tmp_path_factory):
    project = Project.open("MANY", str(tmp_path_factory.mktemp("many")))
    GraphHistory(project).push(MANY)
    return FeatureLock.empty().locked(project, ["a/b"])


def test_all_of_a_definition_survives_the_file(locked, tmp_path):
    path = tmp_path / "features.lock"
    locked.write(path)
    found = FeatureLock.read(path)
    assert [replace(each, project=None).to_json() for each in found] == [
        {**each.to_json(), "fields": sorted(each.to_json()["fields"], key=lambda field: field["key"])} for each in MANY
    ]
    assert found.to_bytes() == locked.to_bytes() == path.read_bytes()
    assert list(tmp_path.iterdir()) == [path]


def forgeries(document, at=()):
    """Each value of a document, changed."""
    for name, value in document.items() if isinstance(document, dict) else enumerate(document):
        if isinstance(value, dict | list):
            yield from forgeries(value, (*at, name))
        yield (*at, name)


def test_no_value_of_the_file_can_be_changed_unseen(locked, tmp_path):
    path, text = tmp_path / "features.lock", locked.to_bytes().decode()
    places = list(forgeries(json.loads(text)))
    assert len(places) > 30
    for place in places:
        document = json.loads(text)
        parent = document
        for name in place[:-1]:
            parent = parent[name]
        was = parent[place[-1]]
        parent[place[-1]] = {str: f"{was}0", int: 7, bool: False}.get(type(was))
        path.write_text(json.dumps(document))
        with pytest.raises((IntegrityError, UnsupportedFeature), match="lock"):
            FeatureLock.read(path)


def test_a_feature_of_no_project_or_a_name_without_one_is_refused(locked, tmp_path):
    path = tmp_path / "features.lock"
    nobodys = FeatureGraph([replace(each, project=None) for each in locked], locked.graph.hash_length)
    unknown = {"MANY": locked.projects["MANY"].model_copy(update={"features": ["a/c"]})}
    for forged in (replace(locked, graph=nobodys), replace(locked, projects=unknown)):
        path.write_bytes(forged.to_bytes())
        with pytest.raises(IntegrityError, match="do not belong together"):
            FeatureLock.read(path)


def test_a_newer_file_asks_for_an_upgrade(locked, tmp_path):
    document = json.loads(locked.to_bytes())
    (tmp_path / "features.lock").write_text(json.dumps(document | {"schema_version": 2}))
    with pytest.raises(UnsupportedFeature, match="pip install --upgrade"):
        FeatureLock.read(tmp_path / "features.lock")


@given(data=st.data())
def test_a_truncated_file_is_refused_with_what_to_do(locked, data, tmp_path_factory):
    whole = locked.to_bytes()
    path = tmp_path_factory.mktemp("cut") / "features.lock"
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 2))])
    with pytest.raises(IntegrityError, match=r"Nothing was read\. Restore the file, or delete it and lock again"):
        FeatureLock.read(path)
    shutil.rmtree(path.parent)


@given(data=st.binary(max_size=60))
def test_any_bytes_are_refused_as_what_they_are(data, tmp_path_factory):
    path = tmp_path_factory.mktemp("any") / "features.lock"
    path.write_bytes(data)
    with pytest.raises(VersionedError):
        FeatureLock.read(path)
    shutil.rmtree(path.parent)
