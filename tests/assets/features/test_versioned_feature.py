"""Assets that are features: what their functions are called for, and what is committed."""

import sys
import types

import dagster as dg
import pandas as pd
import polars as pl
import pyarrow as pa
import pydantic
import pytest

from dagster_versioned import TableOptions
from dagster_versioned.assets.code_location import features_of_module
from dagster_versioned.assets.feature import versioned_feature
from dagster_versioned.assets.feature_definition import feature_of, graph_of
from dagster_versioned.engines.samples import DATA_VERSION_BY_FIELD, SYSTEM_COLUMNS, SampleHash
from dagster_versioned.errors import CommitConflict, EmptyTable, InvalidInput
from dagster_versioned.features.definitions import Feature, FeatureDep, Field, FieldDep, Lineage
from dagster_versioned.features.increment import Increment
from dagster_versioned.tables.feature_record import FeatureRecord
from support.house import changes, materializations

BASE = [(1, "a", "x"), (2, "b", "y"), (3, "c", "z")]


def videos(rows):
    columns = zip(("id", "sound", "image"), zip(*rows, strict=True), strict=True) if rows else ()
    types = {"id": pa.int64(), "sound": pa.string(), "image": pa.string()}
    found = {name: pa.array(values, types[name]) for name, values in columns}
    return pa.table(found or {name: pa.array([], kind) for name, kind in types.items()})


class Pipeline:
    """Videos, crops of them, faces in the crops, words in the videos; and for which samples each was called."""

    def __init__(self, rows=BASE):
        self.rows = list(rows)
        self.called = {}
        self.fails = set()

    def assets(self, *, sound="1", crop_image="1", faces="1", chunk_size=None):
        def call(name, increment):
            ids = increment.changed["id"].to_pylist()
            self.called.setdefault(name, []).extend(ids)
            if name in self.fails:
                raise RuntimeError(f"{name} fails")
            return pa.table({"id": ids, name: [f"{name} of {n}" for n in ids]})

        @versioned_feature(
            id_columns=["id"], fields=[Field("sound", sound, columns=["sound"]), Field("image", columns=["image"])]
        )
        def video():
            return videos(self.rows)

        @versioned_feature(
            id_columns=["id"], fields=[Field("sound"), Field("image", crop_image)], deps=[video], chunk_size=chunk_size
        )
        def crop(increment):
            return call("crop", increment)

        @versioned_feature(id_columns=["id"], fields=[Field("faces", faces, [FieldDep(crop, ["image"])])], deps=[crop])
        def face(increment):
            return call("face", increment)

        @versioned_feature(id_columns=["id"], fields=[Field("text", deps=[FieldDep(video, ["sound"])])], deps=[video])
        def words(increment: Increment):
            return call("words", increment)

        return [video, crop, face, words]

    def run(self, house, config=None, select=None, raises=True, **options):
        self.called = {}
        ops = {"ops": {name: {"config": given} for name, given in (config or {}).items()}}
        return house.run(*self.assets(**options), run_config=ops, selection=select, raise_on_error=raises)


def rows_of(house, name):
    rows = house.project.table(name).read().to_pylist()
    return sorted((tuple(v for k, v in row.items() if k not in SYSTEM_COLUMNS) for row in rows), key=str)


@pytest.fixture
def pipeline():
    return Pipeline()


def test_each_function_is_called_for_what_is_stale_and_not_called_where_nothing_is(house, pipeline):
    result = pipeline.run(house)
    assert changes(result) == dict.fromkeys(["video", "crop", "face", "words"], "full")
    assert pipeline.called == {name: [1, 2, 3] for name in ("crop", "face", "words")}
    result = pipeline.run(house)
    assert changes(result) == dict.fromkeys(["video", "crop", "face", "words"], "none")
    assert pipeline.called == {}
    pipeline.rows = [(1, "other", "x"), BASE[1], (4, "d", "w")]
    pipeline.run(house)
    assert pipeline.called == {"crop": [1, 4], "face": [4], "words": [1, 4]}
    assert rows_of(house, "face") == [(n, f"face of {n}") for n in (1, 2, 4)]


