"""What sensors make of features: by the fields that they are computed from, not by versions of tables."""

import dagster as dg
import pyarrow as pa
import pytest

from dagster_versioned import (
    FeatureGraph,
    FeatureLock,
    GraphHistory,
    Project,
    ProjectResource,
    VersionedParquetIOManager,
    build_version_sensor,
    resolve_update,
    versioned_multi_feature,
    versioned_source,
)
from dagster_versioned.assets.feature import versioned_feature
from dagster_versioned.features.definitions import Feature, FeatureDep, Field, FieldDep, Lineage


class Videos:
    """Two fields of videos, each with a feature of its own; and a feature of those of the first that are long."""

    def __init__(self, rows=((1, "a", "x"), (2, "b", "y"))):
        self.rows = list(rows)
        self.called = []
        self.fails_at = None

    def assets(self, *, image="1", chunk_size=None):
        def call(name, increment):
            self.called.append((name, increment.changed["id"].to_pylist()))
            if len(self.called) == self.fails_at:
                raise dg.Failure("as the test asked")
            return increment.changed.select(["id"])

        @versioned_feature(
            id_columns=["id"], fields=[Field("sound", columns=["sound"]), Field("image", image, columns=["image"])]
        )
        def video():
            return pa.table(dict(zip(("id", "sound", "image"), map(list, zip(*self.rows, strict=True)), strict=True)))

        @versioned_feature(
            id_columns=["id"],
            fields=[Field("text", deps=[FieldDep(video, ["sound"])])],
            deps=[video],
            chunk_size=chunk_size,
        )
        def words(increment):
            return call("words", increment)

        @versioned_feature(id_columns=["id"], fields=[Field("faces", deps=[FieldDep(video, ["image"])])], deps=[video])
        def faces(increment):
            return call("faces", increment)

        @versioned_feature(
            id_columns=["id"],
            fields=[Field("text", deps=[FieldDep(video, ["sound"])])],
            deps=[FeatureDep(video, filter="image <> 'x'")],
        )
        def some(increment):
            return call("some", increment)

        return [video, words, faces, some]

    def deploy(self, daemon, **options):
        daemon.deploy(*self.assets(**options), sensors=[build_version_sensor("current", dg.AssetSelection.all())])

    def change(self, daemon, *rows):
        self.rows[: len(rows)] = rows
        assert daemon.materialize("video").success
        self.called.clear()


@pytest.fixture
def videos(daemon):
    made = Videos()
    made.deploy(daemon)
    assert daemon.materialize("video").success
    assert sorted(name for name, _ in daemon.settle()) == ["faces", "some", "words"]
    return made


def asked(daemon):
    return sorted(name for name, _ in daemon.settle())


@pytest.mark.slow
def test_exactly_the_features_of_the_field_that_changed_run(daemon, videos):
    videos.change(daemon, (1, "other", "x"))
    assert asked(daemon) == ["some", "words"]
    assert videos.called == [("words", [1])]  # the filtered one is asked, and finds nothing
    videos.change(daemon, (1, "other", "other"))
    assert asked(daemon) == ["faces", "some"]
    assert dict(videos.called) == {"faces": [1], "some": [1]}
    assert daemon.tick() == []


@pytest.mark.slow
def test_a_code_bump_runs_exactly_what_depends_on_the_field(daemon, videos):
    videos.called.clear()
    videos.deploy(daemon, image="2")
    assert asked(daemon) == ["faces", "video"]
    assert videos.called == []  # no sample says anything else
    assert daemon.tick() == []


@pytest.mark.slow
def test_a_head_with_samples_left_is_run_again(daemon, videos):
    videos.deploy(daemon, chunk_size=1)
    videos.change(daemon, (1, "c", "x"), (2, "d", "y"))
    videos.fails_at = 2
    assert not daemon.materialize("words").success
    assert daemon.head("words").identity.custom["feature"]["left"] == 1
    videos.called.clear()
    videos.fails_at = None
    assert asked(daemon) == ["some", "words"]
    assert dict(videos.called) == {"words": [2], "some": [2]}
    assert "left" not in daemon.head("words").identity.custom["feature"]


def test_an_ordinary_table_above_a_feature_is_judged_by_its_version(daemon):
    seen = []

    @versioned_feature(
        id_columns=["id"], fields=["text"], deps=[Feature("raw", ["id"], [Field("sound", columns=["sound"])])]
    )
    def words(increment):
        seen.append(increment.changed["id"].to_pylist())
        return increment.changed

    @dg.asset
    def raw():
        return None

    def write(image):
        daemon.write("raw", pa.table({"id": [1], "sound": ["a"], "image": [image]}))

    daemon.deploy(raw, words, sensors=[build_version_sensor("current", dg.AssetSelection.assets("words"))])
    for image in ("x", "y"):
        write(image)
        assert asked(daemon) == ["words"]
    assert seen == [[1]]


@pytest.mark.slow
def test_a_group_is_asked_for_when_a_sample_goes_to_another_though_no_field_of_it_changed(daemon):
    rows = [(1, "early", "N1"), (2, "late", "N1"), (3, "late", "N2")]
    seen = []

    @versioned_feature(id_columns=["id"], fields=[Field("time", columns=["time"]), Field("plane", columns=["tailnum"])])
    def flight():
        return pa.table(dict(zip(("id", "time", "tailnum"), map(list, zip(*rows, strict=True)), strict=True)))

    @versioned_feature(
        id_columns=["tailnum"],
        fields=[Field("often", deps=[FieldDep(flight, ["time"])])],
        deps=[FeatureDep(flight, lineage=Lineage.aggregation(["tailnum"]))],
    )
    def often(increment):
        seen.append(sorted(increment.changed["id"].to_pylist()))
        return increment.changed.select(["tailnum"]).group_by("tailnum").aggregate([])

    daemon.deploy(flight, often, sensors=[build_version_sensor("current", dg.AssetSelection.all())])
    assert daemon.materialize("flight").success
    assert asked(daemon) == ["often"]
    rows[1] = (2, "late", "N2")
    assert daemon.materialize("flight").success
    assert asked(daemon) == ["often"]
    assert seen == [[1, 2, 3], [1, 2, 3]]
    assert daemon.tick() == []


