"""A version's parts as the log lists them: which belong to a partition, in which order, and whether they are there."""

import hashlib
import re
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from dagster_versioned.delta.actions import Add, Cdc, Remove
from dagster_versioned.delta.files.deletion_vectors import vector_key
from dagster_versioned.delta.files.file_actions import to_adds
from dagster_versioned.delta.log.commits import Commit
from dagster_versioned.delta.log.snapshot import Snapshot
from dagster_versioned.delta.schema.types import parse_schema
from dagster_versioned.engines.part_order import PARTITION_TAG, SHA_TAG, VECTOR_TAG, part_order
from dagster_versioned.engines.partition_values import place
from dagster_versioned.engines.parts import Part, RowsSummary
from dagster_versioned.errors import IntegrityError, ObjectNotFound, UnsupportedFeature
from dagster_versioned.identity.digest import RowsDigest
from dagster_versioned.identity.version import VersionEntry
from dagster_versioned.storage.keys import is_key
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.tables.configuration import refuse_features

_HEADS_AT_ONCE = 16
_CHUNK = 8 * 1024 * 1024
_NAMED_BY_SHA = re.compile(r"(?:^|/)([0-9a-f]{64})\.parquet\Z")
_LENGTH_OF_NAME = 64 + len("/.parquet")


SLICES = "data/"
"""Where slices of events are, named by another hash than parts. Source: seed 002 ("Dataset Layout")."""


def part_key(part: Part) -> str:
    """The final name of a part below the table's folder."""
    if part.key is not None:
        return part.key
    folder = place(part.partition_values)
    return f"{folder}/{part.sha256}.parquet" if folder else f"{part.sha256}.parquet"


def change_key(part: Part) -> str:
    """The final name of a file of changes. Protocol: *Change Data Files*."""
    return f"_change_data/{part_key(part)}"


def part_sha(add: Add | Cdc) -> str | None:
    """The SHA-256 that a part's bytes must have: from its tag if it was adopted, else from its name.

    ``None`` for a file of another program that was not adopted.
    """
    tagged = (add.tags or {}).get(SHA_TAG)
    return tagged if tagged is not None else named_sha(add.key)


def named_sha(key: str) -> str | None:
    """The SHA-256 that the bytes of a part, or of a file of changes, must have by its name."""
    named = _NAMED_BY_SHA.search(key[-_LENGTH_OF_NAME:])
    return named[1] if named else None


def sha256_of(store: ObjectStore, key: str, size: int) -> str:
    """The SHA-256 of an object's bytes, a piece of which is held in memory at a time. Raises `ObjectNotFound`."""
    digest = hashlib.sha256()
    for start in range(0, size, _CHUNK):
        digest.update(store.get_range(key, start, _CHUNK))
    return digest.hexdigest()


def refuse_foreign_features(snapshot: Snapshot) -> None:
    """Raise `UnsupportedFeature` where another program gave the table what its versions cannot have: the SHA-256 of a
    part says nothing of columns that have other names in it."""
    if snapshot.column_mapping != "none":
        refuse_features({"columnMapping"})


def vector_sha_of(add: Add) -> str | None:
    """The SHA-256 that the part's deletion vector must have; ``None`` where it has none, or one that nobody named."""
    return (add.tags or {}).get(VECTOR_TAG) if add.deletion_vector else None


def data_line(add: Add) -> str | None:
    """What a part adds to the ``data_sha`` of its version: its SHA-256, and that of its deletion vector if it has one.

    ``None`` for what another program committed and nobody adopted.
    """
    sha, vector = part_sha(add), vector_sha_of(add)
    if add.deletion_vector is None or sha is None:
        return sha
    return None if vector is None else f"{sha} {vector}"


def known_line(add: Add) -> str:
    """`data_line` of a part that belongs to a version. Raises `IntegrityError` for a file that has none."""
    line = data_line(add)
    if line is None:
        raise IntegrityError(f"The log lists {add.path}, whose name is no SHA-256 and which carries none. Run verify.")
    return line


def stored_bytes(add: Add) -> int:
    """The size of a part with its deletion vector."""
    return add.size + (add.deletion_vector.size_in_bytes if add.deletion_vector else 0)


def vector_object(store: ObjectStore, of: Add | Remove) -> str | None:
    """The key of the file that holds a part's deletion vector; ``None`` without one, or where it is not the table's.

    Raises `LogCorrupt` for a descriptor that makes no sense.
    """
    vector = of.deletion_vector
    if vector is None or vector.storage_type not in ("u", "p"):
        return None
    try:
        key = vector_key(store, vector, of.key)
    except UnsupportedFeature:  # outside of the table's folder: reading it says so
        return None
    return key if is_key(key) else None


