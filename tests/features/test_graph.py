"""Definitions of features and what follows from them."""

import hashlib
import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_versioned.errors import InvalidInput
from dagster_versioned.features.definitions import Feature, FeatureDep, Field, FieldDep, FieldsMapping, Lineage
from dagster_versioned.features.graph import FeatureGraph

RECORDED = Path(__file__).parents[3] / "shared" / "conformance" / "metaxy" / "recorded_run.txt"


def example(audio="1"):
    video = Feature("example/video", ["video_id"], [Field("audio", audio), Field("frames", "1")])
    crop = Feature("example/crop", ["video_id"], [Field("audio", "1"), Field("frames", "1")], [video])
    faces = Field("faces", "1", [FieldDep(crop, ["frames"])])
    transcription = Field("transcription", "1", [FieldDep(video, ["audio"])])
    return FeatureGraph(
        [
            Feature("example/stt", ["video_id"], [transcription], [video]),
            Feature("example/face_detection", ["video_id"], [faces], [crop]),
            crop,
            video,
        ]
    )


# feature version, code version, field versions: Metaxy's own, as recorded
BEFORE = {
    "example/video": ("c2ac395f", "7957714b", {"audio": "22742381", "frames": "794116a9"}),
    "example/crop": ("34d75856", "7957714b", {"audio": "4c726c4b", "frames": "2419e09d"}),
    "example/face_detection": ("f1526ee0", "0e1ef935", {"faces": "006efeef"}),
    "example/stt": ("d953dea4", "9b9ff878", {"transcription": "3ec3826d"}),
}
AFTER = {
    "example/video": ("2faffb98", "04b8ff55", {"audio": "09c8398b", "frames": "794116a9"}),
    "example/crop": ("fe237dc9", "7957714b", {"audio": "e2b6ce39", "frames": "2419e09d"}),
    "example/face_detection": ("f1526ee0", "0e1ef935", {"faces": "006efeef"}),
    "example/stt": ("e57e7555", "9b9ff878", {"transcription": "9f7ea40c"}),
}


def versions(graph):
    found = {feature.key: graph.versions(feature.key) for feature in graph}
    return {key: (each.feature, each.code, dict(each.fields)) for key, each in found.items()}


@pytest.mark.parametrize(("audio", "expected"), [("1", BEFORE), ("2", AFTER)], ids=["before", "after"])
def test_static_versions_are_metaxys(audio, expected):
    assert versions(example(audio)) == expected


@pytest.mark.conformance
def test_the_recorded_run_says_so():
    if not RECORDED.exists():
        pytest.skip("needs ../shared/conformance")
    lines = re.findall(
        r"feature_version=(\w+) code_version=(\w+) .*field_versions=(\{.*?\})", RECORDED.read_text(encoding="utf-8")
    )
    order = ["example/video", "example/crop", "example/face_detection", "example/stt"]
    recorded = [(feature, code, fields) for feature, code, fields in lines]
    ours = [(*each[:2], str(each[2])) for known in (BEFORE, AFTER) for each in (known[key] for key in order)]
    assert recorded == ours


def test_the_project_version_follows_from_the_feature_versions():
    # The seed's rule. Metaxy 0.1.11 itself hashes definitions with their schemas.
    text = "".join(key + BEFORE[key][0] for key in sorted(BEFORE))
    assert example().project_version == hashlib.sha256(text.encode()).hexdigest()[:8]
    assert example("2").project_version != example().project_version


def test_versions_can_be_longer():
    long = FeatureGraph(example(), hash_length=64).versions("example/video")
    assert len(long.feature) == 64
    assert long.fields["audio"].startswith(BEFORE["example/video"][2]["audio"])
    for length in (7, 65):
        with pytest.raises(InvalidInput, match=f"cut to {length} digits"):
            FeatureGraph([], hash_length=length)


def test_features_come_after_what_they_depend_on():
    graph = example()
    order = [feature.key for feature in graph]
    assert all(order.index(dep.feature) < order.index(feature.key) for feature in graph for dep in feature.deps)
    assert graph.downstream("example/video") == tuple(key for key in order if key != "example/video")
    assert graph.downstream("example/crop") == ("example/face_detection",)


