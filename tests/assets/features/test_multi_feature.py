"""Several features in one asset: one call of the function, an increment and a commit for each."""

import sys
import types
from collections.abc import Mapping

import dagster as dg
import polars as pl
import pyarrow as pa
import pytest

from dagster_versioned import (
    Feature,
    FeatureDep,
    Field,
    FieldDep,
    Increment,
    feature_of,
    versioned_feature,
    versioned_multi_feature,
)
from dagster_versioned.assets.code_location import features_of_module
from dagster_versioned.assets.feature_definition import definitions_in
from dagster_versioned.errors import InvalidInput, VersionedError
from dagster_versioned.features.upstream_files import UpstreamFiles
from support.feature_tables import BASE, VIDEO, videos
from support.house import changes, materializations


def definitions(text="1", shape="1", above=VIDEO):
    """Words from the sound of videos and faces from their images, of keys with a prefix."""
    return [
        Feature("media/words", ["id"], [Field("text", text, [FieldDep(above, ["sound"])])], [above]),
        Feature("media/faces", ["id"], [Field("shape", shape, [FieldDep(above, ["image"])])], [above]),
    ]


class Split:
    """Videos, and an asset that computes words and faces of them; what each call was asked for."""

    def __init__(self, rows=BASE):
        self.rows = list(rows)
        self.calls = []
        self.spoils = set()
        self.fails = 0

    def video(self):
        @versioned_feature(id_columns=["id"], fields=VIDEO.fields)
        def video():
            return videos(*self.rows)

        return video

    def assets(self, features=None, **options):
        @versioned_multi_feature(features=features or definitions(), **options)
        def split(increments):
            self.calls.append({key: one.changed["id"].to_pylist() for key, one in increments.items()})
            found = {key: one.changed.select(["id"]) for key, one in increments.items()}
            if self.fails:
                self.fails -= 1
                raise RuntimeError("as the test asked")
            return {key: rows.slice(key in self.spoils) for key, rows in found.items()}

        return [self.video(), split]

    def run(self, house, *, features=None, selection=None, config=None, raises=True, **options):
        self.calls = []
        return house.run(
            *self.assets(features, **options),
            selection=selection,
            run_config={"ops": {"split": {"config": config}}} if config else None,
            raise_on_error=raises,
        )


@pytest.fixture
def split():
    return Split()


def ids(house, key):
    return sorted(row["id"] for row in house.project.table(key.split("/")).read().to_pylist())


def test_one_call_computes_all_and_each_is_a_version_of_its_own(house, split):
    result = split.run(house)
    assert split.calls == [{"media/words": [1, 2, 3], "media/faces": [1, 2, 3]}]
    assert changes(result) == {"video": "full", "media/words": "full", "media/faces": "full"}
    result = split.run(house)
    assert (split.calls, changes(result)) == ([], {"video": "none", "media/words": "none", "media/faces": "none"})
    split.rows = [(1, "other", "x"), (2, "b", "y"), (4, "d", "w")]
    result = split.run(house)
    assert split.calls == [{"media/words": [1, 4], "media/faces": [4]}]
    assert ids(house, "media/words") == ids(house, "media/faces") == [1, 2, 4]
    metadata = materializations(result)["media/faces", None].metadata
    assert [metadata[f"dagster_versioned/samples_{kind}"].value for kind in ("new", "stale", "orphaned")] == [1, 0, 1]


def test_a_feature_without_stale_samples_keeps_its_data(house, split):
    split.run(house)
    before = house.project.table(["media", "faces"]).version()
    split.rows[0] = (1, "other", "x")
    split.run(house)
    assert split.calls == [{"media/words": [1], "media/faces": []}]
    after = house.project.table(["media", "faces"]).version()
    assert after.metadata_sha != before.metadata_sha  # built from another version of the videos
    assert after.identity.data_sha == before.identity.data_sha


def test_each_bump_of_code_concerns_its_own_feature(house, split):
    split.run(house)
    split.run(house, features=definitions(shape="2"))
    assert split.calls == [{"media/words": [], "media/faces": [1, 2, 3]}]
    one, other = (split.assets(definitions(shape=code))[1] for code in "12")
    assert {
        key.to_user_string() for key in one.keys if one.code_versions_by_key[key] != other.code_versions_by_key[key]
    } == {"media/faces"}


