"""Samples that are stale by a condition, and increments of some samples alone: alike on both engines."""

import pyarrow as pa
import pytest

from dagster_versioned import FeatureGraph, Project, resolve_update
from dagster_versioned.engines.samples import SampleHash
from dagster_versioned.errors import InvalidInput
from dagster_versioned.features.definitions import Feature, FeatureDep, Field, FieldDep, Lineage
from dagster_versioned.features.resolve import sample_plan
from dagster_versioned.tables.feature_record import FeatureRecord
from support.feature_tables import BASE, counted, graph_of, loud, videos, words


def test_stored_samples_that_satisfy_a_condition_are_stale(either):
    graph = either.computed()
    asked = []
    result, increment = either.step(
        graph, "words", lambda rows: asked.append(rows) or loud(rows), stale_if="text = 'B'"
    )
    assert (counted(increment), asked[0]["id"].to_pylist(), increment.reasons) == ((0, 1, 0, 2), [2], {})
    assert result.change == "none"  # it came out as it was
    assert counted(either.step(graph, "words", loud)[1]) == (0, 0, 0, 3)


def test_what_changed_is_found_beside_a_condition(either):
    graph = either.computed()
    either.write_plain("video", videos((1, "A", "x"), *BASE[1:2], (4, "d", "w")))
    increment = either.step(graph, "words", loud, stale_if="text IN ('B', 'C') OR text IS NULL")[1]
    assert counted(increment) == (1, 2, 1, 0)


def test_a_unit_of_several_rows_is_stale_by_one_of_them(either):
    chunk = Feature("chunk", ["id", "n"], ["x"], [FeatureDep("video", lineage=Lineage.expansion(["id"]))])
    graph = graph_of(chunk)
    either.write_plain("video", videos(*BASE))

    def chunks(rows):
        pairs = [(i, n) for i in rows["id"].to_pylist() for n in (0, 1)]
        return pa.table({"id": [i for i, _ in pairs], "n": [n for _, n in pairs]})

    either.step(graph, "chunk", chunks)
    increment = either.step(graph, "chunk", chunks, stale_if="id = 2 AND n = 1")[1]
    assert counted(increment) == (0, 1, 0, 2)


def test_of_some_samples_alone_and_the_rest_later(either):
    graph = graph_of(words())
    either.write_plain("video", videos(*BASE))
    result, increment = either.step(graph, "words", loud, where={"video": "image = 'y' OR sound = 'c'"})
    assert (counted(increment), sorted(either.rows("words"))) == ((2, 0, 0, 0), [2, 3])
    assert FeatureRecord.of(result.version.identity.custom).left == 1
    result, increment = either.step(graph, "words", loud)
    assert (counted(increment), sorted(either.rows("words"))) == ((1, 0, 0, 2), [1, 2, 3])
    assert FeatureRecord.of(result.version.identity.custom).left == 0


def test_what_is_left_is_neither_lost_nor_taken_for_gone(either):
    graph = either.computed()
    either.write_plain("video", videos((1, "A", "x"), (2, "B", "y")))
    increment = either.step(graph, "words", loud, where={"video": "id > 1"})[1]
    assert counted(increment) == (0, 1, 1, 0)
    assert either.rows("words") == {1: {"id": 1, "text": "A"}, 2: {"id": 2, "text": "B"}}
    assert counted(either.step(graph, "words", loud)[1]) == (0, 1, 0, 1)


def test_conditions_on_several_upstreams_are_all_satisfied(either):
    """By their new names; a unit of which an upstream has no row satisfies none on that."""
    other = Feature("other", ["key"], [Field("size", columns=["size"])])
    both = Feature(
        "both",
        ["id"],
        [Field("all", deps=[FieldDep.all()])],
        [FeatureDep("video"), FeatureDep("other", rename={"key": "id", "size": "bytes"}, optional=True)],
    )
    graph = FeatureGraph([*graph_of(), other, both])
    either.write_plain("video", videos(*BASE))
    either.write_plain("other", pa.table({"key": [1, 2], "size": [10, 20]}))
    with either.resolve(graph, "both", where={"video": "sound <> 'a'", "other": "bytes > 5"}) as resolved:
        assert counted(resolved.increment) == (1, 0, 0, 0)
        assert either.arrow(resolved.increment.changed)["id"].to_pylist() == [2]


