"""Promoting: versions that an environment made become production's, with the same names, by the ordinary write loop.

Of the environment, only bytes and identities are taken. What its log says of them (statistics, digests, counts) is
made again from the bytes, and the identity has to follow from that: who may write to an environment alone cannot make
production believe anything.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dagster_versioned.delta.actions import Add
from dagster_versioned.delta.files.arrow_memory import arrow_reader
from dagster_versioned.delta.files.statistics import from_parquet_metadata
from dagster_versioned.delta.schema.types import parse_schema, schema_to_arrow
from dagster_versioned.engines.arrow.engine import ArrowEngine
from dagster_versioned.engines.conform import conform_all
from dagster_versioned.engines.parquet_part import ORDINAL_ENTRY, PARTITION_ENTRY, nan_columns
from dagster_versioned.engines.parts import ROW_GROUP_ROWS, Part, RowsSummary, StagedParts
from dagster_versioned.engines.staging import Staging
from dagster_versioned.errors import IntegrityError, InvalidInput, ObjectNotFound, VersionedError
from dagster_versioned.identity.digest import BagDigest, RowsDigest, SequenceDigest, digest_kind
from dagster_versioned.identity.version import RowOrder, data_sha
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.tables.history import Version
from dagster_versioned.tables.parts import named_sha
from dagster_versioned.tables.write.pending import HeadParts, PendingWrite, VersionDescription
from dagster_versioned.tables.write.write import TableWrite


class LeftToProduction(VersionedError):
    """Why a version cannot become production's as it is; continues "it is left: …". Nothing of it was committed."""


class PromotedWrite(PendingWrite):
    """One version of an environment on its way to production."""

    def __init__(
        self, version: Version, contents: RowsSummary, row_order: RowOrder, written: StagedParts, environment: str
    ) -> None:
        identity = version.identity
        description = VersionDescription(
            asset_key=tuple(identity.asset_key),
            table_type=identity.table_type,
            parents=tuple(identity.parents),
            source_lineage=tuple(identity.source_lineage),
            code_version=identity.code_version,
            message=identity.message,
            custom=identity.custom,
        )
        super().__init__(version.partition, description, contents, row_order, written, lambda: written)
        self.made_by = version.facts.run
        self.promoted_from = environment

    def onto(self, base: HeadParts) -> tuple[Add, ...]:
        """No part of the head is kept, and none of an equal version takes the place of these."""
        return ()


class Promotion(TableWrite):
    """The draft that makes versions of an environment production's: all of one table in one commit."""

    operation = "PROMOTE"


def restaged(
    version: Version, adds: Sequence[Add], store: ObjectStore, staging: Staging, constraints: Mapping[str, str]
) -> tuple[RowsSummary, RowOrder, StagedParts]:
    """The parts of a version, copied from an environment's table to a staging folder of production, and what they say.

    Every byte is read: its SHA-256 must be its name's, its rows give the digest, counts and statistics, its footer
    partition and ordinal, and the identity must follow from that. Raises `IntegrityError` naming what does not, and
    `LeftToProduction` where rows do not satisfy the constraints.
    """
    identity = version.identity
    schema = parse_schema(version.entry.to_json()["identity"]["schema"])
    row_order: RowOrder = "ignored" if digest_kind(version.facts.digest) == BagDigest.kind else "significant"
    arrow = schema_to_arrow(schema)
    digest = BagDigest(arrow) if row_order == "ignored" else SequenceDigest(arrow)
    null_counts = [0] * len(schema.fields)
    copies = sorted((_copied(version, add, store, staging) for add in adds), key=lambda part: part.ordinal)
    if len({part.ordinal for part in copies}) < len(copies):
        raise _wrong(version, store, "has two parts of one ordinal")
    nrow, parts = 0, list[Part]()
    for part in copies:
        nans: set[str] = set()
        try:
            with pq.ParquetFile(Path(str(part.source))) as parquet:
                for batch in conform_all(parquet.iter_batches(batch_size=ROW_GROUP_ROWS), schema):
                    digest.update(batch)
                    nrow += batch.num_rows
                    _require(batch, constraints)
                    null_counts = [count + batch.column(i).null_count for i, count in enumerate(null_counts)]
                    nans |= nan_columns(pa.Table.from_batches([batch]))
                statistics = from_parquet_metadata(parquet.metadata, schema, nans)
        except (pa.ArrowException, OSError, InvalidInput) as error:
            raise _wrong(version, store, f"has the unreadable part {part.sha256}.parquet ({error})") from error
        parts.append(replace(part, statistics=statistics))
    rows: RowsDigest = digest.finish()
    summary = RowsSummary(schema, nrow, tuple(null_counts), rows)
    found = data_sha([part.sha256 for part in parts], row_order)
    if (found, nrow) != (identity.data_sha, identity.nrow) or version.metadata_sha != identity.metadata_sha():
        raise _wrong(
            version,
            store,
            f"says data_sha {identity.data_sha} and {identity.nrow} rows of bytes with {found} and {nrow}",
        )
    return summary, row_order, StagedParts(summary, tuple(parts))


