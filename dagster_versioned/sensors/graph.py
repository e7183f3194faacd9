"""The part of Dagster's asset graph that a sensor watches: which tables, built from which, by which partitions."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import dagster as dg

from dagster_versioned.assets.asset_code import stated_code_version
from dagster_versioned.assets.feature_definition import FEATURE_KEY
from dagster_versioned.assets.graph.inputs import ALLOW_MISSING_KEY, VERSION_KEY, metadata_by_upstream, plain
from dagster_versioned.assets.graph.partitions import partitioning_of, reads_whole, upstream_result
from dagster_versioned.assets.graph.places import Place, Places
from dagster_versioned.assets.looks import blocking_checks
from dagster_versioned.dagster_internals import AssetGraph, AssetNode
from dagster_versioned.errors import InvalidInput
from dagster_versioned.projects.staleness import Missing
from dagster_versioned.tables.options import METADATA_KEY

SOURCE_KEY = "dagster_versioned/source"
"""Asset metadata that says that an external asset is a versioned table, which must exist before what reads it runs."""


class Partitions:
    """The keys of one partitions definition now, in order; made again only when there are others."""

    def __init__(self, definition: dg.PartitionsDefinition[str]) -> None:
        self.definition = definition
        self.partitioning = partitioning_of(definition)
        self.text = repr(definition)
        self.stamp: Any = None
        self.order: Mapping[str, int] = {}

    def refresh(self, instance: dg.DagsterInstance) -> bool:
        """Bring the keys up to now; returns whether there are others than before."""
        stamp = _stamp(self.definition, instance)
        if stamp == self.stamp:
            return False
        keys = self.definition.get_partition_keys(dynamic_partitions_store=instance)
        self.stamp, self.order = stamp, {str(key): place for place, key in enumerate(keys)}
        return True


class _Definitions:
    """One `Partitions` for equal definitions. To hash one is to write out all its keys, so each is asked once."""

    def __init__(self) -> None:
        self._by_id: dict[int, Partitions] = {}
        self._by_value: dict[dg.PartitionsDefinition[str], Partitions] = {}

    def of(self, definition: dg.PartitionsDefinition[str] | None) -> Partitions | None:
        if definition is None:
            return None
        if id(definition) not in self._by_id:
            self._by_id[id(definition)] = self._by_value.setdefault(definition, Partitions(definition))
        return self._by_id[id(definition)]


@dataclass(frozen=True, eq=False)
class Dependency:
    """One upstream of an asset, and how partitions map."""

    upstream: dg.AssetKey
    partitions: Partitions | None
    mapping: dg.PartitionMapping


@dataclass(frozen=True, eq=False)
class Edge(Dependency):
    """An upstream that is a table: where it is, what a missing partition means, what it is pinned to.

    ``is_optional``: an external asset that is not loaded, and that nobody declared as a versioned table; it
    counts once it is one. ``is_elsewhere``: it is loaded by another IO manager than it is stored by, from another
    project, where what happens to it here does not matter. ``is_skippable``: it is an optional output. ``checks`` are
    the upstream's blocking ones.
    """

    place: Place
    missing: Missing
    pinned: str | None
    is_optional: bool
    is_own: bool
    is_elsewhere: bool
    is_skippable: bool
    checks: tuple[dg.AssetCheckKey, ...]


@dataclass(frozen=True, eq=False)
class Member:
    """One asset of a unit.

    ``values`` are upstreams that are no tables (another IO manager has them): which of them a version was built from,
    no head says, so that it has to be built after the run that makes them.
    """

    key: dg.AssetKey
    place: Place
    partitions: Partitions | None
    code_version: str | None
    edges: tuple[Edge, ...]
    values: tuple[Dependency, ...]
    is_feature: bool
    is_history: bool

    def own_cell(self, cell: str | None) -> str | None:
        """The partition of its table at a partition of its unit."""
        return cell if self.partitions is not None else None


@dataclass(frozen=True, eq=False)
class Unit:
    """Assets that run together: one, or all outputs of a multi-asset that cannot be subset, or one with its values.

    ``keys`` are all that run, ``members`` those that are versioned tables, ``skippable`` optional outputs. What is no
    target is judged, since targets read values that it makes, and not requested.
    """

    keys: tuple[dg.AssetKey, ...]
    members: tuple[Member, ...]
    partitions: Partitions | None
    is_single_run: bool
    is_target: bool
    skippable: tuple[dg.AssetKey, ...]

    @property
    def name(self) -> str:
        """The unit as Dagster's UI spells asset keys."""
        return ", ".join(key.to_user_string() for key in self.keys)

    @property
    def places(self) -> list[Place]:
        """The tables of its members and of their upstreams."""
        return [part.place for member in self.members for part in (member, *member.edges)]

    @property
    def is_watched(self) -> bool:
        """Whether a sensor has something to compare: an upstream, or the code version of a feature."""
        return any(member.edges or member.is_feature for member in self.members)

    @property
    def is_self_dependent(self) -> bool:
        """Whether a partition is built from another one of the same asset."""
        return any(edge.upstream == member.key for member in self.members for edge in member.edges)


