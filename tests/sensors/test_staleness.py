"""The judgement by itself: over heads made up, with no store and no Dagster."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_versioned.projects.staleness import Built, CellHead, MemberCell, Need, StaleCell, TableHeads, find
from dagster_versioned.sensors.plan import Decision, plan, runs_of
from dagster_versioned.tables.documents.head import Held

UP = ("HOUSE", "up")


def head(sha="a" * 64, log_version=0, parents=None, **options):
    data = options.pop("data", sha)
    return CellHead(sha, data, log_version, "2026-01-01T00:00:00.000000Z", parents=parents or {}, **options)


def built(**versions):
    """Parents in the one table: ``whole`` for the table, else by partition."""
    return {UP: {None if key == "whole" else key: Built(sha, sha) for key, sha in versions.items()}}


def table(whole=None, **partitions):
    return TableHeads(whole and head(whole), {key: head(sha) for key, sha in partitions.items()})


def need(heads, keys=None, **options):
    lacking = sorted(key for key in keys or () if key not in heads.partitions)
    return Need("up", UP, heads, keys=keys, lacking=lacking, **options)


def judge(own, *needs, on="metadata_sha", partition=None, code=None, on_code_version=False):
    heads = TableHeads(own) if partition is None else TableHeads(None, {partition: own} if own else {})
    return find("down", partition, [MemberCell(heads, partition, needs, code)], on, on_code_version=on_code_version)


def test_equal_parents_are_current():
    assert judge(head(parents=built(whole="b")), need(table("b"))) is None


def test_another_version_is_a_change_from_one_to_the_other():
    found = judge(head(parents=built(whole="b" * 64)), need(table("c" * 64)))
    assert str(found.changes[0]) == "up bbbbbbbb -> cccccccc"
    assert found.why == "up bbbbbbbb -> cccccccc"


def test_equal_data_under_another_version_counts_only_by_version():
    parents = {UP: {None: Built("v1", "same")}}
    heads = TableHeads(head("v2", data="same"))
    assert judge(head(parents=parents), need(heads)) is not None
    assert judge(head(parents=parents), need(heads), on="data_sha") is None


def test_a_parent_that_is_not_an_upstream_is_passed_over():
    parents = {("HOUSE", "a notebook"): {None: Built("x", "x")}, **built(whole="b")}
    assert judge(head(parents=parents), need(table("b"))) is None


def test_an_upstream_that_was_never_recorded_is_a_change():
    assert judge(head(), need(table("b"))).changes[0].before is None


def test_without_upstreams_nothing_is_asked():
    assert judge(None) is None


def test_a_first_version_waits_for_what_is_missing():
    found = judge(None, need(TableHeads()))
    assert (found.absent, found.is_new, found.changes) == ("up", True, ())
    assert judge(None, need(table("b"))).absent == ""


@pytest.mark.parametrize(
    ("missing", "own", "absent"),
    [
        ("fails", head(), "up[b]"),
        ("fails", None, "up[b]"),
        ("unread", head(), ""),
        ("unread", None, "up[b]"),
        ("allowed", head(), ""),
        ("allowed", None, ""),
    ],
)
def test_what_a_missing_partition_means(missing, own, absent):
    assert judge(own, need(table(None, a="x"), ["a", "b"], missing=missing), partition="p").absent == absent


def test_a_whole_table_is_one_parent():
    heads = dataclasses.replace(table("whole1", a="x", b="y"))
    assert judge(head(parents=built(whole="whole1")), need(heads, ["a", "b"], is_whole=True)) is None
    assert judge(head(parents=built(whole="whole0")), need(heads, ["a", "b"], is_whole=True)) is not None


def test_all_partitions_recorded_one_by_one_are_the_whole():
    """The table has a partition that its definition has not any more."""
    heads = table("whole1", a="x", b="y", old="z")
    assert judge(head(parents=built(a="x", b="y")), need(heads, ["a", "b"], is_whole=True)) is None
    assert judge(head(parents=built(a="x")), need(heads, ["a", "b"], is_whole=True)) is not None


def test_a_pin_is_followed_and_the_head_is_not():
    heads = table("b" * 64)
    own = head(parents=built(whole="a" * 64))
    assert judge(own, need(heads, pinned="aaaaaa")) is None
    assert judge(own, need(heads, pinned="")) is None
    assert judge(own, need(heads, pinned="c" * 64)) is not None
    assert judge(None, need(heads, pinned="aaaaaa")).is_new


def test_code_counts_if_asked():
    own = head(parents=built(whole="b"), code_version="1")
    assert judge(own, need(table("b")), code="2") is None
    found = judge(own, need(table("b")), code="2", on_code_version=True)
    assert found.why == "code version 1 -> 2"


def test_an_unreadable_upstream_is_said():
    assert judge(head(), need(TableHeads(unreadable="torn"))).unreadable == "torn"


SHAS = st.sampled_from(["s0", "s1", "s2"])
VERSIONS = st.integers(0, 3)
KEYS = st.sampled_from(["a", "b", "c"])
HEADS = st.builds(head, SHAS, VERSIONS)
WORLDS = st.tuples(
    st.one_of(st.none(), st.builds(head, SHAS, VERSIONS, st.dictionaries(KEYS, SHAS).map(lambda d: built(**d)))),
    st.dictionaries(KEYS, HEADS),
    st.sets(KEYS),
)


@given(WORLDS)
def test_a_cell_is_current_just_if_every_upstream_that_exists_is_recorded_as_it_is(world):
    own, partitions, keys = world
    found = judge(own, need(TableHeads(None, partitions), sorted(keys), missing="unread"), partition="p")
    recorded = own.parents[UP] if own else {}
    there = {key: partitions[key].metadata_sha for key in keys if key in partitions}
    differs = {key for key, sha in there.items() if key not in recorded or recorded[key].metadata_sha != sha}
    if own is not None:
        assert (found is None) == (not differs)
    if found is not None:
        assert {change.partition for change in found.changes} == differs


@given(WORLDS, WORLDS)
def test_states_differ_just_if_what_they_depend_on_does(one, other):
    def state(world):
        own, partitions, keys = world
        found = judge(own, need(TableHeads(None, partitions), sorted(keys)), partition="p")
        seen = {key: (h.metadata_sha, h.log_version) for key, h in partitions.items() if key in keys}
        return found and found.state, (own and own.log_version, seen)

    (first, saw), (second, seen) = state(one), state(other)
    if first is not None and second is not None:
        assert (first == second) == (saw == seen)


# What runs now


def stale(name, partition=None, **options):
    plain = {"changes": (), "is_new": False, "absent": "", "held": None, "unreadable": None, "state": name, "since": ""}
    return (name, partition), StaleCell(**{**plain, **options})


def decide(*findings, above=None, running=(), tried=(), ended="tried", are_values=False):
    upstreams = {(down, None): [(up, None) for up in ups] for down, ups in (above or {}).items()}
    decisions = plan(
        findings,
        lambda cell: upstreams.get(cell, []),
        lambda cell: "run" if cell[0] in running else None,
        lambda cell, _: Decision(ended, "run") if cell[0] in tried else None,
        values=lambda cell: upstreams.get(cell, []) if are_values else [],
    )
    return {name: decision.standing for (name, _), decision in decisions.items()}


def test_upstream_first():
    chain = {"b": ["a"], "c": ["b"]}
    assert decide(stale("a"), stale("b"), stale("c"), above=chain) == {"a": "ready", "b": "waiting", "c": "waiting"}
    assert decide(stale("a"), stale("c"), above=chain) == {"a": "ready", "c": "ready"}


def test_what_nobody_is_going_to_run_is_not_waited_for():
    held = stale("a", held=Held("ann", "why"))
    assert decide(held, stale("b"), above={"b": ["a"]}) == {"a": "held", "b": "ready"}
    assert decide(stale("a"), stale("b"), above={"b": ["a"]}, tried="a") == {"a": "tried", "b": "ready"}
    assert decide(stale("a", absent="x"), stale("b"), above={"b": ["a"]}) == {"a": "absent", "b": "ready"}


def test_a_value_is_waited_for_whoever_is_going_to_make_it_until_a_run_succeeded():
    above, options = {"b": ["a"]}, {"are_values": True}
    for finding in (stale("a", held=Held("ann", "why")), stale("a", absent="x")):
        assert decide(finding, stale("b"), above=above, **options)["b"] == "behind"
    assert decide(stale("a"), stale("b"), above=above, tried="a", **options)["b"] == "behind"
    assert decide(stale("a"), stale("b"), above=above, tried="a", ended="made", **options)["b"] == "ready"
    assert decide(stale("b"), above=above, **options)["b"] == "ready"


def test_a_run_in_progress_is_waited_for_whether_its_target_was_stale_or_not():
    assert decide(stale("b"), above={"b": ["a"]}, running="a") == {"b": "waiting"}
    assert decide(stale("b"), running="b") == {"b": "running"}


def test_a_decision_says_because_of_what():
    cell, finding = stale("a", held=Held("ann", "the rows are wrong"))
    found = plan([(cell, finding)], lambda _: [], lambda _: None, lambda *_: None)
    assert found[cell] == Decision("held", "held by ann: the rows are wrong")


@given(st.sets(st.integers(0, 30)), st.integers(1, 6))
def test_ranges_are_contiguous_short_enough_and_cover_each_partition_once(numbers, longest):
    order = {str(number): number for number in range(31)}
    ranges = runs_of([str(number) for number in numbers], order, longest)
    assert sorted(int(key) for one in ranges for key in one) == sorted(numbers)
    for one in ranges:
        places = [order[key] for key in one]
        assert places == list(range(places[0], places[0] + len(places)))
        assert len(one) <= longest
