"""What the format ``versioned`` does in Spark's tasks: files of a scan are read, small ones together."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from dagster_versioned.delta.actions import DeletionVector
from dagster_versioned.delta_tables.spark.planned_rows import OPEN_BYTES, TASK_BYTES
from dagster_versioned.engines.arrow.scan import stream_table
from dagster_versioned.engines.scan import Scan, ScanFile

_MEMBERS = [member.name for member in fields(ScanFile)]
_VECTORS = [member.name for member in fields(ScanFile) if "DeletionVector" in str(member.type)]
"""Members of a file that are vectors."""


class FilesReader:
    """Reads the files of its partitions, on executors, as ``scan`` has them."""

    def __init__(self, scan: Scan) -> None:
        self.scan = replace(scan, files=())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        plain: Sequence[dict[str, Any]] = partition.value or ()
        yield from stream_table(replace(self.scan, files=tuple(_file(file) for file in plain)))


class TableReader(FilesReader, DataSourceReader):
    """Reads a table's files at one version."""

    def __init__(self, scan: Scan) -> None:
        super().__init__(scan)
        self.files = scan.files

    def partitions(self) -> Sequence[InputPartition]:
        return partitions_of(self.files)


def partitions_of(files: Iterable[ScanFile]) -> list[InputPartition]:
    """The files as tasks: in order, small ones together."""
    tasks: list[list[dict[str, Any]]] = []
    size = TASK_BYTES
    for file in files:
        cost = file.size + OPEN_BYTES
        if size + cost > TASK_BYTES:
            tasks.append([])
            size = 0
        tasks[-1].append(_plain(file))
        size += cost
    # Of built-in types alone: a stream's files are planned by another process than the code that reads them.
    return [InputPartition(task) for task in tasks]


def _plain(file: ScanFile) -> dict[str, Any]:
    """What `asdict` returns, which takes the longest of a batch's plan, as it copies what cannot change."""
    plain = {name: getattr(file, name) for name in _MEMBERS}
    vectors = {name: asdict(plain[name]) for name in _VECTORS if plain[name] is not None}
    return {**plain, "partition_values": dict(file.partition_values), **vectors}


def _file(plain: Mapping[str, Any]) -> ScanFile:
    vectors = {name: DeletionVector(**plain[name]) for name in _VECTORS if plain[name] is not None}
    # The members are those that `asdict` took from a `ScanFile`, of which the mapping has lost the types.
    return ScanFile(**{**plain, **vectors})  # pyright: ignore[reportArgumentType]
