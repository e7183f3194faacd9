"""Promoting: versions that an environment made become production's, with the same names, by the ordinary write loop.

Of the environment, only bytes and identities are taken. What its log says of them (statistics, digests, counts) is
made again from the bytes, and the identity has to follow from that: who may write to an environment alone cannot make
production believe anything. Where both are written by the same role, the rows need not be read again (`Verify`).
"""

import hashlib
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dagster_versioned.delta.actions import Add, DeletionVector
from dagster_versioned.delta.files.arrow_memory import arrow_reader
from dagster_versioned.delta.files.deletion_vectors import NamedVectors, deleted_rows, named_by_content
from dagster_versioned.delta.files.statistics import from_parquet_metadata, num_records, parse
from dagster_versioned.delta.schema.types import StructType, parse_schema, schema_to_arrow
from dagster_versioned.engines.arrow.engine import ArrowEngine
from dagster_versioned.engines.conform import conform_all
from dagster_versioned.engines.parquet_part import ORDINAL_ENTRY, PARTITION_ENTRY, nan_columns
from dagster_versioned.engines.parts import MEBIBYTE, ROW_GROUP_ROWS, Part, RowsSummary, StagedParts
from dagster_versioned.engines.sql import Names
from dagster_versioned.engines.staging import PROMOTERS, Staging
from dagster_versioned.errors import IntegrityError, InvalidInput, ObjectNotFound, VersionedError
from dagster_versioned.identity.digest import BagDigest, RowsDigest, SequenceDigest, digest_kind
from dagster_versioned.identity.version import RowOrder, data_sha
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.tables.history import Version
from dagster_versioned.tables.parts import named_sha, part_key, vector_sha_of
from dagster_versioned.tables.write.addition import without_rows
from dagster_versioned.tables.write.pending import HeadParts, PendingWrite, VersionDescription

Verify = Literal["rows", "bytes"]
"""What of a version is made again before it is production's: all that is said of its rows; or its identity, from the
SHA-256 of its parts, and the rest is believed."""

_REMOTE_PIECE_BYTES = 8 * MEBIBYTE
_UNREADABLE = (pa.ArrowException, OSError, UnicodeDecodeError, KeyError, IndexError, ValueError, InvalidInput)
"""What comes of bytes that are no part of ours."""


class LeftToProduction(VersionedError):
    """Why a version cannot become production's as it is; continues "it is left: …". Nothing of it was committed."""


class PromotedWrite(PendingWrite):
    """One version of an environment on its way to production."""

    stands_alone = True

    def __init__(self, version: Version, copied: "CopiedParts", environment: str | None) -> None:
        description, written = VersionDescription.of(version.identity), copied.written
        contents, row_order = written.contents, copied.row_order
        super().__init__(version.partition, description, contents, row_order, written, lambda: written)
        self.made_by = version.facts.run
        self.refreshed = version.facts.refreshed
        self.promoted_from = environment
        self.vector_files = copied.vectors.files
        self._vectors = copied.vectors.vectors

    def onto(self, base: HeadParts) -> tuple[Add, ...]:
        """No part of the head is kept, and none of an equal version takes the place of these."""
        return ()

    def marked(self, add: Add) -> Add:
        """With the deletion vector that it has in the environment."""
        rows = num_records(add.stats) or 0
        return without_rows(add, self._vectors.get(add.key), rows)


@dataclass(frozen=True)
class CopiedParts:
    """The parts of a version in a staging folder, and which of their rows it has not."""

    written: StagedParts
    row_order: RowOrder
    vectors: NamedVectors


