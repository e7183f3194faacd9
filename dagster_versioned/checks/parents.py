"""Was the head built from what is current now?"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self

import dagster as dg
from dagster._check import CheckError
from dagster._core.definitions.assets.graph.base_asset_graph import BaseAssetGraph

from dagster_versioned.checks.check import Look, Verdict, VersionCheck, listed, named, table_text
from dagster_versioned.identity.version import Parent
from dagster_versioned.tables.history import Version
from dagster_versioned.tables.table import VersionedTable

VERSION_KEY = "dagster_versioned/version"
"""`AssetIn` metadata that pins an input; the IO manager's."""


class Place(NamedTuple):
    """What a parent is a version of: a table of this project, or one of its partitions."""

    table: str
    partition: str | None

    @classmethod
    def of(cls, parent: Parent) -> Self:
        """Of what a parent is a version."""
        return cls(parent.table, parent.partition)

    def __str__(self) -> str:
        return self.table if self.partition is None else f"{self.table} [{self.partition}]"


@dataclass(frozen=True)
class FreshParents(VersionCheck):
    """Passes where the head was built from the versions that its upstreams have now.

    The upstreams are the asset's dependencies, through their partition mappings. ``on="data_sha"``: an upstream whose
    data is the same is current, whatever else is said of it. An input that is pinned, by the configuration of the IO
    manager or the metadata of its `AssetIn`, is current if it was built from that version. Upstreams in other projects
    are listed, not judged.
    """

    title = "parents"
    about = "The head was built from the current versions of its upstreams."

    on: Literal["metadata_sha", "data_sha"] = "metadata_sha"

    def judge(self, look: Look) -> Verdict:
        project, upstreams = look.table.project, _upstreams(look)
        rows: list[tuple[object, ...]] = []
        stale: list[str] = []
        elsewhere: set[str] = set()
        for head in look.heads:
            parents = [parent for parent in head.identity.parents if parent.source == project.name]
            built_from = {Place.of(parent): self._sha(parent) for parent in parents}
            elsewhere |= {f"{p.source}.{p.table}" for p in head.identity.parents if p.source != project.name}
            for parent in _current(look, head, upstreams):
                place, now = Place.of(parent), self._sha(parent)
                then = built_from.get(place)
                if then != now:
                    rows.append((named(head), place, then and then[:12], now[:12]))
                    stale.append(f"{named(head)}: {place} is at {now[:8]}, not {then[:8] if then else 'part of it'}")
        metadata = {
            "stale": len(rows),
            **({"stale_parents": table_text(["version", "upstream", "built from", "now"], rows)} if rows else {}),
            **({"not_judged": listed(sorted(elsewhere), 20)} if elsewhere else {}),
        }
        if stale:
            return Verdict(False, f"Not built from what is current: {listed(stale)}. Materialize it again.", metadata)
        return Verdict(
            True, f"{len(look.heads)} heads are built from the current versions of their upstreams.", metadata
        )

    def _sha(self, parent: Parent) -> str:
        return parent.version if self.on == "metadata_sha" else parent.data_sha


def _upstreams(look: Look) -> dict[dg.AssetKey, tuple[VersionedTable, str | int | None]]:
    """The tables of the asset's dependencies, and what its inputs are pinned to."""
    node = _graph(look.context).get(look.asset_key)
    tables = {key: look.table.project.table(key.path) for key in sorted(node.parent_keys)}
    return {
        key: (table, look.pins.get(str(table.name)) or _pinned(node, key))
        for key, table in tables.items()
        if table.exists() and table.state.history.asset_key == tuple(key.path)
    }


def _pinned(node: Any, upstream: dg.AssetKey) -> str | int | None:
    """What the metadata of the asset's input pins it to; nothing where the asset is a stub."""
    if not node.is_executable:
        return None
    name = {key: name for name, key in node.assets_def.keys_by_input_name.items()}.get(upstream)
    found: list[Any] = [one for one in node.assets_def.node_def.input_defs if one.name == name]
    value: Any = found[0].metadata.get(VERSION_KEY) if found and found[0].metadata else None
    return getattr(value, "value", value)


def _current(
    look: Look, head: Version, upstreams: Mapping[dg.AssetKey, tuple[VersionedTable, str | int | None]]
) -> Iterator[Parent]:
    """The parents that the head would have if it were built now, other than itself."""
    for key, (table, pin) in upstreams.items():
        chosen = table.choose(pin)
        if any(one.partition is not None for one in chosen.versions):
            wanted = _wanted(look, head, key, str(table.name))
            known = [one.partition for one in chosen.versions if one.partition is not None]
            if wanted is not None and not (wanted := wanted.intersection(known)):
                continue
            chosen = table.choose(pin, partitions=wanted)
        for one in table.upstream_of(chosen):
            if Place.of(one.parent) != Place(str(look.table.name), head.partition):
                yield one.parent


def _wanted(look: Look, head: Version, upstream: dg.AssetKey, name: str) -> frozenset[str] | None:
    """The upstream's partitions that the head is built from; ``None`` for all there are, as one parent."""
    graph = _graph(look.context)
    theirs, ours = graph.get(upstream).partitions_def, graph.get(look.asset_key).partitions_def
    if theirs is None:  # a stub, in a run that selects checks alone: what was recorded is all there is to go by
        recorded = {parent.partition for parent in head.identity.parents if parent.table == name}
        return frozenset(key for key in recorded if key is not None) if recorded and None not in recorded else None
    mapping = graph.get_partition_mapping(look.asset_key, upstream)
    if isinstance(mapping, dg.AllPartitionMapping):
        return None
    result = mapping.get_upstream_mapped_partitions_result_for_partitions(
        ours.subset_with_partition_keys([head.partition]) if ours is not None and head.partition is not None else None,
        ours,
        theirs,
        dynamic_partitions_store=look.context.instance,
    )
    return frozenset(map(str, result.partitions_subset.get_partition_keys()))


def _graph(context: dg.AssetCheckExecutionContext) -> BaseAssetGraph[Any]:
    """The graph of the code location; that of the job, whose upstreams may be stubs, where a run knows no more."""
    try:
        return context.repository_def.asset_graph
    except CheckError:
        return context.job_def.asset_layer.asset_graph
