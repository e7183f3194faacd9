"""Whether a dataset's files are what its blocks say of them: their bytes, and the records of slices.

Source: seed 002 ("Verifiability").
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from dagster_versioned.delta.files.arrow_memory import arrow_reader
from dagster_versioned.delta.log.snapshot import Snapshot
from dagster_versioned.delta.schema.types import DataType, StructField
from dagster_versioned.errors import (
    ChainCorrupt,
    IntegrityError,
    InvalidInput,
    ObjectNotFound,
    StoreUnavailable,
    UnsupportedType,
    VersionedError,
)
from dagster_versioned.identity.digest import fresh_key, row_lanes
from dagster_versioned.odf.blocks.block_iterator import Link
from dagster_versioned.odf.blocks.data_schema_arrow import arrow_schema
from dagster_versioned.odf.blocks.events import DataSlice, SetDataSchema
from dagster_versioned.odf.blocks.validity import ChainState
from dagster_versioned.odf.event_sql import Operation
from dagster_versioned.odf.identity.arrow0 import Arrow0
from dagster_versioned.odf.identity.multihash import HashAlgorithm, Multihash
from dagster_versioned.odf.sharing.remote import RemoteDataset, StoredFile, files_of
from dagster_versioned.odf.slice_file import table_columns
from dagster_versioned.odf.slice_records import SliceRecords, SystemTimes
from dagster_versioned.odf.verification.report import ChainFinding, Subject
from dagster_versioned.storage.temporary import TemporaryFolder
from dagster_versioned.tables.event_history import EventColumns
from dagster_versioned.tables.parts import SLICES

Progress = Callable[[int, int], None]
"""Called with the bytes that were checked, of how many of this dataset."""

_READERS: Final = 4
_MOST_IN_MEMORY: Final = 256 * 2**20

Batches = Callable[[], Iterator[pa.RecordBatch]]
"""Reads the records of a slice."""

_TAKES_BACK: Final = (Operation.RETRACT, Operation.CORRECT_FROM)


def finding_of(subject: Subject, link: Link, key: str, problem: str, *, records_match: bool = False) -> ChainFinding:
    """What was found of a block, or of a file of it."""
    return ChainFinding(subject, link.name, link.block.sequence_number, key, problem, records_match)


def files_in(link: Link) -> list[StoredFile]:
    """The files that a block names."""
    try:
        return files_of(link.block)
    except ChainCorrupt:
        return []  # a hash of another kind, which validation has found


def check_files(
    dataset: RemoteDataset,
    files: Sequence[tuple[Link, StoredFile]],
    schemas: Mapping[Multihash, SetDataSchema],
    states: Mapping[Multihash, ChainState],
    progress: Progress,
) -> tuple[list[ChainFinding], list[str]]:
    """Compare every slice and checkpoint with what its block says of it; also returns what could not be compared.

    The last block comes first. The records of a slice are compared where the chain is valid up to its block.
    """
    done, total = 0, sum(file.size for _, file in files)
    findings: list[ChainFinding] = []
    unchecked: list[str] = []
    slices: list[tuple[Link, StoredFile, tuple[int, int], bool]] = []

    def check(entry: tuple[Link, StoredFile]) -> _CheckedFiles:
        link, file = entry
        return _check_file(dataset, file, slice_in(link, file), schemas.get(link.name), states.get(link.name))

    with ThreadPoolExecutor(_READERS) as readers:
        for (link, file), checked in zip(files, readers.map(check, files), strict=True):
            done += file.size
            progress(done, total)
            if checked.unchecked is not None:
                unchecked.append(f"the records of {file.key}: {checked.unchecked}")
            if checked.problem is not None:
                subject: Subject = "checkpoint" if slice_in(link, file) is None else "slice"
                match = checked.records_match
                findings.append(finding_of(subject, link, file.key, checked.problem, records_match=match))
            elif checked.times is not None:
                slices.append((link, file, checked.times, checked.takes_back))
    slices.reverse()
    findings += _check_times((link, file, own) for link, file, own, _ in slices)
    state = states.get(slices[-1][0].name) if slices else None
    if state is not None and len(slices) == sum(slice_in(link, file) is not None for link, file in files):
        findings += _check_taken_back(dataset, [(link, file, gone) for link, file, _, gone in slices], state)
    return findings, unchecked


def _check_times(slices: Iterable[tuple[Link, StoredFile, tuple[int, int]]]) -> Iterator[ChainFinding]:
    """Whether the system times of slices, of which these are the first and the last, go on from one to the next."""
    times = SystemTimes()
    for link, file, own in slices:
        try:
            times.follow(own)
        except IntegrityError as error:
            yield finding_of("slice", link, file.key, str(error).rstrip("."))


def _check_taken_back(
    dataset: RemoteDataset, slices: Sequence[tuple[Link, StoredFile, bool]], state: ChainState
) -> Iterator[ChainFinding]:
    """Whether what the slices of a history, all of them, take back was there."""
    schema = state.arrow_schema()
    if schema is None or not any(takes_back for _, _, takes_back in slices):
        return
    read = [(partial(_batches, dataset, file), takes_back) for _, file, takes_back in slices]
    for place, offset in taken_back_in_vain(read, schema, state.columns).items():
        link, file, _ = slices[place]
        problem = f"the record at offset {offset} takes back a row that is not there"
        yield finding_of("slice", link, file.key, problem)


def _batches(dataset: RemoteDataset, file: StoredFile) -> Iterator[pa.RecordBatch]:
    with TemporaryFolder() as folder:
        path = dataset.store.local_path(file.key)
        if path is None:
            path = folder / "slice"
            _fetch(dataset, file, path)
        with pq.ParquetFile(path) as opened:
            yield from opened.iter_batches()


def slice_in(link: Link, file: StoredFile) -> DataSlice | None:
    """What a block says of a file, if that is its slice."""
    found = link.block.new_data
    return found if found is not None and found.physical_hash == file.physical_hash else None


@dataclass(frozen=True, slots=True)
class _CheckedFiles:
    """How a file differs from what its block says, or why part of it could not be compared."""

    problem: str | None = None
    records_match: bool = False
    unchecked: str | None = None
    times: tuple[int, int] | None = None
    takes_back: bool = False


def _check_file(
    dataset: RemoteDataset,
    file: StoredFile,
    data: DataSlice | None,
    schema: SetDataSchema | None,
    state: ChainState | None,
) -> _CheckedFiles:
    with TemporaryFolder() as folder:
        # What is far away is fetched once: its bytes are hashed as they pass, and its records are read here.
        copy = folder / "slice" if data is not None and state is not None else None
        problem, path = _compare_bytes(dataset, file, copy)
        if data is None:
            return _CheckedFiles(problem)
        if problem is not None:
            match = _logical_hash(dataset, file.key, schema) == data.logical_hash
            problem += "; its records have the logical hash that the block states" if match else ""
            return _CheckedFiles(problem, records_match=match)
        columns = state.arrow_schema() if state is not None else None
        if state is None or columns is None or path is None:
            return _CheckedFiles()
        return _check_records(path, data, columns, state.columns)


def _check_records(path: Path, data: DataSlice, stated: pa.Schema, columns: EventColumns) -> _CheckedFiles:
    try:
        records = SliceRecords(data, stated, columns)
        with pq.ParquetFile(path) as opened:
            for batch in opened.iter_batches():
                records.update(batch)
        proven = records.finish() is not None
        unproven = None if proven else "structs in them are null, and then their logical hash proves nothing"
        return _CheckedFiles(unchecked=unproven, times=records.times, takes_back=records.takes_back)
    except UnsupportedType as error:
        return _CheckedFiles(unchecked=str(error))
    except IntegrityError as error:
        return _CheckedFiles(str(error).rstrip("."))
    except (pa.ArrowException, OSError, ValueError) as error:
        return _CheckedFiles(f"it cannot be read as a slice of events: {error!s:.200}")


def _compare_bytes(dataset: RemoteDataset, file: StoredFile, copy: Path | None) -> tuple[str | None, Path | None]:
    """How a file differs from what its block says of it, in size, then in its bytes; and where it is on this machine.

    A file of another machine is copied to ``copy``.
    """
    try:
        path = dataset.store.local_path(file.key)
        if path is None:
            _fetch(dataset, file, copy)
            return None, copy
        with path.open("rb") as opened:
            size = os.fstat(opened.fileno()).st_size
            if size != file.size:
                return f"it has {size} bytes, not {file.size}", path
            digest = hashlib.file_digest(opened, "sha3_256").digest()
    except (FileNotFoundError, ObjectNotFound):
        return "it is missing", None
    except (IsADirectoryError, NotADirectoryError):
        return "it is no file", None
    except (IntegrityError, InvalidInput) as error:
        return str(error), None
    except OSError as error:
        raise StoreUnavailable(
            f"{file.key} of {dataset.store.uri} cannot be read ({error.strerror}), so nothing is known of it. Check "
            "who may read it, and the room for temporary files, and run again."
        ) from None
    found = Multihash(HashAlgorithm.SHA3_256, digest)
    return (None if found == file.physical_hash else f"its bytes have the hash {found}"), path


def _fetch(dataset: RemoteDataset, file: StoredFile, copy: Path | None) -> None:
    if copy is None:
        for _ in dataset.pieces(file):
            pass
        return
    with copy.open("wb") as opened:
        opened.writelines(dataset.pieces(file))


def _logical_hash(dataset: RemoteDataset, key: str, schema: SetDataSchema | None) -> Multihash | None:
    """The hash of the records in a slice's file; ``None`` where it cannot be read as one, or is too large to fetch."""
    if schema is None:
        return None
    try:
        path = dataset.store.local_path(key)
        if path is not None:
            source: Any = path
        else:
            data = dataset.store.get_range(key, 0, _MOST_IN_MEMORY + 1)
            if len(data) > _MOST_IN_MEMORY:
                return None
            source = arrow_reader(data)
        digest = Arrow0(arrow_schema(schema))
        with pq.ParquetFile(source) as opened:
            for batch in opened.iter_batches():
                digest.update(batch)
    except (pa.ArrowException, OSError, ValueError, MemoryError, VersionedError):
        return None
    return digest.digest()


