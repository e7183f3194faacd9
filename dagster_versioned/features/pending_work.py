"""What of a project's features is to be computed, known before anything runs.

Where what a feature is computed from is current, the counts are exact. Below something that is still to be computed
they are an upper bound: what comes of that is taken for changed, and for passing every filter, though its user may give
it the data versions that it had. What nobody can know before it ran is reported as unknown.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

import pyarrow as pa

from dagster_versioned.delta.schema.types import StructType, schema_from_arrow
from dagster_versioned.engines.samples import (
    DATA_VERSION_BY_FIELD,
    PROVENANCE,
    PROVENANCE_BY_FIELD,
    SampleHash,
    SamplePlan,
    UpstreamSamples,
)
from dagster_versioned.engines.sql import Names, select_rows
from dagster_versioned.errors import CommitConflict, InvalidInput
from dagster_versioned.features.arrow.sample_rows import ARROW_ROWS, anti_join
from dagster_versioned.features.arrow.samples import matching, quoted
from dagster_versioned.features.definitions import Feature, FeatureDep
from dagster_versioned.features.feature_table import FeatureTable, hash_of
from dagster_versioned.features.graph import FeatureGraph
from dagster_versioned.features.increment import Increment
from dagster_versioned.features.resolve import sample_plan
from dagster_versioned.features.upstream_files import UpstreamFiles, is_own, table_of
from dagster_versioned.projects.project import Project
from dagster_versioned.tables.feature_record import FeatureRecord
from dagster_versioned.tables.history import Version
from dagster_versioned.tables.table import VersionedTable

Certainty = Literal["exact", "at most", "unknown"]


@dataclass(frozen=True, slots=True)
class PendingWork:
    """What is to be computed of a feature.

    ``reasons`` has, by field, in how many stale samples it is computed from something else. Where the counts are
    *unknown*, they are zero, and ``note`` says why; of a feature without upstreams, ``unchanged`` are the samples that
    it has.
    """

    key: str
    certainty: Certainty
    new: int = 0
    stale: int = 0
    orphaned: int = 0
    unchanged: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict[str, int])
    note: str = ""

    @property
    def todo(self) -> int:
        """How many samples are to be computed."""
        return self.new + self.stale


def pending_work(project: Project, graph: FeatureGraph, upstreams: Iterable[Project] = ()) -> list[PendingWork]:
    """What of each feature is to be computed, in the order in which they are.

    Their tables are those of the assets with their keys; ``upstreams`` are the other projects whose features the graph
    names, which are taken as they are. Reads versions and ids, and nothing is written. Features with
    partitions are unknown, since which partitions they are computed from is Dagster's to say. Raises `InvalidInput`
    where one of the projects is missing.
    """
    found: list[PendingWork] = []
    above: dict[str, UpstreamFiles | _PendingFeature | None] = {}
    others = list(upstreams)
    read = {dep.feature for feature in graph if is_own(feature, project) for dep in feature.deps}
    for feature in graph:
        if not is_own(feature, project):
            if feature.key in read:
                above[feature.key] = UpstreamFiles.current(table_of(feature, project, others))
            continue
        table = project.table(feature.key.split("/"))
        of = _of_feature(graph, feature, table, above) if feature.deps else _of_root(feature, table)
        found.append(of[0])
        above[feature.key] = of[1]
    return found


@dataclass(frozen=True)
class _PendingFeature:
    """What is stored of a feature, if anything is, and what is to be done to it."""

    stored: UpstreamFiles | None
    plan: SamplePlan
    increment: Increment[Any]


@dataclass(frozen=True)
class _ExpectedRows(UpstreamFiles):
    """The samples that a feature will have, in the place of files: their ids and versions."""

    rows: pa.Table

    @property
    def schema(self) -> StructType:
        return schema_from_arrow(self.rows.schema)

    def read(self, frame_type: type, columns: Sequence[str] | None = None) -> Any:
        return self.rows if columns is None else self.rows.select(list(columns))

    def digests(self) -> dict[str, str] | None:
        return None


class _UnknownError(Exception):
    """Nobody can know; says why."""


def _of_root(feature: Feature, table: VersionedTable) -> tuple[PendingWork, UpstreamFiles | None]:
    files = UpstreamFiles.current(table)
    if files is None:
        return PendingWork(feature.key, "unknown", note="it was never materialized"), None
    rows = sum(version.identity.nrow for version in files.files.versions if not version.is_foreign)
    return PendingWork(feature.key, "unknown", unchanged=rows, note="its samples are known once it ran"), files


def _of_feature(
    graph: FeatureGraph,
    feature: Feature,
    table: VersionedTable,
    above: Mapping[str, UpstreamFiles | _PendingFeature | None],
) -> tuple[PendingWork, UpstreamFiles | _PendingFeature | None]:
    heads = table.state.history.heads if table.exists() else {}
    try:
        how = _sample_hash(heads)
        plan = sample_plan(graph, feature.key, how)
        deps, given = _upstreams(feature, plan, table, above)
        lighter = replace(feature, deps=deps)
        known = FeatureGraph((lighter if each.key == feature.key else each for each in graph), graph.hash_length)
        resolved = FeatureTable(known, feature.key, table, how).resolve(given)
    except (_UnknownError, InvalidInput, CommitConflict) as error:
        return PendingWork(feature.key, "unknown", note=str(error)), None
    increment = resolved.increment
    is_exact = not any(isinstance(above[dep.feature], _PendingFeature) for dep in feature.deps)
    counts = increment.counts
    certainty: Certainty = "exact" if is_exact else "at most"
    pending_work = PendingWork(
        feature.key, certainty, counts.new, counts.stale, counts.orphaned, counts.unchanged, increment.reasons
    )
    stored = UpstreamFiles.current(table)
    return pending_work, _PendingFeature(stored, plan, increment) if increment or stored is None else stored


def _sample_hash(heads: Mapping[str | None, Version]) -> SampleHash:
    """How a table's samples are hashed, or will be; raises `_UnknownError` where it has partitions."""
    if heads and None not in heads:
        raise _UnknownError("it has partitions")
    record = FeatureRecord.of(heads[None].identity.custom) if heads else None
    return hash_of(record) if record else SampleHash()


