"""Was the head built from what is current now?"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg

from dagster_versioned.assets.asset_code import stated_code_version
from dagster_versioned.assets.graph.inputs import VERSION_KEY, metadata_by_upstream, plain
from dagster_versioned.assets.graph.partitions import partitioning_of_asset, upstream_partitions
from dagster_versioned.assets.graph.places import Places
from dagster_versioned.checks.check import CheckedHeads, Verdict, VersionCheck, listed, named, table_text
from dagster_versioned.errors import TableNotFound
from dagster_versioned.identity.version import On, require_on
from dagster_versioned.projects.staleness import SHORT, CellHead, Change, MemberCell, Need, TableHeads, TableKey, find
from dagster_versioned.tables.documents.head import partition_head
from dagster_versioned.tables.table import open_table


@dataclass(frozen=True)
class FreshParents(VersionCheck):
    """Passes where the head was built from the versions that its upstreams have now, as sensors judge it.

    The upstreams are the asset's dependencies, through their partition mappings. ``on="data_sha"``: an upstream whose
    data is the same is current, whatever else its identity holds. An input that is pinned, by the configuration of the
    IO manager or the metadata of its `AssetIn`, is current if it was built from that version. An upstream of another
    project is judged where the definitions give it an IO manager, and else listed. A feature is current if the fields
    that it is computed from say the same, its code versions are those of its definition, and no samples are left.
    """

    default_name = "parents"
    description = "The head was built from the current versions of its upstreams."

    on: On = "metadata_sha"

    def __post_init__(self) -> None:
        require_on(self.on, "check")

    def judge(self, checked: CheckedHeads) -> Verdict:
        upstreams = list(_upstreams(checked))
        judged = {upstream.key for upstream in upstreams}
        rows: list[tuple[object, ...]] = []
        stale: list[str] = []
        unknown: set[str] = set()
        state = checked.table.state  # which is read anew each time that it is asked for
        for head in checked.heads:
            cell = CellHead.of(partition_head(checked.table.name, head, state))
            needs = [upstream.need(checked, head.partition) for upstream in upstreams]
            for change in self._changes(checked, head.partition, cell, needs):
                name = change.upstream or "code version"
                place = name if change.partition is None else f"{name} [{change.partition}]"
                then, now = (sha[:SHORT] if sha else "" for sha in (change.before, change.after))
                rows.append((named(head), place, then, now))
                stale.append(f"{named(head)}: {place} is at {now[:8]}, not {then[:8] or 'part of it'}")
            unknown |= {f"{source}.{table}" for source, table in cell.parents.keys() - judged}
        metadata: dict[str, Any] = {"stale": len(rows)}
        if rows:
            metadata["stale_parents"] = table_text(["version", "upstream", "built from", "now"], rows)
        if unknown:
            metadata["not_judged"] = listed(sorted(unknown), 20)
        if stale:
            return Verdict(False, f"Not built from what is current: {listed(stale)}. Materialize it again.", metadata)
        text = f"{len(checked.heads)} heads are built from the current versions of their upstreams."
        return Verdict(True, text, metadata)

    def _changes(
        self, checked: CheckedHeads, partition: str | None, cell: CellHead, needs: Sequence[Need]
    ) -> Sequence[Change]:
        own = TableHeads(cell) if partition is None else TableHeads(None, {partition: cell})
        stated = stated_code_version(checked.graph.get(checked.asset_key).code_version)
        member = MemberCell(own, partition, needs, stated if cell.feature is not None else None)
        found = find(str(checked.table.name), partition, [member], self.on)
        return found.changes if found else ()


@dataclass(frozen=True)
class _Upstream:
    """A dependency that is a versioned table, and its heads as the input is to see them: current, or pinned."""

    asset_key: dg.AssetKey
    key: TableKey
    heads: TableHeads

    def need(self, checked: CheckedHeads, partition: str | None) -> Need:
        """What the asset's partition needs of it; what does not exist makes no head stale."""
        graph = checked.graph
        keys = upstream_partitions(graph, checked.asset_key, partition, self.asset_key, checked.context.instance)
        whole = keys is None and graph.get(self.asset_key).partitions_def is not None
        keys = self.heads.partitions.keys() if whole else keys
        return Need(self.asset_key.to_user_string(), self.key, self.heads, keys, is_whole=whole)


def _upstreams(checked: CheckedHeads) -> Iterator[_Upstream]:
    own, places, node = checked.table.project, Places(checked.graph), checked.graph.get(checked.asset_key)
    loaded = metadata_by_upstream(node)
    for key in sorted(node.parent_keys):
        if (external := places.external(key)) is not None:
            try:
                then = external.version(places.pin(key, external.name) or plain(loaded.get(key), VERSION_KEY))
            except TableNotFound:
                continue
            cell = CellHead(then.commit_sha, then.data_sha, then.log_version, then.timestamp)
            yield _Upstream(key, external.key, TableHeads(cell))
            continue
        project = places.project_for(key, checked.asset_key, own)
        table = open_table(project, key.path)
        if table.exists() and table.state.history.asset_key == tuple(key.path):
            pin = (
                checked.pins.get(str(table.name)) if project is own else places.pin(key, table.name, checked.asset_key)
            )
            version = pin or plain(loaded.get(key), VERSION_KEY)
            yield _Upstream(
                key,
                (project.name, str(table.name)),
                TableHeads.at(table, version, partitioning_of_asset(checked.graph, key)),
            )
