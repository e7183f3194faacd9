"""Must show 3: random histories of a Delta table equal those of plain Python rows, at every version.

Whatever features a table has (deletion vectors, mapped columns, a change feed, row ids, partitions), a random walk of
appends, overwrites, deletes, updates, merges, compactions, restores, changes of schema and properties and checkpoints
leaves the rows that `support.delta_model` has; every older version stays what it was; and the change feed of every
range of versions is the difference of its ends.
"""

import json
import os
import shutil
import tempfile
from contextlib import nullcontext, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from dagster_versioned.delta.table import Table
from dagster_versioned.delta_tables.change_feed import read_changes
from dagster_versioned.delta_tables.commands.command import CHECKPOINT_INTERVAL
from dagster_versioned.errors import VersionedError
from support.delta_model import (
    TYPES,
    AddColumn,
    Append,
    Both,
    Checkpoint,
    Clause,
    Cleanup,
    Column,
    Compare,
    Condition,
    Constant,
    Delete,
    DropColumn,
    Expression,
    IsNull,
    Merge,
    Not,
    Optimize,
    Overwrite,
    Plus,
    RenameColumn,
    Restore,
    Row,
    SetProperty,
    State,
    Step,
    Update,
    Vacuum,
    bag_of,
)
from support.delta_steps import ArrowSteps, SparkSteps, create

MEMORY = Path("/dev/shm")
VECTORS, FEED, MAPPING = "delta.enableDeletionVectors", "delta.enableChangeDataFeed", "delta.columnMapping.mode"
FEATURES: list[dict[str, str]] = [
    {},
    {VECTORS: "true"},
    {FEED: "true"},
    {VECTORS: "true", FEED: "true"},
    {MAPPING: "name"},
    {MAPPING: "id", FEED: "true"},
    {MAPPING: "name", VECTORS: "true", FEED: "true", "delta.enableRowTracking": "true"},
    {VECTORS: "true", "delta.enableInCommitTimestamps": "true", "delta.checkpointPolicy": "v2"},
]

# --- what to write ---------------------------------------------------------------------------------------------------

PARTITIONS = ["a", "b=c", "ü %2", None]
TEXTS = ["", "x", "it's", "ü\n", "\\", "%", None]
VALUES = {"long": st.none() | st.integers(-3, 12), "string": st.sampled_from(TEXTS)}


def rows(columns: dict[str, str], most: int = 6) -> st.SearchStrategy[tuple[Row, ...]]:
    fields = {name: st.sampled_from(PARTITIONS) if name == "p" else VALUES[kind] for name, kind in columns.items()}
    return st.lists(st.fixed_dictionaries(fields), max_size=most).map(tuple)


def source(columns: dict[str, str]) -> st.SearchStrategy[tuple[Row, ...]]:
    return rows(columns).map(lambda some: tuple({row["k"]: row for row in some}.values()))


def conditions(columns: dict[str, str], of: str | None = None, depth: int = 1) -> st.SearchStrategy[Condition]:
    longs = [name for name, kind in columns.items() if kind == "long"]
    texts = [name for name, kind in columns.items() if kind == "string"]
    numbers = st.builds(
        Compare,
        st.sampled_from(longs).map(lambda name: Column(name, of)),
        st.sampled_from(["=", "<", ">=", "<>"]),
        st.integers(-3, 12).map(Constant) | st.sampled_from(longs).map(lambda name: Column(name, of)),
    )
    words = st.builds(
        Compare,
        st.sampled_from(texts).map(lambda name: Column(name, of)),
        st.sampled_from(["=", "<>"]),
        st.sampled_from([text for text in TEXTS + PARTITIONS if text is not None]).map(Constant),
    )
    nulls = st.sampled_from([*columns]).map(lambda name: IsNull(Column(name, of)))
    simple = st.one_of(numbers, words, nulls)
    if not depth:
        return simple
    deeper = conditions(columns, of, depth - 1)
    return simple | deeper.map(Not) | st.builds(Both, st.sampled_from(["AND", "OR"]), deeper, deeper)