def objects_of(store: ObjectStore, adds: Iterable[Add]) -> set[str]:
    """The keys of all that is stored of parts: their own files, and those of their deletion vectors."""
    return {key for add in adds for key in (add.key, vector_object(store, add)) if key is not None}


def partition_of(add: Add) -> str | None:
    """The partition that a part belongs to; ``None`` for one of a table without, and of other programs."""
    return (add.tags or {}).get(PARTITION_TAG)


def parts_of(snapshot: Snapshot, partition: str | None = None) -> tuple[Add, ...]:
    """The parts of one partition, or (``None``) of the whole table, in the order in which their rows are read.

    `part_order` says which order that is.
    """
    refuse_foreign_features(snapshot)
    files = snapshot.files
    if partition is not None:
        files = files.filter(pc.equal(_tag(files, PARTITION_TAG), pa.scalar(partition)))
    return tuple(sorted(to_adds(files), key=part_order))


def parts_by_partition(
    snapshot: Snapshot, partitions: Collection[str] | None = None
) -> dict[str | None, tuple[Add, ...]]:
    """The parts of each of these partitions, or (``None``) of all that have any, each as `parts_of` gives them.

    One pass over the files, whatever the number of partitions. Under the key ``None``: what belongs to no partition.
    """
    refuse_foreign_features(snapshot)
    files = snapshot.files
    grouped: dict[str | None, tuple[Add, ...]] = {}
    if partitions is not None:
        files = files.filter(pc.is_in(_tag(files, PARTITION_TAG), value_set=pa.array(partitions, pa.string())))
        grouped = dict.fromkeys(partitions, ())
    for partition, adds in groupby(sorted(to_adds(files), key=part_order), partition_of):
        grouped[partition] = grouped.get(partition, ()) + tuple(adds)
    return grouped


class LiveParts:
    """The parts of each partition as commits come and take them, for who follows a log of many.

    A snapshot is asked by a pass over all files, for each version that there was.
    """

    def __init__(self) -> None:
        self.log_version = -1
        self._parts: dict[str | None, dict[tuple[str, str | None], Add]] = {}
        self._partitions: dict[tuple[str, str | None], str | None] = {}

    def advance(self, commits: Iterable[Commit]) -> None:
        """Follow commits, which come after those before without a gap."""
        for commit in commits:
            for gone in (*commit.removes, *commit.adds):
                if gone.identity in self._partitions:
                    del self._parts[self._partitions.pop(gone.identity)][gone.identity]
            for add in commit.adds:
                self._partitions[add.identity] = partition_of(add)
                self._parts.setdefault(partition_of(add), {})[add.identity] = add
            self.log_version = commit.version

    def of(self, partition: str | None) -> tuple[Add, ...]:
        """As `parts_of` a snapshot."""
        found = [self._parts.get(partition, {})] if partition is not None else self._parts.values()
        return tuple(sorted((add for parts in found for add in parts.values()), key=part_order))


def has_untagged_parts(snapshot: Snapshot) -> bool:
    """Whether any file belongs to no partition."""
    return _tag(snapshot.files, PARTITION_TAG).null_count > 0


def missing_parts(store: ObjectStore, adds: Sequence[Add]) -> list[Add]:
    """The parts that are not in the store, or not with their size; or whose deletion vector is not."""

    def is_missing(add: Add) -> bool:
        vector = vector_object(store, add)
        try:
            if vector is not None:
                store.head(vector)
            return store.head(add.key).size != add.size
        except ObjectNotFound:
            return True

    if len(adds) < 2:
        return [add for add in adds if is_missing(add)]
    with ThreadPoolExecutor(min(_HEADS_AT_ONCE, len(adds))) as pool:
        return [add for add, missing in zip(adds, pool.map(is_missing, adds), strict=True) if missing]


def _tag(files: pa.Table, name: str) -> "pa.ChunkedArray[Any]":
    return cast("pa.ChunkedArray[Any]", pc.map_lookup(files["tags"], pa.scalar(name), "first"))


def recorded_rows(entry: VersionEntry) -> RowsSummary:
    """What the log says of the rows of a version."""
    schema = parse_schema(entry.to_json()["identity"]["schema"])
    digest = RowsDigest.parse(entry.facts.digest)
    return RowsSummary(schema, entry.identity.nrow, tuple(entry.facts.null_counts), digest)
