"""What units are judged by, as it was last seen: heads, partition keys, pins, and what was made without a value.

What is remembered between looks (heads by ETag, links of partitions) is a cache: a new `Observation` sees the same.
"""

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import dagster as dg
import orjson

from dagster_versioned.assets.graph.places import Place
from dagster_versioned.errors import InvalidInput
from dagster_versioned.identity.names import TableName
from dagster_versioned.identity.reference import PinName, ShaPrefix, TagName, parse_reference
from dagster_versioned.projects.project import Project
from dagster_versioned.projects.staleness import TableHeads
from dagster_versioned.sensors.external import ExternalHeads, heads_of
from dagster_versioned.sensors.graph import Dependency, Edge, Links, Member, Partitions, Unit, is_known
from dagster_versioned.sensors.heads import HeadChanges, ProjectHeads
from dagster_versioned.sensors.valueless import Valueless

FORM = 3
"""Of the digest: what another form of it called settled is looked at once more. The first covered pending heads, the
second partitions that are taken for others."""


class Observation:
    """What was seen of units and their upstreams, to be judged by ``rules``. Not thread-safe."""

    def __init__(self, units: Sequence[Unit], rules: Sequence[Any], brings_heads_up: bool) -> None:
        self._units = units
        self._structure = _digest([FORM, *(_described(unit) for unit in units), *rules])
        members = [member for unit in units for member in unit.members]
        self._edges = [(number, edge) for number, unit in enumerate(units) for m in unit.members for edge in m.edges]
        places = [*(member.place for member in members), *(edge.place for _, edge in self._edges)]
        projects = {id(place.project): place.project for place in places}
        self.heads: dict[int, ProjectHeads | ExternalHeads] = {
            number: heads_of(project, brings_heads_up) for number, project in projects.items()
        }
        self.tables: dict[int, set[TableName]] = {
            number: {place.table for place in places if id(place.project) == number} for number in projects
        }
        self._partitions = list(dict.fromkeys(partition for unit in units for partition in _partitions(unit)))
        self._links: dict[tuple[str, Partitions, Partitions | None], Links] = {}
        self._as_read: dict[tuple[int, TableName, Partitions], tuple[TableHeads, TableHeads]] = {}
        self._pins: dict[int, Mapping[tuple[str, TableName], str]] = {}
        self._without_value = Valueless()
        self._valueless: Mapping[dg.AssetKey, Collection[str | None]] = {}

    @property
    def projects(self) -> list[Project]:
        """The projects of all that is seen."""
        return [heads.project for heads in self.heads.values() if isinstance(heads.project, Project)]

    def listings(self) -> dict[int, dict[str, str]]:
        """The ETags of heads, by project."""
        return {number: heads.listing() for number, heads in self.heads.items()}

    def refresh(self, instance: dg.DagsterInstance) -> set[int]:
        """Bring partition keys and what pins name up to now; the units where it is another, or that of an upstream."""
        self.instance = instance
        moved = {partition for partition in self._partitions if partition.refresh(instance)}
        if moved:
            self._links = {key: links for key, links in self._links.items() if not moved & {key[1], key[2]}}
        dirty = {number for number, unit in enumerate(self._units) if moved and moved & set(_partitions(unit))}
        return dirty | self._refresh_pins()

    def _refresh_pins(self) -> set[int]:
        """Read the pins and tags that inputs name; the units that have others than before."""
        dirty: set[int] = set()
        named = [
            (number, edge.place, edge.pinned)
            for number, edge in self._edges
            if edge.pinned is not None and edge.pinned.startswith(("pin:", "tag:"))
        ]
        for project in {id(place.project) for _, place, _ in named}:
            wanted = {(pinned, place.table) for _, place, pinned in named if id(place.project) == project}
            pins = self.heads[project].pinned(wanted)
            if pins != self._pins.get(project):
                self._pins[project] = pins
                dirty |= {number for number, place, _ in named if id(place.project) == project}
        return dirty

    def look(self, listings: Mapping[int, Mapping[str, str]]) -> dict[int, HeadChanges]:
        """Read the heads that are others than before, by project."""
        return {number: heads.look(listings[number], self.tables[number]) for number, heads in self.heads.items()}

    def refresh_valueless(self) -> set[int]:
        """See which cells that some only depend on were made without a value; the units for which others were."""
        unread = [(number, edge) for number, edge in self._edges if edge.missing == "unread" and not edge.is_elsewhere]
        empty = {edge.upstream: cells for _, edge in unread if (cells := self._empty_cells(edge))}
        skippable = {edge.upstream for _, edge in unread if edge.is_skippable}
        before = self._valueless
        self._valueless = self._without_value.look(self.instance, empty, skippable) if empty else {}
        return {number for number, edge in unread if self._valueless.get(edge.upstream) != before.get(edge.upstream)}

    def _empty_cells(self, edge: Edge) -> list[str | None]:
        if edge.partitions is None:
            return [None] if self.is_empty(edge) else []
        made = self.table(edge.place, edge.partitions).partitions
        return [key for key in edge.partitions.order if key not in made]

    def forget(self) -> None:
        """Forget what was taken note of, and not judged."""
        self._links, self._pins = {}, {}

    def digest(self, etags: Mapping[int, Mapping[str, str]]) -> str:
        """Of all that a judgement depends on: its rules, the units, partition keys, pins and tags, heads by ETags."""
        stamps = sorted(f"{partition.text} {partition.stamp!r}" for partition in self._partitions)
        seen: list[Any] = []
        for number, heads in self.heads.items():
            found = sorted(
                (str(table), etags[number][table]) for table in self.tables[number] if table in etags[number]
            )
            pins = sorted(self._pins.get(number, {}).items())
            seen.append([heads.project.store.uri, found, pins])
        return _digest([self._structure, stamps, seen])

    def table(self, place: Place, partitions: Partitions | None) -> TableHeads:
        """The heads of a table, for an asset of these partitions."""
        heads = self.heads[id(place.project)].heads(place.table)
        if partitions is None:
            return heads
        key = (id(place.project), place.table, partitions)
        if key not in self._as_read or self._as_read[key][0] is not heads:
            self._as_read[key] = heads, heads.read_as(place.table, partitions.partitioning)
        return self._as_read[key][1]

    def own(self, member: Member) -> TableHeads:
        """The heads of a member's own table."""
        return self.table(member.place, None if member.is_history else member.partitions)

    def is_empty(self, edge: Edge) -> bool:
        """Whether there is nothing of an upstream."""
        heads = self.table(edge.place, None)
        return heads == TableHeads(dropped=heads.dropped)

    def link(self, dependency: Dependency, member: Member) -> Links:
        """How the partitions of an upstream that has some map to those of a member."""
        assert dependency.partitions is not None
        # Some mappings cannot be hashed, and one of the user's own need not look like what it does.
        mapping = repr(dependency.mapping) if is_known(dependency.mapping) else f"{id(dependency.mapping)}"
        key = (mapping, dependency.partitions, member.partitions)
        if key not in self._links:
            self._links[key] = Links(dependency.mapping, dependency.partitions, member.partitions, self.instance)
        return self._links[key]

    def cells_above(self, dependency: Dependency, member: Member, cell: str | None) -> Collection[str | None]:
        """The cells of an upstream that a cell of a member is built from."""
        return [None] if dependency.partitions is None else self.link(dependency, member).keys(cell)

    def is_shared(self, edge: Edge, member: Member) -> bool:
        """Whether all cells of a member are built from the same of an upstream."""
        return edge.partitions is None or self.link(edge, member).whole

    def touched(self, member: Member, edge: Edge | None, changed: Collection[str] | None) -> set[str | None] | None:
        """The partitions of a member that are to be judged again after these of a table changed; ``None`` for all."""
        if changed is None or member.partitions is None or (edge is not None and edge.partitions is None):
            return None
        return set(changed) if edge is None else self.link(edge, member).below(changed)

    def valueless(self, edge: Edge) -> Collection[str | None]:
        """The upstream cells that were made without a value, where the edge only depends on them."""
        return self._valueless.get(edge.upstream, ()) if edge.missing == "unread" and not edge.is_elsewhere else ()

    def pinned(self, edge: Edge) -> str:
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


def _partitions(unit: Unit) -> Iterator[Partitions]:
    for member in unit.members:
        above = (*member.edges, *member.values)
        for partition in (unit.partitions, member.partitions, *(dependency.partitions for dependency in above)):
            if partition is not None:
                yield partition


def _described(unit: Unit) -> list[Any]:
    """All of a unit that a judgement depends on, as text."""
    return [
        [
            member.key.to_user_string(),
            member.place.key,
            member.partitions.text if member.partitions else None,
            member.code_version,
            [_described_edge(edge) for edge in member.edges],
        ]
        for member in unit.members
    ]


def _described_edge(edge: Edge) -> list[Any]:
    name, mapping = edge.upstream.to_user_string(), repr(edge.mapping)
    return [name, edge.place.key, mapping, edge.missing, edge.pinned, edge.is_optional, edge.is_own]


def _digest(value: Any) -> str:
    return hashlib.sha256(orjson.dumps(value)).hexdigest()