def expressions(columns: dict[str, str], kind: str, *sides: str | None) -> st.SearchStrategy[Expression]:
    named = st.builds(
        Column, st.sampled_from([name for name, held in columns.items() if held == kind]), st.sampled_from(sides)
    )
    if kind == "string":
        return named | st.sampled_from(TEXTS).map(Constant)
    return named | st.integers(-3, 12).map(Constant) | st.builds(Plus, named, st.integers(0, 3).map(Constant))


def assignments(columns: dict[str, str], *sides: str | None) -> st.SearchStrategy[dict[str, Expression]]:
    fields = {
        name: st.sampled_from(PARTITIONS).map(Constant) if name == "p" else expressions(columns, kind, *sides)
        for name, kind in columns.items()
    }
    return st.fixed_dictionaries({}, optional=fields).filter(bool)


def clauses(columns: dict[str, str]) -> st.SearchStrategy[tuple[Clause, ...]]:
    def some(kind: str, then: st.SearchStrategy[Any], side: str) -> st.SearchStrategy[list[Clause]]:
        conditional = st.builds(Clause, st.just(kind), then, conditions(columns, side))
        return st.tuples(
            st.lists(conditional, max_size=1), st.lists(st.builds(Clause, st.just(kind), then), max_size=1)
        ).map(lambda pair: pair[0] + pair[1])

    everything = {name: expressions(columns, kind, "source") for name, kind in columns.items() if name != "p"}
    inserted = st.just("all") | st.fixed_dictionaries(everything | {"p": st.sampled_from(PARTITIONS).map(Constant)})
    return (
        st.tuples(
            some("matched", st.just("all") | st.just("delete") | assignments(columns, "source", "target"), "target"),
            some("not matched", inserted, "source"),
            some("not matched by source", st.just("delete") | assignments(columns, "target"), "target"),
        )
        .map(lambda three: (*three[0], *three[1], *three[2]))
        .filter(bool)
    )


# --- the walk --------------------------------------------------------------------------------------------------------


