"""Any Delta table, ours or not: what it is, what happened to it, and the changes that need no engine for rows."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial

import pyarrow as pa

from dagster_versioned.delta.actions import Metadata, Protocol
from dagster_versioned.delta.commit import alter
from dagster_versioned.delta.commit.alter import Column
from dagster_versioned.delta.commit.checkpoint import write_checkpoint
from dagster_versioned.delta.commit.cluster_by import cluster_by
from dagster_versioned.delta.commit.domains import remove_domain, set_domain
from dagster_versioned.delta.commit.restore import restore
from dagster_versioned.delta.commit.transaction import Transaction, commit
from dagster_versioned.delta.files.external_files import with_external_files
from dagster_versioned.delta.log.change_feed import ChangePlan, plan_changes
from dagster_versioned.delta.log.cleanup import CleanedUp, cleanup_log, require_foreign
from dagster_versioned.delta.log.commits import commits_after, list_log
from dagster_versioned.delta.log.compaction import compact_log
from dagster_versioned.delta.log.history import HistoryEntry, history, version_at
from dagster_versioned.delta.log.snapshot import Snapshot, load_head, load_snapshot, write_checksum
from dagster_versioned.delta.schema.types import DataType, StructType
from dagster_versioned.delta.vacuum import VacuumReport, vacuum
from dagster_versioned.errors import InvalidInput
from dagster_versioned.storage import open_store
from dagster_versioned.storage.object_store import ObjectStore


class Table:
    """The Delta table in a folder.

    Rows are read and written by `delta_tables` (`arrow.read_delta`, `spark.read_delta` and their
    siblings); this is the log below them. Nothing is read before it is asked for. Whatever changes the table commits
    one version and returns its number; when others commit meanwhile it is repeated on top of them where that means the
    same, and else raises `CommitConflict`. What cannot be done raises `InvalidInput`, and nothing was written then.
    """

    def __init__(
        self,
        uri: str | ObjectStore,
        *,
        profile: str | None = None,
        allow: Sequence[str] = (),
        user_metadata: str | None = None,
    ) -> None:
        """``uri``: a local path or a URI (``s3://…``, ``gs://…``, ``abfss://…``); ``profile``: of AWS's files.

        A log may name files by absolute paths. Those in the table's folder are always read; of others, as a shallow
        clone has them, those below the folders of ``allow``. A table with such files is never given new rows.
        ``user_metadata`` is a remark that goes into the history with each change. Raises `InvalidInput` for a URI that
        names no store.
        """
        store = open_store(uri, profile=profile) if isinstance(uri, str) else uri
        self.store = with_external_files(store, allow, profile=profile) if allow or isinstance(uri, str) else store
        self._info = {} if user_metadata is None else {"userMetadata": user_metadata}
        self._newest: Snapshot | None = None

    def __repr__(self) -> str:
        return f"Table({self.store.uri!r})"

    # --- what it is ---

    def snapshot(self, version: int | None = None, timestamp: datetime | str | None = None) -> Snapshot:
        """The table at a version, at a time (ISO 8601, with a zone), or now.

        The newest snapshot is kept, and from then on follows new commits without reading the log again. Raises
        `TableNotFound`, `VersionNotFound`, `LogCorrupt`, `UnsupportedFeature`.
        """
        _require_one(version, timestamp)
        if version is None:
            newest = self._current()
            if timestamp is None:
                return newest
            version = version_at(self.store, newest, _moment(timestamp))
        if self._newest is not None and self._newest.version == version:
            return self._newest
        return load_snapshot(self.store, version)

    def head(self, version: int | None = None, timestamp: datetime | str | None = None) -> Snapshot:
        """`snapshot` without its files, whose tables are empty; at a cost that does not grow with them.

        Raises as that, except for what is wrong with a file.
        """
        _require_one(version, timestamp)
        if timestamp is not None:
            version = version_at(self.store, load_head(self.store), _moment(timestamp))
        return load_head(self.store, version)

    def _current(self) -> Snapshot:
        known = self._newest
        self._newest = known.advance(commits_after(self.store, known.version)) if known else load_snapshot(self.store)
        return self._newest

    @property
    def version(self) -> int:
        """The newest version."""
        return self.snapshot().version

    @property
    def protocol(self) -> Protocol:
        """What a program must implement to read and to write the table."""
        return self.snapshot().protocol

    @property
    def metadata(self) -> Metadata:
        """Schema, partitioning and properties, as in the log."""
        return self.snapshot().metadata

    @property
    def schema(self) -> StructType:
        """The columns."""
        return self.snapshot().schema

    def files(self, version: int | None = None, timestamp: datetime | str | None = None) -> pa.Table:
        """The live files, one row each, with the members of their ``add`` actions as columns (`file_actions.FILES`)."""
        return self.snapshot(version, timestamp).files

    def history(self, limit: int | None = None) -> list[HistoryEntry]:
        """The commits in the log, newest first."""
        return history(self.store, limit)

    def changes(self, first: int | datetime | str, last: int | datetime | str | None = None) -> ChangePlan:
        """Which files hold the rows that versions ``first`` to ``last`` (or times) inserted and deleted.

        The rows themselves are read by `delta_tables.change_feed.read_changes`, or that of `delta_tables.spark`. Raises
        `InvalidInput` where the table had no change data feed at one of them, and `VersionNotFound`.
        """
        end = None if last is None else _place(last)
        return plan_changes(self.store, _place(first), end, newest=self._current())

    def app_version(self, app_id: str) -> int | None:
        """How far an application is that writes with ``app_id`` and ``version``; ``None`` where it never wrote."""
        known = self.snapshot().txns.get(app_id)
        return None if known is None else known.version

    # --- properties and columns ---

    def set_properties(self, properties: Mapping[str, str]) -> int:
        """Set table properties, with what each brings: features in the protocol, ids of columns, ids of rows.

        ``delta.feature.NAME`` = ``supported`` lists a feature, without a property to keep.
        """
        return self._commit(partial(alter.set_properties, properties=properties))

    def unset_properties(self, *keys: str, if_exists: bool = False) -> int:
        """Take properties away; the protocol keeps the features that they brought."""
        return self._commit(partial(alter.unset_properties, keys=keys, if_exists=if_exists))

    def upgrade_protocol(self, *features: str) -> int:
        """List features by the protocol's names for them, such as ``deletionVectors``, without using them yet."""
        return self._commit(partial(alter.upgrade_protocol, features=features))

    def add_columns(self, columns: Mapping[str, pa.DataType | DataType]) -> int:
        """Add columns by name and type; null in all rows so far. A dotted name adds a field to a struct."""
        return self._commit(partial(alter.add_columns, columns=dict(columns)))

    def rename_column(self, column: Column, name: str) -> int:
        """Give a column, or a field of a struct, another name; the table must map its columns."""
        return self._commit(partial(alter.rename_column, column=column, name=name))

    def drop_column(self, column: Column) -> int:
        """Take a column, or a field of a struct, out of the table; the table must map its columns."""
        return self._commit(partial(alter.drop_column, column=column))

    def change_type(self, column: Column, kind: pa.DataType | DataType) -> int:
        """Widen a type in place; the table must have ``delta.enableTypeWidening``."""
        return self._commit(partial(alter.change_type, column=column, kind=kind))

    def set_not_null(self, column: Column) -> int:
        """Let a column take no more nulls; the files' statistics must show that it has none."""
        return self._commit(partial(alter.set_not_null, column=column))

    def drop_not_null(self, column: Column) -> int:
        """Let a column take nulls again."""
        return self._commit(partial(alter.drop_not_null, column=column))

    def set_default(self, column: Column, sql: str) -> int:
        """Have rows to come that bring no value for a column get that of a SQL expression; rows so far stay."""
        return self._commit(partial(alter.set_default, column=column, sql=sql))

    def drop_default(self, column: Column) -> int:
        """Have rows to come that bring no value for a column get null again."""
        return self._commit(partial(alter.drop_default, column=column))

    def drop_constraint(self, name: str, *, if_exists: bool = False) -> int:
        """Take a CHECK constraint away. One is added by an engine, which checks the rows."""
        return self._commit(partial(alter.drop_constraint, name=name, if_exists=if_exists))

    def cluster_by(self, *columns: Column) -> int:
        """Have rows lie together by columns from now on; by none where none is named.

        Files that lack statistics of a column get them from their footers. Raises `IntegrityError` where one is lost.
        """
        return self._commit(partial(cluster_by, store=self.store, columns=columns))

    # --- domains ---

    @property
    def domains(self) -> Mapping[str, str]:
        """The metadata domains of the newest version, those of the protocol among them, each with its text."""
        return self.snapshot().domains

    def set_domain(self, domain: str, configuration: str) -> int:
        """Keep a text in the table under the name ``domain``; names that begin with ``delta.`` are the protocol's.

        Raises `CommitConflict` where someone else changes the same domain meanwhile.
        """
        return self._commit(partial(set_domain, domain=domain, configuration=configuration))

    def remove_domain(self, domain: str) -> int:
        """Take a metadata domain away."""
        return self._commit(partial(remove_domain, domain=domain))

    # --- versions ---

    def restore(self, version: int | None = None, timestamp: datetime | str | None = None) -> int:
        """Give the table the rows, schema and properties of an older version, as a new one.

        Raises `IntegrityError` where files that come back were vacuumed.
        """
        if version is None and timestamp is None:
            raise InvalidInput("restore needs a version or a time to go back to. Nothing was written.")
        target = self.snapshot(version, timestamp)
        given = {
            "version": None if version is None else str(version),
            "timestamp": None if timestamp is None else str(timestamp),
        }
        return self._commit(lambda read: restore(self.store, read, target, parameters=given))

    def checkpoint(self) -> int:
        """Write a checkpoint of the newest version, for readers to begin at; which one that was. No commit is made.

        With a checksum file, by which readers see whether the checkpoint is whole. Then the log is cleaned up, as
        `cleanup` says, unless it is that of a versioned table.
        """
        snapshot = self.snapshot()
        write_checkpoint(self.store, snapshot)
        write_checksum(self.store, snapshot)
        if not snapshot.is_versioned:
            cleanup_log(self.store, snapshot, datetime.now(UTC))
        return snapshot.version

    def compact(self, first: int | None = None, last: int | None = None) -> range:
        """Write the commits ``first`` to ``last`` as one file, for readers to replay in their stead; which ones.

        By default all since the newest checkpoint. Fewer than two commits are not compacted. No commit is made. Raises
        `UnsupportedFeature` for a versioned table.
        """
        snapshot = self._current()
        require_foreign(snapshot, "compacting its log")
        if first is None:
            checkpoint = list_log(self.store, snapshot.version).checkpoint
            first = 0 if checkpoint is None else checkpoint.version + 1
        last = snapshot.version if last is None else last
        if last > snapshot.version:
            raise InvalidInput(f"The newest version is {snapshot.version}; {last} is none. Nothing was written.")
        if last - first == 0 or first > last == snapshot.version:
            return range(0)
        compact_log(self.store, first, last)
        return range(first, last + 1)

    def vacuum(self, retention: timedelta | None = None, *, dry_run: bool = True, force: bool = False) -> VacuumReport:
        """Files that neither the newest version needs nor one that was current within ``retention`` from now.

        ``dry_run=False`` deletes them; older versions can be described afterwards, but not read. The retention is by
        default ``delta.deletedFileRetentionDuration``, else a week; a shorter one must be forced. Raises
        `UnsupportedFeature` for a versioned table.
        """
        return vacuum(self.store, self._current(), datetime.now(UTC), retention=retention, dry_run=dry_run, force=force)

    def cleanup(self, *, dry_run: bool = True) -> CleanedUp:
        """What lies before a checkpoint in the log and is older than ``delta.logRetentionDuration`` (30 days).

        ``dry_run=False`` deletes it; history then begins later. Raises `UnsupportedFeature` for a versioned table.
        """
        return cleanup_log(self.store, self._current(), datetime.now(UTC), dry_run=dry_run)

    def _commit(self, change: Callable[[Snapshot], Transaction]) -> int:
        def build(read: Snapshot | None) -> Transaction:
            if read is None:
                raise InvalidInput("There is no table to change. Nothing was written.")
            if read.is_versioned:
                raise InvalidInput(
                    f"{self.store.uri} is a versioned table, so other commands than its own are refused. Nothing was "
                    "written. Materialize its asset, or set properties by its TableOptions."
                )
            made = change(read)
            return replace(made, commit_info={**made.commit_info, **self._info}) if self._info else made

        self._newest, committed = commit(self.store, self._current(), build)
        return committed.version


def _place(given: int | datetime | str) -> int | datetime:
    return given if isinstance(given, int) else _moment(given)


def _require_one(version: int | None, timestamp: datetime | str | None) -> None:
    if version is not None and timestamp is not None:
        raise InvalidInput("A snapshot is of a version or of a time, not of both. Nothing was read.")


def _moment(timestamp: datetime | str) -> datetime:
    if isinstance(timestamp, datetime):
        return timestamp
    try:
        return datetime.fromisoformat(timestamp)
    except ValueError:
        raise InvalidInput(
            f"{timestamp!r:.50} is no time. Nothing was read. Write it as in 2026-01-31T12:00:00Z."
        ) from None
