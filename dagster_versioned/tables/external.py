"""Delta tables that others write, as versions to build from: read as they are at a log version, and never written."""

import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from dagster_versioned.delta.actions import Add, Metadata, Protocol, Remove
from dagster_versioned.delta.files.external_files import with_external_files
from dagster_versioned.delta.log.commits import Commit, commit_key, commits_from, list_log, read_commits
from dagster_versioned.delta.log.snapshot import Snapshot
from dagster_versioned.delta.table import Table
from dagster_versioned.delta_tables.read import delta_scan, reading
from dagster_versioned.engines.dispatch import engine_for_type
from dagster_versioned.engines.scan import Scan
from dagster_versioned.errors import InvalidInput, ObjectNotFound, TableNotFound, VersionNotFound
from dagster_versioned.identity.names import TableName
from dagster_versioned.identity.reference import AsOf, HeadReference, LogVersion, parse_reference
from dagster_versioned.identity.version import EXTERNAL, Parent, SourceVersion, created_at_text
from dagster_versioned.storage.credentials import CredentialsSource
from dagster_versioned.storage.location import Location
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.storage.opening import open_store
from dagster_versioned.tables.choose import VersionLike
from dagster_versioned.tables.environment.registry import environment_of
from dagster_versioned.tables.upstream import Upstream

_READ_AT_ONCE = 32
"""Commits that are read in one go on the way back to the newest one that changed data."""


@dataclass(frozen=True)
class ExternalVersion:
    """One version of an external table: the table's id, the commit's number and the SHA-256 of its bytes.

    ``data_sha`` is that of the newest commit, up to this one, that changed data: no compaction, and no change of
    properties or columns alone. Both are the same wherever the table is copied to.
    """

    table_id: str
    log_version: int
    commit_sha: str
    data_sha: str
    timestamp_ms: int

    @property
    def timestamp(self) -> str:
        """When it was committed: RFC 3339, UTC."""
        return created_at_text(self.timestamp_ms)


@dataclass(frozen=True)
class ExternalFiles:
    """The exact files of a version."""

    version: ExternalVersion
    scan: Scan


