"""Reading: from a reference to the exact files of one version."""

from collections.abc import Collection as Names
from collections.abc import Sequence
from dataclasses import dataclass

from dagster_versioned.delta import statistics
from dagster_versioned.delta.actions import Add
from dagster_versioned.delta.paths import confined_key
from dagster_versioned.delta.schema import StructType, parse_schema
from dagster_versioned.delta.snapshot import Snapshot
from dagster_versioned.engines.parts import RowOrder
from dagster_versioned.engines.scan import Scan, ScanFile
from dagster_versioned.errors import ExpiredVersion, IntegrityError, VersionNotFound
from dagster_versioned.identity.digest import RowsDigest
from dagster_versioned.identity.version import data_sha
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.tables.history import Selection, Version
from dagster_versioned.tables.parts import part_sha, parts_of


@dataclass(frozen=True)
class VersionFiles:
    """The exact files to read, at one log version.

    ``versions`` are the versions (one, or one per partition) that they make up; ``whole`` says that they are all
    there was of the table.
    """

    scan: Scan
    adds: tuple[Add, ...]
    versions: tuple[Version, ...]
    log_version: int
    whole: bool


def version_files(
    store: ObjectStore,
    snapshot: Snapshot,
    selection: Selection,
    current: Sequence[Version],
    *,
    partitions: Names[str] | None,
    columns: Sequence[str] | None,
) -> VersionFiles:
    """The files to read for a selection; ``snapshot`` is the table at the selection's log version.

    ``current`` are the versions that the table consisted of then; none where a foreign commit had the last word, whose
    files are read as the log lists them. Raises `ExpiredVersion`, `IntegrityError` where the log's parts
    are not the ones that the version's ``data_sha`` names, and `VersionNotFound` for a partition that has no version.
    """
    if selection.version is not None:
        chosen = (selection.version,)
    elif partitions is not None:
        known = {version.partition: version for version in current}
        missing = sorted(set(partitions) - set(known), key=str)
        if missing:
            raise VersionNotFound(
                f"No version of partition {missing[0]!r} at log version {selection.log_version}; "
                f"there are {len(known)} partitions. Nothing was read."
            )
        chosen = tuple(known[partition] for partition in partitions)
    else:
        chosen = tuple(current)
    for version in chosen:
        if version.gone is not None:
            how = {"expire": "expired", "purge": "purged"}.get(version.gone, "collected")
            raise ExpiredVersion(
                f"The data of version {version.short} (@{version.log_version}) was {how}. Its entry in the history is "
                "kept. Read a later version, or write the data again."
            )
    by_version = {version: parts_of(snapshot, version.partition) for version in chosen}
    for version, parts in by_version.items():
        check_parts(version, parts)
    whole = selection.version is None and partitions is None
    adds = parts_of(snapshot) if whole else tuple(add for parts in by_version.values() for add in parts)
    schema = snapshot.schema
    if not whole and len(chosen) == 1 and chosen[0].raw is not None:
        schema = parse_schema(chosen[0].raw["identity"]["schema"])
    return VersionFiles(_scan(store, schema, adds, columns), adds, chosen, selection.log_version, whole)


def check_parts(version: Version, parts: Sequence[Add]) -> None:
    """Raise `IntegrityError` unless the parts that the log lists make up the version's ``data_sha``."""
    shas = [sha for add in parts if (sha := part_sha(add)) is not None]
    recorded = version.identity.data_sha
    found = data_sha(shas, row_order_of(version))
    if len(shas) != len(parts) or found != recorded:
        raise IntegrityError(
            f"The {len(parts)} parts that the log lists for version {version.short} (@{version.log_version}) have the "
            f"data_sha {found[:12]}…, but the version was committed with {recorded[:12]}…. No row was returned. "
            "Run verify on the table."
        )


def row_order_of(version: Version) -> RowOrder:
    """Whether the order of the version's rows is part of what it says: the kind of its digest tells."""
    return "significant" if RowsDigest.parse(version.facts.digest).kind == "seq-sha256" else "ignored"


def _scan(store: ObjectStore, schema: StructType, adds: Sequence[Add], columns: Sequence[str] | None) -> Scan:
    files = tuple(
        ScanFile(
            key=confined_key(add.path),
            size=add.size,
            sha256=part_sha(add),
            num_records=statistics.parse(add.stats).get("numRecords") if add.stats else None,
            partition_values=add.partition_values,
        )
        for add in adds
    )
    return Scan(store, schema, files, tuple(columns) if columns is not None else None)
