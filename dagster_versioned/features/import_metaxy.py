"""Taking over the samples of a Metaxy store, so that they need not be computed again.

Only samples that are current are taken over: those whose stored provenance is the one that is expected of them. The
others are new to their feature, and are computed when it runs.
"""

from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from dagster_versioned.engines.samples import (
    DATA_VERSION_BY_FIELD,
    PROVENANCE,
    SYSTEM_PREFIX,
    Counts,
)
from dagster_versioned.errors import InvalidInput, TableNotFound
from dagster_versioned.features.arrow.sample_rows import ARROW_ROWS, semi_join
from dagster_versioned.features.feature_table import FeatureTable, ResolvedIncrement
from dagster_versioned.features.graph import FeatureGraph
from dagster_versioned.features.increment import Increment
from dagster_versioned.features.metaxy_store import MetaxyStore
from dagster_versioned.features.upstream_files import UpstreamFiles
from dagster_versioned.projects.project import Project
from dagster_versioned.tables.feature_record import FeatureRecord
from dagster_versioned.tables.history import Version


@dataclass(frozen=True, slots=True)
class TakenOver:
    """What became of a feature: the version with its samples, ``None`` where there were none to take over.

    ``samples`` were taken over now, counted by the ids that come from upstreams; ``left`` are still to be computed.
    """

    key: str
    version: Version | None = None
    samples: int = 0
    left: int = 0


def import_metaxy(store: MetaxyStore, project: Project, graph: FeatureGraph | None = None) -> list[TakenOver]:
    """Write the current samples of a Metaxy store to the tables of a project, feature after feature.

    ``graph`` is by default the one that was pushed to the store. The tables are those of the assets with the features'
    keys; one that was taken over before stays as it is, so this can be run again after an error. The features are then
    given the store's hash (`MetaxyStore.hash`), and the roots go on to bring ``metaxy_provenance_by_field``. Raises
    `InvalidInput` where another table is in the place of one, and what reading the store and writing tables do.
    """
    graph = graph or store.graph()
    how = store.hash(graph)
    tables = {feature.key: project.table(feature.key.split("/")) for feature in graph}
    for key, table in tables.items():
        record = FeatureRecord.of(table.version().identity.custom) if table.exists() else None
        if table.exists() and (record is None or record.hash != (how.algorithm, how.length)):
            raise InvalidInput(
                f"{project.store.uri} has a table of {key!r} already, with other versions of samples. Nothing was taken"
                " over. Take over into another project."
            )
    return [_taken(store, FeatureTable(graph, key, table, how)) for key, table in tables.items()]


def _taken(store: MetaxyStore, feature: FeatureTable) -> TakenOver:
    key, table, plan = feature.feature.key, feature.table, feature.plan
    if table.exists():
        return TakenOver(key, table.version())
    above = [table.beside(dep.feature.split("/")) for dep in feature.feature.deps]
    rows = _samples(store, feature)
    if rows is None or not all(each.exists() for each in above):
        return TakenOver(key)
    files = [UpstreamFiles(each, each.files()) for each in above]
    given = {dep.feature: each for dep, each in zip(feature.feature.deps, files, strict=True)}
    resolved = feature.resolve(given) if given else feature.resolve_samples(rows)
    part = _current(resolved, rows)
    if not part.todo:
        return TakenOver(key, left=resolved.increment.todo)
    own = [name for name in rows.column_names if not name.startswith(SYSTEM_PREFIX)]
    computed = ARROW_ROWS.within(plan, rows.select([*own, DATA_VERSION_BY_FIELD]), part.units)
    written = table.write(
        resolved.finish(computed, part),
        parents=[parent for each in above for parent in each.upstream()],
        code_version=feature.graph.versions(key).feature,
    )
    return TakenOver(key, written.version, part.todo, part.asked.left)


def _samples(store: MetaxyStore, feature: FeatureTable) -> pa.Table | None:
    try:
        rows = store.samples(feature.graph, feature.feature.key)
    except TableNotFound:
        return None
    return rows if rows.num_rows else None


def _current(resolved: ResolvedIncrement, rows: pa.Table) -> Increment[Any]:
    """The part of what is expected whose provenance the stored rows have."""
    plan, asked = resolved.feature.plan, resolved.increment.asked
    units = semi_join(asked.new, rows, (*plan.units, PROVENANCE))
    counts = Counts(new=units.num_rows)
    left = asked.counts.new - units.num_rows
    part = replace(asked, new=units, counts=counts, left=left, piece=True)

    def as_they_are(units: Any, *, every: bool) -> Any:
        return units

    return Increment(part, ARROW_ROWS, plan, as_they_are, lambda frame: frame, {})
