"""What is recorded of the versions that something was built from: parents, and where their data comes from."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import cast

from dagster_versioned.delta.log.snapshot import Snapshot
from dagster_versioned.errors import InvalidInput, VersionNotFound
from dagster_versioned.identity.names import TableName
from dagster_versioned.identity.version import Parent, SourceVersion
from dagster_versioned.tables.choose import ChosenVersions
from dagster_versioned.tables.context import ProjectContext
from dagster_versioned.tables.erased_parts import ErasureName
from dagster_versioned.tables.history import Version
from dagster_versioned.tables.state import TableState
from dagster_versioned.tables.upstream import SeenVersions, Upstream

Parents = Iterable[Upstream] | Mapping[str | None, Iterable[Upstream]]
"""What every frame of a write was built from, or by partition what each was."""


def upstreams(
    project: ProjectContext, table: TableName, state: TableState, chosen: ChosenVersions, parked: Mapping[int, str]
) -> list[Upstream]:
    """The lineage of what is built from these versions of a table, in whose ``state`` they are.

    ``parked`` are the log versions that are of drafts, with the drafts' ids. A partitioned table that was read as a
    whole is one parent: its ``partitions_sha``. Raises `VersionNotFound` where no version was chosen.
    """
    if not chosen.versions:
        raise VersionNotFound(
            f"{table} has no version yet: another program committed to it, and nobody adopted that. "
            "Nothing was changed. Give it an identity with adopt()."
        )

    def drafts(*versions: Version) -> tuple[str, ...]:
        return tuple(dict.fromkeys(parked[at] for version in versions if (at := version.log_version) in parked))

    if chosen.whole and chosen.versions[0].partition is not None:
        whole = state.history.until(chosen.log_version).whole
        made_in = _made_in(project, table, max(version.log_version for version in chosen.versions))
        parent = Parent(project.name, str(table), whole.metadata_sha, whole.data_sha, environment=made_in)
        sources = tuple(s for version in chosen.versions for s in _sources(project.name, table, version))
        found = [Upstream(parent, sources, drafts(*chosen.versions))]
    else:
        found = [upstream_of_version(project, table, version, drafts(version)) for version in chosen.versions]
    reading = reading_of(project, table, state.snapshot, chosen)
    return [replace(upstream, reading=reading) for upstream in found]


def reading_of(project: ProjectContext, table: TableName, snapshot: Snapshot, chosen: ChosenVersions) -> SeenVersions:
    """What was read of a table, as its log was at a snapshot."""
    named, environment = ErasureName.by(snapshot), project.environment
    keys = frozenset((version.log_version, version.partition) for version in chosen.versions)
    is_own = environment is not None and any(at > environment.forked_at(table) for at, _ in keys)
    return SeenVersions(snapshot.metadata.id, -1 if named is None else named.epoch, None if is_own else keys)


def upstream_of_version(
    project: ProjectContext, table: TableName, version: Version, drafts: tuple[str, ...] = ()
) -> Upstream:
    """The lineage of what is built from one version, which ``drafts`` made that are not published."""
    parent = Parent(
        project.name,
        str(table),
        str(version.metadata_sha),
        version.recorded["data_sha"],
        version.partition,
        _made_in(project, table, version.log_version),
    )
    return Upstream(parent, _sources(project.name, table, version), drafts)


def _made_in(project: ProjectContext, table: TableName, log_version: int) -> str | None:
    """The environment that a version was made in; what one began with is production's."""
    environment = project.environment
    is_own = environment is not None and log_version > environment.forked_at(table)
    return environment.name if environment is not None and is_own else None


def _sources(project: str, table: TableName, version: Version) -> tuple[SourceVersion, ...]:
    """Where a version's data comes from in the end: an imported version is its own source."""
    identity = version.recorded
    if identity["table_type"] == "imported":
        return (SourceVersion(project, str(table), str(version.metadata_sha)),)
    return tuple(map(SourceVersion.from_json, identity.get("source_lineage", ())))


def parents_by_partition(
    parents: Parents, partitions: Iterable[str | None], project: ProjectContext, table: str
) -> dict[str | None, list[Upstream]]:
    """The parents of each partition, but for those that are replaced by the write itself.

    Those of the environment that is written to name none: promoted, a version has the name that production gives it.
    Raises `InvalidInput` for what is no `Upstream`.
    """
    partitions = dict.fromkeys(partitions)
    if isinstance(parents, Mapping):
        parents_of = cast("Mapping[str | None, Iterable[Upstream]]", parents)
    else:
        parents_of = dict.fromkeys(partitions, tuple(parents))

    own = None if project.environment is None else project.environment.name

    def seen_from_here(upstream: Upstream) -> Upstream:
        # Users hand over names or tables, whatever the annotation says.
        if not isinstance(upstream, Upstream):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidInput(
                f"A parent must be what upstream() of a table returns, not {upstream!r:.100}. Nothing was written."
            )
        is_own = (upstream.parent.source, upstream.parent.environment) == (project.name, own)
        return replace(upstream, parent=replace(upstream.parent, environment=None)) if is_own else upstream

    def is_itself(parent: Parent) -> bool:
        where = (parent.source, parent.table, parent.environment)
        return where == (project.name, table, None) and parent.partition in partitions

    return {
        key: [parent for parent in map(seen_from_here, parents_of.get(key, ())) if not is_itself(parent.parent)]
        for key in partitions
    }
