"""Checksums of versions: ``<version>.crc``, a few figures of a snapshot that show whether it was replayed rightly.

Protocol: *Version Checksum File* (delta-io, since the seed). They can be derived from the log, so a commit does not
write one, which would be a request more for each; the table's verb ``checkpoint`` does, and there they are worth most:
whoever begins at the checkpoint sees whether it is whole. One that is missing or unreadable says nothing; one that
disagrees with what was replayed is an error: a file of the log was lost, cut or altered.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import orjson
import pyarrow as pa

from dagster_versioned.delta.actions import Members, Metadata, Protocol
from dagster_versioned.delta.log.commits import checksum_key
from dagster_versioned.delta.paths import compute
from dagster_versioned.errors import LogCorrupt, ObjectNotFound
from dagster_versioned.storage.object_store import ObjectStore


@dataclass(frozen=True, slots=True)
class Checksum:
    """The figures of one version; those that are ``None`` are not known, and agree with anything."""

    num_files: int
    table_size_bytes: int
    protocol: Protocol | None = None
    metadata: Metadata | None = None
    in_commit_timestamp: int | None = None
    num_deletion_vectors: int | None = None
    num_deleted_records: int | None = None

    @classmethod
    def of(
        cls,
        files: pa.Table,
        protocol: Protocol | None,
        metadata: Metadata | None,
        timestamp_ms: int | None = None,
    ) -> "Checksum":
        """The figures of live files (schema `files.FILES`); ``timestamp_ms`` is the in-commit timestamp, if any."""
        vectors = files["deletionVector"]
        count = len(vectors) - vectors.null_count
        deleted = compute.sum(compute.struct_field(vectors, "cardinality")).as_py() if count else 0
        size = compute.sum(files["size"]).as_py() or 0
        return cls(files.num_rows, size, protocol, metadata, timestamp_ms, count, deleted)

    @classmethod
    def parse(cls, data: bytes, where: str) -> "Checksum":
        """Raises `LogCorrupt` naming ``where``."""
        try:
            value = orjson.loads(data)
        except orjson.JSONDecodeError as error:
            raise LogCorrupt(f"{where}: not JSON ({error}).") from error
        if not isinstance(value, dict):
            raise LogCorrupt(f"{where}: not a JSON object.")
        held = Members(cast("Mapping[str, Any]", value), where)
        return cls(
            held.count("numFiles"),
            held.count("tableSizeBytes"),
            None if held.value.get("protocol") is None else Protocol.parse(held.members("protocol")),
            None if held.value.get("metadata") is None else Metadata.parse(held.members("metadata")),
            held.optional_integer("inCommitTimestampOpt"),
            held.optional_count("numDeletionVectorsOpt"),
            held.optional_count("numDeletedRecordsOpt"),
        )

    def to_bytes(self) -> bytes:
        """The bytes of a checksum file."""
        members: dict[str, object] = {
            "tableSizeBytes": self.table_size_bytes,
            "numFiles": self.num_files,
            "numDeletedRecordsOpt": self.num_deleted_records,
            "numDeletionVectorsOpt": self.num_deletion_vectors,
            "numMetadata": 1,
            "numProtocol": 1,
            "inCommitTimestampOpt": self.in_commit_timestamp,
            "metadata": self.metadata and self.metadata.to_json(),
            "protocol": self.protocol and self.protocol.to_json(),
        }
        return orjson.dumps({name: member for name, member in members.items() if member is not None})

    def difference(self, found: "Checksum") -> str | None:
        """What differs in ``found``, in words; ``None`` where nothing does.

        The in-commit timestamp is not compared: the commit alone says when it was, and there are tables whose commits
        were backdated after their checksums were written.
        """
        for name in (name for name in self.__slots__ if name != "in_commit_timestamp"):
            recorded, replayed = _unordered(getattr(self, name)), _unordered(getattr(found, name))
            if recorded is not None and replayed is not None and recorded != replayed:
                return f"{name} is {recorded!r:.300} there, and {replayed!r:.300} by the log"
        return None


def _unordered(value: object) -> object:
    """A protocol's lists are sets: writers order them as they like."""
    if not isinstance(value, Protocol):
        return value
    lists = (value.reader_features, value.writer_features)
    readers, writers = (None if names is None else tuple(sorted(names)) for names in lists)
    return replace(value, reader_features=readers, writer_features=writers)


def require_checksum(store: ObjectStore, version: int, found: Checksum) -> None:
    """Raise `LogCorrupt`, naming the file, where the checksum of ``version`` disagrees with what was ``found``."""
    key = checksum_key(version)
    try:
        recorded = Checksum.parse(store.get(key), key)
    except (ObjectNotFound, LogCorrupt):
        return
    if difference := recorded.difference(found):
        raise LogCorrupt(
            f"{key}: {difference}. The checksum or a file of the log was altered. Nothing was read; restore them from a"
            " copy, or, if the checksum is what is wrong, delete it."
        )


def put_checksum(store: ObjectStore, version: int, checksum: Checksum) -> None:
    """Write the checksum of a version, durable when the system gets to it."""
    store.put(checksum_key(version), checksum.to_bytes(), durability="later")
