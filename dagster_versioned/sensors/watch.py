"""Everything that a sensor watches, and what is stale of it: heads, partitions and edges brought together.

What is remembered between looks (heads by ETag, findings of cells whose heads did not change) is a cache: a new `Watch`
finds the same.
"""

import hashlib
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg
import orjson

from dagster_versioned.assets.graph.places import Place
from dagster_versioned.branches.promotion_document import OpenPromotion, read_promotion
from dagster_versioned.errors import IntegrityError, InvalidInput
from dagster_versioned.identity.names import TableName
from dagster_versioned.identity.reference import PinName, ShaPrefix, TagName, parse_reference
from dagster_versioned.identity.version import On, Scope
from dagster_versioned.projects.project import Project
from dagster_versioned.projects.staleness import MemberCell, Need, StaleCell, TableHeads, find
from dagster_versioned.sensors.blocking_checks import BlockingChecks, VersionRead
from dagster_versioned.sensors.external import ExternalHeads, heads_of
from dagster_versioned.sensors.graph import Dependency, Edge, Links, Member, Partitions, Unit, is_known
from dagster_versioned.sensors.heads import HeadChanges, ProjectHeads
from dagster_versioned.sensors.plan import Cell, Decision, plan
from dagster_versioned.sensors.runs import RunsInProgress
from dagster_versioned.sensors.valueless import Valueless, planned_and_done
from dagster_versioned.tables.documents.parked_draft import ParkedDraft, awaited, read_drafts
from dagster_versioned.tables.external import ExternalTable

logger = logging.getLogger("dagster_versioned")

FORM = 3
"""Of the digest: what another form of it called settled is looked at once more. The first covered pending heads, the
second partitions that are taken for others."""


CLOCKS = timedelta(seconds=5)
"""How far the clocks of who publishes and of who looks may be apart; what was published so recently is waited for."""


@dataclass(frozen=True)
class StalenessReport:
    """The outcome of one look: how much was looked at, and a digest of all that the answer depends on.

    ``digest`` is ``None`` where the answer may change and no digest would: a head is pending or was not read.
    """

    units: int
    tables: int
    reads: int
    pending: tuple[str, ...]
    digest: str | None
    left: int = 0
    """How many cells were stale when the environment began, and are not because of it."""
    problems: tuple[str, ...] = ()
    """What could not be read and was passed over."""


