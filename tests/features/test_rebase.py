"""Samples that exist are accepted under new definitions: stamped anew, not computed, if nothing really changed."""

import pyarrow as pa
import pytest

from dagster_versioned import FeatureGraph, GraphHistory, Project, TableOptions, rebase, resolve_update
from dagster_versioned.engines.samples import DATA_VERSION_BY_FIELD
from dagster_versioned.errors import InvalidInput
from dagster_versioned.features.definitions import Feature, FeatureDep, Field, FieldDep, Lineage
from dagster_versioned.features.pending_work import pending_work
from dagster_versioned.tables.feature_record import FeatureRecord
from support.feature_tables import counted

ROWS = [(1, "a", "x"), (2, "b", "y"), (3, "c", "z")]


def graph_of(*, image="image", text="text", code="1", added=(), read="sound", group="1"):
    """Videos, the words in them, how loud they are, and what all of them have in common."""
    video = Feature("video", ["id"], [Field("sound", columns=["sound", "g"]), Field(image, columns=["image"])])
    below = [Field(text, code, [FieldDep("video", [read])]), *added]
    words = Feature("words", ["id"], below, ["video"])
    loud = Feature("loud", ["id"], [Field("loud", deps=[FieldDep("words", [text])])], ["words"])
    both = Feature(
        "both",
        ["g"],
        [Field("all", group, [FieldDep("video", [image])])],
        [FeatureDep("video", lineage=Lineage.aggregation(["g"]))],
    )
    return FeatureGraph([video, words, loud, both])


class House:
    """A project whose features were computed by some definitions, which were pushed."""

    def __init__(self, path):
        self.project = Project.open("HOUSE", str(path))
        self.history = GraphHistory(self.project)
        self.rows = list(ROWS)
        self.called = []

    def words(self, increment):
        changed = increment.changed
        self.called += changed["id"].to_pylist()
        return pa.table({"id": changed["id"], "said": [text.upper() for text in changed["sound"].to_pylist()]})

    def body(self, key, increment):
        if key == "words":
            return self.words(increment)
        self.called += [key] * increment.todo
        name = "g" if key == "both" else "id"
        return pa.table({name: increment.changed[name].unique()})

    def run(self, graph, *keys, push=True):
        """Compute features as a deployment does; how many samples of each were computed."""
        found = {}
        for feature in graph:
            if keys and feature.key not in keys:
                continue
            samples = None
            if not feature.deps:
                ids, sounds, images = zip(*self.rows, strict=True)
                samples = pa.table({"id": ids, "g": [n % 2 for n in ids], "sound": sounds, "image": images})
            with resolve_update(self.project, graph, feature, samples=samples) as update:
                increment = update.increment
                rows = self.body(feature.key, increment) if increment.todo and feature.deps else None
                update.write(rows)
                found[feature.key] = increment.todo
        if push:
            self.history.push(graph)
        return found

    def head(self, key):
        return self.project.table(key).version()

    def plain(self, key):
        rows = self.project.table(key).read().to_pylist()
        return sorted(str({name: row[name] for name in row if not name.startswith("metaxy_")}) for row in rows)


@pytest.fixture
def house(tmp_path):
    house = House(tmp_path)
    house.run(graph_of())
    house.called = []
    return house


NOTHING = {"video": 0, "words": 0, "loud": 0, "both": 0}


def test_renamed_fields_are_not_computed_again(house):
    """A field of a root, of a feature, both read further down, also in groups."""
    before, after = {key: house.plain(key) for key in NOTHING}, graph_of(image="picture", text="speech")
    names = {"video.image": "picture", "words.text": "speech"}
    report = rebase(house.project, after, renamed=names, why="better names", dry_run=False)
    assert {each.key: (each.samples, each.left, each.compared) for each in report.features} == {
        "video": (3, 0, 0),
        "words": (3, 0, 0),
        "loud": (3, 0, 0),
        "both": (2, 0, 0),
    }
    assert {each.key: each.after.metadata_sha for each in report.features} == {
        key: house.head(key).metadata_sha for key in NOTHING
    }
    assert {each.todo for each in pending_work(house.project, after)} == {0}
    assert house.run(after) == NOTHING
    assert house.called == []
    assert {key: house.plain(key) for key in NOTHING} == before


