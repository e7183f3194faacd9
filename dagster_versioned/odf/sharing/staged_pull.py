"""What a pull copies before it is part of the table: blocks, files and slices, each checked as it arrives."""

import hashlib
import shutil
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dagster_versioned.delta.files.statistics import from_parquet_metadata
from dagster_versioned.delta.schema.types import StructType, schema_to_arrow
from dagster_versioned.engines.conform import conform
from dagster_versioned.engines.parquet_part import nan_columns
from dagster_versioned.engines.parts import Part, RowsSummary
from dagster_versioned.engines.upsert import nothing
from dagster_versioned.errors import ChainCorrupt, IntegrityError, InvalidInput, ObjectNotFound, UnsupportedFeature
from dagster_versioned.identity.digest import BagDigest
from dagster_versioned.odf.blocks.block import Block, block_hash, decode_block
from dagster_versioned.odf.blocks.events import DataSlice
from dagster_versioned.odf.blocks.validity import ChainState
from dagster_versioned.odf.event_slice import ChainEntry, EventSlice, SliceFile
from dagster_versioned.odf.event_sql import EventSchema, Operation
from dagster_versioned.odf.identity.multihash import Multihash
from dagster_versioned.odf.sharing.chains import Step
from dagster_versioned.odf.sharing.remote import CHECKPOINTS, RemoteDataset, StoredFile
from dagster_versioned.odf.slice_file import table_columns
from dagster_versioned.odf.slice_records import SliceRecords, SystemTimes
from dagster_versioned.storage.object_store import ObjectStore
from dagster_versioned.storage.temporary import TemporaryFolder
from dagster_versioned.storage.transfer import PIECE_BYTES
from dagster_versioned.tables.chain_head import BLOCKS, ChainHead
from dagster_versioned.tables.parts import SLICES

PULLED = "_staging/pull/"
"""Where what was copied waits until all of it is: a pull that was interrupted goes on from here."""
THREADS = 8

Progress = Callable[[int, int], None]
"""Called with the bytes that are copied, of how many."""


class StagedPull:
    """What a pull has copied so far, each piece whole and checked; below the table's folder, and no part of it yet."""

    def __init__(self, store: ObjectStore, remote: RemoteDataset, max_bytes: int | None) -> None:
        self._store = store
        self._remote = remote
        self._max_bytes = max_bytes
        self._room = free_bytes(store)
        self._taken = 0

    def fetched_block(self, name: Multihash) -> tuple[bytes, Block]:
        """A block, from an earlier attempt where that has it. Raises `InvalidInput` where it is too much."""
        try:
            data = self.block(name)
        except (ObjectNotFound, ChainCorrupt):
            data, block = self._remote.block(name)
            self._take(len(data))
            self._store.put(f"{PULLED}{BLOCKS}{name}", data, durability="later")
            return data, block
        return data, decode_block(data)

    def block(self, name: Multihash) -> bytes:
        """A block that was copied. Raises `ObjectNotFound`, `ChainCorrupt`."""
        data = self._store.get(f"{PULLED}{BLOCKS}{name}")
        if block_hash(data) != name:  # such as after a power failure
            raise ChainCorrupt(f"{PULLED}{BLOCKS}{name} in {self._store.uri} was altered. Pull again.")
        return data

    def fetch(self, files: Sequence[StoredFile], progress: Progress) -> int:
        """Copy files, those of an earlier attempt excepted; returns how many bytes. Raises `InvalidInput`."""
        missing = [file for file in files if not self.has(file)]
        self._take(sum(file.size for file in missing))
        return copy_files(missing, lambda file: self.put(file, self._remote.pieces(file)), progress)

    def put(self, file: StoredFile, pieces: Iterator[bytes]) -> None:
        """Keep a file, whose pieces end only if they are what its hash says."""
        self._store.put_chunks(f"{PULLED}{file.key}", pieces)

    def has(self, file: StoredFile) -> bool:
        """Whether an earlier attempt copied the file, and it is what it was then."""
        if not holds(self._store, file, PULLED):
            return False
        try:
            for _ in RemoteDataset(self._store.subfolder(PULLED.rstrip("/"))).pieces(file):
                pass
        except (IntegrityError, ObjectNotFound):
            return False
        return True

    def _take(self, size: int) -> None:
        """Raise `InvalidInput` where a pull would copy more than is allowed, or than the disk has room for."""
        self._taken += size
        limits = {"are allowed": self._max_bytes, "are free on the disk": self._room}
        for what, most in limits.items():
            if most is not None and self._taken > most:
                raise InvalidInput(
                    f"{self._remote.store.uri} has {self._taken} bytes that are new, or more, and {most} {what}. "
                    "Nothing was pulled. Allow more, or make room, if you trust the source with your disk."
                )

    def slice_of(self, group: Sequence[Step], times: SystemTimes) -> EventSlice:
        """The events of one commit: at most one slice, and the blocks up to it."""
        block, state = group[-1]
        columns = state.arrow_schema()
        if columns is None:
            raise InvalidInput(
                f"The dataset {state.seed.dataset_id} has no columns yet. Nothing was pulled. Pull it once it has data."
            )
        data = block.new_data
        file = None if data is None else self._read(data, columns, state, times)
        before = group[0][0].prev_block_hash
        return EventSlice(
            base=None if before is None else str(before),
            file=file,
            contents=nothing(table_schema(columns, state)) if file is None else file.contents,
            entry=ChainEntry(
                {str(step.head): self.block(step.head) for _, step in group},
                ChainHead(str(state.head), state.sequence_number, str(state.seed.dataset_id)),
            ),
        )

    def _read(self, data: DataSlice, stated: pa.Schema, state: ChainState, times: SystemTimes) -> SliceFile:
        staged = f"{PULLED}{SLICES}{data.physical_hash}"
        try:
            return pulled_slice(self._store, staged, data, stated, state, times)
        except IntegrityError as error:
            raise IntegrityError(f"{SLICES}{data.physical_hash}: {error} Nothing of it was added.") from None
        except FileNotFoundError:
            raise ObjectNotFound(
                f"{staged} in {self._store.uri} is gone. Nothing of it was added. Pull again."
            ) from None

    def keep_checkpoints(self, files: Iterable[StoredFile]) -> None:
        """Put the checkpoints among files where readers look for them."""
        for file in files:
            if file.key.startswith(CHECKPOINTS):
                self._store.copy(f"{PULLED}{file.key}", file.key)

    def discard(self) -> None:
        """Delete what was copied, once it is part of the table."""
        self._store.delete([info.key for info in self._store.list(PULLED)])


