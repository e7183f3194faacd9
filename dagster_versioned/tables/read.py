"""Reading: from the versions that were chosen to their exact files."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import orjson

from dagster_versioned.delta.actions import Add
from dagster_versioned.delta.files import statistics
from dagster_versioned.delta.log.snapshot import Snapshot
from dagster_versioned.delta.paths import confined_key
from dagster_versioned.delta.schema.types import StructType, parse_schema
from dagster_versioned.engines.part_order import SHA_TAG
from dagster_versioned.engines.parts import RowOrder
from dagster_versioned.engines.scan import Scan, ScanFile
from dagster_versioned.errors import ExpiredVersion, IntegrityError
from dagster_versioned.identity.digest import digest_kind
from dagster_versioned.identity.version import data_sha
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.tables.choose import ChosenVersions
from dagster_versioned.tables.erased_parts import NOTHING_ERASED, ErasedParts
from dagster_versioned.tables.history import Version
from dagster_versioned.tables.parts import (
    data_line,
    named_sha,
    part_sha,
    partition_of,
    parts_by_partition,
    parts_of,
    vector_sha_of,
)
from dagster_versioned.tables.sample_schema import lost_columns


@dataclass(frozen=True)
class VersionFiles(ChosenVersions):
    """The exact files to read, and the versions that they make up."""

    scan: Scan
    adds: tuple[Add, ...]

    def of_no_partition(self) -> "VersionFiles":
        """None of the files, of the same columns."""
        return replace(self, versions=(), whole=False, scan=replace(self.scan, files=()), adds=())

    def by_partition(self) -> "Iterator[tuple[str | None, VersionFiles]]":
        """The files of each partition, in the order of their keys: for each what a plan of it alone would be."""
        grouped: dict[str | None, list[tuple[ScanFile, Add]]] = {}
        for file, add in zip(self.scan.files, self.adds, strict=True):
            grouped.setdefault(partition_of(add), []).append((file, add))
        versions = sorted(self.versions, key=lambda version: version.partition or "")
        for version, schema in zip(versions, _recorded_schemas(versions), strict=True):
            own = grouped.get(version.partition, ())
            scan = replace(self.scan, schema=schema, files=tuple(file for file, _ in own))
            adds = tuple(add for _, add in own)
            yield version.partition, VersionFiles((version,), self.log_version, False, scan, adds)


def version_files(
    store: ObjectStore,
    snapshot: Snapshot,
    chosen: ChosenVersions,
    columns: Sequence[str] | None,
    erased: ErasedParts = NOTHING_ERASED,
) -> VersionFiles:
    """The files of versions; ``snapshot`` is the table at their log version, ``erased`` what was erased of it since.

    Where a foreign commit had the last word, they are the files that the log lists. Raises `ExpiredVersion`, and
    `IntegrityError` where the log's parts are not the ones that the version's ``data_sha`` names.
    """
    if lost := next((version for version in chosen.versions if version.gone is not None), None):
        how = {"expire": "expired", "purge": "purged"}.get(str(lost.gone), "collected")
        raise ExpiredVersion(
            f"The data of version {lost.short} (@{lost.log_version}) was {how}. Its entry in the history is kept. Read "
            "a later version, or write the data again."
        )
    partitions = [version.partition for version in chosen.versions if version.partition is not None]
    parts: Mapping[str | None, tuple[Add, ...]]
    if partitions:
        parts = parts_by_partition(snapshot, None if chosen.whole else partitions)
    else:
        parts = {None: parts_of(snapshot)}
    schemas: list[StructType] = []
    claimed = 0
    # Side by side, so that what is recorded of a version is looked at once.
    for version, schema in zip(chosen.versions, _recorded_schemas(chosen.versions), strict=True):
        own = parts.get(version.partition, ())
        check_parts(version, own)
        schemas.append(schema)
        claimed += len(own)
    listed = tuple(chain.from_iterable(parts.values()))
    if chosen.versions and len(listed) != claimed:
        raise IntegrityError(
            f"The log lists {len(listed)} parts at @{chosen.log_version}, but its versions have {claimed}. No row was "
            "returned. Run verify on the table."
        )
    adds = erased.of(listed)
    scan = scan_of(store, _schema(snapshot.schema, chosen, schemas), adds, columns)
    return VersionFiles(chosen.versions, chosen.log_version, chosen.whole, scan, adds)


def _schema(current: StructType, chosen: ChosenVersions, recorded: Sequence[StructType]) -> StructType:
    """The columns to read: those of the one version, or the table's, which must be able to hold every version."""
    if len(recorded) == 1:
        return recorded[0]
    distinct = {id(schema): schema for schema in recorded}.values()
    if lost := [name for schema in distinct for name in lost_columns(current, schema)]:
        raise IntegrityError(
            f"The table's schema at @{chosen.log_version} has no column {lost[0]!r} as its versions recorded it. "
            "No row was returned. Run verify on the table."
        )
    return current