def units_of(graph: AssetGraph, targets: Collection[dg.AssetKey]) -> list[Unit]:
    """The units that the target assets belong to and that sensors watch, as `all_units_of` has them.

    Those without an upstream are left out, but for features, which have code versions to be compared.
    """
    return [unit for unit in all_units_of(graph, targets) if unit.is_watched]


def all_units_of(
    graph: AssetGraph, targets: Collection[dg.AssetKey], instance: dg.DagsterInstance | None = None
) -> list[Unit]:
    """The units that the target assets belong to, upstream first; assets that are not versioned tables are left out.

    ``instance`` is as for `Places`.
    """
    return _UnitGraph(graph, targets, instance).units()


def left_out(graph: AssetGraph, targets: Collection[dg.AssetKey], units: Iterable[Unit]) -> list[str]:
    """The targets that depend on something and that no unit runs, each with the reason."""
    run, places = {key for unit in units for key in unit.keys}, Places(graph)
    return _left_out(graph, set(targets) - run, places, lambda key: places.resource(key) is not None)


def _left_out(
    graph: AssetGraph, targets: Collection[dg.AssetKey], places: Places, is_table: Callable[[dg.AssetKey], bool]
) -> list[str]:
    nodes = [node for key in sorted(targets) if (node := graph.get(key)).is_materializable and node.parent_keys]
    return [
        f"{node.key.to_user_string()} "
        f"({'it depends on no versioned table' if is_table(node.key) else places.why_none(node.key)})"
        for node in nodes
    ]


def require_something_to_watch(sensor: str, graph: AssetGraph, targets: Collection[dg.AssetKey]) -> None:
    """Raise `InvalidInput` where a sensor has nothing to compare, as far as that is known before anything is opened.

    One over all assets may have nothing yet. Raises `InvalidName` for an asset that can have no table.
    """
    places = Places(graph)
    nodes = [node for key in targets if (node := graph.get(key)).is_materializable and places.may_be_table(key)]
    for node in nodes:
        places.require_name(node.key)
    if not graph.materializable_asset_keys <= set(targets) and not any(
        FEATURE_KEY in node.metadata
        or any(not places.is_defined(key) or places.may_be_table(key, node.key) for key in node.parent_keys)
        for node in nodes
    ):
        raise nothing_to_watch(sensor, _left_out(graph, targets, places, places.may_be_table))


def nothing_to_watch(sensor: str, why: Sequence[str]) -> InvalidInput:
    """The error of a sensor that has nothing to compare."""
    those = f" Left out: {some(why)}." if why else ""
    return InvalidInput(
        f"The sensor {sensor} watches nothing: of its target, no asset is a versioned table with an upstream that is "
        f"one.{those} Nothing was requested. Its target needs assets with a VersionedParquetIOManager that depend on "
        "others."
    )