@pytest.mark.slow
def test_a_materialization_says_how_many_samples_there_were_and_why(house, pipeline):
    pipeline.run(house)
    pipeline.rows = [(1, "other", "x"), BASE[1], (4, "d", "w")]
    metadata = materializations(pipeline.run(house, crop_image="2"))["crop", None].metadata
    counts = {kind: metadata[f"dagster_versioned/samples_{kind}"].value for kind in ("new", "stale", "orphaned")}
    assert counts == {"new": 1, "stale": 2, "orphaned": 1}
    assert metadata["dagster_versioned/samples_unchanged"].value == 0
    rows = [metadata[f"dagster_versioned/rows_{kind}"].value for kind in ("inserted", "updated", "removed")]
    assert rows == [1, 2, 1]
    table = metadata["dagster_versioned/fields"].records
    assert [dict(record.data) for record in table] == [
        {
            "field": "sound",
            "code_version": "__metaxy_initial__",
            "computed_from": "video.sound",
            "stale_samples": 1,
            "because_of": "upstream",
        },
        {
            "field": "image",
            "code_version": "2",
            "computed_from": "video.image",
            "stale_samples": 2,
            "because_of": "code version 1 -> 2",
        },
    ]


@pytest.mark.slow
def test_a_code_bump_recomputes_exactly_what_depends_on_the_field(house, pipeline):
    pipeline.run(house)
    pipeline.run(house, crop_image="2")
    assert pipeline.called == {"crop": [1, 2, 3], "face": [1, 2, 3]}
    pipeline.run(house, crop_image="2", faces="2")
    assert pipeline.called == {"face": [1, 2, 3]}


def test_dagsters_code_version_is_that_of_the_feature_and_all_that_it_depends_on(pipeline):
    def versions(**options):
        return {each.key.to_user_string(): each.code_versions_by_key[each.key] for each in pipeline.assets(**options)}

    before = versions()
    assert {key for key, version in versions(sound="2").items() if version != before[key]} == {"video", "crop", "words"}
    assert {key for key, version in versions(faces="2").items() if version != before[key]} == {"face"}


def test_an_asset_knows_which_feature_it_is(pipeline):
    video, crop, face, _ = pipeline.assets()
    assert feature_of(face) == Feature(
        "face", ["id"], [Field("faces", "1", [FieldDep("crop", ["image"])])], [FeatureDep("crop")]
    )
    assert [feature.key for feature in graph_of(face)] == ["video", "crop", "face"]
    assert feature_of(video).fields[0].columns == ("sound",)

    @dg.asset
    def ordinary():
        return None

    assert feature_of(ordinary) is None
    assert feature_of(crop.with_attributes(group_names_by_key={crop.key: "other"})) == feature_of(crop)


def test_a_function_that_fails_commits_nothing_and_what_is_left_is_computed_next_time(house, pipeline):
    pipeline.run(house)
    heads = {name: house.head(name) for name in ("crop", "words")}
    pipeline.rows[0] = (1, "other", "x")
    pipeline.fails = {"crop"}
    result = pipeline.run(house, raises=False)
    assert not result.success
    assert house.head("crop") == heads["crop"]
    assert house.head("words") != heads["words"]
    pipeline.fails = set()
    pipeline.run(house)
    assert pipeline.called == {"crop": [1]}


def test_rows_that_are_refused_commit_nothing(house, pipeline):
    video = pipeline.assets()[0]

    @versioned_feature(id_columns=["id"], fields=["text"], deps=[video])
    def words(increment):
        return increment.changed.select(["id"]).slice(1)

    with pytest.raises(InvalidInput, match=r"no row for 1 samples that were asked for, for example \{'id': 1\}"):
        house.run(video, words)
    assert not house.project.table("words").exists()