def restaged(
    version: Version,
    adds: Sequence[Add],
    store: ObjectStore,
    staging: Staging,
    constraints: Mapping[str, str],
    verify: Verify = "rows",
) -> CopiedParts:
    """The parts of a version, copied from an environment's table to a staging folder of production, and what they say.

    Every byte is read: its SHA-256 must be its name's, its footer gives partition and ordinal, and the identity must
    follow. With ``verify`` "rows", the rows give digest, counts and statistics, and what footers say of row groups is
    compared with them. With "bytes", footers and the log are believed. Raises `IntegrityError` naming what is wrong,
    and `LeftToProduction` where rows do not satisfy the constraints.
    """
    identity = version.identity
    schema = parse_schema(version.entry.to_json()["identity"]["schema"])
    row_order: RowOrder = "ignored" if digest_kind(version.facts.digest) == BagDigest.kind else "significant"
    folder = staging.directory()
    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(PROMOTERS, thread_name_prefix="copy") as pool:
        copied = list(pool.map(partial(_copied, version, store, folder), adds))
    copies = sorted(copied, key=lambda part: part.ordinal)
    if len({part.ordinal for part in copies}) < len(copies):
        raise _wrong(version, store, "has two parts of one ordinal")
    deleted = _deleted(version, store, adds, copies)
    vectors = named_by_content({part_key(part): deleted[part.sha256] for part in copies if part.sha256 in deleted})
    lines = [" ".join((part.sha256, *(sha for _, sha in _vector(vectors, part)))) for part in copies]
    found = data_sha(lines, row_order)
    nrow = sum(part.num_records - len(deleted.get(part.sha256, ())) for part in copies)
    if (found, nrow) != (identity.data_sha, identity.nrow) or version.metadata_sha != identity.metadata_sha():
        raise _wrong(
            version,
            store,
            f"says data_sha {identity.data_sha} and {identity.nrow} rows of bytes with {found} and {nrow}",
        )
    if verify == "bytes":
        summary = _stated(version, schema, store)
        stated = {named_sha(add.key): add.stats for add in adds}
        parts = [_believed(version, part, schema, stated[part.sha256], store, constraints, deleted) for part in copies]
    else:
        summary, parts = _read(version, copies, schema, row_order, store, constraints, deleted)
    return CopiedParts(StagedParts(summary, tuple(parts)), row_order, vectors)


def _vector(vectors: NamedVectors, part: Part) -> Iterator[tuple[DeletionVector, str]]:
    """The deletion vector of a part, if it has one, with its SHA-256."""
    if (named := vectors.vectors.get(part_key(part))) is not None:
        yield named


def _deleted(
    version: Version, store: ObjectStore, adds: Sequence[Add], copies: Sequence[Part]
) -> Mapping[str, NDArray[np.int64]]:
    """The positions of the rows of copied parts, by SHA-256, that the version has not."""
    rows = {part.sha256: part.num_records for part in copies}
    deleted: dict[str, NDArray[np.int64]] = {}
    for add in adds:
        if (vector := add.deletion_vector) is not None:
            name = str(named_sha(add.key))
            try:
                deleted[name] = deleted_rows(store, vector, rows[name], add.key, vector_sha_of(add))
            except VersionedError as error:
                raise _wrong(version, store, f"has a deletion vector that cannot be read ({error})") from error
    return deleted


def _live(batches: Iterable[pa.RecordBatch], deleted: NDArray[np.int64] | None, start: int) -> Iterator[pa.RecordBatch]:
    """Batches of a part, the first of which begins with row ``start``, without the rows that are deleted."""
    for batch in batches:
        if deleted is not None:
            within = deleted[slice(*np.searchsorted(deleted, (start, start + batch.num_rows)))] - start
            start += batch.num_rows
            if len(within):
                stays = np.ones(batch.num_rows, np.bool_)
                stays[within] = False
                yield batch.filter(cast("Any", pa.array(stays)))
                continue
        yield batch


def _lacks_vector_sha(add: Add) -> bool:
    return add.deletion_vector is not None and vector_sha_of(add) is None


