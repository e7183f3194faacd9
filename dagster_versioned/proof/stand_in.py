"""Projects as one version saw them: what it was built from at the versions that were read, all else as it was then.

A stand-in is an environment that nobody else knows: its fork is in memory, and what is written in it goes to a folder
of its own. So IO managers, SQL, Spark, and functions that open tables by themselves need to know nothing of it, and
nothing that they do reaches a project.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from dagster_versioned.errors import VersionedError
from dagster_versioned.identity.names import TableName
from dagster_versioned.identity.version import EXTERNAL, Parent
from dagster_versioned.projects.project import Project
from dagster_versioned.proof.lineage import ProjectLineage, TableLineage, UnknownVersion, VersionName
from dagster_versioned.storage.local import LocalStore
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.storage.overlay import OverlayStore
from dagster_versioned.tables.documents.head import HeadDocument, table_head
from dagster_versioned.tables.environment.fork import Fork, ForkedTable
from dagster_versioned.tables.environment.registry import Environment
from dagster_versioned.tables.history import History, Version
from dagster_versioned.tables.state import TableState

NAME = "reproduction"


class NotPossible(Exception):
    """A version cannot be computed again; the text says why, as a sentence without its full stop."""


@dataclass(frozen=True)
class StandInEnvironment(Environment):
    """An environment over the tables of a project as they were, written to ``own``; nobody can drop it."""

    own: ObjectStore = field(kw_only=True)
    seen: ObjectStore = field(kw_only=True)

    def store(self) -> ObjectStore:
        """The root of what is written."""
        return self.own

    def data(self, production: ObjectStore) -> OverlayStore:
        """The tables as they were seen, with what is written over them."""
        return OverlayStore(self.own_data(), self.seen, self.fork)

    def check_current(self) -> None:
        """It is."""

    def check_committed(self) -> None:
        """It is there still."""


@dataclass(frozen=True)
class Sight:
    """A table as a version saw it: at a log version, where these partitions were at other versions than that has."""

    table: TableLineage
    log_version: int
    others: tuple[Version, ...] = ()


def stand_ins_for(
    lineage: ProjectLineage, own: TableLineage, versions: Sequence[Version], folder: Path
) -> Mapping[str, Project]:
    """A stand-in for each project that versions of a table were built from, and for its own, by the project's name.

    Raises `NotPossible` where something that they were built from is not to be had, and `StorageError`.
    """
    at = max(version.log_version for version in versions)
    moment = own.history.record(at).timestamp_ms
    sights: dict[tuple[str, str | None], dict[TableName, Sight]] = {}
    home = lineage.project
    home_key = home.name, None if home.environment is None else home.environment.name
    for parent in _parents(versions):
        table, members = _found(lineage, parent)
        # What was read of its own project, in its own environment, names none.
        is_home = parent.source == home.name and parent.environment is None
        of_project = sights.setdefault(home_key if is_home else (parent.source, parent.environment), {})
        before = of_project.get(table.table.name)
        of_project[table.table.name] = _joined(table, parent, members, before)
    sights.setdefault(home_key, {})[own.table.name] = Sight(own, at - 1)
    if len({project for project, _ in sights}) < len(sights):
        raise NotPossible("it was built from two environments of one project, and a step reads one")
    return {
        project: _stand_in(lineage, tables, moment, folder / str(number))
        for number, ((project, _), tables) in enumerate(sights.items())
    }


def _parents(versions: Sequence[Version]) -> Iterator[Parent]:
    for version in versions:
        for parent in version.identity.parents:
            if parent.source == EXTERNAL:
                raise NotPossible(f"it was built from {parent.table}, a Delta table of another program")
            yield parent


def _found(lineage: ProjectLineage, parent: Parent) -> tuple[TableLineage, tuple[Version, ...]]:
    name = VersionName.of(parent)
    try:
        table, members = lineage.members(name)
    except UnknownVersion as error:
        raise NotPossible(f"{name}, which it was built from, {error}") from error
    except VersionedError as error:
        raise NotPossible(f"{name}, which it was built from, cannot be read: {error}") from error
    for member in members:
        if member.gone is not None:
            raise NotPossible(f"the rows of {name}, which it was built from, are gone ({member.gone})")
    return table, members


def _joined(table: TableLineage, parent: Parent, members: Sequence[Version], before: Sight | None) -> Sight:
    """The log version at which most of what was read of a table is current, and what was read beside it."""
    newest = max(member.log_version for member in members)
    wanted = {member.partition: member for member in (*(() if before is None else before.others), *members)}
    if before is not None and {member.partition for member in before.others} & {each.partition for each in members}:
        raise NotPossible(f"it was built from two versions of {parent.table}, and a step reads one of a table")
    return Sight(table, max(newest, -1 if before is None else before.log_version), tuple(wanted.values()))


def _stand_in(lineage: ProjectLineage, sights: Mapping[TableName, Sight], moment: int, folder: Path) -> Project:
    project = next(iter(sights.values())).table.project
    forked: dict[TableName, ForkedTable] = {}
    for name in project.tables():
        sight = sights.get(name)
        history = project.table(str(name)).state.history if sight is None else sight.table.history
        at = _as_of(history, moment) if sight is None else sight.log_version
        if at >= 0:
            forked[name] = _forked(project, name, history, at)
    created = datetime.fromtimestamp(moment / 1000, UTC).isoformat()
    fork = Fork(NAME, "0" * 12, project.name, created, None, forked)
    environment = StandInEnvironment(fork, project.store, "", own=LocalStore(folder), seen=project.data)
    stand_in = Project(project.name, project.store, author=project.author, environment=environment)
    for name, sight in sights.items():
        table = stand_in.table(str(name))
        heads = table.state.history.heads if sight.log_version >= 0 else {}
        for member in sight.others:
            if heads[member.partition].metadata_sha != member.metadata_sha:
                table.revert(f"@{member.log_version}", partition=member.partition)
    return stand_in


def _as_of(history: History, moment: int) -> int:
    """The last log version of a table that was there at a moment, in milliseconds; -1 where it was not."""
    return max((record.log_version for record in history.records if record.timestamp_ms <= moment), default=-1)


def _forked(project: Project, name: TableName, history: History, at: int) -> ForkedTable:
    operations = project.table(str(name)).operations
    state = TableState(operations.cache.older(at), history.until(at))
    return ForkedTable(at, history.record(at).sha256, HeadDocument(at, table_head(name, state)))
