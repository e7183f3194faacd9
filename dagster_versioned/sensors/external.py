"""The newest versions of external tables, as sensors look at them: one listing a tick where nothing happened."""

import logging
from collections.abc import Collection, Mapping

from dagster_versioned.errors import TableNotFound, VersionedError
from dagster_versioned.identity.names import TableName
from dagster_versioned.projects.project import Project
from dagster_versioned.projects.staleness import CellHead, TableHeads
from dagster_versioned.sensors.heads import HeadChanges, ProjectHeads
from dagster_versioned.tables.external import ExternalTable

logger = logging.getLogger("dagster_versioned")

_UNREADABLE = "unreadable"


class ExternalHeads:
    """`ProjectHeads` of one external table, whose log is all that there is to look at. Not thread-safe."""

    def __init__(self, table: ExternalTable) -> None:
        self._table = table
        self._stamp: str | None = None
        self._heads = TableHeads()

    @property
    def project(self) -> ExternalTable:
        """The table, which is in no project."""
        return self._table

    def heads(self, table: TableName) -> TableHeads:
        """What the last look saw."""
        return self._heads

    def listing(self) -> dict[str, str]:
        """What is another whenever the newest version is, by table; nothing where there is no table."""
        try:
            stamp = self._table.stamp()
        except VersionedError:
            stamp = _UNREADABLE  # `look` says why
        return {} if stamp is None else {str(self._table.name): stamp}

    def look(self, listing: Mapping[str, str], tables: Collection[TableName]) -> HeadChanges:
        """See whether there is another version. A table that cannot be read is reported, and stops no other."""
        stamp, before = listing.get(str(self._table.name)), self._heads
        is_new = stamp is None or stamp != self._stamp
        if is_new:
            self._stamp = None  # until it is read: what breaks off here is begun again
            self._heads = self._read() if stamp is not None else TableHeads()
        is_known = stamp is None or (stamp != _UNREADABLE and self._heads.whole is not None)
        self._stamp = stamp if is_known else None
        changed = {self._table.name: None} if self._heads != before else {}
        return HeadChanges(changed, listing, int(is_new and stamp is not None), (), is_known)

    def pinned(self, wanted: Collection[tuple[str, TableName]]) -> Mapping[tuple[str, TableName], str]:
        """None: pins and tags are of projects."""
        return {}

    def _read(self) -> TableHeads:
        try:
            return TableHeads(external_head(self._table))
        except TableNotFound:
            return TableHeads()
        except VersionedError as error:
            logger.warning("%s cannot be read, so nothing that depends on it is requested.", self._table, exc_info=True)
            return TableHeads(unreadable=f"{self._table.name} cannot be read: {error}")


def external_head(table: ExternalTable) -> CellHead:
    """The newest version as staleness sees it. Raises what `ExternalTable.newest` does."""
    newest = table.newest()
    return CellHead(newest.commit_sha, newest.data_sha, newest.log_version, newest.timestamp)


def heads_of(project: Project | ExternalTable, brings_up: bool = True) -> ProjectHeads | ExternalHeads:
    """What looks at the heads of a project, or at the newest version of an external table."""
    return ExternalHeads(project) if isinstance(project, ExternalTable) else ProjectHeads(project, brings_up)
