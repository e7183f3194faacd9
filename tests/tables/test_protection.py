"""Which versions others keep: the same as by the definition, and at a cost that follows the history's length."""

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from dagster_versioned.tables.history import CommitRecord, History, Version
from dagster_versioned.tables.maintenance.protection import Protection, named_versions, with_own_parents

Parents = tuple[str, ...]


def sha(name: str) -> str:
    return name.rjust(64, "0")


def commit(log_version: int, versions: Sequence[tuple[str, str | None, Parents]], whole: str | None) -> CommitRecord:
    raw: list[dict[str, Any]] = [
        {
            "metadata_sha": sha(name),
            "change": "full",
            "facts": {"created_at": "2026-01-01T00:00:00Z"},
            "identity": {
                "asset_key": ["x"],
                "data_sha": sha(name),
                "schema": {"fields": []},
                "parents": [{"source": "p", "table": "x", "version": sha(parent)} for parent in parents],
            }
            | ({"partition": partition} if partition is not None else {}),
        }
        for name, partition, parents in versions
    ]
    info = {"versions": raw} | ({"partitions_sha": sha(whole)} if whole is not None else {})
    return CommitRecord(log_version, 1_700_000_000_000 + log_version, sha("0"), "WRITE", info, True)


# The definition


def meant(history: History, named: str) -> set[str]:
    """The versions that a SHA in a parent means."""
    if any(version.metadata_sha == named for version in history.versions):
        return {named}
    whole = [r.log_version for r in history.records if r.info and r.info.get("partitions_sha") == named]
    heads = history.until(whole[-1]).heads.values() if whole else ()
    return {version.metadata_sha for version in heads if version.metadata_sha is not None}


def kept_by_definition(history: History, candidates: Sequence[Version]) -> set[str]:
    leaving = {v.metadata_sha for v in candidates}
    while True:
        staying = [v for v in history.versions if not (v in candidates and v.metadata_sha in leaving)]
        names = {p["version"] for v in staying if v.raw for p in v.raw["identity"]["parents"]}
        found = {one for name in names for one in meant(history, name)} & leaving
        if not found:
            return {v.metadata_sha for v in candidates if v.metadata_sha} - {one for one in leaving if one}
        leaving -= found


@st.composite
def histories(draw: st.DrawFn) -> tuple[History, list[Version]]:
    """Versions of up to three partitions, some of them made current again, and of which some are old."""
    partitions = draw(st.sampled_from([(None,), ("a", "b", "c")]))
    names = [f"{n}" for n in range(1, 7)]
    records: list[CommitRecord] = []
    for log_version in range(draw(st.integers(1, 10))):
        name, partition = draw(st.sampled_from(names)), draw(st.sampled_from(partitions))
        parents = draw(st.lists(st.sampled_from([*names, *(f"a{n}" for n in range(10))]), max_size=2))
        whole = None if partition is None else f"a{log_version}"
        records.append(commit(log_version, [(name, partition, tuple(parents))], whole))
    history = History(records)
    heads = set(history.heads.values())
    candidates = [v for v in history.versions if v not in heads and draw(st.booleans())]
    return history, candidates


@given(histories())
def test_own_parents_are_kept_as_the_definition_has_it(drawn: tuple[History, list[Version]]) -> None:
    history, candidates = drawn
    assert with_own_parents(history, candidates, {}).keys() == kept_by_definition(history, candidates)


def test_a_version_that_the_whole_table_holds_again_is_kept_where_it_was_before_too() -> None:
    versions = [("1", "a", ()), ("2", "a", ()), ("1", "a", ()), ("3", "b", ("a2",)), ("4", "c", ())]
    history = History([commit(n, [one], f"a{n}") for n, one in enumerate(versions)])
    candidates = [history.versions[0]]
    assert with_own_parents(history, candidates, {}).keys() == kept_by_definition(history, candidates) == {sha("1")}


# The cost


def chain(length: int, partitions: int = 0) -> History:
    """Each version is built from the one before, or from the whole table as it was."""
    records = [
        commit(
            n,
            [(f"{n}", f"k{n % partitions}" if partitions else None, (f"{'a' if partitions else ''}{n - 1}",))],
            f"a{n}",
        )
        for n in range(length)
    ]
    return History(records)


def calls_of(work: Callable[[], object]) -> int:
    """How many functions and generators of Python were entered: the same on any machine."""
    count: Counter[str] = Counter()
    sys.setprofile(lambda frame, event, _: count.update([event] if event == "call" else []))
    try:
        work()
    finally:
        sys.setprofile(None)
    return count["call"]


@pytest.mark.parametrize("partitions", [0, 40])
def test_own_parents_cost_as_much_for_each_version_of_a_long_history_as_of_a_short_one(partitions: int) -> None:
    short, long = chain(100, partitions), chain(1000, partitions)
    costs = [calls_of(lambda one=one: with_own_parents(one, one.versions[:-1], {})) for one in (short, long)]
    assert costs[1] <= 12 * costs[0]


@pytest.mark.parametrize("partitions", [0, 40])
def test_parents_of_other_tables_cost_as_much_for_each_version_of_a_long_history(partitions: int) -> None:
    reason = Protection("parent", "a parent of other")
    costs: list[int] = []
    for length in (100, 1000):
        history = chain(length, partitions)
        named = {sha(f"{'a' if partitions else ''}{n}"): reason for n in range(length)}
        costs.append(calls_of(lambda h=history, n=named: named_versions(h, n)))
        assert len(named_versions(history, named)) == length
    assert costs[1] <= 12 * costs[0]


@given(histories(), st.lists(st.sampled_from([*"123456", *(f"a{n}" for n in range(10))])))
def test_parents_of_other_tables_mean_what_the_definition_has(
    drawn: tuple[History, list[Version]], names: list[str]
) -> None:
    history, _ = drawn
    named = {sha(name): Protection("parent", "") for name in names}
    assert named_versions(history, named).keys() == {one for name in named for one in meant(history, name)}
