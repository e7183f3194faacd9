"""Definitions as they were pushed: kept, found, compared, and believed only if they are what was pushed."""

import contextlib
import hashlib
import json
import random
import threading
from datetime import UTC, datetime, timedelta

import pytest
from features.test_graph import example, graphs, versions
from hypothesis import given
from hypothesis import strategies as st

from dagster_versioned.errors import (
    AmbiguousVersion,
    IntegrityError,
    InvalidInput,
    InvalidReference,
    ProjectMoved,
    UnsupportedFeature,
    VersionNotFound,
)
from dagster_versioned.features.definitions import Feature, FeatureDep, Field, FieldDep, FieldsMapping, Lineage
from dagster_versioned.features.graph import FeatureGraph
from dagster_versioned.features.snapshots import FOLDER, GraphHistory, parse_snapshot, snapshot_bytes
from dagster_versioned.governance.fence import is_moved_with
from dagster_versioned.projects.project import Project
from dagster_versioned.storage.location import Location
from dagster_versioned.tables.relocation.migration_mark import MigrationMark, put_mark
from support.hooked_store import HookedStore
from support.stores import contents


@pytest.fixture
def project(tmp_path):
    return Project.open("VIDEOS", str(tmp_path / "store"), author="Ada <ada@example.org>")


@pytest.fixture
def history(project):
    return GraphHistory(project)


def test_a_push_records_the_definitions_and_says_what_changed(history):
    first = history.push(example(), why="ticket 12")
    assert (first.push.number, first.push.by, first.push.why) == (0, "Ada <ada@example.org>", "ticket 12")
    assert {change.change for change in first.diff.features} == {"added"}
    second = history.push(example("2"))
    assert [change.key for change in second.diff.features] == ["example/video", "example/crop", "example/stt"]
    assert [push.number for push in history.pushes()] == [1, 0]
    assert history.pushes(limit=1) == [second.push]
    with pytest.raises(InvalidInput, match="The limit is -1"):
        history.pushes(limit=-1)
    assert versions(history.graph(first.push)) == versions(example())
    assert versions(history.graph(second.push)) == versions(example("2"))
    assert second.push.project_version == example("2").project_version


def test_the_same_definitions_are_not_pushed_twice(history, project):
    history.push(example())
    before = contents(project.data)
    again = history.push(FeatureGraph(reversed(list(example()))))
    assert (again.push, again.is_same, bool(again.diff)) == (None, True, False)
    assert contents(project.data) == before


def test_definitions_that_come_back_are_a_push_with_the_first_snapshot(history):
    first, second = history.push(example()).push, history.push(example("2")).push
    third = history.push(example()).push
    assert third.number == 2
    assert third.snapshot == first.snapshot != second.snapshot


def test_a_dry_run_pushes_nothing(history, project):
    report = history.push(example(), dry_run=True)
    assert (report.push, report.is_same, len(report.diff.features)) == (None, False, 4)
    assert contents(project.data) == {}


def test_a_push_is_found_by_number_digits_and_time(history):
    first, second = history.push(example()).push, history.push(example("2")).push
    assert history.find(None) == second
    assert history.find("@0") == history.find(0) == first
    assert history.find(first.snapshot[:6]) == first
    assert history.find(first.project_version) == first
    assert history.find(first.at) == first
    assert history.find((second.at + timedelta(days=1)).isoformat()) == second
    third = history.push(example()).push
    assert history.find(first.snapshot) == third  # the newest of these definitions


def test_a_push_that_is_not_there(history):
    for reference in (None, "@0"):
        with pytest.raises(VersionNotFound, match="No definitions were pushed"):
            history.find(reference)
    history.push(example())
    for reference in ("@1", "abcdef012345", datetime(2000, 1, 1, tzinfo=UTC)):
        with pytest.raises(VersionNotFound, match="None of the 1 pushes"):
            history.find(reference)
    with pytest.raises(InvalidReference, match="names no push"):
        history.find("pin:audit")
    with pytest.raises(InvalidReference, match="names no push"):
        history.find("tag:2026-11")


def test_digits_that_several_snapshots_share(history):
    # Ids are no part of the versions of features, so these have one project version.
    for name in ("id", "key"):
        history.push(FeatureGraph([Feature("f", [name])]))
    shared = history.pushes()[0].project_version
    with pytest.raises(AmbiguousVersion, match=r"@1 \(.*@0 \("):
        history.find(shared)


def test_of_two_who_push_at_once_one_comes_after_the_other(project):
    other = GraphHistory(project)
    hooked = HookedStore(project.store, "put_if_absent", "0.json", lambda: other.push(example("2")))
    report = GraphHistory(project.at(hooked)).push(example())
    assert report.push.number == 1
    assert [change.key for change in report.diff.features] == ["example/video", "example/crop", "example/stt"]
    assert [each.number for each in other.pushes()] == [1, 0]