@pytest.mark.slow
def test_content_versions_stop_the_wave(house, pipeline):
    video = pipeline.assets()[0]
    called = []

    @versioned_feature(id_columns=["id"], fields=["text"], deps=[video])
    def words(increment):
        rows = increment.changed
        texts = [text.upper() for text in rows["sound"].to_pylist()]
        versions = pa.array([{"text": text} for text in texts], pa.struct([("text", pa.string())]))
        return pa.table({"id": rows["id"], "text": texts, DATA_VERSION_BY_FIELD: versions})

    @versioned_feature(id_columns=["id"], fields=["length"], deps=[words])
    def length(increment):
        called.append(increment.changed["id"].to_pylist())
        return increment.changed

    house.run(video, words, length)
    pipeline.rows = [(1, "A", "x"), (2, "q", "y"), BASE[2]]
    house.run(video, words, length)
    assert called == [[1, 2, 3], [2]]


@pytest.mark.slow
def test_everything_can_be_computed_again_by_run_config(house, pipeline):
    pipeline.run(house)
    before = house.head("crop").data_sha
    result = pipeline.run(house, config={"crop": {"full": True}})
    assert pipeline.called == {"crop": [1, 2, 3]}
    assert changes(result) == dict.fromkeys(["video", "crop", "face", "words"], "none")
    assert house.head("crop").data_sha == before


def test_a_dry_run_says_what_would_be_computed_and_nothing_else_happens(house, pipeline):
    pipeline.run(house)
    pipeline.rows = [(1, "other", "x"), *BASE[1:]]
    pipeline.run(house, select=["video"])
    head = house.head("crop")
    result = pipeline.run(house, config={"crop": {"dry_run": True}}, select=["crop", "face"])
    assert pipeline.called == {}
    assert house.head("crop") == head
    assert result.success
    assert materializations(result) == {}
    observations = [event.event_specific_data.asset_observation for event in result.get_asset_observation_events()]
    assert [one.asset_key.to_user_string() for one in observations] == ["crop"]
    assert observations[0].metadata["dagster_versioned/samples_stale"].value == 1


def test_a_long_increment_is_committed_in_chunks(house):
    pipeline = Pipeline([(n, f"s{n}", "") for n in range(7)])
    pipeline.run(house, chunk_size=3)
    history = house.project.table("crop").history()
    records = [FeatureRecord.of(version.identity.custom) for version in history]
    assert [(record.left, version.identity.nrow) for record, version in zip(records, history, strict=True)] == [
        (0, 7),
        (1, 6),
        (4, 3),
    ]
    assert all(version.identity.parents == history[0].identity.parents for version in history)
    assert {version.identity.code_version for version in history} == {history[0].identity.code_version}
    assert changes(pipeline.run(house, chunk_size=3))["crop"] == "none"


@pytest.mark.slow
def test_what_a_chunk_has_written_stays_when_the_next_one_fails(house):
    pipeline = Pipeline([(n, f"s{n}", "") for n in range(7)])
    video = pipeline.assets()[0]
    calls = []

    @versioned_feature(id_columns=["id"], fields=["text"], deps=[video], chunk_size=3)
    def words(increment):
        calls.append(increment.changed["id"].to_pylist())
        if len(calls) == 2:
            raise RuntimeError("once")
        return increment.changed

    assert not house.run(video, words, raise_on_error=False).success
    assert house.run(video, words).success
    assert calls == [[0, 1, 2], [3, 4, 5], [3, 4, 5], [6]]


def test_a_step_that_is_retried_goes_on_where_it_failed(house):
    pipeline = Pipeline([(n, f"s{n}", "") for n in range(5)])
    video = pipeline.assets()[0]
    calls = []

    @versioned_feature(
        id_columns=["id"], fields=["text"], deps=[video], chunk_size=2, retry_policy=dg.RetryPolicy(max_retries=1)
    )
    def words(increment):
        calls.append(increment.changed["id"].to_pylist())
        if len(calls) == 2:
            raise RuntimeError("once")
        return increment.changed

    assert house.run(video, words).success
    assert calls == [[0, 1], [2, 3], [2, 3], [4]]


