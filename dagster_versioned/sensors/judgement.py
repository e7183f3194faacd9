"""What is not current of units, by what was seen of them: functions of an `Observation`, which remember nothing."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import dagster as dg

from dagster_versioned.identity.version import On, Scope
from dagster_versioned.projects.staleness import MemberCell, Need, StaleCell, find
from dagster_versioned.sensors.graph import Edge, Member, Unit
from dagster_versioned.sensors.observation import Observation
from dagster_versioned.sensors.valueless import planned_and_done

Made = Mapping[dg.AssetKey, Collection[str | None]]
"""Cells of upstreams that are taken to be there."""


@dataclass(frozen=True)
class Rules:
    """What counts: of an upstream, whether code versions do, and in an environment what was not current before it."""

    on: On = "metadata_sha"
    on_code_version: bool = False
    scope: Scope = "changed"


def judge(
    seen: Observation, unit: Unit, cells: Collection[str | None] | None, rules: Rules, made: Made | None = None
) -> tuple[dict[str | None, StaleCell], dict[str | None, StaleCell]]:
    """What is not current of these cells of a unit (``None``: all), in scope and out of it."""
    found: dict[str | None, StaleCell] = {}
    left: dict[str | None, StaleCell] = {}
    for cell, members in _member_cells(seen, unit, _known_cells(unit, cells), made or {}):
        stale = find(unit.name, cell, members, rules.on, on_code_version=rules.on_code_version)
        if stale is not None and unit.skippable:
            emitted = _emitted(seen, unit, cell, members)
            stale = find(unit.name, cell, emitted, rules.on, on_code_version=rules.on_code_version)
        if stale is not None:
            (found if is_in_scope(seen, unit, cell, rules.scope) else left)[cell] = stale
    return found, left


def is_in_scope(seen: Observation, unit: Unit, cell: str | None, scope: Scope) -> bool:
    """Whether a cell is not current because of its environment, and not since before it began.

    It is where the environment, or the code, made it or what it reads another one; all of production's are.
    """
    if scope == "all" or any(member.place.forked_at < 0 for member in unit.members):
        return True
    return any(
        _is_of_environment(seen, member, cell) or _reads_environment(seen, member, cell) for member in unit.members
    )


def _is_of_environment(seen: Observation, member: Member, cell: str | None) -> bool:
    """Whether the environment, or the code, made a cell of a member another one than it was at the fork."""
    head = seen.own(member).cell(member.own_cell(cell))
    return head is not None and (
        head.log_version > member.place.forked_at or member.code_version not in (None, head.code_version)
    )


def _reads_environment(seen: Observation, member: Member, cell: str | None) -> bool:
    """Whether a cell of a member reads what the environment has written."""
    read = (
        (seen.table(edge.place, edge.partitions).cell(key), edge.place.forked_at)
        for edge in member.edges
        if edge.place.is_in_environment
        for key in seen.cells_above(edge, member, cell)
    )
    return any(head is not None and head.log_version > forked_at for head, forked_at in read)


def _known_cells(unit: Unit, cells: Collection[str | None] | None) -> Iterable[str | None]:
    if unit.partitions is None:
        return [None]
    order = unit.partitions.order
    return order if cells is None else [cell for cell in cells if cell in order]


def _member_cells(
    seen: Observation, unit: Unit, cells: Iterable[str | None], made: Made
) -> Iterator[tuple[str | None, Sequence[MemberCell]]]:
    """For each cell the members of its unit, with what they need."""
    shared = {
        edge: need
        for member in unit.members
        for edge in member.edges
        if seen.is_shared(edge, member) and (need := _need(seen, edge, member, None, made)) is not None
    }
    tables = {member: seen.own(member) for member in unit.members}
    for cell in cells:
        members: list[MemberCell] = []
        for member in unit.members:
            needs = [shared.get(edge) or _need(seen, edge, member, cell, made) for edge in member.edges]
            needed = [need for need in needs if need is not None]
            members.append(MemberCell(tables[member], member.own_cell(cell), needed, member.code_version))
        yield cell, members


def _need(seen: Observation, edge: Edge, member: Member, cell: str | None, made: Made) -> Need | None:
    """What a cell needs of an upstream; ``None`` where nothing is there, and nothing has to be."""
    valueless, coming = seen.valueless(edge), () if edge.is_elsewhere else made.get(edge.upstream, ())
    is_needless = (edge.is_optional or None in valueless) and seen.is_empty(edge)
    if is_needless or (coming and edge.partitions is None):
        return None
    heads = seen.table(edge.place, edge.partitions)
    keys, lacking, is_whole = None, list[str](), False
    if edge.partitions is not None:
        link = seen.link(edge, member)
        is_whole, keys = link.whole, link.keys(cell)
        if valueless:
            keys = [key for key in keys if key in heads.partitions or key not in valueless]
        lacking = sorted(key for key in keys if key not in heads.partitions and key not in coming)
    return Need(
        edge.upstream.to_user_string(),
        edge.place.key,
        heads,
        keys,
        lacking,
        is_whole=is_whole,
        missing=edge.missing,
        pinned=None if edge.pinned is None else seen.pinned(edge),
        is_own=edge.is_own,
    )


def _emitted(seen: Observation, unit: Unit, cell: str | None, members: Sequence[MemberCell]) -> Iterator[MemberCell]:
    """The members of a cell without the optional outputs that the last run left out."""
    for member, judged in zip(unit.members, members, strict=True):
        if member.key not in unit.skippable or not _is_left_out(seen, member.key, cell, judged):
            yield judged


def _is_left_out(seen: Observation, key: dg.AssetKey, cell: str | None, judged: MemberCell) -> bool:
    """Whether the last run did not emit an optional output, or as it was, though all that it needs was there."""
    begun = planned_and_done(seen.instance, key, cell)
    if begun is None or (judged.head is not None and judged.head.code_version != judged.code_version):
        return False
    read = [need.heads.cell(upstream) for need in judged.needs for upstream in need.keys or [None]]
    return all(datetime.fromisoformat(head.timestamp) < begun for head in read if head is not None)
