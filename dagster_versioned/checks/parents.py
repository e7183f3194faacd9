"""Was the head built from what is current now?"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import dagster as dg
from dagster._check import CheckError
from dagster._core.definitions.assets.graph.base_asset_graph import BaseAssetGraph

from dagster_versioned.checks.check import Look, Verdict, VersionCheck, listed, named, table_text
from dagster_versioned.tables.history import Version
from dagster_versioned.tables.table import VersionedTable


class Place(NamedTuple):
    """What a parent is a version of: a table of this project, or one of its partitions."""

    table: str
    partition: str | None

    def __str__(self) -> str:
        return self.table if self.partition is None else f"{self.table} [{self.partition}]"


@dataclass(frozen=True)
class FreshParents(VersionCheck):
    """Passes where the head was built from the versions that its upstreams have now.

    The upstreams are the asset's dependencies, through their partition mappings. ``on="data_sha"``: an upstream whose
    data is the same is current, whatever else is said of it. Upstreams in other projects are listed, not judged. An
    input that is pinned to an old version is not current, and says so.
    """

    title = "parents"
    about = "The head was built from the current versions of its upstreams."

    on: Literal["metadata_sha", "data_sha"] = "metadata_sha"

    def judge(self, look: Look) -> Verdict:
        project = look.table.project
        rows: list[tuple[object, ...]] = []
        stale: list[str] = []
        elsewhere: set[str] = set()
        for head in look.heads:
            built_from = {
                Place(parent.table, parent.partition): parent.version if self.on == "metadata_sha" else parent.data_sha
                for parent in head.identity.parents
                if parent.source == project.name
            }
            elsewhere |= {f"{p.source}.{p.table}" for p in head.identity.parents if p.source != project.name}
            for place, now in self._current(look, head):
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

    def _current(self, look: Look, head: Version) -> Iterator[tuple[Place, str]]:
        """The versions that the head would be built from now."""
        for upstream in sorted(look.context.job_def.asset_layer.get(look.asset_key).parent_keys):
            table = look.table.project.table(upstream.path)
            if not table.exists() or table.state.history.asset_key != tuple(upstream.path):
                continue
            for place, sha in self._heads(look, head, upstream, table):
                if place != Place(str(look.table.name), head.partition):
                    yield place, sha

    def _heads(
        self, look: Look, head: Version, upstream: dg.AssetKey, table: VersionedTable
    ) -> Iterator[tuple[Place, str]]:
        name, history = str(table.name), table.state.history
        wanted = _wanted(look, head, upstream, name) if history.is_partitioned else None
        if history.is_partitioned and wanted is None:
            yield Place(name, None), history.whole.metadata_sha if self.on == "metadata_sha" else history.whole.data_sha
            return
        for key, version in history.heads.items():
            if wanted is None or key in wanted:
                sha = version.entry.metadata_sha if self.on == "metadata_sha" else version.identity.data_sha
                yield Place(name, key), sha


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
