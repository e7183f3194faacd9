"""What a read is asked for: exact files in an exact order, as a given schema."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from dagster_versioned.delta.actions import DeletionVector
from dagster_versioned.delta.files.partition_values import Value, decode
from dagster_versioned.delta.schema.column_mapping import ColumnMapping
from dagster_versioned.delta.schema.types import StructType
from dagster_versioned.errors import IntegrityError, InvalidInput, LogCorrupt
from dagster_versioned.storage.object_store import ObjectStore

Check = Literal["size", "bytes"]
"""What shows that a file is the one to read: its size, or its SHA-256 as well where that is known."""


ROW_ID, ROW_COMMIT_VERSION = "_row_id", "_row_commit_version"
"""Columns that are read on request from tables that track their rows."""


@dataclass(frozen=True, slots=True)
class ScanFile:
    """One file to read: ``key`` in the scan's store, ``size`` in bytes.

    ``sha256`` is ``None`` for files that this package did not write; ``num_records``, which counts deleted rows as
    well, where nobody knows it; ``partition_values`` are Delta's serialized values by column name (seed 001,
    "Partition Value Serialization"). ``deletion_vector`` says which of its rows are gone, and is in the scan's store,
    too; ``vector_sha`` is what its `vector_sha` must be, if known. ``kept``, in the same form, that of the others only
    these are read.
    ``base_row_id`` and ``default_row_commit_version`` are what rows have whose own columns say nothing else (seed 001,
    "Row Tracking").
    """

    key: str
    size: int
    sha256: str | None = None
    num_records: int | None = None
    partition_values: Mapping[str, str | None] = field(default_factory=dict[str, str | None])
    deletion_vector: DeletionVector | None = None
    kept: DeletionVector | None = None
    base_row_id: int | None = None
    default_row_commit_version: int | None = None
    vector_sha: str | None = None

    @property
    def remaining_records(self) -> int | None:
        """How many rows are read of it, where that is known."""
        deleted = self.deletion_vector.cardinality if self.deletion_vector else 0
        return None if self.num_records is None else self.num_records - deleted

    def partition_value(self, name: str, data_type: str) -> Value:
        """The value of a partition column. Raises `LogCorrupt`, naming the file, where it is not of the type."""
        try:
            return decode(self.partition_values[name], data_type)
        except LogCorrupt as error:
            raise LogCorrupt(f"The file {self.key!r}, column {name!r}: {error}") from error


@dataclass(frozen=True, slots=True)
class Scan:
    """Files whose rows, concatenated in this order, are the table; ``columns`` ``None`` means all, in schema order.

    ``mapping`` says how ``schema``, which then has what it takes in its fields' metadata, finds columns in the files.
    ``tracked`` are, by the names of `ROW_ID` and `ROW_COMMIT_VERSION` in ``schema``, the columns of files that hold
    them where they are not the defaults. ``compact``: columns of short texts that repeat may come as dictionaries, for
    who only writes them again. ``without_nan`` are columns of floats, by their paths, that are known to hold no NaN in
    any file: for each, whether it may hold a zero.
    Guarantee: every name in ``columns`` is in ``schema``, once. Raises `InvalidInput`.
    """

    store: ObjectStore
    schema: StructType
    files: tuple[ScanFile, ...]
    columns: tuple[str, ...] | None = None
    mapping: ColumnMapping = "none"
    tracked: Mapping[str, str] = field(default_factory=dict[str, str])
    compact: bool = False
    without_nan: Mapping[tuple[str, ...], bool] = field(default_factory=dict[tuple[str, ...], bool])

    def __post_init__(self) -> None:
        if self.columns is None:
            return
        if not self.columns:
            raise InvalidInput("No column is asked for. Name at least one, or leave columns out to read all.")
        known = self.schema.names
        unknown = [name for name in self.columns if name not in known]
        if unknown:
            raise InvalidInput(f"No column {unknown[0]!r} in the table. It has: {', '.join(map(repr, known))}.")
        if len(set(self.columns)) < len(self.columns):
            raise InvalidInput(f"A column is asked for twice: {list(self.columns)}. Name each column once.")

    @property
    def selected(self) -> StructType:
        """The schema of what is read: the asked columns in the asked order."""
        return self.schema if self.columns is None else self.schema.select(self.columns)


def missing_part(store: ObjectStore, file: ScanFile) -> IntegrityError:
    """The error for a file that is not there."""
    return IntegrityError(
        f"The part {file.key} is missing from {store.uri}. No row was returned. Restore it from a copy, or materialize "
        "the version's asset again, which writes the same bytes."
    )
