"""An Arrow table in the place of a table's rows: what both have is not written again.

Rows are compared as wholes, without a key, by their hashes under a secret that is drawn once the frame is fixed. Of
each row of either side, deleted ones too, 16 bytes are in memory, and 16 more while rows that are in no common order
are looked up; and two parts.
"""

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dagster_versioned.delta.files.deletion_vectors import deleted_rows
from dagster_versioned.engines.arrow.scan import read_table, stream_table
from dagster_versioned.engines.arrow.upsert import feed_rows, mask_of
from dagster_versioned.engines.parts import StagedParts
from dagster_versioned.engines.refresh import FileRows, are_worth_it, files_to_rewrite
from dagster_versioned.engines.scan import Scan, ScanFile
from dagster_versioned.engines.upsert import Positions, Upsert, nothing
from dagster_versioned.errors import IntegrityError
from dagster_versioned.identity.compiled import Lanes
from dagster_versioned.identity.digest import Sums, fresh_key, row_lanes
from dagster_versioned.identity.matching import match_rows

_AT_ONCE = 2
"""Parts that are hashed at once, with the frame."""


def refresh_table(
    frame: pa.Table,
    base: Scan,
    write: Callable[[pa.Table], StagedParts],
    sums_of: Callable[[StagedParts, bytes], Sums],
    *,
    writes_feed: bool,
) -> Upsert | None:
    """`Engine.refresh` of a table in the canonical types of the scan's schema."""
    if not are_worth_it(file.size for file in base.files):
        return None
    key = fresh_key()
    starts = np.cumsum([0, *(_count(base, file) for file in base.files)])
    new, old = _no_lanes(frame.num_rows), _no_lanes(int(starts[-1]))
    stored = [_Rows.of(old, start, end) for start, end in pairwise(starts.tolist())]
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="refresh") as pool:
        hashing = pool.submit(_hash_rows, frame.to_batches(), new, key)
        list(pool.map(partial(_hash_file, base, key), base.files, stored))
        hashing.result()
    taken = np.concatenate([rows.deleted for rows in stored])
    known = match_rows(new, old, taken)
    stays = [part & ~rows.deleted for part, rows in zip(np.split(taken, starts[1:-1]), stored, strict=True)]
    inserted = frame.num_rows - int(np.count_nonzero(known))
    counts = [rows.counted(stay) for rows, stay in zip(stored, stays, strict=True)]
    rewritten = files_to_rewrite(counts, inserted)
    if rewritten is None:
        return None
    deleted = {
        base.files[i].key: np.flatnonzero(~stays[i])
        for i, count in enumerate(counts)
        if count.going and i not in rewritten
    }
    comes = frame.filter(mask_of(~known))
    written = write(
        pa.concat_tables(
            [*(_physical(base, base.files[i]).filter(mask_of(stays[i])) for i in sorted(rewritten)), comes]
        )
    )

    def stands(vectors: Mapping[str, Positions]) -> bool:
        sums = [sums_of(written, key)]
        for i, file in enumerate(base.files):
            if i not in rewritten:
                gone = vectors.get(file.key)
                sums.append(stored[i].sums(stored[i].deleted if gone is None else _at(gone, len(stays[i]))))
        return _added(sums) == _added([_Rows(new, np.zeros(len(new[0]), np.bool_)).sums()])

    def changes() -> StagedParts:
        gone = [
            _physical(base, file).filter(mask_of(~stays[i] & ~stored[i].deleted))
            for i, file in enumerate(base.files)
            if counts[i].going
        ]
        return write(pa.concat_tables([*(feed_rows(rows, "delete") for rows in gone), feed_rows(comes, "insert")]))

    return Upsert(
        frozenset(base.files[i].key for i in rewritten),
        nothing(base.schema),
        written,
        inserted=inserted,
        updated=0,
        removed=sum(count.going for count in counts),
        deleted=deleted,
        changes=changes if writes_feed else None,
        stands=stands,
    )


@dataclass(frozen=True)
class _Rows:
    """The hashes of rows, and which of them are deleted."""

    lanes: Lanes
    deleted: NDArray[np.bool_]

    @classmethod
    def of(cls, lanes: Lanes, start: int, end: int) -> Self:
        """The rows from one position to another, of which none is deleted yet."""
        return cls((lanes[0][start:end], lanes[1][start:end]), np.zeros(end - start, np.bool_))

    def counted(self, stays: NDArray[np.bool_]) -> FileRows:
        """How many there are, once some of them stay."""
        deleted = int(np.count_nonzero(self.deleted))
        return FileRows(len(stays), deleted, len(stays) - deleted - int(np.count_nonzero(stays)))

    def sums(self, without: NDArray[np.bool_] | None = None) -> Sums:
        """The sums of both hashes, and the number, of those that are not deleted, or not among others."""
        left = ~(self.deleted if without is None else without)
        first, second = (int(lane.sum(where=left)) for lane in self.lanes)
        return first, second, int(np.count_nonzero(left))


def _count(base: Scan, file: ScanFile) -> int:
    if file.num_records is None:
        raise IntegrityError(f"The part {file.key} in {base.store.uri} has no number of rows in the log.")
    return file.num_records


def _hash_file(base: Scan, key: bytes, file: ScanFile, rows: _Rows) -> None:
    """Fill in the hashes of all rows of a file, and which are deleted. Raises `IntegrityError`."""
    _hash_rows(stream_table(replace(base, files=(_whole(file),))), rows.lanes, key)
    if (vector := file.deletion_vector) is not None:
        count = len(rows.deleted)
        rows.deleted[deleted_rows(base.store, vector, count, file.key, file.vector_sha)] = True


def _no_lanes(count: int) -> Lanes:
    return np.empty(count, np.uint64), np.empty(count, np.uint64)


def _hash_rows(batches: Iterable[pa.RecordBatch], lanes: Lanes, key: bytes) -> None:
    """Fill in the hashes of rows. Raises `IntegrityError` where they are more or fewer than there is room for."""
    (first, second), end = lanes, 0
    for batch in batches:
        start, end = end, end + batch.num_rows
        if end <= len(first):
            first[start:end], second[start:end] = row_lanes(batch, key)
    if end != len(first):
        raise IntegrityError(f"A part has {end} rows, but {len(first)} by its statistics.")


def _whole(file: ScanFile) -> ScanFile:
    return replace(file, deletion_vector=None, vector_sha=None)


def _physical(base: Scan, file: ScanFile) -> pa.Table:
    """All rows of a file, deleted ones too."""
    return read_table(replace(base, files=(_whole(file),)))


def _at(positions: Positions, count: int) -> NDArray[np.bool_]:
    rows = np.zeros(count, np.bool_)
    rows[positions] = True
    return rows


def _added(sums: list[Sums]) -> Sums:
    first, second, count = (sum(each) for each in zip(*sums, strict=True))
    return first % 2**64, second % 2**64, count
