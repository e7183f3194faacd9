"""Parts of a store as files of which only what is asked for is fetched: footers, and the rows that are deleted."""

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dagster_versioned.delta.files.deletion_vectors import deleted_rows
from dagster_versioned.engines.scan import Scan, ScanFile
from dagster_versioned.storage.object_store import ObjectStore


def ranges(store: ObjectStore, file: ScanFile) -> pa.NativeFile:
    """A file of the store, of which only what is asked for is fetched."""
    return pa.PythonFile(_Ranges(store, file), mode="r")


class _Ranges(io.RawIOBase):
    """An object as a file, read in ranges."""

    def __init__(self, store: ObjectStore, file: ScanFile) -> None:
        self._store = store
        self._file = file
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._file.size}[whence]
        self._position = start + offset
        return self._position

    def read(self, size: int = -1) -> bytes:
        length = self._file.size - self._position if size < 0 else size
        data = self._store.get_range(self._file.key, self._position, length)
        self._position += len(data)
        return data


def positions(scan: Scan, index: int) -> NDArray[np.int64]:
    """The deleted rows of one file, checked against the number of rows in its footer. Raises `IntegrityError`."""
    file = scan.files[index]
    metadata = pq.read_metadata(ranges(scan.store, file))
    assert file.deletion_vector is not None  # the caller chose such a file
    return deleted_rows(scan.store, file.deletion_vector, metadata.num_rows, file.key, file.vector_sha)
