"""What was built from cells that changed, directly or not, and not made anew: by the parents that heads record."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from dagster_versioned.identity.names import TableName
from dagster_versioned.projects.staleness import CellHead, MemberCell, Need, TableHeads, TableKey, find
from dagster_versioned.tables.environment.registry import Environment

if TYPE_CHECKING:
    from dagster_versioned.projects.project import Project

Cell = tuple[TableName, str | None]
"""A table, or one partition of it."""


def downstream(project: "Project", changed: Collection[Cell]) -> list[Cell]:
    """The cells of an environment that were built from other data of ``changed`` ones than they have, or from such
    cells in turn, by table and partition.

    From heads, and the logs of partitioned tables. A changed cell with equal data reaches nothing.
    """
    environment = project.environment
    assert environment is not None
    return sorted(_reached(project.name, _heads(project, environment), set(changed)), key=lambda c: (c[0], c[1] or ""))


def _heads(project: "Project", environment: Environment) -> dict[TableName, TableHeads]:
    """The heads of all tables there: those of the fork where nothing was written since."""
    written = set(environment.written_names())
    heads: dict[TableName, TableHeads] = {}
    for name in project.tables():
        forked = environment.fork.tables.get(name)
        head = forked.head.head if forked is not None and name not in written else None
        if head is not None and head.partitions is None:
            heads[name] = TableHeads(CellHead.of(head), former=head.former)
        elif head is not None or (name in written and project.table(str(name)).resolve().head is not None):
            heads[name] = TableHeads.at(project.table(str(name)))
    return heads


def _reached(project: str, heads: Mapping[TableName, TableHeads], changed: set[Cell]) -> set[Cell]:
    names = _names_by_key(project, heads, changed)
    below: dict[Cell, list[Cell]] = {}
    reached = set[Cell]()
    for name, own in heads.items():
        for partition, head in _cells(own):
            for key in head.parents:
                if (upstream := names.get(key)) is None:
                    continue
                for of in head.parents[key]:
                    below.setdefault((upstream, of), []).append((name, partition))
                if _is_stale(own, partition, Need(str(upstream), key, heads.get(upstream, TableHeads())), changed):
                    reached.add((name, partition))
    found = list(reached)
    while found:
        table, partition = found.pop()
        # What read a table as a whole has it as one parent, without a partition.
        new = {*below.get((table, partition), ()), *below.get((table, None), ())} - reached
        reached |= new
        found += new
    return reached


def _names_by_key(
    project: str, heads: Mapping[TableName, TableHeads], changed: set[Cell]
) -> Mapping[TableKey, TableName]:
    """The tables by the keys that parents have of them, also by those of the names that they had."""
    names: dict[TableKey, TableName] = {key: name for name, head in heads.items() for key in head.former}
    return names | {(project, str(name)): name for name in {*heads, *(table for table, _ in changed)}}


def _cells(heads: TableHeads) -> Iterable[tuple[str | None, CellHead]]:
    if heads.partitions:
        return heads.partitions.items()
    return [(None, heads.whole)] if heads.whole is not None else []


def _is_stale(own: TableHeads, partition: str | None, need: Need, changed: Collection[Cell]) -> bool:
    """Whether the cell was built from other data of the upstream's changed cells than these have."""
    head = own.cell(partition)
    assert head is not None
    built = head.parents[need.table]
    used = _used_partitions(need, built, changed)
    if not used:
        return False
    if any(of in built and need.heads.cell(of) is None for of in used):
        return True  # built from what was dropped
    stale = find("", partition, [MemberCell(own, partition, [_need_of(built, need)], None)], "data_sha")
    changes = () if stale is None else stale.changes
    upstream = {change.partition for change in changes if change.upstream == need.upstream}
    return None in upstream or not used.isdisjoint(upstream)


def _used_partitions(need: Need, built: Collection[str | None], changed: Collection[Cell]) -> set[str | None]:
    """The partitions of the upstream that changed, of those that a cell was built from."""
    partitions = {of for name, of in changed if name == need.upstream}
    return partitions if None in built else {of for of in partitions if of is None or of in built}


def _need_of(built: Collection[str | None], need: Need) -> Need:
    """The need, of an upstream with partitions, for those that a cell was built from."""
    if not need.heads.partitions:
        return need
    keys = {of for of in built if of is not None} or set(need.heads.partitions)
    return replace(need, keys=keys, is_whole=None in built)
