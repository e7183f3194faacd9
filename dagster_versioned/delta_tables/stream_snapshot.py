"""The files that a stream begins with, in an order that stays, so that it takes some of them at a time.

Of a small log they are sorted by time, whatever the log is replayed from. Of a large one they come as its checkpoint
has them, a piece at a time, so that nobody ever holds them all; those that commits after it added come last.
"""

import hashlib
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dagster_versioned.delta.files.file_actions import identities
from dagster_versioned.delta.log.checkpoint_pieces import CheckpointPiece, checkpoint_pieces, is_larger
from dagster_versioned.delta.log.checkpoint_read import NOT_PLAIN, read_live_files
from dagster_versioned.delta.log.commits import LogSegment, list_log
from dagster_versioned.delta.log.replay import read_changes
from dagster_versioned.delta.log.snapshot import load_snapshot
from dagster_versioned.delta.paths import compute
from dagster_versioned.errors import LogCorrupt, ObjectNotFound, VersionedError
from dagster_versioned.storage.object_store import ObjectStore

_KEPT_PIECES = 2
"""The one in use, and the next one where a batch ends in it."""


@dataclass(frozen=True, slots=True)
class LiveFiles:
    """Some files of the snapshot: those of ``table`` (as `files.FILES`) at ``rows``, the first of all at ``start``.

    ``piece`` is what they are read from again, ``None`` for what is in commits.
    """

    start: int
    table: pa.Table
    rows: NDArray[np.int64]
    piece: CheckpointPiece | None = None

    @property
    def files(self) -> pa.Table:
        return self.table.take(pa.array(self.rows, pa.int64()))

    @property
    def sizes(self) -> NDArray[np.int64]:
        """In bytes, of each."""
        return self.table["size"].to_numpy()[self.rows]

    @property
    def indices(self) -> NDArray[np.int64]:
        """The index of each."""
        return self.start + self.rows


class SnapshotByTime:
    """All files of a version, in memory. Raises as `load_snapshot`. ``end`` is the index after the last."""

    def __init__(self, store: ObjectStore, version: int) -> None:
        files = load_snapshot(store, version).files
        for name in NOT_PLAIN:
            absent: list[Any] = [pa.nulls(files.num_rows, files[name].type)]
            files = files.set_column(files.column_names.index(name), name, absent)
        self._files = _by_time(files)
        self.end = files.num_rows

    def between(self, first: int, last: int) -> Iterator[LiveFiles]:
        """The files from one index to before another."""
        last = min(last, self.end)
        if first < last:
            yield LiveFiles(0, self._files, np.arange(first, last))


class SnapshotByCheckpoint:
    """The files of a version as its checkpoint has them, at most two pieces of which are in memory.

    The index of a file is its place in its piece, behind the rows of the pieces before. ``checkpoint`` is that of a
    version, and ``etag`` of its files; raises `VersionedError` where it is another one by now.
    """

    def __init__(self, store: ObjectStore, version: int, checkpoint: int, etag: str) -> None:
        segment = list_log(store, version, near=checkpoint)
        if segment.checkpoint is None or segment.checkpoint.version != checkpoint:
            segment = list_log(store, version, before=checkpoint + 1)
        found = segment.checkpoint
        if found is None or found.version != checkpoint or etag_of(segment) != etag:
            state = "no longer there" if found is None or found.version != checkpoint else "another one by now"
            raise VersionedError(
                f"The checkpoint of version {checkpoint} of {store.uri} is {state}. A stream takes the rows that it"
                " began with in its order, and has not read them all. What came until now is complete. Begin anew, with"
                " a new checkpoint of the query, or read the table as a batch."
            )
        self._store = store
        self._pieces = checkpoint_pieces(store, found, row_groups=1)[1]
        self._starts = [0, *accumulate(piece.rows for piece in self._pieces)]
        changes = read_changes(store, segment.commits)
        self._touched: Any = changes.touched
        self._added = _by_time(changes.adds)
        self._kept: OrderedDict[int, LiveFiles] = OrderedDict()
        self.end = self._starts[-1] + self._added.num_rows

    def between(self, first: int, last: int) -> Iterator[LiveFiles]:
        """As of `SnapshotByTime`; the indices of files that are gone are left out. Raises `LogCorrupt`, naming the file
        of the log."""
        last = min(last, self.end)
        number = bisect_right(self._starts, first) - 1
        while first < last:
            held = self._piece(number)
            low, high = np.searchsorted(held.rows, [first - held.start, last - held.start])
            if low < high:
                yield LiveFiles(held.start, held.table, held.rows[low:high], held.piece)
            number += 1
            first = self._starts[number] if number < len(self._starts) else last

    def _piece(self, number: int) -> LiveFiles:
        start = self._starts[number]
        if number == len(self._pieces):
            return LiveFiles(start, self._added, np.arange(self._added.num_rows))
        if number not in self._kept:
            piece = self._pieces[number]
            table = read_live_files(self._store, piece.key, piece.row_groups, piece.layout)
            gone = compute.is_in(identities(table), self._touched)
            (rows,) = np.nonzero(~gone.to_numpy(zero_copy_only=False))
            self._kept[number] = LiveFiles(start, table, rows, piece)
            if len(self._kept) > _KEPT_PIECES:
                self._kept.popitem(last=False)
        return self._kept[number]


StreamSnapshot = SnapshotByTime | SnapshotByCheckpoint
"""The files of a snapshot by index."""


def large_checkpoint(store: ObjectStore, version: int, large: int) -> tuple[int, str] | None:
    """Version and ETag of the checkpoint in whose order the files of ``version`` are streamed: one with more than
    ``large`` file actions, every file of which is there. Raises `TableNotFound`, `VersionNotFound`."""
    segment = list_log(store, version)
    try:
        found = segment.checkpoint
        if found is None or not is_larger(store, found, large):
            return None
        checkpoint_pieces(store, found, row_groups=1)
    except (LogCorrupt, ObjectNotFound):
        return None  # There may be an older one, which the replay in one process finds.
    return found.version, etag_of(segment)


def etag_of(segment: LogSegment) -> str:
    """One for all files of the segment's checkpoint; its sidecars have names that nothing else ever has."""
    assert segment.checkpoint is not None
    etags = segment.etags[: len(segment.checkpoint.keys)]
    return hashlib.sha256("\n".join(etags).encode()).hexdigest()[:16]


def _by_time(files: pa.Table) -> pa.Table:
    return files.sort_by([("modificationTime", "ascending"), ("path", "ascending")])