@pytest.mark.parametrize("name", ["words", "faces"])
def test_a_subset_computes_the_selected_alone(house, split, name):
    house.run(split.video())
    key = dg.AssetKey(["media", name])
    result = split.run(house, selection=[key], can_subset=True)
    assert split.calls == [{f"media/{name}": [1, 2, 3]}]
    assert changes(result) == {f"media/{name}": "full"}
    split.run(house, selection=[dg.AssetKey(["media", one]) for one in ("words", "faces")], can_subset=True)
    (call,) = split.calls
    assert sorted(map(len, call.values())) == [0, 3]


def test_without_can_subset_dagster_refuses_a_part(house, split):
    house.run(split.video())
    with pytest.raises((dg.DagsterInvalidSubsetError, dg.DagsterInvalidDefinitionError)):
        split.run(house, selection=[dg.AssetKey(["media", "words"])])


def test_rows_that_are_refused_leave_what_was_committed_before_and_a_retry_computes_the_rest(house, split):
    split.spoils = {"media/faces"}
    result = split.run(house, raises=False)
    assert not result.success
    assert ids(house, "media/words") == [1, 2, 3]
    assert not house.project.table(["media", "faces"]).exists()
    split.spoils = set()
    split.run(house)
    assert split.calls == [{"media/words": [], "media/faces": [1, 2, 3]}]


def test_dagsters_own_retry_calls_the_function_again(house, split):
    split.fails = 1
    result = split.run(house, retry_policy=dg.RetryPolicy(max_retries=1))
    assert result.success
    assert len(split.calls) == 2
    assert ids(house, "media/faces") == [1, 2, 3]


def test_a_function_that_fails_commits_nothing(house, split):
    split.fails = 1
    assert not split.run(house, raises=False).success
    assert [str(name) for name in house.project.tables()] == ["video"]


def test_run_config_counts_for_all(house, split):
    split.run(house)
    dry = split.run(house, config={"dry_run": True, "full": True})
    assert (split.calls, changes(dry)) == ([], {"video": "none"})
    observed = [
        event.event_specific_data.asset_observation.asset_key.to_user_string()
        for event in dry.all_events
        if event.event_type_value == "ASSET_OBSERVATION"
    ]
    assert sorted(observed) == ["media/faces", "media/words"]
    split.run(house, config={"full": True})
    assert split.calls == [{"media/words": [1, 2, 3], "media/faces": [1, 2, 3]}]
    split.run(house, config={"stale_if": "id = 2"})
    assert split.calls == [{"media/words": [2], "media/faces": [2]}]


def test_upstreams_are_those_of_the_feature(house, split):
    """Each is built from its own, also where another one of the asset has more; and a subset reads no others."""
    sound, image = (Feature(name, ["id"], [Field(name, columns=[name])]) for name in ("sound", "image"))
    features = [
        Feature("words", ["id"], ["text"], [sound]),
        Feature("faces", ["id"], ["shape"], [image]),
        Feature("both", ["id"], ["both"], [sound, image]),
    ]
    rows = videos(*BASE)
    house.project.table("sound").write(rows.select(["id", "sound"]))
    (_, asset) = split.assets(features, can_subset=True)
    sources = [dg.AssetSpec(name).with_io_manager_key("io_manager") for name in ("sound", "image")]
    house.run(*sources, asset, selection=["words"])
    assert split.calls == [{"words": [1, 2, 3]}]
    house.project.table("image").write(rows.select(["id", "image"]))
    house.run(*sources, asset)
    assert [table for table, _, _ in house.parents("words")] == ["sound"]
    assert [table for table, _, _ in house.parents("faces")] == ["image"]
    assert sorted(table for table, _, _ in house.parents("both")) == ["image", "sound"]


def test_features_below_name_a_feature_of_the_asset(house, split):
    words, _ = features = definitions(above=split.video())
    video, asset = split.assets(features)

    @versioned_feature(id_columns=["id"], fields=["length"], deps=[words])
    def length(increment):
        return increment.changed.select(["id"])

    house.run(video, asset, length)
    assert ids(house, "length") == [1, 2, 3]
    assert [each.key for each in definitions_in(length.metadata_by_key[length.key])] == [
        "video",
        "media/words",
        "length",
    ]
    for refused in (lambda: FeatureDep(asset), lambda: Feature("x", ["id"], deps=[asset]), lambda: feature_of(asset)):
        with pytest.raises(InvalidInput, match=r"is no single feature.*Name one of its features by the Feature"):
            refused()


