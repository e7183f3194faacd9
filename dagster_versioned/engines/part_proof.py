"""Whether a part says of its rows what is true, for parts that somebody else wrote.

A reader passes over rows by bounds of row groups and pages, by dictionaries, Bloom filters, the order of rows and the
positions of row groups, each reader by others. So they are not compared one by one: rows are encoded again by the
writer of parts, and equal bytes prove them all.
"""

import io
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from dagster_versioned.delta.files.arrow_memory import arrow_reader
from dagster_versioned.engines.parquet_part import PartEncoder, part_entries


class PartProof:
    """Encodes a part's rows again, row group by row group, and compares with its bytes; holds none of them.

    It ends at the first difference, which may well be honest: another release of the Parquet library, or of a
    compressor, writes other bytes. Not thread-safe; to be left by its context.
    """

    def __init__(self, path: Path, schema: pa.Schema, ordinal: int, partition: str | None) -> None:
        metadata = pq.read_metadata(path)
        # Parts are compressed in one way throughout; if this one is not, its bytes will differ.
        codec = metadata.row_group(0).column(0).compression if metadata.num_row_groups else "ZSTD"
        self._sink = _Comparison(path)
        compression = "none" if codec == "UNCOMPRESSED" else codec.lower()
        self._encoder = PartEncoder(self._sink, schema, compression, part_entries(ordinal, partition))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._sink.leave()

    def add(self, rows: pa.Table) -> None:
        """Encode the next row group: all of its rows, in the types of the schema."""
        if not self._sink.differs:
            self._encoder.write(rows.combine_chunks())

    def finish(self) -> bool:
        """Whether all bytes are equal."""
        self._encoder.close()
        return self._sink.is_whole()


class _Comparison(io.RawIOBase):
    """A file object that compares what is written with a file."""

    def __init__(self, path: Path) -> None:
        self.differs = False
        self._file = path.open("rb", buffering=0)
        self._size = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._size

    def write(self, data: Any) -> int:
        written = bytes(data)  # no copy of what is bytes already
        self.differs = self.differs or self._file.read(len(written)) != written
        self._size += len(written)
        return len(written)

    def is_whole(self) -> bool:
        """Whether the file has what was written, and ends there."""
        return not self.differs and not self._file.read(1)

    def leave(self) -> None:
        """Read no more, whatever a writer still writes when it is collected."""
        self.differs = True
        self._file.close()


def require_true_footer(path: Path) -> None:
    """Raise `ValueError` where the footer says of a row group what its rows are not: for bytes that `PartProof` cannot
    compare.

    Bounds may be wide. Counts and bounds of row groups are all that is looked at.
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