class Watch:
    """The units of one sensor and their upstreams. Not thread-safe."""

    def __init__(
        self,
        units: Sequence[Unit],
        on: On = "metadata_sha",
        *,
        on_code_version: bool = False,
        brings_heads_up: bool = True,
        scope: Scope = "changed",
    ) -> None:
        self.units = units
        self._scope: Scope = scope
        self._left: dict[int, set[str | None]] = {}
        self._on: On = on
        self._on_code_version = on_code_version
        members = [member for unit in units for member in unit.members]
        places = [*(member.place for member in members), *(edge.place for member in members for edge in member.edges)]
        projects = {id(place.project): place.project for place in places}
        self._heads: dict[int, ProjectHeads | ExternalHeads] = {
            number: heads_of(project, brings_heads_up) for number, project in projects.items()
        }
        self._tables: dict[int, set[Any]] = {
            number: {place.table for place in places if id(place.project) == number} for number in projects
        }
        self._partitions = list(dict.fromkeys(partition for unit in units for partition in _partitions(unit)))
        self._links: dict[tuple[str, Partitions, Partitions | None], Links] = {}
        self._as_read: dict[tuple[int, TableName, Partitions], tuple[TableHeads, TableHeads]] = {}
        self._names = {unit.name: unit for unit in units}
        above = [dependency for member in members for dependency in (*member.values, *member.edges)]
        self._above: dict[str, Dependency] = {dependency.upstream.to_user_string(): dependency for dependency in above}
        self._unit_of = {key: number for number, unit in enumerate(units) for key in unit.keys}
        self._readers = _readers(units)
        self._findings: dict[int, dict[str | None, StaleCell]] = {}
        self._pins: dict[int, Mapping[tuple[str, TableName], str]] = {}
        self._valueless: Mapping[dg.AssetKey, Collection[str | None]] = {}
        self._without_value = Valueless()
        self._promotions: dict[int, OpenPromotion] = {}
        self._looked_at = datetime.now(UTC)
        self._drafts: dict[int, list[ParkedDraft]] = {}
        self._is_new = True
        # A mapping of the user's own may do something else tomorrow and look the same.
        self._is_described = all(is_known(dependency.mapping) for dependency in above)
        self._structure = _digest([FORM, *(_described(unit) for unit in units), on, on_code_version, scope])

    def look(self, instance: dg.DagsterInstance, settled: str | None = None) -> StalenessReport:
        """See what is stale now. Where nothing is, and the digest is the ``settled`` one, no head is read.

        Where something is, promotions are looked for. By one that has just ended, heads may be others than a moment
        before, so they are looked at once more: what it committed is in them then, as with runs in progress.
        """
        seen = self._look(instance, settled)
        problems = self._read_promotions()
        if any(promotion.is_recent for promotion in self._promotions.values()):
            again = self._look(instance)
            seen = replace(again, reads=seen.reads + again.reads)
        return replace(seen, problems=problems)

    def _look(self, instance: dg.DagsterInstance, settled: str | None = None) -> StalenessReport:
        self._looked_at = datetime.now(UTC)
        try:
            listings = {number: heads.listing() for number, heads in self._heads.items()}
            moved = self._refresh(instance)
            if self._is_new and self._is_described and settled == (digest := self._digest(listings)):
                return self._seen(0, (), digest)
            looks = {
                number: heads.look(listings[number], self._tables[number]) for number, heads in self._heads.items()
            }
            affected = self._affected(moved, looks)
            affected |= dict.fromkeys(self._refresh_valueless(instance))
            for number, cells in affected.items():
                self._judge(number, cells)
        except BaseException:
            # What changed was taken note of and not judged, so next time everything is judged, by nothing remembered.
            self._is_new, self._findings, self._links, self._pins = True, {}, {}, {}
            raise
        self._is_new = False
        reads = sum(look.reads for look in looks.values())
        pending = [table for look in looks.values() for table in look.pending]
        is_known = self._is_described and all(look.is_known for look in looks.values())
        etags = {number: look.etags for number, look in looks.items()}
        return self._seen(reads, pending, self._digest(etags) if is_known else None)

    def _affected(self, moved: Collection[int], looks: Mapping[int, HeadChanges]) -> dict[int, set[str | None] | None]:
        """The units to judge again, with their partitions (``None`` for all), after these units and heads changed."""
        affected: dict[int, set[str | None] | None] = dict.fromkeys(range(len(self.units)) if self._is_new else moved)
        for number, look in looks.items():
            for table, partitions in look.changed.items():
                for unit, member, edge in self._readers[number, str(table)]:
                    _widen(affected, unit, self._touched(member, edge, partitions))
        # Whether an optional output was left out is known when the run has ended, which is in no head.
        return affected | dict.fromkeys(number for number in self._findings if self.units[number].skippable)

    def _seen(self, reads: int, pending: Sequence[str], digest: str | None) -> StalenessReport:
        left = sum(map(len, self._left.values()))
        targets = sum(unit.is_target for unit in self.units)
        return StalenessReport(targets, sum(map(len, self._tables.values())), reads, tuple(pending), digest, left)

    @property
    def is_settled(self) -> bool:
        """Whether the last look found everything current."""
        return not any(self._findings.values())

    @property
    def projects(self) -> list[Project]:
        """The projects of all that is watched."""
        return [heads.project for heads in self._heads.values() if isinstance(heads.project, Project)]

    def stale(self) -> Collection[int]:
        """The units, by number, of which something is not current."""
        return [number for number, found in self._findings.items() if found]

    def findings(self) -> Iterator[tuple[Cell, StaleCell]]:
        """What is not current, upstream first, partitions in their order."""
        for number in sorted(self._findings):
            found = self._findings[number]
            order = self.order(self.units[number].name)
            for partition in sorted(found, key=lambda key: order.get(key, 0) if key is not None else 0):
                yield (self.units[number].name, partition), found[partition]

    def decide(
        self,
        runs: RunsInProgress,
        tried: Callable[[Cell, StaleCell], Decision | None],
        checks: BlockingChecks | None = None,
    ) -> dict[Cell, Decision]:
        """What becomes of everything that is not current; ``tried`` says which run was made for a state and ended.

        With ``checks``, what would read a version that a blocking check has not passed for waits.
        """

        def running(cell: Cell) -> str | None:
            order = self.order(cell[0])
            found = (runs.running(key, cell[1], order) for key in self.keys(cell[0]))
            run = next((run for run in found if run is not None), None)
            return self._about_to_be(cell) if run is None else f"run {run[:8]}"

        self._drafts = self._read_drafts()
        if checks is None:
            return plan(self.findings(), self.upstreams, running, tried, values=self.values)
        could_run = [
            cell for cell, finding in self.findings() if not (finding.held or finding.unreadable or finding.absent)
        ]
        readings = {reading: edge.checks for edge, some in self._readings(could_run) for reading in some}
        if readings:
            checks.look(self._instance, readings, runs.ids)
        found: dict[tuple[Edge, str | None], str | None] = {}

        def unchecked(cell: Cell) -> str | None:
            for edge, member, key in self._checked_edges(cell):
                if (edge, key) not in found:
                    whys = (checks.hindrance(reading, edge.checks) for reading in self._read_by(edge, member, key))
                    found[edge, key] = next((why for why in whys if why is not None), None)
                if found[edge, key] is not None:
                    return found[edge, key]
            return None

        return plan(self.findings(), self.upstreams, running, tried, unchecked, self.values)

    def _about_to_be(self, cell: Cell) -> str | None:
        """The open promotion, or the draft, that is about to make a cell another one, if there is one."""
        if not self._promotions and not self._drafts:
            return None
        for place, partition in self._places_of(cell):
            found = self._promotions.get(id(place.project))
            if found is not None and found.is_living and found.covers(place.table, partition):
                return f"promotion of {found.environment}"
            for draft in self._drafts.get(id(place.project), ()):
                if draft.table == place.table and (partition is None or partition in draft.partitions):
                    return f"draft {draft.id[:8]}, parked by run {draft.run.run_id[:8]}"
        return None

    def _places_of(self, cell: Cell) -> list[tuple[Place, str | None]]:
        """The tables of a cell, with the partition of each."""
        name, partition = cell
        if name in self._names:
            return [(member.place, member.own_cell(partition)) for member in self._names[name].members]
        above = self._above[name]
        return [(above.place, partition)] if isinstance(above, Edge) else []

    def _read_promotions(self) -> tuple[str, ...]:
        """Read the promotions of the projects of what is stale and of its upstreams; returns what cannot be read.

        Those of production alone: in an environment, nothing is promoted.
        """
        members = [member for number in self.stale() for member in self.units[number].members]
        places = [place for member in members for place in (member.place, *(edge.place for edge in member.edges))]
        self._promotions = {}
        problems: list[str] = []
        for number in dict.fromkeys(id(place.project) for place in places):
            project = self._heads[number].project
            if isinstance(project, ExternalTable) or project.environment is not None:
                continue
            try:
                found = read_promotion(project.data)
            except IntegrityError as error:
                logger.warning("%s", error)
                problems.append(str(error))
            else:
                if found is not None:
                    self._promotions[number] = found
        return tuple(problems)

    def _read_drafts(self) -> dict[int, list[ParkedDraft]]:
        """The drafts that are to be judged, or were closed since heads were looked at, where something is stale."""
        found: dict[int, list[ParkedDraft]] = {}
        if self.is_settled:
            return found
        for number, heads in self._heads.items():
            if not isinstance(heads.project, Project):
                continue
            drafts = read_drafts(heads.project.data)[0]
            about_to_be = {draft.id for draft in awaited(drafts)}
            for draft in drafts:
                closed = draft.closed_at and datetime.fromisoformat(draft.closed_at) > self._looked_at - CLOCKS
                if closed or draft.id in about_to_be:
                    found.setdefault(number, []).append(draft)
        return found

    def _readings(self, cells: Iterable[Cell]) -> Iterator[tuple[Edge, Iterable[VersionRead]]]:
        """The versions with blocking checks that runs of these cells would read; what all of them read, once."""
        seen: set[tuple[Edge, str | None]] = set()
        for cell in cells:
            for edge, member, key in self._checked_edges(cell):
                if (edge, key) not in seen:
                    seen.add((edge, key))
                    yield edge, self._read_by(edge, member, key)

    def _checked_edges(self, cell: Cell) -> Iterator[tuple[Edge, Member, str | None]]:
        """The edges of a cell whose upstreams have blocking checks, and the partition that matters to what they read.

        A version that an input is pinned to is somebody's decision, and what the same run makes is none of ours.
        """
        for member in self._names[cell[0]].members:
            for edge in member.edges:
                if edge.checks and edge.pinned is None and not edge.is_own:
                    is_shared = edge.partitions is None or self._link(edge, member).whole
                    yield edge, member, None if is_shared else cell[1]

    def _read_by(self, edge: Edge, member: Member, cell: str | None) -> Iterator[VersionRead]:
        heads = self._table(edge.place, edge.partitions)
        for key in [None] if edge.partitions is None else sorted(self._link(edge, member).keys(cell)):
            # What production had at the fork is handed on: its checks are in another event log.
            if (head := heads.cell(key)) is not None and head.log_version > edge.place.forked_at:
                yield VersionRead(edge.upstream, key, head.metadata_sha, head.log_version, head.timestamp)

    def name(self, key: dg.AssetKey) -> str:
        """The name of the unit that an asset belongs to."""
        return self.units[self._unit_of[key]].name

    def finding(self, key: dg.AssetKey) -> Mapping[str | None, StaleCell]:
        """What is not current of one asset, by partition."""
        return self._findings.get(self._unit_of.get(key, -1), {})

    def unit(self, name: str) -> Unit:
        """The unit of a name."""
        return self._names[name]

    def keys(self, name: str) -> Sequence[dg.AssetKey]:
        """The assets that run together as a unit, or the one upstream of a name that is not a unit."""
        return self._names[name].keys if name in self._names else [self._above[name].upstream]

    def order(self, name: str) -> Mapping[str, int]:
        """Every partition of a unit or an upstream with its place; empty for one without partitions."""
        partitions = self._names[name].partitions if name in self._names else self._above[name].partitions
        return partitions.order if partitions is not None else {}

    def upstreams(self, cell: Cell) -> Iterator[Cell]:
        """The cells that a cell is built from, those of other units by the name of the unit."""
        yield from self.values(cell)
        for member in self._names[cell[0]].members:
            for edge in member.edges:
                if edge.pinned is None and not edge.is_elsewhere:
                    yield from self._cells_above(edge, member, cell[1])

    def values(self, cell: Cell) -> Iterator[Cell]:
        """Those of them whose values a cell is built from, which no head names."""
        for member in self._names[cell[0]].members:
            for value in member.values:
                yield from self._cells_above(value, member, cell[1])

    def _cells_above(self, one: Dependency, member: Member, cell: str | None) -> Iterator[Cell]:
        number = self._unit_of.get(one.upstream)
        name = self.units[number].name if number is not None else one.upstream.to_user_string()
        for key in [None] if one.partitions is None else self._link(one, member).keys(cell):
            yield name, key

    def _refresh(self, instance: dg.DagsterInstance) -> set[int]:
        """Bring partition keys and what pins name up to now; the units where it is another, or that of an upstream."""
        self._instance = instance
        moved = {partition for partition in self._partitions if partition.refresh(instance)}
        if moved:
            self._links = {key: links for key, links in self._links.items() if not moved & {key[1], key[2]}}
        dirty = {number for number, unit in enumerate(self.units) if moved and moved & set(_partitions(unit))}
        return dirty | self._refresh_pins()

    def _refresh_pins(self) -> set[int]:
        """Read the pins and tags that inputs name; the units that have others than before."""
        dirty: set[int] = set()
        named = [
            (number, edge.place, edge.pinned)
            for number, unit in enumerate(self.units)
            for member in unit.members
            for edge in member.edges
            if edge.pinned is not None and edge.pinned.startswith(("pin:", "tag:"))
        ]
        for project in {id(place.project) for _, place, _ in named}:
            wanted = {(pinned, place.table) for _, place, pinned in named if id(place.project) == project}
            pins = self._heads[project].pinned(wanted)
            if pins != self._pins.get(project):
                self._pins[project] = pins
                dirty |= {number for number, place, _ in named if id(place.project) == project}
        return dirty

    def _refresh_valueless(self, instance: dg.DagsterInstance) -> set[int]:
        """See which cells that some only depend on were made without a value; the units for which others were."""
        unread = [
            (number, edge)
            for number, unit in enumerate(self.units)
            for member in unit.members
            for edge in member.edges
            if edge.missing == "unread" and not edge.is_elsewhere
        ]
        empty = {edge.upstream: cells for _, edge in unread if (cells := self._empty_cells(edge))}
        skippable = {edge.upstream for _, edge in unread if edge.is_skippable}
        before = self._valueless
        self._valueless = self._without_value.look(instance, empty, skippable) if empty else {}
        return {number for number, edge in unread if self._valueless.get(edge.upstream) != before.get(edge.upstream)}

    def _empty_cells(self, edge: Edge) -> list[str | None]:
        if edge.partitions is None:
            return [None] if self._is_empty(edge) else []
        made = self._table(edge.place, edge.partitions).partitions
        return [key for key in edge.partitions.order if key not in made]

    def _is_empty(self, edge: Edge) -> bool:
        heads = self._table(edge.place, None)
        return heads == TableHeads(dropped=heads.dropped)

    def _digest(self, etags: Mapping[int, Mapping[str, str]]) -> str:
        """Of all that the judgement depends on: how it is made, partition keys, pins and tags, heads by their ETags."""
        stamps = sorted(f"{partition.text} {partition.stamp!r}" for partition in self._partitions)
        seen: list[Any] = []
        for number, heads in self._heads.items():
            found = sorted(
                (str(table), etags[number][table]) for table in self._tables[number] if table in etags[number]
            )
            pins = sorted(self._pins.get(number, {}).items())
            seen.append([heads.project.store.uri, found, pins])
        return _digest([self._structure, stamps, seen])

    def _touched(self, member: Member, edge: Edge | None, changed: Collection[str] | None) -> set[str | None] | None:
        """The partitions of a member that are to be judged again after these of a table changed; ``None`` for all."""
        if changed is None or member.partitions is None or (edge is not None and edge.partitions is None):
            return None
        return set(changed) if edge is None else self._link(edge, member).below(changed)

    def _link(self, edge: Dependency, member: Member) -> Links:
        assert edge.partitions is not None
        # Some mappings cannot be hashed, and one of the user's own need not look like what it does.
        mapping = repr(edge.mapping) if is_known(edge.mapping) else f"{id(edge.mapping)}"
        key = (mapping, edge.partitions, member.partitions)
        if key not in self._links:
            self._links[key] = Links(edge.mapping, edge.partitions, member.partitions, self._instance)
        return self._links[key]

    def _judge(self, number: int, cells: set[str | None] | None) -> None:
        """Compare the heads of a unit's cells with their upstreams', and remember what is not current."""
        known = self._findings.pop(number, {})
        found = {} if cells is None else {cell: stale for cell, stale in known.items() if cell not in cells}
        found |= self._found(number, cells, self._on, self._on_code_version)
        if found:
            self._findings[number] = found

    def _found(
        self, number: int, cells: Collection[str | None] | None, on: On, on_code_version: bool
    ) -> dict[str | None, StaleCell]:
        """What is not current of these cells of a unit, ``None`` for all."""
        unit = self.units[number]
        name = unit.name
        found: dict[str | None, StaleCell] = {}
        left = self._left.setdefault(number, set())
        for cell, members in self._member_cells(unit, self._known_cells(unit, cells)):
            one = find(name, cell, members, on, on_code_version=on_code_version)
            if one is not None and unit.skippable:
                one = find(name, cell, self._emitted(unit, cell, members), on, on_code_version=on_code_version)
            left.discard(cell)
            if one is None:
                continue
            if self._is_in_scope(unit, cell):
                found[cell] = one
            else:
                left.add(cell)
        return found

    def _known_cells(self, unit: Unit, cells: Collection[str | None] | None) -> Iterable[str | None]:
        """Those of these cells, ``None`` for all, that a unit has."""
        if unit.partitions is None:
            return [None]
        order = unit.partitions.order
        return order if cells is None else [cell for cell in cells if cell in order]

    def _member_cells(
        self, unit: Unit, cells: Iterable[str | None]
    ) -> Iterator[tuple[str | None, Sequence[MemberCell]]]:
        """For each cell the members of its unit, with what they need."""
        shared = {
            edge: need for member in unit.members for edge in member.edges if (need := self._shared(edge, member))
        }
        tables = {member: self._own(member) for member in unit.members}
        for cell in cells:
            members: list[MemberCell] = []
            for member in unit.members:
                needs = [shared.get(edge) or self._need(edge, member, cell) for edge in member.edges]
                needed = [need for need in needs if need is not None]
                members.append(MemberCell(tables[member], member.own_cell(cell), needed, member.code_version))
            yield cell, members

    def _emitted(self, unit: Unit, cell: str | None, members: Sequence[MemberCell]) -> Iterator[MemberCell]:
        """The members of a cell without the optional outputs that the last run left out."""
        for member, judged in zip(unit.members, members, strict=True):
            if member.key not in unit.skippable or not self._is_left_out(member.key, cell, judged):
                yield judged

    def _is_left_out(self, key: dg.AssetKey, cell: str | None, judged: MemberCell) -> bool:
        """Whether the last run did not emit an optional output, or as it was, though all that it needs was there."""
        begun = planned_and_done(self._instance, key, cell)
        if begun is None or (judged.head is not None and judged.head.code_version != judged.code_version):
            return False
        read = [need.heads.cell(upstream) for need in judged.needs for upstream in need.keys or [None]]
        return all(datetime.fromisoformat(head.timestamp) < begun for head in read if head is not None)

    def _is_in_scope(self, unit: Unit, cell: str | None) -> bool:
        """Whether a cell is not current because of its environment, and not since before it began.

        It is where the environment, or the code, made it or what it reads another one; all of production's are.
        """
        if self._scope == "all" or any(member.place.forked_at < 0 for member in unit.members):
            return True
        return any(
            self._is_of_environment(member, cell) or self._reads_environment(member, cell) for member in unit.members
        )

    def _is_of_environment(self, member: Member, cell: str | None) -> bool:
        """Whether the environment, or the code, made a cell of a member another one than it was at the fork."""
        head = self._own(member).cell(member.own_cell(cell))
        return head is not None and (
            head.log_version > member.place.forked_at or member.code_version not in (None, head.code_version)
        )

    def _reads_environment(self, member: Member, cell: str | None) -> bool:
        """Whether a cell of a member reads what the environment has written."""
        for edge in member.edges:
            if edge.place.is_in_environment:
                keys = [None] if edge.partitions is None else self._link(edge, member).keys(cell)
                upstreams = (self._table(edge.place, edge.partitions).cell(key) for key in keys)
                if any(head is not None and head.log_version > edge.place.forked_at for head in upstreams):
                    return True
        return False

    def _shared(self, edge: Edge, member: Member) -> Need | None:
        """What every partition of a member needs of an upstream, if that is the same for all of them."""
        if edge.partitions is None or self._link(edge, member).whole:
            return self._need(edge, member, None)
        return None

    def _need(self, edge: Edge, member: Member, cell: str | None) -> Need | None:
        if (edge.is_optional or None in self._valueless_of(edge)) and self._is_empty(edge):
            return None
        heads = self._table(edge.place, edge.partitions)
        keys = self._needed_keys(edge, member, cell)
        return Need(
            upstream=edge.upstream.to_user_string(),
            table=edge.place.key,
            heads=heads,
            keys=keys,
            lacking=() if keys is None else sorted(key for key in keys if key not in heads.partitions),
            is_whole=edge.partitions is not None and self._link(edge, member).whole,
            missing=edge.missing,
            pinned=None if edge.pinned is None else self._pinned(edge),
            is_own=edge.is_own,
        )

    def _needed_keys(self, edge: Edge, member: Member, cell: str | None) -> Collection[str] | None:
        """The upstream partitions that a cell maps to, without those made without a value; ``None``: none."""
        if edge.partitions is None:
            return None
        keys, valueless = self._link(edge, member).keys(cell), self._valueless_of(edge)
        if not valueless:
            return keys
        made = self._table(edge.place, edge.partitions).partitions
        return [key for key in keys if key in made or key not in valueless]

    def _valueless_of(self, edge: Edge) -> Collection[str | None]:
        """The upstream cells that were made without a value, where the edge only depends on them."""
        return self._valueless.get(edge.upstream, ()) if edge.missing == "unread" and not edge.is_elsewhere else ()

    def _pinned(self, edge: Edge) -> str:
        """The SHA, or its beginning, that an input is pinned to; ``""`` where heads do not say."""
        try:
            reference = parse_reference(edge.pinned)
        except InvalidInput:
            return ""  # the run says so
        match reference:
            case ShaPrefix(prefix):
                return prefix
            case PinName() | TagName():
                return self._pins.get(id(edge.place.project), {}).get((str(edge.pinned), edge.place.table), "")
            case _:
                return ""

    def _own(self, member: Member) -> TableHeads:
        return self._table(member.place, None if member.is_history else member.partitions)

    def _table(self, place: Place, partitions: Partitions | None) -> TableHeads:
        """The heads of a table, for an asset of these partitions."""
        heads = self._heads[id(place.project)].heads(place.table)
        if partitions is None:
            return heads
        key = (id(place.project), place.table, partitions)
        if key not in self._as_read or self._as_read[key][0] is not heads:
            self._as_read[key] = heads, heads.read_as(place.table, partitions.partitioning)
        return self._as_read[key][1]