def test_a_rebased_table_is_narrowed_to_what_changes_from_then_on(house):
    after = graph_of(text="speech")
    rebase(house.project, after, renamed={"words.text": "speech"}, dry_run=False)
    house.rows[0] = (1, "A", "x")
    assert house.run(after) == {"video": 1, "words": 1, "loud": 1, "both": 0}
    record = FeatureRecord.of(house.head("words").identity.custom)
    assert (set(record.digests), record.left) == ({"speech"}, 0)
    with resolve_update(house.project, after, "loud") as update:
        assert counted(update.increment) == (0, 0, 0, 3)


def test_a_dry_run_says_the_same_and_writes_nothing(house):
    after, names = graph_of(image="picture", text="speech"), {"video.image": "picture", "words.text": "speech"}
    heads = {key: house.head(key) for key in NOTHING}
    said = rebase(house.project, after, renamed=names)
    assert {key: house.head(key) for key in NOTHING} == heads
    assert (said.push, len(house.history.pushes()), {each.after for each in said.features}) == (None, 1, {None})
    done = rebase(house.project, after, renamed=names, dry_run=False)
    assert [(each.key, each.samples, each.left) for each in said.features] == [
        (each.key, each.samples, each.left) for each in done.features
    ]


def test_it_is_recorded_with_the_push(house):
    after, before = graph_of(text="speech"), house.head("words")
    report = rebase(house.project, after, renamed={"words.text": "speech"}, why="better names", dry_run=False)
    (last, *_) = house.history.pushes()
    assert last == report.push
    assert (last.why, last.project_version) == ("better names", after.project_version)
    assert last.rebase["renamed"] == {"words.text": "speech"}
    assert last.rebase["features"]["words"] == {"before": before.metadata_sha, "samples": 3, "compared": 0}
    assert last.to_json()["rebase"] == last.rebase
    assert "rebase" not in house.history.pushes()[-1].to_json()
    assert house.head("words").identity.message == "better names"


def test_it_can_be_taken_back(house):
    before, after = graph_of(), graph_of(text="speech")
    report = rebase(house.project, after, renamed={"words.text": "speech"}, dry_run=False)
    for each in reversed(report.features):
        house.project.table(each.key).revert(each.before.metadata_sha)
    assert house.run(before) == NOTHING
    assert {each.key: each.stale for each in pending_work(house.project, after)}["words"] == 3


def test_an_added_field_is_stamped_with_what_it_would_be_computed_from(house):
    after = graph_of(added=[Field("pitch", deps=[FieldDep("video", ["sound"])])])
    kept = {row["id"]: row[DATA_VERSION_BY_FIELD]["text"] for row in house.project.table("words").read().to_pylist()}
    report = rebase(house.project, after, compute={"words": house.words}, dry_run=False)
    assert [(each.key, each.samples, each.compared) for each in report.features] == [("words", 3, 3)]
    rows = house.project.table("words").read().to_pylist()
    assert {row["id"]: row[DATA_VERSION_BY_FIELD]["text"] for row in rows} == kept
    assert all(row[DATA_VERSION_BY_FIELD]["pitch"] for row in rows)
    assert house.run(after) == NOTHING


def test_other_code_is_accepted_if_it_gives_the_same_rows(house):
    after = graph_of(code="2")
    report = rebase(house.project, after, compute={"words": house.words}, compare=2, dry_run=False)
    assert [(each.key, each.samples, each.compared) for each in report.features] == [("words", 3, 2)]
    assert len(house.called) == 2
    house.called = []
    assert house.run(after) == NOTHING


def test_a_change_that_would_be_hidden_is_refused(house):
    """By comparing some rows, before anything is written: also of a feature above one that was fine."""

    def otherwise(increment):
        rows = house.words(increment)
        return rows.set_column(1, "said", pa.array([text * 2 for text in rows["said"].to_pylist()]))

    heads = {key: house.head(key) for key in NOTHING}
    with pytest.raises(InvalidInput, match=r"'words' .*3 were computed .* 3 rows differ, for example \{'id': 1\}"):
        rebase(house.project, graph_of(code="2"), compute={"words": otherwise}, dry_run=False)
    with pytest.raises(InvalidInput, match=r"the columns \['more'\] are in one of them alone"):
        rebase(
            house.project,
            graph_of(code="2"),
            compute={"words": lambda increment: house.words(increment).append_column("more", pa.array([1, 1, 1]))},
            dry_run=False,
        )
    with pytest.raises(InvalidInput, match="no row for 1 samples"):
        rebase(house.project, graph_of(code="2"), compute={"words": lambda i: house.words(i).slice(1)}, dry_run=False)
    assert ({key: house.head(key) for key in NOTHING}, len(house.history.pushes())) == (heads, 1)