class ExternalTable:
    """A Delta table at a URI that some other program writes, as something to build versions from.

    ``uri``: ``s3://bucket/prefix?region=…&endpoint_url=…``, ``gs://…``, ``abfss://…``, ``file:///…`` or an absolute
    path; never with a credential.
    ``name`` is what lineage calls it, by default the last part of the URI. Nothing is read before it is asked for.
    Raises `InvalidInput`, without repeating the URI where it may hold a secret.
    """

    def __init__(
        self,
        uri: str,
        name: str | None = None,
        *,
        profile: str | None = None,
        credentials: CredentialsSource | None = None,
    ) -> None:
        location = external_location(uri)
        self.uri = location.uri
        self.name = TableName(name if name is not None else _last_part(location))
        self.store: ObjectStore = with_external_files(open_store(location, profile=profile, credentials=credentials))
        self._newest: tuple[ExternalVersion, str] | None = None
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"ExternalTable({self.uri!r}, {str(self.name)!r})"

    @property
    def key(self) -> tuple[str, str]:
        """As lineage names it."""
        return EXTERNAL, str(self.name)

    def version(self, reference: VersionLike = None) -> ExternalVersion:
        """The version that a reference means: the newest, a log version (``12``, ``"@12"``), or that of a time.

        Raises `TableNotFound`, `VersionNotFound` (its log may have been cleaned up), `UnsupportedFeature`,
        `InvalidReference`, `LogCorrupt`.
        """
        return self._version_of(self._snapshot(reference))

    def files(self, reference: VersionLike = None, *, columns: Sequence[str] | None = None) -> ExternalFiles:
        """The exact files of a version; reads the log, not the files. Raises as `version`, and `InvalidInput`."""
        snapshot = self._snapshot(reference)
        with reading(self.store, snapshot):
            scan = delta_scan(self.store, snapshot, columns)
        return ExternalFiles(self._version_of(snapshot), scan)

    def read(
        self, reference: VersionLike = None, *, as_type: type | None = None, columns: Sequence[str] | None = None
    ) -> Any:
        """The rows of a version as ``as_type`` (default `pyarrow.Table`; pandas, Polars or PySpark frames).

        Raises as `version`, `UnsupportedFrame`, and `IntegrityError` for a file that is gone.
        """
        return self.read_files(self.files(reference, columns=columns), as_type)

    def read_files(self, files: ExternalFiles, as_type: type | None = None) -> Any:
        """The rows of exactly these files (`files`)."""
        if as_type is None:
            import pyarrow as pa

            as_type = pa.Table
        return engine_for_type(as_type).read(files.scan, as_type)

    def upstream(self, reference: VersionLike = None) -> list[Upstream]:
        """What to record as parents of something built from a version. Raises as `version`."""
        return self.upstream_of(self.version(reference))

    def upstream_of(self, version: ExternalVersion) -> list[Upstream]:
        """What to record as parents of something built from this version."""
        parent = Parent(
            EXTERNAL,
            str(self.name),
            version.commit_sha,
            version.data_sha,
            environment=environment_of(self.uri),
            table_id=version.table_id,
            log_version=version.log_version,
        )
        return [Upstream(parent, (SourceVersion(EXTERNAL, str(self.name), version.commit_sha),))]

    def recorded(self, parent: Parent) -> ExternalVersion:
        """The version that something records as its parent. Raises `VersionNotFound` where it is not here any more: the
        log was cleaned up, or another table has taken the place of the one that was read."""
        found = self.version(parent.log_version)
        if (found.table_id, found.commit_sha) != (parent.table_id, parent.version):
            raise VersionNotFound(
                f"{self.uri} holds another table than {parent.table!r} was: @{parent.log_version} is commit"
                f" {found.commit_sha[:8]} of the table {found.table_id}, and {parent.version[:8]} of {parent.table_id}"
                " was recorded. Nothing was read. Take the rows from a copy of that table."
            )
        return found

    # What sensors ask

    def stamp(self) -> str | None:
        """What is another whenever the newest version is; ``None`` where there is no table.

        Costs one listing of the log from the newest commit that is known.
        """
        found = self._newest_commit()
        return None if found is None else f"{found[0]} {found[1]}"

    def newest(self) -> ExternalVersion:
        """The newest version. Of a table that is known already, only the commits since then are read.

        Raises as `version`.
        """
        with self._lock:
            found = self._newest_commit()
            if found is None:
                self._newest = None
                raise self._not_found()
            number, etag = found
            if self._newest is not None and self._newest[0].log_version <= number:
                known = self._newest[0]
                if known.log_version == number:
                    return known
                followed = _followed(known, read_commits(self.store, known.log_version + 1, number))
                if followed is not None:
                    self._newest = followed, etag
                    return followed
            version = self.version(number)
            self._newest = version, etag
            return version

    # Inside

    def _newest_commit(self) -> tuple[int, str] | None:
        """Number and ETag of the newest commit; what is known is forgotten where another table is there now."""
        if self._newest is not None:
            version, etag = self._newest
            commits = commits_from(self.store, version.log_version)
            if commits and commits[0][1].etag == etag:
                return commits[-1][0], commits[-1][1].etag
            self._newest = None
        try:
            number = list_log(self.store).version
        except TableNotFound:
            return None
        try:
            return number, self.store.head(commit_key(number)).etag
        except ObjectNotFound:  # a checkpoint alone, or a table that was deleted in this moment
            return number, ""

    def _snapshot(self, reference: VersionLike) -> Snapshot:
        table = Table(self.store)
        try:
            match parse_reference(reference):
                case HeadReference():
                    return table.snapshot()
                case LogVersion(number):
                    return table.snapshot(number)
                case AsOf(moment):
                    return table.snapshot(timestamp=moment)
                case _:
                    raise InvalidInput(
                        f"{reference!r:.100} names no version of an external table, which has no SHA and no pins or"
                        " tags of ours. Nothing was read. Give a log version (@12), or a time."
                    )
        except TableNotFound:
            raise self._not_found() from None

    def _not_found(self) -> TableNotFound:
        return TableNotFound(
            f"No Delta table at {self.uri}: there is no log in it. Nothing was read. Check the URI of the source "
            f"{str(self.name)!r}, or write the table first."
        )

    def _version_of(self, snapshot: Snapshot) -> ExternalVersion:
        if snapshot.commit_sha256 is None:
            raise VersionNotFound(
                f"Commit {snapshot.version} of {self.uri} is not in its log any more, only a checkpoint of it, so the "
                "version cannot be distinguished from another one. Nothing was read. Take a later version."
            )
        data_sha = self._data_sha(snapshot.version) or snapshot.commit_sha256
        identifier = snapshot.metadata.id
        return ExternalVersion(identifier, snapshot.version, snapshot.commit_sha256, data_sha, snapshot.timestamp_ms)

    def _data_sha(self, version: int) -> str | None:
        """The SHA-256 of the newest commit up to a version that changed data; ``None`` if none of those there are."""
        stop, size = version + 1, 1
        while stop > 0:
            start = max(0, stop - size)
            try:
                commits = read_commits(self.store, start, stop - 1)
            except ObjectNotFound:  # cleaned up, which may be somewhere in these
                if stop - start == 1:
                    return None
                size = 1
                continue
            for commit in reversed(commits):
                if _changes_data(commit) or commit.version == 0:
                    return commit.sha256
            stop, size = start, min(size * 2, _READ_AT_ONCE)
        return None


def external_location(uri: str) -> Location:
    """The place of an external table: absolute, of a known scheme, without a credential. Raises `InvalidInput`."""
    is_absolute = re.match(r"(?i)(s3|file)://", uri) or uri.startswith("/")
    if not is_absolute and "://" not in uri:
        raise InvalidInput(
            "The URI of an external table is a relative path, or none that is known here, and would mean another place "
            "in each process. Nothing was read. Use 's3://bucket/prefix', 'file:///absolute/path' or an absolute path."
        )
    return Location.parse(uri)


def _last_part(location: Location) -> str:
    return PurePosixPath(location.prefix or location.root).name


def _changes_data(commit: Commit) -> bool:
    return any(isinstance(action, Add | Remove) and action.data_change for action in commit.actions)


def _followed(known: ExternalVersion, commits: Sequence[Commit]) -> ExternalVersion | None:
    """The version after these commits; ``None`` where they change what the table is, which is to be checked whole."""
    if any(isinstance(action, Protocol | Metadata) for commit in commits for action in commit.actions):
        return None
    changed = [commit.sha256 for commit in commits if _changes_data(commit)]
    newest = commits[-1]
    return ExternalVersion(
        known.table_id,
        newest.version,
        newest.sha256,
        changed[-1] if changed else known.data_sha,
        newest.timestamp_ms,
    )