@pytest.mark.slow
def test_an_ordinary_asset_can_be_an_upstream_and_read_what_a_feature_says(house):
    rows = [videos(BASE), videos([(1, "a", "other"), (2, "q", "y"), BASE[2]])]
    called, read = [], []

    @dg.asset(key_prefix="raw")
    def clips():
        return rows[0]

    raw = Feature("raw/clips", ["id"], [Field("sound", columns=["sound"])])

    @versioned_feature(id_columns=["id"], fields=["text"], deps=[raw])
    def words(increment):
        called.append(increment.changed["id"].to_pylist())
        return increment.changed.select(["id", "sound"])

    @dg.asset
    def report(words: pa.Table):
        read.append(sorted(words["id"].to_pylist()))
        return words.select(["id"])

    house.run(clips, words, report)
    assert called == [[1, 2, 3]]
    assert house.parents("words") == [("raw__clips", None, house.head("raw__clips").metadata_sha)]
    del rows[0]
    house.run(clips, words, report)
    assert called == [[1, 2, 3], [2]]
    assert read == [[1, 2, 3]] * 2
    assert house.parents("report") == [("words", None, house.head("words").metadata_sha)]


@pytest.mark.every(4)
@pytest.mark.parametrize("kind", [pd.DataFrame, pl.DataFrame, pl.LazyFrame, pa.Table], ids=str)
def test_an_increment_has_frames_as_it_is_annotated(house, pipeline, kind):
    seen = []

    def body(increment):
        seen.append((type(increment.changed), type(increment.new), type(increment.orphaned)))
        return increment.changed

    body.__annotations__ = {"increment": Increment[kind]}
    video = pipeline.assets()[0]
    words = versioned_feature(id_columns=["id"], fields=["text"], deps=[video], name="words")(body)
    house.run(video, words)
    assert all(issubclass(each, kind) for each in seen[0])


def test_an_increment_without_annotation_has_frames_of_the_projects_engine(house, pipeline):
    video = pipeline.assets()[0]

    @versioned_feature(id_columns=["id"], fields=["text"], deps=[video])
    def words(increment):
        assert isinstance(increment.changed, pl.DataFrame)
        return increment.changed

    house.run(video, words, io_manager=house.io_manager(default_engine="polars"))


def test_a_function_gets_context_config_resources_and_inputs_beside_the_increment(house, pipeline):
    class Loudness(dg.Config):
        factor: int = 1

    class Voice(dg.ConfigurableResource):
        name: str

    seen = {}

    @dg.asset
    def names():
        return pa.table({"name": ["x"]})

    video = pipeline.assets()[0]

    @versioned_feature(id_columns=["id"], fields=["text"], deps=[video])
    def words(context, increment, config: Loudness, voice: Voice, names: pa.Table):
        seen.update(run=context.run.run_id, factor=config.factor, voice=voice.name, names=names.num_rows)
        return increment.changed

    result = house.run(
        video,
        names,
        words,
        resources={"voice": Voice(name="v")},
        run_config={"ops": {"words": {"config": {"factor": 3}}}},
    )
    assert seen == {"run": result.run_id, "factor": 3, "voice": "v", "names": 1}
    assert {table for table, _, _ in house.parents("words")} == {"video", "names"}


DAYS = dg.StaticPartitionsDefinition(["d1", "d2"])