class Walk(RuleBasedStateMachine):
    """A table, and what it should be."""

    steps: ArrowSteps = ArrowSteps()

    @initialize(features=st.sampled_from(FEATURES), partitioned=st.booleans(), first=rows(TYPES), data=st.data())
    def begin(self, features: dict[str, str], partitioned: bool, first: tuple[Row, ...], data: st.DataObject) -> None:
        self.folder = tempfile.mkdtemp(prefix="walk-", dir=MEMORY if MEMORY.is_dir() else None)
        self.features, self.partitioned = dict(features), partitioned
        create(self.folder, TYPES, partitioned=partitioned, properties=features)
        self.history = {0: State(TYPES)}
        self.log: list[Step] = []
        self.checkpoint_at = self.since = 0
        """The newest checkpoint, and the first version that must be there still."""
        self.do(Append(first))

    @property
    def state(self) -> State:
        return self.history[max(self.history)]

    @property
    def columns(self) -> dict[str, str]:
        return dict(self.state.columns)

    def do(self, step: Step) -> None:
        expected = step.after(self.state, self.history)
        self.log.append(step)
        before = max(self.history)
        version = self.steps.apply(self.folder, step, self.columns)
        assert version in (before, before + 1), (version, before)
        if version == before:
            assert expected.bag == self.state.bag, f"{step} made no version"
        else:
            self.history[version] = expected

    @rule(data=st.data())
    def append(self, data: st.DataObject) -> None:
        self.do(Append(data.draw(rows(self.columns))))

    @rule(data=st.data())
    def append_with_another_column(self, data: st.DataObject) -> None:
        columns = {"x": "long", "y": "string"} | self.columns
        self.do(Append(data.draw(rows(columns).filter(bool)), evolve=True))

    @rule(data=st.data())
    def overwrite(self, data: st.DataObject) -> None:
        self.do(Overwrite(data.draw(rows(self.columns))))

    @rule(data=st.data())
    def replace_where(self, data: st.DataObject) -> None:
        where = data.draw(conditions(self.columns))
        new = data.draw(rows(self.columns))
        self.do(Overwrite(tuple(row for row in new if where.truth({None: row}) is True), where))

    @rule(data=st.data())
    def overwrite_partitions(self, data: st.DataObject) -> None:
        if self.partitioned:
            self.do(Overwrite(data.draw(rows(self.columns).filter(bool)), dynamic=True))

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        self.do(Delete(data.draw(st.none() | conditions(self.columns))))

    @rule(data=st.data())
    def update(self, data: st.DataObject) -> None:
        columns = self.columns
        self.do(Update(data.draw(assignments(columns, None)), data.draw(st.none() | conditions(columns))))

    @rule(data=st.data())
    def merge(self, data: st.DataObject) -> None:
        columns = self.columns
        self.do(Merge(data.draw(source(columns)), data.draw(clauses(columns))))

    @rule(data=st.data())
    def optimize(self, data: st.DataObject) -> None:
        self.do(Optimize(data.draw(st.sampled_from([(), ("k",)]))))

    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        self.do(Restore(data.draw(st.sampled_from([version for version in self.history if version >= self.since]))))

    @rule(data=st.data())
    def add_column(self, data: st.DataObject) -> None:
        if missing := [name for name in ("x", "y", "z") if name not in self.columns]:
            self.do(AddColumn(data.draw(st.sampled_from(missing)), data.draw(st.sampled_from(["long", "string"]))))

    @precondition(lambda self: MAPPING in self.features)
    @rule(data=st.data())
    def rename_or_drop_column(self, data: st.DataObject) -> None:
        free = [name for name in ("x", "y", "z", "v") if name not in self.columns]
        held = [name for name in ("x", "y", "z", "v") if name in self.columns]
        if free and held and data.draw(st.booleans()):
            self.do(RenameColumn(data.draw(st.sampled_from(held)), data.draw(st.sampled_from(free))))
        elif held:
            self.do(DropColumn(data.draw(st.sampled_from(held))))

    @rule(key=st.sampled_from([VECTORS, FEED]), value=st.sampled_from(["true", "false"]))
    def set_property(self, key: str, value: str) -> None:
        self.do(SetProperty(key, value))

    @rule()
    def checkpoint(self) -> None:
        self.do(Checkpoint())
        self.checkpoint_at = max(self.history)

    @precondition(lambda self: self.checkpoint_at)
    @rule()
    def cleanup(self) -> None:
        self.do(Cleanup())
        by_itself = max(self.history) // CHECKPOINT_INTERVAL * CHECKPOINT_INTERVAL
        self.since = max(self.since, self.checkpoint_at, by_itself)

    @rule()
    def vacuum(self) -> None:
        self.do(Vacuum())
        self.since = max(self.history)

    @invariant()
    def the_newest_version_is_the_model(self) -> None:
        if getattr(self, "history", None):
            self.check(max(self.history))

    def check(self, version: int) -> None:
        expected = self.history[version]
        found = self.steps.rows(self.folder, version)
        assert bag_of(found, expected.columns) == expected.bag, f"version {version}, after {self.log}"
        assert all(set(row) == set(expected.columns) for row in found)

    def teardown(self) -> None:
        if not getattr(self, "history", None):
            return
        try:
            for version in self.history:
                with suppress(*[VersionedError] * (version < self.since)):
                    self.check(version)
            self.check_counts()
            self.check_changes()
        finally:
            shutil.rmtree(self.folder)

    def check_counts(self) -> None:
        """Statistics say how many rows files have, and are right."""
        for version, state in self.history.items():
            if version >= self.since:
                adds = Table(self.folder).snapshot(version).adds()
                gone = sum(add.deletion_vector.cardinality for add in adds if add.deletion_vector)
                told = sum(json.loads(add.stats or "")["numRecords"] for add in adds)
                assert told - gone == len(state.rows), f"version {version}, after {self.log}"

    def check_changes(self) -> None:
        """The change feed of every range is the difference of its ends, and there is none where it was off."""
        table = Table(self.folder)
        versions = range(self.since, max(self.history) + 1)
        fed = {version: table.snapshot(version).metadata.is_set(FEED) for version in versions}
        for first in versions[1:]:
            for last in self.ends(first, versions[-1]):
                if not all(fed[version] for version in range(first, last + 1)):
                    with pytest.raises(VersionedError):
                        read_changes(self.folder, first, last)
                    continue
                between = [stored_columns(table, version) for version in range(first - 1, last + 1)]
                if all(earlier.items() <= later.items() for earlier, later in pairwise(between)):
                    # A column that a restore brings back is no change of the rows that stay, so such ranges may be
                    # refused; what is shown is right.
                    with suppress(VersionedError) if self.had_more(first - 1, last) else nullcontext():
                        self.check_range(first, last)
                else:  # columns came and went, so that rows of its begin cannot be shown as rows of its end
                    with suppress(VersionedError):
                        read_changes(self.folder, first, last)

    def had_more(self, first: int, last: int) -> bool:
        """Whether a column that the last version has and the first has not was there before both."""
        come = self.history[last].columns.keys() - self.history[first].columns.keys()
        return any(come & state.columns.keys() for version, state in self.history.items() if version < first)

    def ends(self, first: int, newest: int) -> list[int]:
        return sorted({first, newest})

    def check_range(self, first: int, last: int) -> None:
        end = self.history[last]
        changes = read_changes(self.folder, first, last)
        assert all(first <= version <= last for version in changes["_commit_version"].to_pylist())
        by_kind = {
            kind: bag_of(changes.filter(pc.equal(changes["_change_type"], kind)).to_pylist(), end.columns)
            for kind in ("insert", "update_postimage", "delete", "update_preimage")
        }
        found = bag_of(self.history[first - 1].rows, end.columns)
        found.update(by_kind["insert"] + by_kind["update_postimage"])
        found.subtract(by_kind["delete"] + by_kind["update_preimage"])
        assert {row: count for row, count in found.items() if count} == dict(end.bag), (
            f"changes {first} to {last}, after {self.log}"
        )
        assert by_kind["update_preimage"].total() == by_kind["update_postimage"].total()