def _recorded_schemas(versions: Iterable[Version]) -> Iterator[StructType]:
    """The schema that each version recorded; thousands have the same, so each that differs is parsed once."""
    parsed: dict[bytes, StructType] = {}
    texts: dict[int, bytes] = {}
    for version in versions:
        if (raw := version.raw) is not None:
            recorded = raw["identity"]["schema"]
            text = texts.get(id(recorded)) or texts.setdefault(id(recorded), orjson.dumps(recorded))
            yield parsed.get(text) or parsed.setdefault(text, parse_schema(recorded))


def check_parts(version: Version, parts: Sequence[Add]) -> None:
    """Raise `IntegrityError` unless the parts that the log lists make up the version's ``data_sha``."""
    shas = [line for add in parts if (line := data_line(add)) is not None]
    recorded = version.recorded["data_sha"]
    found = data_sha(shas, row_order_of(version))
    if len(shas) != len(parts) or found != recorded:
        raise IntegrityError(
            f"The {len(parts)} parts that the log lists for version {version.short} (@{version.log_version}) have the "
            f"data_sha {found[:12]}…, but the version was committed with {recorded[:12]}…. No row was returned. "
            "Run verify on the table."
        )


def row_order_of(version: Version) -> RowOrder:
    """Whether the order of the version's rows is part of its identity: the kind of its digest says so."""
    raw = version.raw
    digest = raw["facts"].get("digest") if raw is not None else None
    kind = digest_kind(digest if isinstance(digest, str) else version.facts.digest)
    return "significant" if kind == "seq-sha256" else "ignored"


def scan_of(store: ObjectStore, schema: StructType, adds: Sequence[Add], columns: Sequence[str] | None = None) -> Scan:
    """The scan that reads these parts, in this order, as a schema."""
    files = tuple(
        ScanFile(
            key=confined_key(add.path),
            size=add.size,
            sha256=part_sha(add),
            # Statistics are optional, so whatever is wrong with them stops no read.
            num_records=statistics.num_records(add.stats),
            partition_values=add.partition_values,
            deletion_vector=add.deletion_vector,
            vector_sha=vector_sha_of(add),
        )
        for add in adds
    )
    known = without_nan(schema, adds)
    return Scan(store, schema, files, tuple(columns) if columns is not None else None, without_nan=known)


def without_nan(schema: StructType, adds: Sequence[Add]) -> dict[tuple[str, ...], bool]:
    """The columns of floats that hold no NaN in any part, by statistics of ours: for each, whether zeros may be."""
    found = dict.fromkeys(_float_paths(schema, ()), False)
    if any(named_sha(add.key) is None or SHA_TAG in (add.tags or {}) for add in adds):
        return {}  # bounds of other writers may leave NaN out
    for add in adds if found else ():
        known = statistics.ranges(add.stats)
        found = {path: zeros or known[path][0] <= 0 <= known[path][1] for path, zeros in found.items() if path in known}
    return found


def _float_paths(schema: StructType, above: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for field in schema.fields:
        if isinstance(field.type, StructType):
            yield from _float_paths(field.type, (*above, field.name))
        elif field.type in ("float", "double"):
            yield *above, field.name