def daily(rows, called):
    backfill = dg.BackfillPolicy.single_run()

    @versioned_feature(id_columns=["id"], fields=["both"], partitions_def=DAYS, backfill_policy=backfill)
    def video(context):
        return {key: videos(rows[key]) for key in context.partition_keys}

    @versioned_feature(
        id_columns=["id"], fields=["text"], deps=[video], partitions_def=DAYS, backfill_policy=backfill, chunk_size=2
    )
    def words(increment):
        called.append((increment.partition, increment.changed["id"].to_pylist()))
        return increment.changed

    @versioned_feature(id_columns=["id"], fields=["total"], deps=[words])
    def total(increment):
        called.append((None, increment.changed["id"].to_pylist()))
        return increment.changed

    return video, words, total


def test_each_partition_is_compared_with_its_own_upstream_partitions(house):
    called, rows = [], {"d1": [(1, "a", ""), (2, "b", "")], "d2": [(3, "c", ""), (4, "d", ""), (5, "e", "")]}
    video, words, total = daily(rows, called)
    both = {"tags": {"dagster/asset_partition_range_start": "d1", "dagster/asset_partition_range_end": "d2"}}
    result = house.run(video, words, **both)
    assert changes(result)["words[d1]"] == changes(result)["words[d2]"] == "full"
    assert called == [("d1", [1, 2]), ("d2", [3, 4]), ("d2", [5])]
    log_versions = {house.head("words", key).log_version for key in ("d1", "d2")}
    assert len(log_versions) == 1
    metadata = materializations(result)["words", "d2"].metadata
    assert metadata["dagster_versioned/samples_new"].value == 3
    assert [parent[:2] for parent in house.parents("words", "d2")] == [("video", "d2")]
    house.run(video, words, total, selection=[total])
    assert called.pop() == (None, [1, 2, 3, 4, 5])
    rows["d2"][0] = (3, "other", "")
    house.run(video, words, partition_key="d2")
    assert called[3:] == [("d2", [3])]
    house.run(video, words, total, selection=[total])
    assert called[4:] == [(None, [3])]
    assert changes(house.run(video, words, **both)) == {
        f"{name}[{key}]": "none" for name in ("video", "words") for key in ("d1", "d2")
    }


RANGE = {"tags": {"dagster/asset_partition_range_start": "d1", "dagster/asset_partition_range_end": "d2"}}


def previous(rows, allowed):
    """Each day of videos, and words that are computed from those of the day before."""
    backfill = dg.BackfillPolicy.single_run()
    metadata = TableOptions(allow_empty=allowed).as_metadata()

    @versioned_feature(
        id_columns=["id"], fields=["both"], partitions_def=DAYS, backfill_policy=backfill, metadata=metadata
    )
    def video(context):
        return {key: videos(rows[key]) for key in context.partition_keys}

    @versioned_feature(
        id_columns=["id"],
        fields=["text"],
        deps=[video],
        ins={"video": dg.AssetIn("video", partition_mapping=dg.StaticPartitionMapping({"d1": "d2"}))},
        partitions_def=DAYS,
        backfill_policy=backfill,
        metadata=metadata,
    )
    def words(increment):
        return increment.changed

    return video, words


@pytest.mark.parametrize("options", [{"partition_key": "d1"}, RANGE], ids=["one", "both"])
def test_a_partition_that_maps_to_none_has_no_samples(house, options):
    rows = {"d1": [(1, "a", "")], "d2": [(2, "b", "")]}
    house.run(*previous(rows, allowed=True)[:1], **RANGE)
    with pytest.raises(EmptyTable, match="Feature 'words' has no samples"):
        house.run(*previous(rows, allowed=False), selection=["words"], **options)
    house.run(*previous(rows, allowed=True), selection=["words"], **options)
    assert house.head("words", "d1").identity.nrow == 0


def test_a_partition_without_samples_is_one_where_that_is_allowed(house):
    rows = {"d1": [(1, "a", "")], "d2": []}
    with pytest.raises(EmptyTable, match="'video' has no samples: its function returned none"):
        house.run(*previous(rows, allowed=False), selection=["video"], **RANGE)
    result = house.run(*previous(rows, allowed=True), **RANGE)
    assert changes(result)["video[d2]"] == "full"
    assert [house.head("video", key).identity.nrow for key in ("d1", "d2")] == [1, 0]