def test_chunks_of_some_samples_leave_the_others(tmp_path):
    project, graph = Project.open("HOUSE", str(tmp_path)), graph_of(words())
    with resolve_update(project, graph, "video", samples=videos(*BASE)) as update:
        update.write()
    for wrong in ("id < 3", ["id < 3"]):
        for feature, samples in (("words", None), ("video", videos(*BASE))):
            with pytest.raises(InvalidInput, match="Give each by its upstream"):
                resolve_update(project, graph, feature, samples=samples, where=wrong)
    with resolve_update(project, graph, "words", where={"video": "id < 3"}) as update:
        left = [part.asked.left for part in update.increment.chunks(1)]
    assert left == [2, 1]


def test_samples_of_a_project_may_be_stale_by_a_condition(tmp_path):
    project, graph = Project.open("HOUSE", str(tmp_path)), graph_of(words())
    for feature, samples, condition in (("video", videos(*BASE), "sound = 'a'"), ("words", None, "text = 'B'")):
        for stale_if, expected in ((None, (3, 0, 0, 0)), (condition, (0, 1, 0, 2))):
            with resolve_update(project, graph, feature, samples=samples, stale_if=stale_if) as update:
                assert counted(update.increment) == expected
                update.write(loud(update.increment.changed) if samples is None else None)


def test_conditions_that_cannot_be_are_refused(either):
    graph = either.computed()
    with pytest.raises(InvalidInput, match="there is no column 'other'"):
        either.resolve(graph, "words", stale_if="other = 1")
    with pytest.raises(InvalidInput, match=r"not computed from 'audio', but from \['video'\]"):
        either.resolve(graph, "words", where={"audio": "id = 1"})
    with pytest.raises(InvalidInput, match="there is no column 'other'"):
        either.resolve(graph, "words", where={"video": "other = 1"})
    with pytest.raises(InvalidInput, match="computed again, and yet only those where"):
        either.resolve(graph, "words", where={"video": "id = 1"}, full=True)
    with pytest.raises(InvalidInput, match=r"'video' has no upstream to which \{'x': 'y'\} could apply"):
        resolve_update(either.project, graph, "video", samples=videos(*BASE), where={"x": "y"})


@pytest.mark.parametrize("how", ["stale_if", "where"])
def test_a_condition_that_fails_on_a_row_is_named(either, how):
    graph = graph_of(words())
    either.write_plain("video", videos((1, "a", "1"), (2, "b", "2"), (3, "c", "x")))
    if how == "stale_if":
        either.step(graph, "words", loud)
    before = either.project.table("words").state.log_version if how == "stale_if" else None
    condition = "CAST(text AS INT) > 1" if how == "stale_if" else "CAST(sound AS INT) > 1"
    given = {"stale_if": condition} if how == "stale_if" else {"where": {"video": condition}}
    with pytest.raises(InvalidInput, match=r"(?s)INT.*Nothing was (computed or )?written") as info:
        either.step(graph, "words", loud, **given)
    assert condition in str(info.value)
    if before is not None:
        assert either.project.table("words").state.log_version == before
    else:
        assert not either.project.table("words").exists()


# --- fields of all upstreams -----------------------------------------------------------------------------------------


def test_a_field_may_depend_on_all_upstreams():
    """With the versions and the text of one that names them all."""
    above = [Feature("a", ["id"], ["x", "y"]), Feature("b", ["id"], ["x", "z"])]

    def graph(*deps):
        return FeatureGraph([*above, Feature("f", ["id"], [Field("all", "1", deps), Field("x")], above)])

    every, named = graph(FieldDep.all()), graph(FieldDep("a"), FieldDep("b"))
    assert [ref.text for ref in every.parents("f", "all")] == ["a.x", "a.y", "b.x", "b.z"]
    assert every.versions("f") == named.versions("f")
    assert sample_plan(every, "f", SampleHash()) == sample_plan(named, "f", SampleHash())
    again = Feature.from_json(every["f"].to_json())
    assert (again, again.fields[0].deps) == (every["f"], (FieldDep.all(),))
    with pytest.raises(InvalidInput, match=r"'\*' is no key"):
        FieldDep.from_json({"feature": "*", "fields": ["x"]})
    with pytest.raises(InvalidInput, match="'all' depends on all upstreams, and there is none"):
        Feature("root", ["id"], [Field("all", deps=[FieldDep.all()])])