def check_log(log: Snapshot, end: ChainState, files: Sequence[tuple[Link, StoredFile]]) -> Iterator[ChainFinding]:
    """Whether readers of a table's log are led to the slices of the chain, all of them, and to nothing else."""
    slices = {file.key: (link, file) for link, file in files if file.key.startswith(SLICES)}
    listed = {add.key: add for add in log.adds()}
    for key in sorted(listed.keys() - slices.keys()):
        yield ChainFinding("log", None, None, key, "the log lists it among the events, and no block names it")
    for key, (link, file) in slices.items():
        add = listed.get(key)
        if add is None:
            yield finding_of("log", link, key, "the log does not list it, so readers miss its events")
        elif add.size != file.size or add.deletion_vector is not None:
            yield finding_of("log", link, key, "the log does not list it whole")
    if problem := _other_columns(log, end):
        yield ChainFinding("log", None, None, "", problem)


def _other_columns(log: Snapshot, end: ChainState) -> str | None:
    """How the columns of a log differ from the chain's, those of none where it states none."""
    columns = end.arrow_schema()
    try:
        stated = () if columns is None else table_columns(columns, end.columns).fields
    except InvalidInput as error:
        return str(error)
    expected, found = _types(stated), _types(log.schema.fields)
    differing = sorted(name for name in {**expected, **found} if found.get(name) != expected.get(name))
    renamed = [field.name for field in log.schema.fields if any("columnMapping" in name for name in field.metadata)]
    names = differing or renamed
    return f"the log has other columns than the chain: {', '.join(names):.300}" if names else None