def _at(place: Place) -> tuple[int, str]:
    return id(place.project), str(place.table)


def _readers(units: Sequence[Unit]) -> dict[tuple[int, str], list[tuple[int, Member, Edge | None]]]:
    """By table, the units that have it or read it: the number of each, the member, and the edge that reads it."""
    readers: dict[tuple[int, str], list[tuple[int, Member, Edge | None]]] = {}
    for number, unit in enumerate(units):
        for member in unit.members:
            readers.setdefault(_at(member.place), []).append((number, member, None))
            for edge in member.edges:
                readers.setdefault(_at(edge.place), []).append((number, member, edge))
    return readers


def _partitions(unit: Unit) -> Iterator[Partitions]:
    for member in unit.members:
        above = (*member.edges, *member.values)
        for partition in (unit.partitions, member.partitions, *(dependency.partitions for dependency in above)):
            if partition is not None:
                yield partition


def _widen(affected: dict[int, set[str | None] | None], unit: int, cells: set[str | None] | None) -> None:
    before = affected.get(unit, set())
    affected[unit] = None if before is None or cells is None else before | cells


def _described(unit: Unit) -> list[Any]:
    """All of a unit that a judgement depends on, as text."""
    return [
        [
            member.key.to_user_string(),
            member.place.key,
            member.partitions.text if member.partitions else None,
            member.code_version,
            [
                [
                    e.upstream.to_user_string(),
                    e.place.key,
                    repr(e.mapping),
                    e.missing,
                    e.pinned,
                    e.is_optional,
                    e.is_own,
                ]
                for e in member.edges
            ],
        ]
        for member in unit.members
    ]


def _digest(value: Any) -> str:
    return hashlib.sha256(orjson.dumps(value)).hexdigest()