def test_of_two_who_push_the_same_at_once_one_has_nothing_to_push(project):
    other = GraphHistory(project)
    hooked = HookedStore(project.store, "put_if_absent", "pushes/" + "0" * 20 + ".json", lambda: other.push(example()))
    report = GraphHistory(project.at(hooked)).push(example())
    assert (report.push, report.is_same) == (None, True)
    assert len(other.pushes()) == 1


def test_many_who_push_at_once_lose_nothing(project):
    pushed, barrier = [], threading.Barrier(8)

    def push(number):
        barrier.wait()
        pushed.append(GraphHistory(project).push(FeatureGraph([Feature(f"f{number}", ["id"])])).push)

    threads = [threading.Thread(target=push, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = GraphHistory(project).pushes()
    assert [push.number for push in found] == list(range(7, -1, -1))
    assert sorted(pushed, key=lambda push: -push.number) == found
    graphs = map(GraphHistory(project).graph, found)
    assert {feature.key for graph in graphs for feature in graph} == {f"f{number}" for number in range(8)}


def mark(state="leaving"):
    return MigrationMark("m-1", state, Location.parse("/old"), Location.parse("/new"), "2026-01-01T00:00:00Z")


def test_nothing_is_pushed_to_a_place_that_the_project_leaves(history, project):
    history.push(example())
    put_mark(project.data, mark())
    before = contents(project.data)
    with pytest.raises(ProjectMoved):
        history.push(example("2"))
    assert contents(project.data) == before
    assert history.push(example()).is_same


def test_what_was_pushed_moves_with_the_project(history, project):
    history.push(example())
    belongs = is_moved_with(project)
    keys = list(contents(project.data))
    assert len(keys) == 2
    assert all(map(belongs, keys))


def test_a_push_that_a_migration_may_not_have_seen_is_taken_back(project):
    key = "pushes/" + "0" * 20 + ".json"
    hooked = HookedStore(project.store, "put_if_absent", key, lambda: put_mark(project.data, mark()))
    with pytest.raises(ProjectMoved):
        GraphHistory(project.at(hooked)).push(example())
    assert GraphHistory(project).pushes() == []


# --- what is stored --------------------------------------------------------------------------------------------------


def everything():
    """Features with all that a definition may have, each in the order in which it is stored."""
    root = Feature("a/root", ["id", "n"], [Field("audio/french", "7"), Field("x", columns=["p", "q"])])
    other = Feature("b", ["key"], ["x", "z"])
    deps = [
        FeatureDep(
            root,
            {"p": "r", "id": "key"},
            ["r"],
            "r > 1 AND r <> 'ä\"'",
            optional=True,
            lineage=Lineage.aggregation(["key"]),
            fields_mapping=FieldsMapping.specific({"x": ["x"], "y": ["audio/french"]}),
        ),
        FeatureDep(other, fields_mapping=FieldsMapping.suffix(exclude=["z"])),
    ]
    fields = [Field("x", deps=[FieldDep(root, ["x"]), FieldDep(other)]), Field("y", "1.0 ä")]
    expanded = FeatureDep("c", lineage=Lineage.expansion(["key"]), fields_mapping=FieldsMapping.all())
    return [root, other, Feature("c", ["key"], fields, deps), Feature("d", ["key", "chunk"], ["w"], [expanded])]


def test_all_of_a_definition_is_kept():
    graph = FeatureGraph(everything(), hash_length=20)
    found = parse_snapshot(snapshot_bytes(graph), "here")
    assert {feature.key: feature for feature in found} == {feature.key: feature for feature in graph}
    assert (found.hash_length, found.project_version) == (20, graph.project_version)


@given(graphs(), st.randoms())
def test_equal_definitions_are_equal_bytes(features, seeded):
    shuffled = [
        Feature(f.key, f.id_columns, seeded.sample(f.fields, k=len(f.fields)), f.deps[::-1])
        for f in seeded.sample(features, k=len(features))
    ]
    assert snapshot_bytes(FeatureGraph(shuffled)) == snapshot_bytes(FeatureGraph(features))
    again = parse_snapshot(snapshot_bytes(FeatureGraph(features)), "here")
    assert snapshot_bytes(again) == snapshot_bytes(FeatureGraph(features))


def test_the_bytes_of_a_snapshot_do_not_change_from_release_to_release():
    # Names of snapshots that users have written down.
    assert hashlib.sha256(snapshot_bytes(example())).hexdigest()[:16] == "68b439daf3ffc2db"
    assert hashlib.sha256(snapshot_bytes(FeatureGraph(everything()))).hexdigest()[:16] == "15bc48784023f598"


def test_an_altered_snapshot_is_not_believed(history, project):
    push = history.push(example()).push
    key = f"{FOLDER}/snapshots/{push.snapshot}.json"
    data = project.data.get(key)
    project.data.put(key, data.replace(b'"frames"', b'"frame5"'))
    with pytest.raises(IntegrityError, match="not what was pushed"):
        history.graph(push)
    with pytest.raises(IntegrityError, match="not what was pushed"):
        history.push(example("2"))
    project.data.delete([key])
    with pytest.raises(IntegrityError, match="is missing"):
        history.graph(push)


def test_a_snapshot_that_was_there_with_other_bytes_is_not_pushed_onto(history, project):
    name = hashlib.sha256(snapshot_bytes(example())).hexdigest()
    project.data.put(f"{FOLDER}/snapshots/{name}.json", b"{}")
    with pytest.raises(IntegrityError, match="Nothing was pushed"):
        history.push(example())
    assert history.pushes() == []


def document(change):
    members = json.loads(snapshot_bytes(FeatureGraph(everything())))
    change(members)
    return json.dumps(members).encode()


def feature(members, key="c"):
    return next(each for each in members["features"] if each["key"] == key)


WRONG = {
    "no JSON": (b"\xff", "no JSON object"),
    "no object": (b"[]", "no JSON object"),
    "no version": (b"{}", "no JSON object"),
    "a version of no number": (document(lambda m: m.update(schema_version="1")), "schema_version"),
    "an unknown member": (document(lambda m: m.update(more=1)), "more: Extra inputs"),
    "an unknown member of a field": (
        document(lambda m: feature(m)["fields"][0].update(more=1)),
        r"features.2.fields.0.more: Extra inputs",
    ),
    "a short hash": (document(lambda m: m.update(hash_length=7)), "hash_length"),
    "a missing member": (document(lambda m: feature(m).pop("fields")), "fields: Field required"),
    "a text for a list": (document(lambda m: feature(m).update(id_columns="key")), "id_columns: Input should be a"),
    "a number for a text": (document(lambda m: feature(m)["fields"][0].update(code_version=1)), "code_version: Input"),
    "a text for a truth": (document(lambda m: feature(m)["deps"][0].update(optional="no")), "optional: Input"),
    "an unknown lineage": (
        document(lambda m: feature(m)["deps"][0]["lineage"].update(kind="union")),
        "lineage.kind: Input should be",
    ),
    "an empty lineage": (document(lambda m: feature(m)["deps"][0]["lineage"].update(on=[])), "lineage.on"),
    "a bad key": (document(lambda m: feature(m).update(key="../c")), "no key of a feature"),
    "a bar": (document(lambda m: feature(m)["fields"][0].update(code_version="1|2")), r"without '\|'"),
    "no upstream": (document(lambda m: m["features"].remove(feature(m, "b"))), "which is not in the graph"),
    "a cycle": (document(lambda m: feature(m, "b").update(deps=[{"feature": "d"}])), "depend on themselves"),
    "no field upstream": (
        document(lambda m: feature(m)["fields"][0]["deps"][0].update(fields=["nothing"])),
        "depends on the fields",
    ),
    "two definitions": (
        document(lambda m: m["features"].append({"key": "c", "id_columns": ["i"], "fields": []})),
        "it has no field",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_no_snapshot_is_refused_with_its_place_and_the_reason(what):
    data, message = WRONG[what]
    with pytest.raises(IntegrityError, match=rf"(?s)^there/it cannot be read: .*{message}.* Nothing was changed"):
        parse_snapshot(data, "there/it")


def test_a_snapshot_of_a_newer_format_is_refused_by_name():
    newer = document(lambda members: members.update(schema_version=2, lenses=[]))
    with pytest.raises(UnsupportedFeature, match=r"^there/it was written by a newer.*schema_version 2.*Upgrade"):
        parse_snapshot(newer, "there/it")


def test_pushes_that_cannot_be_read_are_refused(history, project):
    push = history.push(example()).push
    key = f"{FOLDER}/pushes/{0:020d}.json"
    members = json.loads(project.data.get(key))
    assert datetime.fromisoformat(members["at"]) == push.at
    for change, message in (
        ({"number": 3}, "says that it is push 3"),
        ({"snapshot": "../../pins"}, "snapshot"),
        ({"at": "2026-13-01T00:00:00Z"}, "at"),
        ({"at": "2026-01-01T00:00:00"}, "at"),
        ({"more": 1}, "more"),
    ):
        project.data.put(key, json.dumps(members | change).encode())
        with pytest.raises(IntegrityError, match=rf"{key}.* cannot be read: .*{message}"):
            history.pushes()
    project.data.put(key, json.dumps(members | {"schema_version": 2}).encode())
    with pytest.raises(UnsupportedFeature, match="schema_version 2"):
        history.pushes()


@given(st.binary(max_size=60), st.integers(0, 10**6))
def test_damaged_bytes_are_read_as_a_graph_or_refused(damage, seed):
    data = bytearray(snapshot_bytes(FeatureGraph(everything())))
    at = random.Random(seed).randrange(len(data))
    data[at : at + len(damage)] = damage
    with contextlib.suppress(IntegrityError, UnsupportedFeature):
        assert isinstance(parse_snapshot(bytes(data), "here"), FeatureGraph)