def stored_columns(table: Table, version: int) -> dict[str, tuple[Any, str | None]]:
    """Each column's type and the name that its values are stored by: another one where a column came anew."""
    fields = json.loads(table.snapshot(version).metadata.schema_string)["fields"]
    return {each["name"]: (each["type"], each["metadata"].get("delta.columnMapping.physicalName")) for each in fields}


class Thorough(Walk):
    """Every range of the change feed."""

    def ends(self, first: int, newest: int) -> list[int]:
        return list(range(first, newest + 1))


def walk(machine: type[Walk], examples: int, steps: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
            report_multiple_bugs=False,
            # A walk is long and its steps are slow: minutes of shrinking are for who looks for the fault.
            phases=[Phase.explicit, Phase.reuse, Phase.generate] + [Phase.shrink] * bool(os.environ.get("SHRINK")),
        ),
    )


def test_random_histories_equal_the_model() -> None:
    walk(Walk, 10, 9)


@pytest.mark.slow
@pytest.mark.timeout(3_000)
def test_many_long_random_histories_equal_the_model() -> None:
    walk(Thorough, 60, 30)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(3_000)
def test_random_histories_by_spark_equal_the_model(spark: Any) -> None:
    class BySpark(Walk):
        steps = SparkSteps(spark)

    walk(BySpark, 12, 10)