@pytest.mark.parametrize(
    "after",
    [graph_of(code="2"), graph_of(read="image"), graph_of(added=[Field("pitch", deps=[FieldDep("video", ["sound"])])])],
    ids=["other code", "other fields above", "another field"],
)
def test_what_cannot_be_compared_has_to_be_believed(house, after):
    with pytest.raises(InvalidInput, match=r"'words' is computed by other code .*compute=\{'words': …\}"):
        rebase(house.project, after, dry_run=False)
    rebase(house.project, after, unchecked=["words"], dry_run=False)
    assert house.run(after) == NOTHING


def test_what_really_changed_stays_to_be_computed(house):
    """Its upstream has other data, whether it has the new names by then or not."""
    house.rows = [(1, "A", "x"), (2, "b", "y"), (4, "d", "w")]
    after = graph_of(image="picture", text="speech", code="2")
    house.run(after, "video", push=False)
    names = {"video.image": "picture", "words.text": "speech"}
    report = rebase(house.project, after, renamed=names, compute={"words": house.words}, dry_run=False)
    found = {each.key: (each.samples, each.left) for each in report.features}
    assert found["words"] == (1, 3)  # of the others one has other data, one is new, one is gone
    house.called = []
    assert house.run(after)["words"] == 2
    assert [n for n in house.called if isinstance(n, int)] == [1, 4]
    assert house.plain("words") == sorted(str({"id": n, "said": text}) for n, text in ((1, "A"), (2, "B"), (4, "D")))
    assert house.run(after) == NOTHING


def test_it_goes_on_where_it_died(house, monkeypatch):
    from dagster_versioned.tables.table import VersionedTable

    after, names = graph_of(image="picture", text="speech"), {"video.image": "picture", "words.text": "speech"}
    write = VersionedTable.write

    def dies(table, *args, **kwargs):
        if str(table.name) == "loud":
            raise KeyboardInterrupt
        return write(table, *args, **kwargs)

    monkeypatch.setattr(VersionedTable, "write", dies)
    with pytest.raises(KeyboardInterrupt):
        rebase(house.project, after, renamed=names, dry_run=False)
    monkeypatch.undo()
    report = rebase(house.project, after, renamed=names, dry_run=False)
    assert "words" not in {each.key for each in report.features}
    assert house.run(after) == NOTHING
    assert house.called == []
    assert rebase(house.project, after, renamed=names, dry_run=False).features == ()


def test_what_is_no_rebase_is_refused(house, tmp_path):
    after = graph_of(text="speech")
    with pytest.raises(InvalidInput, match="compare is 0"):
        rebase(house.project, after, compare=0)
    with pytest.raises(InvalidInput, match="compute names the feature 'other'"):
        rebase(house.project, after, compute={"other": house.words})
    with pytest.raises(InvalidInput, match=r"'other' is no feature of the graph"):
        rebase(house.project, after, renamed={"other.x": "y"})
    with pytest.raises(InvalidInput, match=r"'words.text' as 'speach', but feature 'words' has the fields"):
        rebase(house.project, after, renamed={"words.text": "speach"}, unchecked=["words", "loud"])
    with pytest.raises(InvalidInput, match=r"'words.txt' as 'speech', but there was no such field: \['words.text'\]"):
        rebase(house.project, after, renamed={"words.txt": "speech"}, unchecked=["words", "loud"])
    unknown = House(tmp_path / "unknown")
    unknown.run(graph_of(), push=False)
    with pytest.raises(InvalidInput, match="'words' was computed were never pushed"):
        rebase(unknown.project, after, renamed={"words.text": "speech"})
    report = rebase(unknown.project, after, renamed={"words.text": "speech"}, before=graph_of(), dry_run=False)
    assert [each.key for each in report.features] == ["words", "loud"]
    with resolve_update(house.project, graph_of(), "words", full=True) as update:
        for part in update.increment.chunks(2):
            update.write(house.words(part), part)
            break
    with pytest.raises(InvalidInput, match=r"'words' is being computed again.* 1 are left"):
        rebase(house.project, after, renamed={"words.text": "speech"})


def test_partitions_are_refused(tmp_path):
    project, graph = Project.open("HOUSE", str(tmp_path)), graph_of()
    samples = pa.table({"id": [1], "g": [1], "sound": ["a"], "image": ["x"]})
    with resolve_update(project, graph, "video", samples=samples, partition="p") as update:
        update.write(options=TableOptions())
    with pytest.raises(InvalidInput, match="'video' has partitions"):
        rebase(project, graph_of(image="picture"), renamed={"video.image": "picture"})