def _copied(version: Version, add: Add, store: ObjectStore, staging: Staging) -> Part:
    """A part of ours in the staging folder, with the bytes that its name says; its statistics are still to be made."""
    name = named_sha(add.key)
    if name is None or add.deletion_vector is not None or add.partition_values:
        raise LeftToProduction("it has deletion vectors, partition columns, or files that another program wrote")
    try:
        data = store.get(add.key)
    except ObjectNotFound as error:
        raise _wrong(version, store, f"lacks the part {add.key}") from error
    sha = hashlib.sha256(data).hexdigest()
    if sha != name:
        raise _wrong(version, store, f"has the part {add.key} with bytes of the SHA-256 {sha}")
    folder = staging.directory()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{sha}.parquet"
    path.write_bytes(data)
    try:
        metadata = pq.read_metadata(path)
        entries = {key.decode(): value.decode() for key, value in (metadata.metadata or {}).items()}
        ordinal = int(entries[ORDINAL_ENTRY])
        _require_true_footer(path)
    except (pa.ArrowException, OSError, UnicodeDecodeError, KeyError, ValueError) as error:
        raise _wrong(version, store, f"has the part {add.key}, which is none of ours ({error})") from error
    if entries.get(PARTITION_ENTRY) != version.partition:
        raise _wrong(version, store, f"has the part {add.key} of the partition {entries.get(PARTITION_ENTRY)!r}")
    return Part(sha, len(data), metadata.num_rows, ordinal, {}, path)


def _require_true_footer(path: Path) -> None:
    """Raise `ValueError` where the footer says of a row group what its rows are not: by it, readers pass over rows.

    Bounds may be wide. The index of pages, which says the same once more of fewer rows, is not looked at.
    """
    with pq.ParquetFile(path) as parquet:
        for at in range(parquet.num_row_groups):
            stated, rows, sink = parquet.metadata.row_group(at), parquet.read_row_group(at), pa.BufferOutputStream()
            pq.write_table(rows, sink, row_group_size=max(rows.num_rows, 1), compression="none", use_dictionary=False)
            again = pq.read_metadata(arrow_reader(sink.getvalue()))
            true = again.row_group(0) if again.num_row_groups else None
            if stated.num_rows != rows.num_rows:
                raise ValueError(f"its footer counts {stated.num_rows} rows of {rows.num_rows} in row group {at}")
            for position in range(stated.num_columns if true is not None else 0):
                column: Any = stated.column(position)
                rightly: Any = true.column(position).statistics if true is not None else None
                if not _bounds(column.statistics, rightly):
                    raise ValueError(f"its footer does not tell the truth about {column.path_in_schema}")


def _bounds(stated: Any, true: Any) -> bool:
    """Whether what a footer says of a column holds of values of which the other statistics are true."""
    if stated is None or true is None:
        return stated is None
    if stated.physical_type != true.physical_type or (stated.has_null_count and stated.null_count != true.null_count):
        return False
    if not (stated.has_min_max and true.has_min_max):
        return True
    if stated.physical_type in ("INT32", "INT64"):  # dates and times beyond what Python has
        return stated.min_raw <= true.min_raw and true.max_raw <= stated.max_raw
    return stated.min <= true.min and true.max <= stated.max


def _require(batch: pa.RecordBatch, constraints: Mapping[str, str]) -> None:
    engine, rows = ArrowEngine(), pa.Table.from_batches([batch])
    for name, sql in constraints.items():
        if count := engine.violations(rows, sql):
            raise LeftToProduction(f"the constraint {name!r} ({sql}) is false or null for {count} of its rows")


def _wrong(version: Version, store: ObjectStore, how: str) -> IntegrityError:
    return IntegrityError(
        f"Version {version.short} of {store.uri} {how}. Nothing of its table was promoted, and production is as it "
        "was. Run verify in the environment; drop it if somebody forged it."
    )