@pytest.mark.slow
def test_an_upstream_can_be_pinned(house, pipeline):
    pipeline.run(house)
    first = house.head("video").metadata_sha
    pipeline.rows = BASE[:1]
    pipeline.run(house, select=["video"])
    video = pipeline.assets()[0]
    pinned = dg.AssetIn("video", metadata={"dagster_versioned/version": first})

    @versioned_feature(id_columns=["id"], fields=["text"], deps=[video], ins={"source": pinned})
    def other(increment):
        return increment.changed

    house.run(video, other, selection=[other])
    assert house.head("other").identity.nrow == 3
    assert house.parents("other") == [("video", None, first)]


def test_hashes_of_another_length_are_refused_until_everything_is_computed_again(house, pipeline):
    video = pipeline.assets()[0]

    def words(length):
        @versioned_feature(id_columns=["id"], fields=["text"], deps=[video], hash=SampleHash("sha256", length))
        def words(increment):
            return increment.changed

        return words

    house.run(video, words(32))
    with pytest.raises(InvalidInput, match=r"Compute all of them again \(run config full: true\)"):
        house.run(video, words(16))
    config = {"ops": {"words": {"config": {"full": True}}}}
    assert changes(house.run(video, words(16), run_config=config))["words"] == "full"


def test_groups_and_what_comes_of_one_sample_are_features_too(house):
    rows = [{"sensor": "a", "ts": 1, "value": 2.0}, {"sensor": "a", "ts": 2, "value": 4.0}]
    called = []

    @versioned_feature(id_columns=["sensor", "ts"], fields=[Field("value", columns=["value"])])
    def reading():
        return pa.Table.from_pylist(rows)

    @versioned_feature(
        id_columns=["sensor"], fields=["mean"], deps=[FeatureDep(reading, lineage=Lineage.aggregation(["sensor"]))]
    )
    def mean(increment):
        called.append(increment.changed["sensor"].unique().to_pylist())
        return increment.changed.group_by("sensor").aggregate([("value", "mean")])

    @versioned_feature(
        id_columns=["sensor", "n"], fields=["part"], deps=[FeatureDep(mean, lineage=Lineage.expansion(["sensor"]))]
    )
    def half(increment):
        parts = [{"sensor": row["sensor"], "n": n} for row in increment.changed.to_pylist() for n in (0, 1)]
        return pa.Table.from_pylist(parts)

    house.run(reading, mean, half)
    rows.append({"sensor": "b", "ts": 1, "value": 1.0})
    house.run(reading, mean, half)
    assert called == [["a"], ["b"]]
    assert rows_of(house, "half") == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]


def test_a_feature_whose_io_manager_stores_no_tables_is_refused(house, pipeline):
    video = pipeline.assets()[0]

    @versioned_feature(id_columns=["id"], fields=["text"], deps=[video], io_manager_key="other")
    def words(increment):
        return increment.changed

    with pytest.raises(InvalidInput, match="which stores no versioned tables"):
        house.run(video, words, resources={"other": dg.mem_io_manager})


def test_options_of_the_table_apply(house, pipeline):
    video = pipeline.assets()[0]
    options = TableOptions(properties={"delta.enableDeletionVectors": "true"}).as_metadata()

    @versioned_feature(id_columns=["id"], fields=["text"], deps=[video], metadata=options)
    def words(increment):
        return increment.changed

    house.run(video, words)
    pipeline.rows = [(1, "other", "x"), *BASE[1:]]
    house.run(video, words)
    adds = house.project.table("words").files().adds
    assert [add.deletion_vector is not None for add in adds].count(True) == 1


