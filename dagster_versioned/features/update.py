"""What a feature lacks, resolved and written without Dagster. Source: seed 004 ("Incremental Computations")."""

from collections.abc import Iterable, Mapping
from typing import Any, Self, cast

import pyarrow as pa

from dagster_versioned.engines.samples import PROVENANCE_BY_FIELD, SampleHash
from dagster_versioned.errors import InvalidInput
from dagster_versioned.features.definitions import Asset, Feature, key_text
from dagster_versioned.features.feature_table import FeatureTable, ResolvedIncrement, hash_of
from dagster_versioned.features.graph import FeatureGraph
from dagster_versioned.features.increment import Increment
from dagster_versioned.features.upstream_files import UpstreamFiles, table_of
from dagster_versioned.projects.project import Project
from dagster_versioned.tables.feature_record import FeatureRecord
from dagster_versioned.tables.history import Version
from dagster_versioned.tables.options import TableOptions
from dagster_versioned.tables.table import VersionedTable
from dagster_versioned.tables.upstream import Upstream
from dagster_versioned.tables.write.write import WriteResult


class FeatureUpdate:
    """What is to be computed of a feature, and how it is written; a context manager.

    ``increment`` has the samples that are ``new``, ``stale``, ``changed`` (both) and ``orphaned``, and their counts.
    Frames of Spark are computed once, and kept until the block ends.
    """

    def __init__(self, resolved: ResolvedIncrement, parents: list[Upstream], partition: str | None) -> None:
        self._resolved = resolved
        self._parents = parents
        self._partition = partition
        self._after: Version | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._resolved.__exit__(*error)

    @property
    def increment(self) -> Increment[Any]:
        """What is to be computed."""
        return self._resolved.increment

    def write(
        self,
        rows: Any = None,
        part: Increment[Any] | None = None,
        *,
        message: str | None = None,
        options: TableOptions | None = None,
    ) -> WriteResult:
        """Commit what was computed of all that is new and stale, against the version that it was resolved from.

        ``rows`` have the ids and at least one row for each sample; they replace the stored ones, and those of orphaned
        samples go. None are needed where nothing is to be computed, nor of a feature without upstreams, whose rows are
        its samples. ``part`` is one of ``increment.chunks(…)``, which are written in their order. Raises `InvalidInput`
        for rows of other samples or samples without a row, `EmptyTable` for a first version without rows, and what
        `VersionedTable.write` does; the table is as it was then.
        """
        feature = self._resolved.feature
        allow_empty = options is not None and options.allow_empty
        update = self._resolved.finish(rows, part, after=self._after, allow_empty=allow_empty)
        result = feature.table.write(
            update,
            partition=self._partition,
            parents=self._parents,
            code_version=feature.graph.versions(feature.feature.key).feature,
            message=message,
            options=options,
        )
        self._after = result.version
        return result


def resolve_update(
    project: Project,
    graph: FeatureGraph,
    feature: Feature | Asset | str,
    *,
    samples: Any = None,
    hash: SampleHash | None = None,  # noqa: A002 - what it is
    as_type: type | None = None,
    partition: str | None = None,
    full: bool = False,
    stale_if: str | None = None,
    where: Mapping[str, str] | None = None,
    upstreams: Iterable[Project] = (),
) -> FeatureUpdate:
    """What is new, stale and orphaned of a feature of a graph, compared with what its upstreams are now.

    Nothing is written; the tables are those of the assets with the features' keys. ``samples`` are all that there are
    of a feature without upstreams. ``hash`` is by default that of the table, and of a new one `SampleHash`'s.
    Increments have frames of ``as_type`` (by default pyarrow's tables). ``partition`` is that of the table, and of
    the upstreams that have it. ``full``: all samples are to be computed. ``stale_if`` is a condition (SQL) on stored
    samples that are stale whatever they were computed from, ``where`` has conditions on upstreams, by feature, on what
    is to be computed now: other samples are left for later. ``upstreams`` are the other projects whose features the
    graph names (`Feature.project`); they are read. Raises `InvalidInput` where the feature is not
    in the graph, lacks samples or upstreams, or cannot be compared, and `CommitConflict` for a table that another
    program changed.
    """
    # A condition by itself, as delete_samples takes it, is what people give who have no type checker.
    if where is not None and not isinstance(where, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidInput(
            f"The conditions on upstreams are {where!r:.100}. Nothing was computed or written. Give each by its"
            " upstream: where={'upstream': 'condition'}."
        )
    key = key_text(feature)
    definition, table = graph[key], project.table(key.split("/"))
    kept = FeatureTable(graph, key, table, hash or _stored_hash(table, partition))
    _require_samples(definition, samples, where)
    if not definition.deps:
        as_type = as_type or cast("type[Any]", type(samples))
        found = kept.resolve_samples(samples, partition=partition, as_type=as_type, full=full, stale_if=stale_if)
        return FeatureUpdate(found, [], partition)
    given = _upstreams(project, graph, definition, list(upstreams), partition)
    as_type = as_type or pa.Table
    found = kept.resolve(given, partition=partition, as_type=as_type, full=full, stale_if=stale_if, where=where)
    parents = [parent for each in given.values() for parent in each.table.upstream_of(each.files)]
    return FeatureUpdate(found, parents, partition)


def _stored_hash(table: VersionedTable, partition: str | None) -> SampleHash | None:
    """How the samples of a table are hashed, if it says so."""
    head = table.state.history.heads.get(partition) if table.exists() else None
    record = FeatureRecord.of(head.identity.custom) if head is not None else None
    return None if record is None else hash_of(record)


def _require_samples(feature: Feature, samples: Any, where: Mapping[str, str] | None) -> None:
    """Raise `InvalidInput` where samples, or conditions on upstreams, are not what this feature is resolved from."""
    if feature.deps:
        if samples is not None:
            raise InvalidInput(
                f"Feature {feature.key!r} is computed from {[dep.feature for dep in feature.deps]}, but samples were "
                "given. Nothing was computed or written. Leave them out, or write them to its upstream."
            )
    elif samples is None:
        raise InvalidInput(
            f"Feature {feature.key!r} has no upstream. Nothing was computed or written; give all its samples "
            f"(samples=…), with the column {PROVENANCE_BY_FIELD!r} where they bring versions of their own."
        )
    elif where:
        raise InvalidInput(
            f"Feature {feature.key!r} has no upstream to which {dict(where)} could apply. Nothing was computed or "
            "written."
        )


def _upstreams(
    project: Project, graph: FeatureGraph, feature: Feature, others: Iterable[Project], partition: str | None
) -> dict[str, UpstreamFiles]:
    """The files of the upstreams that were written, by feature."""
    files = {dep.feature: _upstream(table_of(graph[dep.feature], project, others), partition) for dep in feature.deps}
    return {key: each for key, each in files.items() if each is not None}


def _upstream(table: VersionedTable, partition: str | None) -> UpstreamFiles | None:
    """The files of a table as it is now, of one partition if it has that; ``None`` where it was never written."""
    files = UpstreamFiles.current(table)
    if files is None or partition is None:
        return files
    keys = {version.partition for version in files.files.versions}
    return files.of([partition]) if partition in keys else files
