"""What a version was built from, to the roots, and what was built from it: exact versions, and not tables."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal

from dagster_versioned.errors import IntegrityError, InvalidInput, VersionedError
from dagster_versioned.identity.version import Parent
from dagster_versioned.projects.project import Project
from dagster_versioned.proof.lineage import OpenProject, ProjectLineage, TableLineage, UnknownVersion, VersionName
from dagster_versioned.tables.choose import VersionLike
from dagster_versioned.tables.findings import findings_of
from dagster_versioned.tables.history import Version

Direction = Literal["up", "down"]

CHECKED = 100
"""Versions in a trace of which it is asked what their checks found: each takes a call of the store."""


@dataclass(frozen=True)
class TracedVersion:
    """One version of a trace, with what its log says; of a whole partitioned table, with all its partitions together.

    ``parents`` are the versions that it was built from, ``before`` the one whose rows its own were added to.
    ``checks`` are findings of its blocking checks, as far as they were asked for; ``gap`` says why nothing of it, or
    its rows no more, can be read.
    """

    name: VersionName
    parents: tuple[VersionName, ...] = ()
    before: VersionName | None = None
    partitions: int | None = None
    log_version: int | None = None
    timestamp: datetime | None = None
    change: str | None = None
    rows: int | None = None
    size_bytes: int | None = None
    code: str | None = None
    function: str | None = None
    author: str | None = None
    message: str | None = None
    run: str | None = None
    promoted_from: str | None = None
    checks: Mapping[str, bool] = field(default_factory=dict[str, bool])
    gap: str | None = None


@dataclass(frozen=True)
class Trace:
    """Versions from ``root`` on, each once, in the order in which they were found, and which leads to which."""

    root: VersionName
    direction: Direction
    versions: Mapping[VersionName, TracedVersion]
    edges: Mapping[VersionName, tuple[VersionName, ...]]

    @property
    def gaps(self) -> list[TracedVersion]:
        """What could not be read."""
        return [version for version in self.versions.values() if version.gap is not None]


def trace(
    project: Project,
    table: str,
    version: VersionLike = None,
    *,
    partition: str | None = None,
    down: bool = False,
    open_project: OpenProject | None = None,
) -> Trace:
    """The versions that one (by default the head) was built from, to the roots; or ``down``, what was built from it.

    Of a partitioned table, a partition's, or the whole as it was. ``open_project`` opens the projects that lineage
    names; without it, their versions are gaps. Down, what is kept in the same project counts. Reads logs, each once,
    and what checks found of up to `CHECKED` versions. Raises `VersionNotFound`, `TableNotFound`, `StorageError`.
    """
    return trace_from(ProjectLineage(project, open_project), table, version, partition=partition, down=down)


def trace_from(
    lineage: ProjectLineage, table: str, version: VersionLike, *, partition: str | None = None, down: bool = False
) -> Trace:
    """As `trace`, over histories that may have been read."""
    root, moment = _root(lineage.project, table, version, partition)
    children = _children(lineage) if down else None
    versions: dict[VersionName, TracedVersion] = {}
    pending: deque[tuple[VersionName, datetime | None]] = deque([(root, moment)])
    leads: dict[VersionName, tuple[VersionName, ...]] = {}
    while pending:
        name, until = pending.popleft()
        if name in versions:
            continue
        traced = versions[name] = _traced(lineage, name, None if down and name != root else until)
        if children is None:
            leads[name] = traced.parents if traced.before is None else (*traced.parents, traced.before)
        else:
            leads[name] = tuple(children.get((lineage.place(name), name.version), ()))
        pending += [(each, traced.timestamp) for each in leads[name]]
    return Trace(root, "down" if down else "up", _checked(lineage, versions), leads)


def _checked(
    lineage: ProjectLineage, versions: Mapping[VersionName, TracedVersion]
) -> Mapping[VersionName, TracedVersion]:
    if len(versions) > CHECKED:
        return versions
    return {name: _with_checks(lineage, traced) for name, traced in versions.items()}


def _with_checks(lineage: ProjectLineage, traced: TracedVersion) -> TracedVersion:
    if traced.log_version is None or traced.partitions is not None:
        return traced
    return replace(traced, checks=findings_of(lineage.table(traced.name).table.store, traced.name.version))


def _root(project: Project, table: str, version: VersionLike, partition: str | None) -> tuple[VersionName, datetime]:
    """The version that is meant, and when it was committed: its table may have committed it again since."""
    found = project.table(table)
    chosen = found.choose(version, partitions=None if partition is None else [partition])
    parents = [upstream.parent for upstream in found.upstream_of(chosen)]
    if len(parents) > 1:
        raise InvalidInput(
            f"{len(parents)} partitions of {table} are meant, which are no whole. Nothing was read. Name one of them."
        )
    return VersionName.of(parents[0]), max(each.timestamp for each in chosen.versions)


def _traced(lineage: ProjectLineage, name: VersionName, until: datetime | None) -> TracedVersion:
    try:
        return _of_members(name, *lineage.members(name, until))
    except UnknownVersion as error:
        return TracedVersion(name, gap=str(error))
    except VersionedError as error:
        return TracedVersion(name, gap=f"cannot be read: {str(error).partition('. ')[0]}")


def _of_members(name: VersionName, table: TableLineage, members: Sequence[Version]) -> TracedVersion:
    parents = tuple(dict.fromkeys(parent for member in members for parent in _parents(member.recorded)))
    if len(members) == 1 and members[0].partition == name.partition:
        return _of_version(name, parents, table, members[0])
    gone = [member for member in members if member.gone is not None]
    return TracedVersion(
        name,
        parents,
        partitions=len(members),
        log_version=max(member.log_version for member in members),
        timestamp=max(member.timestamp for member in members),
        rows=sum(member.recorded["nrow"] for member in members),
        size_bytes=sum(_facts(member)["size_bytes"] for member in members),
        gap=f"{len(gone)} of {len(members)} partitions are not kept ({gone[0].gone})" if gone else None,
    )


def _of_version(
    name: VersionName, parents: tuple[VersionName, ...], table: TableLineage, version: Version
) -> TracedVersion:
    identity, facts = version.recorded, _facts(version)
    run: Mapping[str, Any] = facts.get("run") or {}
    code: Mapping[str, Any] = run.get("code") or {}
    before = table.before(version) if facts.get("added") else None
    return TracedVersion(
        name,
        parents,
        before=None if before is None or before.metadata_sha is None else table.name_of(before),
        log_version=version.log_version,
        timestamp=version.timestamp,
        change=version.change,
        rows=identity["nrow"],
        size_bytes=facts["size_bytes"],
        code=identity.get("code_version") or code.get("fingerprint"),
        function=run.get("function"),
        author=facts.get("author"),
        message=identity.get("message"),
        run=run.get("run_id"),
        promoted_from=facts.get("promoted_from"),
        gap=None if version.gone is None else f"its rows are not kept ({version.gone})",
    )


def _facts(version: Version) -> Mapping[str, Any]:
    assert version.raw is not None
    return version.raw["facts"]


def _parents(identity: Mapping[str, Any]) -> Iterator[VersionName]:
    """What the identity of a version names. Raises `InvalidInput`."""
    for parent in identity.get("parents", ()):
        yield VersionName.of(Parent.from_json(parent))


_Place = tuple[tuple[str, str | None], str]
"""A version by where its table is now, and its SHA: names may have changed since they were recorded."""


def _children(lineage: ProjectLineage) -> Mapping[_Place, list[VersionName]]:
    """What was built from each version, of all tables of the project, as far as it is kept."""
    found: dict[_Place, list[VersionName]] = {}
    for table in lineage.tables():
        for version in table.history.versions:
            if version.raw is None or version.gone is not None or version.is_drop:
                continue
            child = table.name_of(version)
            try:
                parents = list(_parents(version.recorded))
            except (IntegrityError, InvalidInput):
                continue
            for parent in parents:
                children = found.setdefault((lineage.place(parent), parent.version), [])
                if child not in children:
                    children.append(child)
    return found