UPSTREAM = ("audio/french", "audio/english", "french", "frames")


@pytest.mark.parametrize(
    ("mapping", "own", "expected"),
    [
        (FieldsMapping.default(), "frames", {"frames"}),
        (FieldsMapping.default(), "other", set(UPSTREAM)),
        (FieldsMapping.default(exclude=["french"]), "other", {"audio/french", "audio/english", "frames"}),
        (FieldsMapping.default(exclude=["frames"]), "frames", {"audio/french", "audio/english", "french"}),
        (FieldsMapping.suffix(), "french", {"audio/french", "french"}),
        (FieldsMapping.suffix(), "english", {"audio/english"}),
        (FieldsMapping.suffix(), "nch", set(UPSTREAM)),
        (FieldsMapping.specific({"faces": ["frames", "unknown"]}), "faces", {"frames"}),
        (FieldsMapping.specific({"faces": ["frames"]}), "other", set()),
        (FieldsMapping.all(), "frames", set(UPSTREAM)),
        (FieldsMapping.none(), "frames", set()),
    ],
)
def test_fields_without_deps_find_theirs_by_name(mapping, own, expected):
    assert mapping.parents(own, UPSTREAM) == expected


def test_a_field_with_deps_depends_on_these_alone():
    upper = Feature("u", ["id"], ["a", "b"])
    lower = Feature("l", ["id"], [Field("a", deps=[FieldDep("u", ["b"])]), Field("c", deps=[FieldDep(upper)])], ["u"])
    graph = FeatureGraph([upper, lower])
    assert [ref.text for ref in graph.parents("l", "a")] == ["u.b"]
    assert [ref.text for ref in graph.parents("l", "c")] == ["u.a", "u.b"]


names = st.sampled_from(["a", "b", "a/b", "c_1"])


@st.composite
def graphs(draw):
    features = []
    for number in range(draw(st.integers(1, 5))):
        keys = draw(st.lists(names, min_size=1, max_size=3, unique_by=lambda key: key.replace("/", "_")))
        upstream = draw(st.lists(st.sampled_from(features), max_size=2, unique=True)) if features else []
        mapping = draw(st.sampled_from([FieldsMapping.default(), FieldsMapping.all(), FieldsMapping.suffix()]))
        codes = st.sampled_from(["1", "2"])
        features.append(
            Feature(
                f"f{number}",
                ["id"],
                [Field(key, draw(codes)) for key in keys],
                [FeatureDep(each, fields_mapping=mapping) for each in upstream],
            )
        )
    return features


@given(graphs(), st.randoms())
def test_versions_do_not_depend_on_the_order_of_definitions(features, random):
    shuffled = list(features)
    random.shuffle(shuffled)
    assert versions(FeatureGraph(shuffled)) == versions(FeatureGraph(features))
    assert FeatureGraph(shuffled).project_version == FeatureGraph(features).project_version


@given(graphs())
def test_definitions_come_back_from_json(features):
    assert [Feature.from_json(json.loads(json.dumps(feature.to_json()))) for feature in features] == features


def test_all_of_a_definition_comes_back_from_json():
    dep = FeatureDep(
        "u",
        {"a": "b"},
        ["b"],
        "b > 1",
        optional=True,
        lineage=Lineage.aggregation(["b"]),
        fields_mapping=FieldsMapping.specific({"c": ["d"]}),
    )
    field = Field("c", "2", [FieldDep("u", ["d"]), FieldDep("v")])
    feature = Feature("f", ["id"], [field, Field("e")], [dep, FeatureDep("v", fields_mapping=FieldsMapping.suffix())])
    assert Feature.from_json(json.loads(json.dumps(feature.to_json()))) == feature
    root = Feature("r", ["id"], [Field("a", columns=["x", "y"])])
    assert Feature.from_json(root.to_json()) == root