def some(names: Sequence[str], most: int = 5) -> str:
    """The first of some names, and how many more there are."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


class _UnitGraph:
    """An asset graph, of which the units of targets are made."""

    def __init__(
        self, graph: AssetGraph, targets: Collection[dg.AssetKey], instance: dg.DagsterInstance | None
    ) -> None:
        self._graph, self._targets = graph, targets
        self._places = Places(graph, instance)
        self._definitions = _Definitions()

    def units(self) -> list[Unit]:
        units: dict[tuple[dg.AssetKey, ...], Unit] = {}
        wanted = self._with_makers_of_values()
        for key in (key for key in self._graph.toposorted_asset_keys if key in wanted):
            node = self._graph.get(key)
            keys = tuple(sorted({key, *node.execution_set_asset_keys, *self._values_beside(node)}))
            if node.is_materializable and keys not in units and (members := self._members(keys)):
                policy, partitions = node.backfill_policy, self._definitions.of(node.partitions_def)
                is_single_run = policy is not None and policy.max_partitions_per_run is None
                is_target = any(key in self._targets for key in keys)
                skippable = tuple(key for key in keys if _is_skippable(self._graph.get(key)))
                units[keys] = Unit(keys, members, partitions, is_single_run, is_target, skippable)
        return list(units.values())

    def _with_makers_of_values(self) -> set[dg.AssetKey]:
        """The targets, and what makes values that they are built from, or that these makers are built from."""
        wanted = set(self._targets)
        for key in reversed(self._graph.toposorted_asset_keys):
            if key in wanted:
                for value in self._values(self._graph.get(key)):
                    wanted |= self._graph.get(value).execution_set_asset_keys
        return wanted

    def _values(self, node: AssetNode) -> list[dg.AssetKey]:
        """The upstreams of an asset that runs make and that are no tables."""
        made = (key for key in node.parent_keys if self._graph.get(key).is_materializable)
        return sorted(key for key in made if self._places.resource(key, node.key) is None)

    def _values_beside(self, node: AssetNode) -> Iterator[dg.AssetKey]:
        """The values that run with a table though they need not: targets of the same step, each with the first table
        that is built from all that it is built from, and so becomes stale when it does."""
        if not node.is_materializable or self._places.resource(node.key) is None:
            return
        step = [self._graph.get(key) for key in sorted(node.assets_def.keys) if key in self._targets]
        tables = [node for node in step if self._places.resource(node.key) is not None]
        for value in (node for node in step if node not in tables):
            outside = value.parent_keys - node.assets_def.keys
            first = next((table for table in tables if outside and outside <= table.parent_keys), None)
            if first is node:
                yield value.key

    def _members(self, unit: Collection[dg.AssetKey]) -> tuple[Member, ...]:
        places = {key: place for key in unit if (place := self._places.of(key)) is not None}
        return tuple(self._member(self._graph.get(key), place, unit) for key, place in places.items())

    def _member(self, node: AssetNode, place: Place, unit: Collection[dg.AssetKey]) -> Member:
        values = [self._graph.get(value) for value in self._values(node) if value not in unit]
        return Member(
            node.key,
            place,
            self._definitions.of(node.partitions_def),
            stated_code_version(node.code_version),
            tuple(self._edges(node, place, unit)),
            tuple(
                Dependency(
                    value.key,
                    self._definitions.of(value.partitions_def),
                    self._graph.get_partition_mapping(node.key, value.key),
                )
                for value in values
            ),
            FEATURE_KEY in node.metadata,
            _is_history(node),
        )

    def _edges(self, node: AssetNode, own: Place, unit: Collection[dg.AssetKey]) -> Iterator[Edge]:
        loaded, places = metadata_by_upstream(node), self._places
        for upstream in sorted(node.parent_keys):
            beside = places.beside(own, upstream)
            place = places.of(upstream, node.key) or beside
            if place is None:
                continue
            above = self._graph.get(upstream)
            is_elsewhere = (places.of(upstream) or beside) != place
            metadata = loaded.get(upstream)
            missing = _missing(metadata)
            pinned = places.pin(upstream, place.table, node.key) or plain(metadata, VERSION_KEY)
            yield Edge(
                upstream=upstream,
                place=place,
                partitions=None if _is_history(above) else self._definitions.of(above.partitions_def),
                mapping=self._graph.get_partition_mapping(node.key, upstream),
                missing=missing,
                pinned=None if pinned is None or missing == "unread" else str(pinned),
                is_optional=above.is_external and missing == "unread" and SOURCE_KEY not in above.metadata,
                is_own=upstream in unit and upstream != node.key and not is_elsewhere,
                is_elsewhere=is_elsewhere,
                is_skippable=_is_skippable(above),
                checks=() if is_elsewhere else blocking_checks(self._graph, upstream),
            )


def _missing(metadata: Mapping[str, Any] | None) -> Missing:
    """What a missing partition does to an input with this metadata, ``None``: to a dependency that is not loaded."""
    if metadata is None:
        return "unread"
    return "allowed" if plain(metadata, ALLOW_MISSING_KEY) else "fails"


def _is_skippable(node: AssetNode) -> bool:
    """Whether the step of an asset may end well without making it."""
    if not node.is_materializable:
        return False
    assets = node.assets_def
    return not assets.node_def.output_def_named(assets.get_output_name_for_asset_key(node.key)).is_required


def _is_history(node: AssetNode) -> bool:
    """Whether an asset is a history of events, whose table has no partitions, whatever the asset has."""
    options = plain(node.metadata, METADATA_KEY)
    return isinstance(options, Mapping) and cast("Mapping[str, Any]", options).get("history") is not None


def _stamp(definition: dg.PartitionsDefinition[Any], instance: dg.DagsterInstance) -> Any:
    """What changes when the keys do, without listing them where they are many."""
    match definition:
        case dg.StaticPartitionsDefinition():
            return "static"
        case dg.TimeWindowPartitionsDefinition():
            return definition.get_last_partition_key()
        case dg.MultiPartitionsDefinition():
            return tuple(_stamp(def_.partitions_def, instance) for def_ in definition.partitions_defs)
        case _:
            return tuple(definition.get_partition_keys(dynamic_partitions_store=instance))


class Links:
    """Which upstream partitions each partition of a target maps to, and the way back.

    ``whole`` says that it is all of them, recorded as one parent; the links are then the same for every partition.
    """

    def __init__(
        self,
        mapping: dg.PartitionMapping,
        upstream: Partitions,
        target: Partitions | None,
        instance: dg.DagsterInstance,
    ) -> None:
        self.whole = reads_whole(mapping)
        self._all = frozenset(upstream.order)
        self._is_same = upstream is target and _is_identity(mapping)
        self._keys: dict[str | None, frozenset[str]] = {}
        if not self.whole and not self._is_same:
            for key in [None] if target is None else target.order:
                self._keys[key] = _mapped(mapping, upstream.definition, target, key, instance)
        self._back: dict[str, list[str | None]] = {}
        for key, above in self._keys.items():
            for dependency in above:
                self._back.setdefault(dependency, []).append(key)

    def keys(self, partition: str | None) -> Collection[str]:
        """The upstream partitions that a partition of the target maps to."""
        if self.whole:
            return self._all
        if self._is_same and partition is not None:
            return (partition,)
        return self._keys.get(partition, frozenset())

    def below(self, changed: Iterable[str]) -> set[str | None] | None:
        """The target's partitions that map to any of these; ``None`` for all of them."""
        if self.whole:
            return None
        if self._is_same:
            return set(changed)
        return {partition for key in changed for partition in self._back.get(key, ())}