def _copied(version: Version, store: ObjectStore, folder: Path, add: Add) -> Part:
    """A part of ours in the staging folder, with the bytes that its name says; its statistics are still to be made."""
    name = named_sha(add.key)
    if name is None or _lacks_vector_sha(add) or add.partition_values:
        raise LeftToProduction("it has partition columns, or files that another program wrote")
    path = folder / f"{name}.parquet"
    try:
        sha, size = _copy(store, add.key, path)
    except ObjectNotFound as error:
        raise _wrong(version, store, f"lacks the part {add.key}") from error
    if sha != name:
        raise _wrong(version, store, f"has the part {add.key} with bytes of the SHA-256 {sha}")
    try:
        metadata = pq.read_metadata(path)
        entries = {key.decode(): value.decode() for key, value in (metadata.metadata or {}).items()}
        ordinal = int(entries[ORDINAL_ENTRY])
    except _UNREADABLE as error:
        raise _wrong(version, store, f"has the part {add.key}, which is none of ours ({error})") from error
    if entries.get(PARTITION_ENTRY) != version.partition:
        raise _wrong(version, store, f"has the part {add.key} of the partition {entries.get(PARTITION_ENTRY)!r}")
    return Part(sha, size, metadata.num_rows, ordinal, {}, path)


def _copy(store: ObjectStore, key: str, path: Path) -> tuple[str, int]:
    """The SHA-256 and the number of the bytes that are copied to a new file; each is read once.

    A piece is hashed while it is written. Nothing is flushed to the disk, which giving the part its name does.
    """
    digest, size, hashed = hashlib.sha256(), 0, None
    with path.open("wb", buffering=0) as file, ThreadPoolExecutor(1, thread_name_prefix="hash") as hashing:
        for piece in _pieces(store, key):
            hashed = hashing.submit(digest.update, piece)
            rest = piece
            while rest:
                rest = rest[file.write(rest) :]
            size += len(piece)
            hashed.result()  # the memory of the piece is used again
    return digest.hexdigest(), size


def _pieces(store: ObjectStore, key: str) -> Iterator[memoryview]:
    """An object's bytes, each piece until the next one is asked for: of a file in one memory, which stays in caches."""
    source = store.local_path(key)
    if source is None:
        start = 0
        while piece := store.get_range(key, start, _REMOTE_PIECE_BYTES):
            yield memoryview(piece)
            start += len(piece)
            if len(piece) < _REMOTE_PIECE_BYTES:
                return
        return
    try:
        with source.open("rb", buffering=0) as file:
            memory = memoryview(bytearray(MEBIBYTE))
            while length := file.readinto(memory):
                yield memory[:length]
    except FileNotFoundError as error:
        raise ObjectNotFound(f"{source} is not there.") from error


def _read(
    version: Version,
    copies: Sequence[Part],
    schema: StructType,
    row_order: RowOrder,
    store: ObjectStore,
    constraints: Mapping[str, str],
    deleted: Mapping[str, NDArray[np.int64]],
) -> tuple[RowsSummary, list[Part]]:
    """What the rows of copied parts say, decoded once: two row groups are in memory, of which one is decoded."""
    arrow = schema_to_arrow(schema)
    digest = BagDigest(arrow) if row_order == "ignored" else SequenceDigest(arrow)
    null_counts, nrow, parts = [0] * len(schema.fields), 0, list[Part]()

    def summarize(batches: Sequence[pa.RecordBatch]) -> None:
        for batch in batches:
            digest.update(batch)
            _require(batch, constraints)

    with (
        ThreadPoolExecutor(1, thread_name_prefix="digest") as digesting,
        ThreadPoolExecutor(1, thread_name_prefix="footer") as comparing,
    ):
        running: list[Future[None]] = []
        for part in copies:
            path, nans, start = Path(str(part.source)), set[str](), 0
            with _decoding(version, part, store), pq.ParquetFile(path) as parquet:
                from_parquet_metadata(parquet.metadata, schema)  # raises where its columns are not the schema's
                for at in range(parquet.num_row_groups):
                    table = parquet.read_row_group(at).combine_chunks()
                    batches = list(conform_all(table.to_batches(), schema))
                    rows = pa.Table.from_batches(batches, arrow)
                    live = list(_live(batches, deleted.get(part.sha256), start))
                    start += rows.num_rows
                    for future in running:
                        future.result()
                    stated = parquet.metadata.row_group(at)
                    running = [digesting.submit(summarize, live), comparing.submit(_require_true, stated, table)]
                    nrow += sum(batch.num_rows for batch in live)
                    columns = pa.Table.from_batches(live, arrow).columns
                    null_counts = [n + column.null_count for n, column in zip(null_counts, columns, strict=True)]
                    nans |= nan_columns(rows)
                for future in running:
                    future.result()
                statistics = from_parquet_metadata(parquet.metadata, schema, nans)
            parts.append(replace(part, statistics=statistics))
    if nrow != version.identity.nrow:
        raise _wrong(version, store, f"says {version.identity.nrow} rows of parts with {nrow}")
    return RowsSummary(schema, nrow, tuple(null_counts), digest.finish()), parts