def pulled_slice(
    store: ObjectStore, key: str, data_slice: DataSlice, stated: pa.Schema, state: ChainState, times: SystemTimes
) -> SliceFile:
    """The slice under a key of a store.

    Raises `IntegrityError` where it has other columns than the chain, which has them as ``stated``, or other records
    than its block says, or earlier system times than ``times``, those of the slices before it, which it goes on with;
    `UnsupportedFeature` for columns that no history here can have, and `UnsupportedType` for those whose records have
    no hash.
    """
    schema = table_schema(stated, state)
    columns = state.columns
    with local_file(store, key) as path:
        try:
            parquet = pq.ParquetFile(path)
            stored = table_columns(parquet.schema_arrow, columns)
            from_parquet_metadata(parquet.metadata, stored)  # raises where its columns are others
        except FileNotFoundError:
            raise
        except (pa.ArrowException, OSError, InvalidInput) as error:
            raise _unreadable(error) from None
        if stored != schema:
            raise IntegrityError(f"it has the columns {_shown(stored)}, and the chain says {_shown(schema)}.")
        digest = BagDigest(schema_to_arrow(stored))
        nulls, nans = np.zeros(len(stored.fields), np.int64), set[str]()
        operations = np.zeros(len(Operation), np.int64)
        records = SliceRecords(data_slice, stated, columns)
        for batch in _batches(parquet):
            records.update(batch)
            rows = conform(batch, stored)
            digest.update(rows)
            nans |= nan_columns(pa.Table.from_batches([rows]))
            nulls += [rows.column(index).null_count for index in range(rows.num_columns)]
            kinds = rows.column(columns.operation_type).to_numpy(zero_copy_only=False)
            operations += np.bincount(kinds.astype(np.int64), minlength=len(Operation))
        records.finish()
        times.follow(records.times)
        appended, retracted, corrected, _ = operations.tolist()
        rows_digest = digest.finish()
        statistics = from_parquet_metadata(parquet.metadata, stored, nans)
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return SliceFile(
            part=Part(
                sha256, data_slice.size, rows_digest.nrow, 0, statistics, key, key=f"{SLICES}{data_slice.physical_hash}"
            ),
            contents=RowsSummary(stored, rows_digest.nrow, tuple(nulls.tolist()), rows_digest),
            inserted=appended,
            updated=corrected,
            removed=retracted,
        )


def _batches(parquet: pq.ParquetFile) -> Iterator[pa.RecordBatch]:
    """Its rows. Raises `IntegrityError` for pages that are none: what is pushed was not compared with its hash yet."""
    try:
        yield from parquet.iter_batches()
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(error) from None


def _unreadable(error: Exception) -> IntegrityError:
    return IntegrityError(f"it cannot be read as a slice of events ({error}).")


def _shown(schema: StructType) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema.fields)[:500]


def table_schema(columns: pa.Schema, state: ChainState) -> StructType:
    """The columns of a table that holds the events of a chain. Raises `UnsupportedFeature`."""
    given = state.columns
    try:
        schema = table_columns(columns, given)
        EventSchema.parse(schema, given)
        for name, kind in zip(given.given, ("long", "integer", "timestamp"), strict=True):
            if schema.field(name).type != kind:
                raise InvalidInput(f"The column {name!r} is of the type {schema.field(name).type}, not {kind}.")
    except InvalidInput as error:
        raise UnsupportedFeature(
            f"The dataset {state.seed.dataset_id} has columns that no history of events here can have. Nothing was "
            f"pulled. {error}"
        ) from None
    return schema


def copy_files(files: Sequence[StoredFile], copy: Callable[[StoredFile], object], progress: Progress) -> int:
    """Copy files, several at a time; the first failure ends it. Returns how many bytes they have."""
    total, done = sum(file.size for file in files), 0
    with ThreadPoolExecutor(THREADS, thread_name_prefix="transfer") as pool:
        running = {pool.submit(copy, file): file for file in files}
        try:
            for ended in as_completed(running):
                ended.result()
                done += running[ended].size
                progress(done, total)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    return total


def holds(store: ObjectStore, file: StoredFile, folder: str = "") -> bool:
    try:
        return store.head(f"{folder}{file.key}").size == file.size
    except ObjectNotFound:
        return False


def free_bytes(store: ObjectStore) -> int | None:
    """How much room there is on the disk of a local store."""
    path = store.local_path("x")
    if path is None:
        return None
    return shutil.disk_usage(next(folder for folder in path.parents if folder.exists())).free


@contextmanager
def local_file(store: ObjectStore, key: str) -> Generator[Path]:
    """A file of this machine with an object's bytes."""
    path = store.local_path(key)
    if path is not None:
        yield path
        return
    with TemporaryFolder() as folder:
        path = folder / "slice"
        with path.open("wb") as file:
            for start in range(0, store.head(key).size, PIECE_BYTES):
                file.write(store.get_range(key, start, PIECE_BYTES))
        yield path
