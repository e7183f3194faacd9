"""What a write produces: parts (immutable Parquet files), what they contain, and the options that shape their bytes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from dagster_versioned.delta.schema.types import StructType, schema_to_arrow
from dagster_versioned.errors import InvalidInput
from dagster_versioned.identity.digest import BagDigest, RowsDigest, SequenceDigest
from dagster_versioned.identity.version import RowOrder

MEBIBYTE = 1024 * 1024
ROW_GROUP_ROWS = 1_048_576


@dataclass(frozen=True, slots=True)
class Part:
    """One Parquet file of a version, written but not yet under its final name.

    ``sha256`` is of the file's bytes (64 hex), ``size`` is in bytes, ``ordinal`` counts from 0 within the version and
    ``statistics`` is the Delta statistics object of the file (seed 001, "Per-file Statistics"). ``source`` says where
    the bytes are: a `Path` on this machine, the ``bytes`` themselves, or (``str``) a key in the table's store.
    ``partition_values`` are those of the rows in the table's partition columns, which the file does not hold. ``key``
    is its final name below the table's folder, where that does not follow from all this.
    """

    sha256: str
    size: int
    num_records: int
    ordinal: int
    statistics: Mapping[str, Any]
    source: Path | bytes | str
    partition_values: Mapping[str, str | None] = field(default_factory=dict[str, str | None])
    key: str | None = None


@dataclass(frozen=True, slots=True)
class RowsSummary:
    """What a frame says, whatever its bytes: two frames with equal contents are the same data (FORMAT "Identity").

    ``schema`` has every field nullable and no field metadata; ``null_counts`` has one entry per top-level column.
    """

    schema: StructType
    nrow: int
    null_counts: tuple[int, ...]
    digest: RowsDigest


class RowsSummarizer:
    """Computes `RowsSummary` from rows in canonical types as they pass; under a ``key``, a digest without an order."""

    def __init__(self, schema: StructType, row_order: RowOrder, key: bytes | None = None) -> None:
        arrow = schema_to_arrow(schema)
        self._schema = schema
        self.digest = SequenceDigest(arrow) if row_order == "significant" else BagDigest(arrow, key)
        self.null_counts = [0] * len(schema.fields)
        self.nrow = 0

    def update(self, batch: pa.RecordBatch) -> None:
        """Add rows."""
        self.digest.update(batch)
        self.null_counts = [count + batch.column(i).null_count for i, count in enumerate(self.null_counts)]
        self.nrow += batch.num_rows

    def finish(self) -> RowsSummary:
        """What all of them say."""
        return RowsSummary(self._schema, self.nrow, tuple(self.null_counts), self.digest.finish())


@dataclass(frozen=True, slots=True)
class StagedParts:
    """The outcome of writing a frame: its contents, and its parts in ordinal order (none for an empty version)."""

    contents: RowsSummary
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class WriteTuning:
    """Sizes, in bytes, at which a write takes another way; the rows that it writes and their digest depend on none.

    ``in_memory_bytes``: parts stay in memory while all that a writer holds there is no more than this; other parts
    become files. ``row_group_rows``: the most rows of a row group.

    ``canonical_bytes``: rows of Spark without an order become one part in canonical order up to this size (as
    `row_size` counts, so that partitioning does not shift it): then the same rows are the same bytes, however Spark
    happened to deal them out. It means that the driver sorts and encodes them, on one core.

    ``sent_home_bytes``: compressed rows of a task of Spark, up to this size, go to the driver with its report.

    ``left_plain_bytes``: rows without an order up to this size, of a task that shares a folder with the driver, are
    left there as they are: if all fit one part, the driver encodes them once. A later task is allowed its share of this
    alone, so that the driver never has to encode much more: with 1000 tasks at most 7.5 times as much.
    """

    in_memory_bytes: int = 8 * MEBIBYTE
    row_group_rows: int = ROW_GROUP_ROWS
    canonical_bytes: int = 64 * MEBIBYTE
    sent_home_bytes: int = 256 * 1024
    left_plain_bytes: int = 64 * MEBIBYTE


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How a frame becomes parts.

    ``row_order`` ``None`` is the engine's default: significant for Arrow, pandas and Polars, ignored for Spark.
    ``columns`` is the order in which the columns are stored, ``()`` the frame's own; ``sort_columns`` puts them in name
    order. ``sort_rows`` orders the rows by these columns and makes the order significant. ``partition`` is the key of
    the Dagster partition the parts belong to; it and the ordinals, counted from ``first_ordinal``, are part of their
    bytes. ``partition_columns`` are those by whose values rows are grouped: each combination has parts of its own,
    each time numbered from ``first_ordinal``. Rows without an order are sorted by ``cluster_by``, so that each part has
    few values of these. ``row_group_bytes`` counts bytes in memory, ``target_part_bytes`` bytes
    as encoded. ``personal`` are columns of which files have no bounds. ``deletion_vectors`` says that rows may be taken
    out of a file without writing it anew, ``change_feed`` that a merge is to be able to tell what it changed. Raises
    `InvalidInput`.
    """

    row_order: RowOrder | None = None
    columns: tuple[str, ...] = ()
    sort_columns: bool = False
    sort_rows: tuple[str, ...] = ()
    single_part: bool = False
    partition: str | None = None
    target_part_bytes: int = 256 * MEBIBYTE
    row_group_bytes: int = 128 * MEBIBYTE
    partition_columns: tuple[str, ...] = ()
    cluster_by: tuple[str, ...] = ()
    compression: str = "zstd"
    personal: tuple[str, ...] = ()
    allow_empty: bool = False
    first_ordinal: int = 0
    deletion_vectors: bool = False
    change_feed: bool = False
    tuning: WriteTuning = WriteTuning()

    def __post_init__(self) -> None:
        if self.sort_rows and self.row_order == "ignored":
            raise InvalidInput(
                f"sort_rows={list(self.sort_rows)} gives the rows an order, but row_order='ignored' says that "
                "they have none. Nothing was written. Drop one of the two."
            )
        for name in ("target_part_bytes", "row_group_bytes"):
            if getattr(self, name) <= 0:
                raise InvalidInput(f"{name} must be positive, not {getattr(self, name)}. Nothing was written.")

    def resolved_row_order(self, default: RowOrder) -> RowOrder:
        """The row order that applies in an engine whose default is ``default``."""
        if self.sort_rows:
            return "significant"
        return self.row_order or default