def test_roots_are_returned_by_feature(house, split):
    rows = {"cats": videos(*BASE), "dogs": videos(*BASE[:1])}
    called = []

    @versioned_multi_feature(
        features=[Feature(name, ["id"], VIDEO.fields) for name in rows],
    )
    def zoo():
        called.append(1)
        return rows

    assert changes(house.run(zoo)) == {"cats": "full", "dogs": "full"}
    rows["dogs"] = videos(*BASE[1:])
    assert changes(house.run(zoo)) == {"cats": "none", "dogs": "full"}
    assert (len(called), ids(house, "dogs")) == (2, [2, 3])


def test_partitions_are_a_call_each(house):
    days = dg.StaticPartitionsDefinition(["mon", "tue"])
    calls = []

    @versioned_feature(
        id_columns=["id"], fields=VIDEO.fields, partitions_def=days, backfill_policy=dg.BackfillPolicy.single_run()
    )
    def video(context: dg.AssetExecutionContext):
        return {key: videos((int(key == "tue"), key, "x")) for key in context.partition_keys}

    @versioned_multi_feature(
        features=definitions(), partitions_def=days, backfill_policy=dg.BackfillPolicy.single_run()
    )
    def split(increments):
        calls.append({(key, one.partition): one.changed["id"].to_pylist() for key, one in increments.items()})
        return {key: one.changed.select(["id"]) for key, one in increments.items()}

    tags = {"dagster/asset_partition_range_start": "mon", "dagster/asset_partition_range_end": "tue"}
    for _ in range(2):
        house.run(video, split, tags=tags)
    assert calls == [
        {("media/words", day): [number], ("media/faces", day): [number]} for number, day in enumerate(["mon", "tue"])
    ]
    for name in ("words", "faces"):
        table = house.project.table(["media", name])
        assert {one.partition for one in table.choose(None).versions} == {"mon", "tue"}


def test_increments_are_frames_of_the_annotated_type(house, split):
    seen = []

    @versioned_multi_feature(features=definitions())
    def split_up(increments: Mapping[str, Increment[pl.DataFrame]]):
        seen.extend(type(one.changed) for one in increments.values())
        return {key: one.changed.select("id") for key, one in increments.items()}

    house.run(split.video(), split_up)
    assert seen == [pl.DataFrame, pl.DataFrame]


def test_the_features_of_the_asset_are_features_of_its_module(split, monkeypatch):
    module = types.ModuleType("split_features")
    module.assets = split.assets(definitions(above=split.video()))
    monkeypatch.setitem(sys.modules, "split_features", module)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert sorted(each.key for each in features_of_module("split_features")) == ["media/faces", "media/words", "video"]


def test_what_is_said_of_an_output_stays(split):
    key = dg.AssetKey(["media", "words"])
    spec = dg.AssetSpec(key, metadata={"mine": 1}, owners=["ada@example.org"], tags={"kind": "text"})
    _, asset = split.assets(specs=[spec], group_name="media", io_manager_key="other")
    found = asset.specs_by_key[key]
    assert (found.metadata["mine"], found.owners, found.tags["kind"]) == (1, ["ada@example.org"], "text")
    assert {one.group_name for one in asset.specs} == {"media"}
    assert found.code_version


WORDS = dg.AssetSpec(["media", "words"])