def _types(fields: Sequence[StructField]) -> dict[str, DataType]:
    return {field.name: field.type for field in fields}


def taken_back_in_vain(
    slices: Sequence[tuple[Batches, bool]], schema: pa.Schema, columns: EventColumns
) -> dict[int, int]:
    """The first record of each slice that takes back a row which is not there then: its offset, by the slice's place.

    ``slices`` are all of a history, the oldest first, each with whether it takes anything back; ``schema`` are its
    columns as they are now. One that takes back in vain changes nothing for those after it.

    Rows are compared by two hashes of their data, sorted, without their key; only those are held in memory that have
    the data of one that is taken back. Whoever wrote the history does not know the secret key of the hashes, which is
    another one each time. Event times are not compared: a retraction may say when it happened.
    Source: seed 002 ("Representation of Retractions and Corrections").
    """
    rows = _Rows(schema, columns)
    taken = [
        first[np.isin(operations, _TAKES_BACK)]
        for read, takes_back in slices
        if takes_back
        for operations, _, first, _ in map(rows.of, read())
    ]
    if not taken:
        return {}
    wanted = np.unique(np.concatenate(taken))
    found: list[tuple[npt.NDArray[Any], ...]] = []
    for place, (read, _) in enumerate(slices):
        for operations, offsets, first, second in map(rows.of, read()):
            chosen = np.isin(first, wanted)
            change = np.where(np.isin(operations[chosen], _TAKES_BACK), -1, 1)
            found.append((first[chosen], second[chosen], offsets[chosen], change, np.full(len(change), place)))
    firsts, seconds, offsets, changes, places = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
    order = np.lexsort((offsets, seconds, firsts))
    vain = order[_below(firsts[order], seconds[order], changes[order])]
    result: dict[int, int] = {}
    for at in sorted(vain.tolist(), key=lambda at: int(offsets[at])):
        result.setdefault(int(places[at]), int(offsets[at]))
    return result