def test_a_feature_that_moved_under_a_run_is_a_conflict(house, pipeline):
    video = pipeline.assets()[0]

    @versioned_feature(id_columns=["id"], fields=["text"], deps=[video])
    def words(increment):
        if len(increment.changed) == 3:
            pipeline.rows.append((4, "d", "w"))
            house.run(video, words)
        return increment.changed

    with pytest.raises(CommitConflict, match="Run again"):
        house.run(video, words)
    assert house.head("words").identity.nrow == 4


def test_a_graph_in_which_many_ways_lead_to_a_feature_is_walked_once(monkeypatch, tmp_path):
    layer = [Feature(f"f0/{n}", ["id"], ["a"]) for n in "ab"]
    for depth in range(1, 50):
        layer = [Feature(f"f{depth}/{n}", ["id"], ["a"], layer) for n in "ab"]
    asset = versioned_feature(name="last", id_columns=["id"], fields=["a"], deps=layer)(lambda increment: None)
    assert len(list(graph_of(asset))) == 101
    module = types.ModuleType("ladder")
    module.layer = [layer, {"again": layer}]
    monkeypatch.setitem(sys.modules, "ladder", module)
    assert len(list(features_of_module("ladder"))) == 100


def test_run_config_chooses_what_is_computed(house, pipeline):
    """Samples that are stale by a condition, and of some samples alone; the head says that others are left."""
    result = pipeline.run(house, {"crop": {"where": {"video": "id > 1"}}}, select=["video", "crop"], chunk_size=1)
    assert (result.success, pipeline.called) == (True, {"crop": [2, 3]})
    assert FeatureRecord.of(house.head("crop").identity.custom).left == 1
    pipeline.run(house)
    assert pipeline.called == {"crop": [1], "face": [1, 2, 3], "words": [1, 2, 3]}
    pipeline.run(house, {"words": {"stale_if": "words = 'words of 2'"}})
    assert pipeline.called == {"words": [2]}
    assert FeatureRecord.of(house.head("crop").identity.custom).left == 0
    with pytest.raises(InvalidInput, match="'video' has no upstream to which"):
        pipeline.run(house, {"video": {"where": {"x": "1 = 1"}}})


def test_static_versions_have_the_length_of_those_above(monkeypatch, pipeline):
    long = versioned_feature(name="root", id_columns=["id"], fields=["a"], version_length=16)(lambda: None)
    below = versioned_feature(name="below", id_columns=["id"], fields=["a"], deps=[long])
    below = below(lambda increment: None)
    assert len(below.code_versions_by_key[below.key]) == 16
    module = types.ModuleType("long")
    module.assets = [Feature("other", ["id"]), dg.Definitions([long, below])]
    monkeypatch.setitem(sys.modules, "long", module)
    assert features_of_module("long").hash_length == 16
    module.short = pipeline.assets()[0]
    with pytest.raises(InvalidInput, match=r"of module 'long' have static versions of \[8, 16\] digits"):
        features_of_module("long")


def test_upstreams_whose_keys_are_alike_are_all_inputs(house):
    ways = ["raw/clip-1", "raw/clip_1"]
    clips = [Feature(key, ["id"], [Field(f"of_{n}", columns=[f"c{n}"])]) for n, key in enumerate(ways)]
    for n, key in enumerate(ways):
        house.project.table(key.split("/")).write(pa.table({"id": [1], f"c{n}": [n]}))
    seen = []

    @versioned_feature(id_columns=["id"], fields=["all"], deps=clips)
    def together(increment):
        seen.extend(increment.changed.to_pylist())
        return increment.changed

    house.run(*(dg.AssetSpec(key.split("/")) for key in ways), together, selection=[together])
    assert seen == [{"id": 1, "c0": 0, "c1": 1}]


def other_words(video):
    """A feature of a video that is defined otherwise."""
    other = Feature("video", ["id"], [Field("sound", "other")])
    return versioned_feature(name="words", id_columns=["id"], fields=["text"], deps=[other])(lambda increment: None)


def configured(kind):
    def words(increment, config):
        return increment.changed

    words.__annotations__["config"] = kind
    return words