@pytest.mark.parametrize(
    ("features", "options", "problem"),
    [
        ([], {}, r"The features \[\] are none"),
        ([VIDEO, VIDEO], {}, "two have one name"),
        ([Feature("a/b", ["id"]), Feature("a__b", ["id"])], {}, "two have one name"),
        (definitions(above=VIDEO), {"specs": [dg.AssetSpec("other")]}, "spec of 'other', which is none"),
        ([*definitions(), "video"], {}, "'video' is no Feature"),
        (definitions(), {"specs": ["media/words"]}, "'media/words' is no AssetSpec"),
        (definitions(), {"specs": [WORDS, WORDS]}, r"two specs of 'media/words'"),
        (
            definitions(),
            {"specs": [dg.AssetSpec(WORDS.key, deps=["other"], code_version="2")]},
            r"'media/words' by deps, code_version.*inputs",
        ),
        (
            definitions(),
            {"specs": [dg.AssetSpec(WORDS.key, partitions_def=dg.StaticPartitionsDefinition(["mon"]))]},
            r"'media/words' by partitions_def",
        ),
        (definitions(), {"specs": [dg.AssetSpec(WORDS.key, group_name="a")], "group_name": "b"}, "group_name"),
        ([VIDEO, *definitions()], {}, "depend on others, and some on none"),
        (
            [Feature("a", ["id"], deps=[VIDEO]), Feature("b", ["id"], deps=["a"])],
            {},
            r"depend on each other: 'b' on \['a'\]",
        ),
        ([Feature("a", ["id"], project="VIDEOS")], {}, "have 'a', which VIDEOS computes"),
        (definitions(above=Feature("video", ["id"], ["other"])), {}, r"fields \['sound'\] of 'video'"),
    ],
)
def test_features_that_do_not_fit_are_refused(features, options, problem):
    with pytest.raises(InvalidInput, match=problem):
        versioned_multi_feature(features=features, **options)


def test_a_function_without_its_parameter_is_refused():
    with pytest.raises(InvalidInput, match=r"features \['media/words', 'media/faces'\] .* takes no 'increments'"):
        versioned_multi_feature(features=definitions())(lambda config: config)
    with pytest.raises(InvalidInput, match="takes 'increments', but depends on no feature"):
        versioned_multi_feature(features=[VIDEO])(lambda increments: {})


@pytest.mark.parametrize("ins", [{}, {"video": dg.AssetIn()}, {"video": dg.AssetIn("video", metadata={"mine": 1})}])
def test_an_upstream_in_a_parameter_of_its_own_is_refused(ins):
    """Dagster would find two inputs of one asset, and say that one cannot be resolved."""

    def split(increments, video: pa.Table):
        raise AssertionError

    def one(increment, video: pa.Table):
        raise AssertionError

    for define, body in (
        (versioned_multi_feature(features=definitions(), ins=ins), split),
        (versioned_feature(id_columns=["id"], fields=["one"], deps=[VIDEO], ins=ins), one),
    ):
        with pytest.raises(InvalidInput, match=r"takes 'video', which is its upstream 'video'.*in 'increment"):
            define(body)


def test_a_resource_may_have_the_name_of_an_upstream(house, split):
    class Rate(dg.ConfigurableResource):
        of: int

    seen = []

    @versioned_multi_feature(features=definitions())
    def split_up(increments, video: Rate):
        seen.append(video.of)
        return {key: one.changed.select(["id"]) for key, one in increments.items()}

    house.run(split.video(), split_up, resources={"video": Rate(of=3)})
    assert seen == [3]


@pytest.mark.parametrize(
    ("returned", "problem"),
    [
        (None, "returned a NoneType"),
        (pa.table({"id": [1]}), "returned a Table"),
        ({"media/words": None, "other": None}, r"returned frames of \['media/words', 'other'\]"),
        ({"media/faces": pa.table({"id": [1, 2, 3]})}, "'media/words' returned None, but 3 samples were asked for"),
    ],
)
def test_what_a_function_may_not_return(house, split, returned, problem):
    @versioned_multi_feature(features=definitions())
    def split_up(increments):
        return returned

    with pytest.raises(VersionedError, match=problem):
        house.run(split.video(), split_up)
    assert [str(name) for name in house.project.tables()] == ["video"]


def test_an_io_manager_that_stores_no_tables_is_refused(house, split):
    _, asset = split.assets(io_manager_key="other")
    with pytest.raises(InvalidInput, match="FilesystemIOManager, which stores no versioned tables"):
        house.run(split.video(), asset, resources={"other": dg.FilesystemIOManager()})


def test_any_other_multi_asset_gets_the_files_that_it_asks_for_whatever_is_selected(house, split):
    house.run(split.video())
    seen = []

    @dg.multi_asset(
        outs={name: dg.AssetOut(is_required=False) for name in ("one", "two")},
        internal_asset_deps={"one": {dg.AssetKey("video")}, "two": set()},
        can_subset=True,
    )
    def pair(video: UpstreamFiles):
        seen.append(video.read(pa.Table).num_rows)
        yield dg.Output(pa.table({"id": [1]}), "two")

    house.run(split.video(), pair, selection=["two"])
    assert seen == [3]