DAYS = dg.StaticPartitionsDefinition(["d1", "d2"])


@pytest.mark.slow
def test_partitions_are_judged_by_their_own_fields_and_whole_tables_by_all(daemon):
    rows = {"d1": [(1, "a", "x")], "d2": [(2, "b", "y")]}

    @versioned_feature(
        id_columns=["id"],
        fields=[Field("sound", columns=["sound"]), Field("image", columns=["image"])],
        partitions_def=DAYS,
    )
    def video(context):
        return pa.table(
            dict(zip(("id", "sound", "image"), map(list, zip(*rows[context.partition_key], strict=True)), strict=True))
        )

    @versioned_feature(
        id_columns=["id"],
        fields=[Field("text", deps=[FieldDep(video, ["sound"])])],
        deps=[video],
        partitions_def=DAYS,
    )
    def words(increment):
        return increment.changed.select(["id", "sound"])

    @versioned_feature(
        id_columns=["id"],
        fields=[Field("faces", deps=[FieldDep(video, ["image"])])],
        deps=[video],
        ins={"any": dg.AssetIn("video", partition_mapping=dg.AllPartitionMapping())},
    )
    def faces(increment):
        return increment.changed.select(["id"])

    daemon.deploy(video, words, faces, sensors=[build_version_sensor("current", dg.AssetSelection.all())])
    for day in rows:
        daemon.materialize("video", day)
    assert sorted(daemon.settle(), key=str) == [("faces", None), ("words", "d1"), ("words", "d2")]
    rows["d2"] = [(2, "other", "y")]
    daemon.materialize("video", "d2")
    assert daemon.settle() == [("words", "d2")]
    rows["d1"] = [(1, "a", "other")]
    daemon.materialize("video", "d1")
    assert daemon.settle() == [("faces", None)]
    daemon.lose_cursor()
    assert daemon.tick() == []


@pytest.mark.slow
def test_a_commit_of_the_fields_of_another_projects_feature_triggers_once(daemon, tmp_path):
    """The lock says what they are: a change of another field starts nothing."""
    location = str(tmp_path / "videos")
    other = Project.open("VIDEOS", location)
    video = Feature("video", ["id"], [Field("sound", columns=["sound"]), Field("image", columns=["image"])])
    graph = FeatureGraph([video])
    GraphHistory(other).push(graph)
    lock = FeatureLock.empty().locked(other, ["video"])

    def table(rows):
        return pa.table(dict(zip(("id", "sound", "image"), map(list, zip(*rows, strict=True)), strict=True)))

    def write(*rows):
        with resolve_update(other, graph, "video", samples=table(rows)) as update:
            return update.write().version

    @versioned_feature(
        id_columns=["id"], fields=[Field("text", deps=[FieldDep("video", ["sound"])])], deps=[lock["video"]]
    )
    def words(increment):
        return increment.changed.select(["id"])

    manager = VersionedParquetIOManager(project=ProjectResource(name="VIDEOS", location=location))
    daemon.deploy(
        versioned_source("video", io_manager_key="videos"),
        words,
        sensors=[build_version_sensor("current", dg.AssetSelection.assets(words))],
        resources={"videos": manager},
    )
    assert daemon.settle() == []
    write((1, "a", "x"), (2, "b", "y"))
    assert daemon.settle() == [("words", None)]
    write((1, "a", "other"), (2, "b", "y"))
    assert daemon.settle() == []
    version = write((1, "a", "other"), (2, "c", "y"))
    assert daemon.settle() == [("words", None)]
    (parent,) = daemon.head("words").identity.parents
    assert (parent.source, parent.table, parent.version) == ("VIDEOS", "video", version.metadata_sha)


@pytest.mark.slow
@pytest.mark.parametrize("can_subset", [True, False])
def test_features_of_one_asset_run_each_by_itself_or_together(daemon, can_subset):
    rows, called = [(1, "a", "x"), (2, "b", "y")], []

    @versioned_feature(id_columns=["id"], fields=[Field("sound", columns=["sound"]), Field("image", columns=["image"])])
    def video():
        return pa.table(dict(zip(("id", "sound", "image"), map(list, zip(*rows, strict=True)), strict=True)))

    words, faces = (
        Feature(name, ["id"], [Field("value", deps=[FieldDep(video, [field])])], [video])
        for name, field in (("words", "sound"), ("faces", "image"))
    )

    @versioned_multi_feature(features=[words, faces], can_subset=can_subset)
    def split(increments):
        called.append({key: one.changed["id"].to_pylist() for key, one in increments.items()})
        return {key: one.changed.select(["id"]) for key, one in increments.items()}

    daemon.deploy(video, split, sensors=[build_version_sensor("current", dg.AssetSelection.all())])
    assert daemon.materialize("video").success
    daemon.settle()
    assert sorted(key for call in called for key in call) == ["faces", "words"]
    assert len(called) == (2 if can_subset else 1)
    called.clear()
    rows[0] = (1, "other", "x")
    assert daemon.materialize("video").success
    daemon.settle()
    assert called == [{"words": [1]} if can_subset else {"words": [1], "faces": []}]
    daemon.settle()
    assert len(called) == 1