def is_known(mapping: dg.PartitionMapping) -> bool:
    """Whether a mapping is one of Dagster's own, which does what it looks like."""
    if isinstance(mapping, dg.MultiPartitionMapping):
        return all(
            is_known(dimension.partition_mapping)
            for dimension in mapping.downstream_mappings_by_upstream_dimension.values()
        )
    return type(mapping).__module__.startswith("dagster.")


def _is_identity(mapping: dg.PartitionMapping) -> bool:
    """Whether equal keys map to each other, where both sides have the same definition."""
    if isinstance(mapping, dg.TimeWindowPartitionMapping):
        return (mapping.start_offset, mapping.end_offset) == (0, 0)
    return isinstance(mapping, dg.IdentityPartitionMapping)


def _mapped(
    mapping: dg.PartitionMapping,
    above: dg.PartitionsDefinition[str],
    target: Partitions | None,
    partition: str | None,
    instance: dg.DagsterInstance,
) -> frozenset[str]:
    result = upstream_result(mapping, above, target.definition if target is not None else None, partition, instance)
    keys: Sequence[str] = [
        *result.partitions_subset.get_partition_keys(),
        # Without these a run cannot start, so they count as partitions without a version.
        *result.required_but_nonexistent_subset.get_partition_keys(),
    ]
    return frozenset(map(str, keys))