@given(graphs(), st.data())
def test_a_bump_changes_the_versions_of_exactly_the_fields_that_depend_on_it(features, data):
    before = FeatureGraph(features)
    number = data.draw(st.integers(0, len(features) - 1))
    bumped = features[number]
    field = data.draw(st.sampled_from(bumped.fields))
    fields = [Field(each.key, "3" if each == field else each.code_version) for each in bumped.fields]
    features = [*features[:number], Feature(bumped.key, ["id"], fields, bumped.deps), *features[number + 1 :]]
    after = FeatureGraph(features)
    reached = {(bumped.key, field.key)}
    for feature in after:
        for each in feature.fields:
            if any((ref.feature, ref.field) in reached for ref in after.parents(feature.key, each.key)):
                reached.add((feature.key, each.key))
    changed = {
        (feature.key, each.key)
        for feature in after
        for each in feature.fields
        if after.versions(feature.key).fields[each.key] != before.versions(feature.key).fields[each.key]
    }
    assert changed == reached


REFUSED = {
    "a space": (lambda: Feature("a b", ["id"]), "no key of a feature or field"),
    "an empty part": (lambda: Feature("a//b", ["id"]), "no key of a feature or field"),
    "a dot": (lambda: Field("a.b"), "no key of a feature or field"),
    "a way up": (lambda: Field("../a"), "no key of a feature or field"),
    "a bar": (lambda: Field("a", "1|2"), "without '|'"),
    "no ids": (lambda: Feature("f", []), "its id columns are"),
    "an id twice": (lambda: Feature("f", ["id", "id"]), "its id columns are"),
    "an id of ours": (lambda: Feature("f", ["metaxy_id"]), "belong to the columns of versions"),
    "a field of ours": (lambda: Field("metaxy_provenance"), "belong to the columns of versions"),
    "no field": (lambda: Feature("f", ["id"], []), "it has no field"),
    "a field twice": (lambda: Feature("f", ["id"], ["a", "a"]), "have one name"),
    "a field twice, of two codes": (lambda: Feature("f", ["id"], [Field("a", "1"), Field("a", "2")]), "one name"),
    "fields that differ in case": (lambda: Feature("f", ["id"], ["a", "A"]), "have one name"),
    "ids that differ in case": (lambda: Feature("f", ["id", "ID"]), "its id columns are"),
    "fields of one name": (lambda: Feature("f", ["id"], ["a/b", "a_b"]), "have one name"),
    "an upstream twice": (lambda: Feature("f", ["id"], ["a"], ["g", "g"]), "depends on a feature twice"),
    "a field's own upstream": (
        lambda: Feature("f", ["id"], [Field("a", deps=[FieldDep("g")])]),
        "on which the feature does not",
    ),
    "columns and upstream": (lambda: Feature("f", ["id"], [Field("a", columns=["x"])], ["g"]), "names columns"),
    "two columns made one": (lambda: FeatureDep("g", rename={"a": "c", "b": "c"}), "renames two columns to one"),
    "a column of ours": (lambda: FeatureDep("g", rename={"a": "metaxy_a"}), "belong to the columns of versions"),
    "an unknown upstream": (lambda: FeatureGraph([Feature("f", ["id"], ["a"], ["g"])]), "is not in the graph"),
    "a cycle": (
        lambda: FeatureGraph([Feature("f", ["id"], ["a"], ["g"]), Feature("g", ["id"], ["a"], ["f"])]),
        "depend on themselves: f -> g -> f",
    ),
    "two definitions": (
        lambda: FeatureGraph([Feature("f", ["id"]), Feature("f", ["no"])]),
        "two definitions of feature 'f'",
    ),
    "an unknown field": (
        lambda: FeatureGraph(
            [Feature("g", ["id"]), Feature("f", ["id"], [Field("b", deps=[FieldDep("g", ["x"])])], ["g"])]
        ),
        r"depends on the fields \['x'\] of 'g'",
    ),
    "a field from nothing": (
        lambda: FeatureGraph(
            [Feature("g", ["id"]), Feature("f", ["id"], ["b"], [FeatureDep("g", fields_mapping=FieldsMapping.none())])]
        ),
        "depends on no field",
    ),
    "an unknown feature": (lambda: FeatureGraph([])["f"], "no feature 'f'"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_definitions_that_cannot_be_are_refused(what):
    define, message = REFUSED[what]
    with pytest.raises(InvalidInput, match=message):
        define()


def test_the_same_definition_twice_is_one():
    assert [feature.key for feature in FeatureGraph([Feature("f", ["id"]), Feature("f", ["id"])])] == ["f"]
