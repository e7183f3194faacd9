"""Everything that a sensor watches: what is stale of it, and what becomes of that now.

What is remembered between looks (findings of cells whose heads did not change) is a cache: a new `Watch` finds the
same.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache

import dagster as dg

from dagster_versioned.assets.graph.places import Place
from dagster_versioned.branches.promotion_document import OpenPromotion, read_promotion
from dagster_versioned.errors import IntegrityError
from dagster_versioned.identity.names import TableName
from dagster_versioned.projects.project import Project
from dagster_versioned.projects.staleness import StaleCell
from dagster_versioned.sensors.blocking_checks import BlockingChecks, VersionRead
from dagster_versioned.sensors.graph import Dependency, Edge, Member, Unit, is_known
from dagster_versioned.sensors.heads import HeadChanges
from dagster_versioned.sensors.judgement import Rules, judge
from dagster_versioned.sensors.observation import Observation
from dagster_versioned.sensors.plan import Cell, Decision, plan
from dagster_versioned.sensors.runs import RunsInProgress
from dagster_versioned.tables.documents.parked_draft import ParkedDraft, awaited, read_drafts
from dagster_versioned.tables.external import ExternalTable

logger = logging.getLogger("dagster_versioned")

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

    def __init__(self, units: Sequence[Unit], rules: Rules, *, brings_heads_up: bool = True) -> None:
        self.units = units
        self.rules = rules
        self.seen = Observation(units, [rules.on, rules.on_code_version, rules.scope], brings_heads_up)
        self.left: dict[int, dict[str | None, StaleCell]] = {}
        """Of units, by number, what was not current when the environment began, and is not because of it."""
        self._names = {unit.name: unit for unit in units}
        self._unit_of = {key: number for number, unit in enumerate(units) for key in unit.keys}
        members = [member for unit in units for member in unit.members]
        above: list[Dependency] = [each for member in members for each in (*member.values, *member.edges)]
        self._above = {dependency.upstream.to_user_string(): dependency for dependency in above}
        self._readers = _readers(units)
        self._findings: dict[int, dict[str | None, StaleCell]] = {}
        self._promotions: dict[int, OpenPromotion] = {}
        self._looked_at = datetime.now(UTC)
        self._drafts: dict[int, list[ParkedDraft]] = {}
        self._is_new = True
        # A mapping of the user's own may do something else tomorrow and look the same.
        self._is_described = all(is_known(dependency.mapping) for dependency in above)

    def look(
        self, instance: dg.DagsterInstance, settled: str | None = None, *, all_promotions: bool = False
    ) -> StalenessReport:
        """See what is stale now. Where nothing is, and the digest is the ``settled`` one, no head is read.

        Where something is, promotions are looked for (with ``all_promotions`` in any case). By one that has just ended,
        heads may be others than a moment before, so they are looked at once more: what it committed is in them then, as
        with runs in progress.
        """
        report = self._look(instance, settled)
        problems = self._read_promotions(self.units if all_promotions else self._stale_units())
        if any(promotion.is_recent for promotion in self._promotions.values()):
            again = self._look(instance)
            report = replace(again, reads=report.reads + again.reads)
        return replace(report, problems=problems)

    def _look(self, instance: dg.DagsterInstance, settled: str | None = None) -> StalenessReport:
        self._looked_at = datetime.now(UTC)
        try:
            listings = self.seen.listings()
            moved = self.seen.refresh(instance)
            if self._is_new and self._is_described and settled == (digest := self.seen.digest(listings)):
                return self._report(0, (), digest)
            looks = self.seen.look(listings)
            affected = self._affected(moved, looks) | dict.fromkeys(self.seen.refresh_valueless())
            for number, cells in affected.items():
                self._judge(number, cells)
        except BaseException:
            # What changed was taken note of and not judged, so next time everything is judged, by nothing remembered.
            self._is_new, self._findings = True, {}
            self.seen.forget()
            raise
        self._is_new = False
        reads = sum(look.reads for look in looks.values())
        pending = [table for look in looks.values() for table in look.pending]
        is_known = self._is_described and all(look.is_known for look in looks.values())
        etags = {number: look.etags for number, look in looks.items()}
        return self._report(reads, pending, self.seen.digest(etags) if is_known else None)

    def _affected(self, moved: Collection[int], looks: Mapping[int, HeadChanges]) -> dict[int, set[str | None] | None]:
        """The units to judge again, with their partitions (``None`` for all), after these units and heads changed."""
        affected: dict[int, set[str | None] | None] = dict.fromkeys(range(len(self.units)) if self._is_new else moved)
        for number, look in looks.items():
            for table, partitions in look.changed.items():
                for unit, member, edge in self._readers[number, table]:
                    before, cells = affected.get(unit, set()), self.seen.touched(member, edge, partitions)
                    affected[unit] = None if before is None or cells is None else before | cells
        # Whether an optional output was left out is known when the run has ended, which is in no head.
        return affected | dict.fromkeys(number for number in self._findings if self.units[number].skippable)

    def _judge(self, number: int, cells: set[str | None] | None) -> None:
        """Judge cells of a unit again, and remember what is not current."""
        found, left = judge(self.seen, self.units[number], cells, self.rules)
        for before, now in ((self._findings.pop(number, {}), found), (self.left.pop(number, {}), left)):
            if cells is not None:
                now |= {cell: stale for cell, stale in before.items() if cell not in cells}
        self.left[number] = left
        if found:
            self._findings[number] = found

    def _report(self, reads: int, pending: Sequence[str], digest: str | None) -> StalenessReport:
        left = sum(map(len, self.left.values()))
        targets = sum(unit.is_target for unit in self.units)
        return StalenessReport(targets, sum(map(len, self.seen.tables.values())), reads, tuple(pending), digest, left)

    @property
    def is_settled(self) -> bool:
        """Whether the last look found everything current."""
        return not any(self._findings.values())

    def _stale_units(self) -> list[Unit]:
        return [self.units[number] for number, found in self._findings.items() if found]

    def findings(self) -> Iterator[tuple[Cell, StaleCell]]:
        """What is not current, upstream first, partitions in their order."""
        for number in sorted(self._findings):
            found, name = self._findings[number], self.units[number].name
            order = self.order(name)
            for partition in sorted(found, key=lambda key: order.get(key, 0) if key is not None else 0):
                yield (name, partition), found[partition]

    def decide(
        self,
        findings: Mapping[Cell, StaleCell],
        runs: RunsInProgress,
        tried: Callable[[Cell, StaleCell], Decision | None],
        checks: BlockingChecks | None = None,
    ) -> dict[Cell, Decision]:
        """What becomes of what is not current, upstream first; ``tried`` says which run was made for a state and ended.

        With ``checks``, what would read a version that a blocking check has not passed for waits.
        """

        def running(cell: Cell) -> str | None:
            order = self.order(cell[0])
            found = (runs.running(key, cell[1], order) for key in self._keys(cell[0]))
            run = next((run for run in found if run is not None), None)
            return self._about_to_be(cell) if run is None else f"run {run[:8]}"

        self._drafts = self._read_drafts()
        unchecked = None if checks is None else self._unchecked(findings, runs, checks)
        return plan(findings.items(), self.upstreams, running, tried, unchecked, self.values)

    def _unchecked(
        self, findings: Mapping[Cell, StaleCell], runs: RunsInProgress, checks: BlockingChecks
    ) -> Callable[[Cell], str | None]:
        """Ask what checks found of what would be read; returns which of them a cell waits for."""
        could_run = [
            cell for cell, finding in findings.items() if not (finding.held or finding.unreadable or finding.absent)
        ]
        edges = dict.fromkeys(edge for cell in could_run for edge in self._checked_edges(cell))  # what all read, once
        readings = {read: edge.checks for edge, member, cell in edges for read in self._read_by(edge, member, cell)}
        if readings:
            checks.look(self.seen.instance, readings, runs.ids)

        @cache
        def why(edge: Edge, member: Member, cell: str | None) -> str | None:
            whys = (checks.hindrance(reading, edge.checks) for reading in self._read_by(edge, member, cell))
            return next(filter(None, whys), None)

        return lambda cell: next(filter(None, (why(*edge) for edge in self._checked_edges(cell))), None)

    def _checked_edges(self, cell: Cell) -> Iterator[tuple[Edge, Member, str | None]]:
        """The edges of a cell whose upstreams have blocking checks, and the partition that matters to what they read.

        A version that an input is pinned to is somebody's decision, and what the same run makes is none of ours.
        """
        for member in self._names[cell[0]].members:
            for edge in member.edges:
                if edge.checks and edge.pinned is None and not edge.is_own:
                    yield edge, member, None if self.seen.is_shared(edge, member) else cell[1]

    def _read_by(self, edge: Edge, member: Member, cell: str | None) -> Iterator[VersionRead]:
        heads = self.seen.table(edge.place, edge.partitions)
        for key in sorted(self.seen.cells_above(edge, member, cell), key=str):
            # What production had at the fork is handed on: its checks are in another event log.
            if (head := heads.cell(key)) is not None and head.log_version > edge.place.forked_at:
                yield VersionRead(edge.upstream, key, head.metadata_sha, head.log_version, head.timestamp)

    def _about_to_be(self, cell: Cell) -> str | None:
        """The open promotion, or the draft, that is about to make a cell another one, if there is one."""
        if not self._promotions and not self._drafts:
            return None
        for place, partition in self._places_of(cell):
            found = self._promotions.get(id(place.project))
            if found is not None and found.is_living and found.covers(place.table, partition):
                return f"promotion of {found.environment}"
            if (draft := self._draft_of(place, partition)) is not None:
                return f"draft {draft.id[:8]}, parked by run {draft.run.run_id[:8]}"
        return None

    def _draft_of(self, place: Place, partition: str | None) -> ParkedDraft | None:
        drafts = [draft for draft in self._drafts.get(id(place.project), ()) if draft.table == place.table]
        return next((draft for draft in drafts if partition is None or partition in draft.partitions), None)

    def _places_of(self, cell: Cell) -> list[tuple[Place, str | None]]:
        """The tables of a cell, with the partition of each."""
        name, partition = cell
        if name in self._names:
            return [(member.place, member.own_cell(partition)) for member in self._names[name].members]
        above = self._above[name]
        return [(above.place, partition)] if isinstance(above, Edge) else []

    def _read_promotions(self, units: Iterable[Unit]) -> tuple[str, ...]:
        """Read the promotions of the projects of units and of their upstreams; returns what cannot be read.

        Those of production alone: in an environment, nothing is promoted.
        """
        self._promotions = {}
        problems: list[str] = []
        for number in dict.fromkeys(id(place.project) for unit in units for place in unit.places):
            project = self.seen.heads[number].project
            if isinstance(project, ExternalTable) or project.environment is not None:
                continue
            try:
                found = read_promotion(project.data)
            except IntegrityError as error:
                logger.warning("%s", error)
                problems.append(str(error))
                continue
            if found is not None:
                self._promotions[number] = found
        return tuple(problems)

    def _read_drafts(self) -> dict[int, list[ParkedDraft]]:
        """The drafts that are to be judged, or were closed since heads were looked at, where something is stale."""
        found: dict[int, list[ParkedDraft]] = {}
        if self.is_settled:
            return found
        for number, heads in self.seen.heads.items():
            if not isinstance(heads.project, Project):
                continue
            drafts = read_drafts(heads.project.data)[0]
            about_to_be = {draft.id for draft in awaited(drafts)}
            for draft in drafts:
                closed = draft.closed_at and datetime.fromisoformat(draft.closed_at) > self._looked_at - CLOCKS
                if closed or draft.id in about_to_be:
                    found.setdefault(number, []).append(draft)
        return found

    def name(self, key: dg.AssetKey) -> str:
        """The name of the unit that an asset belongs to."""
        return self.units[self._unit_of[key]].name

    def finding(self, key: dg.AssetKey) -> Mapping[str | None, StaleCell]:
        """What is not current of one asset, by partition."""
        return self.findings_of(self._unit_of.get(key, -1))

    def findings_of(self, number: int) -> Mapping[str | None, StaleCell]:
        """What is not current of a unit, by partition."""
        return self._findings.get(number, {})

    def unit(self, name: str) -> Unit:
        """The unit of a name."""
        return self._names[name]

    def _keys(self, name: str) -> Sequence[dg.AssetKey]:
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

    def _cells_above(self, above: Dependency, member: Member, cell: str | None) -> Iterator[Cell]:
        number = self._unit_of.get(above.upstream)
        name = self.units[number].name if number is not None else above.upstream.to_user_string()
        for key in self.seen.cells_above(above, member, cell):
            yield name, key


def _readers(units: Sequence[Unit]) -> dict[tuple[int, TableName], list[tuple[int, Member, Edge | None]]]:
    """By table, the units that have it or read it: the number of each, the member, and the edge that reads it."""
    readers: dict[tuple[int, TableName], list[tuple[int, Member, Edge | None]]] = {}
    for number, unit in enumerate(units):
        for member in unit.members:
            for part, edge in ((member, None), *((edge, edge) for edge in member.edges)):
                place = part.place
                readers.setdefault((id(place.project), place.table), []).append((number, member, edge))
    return readers
