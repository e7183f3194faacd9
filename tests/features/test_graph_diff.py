"""What changed between two graphs of features, and why."""

import pytest
from features.test_graph import example, graphs
from hypothesis import given
from hypothesis import strategies as st

from dagster_versioned.features.definitions import Feature, FeatureDep, Field, FieldDep, FieldsMapping, Lineage
from dagster_versioned.features.graph import FeatureGraph
from dagster_versioned.features.graph_diff import DefinitionChange, FieldChange, graph_diff


def changes(before, after):
    return {change.key: change for change in graph_diff(before, after).features}


def test_the_seeds_example():
    """The audio of the videos has other code: so have crops and transcriptions, by way of it, and no face changed."""
    diff = graph_diff(example(), example("2"))
    assert [change.key for change in diff.features] == ["example/video", "example/crop", "example/stt"]
    assert diff.unchanged == 1
    assert (diff.before, diff.after) == (example().project_version, example("2").project_version)
    video, crop, stt = diff.features
    assert (video.before, video.after) == ("c2ac395f", "2faffb98")
    assert video.fields == (FieldChange("audio", "changed", "22742381", "09c8398b", code=("1", "2")),)
    assert crop.fields == (FieldChange("audio", "changed", "4c726c4b", "e2b6ce39", upstream=("example/video.audio",)),)
    assert [(field.key, field.upstream) for field in stt.fields] == [("transcription", ("example/video.audio",))]


def test_nothing_changed():
    diff = graph_diff(example(), example())
    assert not diff
    assert diff.unchanged == 4


def test_features_come_and_go():
    one, other = Feature("a", ["id"], ["x", "y"]), Feature("b", ["id"], ["z"])
    found = changes(FeatureGraph([one]), FeatureGraph([other]))
    assert [(key, each.change) for key, each in found.items()] == [("b", "added"), ("a", "removed")]
    assert [(field.key, field.change, field.after) for field in found["a"].fields] == [
        ("x", "removed", None),
        ("y", "removed", None),
    ]
    assert found["b"].after == FeatureGraph([other]).versions("b").feature


def test_fields_come_and_go_and_are_computed_from_others():
    root = Feature("r", ["id"], ["a", "b"])

    def graph(fields):
        return FeatureGraph([root, Feature("f", ["id"], fields, [root])])

    before = graph([Field("x", deps=[FieldDep("r", ["a"])]), Field("y")])
    after = graph([Field("x", deps=[FieldDep("r", ["b"])]), Field("z")])
    x, y, z = changes(before, after)["f"].fields
    assert (x.change, x.deps_added, x.deps_removed, x.upstream, x.code) == ("changed", ("r.b",), ("r.a",), (), None)
    assert (y.key, y.change, z.key, z.change) == ("y", "removed", "z", "added")


def test_other_columns_of_a_root_reach_what_is_below():
    def graph(columns):
        root = Feature("r", ["id"], [Field("a", columns=columns), Field("b", columns=["q"])])
        lower = Feature("f", ["id"], [Field("x", deps=[FieldDep("r", ["a"])]), Field("b")], [root])
        return FeatureGraph([root, lower])

    assert not changes(graph(["p", "q"]), graph(["q", "p"]))
    found = changes(graph(["p"]), graph(["p", "q"]))
    assert [(field.key, field.columns) for field in found["r"].fields] == [("a", (("p",), ("p", "q")))]
    assert [(field.key, field.upstream) for field in found["f"].fields] == [("x", ("r.a",))]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({}, {"filter": "n > 1"}, DefinitionChange("deps.r.filter", None, "n > 1")),
        ({"optional": True}, {}, DefinitionChange("deps.r.optional", True, None)),
        ({}, {"rename": {"n": "m"}}, DefinitionChange("deps.r.rename", None, {"n": "m"})),
        (
            {},
            {"lineage": Lineage.aggregation(["id"])},
            DefinitionChange("deps.r.lineage", None, {"kind": "aggregation", "on": ["id"]}),
        ),
        (
            {},
            {"fields_mapping": FieldsMapping.suffix()},
            DefinitionChange("deps.r.fields_mapping", None, {"match_suffix": True}),
        ),
    ],
)
def test_what_decides_which_samples_there_are(before, after, expected):
    root = Feature("r", ["id"], ["a"])

    def graph(options):
        return FeatureGraph([root, Feature("f", ["id"], ["a"], [FeatureDep(root, **options)])])

    change = changes(graph(before), graph(after))["f"]
    assert (change.definition, change.fields, change.before) == ((expected,), (), change.after)


def test_other_ids_and_another_upstream():
    roots = [Feature("r", ["id"], ["a"]), Feature("s", ["id"], ["a"])]
    before = FeatureGraph([*roots, Feature("f", ["id"], ["a"], ["r"])])
    after = FeatureGraph([*roots, Feature("f", ["id", "n"], ["a"], ["s"])])
    change = changes(before, after)["f"]
    assert change.definition == (
        DefinitionChange("deps.r", True, None),
        DefinitionChange("deps.s", None, True),
        DefinitionChange("id_columns", ["id"], ["id", "n"]),
    )
    assert [(field.deps_added, field.deps_removed) for field in change.fields] == [(("s.a",), ("r.a",))]


def test_versions_of_another_length_are_no_change():
    assert not graph_diff(example(), FeatureGraph(example(), hash_length=64))


@given(graphs(), graphs())
def test_a_field_changed_exactly_if_its_version_did(before, after):
    before, after = FeatureGraph(before, hash_length=64), FeatureGraph(after, hash_length=64)
    told = {
        (change.key, field.key)
        for change in graph_diff(before, after).features
        for field in change.fields
        if field.change == "changed"
    }
    assert told == {
        (feature.key, key)
        for feature in after
        if feature.key in before
        for key, version in after.versions(feature.key).fields.items()
        if before.versions(feature.key).fields.get(key, version) != version
    }


@given(graphs(), graphs())
def test_a_diff_and_its_reverse_say_the_same(before, after):
    there = {change.key: change for change in graph_diff(FeatureGraph(before), FeatureGraph(after)).features}
    back = {change.key: change for change in graph_diff(FeatureGraph(after), FeatureGraph(before)).features}
    reverse = {"added": "removed", "removed": "added", "changed": "changed"}
    assert {key: reverse[change.change] for key, change in back.items()} == {k: c.change for k, c in there.items()}
    assert all((there[key].before, there[key].after) == (change.after, change.before) for key, change in back.items())


@given(graphs(), st.randoms())
def test_the_order_of_definitions_is_no_change(features, random):
    shuffled = [
        Feature(
            feature.key, feature.id_columns, random.sample(feature.fields, k=len(feature.fields)), feature.deps[::-1]
        )
        for feature in random.sample(features, k=len(features))
    ]
    assert not graph_diff(FeatureGraph(features), FeatureGraph(shuffled))
