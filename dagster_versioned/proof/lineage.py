"""Versions by their names across projects, environments and tables, each history read once."""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from dagster_versioned.errors import TableNotFound, VersionedError
from dagster_versioned.identity.names import TableName
from dagster_versioned.identity.version import EXTERNAL, Parent
from dagster_versioned.projects.project import Project
from dagster_versioned.tables.history import History, Version
from dagster_versioned.tables.table import VersionedTable
from dagster_versioned.tables.table_record import TableRecord

OpenProject = Callable[[str], Project]
"""Opens a project by its name. Raises `VersionedError` where nobody knows it, or it cannot be read."""


@dataclass(frozen=True, order=True)
class VersionName:
    """A version by what lineage calls it: its project, its table, its SHA, and the environment that made it."""

    project: str
    table: str
    version: str
    partition: str | None = None
    environment: str | None = None

    @classmethod
    def of(cls, parent: Parent) -> "VersionName":
        """The version that a parent is."""
        return cls(parent.source, parent.table, parent.version, parent.partition, parent.environment)

    def __str__(self) -> str:
        partition = "" if self.partition is None else f" [{self.partition}]"
        environment = "" if self.environment is None else f" in {self.environment}"
        return f"{self.table} {self.version[:8]}{partition}{environment}"


class UnknownVersion(Exception):
    """A version that is not to be found; the text says why, as the end of a sentence."""


class TableLineage:
    """The versions of one table, by what other versions may call them."""

    def __init__(self, project: Project, table: VersionedTable) -> None:
        self.project = project
        self.table = table
        self.history: History = table.state.history
        self._unread = self.history.backwards()
        self._by_sha: dict[tuple[str, str | None], list[Version]] = {}
        self._of_partition: dict[str | None, list[Version]] = {}

    def _read_on(self) -> bool:
        """Take note of the next older version; newest first, so that what is near is found without what is far."""
        version = next(self._unread, None)
        if version is None:
            return False
        self._of_partition.setdefault(version.partition, []).append(version)
        if version.metadata_sha is not None and not version.is_drop:
            self._by_sha.setdefault((version.metadata_sha, version.partition), []).append(version)
        return True

    def _found(self, sha: str, partition: str | None, until: datetime | None) -> Version | None:
        """The newest kept commit of a SHA, not later than a moment; else the newest kept one, else the newest."""
        known, place = self._by_sha.setdefault((sha, partition), []), 0
        while True:
            while place < len(known):
                version, place = known[place], place + 1
                if version.gone is None and (until is None or version.timestamp <= until):
                    return version
            if not self._read_on():
                break
        return next((version for version in known if version.gone is None), known[0] if known else None)

    @cached_property
    def _wholes(self) -> Mapping[str, int]:
        """The log versions of a partitioned table by what stands for it as a whole."""
        records = self.history.records if self.history.is_partitioned else ()
        return {str(sha): record.log_version for record in records if (sha := record.member("partitions_sha"))}

    def members(self, name: VersionName, until: datetime | None = None) -> tuple[Version, ...]:
        """The version of a name, or those of all partitions where it names the whole table.

        Of a version that was committed more than once, the commit that somebody read ``until`` a moment. Raises
        `UnknownVersion`.
        """
        version = self._found(name.version, name.partition, until)
        if version is not None:
            return (version,)
        at = self._wholes.get(name.version) if name.partition is None else None
        if at is not None:
            return tuple(self.history.until(at).heads.values())
        raise UnknownVersion("is not in the log of its table any more")

    def before(self, version: Version) -> Version | None:
        """The version that one took the place of; ``None`` of the first, and of the first after a drop."""
        while True:
            known = self._of_partition.get(version.partition, [])
            for place in range(bisect_right(known, -version.log_version, key=_newest_first), len(known)):
                older = known[place]
                if older.is_drop or older.metadata_sha is not None:
                    return None if older.is_drop else older
            if not self._read_on():
                return None

    def name_of(self, version: Version) -> VersionName:
        """What lineage calls a version of this table."""
        environment = self.project.environment
        made_here = environment is not None and version.log_version > environment.forked_at(self.table.name)
        return VersionName(
            self.project.name,
            str(self.table.name),
            version.metadata_sha or version.short,
            version.partition,
            environment.name if environment is not None and made_here else None,
        )


