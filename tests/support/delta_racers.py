"""What the processes of a contended Delta table run; a module of its own, so that spawned processes can import it."""

import random
from typing import Any

from dagster_versioned.delta import table as table_module
from dagster_versioned.delta.commit.transaction import commit
from dagster_versioned.delta_tables.commands import command
from dagster_versioned.errors import CommitConflict
from support.delta_model import (
    TYPES,
    AddColumn,
    Append,
    Checkpoint,
    Clause,
    Column,
    Compare,
    Constant,
    Delete,
    Merge,
    Optimize,
    Overwrite,
    Plus,
    Restore,
    Row,
    Step,
    Update,
)
from support.delta_steps import ArrowSteps

Done = tuple[int | None, Step]
"""A step that succeeded, and the version that it committed; ``None`` where there was nothing to do."""

PARTITIONS = ["a", "b", "c", None]


def random_steps(uri: str, who: int, count: int, *, seed: int = 0) -> tuple[list[Done], list[str]]:
    """Do random steps to the table, each once; those that succeeded, and why the others did not."""
    chance = random.Random(1_000 * seed + who)
    versions: list[int] = []

    def recorded(*given: Any, **named: Any) -> Any:
        snapshot, committed = commit(*given, **named)
        versions.append(committed.version)
        return snapshot, committed

    command.commit = table_module.commit = recorded  # type: ignore[assignment]
    done: list[Done] = []
    refused: list[str] = []
    for number in range(count):
        step = random_step(chance, who, number)
        versions.clear()
        try:
            ArrowSteps().apply(uri, step, TYPES)
        except CommitConflict as error:
            refused.append(f"{type(step).__name__}: {error}")
        else:
            done.append((versions[-1] if versions else None, step))
    return done, refused


def random_step(chance: random.Random, who: int, number: int) -> Step:
    partition = chance.choice(PARTITIONS)
    key = chance.randrange(30)
    near = Compare(Column("k"), "=", Constant(key))
    there = Compare(Column("p"), "=", Constant(partition)) if partition else Compare(Column("k"), "<", Constant(key))
    match chance.choices(
        ["append", "replace", "dynamic", "delete", "update", "merge", "optimize", "restore", "column", "checkpoint"],
        [8, 2, 2, 4, 4, 6, 2, 0.5, 0.3, 1],
    )[0]:
        case "append":
            return Append(rows(chance, who, number))
        case "replace" if partition is not None:
            return Overwrite(tuple(row | {"p": partition} for row in rows(chance, who, number)), there)
        case "replace" | "dynamic":
            return Overwrite(tuple(row | {"p": partition} for row in rows(chance, who, number)), dynamic=True)
        case "delete":
            return Delete(chance.choice([near, there]))
        case "update":
            return Update({"v": Plus(Column("v"), Constant(1)), "s": Constant(f"{who}.{number}")}, there)
        case "merge":
            by_key = {row["k"]: row for row in rows(chance, who, number)}
            matched = Clause("matched", chance.choice(["all", {"v": Plus(Column("v", "source"), Constant(100))}]))
            return Merge(tuple(by_key.values()), (matched, Clause("not matched", "all")))
        case "optimize":
            return Optimize()
        case "restore":
            return Restore(1)
        case "column":
            return AddColumn(f"x{who}_{number}", "long")
        case _:
            return Checkpoint()


def rows(chance: random.Random, who: int, number: int) -> tuple[Row, ...]:
    return tuple(
        {"k": chance.randrange(30), "v": who, "s": f"{who}.{number}.{i}", "p": chance.choice(PARTITIONS)}
        for i in range(chance.randint(1, 4))
    )