def _upstreams(
    feature: Feature,
    plan: SamplePlan,
    table: VersionedTable,
    above: Mapping[str, UpstreamFiles | _PendingFeature | None],
) -> tuple[list[FeatureDep], dict[str, UpstreamFiles]]:
    """The dependencies of a feature, and the files of each as they will be; raises `_UnknownError`."""
    deps: list[FeatureDep] = []
    given: dict[str, UpstreamFiles] = {}
    for dep, upstream in zip(feature.deps, plan.upstreams, strict=True):
        files = above[dep.feature]
        if files is None:
            raise _UnknownError(f"{dep.feature} is unknown")
        deps.append(dep if isinstance(files, UpstreamFiles) else _by_ids(dep, upstream))
        given[dep.feature] = files if isinstance(files, UpstreamFiles) else _expected(table, dep, upstream, files)
    return deps, given


def _by_ids(dep: FeatureDep, upstream: UpstreamSamples) -> FeatureDep:
    """The dependency on samples of which only ids and versions are known."""
    kept = {*upstream.ids, *upstream.on}
    rename = {old: new for old, new in dep.rename.items() if new in kept}
    return FeatureDep(
        dep.feature, rename, optional=dep.optional, lineage=dep.lineage, fields_mapping=dep.fields_mapping
    )


def _expected(
    table: VersionedTable, dep: FeatureDep, upstream: UpstreamSamples, pending: _PendingFeature
) -> _ExpectedRows:
    """The samples that an upstream will have; those to be computed have the versions that are expected of them."""
    plan, asked = pending.plan, pending.increment.asked
    old = {new: name for name, new in dep.rename.items()}
    kept = list(dict.fromkeys(old.get(name, name) for name in (*upstream.ids, *upstream.on)))
    has_new = bool(asked.counts.new) or pending.stored is None
    if has_new and (plan.units != plan.ids or not set(kept) <= set(plan.ids)):
        raise _UnknownError(f"what comes of {asked.counts.new} new samples of {dep.feature} is known once it ran")
    if asked.counts.stale and not {old.get(name, name) for name in upstream.on} <= set(plan.units):
        raise _UnknownError(f"what comes of {asked.counts.stale} stale samples of {dep.feature} is known once it ran")
    parts: list[pa.Table] = []
    if has_new:
        new = asked.new.rename_columns({PROVENANCE_BY_FIELD: DATA_VERSION_BY_FIELD})
        parts.append(new.select([*kept, DATA_VERSION_BY_FIELD]))
    if pending.stored is not None:
        parts += _of_stored(dep, upstream, pending, pending.stored, kept)
    rows = pa.concat_tables([part.cast(parts[0].schema) for part in parts])
    return _ExpectedRows(table, cast("Any", None), rows)


def _of_stored(
    dep: FeatureDep, upstream: UpstreamSamples, pending: _PendingFeature, files: UpstreamFiles, kept: Sequence[str]
) -> Iterator[pa.Table]:
    """What will be of the stored samples: of those that are stale, and of those that stay."""
    plan, asked = pending.plan, pending.increment.asked
    stored = _stored(dep, upstream, files, plan, kept)
    units, columns = (", ".join(map(quoted, names)) for names in (plan.units, kept))
    stale = f"stale.{PROVENANCE_BY_FIELD} AS {DATA_VERSION_BY_FIELD}"
    query = f"SELECT {columns}, {stale} FROM stored JOIN stale USING ({units})"
    yield select_rows(query, stale=asked.stale, stored=stored)
    away = pa.concat_tables([each.select(list(plan.units)) for each in (asked.stale, asked.gone)])
    stays = anti_join(stored, away, plan.units)
    yield _passing(dep, upstream, stays).select([*kept, DATA_VERSION_BY_FIELD])


def _stored(
    dep: FeatureDep, upstream: UpstreamSamples, files: UpstreamFiles, plan: SamplePlan, kept: Sequence[str]
) -> pa.Table:
    """What is stored of an upstream: ids, the columns of the dependency's filter, and the data versions by field."""
    needed = [*kept, *plan.ids]
    if upstream.filter is not None:
        renamed = StructType([_renamed(each, dep) for each in files.schema.fields])
        wanted = Names({"upstream": renamed}).resolve(upstream.filter).of("upstream")
        needed += [name for name in files.schema.names if dep.rename.get(name, name) in wanted]
    needed = list(dict.fromkeys(needed))
    frame = files.read(pa.Table, [*needed, PROVENANCE_BY_FIELD, PROVENANCE, DATA_VERSION_BY_FIELD])
    versions = ARROW_ROWS.stored(plan, frame, stale=False)[DATA_VERSION_BY_FIELD]
    return frame.select(needed).append_column(DATA_VERSION_BY_FIELD, versions)


def _renamed(column: Any, dep: FeatureDep) -> Any:
    return replace(column, name=dep.rename.get(column.name, column.name))


def _passing(dep: FeatureDep, upstream: UpstreamSamples, rows: pa.Table) -> pa.Table:
    """Those of the rows that pass the dependency's filter, which names columns by their new names."""
    if upstream.filter is None:
        return rows
    named = rows.rename_columns([dep.rename.get(name, name) for name in rows.column_names])
    return rows.filter(pa.array(matching(named, upstream.filter)))