def config_with(name, **more):
    return type("Mine", (dg.Config,), {"__annotations__": {name: str}, **more})


REFUSED = {
    "no increment": (
        lambda video: versioned_feature(name="f", id_columns=["id"], fields=["f"], deps=[video])(lambda: None),
        "depends on features, but takes no 'increment'",
    ),
    "an increment of nothing": (
        lambda video: versioned_feature(name="f", id_columns=["id"], fields=["f"])(lambda increment: None),
        "takes 'increment', but depends on no feature",
    ),
    "an ordinary asset": (
        lambda video: versioned_feature(
            name="f", id_columns=["id"], fields=["f"], deps=[dg.asset(name="plain")(lambda: 1)]
        )(lambda increment: None),
        r"The asset 'plain' is no feature.*Feature\('plain', id_columns",
    ),
    "a chunk of nothing": (
        lambda video: versioned_feature(name="f", id_columns=["id"], fields=["f"], deps=[video], chunk_size=0)(
            lambda increment: None
        ),
        "chunk_size of feature .* is 0",
    ),
    "chunks of a root": (
        lambda video: versioned_feature(name="f", id_columns=["id"], fields=["f"], chunk_size=5)(lambda: None),
        "returns all samples at once, and chunk_size has no meaning",
    ),
    "two definitions of one upstream": (
        lambda video: versioned_feature(
            name="f", id_columns=["id"], fields=["f"], deps=[video, FeatureDep(other_words(video))]
        )(lambda increment: None),
        "two definitions of feature 'video'",
    ),
    "static versions of another length than its upstream's": (
        lambda video: versioned_feature(name="f", id_columns=["id"], fields=["f"], deps=[video], version_length=16)(
            lambda increment: None
        ),
        r"would have \[8, 16\] digits. Nothing was defined",
    ),
    "static versions that are short": (
        lambda video: versioned_feature(name="f", id_columns=["id"], fields=["f"], version_length=7)(lambda: None),
        "would be cut to 7 digits",
    ),
    "an upstream that is nowhere": (
        lambda video: versioned_feature(name="f", id_columns=["id"], fields=["f"], deps=["nowhere"])(
            lambda increment: None
        ),
        "depends on 'nowhere', which is not in the graph",
    ),
    **{
        f"config with a field {name}": (
            lambda video, name=name: versioned_feature(name="f", id_columns=["id"], fields=["f"], deps=[video])(
                configured(config_with(name))
            ),
            f"The config Mine of feature 'f' has '{name}', which .* Nothing was defined; rename it",
        )
        for name in ("full", "dry_run", "stale_if", "where")
    },
    "config with a field that run config calls where": (
        lambda video: versioned_feature(name="f", id_columns=["id"], fields=["f"], deps=[video])(
            configured(config_with("place", place=pydantic.Field(alias="where")))
        ),
        "The config Mine of feature 'f' has 'where'",
    ),
    "config that is none": (
        lambda video: versioned_feature(name="f", id_columns=["id"], fields=["f"], deps=[video])(configured(dict)),
        "make it a dagster.Config without full, dry_run, stale_if, where",
    ),
    "an upstream of some columns": (
        lambda video: versioned_feature(
            name="f",
            id_columns=["id"],
            fields=["f"],
            deps=[video],
            ins={"in": dg.AssetIn("video", metadata={"dagster_versioned/columns": ["sound"]})},
        )(lambda increment: None),
        r"name the columns in FeatureDep\(select",
    ),
    "a field like a column of ours": (
        lambda video: versioned_feature(name="f", id_columns=["id"], fields=["metaxy_x"], deps=[video])(
            lambda increment: None
        ),
        "belong to the columns of versions",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_features_that_cannot_be_are_refused(pipeline, what):
    define, message = REFUSED[what]
    with pytest.raises(InvalidInput, match=message):
        define(pipeline.assets()[0])