def _below(firsts: npt.NDArray[Any], seconds: npt.NDArray[Any], changes: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Where a sum, which begins at each pair of hashes, falls below zero, deeper than it did before."""
    begins = np.concatenate([[True], (firsts[1:] != firsts[:-1]) | (seconds[1:] != seconds[:-1])])
    group = np.cumsum(begins) - 1
    sums = np.cumsum(changes)
    sums = sums - (sums - changes)[begins][group]
    # Each group lies below all of those before it, so that one running minimum serves all.
    floor = -group * (2 * len(sums) + 1)
    lowest = np.minimum.accumulate(np.minimum(sums, 0) + floor)
    before = np.where(begins, floor, np.concatenate([[0], lowest[:-1]]))
    return lowest < before


class _Rows:
    """The operation, the offset and the two hashes of the data of each record, in columns that the history has now."""

    def __init__(self, schema: pa.Schema, columns: EventColumns) -> None:
        fields: list[Any] = [schema.field(name) for name in schema.names if name not in columns.names]
        self._data: list[Any] = [field for field in fields if _has_hash(field)]
        self._columns = columns
        self._key = fresh_key()

    def of(self, batch: pa.RecordBatch) -> tuple[npt.NDArray[Any], ...]:
        nothing: Any = pa.nulls
        held: list[Any] = [
            cast("Any", batch.column(field.name)).cast(field.type)
            if field.name in batch.schema.names
            else nothing(batch.num_rows, field.type)  # a column that came later
            for field in self._data
        ]
        first, second = row_lanes(pa.RecordBatch.from_arrays(held, schema=pa.schema(self._data)), self._key)
        numbers: list[Any] = [
            batch.column(name).cast(pa.int64()).to_numpy(zero_copy_only=False)
            for name in (self._columns.operation_type, self._columns.offset)
        ]
        return numbers[0], numbers[1], first, second


def _has_hash(field: Any) -> bool:
    """Whether a column can be compared; what no table of ours holds cannot, and is passed over."""
    try:
        row_lanes(pa.RecordBatch.from_arrays(cast("list[Any]", [pa.nulls(0, field.type)]), names=[field.name]))
    except UnsupportedType:
        return False
    return True
