"""Any Delta table, ours or not: what it is, what happened to it, and the changes that need no engine for rows."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial

import pyarrow as pa

from dagster_versioned.delta.actions import Metadata, Protocol
from dagster_versioned.delta.commit import alter
from dagster_versioned.delta.commit.alter import Column
from dagster_versioned.delta.commit.checkpoint import write_checkpoint
from dagster_versioned.delta.commit.restore import restore
from dagster_versioned.delta.commit.transaction import Transaction, commit
from dagster_versioned.delta.files.external_files import with_external_files
from dagster_versioned.delta.log.change_feed import ChangePlan, plan_changes
from dagster_versioned.delta.log.cleanup import CleanedUp, cleanup_log
from dagster_versioned.delta.log.commits import commits_after
from dagster_versioned.delta.log.history import HistoryEntry, history, version_at
from dagster_versioned.delta.log.snapshot import Snapshot, load_snapshot, write_checksum
from dagster_versioned.delta.schema.types import DataType, StructType
from dagster_versioned.delta.vacuum import Vacuumed, vacuum
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

    def __init__(self, uri: str | ObjectStore, *, profile: str | None = None, allow: Sequence[str] = ()) -> None:
        """``uri``: a local path or a URI (``s3://…``, ``gs://…``, ``abfss://…``); ``profile``: of AWS's files.

        A log may name files by absolute paths. Those in the table's folder are always read; of others, as a shallow
        clone has them, those below the folders of ``allow``. A table with such files is never given new rows. Raises
        `InvalidInput` for a URI that names no store.
        """
        store = open_store(uri, profile=profile) if isinstance(uri, str) else uri
        self.store = with_external_files(store, allow, profile=profile) if allow or isinstance(uri, str) else store
        self._newest: Snapshot | None = None

    def __repr__(self) -> str:
        return f"Table({self.store.uri!r})"

    # --- what it is ---

    def snapshot(self, version: int | None = None, timestamp: datetime | str | None = None) -> Snapshot:
        """The table at a version, at a time (ISO 8601, with a zone), or now.

        The newest snapshot is kept, and from then on follows new commits without reading the log again. Raises
        `TableNotFound`, `VersionNotFound`, `LogCorrupt`, `UnsupportedFeature`.
        """
        if version is not None and timestamp is not None:
            raise InvalidInput("A snapshot is of a version or of a time, not of both. Nothing was read.")
        if version is None:
            newest = self._current()
            if timestamp is None:
                return newest
            version = version_at(self.store, newest, _moment(timestamp))
        if self._newest is not None and self._newest.version == version:
            return self._newest
        return load_snapshot(self.store, version)

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

        The rows themselves are read by `delta_tables.arrow.read_changes`, and the same in `spark`. Raises
        `InvalidInput` where the table had no change data feed at one of them, and `VersionNotFound`.
        """
        end = None if last is None else _place(last)
        return plan_changes(self.store, _place(first), end, newest=self._current())

    # --- properties and columns ---

    def set_properties(self, properties: Mapping[str, str]) -> int:
        """Set table properties, with what each brings: features in the protocol, ids of columns, ids of rows.

        ``delta.feature.NAME`` = ``supported`` lists a feature, without a property to keep.
        """
        return self._commit(partial(alter.set_properties, properties=dict(properties)))

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
        """Have rows lie together by columns from now on; by none where none is named."""
        return self._commit(partial(alter.cluster_by, columns=columns))

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

        With a checksum file, by which readers see whether the checkpoint is whole.
        """
        snapshot = self.snapshot()
        write_checkpoint(self.store, snapshot)
        write_checksum(self.store, snapshot)
        return snapshot.version

    def vacuum(self, retention: timedelta | None = None, *, dry_run: bool = True, force: bool = False) -> Vacuumed:
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
            return change(read)

        self._newest, committed = commit(self.store, self._current(), build)
        return committed.version


def _place(given: int | datetime | str) -> int | datetime:
    return given if isinstance(given, int) else _moment(given)


def _moment(timestamp: datetime | str) -> datetime:
    if isinstance(timestamp, datetime):
        return timestamp
    try:
        return datetime.fromisoformat(timestamp)
    except ValueError:
        raise InvalidInput(
            f"{timestamp!r:.50} is no time. Nothing was read. Write it as in 2026-01-31T12:00:00Z."
        ) from None
