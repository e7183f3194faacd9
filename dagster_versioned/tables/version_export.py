"""A version at a place of its own, as a plain Delta table: for readers that know Delta and no versions.

Its parts are copied as they are, so that they can still be compared with the version's ``data_sha``. The table has one
commit, put last: until it is there, nobody takes the place for a table.
"""

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dagster_versioned.delta.actions import Add, Metadata, Protocol
from dagster_versioned.delta.commit.protocol_upgrade import ASKED, protocol_with
from dagster_versioned.delta.commit.transaction import Committed, Transaction
from dagster_versioned.delta.log.commits import LOG_FOLDER
from dagster_versioned.errors import IntegrityError, InvalidInput, ObjectNotFound, UnsupportedFeature
from dagster_versioned.storage import opening
from dagster_versioned.storage.keys import is_key
from dagster_versioned.storage.location import Location
from dagster_versioned.storage.object_store import ObjectInfo, ObjectStore
from dagster_versioned.storage.transfer import CopyProgress, Transfer
from dagster_versioned.tables.choose import VersionLike
from dagster_versioned.tables.documents.export import refuse_inside_project
from dagster_versioned.tables.parts import objects_of, vector_object
from dagster_versioned.tables.table import VersionedTable
from dagster_versioned.tables.verify import part_problems


@dataclass(frozen=True)
class ExportedVersion:
    """What was exported, to where: the log version, and how many files with how many bytes; ``reader_features`` of
    Delta are those that a reader has to know."""

    location: str
    log_version: int
    files: int
    size_bytes: int
    reader_features: tuple[str, ...]


def export_version(
    table: VersionedTable,
    to: Location | str,
    version: VersionLike = None,
    *,
    partition: str | None = None,
    open_store: Callable[[Location], ObjectStore] = opening.open_store,
    progress: Callable[[int, int], None] | None = None,
) -> ExportedVersion:
    """Make a plain Delta table of a version, or of one of its partitions, at an empty place.

    The columns by which Dagster's partitions are told are in it as far as rows have them. A place where an export of
    the same version died takes it too. Raises `InvalidInput` for another place and one inside of a project;
    `UnsupportedFeature` for files outside of the table's folder; `IntegrityError` where a file is not what the log
    says; and what `VersionedTable.files` does.
    """
    files = table.files(version, partition=partition)
    location = Location.parse(to) if isinstance(to, str) else to
    refuse_inside_project(location, open_store)
    there = open_store(location)
    keys = _own_keys(table, files.adds)
    present = {info.key: info.size for info in there.list()}
    if stray := next((key for key in present if key not in keys or key.startswith(LOG_FOLDER)), None):
        raise InvalidInput(
            f"{there.uri} is not empty: there is {stray!r}, for one. Nothing was written. Name an empty place."
        )
    wanted = [table.store.head(key) for key in sorted(keys)]
    _copy(table.store, there, [info for info in wanted if present.get(info.key) != info.size], progress)
    _require_copies(table, there, files.adds)
    vectors = {f"{ASKED}deletionVectors": "supported"} if any(add.deletion_vector for add in files.adds) else {}
    protocol = protocol_with(Protocol(1, 2), vectors, files.scan.schema)
    snapshot = table.operations.cache.older(files.log_version)
    now = time.time_ns() // 1_000_000
    metadata = Metadata(str(uuid.uuid4()), files.scan.schema.json(), snapshot.partition_columns, created_time=now)
    adds = [replace(add, data_change=True, clustering_provider=None) for add in files.adds]
    if not isinstance(Transaction(None, [protocol, metadata, *adds], "EXPORT").attempt(there), Committed):
        raise InvalidInput(f"Somebody made a table at {there.uri} meanwhile. It is theirs. Name an empty place.")
    size = sum(info.size for info in wanted)
    return ExportedVersion(there.uri, files.log_version, len(wanted), size, tuple(protocol.reader_features or ()))


def _own_keys(table: VersionedTable, adds: Sequence[Add]) -> set[str]:
    """All that is stored of these parts. Raises `UnsupportedFeature` for what lies outside of the table's folder."""
    for add in adds:
        if not is_key(add.key) or (_has_vector_file(add) and vector_object(table.store, add) is None):
            raise UnsupportedFeature(
                f"{table.name} has files outside of its own folder, such as {add.path!r:.200}. Nothing was copied. "
                "Read the version, and write its rows to another table."
            )
    return objects_of(table.store, adds)


def _require_copies(table: VersionedTable, there: ObjectStore, adds: Sequence[Add]) -> None:
    """Raise `IntegrityError` where a copy is not what the log says, and delete it: one of the right size would stay."""
    problems = dict(part_problems(there, adds))
    if problems:
        there.delete(sorted(objects_of(table.store, (add for add in adds if add.key in problems))))
        key, problem = next(iter(problems.items()))
        raise IntegrityError(
            f"{table.name}/{key} is not what the log says: {problem}. There is no table at {there.uri}. "
            f"`dagster-versioned verify {table.name}` says what is damaged."
        )


def _has_vector_file(add: Add) -> bool:
    return add.deletion_vector is not None and add.deletion_vector.storage_type in ("u", "p")


def _copy(
    source: ObjectStore, target: ObjectStore, wanted: list[ObjectInfo], progress: Callable[[int, int], None] | None
) -> None:
    def tell(copied: CopyProgress) -> None:
        if progress is not None:
            progress(copied.objects, copied.total_objects)

    report = Transfer(source, target).copy_all(wanted, progress=tell)
    if report.overtaken:
        raise ObjectNotFound(f"{report.overtaken[0]} in {source.uri} changed, or vanished, while it was copied")