@contextmanager
def _decoding(version: Version, part: Part, store: ObjectStore) -> Generator[None]:
    try:
        yield
    except _UNREADABLE as error:
        raise _wrong(version, store, f"has the unreadable part {part.sha256}.parquet ({error})") from error


def _require_true(stated: pq.RowGroupMetaData, rows: pa.Table) -> None:
    """Raise `ValueError` where a footer says of a row group what its rows are not; bounds may be wide.

    Statistics of row groups are all that is looked at: what a part says of its pages is not.
    """
    if stated.num_rows != rows.num_rows:
        raise ValueError(f"its footer counts {stated.num_rows} rows of {rows.num_rows} in a row group")
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, row_group_size=max(rows.num_rows, 1), compression="none", use_dictionary=False)
    again = pq.read_metadata(arrow_reader(sink.getvalue()))
    for position in range(stated.num_columns if again.num_row_groups else 0):
        column: Any = stated.column(position)
        true: Any = again.row_group(0).column(position)
        if not _holds(column.statistics, true.statistics):
            raise ValueError(f"its footer does not tell the truth about {column.path_in_schema}")


def _holds(stated: Any, true: Any) -> bool:
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


def _stated(version: Version, schema: StructType, store: ObjectStore) -> RowsSummary:
    """What the environment's log says of the rows, as far as that can be."""
    nrow, nulls = version.identity.nrow, tuple(version.facts.null_counts)
    try:
        digest = RowsDigest.parse(version.facts.digest)
    except InvalidInput as error:
        raise _wrong(version, store, f"has no digest ({error})") from error
    if digest.nrow != nrow or len(nulls) != len(schema.fields) or not all(0 <= count <= nrow for count in nulls):
        raise _wrong(version, store, f"says of {nrow} rows the digest {digest.text} and the null counts {list(nulls)}")
    return RowsSummary(schema, nrow, nulls, digest)


def _believed(
    version: Version,
    part: Part,
    schema: StructType,
    stated: str | None,
    store: ObjectStore,
    constraints: Mapping[str, str],
    deleted: Mapping[str, NDArray[np.int64]],
) -> Part:
    """A copied part with the statistics of its footer; of NaN, which no footer knows, those of the log.

    Of its rows, the columns that constraints name are read.
    """
    path = Path(str(part.source))
    with _decoding(version, part, store), pq.ParquetFile(path) as parquet:
        bounds = parse(stated).get("maxValues") if stated is not None else None
        nans = set(_lacking(from_parquet_metadata(parquet.metadata, schema, ())["maxValues"], bounds))
        statistics = from_parquet_metadata(parquet.metadata, schema, nans)
        if constraints:
            names = Names({"rows": schema})
            needed = {name for sql in constraints.values() for name in names.resolve(sql).of("rows")}
            read = schema.select([name for name in schema.names if name in needed] or schema.names)
            batches = conform_all(parquet.iter_batches(ROW_GROUP_ROWS, columns=list(read.names)), read)
            for batch in _live(batches, deleted.get(part.sha256), 0):
                _require(batch, constraints)
    return replace(part, statistics=statistics)


def _lacking(bounds: Mapping[str, Any], stated: object, path: str = "") -> Iterator[str]:
    """Dotted paths of the columns that have a bound, and none as it is stated."""
    for name, bound in bounds.items():
        given = cast("Mapping[str, object]", stated).get(name) if isinstance(stated, Mapping) else None
        if isinstance(bound, Mapping):
            yield from _lacking(cast("Mapping[str, Any]", bound), given, f"{path}{name}.")
        elif given is None:
            yield f"{path}{name}"


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