class ProjectLineage:
    """The tables of a project, of its environments, and of the projects that they were built from.

    ``most_tables``: of no more than so many is the log read, and former names are not looked for, which takes all logs.
    """

    def __init__(
        self, project: Project, open_project: OpenProject | None = None, *, most_tables: int | None = None
    ) -> None:
        self.project = project
        self._open_project = open_project
        self._most_tables = most_tables
        self._projects: dict[tuple[str, str | None], Project] = {}
        self._tables: dict[tuple[str, str, str | None], TableLineage | UnknownVersion] = {}
        self._formers: dict[int, Mapping[tuple[str, str], TableName]] = {}

    def table(self, name: VersionName) -> TableLineage:
        """The table of a version, under the name that it has now. Raises `UnknownVersion`."""
        key = (name.project, name.table, name.environment)
        if key not in self._tables:
            try:
                self._tables[key] = self._opened(name)
            except UnknownVersion as error:
                self._tables[key] = error
        found = self._tables[key]
        if isinstance(found, UnknownVersion):
            raise found
        return found

    def members(self, name: VersionName, until: datetime | None = None) -> tuple[TableLineage, tuple[Version, ...]]:
        """The table of a name, and its version or versions: see `TableLineage.members`. Raises `UnknownVersion`."""
        table = self.table(name)
        return table, table.members(name, until)

    def place(self, name: VersionName) -> tuple[str, str | None]:
        """Where a version is, under whatever name its table or project goes now; by its name where nobody knows."""
        try:
            return self.table(name).table.store.uri, name.partition
        except UnknownVersion:
            return f"{name.project}.{name.table}@{name.environment}", name.partition

    def tables(self) -> Iterator[TableLineage]:
        """Every table of the project that can be read."""
        for name in self.project.tables():
            try:
                yield self.own_table(str(name))
            except UnknownVersion:
                continue

    def own_table(self, name: str) -> TableLineage:
        """A table of the project, or of the environment of it that was opened. Raises `UnknownVersion`."""
        return self.table(VersionName(self.project.name, name, "", None, self._own_environment))

    @property
    def _own_environment(self) -> str | None:
        return None if self.project.environment is None else self.project.environment.name

    def _opened(self, name: VersionName) -> TableLineage:
        if name.project == EXTERNAL:
            raise UnknownVersion("is of a Delta table that another program writes")
        if self._most_tables is not None and len(self._tables) >= self._most_tables:
            raise UnknownVersion("was not followed further")
        try:
            return TableLineage(*self._place(name))
        except VersionedError as error:
            raise UnknownVersion(f"cannot be read: {first_sentence(error)}") from error

    def _place(self, name: VersionName) -> tuple[Project, VersionedTable]:
        """The project and the table that have the name, or had it before they were renamed."""
        own = self.project
        if name.project != own.name and (current := self._former(own).get((name.project, name.table))) is not None:
            return own, own.table(current)
        project = self._project(name.project, name.environment)
        table = project.table(name.table)
        try:
            if TableRecord.of(table.state.snapshot).left_for(name.table) is None:
                return project, table
        except TableNotFound:
            if (name.project, name.table) not in self._former(project):
                raise
        current = self._former(project).get((name.project, name.table))
        if current is None:
            raise UnknownVersion("has another name now")
        return project, project.table(current)

    def _former(self, project: Project) -> Mapping[tuple[str, str], TableName]:
        """The tables of a project by the names that lineage may still give them."""
        if self._most_tables is not None:
            return {}
        if id(project) not in self._formers:
            found: dict[tuple[str, str], TableName] = {}
            for table in project.tables():
                with suppress(VersionedError):
                    record = TableRecord.of(project.table(table).state.snapshot)
                    found |= dict.fromkeys(record.former, table)
            self._formers[id(project)] = found
        return self._formers[id(project)]

    def _project(self, name: str, environment: str | None) -> Project:
        key = name, environment
        if key not in self._projects:
            self._projects[key] = self._found_project(name, environment)
        return self._projects[key]

    def _found_project(self, name: str, environment: str | None) -> Project:
        own = self.project
        if name == own.name and environment in (None, self._own_environment):
            return own
        where = f"the project {name}" if environment is None else f"the environment {environment} of {name}"
        if name == own.name:
            production = own
        elif self._open_project is None:
            raise UnknownVersion(f"is of {where}, which was not opened")
        else:
            production = self._open_project(name)
        try:
            return production if environment is None else production.in_environment(environment)
        except VersionedError as error:
            raise UnknownVersion(f"is of {where}, which cannot be read: {first_sentence(error)}") from error


def _newest_first(version: Version) -> int:
    return -version.log_version


def first_sentence(error: Exception) -> str:
    """What happened, without what to do about it."""
    return str(error).partition(". ")[0].rstrip(".")
