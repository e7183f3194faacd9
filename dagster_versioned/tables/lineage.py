"""What is recorded of the versions that something was built from: parents, and where their data comes from."""

from dataclasses import dataclass

from dagster_versioned.errors import VersionNotFound
from dagster_versioned.identity.names import TableName
from dagster_versioned.identity.version import Parent, SourceVersion
from dagster_versioned.tables.choose import ChosenVersions
from dagster_versioned.tables.history import History, Version


@dataclass(frozen=True)
class Upstream:
    """A version that was read, as the lineage of what is built from it: the parent, and where its data comes from."""

    parent: Parent
    sources: tuple[SourceVersion, ...]


def upstreams(project: str, table: TableName, history: History, chosen: ChosenVersions) -> list[Upstream]:
    """The lineage of what is built from these versions of a table, whose ``history`` they are in.

    A partitioned table that was read as a whole is one parent: its ``partitions_sha``. Raises `VersionNotFound` where
    no version was chosen.
    """
    if not chosen.versions:
        raise VersionNotFound(
            f"{table} has no version yet: another program committed to it, and nobody adopted that. "
            "Nothing was changed. Give it an identity with adopt()."
        )
    if chosen.whole and chosen.versions[0].partition is not None:
        whole = history.until(chosen.log_version).whole
        parent = Parent(project, str(table), whole.metadata_sha, whole.data_sha)
        return [Upstream(parent, tuple(s for version in chosen.versions for s in _sources(project, table, version)))]
    return [upstream_of_version(project, table, version) for version in chosen.versions]


def upstream_of_version(project: str, table: TableName, version: Version) -> Upstream:
    """The lineage of what is built from one version."""
    parent = Parent(project, str(table), str(version.metadata_sha), version.recorded["data_sha"], version.partition)
    return Upstream(parent, _sources(project, table, version))


def _sources(project: str, table: TableName, version: Version) -> tuple[SourceVersion, ...]:
    """Where a version's data comes from in the end: an imported version is its own source."""
    identity = version.recorded
    if identity["table_type"] == "imported":
        return (SourceVersion(project, str(table), str(version.metadata_sha)),)
    return tuple(map(SourceVersion.from_json, identity.get("source_lineage", ())))
